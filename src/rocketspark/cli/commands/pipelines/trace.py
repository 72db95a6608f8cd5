"""`pipeline trace`: latency, failures and retries from message traces."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rocketspark.cli.commands.pipelines.shared import SharedOptions, Since, Until, time_range


def trace(
    *,
    topic: Annotated[
        str, typer.Option("-t", "--topic", help="The trace topic; several with a comma.")
    ] = "RMQ_SYS_TRACE_TOPIC",
    since: Since = "",
    until: Until = "",
    html: Annotated[
        Path | None, typer.Option(help="Write the report with plots to this file (needs rocketspark[pipelines]).")
    ] = None,
    slowest: Annotated[int, typer.Option(min=0, max=10_000, help="How many messages to name.")] = 20,
    slack: Annotated[
        float,
        typer.Option(min=0, help="Minutes before and after the range in which trace messages are looked for, too."),
    ] = 60,
    shared: SharedOptions,
) -> None:
    """Latency, failures and retries of every topic and group, from message traces.

    Producers and consumers write the traces (trace=True in this client, enableTrace in the Java client).

    Example: `rocketspark pipeline trace --since 24h --html trace.html`
    """
    where = shared.connection()
    since_ms, until_ms = time_range(since, until)
    from rocketspark.errors import ConfigError
    from rocketspark.spark.lakehouse.object_store import scheme_of, uri, write_text
    from rocketspark.spark.pipelines import trace as pipeline
    from rocketspark.spark.pipelines import trace_report

    if html is not None:
        # Before the work rather than after it.
        trace_report.check_installed()
        there = bool(scheme_of(html))
        if not there and (html.is_dir() or not html.parent.is_dir()):
            raise ConfigError(f"--html {html}: a file in a folder that is there is needed")
    with shared.start("trace", only_reads=True, reads=(html.parent,) if html else ()) as (spark, progress):
        report = pipeline.run(
            spark,
            where,
            topic=topic,
            since_ms=since_ms,
            until_ms=until_ms,
            slack_ms=int(slack * 60_000),
            slowest=slowest,
            progress=progress,
        )
        if html is not None:
            if scheme_of(html):
                write_text(spark, html, trace_report.html(report))
            else:
                trace_report.write_html(report, html)
            progress.say(f"the report is in {uri(html)}")
        shared.finish(report if shared.json else pipeline.summary(report), progress)
