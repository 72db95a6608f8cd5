"""A driver of its own, told what to do by one JSON argument: streams from topics to files or to topics.

Keys: `master`, `settings`, `once` (all there is now, else until a line comes on stdin and all that is there then is
done), and `streams`: a list of
`read` and `write` (options), `format` (of the output), `select` (SQL expressions), `checkpoint`.
Prints a line of JSON per micro-batch, then "done".
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from rocketspark.spark import session


def started(spark: SparkSession, stream: dict[str, Any], once: bool) -> StreamingQuery:
    source = spark.readStream.format("rocketmq").options(**stream["read"]).load()
    sink = source.selectExpr(*stream["select"]).writeStream.format(stream["format"]).options(**stream["write"])
    sink = sink.option("checkpointLocation", stream["checkpoint"])
    return sink.trigger(availableNow=True).start() if once else sink.trigger(processingTime="0 seconds").start()


def main() -> None:
    spec = json.loads(sys.argv[1])
    builder = SparkSession.builder.master(spec["master"]).appName("rocketspark-job")
    for name, value in spec["settings"].items():
        builder = builder.config(name, value)
    spark = session(builder)
    spark.sparkContext.setLogLevel("OFF")
    once = bool(spec.get("once"))
    queries = [started(spark, stream, once) for stream in spec["streams"]]
    stopping = threading.Event()
    if not once:

        def wait_for_line() -> None:
            sys.stdin.readline()
            stopping.set()

        threading.Thread(target=wait_for_line, daemon=True).start()
    seen = dict.fromkeys(queries, -1)
    while queries and not stopping.is_set():
        for query in list(queries):
            # Raises what the query failed with.
            if query.awaitTermination(0.1):
                queries.remove(query)
            progress = query.lastProgress
            if progress and progress["batchId"] != seen[query] and progress["numInputRows"]:
                seen[query] = progress["batchId"]
                print(json.dumps({"batch": seen[query], "rows": progress["numInputRows"]}), flush=True)
    for query in queries:
        query.processAllAvailable()
        query.stop()
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
