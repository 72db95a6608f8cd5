"""One consume queue: a row of 20-byte units (physical offset, size, tags code).

Rule: unit n is the message with queue offset n; only this file writes units (`Store.append` by `map` and `at`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rocketspark.protocol.message import record_layout
from rocketspark.protocol.message.record_layout import TOPIC_BYTES_MAX_V1
from rocketspark.store.consumequeue.consume_queue_ext import ConsumeQueueExt
from rocketspark.store.consumequeue.queue_files import NOTHING_NOTED, ActiveQueues, NotedEnd
from rocketspark.store.files.mapped_file_queue import MappedFileQueue
from rocketspark.store.index.key_hashes import TopicKeys

UNIT = struct.Struct(">qiq")
UNIT_BYTES = UNIT.size
UNIT_TYPE = np.dtype([("position", ">i8"), ("size", ">i4"), ("code", ">i8")])
GAP_SIZE = 0x7FFFFFFF
# Blocks are reserved in steps that grow with the file: a queue of a few messages takes 4 KiB.
RESERVE_STEP_BYTES_MIN = 4 << 10
RESERVE_STEP_BYTES_MAX = 64 << 10
# So many units a new queue keeps in memory before it needs a file: that takes 150 us to make, and few queues stay small
# for long. Until then a flush makes it, in a thread; after a kill the log has them.
UNITS_WITHOUT_FILE = 32
# Of them there is memory for so many at first, as most light queues have few.
UNITS_AT_FIRST = 4
_NO_MAP = memoryview(bytearray())
_OLDEST_LOOKED_AT_MAX = 1000
# Queues of RocketMQ whose units point to records of other topics.
SHARED = b"%LMQ%"
_IDENTITY = record_layout.only("queue_id", "queue_offset").unpack_from
# Tells the whole record at a physical offset; None if none begins there.
RecordAt = Callable[[int], memoryview | None]


class ConsumeQueue:
    """One consume queue.

    Fields of the hot path: `map` the file written to, `at` the byte of the next unit in it, `limit` the byte up
    to which there are blocks (0 while the file is not mapped), `next` the queue offset of the next message.
    `map` is the queue's own memory at first (`_early`), of which `_early_stored` bytes stand in the file.
    `rare`: whatever is put here takes the general way of an append. `ext`: where tags codes go, if not into units.
    """

    unit_bytes: ClassVar[int] = UNIT_BYTES
    unit_type: ClassVar[np.dtype[Any]] = UNIT_TYPE
    is_batch: ClassVar[bool] = False

    __slots__ = (
        "_active",
        "_ahead",
        "_early",
        "_early_stored",
        "at",
        "counted",
        "delay_ms",
        "ext",
        "fixed_bytes",
        "flushed",
        "flushing",
        "keys",
        "limit",
        "listed",
        "loaded_next",
        "map",
        "mapped_files",
        "min",
        "name",
        "next",
        "proven",
        "queue_id",
        "rare",
        "record_at",
        "reserved",
        "start",
        "stored_bytes",
        "suffix",
        "topic",
    )

    def __init__(
        self,
        name: str,
        queue_id: int,
        mapped_files: MappedFileQueue,
        active: ActiveQueues,
        keys: TopicKeys,
        delay_ms: int | None,
        record_at: RecordAt,
        *,
        rare: bool = False,
        ext: ConsumeQueueExt | None = None,
    ) -> None:
        self.name = name
        self.topic = name.encode()
        self.queue_id = queue_id
        self.mapped_files = mapped_files
        self.keys = keys
        self.delay_ms = delay_ms
        self.record_at = record_at
        self._active = active
        self.ext = ext
        self.rare = rare or len(self.topic) > TOPIC_BYTES_MAX_V1 or (ext is not None and ext.writes) or self.is_batch
        # Topic length and topic as they stand in a record after the body.
        self.suffix = record_layout.topic_field(self.topic)
        # The size of a record without body and properties, if its hosts are IPv4.
        self.fixed_bytes = record_layout.record_bytes(0, len(self.topic), 0)
        self.map = _NO_MAP
        self.at = self.limit = self.reserved = self.start = self.next = self.min = 0
        # Units of messages before this offset were not written since the start: see `UnitRepair`.
        self.loaded_next = 0
        # Those [begin, end) whose units were found right last, the newest first.
        self.proven: tuple[tuple[int, int], ...] = ()
        # `flushing`: what `flushed` becomes once the flush under way is over.
        self.flushed = self.flushing = 0
        self._early: bytearray | None = None
        # How many bytes have blocks in files that the units of a batch will reach.
        self._ahead: dict[int, int] = {}
        self._early_stored = 0
        # For `take_stored`: the message up to which all are counted, and bytes of records since.
        self.counted = 0
        self.stored_bytes = 0
        # The begins of the first and the last file in the inventory.
        self.listed = (-1, -1)

    def load(self, below: int | None, min_position: int, *, cut: bool, noted: NotedEnd | None = None) -> None:
        """Find the queue's end: after the last unit that is written and whose record begins before physical offset
        `below`.

        `cut`: the units after the end are searched for and made zero, as pages may be missing after a power cut.
        `noted`: an end that the queue had once: all units before it were written, whatever the files hold now.
        """
        if noted is None or (below is not None and noted.position > below):
            noted = NOTHING_NOTED
        mapped_files = self.mapped_files
        mapped_files.scan()
        if self._is_newer(noted):
            noted = NOTHING_NOTED
        end, width = mapped_files.starts[0] if mapped_files.starts else 0, self.unit_bytes
        is_zero = True
        for start in reversed(mapped_files.starts):
            known = min(max(noted.end - start, 0), mapped_files.readable(start)) // width
            # A page that is looked at where the file has none costs a fault, 18 of them in a file of one unit.
            units_max = max(-(-mapped_files.data_end(start) // width), known)
            count = self._written_units(mapped_files.get(start).view, below, known, units_max) if units_max else 0
            if units_max > count and bytes(mapped_files.get(start).view[count * width : units_max * width]).strip(
                b"\0"
            ):
                is_zero = False
                count += self._more_units(start, count, units_max, below)
            if count:
                end = start + count * width
                break
        if mapped_files.starts and (not is_zero or end < mapped_files.starts[-1]) and (cut or self._anything_at(end)):
            mapped_files.cut(end)
        self._set_end(end)
        self.flushed = end
        if self.next < noted.next:
            self.go_on_at(noted.next)
        self.loaded_next, self.proven = self.next, ()
        self.find_min(min_position)
        self._load_ext()

    def _is_newer(self, noted: NotedEnd) -> bool:
        """Tell whether a note is of a queue that was deleted, by a broker that notes it nowhere: this one's first unit
        points behind the log of then.
        """
        first = self.mapped_files.starts[0] if self.mapped_files.starts else noted.end
        if first >= noted.end or self.mapped_files.readable(first) < self.unit_bytes:
            return False
        position, size, _ = UNIT.unpack_from(self.mapped_files.get(first).view, 0)
        return size > 0 and position >= noted.position and self._is_of(first // self.unit_bytes, position)

    def _load_ext(self) -> None:
        """Remove units from the extension that no queue unit points to any more."""
        if self.ext is not None:
            first = self.mapped_files.starts[0] // UNIT_BYTES if self.mapped_files.starts else self.next
            self.ext.load(self.unit(self.next - 1)[2] if self.next > first else None)

    def _set_end(self, end: int) -> None:
        self.next = end // UNIT_BYTES
        self.start = end - end % self.mapped_files.size
        if end and end == self.start and self.start not in self.mapped_files.starts:
            self.start -= self.mapped_files.size
        self.at = self.reserved = end - self.start
        self.limit = 0
        self.map = _NO_MAP

    def _written_units(self, view: memoryview, below: int | None, known: int, units_max: int) -> int:
        """Return the number of units of a file that are written, by a search that damage may end too early.

        `known`: so many are.
        """
        low, high = known, units_max
        while low < high:
            middle = (low + high) // 2
            position, size, _ = UNIT.unpack_from(view, middle * UNIT_BYTES)
            if size > 0 and (below is None or position < below):
                low = middle + 1
            else:
                high = middle
        return low

    def _more_units(self, start: int, count: int, units_max: int, below: int | None) -> int:
        """Return the number of units behind the first `count` of a file up to the last whose record is in the log."""
        mapped_files = self.mapped_files
        units = np.frombuffer(mapped_files.get(start).view, self.unit_type, units_max - count, count * self.unit_bytes)
        positions = units["position"].astype(np.int64)
        likely = (units["size"] != 0) & (positions >= 0)
        if below is not None:
            likely &= positions < below
        first = start // self.unit_bytes + count
        for row in np.flatnonzero(likely)[::-1].tolist():
            if self._is_of(first + row, positions[row].item()):
                return int(row) + 1
        # The last unit may be the damaged one: by the place it has but for one bit.
        position = positions[0].item()
        if below is None:
            below = 1 << 62
        if units[0].tobytes().strip(b"\0") and (position < below or not self._is_of(first, position)):
            places = (position ^ (-1 << 63 if bit == 63 else 1 << bit) for bit in range(64))
            return int(any(0 <= place < below and self._is_of(first, place) for place in places))
        return 0

    def _is_of(self, index: int, position: int) -> bool:
        """Tell whether the record of the queue's unit with this index is at a physical offset."""
        found = self.record_at(position)
        return found is not None and (self.topic.startswith(SHARED) or belongs(found, self, index))

    def _anything_at(self, end: int) -> bool:
        start = end - end % self.mapped_files.size
        if start not in self.mapped_files.starts or self.mapped_files.readable(start) <= end - start:
            return False
        return bool(UNIT.unpack_from(self.mapped_files.get(start).view, end - start)[1])

    def find_min(self, min_position: int) -> None:
        """Set `min`: the first unit that is no gap and lies at or after physical offset `min_position`."""
        # In memory are units from the queue's begin on.
        first = 0 if self._early is not None else self._end()
        first = low = (self.mapped_files.starts[0] if self.mapped_files.starts else first) // UNIT_BYTES
        high = end = self.next
        # While nothing is removed from the log, all units count.
        while min_position > 0 and low < high:
            middle = (low + high) // 2
            # A gap or a damaged unit counts as the unit after it.
            following = self._in_order(middle, first, high)
            if following == high or self.unit(following)[0] >= min_position:
                high = middle
            else:
                low = following + 1
        # What is damaged before it may be of a message that is there.
        while low > first and self.unit(low - 1)[1] != GAP_SIZE and self._in_order(low - 1, first, low) == low:
            low -= 1
        self.min = self.after_gap(low, end)

    def _in_order(self, offset: int, first: int, end: int) -> int:
        """Return the first of the messages [offset, end) whose place in the log is between its neighbours'; else `end`.

        A unit whose place is not is damaged, or beside one that is. `first`: the oldest message there is.
        """
        while offset < end:
            view, at, here = self.place(offset, end - offset)
            position, size, _ = UNIT.unpack_from(view, at)
            if size <= 0 or size == GAP_SIZE:
                sizes = np.frombuffer(view, UNIT_TYPE, here, at)["size"]
                written = (sizes > 0) & (sizes != GAP_SIZE)
                offset += int(written.argmax()) if written.any() else here
                continue
            before = self._place_of(offset - 1) if offset > first else None
            after = self._place_of(offset + 1) if offset + 1 < self.next else None
            if (-1 if before is None else before) < position and (after is None or position < after):
                return offset
            offset += 1
        return end

    def _place_of(self, offset: int) -> int | None:
        """Return where a unit says that its record is; None if it says nothing, as it is a gap or damaged."""
        position, size, _ = self.unit(offset)
        return position if 0 < size < GAP_SIZE and position >= 0 else None

    def after_gap(self, offset: int, end: int) -> int:
        """Return the first of the messages [offset, end) that is no gap; `end` if all are."""
        while offset < end and self.unit(offset)[1] == GAP_SIZE:
            view, at, here = self.place(offset, end - offset)
            whole = np.frombuffer(view, UNIT_TYPE, here, at)["size"] != GAP_SIZE
            first = int(whole.argmax())
            offset += first if whole[first] else here
        return offset

    def begins_before(self, position: int) -> bool:
        """Tell whether the queue's oldest record, by the oldest right unit, begins before a physical offset."""
        for offset in range(self.min, min(self.next, self.min + _OLDEST_LOOKED_AT_MAX)):
            place = self.unit(offset)[0]
            if self._is_of(offset, place):
                return place < position
        return False

    def expire(self, min_position: int) -> None:
        """Remove the files whose units all lie before physical offset `min_position`, but never the last."""
        mapped_files = self.mapped_files
        self.find_min(min_position)
        while len(mapped_files.starts) > 1 and mapped_files.starts[0] < self.start:
            if mapped_files.starts[0] + mapped_files.size > self.min * UNIT_BYTES:
                break
            mapped_files.remove(mapped_files.starts[0])
        if self.ext is not None and self.min < self.next:
            self.ext.expire(self.unit(self.min)[2])

    def make_room(self) -> int:
        """Map the file for the next unit, a new one if need be, with blocks for some; returns `at`.

        Raises StoreFull or StoreUnwritable.
        """
        mapped_files = self.mapped_files
        if self._early is not None:
            if len(self._early) < min(UNITS_WITHOUT_FILE * UNIT_BYTES, mapped_files.size):
                return self._keep_in_memory(UNITS_WITHOUT_FILE)
            self._leave_memory()
        elif self.at == self.start == 0 and not mapped_files.starts and not self.is_batch:
            self._early_stored = 0
            return self._keep_in_memory(UNITS_AT_FIRST)
        step = self._step()
        if self.at >= mapped_files.size or not mapped_files.starts:
            start = self.start + (self.at if self.at >= mapped_files.size else 0)
            ahead, self._ahead = self._ahead, {}
            if start not in mapped_files.starts:
                mapped_files.add(start, step)
                reserved = min(step, mapped_files.size)
            elif start in ahead:
                # Within a batch, where nothing may fail any more.
                reserved, self._ahead = ahead.pop(start), ahead
            else:
                reserved = mapped_files.reserve(start, step) - start
            self.start, self.at, self.reserved = start, 0, reserved
            self.limit = 0
        elif self.at >= self.reserved:
            self.reserved = mapped_files.reserve(self.start + self.at, step) - self.start
        if self.limit == 0:
            self.map = mapped_files.get(self.start).view
            self._active.enter(self)
        # A limit is a whole number of units, so that none is begun that has no block to end in.
        self.limit = self.reserved - self.reserved % self.unit_bytes
        if self.limit <= self.at:
            self.reserved = mapped_files.reserve(self.start + self.at, step) - self.start
            self.limit = self.reserved - self.reserved % self.unit_bytes
        return self.at

    def _keep_in_memory(self, count: int) -> int:
        early = bytearray(min(count * UNIT_BYTES, self.mapped_files.size))
        early[: self.at] = self.map[: self.at]
        with self._active.lock:
            self._early = early
        self.map = memoryview(early)
        self.limit = self.reserved = len(early)
        return self.at

    def _leave_memory(self) -> None:
        with self._active.lock:
            self._store_early()
            self._early = None
        self.reserved = min(RESERVE_STEP_BYTES_MIN, self.mapped_files.size)
        self.limit = 0
        self.map = _NO_MAP

    def _store_early(self) -> None:
        """Put the units in memory into the file, made now if it is not there; under the lock of `_active`."""
        mapped_files, early, end = self.mapped_files, self._early, self.at
        if early is None:
            return  # Deleted, or mapped meanwhile.
        if not mapped_files.starts:
            mapped_files.add(0, RESERVE_STEP_BYTES_MIN)
        if end > self._early_stored:
            mapped_files.write(self._early_stored, early[self._early_stored : end])
            self._early_stored = end

    def _step(self) -> int:
        """Return the number of bytes to reserve next: as many as there are, the whole step from the second file on."""
        if self.start:
            return RESERVE_STEP_BYTES_MAX
        return min(max(self.at, RESERVE_STEP_BYTES_MIN), RESERVE_STEP_BYTES_MAX)

    def make_room_for(self, count: int) -> None:
        """Make room for `count` units in a row, so that a batch is written whole or not at all."""
        if self.at >= self.limit:
            self.make_room()
        while self._early is not None and self.at + count * self.unit_bytes > self.limit:
            self.make_room()
        if self.ext is not None:
            self.ext.make_room(count)
        end = self.at + count * self.unit_bytes
        size = self.mapped_files.size
        if end > self.limit and self.reserved < size:
            self.reserved = self.mapped_files.reserve(self.start + self.at, min(end, size) - self.at) - self.start
            self.limit = self.reserved - self.reserved % self.unit_bytes
        following = self.start + size
        self._ahead = {}
        while following < self.start + end:
            if following not in self.mapped_files.starts:
                self.mapped_files.add(following, RESERVE_STEP_BYTES_MAX)
            reserved = self.mapped_files.reserve(following, min(size, self.start + end - following)) - following
            self.mapped_files.get(following)
            self._ahead[following] = reserved
            following += size

    def release(self) -> None:
        """Unmap the file; the next append maps it again. Units that are in memory alone are lost."""
        if self._early is None:
            self.let_go()
        else:
            with self._active.lock:
                self.let_go()

    def let_go(self) -> None:
        """Do what `release` does, for a caller that holds the lock of the active queues."""
        self._early = None
        self.limit = 0
        self.map = _NO_MAP
        self._ahead = {}

    def unit_code(self, tags_code: int, time_ms: int) -> int:
        """Return the code for a message's unit: its tags code; in the schedule topic the time when it is due."""
        return tags_code if self.delay_ms is None else time_ms + self.delay_ms

    def put(self, position: int, size: int, code: int, stored_ms: int, count: int = 1) -> None:
        """Write the next unit. `count`: the number of messages in the record, 1 except in a batch queue."""
        if self.ext is not None and self.ext.writes:
            code = self.ext.put(code, stored_ms)
        at = self.at
        if at >= self.limit:
            at = self.make_room()
        UNIT.pack_into(self.map, at, position, size, code)
        self.at = at + UNIT_BYTES
        self.next += 1

    def put_all(self, positions: NDArray[np.int64], sizes: NDArray[np.int64], codes: NDArray[np.int64]) -> None:
        """Write the next units, after `make_room_for`; the bytes are those that `Store.append` writes one by one."""
        units = np.empty(len(positions), UNIT_TYPE)
        units["position"], units["size"], units["code"] = positions, sizes, codes
        left = memoryview(units.tobytes())
        while left:
            at = self.at
            if at >= self.limit:
                at = self.make_room()
            end = min(at + len(left), self.limit)
            self.map[at:end] = left[: end - at]
            self.at = end
            self.next += (end - at) // UNIT_BYTES
            left = left[end - at :]

    def start_at(self, offset: int) -> None:
        """Make an empty queue begin at `offset`; the units before it in its file become gaps."""
        assert not self.mapped_files.starts
        if self.ext is not None:
            self.ext.load(None)
        size = self.mapped_files.size
        self.start = offset * UNIT_BYTES - offset * UNIT_BYTES % size
        self.at = self.reserved = self.limit = 0
        self.next = self.start // UNIT_BYTES
        self.flushed = self.flushing = self.start
        self.fill_to(offset)
        self.min = offset

    def go_on_at(self, offset: int) -> None:
        """Make `offset`, above 0, the next one: lost units before it become gaps, one at least, which tells the end."""
        if not self.mapped_files.starts:
            self.start_at(offset - 1)
        self.fill_to(offset)

    def fill_to(self, offset: int) -> None:
        """Write gaps for the messages before `offset`, which have no records."""
        gap = UNIT.pack(0, GAP_SIZE, 0)
        while self.next < offset:
            at = self.at if self.at < self.limit else self.make_room()
            count = min((self.limit - at) // UNIT_BYTES, offset - self.next)
            self.at = at + count * UNIT_BYTES
            self.map[at : self.at] = gap * count
            self.next += count

    def put_in_gap(self, offset: int, position: int, size: int, code: int, stored_ms: int = 0, count: int = 1) -> None:
        """Write the unit of a message that was left out before; nothing happens if its place is not a gap."""
        byte = offset * UNIT_BYTES
        first = self.mapped_files.starts[0] if self.mapped_files.starts else self.start
        if not first <= byte < self._end() or self.unit(offset)[1] != GAP_SIZE:
            return
        view, at, _ = self.place(offset, 1)
        with self._active.lock:
            UNIT.pack_into(view, at, position, size, code)
            self._early_stored = min(self._early_stored, byte)
        self.flushed, self.flushing = min(self.flushed, byte), min(self.flushing, byte)
        self.min = min(self.min, offset)

    def cut(self, offset: int) -> None:
        """Remove the units from `offset` on."""
        if self._early is not None:
            self._leave_memory()
        end = offset * UNIT_BYTES
        if self.mapped_files.starts and end < self.mapped_files.starts[0]:
            for start in self.mapped_files.starts[::-1]:
                self.mapped_files.remove(start)
            self.start_at(offset)
            return
        self.mapped_files.cut(end)
        self._set_end(end)
        self.min = min(self.min, offset)
        self.flushed, self.flushing = min(self.flushed, end), min(self.flushing, end)
        self._load_ext()

    def cut_at(self, position: int) -> None:
        """Remove the units at or after a physical offset."""
        offset = end = self.next
        # From the end on, as a gap in between says nothing of its place.
        while offset > self.min and self.unit(offset - 1)[0] >= position:
            offset -= 1
        if offset < end:
            self.cut(offset)
        self.loaded_next = min(self.loaded_next, offset)
        self.proven = ()
        self.counted = min(self.counted, offset)

    def lost_before(self, offset: int) -> bool:
        """Tell whether the messages before `offset` lost their units: the queue has no units, and its files begin after
        `offset`.
        """
        starts = self.mapped_files.starts
        return bool(starts) and self._end() == starts[0] > offset * self.unit_bytes and not self.is_batch

    def unit(self, offset: int) -> tuple[int, int, int]:
        """Return (physical offset, record size, tags code) of one message; the offset must be in the queue."""
        byte = offset * UNIT_BYTES
        start = byte - byte % self.mapped_files.size
        view = self.map if start == self.start and self.limit else self.mapped_files.get(start).view
        return UNIT.unpack_from(view, byte - start)

    def place(self, offset: int, count: int) -> tuple[memoryview, int, int]:
        """Return (view of a file, byte of a message's unit in it, how many of `count` units from it on the file holds).

        The messages [offset, offset + count) must be in the queue.
        """
        size = self.mapped_files.size
        at = offset * UNIT_BYTES % size
        start = offset * UNIT_BYTES - at
        view = self.map if start == self.start and self.limit else self.mapped_files.get(start).view
        end = at + count * UNIT_BYTES
        return view, at, count if end <= size else (size - at) // UNIT_BYTES

    def units(self, offset: int, count: int) -> Iterator[tuple[int, int, int]]:
        """Yield the queue's entries for `count` messages from `offset` on: (physical offset, size, tags code) of each.

        The caller has made sure that the queue holds all of these messages.
        """
        while count:
            view, at, here = self.place(offset, count)
            yield from UNIT.iter_unpack(view[at : at + here * UNIT_BYTES])
            offset += here
            count -= here

    def _end(self) -> int:
        """Return the byte after the last unit."""
        return self.next * UNIT_BYTES

    def flushed_end(self, position: int) -> NotedEnd | None:
        """Return where the units on the disk end; None if that is not known. `position`: where the log ends now."""
        return NotedEnd(self.flushed, self.flushed // UNIT_BYTES, position)

    def unflushed(self) -> list[str] | None:
        """Put units that are in memory alone into the file; return the files that are still to be put on the disk, None
        if there is nothing to do. Once they are the caller sets `flushed` to `flushing`.

        Safe beside appends. Raises OSError, StoreError.
        """
        mapped_files = self.mapped_files
        end = self.flushing = self._end()
        if self.flushed >= end:
            return None
        if self.ext is not None:
            self.ext.flush()  # First: no unit on the disk points to what is not.
        if self._early is not None:
            with self._active.lock:
                self._store_early()
        size, flushed = mapped_files.size, self.flushed
        starts = [start for start in list(mapped_files.starts) if start + size > flushed and start < end]
        return [mapped_files.path(start) for start in starts]


def belongs(found: memoryview, queue: ConsumeQueue, offset: int) -> bool:
    """Tell whether a whole record is the queue's message with this offset."""
    return _IDENTITY(found) == (queue.queue_id, offset) and is_of_topic(found, queue)


def is_of_topic(found: memoryview, queue: ConsumeQueue) -> bool:
    """Tell whether a whole record is of the queue's topic."""
    at = record_layout.topic_at(found)
    return found[at : at + len(queue.suffix)] == queue.suffix
