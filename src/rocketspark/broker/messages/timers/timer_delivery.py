"""Delivers the timer messages of a slot of the wheel, but for those that were recalled, and retries quarantined ones.

Rules (TimerMessageStore, 5.x): messages of a slot are delivered in the order of sending; one that is not due yet is
stored again under the timers' topic (rolled). What was delivered before a kill is not delivered again. A message that
can never be delivered goes into the quarantine, the others of its slot are delivered."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rocketspark.broker import topic_names
from rocketspark.broker.messages.parked_messages import DeliveryRecovery, decode_mended
from rocketspark.broker.messages.put_message import PutMessage, pairs_of
from rocketspark.broker.messages.quarantine import Quarantine, fails_again
from rocketspark.broker.messages.timers.timer_statistics import TimerStatistics
from rocketspark.broker.statistics.stats import Stats, count
from rocketspark.errors import MessageStays, RecordError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.text import INT_MAX, string_hash, whole_number
from rocketspark.protocol.json.bodies import Quarantined
from rocketspark.protocol.message import properties, record_layout
from rocketspark.protocol.message.record import Record
from rocketspark.store.store import Store
from rocketspark.store.timers.timer_files import TimerFiles
from rocketspark.store.timers.timer_log import DELETE, ROLL, TimerLogUnit
from rocketspark.store.timers.timer_wheel import GRIDS_MS, SLOT_COUNT

log = LimitedLog("rocketspark.broker")

DRAIN_COUNT = 256
RETRY_S = 1.0
# Records of one unique id that are looked at for a recall: the newest, one for each time that it was rolled on.
RECALLS_MAX = 32
OUT_MS_MAX = 10**18 - 1
KIND = "timer"
# The property with TIMER_OUT_MS's grid, for a message rolled on after timerPrecisionMs had changed.
GRID_PROPERTY = b"TIMER_GRID_MS"

Key = tuple[bytes, bytes, bytes, bytes]
# Topic and unique id: who may send to one topic takes back nothing of another.
Recalled = tuple[str, bytes | None]


class TimerDelivery:
    """Delivers timer messages from the wheel. `delivered`: finds what was delivered before a kill, if needed."""

    def __init__(
        self,
        store: Store,
        put_message: PutMessage,
        files: TimerFiles,
        stats: Stats,
        quarantine: Quarantine,
        statistics: TimerStatistics,
        clock: Callable[[], int],
    ) -> None:
        self._store = store
        self._put_message = put_message
        self._files = files
        self._stats = stats
        self._quarantine = quarantine
        self._statistics = statistics
        self._clock = clock
        self._looked_back: int | None = None
        self._slot_end_ms = self._theirs_before = 0
        # The slot goes before what is unread, which may hold recalls.
        self._is_old = False
        self.delivered: DeliveryRecovery | None = None
        # Of a topic's messages, who tells by their places which nobody needs any more.
        self.doubted_topic = ""
        self.doubted_hash: int | None = None
        self.is_unneeded: Callable[[int], bool] = lambda position: False
        self._topic_now: Callable[[str], str] = lambda topic: topic

    def doubt(self, topic: str, is_unneeded: Callable[[int], bool]) -> None:
        """Have messages of a topic that nobody needs any more left undelivered.

        `is_unneeded`: called with the physical offset of each due message of the topic.
        """
        self.doubted_topic, self.doubted_hash = topic, string_hash(topic)
        self.is_unneeded = is_unneeded

    def send_on(self, topic_now: Callable[[str], str]) -> None:
        """Deliver due messages to the topic that `topic_now` returns for the one they were sent to, as a topic may have
        got a new name while they waited.
        """
        self._topic_now = topic_now

    def recover(self, since_ms: int) -> None:
        """Look out for deliveries that the last run made from slots since a time (in ms), so that none is repeated."""
        self.delivered = DeliveryRecovery(
            self._store, since_ms, self._store.last_store_time_ms, b"TIMER_DEQUEUE_MS", _delivery_key
        )

    def caught_up(self, read_ms: int) -> None:
        """Forget what was delivered before a kill once all its slots are done."""
        if self.delivered is not None and read_ms > self.delivered.until_ms:
            self.delivered = None

    @property
    def _precision_ms(self) -> int:
        return self._files.wheel.precision_ms

    def stored(self, position: int, queue_offset: int = -1) -> Record:
        """Return the timer message's record at a physical offset. Raises RecordError if it is another or none.

        `queue_offset`: what the record must say of itself; -1 for any.
        """
        found = self._store.record_at(position)
        if found is None:
            raise RecordError(
                f"no record begins at physical offset {position}, where the queue or the wheel says one does"
            )
        stored = decode_mended(found)
        if stored.topic != topic_names.TIMER_TOPIC.encode():
            raise RecordError(f"the record at physical offset {position} is another: of topic {stored.topic[:200]!r}")
        if queue_offset not in (-1, stored.queue_offset):
            raise RecordError(f"the record at physical offset {position} is another: offset {stored.queue_offset}")
        return stored

    def read_for(self, topic: str, position: int) -> Iterator[tuple[Record, dict[bytes, bytes]]]:
        """Yield (record, properties) of the timer message at a physical offset, if it is for a topic and readable."""
        try:
            stored = self.stored(position)
        except RecordError:
            return
        pairs = pairs_of(stored.properties)
        target = topic_names.target_of(pairs)
        if target is not None and target[0] == topic:
            yield stored, pairs

    def was_recalled(self, topic: str, pairs: dict[bytes, bytes]) -> bool:
        """Tell whether a message that gets no slot is recalled by one that is stored; `pairs`: its properties."""
        unique_id = pairs.get(b"UNIQ_KEY", b"")
        name = unique_id.decode("utf-8", "replace")
        topic_of_timers = topic_names.TIMER_TOPIC
        for found in self._store.query(topic_of_timers, name, RECALLS_MAX, 0, OUT_MS_MAX, "U", unconfirmed=True):
            other = pairs_of(record_layout.properties_of(found))
            target = topic_names.target_of(other)
            if target is not None and target[0] == topic and other.get(b"TIMER_DEL_UNIQKEY") == unique_id:
                return True
        return False

    def slot(self, time_ms: int, theirs_before: int = 0) -> Iterator[float]:
        """Deliver the slot of a time in pieces; yields how many seconds to wait before the next piece.

        `theirs_before`: messages before this offset of the timers' queue were delivered by another broker.
        A delivery that fails is tried again, or the message goes into the quarantine.
        """
        positions = self._files.positions(time_ms)
        recalled: set[Recalled] = set()
        self._looked_back = None
        self._theirs_before = theirs_before
        self._slot_end_ms = time_ms + self._precision_ms
        self._is_old = time_ms < self._clock() - SLOT_COUNT // 2 * self._precision_ms
        for step in (self._recall_unit, self._deliver_unit):
            for number, position in enumerate(positions, 1):
                while True:
                    try:
                        step(position, recalled)
                        break
                    except MessageStays as e:
                        if e.when_ended is not None:
                            e.when_ended(self._put_message.timer_arrived)
                        yield RETRY_S
                    except Exception as e:
                        if fails_again(e):
                            unit = self._files.log.unit_at(position)
                            self._quarantine.add(
                                KIND,
                                topic_names.TIMER_TOPIC,
                                0,
                                -1,
                                unit.physical_offset if unit is not None else -1,
                                e,
                            )
                            break
                        log.error("timer message at %d of the timer log: %s; tried again", position, e)
                        yield RETRY_S
                if number % DRAIN_COUNT == 0:
                    yield 0.0

    def _recall_unit(self, position: int, recalled: set[Recalled]) -> None:
        unit = self._files.log.unit_at(position)
        if unit is not None and unit.grid_ms:
            self._look_back(unit.time_ms // self._precision_ms * self._precision_ms, recalled)
        if unit is None or unit.magic & (DELETE | ROLL) != DELETE:
            return
        found = self._record(unit)
        if found is not None and b"TIMER_DEL_UNIQKEY" in found[1]:
            recalled.add((found[2], found[1][b"TIMER_DEL_UNIQKEY"]))
            # The recall was counted down when it came; the message it recalls is counted down with its unit.
            self._statistics.count(found[2], 1)

    def _look_back(self, slot_ms: int, recalled: set[Recalled]) -> None:
        """Note the recalls in the slots up to a second before this one, which may be meant for messages in it.

        A message whose due time was rounded with another precision (`grid_of`) lies in a later slot than its recall.
        """
        if self._looked_back == slot_ms:
            return
        for time_ms in range(slot_ms // GRIDS_MS[0] * GRIDS_MS[0], slot_ms, self._precision_ms):
            for unit in self._files.chain(time_ms):
                if unit.magic & (DELETE | ROLL) == DELETE:
                    try:
                        found = self._record(unit)
                    except RecordError:
                        continue  # Its own slot told of it.
                    if found is not None:
                        recalled.add((found[2], found[1].get(b"TIMER_DEL_UNIQKEY", b"")))
        self._looked_back = slot_ms

    def _deliver_unit(self, position: int, recalled: set[Recalled]) -> None:
        unit = self._files.log.unit_at(position)
        if unit is None:
            return
        if unit.topic_hash == self.doubted_hash and self.is_unneeded(unit.physical_offset):
            self._statistics.count(self.doubted_topic, -1)
            return
        found = self._record(unit)
        if found is None:
            return
        stored, pairs, topic = found
        # The record decides, as the unit's magic may be damaged: what is a recall, and what is not due yet.
        delete = b"TIMER_DEL_UNIQKEY" in pairs
        out_ms = whole_number(pairs.get(b"TIMER_OUT_MS"), high=OUT_MS_MAX) or 0
        roll = bool(unit.magic & ROLL) or (not delete and out_ms >= self._slot_end_ms)
        if delete and not roll:
            return
        change = 1 if delete else -1
        if stored.queue_offset < self._theirs_before:
            self._statistics.count(topic, change)
            return
        try:
            wanted = (topic, pairs.get(b"UNIQ_KEY")) not in recalled
            if roll or (wanted and not (self._is_old and self.was_recalled(topic, pairs))):
                if roll and unit.grid_ms:
                    pairs = {GRID_PROPERTY: b"%d" % unit.grid_ms} | pairs
                self.put_back(stored, pairs, topic, unit.write_time_ms, roll=roll)
        except Exception as e:
            if fails_again(e):
                self._statistics.count(topic, change)
            raise
        self._statistics.count(topic, change)

    def _record(self, unit: TimerLogUnit) -> tuple[Record, dict[bytes, bytes], str] | None:
        if unit.physical_offset < self._store.min_position:
            log.error("the timer message at %d of the log is gone; it cannot be delivered", unit.physical_offset)
            return None
        stored = self.stored(unit.physical_offset)
        if stored.size != unit.record_bytes:
            raise RecordError(f"the record at physical offset {stored.position} is another: {stored.size} bytes")
        pairs, topic = _pairs_and_topic(stored)
        return stored, pairs, topic

    def retry(self, entry: Quarantined) -> bool:
        """Deliver a quarantined message; returns True if it is not due yet, and was stored for the wheel once more."""
        position = entry.physical_offset
        low, high = self._store.stored_range(topic_names.TIMER_TOPIC, 0)
        if low <= entry.queue_offset < high:
            # Its unit may have been mended since.
            ((position, _, _),) = self._store.queue_units(topic_names.TIMER_TOPIC, 0, entry.queue_offset, 1)
        stored = self.stored(position, entry.queue_offset)
        pairs, topic = _pairs_and_topic(stored)
        now = self._clock()
        roll = (whole_number(pairs.get(b"TIMER_OUT_MS"), high=OUT_MS_MAX) or 0) > now
        if roll or b"TIMER_DEL_UNIQKEY" not in pairs:
            self.put_back(stored, pairs, topic, now, roll=roll)
        return roll

    def put_back(self, stored: Record, pairs: dict[bytes, bytes], topic: str, enqueue_ms: int, *, roll: bool) -> None:
        """Store a message under its real topic, or (`roll`) once more under the timers' topic, as it is not due yet.

        `pairs`: its properties; `topic`: its real topic; `enqueue_ms`: when it came onto the wheel.
        """
        rolled = whole_number(pairs.get(b"TIMER_ROLL_TIMES"), high=INT_MAX)
        if roll:
            target, queue_id, rolls = topic_names.TIMER_TOPIC, 0, b"%d" % ((rolled or 0) + 1)
        else:
            target, queue_id = topic_names.target_of(pairs) or (topic, 0)
            target = self._topic_now(target)
            self._put_message.rules.admit_parked(target, queue_id, stored.position)
            rolls = b"%d" % rolled if rolled is not None else b""
        if self.delivered is not None and self.delivered.take(target, queue_id, key_of(pairs, rolls)):
            return
        added = {b"TIMER_ENQUEUE_MS": b"%d" % enqueue_ms, b"TIMER_DEQUEUE_MS": b"%d" % self._clock()}
        if rolls:
            added[b"TIMER_ROLL_TIMES"] = rolls
        given = pairs | added
        given.pop(b"__CRC32#", None)  # That of the other record.
        if not roll:
            given.pop(GRID_PROPERTY, None)
        text = properties.of_pairs(given)
        position, _, end = self._put_message.accept_again(stored, target, queue_id, text, given)
        if not roll:
            count(self._stats.delivered, target, end - position)
            self._statistics.went(target)


def key_of(pairs: dict[bytes, bytes], rolls: bytes) -> Key:
    """Return the identity of a timer message's delivery, with the id of the message that it recalls, if it does.

    `rolls`: how often it was rolled on, as text.
    """
    recalled = pairs.get(b"TIMER_DEL_UNIQKEY", b"")
    return pairs.get(b"UNIQ_KEY", b""), pairs.get(b"TIMER_OUT_MS", b""), rolls, recalled


def _pairs_and_topic(stored: Record) -> tuple[dict[bytes, bytes], str]:
    """Return a timer message's properties, and the topic that it was sent to. RecordError: it may go to none."""
    pairs = pairs_of(stored.properties)
    target = topic_names.target_of(pairs)
    if target is None:
        raise RecordError(f"the timer message at physical offset {stored.position} has no topic it may go to")
    return pairs, target[0]


def grid_of(pairs: dict[bytes, bytes]) -> int:
    """Return the grid in ms (timerPrecisionMs) of a message's due time if it has one of its own; else 0."""
    grid_ms = whole_number(pairs.get(GRID_PROPERTY), high=GRIDS_MS[0])
    return grid_ms if grid_ms in GRIDS_MS else 0


def _delivery_key(stored: Record) -> Key | None:
    """Return `key_of` of a stored message; None if it was not delivered by the wheel."""
    pairs = pairs_of(stored.properties)
    return key_of(pairs, pairs.get(b"TIMER_ROLL_TIMES", b"")) if b"TIMER_DEQUEUE_MS" in pairs else None
