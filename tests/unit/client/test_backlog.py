"""The backlog of a queue: what may be committed, and when there is room."""

from __future__ import annotations

import asyncio

from tests.unit.client.fake import in_loop

from rocketspark.client.backlog import Backlog
from rocketspark.client.lanes import Lanes
from rocketspark.model import ReceivedMessage
from rocketspark.protocol import record


def messages(*offsets: int) -> list[ReceivedMessage]:
    return [
        record.to_message(
            record.decode(
                record.encode(
                    topic=b"t", queue_id=0, queue_offset=o, position=0, body=b"x", properties=b"UNIQ_KEY\x01u\x02"
                )
            )
        )
        for o in offsets
    ]


def test_the_lowest_unfinished_offset_is_committed() -> None:
    backlog = Backlog(5, count_max=10, bytes_max=1000)
    assert backlog.lowest == 5
    batch = messages(5, 6, 8)
    backlog.add(batch)
    backlog.next_offset = 10
    backlog.finish([batch[1]])
    assert backlog.lowest == 5
    backlog.finish([batch[0]])
    assert backlog.lowest == 8
    backlog.finish([batch[2]])
    assert (backlog.lowest, len(backlog), backlog.bytes) == (10, 0, 0)


def test_finishing_twice_counts_once() -> None:
    backlog = Backlog(0, count_max=10, bytes_max=1000)
    batch = messages(0, 1)
    backlog.add(batch)
    backlog.finish([batch[0]])
    backlog.finish([batch[0]])
    assert backlog.bytes == batch[1].stored_bytes


@in_loop
async def test_room_by_count_bytes_and_pause() -> None:
    size = messages(0)[0].stored_bytes
    for backlog in (Backlog(0, count_max=2, bytes_max=9999), Backlog(0, count_max=99, bytes_max=2 * size)):
        batch = messages(0, 1)
        backlog.add(batch)
        assert not backlog.has_room
        waiting = asyncio.ensure_future(backlog.room())
        await asyncio.sleep(0)
        assert not waiting.done()
        backlog.finish(batch[:1])
        await waiting
        backlog.paused = True
        waiting = asyncio.ensure_future(backlog.room())
        await asyncio.sleep(0)
        assert not waiting.done()
        backlog.paused = False
        await waiting


@in_loop
async def test_lanes_keep_the_order_of_arrival() -> None:
    lanes = Lanes()
    order: list[str] = []

    async def one(name: str, key: str) -> None:
        await lanes.enter(key)
        order.append(f"{name} in")
        await asyncio.sleep(0)
        order.append(f"{name} out")
        lanes.leave(key)

    tasks = [asyncio.ensure_future(one(str(i), "k")) for i in range(3)]
    other = asyncio.ensure_future(one("other", "l"))
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.gather(*tasks, other, return_exceptions=True)
    assert [o for o in order if "other" not in o] == ["0 in", "0 out", "2 in", "2 out"]
    assert order.index("other in") < order.index("2 in")
    assert len(lanes) == 0


def test_span_and_other_bounds() -> None:
    backlog = Backlog(0, count_max=100, bytes_max=1 << 20, span_max=10)
    backlog.add(messages(0))
    backlog.next_offset = 10
    assert backlog.has_room
    backlog.next_offset = 11
    assert not backlog.has_room
    backlog.finish(messages(0))
    assert backlog.has_room
    backlog.add(messages(11, 12))
    backlog.set_bounds(2, 1 << 20)
    assert not backlog.has_room
    backlog.set_bounds(3, 1 << 20)
    assert backlog.has_room
