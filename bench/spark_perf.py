"""One Spark session that does what it is asked, line by line: python -m bench.spark_perf rocketmq|kafka.

Each line on standard input is a job in JSON, answered by a line of JSON with `seconds` and what the job found. Nothing
but PySpark and the standard library is imported: Kafka's connector needs a PySpark of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

ROCKETMQ, KAFKA = "rocketmq", "kafka"
# What both have; Kafka's rows have a key too, which is null here and not asked for.
SCHEMA = "topic string, queueId int, queueOffset long, storeTime timestamp, body binary"
AS_OURS = ("topic", "partition as queueId", "offset as queueOffset", "timestamp as storeTime", "value as body")
CORES = 2
JAR_FOLDER = "BENCH_CONNECTOR_JARS"
STREAM_S_MAX = 300.0

Job = dict[str, Any]
Result = dict[str, Any]


def session(warehouse: str) -> Any:
    """A session on two cores; the connector's jars, if there are some, on its class path."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master(f"local[{CORES}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", CORES)
        .config("spark.sql.warehouse.dir", warehouse)
    )
    if jars := os.environ.get(JAR_FOLDER):
        builder = builder.config("spark.driver.extraClassPath", f"{jars}/*")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


class Source:
    """Reads and writes of one side. `address`: NameServer or bootstrap server; `options`: more of the connector's."""

    def __init__(self, spark: Any, side: str, job: Job) -> None:
        self._spark = spark
        self._side = side
        self._address = job.get("address", "")
        self._topic = job["topic"]
        self._options = job.get("options", {})

    def _opened(self, reader: Any, *, streaming: bool = False) -> Any:
        if self._side == KAFKA:
            reader = reader.format("kafka").option("kafka.bootstrap.servers", self._address)
            reader = reader.option("subscribe", self._topic).option("startingOffsets", "earliest")
            return reader.options(**self._options).load().selectExpr(*AS_OURS)
        reader = reader.format("rocketmq").schema(SCHEMA).option("topic", self._topic)
        if self._address:
            reader = reader.option("namesrv", self._address)
        if streaming:
            reader = reader.option("startingOffsets", "earliest")
        return reader.options(**self._options).load()

    def table(self) -> Any:
        """The topic as a table of five columns."""
        return self._opened(self._spark.read)

    def stream(self) -> Any:
        """The topic as a stream of five columns."""
        return self._opened(self._spark.readStream, streaming=True)

    def plain(self) -> Any:
        """The topic as it is loaded by the two options that it needs, with all columns that the side has."""
        reader = self._spark.read.format(self._side).options(**self._options)
        if self._side == KAFKA:
            return reader.option("kafka.bootstrap.servers", self._address).option("subscribe", self._topic).load()
        return reader.option("namesrv", self._address).option("topic", self._topic).load()

    def write(self, bodies: Any) -> None:
        """Append rows that have a column `body`, and `queueId` if they choose their queue."""
        if self._side == KAFKA:
            bodies = bodies.withColumnsRenamed({"body": "value", "queueId": "partition"})
            writer = bodies.write.format("kafka").option("kafka.bootstrap.servers", self._address)
        else:
            writer = bodies.write.format("rocketmq").option("namesrv", self._address)
        writer.option("topic", self._topic).options(**self._options).mode("append").save()


def read(spark: Any, side: str, job: Job) -> Result:
    """Every row made and dropped."""
    Source(spark, side, job).table().write.format("noop").mode("overwrite").save()
    return {}


def select(spark: Any, side: str, job: Job) -> Result:
    """Some `columns` by a select, without a schema, as most queries are written; rows made and dropped."""
    Source(spark, side, job).plain().select(*job["columns"]).write.format("noop").mode("overwrite").save()
    return {}


def check(spark: Any, side: str, job: Job) -> Result:
    """Count, bytes and two checksums of the bodies, by Spark."""
    return sums(Source(spark, side, job).table())


def sums(table: Any) -> Result:
    """The same of any rows with a column `body`."""
    names = ("rows", "bytes", "crc32", "xxhash64")
    found = table.selectExpr("count(*)", "sum(length(body))", "sum(crc32(body))", "bit_xor(xxhash64(body))").first()
    return dict(zip(names, found, strict=True))


