"""`pipeline outbox`: rows of a table in a database to a topic, exactly once."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import typer

from rocketspark.cli.commands.pipelines.shared import SharedOptions, wrong_usage

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
    topic: Annotated[str, typer.Option("-t", "--topic", help="Where all rows go.", show_default=False)] = "",
    key: Annotated[str, typer.Option(help="The table's unique column.")] = "id",
    order: Annotated[str, typer.Option(help="The column that orders rows; the key if not given.")] = "",
    delete: Annotated[bool, typer.Option("--delete", help="Delete rows once they are sent.")] = False,
    checkpoint: Annotated[
        str, typer.Option(help="Folder or URL where it keeps its place; NAME.checkpoint if not given.")
    ] = "",
    name: Annotated[str, typer.Option(help="Of its claims and transactions; outbox-TABLE if not given.")] = "",
    batch_rows: Annotated[int, typer.Option(min=1, help="Rows in a micro-batch at most.")] = 10_000,
    interval: Annotated[
        float | None, typer.Option(min=0, help="Go on for ever, looking every so many seconds; else all there is now.")
    ] = None,
    delivery: Annotated[str, typer.Option(help="exactly-once or at-least-once.")] = "exactly-once",
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
        pipeline.check(topic, given, name, delivery)
    from rocketspark.spark.pipelines.parts.streaming import default_folder

    folder = name or default_folder(f"outbox-{table}")
    with shared.start("outbox", writes=(checkpoint,)) as (spark, progress):
        result = pipeline.run(
            spark,
            where,
            database=database,
            table=table,
            checkpoint=checkpoint or f"{folder}.checkpoint",
            topic=topic,
            name=name,
            key=key,
            order=order,
            columns=given,
            batch_rows=batch_rows,
            interval_s=interval,
            delivery=delivery,
            delete=delete,
            progress=progress,
        )
        shared.finish(result, progress, ends=interval is None)
