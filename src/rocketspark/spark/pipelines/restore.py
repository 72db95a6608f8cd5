"""The pipelines `restore` and `replay`: send an archive, or earlier messages of a topic, into a topic. Rule: the order
of each queue is kept, and rows that were sent are not sent again.

They work in chunks: before each chunk a small file notes how far each source queue is sent, and where the target's
queues ended then. Each row that is sent carries the restore's id and its old place; so after a chunk that was cut short
the target is searched, and only the rows that it does not hold are sent.
"""

from __future__ import annotations

import hashlib
import math
import re
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import msgspec

from rocketspark.client import validators
from rocketspark.errors import ConfigError, RouteNotFound
from rocketspark.model import namespace, subscribe, typed_json
from rocketspark.model.text import shown
from rocketspark.spark.lakehouse.formats import read_table, read_version
from rocketspark.spark.lakehouse.object_store import refuse_object_store
from rocketspark.spark.lakehouse.table import TablePlace, archive_at
from rocketspark.spark.pipelines.archive import run_tasks
from rocketspark.spark.pipelines.connection import Connection, connection, operations_of
from rocketspark.spark.pipelines.options import RestoreOptions
from rocketspark.spark.pipelines.parts.archive_manifest import (
    FILES,
    HOUR_MS,
    STATE,
    ArchiveFile,
    alone,
    hour_start_ms,
    read_manifest,
    replace_file,
)
from rocketspark.spark.pipelines.parts.progress import Progress, step_report
from rocketspark.spark.pipelines.parts.restore_plan import (
    ArchivedSpan,
    Queue,
    RestoreState,
    archived_spans,
    chunks,
    ends,
    map_queues,
    read_state,
)
from rocketspark.spark.pipelines.parts.restore_tasks import (
    ArchiveSource,
    QueueShare,
    RowSelection,
    SendTask,
    TableSource,
    TaskReport,
    TopicSource,
    hour_bounds,
    queue_offsets,
    topic_reader,
)
from rocketspark.spark.pipelines.parts.session import one_line_errors
from rocketspark.spark.pipelines.parts.streaming import file_name
from rocketspark.spark.schemas import READ_SCHEMA
from rocketspark.tables.cluster_queries import remade
from rocketspark.tables.offset_ranges import made_of
from rocketspark.tables.option_values import check_range
from rocketspark.transport.connections import in_one_form

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DEFAULTS = RestoreOptions()
# With a rate, a chunk is what may be sent in so many seconds.
CHUNK_S = 2.0
# After a kill, abandoned tasks may still send: no chunk begins before the target got no message for so long.
QUIET_S = 3.0
QUIET_TRIES = 10
# Of the rows that may not be written, the progress file names so many.
REFUSED_KEPT_MAX = 1000
REPLAYS = Path(".rocketspark") / "replays"
RESTORES = Path(".rocketspark") / "restores"


class MovedQueue(NamedTuple):
    """A source queue, its target queue, and how many of its rows the filters left to send."""

    source: str
    target: str
    rows: int


class RestoreResult(NamedTuple):
    """The result of a run. `rows`: how many were sent (in a dry run: would be); `already_there`: found in the target,
    from a run that was killed; `refused`: rows that may not be written as messages, which are left out and named in the
    progress file.
    """

    topic: str
    to: str
    restore_id: str
    rows: int
    already_there: int
    chunks: int
    queues: list[MovedQueue]
    dry_run: bool
    seconds: float
    stopped: bool
    refused: int = 0


def topics_of(folder: str | Path | TablePlace, spark: SparkSession | None = None) -> list[str]:
    """Return the topics that an archive holds. `spark`: needed for an archive that is a table."""
    folder = archive_at(folder)
    if isinstance(folder, TablePlace):
        assert spark is not None
        return sorted(row.topic for row in read_table(spark, folder).select("topic").distinct().collect())
    return sorted({file.topic for file in read_manifest(Path(folder)).files})


