"""Messages that a listener did not take: each is back at a broker before it leaves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.client.consumer.test_push_consumer import SEND_BACK, consumer
from tests.unit.client.fake import Fake, in_loop, until

from rocketspark.client import AsyncPushConsumer
from rocketspark.client.consumer.returned_messages import IN_FLIGHT_MAX, ReturnedMessages
from rocketspark.client.hooks import Hooks
from rocketspark.errors import ConfigError
from rocketspark.model import MessageQueue, ReceivedMessage
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.message import properties


@pytest.mark.shows("a failed listener sends back, never drops")
@pytest.mark.parametrize("how", ["false", "raises", "coroutine"])
def test_a_failed_message_goes_back_and_comes_again(how: str) -> None:
    @in_loop
    async def run() -> None:
        async with Fake(t=1) as fake:
            fake.broker.put("t", 0, b"good")
            fake.broker.put("t", 0, b"bad", "UNIQ_KEY\x01u\x02")
            got: list[tuple[bytes, str, int]] = []

            def plain(message: ReceivedMessage) -> bool | None:
                got.append((message.body, message.topic, message.reconsume_times))
                if message.body == b"bad" and message.reconsume_times == 0:
                    if how == "raises":
                        raise RuntimeError("as the test wants it")
                    return False
                return None

            async def coroutine(message: ReceivedMessage) -> bool | None:
                await asyncio.sleep(0)
                return plain(message)

            async with consumer(fake, coroutine if how == "coroutine" else plain):
                await until(lambda: len(got) == 3)
            assert sorted(got) == [(b"bad", "t", 0), (b"bad", "t", 1), (b"good", "t", 0)]
            (back,) = fake.broker.send_backs
            assert (back.group, back.delay_level, back.origin_topic) == ("g", 0, "t")
            assert (back.max_reconsume_times, back.broker_name) == (None, "broker-a")
            assert fake.broker.offsets["g", "t", 0] == 2
            assert fake.broker.offsets["g", "%RETRY%g", 0] == 1

    run()


@in_loop
async def test_of_thousands_that_fail_at_once_few_are_on_their_way_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """All at once, the last ones' replies came too late, so that they were sent anew as well."""
    on_their_way = most = 0

    async def send_back(self: ReturnedMessages, peer: object, message: ReceivedMessage, **more: object) -> None:
        nonlocal on_their_way, most
        on_their_way += 1
        most = max(most, on_their_way)
        await asyncio.sleep(0)
        on_their_way -= 1

    monkeypatch.setattr(ReturnedMessages, "_send_back", send_back)
    async with Fake(t=1) as fake:
        for _ in range(1000):
            fake.broker.put("t", 0, b"bad")
        async with consumer(fake, lambda messages: False, batch_max=1000, commit_interval_ms=10):
            await until(lambda: fake.broker.offsets.get(("g", "t", 0)) == 1000)
    assert 1 < most <= IN_FLIGHT_MAX


@in_loop
async def test_send_back_that_fails_is_sent_anew() -> None:
    async with Fake(t=1) as fake:
        fake.broker.put("t", 0, b"bad", "UNIQ_KEY\x01u\x02a\x01b\x02")
        fake.broker.rules[SEND_BACK] = lambda header, body: (1, "as told")
        attempts: list[int] = []

        def listener(message: ReceivedMessage) -> bool:
            attempts.append(message.reconsume_times)
            return message.reconsume_times > 0

        async with consumer(fake, listener, max_reconsume_times=-1):
            await until(lambda: len(attempts) == 2)
        assert attempts == [0, 1]
        (sent,) = fake.broker.sends
        pairs = properties.decode(sent.properties)
        assert (sent.topic, sent.reconsume_times, sent.max_reconsume_times) == ("%RETRY%g", 1, 16)
        assert {k: pairs[k] for k in ("a", "RETRY_TOPIC", "RECONSUME_TIME", "MAX_RECONSUME_TIMES", "DELAY")} == {
            "a": "b",
            "RETRY_TOPIC": "t",
            "RECONSUME_TIME": "1",
            "MAX_RECONSUME_TIMES": "16",
            "DELAY": "3",
        }


