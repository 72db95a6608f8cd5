"""The pipeline `sql`: runs a file of sources, SQL steps and sinks. Rule: a streaming sink has a checkpoint of its own,
so that it goes on where it was; a batch sink deletes what is there only if its mode says so.

Before anything is written, the places of all sinks are checked: Spark's file sinks leave out batches whose numbers
their folder has already, whoever wrote them, and no reader would see other files beside a stream's.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rocketspark.errors import ConfigError, RocketSparkError
from rocketspark.model.text import shown
from rocketspark.spark.lakehouse import object_store
from rocketspark.spark.lakehouse.decoded_columns import path_of
from rocketspark.spark.metrics.progress_reports import parse_report
from rocketspark.spark.pipelines.connection import Connection, connection
from rocketspark.spark.pipelines.parts.progress import Progress, has_ended
from rocketspark.spark.pipelines.parts.session import one_line_errors
from rocketspark.spark.pipelines.parts.sql_file import ROCKETMQ, SqlPlan, SqlSink, SqlSource, options_of
from rocketspark.spark.pipelines.parts.streaming import WantedEnd, check_servers, end_of_topics, start_query
from rocketspark.spark.schemas import WRITE_TYPES
from rocketspark.tables.options import over

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


# Where from_json notes a body that does not fit; left out again.
_CORRUPT = "_rocketspark_corrupt"


class SinkResult(NamedTuple):
    """The result of one sink. `rows`: how many a batch wrote, or a stream read; `batches`: micro-batches, 1 for a
    batch; `bad_rows`: the rows of a stream that option decode kept as bad ones, or whose body is not the JSON that the
    source describes.
    """

    sink: str
    to: str
    rows: int
    batches: int
    bad_rows: int = 0


class SqlResult(NamedTuple):
    """The result of a run: that of each sink."""

    pipeline: str
    sinks: list[SinkResult]
    seconds: float


class ViewPlan(NamedTuple):
    """A view as a dry run shows it."""

    name: str
    streaming: bool
    columns: str


class DryRun(NamedTuple):
    """What a run would do: the views with their columns, and the sinks with the places they write to."""

    pipeline: str
    views: list[ViewPlan]
    sinks: list[dict[str, str]]


def run(
    spark: SparkSession,
    plan: SqlPlan,
    where: Connection | str,
    *,
    checkpoint: Path | str,
    interval_s: float | None = None,
    progress: Progress | None = None,
) -> SqlResult:
    """Run a plan: streams take what is there now and end; batches are read and written once.

    Args:
        where: the cluster of all sources and sinks of RocketMQ that name no `namesrv` of their own.
        checkpoint: folder or URL, of this plan alone, below which each streaming sink keeps its place, under its name.
        interval_s: given, streams go on, a micro-batch at most every so many seconds, until they are stopped.

    Raises ConfigError, also for a checkpoint that was read from another cluster, and RocketSparkError for what fails in
    Spark.
    """
    progress = progress or Progress("sql")
    with one_line_errors(), ExitStack() as made:
        where = connection(where, decodes=True)
        check_servers(checkpoint, servers_of(plan, where))
        frames = _frames(spark, plan, where, made)
        _check_sinks(spark, plan, frames, f"{checkpoint}")
        streaming = [(sink, frame) for sink, frame in frames if frame.isStreaming]
        results = [
            _write_batch(sink, frame, where, progress)
            for sink, frame in frames
            if not frame.isStreaming and not progress.stop.asked
        ]
        # Asked for once, and only where a Spark needs it.
        end = cache(partial(_end, plan, where))
        ends = {sink.name: WantedEnd(end, interval_s) for sink, _ in streaming}
        totals: dict[str, SinkResult] = {}
        bad: Counter[str] = Counter()

        def count_bad(report: Any) -> None:
            bad[report["name"]] += parse_report(report).bad_rows

        while streaming and not progress.stop.asked:
            queries: list[StreamingQuery] = []
            try:
                for sink, frame in streaming:
                    if not progress.stop.asked:
                        queries.append(_start(sink, frame, where, f"{checkpoint}", interval_s))
                tallies = progress.watch_all(queries, ended=_has_ended, told=count_bad)
            finally:
                for query in queries:
                    query.stop()
            for (sink, _), tally in zip(streaming, tallies, strict=False):
                before = totals.get(sink.name, SinkResult(sink.name, _target(sink), 0, 0))
                totals[sink.name] = before._replace(
                    rows=before.rows + tally.rows,
                    batches=before.batches + tally.batches,
                    bad_rows=bad[sink.name],
                )
            streaming = [
                one for one, query in zip(streaming, queries, strict=False) if ends[one[0].name].is_ahead(query)
            ]
        results += totals.values()
    return SqlResult(plan.name, results, round(progress.seconds, 3))


def dry_run(spark: SparkSession, plan: SqlPlan, where: Connection | str, *, checkpoint: Path | str) -> DryRun:
    """Check a plan by reading its sources and making its views, and write nothing. Raises as `run`."""
    with one_line_errors(), ExitStack() as made:
        where = connection(where, decodes=True)
        frames = _frames(spark, plan, where, made)
        _check_sinks(spark, plan, frames, f"{checkpoint}")
        views = []
        for name in plan.views:
            frame = spark.table(name)
            views.append(ViewPlan(name, frame.isStreaming, frame.schema.simpleString()[7:-1]))
        sinks = [
            {"sink": sink.name, "to": _target(sink), "kind": "stream" if frame.isStreaming else "batch"}
            | {"mode": _mode(sink), "deletes": _deleted(spark, sink)}
            for sink, frame in frames
        ]
    return DryRun(plan.name, views, sinks)


def _check_sinks(spark: SparkSession, plan: SqlPlan, frames: list[tuple[SqlSink, DataFrame]], checkpoint: str) -> None:
    """Raise ConfigError for a sink that cannot be written, or would delete or hide what is there unasked."""
    places = []
    for sink, frame in frames:
        if frame.isStreaming and sink.mode == OVERWRITE:
            raise ConfigError(f"sink {sink.name}: mode overwrite is for batches; append, update or complete is needed")
        if not frame.isStreaming and sink.mode not in (None, "append", OVERWRITE):
            raise ConfigError(f"sink {sink.name}: mode {sink.mode} is for streams; append or overwrite is needed")
        if sink.format != ROCKETMQ:
            place = _place(checkpoint, sink)
            places.append(SinkPlace(sink.name, sink.format, _path(sink), sink.mode, frame.isStreaming, place))
    kept = [path for source in plan.sources if source.format != ROCKETMQ and (path := _path(source))]
    check_places(spark, places, (checkpoint, *kept))


def _path(part: SqlSource | SqlSink) -> str:
    return next((value for name, value in options_of(part).items() if name.lower() == "path"), "")


def _place(checkpoint: str, sink: SqlSink) -> str:
    """Return where a streaming sink keeps its place."""
    return f"{checkpoint.rstrip('/')}/{sink.name}"


def _mode(sink: SqlSink) -> str:
    """Return a sink's mode: unless it says so, nothing that is there is deleted."""
    return sink.mode or "append"


