"""Timer messages: put on the wheel as they arrive, delivered when due, rolled on, recalled.

Rules (TimerMessageStore, 5.x): a slot is delivered once it is over, in the order of sending, without recalled messages.
After a kill the queues show the deliveries made before it, so nothing is delivered twice, and nothing lost. A message
that can never be delivered goes into the quarantine, the others of its slot are delivered. A clock that is set back
opens its slots again. A wheel of another timerPrecisionMs is remade before newer messages are put on it.
"""

from __future__ import annotations

import asyncio
import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rocketspark.broker import topic_names
from rocketspark.broker.messages.put_message import PutMessage, pairs_of
from rocketspark.broker.messages.quarantine import Quarantine, fails_again
from rocketspark.broker.messages.timers.timer_delivery import KIND, OUT_MS_MAX, RETRY_S, TimerDelivery, grid_of
from rocketspark.broker.messages.timers.timer_statistics import TimerStatistics
from rocketspark.broker.statistics.stats import Stats
from rocketspark.broker.storage.json_tables import JsonFile, SaveFailures, now_ms
from rocketspark.errors import RocketSparkError, StoreError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.text import string_hash, whole_number
from rocketspark.protocol.json.bodies import Quarantined
from rocketspark.protocol.message.record import Record
from rocketspark.protocol.timers import TimerCounts
from rocketspark.store.consumequeue.consume_queue import GAP_SIZE
from rocketspark.store.store import Store
from rocketspark.store.timers.timer_files import TimerCheckpoint, TimerFiles
from rocketspark.store.timers.timer_log import TimerLogUnit
from rocketspark.store.timers.timer_wheel import SLOT_COUNT, moved

log = LimitedLog("rocketspark.broker")

SCAN_COUNT = 256
READ_BYTES = 1 << 20
# An idle wheel's progress is noted less often than messages are.
IDLE_SAVE_MS = 10_000
# How far back the slots of a new wheel begin.
NEW_WHEEL_MS = 7 * 24 * 3_600_000
CLEAN_MS = 60_000
# TIMER_ENQUEUE_MS of a message that came too late for the wheel.
NEVER_MS = (1 << 63) - 1
# A clock that goes back by less is ignored: messages due in between come at once.
SET_BACK_SLOTS = 2
FLUSH_WAIT_S = 0.1


class TimerProgress(NamedTuple):
    """How far the timer messages of a broker are behind.

    `unread`: those not on the wheel yet; `unread_ms`: the age of the oldest of them; `due`: those due and not
    delivered; `late_ms`: how late these are; `waiting`: all that wait; the rates are of the last second.
    """

    unread: int
    unread_ms: int
    due: int
    late_ms: int
    waiting: int
    enqueue_tps: float
    dequeue_tps: float


