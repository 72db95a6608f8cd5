"""The schemas of rows in Spark: of what a read gives, and of what a write takes. Rule: the columns of a read have the
names and types of `arrow.message_columns`.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DataType, StructField, StructType

from rocketspark.arrow.message_columns import schema_of
from rocketspark.errors import ConfigError
from rocketspark.tables.decode import sql_types
from rocketspark.tables.read_columns import REPEATED, check_names

# The columns of a read without a schema.
READ_SCHEMA: StructType = from_arrow_schema(schema_of())

# Columns that a write understands, with the Spark types each may have.
WRITE_TYPES: dict[str, tuple[str, ...]] = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "tag": ("string",),
    "keys": ("array<string>", "string"),
    "properties": ("map<string,string>",),
    "shardingKey": ("string",),
    "broker": ("string",),
    "queueId": ("int", "bigint", "smallint", "tinyint"),
    "delayLevel": ("int", "bigint", "smallint", "tinyint"),
    "delayMs": ("bigint", "int"),
    "deliverTime": ("timestamp",),
    "flag": ("int",),
}

_READ_TYPES = {field.name: field.dataType.simpleString() for field in READ_SCHEMA.fields}
_READ_TYPES |= {name: _READ_TYPES[column] for name, column in REPEATED.items()}
# Columns of a read that no write takes: it leaves them out, so that rows of a read can be written as they are.
READ_ONLY = frozenset(_READ_TYPES) - WRITE_TYPES.keys()


def read_schema(columns: Sequence[str] = ()) -> StructType:
    """Return the schema of a read: these columns in this order, or all if none is named. Raises ConfigError for a name
    that is unknown or repeated.
    """
    if not columns:
        return READ_SCHEMA
    check_names(columns)
    return StructType([StructField(name, READ_SCHEMA[REPEATED.get(name, name)].dataType) for name in columns])


def wanted_columns(schema: StructType, named: Sequence[str] = ()) -> list[str]:
    """Return the names of a read's columns, in the order of its schema. Raises ConfigError for a column that no read
    has, or that has another type.

    `named`: the names that option columns lists; the schema must not have others.
    """
    known = _READ_TYPES
    if named and read_schema(named).fieldNames() != schema.fieldNames():
        raise ConfigError(
            f"option columns names {', '.join(named)}, and the schema {', '.join(schema.fieldNames())}: leave one of"
            " them out"
        )
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if field.name not in known:
            listing = ", ".join(f"{name} {kind}" for name, kind in known.items())
            raise ConfigError(f"schema: there is no column {field.name!r}; there are: {listing}")
        if kind != known[field.name]:
            raise ConfigError(
                f"schema: column {field.name!r} is {known[field.name]}, not {kind}: give it that type, and cast it in"
                " the query"
            )
    names: list[str] = schema.fieldNames()
    if not names:
        raise ConfigError("schema: it has no column; name one, or leave the schema out for all")
    if len(set(names)) != len(names):
        raise ConfigError(f"schema: a column stands there twice: {', '.join(names)}")
    return names


def check_written(schema: StructType, topic: str | None, compared: str = "body") -> None:
    """Raise ConfigError unless rows of this schema can be sent. `topic`: the option, if given; `compared`: the column
    by which repeated batches are compared.
    """
    kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
    listing = ", ".join(f"{name} {' or '.join(types)}" for name, types in WRITE_TYPES.items())
    if "body" not in kinds:
        raise ConfigError(f"the rows have no column 'body': name it so; columns that are understood: {listing}")
    if topic is None and "topic" not in kinds:
        raise ConfigError('option topic is missing: .option("topic", "name"), or give the rows a column topic')
    if compared != "body" and kinds.get(compared) not in ("binary", "string"):
        raise ConfigError(f"option comparedColumn is {compared!r}: a column of the rows, binary or string, is needed")
    for name, kind in kinds.items():
        if name in READ_ONLY or (name == compared and name not in WRITE_TYPES):
            continue
        if name not in WRITE_TYPES:
            raise ConfigError(f"column {name!r} is not understood: drop it; columns that are: {listing}")
        if kind not in WRITE_TYPES[name]:
            raise ConfigError(f"column {name!r} is {kind}, not {' or '.join(WRITE_TYPES[name])}: cast it")


def sql_type(kind: DataType) -> sql_types.DataType:
    """Return one of Spark's types as decoding has it."""
    return sql_types.of_json(kind.jsonValue())


def quoted(kind: DataType) -> str:
    """Return a type in the form that Spark's SQL reads, with the names of its fields in backquotes."""
    # Not with the module: each stream starts a process that imports it.
    from rocketspark.tables.decode import json_bodies

    return json_bodies.quoted(sql_type(kind))