@one_line_errors()
def restore(
    spark: SparkSession,
    folder: str | Path | TablePlace,
    where: Connection | str,
    topic: str | None = None,
    to: str | None = None,
    options: RestoreOptions = DEFAULTS,
    *,
    progress: Progress | None = None,
    sure: Callable[[str], None] | None = None,
) -> RestoreResult:
    """Send an archive's rows of one topic (the only one, if it is not named) to the topic `to` (the same name).

    sure: called before a first run sends into a topic that holds messages, with a text that says so; it may raise.
    Raises ConfigError, RouteNotFound, RocketSparkError.
    """
    check_options(options)
    _check_target(to)
    folder = archive_at(folder)
    since_ms, until_ms = options.since_ms, options.until_ms
    files: list[ArchiveFile] = []
    if isinstance(folder, TablePlace):
        topic = _chosen(topic, topics_of(folder, spark), folder)
        rows, archive_id = read_version(spark, folder)
        source: ArchiveSource | TableSource = TableSource(_rows_of(rows, topic, since_ms, until_ms))
        state, place = RESTORES, str(folder)
    else:
        root = folder.absolute()
        manifest = read_manifest(root)
        held, archive_id = manifest.files, manifest.id
        topic = _chosen(topic, sorted({file.topic for file in held}), root)
        files = [file for file in held if file.topic == topic and _overlaps(file, since_ms, until_ms)]
        if not (root / FILES).is_dir():
            raise ConfigError(
                f"{root / FILES} is gone: run `rocketspark pipeline archive` on it once, which makes it anew"
            )
        source, state, place = ArchiveSource(root, files), root / STATE / "restores", ""
        if options.state:
            # Such a folder may have the progress of several archives.
            place = str(root.resolve())
    progress = progress or Progress("restore")
    job = _Job(spark, connection(where), (topic, to or topic), options, state, progress, place=place, sure=sure)
    with job:
        if options.state and isinstance(source, ArchiveSource):
            job.check_nameless()
        job.check_archive(archive_id, folder)
        return job.run(source, archived_spans(source.ranges() if isinstance(source, TableSource) else files))


def _chosen(topic: str | None, topics: Sequence[str], archive: Path | TablePlace) -> str:
    if topic is None and len(topics) == 1:
        return topics[0]
    if topic is None or topic not in topics:
        asked = f"no topic {topic!r}" if topic else "several topics: name one"
        there = f"{asked}; there are: {', '.join(topics)}" if topics else "nothing"
        raise ConfigError(f"the archive {archive} holds {there}")
    return topic


def _rows_of(rows: DataFrame, topic: str, since_ms: int | None, until_ms: int | None) -> DataFrame:
    """Return the rows of a topic, of the hours that matter: the partitions of a table."""
    from pyspark.sql import functions as F

    # Decoded columns are not sent.
    rows = rows.select(*READ_SCHEMA.names, "hour").where(F.col("topic") == topic)
    first, last = hour_bounds(since_ms, until_ms)
    rows = rows if first is None else rows.where(F.col("hour") >= first)
    return rows if last is None else rows.where(F.col("hour") <= last)


@one_line_errors()
def replay(
    spark: SparkSession,
    where: Connection | str,
    topic: str,
    to: str,
    options: RestoreOptions = DEFAULTS,
    *,
    target: Connection | str | None = None,
    progress: Progress | None = None,
    sure: Callable[[str], None] | None = None,
) -> RestoreResult:
    """Send the messages of a topic to the topic `to`, of the same cluster or of `target`'s; arguments as of `restore`.

    Which offsets are sent is fixed when it first runs.
    """
    check_options(options)
    _check_target(to)
    source = connection(where)
    goal = connection(target) if target is not None else source
    place, listed = _source_place(source, goal), _source_place(source, goal, one_form=str)
    progress = progress or Progress("replay")
    job = _Job(spark, goal, (topic, to), options, REPLAYS, progress, place=place, listed=listed, sure=sure)
    with job:
        if not place:
            job.check_nameless()
        found = job.state
        if found.until is None or found.since is None:
            since = _table_at(source, topic, options.since_ms, "earliest")
            found.made = list(made_of(since).items())
            found.since = list(queue_offsets(topic, since).items())
            found.until = list(_offsets_at(source, topic, options.until_ms, "latest").items())
        elif found.made is None:
            found.made = list(made_of(_table_at(source, topic, None, "latest")).items())
        begin = dict(found.since)
        group = [
            ArchivedSpan(queue, begin.get(queue, 0), end, end - begin.get(queue, 0))
            for queue, end in sorted(found.until)
            if end > begin.get(queue, 0)
        ]
        return job.run(TopicSource(source, topic, dict(found.made)), [group] if group else [])


