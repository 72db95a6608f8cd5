"""The check points in memory: each stands for the messages that one pop gave out of one queue.

Rule: a check point is done when all its messages are acknowledged and that is stored, or when the others were delivered
again. `is_unneeded` tells the timer wheel which records of done check points need not be delivered."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from rocketspark.protocol.json.pop_records import CheckPointKey, CheckPointRecord

# Places of records in the timer wheel that are not needed, some 70 bytes each; more come out of it and are passed over.
UNNEEDED_MAX = 1_000_000
# Keys of check points that are done, and whose record may still come or come twice.
PAST_MAX = 20_000
# So long after its time a check point is late; looked for so often.
LATE_MS = 60_000
# So long after a look at a queue of which it is not known where it begins it is asked for again.
_UNKNOWN_MS = 10_000
# Some 2 ms.
_LOOK_COUNT = 2000


class CheckPoint:
    """One check point. `position`: of its record in the log; `revive_offset`: in its revive queue, -1 before its time.

    `acked`: bit i is set if message i is acknowledged; `stored`: the bits whose acknowledgement is in the log.
    """

    __slots__ = (
        "ack_positions",
        "acked",
        "all_bits",
        "is_done",
        "position",
        "record",
        "revive_offset",
        "revive_queue_id",
        "stored",
    )

    def __init__(self, record: CheckPointRecord, revive_queue_id: int, position: int, revive_offset: int = -1) -> None:
        self.record = record
        self.revive_queue_id = revive_queue_id
        self.position = position
        self.revive_offset = revive_offset
        self.acked = self.stored = record.acked
        self.all_bits = (1 << len(record.offsets)) - 1
        self.ack_positions: list[int] = []
        self.is_done = False

    def bits_of(self, offsets: Iterable[int]) -> int:
        """Return the bits of messages at these queue offsets; offsets that are not this check point's are ignored."""
        own, bits = self.record.offsets, 0
        for offset in offsets:
            # Nearly always they are in a row.
            at = offset - own[0]
            if not (0 <= at < len(own) and own[at] == offset):
                if offset not in own:
                    continue
                at = own.index(offset)
            bits |= 1 << at
        return bits

    def offsets_of(self, bits: int) -> tuple[int, ...]:
        """Return the queue offsets of the messages whose bits are set in `bits`."""
        return tuple([offset for number, offset in enumerate(self.record.offsets) if bits >> number & 1])

    @property
    def open_offsets(self) -> tuple[int, ...]:
        """Return the queue offsets of the messages that are not acknowledged."""
        return self.offsets_of(self.all_bits & ~self.acked)

    @property
    def is_acknowledged(self) -> bool:
        """True if all its messages are acknowledged, and the log holds that."""
        return not self.all_bits & ~self.stored


class CheckPoints:
    """The check points of one broker that are not done, by key, and the messages in flight, counted by queue.

    `read_all`: called to read a revive queue to its end, before a check point is taken as not in it; `rolled_ms`: a
    check point with a longer invisible time may have been stored again, as the timer wheel does not reach so far.
    """

    def __init__(self) -> None:
        self._by_key: dict[CheckPointKey, CheckPoint] = {}
        self._counts: dict[tuple[str, str, int], int] = {}
        self._unneeded: set[int] = set()
        self._past: dict[CheckPointKey, int] = {}
        self.read_all: Callable[[int], None] = lambda queue_id: None
        self.rolled_ms = math.inf

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[CheckPoint]:
        return iter(list(self._by_key.values()))

    def __contains__(self, key: CheckPointKey) -> bool:
        return key in self._by_key

    def get(self, key: CheckPointKey) -> CheckPoint | None:
        """Return the check point of a key; None if there is none, or none any more."""
        return self._by_key.get(key)

    def count(self, topic: str, group: str, queue_id: int) -> int:
        """Return how many messages of a queue are in flight for a group."""
        return self._counts.get((topic, group, queue_id), 0)

    def add(self, point: CheckPoint) -> None:
        """Add a check point: its messages that are not acknowledged count as in flight."""
        self._by_key[point.record.key] = point
        self._counted(point, (point.all_bits & ~point.acked).bit_count())

    def _counted(self, point: CheckPoint, change: int) -> None:
        key = point.record.key[:3]
        left = self._counts.get(key, 0) + change
        if left > 0:
            self._counts[key] = left
        else:
            self._counts.pop(key, None)

    def acknowledge(self, point: CheckPoint, bits: int) -> None:
        """Count the messages of these bits as acknowledged."""
        new = bits & point.all_bits & ~point.acked
        if new:
            point.acked |= new
            self._counted(point, -new.bit_count())

    def take_back(self, point: CheckPoint, bits: int) -> None:
        """Count the messages of these bits as not acknowledged again, as their acknowledgement could not be stored."""
        old = bits & point.acked & ~point.stored
        if old and not point.is_done:
            point.acked &= ~old
            self._counted(point, old.bit_count())

    def stored_acks(self, point: CheckPoint, bits: int, position: int, *, came_out: bool = False) -> None:
        """Note that the log holds the acknowledgement of these bits; the check point may be done by it.

        `position`: where its record is, if that waits in the timer wheel, else -1; `came_out`: it was read in the
        revive queue.
        """
        point.stored |= bits & point.all_bits
        if position >= 0:
            point.ack_positions.append(position)
        if not point.is_acknowledged or point.is_done:
            return
        if point.revive_offset < 0 and not came_out:
            self.read_all(point.revive_queue_id)
        self.remove(point)
        if point.revive_offset >= 0 or came_out or point.record.invisible_time_ms >= self.rolled_ms:
            return
        if len(self._unneeded) < UNNEEDED_MAX:
            self._unneeded.add(point.position)
            self._unneeded.update(point.ack_positions)

    def remove(self, point: CheckPoint) -> None:
        """Count a check point as done, and forget it."""
        if point.is_done:
            return
        point.is_done = True
        self._by_key.pop(point.record.key, None)
        self._counted(point, -(point.all_bits & ~point.acked).bit_count())
        if point.revive_offset >= 0 or point.position < 0:
            self.note_past(point.record)

    def delete_topic(self, topic: str) -> None:
        """Count all check points of a deleted topic as done."""
        if any(of == topic for of, _, _ in self._counts):
            for point in [point for point in self._by_key.values() if point.record.key.topic == topic]:
                self.remove(point)
                self.note_past(point.record)

    def of_group(self, group: str) -> list[CheckPoint]:
        """Return the check points of a consumer group."""
        if not any(of == group for _, of, _ in self._counts):
            return []
        return [point for point in self._by_key.values() if point.record.key.group == group]

    def note_past(self, record: CheckPointRecord) -> None:
        """Remember that a check point is done, for `was_done`."""
        self._past[record.key] = record.re_puts
        if len(self._past) > PAST_MAX:
            del self._past[next(iter(self._past))]

    def was_done(self, record: CheckPointRecord) -> bool:
        """Tell whether a check point whose record arrives is done already; one stored again since counts as another."""
        return self._past.get(record.key, -1) >= record.re_puts

    def is_unneeded(self, position: int) -> bool:
        """Tell the timer wheel, once, whether it may drop the record at a physical offset."""
        if position in self._unneeded:
            self._unneeded.discard(position)
            return True
        return False

    def clear(self) -> None:
        """Forget all check points, e.g. before they are read anew."""
        self._by_key.clear()
        self._counts.clear()
        self._unneeded.clear()
        self._past.clear()


