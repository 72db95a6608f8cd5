"""Timer messages: put on the wheel as they arrive, delivered when due, rolled on, recalled.

Rules (TimerMessageStore, 5.x): a slot is delivered once it is over, in the order of sending, without recalled
messages. After a kill the queues show the deliveries made before it, so nothing is delivered twice, and nothing lost.
A message that can never be delivered is set aside, the others of its slot are delivered. A clock that is set back
opens its slots again. A wheel of another timerPrecisionMs is remade before newer messages are put on it.
"""

from __future__ import annotations

import asyncio
import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rocketspark.broker import topic_names
from rocketspark.broker.messages.delivery_recovery import DeliveryRecovery
from rocketspark.broker.messages.put_message import PutMessage, pairs_of
from rocketspark.broker.messages.quarantine import Quarantine, fails_again
from rocketspark.broker.statistics.histograms import DELAY_BOUNDS, Histogram
from rocketspark.broker.statistics.stats import Stats, count
from rocketspark.broker.storage.json_tables import JsonFile, now_ms
from rocketspark.broker.storage.save_failures import SaveFailures
from rocketspark.errors import RecordError, RocketSparkError, StoreError
from rocketspark.model.java import string_hash
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.text import INT_MAX, whole_number
from rocketspark.protocol.json.bodies import Quarantined
from rocketspark.protocol.message import record
from rocketspark.protocol.message.record import Record
from rocketspark.protocol.timers import TimerCount, TimerCounts
from rocketspark.store.consumequeue.consume_queue import GAP_SIZE
from rocketspark.store.store import Store
from rocketspark.store.timers.timer_files import DELETE, ROLL, TimerCheckpoint, TimerFiles, TimerLogUnit
from rocketspark.store.timers.timer_wheel import GRIDS_MS, SLOT_COUNT, moved

log = LimitedLog("rocketspark.broker")

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
OUT_MS_MAX = 10**18 - 1
# A clock that goes back by less is ignored: messages due in between come at once.
SET_BACK_SLOTS = 2
KIND = "timer"
# The property with TIMER_OUT_MS's grid, for a message rolled on after timerPrecisionMs had changed.
GRID_PROPERTY = b"TIMER_GRID_MS"
FLUSH_WAIT_S = 0.1

Key = tuple[bytes, bytes, bytes, bytes]


class TimerProgress(NamedTuple):
    """Messages not on the wheel yet and the age of the oldest; those due and how late; those waiting; rates."""

    unread: int
    unread_ms: int
    due: int
    late_ms: int
    waiting: int
    enqueue_tps: float
    dequeue_tps: float


