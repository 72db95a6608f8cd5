"""What executors do for an archive: read queues into Parquet files, merge files, and read them back.

Rule: rows of a queue stay in its order; memory is bounded by row groups, never by an hour.
"""

from __future__ import annotations

import heapq
import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rocketspark.arrow.message_columns import schema_of
from rocketspark.spark.pipelines.parts.archive_manifest import (
    FILES,
    HOUR_MS,
    ArchivedRange,
    ArchiveFile,
    WrittenFile,
    hour_name,
)

ROW_GROUP_ROWS = 128 << 10
ROW_GROUP_BYTES = 64 << 20
# Hours whose files a task keeps open; times in a queue hardly ever go back further.
OPEN_HOURS_MAX = 4
BATCH_ROWS = 16 << 10
# Text that hardly ever repeats: a dictionary of it, or its least and greatest, would be space lost.
_PLAIN = {"body", "messageId", "offsetMessageId", "queueOffset", "logPosition", "bornTime", "storeTime"}

# The topic is in the folder's name.
SCHEMA: pa.Schema = pa.schema([field for field in schema_of() if field.name != "topic"])


class HourWriter:
    """Writes one Parquet file of an hour's rows, which are added queue by queue."""

    def __init__(self, folder: Path, topic: str, hour: str) -> None:
        self._topic, self._hour = topic, hour
        self._path = folder / f"{uuid.uuid4().hex}.parquet"
        self._batches: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0
        self._segments: list[ArchivedRange] = []
        self._writer = pq.ParquetWriter(
            self._path,
            SCHEMA,
            compression="zstd",
            use_dictionary=[name for name in SCHEMA.names if name not in _PLAIN],
            write_statistics=[name for name in SCHEMA.names if name not in ("body", "properties", "keys")],
        )

    @property
    def bytes(self) -> int:
        """How many bytes are written so far, without the rows gathered for the next row group."""
        return self._path.stat().st_size

    def add(self, batch: pa.RecordBatch, broker: str, queue_id: int) -> None:
        """Add rows of one queue, in its order."""
        offsets = batch.column("queueOffset")
        first, end = offsets[0].as_py(), offsets[-1].as_py() + 1
        last = self._segments[-1] if self._segments else None
        if last is not None and (last.broker, last.queue_id) == (broker, queue_id) and last.end <= first:
            self._segments[-1] = ArchivedRange(broker, queue_id, last.first, end, last.rows + batch.num_rows)
        else:
            self._segments.append(ArchivedRange(broker, queue_id, first, end, batch.num_rows))
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= ROW_GROUP_ROWS or self._bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._batches:
            table = pa.Table.from_batches(self._batches, SCHEMA)
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._batches, self._rows, self._bytes = [], 0, 0

    def close(self) -> WrittenFile:
        """Close the file, and return it as a WrittenFile."""
        self._flush()
        self._writer.close()
        rows = sum(segment.rows for segment in self._segments)
        size = self._path.stat().st_size
        return WrittenFile(str(self._path), self._topic, self._hour, rows, size, self._segments)


def write_rows(batches: Iterator[pa.RecordBatch], staging: Path) -> Iterator[WrittenFile]:
    """Write rows of one queue, with all columns, into one file for each hour, in the folder `staging`."""
    writers: dict[int, HourWriter] = {}
    for batch in batches:
        if not batch.num_rows:
            continue
        topic, broker, queue_id = (batch.column(name)[0].as_py() for name in ("topic", "broker", "queueId"))
        rows = batch.select(SCHEMA.names).cast(SCHEMA)
        hours = pc.divide(pc.cast(rows.column("storeTime").cast(pa.timestamp("ms", "UTC")), pa.int64()), HOUR_MS)
        for hour in sorted(pc.unique(hours).to_pylist()):
            if hour not in writers:
                if len(writers) >= OPEN_HOURS_MAX:
                    yield writers.pop(min(writers)).close()
                writers[hour] = HourWriter(staging, topic, hour_name(hour * HOUR_MS))
            writers[hour].add(rows.filter(pc.equal(hours, hour)), broker, queue_id)
    for writer in writers.values():
        yield writer.close()


def merge(files: Sequence[ArchiveFile], root: Path, staging: Path, file_bytes: int) -> Iterator[WrittenFile]:
    """Merge one hour's files into few, each at least `file_bytes` long but the last; rows are ordered by broker, queue
    and offset. `root`: the folder of the files.
    """
    topic, hour = files[0].topic, files[0].hour
    waiting = [(file.segments[0], number, 0) for number, file in enumerate(files) if file.segments]
    heapq.heapify(waiting)
    readers = [_Rows(root / FILES / file.path) for file in files]
    writer: HourWriter | None = None
    while waiting:
        segment, number, place = heapq.heappop(waiting)
        for batch in readers[number].take(segment.rows):
            writer = writer or HourWriter(staging, topic, hour)
            writer.add(batch, segment.broker, segment.queue_id)
            if writer.bytes >= file_bytes:
                yield writer.close()
                writer = None
        if place + 1 < len(files[number].segments):
            heapq.heappush(waiting, (files[number].segments[place + 1], number, place + 1))
    if writer is not None:
        yield writer.close()


class _Rows:
    """Reads a file from its begin on, so many rows at a time; opened when first read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._batches: Iterator[pa.RecordBatch] | None = None
        self._left: pa.RecordBatch | None = None

    def take(self, rows: int) -> Iterator[pa.RecordBatch]:
        if self._batches is None:
            self._batches = pq.ParquetFile(self._path).iter_batches(BATCH_ROWS)
        while rows:
            batch = self._left if self._left is not None else next(self._batches)
            self._left = batch[rows:] if batch.num_rows > rows else None
            batch = batch[:rows]
            rows -= batch.num_rows
            yield batch.cast(SCHEMA)


def read_segment(root: Path, file: ArchiveFile, number: int, first: int, end: int) -> Iterator[pa.RecordBatch]:
    """Read the rows with queue offsets in [first, end) from segment `number` of a file, in order; row groups without
    such rows are not read.
    """
    begin = sum(segment.rows for segment in file.segments[:number])
    stop = begin + file.segments[number].rows
    with pq.ParquetFile(root / FILES / file.path) as parquet:
        row = 0
        for group in range(parquet.num_row_groups):
            count = parquet.metadata.row_group(group).num_rows
            if row < stop and row + count > begin:
                at = row
                for batch in parquet.iter_batches(BATCH_ROWS, row_groups=[group]):
                    wanted = batch[max(0, begin - at) : max(0, stop - at)]
                    at += batch.num_rows
                    offsets = wanted.column("queueOffset")
                    wanted = wanted.filter(pc.and_(pc.greater_equal(offsets, first), pc.less(offsets, end)))
                    if wanted.num_rows:
                        yield wanted.cast(SCHEMA)
            row += count


TOLD = "told string"


def tell(found: Iterator[Any]) -> Iterator[pa.RecordBatch]:
    """Turn values into rows of JSON text, with the columns TOLD, in which a task reports to the driver."""
    for one in found:
        yield pa.record_batch({"told": pa.array([msgspec.json.encode(one).decode()])})


def numbers(batches: Iterator[pa.RecordBatch]) -> Iterator[int]:
    """Yield the numbers of the tasks that run in this partition of `spark.range`."""
    for batch in batches:
        yield from batch.column(0).to_pylist()


def check_folder(path: Path) -> None:
    """Raise FileNotFoundError, which says what to do, if a folder of the driver's does not exist on this executor."""
    if not os.path.isdir(path):
        raise FileNotFoundError(f"{path} is not here: the archive must be in a folder that driver and executors share")
