"""Option compacted: the last message of each key of a queue, without those whose body is empty.

Rule: a queue is read twice, first for its keys alone, so that memory holds each key and its offset, but no body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rocketspark.protocol.message.record_layout import Ints
from rocketspark.tables.columns import ChosenColumns, Columns, ReadColumns

# The rows of a partition, with these columns.
Read = Callable[[Columns], Iterator[pa.RecordBatch]]


def latest(read_keys: Read, read: Read, columns: Columns) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one queue that hold the last value of their key; `read_keys` and `read` give all its rows."""
    offsets = latest_offsets(read_keys(ReadColumns(["queueOffset", "keys", "body"])))
    if len(offsets):
        for batch in read(ChosenColumns(columns, offsets)):
            if batch.num_rows:
                yield batch


def latest_offsets(batches: Iterator[pa.RecordBatch]) -> Ints:
    """Return the offsets of the last message of each key, ascending, without keys whose last message has no body.

    `batches`: offsets that ascend, keys and bodies. The keys of a message count together, as in brokers' compaction;
    a message without any is left out.
    """
    found: dict[str, int] = {}
    for batch in batches:
        keys = pc.binary_join(batch.column("keys"), " ").to_pylist()
        lengths = pc.binary_length(batch.column("body")).to_pylist()
        for offset, key, length in zip(batch.column("queueOffset").to_pylist(), keys, lengths, strict=True):
            if key and length == 0:
                found.pop(key, None)
            elif key:
                found[key] = offset
    return np.sort(np.fromiter(found.values(), np.int64, len(found)))
