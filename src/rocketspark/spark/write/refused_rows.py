"""Finds rows that RocketMQ does not take. Rule: one bad row stops no pipeline; it is set aside, named and counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa

from rocketspark.errors import MessageIllegal
from rocketspark.protocol.message.message_ids import UniqueIdBlocks
from rocketspark.spark.write.batch_encoding import encode
from rocketspark.spark.write.rows import CheckedRows

_ids = UniqueIdBlocks()


def refused_rows(
    batch: pa.RecordBatch, topic: str | None, texts: Mapping[str, pa.Array] | None = None
) -> dict[int, str]:
    """Return the rows of a batch, as a write takes them, that would be refused before they leave, and why.

    `texts`: properties that are added to the rows.
    """
    return dict(_refused(batch, topic, texts or {}, 0))


def _refused(
    batch: pa.RecordBatch, topic: str | None, texts: Mapping[str, pa.Array], at: int
) -> Iterator[tuple[int, str]]:
    """Find them by halves: a batch without such rows costs one look."""
    if not batch.num_rows:
        return
    try:
        rows = CheckedRows(batch, topic)
        rows.texts.update(texts)
        encode(rows, _ids)
    except MessageIllegal as e:
        if batch.num_rows == 1:
            yield at, str(e)
            return
        half = batch.num_rows // 2
        for first, count in ((0, half), (half, batch.num_rows - half)):
            part = {name: column.slice(first, count) for name, column in texts.items()}
            yield from _refused(batch.slice(first, count), topic, part, at + first)
