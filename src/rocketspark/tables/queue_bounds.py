"""What a queue holds: its offsets, and those of the parts of a static topic's logical queue. Pure values.

Rule: the offsets of a broker's own queue are dense. Those of a logical queue have a gap wherever it was moved to
another broker, and each of its parts is such a queue of a broker, with offsets of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from rocketspark.model import MessageQueue
from rocketspark.tables.offset_ranges import EACH_TOPIC, Made, OffsetRange


class OffsetBounds(NamedTuple):
    """The offsets that a queue holds: `oldest`, of the oldest message there, and `next`, of the next one to be written.

    `of_master`: the master told them; a slave may be behind. `replicated`: the broker has, or had, replicas, so an
    election may have cut the ends of its queues. `made_at`: a number that rises when the topic is deleted and made
    again. `log_end`: the position in the log before which all messages of the queue lie; None if the broker does not
    tell it. `store_number`: tells the broker's store from others that it had before; 0 if the broker tells none.
    `shared`: of a store that is a copy of a backup: the numbers of those that it continues, each with the offset up to
    which the queue is the same. `parts`: of a logical queue, whose stores they are of: these tell the three.
    """

    oldest: int
    next: int
    of_master: bool = True
    replicated: bool = False
    made_at: int = 0
    log_end: int | None = None
    store_number: int = 0
    shared: tuple[tuple[int, int], ...] = ()
    parts: tuple[QueuePart, ...] = ()

    def rows_before(self, offset: int) -> int:
        """Return a number that rises by one with each offset that may hold a message: the offset less the gaps."""
        if not self.parts:
            return offset
        base, last = self.parts[0].logical, self.parts[-1]
        within = (min(max(offset - part.logical, 0), part.rows) for part in self.parts[:-1])
        return min(offset, base) + sum(within) + max(offset - last.logical, 0)

    def offset_after(self, rows: int) -> int:
        """Return the offset for a number of `rows_before`, behind a gap where two have the same."""
        if not self.parts or rows < self.parts[0].logical:
            return rows
        rows -= self.parts[0].logical
        for part in self.parts[:-1]:
            if rows < part.rows:
                return part.logical + rows
            rows -= part.rows
        return self.parts[-1].logical + rows

    def past_gap(self, offset: int) -> int:
        """Return the first offset at or after this one that is in no gap."""
        return self.offset_after(self.rows_before(offset))

    def before_gap(self, offset: int) -> int:
        """Return where the part ends that lies before an offset at which another one begins; else the offset."""
        for before, part in reversed([*pairwise(self.parts)]):
            if offset == part.logical:
                offset = before.logical_end
        return offset

    def read_of(self, queue: MessageQueue, place: int) -> Iterator[tuple[MessageQueue, OffsetBounds, int]]:
        """Yield the brokers' queues that hold what lies before the offset `place` of `queue`: each with what it holds,
        and its own offset for `place`. One whose broker does not answer is left out.
        """
        if not self.parts:
            yield queue, self, place
        for part in self.parts:
            if part.held is not None and place > part.logical:
                yield part.queue, part.held, min(place - part.logical + part.first, part.end)

    def brokers(self, queue: MessageQueue) -> set[str]:
        """Return the names of the brokers that hold `queue`."""
        return {part.queue.broker_name for part in self.parts} or {queue.broker_name}

    def with_replicas(self, queue: MessageQueue, names: set[str]) -> OffsetBounds:
        """Return the bounds of `queue` with what is known of replicas: brokers of these names have, or had, some."""
        parts = tuple(p._replace(held=p.held and p.held.with_replicas(p.queue, names)) for p in self.parts)
        return self._replace(replicated=not names.isdisjoint(self.brokers(queue)), parts=parts)


class QueuePart(NamedTuple):
    """A part of a logical queue: the offsets from `first` up to `end` of a broker's own queue, of which the first is
    `logical` in the logical queue. `held`: what the broker's queue holds; None if the broker does not answer. `ended`:
    false if `end` is only where the part ends at the latest, as nobody else tells it.
    """

    queue: MessageQueue
    logical: int
    first: int
    end: int
    held: OffsetBounds | None
    ended: bool = True

    @property
    def rows(self) -> int:
        """How many offsets the part has."""
        return max(self.end - self.first, 0)

    @property
    def logical_end(self) -> int:
        """The offset in the logical queue at which the part ends; that of the last one rises."""
        return self.logical + self.rows


def of_parts(parts: Sequence[QueuePart]) -> OffsetBounds:
    """Return what a logical queue holds, by its parts in their order, at least one."""
    held = [part.held for part in parts if part.held is not None]
    oldest = newest = parts[-1].logical_end
    for part in parts:
        low = part.first if part.held is None else max(part.held.oldest, part.first)
        if low < part.end:
            oldest = part.logical + low - part.first
            break
    return OffsetBounds(oldest, newest, all(one.of_master for one in held), parts=tuple(parts))


def cut(wanted: OffsetRange, parts: Sequence[QueuePart]) -> list[OffsetRange]:
    """Return the pieces of a range of a logical queue that lie in one part each, without gaps. The last part is open at
    its end.
    """
    found = []
    for part in parts:
        end = wanted.end if part is parts[-1] else min(wanted.end, part.logical_end)
        first = max(wanted.first, part.logical)
        if first < end:
            found.append(wanted._replace(first=first, end=end))
    return found


def part_at(parts: Sequence[QueuePart], offset: int) -> QueuePart:
    """Return the part in which an offset of the logical queue lies, one of `parts`."""
    return next(part for part in reversed(parts) if offset >= part.logical)


def is_of_other_store(queue: MessageQueue, now: OffsetBounds, made: Made, place: int) -> bool:
    """Tell whether a queue's broker has another store than the one that `made` was noted of, or a copy that lacks
    something before the offset `place`. One that was a slave, and such as tell no number, count as having the same one.
    """
    return any(
        lacks(made.get((EACH_TOPIC, own.broker_name)), held.store_number, held.shared, at)
        for own, held, at in now.read_of(queue, place)
    )


def lacks(noted: int | None, number: int, shared: Iterable[tuple[int, int]], place: int) -> bool:
    """Tell whether a store is another one than that of the number `noted`, and no copy that has all of a queue before
    the offset `place`. `number`, `shared`: of the store, as in OffsetBounds; without numbers none is told apart.
    """
    return bool(number) and noted not in (None, number) and place > dict(shared).get(noted, -1)
