"""A look at a topic's first bodies, before a read of it is planned. Rule: on the driver, and no more than is taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyspark.sql.types import BinaryType, StructField, StructType

from rocketspark.spark.options import BAD_IS_NULL, ReadOptions
from rocketspark.spark.read.batch_read import BatchReader

_BODY = StructType([StructField("body", BinaryType())])


def everything(options: Mapping[str, str]) -> dict[str, str]:
    """Return a read's options without where it begins and ends: Spark asks for columns of batches and streams alike."""
    return {name: value for name, value in options.items() if not name.lower().startswith(("starting", "ending"))}


def bodies(options: ReadOptions) -> Iterator[bytes]:
    """Return bodies from the oldest on, queue by queue. Raises as a batch read."""
    reader = BatchReader(_BODY, options._replace(decode=None, bad_bodies=BAD_IS_NULL, fail_on_data_loss=False))
    for partition in reader.partitions():
        for batch in reader.read(partition):
            yield from (body for body in batch.column("body").to_pylist() if body is not None)
