"""Reading: messages by queue offset, by time and by key. Rule: nothing here writes; records are slices of the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rocketspark.model.java import string_hash
from rocketspark.protocol import properties as props
from rocketspark.protocol import record
from rocketspark.store.batch_queue import BatchQueue
from rocketspark.store.key_index import KeyIndex
from rocketspark.store.log import Log, store_time_of
from rocketspark.store.queue import GAP_SIZE, UNIT_BYTES, UNIT_TYPE, Queue, places, sizes
from rocketspark.store.queue_ext import ADDRESS_MAX, is_address
from rocketspark.store.queue_index import QueueIndex

_SCAN_BYTES_MIN = 16000
# Up to so many units struct is quicker than numpy, and up to so many tags numpy is quicker than a loop.
_PLACES_MAX = 64
_SIZES_COUNT = 1 << 16
_CODES_MAX = 16
_PLACE = places(1)
_TAGS = props.TAGS.encode()
_KEYS = props.KEYS.encode()
_UNIQUE_ID = props.UNIQUE_ID.encode()


class Found(Enum):
    """What a read came to; the names are RocketMQ's get statuses put plainly."""

    FOUND = "found"
    NO_MATCHED = "no message matched"
    OFFSET_TOO_BIG = "offset beyond the end"
    OFFSET_TOO_SMALL = "offset before the oldest"
    AT_END = "offset is the next to be written"
    EMPTY = "empty queue"
    NO_QUEUE = "no such queue"


_FOUND = Found.FOUND


class Read(msgspec.Struct, frozen=True):
    """The result of a read.

    `records`: slices of the log, each one or more whole records; `count` of messages; `size`: bytes of all records.
    """

    status: Found
    records: list[memoryview]
    count: int
    size: int
    next_offset: int
    min_offset: int
    max_offset: int


