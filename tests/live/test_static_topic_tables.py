"""Static topics as tables: batches and streams of the source by logical offsets, over queues that are moved."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.live.support import create, run, sent, until
from tests.live.test_static_topic_clients import LOGICAL, QUEUES, make_static, move_to_b
from tests.live.test_static_topics import TOPIC, item, mapping, pair, put_mapping

from rocketspark.broker.server import BrokerServer
from rocketspark.client import AsyncProducer
from rocketspark.errors import ConfigError, NotSent
from rocketspark.protocol.codes import RequestCode
from rocketspark.spark.pipelines.audit import ask
from rocketspark.spark.pipelines.connection import Connection
from rocketspark.spark.read.queue_discovery import QueueGone
from rocketspark.spark.read.stream_read import StreamReader
from rocketspark.spark.schemas import READ_SCHEMA
from rocketspark.tables.export_topic import export_topic
from rocketspark.tables.offset_ranges import from_json
from rocketspark.tables.options import parse_read
from rocketspark.tables.read.data_loss import DataLost
from rocketspark.tables.read_table import read_table
from rocketspark.transport.peer import Peer

pytestmark = pytest.mark.shows(
    "Spark, `read_table` and `export` read static topics: logical offsets by offset, time and limit, over moved "
    "queues; gaps are no loss, and no message is passed over"
)

Row = tuple[int, int, bytes]


async def send(names: str, first: int, count: int) -> None:
    """Send bodies that count on from `first`, to the logical queues in turn."""
    async with AsyncProducer(names, "PG") as producer:
        for n in range(first, first + count):
            await producer.send(TOPIC, b"%d" % n, queue=LOGICAL[n % QUEUES])


def expected(count: int, moved_at: int) -> list[Row]:
    """The rows of so many messages; queues 0 and 1 were moved when `moved_at` had been sent."""
    before = moved_at // QUEUES
    rows = []
    for n in range(count):
        queue_id, offset = n % QUEUES, n // QUEUES
        if n >= moved_at and queue_id < 2:
            offset += 10_000 - before
        rows.append((queue_id, offset, b"%d" % n))
    return sorted(rows)


def rows_of(table: pa.Table) -> list[Row]:
    columns = table.select(["queueId", "queueOffset", "body"]).to_pydict()
    return sorted(zip(*columns.values(), strict=True))


async def read(names: str, **how: Any) -> list[Row]:
    topic = None if "assign" in how else TOPIC
    return rows_of(await asyncio.to_thread(read_table, names, topic, **how))


class Stream:
    """A stream of the source, micro-batch by micro-batch, as Spark reads it."""

    def __init__(self, names: str, **options: str) -> None:
        given = {"namesrv": names, "topic": TOPIC, "startingoffsets": "earliest"} | options
        self._make = lambda: StreamReader(READ_SCHEMA, parse_read(given, streaming=True))
        self.reader = self._make()
        self.at = self.reader.initialOffset()

    def restart(self) -> None:
        """Go on with another process's reader, from what a checkpoint has."""
        self.reader.stop()
        self.reader = self._make()
        self.at = json.loads(json.dumps(self.at))

    def batch(self) -> list[Row]:
        """Read the next micro-batch."""
        end = self.reader.latestOffset(self.at, self.reader.getDefaultReadLimit())
        parts = self.reader.partitions(self.at, end)
        found = [row for part in parts for rows in self.reader.read(part) for row in rows_of(pa.table(rows))]
        self.at = end
        return found


def test_batches_read_logical_offsets_across_a_move(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path) as (a, b, to_a, to_b, names):
            await make_static(to_a, to_b)
            await send(names, 0, 20)
            assert await read(names) == expected(20, 20)
            await move_to_b(to_a, to_b)
            await send(names, 20, 20)
            everything = expected(40, 20)
            assert await read(names) == everything
            assert await read(names, minPartitions=16) == everything
            table = await asyncio.to_thread(read_table, names, TOPIC, columns=["broker"])
            assert set(table.column("broker").to_pylist()) == {"__syslo__global__"}
            # From and to any place, in parts and in the gap; and by time.
            for start, end in ((0, 5), (3, 10_002), (5, 7), (7, 9_999), (9_999, 10_001), (10_005, 10_005)):
                at = {"start": dict.fromkeys(LOGICAL[:2], start), "end": dict.fromkeys(LOGICAL[:2], end)}
                rows = await read(names, assign=json.dumps({TOPIC: {"": [0, 1]}}), **at)
                assert rows == [r for r in everything if r[0] < 2 and start <= r[1] < end]
            for server, own, logical in ((a, 1, 2), (b, 2, 10_003)):
                time_ms = server.store.store_time_at(TOPIC, own, logical % 10_000)
                later = await read(names, start=time_ms)
                assert next(r for r in later if r[0] == 0)[1] <= logical
                assert {r for r in everything if r[0] == 0 and r[1] >= logical} <= set(later)
            with pytest.raises(ConfigError, match="option compacted is for queues of one broker, and queue 0"):
                await read(names, compacted=True)
            with pytest.raises(ConfigError, match="topic 'Moved' is a static topic"):
                await asyncio.to_thread(ask, Connection(names), [TOPIC], [])
            with pytest.raises(DataLost, match=r"messages 10000 to 10005 of queue 0 .*__syslo__global__"):
                await read(names, end={LOGICAL[0]: 10_006}, start={LOGICAL[0]: 10_000})
            to = tmp_path / "rows.jsonl"
            await asyncio.to_thread(export_topic, {"namesrv": names, "topic": TOPIC}, to)
            lines = [json.loads(line) for line in to.read_text().splitlines()]
            assert sorted((r["queueId"], r["queueOffset"]) for r in lines) == [r[:2] for r in everything]

    run(main())


