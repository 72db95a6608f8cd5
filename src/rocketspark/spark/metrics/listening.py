"""listen(): metrics of a session's streaming queries for Prometheus. Rule: wrong settings are refused before anything
starts; after that no query is disturbed by being watched.
"""

from __future__ import annotations

import contextlib
import difflib
import uuid
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from pyspark.sql.streaming.listener import StreamingQueryListener

from rocketspark.errors import ConfigError, RocketSparkError
from rocketspark.model import stream_progress
from rocketspark.model.limited_log import LimitedLog
from rocketspark.spark.metrics.lag_watch import LagWatch
from rocketspark.spark.metrics.progress_reports import parse_report
from rocketspark.spark.metrics.query_figures import QueryFigures, wall_s
from rocketspark.tables.client_access import Access
from rocketspark.tables.given_options import snake_case
from rocketspark.tables.options import ACCESS_NAMES, READER_GROUP, parse_access
from rocketspark.transport.connections import parse_addresses

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from pyspark.sql import SparkSession

    from rocketspark.spark.metrics.exposition import ScrapeThread
    from rocketspark.spark.pipelines.parts.progress import Progress


log = LimitedLog("rocketspark.spark")


class QueryListener(StreamingQueryListener):
    """Counts the events of streaming queries that Spark tells its listeners. With Spark Connect it is in the client."""

    def __init__(self, figures: QueryFigures) -> None:
        self._figures = figures

    def onQueryStarted(self, event: Any) -> None:
        """Count the start of a query."""
        self._safely("started", lambda: self._figures.started(str(event.runId), str(event.id), event.name))

    def onQueryProgress(self, event: Any) -> None:
        """Count what a trigger of a query did."""

        def count() -> None:
            told = event.progress
            self._figures.progressed(str(told.runId), str(told.id), told.name, parse_report(told))

        self._safely("progress", count)

    def onQueryIdle(self, event: Any) -> None:
        """Note that a query waits for messages."""
        self._safely("idle", lambda: self._figures.idled(str(event.runId)))

    def onQueryTerminated(self, event: Any) -> None:
        """Count the end of a query, with an error or without."""
        self._safely(
            "terminated",
            lambda: self._figures.ended(
                str(event.runId), str(event.id), failed=event.exception is not None, error=str(event.exception or "")
            ),
        )

    def _safely(self, kind: str, count: Callable[[], None]) -> None:
        try:
            count()
        except Exception:
            self._figures.listener_failed(kind)
            log.exception("an event of a query could not be counted")


HOST = "127.0.0.1"
LAG_INTERVAL_S, LAG_INTERVAL_MIN_S = 15.0, 1.0
QUERIES_MAX, TOPICS_MAX = 20, 50
LABELS_LIMIT = 10_000

More = Callable[[], "list[Metric]"]


class Settings(NamedTuple):
    """The settings of `listen`: where metrics are served, who tells the lag, and how many labels there may be."""

    port: int = 0
    host: str = HOST
    namesrv: str = ""
    access: Access = Access()
    consumer_group: str = READER_GROUP
    lag_interval_s: float = LAG_INTERVAL_S
    queries_max: int = QUERIES_MAX
    topics_max: int = TOPICS_MAX


def listen(
    spark: SparkSession,
    port: int = 0,
    *,
    host: str = HOST,
    namesrv: str = "",
    consumer_group: str = READER_GROUP,
    lag_interval_s: float = LAG_INTERVAL_S,
    queries_max: int = QUERIES_MAX,
    topics_max: int = TOPICS_MAX,
    **access: str | bool | None,
) -> Listening:
    """Serve metrics of the session's streaming queries at http://host:port/metrics, and their progress for the console
    at http://host:port/progress, until `stop` is called on the result. Port 0: a free one.

    `namesrv`: the NameServers of the cluster whose brokers are asked for the lag, every `lag_interval_s` at most; "":
    no lag. `consumer_group`: the group by whose name they are asked. `access`: keys and TLS, named as the options of a
    read: access_key, secret_key, secret_key_file, security_token, namespace, use_tls, tls_ca, tls_cert, tls_key, …
    `queries_max`, `topics_max`: so many queries and topics have labels of their own; the others share the label
    `other`.

    Raises ConfigError for an argument that cannot be used, and for a port that cannot be had.
    """
    settings = Settings(port, host, namesrv, _access(access), consumer_group, lag_interval_s, queries_max, topics_max)
    return listen_with(spark, settings)


