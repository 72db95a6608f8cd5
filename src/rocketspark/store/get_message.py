"""Reading: messages by queue offset and by time. Rule: nothing here writes; records are slices of the log.

A read by tags compares the codes of a subscription with those in the units. A code is the hash of a message's tags
(`model.text.string_hash`), so the consumer compares the tags themselves.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from rocketspark.protocol.message import record_layout, sysflags
from rocketspark.store.commitlog.commit_log import stretches
from rocketspark.store.commitlog.dispatch import unit_code_of
from rocketspark.store.compaction.compaction_log import CompactionLog
from rocketspark.store.consume_queue_repair import BatchUnitRepair, UnitRepair
from rocketspark.store.consumequeue.batch_consume_queue import BatchConsumeQueue
from rocketspark.store.consumequeue.consume_queue import GAP_SIZE, UNIT_BYTES, UNIT_TYPE, ConsumeQueue
from rocketspark.store.consumequeue.consume_queue_ext import ADDRESS_MAX, is_address
from rocketspark.store.consumequeue.consume_queue_store import ConsumeQueueStore
from rocketspark.store.deleted_topics import DeletedTopics
from rocketspark.store.record_lookup import RecordLookup

if TYPE_CHECKING:
    from rocketspark.store.tiered.tier import Tier


@cache
def places(count: int) -> struct.Struct:
    """Return the struct that unpacks physical offset and size of `count` units in a row, without their tags codes."""
    return struct.Struct(">" + "qi8x" * count)


@cache
def sizes(count: int) -> struct.Struct:
    """Return the struct that unpacks only the record sizes of `count` units in a row."""
    return struct.Struct(">" + "8xi8x" * count)


# Up to so many tags codes numpy is quicker than a loop.
TAGS_CODES_MAX = 16
# Units that become Python objects together: most reads have enough before they have looked at all.
HITS_PER_STEP = 64


def with_tags_codes(
    queue: ConsumeQueue, queue_offset: int, count: int, codes: frozenset[int] | None
) -> Iterator[tuple[int, tuple[int, int, int]]]:
    """Yield (queue offset, unit) of messages, and leave out most of those whose tags code is not in `codes`.

    A unit that holds an address in the extension is not left out, as its code stands there. 800 units take 10 us.
    """
    if codes is None or len(codes) > TAGS_CODES_MAX:
        yield from enumerate(queue.units(queue_offset, count), queue_offset)
        return
    while count:
        view, at, here = queue.place(queue_offset, count)
        units = np.frombuffer(view, UNIT_TYPE, here, at)
        stated = units["code"].astype(np.int64)
        # Holes, too: their reader gets an answer of their own.
        wanted = (stated <= ADDRESS_MAX) | (units["size"] == GAP_SIZE)
        wanted[0] = True
        for code in codes:
            wanted |= stated == code
        hits = wanted.nonzero()[0]
        for first in range(0, len(hits), HITS_PER_STEP):
            some = hits[first : first + HITS_PER_STEP]
            yield from zip((some + queue_offset).tolist(), units[some].tolist(), strict=True)
        queue_offset += here
        count -= here


_SCAN_BYTES_MIN = 16000
_SCAN_UNITS_MIN = _SCAN_BYTES_MIN // UNIT_BYTES
# Up to so many units struct is quicker than numpy.
_PLACES_MAX = 64
_SIZES_COUNT = 1 << 16
_PLACE = places(1)


class GetStatus(Enum):
    """The status of a read, named after RocketMQ's get statuses in plain words."""

    FOUND = "found"
    NO_MATCHED = "no message matched"
    REMOVED = "the messages there are gone"
    OFFSET_TOO_BIG = "offset beyond the end"
    OFFSET_TOO_SMALL = "offset before the oldest"
    AT_END = "offset is the next to be written"
    EMPTY = "empty queue"
    NO_QUEUE = "no such queue"


_STATUS = (GetStatus.NO_MATCHED, GetStatus.FOUND)
# Tells whether a record is wanted; None: not known yet.
Accepts = Callable[[memoryview], bool | None]


class GetMessageResult(msgspec.Struct, frozen=True):
    """The result of a read.

    `records`: slices of the log, each one or more whole records; `count` of messages; `size`: bytes of all records.
    """

    status: GetStatus
    records: list[memoryview]
    count: int
    size: int
    next_offset: int
    min_offset: int
    max_offset: int


