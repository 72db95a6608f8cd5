"""Decodes message bodies to a column of values and a column of reasons why a body could not be decoded.

Rule: what happens to the row of a bad body, option decodeMode says: it is kept, left out, or ends the query. Mistakes
in the options are found on the driver, before the query starts.
"""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rocketspark.errors import (
    BodyUndecodable,
    ConfigError,
    RegistryAway,
    RegistryRefused,
    RocketSparkError,
    SchemaUnknown,
)
from rocketspark.model.text import shown
from rocketspark.tables.decode import avro_schema, json_bodies, rocketmq_registry
from rocketspark.tables.decode import sql_types as t
from rocketspark.tables.decode.avro_bodies import AvroDecoder
from rocketspark.tables.decode.options import (
    AVRO,
    DROPMALFORMED,
    FAILFAST,
    JSON,
    PLAIN,
    PROTOBUF,
    ROCKETMQ,
    DecodeOptions,
)
from rocketspark.tables.decode.protobuf_bodies import (
    Messages,
    ProtobufDecoder,
    compiled_texts,
    file_set,
    is_text,
    place_of,
)
from rocketspark.tables.decode.registry import (
    PREFIX_BYTES,
    UNKNOWN_S,
    RegisteredSchema,
    Registry,
    frame_of,
    read_indexes,
)
from rocketspark.tables.decode.rocketmq_registry import registry_of

# Arrow writes no deeper columns; the value itself is within one.
DEPTH_MAX = 60


def check_depth(kind: t.DataType) -> None:
    """Raise ConfigError for a decoded type whose columns are nested too deep."""

    def depth(one: t.DataType) -> int:
        if isinstance(one, t.StructType):
            return 1 + max((depth(field.dataType) for field in one.fields), default=0)
        if isinstance(one, t.ArrayType):
            return 1 + depth(one.elementType)
        # A map is a list of pairs.
        return 2 + depth(one.valueType) if isinstance(one, t.MapType) else 1

    if depth(kind) > DEPTH_MAX:
        raise ConfigError(
            f"decode: the schema's columns lie more than {DEPTH_MAX} deep, which Arrow does not take: give a flatter"
            " schema, or a lower recursiveFieldMaxDepth"
        )