def listen_with(spark: SparkSession, settings: Settings, more: More | None = None) -> Listening:
    """Do what `listen` does, with its arguments as one value. `more`: returns further metrics to serve."""
    _check(settings)
    if not hasattr(spark, "streams"):
        raise ConfigError(f"listen() needs a SparkSession, not {type(spark).__name__}")
    if _is_stopped(spark):
        raise ConfigError("listen() needs a session that runs, and this one is stopped: make another")
    try:
        from rocketspark.spark.metrics.exposition import ScrapeThread, families
    except ImportError as e:
        raise ConfigError("metrics need prometheus-client: pip install 'rocketspark[metrics]'") from e

    lag: LagWatch | None = None
    figures = QueryFigures(
        queries_max=settings.queries_max,
        topics_max=settings.topics_max,
        heard=lambda: lag.notify() if lag is not None else None,
        now_s=wall_s,
    )
    if settings.namesrv:
        lag = LagWatch(figures.positions, partial(_open, settings), interval_s=settings.lag_interval_s)
    server = ScrapeThread(
        lambda: families(figures, lag) + (more() if more is not None else []),
        {stream_progress.PATH: lambda: msgspec.json.encode(figures.progress())},
    )
    server.start(settings.host, settings.port)
    try:
        listener = _add_listener(spark, figures)
    except BaseException:
        server.stop()
        raise
    if lag is not None:
        lag.start()
    return Listening(spark, settings.host, figures, server, lag, listener)


def _is_stopped(spark: SparkSession) -> bool:
    if hasattr(type(spark), "is_stopped"):  # Of Spark Connect.
        return bool(getattr(spark, "is_stopped"))  # noqa: B009
    context = getattr(spark, "_sc", None)
    return context is not None and getattr(context, "_jsc", context) is None


class Listening:
    """Metrics that are being served at `url`; `stop` ends that, also at the end of a `with` block."""

    def __init__(
        self,
        spark: SparkSession,
        host: str,
        figures: QueryFigures,
        server: ScrapeThread,
        lag: LagWatch | None,
        listener: QueryListener,
    ) -> None:
        self._spark, self._host = spark, host
        self.figures, self._server, self._lag, self._listener = figures, server, lag, listener
        self._open = True

    def __repr__(self) -> str:
        return f"Listening({self.url!r})" if self._open else "Listening(stopped)"

    @property
    def port(self) -> int:
        """The port that metrics are served on."""
        return self._server.port

    @property
    def url(self) -> str:
        """The address at which Prometheus reads the metrics."""
        return f"http://{f'[{self._host}]' if ':' in self._host else self._host}:{self.port}/metrics"

    def stop(self) -> None:
        """Stop serving metrics and listening to queries; the queries go on. A second call does nothing."""
        if not self._open:
            return
        self._open = False
        self._server.stop()
        if self._lag is not None:
            self._lag.stop()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._spark.streams.removeListener(self._listener)
        except Exception as e:
            # The session may be gone, and the listener with it.
            log.info("the listener was not removed: %s", e)

    def __enter__(self) -> Listening:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


