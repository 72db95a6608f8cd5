"""`pipeline audit`: compares produced with consumed messages, or the messages of two places."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import typer

from rocketspark.cli.commands.pipelines.shared import (
    SharedOptions,
    Since,
    TableNames,
    Until,
    check_archive,
    not_empty,
    time_range,
)
from rocketspark.spark.pipelines.options import AuditOptions

_COMPARE = "Comparing two places"


class CompareOptions(NamedTuple):
    """The options of `pipeline audit` that compare two places: the second place, and how to compare."""

    against: Annotated[
        str | None, typer.Option(help="Compare with this topic instead.", show_default=False, rich_help_panel=_COMPARE)
    ] = None
    against_archive: Annotated[
        str | None,
        typer.Option(
            help="Compare with what this archive holds of the topic, or of --against.",
            show_default=False,
            rich_help_panel=_COMPARE,
        ),
    ] = None
    at_table: TableNames = TableNames()
    against_namesrv: Annotated[
        str | None,
        typer.Option(
            help="NameServers of --against, if it is elsewhere.", show_default=False, rich_help_panel=_COMPARE
        ),
    ] = None
    by: Annotated[
        str,
        typer.Option(
            help="id: ids and contents; content: contents alone, for copies with new ids.", rich_help_panel=_COMPARE
        ),
    ] = "id"

    @property
    def wanted(self) -> bool:
        """True if two places are to be compared."""
        return bool(self.against or self.against_archive)

    def check(self, topics: list[str], *, only_audit: bool) -> None:
        """Raise BadParameter for options that do not go together. `only_audit`: an option is given that only an audit
        has, not a comparison.
        """
        not_empty(against=self.against, against_archive=self.against_archive, against_namesrv=self.against_namesrv)
        if self.wanted and len(topics) > 1:
            raise typer.BadParameter("one topic is compared at a time", param_hint="TOPICS")
        if self.wanted and only_audit:
            raise typer.BadParameter("--group, --ignore and --max-lag have no meaning with it", param_hint="--against")
        if self.against_namesrv and (not self.against or self.against_archive):
            raise typer.BadParameter("name the topic there with --against", param_hint="--against-namesrv")
        if any(self.at_table) and not self.against_archive:
            raise typer.BadParameter("they say where --against-archive is: name it", param_hint="--catalog, --table")
        if self.by not in ("id", "content"):
            raise typer.BadParameter(f"{self.by!r}: id or content is needed", param_hint="--by")


def audit(
    topics: Annotated[list[str], typer.Argument(help="Topics.", show_default=False)],
    *,
    since: Since = "",
    until: Until = "",
    options: AuditOptions,
    other: CompareOptions,
    shared: SharedOptions,
) -> None:
    """Count what topics hold and what groups made of it: gaps, duplicates, what is not consumed, dead letters.

    Ends with 0 if all is in order, 3 if not, 1 for an error, 2 for wrong usage. With --against or --against-archive
    the messages of two places are compared: counts, and checksums of ids, bodies, tags, keys and properties.

    Example: `rocketspark pipeline audit orders --group billing --since 24h`

    Example: `rocketspark pipeline audit orders --against orders-restored`
    """
    where = shared.connection()
    since_ms, until_ms = time_range(since, until)
    other.check(topics, only_audit=bool(options.groups or options.ignore or options.max_lag))
    from rocketspark.errors import UsageError
    from rocketspark.spark.pipelines import audit as pipeline
    from rocketspark.spark.pipelines import compare
    from rocketspark.spark.pipelines.parts import audit_figures
    from rocketspark.spark.pipelines.parts.progress import EXIT_DONE, EXIT_FOUND

    try:
        audit_figures.check_kinds(options.ignore or ())
    except UsageError as e:
        raise typer.BadParameter(str(e), param_hint="--ignore") from None
    from rocketspark.spark.lakehouse.table import archive_at

    archive = archive_at(other.against_archive, *other.at_table) if other.against_archive else None
    check_archive(archive)
    with shared.start("audit", only_reads=True, archives=(archive,) if archive else ()) as (spark, progress):
        if other.wanted:
            there = where._replace(namesrv=other.against_namesrv) if other.against_namesrv else where
            compared = compare.run(
                spark,
                compare.Side(where, topics[0]),
                compare.Side(there, other.against or topics[0], archive),
                by=other.by,
                since_ms=since_ms,
                until_ms=until_ms,
                samples=options.samples,
                progress=progress,
            )
            shared.finish(compared, progress, code=EXIT_DONE if compared.ok else EXIT_FOUND)
            return
        ranged = options._replace(since_ms=since_ms, until_ms=until_ms)
        report = pipeline.run(spark, where, topics, ranged, progress=progress)
        code = EXIT_DONE if report.ok else EXIT_FOUND
        shared.finish(report if shared.json else pipeline.summary(report), progress, code=code)
