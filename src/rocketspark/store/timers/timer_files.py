"""The files of timer messages together: the wheel of slots by delivery time, the timer log, the checkpoint.

Rule: a unit is written before its slot, both reach the disk before the checkpoint counts them. If the precision
of times was changed in the settings, new files are written beside the old ones, and one rename puts them in their
place.
"""

from __future__ import annotations

import os
import shutil
import struct
import zlib
from array import array
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rocketspark.errors import ProtocolError, StoreError, StoreUnwritable
from rocketspark.store.files.system_calls import OsFiles, failure
from rocketspark.store.timers.timer_log import DELETE, NORMAL, ROLL, UNIT_BYTES, TimerLog, TimerLogUnit
from rocketspark.store.timers.timer_wheel import GRIDS_MS, SLOT_COUNT, TimerWheel, TimerWheelSlot, grid_of, moved

CHECKPOINT_BYTES = 4096
_CHECKPOINT = struct.Struct(">qqqqqqq")
# Where RocketMQ has nothing: the same once more, and its CRC.
_COPY_AT = 64
_PIECE_COUNT = 1000
_NEWS_MAX = 100


class TimerCheckpoint(NamedTuple):
    """The file config/timercheck: how far timer messages have come.

    Slots before `read_time_ms` are delivered; messages before `queue_offset` of the timer topic are on the wheel.
    """

    read_time_ms: int = 0
    physical_offset: int = 0
    queue_offset: int = 0
    master_queue_offset: int = 0
    state_version: int = 0
    version_time_ms: int = 0
    version_counter: int = 0

    def encode(self) -> bytes:
        """Return the reply to GET_TIMER_CHECK_POINT (60), which is how the file begins."""
        return _CHECKPOINT.pack(*self)

    def is_older(self, other: TimerCheckpoint) -> bool:
        """Tell whether the version of this checkpoint is before another's (rule: DataVersion.compare, 5.x)."""
        mine = self.state_version, self.version_counter, self.version_time_ms
        return mine < (other.state_version, other.version_counter, other.version_time_ms)


def decode_checkpoint(body: bytes) -> TimerCheckpoint:
    """Return the checkpoint in a broker's reply; brokers before 5.0 tell no version. Raises ProtocolError."""
    if len(body) not in (_CHECKPOINT.size, _CHECKPOINT.size - 24):
        raise ProtocolError(f"a checkpoint of timer messages has 56 bytes or 32, {len(body)} came")
    found = TimerCheckpoint(*_CHECKPOINT.unpack(body.ljust(_CHECKPOINT.size, b"\0")))
    if min(found) < -1:
        raise ProtocolError(f"a checkpoint of timer messages holds the number {min(found)}")
    return found


def read_checkpoint(path: str) -> TimerCheckpoint:
    """Return the checkpoint in a file; all zero if there is no file, or it holds none."""
    return _read_checkpoint(path) or TimerCheckpoint()


def _read_checkpoint(path: str) -> TimerCheckpoint | None:
    """Return the checkpoint; None if the file is damaged.

    The copy behind it counts where a single bit tells them apart: RocketMQ, which leaves it as it is, changes more.
    """
    try:
        with open(path, "rb") as file:
            content = file.read(_COPY_AT + _CHECKPOINT.size + 4)
    except FileNotFoundError:
        return TimerCheckpoint()
    except OSError as e:
        raise failure(e, "read", path) from e
    if len(content) < _CHECKPOINT.size:
        return None if content.strip(b"\0") else TimerCheckpoint()
    told, own = content[: _CHECKPOINT.size], content[_COPY_AT:]
    copy = own[: _CHECKPOINT.size]
    different = (int.from_bytes(told, "big") ^ int.from_bytes(copy, "big")).bit_count()
    if own[_CHECKPOINT.size :] == zlib.crc32(copy).to_bytes(4, "big"):
        told = copy if different == 1 else told
    elif own.strip(b"\0") and different > 1:
        return None
    found = TimerCheckpoint(*_CHECKPOINT.unpack(told))
    return found if min(found) >= -1 else None


def _checkpoint_bytes(checkpoint: TimerCheckpoint) -> bytes:
    told = _CHECKPOINT.pack(*checkpoint)
    return told.ljust(_COPY_AT, b"\0") + told + zlib.crc32(told).to_bytes(4, "big")


