"""`pipeline dlq`: dead letters shown, and sent again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from rocketspark.cli.commands.pipelines.shared import SharedOptions, not_empty
from rocketspark.cli.commands.pipelines.times import Since, Until, time_range

if TYPE_CHECKING:
    from rocketspark.spark.pipelines.dlq import Choice

_CHOICE = "Which letters"
_RESEND = "Sending again"


class ChoiceOptions(NamedTuple):
    """Which letters are meant."""

    group: Annotated[
        list[str] | None,
        typer.Option(
            "-g",
            "--group",
            help="Dead letters of this consumer group; may be repeated. By default of all.",
            show_default=False,
            rich_help_panel=_CHOICE,
        ),
    ] = None
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "-t",
            "--topic",
            help="That came from this topic; may be repeated.",
            show_default=False,
            rich_help_panel=_CHOICE,
        ),
    ] = None
    tag: Annotated[
        list[str] | None,
        typer.Option(help="With this tag; may be repeated.", show_default=False, rich_help_panel=_CHOICE),
    ] = None
    key: Annotated[
        list[str] | None,
        typer.Option(help="With this key; may be repeated.", show_default=False, rich_help_panel=_CHOICE),
    ] = None
    message_id: Annotated[
        list[str] | None,
        typer.Option("--id", help="With this unique id; may be repeated.", show_default=False, rich_help_panel=_CHOICE),
    ] = None
    since: Since = ""
    until: Until = ""
    sql: Annotated[
        str,
        typer.Option(
            help="A condition in Spark SQL: \"reconsumeTimes > 3 and cast(body as string) like '%refund%'\".",
            show_default=False,
            rich_help_panel=_CHOICE,
        ),
    ] = ""
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Only so many, the oldest.", show_default=False, rich_help_panel=_CHOICE),
    ] = None

    def choice(self) -> Choice:
        """Return the choice that these options describe. Raises BadParameter."""
        from rocketspark.spark.pipelines.dlq import Choice

        since_ms, until_ms = time_range(self.since, self.until)
        return Choice(
            groups=self.group or (),
            topics=self.topic or (),
            tags=self.tag or (),
            keys=self.key or (),
            ids=self.message_id or (),
            since_ms=since_ms,
            until_ms=until_ms,
            sql=self.sql,
            limit=self.limit,
        )


class ResendOptions(NamedTuple):
    """The sending again of letters."""

    resend: Annotated[bool, typer.Option("--resend", help="Send them again, each once.", rich_help_panel=_RESEND)] = (
        False
    )
    to: Annotated[
        str | None,
        typer.Option(
            help="To this topic, rather than those they came from.", show_default=False, rich_help_panel=_RESEND
        ),
    ] = None
    to_group: Annotated[
        bool,
        typer.Option(
            "--to-group", help="To the group alone, through its retry topic: no other gets it.", rich_help_panel=_RESEND
        ),
    ] = False
    rate: Annotated[
        float | None,
        typer.Option(min=0.01, help="Letters a second at most.", show_default=False, rich_help_panel=_RESEND),
    ] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only count what would be sent.", rich_help_panel=_RESEND)
    ] = False


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
    if not again.resend and (again.to or again.to_group or again.rate or again.dry_run):
        raise typer.BadParameter("--to, --to-group, --rate and --dry-run need it", param_hint="--resend")
    if again.resend and not which.group:
        raise typer.BadParameter("name the groups whose letters are to be sent again", param_hint="--group")
    if again.to and again.to_group:
        raise typer.BadParameter("give one of them", param_hint="--to, --to-group")
    where = shared.connection()
    from rocketspark.spark.pipelines import dlq as pipeline
    from rocketspark.spark.pipelines import dlq_resend
    from rocketspark.spark.pipelines.progress import EXIT_DONE, EXIT_FOUND

    choice = which.choice()
    with shared.start("dlq", only_reads=not again.resend) as (spark, progress):
        if not again.resend:
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
        done = dlq_resend.run(
            spark,
            where,
            choice,
            to=again.to,
            to_group=again.to_group,
            rate=again.rate,
            dry_run=again.dry_run,
            progress=progress,
        )
        shared.finish(done, progress, code=EXIT_FOUND if done.failed or done.unknown else EXIT_DONE)