def _deleted(spark: SparkSession, sink: SqlSink) -> str:
    """Tell what a sink will delete before it writes."""
    if sink.mode != OVERWRITE:
        return ""
    path = _path(sink)
    return f"all in {path} ({len(entries(spark, path))} files and folders)" if path else "what is there"


def _frames(spark: SparkSession, plan: SqlPlan, where: Connection, made: ExitStack) -> list[tuple[SqlSink, DataFrame]]:
    """Make a view of each source and step; return each sink with its rows. `made` drops the views at its end."""

    def view(kind: str, name: str, make: Callable[[], DataFrame]) -> None:
        # A view of that name in the session is not ours to replace: that is an error.
        _named(kind, name, lambda: make().createTempView(name))
        made.callback(spark.catalog.dropTempView, name)

    for source in plan.sources:
        view("source", source.name, lambda s=source: _told(source_frame(spark, s, where, counts_bad=True), s))  # type: ignore[misc]
    for step in plan.steps:
        view("step", step.name, lambda s=step: spark.sql(s.sql))  # type: ignore[misc]
    frames: list[tuple[SqlSink, DataFrame]] = []
    for sink in plan.sinks:

        def make(sink: SqlSink = sink) -> DataFrame:
            return spark.table(sink.view) if sink.view is not None else spark.sql(sink.sql or "")

        frames.append((sink, sink_frame(sink, _named("sink", sink.name, make))))
    return frames


