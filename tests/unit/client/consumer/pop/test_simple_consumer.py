"""The simple consumer against a broker that does what it is told: answers that make no sense, errors, lost replies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.client.fake import Fake, in_loop, until

from rocketspark.client import AsyncPushConsumer, AsyncSimpleConsumer
from rocketspark.errors import ConnectionLost, ProtocolError, RocketSparkError, ServerError, StateError, UsageError
from rocketspark.model import MessageQueue
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers.pop import (
    AckHeader,
    ChangeInvisibleTimeHeader,
    ChangeInvisibleTimeReply,
    PopHeader,
    PopReply,
)
from rocketspark.protocol.json import bodies, pop_records
from rocketspark.transport.request_frames import reply

Answer = Callable[[PopHeader], tuple[int, dict[str, Any]] | None]


class Pops:
    """What a broker answers to pops, acknowledgements and changes; `body` are its records."""

    def __init__(self, fake: Fake, broker: int = 0) -> None:
        self.asked: list[PopHeader] = []
        self.acked: list[AckHeader] = []
        self.changed: list[ChangeInvisibleTimeHeader] = []
        self.answer: Answer = lambda header: (210, {})
        self.records = b""
        self.peers: list[Any] = []
        self.opaques: list[int] = []
        routes = fake.brokers[broker].server._routes
        routes.add(RequestCode.POP_MESSAGE, self._pop, PopHeader)
        routes.add(RequestCode.ACK_MESSAGE, self._ack, AckHeader)
        routes.add(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, self._change, ChangeInvisibleTimeHeader)

    def _pop(self, peer: Any, request: Any, body: bytes) -> bytes | None:
        self.asked.append(request.ext)
        self.peers.append(peer)
        self.opaques.append(request.opaque)
        told = self.answer(request.ext)
        return None if told is None else self.reply(request.opaque, *told)

    def reply(self, opaque: int, code: int, fields: dict[str, Any]) -> bytes:
        values: dict[str, Any] = {"pop_time_ms": int(time.time() * 1000), "invisible_time_ms": 60_000} | fields
        header = PopReply(**values)
        return reply(opaque, code, header, self.records if code == 0 else b"", remark="told")

    def _ack(self, peer: Any, request: Any, body: bytes) -> bytes:
        self.acked.append(request.ext)
        return reply(request.opaque)

    def _change(self, peer: Any, request: Any, body: bytes) -> bytes:
        self.changed.append(request.ext)
        fields = ChangeInvisibleTimeReply(pop_time_ms=1, invisible_time_ms=request.ext.invisible_time_ms)
        return reply(request.opaque, header=fields)


def consumer_of(fake: Fake, **options: Any) -> AsyncSimpleConsumer:
    consumer = AsyncSimpleConsumer(fake.namesrv, "g", **options)
    consumer.subscribe("t")
    return consumer


def one_record(fake: Fake) -> bytes:
    fake.broker.put("t", 0, b"x")
    return fake.broker.queues["t", 0][0]


@pytest.mark.parametrize(
    ("fields", "records", "error"),
    [
        ({"start_offsets": "0 0 0", "message_offsets": "0 0 0"}, b"\x00\x00\x00\x05abc", RocketSparkError),
        ({"start_offsets": "0 1 0", "message_offsets": "0 1 0"}, None, ProtocolError),
        ({"start_offsets": "0 0 0;0 0 0", "message_offsets": "0 0 0"}, None, ProtocolError),
        ({"start_offsets": "0 0 " + "9" * 5000, "message_offsets": "0 0 0"}, None, ProtocolError),
        ({}, None, ProtocolError),
    ],
)
def test_an_answer_that_makes_no_sense_is_an_error(
    fields: dict[str, Any], records: bytes | None, error: type[Exception]
) -> None:
    @in_loop
    async def main() -> None:
        async with Fake(t=1) as fake, consumer_of(fake) as consumer:
            pops = Pops(fake)
            pops.records = one_record(fake) if records is None else records
            pops.answer = lambda header: (0, fields)
            with pytest.raises(error) as told:
                await consumer.receive(timeout_ms=5000)
            assert "\n" not in str(told.value)

    main()


@in_loop
async def test_refusals_are_raised_at_once_and_busy_brokers_are_asked_again() -> None:
    async with Fake(t=1) as fake, consumer_of(fake) as consumer:
        pops = Pops(fake)
        pops.records = one_record(fake)
        pops.answer = lambda header: (16, {})
        with pytest.raises(ServerError, match="code 16"):
            await consumer.receive(timeout_ms=8000)
        found = {"start_offsets": "0 0 0", "message_offsets": "0 0 0"}
        pops.asked.clear()
        pops.answer = lambda header: (209, {}) if len(pops.asked) == 1 else (0, found)
        (message,) = await consumer.receive(timeout_ms=8000)
        assert message.body == b"x"
        assert len(pops.asked) == 2
        # Nothing but refusals to wait until the end is an error too.
        pops.answer = lambda header: (209, {})
        with pytest.raises(ServerError, match="too many pops wait"):
            await consumer.receive(timeout_ms=300)


@in_loop
async def test_a_broker_that_holds_no_pops_is_not_asked_in_a_tight_loop() -> None:
    async with Fake(t=1) as fake, consumer_of(fake) as consumer:
        pops = Pops(fake)
        assert await consumer.receive(timeout_ms=600) == []
        assert 2 <= len(pops.asked) <= 14
        assert {(h.queue_id, h.group, h.topic, h.count_max) for h in pops.asked} == {(-1, "g", "t", 32)}


@in_loop
async def test_a_lost_answer_is_asked_for_again_by_the_same_attempt() -> None:
    async with Fake(t=1) as fake, consumer_of(fake, ordered=True) as consumer:
        pops = Pops(fake)
        pops.records = one_record(fake)
        found = {"start_offsets": "0 0 0", "message_offsets": "0 0 0", "revive_queue_id": 999}

        def answer(header: PopHeader) -> tuple[int, dict[str, Any]] | None:
            if len(pops.asked) == 1:
                pops.peers[0].close()
                return None
            return 0, found

        pops.answer = answer
        (message,) = await consumer.receive(timeout_ms=8000)
        first, second = pops.asked
        assert first.order
        assert first.attempt_id == second.attempt_id
        await consumer.ack(message)
        assert pops.acked[0].handle == message.receipt_handle
        await consumer.receive()
        assert pops.asked[2].attempt_id != first.attempt_id


@in_loop
async def test_a_cluster_that_is_away_until_the_end_is_an_error() -> None:
    async with Fake(t=1) as fake, consumer_of(fake) as consumer:
        pops = Pops(fake)
        pops.answer = lambda header: pops.peers[-1].close()  # type: ignore[func-returns-value]
        with pytest.raises(ConnectionLost):
            await consumer.receive(timeout_ms=1500)
        assert 1 <= len(pops.asked) <= 3


@in_loop
async def test_one_broker_of_two_that_is_silent_holds_up_nothing() -> None:
    async with Fake(2, t=1) as fake, consumer_of(fake) as consumer:
        silent, speaking = Pops(fake, 0), Pops(fake, 1)
        silent.answer = lambda header: None
        fake.brokers[1].put("t", 0, b"y")
        speaking.records = fake.brokers[1].queues["t", 0][0]
        found = {"start_offsets": "0 0 0", "message_offsets": "0 0 0"}
        speaking.answer = lambda header: (0, found) if header.poll_time_ms else (210, {})
        got = await consumer.receive(timeout_ms=8000)
        assert [m.body for m in got] == [b"y"]
        handle, longest = got[0].receipt_handle, 12 * 3600 * 1000
        for wrong in (0, longest + 1):
            with pytest.raises(UsageError, match="not from 1 to"):
                await consumer.change_invisible_time(got[0], wrong)
        for right in (longest, 1):
            got[0].receipt_handle = handle
            await consumer.change_invisible_time(got[0], right)
            assert got[0].receipt_handle == f"0 1 {right} 0 0 broker-b 0 0"
        assert [h.invisible_time_ms for h in speaking.changed] == [longest, 1]


@in_loop
async def test_what_comes_after_the_end_of_a_receive_is_given_back() -> None:
    async with Fake(t=1) as fake, consumer_of(fake) as consumer:
        pops = Pops(fake)
        pops.answer = lambda header: None
        receiving = asyncio.ensure_future(consumer.receive())
        await until(lambda: pops.asked)
        receiving.cancel()
        await asyncio.wait([receiving])
        (task,) = consumer._asking
        assert not task.done()
        messages = _popped(fake)
        consumer._pops.give_back(messages)
        await until(lambda: pops.changed)
        assert [h.invisible_time_ms for h in pops.changed] == [1000]


@pytest.mark.parametrize("end", [lambda c: c.unsubscribe("t"), lambda c: c.subscribe("t", "new")])
def test_what_waits_for_a_taker_is_given_back_when_its_subscription_ends_or_changes(
    end: Callable[[AsyncSimpleConsumer], None],
) -> None:
    @in_loop
    async def main() -> None:
        async with Fake(t=1) as fake, consumer_of(fake) as consumer:
            pops = Pops(fake)
            pops.records = one_record(fake)
            pops.answer = lambda header: None
            receiving = asyncio.ensure_future(consumer.receive())
            await until(lambda: pops.asked)
            receiving.cancel()
            await asyncio.wait([receiving])
            found = {"start_offsets": "0 0 0", "message_offsets": "0 0 0"}
            pops.peers[0].send(pops.reply(pops.opaques[0], 0, found))
            await until(lambda: consumer._kept)
            consumer.unsubscribe("never-subscribed")
            assert consumer._kept
            end(consumer)
            assert not consumer._kept
            await until(lambda: [h.invisible_time_ms for h in pops.changed] == [1000])

    main()


@pytest.mark.shows("members of popping groups that close hold nothing back")
@pytest.mark.parametrize("kind", [AsyncSimpleConsumer, AsyncPushConsumer])
def test_what_a_held_pop_gives_while_its_member_leaves_is_given_back(kind: type[Any]) -> None:
    @in_loop
    async def main() -> None:
        async with Fake(t=1) as fake:
            pops = Pops(fake)
            pops.records = one_record(fake)
            pops.answer = lambda header: None
            found = {"start_offsets": "0 0 0", "message_offsets": "0 0 0"}

            def last(header: Any, body: bytes) -> None:
                for peer, opaque in zip(pops.peers, pops.opaques, strict=True):
                    peer.send(pops.reply(opaque, 0, found))

            def assign(peer: Any, request: Any, body: bytes) -> bytes:
                queue = bodies.QueueBody.of(MessageQueue("t", "broker-a", -1))
                told = [pop_records.Assigned(message_queue=queue, mode="POP")]
                return reply(request.opaque, body=bodies.encode(pop_records.Assignment(message_queue_assignments=told)))

            fake.broker.routes.add(RequestCode.QUERY_ASSIGNMENT, assign)
            fake.broker.rules[RequestCode.UNREGISTER_CLIENT] = last
            consumer = kind(fake.namesrv, "g", **({"pop": True} if kind is AsyncPushConsumer else {}))
            consumer.subscribe("t")
            if kind is AsyncPushConsumer:
                consumer.listen(print)
            async with consumer:
                if kind is AsyncSimpleConsumer:
                    receiving = asyncio.ensure_future(consumer.receive())
                await until(lambda: pops.asked)
            assert [h.invisible_time_ms for h in pops.changed] == [1000]
            if kind is AsyncSimpleConsumer:
                with pytest.raises(StateError):
                    await receiving

    main()


def _popped(fake: Fake) -> list[Any]:
    from rocketspark.protocol.message import record
    from rocketspark.protocol.pop_answers import Popped, give_handles

    messages = record.decode_messages(one_record(fake), "broker-a")
    give_handles(messages, Popped("broker-a", "g", 1, 60_000, 0, "0 0 0", "0 0 0"))
    return messages


@in_loop
async def test_a_broker_without_assignments_leaves_a_pop_consumer_without_queues() -> None:
    async with Fake(t=1) as fake:
        consumer = AsyncPushConsumer(fake.namesrv, "g", consume_from="first", pop=True)
        consumer.subscribe("t")
        consumer.listen(print)
        async with consumer:
            assert await consumer.queues() == []
