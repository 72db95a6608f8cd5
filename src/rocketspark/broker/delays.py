"""Delay levels: parked messages in SCHEDULE_TOPIC_XXXX, delivered when due.

Rules (ScheduleMessageService, 5.x): queue = level - 1; due = store time + the level's delay; a level above the highest
is the highest; delayOffset.json holds the next queue offset of each level. After a kill the queues tell what had been
delivered since, so nothing is delivered twice or skipped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from rocketspark.broker import names
from rocketspark.broker.config import JsonFile, now_ms
from rocketspark.broker.delivered import Delivered
from rocketspark.errors import RocketSparkError
from rocketspark.protocol import bodies, java_json, properties, record
from rocketspark.protocol.bodies import DelayOffsetTable
from rocketspark.store.store import Store

log = logging.getLogger("rocketspark.broker")

READ_COUNT = 64
RETRY_S = 1.0

Deliver = Callable[[record.Record], None]


def encode_delay_offsets(table: DelayOffsetTable) -> bytes:
    """delayOffset.json: levels as bare number keys."""
    return b'{"dataVersion":%b,"offsetTable":%b}' % (
        bodies.encode(table.data_version),
        java_json.encode_number_keys(table.offset_table),
    )


class Delays:
    """Delivers parked messages. `deliver` puts a due record back under its real topic."""

    def __init__(self, store: Store, delays_ms: tuple[int, ...], file: JsonFile[DelayOffsetTable]) -> None:
        self._store = store
        self._delays_ms = delays_ms
        self._file = file
        table = file.load() or DelayOffsetTable()
        self._version = table.data_version
        self._offsets: dict[int, int] = dict(table.offset_table)
        self._saved = dict(self._offsets)
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._deliver: Deliver | None = None
        self._delivered: Delivered | None = None
        # Levels that may still come upon what was delivered before a kill.
        self._behind: set[int] = set()

    def level(self, text: bytes) -> int:
        """The level a message asks for, 0 for none; cut to the highest."""
        try:
            return max(0, min(int(text), len(self._delays_ms)))
        except ValueError:
            return 0

    def due_ms(self, level: int, stored_ms: int) -> int:
        """When a message of the level is due."""
        return stored_ms + self._delays_ms[level - 1]

    def start(self, deliver: Deliver) -> None:
        """Begin delivering, from where the last run stopped."""
        self._deliver = deliver
        self._find_delivered()
        for level in range(1, len(self._delays_ms) + 1):
            self._arm(level, 0)

    def _find_delivered(self) -> None:
        """What is due before the last run ended may have been delivered by it."""
        until_ms = self._store.last_store_time_ms
        dues = {}
        for level in range(1, len(self._delays_ms) + 1):
            low, high = self._store.queue_range(names.SCHEDULE_TOPIC, level - 1)
            offset = max(self._offsets.get(level, 0), low)
            if offset < high:
                stored_ms = self._store.store_time_at(names.SCHEDULE_TOPIC, level - 1, offset)
                if self.due_ms(level, stored_ms) <= until_ms:
                    dues[level] = self.due_ms(level, stored_ms)
        if dues:
            self._behind = set(dues)
            self._delivered = Delivered(self._store, min(dues.values()), until_ms, b"REAL_TOPIC", _delivery_key)

    def _was_delivered(self, level: int, parked: record.Record) -> bool:
        if self._delivered is None or level not in self._behind:
            return False
        if self.due_ms(level, parked.store_time_ms) > self._delivered.until_ms:
            self._caught_up(level)
            return False
        pairs = properties.decode(parked.properties.decode("utf-8", "replace"))
        topic, queue_id = pairs.get(properties.REAL_TOPIC), pairs.get(properties.REAL_QUEUE_ID, "0")
        if topic is None or not queue_id.isdecimal():
            return False
        return self._delivered.take(topic, int(queue_id), _delivery_key(parked))

    def _caught_up(self, level: int) -> None:
        self._behind.discard(level)
        if not self._behind:
            self._delivered = None

    def arrived(self, level: int) -> None:
        """A message was parked: its level is looked at when it is due, if not before."""
        if level not in self._timers and self._deliver is not None:
            self._arm(level, self._delays_ms[level - 1] / 1000)

    def _arm(self, level: int, delay_s: float) -> None:
        self._timers[level] = asyncio.get_running_loop().call_later(delay_s, self._run, level)

    def _run(self, level: int) -> None:
        del self._timers[level]
        try:
            wait_ms = self._deliver_due(level)
        except RocketSparkError as e:
            log.error("delay level %d: %s; tried again in %.0f s", level, e, RETRY_S)
            wait_ms = int(RETRY_S * 1000)
        if wait_ms is not None:
            self._arm(level, wait_ms / 1000)

    def _deliver_due(self, level: int) -> int | None:
        """Deliver what is due; returns ms until the next look, None if nothing is parked."""
        assert self._deliver is not None
        queue_id = level - 1
        low, high = self._store.queue_range(names.SCHEDULE_TOPIC, queue_id)
        offset = max(self._offsets.get(level, 0), low)
        if offset > high:
            log.error("delay level %d: offset %d is beyond the queue's end %d; set to the end", level, offset, high)
            offset = high
        if offset == high:
            self._offsets[level] = offset
            self._caught_up(level)
            return None
        found = self._store.read(names.SCHEDULE_TOPIC, queue_id, offset, READ_COUNT, 1 << 20)
        for chunk in found.records:
            for parked in record.decode_all(chunk):
                wait_ms = self.due_ms(level, parked.store_time_ms) - now_ms()
                if wait_ms > 0:
                    self._offsets[level] = parked.queue_offset
                    return wait_ms
                if not self._was_delivered(level, parked):
                    self._deliver(parked)
                self._offsets[level] = parked.queue_offset + 1
        self._offsets[level] = max(found.next_offset, self._offsets.get(level, 0))
        return 0

    def progress(self) -> dict[int, tuple[int, int]]:
        """(next offset to deliver, end of the queue) of each level that ever had a message."""
        ends = {level: self._store.queue_range(names.SCHEDULE_TOPIC, level - 1)[1] for level in self._offsets}
        return {level: (offset, ends[level]) for level, offset in sorted(self._offsets.items()) if ends[level]}

    def save(self) -> None:
        """Write delayOffset.json if a level moved since."""
        if self._offsets != self._saved:
            self._file.save(DelayOffsetTable(offset_table=self._offsets, data_version=self._version))
            self._saved = dict(self._offsets)

    def stop(self) -> None:
        """Stop delivering."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._deliver = None


def _delivery_key(stored: record.Record) -> tuple[str | None, int, int] | None:
    """What tells one delivery of a parked message from all others; None if it never was parked."""
    pairs = properties.decode(stored.properties.decode("utf-8", "replace"))
    if properties.REAL_TOPIC not in pairs:
        return None
    return pairs.get(properties.UNIQUE_ID), stored.reconsume_times, stored.born_time_ms
