"""The columns that a read gives: those of messages, and those of decoded bodies. Rule: decoded ones follow the
source's own, or stand where option columns names them.

The modules that decode are imported where bodies are decoded: each stream of Spark starts a process that imports this
module, and most streams decode nothing.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc

from rocketspark.arrow.message_columns import COLUMNS, schema_of
from rocketspark.errors import ConfigError
from rocketspark.protocol.message.record_layout import Ints
from rocketspark.tables.decode.options import JSON, JSON_STARTS, DecodeOptions
from rocketspark.tables.options import ReadOptions

log = logging.getLogger("rocketspark.spark")

# Columns that are given only where they are named, and those that they repeat: RocketMQ's word beside the one published
# first.
REPEATED = {"physicalOffset": "logPosition"}


def check_names(names: Sequence[str]) -> None:
    """Raise ConfigError for a name in option columns that is unknown or repeated."""
    for name in names:
        if name not in COLUMNS and name not in REPEATED:
            raise ConfigError(
                f"option columns: there is no column {name!r}; there are: {', '.join((*COLUMNS, *REPEATED))}"
            )
    if len(set(names)) != len(names):
        raise ConfigError(f"option columns: a column stands there twice: {', '.join(names)}")


class ReadColumns:
    """The columns that a read gives, and the columns that have to be decoded for them. `schema`: their Arrow schema, by
    default that of `arrow.message_columns`. Raises ConfigError for a name that no column has.
    """

    def __init__(self, names: Sequence[str], schema: pa.Schema | None = None) -> None:
        check_names(names)
        columns = [REPEATED.get(name, name) for name in names]
        self.decoded: list[str] = list(dict.fromkeys(columns))
        self._places = [self.decoded.index(column) for column in columns]
        self._as_decoded = columns == list(names)
        own = pa.schema([field.with_name(name) for field, name in zip(schema_of(tuple(columns)), names, strict=True)])
        self.schema: pa.Schema = own if schema is None else schema

    def given(self, decoded: pa.RecordBatch) -> pa.RecordBatch:
        """Turn a batch of decoded columns into one with the columns, names and types that the read gives."""
        batch = decoded
        if not self._as_decoded:
            batch = pa.RecordBatch.from_arrays([decoded.column(i) for i in self._places], names=self.schema.names)
        if batch.schema.equals(self.schema):
            return batch
        try:
            return batch.cast(self.schema)
        except ValueError as e:
            raise ConfigError(f"schema: {e}: leave out that it is not null") from e


class DecodingColumns:
    """The columns of a read whose bodies are decoded; it is used like `ReadColumns`, which has those of other reads."""

    def __init__(self, names: Sequence[str], options: ReadOptions, schema: pa.Schema | None = None) -> None:
        from rocketspark.tables.decode.bodies import PLACE, value_type

        assert options.decode is not None
        self._options, self._decode = options, options.decode
        into, error = self._decode.into, self._decode.error_column
        own = [name for name in names if name not in (into, error)]
        # The body is decoded; a bad one is named by its place.
        added = [name for name in ("body", *PLACE) if name not in own]
        fields = None if schema is None else [schema.field(name) for name in own] + list(schema_of(tuple(added)))
        self._columns = ReadColumns([*own, *added], fields and pa.schema(fields))
        self.decoded: list[str] = self._columns.decoded
        if schema is None:
            kinds = {into: value_type(self._decode).arrow(), error: pa.string()}
            kinds |= dict(zip(self._columns.schema.names, self._columns.schema.types, strict=True))
            schema = pa.schema([(name, kinds[name]) for name in names])
        self.schema: pa.Schema = schema

    def given(self, decoded: pa.RecordBatch) -> pa.RecordBatch:
        """Turn a batch of source columns into one with the decoded columns, too. Raises BodyUndecodable with mode
        FAILFAST.
        """
        from rocketspark.tables.decode.bodies import PLACE, Decoded

        batch = self._columns.given(decoded)
        place: Mapping[str, pa.Array] = {name: batch.column(name) for name in PLACE}
        found = Decoded(self._decode, batch.column("body"), place)
        if self._decode.error_topic:
            from rocketspark.tables.decode.error_rows import send

            options = self._options
            send(found, batch.column("body"), place, self._decode.error_topic, options.namesrv, options.access)
        values, reasons = found.columns()
        columns = {self._decode.into: values, self._decode.error_column: reasons}
        arrays = [columns[name] if name in columns else found.kept(batch.column(name)) for name in self.schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


class ChosenColumns:
    """Wraps the columns of a read and keeps only the rows at chosen offsets; it has the methods of the columns that it
    wraps. `came`: which of the chosen offsets were among the rows so far.
    """

    def __init__(self, columns: Columns, offsets: Ints) -> None:
        self._columns, self._offsets = columns, pa.array(offsets)
        self.decoded: list[str] = list(dict.fromkeys([*columns.decoded, "queueOffset"]))
        self.schema: pa.Schema = columns.schema
        self.came: set[int] = set()

    def given(self, decoded: pa.RecordBatch) -> pa.RecordBatch:
        """Turn a batch of decoded columns into the rows that are chosen, as the read gives them. Raises as they do."""
        chosen = decoded.filter(pc.is_in(decoded.column("queueOffset"), value_set=self._offsets))
        if not chosen.num_rows:
            return pa.RecordBatch.from_pylist([], schema=self.schema)
        self.came.update(chosen.column("queueOffset").to_pylist())
        return self._columns.given(chosen.select(self._columns.decoded))


# What makes the rows of a read from decoded records.
Columns = ReadColumns | DecodingColumns | ChosenColumns


def columns_of(names: Sequence[str], options: ReadOptions, schema: pa.Schema | None = None) -> Columns:
    """Return the columns of a read, by whose `given` decoded records become rows. `schema`: as of ReadColumns."""
    added = set() if options.decode is None else {options.decode.into, options.decode.error_column}
    if options.decode is None or (added.isdisjoint(names) and not options.decode.error_topic):
        return ReadColumns(names, schema)
    return DecodingColumns(names, options, schema)


def names_of(columns: Sequence[str], decode: DecodeOptions | None) -> list[str]:
    """Return the names of a read's columns in their order. `columns`: those that option columns lists, empty for all.
    Raises ConfigError.
    """
    if decode is None:
        check_names(columns)
        return list(columns or COLUMNS)
    check_added(decode)
    added = (decode.into, decode.error_column)
    check_names([name for name in columns if name not in added])
    if not set(added).isdisjoint(columns):
        return list(dict.fromkeys(columns))
    return [*(columns or COLUMNS), *added]


def check_added(options: DecodeOptions) -> None:
    """Raise ConfigError if a decoded column has the name of a column of every read."""
    for name, option in ((options.into, "decodeInto"), (options.error_column, "columnNameOfDecodeError")):
        if name.lower() in {column.lower() for column in COLUMNS}:
            raise ConfigError(f"option {option} is {name!r}, which is a column of every read: choose another name")


def with_schema(options: DecodeOptions, sample: Iterator[bytes]) -> DecodeOptions:
    """Return options of decoding that are resolved. `sample`: bodies from which a JSON schema is inferred if the
    options give none. Raises as `bodies.resolve`.
    """
    from rocketspark.tables.decode import json_bodies
    from rocketspark.tables.decode.bodies import resolve

    options = resolve(options)
    if options.format == JSON and not options.schema:
        skip = JSON_STARTS[options.wire]
        ddl = json_bodies.infer([body[skip:] for body in islice(sample, options.sample_rows)])
        log.warning('the fields of the JSON were inferred from a sample; to keep them give decodeSchema: "%s"', ddl)
        options = dataclasses.replace(options, schema=json_bodies.ddl_of(ddl))
    return options
