"""Spark's SQL types, which decoded columns have, without Spark. Rule: names, texts and Arrow types equal those of
pyspark.sql.types; a type that no body is decoded to is an `OtherType`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from rocketspark.errors import ConfigError


@dataclass(frozen=True)
class DataType:
    """A type of a column; by itself it has neither a name nor an Arrow type."""

    def simpleString(self) -> str:
        """Return the type as SQL writes it."""
        return _WORDS[type(self)][0]

    def json_value(self) -> Any:
        """Return the type as a value of JSON."""
        return _WORDS[type(self)][1]

    def json(self) -> str:
        """Return the type as Spark writes it in JSON."""
        return json.dumps(self.json_value(), separators=(",", ":"), sort_keys=True)

    def arrow(self) -> pa.DataType:
        """Return the type of its Arrow columns; times are in UTC."""
        return _WORDS[type(self)][2]()


class BooleanType(DataType):
    """True or false."""


class ByteType(DataType):
    """Whole numbers of 8 bits."""


class ShortType(DataType):
    """Whole numbers of 16 bits."""


class IntegerType(DataType):
    """Whole numbers of 32 bits."""


class LongType(DataType):
    """Whole numbers of 64 bits."""


class FloatType(DataType):
    """Numbers of 32 bits."""


class DoubleType(DataType):
    """Numbers of 64 bits."""


class StringType(DataType):
    """Text."""


class BinaryType(DataType):
    """Bytes."""


class DateType(DataType):
    """Days."""


class TimestampType(DataType):
    """Moments, in us."""


class TimestampNTZType(DataType):
    """Times of no time zone, in us."""


class DayTimeIntervalType(DataType):
    """Durations, in us."""


# Of each plain type: SQL's word, JSON's word, Arrow's type.
_WORDS: dict[type[DataType], tuple[str, str, Callable[[], pa.DataType]]] = {
    BooleanType: ("boolean", "boolean", pa.bool_),
    ByteType: ("tinyint", "byte", pa.int8),
    ShortType: ("smallint", "short", pa.int16),
    IntegerType: ("int", "integer", pa.int32),
    LongType: ("bigint", "long", pa.int64),
    FloatType: ("float", "float", pa.float32),
    DoubleType: ("double", "double", pa.float64),
    StringType: ("string", "string", pa.string),
    BinaryType: ("binary", "binary", pa.binary),
    DateType: ("date", "date", pa.date32),
    TimestampType: ("timestamp", "timestamp", lambda: pa.timestamp("us", "UTC")),
    TimestampNTZType: ("timestamp_ntz", "timestamp_ntz", lambda: pa.timestamp("us")),
    DayTimeIntervalType: ("interval day to second", "interval day to second", lambda: pa.duration("us")),
}


@dataclass(frozen=True)
class OtherType(DataType):
    """A type of Spark's that no body is decoded to, by its name."""

    name: str

    def simpleString(self) -> str:
        """Return the name."""
        return self.name

    json_value = simpleString

    def arrow(self) -> pa.DataType:
        """Raise ConfigError."""
        raise ConfigError(f"decodeSchema: bodies are not decoded to {self.name}: give another type")


@dataclass(frozen=True)
class DecimalType(DataType):
    """Decimals of `precision` digits, `scale` of them behind the point."""

    precision: int = 10
    scale: int = 0

    def simpleString(self) -> str:
        """Return the type as SQL writes it."""
        return f"decimal({self.precision},{self.scale})"

    json_value = simpleString

    def arrow(self) -> pa.DataType:
        """Return Arrow's type."""
        return pa.decimal128(self.precision, self.scale)


@dataclass(frozen=True)
class ArrayType(DataType):
    """Lists."""

    elementType: DataType
    containsNull: bool = True

    def simpleString(self) -> str:
        """Return the type as SQL writes it."""
        return f"array<{self.elementType.simpleString()}>"

    def json_value(self) -> Any:
        """Return the type as a value of JSON."""
        return {"type": "array", "elementType": self.elementType.json_value(), "containsNull": self.containsNull}

    def arrow(self) -> pa.DataType:
        """Return Arrow's type, whose parts Spark names."""
        return pa.list_(pa.field("element", self.elementType.arrow(), self.containsNull))


@dataclass(frozen=True)
class MapType(DataType):
    """Tables of values by keys."""

    keyType: DataType
    valueType: DataType
    valueContainsNull: bool = True

    def simpleString(self) -> str:
        """Return the type as SQL writes it."""
        return f"map<{self.keyType.simpleString()},{self.valueType.simpleString()}>"

    def json_value(self) -> Any:
        """Return the type as a value of JSON."""
        parts = {"keyType": self.keyType.json_value(), "valueType": self.valueType.json_value()}
        return {"type": "map", **parts, "valueContainsNull": self.valueContainsNull}

    def arrow(self) -> pa.DataType:
        """Return Arrow's type, whose parts Spark names."""
        value = pa.field("value", self.valueType.arrow(), self.valueContainsNull)
        return pa.map_(pa.field("key", self.keyType.arrow(), nullable=False), value)


@dataclass(frozen=True)
class StructField:
    """A named part of a StructType."""

    name: str
    dataType: DataType
    nullable: bool = True


@dataclass(frozen=True)
class StructType(DataType):
    """Rows of named fields."""

    fields: list[StructField]

    def simpleString(self) -> str:
        """Return the type as SQL writes it."""
        return f"struct<{','.join(f'{field.name}:{field.dataType.simpleString()}' for field in self.fields)}>"

    def json_value(self) -> Any:
        """Return the type as a value of JSON."""
        fields = [
            {"name": one.name, "type": one.dataType.json_value(), "nullable": one.nullable, "metadata": {}}
            for one in self.fields
        ]
        return {"type": "struct", "fields": fields}

    def arrow(self) -> pa.DataType:
        """Return Arrow's type."""
        return pa.struct([pa.field(one.name, one.dataType.arrow(), one.nullable) for one in self.fields])


_OF_JSON: dict[str, DataType] = {words[1]: kind() for kind, words in _WORDS.items()} | {"decimal": DecimalType()}
_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(-?\d+)\s*\)")

_OTHERS = re.compile(r"string collate .+|(void|variant|null|time|interval|char|varchar|geometry|geography)\b.*")


def of_json(value: Any) -> DataType:
    """Return the type that a value of JSON describes, as Spark writes it. Raises ValueError, KeyError, TypeError."""
    if isinstance(value, str):
        if digits := _DECIMAL.fullmatch(value):
            return DecimalType(int(digits[1]), int(digits[2]))
        if found := _OF_JSON.get(value):
            return found
        if not _OTHERS.fullmatch(value):
            raise ValueError(f"{value!r} is no type")
        return StringType() if value.startswith("string ") else OtherType(value)
    match value["type"]:
        case "array":
            return ArrayType(of_json(value["elementType"]), value["containsNull"])
        case "map":
            return MapType(of_json(value["keyType"]), of_json(value["valueType"]), value["valueContainsNull"])
        case "struct":
            fields = [
                StructField(one["name"], of_json(one["type"]), one.get("nullable", True)) for one in value["fields"]
            ]
            return StructType(fields)
        case "udt":
            return OtherType("a type of the user's own")
    raise ValueError(f"{value['type']!r} is no type")
