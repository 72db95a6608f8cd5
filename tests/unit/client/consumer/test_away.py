"""Members that stood still, with their program or its machine, while others may have read their queues."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.client.consumer.test_pull_consumer import Q0, Q1, fill, read
from tests.unit.client.fake import Fake, in_loop, until

from rocketspark import machine
from rocketspark.client import AsyncPullConsumer, AsyncPushConsumer
from rocketspark.errors import ServerError
from rocketspark.model import MessageQueue, ReceivedMessage
from rocketspark.protocol.codes import RequestCode

OFFSET = ("g", "t", 0)
pytestmark = pytest.mark.shows(
    "a member that stood still for minutes goes on where others have come to, and sets back nothing that they committed"
)


def stand_still(monkeypatch: pytest.MonkeyPatch, clock: str = "time") -> None:
    """Have minutes gone by at once, on one of the clocks."""
    real = getattr(machine, clock)
    monkeypatch.setattr(machine, clock, lambda: real() + 300)


@pytest.mark.parametrize("clock", ["time", "monotonic"])
def test_a_push_consumer_goes_on_where_others_have_come_to(monkeypatch: pytest.MonkeyPatch, clock: str) -> None:
    got: list[int] = []

    @in_loop
    async def run() -> None:
        go_on = asyncio.Event()

        async def listen(message: ReceivedMessage) -> None:
            got.append(int(message.body))
            if got[-1] == 5:
                await go_on.wait()

        async with Fake(t=1) as fake:
            fill(fake, 25)
            consumer = AsyncPushConsumer(fake.namesrv, "g", consume_from="first", threads=1)
            consumer.subscribe("t")
            consumer.listen(listen)
            async with consumer:
                own: Any = consumer._rebalance
                await until(lambda: got == [0, 1, 2, 3, 4, 5])
                await own.commit()
                # Another member's.
                fake.broker.offsets[OFFSET] = 12
                stand_still(monkeypatch, clock)
                pulls: list[Any] = []
                fake.broker.rules[RequestCode.PULL_MESSAGE] = lambda header, body: pulls.append(header)
                own.pullers[Q0].committed = -1
                for oneway in (True, False):
                    await own.commit(oneway=oneway)
                assert fake.broker.offsets[OFFSET] == 12
                assert await own.rebalance()
                go_on.set()
                await until(lambda: own.pullers[Q0].process_queue.lowest == 25)
            assert got == [0, 1, 2, 3, 4, 5, *range(12, 25)]
            assert [pull.commit_offset for pull in pulls if 0 < pull.commit_offset < 12] == []
            assert fake.broker.committed[OFFSET] == [5, 25]

    run()


@in_loop
async def test_a_pull_consumer_sets_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Fake(t=2) as fake:
        fill(fake, 20, queues=2)
        consumer = AsyncPullConsumer(fake.namesrv, "g", consume_from="first", auto_commit=False)
        consumer.subscribe("t")
        async with consumer:
            await read(consumer, 20)
            own: Any = consumer._rebalance
            fake.broker.offsets[OFFSET] = 30
            stand_still(monkeypatch)
            fake.broker.rules[RequestCode.QUERY_CONSUMER_OFFSET] = lambda *asked: (1, "busy")
            with pytest.raises(ServerError, match="busy"):
                await consumer.commit()
            # It is not known yet how far others are.
            assert not await own.rebalance()
            assert fake.broker.committed[OFFSET] == []
            del fake.broker.rules[RequestCode.QUERY_CONSUMER_OFFSET]
            await consumer.commit()
            assert (fake.broker.committed[OFFSET], fake.broker.offsets["g", "t", 1]) == ([], 10)
            assert await own.rebalance()
            await until(lambda: own.pullers[Q0].process_queue.next_offset == 30)
            assert await consumer.position(Q1) == 10
            await consumer.commit()
            assert set(fake.broker.committed[OFFSET]) <= {30}


@in_loop
async def test_who_was_away_and_read_again_by_itself_is_led_past_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it committed, and what its `seek` leaves behind, is nobody else's."""
    async with Fake(t=1) as fake:
        fill(fake, 20)
        fake.broker.offsets[OFFSET] = 15
        consumer = AsyncPullConsumer(fake.namesrv, "g", auto_commit=False)
        consumer.subscribe("t")
        async with consumer:
            # Its own places are elsewhere.
            await consumer.seek(Q0, 3)
            stand_still(monkeypatch)
            assert await consumer._rebalance.rebalance()
            assert [m.queue_offset for m in await read(consumer, 5)] == [3, 4, 5, 6, 7]
            await consumer.commit({Q0: 18})
            await consumer.seek(Q0, 4)
            stand_still(monkeypatch)
            assert await consumer._rebalance.rebalance()
            assert [m.queue_offset for m in await read(consumer, 16)] == list(range(4, 20))
            await consumer.seek(Q0, 6)
            await read(consumer, 1)
            stand_still(monkeypatch)
            await consumer.commit()
            assert fake.broker.offsets[OFFSET] == 7


