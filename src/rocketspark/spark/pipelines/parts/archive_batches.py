"""The micro-batches of the pipeline `archive`, whether they go to Parquet files or to a table. Rule: they follow the
contract of a stream's reader, so that what a stream reads is archived; bodies are kept as they came, and no message is
left out, also where a table gets columns of decoded bodies.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from pyspark.sql.types import ArrayType, MapType, StructType

from rocketspark.errors import ConfigError, RocketSparkError, RouteNotFound
from rocketspark.spark.decode.decoded_schema import checked, decoded_schema, without_bounds
from rocketspark.spark.lakehouse.table import ArchiveTable
from rocketspark.spark.pipelines.connection import Connection
from rocketspark.spark.pipelines.parts.progress import Progress, lag_of, step_report
from rocketspark.spark.pipelines.parts.session import one_line
from rocketspark.spark.read.stream_read import StreamReader
from rocketspark.spark.schemas import READ_SCHEMA, quoted
from rocketspark.tables.decode.options import DROPMALFORMED, JSON
from rocketspark.tables.offset_ranges import EACH_TOPIC, START_KEY, Offsets, from_json, made_of
from rocketspark.tables.options import ReadOptions, parse_read
from rocketspark.tables.read.batch import sampled_bodies
from rocketspark.transport.retries import Retries, RetryRule

T = TypeVar("T")

# Failures in a row that may pass (a broker that restarts) before one ends a run with `once`; others go on for ever.
ATTEMPTS = 6
PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
# Micro-batches of a backlog after which closed hours are merged.
BATCHES_BETWEEN_MERGES = 50


class ArchiveResult(NamedTuple):
    """The result of a run: the `rows` and `batches` that it archived, and how many hours it compacted; `total_rows` and
    `files`: what the archive holds now.
    """

    archive: str
    rows: int
    batches: int
    hours_compacted: int
    total_rows: int
    files: int
    seconds: float
    stopped: bool


def options_given(where: Connection, topics: Sequence[str]) -> dict[str, str]:
    """Return the options, as texts, of a stream that reads the topics."""
    # A body that does not inflate is kept as it is stored.
    options = {"startingOffsets": "earliest", **where.read_options()}
    return options | ({"topic": ",".join(topics)} if topics else {})


def options_of(where: Connection, topics: Sequence[str]) -> ReadOptions:
    """Return the parsed options of a stream that reads the topics. Raises ConfigError for wrong options, or if they
    name no topic.
    """
    return archive_options(options_given(where, topics))


def names_in(reading: ReadOptions) -> list[str]:
    """Return by what names options tell the topics that they read: a pattern is one."""
    return [*reading.topics, *([reading.topic_pattern] if reading.topic_pattern is not None else [])]


class Target(Protocol):
    """What an archive's micro-batches are written to: a folder of Parquet files, or a table."""

    @property
    def offsets(self) -> dict[str, Any] | None:
        """The next offset of each queue, as a stream's JSON; None if the archive is new."""

    def begin(self, offsets: dict[str, Any]) -> None:
        """Note the offsets at which a new archive begins."""

    def store(self, reader: StreamReader, partitions: Sequence[Any], offsets: dict[str, Any]) -> int:
        """Read partitions, and store their rows and the offsets that they reach so that both count at one moment;
        returns how many rows.
        """

    def ends(self, topics: Collection[str]) -> Offsets:
        """Return for each queue of the topics the offset behind the last row that the target holds of it."""