def _check(settings: Settings) -> None:
    """Raise ConfigError for the first setting that is wrong."""
    _check_number("port", settings.port, 0, 65535)
    _check_number("queries_max", settings.queries_max, 1, LABELS_LIMIT)
    _check_number("topics_max", settings.topics_max, 1, LABELS_LIMIT)
    interval_s = settings.lag_interval_s
    is_number = isinstance(interval_s, int | float) and not isinstance(interval_s, bool)
    if not is_number or not LAG_INTERVAL_MIN_S <= interval_s <= 86_400:
        raise ConfigError(f"lag_interval_s is {interval_s!r}: {LAG_INTERVAL_MIN_S:g} to 86400 seconds are needed")
    if not isinstance(settings.host, str) or not settings.host.strip():
        raise ConfigError(f"host is {settings.host!r}: the address to listen on is needed, such as {HOST}")
    if not isinstance(settings.namesrv, str):
        raise ConfigError(f"namesrv is {settings.namesrv!r}: host:port is needed")
    if settings.namesrv:
        parse_addresses(settings.namesrv)
        settings.access.checked_tls()


def _check_number(name: str, value: Any, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ConfigError(f"{name} is {value!r}: a whole number from {least} to {most} is needed")


def _access(given: dict[str, str | bool | None]) -> Access:
    """Return the access of arguments with names such as access_key or accessKey. Raises ConfigError."""
    known = {snake_case(name): name for name in ACCESS_NAMES}
    options = {}
    for name, value in given.items():
        camel = known.get(name) or (name if name in ACCESS_NAMES else None)
        if camel is None:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}"
            raise ConfigError(f"listen() has no argument {name!r}: {hint}")
        if isinstance(value, bool):
            value = str(value).lower()
        if value is not None:
            options[camel.lower()] = value
    return parse_access(options)


def _open(settings: Settings) -> Any:
    from rocketspark.tables.cluster_queries import ClusterQueries

    addresses = ";".join(parse_addresses(settings.namesrv))
    return ClusterQueries(addresses, group=settings.consumer_group, access=settings.access)


def _add_listener(spark: SparkSession, figures: QueryFigures) -> QueryListener:
    """Add a listener to the session, and note the queries that run. Raises RocketSparkError."""

    listener = QueryListener(figures)
    try:
        with warnings.catch_warnings():
            # Connect's client only warns if the server refuses; then its list is without the listener.
            warnings.simplefilter("ignore")
            spark.streams.addListener(listener)
        heard_by = getattr(getattr(spark.streams, "_sqlb", None), "_listener_bus", None)
        if isinstance(heard_by, list) and listener not in heard_by:
            raise RocketSparkError("the Spark Connect server did not take the listener: look at its log")
        for query in spark.streams.active:
            with contextlib.suppress(Exception):
                figures.started(str(query.runId), str(query.id), query.name)
    except RocketSparkError:
        raise
    except Exception as e:
        text = str(e).strip().partition("\n")[0] or type(e).__name__
        raise RocketSparkError(f"no listener could be added to the session: {text}; is it stopped?") from e
    return listener


def listen_to_pipeline(
    spark: SparkSession,
    namesrv: str,
    access: Access,
    progress: Progress,
    port: int,
    *,
    lag_interval_s: float = LAG_INTERVAL_S,
) -> Listening:
    """Serve metrics of a pipeline's command on 127.0.0.1 until `stop`: of its streaming queries, of its other steps as
    if they were a query of the pipeline's name, and of the progress that it prints. Raises ConfigError if the port
    cannot be had.
    """

    def more() -> list[Metric]:
        from rocketspark.spark.metrics.exposition import pipeline_families

        return pipeline_families(progress.name, progress.rows, progress.waiting, progress.seconds)

    settings = Settings(port=port, namesrv=namesrv, access=access, lag_interval_s=lag_interval_s)
    listening = listen_with(spark, settings, more)
    run = uuid.uuid4().hex

    def hear(report: Mapping[str, Any]) -> None:
        listening.figures.progressed(run, run, progress.name, parse_report(report))

    progress.hear = hear
    return listening
