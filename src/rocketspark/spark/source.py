"""format("rocketmq"): the data source that PySpark finds. Rule: options and schemas are checked here, before anything
runs.
"""

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
from rocketspark.spark.decode.decoded_schema import checked, decoded_schema, is_asked, without_bounds
from rocketspark.spark.python_workers import plain_errors, settle
from rocketspark.spark.read.batch_read import BatchReader, PushingReader
from rocketspark.spark.read.pushed_filters import pushing
from rocketspark.spark.read.stream_read import RefusedReader, StreamReader
from rocketspark.spark.schemas import check_written, read_schema
from rocketspark.spark.spark_features import FILTERS, VERSION, for_this_spark
from rocketspark.tables.options import parse_columns, parse_read, parse_write
from rocketspark.tables.read.batch import sampled_bodies

log = logging.getLogger("rocketspark.spark")


class RocketMQDataSource(DataSource):
    """Topics of RocketMQ as tables and streams. Options and columns: docs/use/spark.md."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        settle()

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "rocketmq"

    def schema(self) -> StructType | str:
        """Return the columns of a read: those that the option columns names, or all. Raises ConfigError."""
        with plain_errors():
            columns = parse_columns(self.options)
            if not is_asked(self.options):
                return read_schema(columns)
            options = parse_read(without_bounds(self.options), streaming=False)
            if options.decode is None:
                return read_schema(columns)
            return decoded_schema(columns, options.decode, sampled_bodies(options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader for spark.read. Raises ConfigError."""
        settle()
        with plain_errors():
            options = checked(schema, parse_read(self.options, streaming=False))
            if options.push_down and not FILTERS:
                raise ConfigError(
                    f"option pushDownPredicate needs Spark 4.1 or later, and this is {VERSION}: leave it out, and Spark"
                    " applies the filters itself"
                )
            if not pushing():
                return BatchReader(schema, options)
            if options.push_down is None:
                log.warning(
                    "filters are left to Spark: option pushDownPredicate pushes them down (docs/use/spark.md, Filters)"
                )
            return PushingReader(schema, options) if options.push_down else BatchReader(schema, options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader for spark.readStream. Wrong options are raised by the reader: PySpark hides errors from
        here.
        """
        try:
            options = checked(schema, parse_read(self.options, streaming=True))
            return for_this_spark(StreamReader(schema, options))
        except RocketSparkError as e:
            return for_this_spark(RefusedReader(e))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer for df.write. Raises ConfigError."""
        with plain_errors():
            if overwrite:
                raise ConfigError('a topic can only be appended to: use .mode("append")')
            options = parse_write(self.options)
            check_written(schema, options.topic, options.compared_column)
            # Not with the module: each stream starts a process that imports it, and most only read.
            from rocketspark.spark.writers import BatchWriter

            return BatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer for df.writeStream. Raises ConfigError."""
        with plain_errors():
            options = parse_write(self.options)
            check_written(schema, options.topic, options.compared_column)
            from rocketspark.spark.writers import StreamWriter

            return StreamWriter(options)