def _named(kind: str, name: str, make: Any) -> Any:
    """Return the result of `make`; an error names the part it was about."""
    try:
        with one_line_errors():
            return make()
    except RocketSparkError as e:
        raise RocketSparkError(f"{kind} {name}: {e}") from e


def source_frame(spark: SparkSession, source: SqlSource, where: Connection, *, counts_bad: bool = False) -> DataFrame:
    """Return the rows of a source, with column `value` if the source describes its bodies as JSON. `counts_bad`: a
    stream's progress reports tell how many bodies were bad.
    """
    reader = spark.readStream if source.stream else spark.read
    reader = reader.format(source.format).options(**options_with(source, where))
    if source.schema is not None:
        reader = reader.schema(source.schema)
    frame = reader.load()
    if source.json is not None:
        frame = _with_json(frame, source, counts_bad=counts_bad)
    if source.watermark is not None:
        column, delay = source.watermark.split(None, 1)
        frame = frame.withWatermark(column, delay)
    return frame


def _with_json(frame: DataFrame, source: SqlSource, *, counts_bad: bool) -> DataFrame:
    """Return a frame with the JSON of bodies as column `value`; that of a stream tells, if it `counts_bad`, how many
    were none of these columns.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    assert source.json is not None
    text = F.col("body").cast("string")
    try:
        kind = StructType.fromDDL(source.json) if counts_bad and source.stream else None
    except Exception:  # It is another kind of schema, or none, which from_json says.
        kind = None
    if not isinstance(kind, StructType) or _CORRUPT in kind.fieldNames():
        return frame.withColumn("value", F.from_json(text, source.json))
    whole = StructType([*kind.fields]).add(_CORRUPT, "string")
    frame = frame.withColumn("value", F.from_json(text, whole, {"columnNameOfCorruptRecord": _CORRUPT}))
    bad = F.count_if(F.col("value").getField(_CORRUPT).isNotNull()).alias("bad_rows")
    return frame.observe(f"decoded {source.name}", bad).withColumn("value", F.col("value").dropFields(_CORRUPT))


def _told(frame: DataFrame, source: SqlSource) -> DataFrame:
    """Have each query of a stream tell how many rows are bad ones. Not of batches: filters would be pushed down no
    more.
    """
    from pyspark.sql import functions as F

    options = {name.lower(): value for name, value in options_of(source).items()}
    column = options.get("columnnameofdecodeerror") or "_decode_error"
    if not source.stream or source.format != ROCKETMQ or not options.get("decode") or column not in frame.columns:
        return frame
    return frame.observe(f"decoded {source.name}", F.count_if(F.col(path_of((column,))).isNotNull()).alias("bad_rows"))


def sink_frame(sink: SqlSink, frame: DataFrame) -> DataFrame:
    """Return rows in the form that a sink takes: for a topic, the columns that a message does not have become its body,
    as JSON.
    """
    from pyspark.sql import functions as F

    if sink.format != ROCKETMQ:
        return frame
    known = {name.lower(): name for name in WRITE_TYPES}
    for name in frame.columns:
        if (meant := known.get(name.lower(), name)) != name:
            # SQL does not tell them apart, and a body would silently become a field of another one.
            raise ConfigError(
                f"sink {sink.name}: column {shown(name)} is {meant} but for its capitals: name it AS {meant}"
            )
    if "body" in frame.columns:
        return frame
    kept = [name for name in frame.columns if name in WRITE_TYPES]
    told = [name for name in frame.columns if name not in WRITE_TYPES]
    if not told:
        raise ConfigError(f"sink {sink.name}: no column is left for the body: name one `body`, or select more")
    body = F.to_json(F.struct(*(F.col(path_of((name,))) for name in told))).alias("body")
    return frame.select(body, *(F.col(name) for name in kept))


def options_with(part: SqlSource | SqlSink, where: Connection) -> dict[str, str]:
    """Return the options of a source or sink; one of RocketMQ that names no cluster gets the pipeline's."""
    own = options_of(part)
    if part.format != ROCKETMQ or {"namesrv", "store"} & {name.lower() for name in own}:
        return own
    return over(where.spark_options(), own)


