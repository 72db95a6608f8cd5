"""A topic into a file. Rule: a file of its name is whole; until then it is a .part, which another run continues.

Where it begins and ends is fixed by the first run and noted beside the part, with how far the rows in it reach: an
export that was interrupted, however often, holds what one run would have. Parquet cannot be continued: its part is a
stream of Arrow, of which the file is made at the end.
"""

from __future__ import annotations

import fcntl
import io
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from rocketspark.errors import UsageError
from rocketspark.model import MessageQueue, typed_json
from rocketspark.model.text import shown
from rocketspark.tables import file_rows
from rocketspark.tables.offset_ranges import OffsetRange, to_json
from rocketspark.tables.option_values import COMMITTED, AtTime
from rocketspark.tables.options import ReadOptions
from rocketspark.tables.queue_bounds import lacks
from rocketspark.tables.read import batch
from rocketspark.tables.read.data_loss import lost
from rocketspark.tables.read.partition_planning import QueuePartition
from rocketspark.tables.read_columns import columns_of
from rocketspark.tables.read_table import Prepared, prepared
from rocketspark.transport.connections import in_one_form

# How often it is noted how far the rows on the disk reach: what a kill costs.
NOTED_S = 1.0
# A group of rows of Parquet, as others write them.
GROUP_ROWS = 122_880
GROUP_BYTES = 128 << 20

# Called with the messages looked at so far, and with how many there are.
Tell = Callable[[int, int], None]


class Reached(msgspec.Struct, frozen=True):
    """How far a part goes: its bytes and rows; they reach up to the offset `next` of the queue at `index`."""

    bytes: int
    rows: int
    index: int
    next: int


class Note(msgspec.Struct):
    """What is noted beside a part: which export it is of, its queues with their first and last offsets and the end of
    their log, how far it goes, and the numbers of the brokers' stores. `made`: the Parquet file is whole, and has only
    to get its name.
    """

    asked: str
    queues: list[tuple[str, str, int, int, int, int | None]]
    reached: Reached
    stores: dict[str, int] = {}
    made: bool = False

    @property
    def ranges(self) -> list[OffsetRange]:
        """The queues with their offsets."""
        return [OffsetRange(MessageQueue(*queue), first, end) for *queue, first, end, _ in self.queues]  # type: ignore[arg-type]


class Exported(NamedTuple):
    """What an export did: the rows of its file, and how many of them were there when it began."""

    rows: int
    continued: int


def export_topic(
    given: Mapping[str, Any], to: Path, *, times: str = "", overwrite: bool = False, tell: Tell | None = None
) -> Exported:
    """Write the messages that a read gives into a file, and return how many there are.

    `given`: the options of the read; `times`: how the user wrote its times, which may count back from now. Raises
    UsageError, OSError, and as `read_batches`.
    """
    kind = file_rows.format_of(to)
    _check_is_free(to, overwrite)
    made = prepared(given)
    with locked(to.with_name(f"{to.name}.part")) as file:
        _check_is_free(to, overwrite)  # Another run may have ended just now.
        return _Export(file, to, kind, made, times, tell or (lambda looked_at, of: None)).run()


def _check_is_free(to: Path, overwrite: bool) -> None:
    if to.is_dir():
        raise UsageError(f"{shown(str(to))} is a folder: give the name of a file in it")
    if to.exists() and not overwrite:
        raise UsageError(f"{shown(str(to))} is there already: give another name, or --overwrite")


@contextmanager
def locked(part: Path) -> Iterator[io.FileIO]:
    """Open a part, or make an empty one, which nobody else does meanwhile; it is removed if it is empty in the end."""
    if part.is_symlink() or (part.exists() and not part.is_file()):
        raise UsageError(f"{shown(str(part))} is no plain file: remove it, or give another name")
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    with io.FileIO(os.open(part, flags, 0o666), "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{shown(str(part))} is in use by another run: let it end, or stop it") from None
        if not _is_of(part, file):
            # What was opened is a whole file by now.
            raise UsageError(f"{shown(str(part))} was another run's, which has just ended: try again")
        try:
            yield file
        finally:
            if _is_of(part, file) and not os.fstat(file.fileno()).st_size:
                part.unlink()  # Nothing came of it.


