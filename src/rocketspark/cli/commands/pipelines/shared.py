"""The options of all pipeline commands, times such as `--since 24h`, and how a command's run begins and ends. Rule:
only a command that runs imports Spark.
"""

from __future__ import annotations

import logging
import re
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from rocketspark.cli.options import HERE, ClusterAccess, Json
from rocketspark.model.text import shown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rocketspark.spark.lakehouse.table import TablePlace
    from rocketspark.spark.pipelines.connection import Connection
    from rocketspark.spark.pipelines.parts.progress import Progress


_SPARK = "Spark"
_CLUSTER = "Cluster"


@contextmanager
def wrong_usage() -> Iterator[None]:
    """Turn a UsageError raised in this block into typer's BadParameter."""
    from rocketspark.errors import UsageError

    try:
        yield
    except UsageError as e:
        raise typer.BadParameter(str(e)) from None


_MADE: ContextVar[tuple[SharedOptions | None, Connection | None]] = ContextVar("connection of the command")


class TableNames(NamedTuple):
    """The options of commands that take an archive: the catalog and the name of an Iceberg table."""

    catalog: Annotated[
        str,
        typer.Option(
            help="Iceberg's catalog: jdbc:sqlite:/data/catalog.db, jdbc:postgresql://host/db (PGUSER, PGPASSWORD in the"
            " environment); else catalog.db in the folder.",
            show_default=False,
        ),
    ] = ""
    table: Annotated[
        str, typer.Option("--table", help="Iceberg's table; else rocketspark.archive.", show_default=False)
    ] = ""


def source_option(**more: Any) -> Any:
    """Return the option -o of commands that read as format("rocketmq") does. `more`: as of typer.Option."""
    text = 'An option of format("rocketmq"), name=value (see docs/use/spark.md); may be repeated.'
    return typer.Option("-o", "--option", help=text, show_default=False, **more)


class SharedOptions(NamedTuple):
    """The options that all pipeline commands have, as they were given."""

    at: ClusterAccess = HERE
    namespace: Annotated[
        str, typer.Option(help="The namespace of topics and groups.", show_default=False, rich_help_panel=_CLUSTER)
    ] = ""
    options: Annotated[list[str] | None, source_option(rich_help_panel=_CLUSTER)] = None
    master: Annotated[
        str,
        typer.Option(
            help="Spark's master: local[4], spark://host:7077; from SPARK_MASTER, else all cores here.",
            show_default=False,
            rich_help_panel=_SPARK,
        ),
    ] = ""
    remote: Annotated[
        str,
        typer.Option(help="A Spark Connect server, sc://host:port.", show_default=False, rich_help_panel=_SPARK),
    ] = ""
    conf: Annotated[
        list[str] | None,
        typer.Option(
            help="A setting of Spark, name=value; may be repeated.", show_default=False, rich_help_panel=_SPARK
        ),
    ] = None
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Serve metrics for Prometheus on 127.0.0.1, at this port, while the command runs; 0: a free one.",
            show_default=False,
            rich_help_panel=_SPARK,
        ),
    ] = None
    json: Json = False

    def connection(self, *, decodes: bool = False) -> Connection:
        """Return the connection to the cluster. `decodes`: the pipeline takes options of decoding; for others they are
        an error. Raises ConfigError.
        """
        _check_packages()
        from rocketspark.spark.pipelines.connection import Connection, connection, pairs
        from rocketspark.transport.tls.client_tls import client_tls

        with wrong_usage():
            options = pairs(self.options, "--option")
        self.at.check_address(options)
        keys = self.at.client_options()
        tls = client_tls(keys.pop("use_tls", False), **{n: keys.pop(n) for n in list(keys) if n.startswith("tls_")})
        where = Connection(self.at.namesrv, self.namespace, **keys, options=options, tls=tls)
        made = connection(where, decodes=decodes)
        _MADE.set((self, made))
        return made

    @contextmanager
    def start(
        self,
        name: str,
        *,
        conf: tuple[str, ...] = (),
        only_reads: bool = False,
        reads: tuple[str | Path, ...] = (),
        writes: tuple[str | Path, ...] = (),
        archives: tuple[Path | TablePlace, ...] = (),
    ) -> Iterator[tuple[SparkSession, Progress]]:
        """Give the block a pipeline's Spark session and progress. Ctrl-C and SIGTERM ask the pipeline to stop; an error
        of Spark's becomes one line.

        `name`: the pipeline's; `conf`: Spark settings, which those that the user gives override. `only_reads`: the
        pipeline has nothing to finish, so Ctrl-C ends it at once. `reads`, `writes`: the places that it reads and
        writes; those on object stores are checked before it begins. `archives`: its archives; for tables among them the
        session gets their jars.
        """
        _check_packages()
        from rocketspark.spark.lakehouse.object_store import check_place
        from rocketspark.spark.lakehouse.table import TablePlace
        from rocketspark.spark.pipelines.connection import pairs
        from rocketspark.spark.pipelines.parts.progress import stderr_progress
        from rocketspark.spark.pipelines.parts.session import SessionOptions, check_options, open_session

        with wrong_usage():
            given = pairs([*conf, *(self.conf or ())], "--conf")
            tables = tuple(one for one in archives if isinstance(one, TablePlace))
            wanted = SessionOptions(self.master, self.remote, given, reads + writes, tables)
            check_options(wanted)
        progress = stderr_progress(name)
        asked = _ended_at_once() if only_reads else progress.signals()
        if sys.stderr.isatty():
            print(f"{name}: starting Spark, which takes some seconds", file=sys.stderr)
        with open_session(name, wanted) as spark, asked, self._metrics(spark, progress):
            for place in dict.fromkeys((*reads, *writes, *(table.place for table in tables))):
                check_place(spark, place, writes=place in writes)
            yield spark, progress

    def _metrics(self, spark: SparkSession, progress: Progress) -> AbstractContextManager[object]:
        """Serve metrics while the block runs, if they are wanted."""
        if self.metrics_port is None:
            return nullcontext()
        from rocketspark.spark.metrics.listening import listen_to_pipeline

        # Made once: a key on the command line has a warning.
        options, made = _MADE.get((None, None))
        where = made if options is self and made is not None else self.connection()
        listening = listen_to_pipeline(spark, where.namesrv, where.access, progress, self.metrics_port)
        progress.say(f"metrics at {listening.url}")
        return listening

    def finish(self, result: Any, progress: Progress, *, code: int = 0, ends: bool = True) -> None:
        """Print a pipeline's result and end the command with `code`. If the user stopped it, say how to go on, and end
        with 130, unless the pipeline runs until it is stopped (ends=False).
        """
        from rocketspark.spark.pipelines.parts.progress import EXIT_STOPPED
        from rocketspark.spark.pipelines.parts.report import plain, show

        show(plain(result), json=self.json)
        if progress.stop.asked:
            print(f"{progress.name}: stopped; the same command goes on from here", file=sys.stderr, flush=True)
            code = code or (EXIT_STOPPED if ends else 0)
        if code:
            raise typer.Exit(code)


