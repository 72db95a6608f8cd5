"""The producer's rules beyond a plain send: faults, statuses, bounds, selectors, namespaces, timers, look-ups."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from tests.unit.client.fake import Fake, in_loop, until
from tests.unit.client.producer.test_producer import SEND, failing

from rocketspark.client import AsyncProducer, SendStatus
from rocketspark.client.connection.instance import Instance
from rocketspark.client.connection.nameserver_discovery import where_to_look
from rocketspark.client.producer.latency_faults import FAULT_TABLES, FaultDetector, LatencyFaults
from rocketspark.client.producer.prepared_message import pack, split
from rocketspark.client.selectors import by_hash
from rocketspark.errors import (
    BrokerNotFound,
    ConfigError,
    MessageIllegal,
    NoNameServer,
    RequestTimedOut,
    RouteNotFound,
    SendFailed,
    TooManyInFlight,
    UsageError,
)
from rocketspark.model import Message, MessageQueue
from rocketspark.protocol.message import properties, record

pytestmark = pytest.mark.shows(
    "DefaultMQProducer's arguments and defaults; what is not there raises",
    "retries by code table, settable; statuses; two tables of fault tolerance, detector",
)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketspark.client.producer.send_attempts.PAUSE_S", (0.01,))


# -- faults and statuses ------------------------------------------------------------------------------------------


@in_loop
async def test_a_broker_that_failed_is_left_alone() -> None:
    async with Fake(2, t=4) as fake, AsyncProducer(fake.namesrv, "pg", fault_tolerance=True) as producer:
        fake.brokers[0].rules[SEND] = failing(1)
        for _ in range(9):
            await producer.send("t", b"x")
        # It was met once at most, and then left alone although it works again.
        assert fake.brokers[0].requests[SEND] == 1
        assert fake.brokers[1].requests[SEND] == 9


@in_loop
async def test_without_it_every_broker_has_its_turn() -> None:
    async with Fake(2, t=4) as fake, AsyncProducer(fake.namesrv, "pg") as producer:
        fake.brokers[0].rules[SEND] = failing(1)
        for _ in range(9):
            await producer.send("t", b"x")
        assert fake.brokers[0].requests[SEND] > 1


@in_loop
async def test_when_all_failed_the_least_bad_still_gets_its_sends() -> None:
    async with Fake(2, t=2) as fake, AsyncProducer(fake.namesrv, "pg", fault_tolerance=True, retries=1) as producer:
        for broker in fake.brokers:
            broker.rules[SEND] = failing(1)
        with pytest.raises(SendFailed):
            await producer.send("t", b"x")
        assert (await producer.send("t", b"x")).status is SendStatus.SEND_OK


@in_loop
async def test_the_detector_finds_a_broker_again() -> None:
    async with Fake(t=1) as fake:
        instance = Instance(fake.namesrv)
        await instance.start()
        await instance.routes.get("t")
        faults = LatencyFaults(FAULT_TABLES["5.x"])
        faults.failed("broker-a", 1, time.monotonic(), unreachable=True)
        faults.failed("broker-z", 1, time.monotonic(), unreachable=True)
        detector = FaultDetector(instance, faults, interval_s=0.01)
        detector.start()
        # The one without an address is nobody's concern any more.
        await until(lambda: not faults.unreachable)
        port = fake.broker.server.port
        await fake.broker.server.close()
        faults.failed("broker-a", 1, time.monotonic(), unreachable=True)
        await detector.look("broker-a")
        assert faults.unreachable == {"broker-a"}
        await fake.broker.server.start("127.0.0.1", port)
        await until(lambda: not faults.unreachable)
        detector.stop()
        await instance.close()


@in_loop
async def test_a_status_other_than_ok_goes_elsewhere_only_if_asked() -> None:
    async with Fake(2, t=1) as fake, AsyncProducer(fake.namesrv, "pg", retry_not_stored=True) as producer:
        for broker in fake.brokers:
            broker.reply_code = 10
        result = await producer.send("t", b"x")
        # What was stored is returned, not raised, once the attempts are used up.
        assert result.status is SendStatus.FLUSH_DISK_TIMEOUT
        assert sum(b.requests[SEND] for b in fake.brokers) == 3
        fake.brokers[1].reply_code = 0
        assert (await producer.send("t", b"x")).status is SendStatus.SEND_OK
        queue = MessageQueue("t", "broker-a", 0)
        before = fake.brokers[1].requests[SEND]
        assert (await producer.send("t", b"x", queue=queue)).status is SendStatus.FLUSH_DISK_TIMEOUT
        assert fake.brokers[1].requests[SEND] == before


@in_loop
async def test_the_set_of_codes_can_be_given() -> None:
    async with Fake(2, t=1) as fake, AsyncProducer(fake.namesrv, "pg", retry_codes=[13]) as producer:
        for broker in fake.brokers:
            broker.rules[SEND] = failing(13)
        assert (await producer.send("t", b"x")).status is SendStatus.SEND_OK
        fake.brokers[0].rules[SEND] = fake.brokers[1].rules[SEND] = failing(1, 1)
        with pytest.raises(SendFailed) as caught:
            await producer.send("t", b"x")
        assert (caught.value.attempts, caught.value.code, caught.value.remark) == (1, 1, "as told")


# -- bounds -------------------------------------------------------------------------------------------------------


@pytest.mark.shows("bounds of what is in flight, by count and bytes")
@in_loop
async def test_what_is_in_flight_is_bounded() -> None:
    async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "pg", in_flight_max=2, retries=0) as producer:
        await producer.send("t", b"x")
        fake.broker.silent.add(SEND)
        sends = [asyncio.ensure_future(producer.send("t", b"x", timeout_ms=400)) for _ in range(2)]
        await until(lambda: fake.broker.requests[SEND] == 3)
        with pytest.raises(TooManyInFlight, match="2 requests of 2 bytes"):
            await producer.send("t", b"x", timeout_ms=20)
        # One-way sends have a bound of their own.
        await producer.send_oneway("t", b"x")
        await until(lambda: fake.broker.requests[SEND] == 4)
        fake.broker.silent.clear()
        later = asyncio.ensure_future(producer.send("t", b"later"))
        for sending in sends:
            with pytest.raises(SendFailed):
                await sending
        assert (await later).status is SendStatus.SEND_OK


# -- selectors, namespaces ------------------------------------------------------------------------------------------


@in_loop
async def test_a_selector_chooses_and_its_queue_is_not_left() -> None:
    async with Fake(2, t=4) as fake, AsyncProducer(fake.namesrv, "pg") as producer:
        result = await producer.send("t", b"x", selector=by_hash, argument=5)
        assert result.queue == MessageQueue("t", "broker-b", 1)
        fake.brokers[1].rules[SEND] = failing(1)
        assert (await producer.send("t", b"x", selector=by_hash, argument=5)).queue == result.queue
        await producer.send_oneway("t", b"y", selector=lambda queues, message, argument: queues[-1])
        await until(lambda: fake.brokers[1].queues["t", 3])
        with pytest.raises(UsageError, match="not both"):
            await producer.send("t", b"x", selector=by_hash, argument=5, queue=result.queue)


@in_loop
async def test_names_in_a_namespace() -> None:
    async with Fake(**{"ns%t": 2}) as fake, AsyncProducer(fake.namesrv, "pg", namespace="ns") as producer:
        queue = MessageQueue("t", "broker-a", 1)
        assert (await producer.send("t", b"x", queue=queue)).queue == queue
        assert await producer.queues("t") == [MessageQueue("t", "broker-a", 0), queue]
        await producer.send_batch([Message(topic="t", body=b"y")] * 2, queue=queue)
        await producer.send_oneway("t", b"z", queue=queue)
        await until(lambda: len(fake.broker.queues["ns%t", 1]) == 4)
        selected = await producer.send("t", b"x", selector=by_hash, argument=1)
        assert selected.queue == queue
        assert {h.producer_group for h in fake.broker.sends} == {"ns%pg"}
        assert {h.topic for h in fake.broker.sends} == {"ns%t"}


# -- messages -----------------------------------------------------------------------------------------------------


@in_loop
async def test_timer_messages_say_when() -> None:
    async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "pg") as producer:
        await producer.send("t", b"x", delay_ms=1500)
        await producer.send("t", b"x", deliver_at_ms=1_700_000_000_000)
        texts = [properties.decode(record.decode(r).properties.decode()) for r in fake.broker.queues["t", 0]]
        assert [(t.get("TIMER_DELAY_MS"), t.get("TIMER_DELIVER_MS")) for t in texts] == [
            ("1500", None),
            (None, "1700000000000"),
        ]
        for fields in ({"delay_ms": 1, "deliver_at_ms": 2}, {"delay_level": 1, "delay_ms": 2}, {"delay_ms": -1}):
            with pytest.raises(MessageIllegal):
                await producer.send("t", b"x", **fields)  # type: ignore[arg-type]
        with pytest.raises(MessageIllegal, match="delayed"):
            await producer.send_batch([Message(topic="t", body=b"x", delay_ms=5)])
        with pytest.raises(UsageError, match="no recall handle"):
            await producer.recall("t", "what")


def test_split() -> None:
    messages = [Message(topic="t", body=b"x" * 1000) for _ in range(10)]
    batches = list(split(messages, 4000))
    assert [len(b) for b in batches] == [3, 3, 3, 1]
    assert [m for b in batches for m in b] == messages
    assert list(split([])) == []
    assert len(list(split([Message(topic="t", body=b"x" * (1 << 19))] * 4))) == 4
    with pytest.raises(MessageIllegal, match="send it alone"):
        list(split([Message(topic="t", body=b"x" * 5000)], 4000))


# -- servers ------------------------------------------------------------------------------------------------------


@in_loop
async def test_codes_of_errors_without_a_reply() -> None:
    async with Fake(t=1) as fake:
        async with AsyncProducer(fake.namesrv, "pg", retries=0) as producer:
            with pytest.raises(BrokerNotFound):
                await producer.send("t", b"x", queue=MessageQueue("t", "broker-z", 0))
            await producer.send("t", b"x")
            await fake.broker.server.close()
            with pytest.raises(SendFailed) as caught:
                await producer.send("t", b"x")
            assert caught.value.code == 10001
        async with AsyncProducer("127.0.0.1:1", "pg") as producer:
            with pytest.raises(NoNameServer) as none:
                await producer.send("t", b"x")
            assert none.value.code == 10004


@pytest.fixture
def addresses() -> Iterator[tuple[str, list[str]]]:
    """A URL, and what it answers: the last entry of a list."""
    texts: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if texts else 500)
            self.end_headers()
            self.wfile.write(texts[-1].encode() if texts else b"")

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/rocketmq/nsaddr", texts
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.shows(
    "routes: cache, one fetch at a time, default topic, several NameServers, HTTP look-up, on from the cache",
)
def test_nameservers_looked_up_by_http(addresses: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    url, texts = addresses
    monkeypatch.setattr("rocketspark.client.connection.instance.LOOKUP_INTERVAL_S", 0.01)

    @in_loop
    async def run() -> None:
        with pytest.raises(NoNameServer, match="no NameServer addresses from http"):
            await AsyncProducer(None, "pg", namesrv_url=url).start()
        async with Fake(t=1) as fake:
            texts.append(f"127.0.0.1:1;{fake.namesrv}\n")
            async with AsyncProducer(None, "pg", namesrv_url=url) as producer:
                await producer.send("t", b"x")
                texts.append("127.0.0.1:2")
                await until(lambda: producer._routes.addresses == ["127.0.0.1:2"])
                texts.append("nonsense")
                await producer.send("t", b"x")
                assert producer._routes.addresses == ["127.0.0.1:2"]

    run()


@pytest.mark.shows("mended: NameServer look-up")
def test_what_looks_for_nameservers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROCKETMQ_NAMESRV_ADDR", "NAMESRV_ADDR", "ROCKETMQ_NAMESRV_DOMAIN"):
        monkeypatch.delenv(name, raising=False)
    url = "http://there/list"
    assert where_to_look(None, None, None) is None
    assert where_to_look("127.0.0.1:1", url, "u") is None
    assert where_to_look(None, url, None) == url
    assert where_to_look(None, url, "a b/c") == "http://there/list-a%20b%2Fc?nofix=1"
    monkeypatch.setenv("ROCKETMQ_NAMESRV_DOMAIN", "names.example")
    assert where_to_look(None, None, "u") == "http://names.example:8080/rocketmq/nsaddr-u?nofix=1"
    monkeypatch.setenv("ROCKETMQ_NAMESRV_DOMAIN_SUBGROUP", "mine")
    monkeypatch.setenv("ROCKETMQ_NAMESRV_DOMAIN", "names.example:80")
    assert where_to_look(None, None, None) == "http://names.example:80/rocketmq/mine"
    assert where_to_look(None, url, None) == url
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:1")
    assert where_to_look(None, None, None) is None
    # Addresses that are given stay: nothing is looked up.
    assert AsyncProducer("127.0.0.1:1", "pg", namesrv_url=url)._routes.addresses == ["127.0.0.1:1"]


@pytest.mark.shows("mended: client codes 10003, 10005 (and 10006)")
def test_client_codes() -> None:
    assert RouteNotFound("t").client_code == 10005
    assert BrokerNotFound("t").client_code == 10003
    assert RequestTimedOut("").client_code == 10006
    assert NoNameServer("").client_code == 10004
    failed = SendFailed("t", BrokerNotFound("t"), attempts=1, brokers=("b",), cost_ms=0)
    assert failed.code == 10003
    assert RouteNotFound("t").code == 17


@pytest.mark.shows("a broker's code in an asynchronous send")
@in_loop
async def test_codes_after_which_futures_are_sent_again_may_be_others() -> None:
    async with Fake(t=1) as fake:
        for codes, attempts in ((None, 3), ((), 1), ((1,), 3)):
            producer = AsyncProducer(fake.namesrv, "pg", future_retry_codes=codes)
            async with producer:
                await producer.send("t", b"warm")
                fake.broker.rules[SEND] = failing(1, 1)
                out = pack(Message(topic="t", body=b"x"), producer.packing)
                sending = producer.send_packed(out, None, None, 9000, 3, codes=producer.future_codes)
                if attempts > 1:
                    assert (await sending).status == "SEND_OK"
                else:
                    with pytest.raises(SendFailed) as caught:
                        await sending
                    assert (caught.value.attempts, caught.value.code) == (1, 1)


@pytest.mark.shows("mended: inner producer group, unitMode")
@in_loop
async def test_unit_mode_is_said() -> None:
    async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "pg", unit_mode=True) as producer:
        await producer.send("t", b"x")
        assert fake.broker.sends[0].unit_mode is True


@in_loop
async def test_the_client_id_and_what_is_not_there_yet() -> None:
    async with Fake(t=1) as fake:
        async with AsyncProducer(
            fake.namesrv, "pg", client_ip="10.0.0.9", instance_name="i", unit_name="u"
        ) as producer:
            assert producer.client_id == "10.0.0.9@i@u"
        with pytest.raises(ConfigError, match="use_tls is not"):
            AsyncProducer(fake.namesrv, "pg", tls_ca="ca.pem")


@in_loop
async def test_the_vip_channel_is_two_ports_below() -> None:
    async with Fake(t=1) as fake, AsyncProducer(fake.namesrv, "pg", vip_channel=True, retries=0) as producer:
        with pytest.raises(SendFailed, match=f":{fake.broker.server.port - 2}"):
            await producer.send("t", b"x")
