"""What the process that plans a stream has to import: Spark starts one for each query."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.shows("a stream begins sooner: PySpark compiled, few imports")

PROGRAM = """
import sys
import pyspark_rocketmq
from rocketspark.spark.source import RocketMQDataSource
source = RocketMQDataSource({"namesrv": "127.0.0.1:1", "topic": "T"})
reader = source.streamReader(source.schema())
if hasattr(reader, "getDefaultReadLimit"):  # Before Spark 4.2 limits are kept by the reader itself.
    reader.getDefaultReadLimit()
print(*sorted(name for name in sys.modules if name.startswith(("rocketspark.", "pyarrow.compute"))))
"""
# Of bodies that are decoded, files that are read, rows that are written: none of it is for every stream.
LATER = ("rocketspark.store", "rocketspark.spark.write", "rocketspark.spark.writers", "rocketspark.tables.decode.b")
LATER += ("rocketspark.tables.decode.json_bodies", "rocketspark.tables.decode.registry", "rocketspark.arrow.records")


def test_a_stream_is_planned_without_what_only_some_need() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = done.stdout.split()
    assert "rocketspark.spark.read.stream_read" in found
    assert [name for name in found if name.startswith(LATER)] == []
