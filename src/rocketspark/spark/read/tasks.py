"""Partitions as Spark hands them to its tasks. Rule: a partition holds all that it needs; what is read in it is read by
`tables.read.batch`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from rocketspark.spark.decode.decoded_schema import columns_of
from rocketspark.spark.python_workers import plain_errors, settle
from rocketspark.tables.options import ReadOptions
from rocketspark.tables.read import batch
from rocketspark.tables.read.read_filter import ReadFilter

if TYPE_CHECKING:
    from rocketspark.tables.read.batch import Partition


def tasks(partitions: Sequence[Partition]) -> list[InputPartition]:
    """Return partitions as Spark takes them."""
    return [InputPartition(partition) for partition in partitions]


def read_task(
    partition: InputPartition | None, schema: StructType, options: ReadOptions, rows: ReadFilter | None = None
) -> Iterator[pa.RecordBatch]:
    """Return the rows of a partition with the columns of a schema; runs on an executor. `rows`: by default the filter
    of the options.
    """
    if partition is None or partition.value is None:
        return  # PySpark's stand-in where there is no partition: 4.0 has None, others one that holds None.
    if options.store is not None:
        settle()
    with plain_errors():
        yield from batch.read(partition.value, columns_of(schema, options), options, rows)
    settle()
