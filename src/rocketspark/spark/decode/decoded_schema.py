"""The columns that decoding adds to a read of Spark's: their schema, and whether a schema of the user's can be given.

The modules that decode are imported where bodies are decoded: each stream starts a process that imports this module,
and most streams decode nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pyspark.sql.types import StructType

from rocketspark.errors import ConfigError
from rocketspark.spark.schemas import READ_SCHEMA, quoted, sql_type, wanted_columns
from rocketspark.spark.spark_features import arrow_schema
from rocketspark.tables.decode.options import JSON, NAMES, DecodeOptions
from rocketspark.tables.options import ReadOptions
from rocketspark.tables.read_columns import REPEATED, Columns, check_added, names_of, with_schema
from rocketspark.tables.read_columns import columns_of as columns_named


def is_asked(options: Mapping[str, str]) -> bool:
    """Tell whether a read's options ask for decoded bodies."""
    names = {name.lower() for name in NAMES}
    return any(name.lower() in names and value for name, value in options.items())


def without_bounds(options: Mapping[str, str]) -> dict[str, str]:
    """Return a read's options without those of where it begins and ends. Spark asks for the columns before it is known
    whether the read is a batch or a stream, which have other such options.
    """
    return {name: value for name, value in options.items() if not name.lower().startswith(("starting", "ending"))}


def decoded_schema(columns: Sequence[str], options: DecodeOptions, sample: Iterator[bytes]) -> str:
    """Return the DDL of the columns of a read that decodes. Raises as `tables.read_columns.with_schema`.

    `columns`: the names that option columns lists, empty for all; `sample`: bodies from which a JSON schema is inferred
    if the options give none.
    """
    from rocketspark.tables.decode import json_bodies
    from rocketspark.tables.decode.bodies import value_type

    names = names_of(columns, options)
    options = with_schema(options, sample)
    kind = options.schema if options.format == JSON else json_bodies.quoted(value_type(options))
    added = {options.into: kind, options.error_column: "string"}
    kinds = {name: added.get(name) or quoted(READ_SCHEMA[REPEATED.get(name, name)].dataType) for name in names}
    return ", ".join(f"`{name}` {kind}" for name, kind in kinds.items())


def checked(schema: StructType, options: ReadOptions) -> ReadOptions:
    """Return a read's options with those of decoding resolved. Raises ConfigError if the read cannot give columns of
    this schema.
    """
    decode = options.decode
    if decode is None:
        wanted_columns(schema, options.columns)
        return options
    from rocketspark.tables.decode.bodies import resolve, typed

    check_added(decode)
    names = (decode.into, decode.error_column)
    own = StructType([field for field in schema.fields if field.name not in names])
    if own.fields:
        wanted_columns(own, [name for name in options.columns if name not in names])
    resolved = resolve(decode)
    found = {field.name: field.dataType for field in schema.fields}
    if decode.error_column in found and found[decode.error_column].simpleString() != "string":
        raise ConfigError(f"schema: column {decode.error_column!r} is string: give it that type")
    if decode.into in found:
        resolved = typed(resolved, sql_type(found[decode.into]))
    elif not resolved.value_type:
        # Only the reasons are wanted, or what is bad is to go: every JSON is good then.
        resolved = typed(resolved, sql_type(StructType([])))
    return options._replace(decode=resolved)


def columns_of(schema: StructType, options: ReadOptions) -> Columns:
    """Return the columns of a read, by whose `given` decoded records become rows of a schema."""
    return columns_named(schema.fieldNames(), options, arrow_schema(schema))
