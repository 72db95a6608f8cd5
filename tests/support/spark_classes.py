"""Spark's classes in one file that JVMs map instead of loading each anew: a start then costs half the processor time.

Rule: set-up makes it, `python -m tests.support.spark_classes`, once for each Spark; a JVM that finds none, or one of
another Java, does without.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import sys
import tempfile
from pathlib import Path

from tests.java.driver import java_home
from tests.support.official import SHORT_LIVED
from tests.support.temporary_folder import jvm_option

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".setup" / "spark_classes"
END_S = 300


def archive(python: Path | None = None) -> Path | None:
    """Where the file for a Spark and this Java is to be; None without one of them.

    `python`: the interpreter of an environment that has the Spark [default: this one].
    """
    where = sys.path if python is None else [str(path) for path in python.parents[1].glob("lib/python*/site-packages")]
    spark = next(iter(importlib.metadata.distributions(name="pyspark", path=where)), None)
    if spark is None:
        return None
    home = java_home()
    if home is None or " " in str(FOLDER) or not FOLDER.parent.is_dir():
        return None
    release = home / "release"
    known = [
        spark.version,
        str(spark.locate_file("pyspark")),
        str(home),
        release.read_text() if release.exists() else "",
    ]
    return FOLDER / f"{hashlib.sha256('|'.join(known).encode()).hexdigest()[:16]}.jsa"


def jvm_options(python: Path | None = None) -> str:
    """Of JVMs that live for seconds. Whether the file is there is looked up by each JVM at its start."""
    path = archive(python)
    # Without its log a file that does not fit is passed over in silence.
    plain = f"{SHORT_LIVED} {jvm_option()}"
    return f"{plain} -XX:SharedArchiveFile={path} -Xlog:disable" if path else plain


def make(path: Path) -> None:
    """A session that does a little of all and ends; as it ends its JVM writes down what it had loaded."""
    path.parent.mkdir(exist_ok=True)
    for unfinished in path.parent.glob("making-*"):
        shutil.rmtree(unfinished, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="making-") as folder:
        made = Path(folder) / path.name
        os.environ["SPARK_SUBMIT_OPTS"] = f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={made}"
        os.environ["JAVA_HOME"], os.environ["PYSPARK_PYTHON"] = str(java_home()), sys.executable
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        session = (
            SparkSession.builder.master("local[1]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "1")
            .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
            .getOrCreate()
        )
        rows = session.range(3).selectExpr(
            "id", "cast(id as string) as body", "id % 2 as k", "current_timestamp() as at"
        )
        rows.groupBy("k").count().orderBy("k").join(rows, "k").collect()
        rows.write.json(f"{folder}/json")
        rows.write.partitionBy("k").parquet(f"{folder}/parquet")
        session.read.parquet(f"{folder}/parquet").createOrReplaceTempView("rows")
        session.sql("SELECT k, count(*) FROM rows WHERE id >= 0 GROUP BY k").collect()
        session.createDataFrame([(b"a", {"b": "c"})], "body binary, properties map<string, string>").collect()
        rows.mapInPandas(lambda batches: batches, rows.schema).collect()
        stream = session.readStream.schema(rows.schema).parquet(f"{folder}/parquet")
        query = stream.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
        query.trigger(availableNow=True).start(f"{folder}/out").awaitTermination()
        session.stop()
        gateway = SparkContext._gateway
        assert gateway is not None
        process = gateway.proc
        process.stdin.close()
        process.wait(END_S)
        if made.exists():
            made.replace(path)


if __name__ == "__main__":
    found = archive()
    if found is not None and not found.exists():
        make(found)
