"""df.write and df.writeStream: rows to topics, at least once. Rule: a task that ends well has every row stored.

A task that Spark runs again sends its rows again; nothing is taken back.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from rocketspark.spark.options import WriteOptions
from rocketspark.spark.sender import send_rows


class Written(WriterCommitMessage):
    """How many rows a task sent."""

    def __init__(self, rows: int) -> None:
        self.rows = rows


class BatchWriter(DataSourceArrowWriter):
    """Sends the rows of a batch query."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send one task's rows; runs on an executor."""
        return Written(send_rows(iterator, self._options))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing to do: the rows are stored."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing to do: what was sent stays."""


class StreamWriter(DataSourceStreamArrowWriter):
    """Sends the rows of each micro-batch."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send one task's rows; runs on an executor."""
        return Written(send_rows(iterator, self._options))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to do: the rows are stored."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to do: what was sent stays."""
