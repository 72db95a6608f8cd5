"""The only way into the store's log: every message, from clients or the broker itself, is accepted here.

Rule: the properties, tags code and topic of a stored record are decided here and nowhere else.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from time import time

import numpy as np
from numpy.typing import NDArray

from rocketspark.broker import topic_names
from rocketspark.broker.consumers.long_polling import LongPolling
from rocketspark.broker.messages import batch_properties
from rocketspark.broker.messages.schedule_messages import ScheduleMessages
from rocketspark.broker.messages.timer_rules import ADDED_BYTES, TIMER_PROPERTIES, TimerRules, without_times
from rocketspark.broker.statistics.stats import Stats, count
from rocketspark.errors import MessageIllegal, ServerError, StoreError, StoreFull
from rocketspark.model.java import string_hash
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.message import batch, properties, sysflags
from rocketspark.protocol.message.message_ids import unique_ids
from rocketspark.store.commitlog.append_message import BatchMessage
from rocketspark.store.store import Store

pairs_of = properties.pairs_of
_TAG_CODES_MAX = 100_000
# Longer tags are hashed each time, so that what is kept stays within some MB.
TAG_KEPT_MAX = 128
# Properties that park a message until a time.
_PARKING = TIMER_PROPERTIES | {b"DELAY"}

Accepted = tuple[int, int, int]


class PutMessage:
    """The way of every message into the store; held pulls are told of it.

    `marks`: properties that the broker adds to every message (region, trace, cluster); `timer_rules`: None takes no
    timer messages; `timer_arrived`: called when one was stored.
    """

    def __init__(
        self,
        store: Store,
        long_polling: LongPolling,
        delays: ScheduleMessages,
        stats: Stats,
        *,
        body_bytes_max: int,
        marks: dict[str, str],
        timer_rules: TimerRules | None = None,
    ) -> None:
        self._store = store
        self._append = store.append
        self._long_polling = long_polling
        self._delays = delays
        self._stats = stats
        self._timer_rules = timer_rules
        self.timer_arrived: Callable[[], None] = lambda: None
        self.configure(body_bytes_max=body_bytes_max, marks=marks)
        self._topic_bytes: dict[str, bytes] = {}
        self._tag_codes: dict[bytes, int] = {}

    def configure(self, *, body_bytes_max: int, marks: dict[str, str]) -> None:
        """Change the limit and the marks from the next message on."""
        self.body_bytes_max = body_bytes_max
        self.marks = properties.encode(marks).encode()
        self.first_mark = next(iter(marks), "").encode()

    def tag_code(self, tags: bytes | None) -> int:
        """Return the hash that filters by tag; 0 without tags."""
        if tags is None:
            return 0
        code = self._tag_codes.get(tags)
        if code is None:
            if len(tags) > TAG_KEPT_MAX:
                return string_hash(tags.decode("utf-8", "replace"))
            if len(self._tag_codes) >= _TAG_CODES_MAX:
                self._tag_codes.clear()
            code = self._tag_codes[tags] = string_hash(tags.decode("utf-8", "replace"))
        return code

    def topic_bytes(self, topic: str) -> bytes:
        """Return the topic's name as stored."""
        encoded = self._topic_bytes.get(topic)
        if encoded is None:
            encoded = self._topic_bytes[topic] = topic.encode()
        return encoded

    def marked(self, stored: bytes, pairs: dict[bytes, bytes]) -> bytes:
        """Return the properties as they are stored: the broker's marks and a unique id added where they lack."""
        if stored and stored[-1] != 2:
            # Malformed pairs are dropped (rule: 5.5.0).
            stored = b"".join([b"%b\x01%b\x02" % pair for pair in pairs.items()])
        if b"UNIQ_KEY" not in pairs:
            unique_id = unique_ids.next().encode()
            pairs[b"UNIQ_KEY"] = unique_id
            stored += b"UNIQ_KEY\x01" + unique_id + b"\x02"
        # A message that was stored before (a retry, a delayed one) has the marks.
        return stored if self.first_mark in pairs else stored + self.marks

    def accept(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        stored: bytes,
        pairs: dict[bytes, bytes],
        flag: int,
        sys_flag: int,
        born_time_ms: int,
        born_host: bytes,
        reconsume_times: int = 0,
        prepared_position: int = 0,
        *,
        delayed: bool = True,
        again: bool = False,
    ) -> Accepted:
        """Store one message; returns (physical offset, queue offset, physical offset after it).

        `stored`: its properties as sent, `pairs` the same as a dict. A message with a delay level is parked first,
        unless `delayed` is false. `again`: it was stored before, so its body may be larger than bodies may be now.
        Raises ServerError: 13 too large, 14 the store takes nothing now.
        """
        if len(body) > self.body_bytes_max and not again:
            raise ServerError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the message is illegal: body of {len(body)} bytes, the limit is {self.body_bytes_max}",
            )
        if b"UNIQ_KEY" in pairs and self.first_mark not in pairs and stored[-1] == 2:
            stored += self.marks
        else:
            stored = self.marked(stored, pairs)
        tags = pairs.get(b"TAGS")
        now_ms = int(time() * 1000)
        real_topic = topic
        if delayed and not _PARKING.isdisjoint(pairs):
            topic, queue_id, stored, tags, code = self._park(topic, queue_id, stored, pairs, tags, now_ms)
        else:
            code = self.tag_code(tags)
        if len(stored) > properties.BYTES_MAX:
            raise ServerError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the message is illegal: properties of {len(stored)} bytes, the limit is {properties.BYTES_MAX}",
            )
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
                flag,
                sys_flag,
                born_time_ms,
                born_host,
                reconsume_times,
                prepared_position,
                again=again,
            )
        except (StoreError, MessageIllegal) as e:
            self._stats.put_failures += 1
            raise refused(e) from e
        except struct.error as e:
            raise out_of_range(e) from e
        self._long_polling.mark(topic, queue_id)
        if topic is not real_topic:
            if topic is topic_names.SCHEDULE_TOPIC:
                self._delays.arrived(queue_id + 1)
            else:
                self.timer_arrived()
            count(self._stats.parked, real_topic, accepted[2] - accepted[0])
        return accepted

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

        A delay level goes before a time. Raises ServerError 13 for a time that cannot be kept.
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
                    raise ServerError(
                        ResponseCode.MESSAGE_ILLEGAL,
                        f"the message is illegal: properties of {len(stored)} bytes, the limit for a timer message is"
                        f" {properties.BYTES_MAX - ADDED_BYTES}",
                    )
                pairs[b"REAL_TOPIC"] = topic.encode()
                pairs[b"TIMER_OUT_MS"] = b"%d" % out_ms
                topic, queue_id = topic_names.TIMER_TOPIC, 0
        return topic, queue_id, stored, tags, self.tag_code(tags)

    def accept_batch(
        self,
        topic: str,
        queue_id: int,
        items: list[batch.BatchItem],
        *,
        sys_flag: int,
        born_time_ms: int,
        born_host: bytes,
    ) -> list[Accepted]:
        """Store the messages of a batch at consecutive queue offsets, all or none. Raises ServerError as `accept`."""
        now_ms = int(time() * 1000)
        rows = []
        for item in items:
            if len(item.body) > self.body_bytes_max or len(item.properties) > properties.BYTES_MAX:
                raise ServerError(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"the message is illegal: body {len(item.body)} bytes (limit {self.body_bytes_max}),"
                    f" properties {len(item.properties)} bytes",
                )
            # Batched messages carry no marks of the broker's (as RocketMQ stores them).
            pairs = pairs_of(item.properties)
            tags = pairs.get(b"TAGS")
            rows.append(
                BatchMessage(
                    item.body,
                    item.properties,
                    self.tag_code(tags),
                    pairs.get(b"UNIQ_KEY"),
                    pairs.get(b"KEYS"),
                    tags,
                    item.flag,
                )
            )
        try:
            accepted = self._store.append_batch(
                self.topic_bytes(topic), queue_id, rows, now_ms, sys_flag, born_time_ms, born_host
            )
        except (StoreError, MessageIllegal) as e:
            self._stats.put_failures += 1
            raise refused(e) from e
        except struct.error as e:
            raise out_of_range(e) from e
        self._long_polling.mark(topic, queue_id)
        self._stats.batched(topic, len(rows))
        return accepted

    def accept_layout(
        self,
        topic: str,
        queue_id: int,
        layout: batch.Layout,
        *,
        sys_flag: int,
        born_time_ms: int,
        born_host: bytes,
    ) -> tuple[NDArray[np.int64], int, int] | None:
        """Store a batch as its sender laid it out, with the effect of `accept_batch`.

        Returns (physical offsets, first queue offset, end); None, with nothing done, if `accept_batch` has to take it.
        """
        name = self.topic_bytes(topic)
        if len(born_host) != 8 or sys_flag & sysflags.TRANSACTION_PREPARED:
            return None
        body_bytes, properties_bytes = int(layout.body_bytes.max()), int(layout.properties_bytes.max())
        if body_bytes > self.body_bytes_max or properties_bytes > properties.BYTES_MAX:
            return None
        try:
            if not self._store.takes_layouts(name, queue_id):
                return None
            codes, keys = batch_properties.read(layout, pairs_of, self.tag_code)
            accepted = self._store.append_layout(
                name, queue_id, layout, codes, keys, int(time() * 1000), sys_flag, born_time_ms, born_host
            )
        except (StoreError, MessageIllegal) as e:
            self._stats.put_failures += 1
            raise refused(e) from e
        except struct.error as e:
            raise out_of_range(e) from e
        self._long_polling.mark(topic, queue_id)
        self._stats.batched(topic, layout.message_count)
        return accepted


def refused(error: StoreError | MessageIllegal) -> ServerError:
    """Return the reply to a sender when the store cannot take a message."""
    if isinstance(error, MessageIllegal):
        return ServerError(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {error}")
    what = "the disk is full" if isinstance(error, StoreFull) else "the store is not writable"
    return ServerError(ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {what}: {error}")


def out_of_range(error: struct.error) -> ServerError:
    """Return the reply to a sender whose header holds a number that no record can."""
    return ServerError(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: a number is out of range: {error}")


def any_queue(count: int) -> int:
    """Return a random queue id below `count`, for senders that leave the choice to the broker."""
    return random.randrange(count) if count > 0 else 0
