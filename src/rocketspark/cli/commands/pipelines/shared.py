"""The options of all pipeline commands, their begin and end. Rule: only a command that runs imports Spark."""

from __future__ import annotations

import logging
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from rocketspark.cli.options import HERE, ClusterAccess, Json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rocketspark.spark.pipelines.connection import Connection
    from rocketspark.spark.pipelines.progress import Progress

_SPARK = "Spark"
_CLUSTER = "Cluster"
Master = Annotated[
    str,
    typer.Option(
        help="Spark's master: local[4], spark://host:7077; from SPARK_MASTER, else all cores here.",
        show_default=False,
        rich_help_panel=_SPARK,
    ),
]
Remote = Annotated[
    str,
    typer.Option(help="A Spark Connect server, sc://host:port.", show_default=False, rich_help_panel=_SPARK),
]
Conf = Annotated[
    list[str] | None,
    typer.Option(help="A setting of Spark, name=value; may be repeated.", show_default=False, rich_help_panel=_SPARK),
]
Namespace = Annotated[
    str, typer.Option(help="The namespace of topics and groups.", show_default=False, rich_help_panel=_CLUSTER)
]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "-o",
        "--option",
        help='An option of format("rocketmq"), name=value (see docs/spark.md); may be repeated.',
        show_default=False,
        rich_help_panel=_CLUSTER,
    ),
]


@contextmanager
def wrong_usage() -> Iterator[None]:
    """Turn a UsageError raised in this block into typer's BadParameter."""
    from rocketspark.errors import UsageError

    try:
        yield
    except UsageError as e:
        raise typer.BadParameter(str(e)) from None


class SharedOptions(NamedTuple):
    """The options that all pipeline commands have, as they were given."""

    at: ClusterAccess = HERE
    namespace: Namespace = ""
    options: Options = None
    master: Master = ""
    remote: Remote = ""
    conf: Conf = None
    json: Json = False

    def connection(self) -> Connection:
        """Return the connection to the cluster. Raises ConfigError."""
        _check_packages()
        from rocketspark.spark.pipelines.connection import Connection, connection, pairs
        from rocketspark.transport.tls.client_tls import client_tls

        with wrong_usage():
            options = pairs(self.options, "--option")
        keys = self.at.client_options()
        tls = client_tls(keys.pop("use_tls", False), **{n: keys.pop(n) for n in list(keys) if n.startswith("tls_")})
        return connection(Connection(self.at.namesrv, self.namespace, **keys, options=options, tls=tls))

    @contextmanager
    def start(
        self, name: str, *, conf: tuple[str, ...] = (), only_reads: bool = False
    ) -> Iterator[tuple[SparkSession, Progress]]:
        """Give the session and the progress of a pipeline; Ctrl-C and SIGTERM ask it to stop, Spark's errors are one
        line.

        `conf`: settings that those given go before. One that `only_reads` has nothing to finish: they end it at once.
        """
        _check_packages()
        from rocketspark.spark.pipelines.connection import pairs
        from rocketspark.spark.pipelines.progress import stderr_progress
        from rocketspark.spark.pipelines.session import SessionOptions, check_options, open_session

        with wrong_usage():
            wanted = SessionOptions(self.master, self.remote, pairs([*conf, *(self.conf or ())], "--conf"))
            check_options(wanted)
        progress = stderr_progress(name)
        asked = _ended_at_once() if only_reads else progress.signals()
        with open_session(name, wanted) as spark, asked:
            yield spark, progress

    def finish(self, result: Any, progress: Progress, *, code: int = 0, ends: bool = True) -> None:
        """Print a result and end with `code`; if it was stopped, say how to go on, and unless it runs for ever
        (ends=False) end with 130.
        """
        from rocketspark.spark.pipelines.progress import EXIT_STOPPED
        from rocketspark.spark.pipelines.report import plain, show

        show(plain(result), json=self.json)
        if progress.stop.asked:
            print(f"{progress.name}: stopped; the same command goes on from here", file=sys.stderr, flush=True)
            code = code or (EXIT_STOPPED if ends else 0)
        if code:
            raise typer.Exit(code)


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
                f"pipelines need Spark, and the package {module} is missing: pip install rocketspark[spark]"
            )
