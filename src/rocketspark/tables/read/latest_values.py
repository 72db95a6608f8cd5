"""Option compacted: the last message of each key of a queue, without those whose body is empty.

Rule: a queue is read twice, first for its keys alone, so that memory holds each key and its offset, but no body. A
broker that compacts the topic meanwhile removes messages that newer ones of their key follow: these are then looked for
in what came since.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rocketspark.tables.read_columns import ChosenColumns, Columns, ReadColumns

Part = TypeVar("Part")
KEY_COLUMNS = ReadColumns(["queueOffset", "keys", "body"])
# How often more is read because messages are missing in what was read before; it holds far less each time.
_MORE_MAX = 3


class QueueReads(NamedTuple, Generic[Part]):
    """How the parts of a queue are read. `keys`: all rows of a part, with KEY_COLUMNS; `rows`: all of them, with these
    columns; `count`: how many offsets a part has; `following`: the part that came since, None if nothing did, or if the
    broker removes no message that another one of its key follows.
    """

    keys: Callable[[Part], Iterator[pa.RecordBatch]]
    rows: Callable[[Part, Columns], Iterator[pa.RecordBatch]]
    count: Callable[[Part], int]
    following: Callable[[Part], Part | None]


def latest(part: Part, reads: QueueReads[Part], columns: Columns) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one queue that hold the last value of their key."""
    keys: Collection[str] | None = None
    following: Part | None = part
    while following is not None:
        parts, found = _looked_at(following, reads, keys)
        if not found:
            return
        chosen = ChosenColumns(columns, np.sort(np.fromiter(found.values(), np.int64, len(found))))
        for one in parts:
            for batch in reads.rows(one, chosen):
                if batch.num_rows:
                    yield batch
        # What was there at the first look and is no more has been followed by a message behind all that was read.
        keys = {key for key, offset in found.items() if offset not in chosen.came}
        following = reads.following(parts[-1]) if keys else None


def _looked_at(part: Part, reads: QueueReads[Part], keys: Collection[str] | None) -> tuple[list[Part], dict[str, int]]:
    """Return the offset of the last message of each key from a part on, and the parts that were read for it."""
    parts, found = [part], dict[str, int]()
    while note_latest(reads.keys(parts[-1]), found, keys) < reads.count(parts[-1]) and len(parts) <= _MORE_MAX:
        # Where messages are missing, those that took their place may have come after this part was planned.
        if (following := reads.following(parts[-1])) is None:
            break
        parts.append(following)
    return parts, found


def note_latest(batches: Iterator[pa.RecordBatch], found: dict[str, int], keys: Collection[str] | None = None) -> int:
    """Note in `found` the offset of the last message of each key, or of each of some keys, and remove keys whose last
    message has no body; return how many messages there were.

    `batches`: offsets that ascend, keys and bodies. The keys of a message count together, as in brokers' compaction;
    a message without any is left out.
    """
    count = 0
    for batch in batches:
        count += batch.num_rows
        names = pc.binary_join(batch.column("keys"), " ").to_pylist()
        lengths = pc.binary_length(batch.column("body")).to_pylist()
        for offset, key, length in zip(batch.column("queueOffset").to_pylist(), names, lengths, strict=True):
            if not key or (keys is not None and key not in keys):
                continue
            if length == 0:
                found.pop(key, None)
            else:
                found[key] = offset
    return count
