"""format("rocketmq"): what PySpark finds. Rule: options and schemas are checked here, before anything runs."""

from __future__ import annotations

import logging

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from rocketspark.errors import ConfigError, RocketSparkError
from rocketspark.spark.batch_read import BatchReader, PushingReader
from rocketspark.spark.columns import READ_SCHEMA, check_written, wanted_columns
from rocketspark.spark.options import parse_read, parse_write
from rocketspark.spark.plain_errors import plain_errors
from rocketspark.spark.pushdown import pushing
from rocketspark.spark.stream_read import RefusedReader, StreamReader
from rocketspark.spark.workers import settle

log = logging.getLogger("rocketspark.spark")


class RocketMQDataSource(DataSource):
    """Topics of RocketMQ as tables and streams. Options and columns: docs/spark.md."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        settle()

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "rocketmq"

    def schema(self) -> StructType:
        """All columns of a read."""
        return READ_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """For spark.read. Raises ConfigError."""
        settle()
        with plain_errors():
            wanted_columns(schema)
            options = parse_read(self.options, streaming=False)
            if not pushing():
                return BatchReader(schema, options)
            if options.push_down is None:
                log.warning(
                    "filters are left to Spark: option pushDownPredicate pushes them down (docs/spark.md, Filters)"
                )
            return PushingReader(schema, options) if options.push_down else BatchReader(schema, options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For spark.readStream. What is wrong with the options is raised by the reader: PySpark hides what is here."""
        try:
            wanted_columns(schema)
            return StreamReader(schema, parse_read(self.options, streaming=True))
        except RocketSparkError as e:
            return RefusedReader(e)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """For df.write. Raises ConfigError."""
        with plain_errors():
            if overwrite:
                raise ConfigError('a topic can only be appended to: use .mode("append")')
            options = parse_write(self.options)
            check_written(schema, options.topic)
            # Not with the module: each stream starts a process that imports it, and most only read.
            from rocketspark.spark.write import BatchWriter

            return BatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """For df.writeStream. Raises ConfigError."""
        with plain_errors():
            options = parse_write(self.options)
            check_written(schema, options.topic)
            from rocketspark.spark.write import StreamWriter

            return StreamWriter(options)
