"""Finds in the log which messages are in flight, when a broker begins to serve pops.

Rule: a check point is in flight if it waits in the timer wheel, or lies in the part of a revive queue that is not done;
its acknowledgements are in the same places. After a kill the offsets of groups are raised by the check points that are
newer than consumerOffset.json, so that nothing is given out twice."""

from __future__ import annotations

import os
from collections.abc import Iterator

from rocketspark.broker import topic_names
from rocketspark.broker.consumers.consumer_offsets import ConsumerOffsets
from rocketspark.broker.messages.timers.timer_messages import TimerMessages
from rocketspark.broker.pop.check_points import CheckPoint
from rocketspark.broker.pop.in_flight import InFlightMessages
from rocketspark.broker.pop.revive import Revive, records_of
from rocketspark.errors import ProtocolError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.text import whole_number
from rocketspark.protocol.json import pop_records
from rocketspark.protocol.json.pop_records import AckRecord, CheckPointKey, CheckPointRecord
from rocketspark.protocol.message import properties
from rocketspark.protocol.message.record import Record
from rocketspark.store.store import Store

log = LimitedLog("rocketspark.broker")

# How much older than its file's time the content of consumerOffset.json may be.
OFFSETS_AGE_MS = 10_000


class Rebuild:
    """Finds which messages are in flight. `run` is called once, after timer messages and revive queues begin."""

    def __init__(
        self, store: Store, timers: TimerMessages, in_flight: InFlightMessages, revive: Revive, broker_name: str
    ) -> None:
        self._store = store
        self._timers = timers
        self._in_flight = in_flight
        self._revive = revive
        self._broker_name = broker_name
        self._acks: list[tuple[AckRecord, int]] = []

    def run(self) -> None:
        """Fill `InFlightMessages.check_points` anew."""
        points = self._in_flight.check_points
        points.clear()
        self._read_revive_queues()
        self._drop_those_of_before()
        for stored, pairs in self._waiting():
            found = self._decoded(stored)
            if isinstance(found, AckRecord):
                self._acks.append((found, stored.position))
            elif found is not None and self._revive.is_of_before(found.key, stored):
                points.note_past(found)
            elif found is not None and not points.was_done(found):
                known = points.get(found.key)
                if known is None:
                    queue_id = whole_number(pairs.get(b"REAL_QID")) or 0
                    self._revive.read_too(queue_id)
                    points.add(CheckPoint(found, queue_id, stored.position))
                elif known.position < 0:
                    known.position = stored.position
        for ack, position in self._acks:
            point = points.get(ack.key)
            if point is not None:
                bits = point.bits_of(ack.offsets)
                points.acknowledge(point, bits)
                points.stored_acks(point, bits, position if position not in point.ack_positions else -1)
        self._acks.clear()
        if len(points):
            log.info("%d pops are not acknowledged wholly", len(points))

    def _drop_those_of_before(self) -> None:
        """Take check points as done that came out of the timer wheel after their topic was deleted.

        Where they were stored first tells, which the timers' topic has.
        """
        points, is_foreign = self._in_flight.check_points, self._revive.messages.is_foreign
        doubted = {
            point.record.key
            for point in points
            if self._store.made_at(point.record.key.topic) is not None and not is_foreign(point.record.key)
        }
        if not doubted:
            return
        since_ms = min(key.pop_time_ms for key in doubted) - OFFSETS_AGE_MS
        for found, stored in self._sent_since(since_ms):
            if found.key in doubted and self._revive.is_of_before(found.key, stored):
                point = points.get(found.key)
                if point is not None:
                    points.remove(point)
                    points.note_past(found)

    def _topics(self) -> tuple[str, ...]:
        """Return the revive topic, and those of former names."""
        return self._in_flight.topic, *self._revive.names.revive_topics()

    def _waiting(self) -> Iterator[tuple[Record, dict[bytes, bytes]]]:
        for topic in self._topics():
            yield from self._timers.waiting(topic)

    def _sent_since(self, since_ms: int) -> Iterator[tuple[CheckPointRecord, Record]]:
        """Yield the check points sent to the timer wheel since then, with their records."""
        offset = self._store.offset_at_time(topic_names.TIMER_TOPIC, 0, since_ms)
        for topic in self._topics():
            for stored, _ in self._timers.sent_for(topic, offset):
                found = self._decoded(stored)
                if isinstance(found, CheckPointRecord):
                    yield found, stored

    def take_over(self, consumer_offsets: ConsumerOffsets) -> None:
        """Copy what former revive topics still hold into the present one, before that is read: the records of popped
        messages that were neither acknowledged nor given out again. A slave that acts leaves that to its master.
        """
        if self._store.log.is_replica:
            return
        group = topic_names.REVIVE_GROUP
        taken: list[tuple[str, int, int]] = []
        for topic in self._revive.names.revive_topics():
            count = 0
            for queue_id in list(self._store.queues().get(topic, ())):
                last = self._store.stored_range(topic, queue_id)[1] - 1
                done = consumer_offsets.get(group, topic, queue_id)
                for _, stored in records_of(self._store, topic, queue_id, 0 if done is None else done + 1):
                    self._in_flight.take_over(stored, queue_id)
                    count += 1
                if last >= 0 and done != last:
                    taken.append((topic, queue_id, last))
            if count:
                log.warning("%d records about popped messages are taken over from %s", count, topic)
        if taken:
            # Before they count as done: else the power might take what they are now.
            self._store.flush_log()
        for topic, queue_id, last in taken:
            consumer_offsets.commit(group, topic, queue_id, last)

    def _read_revive_queues(self) -> None:
        """Take the check points of each revive queue that are not done, and note the acknowledgements of all."""
        points, topic = self._in_flight.check_points, self._in_flight.topic
        for queue in self._revive.queues.values():
            # What slots that are not done may have put there before a kill.
            since = self._store.offset_at_time(topic, queue.queue_id, self._timers.read_ms) if queue.read else 0
            for offset, stored in records_of(self._store, topic, queue.queue_id, min(since, queue.read)):
                found = self._decoded(stored)
                if isinstance(found, AckRecord):
                    self._acks.append((found, -1))
                elif found is not None and offset < queue.read:
                    points.note_past(found)
        for queue_id in self._revive.queues:
            self._revive.read_all(queue_id)

    def _decoded(self, stored: Record) -> CheckPointRecord | AckRecord | None:
        """Return what a record notes; None if it cannot be read, which is told where it is due."""
        tag = properties.find(stored.properties, b"TAGS")
        try:
            if tag == pop_records.CHECK_POINT_TAG:
                return pop_records.decode_check_point(stored.body, self._broker_name)
            if tag in (pop_records.ACK_TAG, pop_records.BATCH_ACK_TAG):
                is_batch = tag == pop_records.BATCH_ACK_TAG
                return pop_records.decode_ack(stored.body, self._broker_name, is_batch=is_batch)
        except ProtocolError:
            pass
        return None

    # -- offsets --------------------------------------------------------------------------------------------------

    def offsets(self, consumer_offsets: ConsumerOffsets, saved_ms: int, since: int) -> None:
        """Raise committed offsets by the check points that are newer than the saved offsets.

        `saved_ms`: when consumerOffset.json was written; `since`: a physical offset before which all offsets were
        saved.
        """
        furthest: dict[tuple[str, str, int], int] = {}
        for found in self._newer(saved_ms - OFFSETS_AGE_MS, since):
            key: CheckPointKey = found.key
            # The queue that another broker's check point names is one of that broker.
            if not found.re_puts and found.offsets and not self._revive.messages.is_foreign(key):
                queue = key.topic, key.group, key.queue_id
                furthest[queue] = max(furthest.get(queue, 0), found.offsets[-1] + 1)
        for (topic, group, queue_id), offset in furthest.items():
            # Who popped a topic that was made anew read it since.
            consumer_offsets.asked(group, topic, queue_id)
            # Not beyond what there is.
            offset = min(offset, self._store.stored_range(topic, queue_id)[1])
            committed = consumer_offsets.get(group, topic, queue_id)
            if (committed is None or committed < offset) and not consumer_offsets.is_reset(group, topic, queue_id):
                consumer_offsets.commit(group, topic, queue_id, offset)

    def _newer(self, since_ms: int, since: int) -> Iterator[CheckPointRecord]:
        gone: set[CheckPointKey] = set()
        for found, stored in self._sent_since(since_ms):
            if stored.position < since or self._revive.is_of_before(found.key, stored):
                gone.add(found.key)
            else:
                yield found
        # Those whose time was over at once never were in the wheel.
        queues = [(topic, queue_id) for topic in self._topics() for queue_id in self._store.queues().get(topic, ())]
        for topic, queue_id in queues:
            start = self._store.offset_at_time(topic, queue_id, since_ms)
            for _, stored in records_of(self._store, topic, queue_id, start):
                came = self._decoded(stored)
                if not isinstance(came, CheckPointRecord) or came.key.pop_time_ms < since_ms:
                    continue
                # Out of the wheel it may have come after the topic was deleted, or offsets were set.
                if (
                    came.key not in gone
                    and stored.position >= since
                    and not self._revive.is_of_before(came.key, stored)
                ):
                    yield came


def saved_ms(path: str) -> int:
    """Return when a file was last written, in ms since 1970; 0 if there is none."""
    try:
        return int(os.stat(path).st_mtime * 1000)
    except OSError:
        return 0