def _is_of(path: Path, file: io.FileIO) -> bool:
    """Tell whether an open file still has a name."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    return False


class _Export:
    """One run, with the part that it writes."""

    def __init__(self, file: io.FileIO, to: Path, kind: str, made: Prepared, times: str, tell: Tell) -> None:
        self._file, self._to, self._kind, self._made, self._times, self._tell = file, to, kind, made, times, tell
        self._part = to.with_name(f"{to.name}.part")
        self._beside = to.with_name(f"{to.name}.part.json")
        self._parquet = to.with_name(f"{to.name}.part.parquet")
        self._schema = made.columns.schema
        self._noted_s = time.monotonic()

    def run(self) -> Exported:
        options = self._made.options
        note = self._found()
        if note is not None and note.made and not self._size():
            self._name(self._parquet)
            return Exported(note.reached.rows, note.reached.rows)
        if note is None:
            partitions = batch.plan(options)
            note = Note(self._asked(), _queues(partitions), Reached(0, 0, 0, 0), _stores(partitions))
        else:
            left = _remaining(note)
            partitions = batch.plan(_only(options, left)) if left else []
        self._note = note
        if not note.reached.bytes:
            self._keep()  # Before anything is written: a part without a note is somebody else's.
        self._file.truncate(note.reached.bytes)
        self._file.seek(note.reached.bytes)
        continued = note.reached.rows
        try:
            if not note.reached.bytes:
                self._write(self._head(), 0, 0, 0)
                self._keep()
            self._copy(partitions)
        except BaseException:
            with suppress(OSError):
                self._keep()
            raise
        self._keep()
        self._finish()
        return Exported(note.reached.rows, continued)

    def _asked(self, one_form: Callable[[str], str] = in_one_form) -> str:
        """Return what tells this export from others, without secrets."""
        options = self._made.options
        places = [None if self._times and isinstance(at, AtTime) else at for at in (options.starting, options.ending)]
        what = (options.topics, options.topic_pattern, options.assigned, places, self._times)
        # What is done about messages that are gone, and bad bodies, a later run may say otherwise.
        how = (options.tags, options.sql, options.key, options.store, options.access.namespace, options.compacted)
        group = options.committed_group if COMMITTED in places else None
        decoded = options.decode and (options.decode.format, options.decode.mode)
        servers = one_form(options.namesrv) if options.namesrv else ""
        return repr((self._kind, what, how, group, decoded, servers, str(self._schema)))

    def _found(self) -> Note | None:
        """Return what is noted of an earlier run; None if this is the first."""
        try:
            note = typed_json.decode(self._beside.read_bytes(), Note)
        except FileNotFoundError:
            note = None
        except msgspec.DecodeError as e:
            raise UsageError(f"{shown(str(self._beside))} cannot be read ({e}): delete it to begin anew") from None
        size = self._size()
        if note is None and size:
            raise UsageError(f"{shown(str(self._part))} is no part of an export: remove it, or give another name")
        made = note is not None and note.made and self._parquet.exists()
        if note is None or not (size or made):
            return None  # The part was deleted, or renamed by a run that ended then.
        # Earlier versions took the servers as they were listed.
        if note.asked not in (self._asked(), self._asked(str)) or (size < note.reached.bytes and not made):
            raise UsageError(
                f"{shown(str(self._part))} is of another export, or cut short: go on with the same options, or delete"
                f" it to begin anew"
            )
        return note

    def _size(self) -> int:
        return self._file.seek(0, os.SEEK_END)

    def _head(self) -> bytes:
        if self._kind == file_rows.CSV:
            return file_rows.csv_head(self._schema)
        return bytes(self._schema.serialize()) if self._kind == file_rows.PARQUET else b""

    def _encode(self, rows: pa.RecordBatch) -> bytes | memoryview:
        if self._kind == file_rows.PARQUET:
            return memoryview(rows.serialize())
        return file_rows.csv_of(rows) if self._kind == file_rows.CSV else file_rows.lines_of(rows)

    def _copy(self, partitions: list[batch.Partition]) -> None:
        """Write the rows of the partitions, which are in the order of the note's queues."""
        names = self._schema.names
        # The place of each row, whatever columns are wanted.
        inner = names if "queueOffset" in names else [*names, "queueOffset"]
        columns = columns_of(inner, self._made.options)
        ranges = self._note.ranges
        index_of = {one.queue: index for index, one in enumerate(ranges)}
        before = list(accumulate((one.end - one.first for one in ranges), initial=0))
        for partition in partitions:
            source = partition.source
            index = index_of[source.queue]
            if self._is_of_other_store(partition):
                lost(source, "its broker has another store now", self._made.options)
                self._write(b"", 0, index, source.end)
                continue
            if isinstance(partition, QueuePartition) and None not in (partition.log_end, self._note.queues[index][-1]):
                # What lies behind it in the log is of a topic that was made anew since the first run.
                partition.log_end = self._note.queues[index][-1]
            for rows in batch.read(partition, columns, self._made.options):
                after = rows.column("queueOffset")[rows.num_rows - 1].as_py() + 1
                self._write(self._encode(rows.select(names)), rows.num_rows, index, after)
                self._tell(before[index] + after - ranges[index].first, before[-1])
                if time.monotonic() - self._noted_s >= NOTED_S:
                    self._keep()
            self._write(b"", 0, index, source.end)
        self._tell(before[-1], before[-1])

    def _is_of_other_store(self, partition: batch.Partition) -> bool:
        """Tell whether the broker of a partition has another store than when the export began, or a copy that lacks
        some of the partition.
        """
        if not isinstance(partition, QueuePartition):
            return False
        noted = self._note.stores.get(partition.own_broker)
        return lacks(noted, partition.store_number, partition.shared, partition.own.end)

    def _write(self, data: bytes | memoryview, rows: int, index: int, after: int) -> None:
        written, view = 0, memoryview(data)
        while written < len(view):
            with named(self._part):
                written += self._file.write(view[written:]) or 0
        reached = self._note.reached
        self._note.reached = Reached(reached.bytes + written, reached.rows + rows, index, after)

    def _keep(self) -> None:
        """Have what is written on the disk, and then noted how far it goes."""
        with named(self._part):
            os.fsync(self._file)
        replace(self._beside, msgspec.json.encode(self._note))
        self._noted_s = time.monotonic()

    def _finish(self) -> None:
        """Give the whole file its name."""
        if self._kind != file_rows.PARQUET:
            self._name(self._part)
            return
        with named(self._parquet):
            _to_parquet(self._part, self._parquet)
        self._note.made = True
        self._keep()
        # First: a part that outlasts the rename would be taken for an export that is to go on, and end as this file
        # again.
        self._part.unlink(missing_ok=True)
        self._name(self._parquet)

    def _name(self, whole: Path) -> None:
        os.replace(whole, self._to)
        sync_folder(self._to)
        self._beside.unlink(missing_ok=True)


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Have errors tell which file it is that cannot be written: those of a full disk name none."""
    try:
        yield
    except OSError as e:
        e.filename = e.filename or str(path)
        raise


def replace(path: Path, data: bytes) -> None:
    """Replace a small file, so that it is the old or the new one whatever happens."""
    temporary = path.with_name(f"{path.name}.tmp")
    with named(temporary), temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path)


def sync_folder(path: Path) -> None:
    """Have the name of a file on the disk."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _queues(partitions: list[batch.Partition]) -> list[tuple[str, str, int, int, int, int | None]]:
    """Return the queues that partitions read, with the first and the last offset and the end of their log, in the order
    in which they come.
    """
    found: dict[MessageQueue, tuple[int, int, int | None]] = {}
    for partition in partitions:
        queue, first, end = partition.source
        log_end = None
        if isinstance(partition, QueuePartition) and partition.less is None:
            log_end = partition.log_end  # The parts of a logical queue lie in several logs.
        found[queue] = (found.get(queue, (first,))[0], end, log_end)
    return [(q.topic, q.broker_name, q.queue_id, *how) for q, how in found.items()]


