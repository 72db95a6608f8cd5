"""Chosen messages as a file to download: JSON lines, CSV or Parquet, with the columns of `rocketspark export`, so that
`rocketspark import` takes it.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rocketspark.errors import ConfigError, UsageError
from rocketspark.model.text import shown

if TYPE_CHECKING:
    from rocketspark.model import ReceivedMessage

# By the ending of a file's name.
MEDIA_TYPES = {
    "jsonl": "application/x-ndjson",
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
}
NEEDED = "files of messages take the extra arrow: pip install 'rocketspark[arrow]'"


def file_of(messages: Sequence[ReceivedMessage], kind: str) -> bytes:
    """Return a file of messages; `kind`: jsonl, csv or parquet. Raises UsageError for another kind, ConfigError if the
    extra `arrow` is missing.
    """
    if kind not in MEDIA_TYPES:
        raise UsageError(f"a file of messages is {', '.join(MEDIA_TYPES)}, not {shown(kind)}")
    try:
        from pyarrow import Table, parquet

        from rocketspark.arrow import message_columns, row_by_row
        from rocketspark.tables import file_rows
    except ModuleNotFoundError:
        raise ConfigError(NEEDED) from None
    schema = message_columns.schema_of()
    rows = row_by_row.batch_of(messages, schema.names)
    if kind == "jsonl":
        return file_rows.lines_of(rows)
    if kind == "csv":
        return file_rows.csv_head(schema) + file_rows.csv_of(rows)
    sink = io.BytesIO()
    parquet.write_table(Table.from_batches([rows], schema), sink, compression="zstd")
    return sink.getvalue()