@pytest.mark.parametrize("code", [RequestCode.GET_CONSUMER_LIST_BY_GROUP, RequestCode.QUERY_CONSUMER_OFFSET])
@in_loop
async def test_queues_of_a_broker_in_trouble_are_looked_at_later_and_the_others_at_once(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Until it answers, others may go on there."""
    async with Fake(2, u=1) as fake:
        fake.names.topics = {"t": {"broker-a": 1}, "u": {"broker-b": 1}}
        sick, well = fake.brokers
        for i in range(40):
            for broker, topic in ((sick, "t"), (well, "u")):
                broker.put(topic, 0, b"%d" % i)
        consumer = AsyncPushConsumer(fake.namesrv, "g", consume_from="first")
        consumer.subscribe("t")
        consumer.subscribe("u")
        go_on = asyncio.Event()

        async def listen(message: ReceivedMessage) -> None:
            if message.topic == "t" or not go_on.is_set():
                await go_on.wait()

        consumer.listen(listen)
        async with consumer:
            own: Any = consumer._rebalance
            u0 = MessageQueue("u", "broker-b", 0)
            await until(lambda: own.pullers[Q0].process_queue and own.pullers[u0].process_queue)
            stand_still(monkeypatch)
            sick.rules[code] = lambda *asked: (1, "busy")
            sick.offsets[OFFSET] = well.offsets["g", "u", 0] = 33
            assert not await own.rebalance()
            await until(lambda: own.pullers[u0].process_queue.lowest == 33)
            assert own.pullers[Q0].process_queue.lowest == 0
            # Meanwhile.
            sick.offsets[OFFSET] = 36
            await own.commit()
            del sick.rules[code]
            assert await own.rebalance()
            await until(lambda: own.pullers[Q0].process_queue.lowest == 36)
            go_on.set()
            await until(lambda: {own.pullers[q].process_queue.lowest for q in (Q0, u0)} == {40})
        assert min(sick.committed[OFFSET]) >= 36
        assert min(well.committed["g", "u", 0]) >= 33


@in_loop
async def test_who_was_cut_off_for_minutes_sets_nothing_back() -> None:
    """The broker takes it for gone as well, and hears of it with the connection over which it commits."""
    async with Fake(t=1) as fake:
        fill(fake, 20)
        consumer = AsyncPullConsumer(fake.namesrv, "g", consume_from="first", auto_commit=False)
        consumer.subscribe("t")
        async with consumer:
            await read(consumer, 5)
            own: Any = consumer._rebalance
            instance = own.instance
            (address,) = instance._heard_s
            for cut_off, offset in ((False, 5), (True, 12), (False, 12)):
                fake.broker.offsets[OFFSET] = max(offset, fake.broker.offsets.get(OFFSET, 0))
                instance._heard_s[address] -= 300 if cut_off else 0
                own.pullers[Q0].committed = -1
                if (peer := instance.open_broker(address)) is not None:
                    peer.close()
                await consumer.commit()
                assert fake.broker.offsets[OFFSET] == offset
            assert fake.broker.committed[OFFSET] == [5]
            assert await own.rebalance()
            await until(lambda: own.pullers[Q0].process_queue.lowest == 12)


@in_loop
async def test_where_an_application_seeks_to_holds_whatever_others_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it gave back, or filters anew, is others' as before."""
    async with Fake(t=1) as fake:
        fill(fake, 20)
        consumer = AsyncPullConsumer(fake.namesrv, "g", consume_from="first", auto_commit=False)
        consumer.subscribe("t")
        async with consumer:
            first = await read(consumer, 5)
            fake.broker.offsets[OFFSET] = 12
            stand_still(monkeypatch)
            await consumer.seek(Q0, 3)
            assert await consumer._rebalance.rebalance()
            assert [m.queue_offset for m in await read(consumer, 2)] == [3, 4]
            await consumer.commit()
            assert fake.broker.offsets[OFFSET] == 5
            fake.broker.offsets[OFFSET] = 12
            stand_still(monkeypatch)
            await consumer.unread(first[4:])
            assert await consumer._rebalance.rebalance()
            await until(lambda: consumer._rebalance.pullers[Q0].process_queue.next_offset >= 12)
            assert (await read(consumer, 1))[0].queue_offset == 12


@in_loop
async def test_a_queue_that_is_others_is_given_up_without_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Fake(t=1) as fake:
        fill(fake, 20)
        consumer = AsyncPullConsumer(fake.namesrv, "g", consume_from="first")
        consumer.subscribe("t")
        async with consumer:
            await read(consumer, 5)
            await consumer.poll(0)
            fake.broker.offsets[OFFSET] = 12
            stand_still(monkeypatch)
            consumer.unsubscribe("t")
            await until(lambda: consumer.assignment() == [])
            assert fake.broker.committed[OFFSET] == []
        assert fake.broker.offsets[OFFSET] == 12


@in_loop
async def test_who_sought_back_and_was_away_before_its_broker_heard_of_it_is_led_past_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its commit was lost with the connection: what the broker has is its own place of before."""
    async with Fake(t=1) as fake:
        fill(fake, 20)
        consumer = AsyncPullConsumer(fake.namesrv, "g", consume_from="first", auto_commit=False)
        consumer.subscribe("t")
        async with consumer:
            await read(consumer, 20)
            await consumer.commit()
            own: Any = consumer._rebalance
            for how in ("oneway", "at once", "given"):
                await consumer.seek(Q0, 3)
                await read(consumer, 2)
                fake.broker.rules[RequestCode.UPDATE_CONSUMER_OFFSET] = lambda *asked: (1, "lost")
                if how == "given":
                    with pytest.raises(ServerError, match="lost"):
                        await consumer.commit({Q0: 5})
                else:
                    await own.commit(oneway=how == "oneway")
                del fake.broker.rules[RequestCode.UPDATE_CONSUMER_OFFSET]
                assert fake.broker.offsets[OFFSET] == 20
                stand_still(monkeypatch)
                assert await own.rebalance()
                assert [m.queue_offset for m in await read(consumer, 15)] == list(range(5, 20))
                await consumer.commit()
                assert fake.broker.offsets[OFFSET] == 20


@in_loop
async def test_who_told_a_slave_where_it_sought_back_to_is_led_past_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The master comes back with its place of before."""
    async with Fake(t=1) as fake:
        fill(fake, 20)
        consumer = AsyncPullConsumer(fake.namesrv, "g", consume_from="first", auto_commit=False)
        consumer.subscribe("t")
        async with consumer:
            await read(consumer, 20)
            await consumer.commit()
            own: Any = consumer._rebalance
            for how in ("at once", "given", "reset"):
                with monkeypatch.context() as without_master:
                    without_master.setattr(own.offsets, "_has_master", lambda queue: False)
                    await consumer.seek(Q0, 3 if how != "reset" else 18)
                    await read(consumer, 2)
                    if how == "reset":
                        await own.reset({Q0: 5})
                    else:
                        await consumer.commit({Q0: 5} if how == "given" else None)
                assert fake.broker.offsets[OFFSET] == 5
                fake.broker.offsets[OFFSET] = 20
                stand_still(monkeypatch)
                assert await own.rebalance()
                assert [m.queue_offset for m in await read(consumer, 15)] == list(range(5, 20))
                await consumer.commit()
