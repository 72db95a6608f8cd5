"""Reads messages for one pop, from a topic's queues and the group's retry topics.

Rule: what is read is noted in a check point before it is given out.

Order (PopMessageProcessor, 5.5.0): by chance the retry topic first or last; the queues of the topic one after another,
beginning anywhere. Each queue is read from where the group's last pop ended, and what was read of it goes into the
texts of the reply. A queue is read in one turn of the loop, so that no two pops of a group read it at once; of a topic
of thousands of queues some are read in one turn, and the request goes on with the others in later turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec

from rocketspark import machine
from rocketspark.broker.consumers.message_filters import PopFilter
from rocketspark.broker.parts import StoreReads, Tables
from rocketspark.broker.pop.in_flight import InFlightMessages
from rocketspark.broker.pop.ordered import BlockEnds, OrderedPops
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.storage.log_memory import LogMemory
from rocketspark.broker.storage.tier_reads import ColdMiss
from rocketspark.broker.storage.tiering import Tiering
from rocketspark.broker.topics import has_priorities
from rocketspark.errors import ServerError, StoreError
from rocketspark.model.text import whole_number
from rocketspark.protocol import pop_answers
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.headers import PopHeader
from rocketspark.protocol.headers.pop import INIT_MIN
from rocketspark.protocol.json.pop_records import CheckPointKey
from rocketspark.protocol.message import properties, record, record_layout
from rocketspark.protocol.pop_answers import ORDERED_REVIVE_QUEUE, RETRY_V1, RETRY_V2, ReceiptHandle
from rocketspark.store.get_message import Accepts, GetMessageResult, GetStatus
from rocketspark.store.store import Store

_ORIGIN_GROUP = properties.ORIGIN_GROUP.encode()
_QUEUE_OFFSET = record_layout.only("size", "queue_offset")
# The queue was read from an offset that is not there: it goes on from the one that the read tells.
_MOVED = (GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_TOO_BIG, GetStatus.REMOVED)


# Queues of a topic that are looked at in one turn: some ms.
QUEUES_IN_TURN = 2048

# The attribute of a group: of a hundred pops so many go by priority.
PRIORITY_FACTOR = "priority.factor"


class Round:
    """Which queues of a topic one request has still to look at.

    A round ends once the request has looked at every queue, also at those that changed meanwhile.
    """

    __slots__ = ("_at", "_first", "_left")

    def __init__(self) -> None:
        self._first = self._at = self._left = 0

    @property
    def is_cut(self) -> bool:
        """Whether some queues are left for a later turn."""
        return self._left > 0

    def step(self, count: int, first: int = 0) -> Sequence[int]:
        """Return the ids of the queues to look at in this turn; `count`: how many queues the topic has.

        A new round begins below queue `first` and goes down, around the end.
        """
        if self._left <= 0:
            self._first, self._at, self._left = first, 0, count
        begin, size = self._at, min(self._left, count, QUEUES_IN_TURN)
        self._left = min(self._left, count) - size
        self._at = begin + size
        return [(self._first - 1 - number) % count for number in range(begin, begin + size)]

    def again(self) -> None:
        """Have the round look at every queue once more, as messages may have come to those behind it."""
        if self._left > 0:
            self._left = 1 << 30


class Found:
    """What one pop found, and the texts of its reply.

    `rest`: how many messages are left in the queues it looked at; `cut`: a filter has not looked at all messages yet,
    or not all queues were looked at, or messages are brought from the second tier (`loading`).
    """

    __slots__ = (
        "bytes",
        "count",
        "cut",
        "loading",
        "orders",
        "pop_time_ms",
        "records",
        "rest",
        "revive_queue_id",
        "starts",
        "texts",
    )

    def __init__(self, pop_time_ms: int) -> None:
        self.pop_time_ms = pop_time_ms
        self.revive_queue_id = -1
        self.records: list[bytes | memoryview] = []
        self.count = self.bytes = self.rest = 0
        self.cut = False
        self.loading: asyncio.Future[None] | None = None
        self.starts: list[str] = []
        self.texts: list[str] = []
        self.orders: list[str] = []


def own_retries(topic: str, group: str, accepts: Accepts | None = None) -> Accepts | None:
    """Return a filter that lets only a group's own retries pass, where groups share a retry topic; `accepts` elsewhere.

    RocketMQ gives out all of them, also to a group that may read neither the other topic nor the other group.
    """
    if not pop_answers.may_be_of_others(topic):
        return accepts
    own_group = group.encode()

    def is_own(stored: memoryview) -> bool | None:
        origin = properties.find(record_layout.properties_of(stored), _ORIGIN_GROUP)
        if origin not in (None, own_group):
            return False
        return True if accepts is None else accepts(stored)

    return is_own


class PopReading:
    """Reads the messages that a pop gives out."""

    def __init__(
        self,
        settings: BrokerSettings,
        reads: StoreReads,
        tables: Tables,
        pops: InFlightMessages,
        ordered: OrderedPops,
        block_ends: BlockEnds,
        memory: LogMemory,
    ) -> None:
        self._settings = settings
        self._store = reads.store
        self._stats = reads.stats
        self._tiering = reads.tiering
        self._batch_topics = reads.store.consume_queues.batch_topics
        self._topics = tables.topics
        self._groups = tables.groups
        self._offsets = tables.offsets
        self._pops = pops
        self._ordered = ordered
        self._block_ends = block_ends
        self._memory = memory

    def read(self, h: PopHeader, wanted: PopFilter, address: str, now_ms: int, place: Round) -> Found:
        """Take messages for a request, at most as many as it asks for. Raises ServerError if none can be noted.

        `address`: the consumer's; `place`: which queues it has still to look at, cut if some are left for a later turn.
        """
        found = Found(now_ms)
        try:
            self._read_all(found, h, wanted, address, place)
        except (ServerError, StoreError):
            # What was noted leaves; the rest tells the next pop why it stays.
            if not found.count:
                raise
        return found

    def _read_all(self, found: Found, h: PopHeader, wanted: PopFilter, address: str, place: Round) -> None:
        s = self._settings
        if wanted.accepts is not None:
            wanted.accepts.begin()
        if f"{h.topic}@{h.group}" not in self._offsets.table:
            self._offsets.admit(h.group, h.topic, address)
        chance = machine.randrange(100)
        retries = [] if h.order else self._retry_topics(h.topic, h.group, chance)
        config = self._topics.get(h.topic)
        count = config.read_queue_nums if config is not None else 0
        by_priority = config is not None and has_priorities(config) and not h.order and chance < self._factor(h.group)
        retries_first = chance < (s.pop_retry_percent_by_priority if by_priority else s.pop_retry_percent)
        if retries_first and retries:
            self._read_retries(found, h, wanted, retries[0])
        if h.queue_id >= 0:
            self._read_queue(found, h, wanted, h.topic, h.queue_id)
        else:
            self._read_next(found, h, wanted, count, None if by_priority else chance, place)
        if not retries_first and retries and found.count < h.count_max:
            self._read_retries(found, h, wanted, retries[0])
        if not found.count:
            # RocketMQ leaves the other form of retry topics for a later pop: nobody may come for long.
            for topic in retries[1:]:
                self._read_retries(found, h, wanted, topic)

    def _read_next(
        self, found: Found, h: PopHeader, wanted: PopFilter, count: int, chance: int | None, place: Round
    ) -> None:
        """Take messages from the queues that come next: from one by chance on, or, without a chance, by priority."""
        queues = place.step(count, chance or 0)
        if chance is None and not self._settings.highest_priority_first:
            queues = [count - 1 - queue_id for queue_id in queues]
        self._read_queues(found, h, wanted, queues)
        if place.is_cut:
            self._cut(found, place)

    def _read_queues(self, found: Found, h: PopHeader, wanted: PopFilter, queues: Sequence[int]) -> None:
        for number, queue_id in enumerate(queues):
            if found.count >= h.count_max and not h.order:
                found.rest += self._left(h, queues[number:])
                break
            self._read_queue(found, h, wanted, h.topic, queue_id)

    def _factor(self, group: str) -> int:
        """Return in how many of a hundred pops a group reads a topic by priority (the group's priority.factor)."""
        known = self._groups.table.get(group)
        factor = whole_number(known.attributes.get(PRIORITY_FACTOR)) if known is not None else None
        return 100 if factor is None else factor

    @staticmethod
    def _cut(found: Found, place: Round) -> None:
        if found.count:
            # There may be some in the queues that were not looked at: whoever waits looks.
            found.rest = max(found.rest, 1)
        elif found.cut:
            place.again()
        found.cut = True

    def _left(self, h: PopHeader, queues: Sequence[int]) -> int:
        """Return how many messages of the topic's other queues there are to be popped: 2 us a queue."""
        topic, group, left = h.topic, h.group, 0
        committed = self._offsets.table.get(f"{topic}@{group}", {})
        queue_range, handed_out = self._store.queue_range, self._pops.next_offset
        for queue_id in queues:
            high = queue_range(topic, queue_id)[1]
            offset = committed.get(queue_id)
            if offset is None:
                offset = self._first_offset(topic, queue_id, h.init_mode)
            left += max(high - max(offset, handed_out(topic, group, queue_id) or 0), 0)
        return left

    def _retry_topics(self, topic: str, group: str, chance: int) -> list[str]:
        """Return the retry topics to read, the one first that this pop prefers."""
        s = self._settings
        if not s.retry_topics_v2:
            # Those of the second form are left from when the setting was another.
            return [pop_answers.retry_topic(topic, group, flag) for flag in (RETRY_V1, RETRY_V2)]
        names = [pop_answers.retry_topic(topic, group, RETRY_V2)]
        if s.retry_topics_v1_read:
            names.insert(0 if chance % 2 == 0 else 1, pop_answers.retry_topic(topic, group, RETRY_V1))
        return names

    def _read_retries(self, found: Found, h: PopHeader, wanted: PopFilter, topic: str) -> None:
        config = self._topics.table.get(topic)
        if config is not None:
            for queue_id in range(config.read_queue_nums):
                self._read_queue(found, h, wanted, topic, queue_id)

    def _read_queue(self, found: Found, h: PopHeader, wanted: PopFilter, topic: str, queue_id: int) -> None:
        group, s = h.group, self._settings
        high = self._store.queue_range(topic, queue_id)[1]
        if s.pop_in_flight_limited and self._pops.count(topic, group, queue_id) > s.pop_in_flight_max:
            offset = self.next_offset(topic, group, queue_id, h.init_mode)
            found.rest += max(high - offset, 0)
            return
        offset = self._begin(topic, group, queue_id, h.init_mode)
        if h.order:
            until_ms = self._ordered.blocked_until_ms(topic, group, queue_id, h.attempt_id, h.invisible_time_ms)
            if until_ms > found.pop_time_ms:
                return
        bytes_max = s.pull_bytes_max - found.bytes
        if found.count >= h.count_max or bytes_max <= 0:
            found.rest += max(high - offset, 0)
            return
        if offset == high:
            return
        offset, read = self._read_from(found, h, wanted, topic, queue_id, offset, bytes_max)
        next_offset = read.next_offset
        if read.count:
            offsets: Sequence[int] = range(offset, read.next_offset)
            if len(offsets) != read.count or topic.encode() in self._batch_topics:
                offsets = list(_stored_offsets(read.records))
                if found.count + read.count >= h.count_max and topic.encode() not in self._batch_topics:
                    # What does not match behind the last is left to the next pop, as in RocketMQ.
                    next_offset = offsets[-1] + 1
            self._note(found, h, topic, queue_id, offset, offsets, next_offset)
            self._add_records(found, h, topic, offset, read)
        elif next_offset > offset:
            self._pass_over(h, topic, queue_id, next_offset)
        if wanted.accepts is not None and wanted.accepts.cut:
            found.cut = True
        found.rest += max(read.max_offset - next_offset, 0)

    def _read_from(
        self, found: Found, h: PopHeader, wanted: PopFilter, topic: str, queue_id: int, offset: int, bytes_max: int
    ) -> tuple[int, GetMessageResult]:
        """Read a queue; return from where it was, and what was read."""
        count_max = h.count_max - found.count
        began = machine.perf_counter()
        accepts = own_retries(topic, h.group, wanted.accepts)
        # Batches that come again have no tags of their own; their consumer takes the messages that it wants.
        codes = None if topic != h.topic and h.topic.encode() in self._batch_topics else wanted.codes
        limits, tiering = (count_max, bytes_max, codes, accepts), self._tiering
        read = None
        if tiering is None or not tiering.is_preferred(topic, queue_id, offset):
            read = self._store.read(topic, queue_id, offset, *limits)
        if tiering is not None and (read is None or read.status is GetStatus.OFFSET_TOO_SMALL):
            cold = partial(tiering.read, topic, queue_id, offset, *limits)
            read = self._read_cold(tiering, found, read, (topic, queue_id), offset, cold)
        assert read is not None
        if read.status in _MOVED:
            self._pops.forget(topic, h.group, queue_id)
            self._offsets.commit(h.group, topic, queue_id, read.next_offset)
            offset = read.next_offset
            read = self._store.read(topic, queue_id, offset, count_max, bytes_max, codes, accepts)
        if read.count:
            took_ms = (machine.perf_counter() - began) * 1000
            self._stats.pulled(h.group, topic, queue_id, read.count, read.size, took_ms, h.topic)
        else:
            self._stats.missed()
        return offset, read

    def _read_cold(
        self,
        tiering: Tiering,
        found: Found,
        read: GetMessageResult | None,
        queue: tuple[str, int],
        offset: int,
        cold: Callable[[], GetMessageResult],
    ) -> GetMessageResult:
        """Read from the second tier what the store has not, or (`read` None) what is preferred there; if that is not in
        memory yet, bring it there and find nothing so far.
        """
        low, high = self._store.queue_range(*queue)
        if read is not None and not tiering.has(*queue, offset):
            return msgspec.structs.replace(read, next_offset=low, min_offset=low)
        try:
            return cold()
        except ColdMiss as e:
            found.loading = tiering.load(e.queue, e.offset)
            found.cut = True
            return GetMessageResult(GetStatus.NO_MATCHED, [], 0, 0, offset, low, high)

    def _note(
        self,
        found: Found,
        h: PopHeader,
        topic: str,
        queue_id: int,
        start: int,
        offsets: Sequence[int],
        next_offset: int,
    ) -> None:
        """Note what is given out, in the log or, for an ordered pop, in the table of these."""
        if h.order:
            found.revive_queue_id = ORDERED_REVIVE_QUEUE
            found.orders += self._ordered.given(
                topic,
                h.group,
                queue_id,
                offsets,
                attempt_id=h.attempt_id,
                pop_time_ms=found.pop_time_ms,
                invisible_time_ms=h.invisible_time_ms,
            )
            # A batch in the midst of which it begins is given out whole.
            self._offsets.commit(h.group, topic, queue_id, min(start, offsets[0]))
            self._block_ends.look(topic, h.group, queue_id)
        else:
            if found.revive_queue_id < 0:
                found.revive_queue_id = self._pops.next_revive_queue()
            self._pops.record_pop(
                CheckPointKey(topic, h.group, queue_id, start, found.pop_time_ms, self._settings.broker_name),
                offsets,
                invisible_time_ms=h.invisible_time_ms,
                revive_queue_id=found.revive_queue_id,
                next_offset=next_offset,
            )
        flag = pop_answers.retry_flag(topic)
        found.starts.append(pop_answers.start_offset_item(flag, queue_id, start))
        found.texts.append(pop_answers.message_offsets_item(flag, queue_id, offsets))

    def _pass_over(self, h: PopHeader, topic: str, queue_id: int, next_offset: int) -> None:
        if h.order:
            self._offsets.commit(h.group, topic, queue_id, next_offset)
        else:
            self._pops.skip(topic, h.group, queue_id, next_offset)

    # -- where to begin -------------------------------------------------------------------------------------------

    def next_offset(self, topic: str, group: str, queue_id: int, init_mode: int = INIT_MIN) -> int:
        """Return where the next pop of a queue begins. `init_mode`: where a new group begins (INIT_MIN or INIT_MAX)."""
        committed = self._offsets.get(group, topic, queue_id)
        if committed is None:
            committed = self._first_offset(topic, queue_id, init_mode)
        handed_out = self._pops.next_offset(topic, group, queue_id)
        return committed if handed_out is None else max(committed, handed_out)

    def _begin(self, topic: str, group: str, queue_id: int, init_mode: int) -> int:
        """Return where a pop begins: at an offset that was set by hand, or where the last ended."""
        reset_to = self._offsets.take_reset(group, topic, queue_id)
        if reset_to is not None:
            self._ordered.forget(topic, group, queue_id)
            self._pops.forget(topic, group, queue_id)
            self._offsets.commit(group, topic, queue_id, reset_to)
            return reset_to
        offset = self.next_offset(topic, group, queue_id, init_mode)
        if self._offsets.get(group, topic, queue_id) is None:
            self._offsets.commit(group, topic, queue_id, offset)
        return offset

    def _first_offset(self, topic: str, queue_id: int, init_mode: int) -> int:
        """Return where a group begins that is new to a queue (rule: getInitOffset, 5.5.0)."""
        if init_mode == INIT_MIN or pop_answers.retry_flag(topic) != pop_answers.NORMAL:
            if self._tiering is not None and self._tiering.is_missed(topic, queue_id):
                raise ServerError(ResponseCode.SYSTEM_BUSY, "the second tier is not open yet: ask again")
            return self._store.readable_range(topic, queue_id)[0]
        return newest_offset(self._settings, self._store, self._memory, topic, queue_id)

    # -- records --------------------------------------------------------------------------------------------------

    def _add_records(self, found: Found, h: PopHeader, topic: str, start: int, read: GetMessageResult) -> None:
        found.count += read.count
        if topic == h.topic or self._settings.pop_actual_retry_topic:
            found.records += read.records
            found.bytes += read.size
            return
        for view in read.records:
            for kept in record.decode_all(view, check_crc=False):
                made = self._renamed(found, h, topic, start, kept)
                found.records.append(made)
                found.bytes += len(made)

    def _renamed(self, found: Found, h: PopHeader, topic: str, start: int, kept: record.Record) -> bytes:
        """Return the record of a retry as one of the topic, with its receipt handle."""
        handle = ReceiptHandle(
            start_offset=start,
            pop_time_ms=found.pop_time_ms,
            invisible_time_ms=h.invisible_time_ms,
            revive_queue_id=found.revive_queue_id,
            retry_flag=pop_answers.retry_flag(topic),
            broker_name=self._settings.broker_name,
            queue_id=kept.queue_id,
            queue_offset=kept.queue_offset,
        )
        # A store that was RocketMQ's may hold another one in the message.
        stored = properties.with_value(kept.properties, b"POP_CK", handle.encode().encode())
        return record.encode(
            topic=h.topic.encode(),
            queue_id=kept.queue_id,
            queue_offset=kept.queue_offset,
            position=kept.position,
            body=kept.body,
            properties=stored,
            flag=kept.flag,
            sys_flag=kept.sys_flag,
            born_time_ms=kept.born_time_ms,
            born_host=kept.born_host,
            store_time_ms=kept.store_time_ms,
            store_host=kept.store_host,
            reconsume_times=kept.reconsume_times,
            prepared_position=kept.prepared_position,
        )


def newest_offset(settings: BrokerSettings, store: Store, memory: LogMemory, topic: str, queue_id: int) -> int:
    """Return where a new group begins that wants new messages: at the first if that lies near enough to the log's end
    (rule: checkInMemByConsumeOffset, 5.x), else at the last.
    """
    low, high = store.queue_range(topic, queue_id)
    if settings.pop_init_by_memory and low <= 0 < high and not memory.is_far_behind(topic, queue_id, 0):
        return 0
    return max(high - 1, 0)


def _stored_offsets(views: list[memoryview]) -> Iterator[int]:
    for view in views:
        at = 0
        while at < len(view):
            size, offset = _QUEUE_OFFSET.unpack_from(view, at)
            yield offset
            at += size
