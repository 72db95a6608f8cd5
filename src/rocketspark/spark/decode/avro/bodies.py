"""Avro bodies to values. Rule: whatever the bytes are, a body becomes a value or a reason, in bounded depth."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any, NamedTuple

from rocketspark.spark.decode.avro import logical
from rocketspark.spark.decode.avro.schema import NAMED, PRIMITIVES, Names, Schema, full_name, is_recursive, widened

# Records within each other in one body, where the schema sets no end: fastavro has no bound of its own.
NESTING_MAX = 64

Convert = Callable[[Any], Any]


class AvroDecoder:
    """Decodes bodies of one writer's schema to values of the reader's."""

    def __init__(self, writer: Schema, reader: Schema | None = None) -> None:
        import fastavro

        self._read = fastavro.schemaless_reader
        is_resolved = reader is not None and reader != writer
        self._writer = fastavro.parse_schema(logical.marking(writer))
        self._reader = fastavro.parse_schema(logical.marking(reader)) if is_resolved else None
        wanted = writer if reader is None else reader
        self._convert = _Converters(wanted, has_defaults=is_resolved).of(wanted, "", ())
        self._nesting = _Nesting(writer) if is_recursive(writer) else None

    def decode(self, body: bytes) -> Any:
        """Return a value as Arrow takes it. Raises ValueError saying what is wrong."""
        if self._nesting is not None:
            self._nesting.check(body)
        stream = BytesIO(body)
        try:
            value = self._read(stream, self._writer, self._reader, return_named_type=self._convert is not None)
        except EOFError:
            raise ValueError("the body is truncated: it ends within a value of the schema") from None
        except RecursionError:
            raise ValueError("the body is nested too deeply") from None
        except Exception as e:
            # Bytes of another schema make fastavro fail in many ways.
            text = " ".join(str(e).split())
            if type(e).__name__ == "SchemaResolutionError":
                raise ValueError(f"the writer's schema does not resolve to the reader's: {text}"[:300]) from None
            raise ValueError(f"the body is no Avro of the schema: {type(e).__name__} {text}"[:300].rstrip()) from None
        if left := len(body) - stream.tell():
            raise ValueError(f"{left} bytes are left behind the value: the schema is another one")
        return value if self._convert is None else self._convert(value)


def _of_named(value: Any) -> Any:
    return value[1] if type(value) is tuple else value


class _Branch(NamedTuple):
    """A branch of a union: its type, its logical type, its full name and the names of a record's fields."""

    kind: str
    logical: str = ""
    name: str = ""
    fields: frozenset[str] = frozenset()


class _Converters:
    """What makes of fastavro's values what Arrow takes; None where they are that already. `has_defaults`: values may
    be those of fields that the writer lacked, as their JSON, and the same object each time.
    """

    def __init__(self, schema: Schema, *, has_defaults: bool) -> None:
        self._names, self._has_defaults = Names(schema), has_defaults
        self._made: dict[str, list[Convert | None]] = {}

    def of(self, schema: Schema, space: str, above: tuple[str, ...]) -> Convert | None:
        if isinstance(schema, list):
            return self._union(schema, space, above)
        if isinstance(schema, str):
            found = None if schema in PRIMITIVES else self._names.of(schema, space)
            return self._scalar({"type": schema}) if found is None else self.of(*found, above)
        kind = schema["type"]
        if kind in ("record", "error"):
            return self._record(schema, full_name(schema, space), above)
        if kind == "array":
            each = self.of(schema["items"], space, above)
            return None if each is None else lambda values: [each(value) for value in values]
        if kind == "map":
            one = self.of(schema["values"], space, above)
            return lambda values: [(k, v if one is None else one(v)) for k, v in values.items()]
        return self._scalar(schema) if isinstance(kind, str) else self.of(kind, space, above)

    def _scalar(self, schema: Mapping[str, Any]) -> Convert | None:
        found = logical.converter(schema)
        return found if self._has_defaults or "logicalType" in schema else None

    def _record(self, schema: Mapping[str, Any], name: str, above: tuple[str, ...]) -> Convert | None:
        if name in self._made:
            made = self._made[name]
            return lambda value: made[0](value) if made[0] is not None else value
        cell: list[Convert | None] = [None]
        self._made[name] = cell
        space = name.rpartition(".")[0]
        each = [(one["name"], self.of(one["type"], space, (*above, name))) for one in schema["fields"]]
        wanted = [(field, convert) for field, convert in each if convert is not None]
        if not wanted:
            return None

        def convert(value: Any) -> Any:
            for field, act in wanted:
                value[field] = act(value[field])
            return value

        cell[0] = (lambda value: convert(dict(value))) if self._has_defaults else convert
        return cell[0]

    def _union(self, branches: list[Schema], space: str, above: tuple[str, ...]) -> Convert | None:
        real = [one for one in branches if one != "null"]
        if not real:
            return None
        acts = [self.of(one, space, above) for one in real]
        named = [self._resolved(one, space) for one in real]
        if len(real) == 1 or widened(branches) is not None:
            act = acts[0]
            if act is None and named[0].kind not in NAMED:
                return None
            return lambda value: _plain(act, value)

        def convert(value: Any) -> Any:
            if value is None:
                return None
            index = _branch(named, value)
            act = acts[index]
            value = _of_named(value)
            return {f"member{index}": value if act is None else act(value)}

        return convert

    def _resolved(self, schema: Schema, space: str) -> _Branch:
        while True:
            if isinstance(schema, str):
                found = None if schema in PRIMITIVES else self._names.of(schema, space)
                if found is None:
                    return _Branch(schema)
                schema, space = found
            kind = schema["type"]
            if isinstance(kind, str) and (kind in NAMED or kind in PRIMITIVES or kind in ("array", "map")):
                name = full_name(schema, space) if kind in NAMED else ""
                fields = frozenset(field["name"] for field in schema.get("fields", ()))
                return _Branch(kind, str(schema.get("logicalType", "")), name, fields)
            schema = kind


