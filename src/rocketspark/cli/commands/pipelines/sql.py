"""`pipeline sql`: a file of sources, SQL steps and sinks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rocketspark.cli.commands.pipelines.shared import SharedOptions, wrong_usage


def sql(
    file: Annotated[Path, typer.Argument(help="The pipeline: a .yaml or .sql file.", show_default=False)],
    *,
    variable: Annotated[
        list[str] | None,
        typer.Option("--var", help="What ${name} stands for in the file, name=value; may be repeated."),
    ] = None,
    checkpoint: Annotated[
        str, typer.Option(help="Folder or URL where streams keep their place; FILE.checkpoints if not given.")
    ] = "",
    interval: Annotated[
        float | None,
        typer.Option(min=0, help="Go on for ever, a micro-batch every so many seconds; else all there is now."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the file and show what it would do.")] = False,
    shared: SharedOptions,
) -> None:
    """Run a pipeline that a file describes: sources, SQL steps, sinks; no Python needed.

    Example: `rocketspark pipeline sql totals.yaml --var day=2026-01-31`
    """
    where = shared.connection()
    from rocketspark.spark.pipelines import sql as pipeline
    from rocketspark.spark.pipelines.connection import pairs
    from rocketspark.spark.pipelines.parts.sql_file import read_plan
    from rocketspark.spark.pipelines.parts.streaming import check_servers

    with wrong_usage():
        variables = pairs(variable, "--var")
    plan = read_plan(file, variables)
    place = checkpoint or f"{file}.checkpoints"
    if not dry_run:
        check_servers(place, pipeline.servers_of(plan, where))
    reads = tuple(source.path for source in plan.sources if source.path)
    writes = () if dry_run else (place, *(sink.path for sink in plan.sinks if sink.path))
    with shared.start("sql", reads=reads, writes=writes) as (spark, progress):
        if dry_run:
            shared.finish(pipeline.dry_run(spark, plan, where, checkpoint=place), progress)
            return
        result = pipeline.run(
            spark,
            plan,
            where,
            checkpoint=place,
            interval_s=interval,
            progress=progress,
        )
        shared.finish(result, progress, ends=interval is None)
