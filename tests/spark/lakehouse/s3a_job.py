"""A driver on object stores for the tests, on the Spark whose Python runs it; told what to do by JSON on stdin.

`conf`, `places`: of the session. Then each of `steps`, whose result is a line of JSON:
look (place, writes), write (place), stream (topic to tables until a further line comes on stdin), totals (of tables).
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from rocketspark.errors import RocketSparkError
from rocketspark.spark.lakehouse.object_store import check_place, uri, write_text
from rocketspark.spark.pipelines.parts.session import SessionOptions, one_line_errors, open_session

ROWS = ("concat_ws('-', broker, queueId, queueOffset) AS place", "CAST(CAST(body AS string) AS bigint) AS n")
TOTALS = ("count(*)", "count(DISTINCT place)", "sum(n)", "bit_xor(xxhash64(n))")


def tell(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def look(spark: SparkSession, step: dict[str, Any]) -> None:
    began = time.monotonic()
    said = ""
    try:
        check_place(spark, step["place"], writes=step.get("writes", False), limit_s=step.get("limit_s", 30))
    except RocketSparkError as e:
        said = str(e)
    tell(place=step["place"], said=said, seconds=time.monotonic() - began)


def write(spark: SparkSession, step: dict[str, Any]) -> None:
    """Write a table and a file, show its plan, and tell the JVM's command line."""
    place = uri(step["place"])
    said, plan = "", io.StringIO()
    try:
        with one_line_errors():
            spark.range(100).write.format("delta").mode("append").save(place)
            frame = spark.read.format("delta").load(place).where("id >= 50")
            with contextlib.redirect_stdout(plan):
                frame.explain(extended=True)
            write_text(spark, f"{place}.html", "<html>grün</html>")
            tell(rows=frame.count(), file=spark.read.text(f"{place}.html").first()[0])  # type: ignore[index]
    except RocketSparkError as e:
        said = str(e)
    pid = spark._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]
    lines = Path(f"/proc/{pid}/cmdline").read_bytes() + Path("/proc/self/cmdline").read_bytes()
    tell(said=said, plan=plan.getvalue(), command=lines.decode(errors="replace"), settings=dict(spark.conf.getAll))


def stream(spark: SparkSession, step: dict[str, Any]) -> None:
    """Topic to tables; `done` once all there is when a line came is in them."""
    if step.get("iceberg"):
        spark.sql("CREATE NAMESPACE IF NOT EXISTS ice.db")
        spark.sql("CREATE TABLE IF NOT EXISTS ice.db.t (place string, n bigint) USING iceberg")
    queries = []
    for name in ("delta", "iceberg"):
        if name not in step:
            continue
        rows = spark.readStream.format("rocketmq").options(**step["read"]).load()
        rows = rows.selectExpr(*ROWS)
        sink = rows.writeStream.format(name).option("checkpointLocation", step[name]["checkpoint"]).queryName(name)
        sink = sink.trigger(processingTime="0 seconds")
        queries.append(
            sink.toTable("ice.db.t") if name == "iceberg" else sink.option("path", step[name]["path"]).start()
        )
    asked = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), asked.set()), daemon=True).start()
    seen = dict.fromkeys(queries, -1)
    while not asked.is_set():
        for query in queries:
            query.awaitTermination(0.1)  # Raises what the query failed with.
            progress = query.lastProgress
            if progress and progress["batchId"] != seen[query] and progress["numInputRows"]:
                seen[query] = progress["batchId"]
                tell(query=query.name, batch=seen[query], rows=progress["numInputRows"])
    for query in queries:
        query.processAllAvailable()
        query.stop()
    tell(done=True)


def totals(spark: SparkSession, step: dict[str, Any]) -> None:
    for name, rows in (("delta", step.get("delta")), ("iceberg", step.get("iceberg"))):
        if rows:
            table = spark.table("ice.db.t") if name == "iceberg" else spark.read.format("delta").load(rows)
            tell(
                table=name,
                totals=list(table.selectExpr(*TOTALS).first() or ()),
            )


def main() -> None:
    spec = json.loads(sys.stdin.readline())
    conf = spec["conf"] | {"spark.hadoop.fs.s3a.threads.max": "16"}
    with open_session("s3a", SessionOptions("local[2,4]", conf=conf, places=tuple(spec.get("places", ())))) as spark:
        spark.sparkContext.setLogLevel(spec.get("log", "ERROR"))
        tell(ready=os.getpid())
        for step in spec["steps"]:
            with one_line_errors():
                {"look": look, "write": write, "stream": stream, "totals": totals}[step["do"]](spark, step)


if __name__ == "__main__":
    main()
