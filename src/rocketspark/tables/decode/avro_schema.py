"""Parses Avro schemas, joins them with the schemas that they refer to, and finds the Spark types that Spark's own Avro
reader gives them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rocketspark.errors import ConfigError
from rocketspark.model.text import shown
from rocketspark.tables.decode import sql_types as t
from rocketspark.tables.decode.options import COLUMNS_MAX

PRIMITIVES = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
NAMED = frozenset(("record", "error", "enum", "fixed"))
DEPTH_MAX = 100

Schema = Any


def parse(text: str, references: Mapping[str, str] | None = None, *, name: str = "decodeSchema") -> Schema:
    """Parse a schema; fastavro checks it. `references`: the texts of the schemas that it refers to, by their names.

    `name`: the option that the text came from, which the ConfigError for a wrong schema names.
    """
    import fastavro

    try:
        schema = json.loads(text) if text.lstrip()[:1] in ("{", "[", '"') else text.strip()
        # One schema that holds all: the first mention of a name becomes its definition.
        others = {key: json.loads(value) for key, value in (references or {}).items()}
        schema = _inlined(schema, others, set(), 0, "") if others else schema
        fastavro.parse_schema(schema)
        _ItemCheck(schema).check(schema)
    except RecursionError:
        raise ConfigError(f"{name} is no Avro schema: it is nested too deeply") from None
    except (ValueError, TypeError, KeyError, AttributeError, fastavro.schema.SchemaParseException) as e:
        why = f"the type {shown(str(e))} is unknown" if "Unknown" in type(e).__name__ else " ".join(str(e).split())
        raise ConfigError(f"{name} is no Avro schema: {shown(why or type(e).__name__)}") from None
    return schema


def _inlined(schema: Schema, others: dict[str, Any], done: set[str], depth: int, space: str) -> Schema:
    if depth > DEPTH_MAX:
        raise ValueError("it is nested too deeply")
    if isinstance(schema, str):
        full = schema if "." in schema or schema in others or not space else f"{space}.{schema}"
        if full in others and full not in done:
            done.add(full)
            return _inlined(others[full], others, done, depth + 1, "")
        return schema
    if isinstance(schema, list):
        return [_inlined(one, others, done, depth + 1, space) for one in schema]
    found = dict(schema)
    space = str(found.get("namespace") or (str(found.get("name", "")).rpartition(".")[0]) or space)
    if found.get("type") in NAMED:
        done.add(full_name(found, space))
    for key in ("items", "values"):
        if key in found:
            found[key] = _inlined(found[key], others, done, depth + 1, space)
    if isinstance(found.get("type"), dict | list) or found.get("type") in others:
        found["type"] = _inlined(found["type"], others, done, depth + 1, space)
    if "fields" in found:
        found["fields"] = [
            {**one, "type": _inlined(one["type"], others, done, depth + 1, space)} for one in found["fields"]
        ]
    return found


def full_name(schema: Mapping[str, Any], space: str) -> str:
    """Return the name of a named type (record, enum or fixed) with its namespace. `space`: the namespace around it."""
    name = str(schema.get("name", ""))
    if "." in name:
        return name
    space = str(schema.get("namespace", space) or "")
    return f"{space}.{name}" if space else name


class Names:
    """Finds the named types of a schema by the names that stand for them, which are full or within the namespace around
    them.
    """

    def __init__(self, schema: Schema) -> None:
        self._found: dict[str, tuple[Mapping[str, Any], str]] = {}
        self._collect(schema, "")

    def _collect(self, schema: Schema, space: str) -> None:
        if isinstance(schema, list):
            for one in schema:
                self._collect(one, space)
        elif isinstance(schema, dict):
            if schema.get("type") in NAMED:
                name = full_name(schema, space)
                space = name.rpartition(".")[0]
                self._found[name] = (schema, space)
            for one in schema.get("fields", ()):
                self._collect(one["type"], space)
            for key in ("items", "values", "type"):
                if isinstance(schema.get(key), dict | list):
                    self._collect(schema[key], space)

    def of(self, name: str, space: str) -> tuple[Mapping[str, Any], str] | None:
        """Return the type that a name stands for within the namespace `space`, and the namespace within that type."""
        if "." not in name and space and (found := self._found.get(f"{space}.{name}")):
            return found
        return self._found.get(name)


def spark_type(schema: Schema, recursion_max: int) -> t.DataType:
    """Return Spark's type for values of a schema. Raises ConfigError.

    `recursion_max`: how often a type may lie within itself; fields that lie deeper are left out.
    """
    found = _Types(Names(schema), recursion_max).of(schema, "", ())
    if found is None:
        raise ConfigError("decodeSchema: nothing is left of the schema at recursiveFieldMaxDepth: give it more")
    return found


def widened(branches: list[Schema]) -> str | None:
    """Return the type that a union of int and long, or of float and double, is read as; None for any other union."""
    real = [one for one in branches if one != "null"]
    plain = {one if isinstance(one, str) else one["type"] for one in real if "logicalType" not in one}
    if len(real) != 2:
        return None
    return "long" if plain == {"int", "long"} else "double" if plain == {"float", "double"} else None


class _Types:
    def __init__(self, names: Names, recursion_max: int) -> None:
        self._names, self._recursion_max = names, recursion_max
        self._count = 0

    def of(self, schema: Schema, space: str, above: tuple[str, ...]) -> t.DataType | None:
        """Return the type; None for what is nested too deeply."""
        self._count += 1
        if self._count > COLUMNS_MAX or len(above) > DEPTH_MAX:
            raise ConfigError(
                f"decodeSchema has more than {COLUMNS_MAX} columns, or columns more than {DEPTH_MAX} deep: give a"
                " smaller schema, or a lower recursiveFieldMaxDepth"
            )
        if isinstance(schema, list):
            return self._union(schema, space, above)
        if isinstance(schema, str) and schema not in PRIMITIVES:
            found = self._names.of(schema, space)
            if found is None:
                raise ConfigError(f"decodeSchema is no Avro schema: the type {shown(schema)!r} is unknown")
            return self._named(*found, above)
        if isinstance(schema, str):
            return _primitive(schema, {})
        kind = schema["type"]
        if kind in NAMED:
            name = full_name(schema, space)
            return self._named(schema, name.rpartition(".")[0], above)
        if kind == "array":
            items = self.of(schema["items"], space, above)
            return None if items is None else t.ArrayType(items)
        if kind == "map":
            values = self.of(schema["values"], space, above)
            return None if values is None else t.MapType(t.StringType(), values)
        if isinstance(kind, str) and kind in PRIMITIVES:
            return _primitive(kind, schema)
        return self.of(kind, space, above)

    def _named(self, schema: Mapping[str, Any], space: str, above: tuple[str, ...]) -> t.DataType | None:
        if schema["type"] == "enum":
            return t.StringType()
        if schema["type"] == "fixed":
            return _primitive("bytes", schema)
        name = full_name(schema, space)
        depth = above.count(name)
        if depth and not self._recursion_max:
            raise ConfigError(
                f"decodeSchema: record {shown(name)} lies within itself, and Spark has no such type: option"
                " recursiveFieldMaxDepth says how deep its columns go (1 to 15)"
            )
        if depth > self._recursion_max:
            return None
        kinds = [(one["name"], self.of(one["type"], space, (*above, name))) for one in schema["fields"]]
        fields = [t.StructField(field, kind) for field, kind in kinds if kind is not None]
        return t.StructType(fields) if fields else None

    def _union(self, branches: list[Schema], space: str, above: tuple[str, ...]) -> t.DataType | None:
        kinds = [self.of(one, space, above) for one in branches if one != "null"]
        if not kinds:
            return t.StringType()
        if len(kinds) == 1:
            return kinds[0]
        if (wider := widened(branches)) is not None:
            return _PLAIN[wider]
        members = [t.StructField(f"member{i}", kind) for i, kind in enumerate(kinds) if kind is not None]
        return t.StructType(members)


_PLAIN: dict[str, t.DataType] = {
    "null": t.StringType(),
    "boolean": t.BooleanType(),
    "int": t.IntegerType(),
    "long": t.LongType(),
    "float": t.FloatType(),
    "double": t.DoubleType(),
    "bytes": t.BinaryType(),
    "string": t.StringType(),
}
_TIMES = {
    "timestamp-millis": t.TimestampType(),
    "timestamp-micros": t.TimestampType(),
    "local-timestamp-millis": t.TimestampNTZType(),
    "local-timestamp-micros": t.TimestampNTZType(),
}


def _primitive(kind: str, schema: Mapping[str, Any]) -> t.DataType:
    logical = schema.get("logicalType")
    if kind == "bytes" and logical == "decimal":
        if not 0 < int(schema.get("precision", 0)) <= 38:
            raise ConfigError(
                f"decodeSchema: a decimal has precision {shown(str(schema.get('precision')))}, and Spark's have 38 at"
                " most: give a schema without it"
            )
        return t.DecimalType(int(schema["precision"]), int(schema.get("scale", 0)))
    if kind == "int" and logical == "date":
        return t.DateType()
    if kind == "long" and logical in _TIMES:
        return _TIMES[logical]
    return _PLAIN[kind]


def _is_union(schema: Schema) -> bool:
    while isinstance(schema, dict):
        schema = schema.get("type")
    return isinstance(schema, list)


class _ItemCheck:
    """Refuses unions of unions, as Avro does, and arrays and maps of items that take no byte: nine bytes could say that
    there are 2**62 of them.
    """

    def __init__(self, schema: Schema) -> None:
        self._names = Names(schema)
        self._empty: dict[str, bool] = {}

    def check(self, one: Schema, space: str = "", depth: int = 0) -> None:
        """Raise ValueError for what is refused in a schema, or in what stands within it."""
        if depth > DEPTH_MAX:
            raise ValueError("it is nested too deeply")
        if isinstance(one, list):
            for branch in one:
                if _is_union(branch):
                    raise ValueError("a union stands directly in a union")
                self.check(branch, space, depth + 1)
        elif isinstance(one, dict):
            if not isinstance(one.get("logicalType", ""), str):
                raise ValueError("a logicalType is no text")
            if one.get("type") in NAMED:
                space = full_name(one, space).rpartition(".")[0]
            if "items" in one and self._is_empty(one["items"], space, ()):
                raise ValueError("an array of items without bytes has no bound")
            inside = [field["type"] for field in one.get("fields", ())]
            inside += [one[key] for key in ("items", "values", "type") if isinstance(one.get(key), dict | list)]
            for each in inside:
                self.check(each, space, depth + 1)

    def _is_empty(self, one: Schema, space: str, above: tuple[str, ...]) -> bool:
        """Tell whether values of a schema take no byte. `above`: the records that it stands in."""
        if one == "null":
            return True
        if isinstance(one, str):
            found = None if one in PRIMITIVES else self._names.of(one, space)
            return found is not None and self._is_empty(found[0], found[1], above)
        if isinstance(one, list) or one["type"] in ("array", "map", "enum"):
            return False
        if one["type"] == "fixed":
            return bool(one.get("size") == 0)
        if one["type"] not in ("record", "error"):
            return self._is_empty(one["type"], space, above)
        name = full_name(one, space)
        inside = name.rpartition(".")[0]
        if name not in self._empty:
            self._empty[name] = name not in above and all(
                self._is_empty(field["type"], inside, (*above, name)) for field in one["fields"]
            )
        return self._empty[name]


def is_recursive(schema: Schema) -> bool:
    """Tell whether some type of a schema lies within itself."""
    try:
        _Types(Names(schema), 0).of(schema, "", ())
    except ConfigError:
        return True
    return False