def _streams(plan: SqlPlan) -> list[SqlSource]:
    return [source for source in plan.sources if source.stream and source.format == ROCKETMQ]


def servers_of(plan: SqlPlan, where: Connection) -> dict[str, str]:
    """Return the NameServers that each stream of a plan is read from, by its name."""
    given = {source.name: options_with(source, where) for source in _streams(plan)}
    return {name: v for name, options in given.items() for option, v in options.items() if option.lower() == "namesrv"}


def _end(plan: SqlPlan, where: Connection) -> dict[str, Any]:
    """Return where the topics of all streams of a plan end now."""
    ends: dict[str, Any] = {}
    for source in _streams(plan):
        ends |= end_of_topics(options_with(source, where))
    return ends


def _target(sink: SqlSink) -> str:
    options = options_of(sink)
    return f"{sink.format} {options.get('topic') or options.get('path') or ''}".strip()


def _write_batch(sink: SqlSink, frame: DataFrame, where: Connection, progress: Progress) -> SinkResult:
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    observation = Observation(f"rows of {sink.name}")
    writer = frame.observe(observation, F.count(F.lit(1)).alias("rows")).write.format(sink.format)
    writer = writer.options(**options_with(sink, where)).mode(_mode(sink))
    if sink.partition_by:
        writer = writer.partitionBy(*sink.partition_by)
    progress.say(f"{sink.name}: writing to {_target(sink)}")
    _named("sink", sink.name, writer.save)
    rows = int(observation.get["rows"])
    progress.update(rows, note=sink.name, now=True)
    return SinkResult(sink.name, _target(sink), rows, 1)


def _start(
    sink: SqlSink, frame: DataFrame, where: Connection, checkpoint: str, interval_s: float | None
) -> StreamingQuery:
    writer = frame.writeStream.format(sink.format).options(**options_with(sink, where)).outputMode(_mode(sink))
    if sink.partition_by:
        writer = writer.partitionBy(*sink.partition_by)
    start = partial(start_query, writer, name=sink.name, checkpoint=_place(checkpoint, sink), interval_s=interval_s)
    started: StreamingQuery = _named("sink", sink.name, start)
    return started


def _has_ended(query: StreamingQuery) -> bool:
    """Wait a moment for a query's end; an error names the sink."""
    ended: bool = _named("sink", query.name, partial(has_ended, query))
    return ended


OVERWRITE = "overwrite"
# What is written by Spark's file sinks, which keep the numbers of their batches in the folder.
_FILES = frozenset({"avro", "csv", "json", "orc", "parquet", "text", "xml"})
_LOG = "_spark_metadata"
# Where a batch's tasks put their files until all are done.
_UNFINISHED = "_temporary"
_ENTRIES_MAX = 10_000


class SinkPlace(NamedTuple):
    """Where a sink writes. `mode`: the option as given; `checkpoint`: where a stream keeps its progress."""

    name: str
    format: str
    path: str
    mode: str | None
    streaming: bool
    checkpoint: str

    @property
    def is_file_stream(self) -> bool:
        """True if a stream is written into files."""
        return self.streaming and self.format.lower() in _FILES


def check_places(spark: SparkSession, sinks: Sequence[SinkPlace], kept: Iterable[str]) -> None:
    """Check where sinks write, before any of them does. `kept`: other places that no sink may delete.

    Raises ConfigError for a sink that would delete or hide what somebody else wrote, or whose own rows would be left
    out.
    """
    kept = [path for path in kept if path]
    for sink in sinks:
        others = [other for other in sinks if other.name != sink.name and other.path]
        if sink.mode == OVERWRITE and sink.path:
            for path in (*kept, *(other.path for other in others)):
                if _overlap(sink.path, path):
                    raise ConfigError(
                        f"sink {sink.name}: mode overwrite deletes all in {sink.path}, and this run needs {path}: name"
                        " another folder"
                    )
        for other in others:
            if _whole(other.path) == _whole(sink.path) and (sink.is_file_stream or other.is_file_stream):
                raise ConfigError(f"sinks {other.name} and {sink.name} both write to {sink.path}: give each its own")
        if sink.is_file_stream:
            _check_stream(spark, sink)
        elif not sink.streaming:
            _check_batch(spark, sink)


