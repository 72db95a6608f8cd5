"""Options of format("rocketmq"), parsed into typed values. Rule: an error names the option, and what would be right.

Names are case-insensitive, as Spark's are; docs/use/spark.md holds the table.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rocketspark.client import validators
from rocketspark.errors import ConfigError, MessageIllegal
from rocketspark.model import subscribe
from rocketspark.model.text import LONG_MAX, shown
from rocketspark.protocol.message.compression import KINDS
from rocketspark.tables.client_access import Access
from rocketspark.tables.decode.options import NAMES as DECODE_NAMES
from rocketspark.tables.decode.options import DecodeOptions, check_error_topic, parse_decode
from rocketspark.tables.given_options import OBJECT_STORE_NAMES, TLS_TEXTS, GivenOptions, StorePaths, refuse_if
from rocketspark.tables.option_values import COMMITTED, EARLIEST, LATEST, Assigned, AtTime, Where

READER_GROUP = "SPARK_READER"
# ntpd ends rather than set a clock back by more than 1000 s.
CLOCK_SET_BACK_MS = 1_200_000

BAD_IS_ERROR, BAD_IS_NULL, BAD_AS_STORED = "error", "null", "stored"

MESSAGE_BYTES_MAX = 4 << 20

AT_LEAST_ONCE, EXACTLY_ONCE = "at-least-once", "exactly-once"
# The commit topic and the group of the half messages are named after it.
TRANSACTIONAL_ID = re.compile("[A-Za-z0-9_-]{1,100}")


class ReadOptions(NamedTuple):
    """The options of a read. Times in ms, sizes in bytes."""

    namesrv: str
    access: Access
    # One of the three names the queues to read; with queues by hand, `topics` are theirs.
    topics: tuple[str, ...]
    topic_pattern: str | None
    assigned: Assigned | None
    starting: Where
    ending: Where
    tags: str
    group: str
    # Whose offsets `committed` means, and where a queue without one is read from.
    committed_group: str | None
    committed_fallback: str
    # The group that a stream's progress is committed to as well.
    mirror_group: str | None
    rows_per_trigger_max: int | None
    rows_per_trigger_min: int | None
    bytes_per_trigger_max: int | None
    trigger_delay_max_ms: int
    partitions_min: int
    rows_per_partition_max: int | None
    fail_on_data_loss: bool
    timeout_ms: int
    rows_per_pull_max: int
    bytes_per_pull_max: int
    check_crc: bool
    store: StorePaths | None
    sql: str | None
    key: str | None
    push_down: bool | None
    clock_set_back_ms: int
    # The treatment of a body that does not inflate, or has a wrong CRC.
    bad_bodies: str
    # The columns that a read gives, in this order; all if none is named.
    columns: tuple[str, ...]
    # How bodies become a column.
    decode: DecodeOptions | None
    # Whether only the last message of each key of a queue is given, and none whose body is empty.
    compacted: bool


class WriteOptions(NamedTuple):
    """The options of a write. Times in ms, sizes in bytes."""

    namesrv: str
    access: Access
    topic: str | None
    group: str
    batch_bytes_max: int
    batches_in_flight_max: int
    timeout_ms: int
    attempts_max: int
    compression: str | None
    compress_over_bytes: int
    transactional_id: str | None = None
    commit_timeout_ms: int = 120_000
    # Of a batch that was committed with other rows: whether those stay, instead of an error.
    first_rows_stay: bool = False
    # The column by which a batch that is repeated is compared with the one that was committed.
    compared_column: str = "body"


KEY_NAMES = ("accessKey", "secretKey", "secretKeyFile", "securityToken")
TLS_NAMES = ("useTls", *TLS_TEXTS, "tlsKeyPasswordFile")
ACCESS_NAMES = ("namespace", *KEY_NAMES, *TLS_NAMES)
# Lower-case name -> the name as documented.
_READ_NAMES = (
    *ACCESS_NAMES,
    *("topicPattern", "assign", "committedGroup", "committedFallback"),
    *("startingOffsetsByTimestamp", "endingOffsetsByTimestamp"),
    *("minMessagesPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger"),
    *("namesrv", "topic", "startingOffsets", "endingOffsets", "tags", "consumerGroup", "maxMessagesPerTrigger"),
    *("minPartitions", "maxRecordsPerPartition", "failOnDataLoss", "pollTimeoutMs", "maxMessagesPerPull"),
    *("maxBytesPerPull", "checkCrc", "startingTimestamp", "endingTimestamp", "startingOffsetsByTimestampStrategy"),
    *("store", "brokerName", "storePathCommitLog", *OBJECT_STORE_NAMES),
    *("sql", "key", "pushDownPredicate", "clockSetBackMs", "badBodies", "columns", "compacted"),
    *DECODE_NAMES,
)
_WRITE_NAMES = (
    *ACCESS_NAMES,
    *("namesrv", "topic", "producerGroup", "maxBatchBytes", "maxBatchesInFlight", "sendTimeoutMs", "sendAttempts"),
    *("compression", "compressOverBytes", "delivery", "transactionalId", "commitTimeoutMs", "differingRepeat"),
    "comparedColumn",
)


def check_known(names: Iterable[str]) -> None:
    """Raise ConfigError for a name that is no option. Spark hands over options of others too, which pass; what a
    function or command is given is meant for it alone.
    """
    known = {name.lower() for name in (*_READ_NAMES, *_WRITE_NAMES)}
    if unknown := [name for name in names if name.replace("_", "").lower() not in known]:
        raise ConfigError(f"option {shown(unknown[0])!r} is unknown: docs/use/spark.md lists the options of a read")


def parse_read(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Parse the options of a batch read, or of a stream's if `streaming`. Raises ConfigError."""
    given = GivenOptions(options, _READ_NAMES, _WRITE_NAMES)
    tags = given.text("tags", "*")
    store = _store(given, streaming=streaming)
    topics, pattern, assigned = given.topics()
    parsed = ReadOptions(
        namesrv=given.namesrv() if store is None else "",
        access=given.access(),
        topics=topics,
        topic_pattern=pattern,
        assigned=assigned,
        starting=given.starting(LATEST if streaming else EARLIEST),
        ending=given.ending(),
        tags=subscribe("", tags).expression,
        group=given.group("consumerGroup") or READER_GROUP,
        committed_group=given.group("committedGroup") or given.group("consumerGroup"),
        committed_fallback=given.choice("committedFallback", EARLIEST, LATEST, "error"),
        mirror_group=given.group("consumerGroup") if streaming else None,
        rows_per_trigger_max=given.number("maxMessagesPerTrigger", None, 1, LONG_MAX),
        rows_per_trigger_min=given.number("minMessagesPerTrigger", None, 1, LONG_MAX),
        bytes_per_trigger_max=given.number("maxBytesPerTrigger", None, 1, LONG_MAX),
        trigger_delay_max_ms=given.duration_ms("maxTriggerDelay", "15m"),
        partitions_min=given.number("minPartitions", 1, 1),
        rows_per_partition_max=given.number("maxRecordsPerPartition", None, 1),
        fail_on_data_loss=given.truth("failOnDataLoss", True),
        timeout_ms=given.number("pollTimeoutMs", 30_000, 1),
        rows_per_pull_max=given.number("maxMessagesPerPull", 4096, 1),
        bytes_per_pull_max=given.number("maxBytesPerPull", 1 << 20, 1),
        check_crc=given.truth("checkCrc", store is not None),
        store=store,
        sql=given.expression("sql"),
        key=given.key("key"),
        push_down=given.truth("pushDownPredicate", False) if given.text("pushDownPredicate", "") else None,
        clock_set_back_ms=given.number("clockSetBackMs", CLOCK_SET_BACK_MS, 0),
        bad_bodies=_bad_bodies(given),
        columns=given.several("columns"),
        decode=parse_decode(given, topics),
        compacted=given.truth("compacted", False),
    )
    _check_error_topic(parsed)
    _check_together(parsed, streaming=streaming)
    return parsed