def _source_place(source: Connection, goal: Connection, one_form: Callable[[str], str] = in_one_form) -> str:
    """Return what tells a replay's source apart from others with the same topics and target: another cluster, or
    options that choose messages; "" if neither is given.
    """
    servers, others = map(one_form, (source.namesrv, goal.namesrv))
    cluster = [servers, source.namespace] if (servers, source.namespace) != (others, goal.namespace) else []
    chosen = {name: value for name, value in source.choosing.items() if value}
    return msgspec.json.encode([*cluster, sorted(chosen.items())]).decode() if cluster or chosen else ""


def _check_target(to: str | None) -> None:
    """Raise ConfigError for a target topic whose name is empty: that does not stand for the source topic."""
    if to is not None and not to.strip():
        raise ConfigError(f"to is {to!r}: the target topic's name is needed")


def check_options(options: RestoreOptions) -> None:
    """Raise ConfigError for a time range that is empty, a rate or a chunk of no rows."""
    check_range(options.since_ms, options.until_ms)
    rate = options.rate
    if rate is not None and not 0 < rate < math.inf:
        raise ConfigError(f"rate is {rate}: rows per second, more than 0, or None for no limit, are needed")
    if options.chunk_rows < 1:
        raise ConfigError(f"chunk_rows is {options.chunk_rows}: 1 or more are needed")


def _check_speculation(spark: SparkSession | None) -> None:
    """Raise ConfigError if Spark may run two attempts at a task at once: both would send its rows."""
    if spark is None or spark.conf.get("spark.speculation", "false") != "true":
        return
    if not re.fullmatch(r"local(\[.*\])?", spark.conf.get("spark.master", "") or ""):
        raise ConfigError(
            "spark.speculation is true: Spark may run two attempts at a task at once, and both would send its messages;"
            " start the session with spark.speculation=false"
        )


class _Tally:
    """What a run sent so far: rows sent, found in the target, and refused; chunks; and rows by source queue."""

    def __init__(self) -> None:
        self.sent = self.there = self.refused = self.chunks = 0
        self.moved: Counter[Queue] = Counter()

    def add(self, told: TaskReport) -> None:
        """Count what one task did."""
        self.sent += told.sent
        self.there += told.skipped
        self.refused += told.refused
        self.moved.update(dict(told.wanted))


