"""`pipeline dlq`: dead letters shown, and sent again."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import typer

from rocketspark.cli.commands.pipelines.shared import SharedOptions, Since, Until, not_empty, time_range
from rocketspark.spark.pipelines.options import Choice, ResendOptions


class ChoiceOptions(NamedTuple):
    """The options that choose dead letters."""

    rest: Choice = Choice()
    since: Since = ""
    until: Until = ""

    def choice(self) -> Choice:
        """Return the choice of dead letters that these options describe. Raises BadParameter."""
        since_ms, until_ms = time_range(self.since, self.until)
        return self.rest._replace(since_ms=since_ms, until_ms=until_ms)


def dlq(
    *,
    samples: Annotated[int, typer.Option(min=0, max=10_000, help="How many letters to show.")] = 10,
    trace: Annotated[
        str,
        typer.Option(help="The trace topic, to tell how listeners failed: RMQ_SYS_TRACE_TOPIC.", show_default=False),
    ] = "",
    error_property: Annotated[
        str, typer.Option(help="The property in which the application notes an error.", show_default=False)
    ] = "",
    which: ChoiceOptions,
    resend: Annotated[
        bool, typer.Option("--resend", help="Send them again, each once.", rich_help_panel="Sending again")
    ] = False,
    again: ResendOptions,
    shared: SharedOptions,
) -> None:
    """Show dead letters by group, topic, tag, error and age; with --resend send the chosen ones again.

    A letter is sent again once at most, also when this is stopped, killed and started again: its target is searched
    for the id that the resend of this letter has. Keys, tag, flag, sharding key and own properties stay.

    Example: `rocketspark pipeline dlq --group billing --since 24h`

    Example: `rocketspark pipeline dlq --group billing --tag refund --resend --dry-run`
    """
    not_empty(to=again.to)
    if not resend and any(again):
        raise typer.BadParameter("--to, --to-group, --rate and --dry-run need it", param_hint="--resend")
    if resend and not which.rest.groups:
        raise typer.BadParameter("name the groups whose letters are to be sent again", param_hint="--group")
    if again.to and again.to_group:
        raise typer.BadParameter("give one of them", param_hint="--to, --to-group")
    where = shared.connection()
    from rocketspark.spark.pipelines import dlq as pipeline
    from rocketspark.spark.pipelines import dlq_resend
    from rocketspark.spark.pipelines.parts.progress import EXIT_DONE, EXIT_FOUND

    choice = which.choice()
    with shared.start("dlq", only_reads=not resend) as (spark, progress):
        if not resend:
            report = pipeline.run(
                spark,
                where,
                choice,
                trace_topic=trace,
                error_property=error_property,
                samples=samples,
                progress=progress,
            )
            shared.finish(report if shared.json else pipeline.summary(report), progress)
            return
        done = dlq_resend.run(spark, where, choice, again, progress=progress)
        shared.finish(done, progress, code=EXIT_FOUND if done.failed or done.unknown else EXIT_DONE)