def to_arrow(values: list[Any], kind: pa.DataType, reasons: list[str | None]) -> pa.Array:
    """Turn values into an Arrow array of a type. A value that does not fit becomes None in `values`, and its reason is
    put into `reasons`.
    """
    try:
        return pa.array(values, type=kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as e:
        if isinstance(e, MemoryError):
            raise
    _find(values, kind, reasons, 0, len(values))
    return pa.array(values, type=kind)


def _find(values: list[Any], kind: pa.DataType, reasons: list[str | None], first: int, end: int) -> None:
    try:
        pa.array(values[first:end], type=kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as e:
        if end - first == 1:
            values[first] = None
            reasons[first] = f"a value does not fit its column: {' '.join(str(e).split())}"[:300]
            return
        half = (first + end) // 2
        _find(values, kind, reasons, first, half)
        _find(values, kind, reasons, half, end)


# Decoders of writers' schemas that a process keeps.
DECODERS_MAX = 200

# What libraries raise for bodies that nobody thought of: a bad body is never the end.
_ODD = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError)

Decode = Callable[[bytes], Any]


def resolve(options: DecodeOptions) -> DecodeOptions:
    """Return the options with the reader's schema in them, which the registry is asked for if none is given. To be
    called on the driver.

    Raises ConfigError for a text that is no schema, and SchemaUnknown, RegistryRefused or RegistryAway if the registry
    does not give one.
    """
    _check_installed(options.format)
    if options.registry is not None and not options.schema and not options.descriptor and options.subject:
        registry = registry_of(options.registry)
        found = (
            registry.latest(options.subject)
            if options.version is None
            else registry.by_version(options.subject, options.version)
        )
        options = _with_registered(options, registry, found)
    if options.format == AVRO:
        schema = avro_schema.parse(options.schema)
        kind = avro_schema.spark_type(schema, options.recursion_max)
        # What tasks make of it is made here first.
        AvroDecoder(schema)
        check_depth(kind)
        return dataclasses.replace(options, schema=json.dumps(schema), value_type=kind.json())
    if options.format == PROTOBUF:
        messages = Messages(options.descriptor)
        message = messages.find(options.message) if options.message else _first(messages)
        kind = ProtobufDecoder(message, options.recursion_max).kind
        check_depth(kind)
        return dataclasses.replace(options, message=message.full_name, value_type=kind.json())
    if options.schema:
        return dataclasses.replace(options, schema=json_bodies.ddl_of(options.schema))
    return options


def _first(messages: Messages) -> Any:
    try:
        return messages.at((0,))
    except ValueError:
        raise ConfigError(
            "option decodeMessage: the registry's schema has no message of its own: give another"
        ) from None


def _check_installed(format_: str) -> None:
    package = {AVRO: "fastavro", PROTOBUF: "google.protobuf"}.get(format_)
    try:
        __import__(package or "json")
    except ModuleNotFoundError:
        raise ConfigError(
            f"option decode is {format_}: it needs a package, on executors too: pip install 'rocketspark[schemas]', or"
            " `rocketspark spark-env --extra schemas` for a cluster"
        ) from None


def _with_registered(options: DecodeOptions, registry: Registry, found: RegisteredSchema) -> DecodeOptions:
    if found.kind != options.format.upper():
        raise ConfigError(
            f"option decode is {options.format}, but subject {shown(options.subject)!r} has a schema of type"
            f" {shown(found.kind)}: change one of them"
        )
    if options.format == JSON:
        return dataclasses.replace(options, schema=json_bodies.of_json_schema(found.text))
    name = f"the schema of subject {shown(options.subject)!r}"
    try:
        if options.format == AVRO:
            return dataclasses.replace(options, schema=json.dumps(_avro_of(registry, found, name)))
        return dataclasses.replace(options, descriptor=_files_of(registry, found))
    except ValueError as e:
        raise e if isinstance(e, ConfigError) else ConfigError(f"{name}: {e}") from None


def _avro_of(registry: Registry, found: RegisteredSchema, name: str) -> Any:
    return avro_schema.parse(found.text, {ref.name: one.text for ref, one in registry.referenced(found)}, name=name)


def _files_of(registry: Registry, found: RegisteredSchema) -> bytes:
    files = [*((ref.name, one.text) for ref, one in registry.referenced(found)), ("", found.text)]
    return compiled_texts(files) if is_text(found.text) else file_set(files)


def value_type(options: DecodeOptions) -> t.DataType:
    """Return the type of the decoded column. The options must be resolved."""
    return t.of_json(json.loads(options.value_type))


def typed(options: DecodeOptions, kind: t.DataType) -> DecodeOptions:
    """Return options that are resolved with the type of the decoded column. Raises ConfigError for one that bodies
    cannot be decoded to.
    """
    text = kind.json()
    if '"nullable":false' in text or '"containsNull":false' in text:
        raise ConfigError("option decodeSchema: a body may lack any field: leave NOT NULL out")
    if options.value_type and value_type(options).simpleString() != kind.simpleString():
        raise ConfigError(
            f"column {options.into!r} is {value_type(options).simpleString()} by the schema for option decode, not"
            f" {kind.simpleString()}: start the query again, and leave the column out of .schema"
        )
    check_depth(kind)
    if options.format == JSON:
        json_bodies.JsonDecoder(kind)
    return dataclasses.replace(options, value_type=text)


class BodyDecoder:
    """Decodes the bodies of batches, by options that are resolved. One is kept for as long as its process lives."""

    def __init__(self, options: DecodeOptions) -> None:
        # An executor may lack what the driver has.
        _check_installed(options.format)
        self._options = options
        self._kind = value_type(options)
        self.arrow_type = self._kind.arrow()
        self._by_id: OrderedDict[int, Any] = OrderedDict()
        # Ids whose schemas are of no use: until when that holds, and why.
        self._useless: OrderedDict[int, tuple[float, str]] = OrderedDict()
        self._registry = None if options.registry is None else registry_of(options.registry)
        self._of_reader: Decode = self._make()
        self._lock = threading.Lock()

    def _make(self) -> Decode:
        """Return what decodes a payload of the reader's schema."""
        options = self._options
        if options.format == JSON:
            decode = json_bodies.JsonDecoder(self._kind).decode
            if not json_bodies.needs_rounding(self._kind):
                return decode
            return lambda body: json_bodies.rounded(decode(body), self._kind)
        if options.format == AVRO:
            self._reader = json.loads(options.schema)
            return AvroDecoder(self._reader).decode
        message = Messages(options.descriptor).find(options.message)
        self._place = place_of(message)
        return ProtobufDecoder(message, options.recursion_max).decode

    def decode(self, bodies: Sequence[bytes | None]) -> tuple[pa.Array, list[str | None]]:
        """Decode bodies; return an array of values, and a list with the reason where a body is bad, else None. A null
        body becomes a null value.

        Raises RegistryAway and RegistryRefused if the options say that these end the query.
        """
        one = self._of_reader if self._options.wire == PLAIN else self._framed
        values: list[Any] = []
        reasons: list[str | None] = [None] * len(bodies)
        for i, body in enumerate(bodies):
            value = None
            if body is not None:
                try:
                    value = one(body)
                except ValueError as e:
                    reasons[i] = f"{e}{self._hint(body)}"
                except _ODD as e:
                    reasons[i] = f"the body cannot be decoded: {type(e).__name__} {' '.join(str(e).split())}"[:300]
                except (RegistryAway, RegistryRefused) as e:
                    if self._options.registry_failure_is_error:
                        raise
                    reasons[i] = str(e)
            values.append(value)
        return to_arrow(values, self.arrow_type, reasons), reasons

    def _hint(self, body: bytes) -> str:
        # The magic byte, and an id that no registry has counted up to 16 million.
        is_framed = self._options.wire == PLAIN and body[:2] == b"\0\0" and len(body) > PREFIX_BYTES
        return "; it begins as in the wire format of a schema registry: is schemaRegistry missing?" if is_framed else ""

    def _framed(self, body: bytes) -> Any:
        is_of_rocketmq = self._options.wire == ROCKETMQ
        schema_id, start = rocketmq_registry.frame_of(body, self._options.format) if is_of_rocketmq else frame_of(body)
        if self._options.format == JSON:
            return self._of_reader(body[start:])
        if self._options.format == AVRO:
            return self._writer(schema_id)(body[start:])
        indexes, start = read_indexes(body, start)
        self._check_message(schema_id, indexes)
        return self._of_reader(body[start:])

    def _writer(self, schema_id: int) -> Decode:
        found: Decode = self._of_id(schema_id, self._avro_writer)
        return found

    def _avro_writer(self, schema_id: int) -> Decode:
        assert self._registry is not None
        found = self._of_kind(schema_id, "AVRO")
        writer = _avro_of(self._registry, found, f"schema id {schema_id}")
        return AvroDecoder(writer, self._reader).decode

    def _check_message(self, schema_id: int, indexes: tuple[int, ...]) -> None:
        """Raise ValueError if the body is another message: Protobuf would read it as one of ours."""
        if self._registry is None:
            if indexes != self._place:
                raise ValueError(
                    f"the body is the message at {list(indexes)} of its file; {self._options.message} is at"
                    f" {list(self._place)}"
                )
            return
        name = self._of_id(schema_id, self._protobuf_file).at(indexes).full_name
        if name != self._options.message:
            raise ValueError(f"the body is a {name}, not a {self._options.message}")

    def _protobuf_file(self, schema_id: int) -> Messages:
        assert self._registry is not None
        return Messages(_files_of(self._registry, self._of_kind(schema_id, "PROTOBUF")), f"schema id {schema_id}")

    def _of_kind(self, schema_id: int, kind: str) -> RegisteredSchema:
        assert self._registry is not None
        found = self._registry.by_id(schema_id)
        if found.kind != kind:
            raise ValueError(f"it is of type {shown(found.kind)}, not {kind}")
        return found

    def _of_id(self, schema_id: int, make: Callable[[int], Any]) -> Any:
        """Return the decoder of bodies with a schema id, made once. Raises ValueError for an id that has none."""
        if (found := self._by_id.get(schema_id)) is not None:
            return found
        until_s, why = self._useless.get(schema_id, (0.0, ""))
        if time.monotonic() < until_s:
            raise ValueError(why)
        try:
            found = make(schema_id)
        except (RegistryAway, RegistryRefused):
            raise
        except SchemaUnknown as e:
            raise ValueError(str(e)) from None
        except (RocketSparkError, ValueError, *_ODD) as e:
            why = f"schema id {schema_id}: {' '.join(str(e).split()) or type(e).__name__}"
            self._keep(self._useless, schema_id, (time.monotonic() + UNKNOWN_S, why))
            raise ValueError(why) from None
        self._keep(self._by_id, schema_id, found)
        return found

    def _keep(self, kept: OrderedDict[int, Any], schema_id: int, value: Any) -> None:
        with self._lock:
            kept[schema_id] = value
            while len(kept) > DECODERS_MAX:
                kept.popitem(last=False)


@lru_cache(maxsize=16)
def decoder_of(options: DecodeOptions) -> BodyDecoder:
    """Return the decoder for these options, which all tasks of the process share."""
    return BodyDecoder(options)


# The columns that name a message's place.
PLACE = ("topic", "broker", "queueId", "queueOffset")


class Decoded:
    """The decoded bodies of a batch of rows: the values, the reasons of bad bodies, and which rows the option
    decodeMode leaves in.
    """

    def __init__(self, options: DecodeOptions, bodies: pa.Array, place: Mapping[str, pa.Array]) -> None:
        """Raises BodyUndecodable with mode FAILFAST."""
        if pa.types.is_string(bodies.type) or pa.types.is_large_string(bodies.type):
            bodies = bodies.cast(pa.binary())
        self.values, self.reasons = decoder_of(options).decode(bodies.to_pylist())
        self.bad = [i for i, reason in enumerate(self.reasons) if reason is not None]
        if self.bad and options.mode == FAILFAST:
            first = self.bad[0]
            where = ", ".join(f"{name} {place[name][first].as_py()}" for name in PLACE if name in place)
            raise BodyUndecodable(
                f"a body cannot be decoded ({where or f'row {first} of a batch'}): {self.reasons[first]}; decodeMode"
                " PERMISSIVE keeps such rows"
            )
        self._drops = bool(self.bad) and options.mode == DROPMALFORMED

    def kept(self, column: Any) -> Any:
        """Return one of the batch's columns without the rows that decodeMode leaves out."""
        if not self._drops:
            return column
        good = pa.array([reason is None for reason in self.reasons], pa.bool_())
        return pc.filter(column, good)

    def columns(self) -> tuple[pa.Array, pa.Array]:
        """Return the columns of values and of reasons, without the rows that decodeMode leaves out."""
        return self.kept(self.values), self.kept(pa.array(self.reasons, pa.string()))
