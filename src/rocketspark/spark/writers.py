"""df.write and df.writeStream. Rule: a task that ends well has every row stored, at least.

At least once, rows are visible at once, and a task that Spark runs again sends them again. Exactly once, they become
visible when their batch is committed: `exactly_once.batch_commit`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from rocketspark.spark import exactly_once
from rocketspark.spark.exactly_once import SentAttempt, TaskAttempt
from rocketspark.spark.spark_features import DataSourceStreamArrowWriter
from rocketspark.spark.write.batch_sender import send_rows
from rocketspark.tables.options import WriteOptions

# Local properties that Spark's stream execution gives its tasks.
_BATCH, _QUERY = "streaming.sql.batchId", "sql.streaming.queryId"


class TaskCommit(WriterCommitMessage):
    """A task's report to the driver: how many rows it sent and, if written exactly once, where the manifest of its half
    messages is.
    """

    def __init__(self, rows: int, sent: SentAttempt | None = None) -> None:
        self.rows = rows
        self.sent = sent


class _TopicWriter:
    """What both kinds of writers do: Spark hands `batchId` to that of a stream alone."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        if options.transactional_id:
            exactly_once.open_log(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send one task's rows; runs on an executor."""
        if not self._options.transactional_id:
            return TaskCommit(send_rows(iterator, self._options))
        context = TaskContext.get()
        query, batch = self._batch_of(context)
        attempt = TaskAttempt(query, batch, context.partitionId() if context is not None else 0)
        sent = exactly_once.send_attempt(iterator, self._options, attempt)
        return TaskCommit(sent.rows, sent)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:
        """Exactly once: make the rows visible. Else do nothing: they are visible."""
        if self._options.transactional_id:
            exactly_once.commit(_sent(messages), self._options, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:
        """Exactly once: roll the rows back. Else do nothing: rows that were sent stay."""
        if self._options.transactional_id:
            exactly_once.abort(_sent(messages), self._options)

    def _batch_of(self, context: TaskContext | None) -> tuple[str, int | None]:
        """Return the query and the batch that a task's rows belong to."""
        raise NotImplementedError


class BatchWriter(_TopicWriter, DataSourceArrowWriter):
    """Sends the rows of a batch query."""

    def _batch_of(self, context: TaskContext | None) -> tuple[str, int | None]:
        return exactly_once.JOB, 0


class StreamWriter(_TopicWriter, DataSourceStreamArrowWriter):
    """Sends the rows of each micro-batch."""

    def _batch_of(self, context: TaskContext | None) -> tuple[str, int | None]:
        assert context is not None
        batch = context.getLocalProperty(_BATCH)
        return context.getLocalProperty(_QUERY) or "", None if batch is None else int(batch)


def _sent(messages: Sequence[WriterCommitMessage | None]) -> list[SentAttempt]:
    return [m.sent for m in messages if isinstance(m, TaskCommit) and m.sent is not None]