class Reader:
    """Reads from a log by its queues and its key index (None without one)."""

    def __init__(self, log: Log, queues: QueueIndex, keys: KeyIndex | None) -> None:
        self._log = log
        self._queues = queues
        self._keys = keys

    def read(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        count_max: int,
        bytes_max: int,
        codes: frozenset[int] | None = None,
        accepts: Callable[[memoryview], bool] | None = None,
    ) -> Read:
        """Messages of a queue from an offset on, as slices of the log.

        At most `count_max` messages and `bytes_max` bytes, but at least one message. `codes`: only tags codes
        in it; `accepts`: only records it is true for. A call looks at no more than max(800, count_max) units.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return Read(Found.NO_QUEUE, [], 0, 0, 0, 0, 0)
        low, high = queue.min, queue.next
        if not low <= queue_offset < high:
            if high == 0 or low == high == queue_offset:
                return Read(Found.EMPTY, [], 0, 0, high, low, high)
            if queue_offset < low:
                return Read(Found.OFFSET_TOO_SMALL, [], 0, 0, low, low, high)
            status = Found.AT_END if queue_offset == high else Found.OFFSET_TOO_BIG
            return Read(status, [], 0, 0, high, low, high)
        if isinstance(queue, BatchQueue):
            return self._read_batches(queue, queue_offset, count_max, bytes_max, codes, accepts)
        if codes is None and accepts is None:
            units_max = min(count_max, high - queue_offset)
            whole = self._whole(queue, queue_offset, units_max, bytes_max)
            if whole is not None:
                return whole
        else:
            units_max = min(max(_SCAN_BYTES_MIN // UNIT_BYTES, count_max), high - queue_offset)
        count = total = 0
        runs: list[tuple[int, int]] = []
        run_start = run_end = -1
        next_offset = queue_offset + units_max
        file_bytes = self._log.file_bytes
        oldest = self._log.min_position
        for offset, (position, size, code) in _candidates(queue, queue_offset, units_max, codes):
            if codes is not None and code not in codes and self._code(queue, code, position) not in codes:
                continue
            if count and (total + size > bytes_max or count >= count_max):
                next_offset = offset
                break
            if size == GAP_SIZE or position < oldest or (accepts is not None and not self._accepted(position, accepts)):
                continue
            if position == run_end and position % file_bytes:
                run_end = position + size
            else:
                if run_end > 0:
                    runs.append((run_start, run_end))
                run_start, run_end = position, position + size
            count += 1
            total += size
        if run_end > 0:
            runs.append((run_start, run_end))
        records = []
        for start, end in runs:
            at = start % file_bytes
            records.append(self._log.segments.get(start - at).view[at : at + end - start])
        status = Found.FOUND if records else Found.NO_MATCHED
        return Read(status, records, count, total, next_offset, low, high)

    def _whole(self, queue: Queue, queue_offset: int, count: int, bytes_max: int) -> Read | None:
        """A read that takes all there is, the usual one; None where it is not that simple.

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
            # Where they seem to be in a row, their sizes tell whether they are; else all places are needed.
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
                runs = _runs(units[:count])
        log = self._log
        start = first - first % log.file_bytes
        end = last + size
        # A gap is larger than any limit.
        if total > bytes_max or total >= GAP_SIZE or first < log.min_position or end > start + log.file_bytes:
            return None
        stored = log.segments.get(start).view
        if end - first == total:
            records = [stored[first - start : end - start]]
        elif found:
            records = [stored[(at := p - start) : at + n] for p, n in zip(found[::2], found[1::2], strict=True)]
        elif runs:
            records = [stored[a - start : b - start] for a, b in runs]
        else:
            return None
        return Read(_FOUND, records, count, total, queue_offset + count, queue.min, queue.next)

    def _accepted(self, position: int, accepts: Callable[[memoryview], bool]) -> bool:
        found = self._log.record_at(position)
        return found is not None and accepts(found)

    def _read_batches(
        self,
        queue: BatchQueue,
        queue_offset: int,
        count_max: int,
        bytes_max: int,
        codes: frozenset[int] | None,
        accepts: Callable[[memoryview], bool] | None,
    ) -> Read:
        """`read` of a batch queue: whole records, from that which holds the offset on (rule: DefaultMessageStore, 5.x).

        Tags codes are those of the records: messages within one are not told apart here.
        """
        count = total = 0
        next_offset = queue_offset
        records = []
        for base, messages, position, size, code in queue.batches(queue_offset):
            if count and (count + messages > count_max or total + size > bytes_max):
                break
            if base - queue_offset >= max(_SCAN_BYTES_MIN // BatchQueue.unit_bytes, count_max):
                break
            next_offset = base + messages
            if codes is not None and code not in codes:
                continue
            stored = self._log.record_at(position)
            if stored is None or (accepts is not None and not accepts(stored)):
                continue
            records.append(stored)
            count += messages
            total += size
        status = Found.FOUND if records else Found.NO_MATCHED
        return Read(status, records, count, total, next_offset, queue.min, queue.next)

    def units(self, topic: str, queue_id: int, queue_offset: int, count: int) -> list[tuple[int, int, int]]:
        """(log position, record size, tags code) of `count` messages, which must be in the queue."""
        queue = self._queues.find(topic, queue_id)
        assert queue is not None
        assert queue_offset + count <= queue.next
        return [
            (position, size, self._code(queue, code, position) if is_address(code) else code)
            for position, size, code in queue.units(queue_offset, count)
        ]

    def sizes(self, topic: str, queue_id: int, queue_offset: int, count: int) -> Iterator[NDArray[np.int32]]:
        """Record sizes of `count` messages, which must be in the queue, piece by piece; none of a batch queue."""
        queue = self._queues.find(topic, queue_id)
        while count > 0 and queue is not None and not isinstance(queue, BatchQueue):
            view, at, here = queue.place(queue_offset, min(count, _SIZES_COUNT))
            yield np.frombuffer(view, UNIT_TYPE, here, at)["size"]
            queue_offset += here
            count -= here

    def _code(self, queue: Queue, code: int, position: int) -> int:
        """The tags code of a message whose unit may hold an address in the extension instead."""
        if not is_address(code):
            return code
        unit = queue.ext.get(code) if queue.ext is not None else None
        if unit is not None:
            return unit.code
        # The extension is gone: as the record says.
        found = self._log.record_at(position)
        if found is None:
            return 0
        if queue.delay_ms is not None:
            return store_time_of(found) + queue.delay_ms
        tags = props.find(record.properties_of(found), _TAGS)
        return string_hash(tags.decode("utf-8", "replace")) if tags else 0

    def offset_at_time(self, topic: str, queue_id: int, time_ms: int, upper: bool = False) -> int:
        """The first message stored at or after `time_ms` (the next offset if none is); with `upper` the last one
        stored at or before it (the oldest offset if none is). Rule: wire.md 5.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None or queue.min == queue.next:
            return 0 if queue is None else queue.min
        if isinstance(queue, BatchQueue):
            return queue.offset_at_time(time_ms, upper)
        low, high = queue.min, queue.next
        while low < high:
            middle = (low + high) // 2
            stored = self._log.store_time_at(queue.unit(middle)[0])
            if stored < time_ms or (upper and stored == time_ms):
                low = middle + 1
            else:
                high = middle
        return max(low - 1, queue.min) if upper else low

    def store_time_at(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Store time in ms of one message; -1 if it is not there."""
        queue = self._queues.find(topic, queue_id)
        if queue is None or not queue.min <= queue_offset < queue.next:
            return -1
        return self._log.store_time_at(queue.unit(queue_offset)[0])

    def query(
        self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int, kind: str = "K"
    ) -> list[memoryview]:
        """Records with a key, newest first, stored within [begin_ms, end_ms].

        `kind`: "K" a word of KEYS or the unique id, "U" the unique id, "T" the tags.
        """
        if self._keys is None:
            return []
        wanted = key.encode()
        topic_bytes = topic.encode()
        found: list[memoryview] = []
        seen: set[int] = set()
        for position in self._keys.find(topic, key, begin_ms, end_ms, tag=kind == "T"):
            if len(found) >= count_max:
                break
            if position in seen:
                continue
            seen.add(position)
            view = self._log.record_at(position)
            if view is None or not begin_ms <= store_time_of(view) <= end_ms:
                continue
            message = record.decode(view, check_crc=False)
            if message.topic == topic_bytes and _has_key(message.properties, wanted, kind):
                found.append(view)
        return found


def _runs(units: NDArray[Any]) -> list[tuple[int, int]]:
    """(start, end) of the stretches of the log that these units' records fill; 4,096 records in 500 of them: 0.1 ms."""
    positions = units["position"].astype(np.int64)
    ends = positions + units["size"]
    breaks = (positions[1:] != ends[:-1]).nonzero()[0]
    starts = positions[np.concatenate(([0], breaks + 1))]
    return list(zip(starts.tolist(), ends[np.append(breaks, len(ends) - 1)].tolist(), strict=True))


def _candidates(
    queue: Queue, queue_offset: int, count: int, codes: frozenset[int] | None
) -> Iterator[tuple[int, tuple[int, int, int]]]:
    """(offset, unit) of messages, without most of those whose tags code is not in `codes`; 800 of them: 10 us."""
    if codes is None or len(codes) > _CODES_MAX:
        yield from enumerate(queue.units(queue_offset, count), queue_offset)
        return
    while count:
        view, at, here = queue.place(queue_offset, count)
        units = np.frombuffer(view, UNIT_TYPE, here, at)
        stated = units["code"].astype(np.int64)
        wanted = stated <= ADDRESS_MAX
        for code in codes:
            wanted |= stated == code
        hits = wanted.nonzero()[0]
        yield from zip((hits + queue_offset).tolist(), units[hits].tolist(), strict=True)
        queue_offset += here
        count -= here


def _has_key(properties: bytes, wanted: bytes, kind: str) -> bool:
    if kind == "T":
        return props.find(properties, _TAGS) == wanted
    if props.find(properties, _UNIQUE_ID) == wanted:
        return True
    if kind == "U":
        return False
    keys = props.find(properties, _KEYS)
    return keys is not None and wanted in keys.split(b" ")
