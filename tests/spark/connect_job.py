"""A client of Spark Connect, told what to do by one JSON argument: reads, writes and streams through the server."""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession
from tests.spark.scrapes import scrape_until

from rocketspark.spark.metrics import listen


def main() -> None:
    spec = json.loads(sys.argv[1])
    spark = SparkSession.builder.remote(spec["remote"]).getOrCreate()
    options = {"namesrv": spec["namesrv"]}
    rows = spark.read.format("rocketmq").options(topic=spec["source"], **options).load()
    told = {"bodies": sorted(bytes(row.body).decode() for row in rows.select("body").collect())}
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
