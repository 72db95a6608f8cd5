"""A file of `pipeline sql` as a Spark Declarative Pipeline. Rule: the same file, the same views; Spark runs the graph.

In a pipeline project (spark-pipeline.yml), one Python file among its libraries says:

    from rocketspark.spark.pipelines.declarative import define
    define("orders.yaml", "127.0.0.1:9876")
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rocketspark.errors import ConfigError
from rocketspark.spark.pipelines.connection import Connection, connection
from rocketspark.spark.pipelines.parts.sql_file import SqlPlan, SqlSink, read_plan
from rocketspark.spark.pipelines.sql import options_with, source_frame
from rocketspark.spark.spark_features import VERSION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def define(file: Path | str, where: Connection | str, variables: Mapping[str, str] | None = None) -> SqlPlan:
    """Register a file's sources and steps as temporary views of the pipeline and its sinks as sinks with a flow each.

    Args:
        where: the cluster of all sources and sinks of RocketMQ that name no `namesrv` of their own.
        variables: what ${name} stands for in the file.

    Sinks take streams only, as Spark's declarative sinks do, and what goes to a topic needs a column `body`. Raises
    ConfigError.
    """
    from pyspark.sql import SparkSession

    try:
        from pyspark import pipelines as dp
    except ImportError as e:
        raise ConfigError(
            f"declarative pipelines need Spark 4.1 or later and pyspark[pipelines], and this is {VERSION} ({e}): run"
            " the file with `rocketspark pipeline sql`"
        ) from None

    plan = read_plan(Path(file), variables)
    cluster = connection(where, decodes=True)

    def spark() -> SparkSession:
        active = SparkSession.active()
        assert active is not None
        return active

    for source in plan.sources:

        @dp.temporary_view(name=source.name)
        def read(source=source) -> DataFrame:  # type: ignore[no-untyped-def]
            return source_frame(spark(), source, cluster)

    for step in plan.steps:

        @dp.temporary_view(name=step.name)
        def ask(step=step) -> DataFrame:  # type: ignore[no-untyped-def]
            return spark().sql(step.sql)

    for sink in plan.sinks:
        if sink.mode not in (None, "append") or sink.partition_by:
            raise ConfigError(f"sink {sink.name}: a declarative pipeline appends, and partitions nothing")
        dp.create_sink(sink.name, sink.format, options_with(sink, cluster))

        @dp.append_flow(target=sink.name, name=f"to_{sink.name}")
        def flow(sink: SqlSink = sink) -> DataFrame:
            # Spark looks at columns only once the graph is whole: what has no `body` cannot be given one here.
            return spark().table(sink.view) if sink.view is not None else spark().sql(sink.sql or "")

    return plan
