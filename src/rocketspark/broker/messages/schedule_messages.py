"""Delay levels: parked messages in SCHEDULE_TOPIC_XXXX, delivered when due.

Rules (ScheduleMessageService, 5.x): queue = level - 1; the queue's unit says when a message is due; a level above the
highest is the highest; delayOffset.json holds the next queue offset of each level, once what was delivered before it is
on the disk. After a kill the queues tell what had been delivered since, so nothing is delivered twice or skipped.
Whatever the clock does, a message waits no longer than its level's delay from when it was seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rocketspark.broker import topic_names
from rocketspark.broker.messages.parked_messages import DeliveryRecovery, bytes_at
from rocketspark.broker.messages.quarantine import Quarantine, fails_again
from rocketspark.broker.storage.json_tables import JsonFile, next_version, now_ms
from rocketspark.errors import MessageStays, RecordError, RocketSparkError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.text import whole_number
from rocketspark.protocol.json import bodies, java_json
from rocketspark.protocol.json.bodies import DataVersion, DelayOffsetTable, Quarantined
from rocketspark.protocol.message import properties, record
from rocketspark.store.consumequeue.consume_queue import GAP_SIZE
from rocketspark.store.store import Store

log = LimitedLog("rocketspark.broker")

READ_COUNT = 64
VERSION_STEP = 200
GONE_DELAY_MS = 1000
RETRY_S = 1.0
# A level with messages is looked at so often, whatever the loop's own time says: a clock may be put forward.
LOOK_S = 1.0
KIND = "delay"

Deliver = Callable[[record.Record], None]


def encode_delay_offsets(table: DelayOffsetTable) -> bytes:
    """Return delayOffset.json, with levels as bare number keys."""
    return b'{"dataVersion":%b,"offsetTable":%b}' % (
        bodies.encode(table.data_version),
        java_json.encode_number_keys(table.offset_table),
    )


class ScheduleMessages:
    """Delivers parked messages. `deliver` puts a due record back under its real topic."""

    def __init__(
        self,
        store: Store,
        delays_ms: tuple[int, ...],
        file: JsonFile[DelayOffsetTable],
        quarantine: Quarantine,
        version_step: Callable[[], int] = lambda: VERSION_STEP,
    ) -> None:
        self._version_step = version_step
        self._moves_left = version_step()
        self._store = store
        self._delays_ms = delays_ms
        self._file = file
        self._quarantine = quarantine
        quarantine.retries(KIND, self._retry)
        table = file.load() or DelayOffsetTable()
        self.version: DataVersion = table.data_version
        self._offsets: dict[int, int] = dict(table.offset_table)
        self._saved = dict(self._offsets)
        # Offsets to be saved once the log is on the disk up to a position.
        self._noted: tuple[int, dict[int, int]] | None = None
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._deliver: Deliver | None = None
        self._delivered: DeliveryRecovery | None = None
        # Levels that may still come upon what was delivered before a kill, with the queue's end at the start.
        self._behind: dict[int, int] = {}
        self._set_back = False
        # By level: messages before a queue offset, parked by a clock that was ahead, are due at a time.
        self._ahead: dict[int, tuple[int, int]] = {}

    def level(self, text: bytes) -> int:
        """Return the delay level that a property's text asks for: 0 for none, the highest for all above it."""
        level = whole_number(text.strip().removeprefix(b"+"))
        return min(level or 0, len(self._delays_ms))

    def due_ms(self, level: int, stored_ms: int) -> int:
        """Return when a message of a level that was stored at `stored_ms` is due."""
        return stored_ms + self._delay_ms(level)

    def _delay_ms(self, level: int) -> int:
        """Return a level's delay; a second for one that is not set (rule: ScheduleMessageService, 5.x)."""
        return self._delays_ms[level - 1] if level <= len(self._delays_ms) else GONE_DELAY_MS

    def _levels(self) -> list[int]:
        """Return the levels that are set, and those gone from messageDelayLevel that still have messages."""
        set_count = len(self._delays_ms)
        queues = sorted(self._store.queues().get(topic_names.SCHEDULE_TOPIC, ()))
        return [*range(1, set_count + 1), *(q + 1 for q in queues if q >= set_count and self._waiting(q + 1))]

    def _waiting(self, level: int) -> int:
        low, high = self._store.stored_range(topic_names.SCHEDULE_TOPIC, level - 1)
        return high - max(self._offsets.get(level, 0), low)

    def start(self, deliver: Deliver) -> None:
        """Begin delivering, from where the last run stopped."""
        self._deliver = deliver
        self._behind.clear()
        self._ahead.clear()
        self._delivered = None
        self._find_delivered()
        for level in self._levels():
            if level > len(self._delays_ms):
                log.warning(
                    "delay level %d is gone from messageDelayLevel: the %d messages that wait in it come at their time",
                    level,
                    self._waiting(level),
                )
            self._arm(level, 0)

    # -- what was delivered before a kill -------------------------------------------------------------------------

    def _find_delivered(self) -> None:
        """Prepare to recognize messages that were delivered before a kill but after the last note of progress.

        These are messages due before the last run ended; if the clock was set back, also those parked before then.
        """
        until_ms = self._store.last_store_time_ms
        self._set_back = now_ms() < until_ms
        since = {}
        for level in self._levels():
            low, high = self._store.stored_range(topic_names.SCHEDULE_TOPIC, level - 1)
            offset = max(self._offsets.get(level, 0), low)
            if offset < high:
                ((_, _, code),) = self._store.queue_units(topic_names.SCHEDULE_TOPIC, level - 1, offset, 1)
                first_ms = self._due_at(level, offset, code)
                if self._set_back:
                    first_ms = min(first_ms, until_ms) - self._delay_ms(level)
                if first_ms <= until_ms:
                    since[level] = first_ms
                    self._behind[level] = high
        if since:
            self._delivered = DeliveryRecovery(self._store, min(since.values()), until_ms, b"REAL_TOPIC", _delivery_key)

    def _was_delivered(self, level: int, due_ms: int, parked: record.Record) -> bool:
        if self._delivered is None or level not in self._behind:
            return False
        late = due_ms > self._delivered.until_ms and not self._set_back
        if late or parked.queue_offset >= self._behind[level]:
            self._caught_up(level)
            return False
        target = topic_names.target_of(properties.pairs_of(parked.properties))
        return target is not None and self._delivered.take(*target, _delivery_key(parked))

    def _caught_up(self, level: int) -> None:
        self._behind.pop(level, None)
        if not self._behind:
            self._delivered = None

    # -- delivering -----------------------------------------------------------------------------------------------

    def arrived(self, level: int) -> None:
        """Note that a message of a level was parked, so that the level is looked at when the message is due."""
        if level not in self._timers and self._deliver is not None:
            self._arm(level, self._delays_ms[level - 1] / 1000)

    def _arm(self, level: int, delay_s: float) -> None:
        self._timers[level] = asyncio.get_running_loop().call_later(min(delay_s, LOOK_S), self._run, level)

    def _run(self, level: int) -> None:
        del self._timers[level]
        try:
            wait_ms = self._deliver_due(level)
        except MessageStays as e:
            wait_ms = int(RETRY_S * 1000)
            if e.when_ended is not None:
                e.when_ended(lambda: self._go_on(level))
                return
        except RocketSparkError as e:
            log.error("delay level %d: %s; tried again in %.0f s", level, e, RETRY_S)
            wait_ms = int(RETRY_S * 1000)
        except Exception:
            log.exception("delay level %d: tried again in %.0f s", level, RETRY_S)
            wait_ms = int(RETRY_S * 1000)
        if wait_ms is not None:
            self._arm(level, wait_ms / 1000)

    def _go_on(self, level: int) -> None:
        if level not in self._timers and self._deliver is not None:
            self._arm(level, 0)

    def _deliver_due(self, level: int) -> int | None:
        """Deliver what is due; returns ms until the next look, None if nothing is parked."""
        queue_id = level - 1
        low, high = self._store.stored_range(topic_names.SCHEDULE_TOPIC, queue_id)
        offset = max(self._offsets.get(level, 0), low)
        if offset > high:
            log.error("delay level %d: offset %d is beyond the queue's end %d; set to the end", level, offset, high)
            offset = high
        if offset == high:
            if self._offsets.get(level, 0) != offset:
                self._move(level, offset)
            self._caught_up(level)
            return None
        units = self._store.queue_units(topic_names.SCHEDULE_TOPIC, queue_id, offset, min(READ_COUNT, high - offset))
        for at, (position, size, code) in enumerate(units, offset):
            self._offsets[level] = at
            if size != GAP_SIZE and position >= self._store.min_position:
                due_ms = self._due_at(level, at, code)
                wait_ms = self._wait_ms(level, due_ms, at, high)
                if wait_ms > 0:
                    return wait_ms
                try:
                    self._deliver_one(level, due_ms, at, position)
                except Exception as e:
                    if not fails_again(e):
                        raise
                    self._quarantine.add(KIND, topic_names.SCHEDULE_TOPIC, queue_id, at, position, e)
            self._move(level, at + 1)
        return 0

    def _move(self, level: int, offset: int) -> None:
        """Set a level's next offset; the version rises once in so many (rule: ScheduleMessageService, 5.x)."""
        self._offsets[level] = offset
        self._moves_left -= 1
        if self._moves_left <= 0:
            self._moves_left = self._version_step()
            self.version = next_version(self.version)

    def _deliver_one(self, level: int, due_ms: int, queue_offset: int, position: int) -> None:
        assert self._deliver is not None
        parked = self._record(level, queue_offset, position)
        if not self._was_delivered(level, due_ms, parked):
            self._deliver(parked)

    def _record(self, level: int, queue_offset: int, position: int) -> record.Record:
        """Return the parked message that a queue's unit points to. Raises RecordError if it is not there."""
        parked = record.decode(bytes_at(self._store, position))
        place = parked.topic.decode("utf-8", "replace"), parked.queue_id, parked.queue_offset
        if place != (topic_names.SCHEDULE_TOPIC, level - 1, queue_offset):
            raise RecordError(f"the record at physical offset {position} is another: {place}")
        return parked

    def _due_at(self, level: int, queue_offset: int, code: int) -> int:
        """Return the time at which the message of a unit is due: the unit's own, or else by the store time."""
        if code > 0:
            return code
        return self.due_ms(level, self._store.store_time_at(topic_names.SCHEDULE_TOPIC, level - 1, queue_offset))

    def _wait_ms(self, level: int, due_ms: int, offset: int, end: int) -> int:
        """Return how long a message has to wait. A clock that was ahead when it was parked holds nothing back.

        A message due later than the level's delay from now was parked by such a clock: it is due after that delay,
        as are the messages parked meanwhile.
        """
        now, delay_ms = now_ms(), self._delay_ms(level)
        if level > len(self._delays_ms):
            delay_ms = due_ms - self._store.store_time_at(topic_names.SCHEDULE_TOPIC, level - 1, offset)
        if due_ms - now <= delay_ms:
            return due_ms - now
        known_end, until_ms = self._ahead.get(level, (0, 0))
        if offset >= known_end or until_ms - now > delay_ms:
            until_ms = now + delay_ms
            self._ahead[level] = end, until_ms
            log.warning(
                "delay level %d: the clock was %.0f s ahead when messages were parked; they are due in %.0f s",
                level,
                (due_ms - now - delay_ms) / 1000,
                delay_ms / 1000,
            )
        return until_ms - now

    def _retry(self, entry: Quarantined) -> None:
        """Deliver a message of the quarantine."""
        if self._deliver is None:
            return
        level, position = entry.queue_id + 1, entry.physical_offset
        low, high = self._store.stored_range(topic_names.SCHEDULE_TOPIC, entry.queue_id)
        if low <= entry.queue_offset < high:
            # Its unit may have been mended since.
            ((position, _, _),) = self._store.queue_units(
                topic_names.SCHEDULE_TOPIC, entry.queue_id, entry.queue_offset, 1
            )
        self._deliver(self._record(level, entry.queue_offset, position))

    # -- progress -------------------------------------------------------------------------------------------------

    def progress(self) -> dict[int, tuple[int, int]]:
        """Return (next offset to deliver, end of the queue) of each level that ever had a message."""
        found = {}
        for level in self._levels():
            end = self._store.stored_range(topic_names.SCHEDULE_TOPIC, level - 1)[1]
            if end:
                found[level] = self._offsets.get(level, 0), end
        return found

    def table(self) -> DelayOffsetTable:
        """Return the next offset of each level as it is now, for other brokers with this broker's name."""
        return DelayOffsetTable(offset_table=dict(self._offsets), data_version=self.version)

    def take(self, offsets: dict[int, int], version: DataVersion | None) -> None:
        """Take the next offset of each level from another broker with this broker's name, for the next `start`.

        Nothing happens while this broker delivers: then its own offsets count.
        """
        version = self.version if version is None else version
        if self._deliver is None and (offsets, version) != (self._offsets, self.version):
            self._offsets = dict(offsets)
            self.version = version
            # What they count was not delivered here: there is nothing to flush before.
            self._noted = 0, dict(offsets)
            self.save()

    def save(self) -> None:
        """Write the offsets to delayOffset.json, once the messages delivered before them are on the disk."""
        if self._noted is None and self._offsets != self._saved:
            self._noted = self._store.written_position, dict(self._offsets)
        if self._noted is None or self._noted[0] > self._store.flushed_position:
            return
        # The quarantine first: it holds the messages that were skipped.
        self._quarantine.save()
        self._file.save(DelayOffsetTable(offset_table=self._noted[1], data_version=self.version))
        self._saved, self._noted = self._noted[1], None

    def finish(self) -> None:
        """Write all offsets to delayOffset.json; called after the store's last flush."""
        self._noted = None
        self.save()

    def stop(self) -> None:
        """Stop delivering."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._deliver = None


def _delivery_key(stored: record.Record) -> tuple[bytes | None, int, int] | None:
    """Return the identity of a parked message's delivery; None for a message that never was parked."""
    if properties.find(stored.properties, b"REAL_TOPIC") is None:
        return None
    return properties.find(stored.properties, b"UNIQ_KEY"), stored.reconsume_times, stored.born_time_ms
