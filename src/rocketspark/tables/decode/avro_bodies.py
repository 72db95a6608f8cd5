"""Decodes Avro bodies to values that Arrow takes. Rule: whatever the bytes are, a body becomes a value, or an error
that says what is wrong, in bounded depth.

fastavro gives the numbers and bytes of logical types as they were written, marked by the writer's type; what they mean
for the reader is decided here. By itself fastavro heeds the writer's types alone, gives defaults as their JSON, and
takes minutes for a decimal of 1 MB.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from decimal import Decimal
from io import BytesIO
from typing import Any, NamedTuple

from rocketspark.tables.decode.avro_schema import NAMED, PRIMITIVES, Names, Schema, full_name, is_recursive, widened

Convert = Callable[[Any], Any]

# Years 1 to 9999, which Spark's times can be shown in.
_DAYS_MIN, _DAYS_MAX = -719_162, 2_932_896
_US_MIN, _US_MAX = _DAYS_MIN * 86_400_000_000, (_DAYS_MAX + 1) * 86_400_000_000 - 1
# What 38 digits take, with room for zeros before them.
DECIMAL_BYTES_MAX = 64
_PREFIX = "rocketspark-"


class Marked:
    """A number or bytes as written; `kind` is the type and the logical type that the writer's schema gives it."""

    kind: tuple[str, str]


class _Number(int, Marked):
    pass


class _Digits(bytes, Marked):
    scale: int


class _Default:
    """JSON of a reader's schema, in place of a field that the writer lacked."""


_DEFAULTS: dict[type, Any] = {kind: type("_Default", (_Default, kind), {}) for kind in (str, int, float, list, dict)}


def _number(kind: str, logical: str) -> type[_Number]:
    return type("_Number", (_Number,), {"kind": (kind, logical)})


# Units of times in us, by logical type.
_INSTANTS = {
    "timestamp-millis": 1000,
    "timestamp-micros": 1,
    "local-timestamp-millis": 1000,
    "local-timestamp-micros": 1,
}
_TIMES = {"time-millis": 1000, "time-micros": 1}
_NUMBERS = {
    ("int", "date"): _number("int", "date"),
    ("int", "time-millis"): _number("int", "time-millis"),
    ("long", "time-micros"): _number("long", "time-micros"),
    **{("long", logical): _number("long", logical) for logical in _INSTANTS},
}
_DECIMALS = (("bytes", "decimal"), ("fixed", "decimal"))


def _mark(made: type[_Number]) -> Callable[..., Any]:
    return lambda value, writer, reader: made(value)


def _digits(value: Any, writer: Any, reader: Any) -> _Digits:
    found = _Digits(value)
    found.kind, found.scale = (writer["type"], "decimal"), int(writer.get("scale", 0))
    return found


def _register() -> None:
    from fastavro.read import LOGICAL_READERS

    for (kind, logical), made in _NUMBERS.items():
        LOGICAL_READERS[f"{kind}-{_PREFIX}{logical}"] = _mark(made)
    for kind, logical in _DECIMALS:
        LOGICAL_READERS[f"{kind}-{_PREFIX}{logical}"] = _digits


def marking(schema: Any) -> Any:
    """Return a schema with which fastavro only marks values by their logical types, and does not convert them."""
    _register()
    return _marked(schema)