@in_loop
async def test_what_no_broker_takes_back_is_tried_again_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketspark.client.consumer.returned_messages.AGAIN_S", 0.05)
    async with Fake(t=1) as fake:
        fake.broker.put("t", 0, b"bad")
        fake.broker.put("t", 0, b"good")
        fake.broker.rules[SEND_BACK] = lambda header, body: (1, "as told")
        fake.broker.rules[RequestCode.SEND_MESSAGE_V2] = lambda header, body: (1, "as told")
        attempts: list[int] = []

        def listener(message: ReceivedMessage) -> bool:
            if message.body == b"good":
                return True
            attempts.append(message.reconsume_times)
            return len(attempts) == 3

        async with consumer(fake, listener, commit_interval_ms=10):
            await until(lambda: len(attempts) == 2)
            await asyncio.sleep(0.03)
            assert fake.broker.offsets["g", "t", 0] == 0
            await until(lambda: fake.broker.offsets["g", "t", 0] == 2)
        assert attempts == [0, 1, 2]


@pytest.mark.shows(
    "mended: max_reconsume_times=-1 dead-letters at the first failure",
    "a group's retryMaxTimes for push consumers",
)
@pytest.mark.parametrize(("times", "asked"), [(None, None), (-1, 16), (0, 0), (3, 3)])
def test_how_often_a_message_is_delivered_again(times: int | None, asked: int | None) -> None:
    @in_loop
    async def run() -> None:
        async with Fake(t=1) as fake:
            fake.broker.put("t", 0, b"x")
            async with consumer(fake, lambda m: m.reconsume_times > 0, max_reconsume_times=times):
                await until(lambda: fake.broker.send_backs)
            assert fake.broker.send_backs[0].max_reconsume_times == asked
        async with Fake(t=1) as fake:
            fake.broker.put("t", 0, b"x")
            fake.broker.rules[SEND_BACK] = lambda header, body: (1, "as told")
            async with consumer(fake, lambda m: m.reconsume_times > 0, max_reconsume_times=times):
                await until(lambda: fake.broker.sends)
            (sent,) = fake.broker.sends
            told = properties.decode(sent.properties).get("MAX_RECONSUME_TIMES")
            assert (sent.max_reconsume_times, told) == (asked, None if asked is None else str(asked))

    run()
    with pytest.raises(ConfigError, match="max_reconsume_times"):
        AsyncPushConsumer("127.0.0.1:1", "g", max_reconsume_times=-2)
    with pytest.raises(ConfigError, match="max_reconsume_times"):
        AsyncPushConsumer("127.0.0.1:1", "g", max_reconsume_times=1 << 31)


@pytest.mark.shows(
    "mended: with a namespace `_send_anew` writes RETRY_TOPIC without it",
    "mended: with a namespace `_send_anew` writes RETRY_TOPIC without it (send back too)",
    "mended: unitMode of consumers, inner producer group in heartbeats",
)
@in_loop
async def test_what_goes_back_carries_namespace_and_unit_mode() -> None:
    async with Fake(**{"space%t": 1}) as fake:
        fake.broker.put("space%t", 0, b"x")
        got: list[tuple[str, int]] = []

        def listener(message: ReceivedMessage) -> bool:
            got.append((message.topic, message.reconsume_times))
            if message.reconsume_times == 1:
                fake.broker.rules[SEND_BACK] = lambda header, body: (1, "as told")
            return message.reconsume_times == 2

        async with consumer(fake, listener, namespace="space", unit_mode=True):
            await until(lambda: len(got) == 3)
        assert got == [("t", 0), ("t", 1), ("t", 2)]
        (back,) = fake.broker.send_backs
        assert (back.origin_topic, back.unit_mode, back.group) == ("space%t", True, "space%g")
        (sent,) = fake.broker.sends
        assert (sent.topic, sent.unit_mode) == ("%RETRY%space%g", True)
        assert properties.decode(sent.properties)["RETRY_TOPIC"] == "space%t"
        beat = fake.broker.heartbeats[-1]
        assert [c.unit_mode for c in beat.consumer_data_set] == [True]
        assert "CLIENT_INNER_PRODUCER" in [p.group_name for p in beat.producer_data_set]


@pytest.mark.shows("mended: a raising before_request hook ends the commit loop, and lock renewal (it did)")
@in_loop
async def test_a_hook_that_fails_a_message_s_way_back_does_not_lose_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketspark.client.consumer.returned_messages.AGAIN_S", 0.001)
    fail = True

    class Wild(Hooks):
        def before_request(self, address: str, code: int, ext: dict[str, str], body: bytes) -> None:
            if fail and code in (SEND_BACK, RequestCode.SEND_MESSAGE_V2):
                raise ValueError("as the test wants it")

    async with Fake(t=1) as fake:
        fake.broker.put("t", 0, b"x")
        times: list[int] = []

        def listener(message: ReceivedMessage) -> bool:
            times.append(message.reconsume_times)
            return len(times) == 4

        c = consumer(fake, listener, hooks=[Wild()])
        async with c:
            await until(lambda: len(times) == 4)
            queue = MessageQueue("t", "broker-a", 0)
            await until(lambda: c._rebalance.pullers[queue].process_queue.lowest == 1)
        assert times == [0, 1, 2, 3]


