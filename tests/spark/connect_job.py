"""A client of Spark Connect, told what to do by one JSON argument: reads, writes and streams through the server."""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.scrapes import scrape_until

from rocketspark.spark import decode
from rocketspark.spark.metrics import listen


def values(frame: DataFrame) -> list[dict[str, Any]]:
    rows = frame.where("value IS NOT NULL").select("value.*").orderBy("id").collect()
    return [row.asDict() for row in rows]


def both(frame: DataFrame) -> list[Any]:
    return [values(frame), [row[0] for row in frame.where("value IS NULL").select("_decode_error").collect()]]


def decoded(spark: SparkSession, options: dict[str, str]) -> dict[str, Any]:
    """Orders in Avro by the option of a read and by the function, then as JSON with a schema and without."""
    by_option = spark.read.format("rocketmq").options(**options).load()
    plain = {name: value for name, value in options.items() if name in ("namesrv", "topic")}
    rows = spark.read.format("rocketmq").options(**plain).load().select("topic", "body")
    rest = {name: value for name, value in options.items() if name not in ("decode", *plain)}
    texts = by_option.where("value IS NOT NULL").select(F.to_json("value").alias("body"))
    return {
        "option": both(by_option),
        "function": both(decode(rows, "avro", schemaRegistrySubject=f"{options['topic']}-value", **rest)),
        "json": values(decode(texts, "json", decodeSchema="id INT, fruit STRING, price DOUBLE")),
        "inferred": values(decode(texts, "json")),
    }


def main() -> None:
    spec = json.loads(sys.argv[1])
    spark = SparkSession.builder.remote(spec["remote"]).getOrCreate()
    options = {"namesrv": spec["namesrv"]}
    rows = spark.read.format("rocketmq").options(topic=spec["source"], **options).load()
    told: dict[str, Any] = {"bodies": sorted(bytes(row.body).decode() for row in rows.select("body").collect())}
    told["decoded"] = decoded(spark, options | spec["decode"])
    rows.select("body", "tag").write.format("rocketmq").options(topic=spec["target"], **options).mode("append").save()
    listening = listen(spark, namesrv=spec["namesrv"], lag_interval_s=1)
    query = (
        spark.readStream.format("rocketmq")
        .options(topic=spec["target"], startingOffsets="earliest", **options)
        .load()
        .writeStream.format("rocketmq")
        .queryName("connect")
        .options(topic=spec["again"], checkpointLocation=spec["checkpoint"], **options)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = scrape_until(
        listening.url, lambda s: s.value("rocketspark_stream_ends_total", query="connect", outcome="stopped")
    )
    told["metrics"] = [
        found.value("rocketspark_stream_rows_total", query="connect"),
        found.value("rocketspark_stream_messages_total", query="connect", topic=spec["target"]),
        found.value("rocketspark_stream_starts_total", query="connect"),
        found.value("rocketspark_stream_running", query="connect"),
        sum(n for (name, _), n in found.items() if name == "rocketspark_stream_listener_errors_total"),
    ]
    listening.stop()
    try:
        spark.read.format("rocketmq").options(topic="none-such", **options).load().count()
    except Exception as e:
        text = str(e)
        told["error"] = text[text.index("RouteNotFound") :][:200] if "RouteNotFound" in text else text
    print(json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    main()