class GoneMessages:
    """Counts check points as done whose time is over and whose messages retention removed from the log.

    Their own records may be gone as well. `lowest`: returns a queue's oldest offset, None as long as it is not known,
    when it is asked for again; `min_position`: returns that of the log, by which a removal is noticed.
    """

    def __init__(
        self, points: CheckPoints, lowest: Callable[[str, int], int | None], min_position: Callable[[], int]
    ) -> None:
        self._points = points
        self._lowest = lowest
        self._min_position = min_position
        self._looked_at = 0
        # When the time of the first that is gone is over.
        self._again_ms: float = math.inf
        self._left: Iterator[CheckPoint] | None = None
        self._lows: dict[tuple[str, int], int | None] = {}

    def look(self, now_ms: int) -> bool:
        """Look at the next check points; return True if some of this round are left."""
        if self._left is None:
            position = self._min_position()
            if position == self._looked_at and now_ms < self._again_ms:
                return False
            self._looked_at, self._again_ms, self._left = position, math.inf, iter(self._points)
            self._lows.clear()
        piece = list(islice(self._left, _LOOK_COUNT))
        for point in piece:
            queue = point.record.key.topic, point.record.key.queue_id
            if queue not in self._lows:
                self._lows[queue] = self._lowest(*queue)
            low = self._lows[queue]
            if point.is_done or point.revive_offset >= 0 or (low is not None and point.record.offsets[-1] >= low):
                continue
            if low is None:
                self._again_ms = min(self._again_ms, now_ms + _UNKNOWN_MS)
                continue
            if point.record.next_visible_ms <= now_ms:
                self._points.remove(point)
                self._points.note_past(point.record)
            else:
                self._again_ms = min(self._again_ms, point.record.next_visible_ms)
        if len(piece) < _LOOK_COUNT:
            self._left = None
        return self._left is not None


class LateCheckPoints:
    """Stores check points again whose time is over and whose record, being damaged, never came out of the timer wheel.

    Otherwise their messages would stay in flight until the next start, and then be lost to the group. If the record
    comes after all, the check point is known as done. `wheel_ms`: returns the time before which the timer wheel is
    delivered.
    """

    def __init__(self, points: CheckPoints, put_again: Callable[[CheckPoint], None]) -> None:
        self._points = points
        self._put_again = put_again
        self.wheel_ms: Callable[[], int] = lambda: 0
        self._left: Iterator[CheckPoint] | None = None
        self._looked_ms = 0

    def look(self, now_ms: int) -> bool:
        """Look at the next check points, once the revive queues were read; return True if some of this round are left.

        Raises what `put_again` raises.
        """
        if self._left is None:
            if 0 <= now_ms - self._looked_ms < LATE_MS:
                return False
            self._looked_ms, self._left = now_ms, iter(self._points)
        before_ms = min(now_ms, self.wheel_ms()) - LATE_MS
        piece = list(islice(self._left, _LOOK_COUNT))
        for point in piece:
            # What is acknowledged in this turn is looked at in the next round.
            waits = point.is_done or point.revive_offset >= 0 or point.acked != point.stored
            if not waits and point.record.next_visible_ms <= before_ms:
                self._put_again(point)
        if len(piece) < _LOOK_COUNT:
            self._left = None
        return self._left is not None
