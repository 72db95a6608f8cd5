"""One queue in the tier: its records and its units. Rule: a record is durable before its unit is; units are the truth.

Each message has a unit: those of one record (inner batches) lead to it or, as RocketMQ writes them, to copies of it.
After a kill the queue ends with the last unit whose record is whole; what lies behind is written over.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rocketspark.errors import RecordError, StoreUnwritable
from rocketspark.protocol.message import record, record_layout, sysflags
from rocketspark.store.commitlog.dispatch import dispatch_request
from rocketspark.store.consumequeue.batch_consume_queue import BatchConsumeQueue
from rocketspark.store.consumequeue.consume_queue import GAP_SIZE
from rocketspark.store.tiered.flat_file import FlatFile
from rocketspark.store.tiered.layout import UNIT, at_position, first_offset, record_size

_log = logging.getLogger("rocketspark.store")
_HEAD_BYTES = record_layout.RECORD_BYTES_MIN
_UNITS_AT_ONCE = 128


class ColdUnits(NamedTuple):
    """A stretch of a queue in memory. `units`: (position, size, tags code) from offset `first` on; `content`: the
    queue's records from byte `base` on. `damaged`: offsets of messages that are there no more, as bits have flipped.
    """

    first: int
    units: list[tuple[int, int, int]]
    content: memoryview
    base: int
    damaged: frozenset[int] = frozenset()

    @property
    def next(self) -> int:
        """The offset behind it."""
        return self.first + len(self.units)

    def without_last(self) -> ColdUnits:
        """Return it without its last message."""
        return self._replace(units=self.units[:-1], damaged=self.damaged - {self.next - 1})

    def record(self, offset: int) -> memoryview | None:
        """Return the record that holds a message; None if it is missing or damaged."""
        position, size, _ = self.units[offset - self.first]
        at = position - self.base
        if size == GAP_SIZE or at < 0 or offset in self.damaged:
            return None
        found = self.content[at : at + size]
        if len(found) != size or record_size(found) != size:
            return None
        return found if first_offset(found) == offset or first_offset(found) < offset < end_offset(found) else None


def end_offset(stored: memoryview) -> int:
    """Return the queue offset behind the messages of a whole record."""
    return first_offset(stored) + BatchConsumeQueue.count_of(stored)


class NewUnit(NamedTuple):
    """A message to be appended: its record (None: it is missing), tags code and store time. `messages`: those of
    the record that are appended, all in a row.
    """

    record: memoryview | None
    code: int
    time_ms: int
    messages: int = 1


class QueueTier:
    """The messages [low, next) of a queue."""

    def __init__(self, topic: str, queue_id: int, log: FlatFile, units: FlatFile) -> None:
        self.topic = topic
        self._topic_bytes = topic.encode()
        self.queue_id = queue_id
        self.log = log
        self.units = units
        self.low = 0
        # Where the records began when it was found.
        self._low_found_at = 0
        # Whether its last message was compared with the store's; `made_at`: see `Store.made_at`.
        self.compared = False
        self.made_at: int | None = None
        # Whether it is another store's, at least from some offset on: nothing is added to it.
        self.left = False
        self._same_below: int | None = None

    @property
    def next(self) -> int:
        """The offset of the first message that is not in the tier yet."""
        return self.units.end // UNIT.size

    @property
    def high(self) -> int:
        """The offset behind the last message that may be read."""
        return self.next if self._same_below is None else min(self.next, self._same_below)

    @property
    def begun(self) -> bool:
        """Tell whether it has a place in the tier."""
        return bool(self.units.entries)

    def begin_at(self, offset: int, now_ms: int, unfinished: Iterable[int] = ()) -> None:
        """Begin with the message at an offset. `unfinished`: where segments of records begin that have to go first."""
        self.log.begin_at(0, now_ms, unfinished)
        self.units.begin_at(offset * UNIT.size, now_ms)
        self.low = offset

    def leave(self, same_below: int) -> None:
        """Leave it as it is in the tier: nothing is added to it, and nothing read from an offset on."""
        self.left = self.compared = True
        self.end_at(same_below)

    def end_at(self, same_below: int) -> None:
        """Let nobody read it from an offset on: from there it is another store's, or of an earlier topic."""
        self._same_below = max(same_below, self.low)

    def recover(self, *, is_read_only: bool = False) -> None:
        """Find where it ends and begins. Raises StoreUnwritable if the tier cannot be read now. `is_read_only`: another
        broker may be writing to it.
        """
        end, log_end = self._whole_end()
        if end != self.units.end:
            if not is_read_only:
                _log.warning("tier: %s: its last upload was not finished, it is made again", self.units.path)
            self.units.cut(end)
        if not self.log.entries:
            self.log.begin_at(0, 0)
        self.log.cut(log_end)
        self.find_low()

    def _whole_end(self) -> tuple[int, int]:
        """Return where the units end that have whole records, and where these records do."""
        end = self.units.end - self.units.end % UNIT.size
        while end > self.units.start:
            first = max(end - _UNITS_AT_ONCE * UNIT.size, self.units.start)
            found = list(UNIT.iter_unpack(self.units.read(first, end - first)))
            for position, size, _ in reversed(found):
                if size == GAP_SIZE and position <= self.log.end:
                    return end, position
                if self._is_whole(position, size, end // UNIT.size - 1):
                    return end, position + size
                end -= UNIT.size
        return end, self.log.start

    def _is_whole(self, position: int, size: int, offset: int) -> bool:
        if not (self.log.start <= position and size >= _HEAD_BYTES and position + size <= self.log.end):
            return False
        found = self.log.read(position, size)
        if record_size(found) != size:
            return False
        try:
            record.decode(memoryview(found))
        except RecordError:
            return False
        return end_offset(memoryview(found)) == offset + 1

    def find_low(self) -> None:
        """Find the oldest message that has both its unit and its record: neither's segments end with the other's."""
        first = self.units.start // UNIT.size
        low, high = first, self.next
        while low < high:
            middle = (low + high) // 2
            if self.unit(middle)[0] < self.log.start:
                low = middle + 1
            else:
                high = middle
            if low == high and low - 2 >= first and self.unit(low - 2)[0] >= self.log.start:
                # Bits have flipped in the unit before: it is not the first one that leads behind the start.
                low, high = first, low - 2
        self.low, self._low_found_at = low, self.log.start

    # -- writing

    def append(self, messages: Sequence[NewUnit], now_ms: int) -> list[tuple[int, int]]:
        """Append the records of the messages after the last; return (position, size) for `append_units`. Raises
        StoreFull, StoreUnwritable.
        """
        position, places, pieces = self.log.end, [], []
        for stored, _, time_ms, _ in messages:
            if stored is None:
                places.append((position, GAP_SIZE))
                continue
            pieces.append((at_position(stored, position), time_ms))
            places.append((position, len(stored)))
            position += len(stored)
        before = self.log.end
        try:
            self.log.append(pieces, now_ms)
        except BaseException:
            # Those that were written have no units, so the same places are used again.
            self.log.cut(before)
            raise
        return places

    def append_units(self, messages: Sequence[NewUnit], places: list[tuple[int, int]], now_ms: int) -> None:
        """Append the units of messages whose records were appended. Raises StoreFull, StoreUnwritable."""
        before, log_end = self.units.end, places[0][0]
        rows = zip(messages, places, strict=True)
        try:
            self.units.append(((UNIT.pack(*place, m.code) * m.messages, m.time_ms) for m, place in rows), now_ms)
        except BaseException:
            self.units.cut(before)
            self.log.cut(log_end)
            raise

    def expire(self, before_ms: int) -> None:
        """Remove the oldest segments whose messages are all older. Raises StoreUnwritable; a later call goes on."""
        try:
            self.log.expire(before_ms)
        finally:
            # Also behind one that could not be removed: nobody finds it any more.
            if self._low_found_at != self.log.start:
                self.find_low()
        self.units.expire_below(self.low * UNIT.size)

    def destroy(self) -> None:
        """Remove it from the tier. Raises StoreUnwritable."""
        self.low = self.next
        self.units.destroy()
        self.log.destroy()

    # -- reading

    def unit(self, offset: int) -> tuple[int, int, int]:
        """Return (position, size, tags code) of a message. Raises StoreUnwritable."""
        position, size, code = UNIT.unpack(self.units.read(offset * UNIT.size, UNIT.size))
        return position, size, code

    def leads_to(self, position: int, offset: int) -> bool:
        """Tell whether the record of a message is at a position. Raises StoreUnwritable."""
        return self.low <= offset < self.next and self.unit(offset)[0] == position

    def stretch(self, offset: int, count_max: int, bytes_max: int) -> ColdUnits:
        """Read messages from an offset on, at least one. Raises StoreUnwritable.

        It ends before a unit that does not lead behind the record before it: such a one is looked at alone.
        """
        found = self._stretch(offset, count_max, bytes_max)
        if found.damaged:
            _log.error(
                "tier: %s: bits have flipped in messages, the first at offset %d: those that the store has no more are"
                " passed over",
                self.log.path,
                min(found.damaged),
            )
        return found

    def _stretch(self, offset: int, count_max: int, bytes_max: int) -> ColdUnits:
        count = min(count_max, self.high - offset)
        if not self.low <= offset < self.high:
            raise StoreUnwritable(f"{self.units.path}: offset {offset} is not in the tier any more")
        found = list(UNIT.iter_unpack(self.units.read(offset * UNIT.size, count * UNIT.size)))
        base = found[0][0]
        for at, (position, size, _) in enumerate(found):
            if at and size != GAP_SIZE and position + size - base > bytes_max:
                del found[at:]
                break
        del found[max(self._count_in_row(found), 1) :]
        position, size, _ = found[0]
        if len(found) == 1 and not self._is_within(position, size):
            return self._alone(offset, found[0])
        end = max((p + s for p, s, _ in found if s != GAP_SIZE), default=base)
        content = self.log.read(base, end - base) if end > base else b""
        checked = self._checked(ColdUnits(offset, found, memoryview(content), base))
        if checked.next - 1 in checked.damaged:
            # No unit behind it says that it is right.
            return self._alone(offset, found[0]) if len(found) == 1 else checked.without_last()
        return checked

    def _is_within(self, position: int, size: int) -> bool:
        return self.log.start <= position <= position + (0 if size == GAP_SIZE else size) <= self.log.end

    def _count_in_row(self, units: list[tuple[int, int, int]]) -> int:
        """Return how many units lead to records that follow each other, from the first one on."""
        before, behind = -1, units[0][0]
        for at, (position, size, _) in enumerate(units):
            # Messages of one record lead to the same place.
            if position not in (behind, before):
                return at - 1
            if not self._is_within(position, size):
                return at
            before, behind = position, position if size == GAP_SIZE else position + size
        return len(units)

    def _alone(self, offset: int, unit: tuple[int, int, int]) -> ColdUnits:
        """Return one message, looked for where its unit leads, behind the one before it, and before the next one."""
        position, size, code = unit
        if size == GAP_SIZE:
            return ColdUnits(offset, [unit], memoryview(b""), position)
        places = [position]
        if offset > self.low:
            before, bytes_of, _ = self.unit(offset - 1)
            places.append(before if bytes_of == GAP_SIZE else before + bytes_of)
        if offset + 1 < self.next:
            places.append(self.unit(offset + 1)[0] - size)
        for at in places:
            if not self.log.start <= at <= self.log.end - _HEAD_BYTES:
                continue
            size = record_size(self.log.read(at, _HEAD_BYTES))
            if size and at + size <= self.log.end:
                content = memoryview(self.log.read(at, size))
                found = self._checked(ColdUnits(offset, [(at, size, code)], content, at))
                if not found.damaged:
                    return found
        return ColdUnits(offset, [(position, 0, code)], memoryview(b""), position, frozenset([offset]))

    def _checked(self, found: ColdUnits) -> ColdUnits:
        """Look at each record of a stretch: one of another queue, or with another CRC is damaged, as what is none.

        Tags codes are those of the records.
        """
        damaged, codes = set[int](), set[int]()
        for at, (position, size, code) in enumerate(found.units):
            if size == GAP_SIZE:
                continue
            stored = found.record(found.first + at)
            read = self._decoded(stored) if stored is not None else None
            if read is None:
                damaged.add(found.first + at)
            elif code not in codes:
                right = dispatch_request(read.sys_flag, read.properties).tags_code
                if not read.sys_flag & sysflags.INNER_BATCH and right != code:
                    found.units[at] = position, size, right
                codes.add(right)
        return found._replace(damaged=frozenset(damaged))

    def _decoded(self, stored: memoryview) -> record.Record | None:
        """Return a record of this queue; None if it is none, as bits have flipped."""
        try:
            found = record.decode(stored)
        except RecordError:
            return None
        return found if (found.topic, found.queue_id) == (self._topic_bytes, self.queue_id) else None

    def is_right(self, stored: bytes) -> bool:
        """Tell whether this is a whole record of this queue, with the body that was stored."""
        return self._decoded(memoryview(stored)) is not None

    def time_at(self, offset: int) -> int:
        """Return the store time in ms of a message; that of the next one if it is missing. Raises StoreUnwritable."""
        while offset < self.next:
            found = self.time_of(offset)
            if found >= 0:
                return found
            offset += 1
        return -1

    def time_of(self, offset: int) -> int:
        """Return the store time in ms of a message; -1 if it is missing, or damaged. Raises StoreUnwritable."""
        position, size, _ = self.unit(offset)
        if size == GAP_SIZE:
            return -1
        if not (self.log.start <= position and _HEAD_BYTES <= size <= self.log.end - position):
            return -1
        found = self.log.read(position, min(size, _HEAD_BYTES + 24))
        return record_layout.store_time_of(found) if record_size(found) == size else -1

    def first_time_ms(self) -> int:
        """Return about when the oldest message was stored, as the table says, in ms; -1 if it has none."""
        begin = self.log.entries[0].begin_ms if self.log.entries and self.next > self.low else -1
        return begin if begin < 1 << 62 else -1

    def offset_at_time(self, time_ms: int, upper: bool) -> int:
        """Return the offset of the first message stored at or after a time, `high` if none is; with `upper` of the last
        stored at or before it, `low` if none is: of a record of several messages the first. Raises StoreUnwritable.
        """
        low, high = self.low, self.high
        while low < high:
            middle = (low + high) // 2
            stored = self.time_at(middle)
            if stored < 0 or stored > time_ms or (stored == time_ms and not upper):
                high = middle
            else:
                low = middle + 1
        if upper and low > self.low:
            position, size, _ = self.unit(low - 1)
            first = low - 1 if size == GAP_SIZE else first_offset(self.log.read(position, _HEAD_BYTES))
            low = min(first, low - 1)
        return max(low, self.low)
