"""Bodies decoded by Spark, rows/s: decode(df, …) beside Spark's from_json over the same JSON, in one run.

`python -m bench.spark_decode --rows 400000`: orders of three fields as JSON and Avro, from a cached table on local[2];
the best of three. Spark's from_avro is not beside it: its jar is missing for some Sparks.
"""

from __future__ import annotations

import argparse
import json
import time
from io import BytesIO
from typing import Any

import fastavro
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.spark_read import session
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


def rate(frame: DataFrame, rows: int) -> float:
    """Rows per second, the best of three."""
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        seconds.append(time.perf_counter() - started)
    return rows / min(seconds)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=400_000)
    rows = max(DISTINCT, parser.parse_args().rows // DISTINCT * DISTINCT)
    orders = [{"id": i, "fruit": "apple", "price": i / 4} for i in range(DISTINCT)]
    with session() as spark:
        texts = table(spark, [json.dumps(order).encode() for order in orders], rows)
        raw = rate(texts.select(F.from_json(F.col("body").cast("string"), DDL)), rows)
        print(f"Spark's from_json           {raw:12,.0f} rows/s")
        ours = rate(decode(texts, "json", decodeSchema=DDL), rows)
        print(f"decode(df, 'json')          {ours:12,.0f} rows/s  {ours / raw:.2f} of from_json")
        ours = rate(decode(table(spark, list(map(avro, orders)), rows), "avro", decodeSchema=json.dumps(SCHEMA)), rows)
        print(f"decode(df, 'avro')          {ours:12,.0f} rows/s  {ours / raw:.2f} of from_json")


if __name__ == "__main__":
    main()
