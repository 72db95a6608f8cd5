"""Finds half messages in the store, by half queue offset, physical offset or unique id. It only reads.

Rule: a place that a client or a queue names counts only if the record there says the same of itself."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from rocketspark.broker import topic_names
from rocketspark.broker.consumers.consumer_offsets import ConsumerOffsets
from rocketspark.broker.messages.parked_messages import bytes_at
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.storage.retention import HOUR_MS
from rocketspark.errors import RecordError, ServerError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.text import INT_MAX, LONG_MAX, whole_number
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.headers import CheckTransactionHeader, EndTransactionHeader
from rocketspark.protocol.json.bodies import Quarantined
from rocketspark.protocol.message import properties, record, record_layout, sysflags
from rocketspark.protocol.message.message_ids import offset_message_id
from rocketspark.protocol.message.properties import pairs_of
from rocketspark.protocol.message.record import Record
from rocketspark.store.consumequeue.consume_queue import GAP_SIZE
from rocketspark.store.store import Store

log = LimitedLog("rocketspark.broker")

GROUP = topic_names.TRANSACTION_GROUP
CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
_PARKED = {topic_names.SCHEDULE_TOPIC.encode(), topic_names.TIMER_TOPIC.encode()}
READ_COUNT = 256
RESUMED_COUNT_MAX = 32
NEVER_MS = LONG_MAX
KIND = "half"
# Part of the remark for a half message that cannot be committed any more.
HALF_GONE = "Find prepared transaction message failed"
# What the end names was lost with a master, and another one lies at its place now.
OTHER_HALF = "The half message there is another one"
_UNIQUE_ID = re.compile("[0-9A-Fa-f]{32,}")


class TransactionKey(NamedTuple):
    """What all copies of a half message have in common: its unique id, producer group and topic."""

    unique_id: str
    group: str
    topic: str

    @classmethod
    def of(cls, pairs: Mapping[str, str], otherwise: str) -> TransactionKey:
        """Return the key of a half message with these properties; `otherwise` is used if they hold no unique id."""
        return cls(
            pairs.get(properties.UNIQUE_ID, otherwise),
            pairs.get(properties.PRODUCER_GROUP, ""),
            pairs.get(properties.REAL_TOPIC, ""),
        )

    def is_of(self, stored: Record, *, copy: bool) -> bool:
        """Tell whether a record with this unique id is of this group and topic, and so of this transaction.

        `copy`: the record is a half message; false if it is a committed message.
        """
        pairs = pairs_of(stored.properties)
        topic = stored.topic if not copy and stored.topic not in _PARKED else pairs.get(b"REAL_TOPIC", b"")
        group = pairs.get(b"PGROUP", b"")
        return (group.decode("utf-8", "replace"), topic.decode("utf-8", "replace")) == (self.group, self.topic)


class HalfMessage(msgspec.Struct):
    """An open half message: where its newest copy lies, since when it is open, how often its producer was asked.

    `aside`: it is in the quarantine, where it is not checked; its producer can still end it.
    """

    queue_offset: int
    position: int
    since_ms: int
    immunity_ms: int
    checks: int
    group: str
    aside: bool = False


class CheckLimits(NamedTuple):
    """When, and how often, the producers of open half messages are asked how they ended.

    `timeout_ms`: a half message's age at the first check; `interval_ms`: the time between checks; `checks_max`: after
    so many checks it is given up to TRANS_CHECK_MAX_TIME_TOPIC; `reserved_ms`: the age at which it is given up anyway;
    `open_max`: how many may be open.
    """

    timeout_ms: int
    interval_ms: int
    checks_max: int
    reserved_ms: int
    open_max: int = 1_000_000

    @classmethod
    def of(cls, settings: BrokerSettings) -> CheckLimits:
        """Return the limits that a broker's settings make."""
        return cls(
            settings.transaction_timeout_ms,
            settings.transaction_check_interval_ms,
            settings.transaction_checks_max,
            settings.reserved_hours * HOUR_MS,
            settings.open_halves_max,
        )

    def too_many(self) -> ServerError:
        """Return the error for one more half message than may be open."""
        return ServerError(
            ResponseCode.SYSTEM_BUSY,
            f"{self.open_max} half messages, or batches of as much memory, are open, and nothing was stored: end some,"
            " or raise maxOpenHalfMessages",
        )


