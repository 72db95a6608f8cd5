"""Ordered pops: which batch of each queue each group was given last, and until when that batch blocks the queue.

Rules (QueueLevelConsumerManager, 5.5.0): nothing more of a queue is given out while a message of the last batch is
neither acknowledged nor visible again; then all from the first unacknowledged one on come again. Kept in
consumerOrderInfo.json as RocketMQ writes it. BlockEnds wakes the pops that wait for such a queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Annotated

import msgspec

from rocketspark.broker.storage.json_tables import JsonFile, now_ms
from rocketspark.model.text import INT_MAX, LONG_MAX
from rocketspark.protocol import pop_answers
from rocketspark.protocol.json import bodies, java_json
from rocketspark.protocol.json.bodies import Body
from rocketspark.protocol.light_queues import topic_and_group
from rocketspark.store.store import Store

FILE_NAME = "consumerOrderInfo.json"
# An entry is forgotten so long after the last pop.
KEPT_MS = 24 * 3_600_000
# The bits of a batch are those of a Java long.
BITS_MASK = (1 << 64) - 1

_Int = Annotated[int, msgspec.Meta(ge=-INT_MAX - 1, le=INT_MAX)]
_Long = Annotated[int, msgspec.Meta(ge=-LONG_MAX - 1, le=LONG_MAX)]


class LastBatch(
    Body,
    rename={
        "attempt_id": "a",
        "acked_bits": "cm",
        "invisible_time_ms": "i",
        "consumed_ms": "l",
        "distances": "o",
        "counts": "oc",
        "next_visible_ms": "ot",
        "pop_time_ms": "popTime",
    },
):
    """The batch of a queue that a group was given last.

    `distances`: the first offset, then how far each other offset lies behind it; `acked_bits`: bit i is set if message
    i is acknowledged; `counts`: by offset, how often a message was given out before; `next_visible_ms`: by offset, of
    messages whose invisible time was changed; `unseen`: the offsets of messages that reached nobody (not in RocketMQ).
    """

    attempt_id: str | None = None
    acked_bits: _Long = 0
    invisible_time_ms: _Long | None = None
    consumed_ms: _Long = 0
    distances: list[_Long] | None = None
    counts: dict[_Long, _Int] | None = None
    next_visible_ms: dict[_Long, _Long] | None = None
    pop_time_ms: _Long = 0
    unseen: list[_Long] | None = None

    def offsets(self) -> list[int]:
        """Return the queue offsets of the batch's messages."""
        if not self.distances:
            return []
        first = self.distances[0]
        return [first, *(first + distance for distance in self.distances[1:])]

    def blocked_until_ms(self, invisible_time_ms: int) -> int:
        """Return the time from which the queue is free; 0 if no message holds it back.

        `invisible_time_ms` stands in where the batch does not tell its own, as brokers before 5.0 left it.
        """
        held_ms = self.invisible_time_ms
        if held_ms is None or held_ms <= 0:
            held_ms = invisible_time_ms
        changed, own_ms = self.next_visible_ms or {}, self.pop_time_ms + held_ms
        return max((changed.get(offset, own_ms) for offset in self.unacknowledged()), default=0)

    def set_back(self, by_ms: int) -> bool:
        """Let the messages that are not acknowledged be visible so much earlier; False if none holds the queue back."""
        held_ms, changed = self.invisible_time_ms or 0, self.next_visible_ms or {}
        own_ms = self.pop_time_ms + held_ms
        left = {offset: changed.get(offset, own_ms) - by_ms for offset in self.unacknowledged()}
        if held_ms <= 0 or not left:
            return False
        self.next_visible_ms = left
        self.consumed_ms -= by_ms
        return True

    def unacknowledged(self) -> list[int]:
        """Return the offsets that are not acknowledged."""
        # A Java long's shift takes the number modulo 64.
        return [offset for number, offset in enumerate(self.offsets()) if not self.acked_bits >> number % 64 & 1]

    def next_offset(self) -> int:
        """Return the first offset that is not acknowledged, or the one after the last; the batch must not be empty."""
        left = self.unacknowledged()
        return left[0] if left else self.offsets()[-1] + 1


