"""`pipeline dedupe`: topic to topic, each key once within some time."""

from __future__ import annotations

from typing import Annotated

import typer

from rocketspark.cli.commands.pipelines.shared import SharedOptions, wrong_usage


def dedupe(
    source: Annotated[str, typer.Argument(help="The topic to read; several with a comma.", show_default=False)],
    target: Annotated[str, typer.Argument(help="The topic to write.", show_default=False)],
    *,
    by: Annotated[
        str, typer.Option(help="What repetitions have in common: key, messageId, body, property:NAME, json:$.PATH.")
    ] = "key",
    within: Annotated[str, typer.Option(help="How long a key is remembered: 30m, 2h, '3 days'.")] = "1h",
    start_at: Annotated[
        str, typer.Option("--start", help="Where a new pipeline begins: earliest, latest or JSON by queue.")
    ] = "earliest",
    checkpoint: Annotated[
        str, typer.Option(help="Folder or URL of its place and keys; dedupe-SOURCE-TARGET.checkpoint if not given.")
    ] = "",
    name: Annotated[str, typer.Option(help="Of its transactions; dedupe-SOURCE-TARGET if not given.")] = "",
    batch_rows: Annotated[
        int | None, typer.Option(min=1, help="Messages in a micro-batch at most.", show_default=False)
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option(min=0, help="Go on for ever, a micro-batch every so many seconds; else all there is now."),
    ] = None,
    delivery: Annotated[str, typer.Option(help="exactly-once or at-least-once.")] = "exactly-once",
    shared: SharedOptions,
) -> None:
    """Copy a topic, leaving out messages whose key was seen a short while ago.

    Example: `rocketspark pipeline dedupe orders orders-once --by json:$.id --within 24h`
    """
    where = shared.connection()
    from rocketspark.spark.pipelines import dedupe as pipeline

    with wrong_usage():
        pipeline.check(source, target, by, within, name, delivery)
    from rocketspark.spark.pipelines.parts.streaming import default_folder

    # Keys may be many: they are not to fill the JVM's heap.
    conf = (f"spark.sql.streaming.stateStore.providerClass={pipeline.ROCKSDB}",)
    with shared.start("dedupe", conf=conf, writes=(checkpoint,)) as (spark, progress):
        result = pipeline.run(
            spark,
            where,
            source,
            target,
            checkpoint=checkpoint or default_folder(f"dedupe-{source}-{target}") + ".checkpoint",
            by=by,
            within=within,
            start_at=start_at,
            name=name,
            rows_max=batch_rows,
            interval_s=interval,
            delivery=delivery,
            progress=progress,
        )
        shared.finish(result, progress, ends=interval is None)
