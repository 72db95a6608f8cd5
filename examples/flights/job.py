"""The Spark job: a stream of flights to Parquet and delay statistics, then one summary message per carrier and month.

Every micro-batch writes only to its own `batch=…` folders and replaces what is there, so that a batch which Spark
runs again after a failure leaves the same files as if it had run once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from examples.flights.replay import Replayed
from examples.flights.source import FLIGHTS_TOPIC, SPARK_SCHEMA
from examples.flights.summaries import LATE_MINUTES, SUMMARIES_TOPIC

ROWS_PER_BATCH = 100_000


class FlightJob:
    """`flights_path`: Parquet by month; `delays_path`: delay statistics per carrier, origin and day."""

    def __init__(self, spark: SparkSession, namesrv: str, run: str, folder: Path) -> None:
        self._spark = spark
        self._namesrv = namesrv
        self._run = run
        self._checkpoint = str(folder / "checkpoint")
        self.flights_path = str(folder / "flights")
        self.delays_path = str(folder / "delays")

    def read_flights(self, replayed: Replayed, progress: Callable[[int], object]) -> None:
        """Stream what the topic holds now; `progress` is called with the rows read so far."""
        messages = (
            self._spark.readStream.format("rocketmq")
            .option("namesrv", self._namesrv)
            .option("topic", FLIGHTS_TOPIC)
            .option("startingOffsets", json.dumps(replayed.as_starting_offsets()))
            .option("maxMessagesPerTrigger", ROWS_PER_BATCH)
            .schema("body binary, properties map<string,string>, broker string, queueId int, queueOffset bigint")
            .load()
        )
        flights = (
            messages.where(F.col("properties")["run"] == self._run)
            .withColumn("flight", F.from_json(F.col("body").cast("string"), SPARK_SCHEMA))
            .select("flight.*", "broker", "queueId", "queueOffset")
        )
        query = (
            flights.writeStream.foreachBatch(self._write_batch)
            .option("checkpointLocation", self._checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        while not query.awaitTermination(1):
            progress(sum(p["numInputRows"] for p in query.recentProgress))
        progress(sum(p["numInputRows"] for p in query.recentProgress))

    def _write_batch(self, flights: DataFrame, batch_id: int) -> None:
        flights = flights.persist()
        try:
            _replace_batch(flights.repartition("month"), batch_id, self.flights_path, ["month"])
            by_day = flights.groupBy("carrier", "origin", "month", "day").agg(
                F.count("*").alias("flights"),
                F.count("dep_delay").alias("departed"),
                F.coalesce(F.sum("dep_delay"), F.lit(0)).alias("delay_minutes"),
                F.count_if(F.col("dep_delay") > LATE_MINUTES).alias("late"),
            )
            _replace_batch(by_day.coalesce(1), batch_id, self.delays_path, [])
        finally:
            flights.unpersist()

    def publish_summaries(self) -> int:
        """Send one message per carrier and month to the topic of the summaries; returns how many."""
        summaries = (
            self._spark.read.parquet(self.delays_path)
            .groupBy("carrier", "month")
            .agg(*(F.sum(name).alias(name) for name in ("flights", "departed", "delay_minutes", "late")))
            .persist()
        )
        messages = summaries.select(
            F.to_json(F.struct("*")).alias("body"),
            F.col("carrier").alias("tag"),
            F.format_string("%s-%02d", "carrier", "month").alias("keys"),
            F.create_map(F.lit("run"), F.lit(self._run)).alias("properties"),
        )
        messages.write.format("rocketmq").mode("append").option("namesrv", self._namesrv).option(
            "topic", SUMMARIES_TOPIC
        ).save()
        return summaries.count()


def _replace_batch(rows: DataFrame, batch_id: int, path: str, partitions: list[str]) -> None:
    # With partitionOverwriteMode=dynamic only the folders that these rows fall into are replaced.
    (
        rows.withColumn("batch", F.lit(batch_id))
        .write.mode("overwrite")
        .option("partitionOverwriteMode", "dynamic")
        .partitionBy(*partitions, "batch")
        .parquet(path)
    )
