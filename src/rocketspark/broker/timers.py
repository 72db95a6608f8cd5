"""Timer messages: put on the wheel as they arrive, delivered when due, rolled on, recalled.

Rules (TimerMessageStore, 5.x): a slot is delivered once it is over, in the order of sending, without what was recalled.
After a kill the queues tell what had been delivered already, so nothing is delivered twice, and nothing lost.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rocketspark.broker import names
from rocketspark.broker.config import JsonFile, now_ms
from rocketspark.broker.delivered import Delivered
from rocketspark.broker.histograms import DELAY_BOUNDS, Histogram
from rocketspark.broker.intake import Intake, pairs_of
from rocketspark.broker.stats import Stats, count
from rocketspark.errors import RocketSparkError, ServerError
from rocketspark.model.java import string_hash
from rocketspark.protocol import record
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.record import Record
from rocketspark.protocol.timers import TimerCount, TimerCounts
from rocketspark.store.store import Store
from rocketspark.store.timer_files import DELETE, ROLL, SLOT_COUNT, Checkpoint, TimerFiles, Unit

log = logging.getLogger("rocketspark.broker")

SCAN_COUNT = 256
DRAIN_COUNT = 256
READ_BYTES = 1 << 20
RETRY_S = 1.0
# An idle wheel's progress is noted less often than messages are.
IDLE_SAVE_MS = 10_000
COUNTS_SAVE_MS = 10_000
CLEAN_MS = 60_000
# TIMER_ENQUEUE_MS of a message that came too late for the wheel.
NEVER_MS = (1 << 63) - 1

Key = tuple[bytes, bytes, bytes]


class TimerProgress(NamedTuple):
    """Messages not on the wheel yet and the age of the oldest; those due and how late; those waiting; rates."""

    unread: int
    unread_ms: int
    due: int
    late_ms: int
    waiting: int
    enqueue_tps: float
    dequeue_tps: float


class Timers:
    """The timer messages of one broker.

    `clock`: the time in ms. `start` opens the files; `work` does the next piece by itself, for tests without a loop.
    """

    def __init__(
        self,
        store: Store,
        intake: Intake,
        files: TimerFiles,
        counts_file: JsonFile[TimerCounts],
        stats: Stats,
        *,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self._store = store
        self._intake = intake
        self._files = files
        self._counts_file = counts_file
        self._stats = stats
        self._clock = clock
        self._precision_ms = files.precision_ms
        self._offset = 0
        self._armed_for_s = float("inf")
        self._read_ms = 0
        # After the last slot from which anything was delivered: the checkpoint should soon be there.
        self._emptied_ms = 0
        self._version = Checkpoint()
        # Times of the slots that hold something: as a heap and as a set.
        self._slots: list[int] = []
        self._known: set[int] = set()
        self._draining: int | None = None
        self._drain: Iterator[float] | None = None
        self._goal: int | None = None
        # Records that are on the wheel although the checkpoint's offset is before them; units from there on are theirs.
        self._logged: set[int] = set()
        self._logged_from = 0
        self._delivered: Delivered | None = None
        self._counts = TimerCounts()
        self._counts_changed = False
        # By real topic, since the start.
        self.enqueued: dict[str, int] = {}
        self.dequeued: dict[str, int] = {}
        self.delays: dict[str, Histogram] = {}
        self._rates_from = (0, 0, 0)
        self._rates = (0.0, 0.0)
        self._timer: asyncio.Handle | None = None
        self._at_once = False
        self._running = False
        self._snapshot: tuple[int, Checkpoint] | None = None
        self._flushing: asyncio.Future[None] | None = None
        self._saved_ms = self._counts_saved_ms = self._cleaned_ms = 0

    # -- start and stop -------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Read the files: what is pending, and from where on the queue is to be scanned."""
        self._files.open()
        self._version = self._files.checkpoint
        self._offset = self._version.queue_offset
        self._read_ms = self._version.read_time_ms
        low, high = self._store.queue_range(names.TIMER_TOPIC, 0)
        if self._offset > high:
            log.error("timer messages: offset %d is beyond the queue's end %d; set to the end", self._offset, high)
        self._offset = max(low, min(self._offset, high))
        if self._files.used:
            self._slots = self._files.pending()
            self._known = set(self._slots)
            self._logged_from = self._version.log_position
            self._logged = {u.log_position for u in self._files.log.units(self._logged_from)}
        if self._slots or self._offset < high:
            self._delivered = Delivered(
                self._store, self._read_ms, self._store.last_store_time_ms, b"TIMER_DEQUEUE_MS", _delivery_key
            )
        self._counts = self._counts_file.load() or TimerCounts()
        self._saved_ms = self._counts_saved_ms = self._cleaned_ms = self._clock()

    def start(self) -> None:
        """Open the files and begin delivering on the running loop."""
        self.open()
        self._running = True
        self._arm(0)

    async def stop(self) -> None:
        """Stop delivering; a flush that is under way is waited for."""
        self._running = False
        if self._timer is not None:
            self._timer.cancel()
        if self._flushing is not None:
            await self._flushing

    def arrived(self) -> None:
        """A timer message was stored: it is put on the wheel in this turn of the loop or the next."""
        if self._running and self._armed_for_s > asyncio.get_running_loop().time():
            self._arm(0)

    def _arm(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._armed_for_s = loop.time() + delay_s
        # For no delay uvloop gives a handle that does not tell its time.
        self._timer = loop.call_later(delay_s, self._turn)

    def _turn(self) -> None:
        self._timer = None
        self._armed_for_s = float("inf")
        wait_s = self.work()
        if wait_s is not None and self._running:
            self._arm(wait_s)

    # -- work -----------------------------------------------------------------------------------------------------

    def work(self) -> float | None:
        """Do the next bounded piece; returns s until there is more to do, None if nothing is pending."""
        try:
            return self._work()
        except RocketSparkError as e:
            log.error("timer messages: %s; tried again in %.0f s", e, RETRY_S)
            return RETRY_S

    def _work(self) -> float | None:
        now = self._clock()
        end = self._store.queue_range(names.TIMER_TOPIC, 0)[1]
        # Slots of a week ago go first: new ones may need their place.
        old = bool(self._slots) and self._slots[0] < now - SLOT_COUNT // 2 * self._precision_ms
        if self._offset < end and not old:
            self._scan(now)
        if self._drain is None:
            due = self._slots[0] if self._slots and self._slots[0] + self._precision_ms <= now else None
            if due is None:
                if self._offset < end:
                    return 0.0
                self._caught_up(now)
                return max(0.0, (self._slots[0] + self._precision_ms - now) / 1000) if self._slots else None
            if self._goal is None:
                self._goal = end
            if self._offset < self._goal and not old:
                # A recall that is stored already must be on the wheel before the slot is delivered.
                return 0.0
            self._goal = None
            heapq.heappop(self._slots)
            self._known.discard(due)
            self._draining = due
            self._drain = self._deliver_slot(due)
        wait_s = next(self._drain, None)
        if wait_s is None:
            assert self._draining is not None
            self._emptied_ms = self._read_ms = max(self._read_ms, self._draining + self._precision_ms)
            self._drain = self._draining = None
            return 0.0
        return wait_s

    def _caught_up(self, now: int) -> None:
        """Nothing is due and nothing unread: all slots before now are done."""
        if self._files.used:
            self._read_ms = max(self._read_ms, now // self._precision_ms * self._precision_ms)
        if self._delivered is not None and self._read_ms > self._delivered.until_ms:
            self._delivered = None
        self._logged.clear()

    def _scan(self, now: int) -> None:
        """Put the next messages of the queue on the wheel."""
        found = self._store.read(names.TIMER_TOPIC, 0, self._offset, SCAN_COUNT, READ_BYTES)
        for chunk in found.records:
            for stored in record.decode_all(chunk):
                if stored.queue_offset >= self._offset:
                    self._take(stored, now)
                    self._offset = stored.queue_offset + 1
        self._offset = max(self._offset, found.next_offset)

    def _take(self, stored: Record, now: int) -> None:
        if stored.position in self._logged:
            return
        pairs = pairs_of(stored.properties)
        out_text = pairs.get(b"TIMER_OUT_MS", b"")
        target = target_of(pairs)
        if target is None or not out_text.isdigit() or len(out_text) > 18:
            log.warning("the record at %d of topic %s is no timer message; skipped", stored.position, names.TIMER_TOPIC)
            return
        topic, out_ms = target[0], int(out_text)
        delete = b"TIMER_DEL_UNIQKEY" in pairs
        open_from = self._read_ms if self._draining is None else self._draining + self._precision_ms
        open_from = max(open_from, now - SLOT_COUNT // 2 * self._precision_ms)
        if out_ms < open_from:
            # Its slot was delivered already.
            if not delete:
                self._put_back(stored, pairs, topic, NEVER_MS, roll=False)
            return
        write_ms = now // self._precision_ms * self._precision_ms
        slot_ms = self._files.add(write_ms, out_ms, stored.position, stored.size, string_hash(topic), delete=delete)
        slot_ms -= slot_ms % self._precision_ms
        if slot_ms not in self._known:
            self._known.add(slot_ms)
            heapq.heappush(self._slots, slot_ms)
        self._count(topic, -1 if delete else 1)
        if not delete:
            self.enqueued[topic] = self.enqueued.get(topic, 0) + 1
            self.delays.setdefault(topic, Histogram(DELAY_BOUNDS)).add(max(0, out_ms - stored.born_time_ms) // 1000)

    def _deliver_slot(self, time_ms: int) -> Iterator[float]:
        """Deliver a slot piece by piece; yields s to wait. What fails is tried again until it succeeds."""
        positions = self._files.positions(time_ms)
        recalled: set[bytes] = set()
        for step in (self._recall_unit, self._deliver_unit):
            for number, position in enumerate(positions, 1):
                while True:
                    try:
                        step(position, recalled)
                        break
                    except RocketSparkError as e:
                        log.error("timer message at %d of the timer log: %s; tried again", position, e)
                        yield RETRY_S
                if number % DRAIN_COUNT == 0:
                    yield 0.0

    def _recall_unit(self, position: int, recalled: set[bytes]) -> None:
        unit = self._files.log.unit_at(position)
        if unit is None or unit.magic & (DELETE | ROLL) != DELETE:
            return
        found = self._record(unit)
        if found is not None and b"TIMER_DEL_UNIQKEY" in found[1]:
            recalled.add(found[1][b"TIMER_DEL_UNIQKEY"])
            # It was counted down when it came; the message it recalls is counted down with its unit.
            self._count(found[2], 1)

    def _deliver_unit(self, position: int, recalled: set[bytes]) -> None:
        unit = self._files.log.unit_at(position)
        if unit is None or unit.magic & (DELETE | ROLL) == DELETE:
            return
        found = self._record(unit)
        if found is None:
            return
        stored, pairs, topic = found
        roll = bool(unit.magic & ROLL)
        if roll or pairs.get(b"UNIQ_KEY") not in recalled:
            self._put_back(stored, pairs, topic, unit.write_time_ms, roll=roll)
        self._count(topic, 1 if unit.magic & DELETE else -1)

    def _record(self, unit: Unit) -> tuple[Record, dict[bytes, bytes], str] | None:
        found = self._store.record_at(unit.log_position)
        stored = None if found is None else record.decode(found)
        if stored is None or stored.topic != names.TIMER_TOPIC.encode() or stored.size != unit.record_bytes:
            log.error("the timer message at %d of the log is gone; it cannot be delivered", unit.log_position)
            return None
        pairs = pairs_of(stored.properties)
        target = target_of(pairs)
        if target is None:
            log.error("the timer message at %d of the log has no topic it may go to; dropped", unit.log_position)
            return None
        return stored, pairs, target[0]

    def _put_back(self, stored: Record, pairs: dict[bytes, bytes], topic: str, enqueue_ms: int, *, roll: bool) -> None:
        """Store a message under its real topic, or once more under the timers' to be rolled."""
        target, queue_id = (names.TIMER_TOPIC, 0) if roll else (topic, int(pairs[b"REAL_QID"]))
        rolls = pairs.get(b"TIMER_ROLL_TIMES", b"")
        if roll:
            rolls = b"%d" % (int(rolls) + 1 if rolls.isdigit() else 1)
        if self._delivered is not None and self._delivered.take(target, queue_id, key_of(pairs, rolls)):
            return
        added = {b"TIMER_ENQUEUE_MS": b"%d" % enqueue_ms, b"TIMER_DEQUEUE_MS": b"%d" % self._clock()}
        if rolls:
            added[b"TIMER_ROLL_TIMES"] = rolls
        given = pairs | added
        given.pop(b"__CRC32#", None)  # That of the other record.
        try:
            position, _, end = self._intake.accept(
                target,
                queue_id,
                stored.body,
                b"".join([b"%b\x01%b\x02" % pair for pair in given.items()]),
                given,
                stored.flag,
                stored.sys_flag & ~record.HOST_FLAGS,
                stored.born_time_ms,
                stored.born_host,
                stored.reconsume_times,
                delayed=False,
            )
        except ServerError as e:
            if e.code != ResponseCode.MESSAGE_ILLEGAL:
                raise
            log.error("the timer message at %d of the log can never be delivered: %s", stored.position, e)
            return
        if not roll:
            count(self._stats.delivered, target, end - position)
            self.dequeued[target] = self.dequeued.get(target, 0) + 1

    # -- counts ---------------------------------------------------------------------------------------------------

    def _count(self, topic: str, change: int) -> None:
        known = self._counts.counts.get(topic) or TimerCount()
        changed_ms = self._clock()
        self._counts.counts[topic] = TimerCount(count=known.count + change, changed_ms=changed_ms)
        self._counts.data_version.counter += 1
        self._counts.data_version.timestamp = changed_ms
        self._counts_changed = True

    def waiting(self) -> dict[str, int]:
        """How many timer messages wait, by real topic."""
        return {topic: c.count for topic, c in self._counts.counts.items() if c.count}

    def progress(self) -> TimerProgress:
        """How far the wheel is behind, and what it did in the last second."""
        now = self._clock()
        high = self._store.queue_range(names.TIMER_TOPIC, 0)[1]
        late = bool(self._slots) and self._slots[0] + self._precision_ms <= now
        oldest = self._draining if self._draining is not None else self._slots[0] if late else now
        unread_ms = 0
        if self._offset < high:
            unread_ms = max(0, now - self._store.store_time_at(names.TIMER_TOPIC, 0, self._offset))
        return TimerProgress(
            unread=high - self._offset,
            unread_ms=unread_ms,
            due=sum(self._counted(t) for t in self._slots if t + self._precision_ms <= now),
            late_ms=max(0, now - oldest),
            waiting=sum(self.waiting().values()),
            enqueue_tps=self._rates[0],
            dequeue_tps=self._rates[1],
        )

    def within(self, bounds_s: Sequence[int]) -> list[int]:
        """How many wait until each of these many seconds from now, without those before the bound in front of it."""
        now = self._clock()
        found = [0] * len(bounds_s)
        for time_ms in self._slots:
            row = bisect_right(bounds_s, (time_ms - now) / 1000)
            if time_ms >= now - self._precision_ms and row < len(found):
                found[row] += self._counted(time_ms)
        return found

    def _counted(self, time_ms: int) -> int:
        slot = self._files.wheel.get(time_ms)
        return slot.counted if slot is not None else 0

    def _measure(self, now: int) -> None:
        enqueued, dequeued = sum(self.enqueued.values()), sum(self.dequeued.values())
        from_ms, before_in, before_out = self._rates_from
        if now > from_ms:
            seconds = (now - from_ms) / 1000
            self._rates = (enqueued - before_in) / seconds, (dequeued - before_out) / seconds
        self._rates_from = now, enqueued, dequeued

    # -- saving ---------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Call about every second: puts on the disk what has changed, off the loop."""
        now = self._clock()
        self._measure(now)
        unread = self._offset < self._store.queue_range(names.TIMER_TOPIC, 0)[1]
        # Also when the clock was put forward: the loop's own time knows nothing of that.
        if unread or (self._slots and self._slots[0] + self._precision_ms <= now):
            self.arrived()
        if not self._files.used or (self._flushing is not None and not self._flushing.done()):
            return
        if self._drain is None and not self._slots and not unread:
            self._caught_up(now)
        if self._counts_changed and now - self._counts_saved_ms >= COUNTS_SAVE_MS:
            self._save_counts(now)
        if now - self._cleaned_ms >= CLEAN_MS:
            self._cleaned_ms = now
            self._files.log.clean(self._store.min_position)
        if self._snapshot is None:
            self._take_snapshot(now)
        elif self._snapshot[0] <= self._store.flushed_position:
            # What was delivered is on the disk: now the checkpoint may say so.
            checkpoint = self._snapshot[1]
            self._saved_ms = now
            self._flushing = asyncio.get_running_loop().run_in_executor(None, self._flush, checkpoint)
            self._snapshot = None
            self._take_snapshot(now)

    def _take_snapshot(self, now: int) -> None:
        before = self._version
        moved = (self._offset, self._files.log.end) != (before.queue_offset, before.log_position)
        if moved or before.read_time_ms < self._emptied_ms or now - self._saved_ms >= IDLE_SAVE_MS:
            self._snapshot = self._store.written_position, self._next_checkpoint(now)

    def _flush(self, checkpoint: Checkpoint) -> None:
        try:
            self._files.flush(checkpoint)
        except RocketSparkError as e:
            log.error("timer messages: %s; tried again", e)
            self._saved_ms = 0

    def _next_checkpoint(self, now: int) -> Checkpoint:
        v = self._version
        self._version = Checkpoint(
            self._read_ms,
            # Until the queue is read up to what the last run read, its units are to be known after a kill as well.
            self._logged_from if self._logged else self._files.log.end,
            self._offset,
            self._offset,
            v.state_version,
            now,
            v.version_counter + 1,
        )
        return self._version

    def _save_counts(self, now: int) -> None:
        self._counts_saved_ms = now
        self._counts_file.save(self._counts)
        self._counts_changed = False

    def finish(self) -> None:
        """After the store's last flush: write everything down. Raises StoreError."""
        if self._files.used and self._store.flushed_position >= self._store.written_position:
            self._files.flush(self._next_checkpoint(self._clock()))
            if self._counts_changed:
                self._save_counts(self._clock())

    def close(self) -> None:
        """Give the files back."""
        self._files.close()


def target_of(pairs: dict[bytes, bytes]) -> tuple[str, int] | None:
    """(topic, queue id) that a timer message is for; None if it may not go there.

    Clients may send to the timers' topic themselves, so what they name is checked as if they sent there.
    """
    topic, queue_id = pairs.get(b"REAL_TOPIC", b"").decode("utf-8", "replace"), pairs.get(b"REAL_QID", b"")
    if topic == names.TIMER_TOPIC or topic in names.NOT_SENDABLE or not queue_id.isdigit() or len(queue_id) > 5:
        return None
    try:
        names.check_topic(topic)
    except ServerError:
        return None
    return topic, int(queue_id)


def key_of(pairs: dict[bytes, bytes], rolls: bytes) -> Key:
    """What tells one delivery of a timer message from all others."""
    return pairs.get(b"UNIQ_KEY", b""), pairs.get(b"TIMER_OUT_MS", b""), rolls


def _delivery_key(stored: Record) -> Key | None:
    """The same of a stored message; None if it was not delivered by the wheel."""
    pairs = pairs_of(stored.properties)
    return key_of(pairs, pairs.get(b"TIMER_ROLL_TIMES", b"")) if b"TIMER_DEQUEUE_MS" in pairs else None