class TimerMessages:
    """The timer messages of one broker.

    `clock`: the time in ms. `start` opens the files; `work` does the next piece by itself, for tests without a loop.
    """

    def __init__(
        self,
        store: Store,
        put_message: PutMessage,
        files: TimerFiles,
        counts_file: JsonFile[TimerCounts],
        stats: Stats,
        quarantine: Quarantine,
        *,
        clock: Callable[[], int] = now_ms,
        saves: SaveFailures | None = None,
    ) -> None:
        self._store = store
        self._put_message = put_message
        self._files = files
        self._counts_file = counts_file
        self._stats = stats
        self._quarantine = quarantine
        self._saves = saves or SaveFailures()
        quarantine.retries(KIND, self._retry)
        self._clock = clock
        self._precision_ms = files.precision_ms
        self._offset = 0
        self._armed_for_s = float("inf")
        self._read_ms = 0
        # After the last slot from which anything was delivered: the checkpoint should soon be there.
        self._emptied_ms = 0
        self._version = TimerCheckpoint()
        # Times of the slots that hold something: as a heap and as a set.
        self._slots: list[int] = []
        self._known: set[int] = set()
        self._draining: int | None = None
        self._drain: Iterator[float] | None = None
        self._goal: int | None = None
        # Records that are on the wheel although the checkpoint's offset is before them; units from there on are theirs.
        self._logged: set[int] = set()
        self._logged_from = 0
        # For a wheel on another grid: up to which offset it still takes messages, and the work of remaking it.
        self._regrid_to = self._regrid_flushed = 0
        self._remaking: Iterator[None] | None = None
        self._looked_back: int | None = None
        self._delivered: DeliveryRecovery | None = None
        self._counts = TimerCounts()
        self._counts_changed = False
        # By real topic, since the start.
        self.enqueued: dict[str, int] = {}
        self.dequeued: dict[str, int] = {}
        self.delays: dict[str, Histogram] = {}
        self._rates_from = (0, 0, 0)
        self._rates = (0.0, 0.0)
        self._timer: asyncio.Handle | None = None
        self._running = False
        self._snapshot: tuple[int, TimerCheckpoint] | None = None
        self._flushing: asyncio.Future[None] | None = None
        self._saved_ms = self._counts_saved_ms = self._cleaned_ms = 0

    # -- start and stop -------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Read the files: the pending slots, and the offset from which on the queue is to be scanned."""
        self._files.open()
        self._version = self._files.checkpoint
        self._offset = self._version.queue_offset
        self._read_ms = self._version.read_time_ms
        low, high = self._store.queue_range(topic_names.TIMER_TOPIC, 0)
        if self._offset > high:
            log.error("timer messages: offset %d is beyond the queue's end %d; set to the end", self._offset, high)
        self._offset = max(low, min(self._offset, high))
        self._precision_ms, self._regrid_to = self._files.wheel.precision_ms, high
        if self._files.used:
            self._open_again(self._clock(), self._version.physical_offset)
            self._see_wheel()
        if self._slots or self._offset < high:
            self._delivered = DeliveryRecovery(
                self._store, self._read_ms, self._store.last_store_time_ms, b"TIMER_DEQUEUE_MS", _delivery_key
            )
        self._counts = self._counts_file.load() or TimerCounts()
        self._saved_ms = self._counts_saved_ms = self._cleaned_ms = self._clock()

    def _see_wheel(self) -> None:
        self._slots = self._files.pending(self._read_ms)
        self._known = set(self._slots)
        self._logged_from = self._version.physical_offset
        self._logged = {u.physical_offset for u in self._files.log.units(self._logged_from)}

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
        """Note that a timer message was stored: it is put on the wheel in this turn of the loop or the next."""
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
            wait_s = self._work()
        except StoreError as e:
            self._saves.failed("timerwheel", e)
        except RocketSparkError as e:
            log.error("timer messages: %s; tried again in %.0f s", e, RETRY_S)
        except Exception:
            log.exception("timer messages: tried again in %.0f s", RETRY_S)
        else:
            self._saves.worked("timerwheel")
            return wait_s
        return RETRY_S

    def _work(self) -> float | None:
        now = self._clock()
        if self._files.misfit:
            return self._regrid(now)
        if self._drain is None and self._files.used:
            self._open_again(now)
        end = self._store.queue_range(topic_names.TIMER_TOPIC, 0)[1]
        # Slots of a week ago go first: new ones may need their place.
        old = bool(self._slots) and self._slots[0] < now - SLOT_COUNT // 2 * self._precision_ms
        if self._offset < end and not old:
            self._scan(now, end)
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

    def _regrid(self, now: int) -> float:
        """Do the next piece of remaking the wheel on the grid set now; messages from before the start come first."""
        if self._offset < self._regrid_to:
            self._scan(now, self._regrid_to)
            self._regrid_flushed = self._store.written_position
            return 0.0
        if self._store.flushed_position < self._regrid_flushed:
            return FLUSH_WAIT_S
        if self._remaking is None:
            self._quarantine.save()
            log.warning(
                "timer messages: the wheel is on another grid than timerPrecisionMs %d and is remade",
                self._files.precision_ms,
            )
            self._logged.clear()
            self._remaking = self._files.remake(self._next_checkpoint(now), now)
        try:
            next(self._remaking)
        except StopIteration:
            self._remaking = None
            self._precision_ms = self._files.precision_ms
            self._version = self._files.checkpoint
            self._read_ms = self._emptied_ms = self._version.read_time_ms
            self._see_wheel()
        except BaseException:
            self._remaking = None
            raise
        return 0.0

    def _caught_up(self, now: int) -> None:
        """Take all slots before now as done: nothing is due and nothing unread."""
        if self._files.used:
            self._read_ms = max(self._read_ms, now // self._precision_ms * self._precision_ms)
        if self._delivered is not None and self._read_ms > self._delivered.until_ms:
            self._delivered = None
        self._logged.clear()

    def _open_again(self, now: int, physical_offset: int | None = None) -> None:
        """Open slots again after the clock was set back: they take messages that are sent from now on.

        `physical_offset`: units of the timer log from there on are not done, whatever their slot.
        """
        from_ms = now // self._precision_ms * self._precision_ms
        if from_ms >= self._read_ms - SET_BACK_SLOTS * self._precision_ms:
            return
        log.warning("timer messages: the clock was set back by %.0f s", (self._read_ms - now) / 1000)
        self._files.clear(from_ms, self._read_ms, physical_offset)
        self._read_ms = self._emptied_ms = from_ms
        self._saved_ms = 0

    def _scan(self, now: int, high: int) -> None:
        """Put the next messages of the queue on the wheel, those before an offset."""
        low = self._store.queue_range(topic_names.TIMER_TOPIC, 0)[0]
        start, left = max(self._offset, low), READ_BYTES
        units = self._store.queue_units(topic_names.TIMER_TOPIC, 0, start, min(SCAN_COUNT, high - start))
        for offset, (position, size, _) in enumerate(units, start):
            self._offset = offset
            if left <= 0:
                return
            if size != GAP_SIZE and position >= self._store.min_position and position not in self._logged:
                left -= size
                try:
                    self._take(self._stored(position), now)
                except Exception as e:
                    if not fails_again(e):
                        raise
                    self._quarantine.add(KIND, topic_names.TIMER_TOPIC, 0, offset, position, e)
            self._offset = offset + 1

    def _stored(self, position: int) -> Record:
        """Return the record of a timer message. Raises RecordError if it is not there or is no timer message."""
        found = self._store.record_at(position)
        if found is None:
            raise RecordError(
                f"no record begins at physical offset {position}, where the queue or the wheel says one does"
            )
        stored = record.decode(found)
        if stored.topic != topic_names.TIMER_TOPIC.encode():
            raise RecordError(f"the record at physical offset {position} is another: of topic {stored.topic[:200]!r}")
        return stored

    def _take(self, stored: Record, now: int) -> None:
        pairs = pairs_of(stored.properties)
        out_ms = whole_number(pairs.get(b"TIMER_OUT_MS"), high=OUT_MS_MAX)
        target = topic_names.target_of(pairs)
        if target is None or out_ms is None:
            log.warning(
                "the record at %d of topic %s is no timer message; skipped", stored.position, topic_names.TIMER_TOPIC
            )
            return
        topic = target[0]
        grid_ms = _grid_of(pairs)
        delete = b"TIMER_DEL_UNIQKEY" in pairs
        if grid_ms and not delete:
            out_ms = moved(out_ms, grid_ms, self._precision_ms)
        open_from = self._read_ms if self._draining is None else self._draining + self._precision_ms
        open_from = max(open_from, now - SLOT_COUNT // 2 * self._precision_ms)
        if out_ms < open_from:
            # Its slot was delivered already.
            if not delete:
                self._put_back(stored, pairs, topic, NEVER_MS, roll=False)
            return
        write_ms = now // self._precision_ms * self._precision_ms
        slot_ms = self._files.add(
            write_ms,
            out_ms,
            stored.position,
            stored.size,
            string_hash(topic),
            delete=delete,
            grid_ms=grid_ms,
        )
        slot_ms -= slot_ms % self._precision_ms
        if slot_ms not in self._known:
            self._known.add(slot_ms)
            heapq.heappush(self._slots, slot_ms)
        self._count(topic, -1 if delete else 1)
        if not delete:
            self.enqueued[topic] = self.enqueued.get(topic, 0) + 1
            self.delays.setdefault(topic, Histogram(DELAY_BOUNDS)).add(max(0, out_ms - stored.born_time_ms) // 1000)

    def _deliver_slot(self, time_ms: int) -> Iterator[float]:
        """Deliver a slot piece by piece; yields s to wait. A failed message is tried again, or set aside for good."""
        positions = self._files.positions(time_ms)
        recalled: set[bytes] = set()
        self._looked_back = None
        for step in (self._recall_unit, self._deliver_unit):
            for number, position in enumerate(positions, 1):
                while True:
                    try:
                        step(position, recalled)
                        break
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

    def _recall_unit(self, position: int, recalled: set[bytes]) -> None:
        unit = self._files.log.unit_at(position)
        if unit is not None and unit.grid_ms:
            self._look_back(unit.time_ms // self._precision_ms * self._precision_ms, recalled)
        if unit is None or unit.magic & (DELETE | ROLL) != DELETE:
            return
        found = self._record(unit)
        if found is not None and b"TIMER_DEL_UNIQKEY" in found[1]:
            recalled.add(found[1][b"TIMER_DEL_UNIQKEY"])
            # The recall was counted down when it came; the message it recalls is counted down with its unit.
            self._count(found[2], 1)

    def _look_back(self, slot_ms: int, recalled: set[bytes]) -> None:
        """A message of another grid is in a slot after its own time's, where its recall is: at most a second before."""
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
                        recalled.add(found[1].get(b"TIMER_DEL_UNIQKEY", b""))
        self._looked_back = slot_ms

    def _deliver_unit(self, position: int, recalled: set[bytes]) -> None:
        unit = self._files.log.unit_at(position)
        if unit is None or unit.magic & (DELETE | ROLL) == DELETE:
            return
        found = self._record(unit)
        if found is None:
            return
        stored, pairs, topic = found
        roll = bool(unit.magic & ROLL)
        change = 1 if unit.magic & DELETE else -1
        try:
            if roll or pairs.get(b"UNIQ_KEY") not in recalled:
                if roll and unit.grid_ms:
                    pairs = {GRID_PROPERTY: b"%d" % unit.grid_ms} | pairs
                self._put_back(stored, pairs, topic, unit.write_time_ms, roll=roll)
        except Exception as e:
            if fails_again(e):
                self._count(topic, change)
            raise
        self._count(topic, change)

    def _record(self, unit: TimerLogUnit) -> tuple[Record, dict[bytes, bytes], str] | None:
        if unit.physical_offset < self._store.min_position:
            log.error("the timer message at %d of the log is gone; it cannot be delivered", unit.physical_offset)
            return None
        stored = self._stored(unit.physical_offset)
        if stored.size != unit.record_bytes:
            raise RecordError(f"the record at physical offset {stored.position} is another: {stored.size} bytes")
        pairs = pairs_of(stored.properties)
        target = topic_names.target_of(pairs)
        if target is None:
            raise RecordError(f"the timer message at physical offset {stored.position} has no topic it may go to")
        return stored, pairs, target[0]

    def _retry(self, entry: Quarantined) -> None:
        """Deliver one that was set aside, or put it on the wheel again if it is not due."""
        stored = self._stored(entry.physical_offset)
        pairs = pairs_of(stored.properties)
        target = topic_names.target_of(pairs)
        if target is None:
            raise RecordError(f"the timer message at physical offset {stored.position} has no topic it may go to")
        now = self._clock()
        roll = (whole_number(pairs.get(b"TIMER_OUT_MS"), high=OUT_MS_MAX) or 0) > now
        if roll or b"TIMER_DEL_UNIQKEY" not in pairs:
            self._put_back(stored, pairs, target[0], now, roll=roll)
            if roll:
                self.arrived()

    def _put_back(self, stored: Record, pairs: dict[bytes, bytes], topic: str, enqueue_ms: int, *, roll: bool) -> None:
        """Store a message under its real topic, or once more under the timers' to be rolled."""
        rolled = whole_number(pairs.get(b"TIMER_ROLL_TIMES"), high=INT_MAX)
        if roll:
            target, queue_id, rolls = topic_names.TIMER_TOPIC, 0, b"%d" % ((rolled or 0) + 1)
        else:
            target, queue_id = topic_names.target_of(pairs) or (topic, 0)
            rolls = b"%d" % rolled if rolled is not None else b""
        if self._delivered is not None and self._delivered.take(target, queue_id, key_of(pairs, rolls)):
            return
        added = {b"TIMER_ENQUEUE_MS": b"%d" % enqueue_ms, b"TIMER_DEQUEUE_MS": b"%d" % self._clock()}
        if rolls:
            added[b"TIMER_ROLL_TIMES"] = rolls
        given = pairs | added
        given.pop(b"__CRC32#", None)  # That of the other record.
        if not roll:
            given.pop(GRID_PROPERTY, None)
        text = b"".join([b"%b\x01%b\x02" % pair for pair in given.items()])
        position, _, end = self._put_message.accept_again(stored, target, queue_id, text, given)
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
        """Return the number of waiting timer messages, by real topic."""
        return {topic: c.count for topic, c in self._counts.counts.items() if c.count}

    def progress(self) -> TimerProgress:
        """Return how far the wheel is behind, and its rates in the last second."""
        now = self._clock()
        high = self._store.queue_range(topic_names.TIMER_TOPIC, 0)[1]
        late = bool(self._slots) and self._slots[0] + self._precision_ms <= now
        oldest = self._draining if self._draining is not None else self._slots[0] if late else now
        unread_ms = 0
        if self._offset < high:
            unread_ms = max(0, now - self._store.store_time_at(topic_names.TIMER_TOPIC, 0, self._offset))
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
        """Count the waiting messages by delivery time: for each bound (s from now) those after the bound before it."""
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
        """Put all changes on the disk, off the loop. Call about every second."""
        now = self._clock()
        self._measure(now)
        unread = self._offset < self._store.queue_range(topic_names.TIMER_TOPIC, 0)[1]
        # Also when the clock was put forward: the loop's own time knows nothing of that.
        if unread or (self._slots and self._slots[0] + self._precision_ms <= now):
            self.arrived()
        if self._files.misfit:
            return
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
            self._quarantine.save()
            # Delivered messages are on the disk: now the checkpoint may count them.
            checkpoint = self._snapshot[1]
            self._saved_ms = now
            self._flushing = asyncio.get_running_loop().run_in_executor(None, self._flush, checkpoint)
            self._snapshot = None
            self._take_snapshot(now)

    def _take_snapshot(self, now: int) -> None:
        before = self._version
        moved = (self._offset, self._files.log.end) != (before.queue_offset, before.physical_offset)
        if moved or before.read_time_ms < self._emptied_ms or now - self._saved_ms >= IDLE_SAVE_MS:
            self._snapshot = self._store.written_position, self._next_checkpoint(now)

    def _flush(self, checkpoint: TimerCheckpoint) -> None:
        try:
            self._files.flush(checkpoint)
        except RocketSparkError as e:
            self._saves.failed("timercheck", e)
            self._saved_ms = 0
        else:
            self._saves.worked("timercheck")

    def _next_checkpoint(self, now: int) -> TimerCheckpoint:
        v = self._version
        self._version = TimerCheckpoint(
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
            self._quarantine.save()
            self._files.flush(self._next_checkpoint(self._clock()))
            if self._counts_changed:
                self._save_counts(self._clock())

    def close(self) -> None:
        """Give the files back."""
        self._files.close()


def key_of(pairs: dict[bytes, bytes], rolls: bytes) -> Key:
    """Return the identity of a timer message's delivery; a recall may have the id of the message it recalls."""
    recalled = pairs.get(b"TIMER_DEL_UNIQKEY", b"")
    return pairs.get(b"UNIQ_KEY", b""), pairs.get(b"TIMER_OUT_MS", b""), rolls, recalled


def _grid_of(pairs: dict[bytes, bytes]) -> int:
    """Return the grid on which the message has its time, if that is not the broker's; else 0."""
    grid_ms = whole_number(pairs.get(GRID_PROPERTY), high=GRIDS_MS[0])
    return grid_ms if grid_ms in GRIDS_MS else 0


def _delivery_key(stored: Record) -> Key | None:
    """Return `key_of` of a stored message; None if it was not delivered by the wheel."""
    pairs = pairs_of(stored.properties)
    return key_of(pairs, pairs.get(b"TIMER_ROLL_TIMES", b"")) if b"TIMER_DEQUEUE_MS" in pairs else None
