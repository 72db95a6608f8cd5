"""Check points that are not done, in memory: by their key, and counted by queue.

Rule: one is done when all its messages are acknowledged and that is stored, or when the rest was delivered again. The
records of one that is done before its time need not come out of the timer wheel: `is_unneeded` tells them.
"""

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
# Some 2 ms.
_LOOK_COUNT = 2000


class CheckPoint:
    """One check point. `position`: of its record in the log; `revive_offset`: in its revive queue, -1 before its time.

    `acked`: bit i for the i-th message; `stored`: those whose acknowledgement is in the log.
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
        """Return the bits of some of its messages; offsets of others are passed over."""
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
        """Return the offsets of bits."""
        return tuple([offset for number, offset in enumerate(self.record.offsets) if bits >> number & 1])

    @property
    def open_offsets(self) -> tuple[int, ...]:
        """The messages that are not acknowledged."""
        return self.offsets_of(self.all_bits & ~self.acked)

    @property
    def is_acknowledged(self) -> bool:
        """True if all its messages are, and the log says so."""
        return not self.all_bits & ~self.stored


class CheckPoints:
    """The check points of one broker that are not done.

    `read_all`: called with a revive queue before a check point is taken as not in it; `rolled_ms`: one with a longer
    invisible time may be stored elsewhere meanwhile, as the timer wheel does not reach so far.
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
        """Return the check point of a key, None if there is none or it is done."""
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
        """Take messages as acknowledged."""
        new = bits & point.all_bits & ~point.acked
        if new:
            point.acked |= new
            self._counted(point, -new.bit_count())

    def take_back(self, point: CheckPoint, bits: int) -> None:
        """Take messages as not acknowledged, as that could not be stored."""
        old = bits & point.acked & ~point.stored
        if old and not point.is_done:
            point.acked &= ~old
            self._counted(point, old.bit_count())

    def stored_acks(self, point: CheckPoint, bits: int, position: int, *, came_out: bool = False) -> None:
        """Note that the log has acknowledgements; `position`: of their record in the timer wheel, -1 if not there.

        `came_out`: they were read in the revive queue.
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
        """Take a check point as done."""
        if point.is_done:
            return
        point.is_done = True
        self._by_key.pop(point.record.key, None)
        self._counted(point, -(point.all_bits & ~point.acked).bit_count())
        if point.revive_offset >= 0 or point.position < 0:
            self.note_past(point.record)

    def delete_topic(self, topic: str) -> None:
        """Take all of a topic as done."""
        if any(of == topic for of, _, _ in self._counts):
            for point in [point for point in self._by_key.values() if point.record.key.topic == topic]:
                self.remove(point)
                self.note_past(point.record)

    def of_group(self, group: str) -> list[CheckPoint]:
        """Return a group's check points."""
        if not any(of == group for _, of, _ in self._counts):
            return []
        return [point for point in self._by_key.values() if point.record.key.group == group]

    def note_past(self, record: CheckPointRecord) -> None:
        """Keep in mind that a check point is done."""
        self._past[record.key] = record.re_puts
        if len(self._past) > PAST_MAX:
            del self._past[next(iter(self._past))]

    def was_done(self, record: CheckPointRecord) -> bool:
        """Tell whether a check point that comes is done already; one that was put again is another."""
        return self._past.get(record.key, -1) >= record.re_puts

    def is_unneeded(self, position: int) -> bool:
        """Tell, once, whether the record at a physical offset need not come out of the timer wheel."""
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
    """Takes check points as done whose time is over and whose messages retention removed, as their record may be gone.

    `lowest`: the oldest offset of a queue; `min_position`: of the log, which tells that something was removed.
    """

    def __init__(self, points: CheckPoints, lowest: Callable[[str, int], int], min_position: Callable[[], int]) -> None:
        self._points = points
        self._lowest = lowest
        self._min_position = min_position
        self._looked_at = 0
        # When the time of the first that is gone is over.
        self._again_ms: float = math.inf
        self._left: Iterator[CheckPoint] | None = None
        self._lows: dict[tuple[str, int], int] = {}

    def look(self, now_ms: int) -> bool:
        """Do the next piece; True if there is more."""
        if self._left is None:
            position = self._min_position()
            if position == self._looked_at and now_ms < self._again_ms:
                return False
            self._looked_at, self._again_ms, self._left = position, math.inf, iter(self._points)
            self._lows.clear()
        piece = list(islice(self._left, _LOOK_COUNT))
        for point in piece:
            queue = point.record.key.topic, point.record.key.queue_id
            low = self._lows.get(queue)
            if low is None:
                low = self._lows[queue] = self._lowest(*queue)
            if point.is_done or point.revive_offset >= 0 or point.record.offsets[-1] >= low:
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
    """Puts check points again whose time is over and whose record never came, as it is damaged.

    Else their messages would be in flight until the next start, and then nobody's. One whose record comes all the same
    is known as done by then. `wheel_ms`: the time before which all of the timer wheel is done.
    """

    def __init__(self, points: CheckPoints, put_again: Callable[[CheckPoint], None]) -> None:
        self._points = points
        self._put_again = put_again
        self.wheel_ms: Callable[[], int] = lambda: 0
        self._left: Iterator[CheckPoint] | None = None
        self._looked_ms = 0

    def look(self, now_ms: int) -> bool:
        """Do the next piece, after all that came was read; True if there is more. Raises what `put_again` does."""
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
