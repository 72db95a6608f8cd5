"""Bodies decoded by Spark, rows/s: decode(df, …) beside Spark's from_json over the same JSON, in one run.

`python -m bench.spark_decode --rows 400000`: orders of three fields as JSON and Avro, from a cached table on local[2];
the best of three. `--from-avro VERSION` fetches spark-avro of that version and puts Spark's from_avro beside it: there
is one for some Sparks only. Processor time tells more on a machine with other work.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from io import BytesIO
from typing import Any, NamedTuple

import fastavro
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from bench.peers import cpu_seconds
from bench.spark_read import processor_seconds, session
from rocketspark.spark import decode

DDL = "id INT, fruit STRING, price DOUBLE"
FIELDS = [{"name": "id", "type": "int"}, {"name": "fruit", "type": "string"}, {"name": "price", "type": "double"}]
SCHEMA = {"type": "record", "name": "Order", "fields": FIELDS}
DISTINCT = 1000


def avro(order: dict[str, Any]) -> bytes:
    """An order in Avro."""
    out = BytesIO()
    fastavro.schemaless_writer(out, SCHEMA, order)
    return out.getvalue()


def table(spark: SparkSession, bodies: list[bytes], rows: int) -> DataFrame:
    """A cached table of so many rows."""
    few = spark.createDataFrame([(bytearray(body),) for body in bodies], "body binary")
    many = few.crossJoin(spark.range(rows // len(bodies)).repartition(2)).select("body").cache()
    many.count()
    return many


class Cost(NamedTuple):
    """The best of three: rows per second by the clock, and processor time of JVM and workers a row."""

    rate: float
    cpu_us: float


def cost(frame: DataFrame, rows: int) -> Cost:
    """Run a frame's jobs and measure."""
    seconds, used = [], []
    for _ in range(3):
        before = sum(processor_seconds(os.getpid()).values()) - cpu_seconds(os.getpid())
        started = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        seconds.append(time.perf_counter() - started)
        used.append(sum(processor_seconds(os.getpid()).values()) - cpu_seconds(os.getpid()) - before)
    return Cost(rows / min(seconds), min(used) / rows * 1e6)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--from-avro", default="", metavar="VERSION")
    given = parser.parse_args()
    rows = max(DISTINCT, given.rows // DISTINCT * DISTINCT)
    jar = f"org.apache.spark:spark-avro_2.13:{given.from_avro}" if given.from_avro else ""
    orders = [{"id": i, "fruit": "apple", "price": i / 4} for i in range(DISTINCT)]
    with session(jar) as spark:
        texts = table(spark, [json.dumps(order).encode() for order in orders], rows)
        bodies = table(spark, list(map(avro, orders)), rows)
        raw = cost(texts.select(F.from_json(F.col("body").cast("string"), DDL)), rows)
        shown("Spark's from_json", raw, raw)
        shown("decode(df, 'json')", cost(decode(texts, "json", decodeSchema=DDL), rows), raw)
        shown("decode(df, 'avro')", cost(decode(bodies, "avro", decodeSchema=json.dumps(SCHEMA)), rows), raw)
        if jar:
            parsed = bodies.select(from_avro("body", json.dumps(SCHEMA), {"mode": "PERMISSIVE"}))
            shown("Spark's from_avro", cost(parsed, rows), raw)


def shown(name: str, found: Cost, raw: Cost) -> None:
    """Print a line."""
    of_raw = found.rate / raw.rate
    print(f"{name:20}{found.rate:12,.0f} rows/s  {of_raw:.2f} of from_json  {found.cpu_us:6.2f} us of processor a row")


if __name__ == "__main__":
    main()
