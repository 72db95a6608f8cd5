"""The abilities of the PySpark that is installed: 4.0 to 4.3 differ. Rule: this module alone looks for them, by what is
there and never by a version number; the others import from here what older versions lack.

| ability | from | without it |
| --- | --- | --- |
| FILTERS: Spark hands a query's filters to a batch read | 4.1 | Spark applies them itself |
| ARROW_STREAM_WRITER: a stream's writer gets Arrow batches | 4.1 | an Arrow writer of batches serves streams too |
| ADMISSION_CONTROL: Spark tells a stream where it is, with a limit, and announces AvailableNow | 4.2 | the reader keeps
  its place itself: `OwnLimitsReader` |
"""

from __future__ import annotations

import ast
import inspect
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyspark
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

log = logging.getLogger("rocketspark.spark")

VERSION: str = pyspark.__version__
FILTERS = hasattr(datasource, "Filter")
ARROW_STREAM_WRITER = hasattr(datasource, "DataSourceStreamArrowWriter")
ADMISSION_CONTROL = "limit" in inspect.signature(datasource.DataSourceStreamReader.latestOffset).parameters

if TYPE_CHECKING or FILTERS:
    from pyspark.sql.datasource import (
        EqualNullSafe,
        EqualTo,
        Filter,
        GreaterThan,
        GreaterThanOrEqual,
        In,
        IsNotNull,
        IsNull,
        LessThan,
        LessThanOrEqual,
        Not,
    )
else:

    class Filter:
        """Stands for every filter: there is none."""

    EqualNullSafe = EqualTo = GreaterThan = GreaterThanOrEqual = In = IsNotNull = IsNull = Filter
    LessThan = LessThanOrEqual = Not = Filter

if TYPE_CHECKING or ARROW_STREAM_WRITER:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:

    class DataSourceStreamArrowWriter(datasource.DataSourceArrowWriter, datasource.DataSourceStreamWriter):
        """A stream's writer of Arrow batches: 4.0 hands batches to every DataSourceArrowWriter."""


if TYPE_CHECKING or ADMISSION_CONTROL:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
else:

    class ReadLimit:
        """A limit on how much a micro-batch reads."""

    @dataclass
    class ReadAllAvailable(ReadLimit):
        """No limit."""

    @dataclass
    class ReadMinRows(ReadLimit):
        """Wait for so many rows."""

        min_rows: int

    @dataclass
    class ReadMaxRows(ReadLimit):
        """At most so many rows."""

        max_rows: int

    @dataclass
    class ReadMaxBytes(ReadLimit):
        """At most so many bytes."""

        max_bytes: int

    class SupportsTriggerAvailableNow:
        """A stream that is told of AvailableNow."""


_UTC: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return a schema as this PySpark wants Arrow batches: times are in UTC."""
    return to_arrow_schema(schema, **_UTC)


def reported_offset(text: str | None) -> Any:
    """Parse an offset of a query's progress report, which is JSON or, before 4.2, the text of a Python value. Another
    source's offset that is neither stays text.
    """
    if text is None:
        return None
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(text)
        except (ValueError, SyntaxError):
            continue
    return text


class LimitedReader(Protocol):
    """The reader of a stream for a Spark with admission control, which tells it where the query is and which limit to
    keep to.
    """

    def initialOffset(self) -> dict[str, Any]: ...
    def getDefaultReadLimit(self) -> ReadLimit: ...
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]: ...
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]: ...
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]: ...
    def commit(self, end: dict[str, Any]) -> None: ...
    def stop(self) -> None: ...


class OwnLimitsReader(DataSourceStreamReader):
    """Adapts the reader of a stream to a Spark without admission control. `repeated`: the query is started again until
    it reaches its end.

    Such a Spark calls `latestOffset()` and does not tell where the query is, so this reader keeps the query's place: it
    is where the last micro-batch ends. After a restart Spark asks once for the partitions between the newest offset it
    knows and itself, before anything else; a query that begins asks for `initialOffset`. Of AvailableNow such a Spark
    tells nothing either: it takes the first `latestOffset()` as the end of the query.
    """

    def __init__(self, reader: LimitedReader, *, repeated: bool = False) -> None:
        self._reader = reader
        self._reached: dict[str, Any] | None = None
        self._told = repeated

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset at which a new query begins."""
        return self._reader.initialOffset()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        """Return the end of the next micro-batch, within the reader's limits."""
        limit = self._reader.getDefaultReadLimit()
        if not self._told and not isinstance(limit, ReadAllAvailable):
            self._told = True
            log.warning(
                "Spark %s ends a query with trigger AvailableNow after one micro-batch if a limit is set; start it"
                " again for the rest, or use Spark 4.2 (docs/use/spark.md, Versions of Spark)",
                VERSION,
            )
        start = self._reader.initialOffset() if self._reached is None else self._reached
        # Spark makes a micro-batch of every answer that is new, though it may plan no partitions of it: with a filter
        # that is never true, or a join with an empty table.
        self._reached = self._reader.latestOffset(start, limit)
        return self._reached

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the partitions between two offsets; the query's place is the second one from now on."""
        self._reached = end
        return self._reader.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one partition; runs on an executor."""
        return self._reader.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Have the reader commit."""
        self._reader.commit(end)

    def stop(self) -> None:
        """Stop the reader."""
        self._reader.stop()


def for_this_spark(reader: LimitedReader, *, repeated: bool = False) -> DataSourceStreamReader:
    """Return a stream's reader in the form that the installed Spark calls. `repeated` is that of OwnLimitsReader."""
    if ADMISSION_CONTROL and isinstance(reader, DataSourceStreamReader):
        return reader
    return OwnLimitsReader(reader, repeated=repeated)


__all__ = [
    "ADMISSION_CONTROL",
    "ARROW_STREAM_WRITER",
    "FILTERS",
    "VERSION",
    "DataSourceStreamArrowWriter",
    "EqualNullSafe",
    "EqualTo",
    "Filter",
    "GreaterThan",
    "GreaterThanOrEqual",
    "In",
    "IsNotNull",
    "IsNull",
    "LessThan",
    "LessThanOrEqual",
    "Not",
    "OwnLimitsReader",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "ReadMinRows",
    "SupportsTriggerAvailableNow",
    "arrow_schema",
    "for_this_spark",
    "reported_offset",
]
