"""Options of format("rocketmq"), parsed into typed values. Rule: a wrong option is named, with what would be right.

Names are case-insensitive, as Spark's are; docs/spark.md holds the table.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from rocketspark.client import validators
from rocketspark.client.secret_files import read_secret
from rocketspark.errors import ConfigError, FilterIllegal, MessageIllegal
from rocketspark.filters import sql92
from rocketspark.model import subscribe
from rocketspark.model.text import shown, whole_number
from rocketspark.protocol.message.compression import KINDS
from rocketspark.spark.client_access import Access
from rocketspark.spark.decode.options import NAMES as DECODE_NAMES
from rocketspark.spark.decode.options import DecodeOptions, check_error_topic, parse_decode
from rocketspark.spark.time_options import duration_ms, time_ms
from rocketspark.spark.topic_selection import Assigned, check_pattern, from_json_text, parse_assigned
from rocketspark.transport.connections import parse_addresses
from rocketspark.transport.tls.client_tls import ClientTls, client_tls

EARLIEST = "earliest"
LATEST = "latest"
# At a group's committed offsets.
COMMITTED = "committed"
# In JSON an offset may be one of these instead of a number (as in Spark's Kafka source).
EARLIEST_NUMBER = -2
LATEST_NUMBER = -1

# topic -> broker -> queue id -> offset
OffsetTable = dict[str, dict[str, dict[str, int]]]


class AtTime(NamedTuple):
    """The first message stored at or after a time, in ms since 1970. `strict`: it is a mistake if there is none."""

    time_ms: int
    strict: bool = False


class AtTimes(NamedTuple):
    """As AtTime, with a time for each queue that is named: topic -> broker -> queue id -> ms."""

    table: OffsetTable
    strict: bool = False


Where = str | OffsetTable | AtTime | AtTimes

READER_GROUP = "SPARK_READER"
# ntpd ends rather than set a clock back by more than 1000 s.
CLOCK_SET_BACK_MS = 1_200_000

BAD_IS_ERROR, BAD_IS_NULL, BAD_AS_STORED = "error", "null", "stored"

MESSAGE_BYTES_MAX = 4 << 20
INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1

AT_LEAST_ONCE, EXACTLY_ONCE = "at-least-once", "exactly-once"
# The commit topic and the group of the half messages are named after it.
TRANSACTIONAL_ID = re.compile("[A-Za-z0-9_-]{1,100}")


class StorePaths(NamedTuple):
    """Store directories to read instead of brokers, the broker's name for each, and where the logs are if elsewhere."""

    roots: tuple[str, ...]
    broker_names: tuple[str, ...]
    commit_logs: tuple[str, ...]


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
    store: StorePaths | None = None
    sql: str | None = None
    key: str | None = None
    push_down: bool | None = None
    clock_set_back_ms: int = CLOCK_SET_BACK_MS
    # The treatment of a body that does not inflate, or has a wrong CRC.
    bad_bodies: str = BAD_IS_ERROR
    # The columns that a read gives, in this order; all if none is named.
    columns: tuple[str, ...] = ()
    # How bodies become a column.
    decode: DecodeOptions | None = None


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


KEY_NAMES = ("accessKey", "secretKey", "secretKeyFile", "securityToken")
_TLS_TEXTS = ("tlsCa", "tlsCert", "tlsKey", "tlsKeyPassword", "tlsVerify", "tlsServerName")
TLS_NAMES = ("useTls", *_TLS_TEXTS, "tlsKeyPasswordFile")
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
    *("store", "brokerName", "storePathCommitLog"),
    *("sql", "key", "pushDownPredicate", "clockSetBackMs", "badBodies", "columns"),
    *DECODE_NAMES,
)
_WRITE_NAMES = (
    *ACCESS_NAMES,
    *("namesrv", "topic", "producerGroup", "maxBatchBytes", "maxBatchesInFlight", "sendTimeoutMs", "sendAttempts"),
    *("compression", "compressOverBytes", "delivery", "transactionalId", "commitTimeoutMs"),
)
# Spark hands these on too.
_SPARK_NAMES = ("path", "checkpointLocation", "queryName")
# Lower-case names of options of Spark's Kafka connector that would change the read or write, and their names here.
_KAFKA_NAMES = {
    "kafka.bootstrap.servers": "namesrv",
    "subscribe": "topic",
    "subscribepattern": "topicPattern",
    "maxoffsetspertrigger": "maxMessagesPerTrigger",
    "minoffsetspertrigger": "minMessagesPerTrigger",
    "kafka.group.id": "consumerGroup",
    "kafka.transactional.id": "transactionalId",
}
# A hint for errors: Spark drops the options of a table of its catalog.
_NONE_GIVEN = (
    "; if this is a table made with CREATE TABLE: Spark hands its options to no Python source, so make a TEMPORARY VIEW"
    " of it, or write FROM name WITH ('namesrv'='host:port', 'topic'='name')"
)


