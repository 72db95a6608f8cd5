"""A process queue: what may be committed, and when there is room."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from tests.unit.client.fake import in_loop

from rocketspark.client.connection.instance import Instance
from rocketspark.client.consumer.puller import ProcessQueue, Puller, PullerCalls, PullSettings
from rocketspark.client.message_batch import Messages
from rocketspark.client.producer.send_path import KeyGate
from rocketspark.model import MessageQueue, ReceivedMessage
from rocketspark.model.subscription import subscribe
from rocketspark.protocol.message import record


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
    process_queue = ProcessQueue(5, count_max=10, bytes_max=1000)
    assert process_queue.lowest == 5
    batch = messages(5, 6, 8)
    process_queue.add(batch)
    process_queue.next_offset = 10
    process_queue.finish([batch[1]])
    assert process_queue.lowest == 5
    process_queue.finish([batch[0]])
    assert process_queue.lowest == 8
    process_queue.finish([batch[2]])
    assert (process_queue.lowest, len(process_queue), process_queue.bytes) == (10, 0, 0)


@pytest.mark.parametrize("expression", ["*", "a"])
@pytest.mark.parametrize("begin", [0, 5])
def test_what_is_held_is_what_was_handed_on(expression: str, begin: int) -> None:
    """Of many plain records the places are known at once: but not those of messages that are passed over."""
    tags = (b"TAGS\x01a\x02", b"TAGS\x01b\x02")
    data = b"".join(
        record.encode(topic=b"t", queue_id=0, queue_offset=n, position=n, body=b"x" * n, properties=tags[n % 2])
        for n in range(3 * record.MANY)
    )
    given: list[ReceivedMessage] = []

    def deliver(puller: Puller, messages: Messages) -> None:
        given.extend(messages)

    calls = PullerCalls(deliver, moved=lambda puller, offset, forget: None)
    how = PullSettings(backlog_count_max=1000)
    puller = Puller(cast(Instance, None), "g", MessageQueue("t", "b", 0), subscribe("t", expression), begin, how, calls)
    inflation = record.Inflation(1 << 20)
    puller._hand_on(record.decode_messages(data, "b", inflation), inflation, 3 * record.MANY)
    assert inflation.places is not None
    held = puller.process_queue
    wanted = [n for n in range(begin, 3 * record.MANY) if expression == "*" or n % 2 == 0]
    assert [m.queue_offset for m in given] == wanted
    assert (len(held), held.bytes) == (len(wanted), sum(m.stored_bytes for m in given))
    assert held.lowest == wanted[0]
    held.finish(given)
    assert (len(held), held.bytes, held.lowest) == (0, 0, 3 * record.MANY)


def test_finishing_twice_counts_once() -> None:
    process_queue = ProcessQueue(0, count_max=10, bytes_max=1000)
    batch = messages(0, 1)
    process_queue.add(batch)
    process_queue.finish([batch[0]])
    process_queue.finish([batch[0]])
    assert process_queue.bytes == batch[1].stored_bytes


@in_loop
async def test_room_by_count_bytes_and_pause() -> None:
    size = messages(0)[0].stored_bytes
    for process_queue in (
        ProcessQueue(0, count_max=2, bytes_max=9999),
        ProcessQueue(0, count_max=99, bytes_max=2 * size),
    ):
        batch = messages(0, 1)
        process_queue.add(batch)
        assert not process_queue.has_room
        waiting = asyncio.ensure_future(process_queue.room())
        await asyncio.sleep(0)
        assert not waiting.done()
        process_queue.finish(batch[:1])
        await waiting
        process_queue.paused = True
        waiting = asyncio.ensure_future(process_queue.room())
        await asyncio.sleep(0)
        assert not waiting.done()
        process_queue.paused = False
        await waiting


@in_loop
async def test_lanes_keep_the_order_of_arrival() -> None:
    lanes = KeyGate()
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
    process_queue = ProcessQueue(0, count_max=100, bytes_max=1 << 20, span_max=10)
    process_queue.add(messages(0))
    process_queue.next_offset = 10
    assert process_queue.has_room
    process_queue.next_offset = 11
    assert not process_queue.has_room
    process_queue.finish(messages(0))
    assert process_queue.has_room
    process_queue.add(messages(11, 12))
    process_queue.set_bounds(2, 1 << 20)
    assert not process_queue.has_room
    process_queue.set_bounds(3, 1 << 20)
    assert process_queue.has_room
