"""`pipeline archive`: topics to Parquet files, a Delta or an Iceberg table, by topic and hour."""

from __future__ import annotations

from typing import Annotated

import typer

from rocketspark.cli.commands.pipelines.shared import SharedOptions, TableNames
from rocketspark.spark.pipelines.options import ArchiveOptions


def archive(
    topics: Annotated[
        list[str] | None, typer.Argument(help="Topics; none with `-o topicPattern=REGEX`.", show_default=False)
    ] = None,
    *,
    to: Annotated[
        str,
        typer.Option("-t", "--to", help="The archive's folder, which driver and executors share. Tables: or s3a://…"),
    ] = "archive",
    table_format: Annotated[str, typer.Option("--format", help="parquet, delta or iceberg.")] = "parquet",
    at_table: TableNames,
    once: Annotated[bool, typer.Option("--once", help="End when all is archived that was there at the start.")] = False,
    tags: Annotated[str, typer.Option(help='Only messages with one of these tags: "A || B".')] = "*",
    start_at: Annotated[
        str, typer.Option("--start", help="Where a new archive begins: earliest, latest or JSON by queue.")
    ] = "earliest",
    options: ArchiveOptions,
    shared: SharedOptions,
) -> None:
    """Archive topics as Parquet files in `topic=…/hour=…` folders (UTC, by store time), each message once; with
    --format delta or iceberg in a table partitioned so, one commit per micro-batch.

    Tables may hold decoded bodies too, in columns beside `body`: by the options of decode (docs/use/decode.md).

    Goes on where the archive's last run ended, whatever ended that. Runs until Ctrl-C, or with --once until all is
    archived. Any reader of the format may read it meanwhile.

    Example: `rocketspark pipeline archive orders payments --to /data/archive --once`

    Example: `rocketspark pipeline archive orders --to s3a://lake/orders --format delta`

    Example: `rocketspark pipeline archive orders --format delta -o decode=json -o decodeSchema="id INT, fruit STRING"`
    """
    where = shared.connection(decodes=table_format != "parquet")
    reading = {"startingOffsets": start_at, **({"tags": tags} if tags != "*" else {})}
    where = where._replace(options=reading | dict(where.options))
    if not topics and not {"topic", "topicpattern", "assign"} & {name.lower() for name in where.options}:
        raise typer.BadParameter("name topics, or give -o topicPattern=REGEX", param_hint="TOPICS")
    from rocketspark.spark.lakehouse.table import TablePlace, archive_for

    target = archive_for(table_format, to, *at_table)
    if isinstance(target, TablePlace) and options.keep_replaced_s is not None:
        raise typer.BadParameter(
            f"files that a {table_format} table merged stay until its own clean-up", param_hint="--keep-replaced"
        )
    writes = (target.place,) if isinstance(target, TablePlace) else ()
    from rocketspark.spark.pipelines import archive as pipeline
    from rocketspark.spark.pipelines.parts import archive_batches

    archive_batches.options_of(where, topics or [])
    with shared.start("archive", writes=writes, archives=(target,)) as (spark, progress):
        result = pipeline.run(spark, where, topics or [], target, options, once=once, progress=progress)
    shared.finish(result, progress, ends=once)
