"""Starts a job's Spark session. Rule: its workers, and its search for data sources, use the Python that runs the job,
with the packages that are installed there.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from rocketspark.spark.python_workers import NAME, is_here, is_python, prefer_this_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session(builder: SparkSession.Builder | None = None) -> SparkSession:
    """Return the session that `builder` makes, or the active one; its Spark finds format("rocketmq").

    From then on PATH begins with the folder of this Python, as in an activated environment. If Spark's JVM runs already
    and looks for data sources in another python3, the source is registered with the session, and the workers of a local
    session are this Python.

    Args:
        builder: SparkSession.builder with a master and settings. Without it the session has Spark's defaults.
    """
    from pyspark.sql import SparkSession

    prefer_this_python()
    spark = (builder or SparkSession.builder).getOrCreate()
    # A Spark Connect server has an environment of its own.
    if isinstance(spark, SparkSession) and not _looks_here(spark):
        _register(spark)
    return spark


def _looks_here(spark: SparkSession) -> bool:
    """Return whether the JVM looks for data sources in this Python, or in one that was chosen by its path."""
    assert spark._jvm is not None
    variable = spark._jvm.java.lang.System.getenv
    asked = variable("PYSPARK_DRIVER_PYTHON") or variable("PYSPARK_PYTHON") or NAME
    return is_python(asked) and (os.sep in asked or is_here(asked, variable("PATH")))


def _register(spark: SparkSession) -> None:
    """Register the source: it is then planned, and its tasks run, in the Python of the session."""
    context = spark.sparkContext
    if context.pythonExec == NAME:
        if not str(context.master).startswith("local"):
            # Planning and tasks have one Python, by its name or by its path.
            return
        context.pythonExec = sys.executable
    from rocketspark.spark.source import RocketMQDataSource

    spark.dataSource.register(RocketMQDataSource)
