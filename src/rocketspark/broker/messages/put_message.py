"""The only way into the store's log: every message, from clients or the broker itself, is accepted here.

Rule: what may be sent is decided by its `send_rules`, the topic, queue, properties and tags code of a stored record
here, and nothing of it elsewhere: handlers decode and answer. Clients' messages have four ways in: `accept` (a new
message), `accept_again` (one that was stored before), `accept_batch`, `accept_run` (plain sends of one read). Records
of the broker's own have neither a sender whose figures count nor its marks, and take three others: `accept_own` (a
record of pops), and the two halves of `accept_batch`: `accept_layout` (half messages and their ends, which are laid out
already) and `accept_items` (op messages, which have no unique id as `accept_own` asks for).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rocketspark import machine
from rocketspark.broker import topic_names
from rocketspark.broker.consumers.long_polling import LongPolling
from rocketspark.broker.messages import batch_properties
from rocketspark.broker.messages.schedule_messages import ScheduleMessages
from rocketspark.broker.messages.send_rules import (
    NOT_IN_BATCHES,
    PlainSends,
    SendRules,
    illegal,
    items_of,
    layout_of,
    refused,
)
from rocketspark.broker.messages.timers.timer_rules import ADDED_BYTES, TIMER_PROPERTIES, TimerRules, without_times
from rocketspark.broker.statistics.stats import Stats, count
from rocketspark.errors import MessageIllegal, ServerError, StoreError
from rocketspark.protocol.headers import SendHeader
from rocketspark.protocol.light_queues import DISPATCH
from rocketspark.protocol.message import batch, properties, record_layout, sysflags
from rocketspark.protocol.message.message_ids import unique_ids
from rocketspark.protocol.message.record import Record
from rocketspark.store.commitlog.append_message import BatchMessage, PlainMessage
from rocketspark.store.commitlog.batch_append import Batch, Commits, CutBatch, cut_steps
from rocketspark.store.commitlog.dispatch import tags_code
from rocketspark.store.consumequeue.batch_consume_queue import INNER_COUNT_MAX
from rocketspark.store.consumequeue.consume_queue import ConsumeQueue
from rocketspark.store.index.key_hashes import BatchKeys
from rocketspark.store.store import Store

pairs_of = properties.pairs_of
_TAG_CODES_MAX = 100_000
# Of a batch: keys, and messages where each has to be looked at by itself.
BATCH_KEYS_MAX, ITEMS_MAX = 1 << 17, 4096
# Longer tags are hashed each time, so that what is kept stays within some MB.
TAG_KEPT_MAX = 128
# Properties that park a message until a time.
_PARKING = TIMER_PROPERTIES | {b"DELAY"}

# (physical offset, queue offset, physical offset after the record).
Accepted = tuple[int, int, int]


class FixedFields(NamedTuple):
    """Fields of a record's fixed part that are given with a message, by its sender or by the part that stores it.

    `prepared_position`: for a commit, the physical offset of its half message, else 0.
    """

    flag: int
    sys_flag: int
    born_time_ms: int
    born_host: bytes
    reconsume_times: int = 0
    prepared_position: int = 0


class AcceptedBatch(NamedTuple):
    """Where a batch was stored: each physical offset, the first queue offset, the physical offset after the last."""

    positions: Sequence[int] | NDArray[np.int64]
    queue_offset: int
    end: int


class ReadBatch(NamedTuple):
    """A batch that was read before it is stored: layout, and what `batch_properties.read` found; each may be None."""

    layout: batch.Layout | CutBatch | None
    found: batch_properties.Found | None


class Door(Protocol):
    """The way out of a slave that acts for its master: a message that it may not store goes to another broker."""

    def leave(
        self,
        kept: Record,
        topic: str,
        queue_id: int,
        stored: bytes,
        *,
        delayed: bool,
        added_flags: int,
        reconsume_times: int | None,
    ) -> None:
        """Send a message to another broker. Raises MessageStays until that broker has stored it."""


class PutMessage:
    """The way of every message into the store; it also wakes the pulls that wait for the message.

    `rules`: what may be sent; `timer_rules`: None if no timer messages are taken; `timer_arrived`: called when one was
    stored.
    """

    def __init__(
        self,
        store: Store,
        rules: SendRules,
        long_polling: LongPolling,
        delays: ScheduleMessages,
        stats: Stats,
        timer_rules: TimerRules | None = None,
    ) -> None:
        self._store = store
        self._append, self._append_run = store.append, store.append_run
        self._light_grown = store.light_grown
        self.rules = rules
        self._long_polling, self._awaited = long_polling, long_polling.awaited
        self._listeners = long_polling.listeners
        self._delays = delays
        self._stats = stats
        self._timer_rules = timer_rules
        self.timer_arrived: Callable[[], None] = lambda: None
        # On a slave; what was stored before (delayed, half, sent back messages) leaves by it.
        self.door: Door | None = None
        # On a master for which a slave may act. Raises MessageStays while one may.
        self.guard: Callable[[], None] | None = None
        # Of a parked message: a slave that acted sent it to another broker, so nothing is left to do.
        self.has_left: Callable[[Record], bool] = lambda kept: False
        # Of a message that was stored before: its queue may have moved to another broker meanwhile.
        self.queue_now: Callable[[str, int], int] = lambda topic, queue_id: queue_id
        # Called once for what was stored together, not for each message of it.
        self.stored: Callable[[], None] = lambda: None
        self._topic_bytes: dict[str, bytes] = {}
        self._tag_codes: dict[bytes, int] = {}

    # -- properties -----------------------------------------------------------------------------------------------

    def tag_code(self, tags: bytes | None) -> int:
        """Return the hash of tags by which queues filter; 0 without tags."""
        if tags is None:
            return 0
        code = self._tag_codes.get(tags)
        if code is None:
            if len(tags) > TAG_KEPT_MAX:
                return tags_code(tags)
            if len(self._tag_codes) >= _TAG_CODES_MAX:
                self._tag_codes.clear()
            code = self._tag_codes[tags] = tags_code(tags)
        return code

    def topic_bytes(self, topic: str) -> bytes:
        """Return the topic's name as stored."""
        encoded = self._topic_bytes.get(topic)
        if encoded is None:
            encoded = self._topic_bytes[topic] = topic.encode()
        return encoded

    def marked(self, stored: bytes, pairs: dict[bytes, bytes], marks: bytes) -> bytes:
        """Return the properties as they are stored: with a unique id, if they lack one, and the broker's marks."""
        if stored and stored[-1] != 2:
            # Malformed pairs are dropped (rule: 5.5.0).
            stored = properties.of_pairs(pairs)
        if b"UNIQ_KEY" not in pairs:
            unique_id = unique_ids.next().encode()
            pairs[b"UNIQ_KEY"] = unique_id
            stored += b"UNIQ_KEY\x01" + unique_id + b"\x02"
        return stored + marks

    # -- into the store -------------------------------------------------------------------------------------------

    def accept(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        stored: bytes,
        pairs: dict[bytes, bytes],
        fields: FixedFields,
        *,
        delayed: bool = True,
        again: bool = False,
        marks: bytes | None = None,
    ) -> Accepted:
        """Store one message; returns (physical offset, queue offset, physical offset after it).

        `stored`: its properties as sent, `pairs`: the same as a dict. A message with a delay level is parked first,
        unless `delayed` is false. `again`: the message was stored before, so it has its marks, and its body may be
        larger than the present limit. `marks`: properties to be added in place of the usual ones. Raises ServerError:
        13 too large, 14 the store takes nothing now.
        """
        rules = self.rules
        if len(body) > rules.body_bytes_max and not again:
            raise illegal(f"body of {len(body)} bytes, the limit is {rules.body_bytes_max}")
        if marks is None:
            marks = b"" if again else rules.marks
        if b"UNIQ_KEY" in pairs and stored[-1] == 2:
            stored += marks
        else:
            stored = self.marked(stored, pairs, marks)
        if DISPATCH in pairs and not again:
            rules.check_light(self.topic_bytes(topic), (pairs[DISPATCH],))
        tags = pairs.get(b"TAGS")
        now_ms = int(machine.time() * 1000)
        real_topic = topic
        if delayed and not _PARKING.isdisjoint(pairs):
            topic, queue_id, stored, tags, code = self._park(topic, queue_id, stored, pairs, tags, now_ms)
        else:
            code = self.tag_code(tags)
        if len(stored) > properties.BYTES_MAX:
            raise illegal(f"properties of {len(stored)} bytes, the limit is {properties.BYTES_MAX}")
        try:
            accepted = self._append(
                self._topic_bytes.get(topic) or self.topic_bytes(topic),
                queue_id,
                body,
                stored,
                code,
                pairs[b"UNIQ_KEY"],
                pairs.get(b"KEYS"),
                tags,
                now_ms,
                *fields,
                again=again,
            )
        except (StoreError, MessageIllegal, struct.error) as e:
            raise self._refused(e) from e
        self._long_polling.mark(topic, queue_id)
        if self._light_grown:
            self._long_polling.mark_light(self._light_grown)
        self.stored()
        if topic is not real_topic:
            if topic is topic_names.SCHEDULE_TOPIC:
                self._delays.arrived(queue_id + 1)
            else:
                self.timer_arrived()
            count(self._stats.parked, real_topic, accepted[2] - accepted[0])
        return accepted

    def accept_again(
        self,
        kept: Record,
        topic: str,
        queue_id: int,
        stored: bytes,
        pairs: dict[bytes, bytes] | None = None,
        *,
        delayed: bool = False,
        added_flags: int = 0,
        reconsume_times: int | None = None,
        prepared_position: int = 0,
    ) -> Accepted:
        """Store a message that was stored before once more, with `stored` as its properties, as `accept` does.

        Body, flags, birth and, unless given, reconsume times are those of the record `kept`. Raises MessageStays on a
        slave. The queue offset is -1 for a message that left the slave, or a slave before, for another broker.
        """
        if self.guard is not None:
            self.guard()
        if self.has_left(kept):
            return kept.position, -1, kept.position + kept.size
        if self.door is not None:
            self.door.leave(
                kept,
                topic,
                queue_id,
                stored,
                delayed=delayed,
                added_flags=added_flags,
                reconsume_times=reconsume_times,
            )
            return kept.position, -1, kept.position + kept.size
        return self.accept(
            topic,
            self.queue_now(topic, queue_id),
            kept.body,
            stored,
            pairs_of(stored) if pairs is None else pairs,
            FixedFields(
                kept.flag,
                kept.sys_flag & ~record_layout.HOST_FLAGS | added_flags,
                kept.born_time_ms,
                kept.born_host,
                kept.reconsume_times if reconsume_times is None else reconsume_times,
                prepared_position,
            ),
            delayed=delayed,
            again=True,
        )

    def accept_own(
        self, topic: str, queue_id: int, body: bytes, pairs: dict[bytes, bytes], now_ms: int
    ) -> tuple[int, int, bool]:
        """Store a message of the broker's own with just these properties, a unique id among them.

        Returns (physical offset, physical offset after it, whether it waits in the timer wheel). Raises ServerError.
        """
        stored, tags = properties.of_pairs(pairs), pairs.get(b"TAGS")
        unique_id = pairs[b"UNIQ_KEY"]
        real_topic, code = topic, self.tag_code(tags)
        if not _PARKING.isdisjoint(pairs):
            topic, queue_id, stored, tags, code = self._park(topic, queue_id, stored, pairs, tags, now_ms)
        if len(stored) > properties.BYTES_MAX:
            raise illegal(f"properties of {len(stored)} bytes, the limit is {properties.BYTES_MAX}")
        try:
            position, _, end = self._append(
                self.topic_bytes(topic),
                queue_id,
                body,
                stored,
                code,
                unique_id,
                None,
                tags,
                now_ms,
                0,
                0,
                now_ms,
                self._store.store_host,
                0,
                0,
                again=True,
            )
        except (StoreError, MessageIllegal, struct.error) as e:
            raise self._refused(e) from e
        self._long_polling.mark(topic, queue_id)
        self.stored()
        if topic is not real_topic:
            self.timer_arrived()
        return position, end, topic is not real_topic

    def plain_queue(self, plain: PlainSends, queue_id: int) -> ConsumeQueue | None:
        """Return the queue of an id for plain sends; None if it does not exist, or its messages need `accept`."""
        return (
            self._store.plain_queue(self.topic_bytes(plain.topic), queue_id) if queue_id < plain.queue_count else None
        )

    def accept_run(self, messages: list[PlainMessage], born_host: bytes) -> list[tuple[int, int]]:
        """Store plain sends one after another; returns (physical offset, queue offset) of each that was stored.

        It stops before the first that cannot be stored: `accept` tells what is wrong with that one.
        """
        placed = self._append_run(messages, int(machine.time() * 1000), born_host)
        self.stored()
        if self._awaited or self._listeners or self._long_polling.keeps_recent:
            grown = ((message[0].name, message[0].queue_id) for message in messages[: len(placed)])
            for name, queue_id in grown if self._listeners else dict.fromkeys(grown):
                self._long_polling.mark(name, queue_id)
        return placed

    @property
    def end_position(self) -> int:
        """The physical offset after the message stored last."""
        return self._store.written_position

    def check_later(self, topic: str, queue_id: int, stored: bytes, pairs: dict[bytes, bytes]) -> None:
        """Raise ServerError, as `accept` would, if a message asks for a time that cannot be kept, or for light queues
        that cannot be.
        """
        if DISPATCH in pairs:
            self.rules.check_light(topic.encode(), (pairs[DISPATCH],))
        if not _PARKING.isdisjoint(pairs):
            pairs = dict(pairs)
            if b"UNIQ_KEY" not in pairs:
                # An id is made once, when the message is stored; with this one it is as long.
                pairs[b"UNIQ_KEY"] = b"0" * 32
                stored = properties.of_pairs(pairs)
            self._park(
                topic, queue_id, self.marked(stored, pairs, self.rules.marks), pairs, None, int(machine.time() * 1000)
            )

    def _park(
        self,
        topic: str,
        queue_id: int,
        stored: bytes,
        pairs: dict[bytes, bytes],
        tags: bytes | None,
        now_ms: int,
    ) -> tuple[str, int, bytes, bytes | None, int]:
        """Return (topic, queue, properties, tags, tags code) for storing a message that may ask for a later time.

        A delay level overrides a delivery time. Raises ServerError 13 for a time that cannot be kept.
        """
        if stored[-1] != 2:
            stored += b"\x02"
        timed = not TIMER_PROPERTIES.isdisjoint(pairs)
        level = self._delays.level(pairs[b"DELAY"]) if b"DELAY" in pairs else 0
        if level > 0:
            if timed:
                stored = without_times(stored)
            stored += b"REAL_TOPIC\x01%b\x02REAL_QID\x01%d\x02" % (topic.encode(), queue_id)
            pairs[b"REAL_TOPIC"] = topic.encode()
            return topic_names.SCHEDULE_TOPIC, level - 1, stored, None, self._delays.due_ms(level, now_ms)
        # One with TIMER_OUT_MS was on the wheel before: delivered, or sent back by its consumer.
        if (
            timed
            and topic != topic_names.TIMER_TOPIC
            and b"TIMER_OUT_MS" not in pairs
            and self._timer_rules is not None
        ):
            out_ms = self._timer_rules.out_ms(pairs, now_ms)
            if out_ms is not None:
                stored += b"TIMER_OUT_MS\x01%d\x02REAL_TOPIC\x01%b\x02REAL_QID\x01%d\x02" % (
                    out_ms,
                    topic.encode(),
                    queue_id,
                )
                if len(stored) + ADDED_BYTES > properties.BYTES_MAX:
                    raise illegal(
                        f"properties of {len(stored)} bytes, the limit for a timer message is"
                        f" {properties.BYTES_MAX - ADDED_BYTES}"
                    )
                pairs[b"REAL_TOPIC"] = topic.encode()
                pairs[b"TIMER_OUT_MS"] = b"%d" % out_ms
                topic, queue_id = topic_names.TIMER_TOPIC, 0
        return topic, queue_id, stored, tags, self.tag_code(tags)

    def accept_batch(
        self,
        h: SendHeader,
        queue_id: int,
        body: bytes,
        pairs: dict[bytes, bytes],
        born_host: bytes,
        read: ReadBatch | None = None,
    ) -> AcceptedBatch:
        """Store the messages of a batch at consecutive queue offsets, all or none; in a batch queue as one record.

        `pairs`: the properties of the batch as a whole, which that one record gets; `read`: what `read_batch` found.
        Raises ServerError as `accept`.
        """
        as_one = self.rules.check_batch(h, body)
        layout = layout_of(body) if read is None else read.layout
        if as_one and b"UNIQ_KEY" in pairs:
            message_count = len(items_of(body)) if layout is None else layout.message_count
            return self._accept_inner_batch(h, queue_id, body, message_count, pairs, born_host)
        if layout is not None:
            found = None if read is None else read.found
            accepted = self.accept_layout(h.topic, queue_id, layout, h.sys_flag, h.born_time_ms, born_host, found=found)
            if accepted is not None:
                return accepted
        placed = self.accept_items(
            h.topic,
            queue_id,
            items_of(body),
            sys_flag=h.sys_flag,
            born_time_ms=h.born_time_ms,
            born_host=born_host,
        )
        return AcceptedBatch([position for position, _, _ in placed], placed[0][1], placed[-1][2])

    def read_batch(self, h: SendHeader, body: bytes) -> Generator[None, None, ReadBatch]:
        """Read a long batch in pieces, for `accept_batch`. Raises ServerError 13 for a batch that is not allowed."""
        self.rules.check_batch(h, body)
        layout = layout_of(body)
        yield
        if layout is None:
            return ReadBatch(layout, None)
        wanted = batch_properties.Wanted(())
        found = yield from batch_properties.read_steps(layout, pairs_of, self.tag_code, wanted)
        if found[1].count > BATCH_KEYS_MAX:
            raise illegal(f"a batch of {found[1].count} keys, at most {BATCH_KEYS_MAX} are taken: send smaller ones")
        yield
        yield from found[1].hash_steps(h.topic, layout.message_count)
        yield
        if self.rules.alone.isdisjoint(wanted.names):
            return ReadBatch(layout if layout.width else (yield from cut_steps(layout)), found)
        if layout.message_count > ITEMS_MAX:
            raise illegal(
                f"a batch of {layout.message_count} messages some of which have properties that a broker sets:"
                f" at most {ITEMS_MAX} are taken at once"
            )
        return ReadBatch(layout, None)

    def _accept_inner_batch(
        self, h: SendHeader, queue_id: int, body: bytes, message_count: int, pairs: dict[bytes, bytes], born_host: bytes
    ) -> AcceptedBatch:
        """Store a batch as one record."""
        if message_count > INNER_COUNT_MAX:
            raise illegal(f"a batch of {message_count}, the limit is {INNER_COUNT_MAX}")
        base = self._store.stored_range(h.topic, queue_id)[1]
        pairs |= {b"INNER_NUM": b"%d" % message_count, b"INNER_BASE": b"%d" % base}
        position, queue_offset, end = self.accept(
            h.topic,
            queue_id,
            body,
            properties.of_pairs(pairs),
            pairs,
            FixedFields(h.flag, h.sys_flag | sysflags.INNER_BATCH | sysflags.NEED_UNWRAP, h.born_time_ms, born_host),
            delayed=False,
        )
        self._stats.batched(h.topic, message_count)
        return AcceptedBatch([position], queue_offset, end)

    def accept_items(
        self,
        topic: str,
        queue_id: int,
        items: list[batch.BatchItem],
        *,
        sys_flag: int,
        born_time_ms: int,
        born_host: bytes,
    ) -> list[Accepted]:
        """Store the decoded messages of a batch. The broker adds no marks to them, as in RocketMQ."""
        now_ms = int(machine.time() * 1000)
        rows = []
        light = list[bytes]()
        for item in items:
            if len(item.body) > self.rules.body_bytes_max or len(item.properties) > properties.BYTES_MAX:
                raise illegal(
                    f"body {len(item.body)} bytes (limit {self.rules.body_bytes_max}),"
                    f" properties {len(item.properties)} bytes"
                )
            pairs = pairs_of(item.properties)
            stored = self.rules.as_sent(item.properties, pairs, NOT_IN_BATCHES)
            if DISPATCH in pairs:
                light.append(pairs[DISPATCH])
            tags = pairs.get(b"TAGS")
            rows.append(
                BatchMessage(
                    item.body,
                    stored,
                    self.tag_code(tags),
                    pairs.get(b"UNIQ_KEY"),
                    pairs.get(b"KEYS"),
                    tags,
                    item.flag,
                )
            )
        self.rules.check_light(self.topic_bytes(topic), light)
        try:
            accepted = self._store.append_batch(
                self.topic_bytes(topic), queue_id, rows, now_ms, sys_flag, born_time_ms, born_host
            )
        except (StoreError, MessageIllegal, struct.error) as e:
            raise self._refused(e) from e
        self._long_polling.mark(topic, queue_id)
        self._long_polling.mark_light(self._light_grown)
        self.stored()
        self._stats.batched(topic, len(rows))
        return accepted

    def accept_layout(
        self,
        topic: str,
        queue_id: int,
        layout: Batch,
        sys_flag: int,
        born_time_ms: int,
        born_host: bytes,
        commits: Commits | None = None,
        found: tuple[NDArray[np.int64], BatchKeys] | None = None,
    ) -> AcceptedBatch | None:
        """Store a batch as it is laid out, with the result of `accept_items`; None if that has to store it.

        `commits`: given if the batch commits half messages; `found`: what `batch_properties.read` finds, which must be
        given for messages of one shape.
        """
        name = self.topic_bytes(topic)
        if len(born_host) != 8 or sys_flag & sysflags.TRANSACTION_PREPARED:
            return None
        body_bytes, properties_bytes = int(layout.body_bytes.max()), int(layout.properties_bytes.max())
        if body_bytes > self.rules.body_bytes_max or properties_bytes > properties.BYTES_MAX:
            return None
        try:
            if not self._store.takes_layouts(name, queue_id):
                return None
            if found is None:
                assert isinstance(layout, batch.Layout)
                wanted = batch_properties.Wanted(())
                found = batch_properties.read(layout, pairs_of, self.tag_code, wanted)
                if not self.rules.alone.isdisjoint(wanted.names):
                    return None
            accepted = self._store.append_layout(
                name, queue_id, layout, found, int(machine.time() * 1000), sys_flag, born_time_ms, born_host, commits
            )
        except (StoreError, MessageIllegal, struct.error) as e:
            raise self._refused(e) from e
        self._long_polling.mark(topic, queue_id)
        self.stored()
        self._stats.batched(topic, layout.message_count)
        return AcceptedBatch(*accepted)

    def _refused(self, error: StoreError | MessageIllegal | struct.error) -> ServerError:
        """Count a message that the store could not take; return the reply to its sender."""
        if not isinstance(error, struct.error):
            self._stats.put_failures += 1
        return refused(error)