class TimerFiles:
    """Wheel, log and checkpoint of one store; the files are made with the first timer message.

    `roll_slots`: messages due later than so many slots from now get an earlier slot, and are put on the wheel again
    (rolled) when it is due.
    """

    def __init__(
        self,
        root: str,
        *,
        precision_ms: int = 1000,
        log_file_bytes: int = 100 << 20,
        roll_slots: int = 172_800,
        files: OsFiles | None = None,
    ) -> None:
        self._files = files or OsFiles()
        self._root = root
        self.precision_ms = precision_ms
        # True if the files found are, wholly or in part, on another grid than configured: see `remake`.
        self.misfit = False
        # Rule: TimerMessageStore, 5.x: a window that is too wide or too small is the widest.
        widest = SLOT_COUNT // 2 - 60
        self._roll_slots = roll_slots if 2 <= roll_slots <= widest else widest
        self._log_file_bytes = log_file_bytes
        self._remade = f"{root}/timerremade"
        # True while remade files count and are not opened yet: those that are open here are no more.
        self._unopened = False
        self._failed: StoreError | None = None
        self.wheel = TimerWheel(f"{root}/timerwheel", precision_ms, self._files)
        self.log = TimerLog(f"{root}/timerlog", log_file_bytes, self._files)
        self._checkpoint_path = f"{root}/config/timercheck"
        self.used = False
        self.checkpoint = TimerCheckpoint()
        # A line for each repair, the newest only; the broker takes and logs them.
        self.news: deque[str] = deque(maxlen=_NEWS_MAX)

    def open(self, record_end: int | None = None) -> None:
        """Open the files; after a kill the wheel's slots are made to fit the timer log again.

        `record_end`: where the commit log ends; timer messages whose records lie behind it are dropped. The wheel is
        read on the grid on which it was last written; `misfit` tells whether `remake` is needed. Raises ConfigError for
        files of other sizes than the settings say, StoreError if they cannot be read.
        """
        self._take_remade()
        found = _read_checkpoint(self._checkpoint_path)
        if found is None:
            self.news.append(f"{self._checkpoint_path} is damaged: what is due is found again from queue and log")
        self.checkpoint = found or TimerCheckpoint()
        try:
            known = self.log.open(self.checkpoint.physical_offset, record_end)
        except OSError as e:
            raise failure(e, "open", f"{self._root}/timerlog") from e
        self.used = self.wheel.open()
        if self.wheel.was_short:
            self.news.append("the timer wheel is short, what it lacks is made again from the log: check the disk")
        if self.log.end < self.checkpoint.physical_offset or (not self.log.end and self.checkpoint.queue_offset):
            # Units are lost: whatever is pending is found again in the queue.
            self.checkpoint = self.checkpoint._replace(read_time_ms=0, physical_offset=0, queue_offset=0)
        elif self.checkpoint.physical_offset > known:
            self.checkpoint = self.checkpoint._replace(physical_offset=known)  # Where a unit begins.
        if not self.log.end:
            if self.used:
                for time_ms in self.wheel.slots(0)[0]:
                    self.wheel.put(time_ms, TimerWheelSlot(-1, -1, 0))
            return
        if self.used and len(self.wheel.numbered(emptied=True)[0]):
            self._find_grid()
        else:
            self._guess_grid()
            if self.used:
                self.news.append(
                    "the timer wheel is empty, as RocketMQ's broker or a bad disk leaves it: made again from the log"
                )
            else:
                self.wheel.make()
            self.used = True
            known = self.log.start
        step = self.wheel.precision_ms
        self._mend({unit.time_ms // step * step: unit.position for unit in self.log.units(known)})
        self._find_lost_slots()

    def _find_grid(self) -> None:
        """Look on which grid the slots are: each has to be that of its newest unit."""
        numbers, lasts = self.wheel.numbered()
        there = lasts < self.log.end
        numbers, lasts = numbers[there], lasts[there]
        newest = self.log.unit_at(int(lasts.max())) if len(lasts) else None
        if newest is None:
            return
        # Grids are twice as wide as the next at least, times are all of some weeks: few slots have to be looked at.
        times = numbers * self.precision_ms
        odd = (times < newest.time_ms // 4 * 3) | (times > newest.time_ms // 2 * 3)
        for number, last in zip(numbers[odd].tolist(), lasts[odd].tolist(), strict=True):
            unit = self.log.unit_at(last)
            grid_ms = grid_of(number, unit.time_ms) if unit is not None else None
            if grid_ms is not None and grid_ms != self.precision_ms:
                self.misfit = True
                if last == newest.position:
                    self.wheel.precision_ms = grid_ms

    def _guess_grid(self) -> None:
        """Take the widest grid on which all times are, so that nothing comes early; for a wheel that is lost."""
        times = [unit.time_ms for unit in self.log.units(self.log.start)]
        for grid_ms in GRIDS_MS:
            if not any(time_ms % grid_ms for time_ms in times):
                self.wheel.precision_ms = grid_ms
                self.misfit = grid_ms != self.precision_ms
                break

    def remake(self, checkpoint: TimerCheckpoint, now_ms: int) -> Iterator[None]:
        """Write wheel and log anew on the grid that the settings say, piece by piece; nothing may be added meanwhile.

        `checkpoint`: how far delivering and reading have come. Waiting messages keep their order and come no earlier
        than on the old grid. Raises StoreError: what was done until then counts for the next call, as it does after a
        kill.
        """
        if not self._unopened:
            yield from self._make_remade(checkpoint, now_ms)
        self._open_remade()

    def _make_remade(self, checkpoint: TimerCheckpoint, now_ms: int) -> Iterator[None]:
        building, step = f"{self._remade}.tmp", self.precision_ms
        try:
            shutil.rmtree(building, ignore_errors=True)
            self._files.make_directory(f"{building}/config")
        except OSError as e:
            raise failure(e, "create", building) from e
        made = self._same_in(building)
        made.wheel.make()
        made.used = True
        try:
            positions, times, grids = self._waiting(checkpoint.read_time_ms)
            write_ms = now_ms // step * step
            # Slots of more than a week ago would take the places of new ones.
            oldest_ms = write_ms - SLOT_COUNT // 2 * step
            # In the order of sending: files of the log go with the records that they stand for.
            for done, row in enumerate(np.argsort(positions), 1):
                unit = self.log.unit_at(positions[row])
                if unit is not None:
                    # A recall may be early, in the second before what it recalls, but not late.
                    delete = bool(unit.magic & DELETE)
                    out_ms = times[row] // step * step if delete else moved(times[row], grids[row], step)
                    made.add(
                        write_ms,
                        max(oldest_ms, out_ms),
                        unit.physical_offset,
                        unit.record_bytes,
                        unit.topic_hash,
                        delete=delete,
                        roll=bool(unit.magic & ROLL),
                        grid_ms=unit.grid_ms or grids[row],
                    )
                if done % _PIECE_COUNT == 0:
                    yield
            made.flush(
                checkpoint._replace(
                    read_time_ms=checkpoint.read_time_ms // step * step,
                    # With nothing that waits the log stays, all of it done.
                    physical_offset=made.log.end or self.log.end,
                )
            )
        finally:
            made.close()
        try:
            for path in (f"{building}/timerlog", building):
                if os.path.isdir(path):
                    self._files.sync_directory(path)
            os.rename(building, self._remade)
            self._unopened = True
        except OSError as e:
            raise failure(e, "rename", building) from e

    def _open_remade(self) -> None:
        """Open the remade files; until that works those before them are open, and nothing is written."""
        try:
            self._files.sync_directory(self._root)
        except OSError as e:
            raise failure(e, "rename", self._remade) from e
        opened = self._same_in(self._root)
        opened.open()
        self.close()
        self.wheel, self.log, self.checkpoint = opened.wheel, opened.log, opened.checkpoint
        self.used, self.misfit, self._unopened = opened.used, opened.misfit, False
        self._failed = None

    def _same_in(self, root: str) -> TimerFiles:
        return TimerFiles(
            root,
            precision_ms=self.precision_ms,
            log_file_bytes=self._log_file_bytes,
            roll_slots=self._roll_slots,
            files=self._files,
        )

    def _waiting(self, read_time_ms: int) -> tuple[array[int], array[int], array[int]]:
        """Return (positions, times, grids) of the units of all slots that are not done, 20 bytes each.

        Recalls of the last second are with them, as what they recall may be in a later slot.
        """
        second_ms = read_time_ms // GRIDS_MS[0] * GRIDS_MS[0]
        positions, times, grids = array("q"), array("q"), array("i")
        for number, last in zip(*(column.tolist() for column in self.wheel.numbered()), strict=True):
            unit = self.log.unit_at(last)
            # A time that fits no grid is damaged.
            grid_ms = (grid_of(number, unit.time_ms) if unit is not None else None) or self.wheel.precision_ms
            if (number + 1) * grid_ms <= second_ms:
                continue
            done = (number + 1) * grid_ms <= read_time_ms
            before = len(positions)
            for position in self._positions(number, grid_ms):
                u = self.log.unit_at(position)
                if u is not None and (not done or u.magic & (DELETE | ROLL) == DELETE):
                    positions.append(position)
            count = len(positions) - before
            times.extend([number * grid_ms] * count)
            grids.extend([grid_ms] * count)
        return positions, times, grids

    def _take_remade(self) -> None:
        """Put the remade files in the place of the old ones, or go on with that after a kill."""
        try:
            shutil.rmtree(f"{self._remade}.tmp", ignore_errors=True)
            if not os.path.isdir(self._remade):
                return
            self._files.make_directory(f"{self._root}/config")
            if os.path.isdir(f"{self._remade}/timerlog"):
                if os.path.isdir(f"{self._root}/timerlog"):
                    shutil.rmtree(f"{self._remade}/old", ignore_errors=True)
                    os.rename(f"{self._root}/timerlog", f"{self._remade}/old")
                os.rename(f"{self._remade}/timerlog", f"{self._root}/timerlog")
            for name in ("config/timercheck", "timerwheel"):
                if os.path.exists(f"{self._remade}/{name}"):
                    os.replace(f"{self._remade}/{name}", f"{self._root}/{name}")
            for path in (f"{self._root}/config", self._root):
                self._files.sync_directory(path)
            shutil.rmtree(self._remade)
        except OSError as e:
            raise failure(e, "rename", self._remade) from e

    def _mend(self, newest: dict[int, int]) -> None:
        """Make each slot's end its newest unit; a slot that points behind the log's end is found again."""
        for time_ms, position in newest.items():
            slot = self.wheel.get(time_ms)
            if slot is None or slot.last != position:
                self._relink(time_ms, position)
            else:
                self.wheel.write_again(time_ms)
        times, lasts = self.wheel.slots(self.checkpoint.read_time_ms)
        lost = {time_ms: -1 for time_ms, last in zip(times, lasts, strict=True) if last >= self.log.end}
        if lost:
            for unit in self.log.units(self.log.start):
                time_ms = unit.time_ms // self.wheel.precision_ms * self.wheel.precision_ms
                if time_ms in lost:
                    lost[time_ms] = unit.position
            for time_ms, position in lost.items():
                self._relink(time_ms, position)

    def _find_lost_slots(self) -> None:
        """Make slots that the wheel does not know, though the log has units of them, and no other slot has these."""
        there = self.wheel.numbered(emptied=True)[0]
        step = self.wheel.precision_ms
        low = max(1, self.checkpoint.read_time_ms // step)
        newest: dict[int, int] = {}
        for start, table in self.log.tables():
            times = table["write"].astype(np.int64) + table["delay"]
            rows = np.flatnonzero(times // step >= low)
            for grid_ms in GRIDS_MS if self.misfit else (step,):
                rows = rows[~np.isin(times[rows] // grid_ms, there)]
            newest |= dict(zip((times[rows] // step).tolist(), (start + rows * UNIT_BYTES).tolist(), strict=True))
        if not newest:
            return
        # The place of an old slot may be that of a newer one by now.
        places = dict(zip((there % SLOT_COUNT).tolist(), there.tolist(), strict=True))
        newest = {n: at for n, at in newest.items() if places.get(n % SLOT_COUNT, -1) < n}
        # A unit that a chain of another slot leads to has a damaged time, its slot is not lost.
        linked = set(self.wheel.numbered()[1].tolist())
        for _, table in self.log.tables():
            previous = table["previous"].astype(np.int64)
            linked.update(previous[np.isin(previous, list(newest.values()))].tolist())
        for number, position in newest.items():
            if position not in linked and self.log.unit_at(position) is not None:
                self.news.append(
                    f"the timer wheel lost the slot of {number * step} ms, made again from the log: check the disk"
                )
                self._relink(number * step, position)

    def _relink(self, time_ms: int, position: int) -> None:
        """Set a slot by its newest unit: what its chain leads to, or if that is broken, its units in the log."""
        first, count, at = -1, 0, position
        while (unit := self.log.unit_at(at)) is not None:
            first = at
            count += -1 if unit.magic & DELETE else 1
            # Always backwards, as in `chain`.
            at = unit.previous if unit.previous < at else -2
        if position == -1 or at == -1 or 0 <= at < self.log.start:
            self.wheel.put(time_ms, TimerWheelSlot(first, position, count))
        else:
            self._link_anew(time_ms // self.wheel.precision_ms, self.wheel.precision_ms)

    def _positions(self, number: int, grid_ms: int) -> array[int]:
        """Return the timer log positions of a slot's units, oldest first; a chain that is broken is made anew."""
        slot = self.wheel.at(number)
        if slot is None or slot.first == slot.last == -1:
            return array("q")
        found = array("q", (unit.position for unit in self._chain_at(slot.last)))
        oldest = self.log.unit_at(found[-1]) if found else None
        cleaned = oldest is not None and 0 <= slot.first < self.log.start and oldest.previous < self.log.start
        if oldest is None or (oldest.position != slot.first and not cleaned):
            return array("q", self._link_anew(number, grid_ms))
        found.reverse()
        return found

    def _link_anew(self, number: int, grid_ms: int) -> list[int]:
        found = self.log.in_slot(number, grid_ms)
        self.news.append(
            f"the chain of the timer slot of {number * grid_ms} ms was broken and is made again from the log,"
            f" {len(found)} units: check the disk"
        )
        self.log.link(found)
        if grid_ms == self.wheel.precision_ms:
            units = [unit for at in found if (unit := self.log.unit_at(at)) is not None]
            count = sum(-1 if unit.magic & DELETE else 1 for unit in units)
            ends = (found[0], found[-1]) if found else (-1, -1)
            self.wheel.put(number * grid_ms, TimerWheelSlot(*ends, count))
        return found

    def add(
        self,
        write_time_ms: int,
        out_time_ms: int,
        physical_offset: int,
        record_bytes: int,
        topic_hash: int,
        *,
        delete: bool = False,
        roll: bool = False,
        grid_ms: int = 0,
    ) -> int:
        """Put a message on the wheel; returns the time of its slot, which is before `out_time_ms` if the message is to
        be rolled.

        `write_time_ms`: now, on the grid; `out_time_ms`: when the message is due; `delete`: it cancels another one;
        `roll`: it is rolled in any case; `grid_ms`: see TimerLogUnit. Raises StoreFull or StoreUnwritable.
        """
        if not self.used:
            self.wheel.make()
            self.used = True
        time_ms, rolls = self.slot_time(write_time_ms, out_time_ms)
        magic = NORMAL | (DELETE if delete else 0) | (ROLL if roll or rolls else 0)
        slot = self.wheel.get(time_ms) or TimerWheelSlot(-1, -1, 0)
        position = self.log.append(
            slot.last, magic, write_time_ms, time_ms - write_time_ms, physical_offset, record_bytes, topic_hash, grid_ms
        )
        first = position if slot.first == -1 else slot.first
        self.wheel.put(time_ms, TimerWheelSlot(first, position, slot.counted + (-1 if delete else 1), slot.magic))
        return time_ms

    @property
    def window_ms(self) -> int:
        """How many ms ahead a message may be due to get the slot of its own time; a later one is rolled."""
        return self._roll_slots * self.precision_ms

    def slot_time(self, write_time_ms: int, out_time_ms: int) -> tuple[int, bool]:
        """Return the time in ms of the slot for a message, and whether the message is rolled on from there."""
        window_ms = self.window_ms
        beyond_ms = out_time_ms - write_time_ms - window_ms
        if beyond_ms < 0:
            return out_time_ms, False
        # Little beyond the window: roll at its middle, so that there is time left for the next step.
        near = beyond_ms < self._roll_slots // 3 * self.precision_ms
        return write_time_ms + (self._roll_slots // 2 * self.precision_ms if near else window_ms), True

    def chain(self, time_ms: int) -> Iterator[TimerLogUnit]:
        """Yield the units of a slot, newest first."""
        slot = self.wheel.get(time_ms)
        return self._chain_at(-1 if slot is None else slot.last)

    def _chain_at(self, at: int) -> Iterator[TimerLogUnit]:
        while (unit := self.log.unit_at(at)) is not None:
            yield unit
            # Always backwards: a damaged unit must not make a ring.
            at = unit.previous if unit.previous < at else -1

    def positions(self, time_ms: int) -> array[int]:
        """Return the timer log positions of a slot's units, oldest first: 8 bytes each, however many there are."""
        return self._positions(time_ms // self.wheel.precision_ms, self.wheel.precision_ms)

    def pending(self, from_ms: int | None = None) -> list[int]:
        """Return the times of the slots that hold units, from `from_ms` on, by default from the checkpoint on,
        ascending.
        """
        return self.wheel.slots(self.checkpoint.read_time_ms if from_ms is None else from_ms)[0] if self.used else []

    def clear(self, from_ms: int, to_ms: int, physical_offset: int | None = None) -> None:
        """Empty the slots of [from_ms, to_ms), but not those whose newest unit is at or after `physical_offset` in the
        timer log.
        """
        for time_ms, last in zip(*self.wheel.slots(from_ms), strict=True):
            if time_ms < to_ms and (physical_offset is None or last < physical_offset):
                self.wheel.put(time_ms, TimerWheelSlot(-1, -1, 0))

    def flush(self, checkpoint: TimerCheckpoint) -> None:
        """Put everything on the disk and then the checkpoint. May run beside `add`. Raises StoreError; after a flush
        that failed always, as what the disk has is not known then: the next start reads on from the checkpoint before.
        """
        if not self.used or self._unopened:
            return
        if self._failed is not None:
            raise StoreUnwritable(
                f"the timers' progress is not noted, as a flush failed before ({self._failed}): mend the disk, then"
                " start again"
            ) from self._failed
        try:
            self.log.flush()
            self.wheel.flush()
        except StoreError as e:
            # Without a descriptor no file was opened, and nothing is lost.
            if not e.retriable:
                self._failed = e
            raise
        self.save_checkpoint(checkpoint)

    def saved_checkpoint(self) -> TimerCheckpoint:
        """Return the checkpoint on the disk, also of files that are not open. Raises StoreError."""
        return self.checkpoint if any(self.checkpoint) else read_checkpoint(self._checkpoint_path)

    def save_checkpoint(self, checkpoint: TimerCheckpoint) -> None:
        """Replace the checkpoint alone, by another broker's, while nothing is delivered here. Raises StoreError."""
        try:
            self._files.overwrite(self._checkpoint_path, _checkpoint_bytes(checkpoint), CHECKPOINT_BYTES)
        except OSError as e:
            raise failure(e, "write", self._checkpoint_path, CHECKPOINT_BYTES) from e
        self.checkpoint = checkpoint

    def remove(self) -> None:
        """Remove wheel and log, as the records that they point to are gone; the timer topic is read anew. Raises
        StoreError.
        """
        self.close()
        known = self.saved_checkpoint()
        self.save_checkpoint(known._replace(physical_offset=0, queue_offset=0))
        for path in (f"{self._root}/timerwheel", f"{self._root}/timerlog", self._remade):
            try:
                shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
            except FileNotFoundError:
                pass
            except OSError as e:
                raise failure(e, "remove", path) from e
        self.used = self.misfit = False
        self.wheel = TimerWheel(f"{self._root}/timerwheel", self.precision_ms, self._files)
        self.log = TimerLog(f"{self._root}/timerlog", self._log_file_bytes, self._files)

    def close(self) -> None:
        """Close the wheel and the log."""
        self.wheel.close()
        self.log.close()
