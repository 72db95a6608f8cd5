"""What an archive decodes: the columns of its read. Rule: bodies stay as they came, and no message is left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from pyspark.sql.types import ArrayType, MapType, StructType

from rocketspark.errors import ConfigError
from rocketspark.spark.columns import READ_SCHEMA
from rocketspark.spark.decode.json_bodies import quoted
from rocketspark.spark.decode.options import DROPMALFORMED, JSON
from rocketspark.spark.decode.read_columns import checked, decoded_schema
from rocketspark.spark.decode.sample import bodies, everything
from rocketspark.spark.lakehouse.table import ArchiveTable
from rocketspark.spark.options import ReadOptions, parse_read


def archive_options(given: Mapping[str, str]) -> ReadOptions:
    """Parse the options of an archive's read. Raises ConfigError."""
    options = parse_read(given, streaming=True)
    decode = options.decode
    if decode is None:
        return options
    if decode.mode == DROPMALFORMED:
        raise ConfigError(
            f"option decodeMode is {decode.mode}: an archive leaves no message out; leave the option out, and read the"
            f" rows whose {decode.error_column} is null"
        )
    for name, option in ((decode.into, "decodeInto"), (decode.error_column, "columnNameOfDecodeError")):
        if name.lower() == "hour":
            raise ConfigError(f"option {option} is {name!r}, which is a column of every archive: choose another name")
    return options


def decoding(table: ArchiveTable, given: Mapping[str, str]) -> tuple[StructType, ReadOptions]:
    """Return the columns that are read and the options of the read: with those of decoded bodies if it decodes.

    A JSON schema that is not given is the table's, or inferred from a sample where it has none. Raises ConfigError.
    """
    options = archive_options(given)
    decode = options.decode
    if decode is None:
        return READ_SCHEMA, options
    if decode.format == JSON and not decode.schema and decode.registry is None:
        there = {field.name.lower(): field.dataType for field in table.decoded().fields}
        if isinstance(kind := there.get(decode.into.lower()), StructType | ArrayType | MapType):
            decode = dataclasses.replace(decode, schema=quoted(kind))
            options = options._replace(decode=decode)
    sample = bodies(parse_read(everything(given), streaming=False))
    schema = table.spark.createDataFrame([], decoded_schema([], decode, sample)).schema
    return schema, checked(schema, options)
