"""`pipeline outbox`: rows of a table in a database to a topic, exactly once."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import typer

from rocketspark.cli.commands.pipelines.shared import SharedOptions, wrong_usage
from rocketspark.spark.pipelines.options import OutboxOptions

_COLUMNS = "Columns"


def _column(part: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(
        help=f"The column that gives the {part}.", show_default=False, rich_help_panel=_COLUMNS
    )
    return option


class ColumnOptions(NamedTuple):
    """The columns that give the parts of a message."""

    body_column: Annotated[str, _column("body; without it the whole row, as JSON")] = ""
    topic_column: Annotated[str, _column("topic")] = ""
    tag_column: Annotated[str, _column("tag")] = ""
    keys_column: Annotated[str, _column("keys, parted by blanks")] = ""
    sharding_key_column: Annotated[str, _column("sharding key: rows of one keep their order")] = ""
    properties_column: Annotated[str, _column("properties, a JSON object")] = ""


def outbox(
    *,
    database: Annotated[
        str,
        typer.Option(
            "-d",
            "--database",
            envvar="ROCKETSPARK_OUTBOX",
            help="sqlite:///file.db or postgresql://user@host/name.",
            show_default=False,
        ),
    ],
    table: Annotated[str, typer.Option(help="The table whose rows are sent.", show_default=False)],
    checkpoint: Annotated[
        str, typer.Option(help="Folder or URL where it keeps its place; NAME.checkpoint if not given.")
    ] = "",
    options: OutboxOptions,
    columns: ColumnOptions,
    shared: SharedOptions,
) -> None:
    """Send the rows of a database's table to a topic, each exactly once.

    Example: `rocketspark pipeline outbox -d sqlite:///shop.db --table orders -t orders --keys-column id`
    """
    where = shared.connection()
    from rocketspark.spark.pipelines import outbox as pipeline

    given = pipeline.Columns(*columns)
    with wrong_usage():
        pipeline.check(given, options)
    from rocketspark.spark.pipelines.parts.streaming import default_folder

    folder = options.name or default_folder(f"outbox-{table}")
    with shared.start("outbox", writes=(checkpoint,)) as (spark, progress):
        place = checkpoint or f"{folder}.checkpoint"
        result = pipeline.run(
            spark, where, database, table, options, checkpoint=place, columns=given, progress=progress
        )
        shared.finish(result, progress, ends=options.interval_s is None)