def test_a_stream_reads_on_over_a_move(tmp_path: Path) -> None:
    """With limits, that gaps do not count against; what is moved at the moment is read to its former end."""

    async def main() -> None:
        async with pair(tmp_path) as (_, _, to_a, to_b, names):
            await make_static(to_a, to_b)
            await send(names, 0, 20)
            stream = await asyncio.to_thread(Stream, names)
            assert sorted(await asyncio.to_thread(stream.batch)) == expected(20, 20)
            await send(names, 20, 8)
            # Half of a move: the new part has messages, and no place in the queue yet.
            parts = {n: [item(0, 1 - n, "a", 0), item(1, 2 + n, "b", -1)] for n in (0, 1)}
            own = {2: [item(0, 0, "b", 0)], 3: [item(0, 1, "b", 0)]}
            await put_mapping(to_b, mapping("b", 2000, parts | own, QUEUES), 4)
            await put_mapping(to_a, mapping("a", 2000, parts, QUEUES), 2)
            await send(names, 28, 8)
            found = await asyncio.to_thread(stream.batch)
            assert sorted(found) == [r for r in expected(36, 28) if 5 <= r[1] < 10_000]
            await asyncio.to_thread(stream.restart)
            await move_to_b(to_a, to_b)
            assert sorted(await asyncio.to_thread(stream.batch)) == [r for r in expected(36, 28) if r[1] >= 10_000]
            before = stream.at
            assert await asyncio.to_thread(stream.batch) == []
            assert stream.at == before
            # Four rows at a time from the start on: no micro-batch is spent on a gap, each queue gets on.
            slow = await asyncio.to_thread(lambda: Stream(names, maxmessagespertrigger="4"))
            got, sizes = [], []
            while len(got) < 36:
                got += (rows := await asyncio.to_thread(slow.batch))
                sizes.append(len(rows))
            assert (sorted(got), sizes) == (expected(36, 28), [4] * 9)

    run(main())


async def remove_all(server: BrokerServer, peer: Peer) -> None:
    """Have a broker remove the files of all that its queues of the topic hold."""
    await create(peer, "Fill")
    for _ in range(70):
        await sent(peer, bytes(1024), topic="Fill")
    await until(lambda: server.store.flushed_position == server.store.written_position)
    await peer.request(RequestCode.DELETE_EXPIRED_COMMITLOG)
    await until(lambda: all(low == high for low, high in (server.store.queue_range(TOPIC, n) for n in (0, 1))))


@pytest.mark.parametrize("read_before", [20, 8], ids=["what was read", "what was not"])
def test_a_part_whose_messages_are_removed(tmp_path: Path, read_before: int) -> None:
    """What a stream had read is no loss; what it had not is."""
    small = {"log_file_bytes": 65536, "reserved_hours": 0, "delete_when": "", "flush_interval_ms": 20}

    async def main() -> None:
        async with pair(tmp_path, clean_pause_ms=0, **small) as (a, _, to_a, to_b, names):
            await make_static(to_a, to_b)
            await send(names, 0, read_before)
            stream = await asyncio.to_thread(Stream, names)
            assert len(await asyncio.to_thread(stream.batch)) == read_before
            await send(names, read_before, 20 - read_before)
            await move_to_b(to_a, to_b)
            await send(names, 20, 20)
            await remove_all(a, to_a)
            if read_before == 20:
                assert sorted(await asyncio.to_thread(stream.batch)) == [r for r in expected(40, 20) if r[1] >= 5]
            else:
                with pytest.raises(DataLost, match="messages 2 to 4 of queue 0"):
                    await asyncio.to_thread(stream.batch)
            assert await read(names) == [r for r in expected(40, 20) if r[0] > 1 or r[1] >= 10_000]

    run(main())


def test_brokers_of_parts_that_are_away(tmp_path: Path) -> None:
    """A reader past a part needs its broker no more; one that has yet to read there waits for it, by name."""

    async def main() -> None:
        async with pair(tmp_path) as (a, _, to_a, to_b, names):
            await make_static(to_a, to_b)
            await send(names, 0, 20)
            ahead, behind = [await asyncio.to_thread(Stream, names) for _ in range(2)]
            await asyncio.to_thread(ahead.batch)
            await move_to_b(to_a, to_b)
            await send(names, 20, 20)
            assert len(await asyncio.to_thread(ahead.batch)) == 20
            await a.close()
            await send(names, 40, 8)
            for _ in range(2):
                assert len(await asyncio.to_thread(ahead.batch)) == 8
                await asyncio.to_thread(ahead.restart)
                await send(names, 48, 8)
            with pytest.raises(NotSent, match="broker 'a'"):
                await asyncio.to_thread(behind.batch)
            assert from_json(behind.at)[LOGICAL[0]] == 0

    run(main())


def test_a_topic_that_is_deleted_and_made_anew(tmp_path: Path) -> None:
    async def main() -> None:
        async with pair(tmp_path) as (_, _, to_a, to_b, names):
            await make_static(to_a, to_b)
            await send(names, 0, 20)
            deleted, anew = [await asyncio.to_thread(Stream, names) for _ in range(2)]
            for stream in (deleted, anew):
                await asyncio.to_thread(stream.batch)
            for peer in (to_a, to_b):
                (await peer.request(215, {"topic": TOPIC})).raise_for_code("delete")
            with pytest.raises(QueueGone, match="the topic was deleted"):
                await asyncio.to_thread(deleted.batch)
            await make_static(to_a, to_b)
            # Past the old place.
            await send(names, 0, 40)
            with pytest.raises(DataLost, match="made anew"):
                await asyncio.to_thread(anew.batch)

    run(main())
