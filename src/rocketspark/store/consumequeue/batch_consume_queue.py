"""A batch consume queue (topics with queue.type=BatchCQ): units of 46 bytes, each for a record of one or more messages.

Rule: queue offsets count messages, so a message's unit is searched for; layout: `_UNIT`, of BatchConsumeQueue, 5.x.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rocketspark.protocol.message import properties, record_layout, sysflags
from rocketspark.store.consumequeue.consume_queue import ConsumeQueue, RecordAt, is_of_topic
from rocketspark.store.consumequeue.consume_queue_ext import ConsumeQueueExt
from rocketspark.store.consumequeue.queue_files import ActiveQueues, NotedEnd
from rocketspark.store.files.mapped_file_queue import MappedFileQueue
from rocketspark.store.index.key_hashes import TopicKeys

# Physical offset, record size, tags code, store time in ms, first queue offset, messages, -1 (no compaction), 0.
BATCH_UNIT = _UNIT = struct.Struct(">qiqqqhii")
BATCH_UNIT_BYTES = _UNIT.size
BATCH_UNIT_TYPE = np.dtype(
    [
        *(("position", ">i8"), ("size", ">i4"), ("code", ">i8"), ("time", ">i8"), ("base", ">i8"), ("count", ">i2")),
        *(("compacted", ">i4"), ("reserved", ">i4")),
    ]
)
assert BATCH_UNIT_TYPE.itemsize == BATCH_UNIT_BYTES
_WRITTEN_UNIT = struct.Struct(">qiqqqh8x")
_TIME_BASE_COUNT = struct.Struct(f">{struct.calcsize('>qiq')}xqqh")
_INNER_COUNT = properties.INNER_COUNT.encode()
INNER_COUNT_MAX = 0x7FFF
_QUEUE_ID = record_layout.only("queue_id").unpack_from
_POSITION = record_layout.only("position").unpack_from
_QUEUE_OFFSET = record_layout.only("queue_offset").unpack_from

BatchUnit = tuple[int, int, int, int, int]


def inner_count(sys_flag: int, stored: bytes) -> int:
    """Return the number of messages in a record: 1 except for inner batches, whose properties tell it."""
    if not sys_flag & sysflags.INNER_BATCH:
        return 1
    value = properties.find(stored, _INNER_COUNT) or b""
    return int(value) if value.isdigit() and 0 < len(value) <= 5 and 0 < int(value) <= INNER_COUNT_MAX else 1


class BatchConsumeQueue(ConsumeQueue):
    """One batch consume queue, with the methods of ConsumeQueue; queue offsets count messages here too."""

    unit_bytes = BATCH_UNIT_BYTES
    unit_type = BATCH_UNIT_TYPE
    is_batch = True

    __slots__ = ("_written",)

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
        super().__init__(name, queue_id, mapped_files, active, keys, delay_ms, record_at, rare=rare, ext=ext)
        # The byte after the last unit.
        self._written = 0

    def _set_end(self, end: int) -> None:
        size = self.mapped_files.size
        self._written = end
        self.start = end - end % size
        if end and end == self.start and self.start not in self.mapped_files.starts:
            self.start -= size
        self.at = self.reserved = end - self.start
        self.release()
        last = end // BATCH_UNIT_BYTES - 1
        if last >= self._first():
            base, count = self._messages(last)
            if last > self._first() and self.record_at(self.unit_at(last)[0]) is None:
                # Damage, unless the log between the two had room for the messages that have no unit.
                before, unit = self.unit_at(last - 1), self.unit_at(last)
                behind = before[4] + before[5]
                base = base if 0 <= base - behind <= unit[0] - before[0] else behind
            self.next = base + count
        else:
            self.next = 0

    def _written_units(self, view: memoryview, below: int | None, known: int, units_max: int) -> int:
        low, high = known, units_max
        while low < high:
            middle = (low + high) // 2
            position, size, _, _, base, count, _, _ = _UNIT.unpack_from(view, middle * BATCH_UNIT_BYTES)
            if size > 0 and base >= 0 and count > 0 and (below is None or position < below):
                low = middle + 1
            else:
                high = middle
        return low

    def _anything_at(self, end: int) -> bool:
        start = end - end % self.mapped_files.size
        if start not in self.mapped_files.starts or self.mapped_files.readable(start) <= end - start:
            return False
        return any(self.mapped_files.get(start).view[end - start : end - start + BATCH_UNIT_BYTES])

    def _load_ext(self) -> None:
        """Do nothing: batch queues have no extension, as a unit has room for everything."""

    def _first(self) -> int:
        return (self.mapped_files.starts[0] if self.mapped_files.starts else self._written) // BATCH_UNIT_BYTES

    def _at(self, index: int) -> tuple[memoryview, int]:
        byte = index * BATCH_UNIT_BYTES
        at = byte % self.mapped_files.size
        start = byte - at
        return (self.map if start == self.start and self.limit else self.mapped_files.get(start).view), at

    def _stated(self, index: int) -> tuple[int, int, int]:
        """Return (store time in ms, first queue offset, messages) of a unit."""
        return _TIME_BASE_COUNT.unpack_from(*self._at(index))

    def _messages(self, index: int) -> tuple[int, int]:
        """Return (first queue offset, messages) of a unit: by its record, if that is there."""
        view, at = self._at(index)
        found = self.record_at(_UNIT.unpack_from(view, at)[0])
        if found is None or not self.has(found):
            return self._stated(index)[1:]
        return _QUEUE_OFFSET(found)[0], self.count_of(found)

    def has(self, found: memoryview) -> bool:
        """Tell whether a whole record is of this queue."""
        return bool(_QUEUE_ID(found)[0] == self.queue_id) and is_of_topic(found, self)

    @staticmethod
    def count_of(found: memoryview) -> int:
        """Return the number of messages in a whole record."""
        sys_flag = record_layout.sys_flag_of(found)
        return inner_count(sys_flag, record_layout.properties_of(found)) if sys_flag & sysflags.INNER_BATCH else 1

    def _is_of(self, index: int, position: int) -> bool:
        found = self.record_at(position)
        return found is not None and self.has(found)

    def index_of(self, offset: int) -> int:
        """Return the index of the unit that holds message `offset`, which must be in the queue; any index if units are
        damaged.
        """
        low, high = self._first(), self._written // BATCH_UNIT_BYTES
        while low + 1 < high:
            middle = (low + high) // 2
            if self._stated(middle)[1] <= offset:
                low = middle
            else:
                high = middle
        return low

    def find_min(self, min_position: int) -> None:
        """Set `min`: the first message of the first unit at or after physical offset `min_position`."""
        low = self._first_from(min_position)
        if low == self._written // BATCH_UNIT_BYTES:
            self.min = self.next
        elif self.says_something(low):
            self.min = self._messages(low)[0]
        else:
            self.min = sum(self._stated(low - 1)[1:]) if low > self._first() else 0

    def _first_from(self, min_position: int) -> int:
        """Return the index of the first unit at or after a physical offset; of a damaged one if that may be it."""
        first = low = self._first()
        high = self._written // BATCH_UNIT_BYTES
        # While nothing is removed from the log, all units count.
        while min_position > 0 and low < high:
            middle = (low + high) // 2
            if 0 <= _UNIT.unpack_from(*self._at(middle))[0] < min_position:
                low = middle + 1
            else:
                high = middle
        while low > first and not self._follows(low - 1):
            low -= 1
        return low

    def says_something(self, index: int) -> bool:
        """Tell whether a unit has values that a right one could have."""
        position, size, _, _, base, count = self.unit_at(index)
        return position >= 0 and size > 0 and base >= 0 and count > 0

    def _follows(self, index: int) -> bool:
        """Tell whether a unit can be right by the one before it."""
        if index == self._first() or not self.says_something(index):
            return self.says_something(index)
        before, unit = self.unit_at(index - 1), self.unit_at(index)
        return before[0] <= unit[0] and before[4] <= unit[4]

    def expire(self, min_position: int) -> None:
        """Remove the files whose units all lie before physical offset `min_position`, but never the last."""
        mapped_files = self.mapped_files
        end = self._first_from(min_position) * BATCH_UNIT_BYTES
        while len(mapped_files.starts) > 1 and mapped_files.starts[0] < self.start:
            if mapped_files.starts[0] + mapped_files.size > end:
                break
            mapped_files.remove(mapped_files.starts[0])
        self.find_min(min_position)

    def put(self, position: int, size: int, code: int, stored_ms: int, count: int = 1) -> None:
        """Write the unit of a record of `count` messages."""
        at = self.at
        if at >= self.limit:
            at = self.make_room()
        _UNIT.pack_into(self.map, at, position, size, code, stored_ms, self.next, count, -1, 0)
        self.at = at + BATCH_UNIT_BYTES
        self._written += BATCH_UNIT_BYTES
        self.next += count

    def put_in_gap(self, offset: int, position: int, size: int, code: int, stored_ms: int = 0, count: int = 1) -> None:
        """Write the unit of a record that was left out, in its place between the others; nothing happens if a unit has
        its messages already.
        """
        first, end = self._first(), self._written // BATCH_UNIT_BYTES
        index = self.index_of(offset) if first < end else end
        if index < end and self._stated(index)[1] <= offset:
            if sum(self._stated(index)[1:]) > offset:
                return
            index += 1
        rows = self.table(index, end) if index < end else np.empty(0, BATCH_UNIT_TYPE)
        if len(rows) and rows["base"][0] < offset + count:
            return
        new = np.array((position, size, code, stored_ms, offset, count, -1, 0), BATCH_UNIT_TYPE).tobytes()
        moved = memoryview(new + rows.tobytes())
        # The last first: a kill leaves it twice at most, which readers pass over.
        following = self.next
        place, last_size, last_code, last_ms, self.next, last_count = _WRITTEN_UNIT.unpack(moved[-BATCH_UNIT_BYTES:])
        self.put(place, last_size, last_code, last_ms, last_count)
        self.next = following
        self.write_units(index, bytes(moved[:-BATCH_UNIT_BYTES]))
        self.flushed = min(self.flushed, index * BATCH_UNIT_BYTES)
        self.flushing = min(self.flushing, self.flushed)
        self.min = min(self.min, offset)

    def start_at(self, offset: int) -> None:
        """Make an empty queue begin at `offset`."""
        assert not self.mapped_files.starts
        self.start = self.at = self.reserved = self.limit = 0
        self.flushed = self.flushing = self._written = 0
        self.next = self.min = offset

    def fill_to(self, offset: int) -> None:
        """Make `offset` the next queue offset. Unlike in a simple queue, messages that are left out need no units."""
        self.next = offset

    def cut(self, offset: int) -> None:
        """Remove the units of messages from `offset` on."""
        first, last = self._first(), self._written // BATCH_UNIT_BYTES
        index = first
        if first < last:
            index = self.index_of(offset)
            if self._stated(index)[1] < offset:
                index += 1
            # Copies that took the place of damaged units.
            while index > first and self._stated(index - 1)[1] >= offset:
                index -= 1
        self._cut(index, offset)

    def _cut(self, index: int, offset: int) -> None:
        self.mapped_files.cut(index * BATCH_UNIT_BYTES)
        self._set_end(index * BATCH_UNIT_BYTES)
        self.next = offset
        self.min = min(self.min, offset)
        self.flushed, self.flushing = min(self.flushed, self._written), min(self.flushing, self._written)

    def cut_at(self, position: int) -> None:
        """Remove the units at or after a physical offset, and the damaged ones at the end."""
        offset, first = self.next, self._first()
        index = end = self._written // BATCH_UNIT_BYTES
        while index > first and not (self.says_something(index - 1) and self.unit_at(index - 1)[0] < position):
            index -= 1
        if index < end:
            offset = sum(self._stated(index - 1)[1:]) if index > first else 0
            if self.says_something(index):
                offset = self._stated(index)[1]
            self._cut(index, offset)
        self.loaded_next = min(self.loaded_next, offset)
        self.counted = min(self.counted, offset)

    def unit(self, offset: int) -> tuple[int, int, int]:
        """Return (physical offset, record size, tags code) of the record that holds message `offset`, which must be in
        the queue.
        """
        position, size, code = _UNIT.unpack_from(*self._at(self.index_of(offset)))[:3]
        return position, size, code

    def unit_at(self, index: int) -> tuple[int, int, int, int, int, int]:
        """Return a unit by its index: physical offset, record size, tags code, store time, first offset, messages."""
        return _WRITTEN_UNIT.unpack_from(*self._at(index))

    def bounds(self) -> tuple[int, int]:
        """Return the index of the first unit and that after the last."""
        return self._first(), self._written // BATCH_UNIT_BYTES

    def table(self, first: int, end: int) -> np.ndarray[Any, np.dtype[Any]]:
        """Return a copy of the units with the indexes [first, end), as rows of an array."""
        pieces = []
        while first < end:
            view, at = self._at(first)
            count = min(end - first, (self.mapped_files.size - at) // BATCH_UNIT_BYTES)
            pieces.append(view[at : at + count * BATCH_UNIT_BYTES])
            first += count
        return np.frombuffer(b"".join(pieces), BATCH_UNIT_TYPE)

    def unit_of(self, found: memoryview, code: int) -> tuple[int, ...]:
        """Return the unit of a whole record with this tags code, as a row of `table`."""
        base, time_ms = _QUEUE_OFFSET(found)[0], record_layout.store_time_of(found)
        return _POSITION(found)[0], len(found), code, time_ms, base, self.count_of(found), -1, 0

    def write_units(self, index: int, content: bytes) -> None:
        """Write units over others. Raises StoreFull or StoreUnwritable."""
        at, size = index * BATCH_UNIT_BYTES, self.mapped_files.size
        while content:
            here = min(len(content), size - at % size)
            self.mapped_files.write(at, content[:here])
            at, content = at + here, content[here:]

    def batches(self, offset: int) -> Iterator[BatchUnit]:
        """Yield units from that of message `offset` on: first queue offset, messages, physical offset, record size,
        tags code.
        """
        for index in range(self.index_of(offset), self._written // BATCH_UNIT_BYTES):
            position, size, code, _, base, count, _, _ = _UNIT.unpack_from(*self._at(index))
            yield base, count, position, size, code

    def units(self, offset: int, count: int) -> Iterator[tuple[int, int, int]]:
        """Yield (physical offset, record size, tags code) of the records that hold messages [offset, offset +
        count).
        """
        for base, _, position, size, code in self.batches(offset):
            if base >= offset + count:
                return
            yield position, size, code

    def place(self, offset: int, count: int) -> tuple[memoryview, int, int]:
        """Raise an error: in batch queues a message has no fixed place."""
        raise AssertionError("a batch queue is read by `batches`")

    def offset_at_time(self, time_ms: int, upper: bool, look: Callable[[int], None]) -> int:
        """Return the offset of the first message of the first record stored at or after `time_ms`; if none is, of the
        last record.

        With `upper`: of the last record stored at or before `time_ms`; if none is, of the oldest. Rule:
        BatchConsumeQueue, 5.x. `look`: called with the index of each unit before it is compared.
        """
        low, high = self.index_of(self.min), self._written // BATCH_UNIT_BYTES
        first, end = low, high
        while low < high:
            middle = (low + high) // 2
            look(middle)
            stored_ms = self._stated(middle)[0]
            if stored_ms < time_ms or (upper and stored_ms == time_ms):
                low = middle + 1
            else:
                high = middle
        index = max(low - 1, first) if upper else min(low, end - 1)
        return self._stated(index)[1]

    def flushed_end(self, position: int) -> NotedEnd | None:
        """Return where the queue ends if every unit is on the disk, else None.

        It is not known which queue offset the flushed units end at, as units hold different numbers of messages.
        """
        following = self.next
        return NotedEnd(self.flushed, following, position) if self.flushed == self._written else None

    def _end(self) -> int:
        return self._written
