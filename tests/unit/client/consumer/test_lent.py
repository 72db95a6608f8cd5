"""What is in somebody's hands while its queue is given up, sought or filtered anew; what a start or a close leaves."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.client.consumer.test_pull_consumer import Q0, fill, read
from tests.unit.client.consumer.test_push_consumer import consumer
from tests.unit.client.consumer.test_rebalance import Held
from tests.unit.client.fake import Fake, in_loop, until

from rocketspark.client import AsyncPullConsumer
from rocketspark.client.consumer.handed_out import MessageIterator
from rocketspark.model import MessageQueue

pytestmark = pytest.mark.shows(
    "mended: an iterator's messages are lost when its queue is given up, filtered anew or taken back beside "
    "it; `unread` moves a position forward"
)


async def lent(consumer: AsyncPullConsumer, count: int) -> MessageIterator:
    portion = await consumer.lend(120_000)
    assert [len(messages) for _, messages in portion.rest()] == [count]
    return portion


@in_loop
async def test_what_an_iterator_passes_over_is_not_committed() -> None:
    revoking, go_on = asyncio.Event(), asyncio.Event()

    async def revoked(queues: list[MessageQueue]) -> None:
        revoking.set()
        await go_on.wait()

    async with Fake(t=1) as fake:
        fill(fake, 5)
        c = AsyncPullConsumer(fake.namesrv, "g", consume_from="first", on_revoked=revoked)
        c.subscribe("t")
        async with c:
            portion = await lent(c, 5)
            each = iter(portion)
            assert [next(each).queue_offset for _ in range(2)] == [0, 1]
            c.unsubscribe("t")
            await revoking.wait()
            assert list(each) == []
            go_on.set()
            await until(lambda: not c.assignment())
            # Whoever reads the queue next begins with what nobody was given.
            assert fake.broker.committed["g", "t", 0][-1] == 2
            c.take_back(portion)


@in_loop
async def test_a_filter_that_changes_takes_nothing_out_of_an_iterator_s_hands() -> None:
    async with Fake(t=1) as fake, AsyncPullConsumer(fake.namesrv, "g", consume_from="first") as c:
        fill(fake, 5)
        await c.assign([Q0])
        portion = await lent(c, 5)
        each = iter(portion)
        assert [next(each).queue_offset for _ in range(2)] == [0, 1]
        await c.assign([Q0], "A || B")
        await c.commit()
        assert fake.broker.committed["g", "t", 0][-1] == 1
        assert [m.queue_offset for m in each] == [2, 3, 4]
        c.take_back(portion)
        await c.commit()
        assert fake.broker.committed["g", "t", 0][-1] == 5


@in_loop
async def test_what_one_takes_back_leaves_another_s_portion_alone() -> None:
    async with Fake(t=1) as fake, AsyncPullConsumer(fake.namesrv, "g", consume_from="first") as c:
        fill(fake, 5)
        await c.assign([Q0])
        first, second = await c.lend(120_000, count_max=2), await c.lend(120_000, count_max=2)
        each = iter(first)
        next(each)
        c.take_back(second)
        assert [m.queue_offset for m in each] == [1]
        assert [m.queue_offset for m in await read(c, 3)] == [2, 3, 4]


@in_loop
async def test_unread_never_goes_forward() -> None:
    async with Fake(t=1) as fake, AsyncPullConsumer(fake.namesrv, "g", consume_from="first") as c:
        fill(fake, 5)
        await c.assign([Q0])
        found = await read(c, 5)
        await c.seek(Q0, 1)
        await c.unread(found[3:])
        assert await c.position(Q0) == 1
        assert [m.queue_offset for m in await read(c, 4)] == [1, 2, 3, 4]


@pytest.mark.shows("mended: `subscribe` or `assign` during `start` joins twice, or joins at all")
@in_loop
async def test_who_subscribes_or_assigns_while_it_starts_is_one_member_or_none() -> None:
    async with Fake(t=1) as fake:
        for by_hand in (False, True):
            c = AsyncPullConsumer(fake.namesrv, "g", consume_from="first")
            held = Held(c._rebalance.offsets.store, "load")
            starting = asyncio.create_task(c.start())
            await held.begun.wait()
            if by_hand:
                await c.assign([Q0])
            else:
                c.subscribe("t")
            held.go_on.set()
            await starting
            balancing = [t for t in asyncio.all_tasks() if "Rebalance._balance" in repr(t)]
            assert len(balancing) == (not by_hand)
            assert c._rebalance.joined is not by_hand
            await c.close()


@pytest.mark.shows("mended: locks of queues not begun outlive their member by 60 s")
@in_loop
async def test_locks_of_queues_that_were_not_begun_end_with_their_member() -> None:
    async with Fake(t=1) as fake:
        c = consumer(fake, lambda message: None, ordered=True)
        held = Held(c._rebalance.offsets, "start_offset")
        starting = asyncio.create_task(c.start())
        await held.begun.wait()
        assert fake.broker.owners
        closing = asyncio.create_task(c.close())
        await asyncio.wait([starting])
        await closing
        starting.exception()
        assert fake.broker.owners == {}
