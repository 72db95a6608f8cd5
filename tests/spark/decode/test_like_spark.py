"""Every type of Spark at its limits: what Spark writes as JSON, and Avro of the same values, decodes to equal values;
and what JSON means is what from_json says. Values are drawn from a fixed seed, and compared in Spark, in one job.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
import json
import random
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pyspark.sql.types as t
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rocketspark.tables.decode.bodies import BodyDecoder, resolve
from rocketspark.tables.options import parse_decode_options

pytestmark = pytest.mark.shows(
    "every type of Spark, JSON and Avro at its limits against `to_json`, `from_json` and Spark's own equality",
)

ROWS = 300
UTC = datetime.UTC
FIRST, LAST = datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31, 23, 59, 59, 999999)
TIMES = [FIRST, LAST, datetime.datetime(1969, 12, 31, 23, 59, 59, 999999), datetime.datetime(1582, 10, 10, 0, 0, 0, 1)]
DOUBLES = [0.0, -0.0, 1.7976931348623157e308, 5e-324, 0.1, 9007199254740993.0, *map(float, ("nan", "inf", "-inf"))]
FLOATS = [3.4028234663852886e38, 1.401298464324817e-45, 16777216.0, *map(float, ("nan", "inf", "-inf"))]
TEXTS = ["", " ", "\0", 'é\u2028\U0001f600"\\/', "null", "1e5", "x" * 70_000]


def whole(bits: int) -> tuple[list[Any], Callable[[random.Random], Any]]:
    return [-(1 << bits), (1 << bits) - 1, 0], lambda rng: rng.randrange(-(1 << bits), 1 << bits)


def exact(precision: int, scale: int) -> tuple[list[Any], Callable[[random.Random], Any]]:
    most = 10**precision - 1
    limits = [Decimal(f"{number}e-{scale}") for number in (most, -most, 1, 0)]
    return limits, lambda rng: Decimal(f"{rng.randrange(-most, most)}e-{scale}")


def a_time(rng: random.Random) -> datetime.datetime:
    return FIRST + datetime.timedelta(microseconds=rng.randrange((LAST - FIRST) // datetime.timedelta(microseconds=1)))


def a_text(rng: random.Random) -> str:
    return "".join(
        chr(rng.choice([rng.randrange(128), rng.randrange(0xE000, 0x10000)])) for _ in range(rng.randrange(9))
    )


# Of each type: its limits, one value at random, and the Avro that it is read from.
KINDS: dict[str, tuple[list[Any], Callable[[random.Random], Any], Any]] = {
    "boolean": ([True, False], lambda rng: rng.random() < 0.5, "boolean"),
    "tinyint": (*whole(7), None),
    "smallint": (*whole(15), None),
    "int": (*whole(31), "int"),
    "bigint": (*whole(63), "long"),
    "float": (FLOATS, lambda rng: struct.unpack("f", rng.randbytes(4))[0], "float"),
    "double": (DOUBLES, lambda rng: struct.unpack("d", rng.randbytes(8))[0], "double"),
    "string": (TEXTS, a_text, "string"),
    "binary": ([b"", b"\0\xff", b"\xc3\x28"], lambda rng: rng.randbytes(rng.randrange(9)), "bytes"),
    "date": (
        [FIRST.date(), LAST.date(), datetime.date(1582, 10, 10)],
        lambda rng: a_time(rng).date(),
        {"type": "int", "logicalType": "date"},
    ),
    "timestamp": (
        [time.replace(tzinfo=UTC) for time in TIMES],
        lambda rng: a_time(rng).replace(tzinfo=UTC),
        {"type": "long", "logicalType": "timestamp-micros"},
    ),
    "timestamp_ntz": (TIMES, a_time, {"type": "long", "logicalType": "local-timestamp-micros"}),
    **{
        f"decimal({p},{s})": (*exact(p, s), {"type": "bytes", "logicalType": "decimal", "precision": p, "scale": s})
        for p, s in ((38, 0), (38, 38), (38, 18), (18, 2), (1, 0), (1, 1))
    },
    "array<bigint>": (
        [[], [None], [2**63 - 1, None]],
        lambda rng: [rng.randrange(99) for _ in range(rng.randrange(3))],
        {"type": "array", "items": ["null", "long"]},
    ),
    "map<string,double>": (
        [{}, {"": None}, {"x": float("inf")}],
        lambda rng: {a_text(rng): rng.random()},
        {"type": "map", "values": ["null", "double"]},
    ),
    "struct<a:int,b:string>": (
        [(None, None), (2**31 - 1, "")],
        lambda rng: (None, a_text(rng)),
        {
            "type": "record",
            "name": "S",
            "fields": [{"name": "a", "type": ["null", "int"]}, {"name": "b", "type": ["null", "string"]}],
        },
    ),
}
COLUMNS = {f"c{i}": kind for i, kind in enumerate(KINDS)}
DDL = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())


def values_of(kind: str, rng: random.Random) -> list[Any]:
    limits, one, _ = KINDS[kind]
    return [None, *limits, *(one(rng) for _ in range(ROWS - 1 - len(limits)))]


def decoded(spark: SparkSession, bodies: list[bytes], kind: t.DataType, **options: str) -> tuple[DataFrame, list[Any]]:
    """What we make of bodies, as a frame of numbers and values, and the reasons of bad ones."""
    resolved = dataclasses.replace(resolve(parse_decode_options(options)), value_type=kind.json())
    found, reasons = BodyDecoder(resolved).decode(bodies)
    table = pa.table({"n": list(range(len(bodies))), "value": found})
    return spark.createDataFrame(table, t.StructType().add("n", t.LongType()).add("value", kind)), reasons


def same(one: Any, other: Any, kind: str) -> Any:
    """Whether two columns are equal; maps have no order in Spark."""
    if kind.startswith("map"):
        one, other = F.map_entries(one), F.map_entries(other)
    return one.eqNullSafe(other)


def different(rows: DataFrame, found: DataFrame, columns: list[str]) -> list[Any]:
    """The rows in which a column is not what it was: the number, and the columns."""
    both = rows.join(found, "n")
    equal = {name: same(F.col(name), F.col(f"value.{name}"), COLUMNS[name]) for name in columns}
    wrong = F.array_compact(F.array(*(F.when(~one, F.lit(COLUMNS[name])) for name, one in equal.items())))
    return both.select("n", wrong.alias("wrong")).where(F.size("wrong") > 0).collect()


def test_what_spark_writes_is_decoded_to_equal_values(spark: SparkSession) -> None:
    rng = random.Random(35)
    columns = [values_of(kind, rng) for kind in KINDS]
    rows = spark.createDataFrame(list(enumerate(zip(*columns, strict=True))), f"n bigint, v struct<{DDL}>")
    rows = rows.select("n", "v.*").cache()
    fine = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"}
    written = rows.select("n", F.to_json(F.struct(*COLUMNS), fine).alias("j")).orderBy("n").collect()
    kind = t.StructType(rows.schema.fields[1:])
    found, reasons = decoded(spark, [row.j.encode() for row in written], kind, decode="json", decodeSchema=DDL)
    assert [reason for reason in reasons if reason] == []
    assert different(rows, found, list(COLUMNS)) == []

    with_avro = [name for name, kind in COLUMNS.items() if KINDS[kind][2] is not None]
    fields = [{"name": name, "type": ["null", KINDS[COLUMNS[name]][2]]} for name in with_avro]
    schema = {"type": "record", "name": "R", "fields": fields}
    bodies = []
    for row in zip(*columns, strict=True):
        out = io.BytesIO()
        value = dict(zip(COLUMNS, row, strict=True))
        record = {name: as_avro(value[name]) for name in with_avro}
        fastavro.schemaless_writer(out, fastavro.parse_schema(schema), record)
        bodies.append(out.getvalue())
    avro_kind = t.StructType([kind[name] for name in with_avro])
    found, reasons = decoded(spark, bodies, avro_kind, decode="avro", decodeSchema=json.dumps(schema))
    assert [reason for reason in reasons if reason] == []
    assert different(rows, found, with_avro) == []


def as_avro(value: Any) -> Any:
    return {"a": value[0], "b": value[1]} if isinstance(value, tuple) else value


def number_token(rng: random.Random) -> str:
    digits = str(rng.randrange(10 ** rng.randrange(1, 40)))
    point = f".{rng.randrange(10**6)}" if rng.random() < 0.5 else ""
    power = f"{rng.choice('eE')}{rng.choice(['', '+', '-'])}{rng.randrange(330)}" if rng.random() < 0.3 else ""
    return f"{rng.choice(['', '-'])}{digits}{point}{power}"


def time_token(rng: random.Random) -> str:
    fraction = "." + "".join(rng.choice("0459") for _ in range(rng.randrange(1, 10))) if rng.random() < 0.8 else ""
    zone = rng.choice(["Z", "+05:30", "-12:00", "+14:00", ""])
    return f'"{a_time(rng).replace(microsecond=0).isoformat()}{fraction}{zone}"'


TOKENS = [
    *("true", "false", "null", "0", "-0", "1.0", "1.5", "0.005", "1.005", "-0.005", "99999999.995", "1e22"),
    *(str(sign * (1 << bits) + more) for bits in (7, 15, 31, 63) for sign in (1, -1) for more in (-1, 0, 1)),
    *('"NaN"', '"Infinity"', '"-Infinity"', '"1.5"', '"abc"', '"AA=="', '"/w=="', '"2020-02-29"', '"2020-02-30"'),
    *('"9999-12-31T23:59:59.9999999Z"', '"2019-12-31T23:59:59.9999995Z"', "[]", "{}", "[1]", '{"a":1}'),
]
# What Spark's from_json makes of the first is wrong, or nothing at all.
SPARK_IS_WRONG = {("tinyint", "128")}


def test_json_means_what_from_json_says(spark: SparkSession) -> None:
    """Wherever both give a value it is the same; text of a number is its text, where Spark's went through a double."""
    rng = random.Random(36)
    tokens = TOKENS + [number_token(rng) for _ in range(120)] + [time_token(rng) for _ in range(120)]
    bodies = [f'{{"v":{token}}}' for token in tokens]
    rows = spark.createDataFrame(list(enumerate(bodies)), "n bigint, j string").cache()
    option = {"columnNameOfCorruptRecord": "bad"}
    joined = rows
    bad: dict[str, list[Any]] = {}
    for name, kind in COLUMNS.items():
        theirs = F.from_json("j", f"v {kind}, bad string", option)
        joined = joined.withColumn(name, theirs)
        one = joined.schema[name].dataType.fields[0]
        found, bad[kind] = decoded(
            spark, [body.encode() for body in bodies], t.StructType([one]), decode="json", decodeSchema=f"v {kind}"
        )
        joined = joined.join(found.withColumnRenamed("value", f"our_{name}"), "n")
    differs = [
        F.when(
            F.col(f"{name}.bad").isNull() & ~same(F.col(f"{name}.v"), F.col(f"our_{name}.v"), kind),
            F.lit(kind),
        )
        for name, kind in COLUMNS.items()
    ]
    found = joined.select("n", F.array_compact(F.array(*differs)).alias("kinds")).collect()
    wrong = {(kind, tokens[row.n]) for row in found for kind in row.kinds if bad[kind][row.n] is None}
    assert {one for one in wrong if "string" not in one[0]} <= SPARK_IS_WRONG
    assert all(token[0] in "-0123456789" for kind, token in wrong if kind == "string")
    texts = dict(zip(tokens, BodyDecoder(_text()).decode([b.encode() for b in bodies])[0].to_pylist(), strict=True))
    assert {token: texts[token]["v"] for kind, token in wrong if kind == "string"} == {
        token: token for kind, token in wrong if kind == "string"
    }


def _text() -> Any:
    resolved = resolve(parse_decode_options({"decode": "json", "decodeSchema": "v string"}))
    return dataclasses.replace(resolved, value_type=t.StructType().add("v", "string").json())