def _store(given: GivenOptions, *, streaming: bool) -> StorePaths | None:
    """Return the store directories to read, None for brokers. Raises ConfigError for a stream of a store, or with an
    end.
    """
    if streaming:
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            if given.text(name, ""):
                raise ConfigError(f"option {name} is for batch reads: a stream has no end; leave it out")
    store = given.store()
    if store is not None and streaming:
        raise ConfigError("option store is for batch reads: a stream reads from brokers; give namesrv instead")
    return store


def _bad_bodies(given: GivenOptions) -> str:
    """Return the treatment of bodies that cannot be read: by default an error where lost messages are one."""
    if given.truth("failOnDataLoss", True):
        return given.choice("badBodies", BAD_IS_ERROR, BAD_IS_NULL, BAD_AS_STORED)
    return given.choice("badBodies", BAD_IS_NULL, BAD_AS_STORED, BAD_IS_ERROR)


def _check_error_topic(parsed: ReadOptions) -> None:
    """Raise ConfigError for a decodeErrorTopic that cannot be written, or is read itself."""
    if parsed.decode is None:
        return
    if parsed.decode.error_topic and parsed.store is not None:
        raise ConfigError("option decodeErrorTopic: with option store there is no broker to send to; leave it out")
    topics = (*parsed.topics, *(parsed.assigned or ()))
    check_error_topic(parsed.decode.error_topic, topics, parsed.topic_pattern)


