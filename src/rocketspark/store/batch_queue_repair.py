"""Units of batch consume queues that lead to no record, or to another one. Rule: see `consume_queue_repair`.

A unit has no fixed place for a message, so all units of a file are looked at once one is found wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rocketspark.protocol.message import record_layout
from rocketspark.store.commitlog.commit_log import CommitLog
from rocketspark.store.commitlog.dispatch import enters_queue, unit_code_of
from rocketspark.store.consume_queue_repair import (
    SEARCH_BYTES_MAX,
    WINDOWS_MAX,
    UnitRepair,
    records_between,
    right_units,
    topic_of,
)
from rocketspark.store.consumequeue.batch_consume_queue import BATCH_UNIT_BYTES, BATCH_UNIT_TYPE, BatchConsumeQueue
from rocketspark.store.consumequeue.consume_queue import GAP_SIZE, belongs

_LOOKED_AT_MAX = 10_000
_QUEUE_OFFSET = record_layout.only("queue_offset").unpack_from


class BatchUnitRepair:
    """Mends the units of batch queues. What it did counts for `told`."""

    def __init__(self, log: CommitLog, told: UnitRepair) -> None:
        self._log = log
        self._told = told
        # Units that were found wrong once: there is nothing more to do for them.
        self._looked_at: set[tuple[bytes, int, int]] = set()
        self._told_lost: set[tuple[bytes, int, int]] = set()

    def rows(
        self, queue: BatchConsumeQueue, offset: int
    ) -> Iterator[tuple[int, int, int, int, int, memoryview | None]]:
        """Yield the units from that of a message on, which must be in the queue: mended, and those left out that lead
        nowhere. First queue offset, messages, physical offset, size, tags code, and record; None if that is gone.
        """
        index, following = queue.index_of(offset), offset
        log = self._log
        while index < queue.bounds()[1]:
            position, size, code, _, base, count = queue.unit_at(index)
            found = None
            gone = 0 <= position < log.min_position or log.is_damaged(position)
            if not gone:
                found = log.record_at(position) if base >= queue.loaded_next else self._right_record(queue, index)
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
        """(physical offset, record size, tags code) of the records that hold messages [offset, offset + count)."""
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
        """Make the wrong units of a queue anew from the log, one of which was found; False if none was changed.

        Units that no record is left for become copies of the one before. Raises StoreError.
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
