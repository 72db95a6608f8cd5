"""Batch queues (queue.type=BatchCQ) in the second tier: a record of several messages is there, and read as one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.live.pop_support import popped
from tests.live.support import TOPIC, connected, create, create_group, pull, run, send
from tests.live.test_broker_batch_queues import BATCHED
from tests.live.test_broker_retention import Disk
from tests.live.test_tiered import clean, tiered, uploaded

from rocketspark import MessageQueue
from rocketspark.broker.storage.tiering import Tiering
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.headers import PullReply
from rocketspark.protocol.message import batch, properties, record
from rocketspark.protocol.message.batch import BatchItem
from rocketspark.store.tiered.layout import UNIT
from rocketspark.store.tiered.queue_tier import NewUnit
from rocketspark.tables.read_table import read_table
from rocketspark.transport.peer import Peer

pytestmark = pytest.mark.shows("second tier: the messages of batch queues (queue.type=BatchCQ) are copied and read")
SIZES = [n % 7 + 1 for n in range(60)]
COUNT = sum(SIZES)


def as_rocketmq_takes(self: Any, queue: Any, offset: int, count: int) -> list[NewUnit]:
    """RocketMQ's tier has a record once for each of its messages, each with a unit of its own (seen with 5.5.0)."""
    found = ours(self, queue, offset, count)
    return [NewUnit(*each[:3]) for each in found for _ in range(each.messages)]


ours = Tiering._take_batches


async def numbers(peer: Peer, offset: int) -> list[int]:
    """The messages that a consumer reads from an offset on, which may lie within a batch."""
    found: list[int] = []
    while (reply := await pull(peer, TOPIC, 0, offset)).code != ResponseCode.PULL_NOT_FOUND:
        assert reply.code == ResponseCode.SUCCESS, reply.remark
        messages = list(record.decode_messages(reply.body))
        assert [m.queue_offset for m in messages] == [int(m.body[:4]) for m in messages]
        found += [m.queue_offset for m in messages if m.queue_offset >= offset]
        offset = reply.header(PullReply).next_offset
    return found


async def fill(peer: Peer, first: int = 0) -> None:
    for size in SIZES:
        numbered = range(first, first + size)
        parts = [BatchItem(0, b"%4d" % n + bytes(1024), properties.encode({"TAGS": "A"}).encode()) for n in numbered]
        reply = await send(peer, batch.encode(parts), code=320, batch=True, pairs={"UNIQ_KEY": f"{first:032X}"})
        reply.raise_for_code("batch")
        first += size


@pytest.mark.parametrize("layout", ["ours", "RocketMQ's"])
def test_batches_are_read_from_the_tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    if layout != "ours":
        monkeypatch.setattr(Tiering, "_take_batches", as_rocketmq_takes)

    async def main() -> None:
        disk = Disk()
        async with tiered(tmp_path, disk) as server, connected(server.address) as peer:
            await create(peer, queues=1, attributes=BATCHED)
            await create_group(peer)
            await fill(peer)
            await uploaded(server, COUNT)
            assert await clean(server, disk) >= 2
            assert 100 < server.store.stored_range(TOPIC, 0)[0] < COUNT
            await check(peer)
        async with tiered(tmp_path, disk) as server, connected(server.address) as peer:
            await uploaded(server, COUNT)
            await check(peer)
            await fill(peer, COUNT)
            await uploaded(server, 2 * COUNT)
            assert await numbers(peer, 0) == list(range(2 * COUNT))
            found: list[int] = []
            while len(found) < len(SIZES):
                found += [m.offset for m in await popped(peer, count_max=32)]
            assert found[: len(SIZES)] == [sum(SIZES[:n]) for n in range(len(SIZES))]

    async def check(peer: Peer) -> None:
        for offset in (0, 1, 2, 4, 50, 51, 52, 53, 100):
            assert await numbers(peer, offset) == list(range(offset, COUNT))

    run(main())
    folder = next((tmp_path / "tier").glob("*/*"))
    assert read_table(topic=TOPIC, store=folder)["queueOffset"].to_pylist() == list(range(2 * COUNT))
    part = read_table(topic=TOPIC, store=folder, start={MessageQueue(TOPIC, "broker-a", 0): 4})
    assert part["queueOffset"].to_pylist() == list(range(4, 2 * COUNT))
    assert read_table(topic=TOPIC, store=folder, tags="A")["queueOffset"].to_pylist() == list(range(2 * COUNT))
    assert read_table(topic=TOPIC, store=folder, tags="B").num_rows == 0


def test_units_of_half_a_batch_are_written_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with tiered(tmp_path) as server, connected(server.address) as peer:
            await create(peer, queues=1, attributes=BATCHED)
            await fill(peer)
            await uploaded(server, COUNT)
        units = max((tmp_path / "tier").rglob(f"{TOPIC}/0/CONSUME_QUEUE/*"), key=lambda path: path.name[8:])
        content = units.read_bytes()
        units.write_bytes(content[: len(content) - 2 * UNIT.size])
        async with tiered(tmp_path, tiered_storage_level="FORCE") as server, connected(server.address) as peer:
            await uploaded(server, COUNT)
            assert await numbers(peer, 0) == list(range(COUNT))
        assert units.read_bytes() == content

    run(main())