def parse_read(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Parse the options of a read. Raises ConfigError."""
    given = _Given(options, _READ_NAMES, _WRITE_NAMES)
    tags = given.text("tags", "*")
    for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
        if streaming and given.text(name, ""):
            raise ConfigError(f"option {name} is for batch reads: a stream has no end; leave it out")
    store = given.store()
    if store is not None and streaming:
        raise ConfigError("option store is for batch reads: a stream reads from brokers; give namesrv instead")
    topics, pattern, assigned = given.topics()
    parsed = ReadOptions(
        namesrv=given.namesrv() if store is None else "",
        access=given.access(),
        topics=topics,
        topic_pattern=pattern,
        assigned=assigned,
        starting=given.starting(LATEST if streaming else EARLIEST),
        ending=given.time("endingTimestamp")
        or given.times("endingOffsetsByTimestamp")
        or given.where("endingOffsets", LATEST),
        tags=subscribe("", tags).expression,
        group=given.group("consumerGroup") or READER_GROUP,
        committed_group=given.group("committedGroup") or given.group("consumerGroup"),
        committed_fallback=given.choice("committedFallback", EARLIEST, LATEST, "error"),
        mirror_group=given.group("consumerGroup") if streaming else None,
        rows_per_trigger_max=given.number("maxMessagesPerTrigger", None, 1, INT64_MAX),
        rows_per_trigger_min=given.number("minMessagesPerTrigger", None, 1, INT64_MAX),
        bytes_per_trigger_max=given.number("maxBytesPerTrigger", None, 1, INT64_MAX),
        trigger_delay_max_ms=given.duration_ms("maxTriggerDelay", "15m"),
        partitions_min=given.number("minPartitions", 1, 1) or 1,
        rows_per_partition_max=given.number("maxRecordsPerPartition", None, 1),
        fail_on_data_loss=given.truth("failOnDataLoss", True),
        timeout_ms=given.number("pollTimeoutMs", 30_000, 1) or 1,
        rows_per_pull_max=given.number("maxMessagesPerPull", 4096, 1) or 1,
        bytes_per_pull_max=given.number("maxBytesPerPull", 1 << 20, 1) or 1,
        check_crc=given.truth("checkCrc", store is not None),
        store=store,
        sql=given.expression("sql"),
        key=given.key("key"),
        push_down=given.truth("pushDownPredicate", False) if given.text("pushDownPredicate", "") else None,
        clock_set_back_ms=given.number("clockSetBackMs", CLOCK_SET_BACK_MS, 0) or 0,
        bad_bodies=given.choice(
            "badBodies",
            *(BAD_IS_ERROR, BAD_IS_NULL, BAD_AS_STORED)
            if given.truth("failOnDataLoss", True)
            else (BAD_IS_NULL, BAD_AS_STORED, BAD_IS_ERROR),
        ),
        columns=given.several("columns"),
        decode=parse_decode(given, topics),
    )
    if parsed.decode is not None:
        if parsed.decode.error_topic and store is not None:
            raise ConfigError("option decodeErrorTopic: with option store there is no broker to send to; leave it out")
        check_error_topic(parsed.decode.error_topic, (*topics, *(assigned or ())), pattern)
    if streaming and parsed.push_down:
        raise ConfigError(
            "option pushDownPredicate is for batch reads: no Spark tells a stream its filters; leave it out, and give"
            " tags, sql or startingTimestamp, which the broker applies"
        )
    if not streaming and parsed.starting == LATEST:
        raise ConfigError("option startingOffsets is latest: a batch would read nothing; use earliest or JSON")
    if parsed.ending == EARLIEST:
        raise ConfigError("option endingOffsets is earliest: a batch would read nothing; use latest or JSON")
    if COMMITTED in (parsed.starting, parsed.ending):
        name = "startingOffsets" if parsed.starting == COMMITTED else "endingOffsets"
        if store is not None:
            raise ConfigError(f"option {name} is committed: with option store there is no broker to tell; use JSON")
        if parsed.starting == parsed.ending:
            raise ConfigError("options startingOffsets and endingOffsets are both committed: there is nothing between")
        if parsed.committed_group is None:
            raise ConfigError(f"option {name} is committed: name the group, as committedGroup or consumerGroup")
    if (parsed.rows_per_trigger_min or 0) > (parsed.rows_per_trigger_max or math.inf):
        raise ConfigError("option minMessagesPerTrigger is more than maxMessagesPerTrigger: give it less")
    times = [at.time_ms for at in (parsed.starting, parsed.ending) if isinstance(at, AtTime)]
    if times != sorted(times):
        raise ConfigError("option startingTimestamp is after endingTimestamp: nothing is stored between them")
    return parsed


def parse_decode_options(options: Mapping[str, str]) -> DecodeOptions:
    """Parse the options of `decode` alone. Raises ConfigError, also for one that is none of them."""
    known = {name.lower() for name in DECODE_NAMES}
    if other := next((name for name in options if name.lower() not in known), None):
        close = difflib.get_close_matches(other, DECODE_NAMES, 1, 0.6)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"decode: option {shown(other)!r} is unknown{hint}")
    parsed = parse_decode(_Given(options, DECODE_NAMES, ()))
    if parsed is None:
        raise ConfigError("decode: the format is empty: json, avro or protobuf is needed")
    return parsed


def parse_access(options: Mapping[str, str]) -> Access:
    """Parse the options that say how to come in, and only those. Raises ConfigError."""
    own = {name.lower() for name in ACCESS_NAMES}
    return _Given({name: value for name, value in options.items() if name.lower() in own}, ACCESS_NAMES, ()).access()


def over(options: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Return options with others over them; one of the keys replaces all keys, and so does TLS: halves of two pairs
    would be neither's.
    """
    given = {name.lower() for name in own}
    for group in (KEY_NAMES, TLS_NAMES):
        together = {name.lower() for name in group}
        given |= together if together & given else set()
    return {name: value for name, value in options.items() if name.lower() not in given} | dict(own)


def _snake(name: str) -> str:
    return re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name)


