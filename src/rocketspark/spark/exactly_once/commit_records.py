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
    """The part of one task attempt: its manifest's messages lie from `first` to `last` in the manifest queue."""

    attempt: str
    rows: int
    first: int = 0
    last: int = -1


class CommitRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A record of the commit queue, in JSON.

    `kind` commit: batch `batch` of `query` consists of `parts`; it stands at queue offset `at`, or is void. Manifests
    from `swept_from` up to `swept_to` of others are to be rolled back. `bounds`: topic, broker, queue id, and the
    queue's end before any of its messages was committed; `checksum`: of all bodies, in any order.
    ended: all messages of the commit at `at` are committed. aborted: `attempts` are not to be committed any more.
    claim: its writer carries out the commit at `at` from now on; a writer that did so before stops.
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
    """The last batch that ended and its query, which stay known after the records have expired.

    `content`: of its rows, see `content_hash`; None if its writer did not note it yet.
    """

    end: int
    batch: int
    query_hash: int
    content: int | None = None


class BatchVerdict(Enum):
    """The verdict on a batch by the records: new, or committed before."""

    NEW = "new"
    REPEAT = "repeat"


class TransactionalIdState(msgspec.Struct):
    """The state of a transactionalId by its records. `end`: where the next record will stand; `last`: the last commit.

    `claim`: the id of the writer that carries out the last commit now, if it took over from another; `kept`: the last
    batch as the group's offsets keep it, for when the records have expired.
    """

    end: int = 0
    last: CommitRecord | None = None
    ended: bool = False
    claim: str = ""
    aborted: set[str] = msgspec.field(default_factory=set)
    kept: LastCommit | None = None

    def add(self, offset: int, record: CommitRecord) -> None:
        """Change the state by the record at a queue offset; records are added in their order."""
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
        """Return the hash of the last batch's rows, None if none is known."""
        if self.last is not None:
            return content_hash(self.last.rows, self.last.checksum)
        return self.kept.content if self.kept is not None else None

    def judge(self, name: str, query: str, batch: int) -> BatchVerdict:
        """Tell whether a batch of a query is new or a repeat. Raises ConfigError if it cannot belong to this
        transactionalId.
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
    """Tell whether a commit that counts is among the records: earlier ones no longer matter then."""
    return any(record.kind == COMMIT and record.at == offset for offset, record in records)


def query_hash(query: str) -> int:
    """Return a number for a query id: 62 bits."""
    number = 0
    for byte in query.encode():
        number = (number * 1_000_003 ^ byte) & (1 << 62) - 1
    return number


def content_hash(rows: int, checksum: int) -> int:
    """Return a number for the rows of a batch, by their number and checksum: 62 bits."""
    return (rows * 0x9E3779B97F4A7C15 ^ checksum) & (1 << 62) - 1


class HalfOutcome(Enum):
    """The outcome of a half message that a broker asks about."""

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
    """The head of a manifest message. `sequence`: its number within the attempt; `queues`: targets of rows."""

    attempt: str
    sequence: int
    rows: int
    query: str
    batch: int
    ordered: bool
    queues: tuple[tuple[str, str, int], ...]


class HandleManifest(msgspec.Struct, frozen=True):
    """Handles of half messages, in the order of the rows: `targets` says which of the head's queues each is for."""

    head: HandleHead
    targets: NDArray[np.int32]
    half_offsets: NDArray[np.int64]
    positions: NDArray[np.int64]

    def queue(self, target: int) -> MessageQueue:
        """Return the queue of a target."""
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
