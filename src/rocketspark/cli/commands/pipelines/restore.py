"""`pipeline restore` and `pipeline replay`: from an archive, or a topic's past, into a topic."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from rocketspark.cli.commands.pipelines.shared import (
    SharedOptions,
    TableNames,
    check_archive,
    check_times,
    moment,
    not_empty,
)
from rocketspark.cli.options import LeftOut
from rocketspark.errors import ConfigError
from rocketspark.spark.pipelines.options import RestoreOptions


class RowOptions(NamedTuple):
    """The options of `restore` and `replay`: which rows are sent, and how."""

    since: Annotated[
        str | None, typer.Option(help="Only rows stored since: 2026-11-21T06 (UTC), 2026-11-21T06:30+01:00.")
    ] = None
    until: Annotated[str | None, typer.Option(help="Only rows stored before.")] = None
    rest: RestoreOptions = RestoreOptions()
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Don't ask if the target holds messages.")] = False

    def options(self, state: Path | None) -> RestoreOptions:
        """Return these options as `restore.restore` and `restore.replay` take them. `state`: the folder of the progress
        file. Raises BadParameter.
        """
        since_ms, until_ms = _fixed(self.since, "--since"), _fixed(self.until, "--until")
        check_times(since_ms, until_ms)
        return self.rest._replace(since_ms=since_ms, until_ms=until_ms, state=state)

    @property
    def sure(self) -> Callable[[str], None] | None:
        """The function that asks the user whether to send into a topic that holds messages; None if the user said yes
        before.
        """
        return None if self.yes else _sure


def restore(
    archive: Annotated[str, typer.Argument(help="The archive: its folder, s3a://….", show_default=False)],
    topics: Annotated[
        list[str] | None, typer.Argument(help="Topics of the archive; all if none is named.", show_default=False)
    ] = None,
    to: Annotated[
        str | None, typer.Option("-t", "--to", help="The target topic, for one topic; else the same name.")
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(help="Folder of the progress files; else in the archive, or for tables .rocketspark/restores."),
    ] = None,
    *,
    at_table: TableNames,
    rows: RowOptions,
    shared: Annotated[SharedOptions, LeftOut("options")],
) -> None:
    """Send an archive's rows back into topics: keys, tags, properties and the order of each queue are kept.

    Stopped or killed, the same command goes on and sends nothing twice. Each message tells in its properties where it
    was before (originPlace, originMessageId, originBornTime, originStoreTime).

    Example: `rocketspark pipeline restore /data/archive orders --to orders-again --since 2026-11-21T06 --rate 5000`
    """
    not_empty(to=to)
    where = shared.connection()
    options = rows.options(state)
    if to is not None and len(topics or ()) > 1:
        raise typer.BadParameter("one topic can be given another name, not several", param_hint="--to")
    from rocketspark.spark.lakehouse.table import archive_at

    source = archive_at(archive, *at_table)
    check_archive(source)
    with shared.start("restore", archives=(source,)) as (spark, progress):
        from rocketspark.spark.pipelines import restore as pipeline

        names = topics or pipeline.topics_of(source, spark)
        if to is not None and len(names) > 1:
            raise typer.BadParameter(f"the archive holds {', '.join(names)}: name one of them", param_hint="--to")
        results = []
        wanted: list[str | None] = [*names] or [None]
        for topic in wanted:
            if not progress.stop.asked:
                found = pipeline.restore(spark, source, where, topic, to, options, progress=progress, sure=rows.sure)
                results.append(found)
    shared.finish(results[0] if len(results) == 1 else {"restored": results}, progress)


def replay(
    topic: Annotated[str, typer.Argument(help="The topic whose past is sent.", show_default=False)],
    to: Annotated[str, typer.Option("-t", "--to", help="The target topic.", show_default=False)],
    state: Annotated[Path | None, typer.Option(help="Folder of the progress files; else .rocketspark/replays.")] = None,
    to_namesrv: Annotated[
        str | None, typer.Option(help="NameServers of the target, if it is another cluster.", show_default=False)
    ] = None,
    *,
    rows: RowOptions,
    shared: SharedOptions,
) -> None:
    """Send what a topic holds, or a time range of it, into another topic (or the same once more).

    What is sent is fixed when it first runs. Stopped or killed, the same command goes on and sends nothing twice.

    Example: `rocketspark pipeline replay orders --to orders-test --since 2026-11-21T06 --until 2026-11-21T07`
    """
    not_empty(to=to, to_namesrv=to_namesrv)
    where = shared.connection()
    options = rows.options(state)
    target = where._replace(namesrv=to_namesrv) if to_namesrv else None
    with shared.start("replay") as (spark, progress):
        from rocketspark.spark.pipelines import restore as pipeline

        result = pipeline.replay(spark, where, topic, to, options, target=target, progress=progress, sure=rows.sure)
    shared.finish(result, progress)


def _sure(text: str) -> None:
    """Have the user confirm it."""
    if not sys.stdin.isatty():
        raise ConfigError(f"{text}: confirm with --yes, or name another topic with --to")
    typer.confirm("Send them?", abort=True)


def _fixed(text: str | None, option: str) -> int | None:
    """A time in ms since 1970. How long ago would be another time, and so another restore, each time it is run."""
    if text and text.strip()[-1:] in "smhd":
        raise typer.BadParameter(f"{text!r}: a time is needed, not how long ago", param_hint=option)
    return moment(option, text)
