"""Units of consume queues that lead to no record, or to another one: found against the record's own queue and offset.

Rule: a wrong unit is made anew from the log between its neighbours, or its message is told as gone; no reader stops at
it. Tags codes that were written since the start, into the file that is written to, are not looked at. In a batch queue
a unit has no fixed place for a message, so all units of a file are looked at once one is found wrong."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rocketspark.model.text import shown
from rocketspark.protocol import light_queues
from rocketspark.protocol.message import record_layout
from rocketspark.protocol.message.record_layout import FIXED_BYTES_V4, HOST_FLAGS, RECORD_BYTES_MIN
from rocketspark.store.commitlog.commit_log import CommitLog
from rocketspark.store.commitlog.dispatch import enters_queue, unit_code_of
from rocketspark.store.consumequeue.batch_consume_queue import BATCH_UNIT_BYTES, BATCH_UNIT_TYPE, BatchConsumeQueue
from rocketspark.store.consumequeue.consume_queue import (
    GAP_SIZE,
    SHARED,
    UNIT,
    UNIT_BYTES,
    UNIT_TYPE,
    ConsumeQueue,
    belongs,
    is_of_topic,
)
from rocketspark.store.consumequeue.consume_queue_ext import is_address

# Bytes of the log that are searched for the next record of a queue; so many times, if nothing is known before it.
SEARCH_BYTES_MAX = 64 << 20
WINDOWS_MAX = 8
NEIGHBOURS_MAX = 64
# A reader of old messages reads on: so many, or so many bytes of records, are checked together.
AHEAD_COUNT = 512
AHEAD_BYTES = 256 << 10
# Of so many tags in a topic each is looked up in the log once; of more none, as each message may have its own.
CODES_MAX = 2000
# Readers of one queue, each at its own place, that do not make each other's units be looked at again.
READERS_MAX = 4
_GIVEN_UP_MAX = 10_000
_NEWS_MAX = 100
_HEAD = record_layout.head_type("size", "queue_id", "queue_offset", "position", "sys_flag", "body_bytes")
_QUEUE_OFFSET = record_layout.only("queue_offset").unpack_from
_SIZE = record_layout.only("size").unpack_from
_STATED = record_layout.only("size", "queue_id", "queue_offset", "position", "sys_flag", "body_bytes").unpack_from
_POSITION = record_layout.only("position").unpack_from


class UnitRepair:
    """Checks units of consume queues before their records are given out, and mends wrong ones."""

    def __init__(self, log: CommitLog, deleted: Callable[[bytes], int] = lambda topic: 0) -> None:
        """Make it for a log. `deleted` returns the physical offset before which a topic's records are in no queue."""
        self._log = log
        self.deleted = deleted
        self.mended = self.lost = 0
        # A line for each repair, the newest only; the broker takes and logs them.
        self.news: deque[str] = deque(maxlen=_NEWS_MAX)
        self._given_up: set[tuple[bytes, int, int]] = set()
        self._told: set[tuple[bytes, int, int]] = set()
        # Tags codes of each topic that a record of it has.
        self._codes: dict[bytes, set[int]] = {}

    def right_until(self, queue: ConsumeQueue, offset: int, count: int, bytes_max: int) -> int:
        """Return how many of the next `count` messages have a right unit, or a gap, before the first one that has not.

        No more units are checked than `bytes_max` of records need, and some ahead: 512 messages take some 36 us.
        """
        for begin, end in queue.proven:
            if begin <= offset and offset + count <= end:
                return count
        many = min(max(count, AHEAD_COUNT), queue.next - offset)
        right = self._right_until(queue, offset, many, max(bytes_max, AHEAD_BYTES))
        if right:
            queue.proven = ((offset, offset + right), *queue.proven[: READERS_MAX - 1])
        return min(count, right)

    def _right_until(self, queue: ConsumeQueue, offset: int, count: int, bytes_max: int) -> int:
        looked_at = 0
        while looked_at < count:
            view, at, here = queue.place(offset + looked_at, count - looked_at)
            units = np.frombuffer(view, UNIT_TYPE, here, at)
            ends = np.clip(units["size"].astype(np.int64), 0, GAP_SIZE).cumsum()
            needed = min(here, 1 + int(ends.searchsorted(bytes_max, "right")))
            wrong = np.flatnonzero(~self._right(queue, offset + looked_at, units[:needed]))
            if len(wrong):
                return looked_at + int(wrong[0])
            if needed < here:
                return looked_at + needed
            looked_at += here
            bytes_max -= int(ends[-1])
        return count

    def _right(self, queue: ConsumeQueue, offset: int, units: NDArray[Any]) -> NDArray[np.bool_]:
        if queue.topic.startswith(SHARED):
            # Their records are of other topics: each is looked at alone, which takes some us.
            places = zip(units["position"].tolist(), units["size"].tolist(), strict=True)
            return np.array([size == GAP_SIZE or self.is_right(queue, 0, at, size) for at, size in places], np.bool_)
        return right_units(self._log, queue, np.arange(offset, offset + len(units)), units)

    def look_before_tags(self, queue: ConsumeQueue, offset: int, count: int) -> None:
        """Mend units that a reader by tags would pass over, as their code is wrong or they are out of order.

        Only for those the log is read, once for each code: 800 units take some 35 us. Raises StoreError.
        """
        known = self._codes.setdefault(queue.topic, set())
        while count and len(known) <= CODES_MAX and queue.delay_ms is None and not queue.topic.startswith(SHARED):
            view, at, here = queue.place(offset, count)
            self._look_before_tags(queue, offset, np.frombuffer(view, UNIT_TYPE, here, at), known)
            offset, count = offset + here, count - here

    def _look_before_tags(self, queue: ConsumeQueue, offset: int, units: NDArray[Any], known: set[int]) -> None:
        sizes = units["size"].astype(np.int64)
        there = np.flatnonzero(sizes != GAP_SIZE)
        rows = slice(None) if len(there) == len(units) else there
        positions, sizes = units["position"].astype(np.int64)[rows], sizes[rows]
        codes = units["code"].astype(np.int64)[rows]
        late = positions[:-1] + sizes[:-1] > positions[1:]
        if late.any() or sizes.min(initial=RECORD_BYTES_MIN) < RECORD_BYTES_MIN:
            odd = sizes < RECORD_BYTES_MIN
            odd[:-1] |= late
            odd[1:] |= late
            for row in there[odd].tolist():
                if not self.is_right(queue, offset + row, *units[row].item()[:2]):
                    self.mend(queue, offset + row)
        new = {code for code in np.unique(codes).tolist() if code not in known and not is_address(code)}
        for row in there[np.isin(codes, list(new))].tolist() if new else ():
            position, size, code = units[row].item()
            if code in new and self.is_right(queue, offset + row, position, size):
                found = self._log.record_at(position)
                right = code if found is None else self._code(queue, offset + row, found)
                if right == code:
                    new.discard(code)
                    known.add(code)
                else:
                    self._put(queue, {offset + row: (position, size, right)}, offset + row)

    def fits(
        self, queue: ConsumeQueue, offset: int, count: int, pieces: list[memoryview], places: tuple[int, ...]
    ) -> bool:
        """Tell whether the pieces of the log that units lead to are the queue's next `count` messages from `offset` on.

        `places`: position and size of each message's record, or of the first and the last alone. Of one piece the ends
        are looked at, as the sizes between them make up its length. 1 us for one piece, 15 us for 32.
        """
        if len(pieces) == 1:
            whole, size = pieces[0], places[-1]
            last = whole[max(len(whole) - size, 0) :]
            if len(last) != size or not _are_of(queue, offset + count - 1, [last], places[-2:-1]):
                return False
            return count == 1 or _are_of(queue, offset, [whole[: _SIZE(whole)[0]]], places[:1])
        if len(places) != 2 * count:
            return self._right_until(queue, offset, count, 1 << 62) >= count
        return _are_of(queue, offset, pieces, places[::2])

    def is_right(self, queue: ConsumeQueue, offset: int, position: int, size: int) -> bool:
        """Tell whether a unit is right: whether the queue's record of this offset and size is at `position`."""
        found = self._log.record_at(position)
        if queue.topic.startswith(SHARED):
            return self._log.is_damaged(position) if found is None else len(found) == size
        return found is not None and len(found) == size and belongs(found, queue, offset)

    def mend(self, queue: ConsumeQueue, offset: int, *, is_told: bool = False) -> bool:
        """Make the unit of one message anew from the log; False if no record of the message was found. Raises
        StoreError. `is_told`: that it is lost was said before.
        """
        key = queue.topic, queue.queue_id, offset
        if key in self._given_up:
            return False
        found = self._search(queue, offset)
        if found:
            self._put(queue, found, offset)
            # What was not found before may be found between nearer neighbours.
            self._given_up = {known for known in self._given_up if known[:2] != key[:2]}
        if offset in found:
            return True
        if key not in self._told and not is_told:
            self.lost += 1
            self.news.append(
                f"the unit of offset {offset} of {_place(queue)} is damaged and the log has no record of it:"
                " consumers pass it over; check the disk"
            )
        for known in (self._given_up, self._told):
            if len(known) < _GIVEN_UP_MAX:
                known.add(key)
        self._log.doubt(*queue.unit(offset)[:2])
        return False

    def _put(self, queue: ConsumeQueue, found: dict[int, tuple[int, int, int]], offset: int) -> None:
        for at, unit in found.items():
            if queue.mapped_files.starts:
                queue.mapped_files.write(at * UNIT_BYTES, UNIT.pack(*unit))
            # The newest units of a short queue are in memory.
            view, place, _ = queue.place(at, 1)
            if not view.readonly:
                UNIT.pack_into(view, place, *unit)
            self.mended += 1
        which = f"the unit of offset {offset} of {_place(queue)} was damaged and is"
        if len(found) > 1:
            which = (
                f"{len(found)} units of offsets {min(found)} to {max(found)} of {_place(queue)} were damaged and are"
            )
        self.news.append(f"{which} made anew from the log: check the disk")

    def _search(self, queue: ConsumeQueue, offset: int) -> dict[int, tuple[int, int, int]]:
        """Return units by offset, from the log: of a message and of those beside it whose units are wrong."""
        before = self._neighbour_before(queue, offset)
        after = self._neighbour_after(queue, offset, NEIGHBOURS_MAX if before is not None else queue.next)
        stop = self._log.written if after is None else queue.unit(after)[0]
        oldest = max(self._log.min_position, self.deleted(queue.topic))
        found: dict[int, tuple[int, int, int]] = {}
        if before is not None:
            position, size, _ = queue.unit(before)
            begin = position + size
            for at, unit in self._units_of(queue, begin, stop):
                if before < at <= offset:
                    found.setdefault(at, unit)
                if at >= offset:
                    break
        # Else: the records are nearer to the message after them than to the log's begin.
        end, searched = stop, 0 if before is None else WINDOWS_MAX
        while oldest < end and offset not in found and searched < WINDOWS_MAX:
            begin = oldest
            if end - SEARCH_BYTES_MAX > oldest:
                begin = self._log.boundary(end - SEARCH_BYTES_MAX)
            units = {at: unit for at, unit in self._units_of(queue, begin, end) if at >= offset}
            found = {at: unit for at, unit in units.items() if after is None or at < after} | found
            end, searched = min(begin, end - 1), searched + 1
        return {at: unit for at, unit in found.items() if queue.unit(at)[1] != GAP_SIZE}

    def _units_of(self, queue: ConsumeQueue, begin: int, end: int) -> Iterator[tuple[int, tuple[int, int, int]]]:
        """Yield (offset, unit) of the queue's records in a part of the log, up to one too far from the one before."""
        last, light = begin, queue.topic.startswith(SHARED)
        for found in records_between(self._log, begin, end):
            (position,) = _POSITION(found)
            if position - last > SEARCH_BYTES_MAX:
                return
            (offset,) = _QUEUE_OFFSET(found)
            if light:
                stated = light_queues.offset_of(queue.topic, record_layout.properties_of(found))
                offset = -1 if stated is None else stated
            if 0 <= offset < queue.next and (light or belongs(found, queue, offset)):
                last = position
                yield offset, (position, len(found), self._code(queue, offset, found))

    def _neighbour_before(self, queue: ConsumeQueue, offset: int) -> int | None:
        """Return the nearest message before one whose unit is right."""
        first = max(queue.min, 0)
        while offset > first:
            begin = max(first, offset - AHEAD_COUNT, (offset - 1) // self._file_units(queue) * self._file_units(queue))
            right = self._right_ones(queue, begin, offset - begin)
            if len(right):
                return begin + int(right[-1])
            offset = begin
        return None

    def _neighbour_after(self, queue: ConsumeQueue, offset: int, count_max: int) -> int | None:
        """Return the nearest message after one, of `count_max`, whose unit is right."""
        offset += 1
        end = min(queue.next, offset + count_max)
        while offset < end:
            _, _, here = queue.place(offset, min(AHEAD_COUNT, end - offset))
            right = self._right_ones(queue, offset, here)
            if len(right):
                return offset + int(right[0])
            offset += here
        return None

    @staticmethod
    def _file_units(queue: ConsumeQueue) -> int:
        return queue.mapped_files.size // UNIT_BYTES

    def _right_ones(self, queue: ConsumeQueue, offset: int, count: int) -> NDArray[np.intp]:
        view, at, here = queue.place(offset, count)
        units = np.frombuffer(view, UNIT_TYPE, here, at)
        stated = self._right(queue, offset, units) & (units["size"] != GAP_SIZE)
        # Where the log is damaged all count as right: not here.
        return np.array(
            [row for row in np.flatnonzero(stated) if self.is_right(queue, offset + int(row), *units[row].item()[:2])],
            np.intp,
        )

    @staticmethod
    def _code(queue: ConsumeQueue, offset: int, found: memoryview) -> int:
        code = queue.unit(offset)[2]
        if is_address(code) and queue.ext is not None and queue.ext.get(code) is not None:
            return code
        return unit_code_of(queue, found)


def _are_of(queue: ConsumeQueue, offset: int, pieces: list[memoryview], positions: tuple[int, ...]) -> bool:
    """Tell whether pieces of the log, by their positions, are the whole records of a queue's messages from `offset` on.

    All in one loop, as each read waits for it: some 0.4 us a piece.
    """
    queue_id, suffix = queue.queue_id, queue.suffix
    width, is_light = len(suffix), queue.topic.startswith(SHARED)
    for piece, position in zip(pieces, positions, strict=True):
        if len(piece) < RECORD_BYTES_MIN:
            return False
        size, stated_id, stated_offset, stated, flags, body_bytes = _STATED(piece)
        if size != len(piece) or stated != position:
            return False
        # The records of a light queue are of other topics, and have offsets there.
        if not is_light:
            at = FIXED_BYTES_V4 + body_bytes
            if stated_id != queue_id or stated_offset != offset:
                return False
            if piece[at : at + width] != suffix and not (flags & HOST_FLAGS and is_of_topic(piece, queue)):
                return False
        offset += 1
    return True


def right_units(log: CommitLog, queue: ConsumeQueue, offsets: NDArray[Any], units: NDArray[Any]) -> NDArray[np.bool_]:
    """Return, for each unit, whether it is right, as an array: it is a gap, or leads to the record of its offset, or to
    known damage.

    Readers of old messages wait for this: some 20 ns a unit.
    """
    positions, sizes = units["position"].astype(np.int64), units["size"]
    right: NDArray[np.bool_] = sizes == GAP_SIZE
    file_bytes = log.file_bytes
    for start in _log_files_of(positions[~right] if right.any() else positions, file_bytes):
        if start not in log.mapped_files.starts:
            continue
        places = positions - start
        here = ~right & (places >= 0) & (places <= file_bytes - RECORD_BYTES_MIN)
        rows = slice(None) if here.all() else np.flatnonzero(here)
        right[rows] = _right_records(log, queue, start, places[rows], positions[rows], sizes[rows], offsets[rows])
    if log.damaged:
        # Readers already get an error for damage that recovery skipped.
        right |= [log.is_damaged(position) for position in positions.tolist()]
    return right


def _log_files_of(positions: NDArray[np.int64], file_bytes: int) -> list[int]:
    """Return where the log's files begin that hold these positions."""
    if not len(positions):
        return []
    first, last = (int(at) // file_bytes * file_bytes for at in (positions.min(), positions.max()))
    return [first] if first == last else np.unique(positions - positions % file_bytes).tolist()


def _right_records(
    log: CommitLog,
    queue: ConsumeQueue,
    start: int,
    places: NDArray[np.int64],
    positions: NDArray[np.int64],
    sizes: NDArray[Any],
    offsets: NDArray[Any],
) -> NDArray[np.bool_]:
    """Return, for each place in the log's file at `start`, whether the queue's record of that offset is there."""
    file_bytes, stored = log.file_bytes, log.mapped_files.get(start).view
    # As one piece each: a copy field by field takes seven times as long.
    whole = np.ndarray((file_bytes - _HEAD.itemsize + 1,), f"V{_HEAD.itemsize}", stored, 0, (1,))
    heads = whole[places].view(_HEAD)
    good: NDArray[np.bool_] = (heads["size"] == sizes) & (heads["queue_id"] == queue.queue_id)
    good &= (heads["position"] == positions) & (heads["queue_offset"] == offsets)
    # The topic stands behind the body.
    width, body_bytes = len(queue.suffix), heads["body_bytes"]
    after = places + FIXED_BYTES_V4 + body_bytes
    plain = (heads["sys_flag"] & HOST_FLAGS) == 0
    inside = (body_bytes >= 0) & (after + width <= file_bytes)
    names = np.ndarray((file_bytes - width + 1,), f"S{width}", stored, 0, (1,))
    good &= ~plain | (inside & (names[np.where(inside, after, 0)] == queue.suffix))
    return good


def records_between(log: CommitLog, at: int, stop: int) -> Iterator[memoryview]:
    """Yield the records of a part of the log."""
    while at < stop:
        if at - at % log.file_bytes not in log.mapped_files.starts:
            return
        found = log.record_at(at)
        if found is not None:
            yield found
            at += len(found)
        elif log.is_blank(at) or log.next_file(at) - at < RECORD_BYTES_MIN:
            at = log.next_file(at)
        else:
            at = log.next_mark(at)


def _place(queue: ConsumeQueue) -> str:
    return f"queue {queue.queue_id} of topic {topic_of(queue)}"


def topic_of(queue: ConsumeQueue) -> str:
    """Return the topic of a queue, escaped for a log line."""
    return shown(queue.topic.decode("utf-8", "replace"))


_LOOKED_AT_MAX = 10_000


class BatchUnitRepair:
    """Mends the units of batch queues. `told`: the UnitRepair that counts and reports what was done."""

    def __init__(self, log: CommitLog, told: UnitRepair) -> None:
        self._log = log
        self._told = told
        # Units that were found wrong once: there is nothing more to do for them.
        self._looked_at: set[tuple[bytes, int, int]] = set()
        self._told_lost: set[tuple[bytes, int, int]] = set()

    def rows(
        self, queue: BatchConsumeQueue, offset: int
    ) -> Iterator[tuple[int, int, int, int, int, memoryview | None]]:
        """Yield the units of a batch queue from that of message `offset` on, which must be in the queue; wrong ones are
        mended first, or left out.

        Each is (first queue offset, number of messages, physical offset, size, tags code, record); the record is None
        if it is gone.
        """
        index, following = queue.index_of(offset), offset
        log = self._log
        while index < queue.bounds()[1]:
            position, size, code, _, base, count = queue.unit_at(index)
            found = None
            gone = 0 <= position < log.min_position or log.is_damaged(position)
            if not gone:
                found = log.record_at(position) if base >= queue.loaded_next else self._right_record(queue, index)
            if gone and index + 1 < queue.bounds()[1] and base < (next_base := queue.unit_at(index + 1)[4]):
                # No record says how many messages it had: not those of the next unit.
                count = min(count, next_base - base)
            expected = base <= following < base + count and (gone or found is not None)
            if not expected and following < queue.loaded_next and self.mend(queue, index):
                index = queue.index_of(following)
                continue
            # A copy in the place of a lost unit, or a wrong one that could not be mended, is passed over.
            if expected or (found is not None and following < base):
                yield base, count, position, size, code, found
                following = base + count
            index += 1

    def units(self, queue: BatchConsumeQueue, offset: int, count: int) -> list[tuple[int, int, int]]:
        """Return (physical offset, record size, tags code) of the records that hold messages [offset, offset +
        count).
        """
        units = []
        for base, _, position, size, code, _ in self.rows(queue, offset):
            if base >= offset + count:
                break
            units.append((position, size, code))
        return units

    def look(self, queue: BatchConsumeQueue, index: int) -> None:
        """Mend a unit if it is wrong. Raises StoreError."""
        if not self._is_right(queue, index):
            self.mend(queue, index)

    def _right_record(self, queue: BatchConsumeQueue, index: int) -> memoryview | None:
        """Return the record of a unit; None if it is not there or the unit does not agree with it."""
        position, size, _, time_ms, base, count = queue.unit_at(index)
        found = self._log.record_at(position)
        if (
            found is None
            or len(found) != size
            or not belongs(found, queue, base)
            or count != queue.count_of(found)
            or time_ms != record_layout.store_time_of(found)
        ):
            return None
        return found

    def mend(self, queue: BatchConsumeQueue, index: int) -> bool:
        """Make the wrong units of a batch queue anew from the log, after one of them was found; False if none was
        changed.

        A unit whose record is gone becomes a copy of the one before. Raises StoreError.
        """
        key = queue.topic, queue.queue_id, index
        if key in self._looked_at or len(self._looked_at) >= _LOOKED_AT_MAX:
            return False
        self._looked_at.add(key)
        first, end = self._around(queue, index)
        units = queue.table(first, end)
        right = self._right(queue, units)
        right[index - first] &= self._is_right(queue, index)
        mended = units.copy()
        for begin, stop in self._wrong(queue, first, right):
            self._fill(queue, mended, begin, stop)
        changed = np.flatnonzero(mended != units)
        # Others may be written to at the same time.
        for rows in np.split(changed, np.flatnonzero(np.diff(changed) > 1) + 1) if len(changed) else ():
            queue.write_units(first + int(rows[0]), mended[rows].tobytes())
        if len(changed):
            queue.find_min(self._log.min_position)
        return bool(len(changed))

    def _around(self, queue: BatchConsumeQueue, index: int) -> tuple[int, int]:
        """Return (begin, end) of the units of a unit's file and those before and after it up to one that is right."""
        per_file, (first, end) = queue.mapped_files.size // BATCH_UNIT_BYTES, queue.bounds()
        low = index - index % per_file - 1
        high = low + per_file + 2
        while low > first and not self._is_right(queue, low):
            low -= per_file
        while high < end and not self._is_right(queue, high - 1):
            high += per_file
        return max(low, first), min(high, end)

    def _right(self, queue: BatchConsumeQueue, units: NDArray[Any]) -> NDArray[np.bool_]:
        stated = (units["size"] > 0) & (units["size"] != GAP_SIZE) & (units["count"] > 0) & (units["base"] >= 0)
        stated &= units["position"] >= 0
        right = right_units(self._log, queue, units["base"].astype(np.int64), units)
        right &= stated
        # Those whose records are removed come before all others.
        removed = stated & (units["position"] < self._log.min_position)
        if right.any():
            first = int(right.argmax())
            removed[first:] = False
            removed &= units["base"] < units["base"][first]
        right |= removed
        return right

    def _is_right(self, queue: BatchConsumeQueue, index: int) -> bool:
        position = queue.unit_at(index)[0]
        if position < self._log.min_position or self._log.is_damaged(position):
            return queue.says_something(index)
        return self._right_record(queue, index) is not None

    def _wrong(self, queue: BatchConsumeQueue, first: int, right: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
        """Yield (begin, end) of wrong units in a row; those beside them are right in all they say."""
        end = 0
        while not right[end:].all():
            begin = end + int(right[end:].argmin())
            while begin > 0 and not self._is_right(queue, first + begin - 1):
                begin -= 1
            end = begin + 1
            while end < len(right) and not (right[end] and self._is_right(queue, first + end)):
                end += 1
            yield begin, end

    def _fill(self, queue: BatchConsumeQueue, units: NDArray[Any], begin: int, end: int) -> None:
        before = units[begin - 1] if begin else None
        after = units[end] if end < len(units) else None
        low = int(before["base"]) + int(before["count"]) if before is not None else 0
        high = int(after["base"]) if after is not None else queue.next
        found = self._search(queue, before, after, low, high)[begin - end :]
        if found:
            rows = np.array(found, BATCH_UNIT_TYPE)
            units[end - len(rows) : end] = rows
            self._told.mended += len(rows)
            self._told.news.append(
                f"{len(rows)} units of offsets {found[0][4]} to {found[-1][4]} of batch queue {queue.queue_id} of topic"
                f" {topic_of(queue)} were damaged and are made anew from the log: check the disk"
            )
        other = before if before is not None else units[end - len(found)] if found else after
        if other is not None:
            units[begin : end - len(found)] = other
        if before is not None and sum(row[5] for row in found) < high - low:
            self._tell_lost(queue, low, high)

    def _tell_lost(self, queue: BatchConsumeQueue, low: int, high: int) -> None:
        key = queue.topic, queue.queue_id, low
        if key in self._told_lost:
            return
        if len(self._told_lost) < _LOOKED_AT_MAX:
            self._told_lost.add(key)
        self._told.lost += 1
        self._told.news.append(
            f"units of offsets {low} to {high - 1} of batch queue {queue.queue_id} of topic {topic_of(queue)} are"
            " damaged and the log has no record of some: consumers pass them over; check the disk"
        )

    def _search(self, queue: BatchConsumeQueue, before: Any, after: Any, low: int, high: int) -> list[tuple[int, ...]]:
        """Return the units of the messages [low, high), by the records between those of two units."""
        log = self._log
        begin = max(log.min_position, self._told.deleted(queue.topic))
        stop = int(after["position"]) if after is not None else log.written
        if before is not None:
            begin = max(begin, int(before["position"]) + int(before["size"]))
        if stop - begin > WINDOWS_MAX * SEARCH_BYTES_MAX:
            if before is not None:
                stop = begin + WINDOWS_MAX * SEARCH_BYTES_MAX
            else:
                begin = log.boundary(stop - WINDOWS_MAX * SEARCH_BYTES_MAX)
        rows: list[tuple[int, ...]] = []
        for found in records_between(log, begin, stop):
            (offset,) = _QUEUE_OFFSET(found)
            if low <= offset < high and queue.has(found) and enters_queue(record_layout.sys_flag_of(found)):
                low = offset + queue.count_of(found)
                rows.append(queue.unit_of(found, unit_code_of(queue, found)))
        return rows
