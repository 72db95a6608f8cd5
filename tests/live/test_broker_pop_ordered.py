"""Ordered pops: a queue's messages one batch after another; whoever waits is woken when its turn comes."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Any

import pytest
from tests.live.pop_support import Popped, ack, change, messages, pop, popped
from tests.live.support import TOPIC, broker, connected, create, run, sent, until

from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode

pytestmark = pytest.mark.shows(
    "ordered pops, `attemptId`, acks out of order, `consumerOrderInfo.json` to and from the Java broker",
    "In-order pops given back unseen count no attempt, also after a restart",
)

HOLD: dict[str, Any] = {"poll_time_ms": 250_000}
IN_ORDER: dict[str, Any] = {"order": True, "count_max": 2}


def bodies_of(found: list[Popped]) -> list[bytes]:
    return [m.body for m in found]


def test_whoever_waits_is_woken_by_the_ack_that_frees_the_queue(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            for n in range(4):
                await sent(peer, b"%d" % n)
            first = await popped(peer, **IN_ORDER)
            assert bodies_of(first) == [b"0", b"1"]
            waiting = asyncio.create_task(popped(peer, **IN_ORDER, **HOLD))
            await until(lambda: server._pop_state.waiting.total == 1)
            # Not by another message of the queue, nor by an ack that leaves one.
            await sent(peer, b"4")
            (await ack(peer, first[1])).raise_for_code("ack")
            assert not waiting.done()
            (await ack(peer, first[0])).raise_for_code("ack")
            assert bodies_of(await waiting) == [b"2", b"3"]

    run(main())


def test_whoever_waits_is_woken_when_the_messages_are_visible_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            for n in range(3):
                await sent(peer, b"%d" % n)
            began = time.monotonic()
            first = await popped(peer, **IN_ORDER, invisible_time_ms=500)
            (await ack(peer, first[0])).raise_for_code("ack")
            again = messages(await pop(peer, **IN_ORDER, **HOLD))
            assert time.monotonic() - began >= 0.49  # Brokers count whole milliseconds.
            # From the first that was not acknowledged on, and told how often it came.
            assert [(m.body, m.count) for m in again] == [(b"1", 1), (b"2", 0)]
            waiting = asyncio.create_task(popped(peer, **IN_ORDER, **HOLD))
            await until(lambda: server._pop_state.waiting.total == 1)
            for message in again:
                (await change(peer, message, 0))[0].raise_for_code("change")
            assert [(m.body, m.count) for m in await waiting] == [(b"1", 2), (b"2", 1)]

    run(main())


def test_an_attempt_that_broke_gets_the_same_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            for n in range(3):
                await sent(peer, b"%d" % n)
            assert bodies_of(await popped(peer, **IN_ORDER, attempt_id="a")) == [b"0", b"1"]
            assert bodies_of(await popped(peer, **IN_ORDER, attempt_id="b")) == []
            again = await popped(peer, **IN_ORDER, attempt_id="a")
            assert [(m.body, m.count) for m in again] == [(b"0", 0), (b"1", 0)]

    run(main())


def test_what_nobody_got_counts_no_attempt_also_after_a_restart(tmp_path: Path) -> None:
    """A pop whose client was gone: its messages come again as if it had not been."""

    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            for n in range(3):
                await sent(peer, b"%d" % n)
            first = await popped(peer, **IN_ORDER)
            (await change(peer, first[0], 0))[0].raise_for_code("change")
            for _ in range(2):
                (await change(peer, first[1], 0, suspend=True))[0].raise_for_code("change")
        async with broker(tmp_path) as server, connected(server.address) as peer:
            again = await popped(peer, **IN_ORDER | {"count_max": 3})
            assert [(m.body, m.count) for m in again] == [(b"0", 1), (b"1", 0), (b"2", 0)]
            for message in again:
                (await change(peer, message, 0))[0].raise_for_code("change")
            assert [m.count for m in await popped(peer, **IN_ORDER | {"count_max": 3})] == [2, 1, 1]

    run(main())


def test_the_order_survives_a_restart_and_goes_with_its_topic(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            for n in range(3):
                await sent(peer, b"%d" % n)
            first = await popped(peer, **IN_ORDER)
            (await ack(peer, first[0])).raise_for_code("ack")
        async with broker(tmp_path) as server, connected(server.address) as peer:
            assert await popped(peer, **IN_ORDER) == []
            (await ack(peer, first[1])).raise_for_code("ack")
            assert bodies_of(await popped(peer, **IN_ORDER)) == [b"2"]
            gone = headers.TopicHeader(topic=TOPIC)
            (await peer.request(RequestCode.DELETE_TOPIC_IN_BROKER, gone)).raise_for_code("delete")
            await create(peer)
            await sent(peer, b"new")
            assert bodies_of(await popped(peer, **IN_ORDER)) == [b"new"]

    run(main())


def test_many_consumers_get_each_queue_in_order(tmp_path: Path) -> None:
    count, queues = 400, 4

    async def main() -> None:
        chance = random.Random(7)
        seen: dict[int, list[int]] = {queue_id: [] for queue_id in range(queues)}
        done: set[tuple[int, int]] = set()
        held: dict[int, int] = {}

        async def consume(address: str) -> None:
            async with connected(address) as peer:
                while len(done) < count:
                    found = messages(await pop(peer, order=True, count_max=5, poll_time_ms=1000))
                    for queue_id in {m.queue_id for m in found}:
                        # One batch of a queue is out at a time.
                        assert held.setdefault(queue_id, id(peer)) == id(peer)
                    for message in found:
                        seen[message.queue_id].append(message.offset)
                    # In any order.
                    for message in chance.sample(found, len(found)):
                        last = sum(m.queue_id == message.queue_id for m in found) == 1
                        found.remove(message)
                        if last:
                            held.pop(message.queue_id)
                        (await ack(peer, message)).raise_for_code("ack")
                        done.add((message.queue_id, message.offset))

        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer, TOPIC, queues)
            consumers = [asyncio.create_task(consume(server.address)) for _ in range(6)]
            for n in range(count):
                await sent(peer, b"%d" % n, TOPIC, n % queues)
            await asyncio.gather(*consumers)
            assert seen == {queue_id: list(range(count // queues)) for queue_id in range(queues)}

    run(main())


def test_an_ack_after_a_kill_passes_over_no_message_before_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as server, connected(server.address) as peer:
            await create(peer)
            for n in range(3):
                await sent(peer, b"%d" % n)
            found = await popped(peer, order=True)
            # A kill before the table was written.
            server._pop_state.ordered.table.clear()
            (await ack(peer, found[2])).raise_for_code("ack")
            assert [m.body for m in await popped(peer, order=True)] == [b"0", b"1", b"2"]
            server._pop_state.ordered.table.clear()
            (await ack(peer, found[0])).raise_for_code("ack")
            assert [m.body for m in await popped(peer, order=True)] == [b"1", b"2"]

    run(main())