class MicroBatches:
    """Runs the micro-batches of one run of an archive, each from where the target's offsets end."""

    def __init__(
        self,
        target: Target,
        reader: StreamReader,
        topics: Sequence[str],
        *,
        progress: Progress,
        batch_rows: int,
        once: bool,
    ) -> None:
        self._topics = {name.strip() for topic in topics for name in topic.split(",")}
        self._target, self._reader, self._progress = target, reader, progress
        self._batch_rows, self._once = batch_rows, once
        self.rows = self.batches = 0

    def run(self, merge: Callable[[], int], *, interval_s: float, merges_again: bool) -> int:
        """Archive until all messages are archived, with `once`, or until a stop is asked for; return how many hours
        were merged.

        `merge`: merges the hours that are over; it is called whenever all is archived, and from time to time during a
        long backlog. `merges_again`: a merge that failed when all was archived is repeated, as a micro-batch is.
        `interval_s`: how long to wait for new messages.
        """
        self.begin()
        merged = 0
        while not self._progress.stop.asked:
            if self.patiently(self.batch):
                if self.batches % BATCHES_BETWEEN_MERGES == 0:
                    merged += merge()
                continue
            merged += self.patiently(merge) if merges_again else merge()
            if self._once or self._progress.stop.wait(interval_s):
                break
        return merged

    def begin(self) -> None:
        """Note where a new archive begins and, with `once`, where the run ends."""
        if self._target.offsets is None:
            self._target.begin(self._reader.initialOffset())
        if self._once:
            self._reader.prepareForTriggerAvailableNow()
        # Should the first micro-batch not come to its end, the lag is known all the same.
        start, _ = self._offsets()
        self._progress.hear(step_report(self.batches, start=start, end=start))

    def _offsets(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return where the run's topics are archived up to, and others, of other runs, which keep their place."""
        offsets = self._target.offsets or {}
        others = {} if not self._topics else {t: q for t, q in offsets.items() if t[0] != "@" and t not in self._topics}
        return {name: value for name, value in offsets.items() if name not in others}, others

    def batch(self) -> bool:
        """Archive the next messages; returns False if there are none."""
        from rocketspark.spark.spark_features import ReadMaxRows

        began_s = time.monotonic()
        start, others = self._offsets()
        end = self._reader.latestOffset(start, ReadMaxRows(self._batch_rows))
        if end == start:
            self._progress.hear(step_report(self.batches, start=start, end=end))
            return False
        _refuse_made_anew(start, end, self._target)
        _refuse_other_store(start, end, others, self._reader)
        asked_s = time.monotonic()
        rows = self._target.store(self._reader, self._reader.partitions(start, end), {**others, **end})
        self._reader.commit(end)
        steps_s = {"latestOffset": asked_s - began_s, "addBatch": time.monotonic() - asked_s}
        self.batches += 1
        self.rows += rows
        latest = self._reader.reportLatestOffset()
        self._progress.hear(step_report(self.batches, rows, steps_s, start=start, end=end, latest=latest))
        self._progress.update(self.rows, lag=lag_of(end, latest))
        return True

    def patiently(self, step: Callable[[], T]) -> T:
        """Do a step; if it fails in a way that may pass, do it again after a pause."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        retries = Retries(RetryRule(ATTEMPTS if self._once else None, pauses_s=PAUSES_S, may_pass=may_pass))
        while True:
            try:
                return step()
            except (RocketSparkError, PySparkException, Py4JError) as e:
                wait_s = retries.pause_s(e)
                if self._progress.stop.asked:
                    raise
                self._progress.say(f"{one_line(str(e))}; trying again in {wait_s:.0f} s")
                self._progress.stop.wait(wait_s)


def _refuse_made_anew(start: dict[str, Any], end: dict[str, Any], target: Target) -> None:
    """Raise ConfigError for topics whose offsets begin again: two rows of an archive would have one place.

    Of a topic that was not there for a while the rows alone tell how far it came.
    """
    before = from_json(start)
    begun = from_json(end.get(START_KEY, {}))
    if new := {queue.topic for queue in begun.keys() - before.keys()}:
        before = target.ends(new) | before
    if anew := sorted({queue.topic for queue, offset in begun.items() if offset < before.get(queue, 0)}):
        raise ConfigError(
            f"topic {', '.join(anew)} was deleted and made anew, and its offsets begin again: give the new one a folder"
            " of its own"
        )


def _refuse_other_store(
    start: dict[str, Any], end: dict[str, Any], others: dict[str, Any], reader: StreamReader
) -> None:
    """Raise ConfigError if a broker has another store now than when the archive's other topics were read from it: the
    new number would be noted, and a later run of those topics would pass over what the new store holds of them.
    """
    before, now = made_of(start), made_of(end)
    keys = {key for key, number in now.items() if key[0] == EACH_TOPIC and before.get(key, number) != number}
    read = {q: offset for q, offset in from_json(others).items() if offset and (EACH_TOPIC, q.broker_name) in keys}
    for queue in sorted(reader.of_other_store(read, before)) if read else ():
        raise ConfigError(
            f"broker {queue.broker_name!r} has another store now than when topic {queue.topic!r} of this archive"
            " was read from it: give what is archived from now on a folder of its own"
        )


# Spark's errors of a task that failed because of the network, or lost its executor.
# And those of an object store or a catalog that is away for a while.
_PASSING = re.compile(
    r"\b(NotSent|NoReply|ConnectionLost|NoNameServer|RouteNotFound|BrokerNotFound): |ExecutorLost"
    r"|AWS(ClientIO|ServiceThrottled|Status500|NoResponse)Exception|CommitStateUnknownException|SQLITE_BUSY"
    r"|SocketTimeoutException|SdkClientException"
)


def may_pass(error: Exception) -> bool:
    """Tell whether a step that failed with this error may succeed when it is repeated."""
    if isinstance(error, RocketSparkError):
        return error.retriable or isinstance(error, RouteNotFound)
    return _PASSING.search(str(error)) is not None


def archive_options(given: Mapping[str, str]) -> ReadOptions:
    """Parse the options of an archive's read. Raises ConfigError."""
    options = parse_read(given, streaming=True)
    decode = options.decode
    if decode is None:
        return options
    if decode.mode == DROPMALFORMED:
        raise ConfigError(
            f"option decodeMode is {decode.mode}: an archive leaves no message out; leave the option out, and read the"
            f" rows whose {decode.error_column} is null"
        )
    for name, option in ((decode.into, "decodeInto"), (decode.error_column, "columnNameOfDecodeError")):
        if name.lower() == "hour":
            raise ConfigError(f"option {option} is {name!r}, which is a column of every archive: choose another name")
    return options


def decoding(table: ArchiveTable, given: Mapping[str, str]) -> tuple[StructType, ReadOptions]:
    """Return the columns and the options of an archive's read; if it decodes, with the columns of decoded bodies.

    `table`: its decoded columns are the JSON schema if the options give none; a new table's are inferred from a sample.
    Raises ConfigError.
    """
    options = archive_options(given)
    decode = options.decode
    if decode is None:
        return READ_SCHEMA, options
    if decode.format == JSON and not decode.schema and decode.registry is None:
        there = {field.name.lower(): field.dataType for field in table.decoded().fields}
        if isinstance(kind := there.get(decode.into.lower()), StructType | ArrayType | MapType):
            decode = dataclasses.replace(decode, schema=quoted(kind))
            options = options._replace(decode=decode)
    sample = sampled_bodies(parse_read(without_bounds(given), streaming=False))
    schema = table.spark.createDataFrame([], decoded_schema([], decode, sample)).schema
    return schema, checked(schema, options)
