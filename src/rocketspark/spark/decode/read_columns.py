"""The columns that decoding adds to a read. Rule: they follow the source's own columns, or stand where option columns
names them.

The modules that decode are imported where bodies are decoded: each stream starts a process that imports this module,
and most streams decode nothing.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from rocketspark.errors import ConfigError
from rocketspark.spark.columns import READ_SCHEMA, ReadColumns, read_schema, wanted_columns
from rocketspark.spark.decode.options import CONFLUENT, JSON, NAMES, DecodeOptions
from rocketspark.spark.options import ReadOptions
from rocketspark.spark.spark_features import arrow_schema

log = logging.getLogger("rocketspark.spark")


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
    """Return the DDL of the columns of a read that decodes. Raises as `bodies.resolve`.

    `columns`: the names that option columns lists, empty for all; `sample`: bodies from which a JSON schema is inferred
    if the options give none.
    """
    from rocketspark.spark.decode import json_bodies
    from rocketspark.spark.decode.bodies import resolve, value_type

    _check_names(options)
    options = resolve(options)
    if options.format == JSON and not options.schema:
        skip = 5 if options.wire == CONFLUENT else 0
        ddl = json_bodies.infer([body[skip:] for body in islice(sample, options.sample_rows)])
        log.warning('inferred from a sample: .option("decodeSchema", "%s") keeps it so', ddl)
        options = dataclasses.replace(options, schema=json_bodies.ddl_of(ddl))
    kind = options.schema if options.format == JSON else json_bodies.quoted(value_type(options))
    own = read_schema([name for name in columns if name not in (options.into, options.error_column)])
    kinds = {field.name: json_bodies.quoted(field.dataType) for field in own.fields}
    added = {options.into: kind, options.error_column: "string"}
    if columns and not {options.into, options.error_column}.isdisjoint(columns):
        kinds = {name: added.get(name) or kinds[name] for name in columns}
    else:
        kinds |= added
    return ", ".join(f"`{name}` {kind}" for name, kind in kinds.items())


def _check_names(options: DecodeOptions) -> None:
    for name, option in ((options.into, "decodeInto"), (options.error_column, "columnNameOfDecodeError")):
        if name.lower() in {field.name.lower() for field in READ_SCHEMA.fields}:
            raise ConfigError(f"option {option} is {name!r}, which is a column of every read: choose another name")


def checked(schema: StructType, options: ReadOptions) -> ReadOptions:
    """Return a read's options with those of decoding resolved. Raises ConfigError if the read cannot give columns of
    this schema.
    """
    decode = options.decode
    if decode is None:
        wanted_columns(schema, options.columns)
        return options
    from rocketspark.spark.decode import json_bodies
    from rocketspark.spark.decode.bodies import check_depth, resolve, value_type

    _check_names(decode)
    names = (decode.into, decode.error_column)
    own = StructType([field for field in schema.fields if field.name not in names])
    if own.fields:
        wanted_columns(own, [name for name in options.columns if name not in names])
    resolved = resolve(decode)
    found = {field.name: field.dataType for field in schema.fields}
    if decode.error_column in found and found[decode.error_column].simpleString() != "string":
        raise ConfigError(f"schema: column {decode.error_column!r} is string: give it that type")
    if decode.into in found:
        kind = found[decode.into]
        if '"nullable":false' in kind.json().replace(" ", "") or '"containsNull":false' in kind.json().replace(" ", ""):
            raise ConfigError("option decodeSchema: a body may lack any field: leave NOT NULL out")
        if resolved.value_type and value_type(resolved).simpleString() != kind.simpleString():
            raise ConfigError(
                f"column {decode.into!r} is {value_type(resolved).simpleString()} by the schema for option decode, not"
                f" {kind.simpleString()}: start the query again, and leave the column out of .schema"
            )
        resolved = dataclasses.replace(resolved, value_type=kind.json())
        check_depth(kind)
        if decode.format == JSON:
            json_bodies.JsonDecoder(kind)
    elif not resolved.value_type:
        # Only the reasons are wanted, or what is bad is to go: every JSON is good then.
        resolved = dataclasses.replace(resolved, value_type=StructType([]).json())
    return options._replace(decode=resolved)


class DecodingColumns:
    """The columns of a read whose bodies are decoded; it is used like `ReadColumns`, which has those of other reads."""

    def __init__(self, schema: StructType, options: ReadOptions) -> None:
        from rocketspark.spark.decode.bodies import PLACE

        assert options.decode is not None
        self._options, self._decode = options, options.decode
        names = (self._decode.into, self._decode.error_column)
        own = [field for field in schema.fields if field.name not in names]
        there = {field.name for field in own}
        # The body is decoded; a bad one is named by its place.
        added = [StructField(name, READ_SCHEMA[name].dataType) for name in ("body", *PLACE) if name not in there]
        self._columns = ReadColumns(StructType([*own, *added]))
        self.decoded = self._columns.decoded
        self._schema: pa.Schema = arrow_schema(schema)

    def given(self, decoded: pa.RecordBatch) -> pa.RecordBatch:
        """Turn a batch of source columns into one with the decoded columns, too. Raises BodyUndecodable with mode
        FAILFAST.
        """
        from rocketspark.spark.decode.bodies import PLACE, Decoded

        batch = self._columns.given(decoded)
        place: Mapping[str, pa.Array] = {name: batch.column(name) for name in PLACE}
        found = Decoded(self._decode, batch.column("body"), place)
        if self._decode.error_topic:
            from rocketspark.spark.decode.error_rows import send

            options = self._options
            send(found, batch.column("body"), place, self._decode.error_topic, options.namesrv, options.access)
        values, reasons = found.columns()
        columns = {self._decode.into: values, self._decode.error_column: reasons}
        arrays = [columns[name] if name in columns else found.kept(batch.column(name)) for name in self._schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def columns_of(schema: StructType, options: ReadOptions) -> ReadColumns | DecodingColumns:
    """Return the ReadColumns or DecodingColumns of a read, by whose `given` decoded records become rows."""
    names = set() if options.decode is None else {options.decode.into, options.decode.error_column}
    if options.decode is None or (names.isdisjoint(schema.fieldNames()) and not options.decode.error_topic):
        return ReadColumns(schema)
    return DecodingColumns(schema, options)
