"""`pipeline dedupe`: topic to topic, each key once within some time."""

from __future__ import annotations

from typing import Annotated

import typer

from rocketspark.cli.commands.pipelines.shared import SharedOptions, wrong_usage
from rocketspark.spark.pipelines.options import DedupeOptions


def dedupe(
    source: Annotated[str, typer.Argument(help="The topic to read; several with a comma.", show_default=False)],
    target: Annotated[str, typer.Argument(help="The topic to write.", show_default=False)],
    *,
    checkpoint: Annotated[
        str, typer.Option(help="Folder or URL of its place and keys; dedupe-SOURCE-TARGET.checkpoint if not given.")
    ] = "",
    options: DedupeOptions,
    shared: SharedOptions,
) -> None:
    """Copy a topic, leaving out messages whose key was seen a short while ago.

    Example: `rocketspark pipeline dedupe orders orders-once --by json:$.id --within 24h`
    """
    where = shared.connection()
    from rocketspark.spark.pipelines import dedupe as pipeline

    with wrong_usage():
        pipeline.check(source, target, options)
    from rocketspark.spark.pipelines.parts.streaming import check_servers, default_folder

    place = checkpoint or default_folder(f"dedupe-{source}-{target}") + ".checkpoint"
    check_servers(place, {source: where.namesrv})
    # Keys may be many: they are not to fill the JVM's heap.
    conf = (f"spark.sql.streaming.stateStore.providerClass={pipeline.ROCKSDB}",)
    with shared.start("dedupe", conf=conf, writes=(checkpoint,)) as (spark, progress):
        result = pipeline.run(spark, where, source, target, options, checkpoint=place, progress=progress)
        shared.finish(result, progress, ends=options.interval_s is None)