def _check_together(parsed: ReadOptions, *, streaming: bool) -> None:
    """Raise ConfigError for options that contradict each other, or between which nothing can lie."""
    starting, ending = parsed.starting, parsed.ending
    of_group = "startingOffsets" if starting == COMMITTED else "endingOffsets" if ending == COMMITTED else ""
    times = [at.time_ms for at in (starting, ending) if isinstance(at, AtTime)]
    refuse_if(
        (
            streaming and parsed.push_down,
            "option pushDownPredicate is for batch reads: no Spark tells a stream its filters; leave it out, and give"
            " tags, sql or startingTimestamp, which the broker applies",
        ),
        (
            streaming and parsed.compacted,
            "option compacted is for batch reads: the last value of a key is known only where a read ends; leave it"
            " out, and keep the last row of each key where the stream is written",
        ),
        (
            parsed.compacted and (parsed.partitions_min > 1 or parsed.rows_per_partition_max),
            "option compacted reads each queue as one partition: leave out minPartitions and maxRecordsPerPartition",
        ),
        (
            parsed.compacted and parsed.push_down,
            "option pushDownPredicate does not go with compacted: a filter that was applied before would let older"
            " values of a key through; leave it out",
        ),
        (
            not streaming and starting == LATEST,
            "option startingOffsets is latest: a batch would read nothing; use earliest or JSON",
        ),
        (
            ending == EARLIEST,
            "option endingOffsets is earliest: a batch would read nothing; use latest or JSON",
        ),
        (
            of_group and parsed.store is not None,
            f"option {of_group} is committed: with option store there is no broker to tell; use JSON",
        ),
        (
            of_group and starting == ending,
            "options startingOffsets and endingOffsets are both committed: there is nothing between",
        ),
        (
            of_group and parsed.committed_group is None,
            f"option {of_group} is committed: name the group, as committedGroup or consumerGroup",
        ),
        (
            (parsed.rows_per_trigger_min or 0) > (parsed.rows_per_trigger_max or math.inf),
            "option minMessagesPerTrigger is more than maxMessagesPerTrigger: give it less",
        ),
        (
            times != sorted(times),
            "option startingTimestamp is after endingTimestamp: nothing is stored between them",
        ),
    )


def parse_decode_options(options: Mapping[str, str]) -> DecodeOptions:
    """Parse the options of the function `decode`. Raises ConfigError, also for an option that it does not have."""
    known = {name.lower() for name in DECODE_NAMES}
    if other := next((name for name in options if name.lower() not in known), None):
        close = difflib.get_close_matches(other, DECODE_NAMES, 1, 0.6)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"decode: option {shown(other)!r} is unknown{hint}")
    parsed = parse_decode(GivenOptions(options, DECODE_NAMES, ()))
    if parsed is None:
        raise ConfigError("decode: the format is empty: json, avro or protobuf is needed")
    return parsed