class TimerMessages:
    """The timer messages of one broker.

    `clock`: returns the time in ms. `start` opens the files and begins; in tests without a loop `work` does the next
    piece.
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
        self._files = files
        self.statistics = TimerStatistics(counts_file, clock)
        self._delivery = TimerDelivery(store, put_message, files, stats, quarantine, self.statistics, clock)
        self._quarantine = quarantine
        self._saves = saves or SaveFailures()
        quarantine.retries(KIND, self._retry)
        self._clock = clock
        self._running = self._is_open = False
        self._flushing: asyncio.Future[None] | None = None
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Forget everything that was read from the files."""
        self._precision_ms = self._files.precision_ms
        self._offset = 0
        # Messages before this queue offset were put on another broker's wheel, which went on with it until `_read_ms`.
        self._taken_to = 0
        # Up to here that broker's slots are done, while this one's before them are still open.
        self._theirs_until_ms = 0
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
        self._timer: asyncio.Handle | None = None
        self._snapshot: tuple[int, TimerCheckpoint] | None = None
        self._saved_ms = self._cleaned_ms = 0

    # -- start and stop -------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Read the files: the pending slots, and the offset from which on the queue is to be scanned."""
        self._begin_anew()
        self._files.open(self._store.written_position)
        self._is_open = True
        self._version = self._files.checkpoint
        self._offset = self._version.queue_offset
        self._read_ms = self._version.read_time_ms
        low, high = self._store.stored_range(topic_names.TIMER_TOPIC, 0)
        if self._offset > high:
            log.error("timer messages: offset %d is beyond the queue's end %d; set to the end", self._offset, high)
        self._offset = max(low, min(self._offset, high))
        self._taken_to = min(self._version.master_queue_offset, high)
        self._precision_ms, self._regrid_to = self._files.wheel.precision_ms, high
        if self._files.used:
            early_ms = min((unit.time_ms for unit in self._own_units(low, high)), default=self._read_ms)
            early_ms -= early_ms % self._precision_ms
            if early_ms < self._read_ms:
                self._read_ms, self._theirs_until_ms = early_ms, self._read_ms
            self._open_again(self._clock(), self._version.physical_offset)
            self._see_wheel()
        else:
            self._open_unused(self._clock())
        if self._slots or self._offset < high:
            self._delivery.recover(self._read_ms)
        self.statistics.open()
        self._saved_ms = self._cleaned_ms = self._clock()

    def _own_units(self, low: int, high: int) -> Iterator[TimerLogUnit]:
        """Yield units that may wait in slots before the checkpoint's time.

        What came since the checkpoint into such a slot did so by a clock that was set back: it is not done, whatever
        the clock says now. What another broker had not read when it acted for this one it did not deliver.
        """
        if self._taken_to >= high:
            return
        own_from = 0
        if self._taken_to > low:
            ((own_from, *_),) = self._store.queue_units(topic_names.TIMER_TOPIC, 0, self._taken_to, 1)
        is_all_own = not 0 < self._taken_to < self._version.queue_offset
        for unit in self._files.log.units(self._version.physical_offset if is_all_own else self._files.log.start):
            if unit.physical_offset >= own_from:
                yield unit

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

    @property
    def is_running(self) -> bool:
        """True while this broker delivers timer messages."""
        return self._running

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
            while self._files.news:
                log.error("timer messages: %s", self._files.news.popleft())
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
        elif self._drain is None:
            self._open_unused(now)
        end = self._store.stored_range(topic_names.TIMER_TOPIC, 0)[1]
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
            theirs = self._taken_to if due < self._theirs_until_ms else 0
            self._drain = self._delivery.slot(due, theirs)
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
            self._version, self._theirs_until_ms = self._files.checkpoint, 0
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
        self._delivery.caught_up(self._read_ms)
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

    def _open_unused(self, now: int) -> None:
        """Begin at the time that it is where the checkpoint is of another broker, whose clock was ahead."""
        from_ms = now // self._precision_ms * self._precision_ms
        if from_ms < self._read_ms - SET_BACK_SLOTS * self._precision_ms:
            self._theirs_until_ms = max(self._theirs_until_ms, self._read_ms)
            self._read_ms = from_ms

    def _scan(self, now: int, high: int) -> None:
        """Put the next messages of the queue on the wheel, those before an offset."""
        low = self._store.stored_range(topic_names.TIMER_TOPIC, 0)[0]
        # Of what retention took before it was read nothing is left to read.
        start, left = max(self._offset, low), READ_BYTES
        self._offset = start
        units = self._store.queue_units(topic_names.TIMER_TOPIC, 0, start, min(SCAN_COUNT, high - start))
        for offset, (position, size, _) in enumerate(units, start):
            self._offset = offset
            if left <= 0:
                return
            if size != GAP_SIZE and position >= self._store.min_position and position not in self._logged:
                left -= size
                try:
                    self._take(self._delivery.stored(position, offset), now)
                except Exception as e:
                    if not fails_again(e):
                        raise
                    self._quarantine.add(KIND, topic_names.TIMER_TOPIC, 0, offset, position, e)
            self._offset = offset + 1

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
        grid_ms = grid_of(pairs)
        delete = b"TIMER_DEL_UNIQKEY" in pairs
        if grid_ms and not delete:
            out_ms = moved(out_ms, grid_ms, self._precision_ms)
        open_from = self._read_ms if self._draining is None else self._draining + self._precision_ms
        open_from = max(open_from, now - SLOT_COUNT // 2 * self._precision_ms)
        # The other broker gave it the slot of the time when it came: what lies before was delivered or rolled.
        theirs = stored.queue_offset < self._taken_to
        if theirs:
            now = min(now, stored.store_time_ms)
            done_ms = max(open_from, self._theirs_until_ms)
            if self._files.slot_time(now // self._precision_ms * self._precision_ms, out_ms)[0] < done_ms:
                return
        if out_ms < open_from:
            # Its slot was delivered already, or is too old for the wheel.
            if not delete and not theirs and not self._delivery.was_recalled(topic, pairs):
                self._delivery.put_back(stored, pairs, topic, NEVER_MS, roll=False)
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
        self.statistics.count(topic, -1 if delete else 1)
        if not delete:
            self.statistics.came(topic, out_ms - stored.born_time_ms)

    def _retry(self, entry: Quarantined) -> None:
        """Deliver one of the quarantine, or put it on the wheel again if it is not due."""
        if self._delivery.retry(entry):
            self.arrived()

    @property
    def window_ms(self) -> int:
        """How far ahead of now the wheel reaches, in ms; a message due later is stored again (rolled) meanwhile."""
        return self._files.window_ms

    def doubt(self, topic: str, is_unneeded: Callable[[int], bool]) -> None:
        """Have due messages of a topic that nobody needs left undelivered; see `TimerDelivery.doubt`."""
        self._delivery.doubt(topic, is_unneeded)

    def send_on(self, topic_now: Callable[[str], str]) -> None:
        """Have due messages delivered to another topic where theirs has a new name; `topic_now` returns that."""
        self._delivery.send_on(topic_now)

    def waiting(self, topic: str) -> Iterator[tuple[Record, dict[bytes, bytes]]]:
        """Yield (record, properties) of each message that waits for a topic, on the wheel or before it.

        `start` must have been called. Messages that cannot be read are left out, and some may be yielded twice.
        """
        wanted = string_hash(topic)
        for time_ms in sorted(self._slots):
            for position in self._files.positions(time_ms):
                unit = self._files.log.unit_at(position)
                if unit is not None and unit.topic_hash == wanted and unit.physical_offset >= self._store.min_position:
                    yield from self._delivery.read_for(topic, unit.physical_offset)
        yield from self.sent_for(topic, self._offset)

    def sent_for(self, topic: str, offset: int) -> Iterator[tuple[Record, dict[bytes, bytes]]]:
        """Yield (record, properties) of messages for a topic, waiting or not, from a timers' queue offset on."""
        low, high = self._store.stored_range(topic_names.TIMER_TOPIC, 0)
        at, mark = max(low, offset), b"REAL_TOPIC\x01%b\x02" % topic.encode()
        while at < high:
            units = self._store.queue_units(topic_names.TIMER_TOPIC, 0, at, min(SCAN_COUNT, high - at))
            for position, size, _ in units:
                if size != GAP_SIZE and position >= self._store.min_position:
                    found = self._store.record_at(position)
                    # Others are not decoded: 0.5 us for each.
                    if found is not None and mark in bytes(found):
                        yield from self._delivery.read_for(topic, position)
            at += len(units)

    @property
    def read_ms(self) -> int:
        """The time in ms since 1970 up to which all slots are handled."""
        return self._read_ms

    # -- progress -------------------------------------------------------------------------------------------------

    def progress(self) -> TimerProgress:
        """Return how far the wheel is behind, and its rates in the last second."""
        now = self._clock()
        high = self._store.stored_range(topic_names.TIMER_TOPIC, 0)[1]
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
            waiting=sum(self.statistics.waiting().values()),
            enqueue_tps=self.statistics.rates[0],
            dequeue_tps=self.statistics.rates[1],
        )

    def within(self, bounds_s: Sequence[int]) -> list[int]:
        """Count waiting messages by delivery time: for each bound (in s from now) those after the bound before it."""
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

    # -- for the other brokers of the name ------------------------------------------------------------------------

    def checkpoint(self) -> TimerCheckpoint:
        """Return how far the queue is read and the wheel delivered, so far as that is on the disk."""
        saved = self._files.saved_checkpoint()
        if not self._running or saved.read_time_ms:
            return saved
        # As RocketMQ begins: a slave must not walk through all slots since 1970.
        read_ms = self._clock() - NEW_WHEEL_MS
        return saved._replace(read_time_ms=read_ms - read_ms % self._precision_ms)

    def take_checkpoint(self, taken: TimerCheckpoint) -> bool:
        """Take another broker's progress for the next `start`; returns False while this broker delivers by itself.

        The positions in this broker's own files stay. Raises StoreError.
        """
        if self._running:
            return False
        known = self._files.saved_checkpoint()
        wanted = taken._replace(physical_offset=known.physical_offset, queue_offset=known.queue_offset)
        if wanted != known:
            self._files.save_checkpoint(wanted)
        return True

    def queue_was_cut(self) -> None:
        """Have the next `start` read the queue anew, as the wheel may lead to lost records. Raises StoreError."""
        known = self._files.saved_checkpoint()
        high = self._store.stored_range(topic_names.TIMER_TOPIC, 0)[1]
        self._files.remove()
        if known.master_queue_offset > high:
            self._files.save_checkpoint(self._files.saved_checkpoint()._replace(master_queue_offset=high))

    # -- saving ---------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Put all changes on the disk, off the loop. Call about every second."""
        if not self._is_open:
            return
        now = self._clock()
        self.statistics.measure(now)
        unread = self._offset < self._store.stored_range(topic_names.TIMER_TOPIC, 0)[1]
        # Also when the clock was put forward: the loop's own time knows nothing of that.
        if unread or (self._slots and self._slots[0] + self._precision_ms <= now):
            self.arrived()
        if self._files.misfit:
            return
        if not self._files.used or (self._flushing is not None and not self._flushing.done()):
            return
        if self._drain is None and not self._slots and not unread:
            self._caught_up(now)
        self.statistics.save_at_times(now)
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
        if self._read_ms < self._theirs_until_ms:
            # Until this broker's own are done as well, the checkpoint stays that tells them apart.
            return v
        self._version = TimerCheckpoint(
            self._read_ms,
            # Until the queue is read up to what the last run read, its units are to be known after a kill as well.
            self._logged_from if self._logged else self._files.log.end,
            self._offset,
            # What the broker before had read and delivered is still so while this one reads it.
            max(self._offset, self._taken_to),
            v.state_version,
            now,
            v.version_counter + 1,
        )
        return self._version

    def finish(self) -> None:
        """Write all progress to the disk; called after the store's last flush. Raises StoreError."""
        if self._is_open and self._files.used and self._store.flushed_position >= self._store.written_position:
            self._quarantine.save()
            self._files.flush(self._next_checkpoint(self._clock()))
            self.statistics.save(self._clock())

    def close(self) -> None:
        """Close the timer files."""
        self._is_open = False
        self._files.close()