def _camel(name: str) -> str:
    return re.sub("_([a-z])", lambda found: found[1].upper(), name)


def parse_columns(options: Mapping[str, str]) -> tuple[str, ...]:
    """Parse the option columns alone: Spark asks for a table's columns before it asks for a read, or for a write."""
    return _Given({name: value for name, value in options.items() if name.lower() == "columns"}, (), ()).several(
        "columns"
    )


def parse_write(options: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a write. Raises ConfigError."""
    given = _Given(options, _WRITE_NAMES, _READ_NAMES)
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
        batch_bytes_max=min(given.number("maxBatchBytes", 1 << 20, 1, INT64_MAX) or 1, MESSAGE_BYTES_MAX),
        batches_in_flight_max=given.number("maxBatchesInFlight", 4, 1) or 1,
        timeout_ms=given.number("sendTimeoutMs", 10_000, 1) or 1,
        attempts_max=given.number("sendAttempts", 5, 1) or 1,
        compression=None if compression == "none" else compression,
        compress_over_bytes=given.number("compressOverBytes", 4096, 0) or 0,
        transactional_id=_transactional_id(given),
        commit_timeout_ms=given.number("commitTimeoutMs", 120_000, 1) or 1,
    )


def _transactional_id(given: _Given) -> str | None:
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


class _Given:
    """The options as given; every getter names the option in its error."""

    def __init__(self, options: Mapping[str, str], names: tuple[str, ...], other_names: tuple[str, ...]) -> None:
        self._values = {name.lower(): str(value).strip() for name, value in options.items()}
        known = {name.lower(): name for name in (*names, *other_names, *_SPARK_NAMES)}
        for name in self._values:
            if name in known:
                continue
            if name in _KAFKA_NAMES:
                raise ConfigError(
                    f"option {name!r} is one of Spark's Kafka connector; it is {_KAFKA_NAMES[name]!r} here"
                )
            # Others' options pass; a slip of the pen must not.
            if close := difflib.get_close_matches(name, known, 1, 0.8):
                raise ConfigError(f"option {name!r} is unknown; did you mean {known[close[0]]!r}?")

    def text(self, name: str, default: str) -> str:
        return self._values.get(name.lower(), "") or default

    def _none(self) -> str:
        """Return a hint for errors where no option was given at all."""
        return "" if self._values else _NONE_GIVEN

    def number(self, name: str, default: int | None, least: int, most: int = INT32_MAX) -> int | None:
        text = self.text(name, "")
        if not text:
            return default
        value = whole_number(text)
        if value is None and re.fullmatch("[0-9]+", text):
            value = most + 1  # More digits than any number has.
        if value is not None and value > most:
            raise ConfigError(f"option {name} is {shown(text)!r}: at most {most}")
        if value is None or value < least:
            raise ConfigError(f"option {name} is {shown(text)!r}: a whole number from {least} up is needed")
        return value

    def group(self, name: str) -> str | None:
        text = self.text(name, "")
        try:
            return validators.check_group(text) if text else None
        except MessageIllegal as e:
            raise ConfigError(f"option {name}: {e}") from None

    def duration_ms(self, name: str, default: str) -> int:
        """Return a duration as Spark writes it: a number and a unit, ms where there is none."""
        return duration_ms(f"option {name}", self.text(name, default))

    def truth(self, name: str, default: bool) -> bool:
        text = self.text(name, "").lower()
        if text not in ("", "true", "false"):
            raise ConfigError(f"option {name} is {text!r}: true or false is needed")
        return text == "true" if text else default

    def namesrv(self) -> str:
        text = self.text("namesrv", "")
        if not text:
            raise ConfigError(
                f'option namesrv is missing: .option("namesrv", "host:port"), several with a semicolon{self._none()}'
            )
        return ";".join(parse_addresses(text))

    def several(self, name: str) -> tuple[str, ...]:
        return tuple(part.strip() for part in self.text(name, "").split(",") if part.strip())

    def store(self) -> StorePaths | None:
        roots = tuple(
            os.path.abspath(part.removeprefix("file://").removeprefix("file:")) for part in self.several("store")
        )
        names, logs = self.several("brokerName"), self.several("storePathCommitLog")
        if not roots:
            for name, value in (("brokerName", names), ("storePathCommitLog", logs)):
                if value:
                    raise ConfigError(f"option {name} goes with option store, which is missing")
            return None
        if self.text("namesrv", ""):
            raise ConfigError("options store and namesrv: one reads files, the other asks servers; leave one out")
        if logs and len(roots) > 1:
            raise ConfigError("option storePathCommitLog is for one store: read each of several by its own")
        if names and len(names) != len(roots):
            raise ConfigError(
                f"option brokerName has {len(names)} names for {len(roots)} stores: one for each is needed"
            )
        names = names or tuple(os.path.basename(root) for root in roots)
        if len(set(names)) < len(names):
            raise ConfigError(
                f"option store: two stores go by one broker name ({', '.join(names)}): give option brokerName, one name"
                " for each, by commas"
            )
        return StorePaths(roots, names, tuple(os.path.abspath(log) for log in logs))

    def access(self) -> Access:
        found = Access(
            namespace=self.text("namespace", ""),
            access_key=self.text("accessKey", ""),
            secret_key=self.secret("secretKey"),
            security_token=self.text("securityToken", ""),
            tls=self._tls(),
        )
        if bool(found.access_key) != bool(found.secret_key):
            raise ConfigError("options accessKey and secretKey belong together: give both, or neither")
        if found.security_token and not found.access_key:
            raise ConfigError("option securityToken needs accessKey and secretKey: give all three")
        return found

    def secret(self, name: str) -> str:
        """Return a secret, as it is given or from the driver's file that is."""
        value, path = self.text(name, ""), self.text(f"{name}File", "")
        if value and path:
            raise ConfigError(f"options {name} and {name}File are both given: give one of them")
        return read_secret(path, f"option {name}File") if path else value

    def _tls(self) -> ClientTls | None:
        given = {_snake(name): self.text(name, "") for name in _TLS_TEXTS}
        given["tls_key_password"] = self.secret("tlsKeyPassword")
        try:
            return client_tls(self.truth("useTls", False), **given)
        except ConfigError as e:
            text = re.sub(r"\b(?:use_tls|tls_[a-z_]+)\b", lambda found: _camel(found[0]), str(e))
            raise ConfigError(f"option {text.replace('useTls=True', 'useTls=true')}") from None

    def topics(self) -> tuple[tuple[str, ...], str | None, Assigned | None]:
        """Return the topics, the pattern or the queues that are read."""
        named = [name for name in ("topic", "topicPattern", "assign") if self.text(name, "")]
        if len(named) > 1:
            raise ConfigError(f"options {' and '.join(named)} are given: each says what is read, so give one of them")
        if pattern := self.text("topicPattern", ""):
            return (), check_pattern(pattern), None
        if text := self.text("assign", ""):
            assigned = parse_assigned(text)
            return tuple(assigned), None, assigned
        topics = tuple(dict.fromkeys(t.strip() for t in self.text("topic", "").split(",") if t.strip()))
        if not topics:
            raise ConfigError(
                'option topic is missing: .option("topic", "name"), several with a comma; or topicPattern, or assign'
                + self._none()
            )
        return topics, None, None

    def expression(self, name: str) -> str | None:
        """Return an SQL92 expression that compiles."""
        text = self.text(name, "")
        try:
            return sql92.compile(text).expression if text else None
        except FilterIllegal as e:
            raise ConfigError(f"option {name}: {e}") from None

    def key(self, name: str) -> str | None:
        text = self.text(name, "")
        if len(text.split()) > 1:
            raise ConfigError(f"option {name} is {text!r}: keys hold no blank; name one key")
        return text or None

    def choice(self, name: str, *choices: str) -> str:
        """Return one of some words, the first by default."""
        text = self.text(name, choices[0]).lower()
        if text not in choices:
            raise ConfigError(f"option {name} is {text!r}: {' or '.join(choices)} is needed")
        return text

    def starting(self, default: str) -> Where:
        """Return where to begin; a time goes before offsets, as in Spark's Kafka source."""
        strategy = self.choice("startingOffsetsByTimestampStrategy", LATEST, "error")
        if at := self.time("startingTimestamp") or self.times("startingOffsetsByTimestamp"):
            return at._replace(strict=strategy == "error")
        return self.where("startingOffsets", default)

    def time(self, name: str) -> AtTime | None:
        text = self.text(name, "")
        if not text:
            return None
        return AtTime(time_ms(f"option {name}", text))

    def times(self, name: str) -> AtTimes | None:
        text = self.text(name, "")
        try:
            return AtTimes(check_offsets(from_json_text(text), least=0)) if text else None
        except (ValueError, TypeError) as e:
            raise ConfigError(
                f"option {name} is {shown(text)!r} ({e}): JSON with ms since 1970 for each queue, such as"
                ' {"topic": {"broker-a": {"0": 1767225600000}}}, is needed'
            ) from None

    def where(self, name: str, default: str) -> Where:
        text = self.text(name, default)
        if text.lower() in (EARLIEST, LATEST, COMMITTED):
            return text.lower()
        try:
            return check_offsets(from_json_text(text))
        except (ValueError, TypeError) as e:
            raise ConfigError(
                f"option {name} is {shown(text)!r} ({e}): earliest, latest, committed or JSON such as"
                ' {"topic": {"broker-a": {"0": 12, "1": -1}}} is needed (-2 earliest, -1 latest)'
            ) from None


def check_offsets(value: Any, *, least: int = EARLIEST_NUMBER) -> OffsetTable:
    """Return the table, if it is topic to broker to queue id to a number from `least` up, an offset or a time.

    Raises ValueError saying what is wrong.
    """
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    for topic, brokers in value.items():
        if not isinstance(brokers, dict):
            raise ValueError(f"under {topic!r} an object of brokers is needed")
        for broker, queues in brokers.items():
            if not isinstance(queues, dict):
                raise ValueError(f"under {topic!r}, {broker!r} an object of queues is needed")
            for queue, offset in queues.items():
                if whole_number(str(queue), high=INT32_MAX) is None:
                    raise ValueError(f"{shown(queue)!r} is no queue id")
                if type(offset) is not int or not least <= offset <= INT64_MAX:
                    raise ValueError(f"{offset!r} is no {'offset' if least else 'time'} of queue {queue}")
    return value