def parse_access(options: Mapping[str, str]) -> Access:
    """Parse the options that say how to connect: namespace, keys and TLS. Raises ConfigError."""
    own = {name.lower() for name in ACCESS_NAMES}
    return GivenOptions(
        {name: value for name, value in options.items() if name.lower() in own}, ACCESS_NAMES, ()
    ).access()


def over(options: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Return `options` with those of `own` in their place where both have one.

    If `own` has any option of keys, no option of keys is taken from `options`, and so with TLS: a user of one and a
    password of the other would not fit.
    """
    given = {name.lower() for name in own}
    for group in (KEY_NAMES, TLS_NAMES):
        together = {name.lower() for name in group}
        given |= together if together & given else set()
    return {name: value for name, value in options.items() if name.lower() not in given} | dict(own)


def parse_columns(options: Mapping[str, str]) -> tuple[str, ...]:
    """Parse the option columns alone: Spark asks for the columns of a table before it reads or writes it."""
    own = {name: value for name, value in options.items() if name.lower() == "columns"}
    return GivenOptions(own, (), ()).several("columns")


def parse_write(options: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a write. Raises ConfigError."""
    given = GivenOptions(options, _WRITE_NAMES, _READ_NAMES)
    topic = given.text("topic", "") or None
    if topic and "," in topic:
        raise ConfigError(f"option topic is {topic!r}: a write takes one; for several, give the rows a column topic")
    group = given.text("producerGroup", "SPARK_WRITER")
    for name, value, check in (
        ("topic", topic, validators.check_target),
        ("producerGroup", group, validators.check_group),
    ):
        try:
            check(value) if value else None
        except MessageIllegal as e:
            raise ConfigError(f"option {name}: {e}") from None
    compression = given.text("compression", "none").lower()
    if compression not in ("none", *KINDS):
        kinds = ", ".join(KINDS)
        raise ConfigError(f"option compression is {compression!r}: none or one of {kinds} is needed")
    return WriteOptions(
        namesrv=given.namesrv(),
        access=given.access(),
        topic=topic,
        group=group,
        batch_bytes_max=min(given.number("maxBatchBytes", 1 << 20, 1, LONG_MAX), MESSAGE_BYTES_MAX),
        batches_in_flight_max=given.number("maxBatchesInFlight", 4, 1),
        timeout_ms=given.number("sendTimeoutMs", 10_000, 1),
        attempts_max=given.number("sendAttempts", 5, 1),
        compression=None if compression == "none" else compression,
        compress_over_bytes=given.number("compressOverBytes", 4096, 0),
        transactional_id=_transactional_id(given),
        commit_timeout_ms=given.number("commitTimeoutMs", 120_000, 1),
        first_rows_stay=given.choice("differingRepeat", "error", "first") == "first",
        compared_column=given.text("comparedColumn", "body"),
    )


def _transactional_id(given: GivenOptions) -> str | None:
    """Return the transactionalId of an exactly-once write, else None."""
    delivery = given.text("delivery", AT_LEAST_ONCE).lower()
    name = given.text("transactionalId", "")
    if delivery not in (AT_LEAST_ONCE, EXACTLY_ONCE):
        raise ConfigError(f"option delivery is {delivery!r}: {AT_LEAST_ONCE} or {EXACTLY_ONCE} is needed")
    if delivery == AT_LEAST_ONCE:
        if name:
            raise ConfigError(
                f"option transactionalId is {name!r}, but delivery is {AT_LEAST_ONCE}:"
                f' add .option("delivery", "{EXACTLY_ONCE}"), or leave transactionalId out'
            )
        return None
    if not TRANSACTIONAL_ID.fullmatch(name):
        said = f"is {name!r}" if name else "is missing"
        raise ConfigError(
            f"option transactionalId {said}: delivery {EXACTLY_ONCE} needs a name of its own for each query, and for"
            " each run of a batch job: 1 to 100 of the characters A-Z a-z 0-9 _ -"
        )
    return name