class _Job:
    """One restore of one topic; a context manager. `folder`: of the progress file, unless the options name one; what an
    earlier run noted there is loaded. `place`: what tells the source apart in that folder; `listed`: what it was in
    earlier versions, which took servers as they were listed.
    """

    def __init__(
        self,
        spark: SparkSession,
        where: Connection,
        topics: tuple[str, str],
        options: RestoreOptions,
        folder: Path,
        progress: Progress,
        *,
        place: str = "",
        listed: str = "",
        sure: Callable[[str], None] | None = None,
    ) -> None:
        validators.check_target(topics[1])
        if topics[1].startswith(validators.RETRY_PREFIX):
            raise ConfigError(f"topic {topics[1]!r} is a group's own, for messages to be delivered again: name another")
        self._spark, self._where, self._topics, self._options = spark, where, topics, options
        self._wanted = RowSelection(options.since_ms, options.until_ms, _tags(options.tags))
        self._progress, self._sure = progress, sure
        folder = Path(options.state) if options.state else folder
        refuse_object_store(folder, "the progress of a restore", "name a folder with --state")
        self._folder = folder.absolute()
        self._path = self._named(in_one_form(where.namesrv), place)
        older = (self._named(where.namesrv, place), self._named(where.namesrv, listed or place))
        self._path = next(filter(Path.exists, older), self._path)
        self._held = ExitStack()

    def _named(self, servers: str, place: str) -> Path:
        """Return the path of a progress file. One that lies in its archive needs no `place`."""
        what = [servers, self._where.namespace, *self._topics, self._wanted, *([place] if place else [])]
        digest = hashlib.sha256(msgspec.json.encode(what)).hexdigest()[:12]
        return self._folder / f"{file_name(*self._topics)}-{digest}.json"

    def __enter__(self) -> Self:
        """Load the progress; unless it is a dry run, no other run of this restore begins before the block has ended.
        Raises ConfigError if one runs.
        """
        if not self._options.dry_run:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            text = f"another process does this, with the progress file {self._path}: wait until it ends, or stop it"
            self._held.enter_context(alone(self._path.with_suffix(".lock"), text))
        self.state = self._loaded()
        self._is_first = not self._options.again and not self.state.reach
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def _loaded(self) -> RestoreState:
        """Return the progress of an earlier run, or that of a new restore."""
        if self._options.again or not self._path.exists():
            return RestoreState(uuid.uuid4().hex)
        return read_state(self._path)

    def check_nameless(self) -> None:
        """Raise ConfigError for progress that does not tell of which archive it is, as earlier versions kept it."""
        for servers in (in_one_form(self._where.namesrv), self._where.namesrv):
            found, own = self._named(servers, ""), self._path
            if self._options.again or not found.exists() or (found != own and own.exists()):
                continue
            if read_state(found).until is None:
                raise ConfigError(
                    f"{found} is of a restore by an earlier version, and does not tell from which archive: rename it to"
                    f" {own.name} if it was from this one, else move it to another folder"
                )

    def check_archive(self, archive_id: str, archive: Path | TablePlace) -> None:
        """Note which archive is restored. Raises ConfigError if earlier runs sent rows of another one that was there:
        the offsets up to which they came say nothing of this one. One whose id is "" is not told apart.
        """
        if archive_id and self.state.archive not in ("", archive_id) and self.state.reach:
            raise ConfigError(
                f"{archive} is another archive than the one from which {self.state.rows:,} messages were sent,"
                " which was removed or moved since: bring that one back, or send all of this one with --again"
            )
        self.state.archive = archive_id or self.state.archive

    def run(
        self, source: ArchiveSource | TopicSource | TableSource, groups: Sequence[Sequence[ArchivedSpan]]
    ) -> RestoreResult:
        """Send the rows of spans, group by group, from where the last run ended."""
        options, state = self._options, self.state
        todo = chunks(groups, self._rows_max(), dict(state.sent))
        queues = sorted({span.queue for chunk in todo for span in chunk})
        left = _rows_in(span for chunk in todo for span in chunk)
        if left and not options.dry_run:
            _check_speculation(self._spark)
        if left and self._is_first:
            self._check_target(left)
        mapping = self._mapping(queues) if queues else {}
        self._check_sent()
        if state.doubtful and todo and not options.dry_run:
            self._await_quiet()
        tally = _Tally()
        began_s, rows_before = time.monotonic(), state.rows
        for chunk in todo:
            if self._progress.stop.asked:
                break
            self._note_begin(chunk)
            chunk_s, sent_before = time.monotonic(), tally.sent
            for told in self._send(source, chunk, mapping):
                tally.add(told)
                self._set_aside(told)
            tally.chunks += 1
            self._note_end(chunk, rows_before + tally.sent)
            steps_s = {"addBatch": time.monotonic() - chunk_s}
            self._progress.hear(step_report(tally.chunks, tally.sent - sent_before, steps_s))
            left -= _rows_in(chunk)
            self._progress.update(tally.sent, lag=left, note="dry run" if options.dry_run else "")
            if options.rate and not options.dry_run:
                self._progress.stop.wait(max(0.0, began_s + tally.sent / options.rate - time.monotonic()))
        return RestoreResult(
            *(*self._topics, state.id, tally.sent, tally.there, tally.chunks),
            [MovedQueue(_text(queue), _text(mapping[queue]), tally.moved[queue]) for queue in queues],
            *(options.dry_run, round(self._progress.seconds, 3), self._progress.stop.asked, tally.refused),
        )

    def _rows_max(self) -> int:
        """Return how many rows a chunk may have: with a rate what may be sent in CHUNK_S."""
        rows, rate = self._options.chunk_rows, self._options.rate
        return max(1, min(rows, round(rate * CHUNK_S))) if rate else rows

    def _note_begin(self, chunk: Sequence[ArchivedSpan]) -> None:
        """Note, before a chunk is sent, which rows may be in the target from now on and where that ends now."""
        if self._options.dry_run:
            return
        state = self.state
        if not state.doubtful:
            now = self._target()
            state.tail = list(queue_offsets(self._topics[1], now).items())
            if not state.rows:
                state.target_made = list(made_of(now).items())
        reach = dict(state.reach)
        after = {queue: max(end, reach.get(queue, 0)) for queue, end in ends(chunk, {}).items()}
        state.reach = list({**reach, **after}.items())
        self._save()

    def _note_end(self, chunk: Sequence[ArchivedSpan], rows: int) -> None:
        """Note that a chunk is sent, and how many rows are by now."""
        if not self._options.dry_run:
            self.state.sent, self.state.rows = list(ends(chunk, dict(self.state.sent)).items()), rows
            self._save()

    def _check_target(self, rows: int) -> None:
        """If the target holds messages already, say so and have `sure` confirm the run: readers would see both."""
        to = self._topics[1]
        try:
            held = sum(self._tail().values()) - sum(self._offsets("earliest").values())
        except RouteNotFound:
            return
        if held > 0:
            text = f"topic {to} holds {held:,} messages, and up to {rows:,} more are sent beside them"
            self._progress.say(text)
            if self._sure is not None and not self._options.dry_run:
                self._sure(text)

    def _check_sent(self) -> None:
        """Raise ConfigError if the target was made anew since earlier runs sent rows there, or never held so many."""
        if not self.state.rows:
            return
        try:
            now = self._target()
        except RouteNotFound:
            now = {}
        made, brokers = self.state.target_made, {broker for _, (broker, _) in self.state.mapping}
        if (
            now
            and made is not None
            and (broker := remade(self._where.namesrv, self._where.access, self._topics[1], dict(made), brokers))
        ):
            raise ConfigError(
                f"topic {self._topics[1]} was made anew on broker {broker}, or the broker's store was, since"
                f" {self.state.rows:,} messages were sent there; --again sends all once more"
            )
        if sum(queue_offsets(self._topics[1], now).values()) < self.state.rows:
            raise ConfigError(
                f"topic {self._topics[1]} never held the {self.state.rows:,} messages that were sent there: it was"
                " deleted since, or a broker of it is down; --again sends all once more"
            )

    def _set_aside(self, told: TaskReport) -> None:
        """Note rows that may not be written, in the progress file too."""
        for place, why in told.reasons:
            self._progress.say(f"set aside: message {shown(place)}: {shown(why)}")
        known = dict(self.state.refused)
        new = [one for one in told.reasons if one[0] not in known]
        self.state.refused = (self.state.refused + new)[:REFUSED_KEPT_MAX]

    def _send(
        self,
        source: ArchiveSource | TopicSource | TableSource,
        chunk: Sequence[ArchivedSpan],
        mapping: Mapping[Queue, Queue],
    ) -> list[TaskReport]:
        spans: dict[Queue, list[ArchivedSpan]] = {}
        for span in chunk:
            spans.setdefault(mapping[span.queue], []).append(span)
        tail = dict(self.state.tail)
        shares = [QueueShare(target, tail.get(target, 0), tuple(each)) for target, each in sorted(spans.items())]
        task = SendTask(
            source.only(chunk),
            self._where,
            self._topics,
            restore_id=self.state.id,
            wanted=self._wanted,
            shares=shares,
            dry=self._options.dry_run,
        )
        if isinstance(source, TableSource):
            return [typed_json.decode(told, TaskReport) for told in source.send(task, shares)]
        return run_tasks(self._spark, task, type_=TaskReport)

    def _mapping(self, queues: list[Queue]) -> dict[Queue, Queue]:
        """Return the target queue of each source queue; the same in all runs. Makes the topic if it is not there."""
        to, known = self._topics[1], dict(self.state.mapping)
        try:
            there = sorted(self._tail())
        except RouteNotFound:
            if not self._options.create:
                raise
            count = max(queue_id for _, queue_id in queues) + 1
            if self._options.dry_run:
                self._progress.say(f"topic {to} would be created with {count} queues on each broker")
                return {queue: queue for queue in queues}
            with operations_of(self._where) as operations:
                operations.create_topic(namespace.wrap(self._where.namespace, to), queue_count=count)
            self._progress.say(f"created topic {to} with {count} queues on each broker")
            there = sorted(self._tail())
        found = {**map_queues({*queues, *known}, there), **known}
        if gone := sorted({found[queue] for queue in queues} - set(there)):
            raise ConfigError(
                f"topic {to} has no queue {_text(gone[0])} any more, to which this goes: give it as many queues as"
                " before, or send all once more with --again"
            )
        self.state.mapping = sorted(found.items())
        return found

    def _tail(self) -> dict[Queue, int]:
        return queue_offsets(self._topics[1], self._target())

    def _target(self) -> dict[str, Any]:
        return _table_at(self._where.without_choice(), self._topics[1], None, "latest")

    def _offsets(self, where: str) -> dict[Queue, int]:
        return _offsets_at(self._where.without_choice(), self._topics[1], None, where)

    def _await_quiet(self) -> None:
        """Wait until no more messages arrive in the target, but not for ever: see QUIET_TRIES."""
        before: dict[Queue, int] | None = None
        for _ in range(QUIET_TRIES):
            tail = self._tail()
            if tail == before or self._progress.stop.wait(QUIET_S):
                break
            before = tail

    def _save(self) -> None:
        replace_file(self._path, msgspec.json.encode(self.state))


