"""Columns of decoded bodies in an archive's table. Rule: a table gets further fields; none of its fields is
removed or changes its type."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyspark.sql.types as t

from rocketspark.errors import ConfigError
from rocketspark.model.text import shown

if TYPE_CHECKING:
    from pyspark.sql import Column

Path = tuple[str, ...]

_ATOMIC = (
    *(t.BooleanType, t.ByteType, t.ShortType, t.IntegerType, t.LongType, t.FloatType, t.DoubleType, t.DecimalType),
    *(t.BinaryType, t.DateType, t.TimestampType, t.TimestampNTZType),
)
# What Iceberg has as int.
_SMALL = (t.ByteType, t.ShortType)
_NO_NAME_OF_DELTA = re.compile(r"[ ,;{}()\n\t=]")
_OWN_OF_ICEBERG = frozenset(
    "_file _pos _deleted _spec_id _partition _row_id _last_updated_sequence_number _change_type _change_ordinal"
    " _commit_snapshot_id".split()
)
_A = {"delta": "a delta", "iceberg": "an iceberg"}
_LEAVE_OUT = "leave it out of decodeSchema"


def held(columns: t.StructType, table_format: str) -> t.StructType:
    """Return decoded columns with the types that a table of the format stores them in. Raises ConfigError for a column
    that it cannot hold.
    """
    found = t.StructType([_held_field(field, table_format, ()) for field in columns.fields])
    if table_format == "iceberg":
        if own := next((name for name in found.names if name.lower() in _OWN_OF_ICEBERG), None):
            raise ConfigError(
                f"{_told((own,))}: Iceberg has a column of its own of that name; choose another with decodeInto and"
                " columnNameOfDecodeError"
            )
        names = Counter(_joined(found, ()))
        if twice := next((name for name, count in names.items() if count > 1), None):
            raise ConfigError(
                f"column {shown(twice)} is there twice, as Iceberg joins names by dots; leave one out of decodeSchema"
            )
    return found


def _joined(kind: t.DataType, outer: Path) -> Iterator[str]:
    """Yield the names by which Iceberg knows fields."""
    if isinstance(kind, t.StructType):
        inner = [(field.name, field.dataType) for field in kind.fields]
    elif isinstance(kind, t.ArrayType):
        inner = [("element", kind.elementType)]
    elif isinstance(kind, t.MapType):
        inner = [("key", kind.keyType), ("value", kind.valueType)]
    else:
        return
    for name, one in inner:
        yield ".".join((*outer, name))
        yield from _joined(one, (*outer, name))


def _held_field(field: t.StructField, table_format: str, outer: Path) -> t.StructField:
    path = (*outer, field.name)
    if not field.name or (table_format == "delta" and _NO_NAME_OF_DELTA.search(field.name)):
        raise ConfigError(f"{_told(path)}: {_A[table_format]} table has no column of that name; {_LEAVE_OUT}")
    return t.StructField(field.name, _held(field.dataType, table_format, path))


def _held(kind: t.DataType, table_format: str, path: Path) -> t.DataType:
    if isinstance(kind, t.StructType):
        if not kind.fields:
            raise ConfigError(f"{_told(path)} is a struct without fields, which no table holds; {_LEAVE_OUT}")
        names = [field.name.lower() for field in kind.fields]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ConfigError(f"{_told((*path, twice))} is there twice, capitals aside; leave one out of decodeSchema")
        return t.StructType([_held_field(field, table_format, path) for field in kind.fields])
    if isinstance(kind, t.ArrayType):
        return t.ArrayType(_held(kind.elementType, table_format, (*path, "element")))
    if isinstance(kind, t.MapType):
        key = _held(kind.keyType, table_format, (*path, "key"))
        return t.MapType(key, _held(kind.valueType, table_format, (*path, "value")))
    if isinstance(kind, t.StringType | t.CharType | t.VarcharType):
        return t.StringType()
    if not isinstance(kind, _ATOMIC):
        raise ConfigError(f"{_told(path)} is {kind.simpleString()}, which no {table_format} table holds; {_LEAVE_OUT}")
    return t.IntegerType() if table_format == "iceberg" and isinstance(kind, _SMALL) else kind


def lacking(there: t.StructType, wanted: t.StructType) -> list[tuple[Path, t.DataType]]:
    """Return the fields, by path and type, that `wanted` has and a table's columns `there` lack. Raises ConfigError
    where the table has a field with another type.
    """
    return _lacking(there, wanted, ())


def _lacking(there: t.DataType, wanted: t.DataType, path: Path) -> list[tuple[Path, t.DataType]]:
    if isinstance(there, t.StructType) and isinstance(wanted, t.StructType):
        known = {field.name.lower(): field for field in there.fields}
        found: list[tuple[Path, t.DataType]] = []
        for field in wanted.fields:
            one = known.get(field.name.lower())
            if one is None:
                found.append(((*path, field.name), field.dataType))
            else:
                found += _lacking(one.dataType, field.dataType, (*path, one.name))
        return found
    if isinstance(there, t.ArrayType) and isinstance(wanted, t.ArrayType):
        return _lacking(there.elementType, wanted.elementType, (*path, "element"))
    if isinstance(there, t.MapType) and isinstance(wanted, t.MapType):
        of_keys = _lacking(there.keyType, wanted.keyType, (*path, "key"))
        return of_keys + _lacking(there.valueType, wanted.valueType, (*path, "value"))
    if there.simpleString() != wanted.simpleString():
        raise ConfigError(
            f"{_told(path)} is {_short(there)} in the table and {_short(wanted)} by the schema: keep the type with"
            " decodeSchema, or give the column another name with decodeInto"
        )
    return []


def fitted(column: Column, kind: t.DataType, wanted: t.DataType) -> Column:
    """Return a decoded column, which has the type `kind`, with the type `wanted` that the table has: fields that it
    lacks are null.
    """
    from pyspark.sql import functions as F

    if kind.simpleString() == wanted.simpleString():
        return column
    if isinstance(kind, t.StructType) and isinstance(wanted, t.StructType):
        known = {field.name.lower(): field for field in kind.fields}
        fields = []
        for field in wanted.fields:
            one = known.get(field.name.lower())
            value = (
                F.lit(None).cast(field.dataType)
                if one is None
                else fitted(column.getField(one.name), one.dataType, field.dataType)
            )
            fields.append(value.alias(field.name))
        return F.when(column.isNotNull(), F.struct(*fields))
    if isinstance(kind, t.ArrayType) and isinstance(wanted, t.ArrayType):
        inner, outer = kind.elementType, wanted.elementType
        return F.transform(column, lambda one: fitted(one, inner, outer))
    if isinstance(kind, t.MapType) and isinstance(wanted, t.MapType):
        keys, values = (kind.keyType, wanted.keyType), (kind.valueType, wanted.valueType)
        with_keys = F.transform_keys(column, lambda key, _: fitted(key, *keys))
        return F.transform_values(with_keys, lambda _, value: fitted(value, *values))
    return column.cast(wanted)


def path_of(path: Path) -> str:
    """Return a field's path in the form of SQL, with each name quoted."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in path)


def _told(path: Path) -> str:
    return f"column {shown('.'.join(path))}"


def _short(kind: t.DataType) -> str:
    return shown(kind.simpleString(), characters_max=100)
