"""What clients pop of their lite topics: in order within each, acknowledged one by one, kept in memory alone.

Rules (PopLiteMessageProcessor, AckMessageProcessor, ChangeInvisibleTimeProcessor, 5.5.0): the events of a client say
which queues a pop looks at, each once; a queue of which a message is out gives no other to the group; what is out when
the broker ends comes again.
"""

from __future__ import annotations

from collections.abc import Sequence

from rocketspark import machine
from rocketspark.broker.lite.events import LiteEvents
from rocketspark.broker.lite.subscriptions import LiteSubscriptions
from rocketspark.broker.parts import Tables
from rocketspark.broker.pop.ordered import BlockEnds, OrderedPops
from rocketspark.broker.pop.reading import newest_offset
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.statistics.stats import Stats
from rocketspark.broker.storage.json_tables import now_ms
from rocketspark.broker.storage.log_memory import LogMemory
from rocketspark.protocol import light_queues, pop_answers
from rocketspark.protocol.headers import PopLiteHeader
from rocketspark.protocol.light_queues import QUEUE_ID
from rocketspark.protocol.message import record
from rocketspark.store.get_message import GetMessageResult, GetStatus
from rocketspark.store.store import Store

# The offset is not there: the queue goes on from the one that the read tells.
_MOVED = (GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_TOO_BIG, GetStatus.REMOVED, GetStatus.NO_QUEUE)


class Taken:
    """What one pop found. `orders`: of each message, how often it came before."""

    __slots__ = ("bytes", "count", "orders", "pop_time_ms", "records")

    def __init__(self, pop_time_ms: int) -> None:
        self.pop_time_ms = pop_time_ms
        self.records: list[memoryview] = []
        self.orders: list[str] = []
        self.count = self.bytes = 0