def _offsets_at(where: Connection, topic: str, time_ms: int | None, otherwise: str) -> dict[Queue, int]:
    """Return the offset of each queue at a time, or at `otherwise` (earliest, latest)."""
    return queue_offsets(topic, _table_at(where, topic, time_ms, otherwise))


def _table_at(where: Connection, topic: str, time_ms: int | None, otherwise: str) -> dict[str, Any]:
    """Return as a stream's JSON what `_offsets_at` tells, with the numbers of the topic's making."""
    at = {"startingOffsets": otherwise} if time_ms is None else {"startingTimestamp": str(time_ms)}
    reader = topic_reader(where._replace(options=_without_starts(where.options)), topic, READ_SCHEMA, **at)
    try:
        return reader.initialOffset()
    finally:
        reader.stop()


def _without_starts(options: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if not name.lower().startswith(("starting", "ending"))}


def _tags(expression: str) -> tuple[str, ...] | None:
    tags = subscribe("", expression).tags
    return tuple(sorted(tags)) if tags else None


def _overlaps(file: ArchiveFile, since_ms: int | None, until_ms: int | None) -> bool:
    begin_ms = hour_start_ms(file.hour)
    return (until_ms is None or begin_ms < until_ms) and (since_ms is None or begin_ms + HOUR_MS > since_ms)


def _rows_in(spans: Iterable[ArchivedSpan]) -> int:
    return sum(span.rows for span in spans)


def _text(queue: Queue) -> str:
    return f"{queue[0]}/{queue[1]}"
