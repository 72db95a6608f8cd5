"""The columns as Spark types: what a read gives, what a write takes. Rule: `arrow.columns` names those of a read."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from rocketspark.arrow.columns import schema_of
from rocketspark.errors import ConfigError

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


def wanted_columns(schema: StructType) -> list[str]:
    """Return names of the columns a user's schema asks for, in its order. Raises ConfigError for one that cannot be
    had.
    """
    known = {field.name: field.dataType.simpleString() for field in READ_SCHEMA.fields}
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


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that PySpark expects of a read's batches."""
    found: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    return found


def check_written(schema: StructType, topic: str | None) -> None:
    """Raise ConfigError unless rows of this schema can be sent. `topic`: the option, if given."""
    kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
    listing = ", ".join(f"{name} {' or '.join(types)}" for name, types in WRITE_TYPES.items())
    if "body" not in kinds:
        raise ConfigError(f"the rows have no column 'body': name it so; columns that are understood: {listing}")
    if topic is None and "topic" not in kinds:
        raise ConfigError('option topic is missing: .option("topic", "name"), or give the rows a column topic')
    read_only = {field.name for field in READ_SCHEMA.fields} - WRITE_TYPES.keys()
    for name, kind in kinds.items():
        if name in read_only:
            continue  # Rows of a read can be written as they are.
        if name not in WRITE_TYPES:
            raise ConfigError(f"column {name!r} is not understood: drop it; columns that are: {listing}")
        if kind not in WRITE_TYPES[name]:
            raise ConfigError(f"column {name!r} is {kind}, not {' or '.join(WRITE_TYPES[name])}: cast it")