class LitePops:
    """Reads, and takes acknowledgements of, messages of lite topics."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: Store,
        tables: Tables,
        stats: Stats,
        subscriptions: LiteSubscriptions,
        events: LiteEvents,
        ordered: OrderedPops,
    ) -> None:
        self._settings = settings
        self._store = store
        self._offsets = tables.offsets
        self._stats = stats
        self._subscriptions = subscriptions
        self._events = events
        self._ordered = ordered
        self._memory = LogMemory(settings, store)
        self.block_ends = BlockEnds(ordered, events.free_queue, enabled=lambda: settings.wake_after_order_block)

    def take(self, h: PopLiteHeader) -> Taken:
        """Pop messages for a client; it finds none if it did not subscribe with this group to this topic."""
        taken, subscription = Taken(now_ms()), self._subscriptions.clients.get(h.client_id)
        if subscription is None or (subscription.subscriber.group, subscription.topic) != (h.group, h.topic):
            return taken
        events = self._events.polled(subscription.subscriber)
        looked_at = 0
        for queue in self._events.taken(subscription):
            self._take_of(taken, h, queue)
            looked_at += 1
            if taken.count >= h.count_max or taken.bytes >= self._settings.pull_bytes_max:
                break
        if looked_at and not events.names:
            self._events.emptied(h.client_id, h.group)
        if taken.count:
            took_ms = (machine.time() * 1000) - taken.pop_time_ms
            self._stats.pulled(h.group, h.topic, QUEUE_ID, taken.count, taken.bytes, took_ms, h.topic)
        else:
            self._stats.missed()
        return taken

    def _take_of(self, taken: Taken, h: PopLiteHeader, queue: str) -> None:
        group, ordered = h.group, self._ordered
        until_ms = ordered.blocked_until_ms(queue, group, QUEUE_ID, h.attempt_id, h.invisible_time_ms)
        if until_ms > taken.pop_time_ms:
            return
        offset = self._begin(queue, group)
        read = self._read(taken, h, queue, offset)
        if read.status in _MOVED and read.next_offset != offset:
            offset = read.next_offset
            self._offsets.commit(group, queue, QUEUE_ID, offset)
            read = self._read(taken, h, queue, offset)
        if not read.count:
            if read.next_offset > offset and read.status not in _MOVED:
                self._offsets.commit(group, queue, QUEUE_ID, read.next_offset)
            return
        offsets = _offsets_of(queue, offset, read)
        items = ordered.given(
            queue,
            group,
            QUEUE_ID,
            offsets,
            attempt_id=h.attempt_id,
            pop_time_ms=taken.pop_time_ms,
            invisible_time_ms=h.invisible_time_ms,
        )
        taken.orders += _orders_of(offsets, items)
        taken.records += read.records
        taken.count += read.count
        taken.bytes += read.size
        self.block_ends.look(queue, group, QUEUE_ID)

    def _read(self, taken: Taken, h: PopLiteHeader, queue: str, offset: int) -> GetMessageResult:
        bytes_max = max(self._settings.pull_bytes_max - taken.bytes, 1)
        return self._store.read(queue, QUEUE_ID, offset, h.count_max - taken.count, bytes_max)

    def _begin(self, queue: str, group: str) -> int:
        reset_to = self._offsets.take_reset(group, queue, QUEUE_ID)
        if reset_to is not None:
            self._ordered.forget(queue, group, QUEUE_ID)
            self._offsets.commit(group, queue, QUEUE_ID, reset_to)
            return reset_to
        offset = self._offsets.get(group, queue, QUEUE_ID)
        if offset is None:
            offset = newest_offset(self._settings, self._store, self._memory, queue, QUEUE_ID)
            self._offsets.commit(group, queue, QUEUE_ID, offset)
        return offset

    def acknowledge(self, queue: str, group: str, offset: int, pop_time_ms: int) -> bool:
        """Acknowledge a message; False for one that was not given out."""
        committed = self._offsets.get(group, queue, QUEUE_ID)
        if offset < (committed or 0):
            return True
        if self._ordered.is_anothers(queue, group, QUEUE_ID, offset, pop_time_ms, committed, self._store):
            return True
        try:
            next_offset = self._ordered.acknowledge(queue, group, QUEUE_ID, offset, pop_time_ms)
        except KeyError:
            return False
        # Of a batch before, nothing is done.
        if next_offset is not None:
            if not self._offsets.is_reset(group, queue, QUEUE_ID):
                end = self._store.stored_range(queue, QUEUE_ID)[1]
                self._offsets.commit(group, queue, QUEUE_ID, min(next_offset, end))
            self.block_ends.look(queue, group, QUEUE_ID)
        return True

    def change_time(
        self, queue: str, group: str, offset: int, pop_time_ms: int, invisible_ms: int, *, suspend: bool
    ) -> int | None:
        """Make a message visible again `invisible_ms` from now, or with `suspend` all of its pop, as if they had not
        been given out; return when, in ms, None for one that is acknowledged.
        """
        if offset < (self._offsets.get(group, queue, QUEUE_ID) or 0):
            return None
        visible_ms = now_ms() + invisible_ms
        if suspend:
            self._ordered.suspend(queue, group, QUEUE_ID, pop_time_ms, visible_ms)
        else:
            self._ordered.change_next_visible(queue, group, QUEUE_ID, offset, pop_time_ms, visible_ms)
        self.block_ends.look(queue, group, QUEUE_ID)
        return visible_ms


def _orders_of(offsets: Sequence[int], items: Sequence[str]) -> list[str]:
    """Return, for each message, the item of orderCountInfo that says how often it was given out before.

    RocketMQ (5.5.0) writes one number for all messages, or an item for each; then it leaves out the messages that were
    never given out. Readers who find fewer items than messages take all messages for new ones, so none is left out
    here.
    """
    if len(items) == 1:
        return [items[0].split(" ")[2]] * len(offsets)
    told = {item.split(" ")[1]: item for item in items[:-1]}
    new = [pop_answers.message_order_count_item(pop_answers.NORMAL, QUEUE_ID, offset, 0) for offset in offsets]
    return [told.get(item.split(" ")[1], item) for item in new]


def _offsets_of(queue: str, start: int, read: GetMessageResult) -> Sequence[int]:
    """Return the offsets in a light queue of what was read of it; some in between may be missing."""
    offsets = range(start, read.next_offset)
    if len(offsets) == read.count:
        return offsets
    found = [
        light_queues.offset_of(queue.encode(), each.properties)
        for view in read.records
        for each in record.decode_all(view, check_crc=False)
    ]
    return [start + number if offset is None else offset for number, offset in enumerate(found)]