def _check_stream(spark: SparkSession, sink: SinkPlace) -> None:
    planned = _newest(entries(spark, f"{sink.checkpoint}/offsets"))
    written = _newest(entries(spark, f"{sink.path}/{_LOG}"))
    if written > planned:
        raise ConfigError(
            f"sink {sink.name}: {sink.path} has batches up to {written} of another query or a newer checkpoint, and"
            f" Spark would leave out this one's up to there: name another folder, or with --checkpoint the one of the"
            f" query that wrote it (this is {sink.checkpoint})"
        )
    # Spark makes its log's folder before it plans: a start that failed or was killed there leaves that alone.
    if planned < 0 and set(entries(spark, sink.path)) - {_LOG}:
        raise ConfigError(
            f"sink {sink.name}: {sink.path} is not empty, and readers would not see what is there beside a stream's"
            " files: name another folder"
        )


def _check_batch(spark: SparkSession, sink: SinkPlace) -> None:
    if not sink.path:
        if sink.mode is None:
            raise ConfigError(f"sink {sink.name}: a mode is needed: append, or overwrite, which deletes what is there")
        return
    if sink.mode == OVERWRITE:
        return
    found = entries(spark, sink.path)
    if _UNFINISHED in found:
        raise ConfigError(
            f"sink {sink.name}: a batch that was killed, or is not over, left {sink.path}/{_UNFINISHED}, and Spark"
            " would take its files for this one's: delete that folder once nobody else writes there"
        )
    if sink.mode is None and found:
        raise ConfigError(
            f"sink {sink.name}: {sink.path} is not empty: give the sink mode append, or overwrite, which deletes"
            " all that is there, or name another folder"
        )
    if entries(spark, f"{sink.path}/{_LOG}"):
        raise ConfigError(
            f"sink {sink.name}: a stream writes to {sink.path}, and readers would not see other files there: name"
            " another folder"
        )


def entries(spark: SparkSession, place: str) -> list[str]:
    """Return the names in a folder; none if it does not exist. Over Spark Connect only the names that Spark's readers
    see.
    """
    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is None:
        return _seen_from_afar(spark, place)
    path = jvm.org.apache.hadoop.fs.Path(_uri(place))
    system = path.getFileSystem(spark._jsc.hadoopConfiguration())
    if not system.exists(path):
        return []
    names: list[str] = []
    found = system.listStatusIterator(path)
    while len(names) < _ENTRIES_MAX and found.hasNext():
        names.append(found.next().getPath().getName())
    return names


def _seen_from_afar(spark: SparkSession, place: str) -> list[str]:
    from pyspark.errors import AnalysisException

    try:
        files = spark.read.format("binaryFile").load(object_store.literal(place)).inputFiles()
    except AnalysisException as e:
        if "PATH_NOT_FOUND" in str(e):
            return []
        raise
    return [file.rpartition("/")[2] for file in files]


def _newest(names: Iterable[str]) -> int:
    """Return the highest number of a batch among the names of files: 7, 9.compact; -1 if there is none."""
    numbers = (name.partition(".")[0] for name in names)
    return max((int(number) for number in numbers if number.isdecimal()), default=-1)


def _uri(place: str) -> str:
    return object_store.uri(place) if object_store.scheme_of(place) else place


def _whole(place: str) -> str:
    """Return a place by which two can be compared."""
    scheme = object_store.scheme_of(place)
    if scheme == "file":
        place = "/" + place.partition(":")[2].lstrip("/")
    return _uri(place).rstrip("/") if scheme not in ("", "file") else os.path.realpath(place)


def _overlap(one: str, other: str) -> bool:
    """Tell whether two paths are the same, or one is in the other."""
    one, other = (_whole(path).rstrip("/") + "/" for path in (one, other))
    return one.startswith(other) or other.startswith(one)