def parquet(spark: Any, side: str, job: Job) -> Result:
    """The topic to Parquet files at `path`."""
    Source(spark, side, job).table().write.mode("overwrite").option("compression", "snappy").parquet(job["path"])
    return {}


def stream(spark: Any, side: str, job: Job) -> Result:
    """All there is by an AvailableNow query, from its start to its end."""
    folder = tempfile.mkdtemp(prefix="rocketspark-bench-checkpoint-")
    try:
        writer = Source(spark, side, job).stream().writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", folder).start()
        if not query.awaitTermination(STREAM_S_MAX):
            query.stop()
            raise SystemExit(f"the query did not end within {STREAM_S_MAX:.0f} s")
        progress = query.recentProgress
        return {"rows": sum(p.numInputRows for p in progress), "batches": len(progress)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def some(spark: Any, side: str, job: Job) -> Result:
    """`count` bodies of the topic to Parquet files at `path`."""
    table = Source(spark, side, job).table().select("body").limit(job["count"])
    table.repartition(CORES).write.mode("overwrite").parquet(job["path"])
    return {}


def write(spark: Any, side: str, job: Job) -> Result:
    """The bodies of Parquet files at `path` to the topic."""
    Source(spark, side, job).write(spark.read.parquet(job["path"]).select("body"))
    return {}


def fill(spark: Any, side: str, job: Job) -> Result:
    """`rows` made bodies, `run` in a row to each of `queues`. See spark_kafka.body_of."""
    queue = f"cast(id div {job['run']} % {job['queues']} as int) as queueId"
    made = spark.range(0, job["rows"], 1, CORES).selectExpr(
        "cast(sha2(cast(id as string), 512) as binary) as body", queue
    )
    Source(spark, side, job).write(made)
    return {}


def fill_mixed(spark: Any, side: str, job: Job) -> Result:
    """Rows of many `sizes`, with a key and `headers`. See spark_kafka.mixed_body_of."""
    Source(spark, side, job).write(mixed_rows(spark, job))
    return {}


def mixed_rows(spark: Any, job: Job) -> Any:
    """The same as a frame."""
    queue = f"cast(id div {job['run']} % {job['queues']} as int) as queueId"
    sizes = ", ".join(map(str, job["sizes"]))
    size = f"element_at(array({sizes}), cast(id % {len(job['sizes'])} as int) + 1)"
    repeated = f"repeat(sha2(cast(id as string), 512), {-(-max(job['sizes']) // 128)})"
    headers = ", ".join(f"named_struct('key', '{k}', 'value', cast({v} as binary))" for k, v in job["headers"].items())
    return spark.range(0, job["rows"], 1, CORES).selectExpr(
        f"cast(substring({repeated}, 1, {size}) as binary) as body",
        "cast(concat('o', id) as binary) as key",
        f"array({headers}) as headers",
        queue,
    )


def create(spark: Any, side: str, job: Job) -> Result:
    """A topic of Kafka's with so many partitions, by the admin client among the connector's jars."""
    java = spark._jvm
    properties = java.java.util.HashMap()
    properties.put("bootstrap.servers", job["address"])
    admin = java.org.apache.kafka.clients.admin.AdminClient.create(properties)
    try:
        topics = java.java.util.ArrayList()
        empty, queues = java.java.util.Optional.empty(), java.java.util.Optional.of(job["queues"])
        topics.add(java.org.apache.kafka.clients.admin.NewTopic(job["topic"], queues, empty))
        admin.createTopics(topics).all().get()
    finally:
        admin.close()
    return {}


JOBS: dict[str, Callable[[Any, str, Job], Result]] = {
    job.__name__: job for job in (read, select, check, parquet, some, stream, write, fill, fill_mixed, create)
}


def done(spark: Any, side: str, job: Job) -> Result:
    """One job, and the seconds it took."""
    started = time.perf_counter()
    found = JOBS[job["job"]](spark, side, job)
    return {"seconds": time.perf_counter() - started, **found}


def main() -> None:
    """Serve until standard input ends."""
    side = sys.argv[1]
    with tempfile.TemporaryDirectory(prefix="rocketspark-bench-warehouse-") as warehouse:
        spark = session(warehouse)
        print(json.dumps({"spark": spark.version}), flush=True)
        try:
            for line in sys.stdin:
                print(json.dumps(done(spark, side, json.loads(line))), flush=True)
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