def not_empty(**options: str | None) -> None:
    """Raise BadParameter for an option whose value is empty, as a shell variable that is not set leaves it."""
    for name, value in options.items():
        if value is not None and not value.strip():
            option = f"--{name.replace('_', '-')}"
            raise typer.BadParameter(f"{value!r}: give it a value, or leave it out", param_hint=option)


def check_archive(archive: Path | TablePlace | None) -> None:
    """Raise ConfigError, before Spark starts, for a folder that is no archive."""
    if isinstance(archive, Path):
        from rocketspark.spark.pipelines.parts.archive_manifest import read_manifest

        read_manifest(archive)


@contextmanager
def _ended_at_once() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt while the block runs; the work it cut short is not logged."""

    def end(number: int, frame: Any) -> None:
        logging.disable(logging.CRITICAL)
        warnings.simplefilter("ignore", RuntimeWarning)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _check_packages() -> None:
    import importlib.util

    from rocketspark.errors import ConfigError

    for module in ("pyspark", "pandas", "pyarrow"):
        if importlib.util.find_spec(module) is None:
            raise ConfigError(
                f"pipelines need Spark, and the package {module} is missing: pip install 'rocketspark[spark]'"
            )


_HELP = "2026-01-31T12:00Z (UTC where no zone is named), ms since 1970, or how long ago: 90s, 15m, 24h, 7d."
Since = Annotated[str, typer.Option("--since", help=f"Begin: {_HELP}", show_default=False)]
Until = Annotated[str, typer.Option("--until", help="End, not included; as --since.", show_default=False)]
_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def check_times(since_ms: int | None, until_ms: int | None) -> None:
    """Raise BadParameter for a time range that is empty, before anything is started."""
    from rocketspark.errors import ConfigError
    from rocketspark.tables.option_values import check_range

    try:
        check_range(since_ms, until_ms)
    except ConfigError as e:
        raise typer.BadParameter(str(e), param_hint="--until") from None


def time_range(since: str | None, until: str | None) -> tuple[int | None, int | None]:
    """Return --since and --until in ms since 1970. Raises BadParameter, also for a range that is empty."""
    found = moment("--since", since), moment("--until", until)
    check_times(*found)
    return found


def moment(option: str, text: str | None, now_ms: int | None = None) -> int | None:
    """Return the time that an option's text names, in ms since 1970; None if the option is not given. Raises
    BadParameter.

    `now_ms`: the time from which texts such as 24h count back; by default now.
    """
    text = (text or "").strip()
    if not text:
        return None
    if ago := re.fullmatch(r"([0-9]{1,9})([smhd])", text):
        now_ms = int(time.time() * 1000) if now_ms is None else now_ms
        return max(0, now_ms - int(ago[1]) * _UNITS_MS[ago[2]])
    from rocketspark.errors import ConfigError
    from rocketspark.tables.option_values import time_ms

    try:
        return time_ms(option, text)
    except (ValueError, OverflowError) as e:
        if isinstance(e, ConfigError) and "may be a date" in str(e):
            raise typer.BadParameter(str(e), param_hint=option) from None
        wanted = "a time such as 2026-01-31T12:00, ms since 1970, or how long ago, such as 24h, is needed"
        raise typer.BadParameter(f"{shown(text, characters_max=60)!r}: {wanted}", param_hint=option) from None