class OrderTable(Body):
    """The content of consumerOrderInfo.json: last batches by "topic@group" and queue id."""

    table: dict[str, dict[_Int, LastBatch]] = {}


def encode_table(table: OrderTable) -> bytes:
    """Return consumerOrderInfo.json, with numbers as bare keys and fields that are unknown left out."""
    rows = b",".join(_row(key, queues) for key, queues in table.table.items())
    return b'{"orderInfoCount":%d,"orderedConsumptionLevel":"QUEUE","table":{%b}}' % (len(table.table), rows)


def _row(key: str, queues: dict[int, LastBatch]) -> bytes:
    return bodies.encode(key) + b":{" + b",".join(b"%d:%b" % (q, _batch(b)) for q, b in queues.items()) + b"}"


def _batch(batch: LastBatch) -> bytes:
    fields = []
    for field in msgspec.structs.fields(LastBatch):
        value = getattr(batch, field.name)
        if value is not None:
            text = java_json.encode_number_keys(value) if isinstance(value, dict) else bodies.encode(value)
            fields.append(b'"%b":%b' % (field.encode_name.encode(), text))
    return b"{" + b",".join(fields) + b"}"


class OrderedPops:
    """The last batch that each group was given of each queue. Without a file they are kept in memory alone.

    No method reads the clock: the caller passes the time, in ms since 1970.
    """

    def __init__(self, file: JsonFile[OrderTable] | None = None) -> None:
        self._file = file
        self._changes = self._saved = 0
        known = file.load() if file is not None else None
        self.table: dict[str, dict[int, LastBatch]] = (known or OrderTable()).table

    def blocked_until_ms(
        self, topic: str, group: str, queue_id: int, attempt_id: str | None, invisible_time_ms: int
    ) -> int:
        """Return until when a queue is blocked for a group; a time in the past, or 0, if it is not.

        `attempt_id`: if the last batch went to this attempt, the queue is not blocked, as the reply may have been lost.
        """
        queues = self.table.get(f"{topic}@{group}")
        batch = None if queues is None else queues.get(queue_id)
        if batch is None or not batch.distances or (attempt_id is not None and batch.attempt_id == attempt_id):
            return 0
        return batch.blocked_until_ms(invisible_time_ms)

    def given(
        self,
        topic: str,
        group: str,
        queue_id: int,
        offsets: Sequence[int],
        *,
        attempt_id: str | None,
        pop_time_ms: int,
        invisible_time_ms: int,
    ) -> list[str]:
        """Note a batch that is given out; return the texts of the reply that say how often its messages came before."""
        queues = self.table.setdefault(f"{topic}@{group}", {})
        before = queues.get(queue_id)
        counts: dict[int, int] | None = None
        if before is not None:
            known = before.counts or {}
            if before.attempt_id is not None and before.attempt_id == attempt_id:
                counts = known
            else:
                given, unseen = set(before.offsets()), before.unseen or ()
                times = {o: known.get(o, 0) + (o not in unseen) for o in offsets if o in given}
                counts = {offset: count for offset, count in times.items() if count}
        first = offsets[0]
        queues[queue_id] = LastBatch(
            attempt_id=attempt_id,
            invisible_time_ms=invisible_time_ms,
            consumed_ms=pop_time_ms,
            distances=[first, *(offset - first for offset in offsets[1:])],
            counts=counts,
            pop_time_ms=pop_time_ms,
        )
        self._changes += 1
        flag = pop_answers.retry_flag(topic)
        counts = counts or {}
        items = [pop_answers.message_order_count_item(flag, queue_id, o, n) for o, n in sorted(counts.items())]
        least = min(counts.values(), default=0) if len(counts) == len(offsets) else 0
        return [*items, pop_answers.order_count_item(flag, queue_id, least)]

    def acknowledge(self, topic: str, group: str, queue_id: int, offset: int, pop_time_ms: int) -> int | None:
        """Acknowledge a message; return the offset to commit, None if the message is of an older batch.

        `pop_time_ms`: of the batch that the message came in. Raises KeyError for an offset that was not given out.
        """
        queues = self.table.get(f"{topic}@{group}")
        batch = None if queues is None else queues.get(queue_id)
        if batch is None:
            return offset + 1
        if not batch.distances:
            raise KeyError(offset)
        if pop_time_ms != batch.pop_time_ms:
            return None
        try:
            number = batch.offsets().index(offset)
        except ValueError:
            raise KeyError(offset) from None
        bits = batch.acked_bits & BITS_MASK | 1 << number % 64
        batch.acked_bits = bits - (1 << 64) if bits >> 63 else bits
        self._changes += 1
        return batch.next_offset()

    def has_batch(self, topic: str, group: str, queue_id: int) -> bool:
        """Tell whether a last batch of a queue is known."""
        return queue_id in self.table.get(f"{topic}@{group}", {})

    def is_anothers(
        self, topic: str, group: str, queue_id: int, offset: int, pop_time_ms: int, committed: int | None, store: Store
    ) -> bool:
        """Tell whether an acknowledgement says nothing of what stands at an offset of a queue whose last batch is not
        known. `committed`: where the group goes on there.
        """
        # A kill took the note of the pop: RocketMQ would go on behind this message, without those before it. Or it was
        # popped of a topic that was deleted, and another message stands there now.
        return not self.has_batch(topic, group, queue_id) and (
            offset != committed or store.store_time_at(topic, queue_id, offset) > pop_time_ms
        )

    def change_next_visible(
        self,
        topic: str,
        group: str,
        queue_id: int,
        offset: int,
        pop_time_ms: int,
        next_visible_ms: int,
        *,
        unseen: bool = False,
    ) -> None:
        """Set when a message of the last batch becomes visible again; a message of an older batch is left alone.

        `unseen`: it reached nobody, so that its next delivery does not count as a further attempt.
        """
        batch = self.table.get(f"{topic}@{group}", {}).get(queue_id)
        if batch is not None and batch.pop_time_ms == pop_time_ms:
            if batch.next_visible_ms is None:
                batch.next_visible_ms = {}
            if offset in batch.offsets():
                batch.next_visible_ms[offset] = next_visible_ms
                if unseen and offset not in (batch.unseen or ()):
                    batch.unseen = [*(batch.unseen or ()), offset]
                self._changes += 1

    def suspend(self, topic: str, group: str, queue_id: int, pop_time_ms: int, visible_ms: int) -> None:
        """Make all of the last batch visible again at a time, one attempt less counted of those that came before (rule:
        MemoryConsumerOrderInfoManager, 5.5.0).
        """
        batch = self.table.get(f"{topic}@{group}", {}).get(queue_id)
        if batch is not None and batch.pop_time_ms == pop_time_ms:
            batch.counts = {o: max(n - 1, 0) for o, n in batch.counts.items()} if batch.counts is not None else None
            batch.next_visible_ms = None
            # With 0 it would have the time of whoever pops next.
            batch.invisible_time_ms = max(visible_ms - pop_time_ms, 1)
            self._changes += 1

    def set_back(self, by_ms: int) -> list[tuple[str, str, int]]:
        """Free queues as much earlier as the clock was set back; return topic, group and id of those that are blocked.

        One whose batch does not tell its invisible time, as brokers before 5.0 left it, stays as it is.
        """
        found = []
        for key, queues in self.table.items():
            topic, group = topic_and_group(key)
            found += [(topic, group, queue_id) for queue_id, batch in queues.items() if batch.set_back(by_ms)]
        self._changes += len(found)
        return found

    def set_back_to(self, now_ms: int) -> None:
        """Free queues as if what was given out later than now were given out now: the clock was set back while the
        broker was down.
        """
        late = (batch for queues in self.table.values() for batch in queues.values() if batch.consumed_ms > now_ms)
        self._changes += sum(batch.set_back(batch.consumed_ms - now_ms) for batch in late)

    def count(self, topic: str, group: str, queue_id: int) -> int:
        """Return how many messages of the last batch are not acknowledged."""
        batch = self.table.get(f"{topic}@{group}", {}).get(queue_id)
        return 0 if batch is None else len(batch.unacknowledged())

    # -- forgetting -----------------------------------------------------------------------------------------------

    def forget(self, topic: str, group: str, queue_id: int) -> None:
        """Forget the last batch of a queue, so that it does not block the queue any more."""
        if self.table.get(f"{topic}@{group}", {}).pop(queue_id, None) is not None:
            self._changes += 1

    def keep_within(self, end: Callable[[str, int], int], stored_ms: Callable[[str, int, int], int]) -> None:
        """Forget batches whose messages the store lost, as other messages will get their offsets.

        `end`: returns the end of a queue; `stored_ms`: returns when the message at an offset was stored: if that is
        after the pop, it is another message.
        """
        for key, queues in self.table.items():
            topic = topic_and_group(key)[0]
            for queue_id, batch in list(queues.items()):
                last = max(batch.offsets(), default=-1)
                if last >= end(topic, queue_id) or stored_ms(topic, queue_id, last) > batch.pop_time_ms:
                    del queues[queue_id]
                    self._changes += 1

    def delete_topic(self, topic: str) -> None:
        """Forget the batches of a topic."""
        self.delete_topics((topic,))

    def delete_topics(self, topics: Container[str]) -> None:
        """Forget the batches of several topics, in one pass."""
        self._delete(key for key in self.table if topic_and_group(key)[0] in topics)

    def delete_group(self, group: str) -> None:
        """Forget the batches of a group."""
        self._delete(key for key in self.table if topic_and_group(key)[1] == group)

    def _delete(self, keys: Iterator[str]) -> None:
        for key in list(keys):
            del self.table[key]
            self._changes += 1

    def clean(self, read_queues: Callable[[str], int], has_group: Callable[[str], bool], now_ms: int) -> None:
        """Forget batches whose topic, queue or group does not exist any more, or that are more than a day old.

        `read_queues`: returns how many read queues a topic has, 0 if it does not exist.
        """
        for key, queues in list(self.table.items()):
            topic, group = topic_and_group(key)
            count = read_queues(topic) if has_group(group) else 0
            for queue_id, batch in list(queues.items()):
                if queue_id >= count or now_ms - batch.consumed_ms > KEPT_MS:
                    del queues[queue_id]
                    self._changes += 1
            if not queues:
                del self.table[key]
                self._changes += 1

    def blocked(self) -> Iterator[tuple[str, str, int]]:
        """Yield topic, group and queue id of every last batch."""
        for key, queues in self.table.items():
            topic, group = topic_and_group(key)
            for queue_id in queues:
                yield topic, group, queue_id

    def save(self) -> None:
        """Write consumerOrderInfo.json if it changed since it was written. Raises StoreError."""
        if self._file is not None and self._changes != self._saved:
            changes = self._changes
            self._file.save(OrderTable(table=self.table))
            self._saved = changes


