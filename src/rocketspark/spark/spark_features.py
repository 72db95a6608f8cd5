"""The abilities of the PySpark that is installed: 4.0 to 4.3 differ. Rule: this module alone looks for them, by what is
there and never by a version number; the others import from here what older versions lack.

| ability | from | without it |
| --- | --- | --- |
| FILTERS: Spark hands a query's filters to a batch read | 4.1 | Spark applies them itself |
| ARROW_STREAM_WRITER: a stream's writer gets Arrow batches | 4.1 | an Arrow writer of batches serves streams too |
| ADMISSION_CONTROL: Spark tells a stream where it is, with a limit, and announces AvailableNow | 4.2 | the reader keeps
  its place itself: `read.own_limits` |
"""

from __future__ import annotations

import ast
import inspect
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql import datasource
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    import pyarrow as pa

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
    """Return an offset of a query's progress report: JSON, or before 4.2 the text of a Python value; another source's
    offset that is neither stays text.
    """
    if text is None:
        return None
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(text)
        except (ValueError, SyntaxError):
            continue
    return text


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
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "ReadMinRows",
    "SupportsTriggerAvailableNow",
    "arrow_schema",
    "reported_offset",
]
