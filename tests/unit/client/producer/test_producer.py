"""The producer against a broker that does what it is told: results, retries, budgets, order, life."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import pytest
from tests.unit.client.fake import Fake, FakeBroker, in_loop, until

from rocketspark.client import AsyncProducer, SendStatus
from rocketspark.errors import ConfigError, MessageIllegal, NotSent, RouteNotFound, SendFailed, StateError
from rocketspark.model import Message, MessageQueue
from rocketspark.protocol.codes import RESPONSES, RequestCode
from rocketspark.protocol.message import compression, properties, record

pytestmark = pytest.mark.shows(
    "sends: sync, asyncio, futures, one-way; to a queue, by selector, by sharding key in order; batches with "
    "`split`; one budget; system topics refused",
    "retries by code table, settable; statuses; two tables of fault tolerance, detector",
)

SEND = RequestCode.SEND_MESSAGE_V2


def failing(*codes: int) -> Any:
    """A rule that answers with these codes first, one per send."""
    left = list(codes)
    return lambda header, body: (left.pop(0), "as told") if left else None


@in_loop
async def test_send_and_what_arrives() -> None:
    async with Fake(t=4) as fake, AsyncProducer(fake.namesrv, "pg") as producer:
        message = Message(topic="t", body=b"body", tag="A", keys=["k"], properties={"p": "q"}, flag=9)
        before = repr(message)
        result = await producer.send(message)
        assert repr(message) == before
        assert (result.status, result.queue_offset) == (SendStatus.SEND_OK, 0)
        assert result.queue.topic == "t"
        stored = record.decode(fake.broker.queues["t", result.queue.queue_id][0])
        assert (stored.body, stored.flag) == (b"body", 9)
        pairs = properties.decode(stored.properties.decode())
        assert pairs == {"UNIQ_KEY": result.message_id, "WAIT": "true", "TAGS": "A", "KEYS": "k", "p": "q"}
        assert result.transaction_id == result.message_id
        header = fake.broker.sends[0]
        assert (header.producer_group, header.default_topic, header.default_topic_queue_count) == ("pg", "TBW102", 4)
        assert abs(header.born_time_ms - time.time() * 1000) < 5000


@in_loop
async def test_short_form() -> None:
    async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "pg") as producer:
        await producer.send("t", b"body", tag="A", keys="k", properties={"a": "b"}, delay_level=2)
        pairs = properties.decode(fake.broker.sends[0].properties)
        assert (pairs["TAGS"], pairs["KEYS"], pairs["a"], pairs["DELAY"]) == ("A", "k", "b", "2")
        with pytest.raises(MessageIllegal, match="no body"):
            await producer.send("t")


@in_loop
async def test_queues_take_turns() -> None:
    async with Fake(2, t=2, u=2) as fake, AsyncProducer(fake.namesrv, "pg") as producer:
        sent: Counter[MessageQueue] = Counter()
        for _ in range(8):
            sent[(await producer.send("t", b"x")).queue] += 1
            await producer.send("u", b"x")
        assert sent == {MessageQueue("t", b, i): 2 for b in ("broker-a", "broker-b") for i in (0, 1)}
        assert await producer.queues("t") == sorted(sent)


@in_loop
async def test_a_large_body_is_compressed_and_inflates_again() -> None:
    async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "pg", compress_over_bytes=100) as producer:
        await producer.send("t", b"z" * 1000)
        stored = record.decode(fake.broker.queues["t", 0][0])
        assert stored.sys_flag == 0x301
        assert len(stored.body) < 100
        assert compression.inflate(stored.body, stored.sys_flag) == b"z" * 1000


@pytest.mark.shows("Producer, AsyncProducer: send, one-way, batch, queue, sharding key")
@in_loop
async def test_batch_and_oneway() -> None:
    async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "pg") as producer:
        result = await producer.send_batch([Message(topic="t", body=b"%d" % i) for i in range(3)])
        assert len(result.message_id.split(",")) == len(set(result.offset_message_id.split(","))) == 3
        assert result.queue_offset == 0
        await producer.send_oneway("t", b"3")
        await until(lambda: len(fake.broker.queues["t", 0]) == 4)
        assert [record.decode(r).body for r in fake.broker.queues["t", 0]] == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize(
    ("code", "status"),
    [(10, "FLUSH_DISK_TIMEOUT"), (11, "SLAVE_NOT_AVAILABLE"), (12, "FLUSH_SLAVE_TIMEOUT")],
)
def test_stored_but_less_safe_is_a_result(code: int, status: str) -> None:
    @in_loop
    async def run() -> None:
        async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "pg") as producer:
            fake.broker.reply_code = code
            assert (await producer.send("t", b"x")).status == status
            assert fake.broker.requests[SEND] == 1

    run()


@pytest.mark.parametrize("code", sorted(set(RESPONSES) - {0, 10, 11, 12}))
def test_the_code_table_alone_says_what_is_tried_again(code: int) -> None:
    @in_loop
    async def run() -> None:
        async with Fake(2, t=1) as fake, AsyncProducer(fake.namesrv, "pg") as producer:
            for broker in fake.brokers:
                broker.rules[SEND] = failing(*[code] * 9)
            with pytest.raises(SendFailed) as caught:
                await producer.send("t", b"x")
            attempts = 3 if RESPONSES[code].retriable else 1
            assert sum(b.requests[SEND] for b in fake.brokers) == attempts
            assert (caught.value.topic, caught.value.attempts, caught.value.code) == ("t", attempts, code)
            assert len(caught.value.brokers) == attempts
            assert caught.value.retriable == RESPONSES[code].retriable
            assert caught.value.cost_ms < 3000

    run()


@in_loop
async def test_a_retry_goes_to_another_broker() -> None:
    async with Fake(2, t=4) as fake, AsyncProducer(fake.namesrv, "pg") as producer:
        for broker in fake.brokers:
            broker.rules[SEND] = failing(1)
        for _ in range(2):
            fake.brokers[0].rules[SEND] = failing(1)
            result = await producer.send("t", b"x")
            assert result.status == SendStatus.SEND_OK
        brokers = [fake.brokers[0].requests[SEND], fake.brokers[1].requests[SEND]]
        assert sum(brokers) >= 3


@in_loop
async def test_a_dead_broker_is_left_for_another() -> None:
    async with Fake(2, t=1) as fake, AsyncProducer(fake.namesrv, "pg") as producer:
        await producer.queues("t")
        await fake.brokers[0].server.close()
        started_s = time.monotonic()
        for _ in range(4):
            assert (await producer.send("t", b"x")).queue.broker_name == "broker-b"
        assert time.monotonic() - started_s < 50


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketspark.client.producer.send_attempts.PAUSE_S", (0.01,))


@pytest.mark.usefixtures("short_pauses")
@in_loop
async def test_a_chosen_queue_is_never_left() -> None:
    async with Fake(2, t=4) as fake, AsyncProducer(fake.namesrv, "pg") as producer:
        queue = MessageQueue("t", "broker-b", 2)
        fake.brokers[1].rules[SEND] = failing(14)
        assert (await producer.send("t", b"x", queue=queue)).queue == queue
        assert fake.brokers[1].requests[SEND] == 2
        fake.brokers[1].rules[SEND] = failing(14, 14, 14)
        with pytest.raises(SendFailed) as caught:
            await producer.send("t", b"x", queue=queue)
        assert caught.value.brokers == ("broker-b",) * 3
        assert fake.brokers[0].requests[SEND] == 0
        with pytest.raises(RouteNotFound, match="broker-z"):
            await producer.send("t", b"x", queue=MessageQueue("t", "broker-z", 0))


@in_loop
async def test_one_budget_over_all_attempts() -> None:
    async with Fake(2, t=1) as fake, AsyncProducer(fake.namesrv, "pg", send_timeout_ms=300) as producer:
        for broker in fake.brokers:
            broker.silent.add(SEND)
        started_s = time.monotonic()
        with pytest.raises(SendFailed, match="no reply within") as caught:
            await producer.send("t", b"x")
        assert 0.25 < time.monotonic() - started_s < 50
        assert (caught.value.attempts, caught.value.code) == (1, 10002)
        started_s = time.monotonic()
        with pytest.raises(SendFailed):
            await producer.send("t", b"x", timeout_ms=50)
        assert time.monotonic() - started_s < 50


@in_loop
async def test_the_budget_holds_for_the_route_too() -> None:
    async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "pg") as producer:
        fake.names.delay_s = 60
        started_s = time.monotonic()
        with pytest.raises(NotSent, match="route of topic 't'"):
            await producer.send("t", b"x", timeout_ms=100)
        assert time.monotonic() - started_s < 50


@in_loop
async def test_routes_and_heartbeats_are_kept_up() -> None:
    async with (
        Fake(t=1) as fake,
        AsyncProducer(fake.namesrv, "pg", route_interval_ms=10, heartbeat_interval_ms=10) as producer,
    ):
        await producer.send("t", b"x")
        await until(lambda: fake.names.fetches["t"] > 3 and len(fake.broker.heartbeats) > 3)
        fake.names.topics["t"] = {"broker-a": 3}
        await until(lambda: len(producer._routes.write_queues("t")) == 3)


@in_loop
async def test_a_broker_that_restarts_within_the_budget_loses_nothing() -> None:
    async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "pg") as producer:
        await producer.send("t", b"before")
        port = fake.broker.server.port
        await fake.broker.server.close()
        sending = asyncio.ensure_future(producer.send("t", b"after"))
        await asyncio.sleep(0.1)
        fake.brokers[0] = fake.broker = fake.names.brokers["broker-a"] = await FakeBroker().start(port)
        assert (await sending).status == SendStatus.SEND_OK
        assert [b.producer_data_set[0].group_name for b in fake.broker.heartbeats] == ["pg"]


@in_loop
async def test_a_missing_topic_makes_the_route_be_fetched_anew() -> None:
    async with Fake(2, t=1) as fake, AsyncProducer(fake.namesrv, "pg") as producer:
        await producer.send("t", b"x")
        fetched = fake.names.fetches["t"]
        fake.names.topics["t"] = {"broker-b": 1}
        fake.brokers[0].rules[SEND] = failing(*[17] * 9)
        for _ in range(3):
            assert (await producer.send("t", b"x")).queue.broker_name == "broker-b"
        assert fake.names.fetches["t"] == fetched + 1 or fake.brokers[0].requests[SEND] <= 1


@pytest.mark.usefixtures("short_pauses")
@in_loop
async def test_sends_of_one_sharding_key_keep_their_order() -> None:
    async with Fake(t=4) as fake, AsyncProducer(fake.namesrv, "pg") as producer:
        # Some fail at first: without waiting, their successors would overtake them.
        to_fail = {b"%d" % i for i in range(2, 30, 4)}

        def once(header: Any, body: bytes) -> tuple[int, str] | None:
            if bytes(body) not in to_fail:
                return None
            to_fail.remove(bytes(body))
            return 14, "later"

        fake.broker.rules[SEND] = once
        keys = ("x", "y", "z")
        await asyncio.gather(
            *(producer.send("t", b"%d" % i, sharding_key=keys[i % 3], timeout_ms=9000) for i in range(30))
        )
        for n, key in enumerate(keys):
            of_key = [
                int(record.decode(r).body)
                for (_, _), queue in sorted(fake.broker.queues.items())
                for r in queue
                if properties.find(record.decode(r).properties, b"__SHARDINGKEY") == key.encode()
            ]
            assert of_key == list(range(n, 30, 3))
        assert not to_fail


@in_loop
async def test_sharding_key_chooses_the_queue_by_hash() -> None:
    async with Fake(t=4) as fake, AsyncProducer(fake.namesrv, "pg") as producer:
        for key, queue_id in (("x", 0), ("order-1", 2), ("y", 1)):
            assert (await producer.send("t", b"x", sharding_key=key)).queue.queue_id == queue_id
        batch = [Message(topic="t", body=b"x", sharding_key="y")] * 2
        assert (await producer.send_batch(batch)).queue.queue_id == 1


@in_loop
async def test_life() -> None:
    async with Fake(t=1) as fake:
        producer = AsyncProducer(fake.namesrv, "pg")
        with pytest.raises(StateError, match="not started"):
            await producer.send("t", b"x")
        await producer.start()
        with pytest.raises(StateError):
            await producer.start()
        sending = asyncio.ensure_future(producer.send("t", b"x"))
        await asyncio.sleep(0)
        await producer.close()
        assert (await sending).status == SendStatus.SEND_OK
        with pytest.raises(StateError, match="closed"):
            await producer.send("t", b"x")
        await producer.close()
        assert [u.producer_group for u in fake.broker.unregistered] == ["pg"]
        assert fake.broker.heartbeats[0].client_id == producer.client_id
        assert producer.client_id.startswith("127.0.0.1@")
        await until(lambda: not fake.broker.server.peers)


@pytest.mark.shows("bad input: wrong address")
@in_loop
async def test_wrong_addresses_are_clear_errors() -> None:
    with pytest.raises(ConfigError, match="host:port"):
        AsyncProducer("nowhere", "pg")
    with pytest.raises(ConfigError, match="gzip"):
        AsyncProducer("127.0.0.1:1", "pg", compression="gzip")
    async with AsyncProducer("127.0.0.1:1", "pg") as producer:
        with pytest.raises(NotSent, match="no NameServer answers"):
            await producer.send("t", b"x")


@in_loop
async def test_unknown_topic() -> None:
    async with Fake(TBW102=8) as fake, AsyncProducer(fake.namesrv, "pg") as producer:
        result = await producer.send("new", b"x")
        assert result.queue.queue_id < 4
        with pytest.raises(RouteNotFound):
            await producer.queues("new")
        del fake.names.topics["TBW102"]
        with pytest.raises(RouteNotFound, match="'other'"):
            await producer.send("other", b"x")


@in_loop
async def test_a_cancelled_send_is_not_tried_again() -> None:
    async with Fake(2, t=1) as fake, AsyncProducer(fake.namesrv, "pg") as producer:
        for broker in fake.brokers:
            broker.silent.add(SEND)
        sending = asyncio.ensure_future(producer.send("t", b"x"))
        await until(lambda: sum(b.requests[SEND] for b in fake.brokers) == 1)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        for broker in fake.brokers:
            broker.silent.clear()
        await producer.send("t", b"y")
        assert sum(b.requests[SEND] for b in fake.brokers) == 2