def _stores(partitions: list[batch.Partition]) -> dict[str, int]:
    """Return the numbers of the stores that partitions are read from, by broker; without those that tell none."""
    live = (one for one in partitions if isinstance(one, QueuePartition))
    return {one.own_broker: one.store_number for one in live if one.store_number}


def _remaining(note: Note) -> list[OffsetRange]:
    """Return what is still to be read."""
    reached = note.reached
    left = note.ranges[reached.index :]
    if left:
        left[0] = left[0]._replace(first=max(left[0].first, reached.next))
    return [one for one in left if one.first < one.end]


def _only(options: ReadOptions, left: list[OffsetRange]) -> ReadOptions:
    """Return the options of a read of these queues and offsets alone."""
    assigned: dict[str, dict[str, tuple[int, ...]]] = {}
    for queue, _, _ in left:
        ids = assigned.setdefault(queue.topic, {}).get(queue.broker_name, ())
        assigned[queue.topic][queue.broker_name] = (*ids, queue.queue_id)
    return options._replace(
        topics=tuple(assigned),
        topic_pattern=None,
        assigned=assigned,
        starting=to_json({one.queue: one.first for one in left}),
        ending=to_json({one.queue: one.end for one in left}),
    )


def _to_parquet(part: Path, to: Path) -> None:
    """Make a Parquet file of a stream of Arrow."""
    from pyarrow import parquet

    with pa.memory_map(str(part)) as source, pa.ipc.open_stream(source) as stream, to.open("wb") as sink:
        with parquet.ParquetWriter(sink, stream.schema, compression="zstd") as writer:
            group: list[pa.RecordBatch] = []
            for rows in stream:
                group.append(rows)
                if sum(one.num_rows for one in group) >= GROUP_ROWS or sum(one.nbytes for one in group) >= GROUP_BYTES:
                    writer.write_table(pa.Table.from_batches(group))
                    group = []
            if group:
                writer.write_table(pa.Table.from_batches(group))
        sink.flush()
        os.fsync(sink.fileno())
