"""A topic is deleted and made anew: who read it begins at the first message of the new one, however it reads."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.live.pop_support import popped
from tests.live.support import GROUP, TOPIC, broker, connected, create, create_group, pull, pulled, run, sent, until

from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import PullReply, QueryConsumerOffsetHeader, TopicHeader
from rocketspark.transport.peer import Peer


async def remade(peer: Peer, count: int) -> None:
    """The topic with so many messages, after another one of its name."""
    (await peer.request(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic=TOPIC))).raise_for_code("delete")
    await create(peer, queues=1)
    for number in range(count):
        await sent(peer, b"new %d" % number)


async def moved_to(peer: Peer, offset: int, **changes: Any) -> int | None:
    """Where a pull is sent to; None if it is not."""
    reply = await pull(peer, TOPIC, 0, offset, **{"sys_flag": 6} | changes)
    return reply.header(PullReply).next_offset if reply.code == ResponseCode.PULL_OFFSET_MOVED else None


@pytest.mark.parametrize("count", [3, 10, 25])
def test_a_reader_is_sent_to_the_first_message_once(tmp_path: Path, count: int) -> None:
    """Where the new one ends before the offset, at it, and behind it."""

    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            await create_group(peer)
            for number in range(10):
                await sent(peer, b"old %d" % number)
            assert len(await pulled(peer)) == 10
            await remade(peer, count)
            if count > 10:
                # A tool that looks at a place waits for nothing.
                assert await moved_to(peer, 10, sys_flag=4) is None
            assert await moved_to(peer, 10) == 0
            assert [found.body for found in await pulled(peer)] == [b"new %d" % number for number in range(count)]
            # It was told. Another group, and one that asks where to begin, mean what they say.
            assert await moved_to(peer, count) is None
            if count > 10:
                assert await moved_to(peer, 10, group="other") is None
            await remade(peer, 20)
            asked = QueryConsumerOffsetHeader(group=GROUP, topic=TOPIC, queue_id=0)
            await peer.request(RequestCode.QUERY_CONSUMER_OFFSET, asked)
            assert await moved_to(peer, 10) is None
            # What is read by ranges is what was asked for.
            await remade(peer, 20)
            assert await moved_to(peer, 10, bulk=True) is None
            assert await moved_to(peer, 0) is None

    run(main())


def test_a_reader_that_nobody_knows_is_sent_there_if_its_offset_is_beyond_the_end(tmp_path: Path) -> None:
    """After a start of the broker, and where each member of a group keeps its own offsets."""

    async def old() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            for number in range(10):
                await sent(peer, b"old %d" % number)
            await pulled(peer)
            # Of a topic that was never another, its end was read before: it lost some of it.
            assert await moved_to(peer, 11) == 10
            await remade(peer, 3)

    async def new() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            assert [await moved_to(peer, 10, group=group) for group in (GROUP, "other")] == [0, 0]

    run(old())
    run(new())


@pytest.mark.parametrize("count", [3, 25])
def test_a_pop_goes_on_at_the_first_message(tmp_path: Path, count: int) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer, queues=1)
            await create_group(peer)
            for number in range(10):
                await sent(peer, b"old %d" % number)
            assert len(await popped(peer)) == 10
            await remade(peer, count)
            # Those that begin at the end, too: the group was there before.
            assert [m.body for m in await popped(peer, init_mode=1)] == [b"new %d" % number for number in range(count)]

    run(main())


def test_a_held_pull_hears_of_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer, connected(server.address) as other:
            await create(peer, queues=1)
            for number in range(10):
                await sent(peer, b"old %d" % number)
            await pulled(peer)
            held = asyncio.ensure_future(moved_to(peer, 10, sys_flag=6, suspend_ms=60_000))
            await until(lambda: server._long_polling.waiting)
            await remade(other, 1)
            assert await held == 0

    run(main())
