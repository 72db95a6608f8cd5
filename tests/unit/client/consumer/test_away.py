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
from rocketspark.model import ReceivedMessage
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
