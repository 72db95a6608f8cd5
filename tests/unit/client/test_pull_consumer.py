"""The pull consumer against a broker that does what it is told: reading, positions, commits, shares."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.unit.client.fake import Fake, in_loop, until

from rocketspark.client import AsyncPullConsumer
from rocketspark.errors import RouteNotFound, StateError
from rocketspark.model import MessageQueue, ReceivedMessage

Q0 = MessageQueue("t", "broker-a", 0)
Q1 = MessageQueue("t", "broker-a", 1)


async def read(consumer: AsyncPullConsumer, count: int) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    while len(found) < count:
        found += await consumer.poll(2000, count_max=count - len(found))
    return found


def fill(fake: Fake, count: int, queues: int = 1) -> None:
    for i in range(count):
        fake.broker.put("t", i % queues, b"%d" % i)


@in_loop
async def test_subscribe_poll_commit_and_go_on() -> None:
    async with Fake(t=2) as fake:
        fill(fake, 100, queues=2)
        consumer = AsyncPullConsumer(fake.namesrv, "g", consume_from="first")
        consumer.subscribe("t")
        async with consumer:
            assert consumer.assignment() == [Q0, Q1]
            found = await read(consumer, 100)
            assert sorted(int(m.body) for m in found) == list(range(100))
            assert await consumer.poll(10) == []
            assert fake.broker.heartbeats[-1].consumer_data_set[0].consume_type == "CONSUME_ACTIVELY"
        assert (fake.broker.offsets["g", "t", 0], fake.broker.offsets["g", "t", 1]) == (50, 50)
        assert [u.consumer_group for u in fake.broker.unregistered] == ["g"]
        fill(fake, 1)
        async with AsyncPullConsumer(fake.namesrv, "g") as again:
            again.subscribe("t")
            assert [m.queue_offset for m in await read(again, 1)] == [50]


@in_loop
async def test_poll_waits_for_the_first_message() -> None:
    async with Fake(t=1) as fake, AsyncPullConsumer(fake.namesrv, "g", consume_from="first") as consumer:
        await consumer.assign([Q0])
        polling = asyncio.ensure_future(consumer.poll(5000))
        await asyncio.sleep(0.02)
        assert not polling.done()
        fill(fake, 1)
        assert [m.body for m in await polling] == [b"0"]
        started_s = time.monotonic()
        assert await consumer.poll(50) == []
        assert 0.04 < time.monotonic() - started_s < 10


@in_loop
async def test_tags() -> None:
    async with Fake(t=1) as fake, AsyncPullConsumer(fake.namesrv, "g", consume_from="first") as consumer:
        for tag in ("Aa", "BB", "Aa"):
            fake.broker.put("t", 0, tag.encode(), f"TAGS\x01{tag}\x02")
        await consumer.assign([Q0], "BB")
        assert [m.queue_offset for m in await read(consumer, 1)] == [1]
        await until(lambda: consumer._membership.fetchers[Q0].backlog.next_offset == 3)
        assert await consumer.position(Q0) == 3


@in_loop
async def test_positions_and_seeks() -> None:
    async with Fake(t=2) as fake:
        fill(fake, 10)
        cut_ms = int(time.time() * 1000) + 2
        await asyncio.sleep(0.005)
        fill(fake, 10)
        async with AsyncPullConsumer(fake.namesrv, "g", consume_from="first") as consumer:
            assert await consumer.queues("t") == [Q0, Q1]
            await consumer.assign([Q0])
            assert (await consumer.begin_offset(Q0), await consumer.end_offset(Q0)) == (0, 20)
            assert await consumer.position(Q0) == 0
            assert [m.queue_offset for m in await read(consumer, 3)] == [0, 1, 2]
            assert await consumer.position(Q0) == 3
            await consumer.seek(Q0, 15)
            assert [m.queue_offset for m in await read(consumer, 2)] == [15, 16]
            await consumer.seek_to_begin(Q0)
            assert [m.queue_offset for m in await read(consumer, 2)] == [0, 1]
            assert await consumer.offsets_for_time(Q0, cut_ms) == 10
            await consumer.seek_to_time(Q0, cut_ms)
            assert [m.queue_offset for m in await read(consumer, 1)] == [10]
            await consumer.seek_to_end(Q0)
            assert await consumer.position(Q0) == 20
            fill(fake, 1)
            assert [m.queue_offset for m in await read(consumer, 1)] == [20]
            with pytest.raises(StateError, match="assignment"):
                await consumer.seek(Q1, 0)
            with pytest.raises(RouteNotFound):
                await consumer.queues("missing")


@in_loop
async def test_commit_by_hand() -> None:
    async with Fake(t=1) as fake:
        fill(fake, 10)
        async with AsyncPullConsumer(fake.namesrv, "g", consume_from="first", auto_commit=False) as consumer:
            await consumer.assign([Q0])
            await read(consumer, 4)
            assert await consumer.committed(Q0) is None
            await consumer.commit()
            assert await consumer.committed(Q0) == 4
            await read(consumer, 2)
            await consumer.commit({Q0: 5})
            assert await consumer.committed(Q0) == 5
        assert fake.broker.offsets["g", "t", 0] == 5


@in_loop
async def test_auto_commit_leaves_out_what_the_last_poll_returned() -> None:
    async with Fake(t=1) as fake:
        fill(fake, 10)
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with AsyncPullConsumer(fake.namesrv, "g", consume_from="first", commit_interval_ms=10) as consumer:
                await consumer.assign([Q0])
                assert len(await consumer.poll(2000, count_max=4)) == 4
                assert len(await consumer.poll(2000, count_max=3)) == 3
                await until(lambda: fake.broker.offsets.get(("g", "t", 0)) == 4)
                raise ZeroDivisionError
        assert fake.broker.offsets["g", "t", 0] == 4


@in_loop
async def test_iteration_counts_what_was_given_out() -> None:
    async with Fake(t=1) as fake:
        fill(fake, 10)
        async with AsyncPullConsumer(fake.namesrv, "g", consume_from="first") as consumer:
            await consumer.assign([Q0])
            got = []
            async for message in consumer:
                got.append(message.queue_offset)
                if len(got) == 4:
                    break
        assert got == [0, 1, 2, 3]
        assert fake.broker.offsets["g", "t", 0] == 4


@in_loop
async def test_pause_and_resume() -> None:
    async with Fake(t=2) as fake, AsyncPullConsumer(fake.namesrv, "g", consume_from="first") as consumer:
        await consumer.assign([Q0, Q1])
        await consumer.pause([Q0])
        await consumer.seek(Q0, 0)
        fake.broker.put("t", 0, b"paused")
        fake.broker.put("t", 1, b"read")
        assert [m.body for m in await consumer.poll(2000)] == [b"read"]
        assert await consumer.poll(50) == []
        await consumer.resume([Q0])
        assert [m.body for m in await consumer.poll(2000)] == [b"paused"]


@in_loop
async def test_two_members_share_and_queues_move() -> None:
    async with Fake(t=4) as fake:
        first = AsyncPullConsumer(fake.namesrv, "g", consume_from="first")
        first.subscribe("t")
        async with first:
            assert len(first.assignment()) == 4
            second = AsyncPullConsumer(fake.namesrv, "g", consume_from="first")
            second.subscribe("t")
            async with second:
                await until(lambda: len(first.assignment()) == len(second.assignment()) == 2)
                assert not set(first.assignment()) & set(second.assignment())
            await until(lambda: len(first.assignment()) == 4)


@in_loop
async def test_states() -> None:
    async with Fake(t=1) as fake:
        consumer = AsyncPullConsumer(fake.namesrv, "g")
        with pytest.raises(StateError, match="start"):
            await consumer.poll()
        async with consumer:
            await consumer.assign([Q0])
            with pytest.raises(StateError, match="assigned by hand"):
                consumer.subscribe("t")
        with pytest.raises(StateError):
            await consumer.poll()
        other = AsyncPullConsumer(fake.namesrv, "g")
        other.subscribe("t")
        async with other:
            with pytest.raises(StateError, match="subscribed"):
                await other.assign([Q0])
