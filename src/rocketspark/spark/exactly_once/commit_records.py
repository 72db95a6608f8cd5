"""The messages of a transactionalId's commit topic: commit records, from which its state is computed, and manifests,
which hold the transaction handles of a task attempt's half messages. Pure.

Rule: a commit record counts only where it says it stands. RocketMQ has no conditional append; but a record that names
the queue offset it was made for, and landed elsewhere, came after something its writer had not seen. A handle is what
END_TRANSACTION needs: a half message's offset in the half queue and its physical offset, on a broker.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from enum import Enum

import msgspec
import numpy as np
from numpy.typing import NDArray

from rocketspark.errors import ConfigError, RocketSparkError
from rocketspark.model import MessageQueue, typed_json

# A batch job has no query and one batch.
JOB = "job"
COMMIT, ENDED, ABORTED, CLAIM = "commit", "ended", "aborted", "claim"


class AttemptPart(msgspec.Struct, frozen=True):
    """What one task attempt adds to a batch: its rows, and its manifest, whose messages are at the offsets `first` to
    `last` of the manifest queue, both included.
    """

    attempt: str
    rows: int
    first: int = 0
    last: int = -1


class CommitRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A record of a commit topic's queue of records, written as JSON. Its `kind` says what the other fields mean.

    commit: the batch `batch` of `query` consists of `parts`. The record counts only if it stands at queue offset `at`.
    The manifests of other attempts from `swept_from` up to `swept_to` are to be rolled back. `bounds`: topic, broker
    and id of each queue, and where the queue ended before any message of the batch was committed. `checksum`: of all
    bodies, in any order.

    ended: all messages of the commit at `at` are committed. aborted: the attempts `attempts` must not be committed any
    more. claim: the record's writer carries out the commit at `at` from now on; the writer that did so before stops.
    """

    kind: str
    at: int
    id: str
    query: str = ""
    batch: int = 0
    rows: int = 0
    checksum: int = 0
    time_ms: int = 0
    parts: tuple[AttemptPart, ...] = ()
    swept_from: int = 0
    swept_to: int = 0
    bounds: tuple[tuple[str, str, int, int], ...] = ()
    attempts: tuple[str, ...] = ()


_encoder = msgspec.json.Encoder()
_decoder = typed_json.decoder(CommitRecord)


def encode(record: CommitRecord) -> bytes:
    """Return the body of the record's message."""
    return _encoder.encode(record)


def decode(body: bytes) -> CommitRecord:
    """Decode a record from its message's body. Raises RocketSparkError if it is none."""
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise RocketSparkError(f"the commit topic holds a message that is no record of ours: {e}") from None


class LastCommit(msgspec.Struct, frozen=True):
    """The last batch that ended, and its query; kept as offsets of a group, as these outlive the records.

    `content`: the `content_hash` of its rows; None if its writer has not noted it yet.
    """

    end: int
    batch: int
    query_hash: int
    content: int | None = None


class BatchVerdict(Enum):
    """Whether a batch is new, or a repeat of one that the records show as committed."""

    NEW = "new"
    REPEAT = "repeat"


class TransactionalIdState(msgspec.Struct):
    """The state of a transactionalId, computed from its records. `end`: the offset of the next record; `last`: the last
    commit record that counts; `ended`: all its messages are committed.

    `claim`: the id of the writer that carries out the last commit, if it took over from another; `kept`: the last batch
    as the group's offsets keep it, for when the records have expired.
    """

    end: int = 0
    last: CommitRecord | None = None
    ended: bool = False
    claim: str = ""
    aborted: set[str] = msgspec.field(default_factory=set)
    kept: LastCommit | None = None

    def add(self, offset: int, record: CommitRecord) -> None:
        """Change the state by the record at a queue offset; records must be added in their order."""
        self.end = offset + 1
        if record.kind == COMMIT and record.at == offset:
            self.last, self.ended, self.claim = record, False, ""
        elif record.kind == ABORTED:
            self.aborted.update(record.attempts)
        elif self.last is not None and record.at == self.last.at:
            if record.kind == ENDED:
                self.ended = True
            elif record.kind == CLAIM:
                self.claim = record.id

    @property
    def content(self) -> int | None:
        """The hash of the last batch's rows; None if it is not known."""
        if self.last is not None:
            return content_hash(self.last.rows, self.last.checksum)
        return self.kept.content if self.kept is not None else None

    def judge(self, name: str, query: str, batch: int) -> BatchVerdict:
        """Tell whether a query's batch is new or a repeat. `name`: the transactionalId. Raises ConfigError for a batch
        that cannot belong to it: another query's, or an earlier one.
        """
        if self.last is not None:
            last_query: str | None = self.last.query
            last_batch = self.last.batch
            # A batch without any task does not know its query.
            same = not query or last_query == query
        elif self.kept is not None:
            last_query, last_batch = None, self.kept.batch
            same = not query or self.kept.query_hash == query_hash(query)
        else:
            return BatchVerdict.NEW
        if not same:
            whose = "another query" if last_query is None else f"query {last_query}"
            if last_query == JOB:
                whose = "a batch job"
            raise ConfigError(
                f"transactionalId {name!r} belongs to {whose}, this is {'a batch job' if query == JOB else query}: give"
                " each query, and each run of a batch job, a transactionalId of its own (a query with a new"
                " checkpointLocation is another query)"
            )
        if batch < last_batch:
            raise ConfigError(
                f"transactionalId {name!r} has committed batch {last_batch} of this query, and this is batch {batch}:"
                " its checkpoint is an older one than what was written; use the newest, or another transactionalId"
            )
        return BatchVerdict.REPEAT if batch == last_batch else BatchVerdict.NEW