class HalfMessages:
    """The half messages in a store, those that were given up, and the commits."""

    def __init__(self, store: Store, offsets: ConsumerOffsets) -> None:
        self._store = store
        self._offsets = offsets

    def units(self, topic: str) -> Iterator[tuple[int, int]]:
        """Yield (queue offset, physical offset) of a topic's messages that are not done yet and still in the log."""
        low, high = self._store.stored_range(topic, 0)
        at = max(low, self._offsets.get(GROUP, topic, 0) or 0)
        while at < high:
            # Whoever goes through them may let others have a turn, who remove old files.
            at = max(at, self._store.stored_range(topic, 0)[0])
            units = self._store.queue_units(topic, 0, at, min(READ_COUNT, high - at))
            for queue_offset, (position, size, _) in enumerate(units, at):
                if size != GAP_SIZE and position >= self._store.min_position:
                    yield queue_offset, position
            at += len(units)

    def record(self, topic: str, queue_offset: int, position: int) -> Record:
        """Return the record that a queue's unit points to. Raises RecordError if it is not there."""
        stored = record.decode(bytes_at(self._store, position))
        place = stored.topic.decode("utf-8", "replace"), stored.queue_offset
        if place != (topic, queue_offset):
            raise RecordError(f"the record at physical offset {position} is another: {place}")
        return _with_id(stored)

    def _is_queued(self, stored: Record) -> bool:
        """Tell whether a record lies where its queue says; bytes like a record elsewhere may be part of a body."""
        topic = stored.topic.decode("utf-8", "replace")
        low, high = self._store.stored_range(topic, 0)
        if topic not in (topic_names.HALF_TOPIC, topic_names.CHECK_MAX_TOPIC) or not low <= stored.queue_offset < high:
            return False
        ((position, size, _),) = self._store.queue_units(topic, 0, stored.queue_offset, 1)
        return (position, size) == (stored.position, stored.size)

    def told(self, position: int) -> Record | None:
        """Return the half message (open or given up) at a physical offset that a client named; else None."""
        found = self._store.record_at(position)
        try:
            stored = record.decode(found) if found is not None else None
        except RecordError as e:
            log.error("the half message at physical offset %d cannot be read: %s", position, e)
            return None
        return _with_id(stored) if stored is not None and self._is_queued(stored) else None

    def named_by(self, h: EndTransactionHeader, *, same_topic: bool) -> tuple[Record, dict[str, str]]:
        """Return the half message that a request names, and its properties. Raises ServerError 1 if it does not fit.

        `same_topic`: the request must name the message's topic as well.
        """
        found = self._half_at(h.physical_offset)
        if found is None:
            raise ServerError(ResponseCode.SYSTEM_ERROR, HALF_GONE)
        half, pairs = found
        if pairs.get(properties.PRODUCER_GROUP) != h.producer_group:
            raise ServerError(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if same_topic and pairs.get(properties.REAL_TOPIC) != h.topic:
            raise ServerError(ResponseCode.SYSTEM_ERROR, f"the half messages are not for topic {h.topic!r}")
        if half.queue_offset != h.half_offset:
            raise ServerError(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
        if half.position != h.physical_offset:
            raise ServerError(ResponseCode.SYSTEM_ERROR, "The commit log offset wrong")
        unique_id = pairs.get(properties.UNIQUE_ID)
        if unique_id not in (None, h.transaction_id, h.message_id) and _may_be_an_id(h.transaction_id, half.position):
            raise ServerError(ResponseCode.SYSTEM_ERROR, OTHER_HALF)
        return half, pairs

    def check_id(self, position: int, unique_id: str) -> None:
        """Raise ServerError 1 if the half message at a physical offset is another one than a client means."""
        found = self._half_at(position)
        if found is not None and found[1].get(properties.UNIQUE_ID, unique_id) != unique_id:
            raise ServerError(ResponseCode.SYSTEM_ERROR, OTHER_HALF)

    def _half_at(self, position: int) -> tuple[Record, dict[str, str]] | None:
        """Return the half message at a physical offset that a client named, and its properties; None if there is none,
        or it was given up.
        """
        half = self.told(position)
        if half is None or half.topic.decode("utf-8", "replace") != topic_names.HALF_TOPIC:
            return None
        return half, properties.decode(half.properties.decode("utf-8", "replace"))

    def set_aside_before(self, entry: Quarantined) -> Record:
        """Return the record of a half message in the quarantine. Raises RecordError if it cannot be found.

        If it is not at the noted physical offset, it is looked for where its queue offset leads now.
        """
        try:
            return self.record(topic_names.HALF_TOPIC, entry.queue_offset, entry.physical_offset)
        except RecordError:
            low, high = self._store.stored_range(topic_names.HALF_TOPIC, 0)
            if not low <= entry.queue_offset < high:
                raise
            ((position, _, _),) = self._store.queue_units(topic_names.HALF_TOPIC, 0, entry.queue_offset, 1)
            return self.record(topic_names.HALF_TOPIC, entry.queue_offset, position)

    def was_committed(self, key: TransactionKey) -> bool:
        """Tell whether a half message was committed: its message is in its topic, or waits to be delivered there."""
        # Or it waits for its time there.
        for topic in (key.topic, topic_names.SCHEDULE_TOPIC, topic_names.TIMER_TOPIC):
            for stored in self._with_id_of(key, topic):
                if is_commit(stored) and key.is_of(record.decode(stored, check_crc=False), copy=False):
                    return True
        return False

    def was_given_up(self, key: TransactionKey) -> bool:
        """Tell whether a half message, neither open nor committed, was given up and not resumed since."""
        if not self._store.stored_range(topic_names.CHECK_MAX_TOPIC, 0)[1]:
            return False
        given_up, half = self.newest(topic_names.CHECK_MAX_TOPIC, key), self.newest(topic_names.HALF_TOPIC, key)
        return given_up is not None and (half is None or given_up.position > half.position)

    def newest(self, topic: str, key: TransactionKey) -> Record | None:
        """Return the newest copy of a half message in a topic, without a check of its body; None if there is none."""
        copies = [record.decode(stored, check_crc=False) for stored in self._with_id_of(key, topic)]
        return max((c for c in copies if key.is_of(c, copy=True)), key=lambda c: c.position, default=None)

    def _with_id_of(self, key: TransactionKey, topic: str) -> list[memoryview]:
        # What readers do not see yet counts too: a commit is one from the moment it is stored.
        return self._store.query(topic, key.unique_id, RESUMED_COUNT_MAX, 0, NEVER_MS, "U", unconfirmed=True)


def _may_be_an_id(told: str | None, position: int) -> bool:
    """Tell whether a text may be a unique id: some clients tell texts of their own, or the id that the broker gave."""
    return told is not None and _UNIQUE_ID.fullmatch(told) is not None and int(told[-16:], 16) != position


def _with_id(half: Record) -> Record:
    """Return a half message with a unique id: RocketMQ stores one without, as its producer sent it.

    What is told of it names its place, so its first place is its id; copies and commits of it are stored with that.
    """
    pairs = pairs_of(half.properties)
    if b"UNIQ_KEY" in pairs:
        return half
    pairs[b"UNIQ_KEY"] = offset_message_id(half.store_host, half.position).encode()
    stored = properties.of_pairs(pairs)
    return half._replace(properties=stored) if len(stored) <= properties.BYTES_MAX else half


def is_commit(stored: memoryview) -> bool:
    """Tell whether a record is a committed message."""
    return record_layout.sys_flag_of(stored) & sysflags.TRANSACTION_MASK == sysflags.TRANSACTION_COMMIT


def immunity_ms_of(text: str | None) -> int:
    """Return for how many ms the producer is not asked about a half message; `text`: the value of its property."""
    return (whole_number(text, high=LONG_MAX // 1000) or 0) * 1000


def half_message(queue_offset: int, position: int, since_ms: int, pairs: dict[str, str]) -> HalfMessage:
    """Return the HalfMessage of a record at these offsets with these properties."""
    return HalfMessage(
        queue_offset,
        position,
        since_ms,
        immunity_ms_of(pairs.get(IMMUNITY)),
        whole_number(pairs.get(CHECK_TIMES), high=INT_MAX) or 0,
        # The same text for many: kept once.
        sys.intern(pairs.get(properties.PRODUCER_GROUP, "")),
    )


def quarantine_name(position: int) -> str:
    """Return the name under which the half message at a physical offset is in the quarantine."""
    return f"{KIND}-{position}"


def check_request(half: Record, unique_id: str, broker_name: str) -> tuple[CheckTransactionHeader, bytes]:
    """Return the request that asks a producer how a transaction ended: its header, and the message as the body."""
    told = properties.with_value(half.properties, properties.WAIT.encode(), b"false")
    if len(told) > properties.BYTES_MAX:
        told = half.properties
    pairs = pairs_of(half.properties)
    body = record.encode(
        topic=pairs.get(b"REAL_TOPIC", b""),
        queue_id=whole_number(pairs.get(b"REAL_QID"), high=INT_MAX) or 0,
        queue_offset=half.queue_offset,
        position=half.position,
        body=half.body,
        properties=told,
        flag=half.flag,
        sys_flag=half.sys_flag,
        born_time_ms=half.born_time_ms,
        born_host=half.born_host,
        store_time_ms=half.store_time_ms,
        store_host=half.store_host,
        reconsume_times=half.reconsume_times,
    )
    header = CheckTransactionHeader(
        topic=topic_names.HALF_TOPIC,
        half_offset=half.queue_offset,
        physical_offset=half.position,
        message_id=unique_id,
        transaction_id=unique_id,
        offset_message_id=offset_message_id(half.store_host, half.position),
        broker_name=broker_name,
    )
    return header, body
