"""decode(df, …): a frame with its bodies decoded. Rule: the same columns and options as with the option `decode`."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rocketspark.errors import ConfigError
from rocketspark.spark.python_workers import plain_errors
from rocketspark.spark.spark_features import arrow_schema
from rocketspark.tables.decode import json_bodies
from rocketspark.tables.decode.bodies import PLACE, Decoded, resolve
from rocketspark.tables.decode.options import CONFLUENT, DROPMALFORMED, FAILFAST, JSON, JSON_STARTS, DecodeOptions
from rocketspark.tables.options import parse_decode_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("rocketspark.spark")

_PARSED, _VALUE, _ERROR = "_parsed_by_decode", "_value_of_decode", "_error_of_decode"


def decode(frame: DataFrame, format: str, *, column: str = "body", into: str = "value", **options: Any) -> DataFrame:
    """Return the rows with two columns more: the decoded body, and why one could not be decoded.

    Args:
        format: json, avro or protobuf.
        column: binary or string; a null in it is a null value.
        into: name of the decoded column.
        options: as those of a read (docs/use/decode.md): decodeSchema, schemaRegistry, decodeMode …

    JSON is decoded by Spark's from_json, the others in Python workers. A stream's JSON needs decodeSchema.
    Raises ConfigError, and what the registry says.
    """
    given = {"decode": format, "decodeInto": into, **{name: str(value) for name, value in options.items()}}
    parsed = parse_decode_options(given)
    if parsed.error_topic:
        raise ConfigError("option decodeErrorTopic is one of reads: write bad_rows(df) to a topic instead")
    _check_columns(frame, column, parsed)
    if parsed.registry is not None and not parsed.subject and parsed.format == JSON and not parsed.schema:
        raise ConfigError("option schemaRegistrySubject is missing: whose newest schema gives the columns")
    resolved = resolve(parsed)
    # Names of its own: Spark looks columns up by theirs, which fails for one with a dot and for two of one name.
    own, at = frame.columns, frame.columns.index(column)
    frame = frame.toDF(*(f"c{number}" for number in range(len(own))))
    if resolved.format == JSON and not resolved.schema:
        ddl = infer_schema(frame, column=f"c{at}", rows=resolved.sample_rows, wire=resolved.wire)
        log.warning("decode: inferred from a sample: decodeSchema %s", ddl)
        resolved = dataclasses.replace(resolved, schema=json_bodies.ddl_of(ddl))
    make = _by_spark if resolved.format == JSON else _by_python
    return make(frame, resolved, own, at).toDF(*own, resolved.into, resolved.error_column)


def infer_schema(frame: DataFrame, *, column: str = "body", rows: int = 1000, wire: str = "plain") -> str:
    """Return the schema, as DDL, of the JSON bodies in the first `rows` rows of a batch frame. Raises ConfigError.

    `wire`: "confluent" or "rocketmq" for bodies in a registry's wire format.
    """
    from pyspark.sql import functions as F

    if frame.isStreaming:
        raise ConfigError(
            "option decodeSchema is missing: a stream cannot be sampled; infer it from a batch (infer_schema), or use"
            " option decode of the read"
        )
    bodies = [
        row[0] for row in frame.select(F.col(f"`{column}`").cast("binary")).limit(rows).collect() if row[0] is not None
    ]
    return json_bodies.infer([bytes(body)[JSON_STARTS[wire] :] for body in bodies])


def _check_columns(frame: DataFrame, column: str, options: DecodeOptions) -> None:
    if column not in frame.columns:
        raise ConfigError(f"decode: there is no column {column!r}; there are: {', '.join(frame.columns)}")
    kind = frame.schema[column].dataType.simpleString()
    if kind not in ("binary", "string"):
        raise ConfigError(f"decode: column {column!r} is {kind}; binary or string is needed")
    there = {name.lower() for name in frame.columns}
    for name, option in ((options.into, "decodeInto"), (options.error_column, "columnNameOfDecodeError")):
        if name.lower() in there:
            raise ConfigError(f"decode: there is a column {name!r} already: choose another name by {option}")


def _by_spark(frame: DataFrame, options: DecodeOptions, own: list[str], at: int) -> DataFrame:
    """Decode JSON by Spark. The mark of corrupt records is a field of the value, which is taken out again."""
    from pyspark.sql import functions as F

    body = F.col(f"c{at}").cast("binary")
    text = body
    wrong = F.lit(None).cast("string")
    if start := JSON_STARTS[options.wire]:
        text = F.substring(body, start + 1, 2**31 - 1)
        first = F.substring(body, 1, 1)
        right = first == F.lit(b"\0") if options.wire == CONFLUENT else ~first.isin(F.lit(b"{"), F.lit(b"["))
        framed = (F.length(body) >= start) & right
        wrong = F.when(~framed, F.lit("the body is not in the wire format of a schema registry"))
    text = text.cast("string")
    # from_json would put another character for what is none.
    wrong = F.coalesce(wrong, F.when(~F.is_valid_utf8(text), F.lit("the body is no JSON: it is no UTF-8 text")))
    corrupt = "_corrupt_record_of_decode"
    kind = options.schema
    is_struct = kind.lower().startswith("struct")
    if is_struct:
        inside = kind[kind.index("<") + 1 : -1]
        kind = f"struct<{inside}{',' if inside.strip() else ''}{corrupt}:string>"
        once = F.from_json(text, kind, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": corrupt})
        parsed = F.col(_PARSED)
        bad = parsed[corrupt].isNotNull() | parsed.isNull() | (F.length(F.trim(text)) == 0)
        shown = parsed.dropFields(corrupt)
    else:
        once = F.from_json(text, kind, {"mode": "PERMISSIVE"})
        parsed = F.col(_PARSED)
        bad, shown = parsed.isNull(), parsed
    reason = F.when(bad, F.lit("the body is no JSON that fits the schema"))
    error = F.when(body.isNull(), F.lit(None).cast("string")).otherwise(F.coalesce(wrong, reason))
    if options.mode == FAILFAST:
        error = F.when(
            error.isNotNull(),
            F.raise_error(
                F.concat(F.lit("a body cannot be decoded: "), error, F.lit("; decodeMode PERMISSIVE keeps it"))
            ),
        ).cast("string")
        # In the value too: Spark leaves out columns that nothing uses.
        shown = F.when(error.isNull(), shown)
    # A projection of its own, which is not merged with the next: each body is parsed once.
    found = frame.withColumn(_PARSED, once).withColumn(_ERROR, error)
    found = found.withColumn(_VALUE, F.when(F.col(_ERROR).isNull() & body.isNotNull(), shown))
    if options.mode == DROPMALFORMED:
        found = found.where(F.col(_ERROR).isNull())
    return found.select(*frame.columns, _VALUE, _ERROR)


def _by_python(frame: DataFrame, options: DecodeOptions, own: list[str], at: int) -> DataFrame:
    import pyspark.sql.types as t

    kind = t._parse_datatype_json_string(options.value_type)
    added = [t.StructField(_VALUE, kind), t.StructField(_ERROR, t.StringType())]
    schema = t.StructType([*frame.schema.fields, *added])
    return frame.mapInArrow(_decoding(options, own, at, arrow_schema(schema).names), schema)


def _decoding(
    options: DecodeOptions, own: list[str], at: int, names: list[str]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def decode_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with plain_errors():
            for batch in batches:
                place = {name: batch.column(own.index(name)) for name in PLACE if name in own}
                decoded = Decoded(options, batch.column(at), place)
                kept = [decoded.kept(one) for one in batch.columns]
                yield pa.RecordBatch.from_arrays([*kept, *decoded.columns()], names=names)

    return decode_batches