def state_of(records: Iterable[tuple[int, CommitRecord]], end: int = 0) -> TransactionalIdState:
    """Compute the state from records in order, with their queue offsets."""
    state = TransactionalIdState()
    for offset, record in records:
        state.add(offset, record)
    state.end = max(state.end, end)
    return state


def holds_commit(records: Sequence[tuple[int, CommitRecord]]) -> bool:
    """Tell whether a commit record that counts is among the records; if so, earlier records do not matter."""
    return any(record.kind == COMMIT and record.at == offset for offset, record in records)


def query_hash(query: str) -> int:
    """Return a number for a query id: 62 bits."""
    number = 0
    for byte in query.encode():
        number = (number * 1_000_003 ^ byte) & (1 << 62) - 1
    return number


def content_hash(rows: int, checksum: int) -> int:
    """Return a number of 62 bits for the rows of a batch, made of how many they are and their checksum."""
    return (rows * 0x9E3779B97F4A7C15 ^ checksum) & (1 << 62) - 1


class HalfOutcome(Enum):
    """What a broker is told of a half message that it asks about."""

    ROLLBACK = "rollback"
    UNKNOWN = "unknown"


def outcome_of(state: TransactionalIdState, batch: int) -> HalfOutcome:
    """Answer a broker's question about a half message of a batch.

    The answer is never to commit: the writer that recorded or repeats the commit does that, each message once (Apache's
    broker commits again for each request). Once a batch has ended, a half message that is still open is not part of it.
    """
    if state.last is not None:
        decided = batch < state.last.batch or (batch == state.last.batch and state.ended)
    else:
        decided = state.kept is not None and batch <= state.kept.batch
    return HalfOutcome.ROLLBACK if decided else HalfOutcome.UNKNOWN


MANIFEST_ROWS_MAX = 65_536
_LENGTH = struct.Struct(">I")
# Handles of one task lie close together: differences are small, and zlib leaves some 3 bytes of each.
_LEVEL = 1


class HandleHead(msgspec.Struct, frozen=True):
    """The head of a manifest message. `sequence`: the message's number within the attempt; `queues`: the queues that
    rows go to.
    """

    attempt: str
    sequence: int
    rows: int
    query: str
    batch: int
    ordered: bool
    queues: tuple[tuple[str, str, int], ...]


class HandleManifest(msgspec.Struct, frozen=True):
    """The handles of half messages, in the order of the rows. `targets`: for each row, which of the head's queues it
    goes to.
    """

    head: HandleHead
    targets: NDArray[np.int32]
    half_offsets: NDArray[np.int64]
    positions: NDArray[np.int64]

    def queue(self, target: int) -> MessageQueue:
        """Return the queue that a number in `targets` stands for."""
        return MessageQueue(*self.head.queues[target])


def encode_manifest(manifest: HandleManifest) -> bytes:
    """Return the body of the manifest's message."""
    head = msgspec.json.encode(manifest.head)
    columns = b"".join(
        np.diff(column, prepend=column.dtype.type(0)).astype(kind).tobytes()
        for column, kind in ((manifest.targets, "<i4"), (manifest.half_offsets, "<i8"), (manifest.positions, "<i8"))
    )
    return b"".join((_LENGTH.pack(len(head)), head, zlib.compress(columns, _LEVEL)))


def decode_manifest(body: bytes) -> HandleManifest:
    """Decode a manifest from its message's body. Raises RocketSparkError if it is none."""
    try:
        (size,) = _LENGTH.unpack_from(body)
        head = typed_json.decode(body[4 : 4 + size], HandleHead)
        rows = head.rows
        if not 0 <= rows <= MANIFEST_ROWS_MAX:
            raise ValueError(f"{rows} rows")
        columns = zlib.decompressobj().decompress(body[4 + size :], rows * 20 + 1)
        if len(columns) != rows * 20:
            raise ValueError(f"{len(columns)} bytes for {rows} rows")
        targets = np.cumsum(np.frombuffer(columns, "<i4", rows), dtype=np.int32)
        half_offsets = np.cumsum(np.frombuffer(columns, "<i8", rows, rows * 4), dtype=np.int64)
        positions = np.cumsum(np.frombuffer(columns, "<i8", rows, rows * 12), dtype=np.int64)
        if rows and not (int(targets.min()) >= 0 and int(targets.max()) < len(head.queues)):
            raise ValueError("a row has no queue")
    except (ValueError, struct.error, zlib.error, msgspec.DecodeError, OverflowError) as e:
        raise RocketSparkError(f"the commit topic holds a message that is no manifest of ours: {e}") from None
    return HandleManifest(head, targets, half_offsets, positions)