class SoFar(NamedTuple):
    """What a read that is done in several calls has found so far: units looked at, messages, bytes."""

    looked_at: int = 0
    messages: int = 0
    size: int = 0


NOTHING_SO_FAR = SoFar()


class Wanted(NamedTuple):
    """What a read asks for; see `MessageReader.read`."""

    count_max: int
    bytes_max: int
    codes: frozenset[int] | None
    accepts: Accepts | None
    so_far: SoFar


class MessageReader(RecordLookup):
    """The reading half of a store; Store opens the files it works on. `mender`: mends damaged units, and tells
    which.
    """

    consume_queues: ConsumeQueueStore
    mender: UnitRepair
    batch_mender: BatchUnitRepair
    _deletions: DeletedTopics
    # By topic and queue id: the logs of topics with compaction.
    compacted: Mapping[tuple[str, int], CompactionLog] = MappingProxyType({})
    cold: Tier | None

    def visible_next(self, queue: ConsumeQueue) -> int:
        """Return the next offset of a queue as its readers see it."""
        raise NotImplementedError

    def read(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        count_max: int,
        bytes_max: int,
        codes: frozenset[int] | None = None,
        accepts: Accepts | None = None,
        so_far: SoFar = NOTHING_SO_FAR,
        *,
        unconfirmed: bool = False,
    ) -> GetMessageResult:
        """Read messages of a queue from an offset on, as slices of the log.

        At most `count_max` messages and `bytes_max` bytes are returned, but at least one message. `codes`: only
        messages with these tags codes; `accepts`: only records for which it returns True. A call looks at no more than
        max(800, count_max) units. If `accepts` returns None the read ends before that record; a later call goes on
        there with the results so far (`so_far`), and together they return what a single read would have.

        `unconfirmed`: also messages that readers do not see yet (`show_up_to`).

        A read ends before messages that were removed. If it begins at them, its status is REMOVED, with the offset
        behind them.
        """
        queue = self.consume_queues.find(topic, queue_id)
        if queue is None:
            return GetMessageResult(GetStatus.NO_QUEUE, [], 0, 0, 0, 0, 0)
        high = queue.next
        if self._visible_end is not None and not unconfirmed:
            high = self.visible_next(queue)
        log = self.compacted.get((topic, queue_id)) if self.compacted else None
        if log is not None and 0 <= queue_offset < (end := min(log.next, high)):
            limits = count_max, bytes_max, max(_SCAN_UNITS_MIN, count_max) - so_far.looked_at
            kept = log.read(queue_offset, end, limits, codes, accepts, so_far[1:])
            return GetMessageResult(_STATUS[bool(kept.records)], *kept, log.min, high)
        if not queue.min <= queue_offset < high:
            return self._read_outside(topic, queue, queue_offset, high)
        result: GetMessageResult | None
        if isinstance(queue, BatchConsumeQueue):
            wanted = Wanted(count_max, bytes_max, codes, accepts, so_far)
            return self._read_batches(queue, queue_offset, high, wanted)
        first_is_right = True
        if codes is None and accepts is None:
            units_max = min(count_max, high - queue_offset)
            if queue_offset < queue.loaded_next or queue_offset * UNIT_BYTES < queue.start:
                units_max = self.mender.right_until(queue, queue_offset, units_max, bytes_max)
                first_is_right = units_max > 0
            if first_is_right:
                result = self._in_one(queue, queue_offset, units_max, bytes_max, high)
                if result is not None:
                    return result
        else:
            units_max = min(max(_SCAN_UNITS_MIN, count_max) - so_far.looked_at, high - queue_offset)
            if codes is not None and queue_offset < queue.loaded_next:
                self.mender.look_before_tags(queue, queue_offset, min(units_max, queue.loaded_next - queue_offset))
        if first_is_right:
            wanted = Wanted(count_max, bytes_max, codes, accepts, so_far)
            result = self._read_one_by_one(queue, queue_offset, units_max, high, wanted)
        else:
            result = self._mended_or_passed(queue, queue_offset, high)
        if result is not None:
            return result
        return self.read(
            topic, queue_id, queue_offset, count_max, bytes_max, codes, accepts, so_far, unconfirmed=unconfirmed
        )

    def _read_outside(self, topic: str, queue: ConsumeQueue, queue_offset: int, high: int) -> GetMessageResult:
        """Return the answer to a read from an offset at which the queue has no message. `high`: its end for readers."""
        low = queue.min
        status, next_offset = GetStatus.OFFSET_TOO_BIG, high
        if high < queue_offset <= queue.next:
            # It was shown before a change of roles: whoever read it waits here, and is not moved back.
            status, next_offset = GetStatus.AT_END, queue_offset
        elif high == 0 or low == high == queue_offset:
            status = GetStatus.EMPTY
        elif queue_offset < low:
            status, next_offset = GetStatus.OFFSET_TOO_SMALL, low
        elif queue_offset == high:
            status = GetStatus.AT_END
        elif topic.encode() in self._deletions.positions:
            # The offset is of the queue before this one: nobody read anything of this one.
            next_offset = low
        return GetMessageResult(status, [], 0, 0, next_offset, low, high)

    def _read_one_by_one(
        self, queue: ConsumeQueue, queue_offset: int, units_max: int, high: int, wanted: Wanted
    ) -> GetMessageResult | None:
        """`read` of a range with each unit looked at; None if the first one was wrong and is mended: to be read again.

        The checks stand in the loop: a call for each unit would cost a tenth of the read.
        """
        count_max, bytes_max, codes, accepts, so_far = wanted
        count, total = so_far.messages, so_far.size
        found: list[tuple[int, int]] = []
        oldest, damaged = self.log.min_position, bool(self.log.damaged)
        record_at = self.log.record_at
        for offset, (position, size, code) in with_tags_codes(queue, queue_offset, units_max, codes):
            if size == GAP_SIZE or position < oldest or (damaged and self.log.is_damaged(position)):
                if offset == queue_offset:
                    return self._mended_or_removed(queue, offset, position, size, high)
                break
            if codes is not None and code not in codes and self._code(queue, code, position) not in codes:
                continue
            if count and (total + size > bytes_max or count >= count_max):
                break
            if not self.mender.is_right(queue, offset, position, size):
                if offset == queue_offset:
                    return self._mended_or_passed(queue, offset, high)
                break
            if accepts is not None:
                stored = record_at(position)
                passes = stored is not None and accepts(stored)
                if passes is None:
                    break
                if not passes:
                    continue
            found.append((position, size))
            count += 1
            total += size
        else:
            offset = queue_offset + units_max
        return _found(queue, high, self._stored(found), count - so_far.messages, total - so_far.size, offset)

    def _stored(self, places: list[tuple[int, int]]) -> list[memoryview]:
        """Return the records at these places of the log (position, size): those that follow each other as one slice."""
        file_bytes = self.log.file_bytes
        runs: list[tuple[int, int]] = []
        run_start = run_end = -1
        for position, size in places:
            if position == run_end and position % file_bytes:
                run_end = position + size
            else:
                runs.append((run_start, run_end))
                run_start, run_end = position, position + size
        runs.append((run_start, run_end))
        records = []
        for start, end in runs[1:]:
            at = start % file_bytes
            records.append(self.log.mapped_files.get(start - at).view[at : at + end - start])
        return records

    def _in_one(
        self, queue: ConsumeQueue, queue_offset: int, count: int, bytes_max: int, high: int
    ) -> GetMessageResult | None:
        """Read all messages of the range at once, the usual case; None if it has a gap, damage or a file's end.

        32 messages: 1.3 us where their records follow each other in the log, 4 us where others lie between them.
        """
        view, at, here = queue.place(queue_offset, count)
        if here < count:
            return None
        total = -1
        found: tuple[int, ...] = ()
        runs: list[tuple[int, int]] = []
        if count <= _PLACES_MAX:
            first, size = _PLACE.unpack_from(view, at)
            last, size = _PLACE.unpack_from(view, at + (count - 1) * UNIT_BYTES)
            # If the records seem to be in a row, their sizes prove it; else all places are needed.
            if last - first < 2 * count * size:
                total = sum(sizes(count).unpack_from(view, at))
            if last + size - first != total:
                found = places(count).unpack_from(view, at)
                total = sum(found[1::2])
        else:
            units = np.frombuffer(view, UNIT_TYPE, count, at)
            ends = units["size"].cumsum(dtype=np.int64)
            count = int(ends.searchsorted(bytes_max, "right"))
            if count == 0:
                return None
            first, (last, size, _), total = int(units["position"][0]), units[count - 1].item(), int(ends[count - 1])
            if last + size - first != total:
                runs = stretches(units[:count])
        log = self.log
        start = first - first % log.file_bytes
        end = last + size
        # A gap is larger than any limit.
        if log.damaged:
            return None
        if total > bytes_max or total >= GAP_SIZE:
            return None
        if not log.min_position <= first < end <= min(start + log.file_bytes, log.written):
            return None
        stored = log.mapped_files.get(start).view
        if end - first == total:
            records = [stored[first - start : end - start]]
        elif found:
            records = [stored[(at := p - start) : at + n] for p, n in zip(found[::2], found[1::2], strict=True)]
        elif runs:
            records = [stored[a - start : b - start] for a, b in runs]
        else:
            return None
        if not self.mender.fits(queue, queue_offset, count, records, found or (first, 0, last, size)):
            return None
        return GetMessageResult(GetStatus.FOUND, records, count, total, queue_offset + count, queue.min, high)

    def _mended_or_removed(
        self, queue: ConsumeQueue, offset: int, position: int, size: int, high: int
    ) -> GetMessageResult | None:
        """Return the answer to a read that begins at a removed message, or None once its unit is mended: one that leads
        to a place before the log's oldest record, or into its damage, may be damaged itself.
        """
        if size != GAP_SIZE:
            is_lost = self.log.is_damaged(position)
            is_wrong = position < 0 or (position < self.log.min_position and offset < queue.loaded_next)
            if (is_wrong or is_lost) and self.mender.mend(queue, offset, is_told=is_lost):
                return None
        return self._removed(queue, offset + 1, high)

    def _mended_or_passed(self, queue: ConsumeQueue, offset: int, high: int) -> GetMessageResult | None:
        """Mend the wrong unit that a read begins at, and return None; else the answer that passes its message over."""
        return None if self.mender.mend(queue, offset) else self._removed(queue, offset + 1, high)

    def _removed(self, queue: ConsumeQueue, offset: int, high: int) -> GetMessageResult:
        """Return the answer for removed messages before an offset, and those that follow it, with the offset to go on
        from (RocketMQ passes the hole over). A damaged unit ends them: it may be mended.

        `high`: the queue's end for readers.
        """
        low, oldest = queue.min, self.log.min_position
        for position, size, _ in queue.units(offset, min(high - offset, _SIZES_COUNT)):
            if size != GAP_SIZE and not 0 <= position < oldest and not self.log.is_damaged(position):
                break
            offset += 1
        return GetMessageResult(GetStatus.REMOVED, [], 0, 0, offset, low, high)

    def _read_batches(self, queue: BatchConsumeQueue, queue_offset: int, high: int, wanted: Wanted) -> GetMessageResult:
        """`read` of a batch queue: whole records, from that which holds the offset on (rule: DefaultMessageStore, 5.x).

        Tags codes are those of the records: messages within one are not told apart here, so that a batch without tags
        of its own is returned, and its reader takes those it wants (RocketMQ passes all of them over).
        """
        count_max, bytes_max, codes, accepts, so_far = wanted
        count, total = so_far.messages, so_far.size
        next_offset = queue_offset
        end = queue_offset - so_far.looked_at + max(_SCAN_BYTES_MIN // BatchConsumeQueue.unit_bytes, count_max)
        records = []
        for base, messages, _, size, code, stored in self.batch_mender.rows(queue, queue_offset):
            if stored is None or base > next_offset:
                # A hole: its reader gets an answer of its own.
                if next_offset == queue_offset:
                    behind = min(base if base > queue_offset else base + messages, high)
                    return GetMessageResult(GetStatus.REMOVED, [], 0, 0, behind, queue.min, high)
                break
            if count and (count + messages > count_max or total + size > bytes_max):
                break
            if base >= end or base >= high:
                break
            several = record_layout.sys_flag_of(stored) & sysflags.INNER_BATCH
            tagged = codes is None or code in codes or (not code and several)
            passes = tagged and (accepts is None or accepts(stored))
            if passes is None:
                break
            next_offset = base + messages
            if not passes:
                continue
            records.append(stored)
            count += messages
            total += size
        else:
            if next_offset == queue_offset:
                return GetMessageResult(GetStatus.REMOVED, [], 0, 0, high, queue.min, high)
        return _found(queue, high, records, count - so_far.messages, total - so_far.size, next_offset)

    def record_from(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return `queue_offset`; but if it lies within a record of several messages, the offset at which the next
        record begins.
        """
        queue = self.consume_queues.find(topic, queue_id)
        if isinstance(queue, BatchConsumeQueue) and queue.min <= queue_offset < queue.next:
            for base, messages, *_ in self.batch_mender.rows(queue, queue_offset):
                return queue_offset if base >= queue_offset else base + messages
        return queue_offset

    def queue_units(self, topic: str, queue_id: int, queue_offset: int, count: int) -> list[tuple[int, int, int]]:
        """Return (physical offset, record size, tags code) of `count` messages, which must be in the queue.

        Damaged units are mended first. Raises StoreError if that cannot be written.
        """
        queue = self.consume_queues.find(topic, queue_id)
        assert queue is not None
        assert queue_offset + count <= queue.next
        if isinstance(queue, BatchConsumeQueue):
            return self.batch_mender.units(queue, queue_offset, count)
        self._mend_units(queue, queue_offset, count)
        return [
            (position, size, self._code(queue, code, position) if is_address(code) else code)
            for position, size, code in queue.units(queue_offset, count)
        ]

    def _mend_units(self, queue: ConsumeQueue, offset: int, count: int) -> None:
        end = offset + count
        while offset < end and (offset < queue.loaded_next or offset * UNIT_BYTES < queue.start):
            right = self.mender.right_until(queue, offset, end - offset, 0)
            if not right:
                self.mender.mend(queue, offset)
            offset += max(right, 1)

    def record_sizes(self, topic: str, queue_id: int, queue_offset: int, count: int) -> Iterator[NDArray[np.int32]]:
        """Yield the record sizes of `count` messages, which must be in the queue, in pieces; nothing for a batch
        queue.
        """
        queue = self.consume_queues.find(topic, queue_id)
        while count > 0 and queue is not None and not isinstance(queue, BatchConsumeQueue):
            view, at, here = queue.place(queue_offset, min(count, _SIZES_COUNT))
            yield np.frombuffer(view, UNIT_TYPE, here, at)["size"]
            queue_offset += here
            count -= here

    def _code(self, queue: ConsumeQueue, code: int, position: int) -> int:
        """Return the tags code of a message whose unit may hold an address in the extension instead."""
        if not is_address(code):
            return code
        unit = queue.ext.get(code) if queue.ext is not None else None
        if unit is not None:
            return unit.code
        # The extension is gone: take the tags code of the record.
        found = self.log.record_at(position)
        return 0 if found is None else unit_code_of(queue, found)

    def offset_at_time(self, topic: str, queue_id: int, time_ms: int, upper: bool = False) -> int:
        """Return the offset of the first message stored at or after `time_ms`, the next offset if none is.

        With `upper`: of the last message stored at or before it, the oldest offset if none is. No offset lies behind
        what readers see.
        """
        queue = self.consume_queues.find(topic, queue_id)
        if queue is None:
            return 0
        log = self.compacted.get((topic, queue_id)) if self.compacted and not upper else None
        if log is not None and (kept := log.offset_at(time_ms)) is not None and kept < queue.min:
            return kept
        low, high = queue.min, self.visible_next(queue)
        if low == high:
            return low
        if isinstance(queue, BatchConsumeQueue):
            self.batch_mender.look(queue, queue.index_of(low))
            return min(queue.offset_at_time(time_ms, upper, partial(self.batch_mender.look, queue)), high)
        while low < high:
            middle = (low + high) // 2
            # A gap counts as the unit after it.
            following = queue.after_gap(middle, high)
            if following == high:
                high = middle
                continue
            position, size, _ = queue.unit(following)
            if not self.mender.is_right(queue, following, position, size):
                self.mender.mend(queue, following)
                position = queue.unit(following)[0]
            stored = self.log.store_time_at(position)
            if stored < time_ms or (upper and stored == time_ms):
                low = middle + 1
            else:
                high = middle
        return max(low - 1, queue.min) if upper else low

    def store_time_at(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return a message's store time in ms, its segment's first in the second tier; -1 if it is not there."""
        queue = self.consume_queues.find(topic, queue_id)
        if queue is None or not queue.min <= queue_offset < queue.next:
            if self.compacted and (log := self.compacted.get((topic, queue_id))) is not None:
                return log.time_ms(queue_offset)
            return -1 if self.cold is None else self.cold.time_ms(topic, queue_id, queue_offset)
        if isinstance(queue, BatchConsumeQueue):
            places = [unit[0] for unit in self.batch_mender.units(queue, queue_offset, 1)]
            return self.log.store_time_at(places[0]) if places else -1
        return self.log.store_time_at(queue.unit(queue_offset)[0])


def _found(
    queue: ConsumeQueue, high: int, records: list[memoryview], count: int, size: int, next_offset: int
) -> GetMessageResult:
    return GetMessageResult(_STATUS[bool(records)], records, count, size, next_offset, queue.min, high)