@pytest.mark.parametrize("ordered", [True, False])
@in_loop
async def test_a_dead_letter_that_is_not_taken_back_by_its_place_is_sent_anew(ordered: bool) -> None:
    """One of a batch record is none: in order its queue stood still for ever."""
    async with Fake(t=1) as fake:
        fake.broker.put("t", 0, b"bad", "UNIQ_KEY\x01u\x02")
        fake.broker.rules[SEND_BACK] = lambda header, body: (13, "inner batches need queue.type=BatchCQ")

        def listener(message: ReceivedMessage) -> bool:
            return False

        options: dict[str, Any] = {"ordered": True, "suspend_ms": 10} if ordered else {}
        async with consumer(fake, listener, max_reconsume_times=0, **options) as made:
            await until(lambda: fake.broker.sends)
            (puller,) = [p for q, p in made._rebalance.pullers.items() if q.topic == "t"]
            await until(lambda: puller.process_queue.lowest == 1)
        sent = fake.broker.sends[0]
        assert (sent.topic, sent.reconsume_times, sent.max_reconsume_times) == ("%RETRY%g", 1, 0)


@in_loop
async def test_what_another_client_let_into_a_property_keeps_no_message_here() -> None:
    async with Fake(t=1) as fake:
        fake.broker.put("t", 0, b"bad", "UNIQ_KEY\x01u\x02a\x01b\x01c\x02")
        fake.broker.rules[SEND_BACK] = lambda header, body: (1, "as told")
        async with consumer(fake, lambda message: False):
            await until(lambda: fake.broker.sends)
        sent = fake.broker.sends[0]
        assert properties.decode(sent.properties)["a"] == "b\x01c"


@pytest.mark.shows("mended: a message without room for a retry's properties held its consumer up for ever")
@in_loop
async def test_a_message_without_room_for_a_retry_is_a_dead_letter_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that leaves no property out itself, as RocketMQ's."""
    monkeypatch.setattr("rocketspark.client.consumer.returned_messages.AGAIN_S", 0.001)
    async with Fake(t=1) as fake:
        fake.broker.put("t", 0, b"bad", f"UNIQ_KEY\x01u\x02k\x01{'x' * 32_700}\x02short\x01s\x02")
        fake.broker.rules[SEND_BACK] = lambda header, body: (13, "too long")
        fake.broker.rules[RequestCode.SEND_MESSAGE_V2] = lambda header, body: (
            (13, "too long") if len(header.properties) > properties.BYTES_MAX - 300 else None
        )
        attempts: list[int] = []
        async with consumer(fake, lambda m: bool(attempts.append(m.reconsume_times)), max_reconsume_times=2):
            await until(lambda: fake.broker.sends)
        # This broker makes no dead letters: what it took is there to be read again.
        assert (fake.broker.offsets["g", "t", 0], attempts[:3]) == (1, [0, 1, 2])
        sent = fake.broker.sends[0]
        assert (sent.topic, sent.reconsume_times) == ("%RETRY%g", 3)
        pairs = properties.decode(sent.properties)
        assert (pairs["UNIQ_KEY"], pairs["short"], pairs["RETRY_TOPIC"], "k" in pairs) == ("u", "s", "t", False)


@pytest.mark.parametrize("refuses", [False, True])
@in_loop
async def test_a_retry_beyond_16_keeps_all_that_its_broker_takes(refuses: bool) -> None:
    """The group's number of attempts, which brokers alone know, may be higher."""
    async with Fake(t=1) as fake:
        pairs = f"UNIQ_KEY\x01u\x02k\x01{'x' * 32_400}\x02"
        fake.broker.put("t", 0, b"bad", pairs, reconsume_times=16)
        fake.broker.rules[SEND_BACK] = lambda header, body: (13, "one of a batch record")
        fake.broker.rules[RequestCode.SEND_MESSAGE_V2] = lambda header, body: (
            (13, "too long") if refuses and len(header.properties) > 32_400 else None
        )
        async with consumer(fake, lambda message: False):
            await until(lambda: fake.broker.sends)
        sent = fake.broker.sends[0]
        assert (sent.reconsume_times, sent.max_reconsume_times) == (17, None)
        assert ("k" in properties.decode(sent.properties)) is not refuses