# A timer ends at least so often.
LOOK_MS = 60_000

Queue = tuple[str, str, int]


class BlockEnds:
    """One timer for each blocked queue. `wake` is called with topic, group and queue id once the queue is free."""

    def __init__(
        self, ordered: OrderedPops, wake: Callable[[str, str, int], None], *, enabled: Callable[[], bool]
    ) -> None:
        self._ordered = ordered
        self._wake = wake
        self._enabled = enabled
        self._timers: dict[Queue, asyncio.TimerHandle] = {}

    def clock_jumped(self, jump_s: float) -> None:
        """Let no queue be blocked for longer because the clock was set back."""
        if jump_s < 0:
            for queue in self._ordered.set_back(int(-jump_s * 1000)):
                self.look(*queue)

    def look(self, topic: str, group: str, queue_id: int) -> None:
        """Set the timer of a queue again, after its last batch changed."""
        queue = (topic, group, queue_id)
        timer = self._timers.pop(queue, None)
        if timer is not None:
            timer.cancel()
        if not self._enabled():
            return
        left_ms = self._ordered.blocked_until_ms(topic, group, queue_id, None, 0) - now_ms()
        if left_ms <= 0:
            self._wake(topic, group, queue_id)
        else:
            # One ms more, so that the clock has reached it.
            seconds = (min(left_ms, LOOK_MS) + 1) / 1000
            self._timers[queue] = asyncio.get_running_loop().call_later(seconds, self.look, *queue)

    def look_at_all(self) -> None:
        """Set the timers of all queues, e.g. when the broker begins to serve pops."""
        self._ordered.set_back_to(now_ms())
        for queue in list(self._ordered.blocked()):
            self.look(*queue)

    def close(self) -> None:
        """End all timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