def _plain(act: Convert | None, value: Any) -> Any:
    if value is None:
        return None
    value = _of_named(value)
    return value if act is None else act(value)


_KINDS: dict[type, tuple[tuple[str, str], ...]] = {
    bool: (("boolean", ""),),
    int: (("long", ""), ("int", "")),
    float: (("double", ""), ("float", "")),
    str: (("string", ""),),
    bytes: (("bytes", ""),),
    list: (("array", ""),),
    dict: (("map", ""),),
}
_NAMED_KINDS: dict[type, str] = {str: "enum", bytes: "fixed", dict: "record"}


def _branch(branches: list[_Branch], value: Any) -> int:
    """Return the branch that a value is of: the first of its kind that holds it."""
    if type(value) is tuple:
        for i, branch in enumerate(branches):
            if branch.name == value[0]:
                return i
        value = value[1]
    kinds = _KINDS.get(type(value), ())
    if isinstance(value, logical.Marked):
        same = [i for i, branch in enumerate(branches) if branch.kind == value.kind[0]]
        if same:
            return next((i for i in same if branches[i].logical == value.kind[1]), same[0])
        kinds = _KINDS[int if isinstance(value, int) else bytes]
    for i, branch in enumerate(branches):
        if (branch.kind, branch.logical) in kinds and _holds(branch.kind, value):
            return i
    for i, branch in enumerate(branches):
        if branch.kind in {kind for kind, _ in kinds}:
            return i
    # Of a writer without the union, or a default: it comes without its name.
    for i, branch in enumerate(branches):
        if branch.kind == _NAMED_KINDS.get(type(value)) and (not branch.fields or branch.fields == value.keys()):
            return i
    raise ValueError(f"no branch of the union is of the value's type, {type(value).__name__}")


def _holds(kind: str, value: Any) -> bool:
    """Tell whether a value may have been written as an int or a float, where a long or a double is in the union too."""
    if kind == "int" and type(value) is int:
        return -(2**31) <= value < 2**31
    if kind == "float" and type(value) is float and math.isfinite(value):
        try:
            return bool(struct.unpack("f", struct.pack("f", value))[0] == value)
        except OverflowError:
            return False
    return True


class _Nesting:
    """Walks through a body of a recursive schema, so that one nested a million deep ends no process."""

    def __init__(self, schema: Schema) -> None:
        self._schema, self._names = schema, Names(schema)

    def check(self, body: bytes) -> None:
        """Raises ValueError."""
        self._body = body
        self._skip(self._schema, "", 0, 0)

    def _long(self, at: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            if at >= len(self._body) or shift > 63:
                raise ValueError("the body is truncated: it ends within a value of the schema")
            byte = self._body[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1), at
            shift += 7

    def _skip(self, schema: Schema, space: str, at: int, depth: int) -> int:
        if depth > NESTING_MAX:
            raise ValueError(f"the body is nested more than {NESTING_MAX} deep")
        if isinstance(schema, list):
            index, at = self._long(at)
            if not 0 <= index < len(schema):
                raise ValueError(f"the body is no Avro of the schema: a union has no branch {index}")
            return self._skip(schema[index], space, at, depth)
        if isinstance(schema, str) and schema not in PRIMITIVES:
            found = self._names.of(schema, space)
            assert found is not None
            return self._skip(*found, at, depth)
        kind = schema if isinstance(schema, str) else schema["type"]
        if kind in ("record", "error"):
            inside = full_name(schema, space).rpartition(".")[0]
            for field in schema["fields"]:
                at = self._skip(field["type"], inside, at, depth + 1)
            return at
        if kind in ("array", "map"):
            return self._items(schema, space, at, depth)
        if not isinstance(kind, str) or kind not in _SIZES:
            return self._scalar(kind, schema, space, at, depth)
        return self._within(at + _SIZES[kind])

    def _scalar(self, kind: Any, schema: Schema, space: str, at: int, depth: int) -> int:
        if kind in ("int", "long", "enum"):
            return self._long(at)[1]
        if kind in ("bytes", "string"):
            count, at = self._long(at)
            return self._within(at + max(0, count))
        if kind == "fixed":
            return self._within(at + int(schema["size"]))
        return self._skip(kind, space, at, depth)

    def _items(self, schema: Mapping[str, Any], space: str, at: int, depth: int) -> int:
        while True:
            count, at = self._long(at)
            if not count:
                return at
            if count < 0:
                count, (_, at) = -count, self._long(at)
            for _ in range(count):
                if "values" in schema:
                    at = self._scalar("string", schema, space, at, depth)
                at = self._skip(schema.get("items", schema.get("values")), space, at, depth + 1)

    def _within(self, at: int) -> int:
        if at > len(self._body):
            raise ValueError("the body is truncated: it ends within a value of the schema")
        return at


_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}