def _marked(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_marked(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    kind, logical = found.get("type"), found.pop("logicalType", None)
    if isinstance(kind, str) and ((kind, logical) in _NUMBERS or (kind, logical) in _DECIMALS):
        found["logicalType"] = _PREFIX + str(logical)
    for key in ("items", "values", "type"):
        if isinstance(found.get(key), dict | list):
            found[key] = _marked(found[key])
    if "fields" in found:
        found["fields"] = [_marked_field(field) for field in found["fields"]]
    return found


def _marked_field(field: Mapping[str, Any]) -> dict[str, Any]:
    found = {**field, "type": _marked(field["type"])}
    # fastavro gives the default as it stands here.
    if made := _DEFAULTS.get(type(field.get("default"))):
        found["default"] = made(field["default"])
    return found


def converter(schema: Mapping[str, Any]) -> Convert | None:
    """Return the function that turns a decoded value of a schema's type into what Arrow takes; None if Arrow takes the
    value as it is.
    """
    kind, logical = schema["type"], schema.get("logicalType")
    if (kind, logical) in _DECIMALS:
        return _decimal(int(schema.get("scale", 0)))
    if kind in ("bytes", "fixed"):
        return _bytes
    if (kind, logical) not in _NUMBERS:
        return None
    if logical in _INSTANTS:
        return _instant(_INSTANTS[logical])
    return _date if logical == "date" else _time(_TIMES[str(logical)])


def _bytes(value: Any) -> Any:
    # A default is text whose characters are the bytes.
    return value.encode("latin-1") if isinstance(value, str) else value


def _decimal(scale: int) -> Convert:
    def convert(value: Any) -> Decimal:
        digits = _bytes(value)
        # Decimals of many digits take a time that grows by the square.
        if len(digits) > DECIMAL_BYTES_MAX:
            raise ValueError(f"a decimal has {len(digits)} bytes, and Spark's have 38 digits at most")
        written = digits.scale if isinstance(digits, _Digits) else scale
        return Decimal(f"{int.from_bytes(digits, 'big', signed=True)}e{-written}")

    return convert


def _instant(unit_us: int) -> Convert:
    def convert(value: Any) -> int:
        written = _INSTANTS.get(value.kind[1], unit_us) if isinstance(value, Marked) else unit_us
        us = int(value) * written
        if not _US_MIN <= us <= _US_MAX:
            raise ValueError("a timestamp lies outside of the years 1 to 9999")
        return us

    return convert


def _date(value: Any) -> int:
    days = int(value)
    if not _DAYS_MIN <= days <= _DAYS_MAX:
        raise ValueError("a date lies outside of the years 1 to 9999")
    return days


def _time(unit_us: int) -> Convert:
    def convert(value: Any) -> int:
        written = _TIMES.get(value.kind[1], unit_us) if isinstance(value, Marked) else unit_us
        return int(value) if written == unit_us else int(value) * written // unit_us

    return convert


# Records within each other in one body, where the schema sets no end: fastavro has no bound of its own.
NESTING_MAX = 64


class AvroDecoder:
    """Decodes bodies that were written with one schema to values of the reader's schema."""

    def __init__(self, writer: Schema, reader: Schema | None = None) -> None:
        import fastavro

        self._read = fastavro.schemaless_reader
        is_resolved = reader is not None and reader != writer
        self._writer = fastavro.parse_schema(marking(writer))
        self._reader = fastavro.parse_schema(marking(reader)) if is_resolved else None
        wanted = writer if reader is None else reader
        self._convert = _Converters(wanted, is_resolved=is_resolved).of(wanted, "", ())
        self._nesting = _Nesting(writer) if is_recursive(writer) else None

    def decode(self, body: bytes) -> Any:
        """Decode one body to a value that Arrow takes. Raises ValueError saying what is wrong with the body."""
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
    """A branch of a union: its type, its logical type, its full name, its aliases, the names of a record's fields."""

    kind: str
    logical: str = ""
    name: str = ""
    aliases: frozenset[str] = frozenset()
    fields: frozenset[str] = frozenset()


class _Converters:
    """Makes functions that turn fastavro's values into what Arrow takes; None where the values are that already.
    `is_resolved`: the writer's schema is another: it may lack fields, whose values are defaults then, and have unions
    where the reader has none.
    """

    def __init__(self, schema: Schema, *, is_resolved: bool) -> None:
        self._names, self._is_resolved = Names(schema), is_resolved
        self._made: dict[str, list[Convert | None]] = {}

    def of(self, schema: Schema, space: str, above: tuple[str, ...]) -> Convert | None:
        """Return the function for values of a type in a namespace; `above`: the records that it lies in."""
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
        found = converter(schema)
        if self._is_resolved and schema["type"] in NAMED:
            return lambda value: _plain(found, value)
        return found if "logicalType" in schema else None

    def _record(self, schema: Mapping[str, Any], name: str, above: tuple[str, ...]) -> Convert | None:
        if name in self._made:
            made = self._made[name]
            return lambda value: made[0](value) if made[0] is not None else value
        cell: list[Convert | None] = [None]
        self._made[name] = cell
        space = name.rpartition(".")[0]
        each = [(one["name"], self._field(one, space, (*above, name))) for one in schema["fields"]]
        wanted = [(field, convert) for field, convert in each if convert is not None]
        if not wanted and not self._is_resolved:
            return None

        def convert(value: Any) -> Any:
            for field, act in wanted:
                value[field] = act(value[field])
            return value

        cell[0] = (lambda value: convert(_of_named(value))) if self._is_resolved else convert
        return cell[0]

    def _field(self, field: Mapping[str, Any], space: str, above: tuple[str, ...]) -> Convert | None:
        act = self.of(field["type"], space, above)
        if not self._is_resolved or type(field.get("default")) not in _DEFAULTS:
            return act
        wrong, default = "", None
        try:
            default = self._default(field["type"], space, field["default"])
        except (ValueError, RecursionError) as e:
            wrong = f"the default of field {field['name']} does not fit its type: {e}"

        def convert(value: Any) -> Any:
            if isinstance(value, _Default):
                if wrong:
                    raise ValueError(wrong)
                return default
            return value if act is None else act(value)

        return convert

    def _default(self, schema: Schema, space: str, value: Any) -> Any:
        """Return what Arrow takes for the JSON of a default. Raises ValueError if it is none of the type."""
        if isinstance(schema, list):
            return self._default_of_union(schema, space, value)
        if isinstance(schema, str):
            found = None if schema in PRIMITIVES else self._names.of(schema, space)
            schema, space = ({"type": schema}, space) if found is None else found
        kind = schema["type"]
        if not isinstance(kind, str) or (kind not in _JSON and kind not in PRIMITIVES):
            return self._default(kind, space, value)
        if type(value) not in _JSON[kind]:
            raise ValueError(f"{type(value).__name__} for {kind}")
        if kind == "array":
            return [self._default(schema["items"], space, one) for one in value]
        if kind == "map":
            return [(key, self._default(schema["values"], space, one)) for key, one in value.items()]
        if kind in ("record", "error"):
            return self._default_of_record(schema, space, value)
        if (kind == "enum" and value not in schema["symbols"]) or (kind == "fixed" and len(value) != schema["size"]):
            raise ValueError(f"no {kind} of the type")
        act = converter(schema)
        return value if act is None else act(value)

    def _default_of_record(self, schema: dict[str, Any], space: str, value: dict[str, Any]) -> dict[str, Any]:
        # A default may leave out fields that have one themselves.
        whole = {field["name"]: field["default"] for field in schema["fields"] if "default" in field} | value
        if lacks := [field["name"] for field in schema["fields"] if field["name"] not in whole]:
            raise ValueError(f"it lacks field {lacks[0]}")
        inside = full_name(schema, space).rpartition(".")[0]
        return {one["name"]: self._default(one["type"], inside, whole[one["name"]]) for one in schema["fields"]}

    def _default_of_union(self, branches: list[Schema], space: str, value: Any) -> Any:
        """By Avro's rule the first branch that it fits is meant."""
        if value is None:
            return None
        real = [one for one in branches if one != "null"]
        for index, branch in enumerate(real):
            try:
                found = self._default(branch, space, value)
            except ValueError:
                continue
            return found if len(real) == 1 or widened(branches) is not None else {f"member{index}": found}
        raise ValueError("it fits no branch of the union")

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
                inside = name.rpartition(".")[0]
                aliases = frozenset(full_name({"name": one}, inside) for one in schema.get("aliases", ()))
                fields = frozenset(field["name"] for field in schema.get("fields", ()))
                return _Branch(kind, str(schema.get("logicalType", "")), name, aliases, fields)
            schema = kind


def _plain(act: Convert | None, value: Any) -> Any:
    if value is None:
        return None
    value = _of_named(value)
    return value if act is None else act(value)


# Python's types of the JSON of a type's values.
_JSON: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("bytes", "string", "enum", "fixed"), (str,)),
    **dict.fromkeys(("int", "long"), (int,)),
    **dict.fromkeys(("float", "double"), (int, float)),
    **dict.fromkeys(("map", "record", "error"), (dict,)),
    "array": (list,),
    "boolean": (bool,),
    "null": (type(None),),
}
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


def _branch_named(branches: list[_Branch], name: str) -> int | None:
    """Return the index of the union's branch of this full name, or else of its last part; None if none is called so."""
    for i, branch in enumerate(branches):
        if branch.name == name or name in branch.aliases:
            return i
    short = name.rpartition(".")[2]
    return next((i for i, branch in enumerate(branches) if branch.name.rpartition(".")[2] == short), None)


def _branch(branches: list[_Branch], value: Any) -> int:
    """Return the index of the union's branch that a value belongs to: the first of its kind that can hold it."""
    if type(value) is tuple:
        name, value = value
        if (named := _branch_named(branches, name)) is not None:
            return named
    kinds = _KINDS.get(type(value), ())
    if isinstance(value, Marked):
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
    # Of a writer without the union: it comes without its name.
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
    """Walks through a body of a recursive schema before it is decoded: one nested a million deep ends no process."""

    def __init__(self, schema: Schema) -> None:
        self._schema, self._names = schema, Names(schema)

    def check(self, body: bytes) -> None:
        """Raise ValueError for a body that is nested too deeply, or ends too early."""
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
