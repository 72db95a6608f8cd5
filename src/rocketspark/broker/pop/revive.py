"""The second delivery of messages that were popped and not acknowledged in time: into the group's retry topic.

Rules (PopReviveService, 5.5.0): a check point comes out of the timer wheel into its revive queue. A second after its
invisible time its open messages go to the retry topic, with one attempt more; messages that a consumer gave back (an
invisible time of 1 ms) go there at once. The revive group's offset is that of the record up to which all is done. What
was delivered before a kill is not delivered again. A message that can never be delivered goes into the quarantine, the
others go on; for a message that cannot be stored now the check point is stored again, with a later time."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Hashable, Iterator

from rocketspark import machine
from rocketspark.broker import topic_names
from rocketspark.broker.consumers.consumer_offsets import ConsumerOffsets
from rocketspark.broker.consumers.subscription_groups import SubscriptionGroups
from rocketspark.broker.messages.parked_messages import DeliveryRecovery, decode_mended
from rocketspark.broker.messages.put_message import PutMessage, pairs_of
from rocketspark.broker.messages.quarantine import Quarantine, fails_again
from rocketspark.broker.pop.check_points import CheckPoint, GoneMessages, LateCheckPoints
from rocketspark.broker.pop.in_flight import InFlightMessages
from rocketspark.broker.pop.popped_messages import FormerNames, PoppedMessages
from rocketspark.broker.repeated_work import LOOK_S
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.storage.json_tables import now_ms
from rocketspark.broker.topics import Topics
from rocketspark.errors import MessageStays, ProtocolError, RecordError, RocketSparkError, ServerError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.text import shown
from rocketspark.protocol import pop_answers
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.json import pop_records
from rocketspark.protocol.json.bodies import Quarantined
from rocketspark.protocol.json.pop_records import CheckPointKey, CheckPointRecord
from rocketspark.protocol.message import properties, record_crc
from rocketspark.protocol.message.record import Record
from rocketspark.protocol.pop_answers import GIVEN_BACK_MS, RETRY_V1, RETRY_V2
from rocketspark.store.consumequeue.consume_queue import GAP_SIZE
from rocketspark.store.store import Store

log = LimitedLog("rocketspark.broker")

KIND = "pop"
# So long after their time messages are delivered again: acknowledgements on their way still count.
GRACE_MS = 1000
# What was given back is looked for so soon: at most 50 times a second, whatever is asked.
SOON_S = 0.02
# The pauses between attempts to deliver what cannot be stored.
RE_PUT_S = (10, 20, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
SCAN_COUNT = 64
RETRY_S = 1.0
# Before a message on another broker is looked for again.
ASK_MS = 500
TURN_S = 0.01

FIRST_POP_TIME, ORIGIN_GROUP = b"1ST_POP_TIME", properties.ORIGIN_GROUP.encode()


class ReviveQueue:
    """One revive queue. `read`: the next offset to read; `open`: by offset, the check points that are not done."""

    __slots__ = ("open", "queue_id", "read")

    def __init__(self, queue_id: int, read: int) -> None:
        self.queue_id = queue_id
        self.read = read
        self.open: dict[int, CheckPoint] = {}

    def done_before(self) -> int:
        """Return the offset before which every check point is acknowledged or its messages were delivered again."""
        while self.open:
            offset = next(iter(self.open))
            if not self.open[offset].is_done:
                return offset
            del self.open[offset]
        return self.read


class Revive:
    """The revive service of one broker. `start` runs it on the loop; tests without a loop call `work` for each step."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: Store,
        put_message: PutMessage,
        topics: Topics,
        groups: SubscriptionGroups,
        consumer_offsets: ConsumerOffsets,
        in_flight: InFlightMessages,
        quarantine: Quarantine,
        *,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self._settings = settings
        self._store = store
        self._put_message = put_message
        self._topics = topics
        self._groups = groups
        self._consumer_offsets = consumer_offsets
        self._in_flight = in_flight
        self._quarantine = quarantine
        self._clock = clock
        quarantine.retries(KIND, self._retry)
        in_flight.given_back = self._soon
        self.late = LateCheckPoints(in_flight.check_points, self._put_late)
        self.names = FormerNames(settings, topics)
        self.messages = PoppedMessages(settings, store, self.names)
        self._gone = GoneMessages(in_flight.check_points, self.messages.lowest, lambda: store.min_position)
        self.queues: dict[int, ReviveQueue] = {}
        # (when, number, check point) of what is in a revive queue.
        self._due: list[tuple[int, int, CheckPoint]] = []
        self._numbers = 0
        self._timer: asyncio.TimerHandle | None = None
        self._armed_s = self._due_s = 0.0
        self._delivered: DeliveryRecovery | None = None
        self._delivered_to: dict[int, int] = {}
        # How far queues are done, to be committed once the log is on the disk up to a position.
        self._noted: tuple[int, dict[int, int]] | None = None
        # How many messages were delivered again since the start.
        self.revived_count = 0

    # -- start and stop -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Set where each revive queue is read from, by its committed offset; `rebuild` finds the messages in flight."""
        self.queues.clear()
        self._due.clear()
        self._delivered_to.clear()
        self._noted = None
        topic = self._in_flight.topic
        ids = {*range(self._settings.revive_queue_count), *self._store.queues().get(topic, ())}
        since_ms: int | None = None
        for queue_id in sorted(ids):
            low, high = self._store.stored_range(topic, queue_id)
            # The committed offset is that of the last record that is done.
            done = self._consumer_offsets.get(topic_names.REVIVE_GROUP, topic, queue_id)
            start = min(max(low, 0 if done is None else done + 1), high)
            if done is not None and done >= high > 0:
                # The power took the last ones that were done: what comes in their place is not.
                self._consumer_offsets.commit(topic_names.REVIVE_GROUP, topic, queue_id, high - 1)
            self.queues[queue_id] = ReviveQueue(queue_id, start)
            if start < high:
                self._delivered_to[queue_id] = high
                stored_ms = self._store.store_time_at(topic, queue_id, start)
                if stored_ms >= 0:
                    since_ms = stored_ms if since_ms is None else min(since_ms, stored_ms)
        self._delivered = None
        if since_ms is not None:
            self._delivered = DeliveryRecovery(
                self._store, since_ms, self._store.last_store_time_ms, ORIGIN_GROUP, _delivery_key
            )

    def read_too(self, queue_id: int) -> None:
        """Read one more revive queue: earlier settings had more of them, and its first record is still to come."""
        if queue_id not in self.queues:
            self.queues[queue_id] = ReviveQueue(queue_id, self._store.stored_range(self._in_flight.topic, queue_id)[0])

    def start(self) -> None:
        """Start on the running loop, after `begin` and the rebuild."""
        self._arm(0)

    def stop(self) -> None:
        """Deliver nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.messages.forget_all()

    def _arm(self, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._armed_s, self._due_s = loop.time(), loop.time() + delay_s
        self._timer = loop.call_later(min(delay_s, LOOK_S), self._turn if delay_s <= LOOK_S else self._look)

    def _look(self) -> None:
        """Go on waiting for the interval, which may be a shorter one by now."""
        loop = asyncio.get_running_loop()
        self._due_s = self._armed_s + self._settings.revive_interval_ms / 1000
        left_s = self._due_s - loop.time()
        self._timer = loop.call_later(max(min(left_s, LOOK_S), 0), self._turn if left_s <= LOOK_S else self._look)

    def _soon(self) -> None:
        """Work soon: a message was given back, and nobody is waited for."""
        if self._timer is not None and self._due_s > asyncio.get_running_loop().time() + SOON_S:
            self._timer.cancel()
            self._arm(SOON_S)

    def _turn(self) -> None:
        wait_s = self.work()
        if self._timer is not None:
            self._arm(wait_s)

    # -- work -----------------------------------------------------------------------------------------------------

    def work(self) -> float:
        """Read and deliver a bounded number of messages; return how many seconds to wait before the next call."""
        try:
            return self._work()
        except MessageStays:
            return RETRY_S
        except RocketSparkError as e:
            log.error("popped messages: %s; tried again in %.0f s", e, RETRY_S)
        except Exception:
            log.exception("popped messages: tried again in %.0f s", RETRY_S)
        return RETRY_S

    def _work(self) -> float:
        until = machine.perf_counter() + TURN_S
        more = self._read_until(until)
        now = self._clock()
        more |= self._gone.look(now)
        # Through the door of an acting master they leave to another broker.
        more = more or (self._put_message.door is None and self.late.look(now))
        try:
            while self._due and self._due[0][0] <= now:
                if machine.perf_counter() >= until:
                    more = True
                    break
                if not self._deliver(self._due[0][2]):
                    # Its acknowledgements of this turn are not stored yet.
                    more = True
                    break
                heapq.heappop(self._due)
        finally:
            self.commit()
        return 0.0 if more else self._settings.revive_interval_ms / 1000

    def _read_until(self, until: float) -> bool:
        """Read what came to the queues; True if there may be more."""
        for queue in self.queues.values():
            while self._read_some(queue):
                if machine.perf_counter() >= until:
                    # The next turn begins with the others.
                    self.queues[queue.queue_id] = self.queues.pop(queue.queue_id)
                    return True
        return False

    def commit(self, *, everything: bool = False) -> None:
        """Commit how far each revive queue is done, once what was delivered is on the disk, or (`everything`) now.

        The quarantine's file is written first. Raises StoreError if it cannot be.
        """
        topic = self._in_flight.topic
        if self._noted is None or everything:
            done = {queue.queue_id: queue.done_before() - 1 for queue in self.queues.values()}
            committed = self._consumer_offsets.of(topic_names.REVIVE_GROUP, topic)
            self._noted = (
                self._store.written_position,
                {queue_id: offset for queue_id, offset in done.items() if 0 <= offset != committed.get(queue_id)},
            )
        position, done = self._noted
        if done and (everything or position <= self._store.flushed_position):
            self._quarantine.save()
            for queue_id, offset in done.items():
                self._consumer_offsets.commit(topic_names.REVIVE_GROUP, topic, queue_id, offset)
            done = {}
        if not done:
            self._noted = None
        if self._delivered is not None and all(
            self.queues[queue_id].done_before() >= end for queue_id, end in self._delivered_to.items()
        ):
            self._delivered = None

    def read_all(self, queue_id: int) -> None:
        """Read a revive queue to its end, so that it is known which check points have come out of the timer wheel."""
        queue = self.queues.get(queue_id)
        while queue is not None and self._read_some(queue):
            pass

    def _read_some(self, queue: ReviveQueue) -> bool:
        """Read the next records of a queue; False if there were none."""
        topic = self._in_flight.topic
        low, high = self._store.stored_range(topic, queue.queue_id)
        queue.read = max(queue.read, low)
        count = min(SCAN_COUNT, high - queue.read)
        if count <= 0:
            return False
        units = self._store.queue_units(topic, queue.queue_id, queue.read, count)
        for offset, (position, size, _) in enumerate(units, queue.read):
            if size != GAP_SIZE and position >= self._store.min_position:
                try:
                    self._take(queue, offset, self.messages.record(position))
                except Exception as e:
                    if not fails_again(e):
                        raise
                    self._quarantine.add(KIND, topic, queue.queue_id, offset, position, e)
            queue.read = offset + 1
        return True

    def _take(self, queue: ReviveQueue, offset: int, stored: Record) -> None:
        points, name = self._in_flight.check_points, self._settings.broker_name
        tag = properties.find(stored.properties, b"TAGS")
        if tag == pop_records.CHECK_POINT_TAG:
            found = pop_records.decode_check_point(stored.body, name)
            point = points.get(found.key)
            if point is None:
                if points.was_done(found) or self.is_of_before(found.key, stored):
                    return
                point = CheckPoint(found, queue.queue_id, -1)
                points.add(point)
            if point.revive_offset < 0:
                self.arrived(queue, offset, point)
        elif tag in (pop_records.ACK_TAG, pop_records.BATCH_ACK_TAG):
            ack = pop_records.decode_ack(stored.body, name, is_batch=tag == pop_records.BATCH_ACK_TAG)
            point = points.get(ack.key)
            if point is not None:
                if point.revive_offset < 0:
                    # Its check point is late: until that is done, this record is not done either.
                    queue.open[offset] = point
                bits = point.bits_of(ack.offsets)
                points.acknowledge(point, bits)
                points.stored_acks(point, bits, -1, came_out=True)
        else:
            raise ProtocolError(f"a record with the tag {tag!r} is neither a check point nor an acknowledgement")

    def is_of_before(self, key: CheckPointKey, stored: Record) -> bool:
        """Tell whether a check point is of a deleted topic, whose offsets are now those of other messages."""
        return stored.position < (self._store.made_at(key.topic) or 0) and not self.messages.is_foreign(key)

    def arrived(self, queue: ReviveQueue, offset: int, point: CheckPoint) -> None:
        """Note that a check point came into its revive queue at an offset; it is due after its invisible time."""
        point.revive_offset = offset
        queue.open[offset] = point
        # What was given back nobody can acknowledge: the handle before it is void already.
        self._wait_for(
            point, point.record.next_visible_ms + GRACE_MS * (point.record.invisible_time_ms != GIVEN_BACK_MS)
        )

    def _wait_for(self, point: CheckPoint, due_ms: int) -> None:
        self._numbers += 1
        heapq.heappush(self._due, (due_ms, self._numbers, point))

    # -- delivery -------------------------------------------------------------------------------------------------

    def _deliver(self, point: CheckPoint) -> bool:
        """Deliver what is open of a check point; False if that is not certain yet."""
        points, key = self._in_flight.check_points, point.record.key
        if point.is_done:
            self.messages.forget(key)
            return True
        if point.acked != point.stored:
            return False
        if not self.messages.are_here(key, point.open_offsets):
            self._wait_for(point, self._clock() + ASK_MS)
            return True
        wanted, busy = self._is_wanted(key), dict[int, ServerError]()
        for offset in point.open_offsets:
            if wanted and (error := self._deliver_or_set_aside(point, offset)) is not None:
                busy[offset] = error
            else:
                self._done(point, offset)
        if busy and self._put_message.door is not None:
            # A slave that acts stores no check point.
            self.messages.forget(key)
            self._wait_for(point, self._clock() + RE_PUT_S[0] * 1000)
            return True
        # The check point of the first has this one's key, and takes its place.
        for offset in sorted(busy, key=lambda offset: offset == key.start_offset):
            try:
                self._put_again(point, offset, busy[offset])
            except Exception as e:
                if not fails_again(e):
                    raise
                self._set_aside(point, offset, e)
            if not point.is_done:
                self._done(point, offset)
        if not point.is_done:
            points.remove(point)
        # What took its place asks anew.
        self.messages.forget(key)
        return True

    def _done(self, point: CheckPoint, offset: int) -> None:
        bits = point.bits_of((offset,))
        self._in_flight.check_points.acknowledge(point, bits)
        point.stored |= bits

    def _deliver_or_set_aside(self, point: CheckPoint, offset: int) -> ServerError | None:
        """Deliver a message, or set it aside; return the error of one that cannot be had now."""
        try:
            self._deliver_one(point, offset)
        except Exception as e:
            if isinstance(e, ServerError) and e.code == ResponseCode.SYSTEM_BUSY:
                return e
            if not fails_again(e):
                raise
            self._set_aside(point, offset, e)
        return None

    def _is_wanted(self, key: CheckPointKey) -> bool:
        """Tell whether topic and group are still there."""
        topic = pop_answers.normal_topic(key.topic, key.group)
        if self.messages.is_foreign(key):
            return True  # Its own broker tells, as long as it can be asked.
        if self._topics.get(topic) is None:
            log.warning("what group %s popped of topic %s is dropped: no such topic", shown(key.group), shown(topic))
            return False
        try:
            group = self._groups.get(key.group)
        except ServerError:
            group = None
        if group is None:
            log.warning("what group %s popped of topic %s is dropped: no such group", shown(key.group), shown(topic))
        return group is not None

    def _deliver_one(self, point: CheckPoint, offset: int) -> None:
        key = point.record.key
        stored = self.messages.get(key, offset)
        if stored is None:
            log.warning(
                "a popped message is gone before its second delivery: topic %s, queue %d, offset %d, group %s",
                *(shown(key.topic), key.queue_id, offset, shown(key.group)),
            )
            return
        if 0 <= point.position < stored.position and not self.messages.is_foreign(key):
            # It was stored after the pop: the topic was deleted and made anew.
            return
        attempts = 0 if point.record.suspended else 1
        self._to_retry_topic(stored, key.topic, key.group, key.pop_time_ms, attempts=attempts)

    def _to_retry_topic(self, stored: Record, topic: str, group: str, pop_time_ms: int, *, attempts: int) -> None:
        """Store a message in the retry topic of its group. Raises ServerError, MessageStays."""
        target = topic
        if not topic.startswith(topic_names.RETRY_PREFIX):
            target = pop_answers.retry_topic(topic, group, RETRY_V2 if self._settings.retry_topics_v2 else RETRY_V1)
        self._ensure(target, group)
        times = stored.reconsume_times + attempts
        pairs = pairs_of(stored.properties)
        key = pairs.get(b"UNIQ_KEY"), times, stored.born_time_ms, stored.crc
        # One delivered without another attempt looks as it did the time before: rather twice than never.
        if attempts and self._delivered is not None and self._delivered.take(target, 0, key):
            return
        added = {ORIGIN_GROUP: group.encode()}
        if not stored.reconsume_times or FIRST_POP_TIME not in pairs:
            added[FIRST_POP_TIME] = b"%d" % pop_time_ms
        kept = properties.without(record_crc.without(stored.properties), added.keys())
        text = kept + properties.of_pairs(added)
        if len(text) > properties.BYTES_MAX:
            # Without room for them the message goes without: it counts more.
            text, added = kept, {}
        self._put_message.accept_again(
            stored._replace(born_host=self._store.store_host),
            target,
            0,
            text,
            pairs | added,
            reconsume_times=times,
        )
        self.revived_count += 1
        self._in_flight.revived(target, group)

    def _ensure(self, topic: str, group: str) -> None:
        if self._topics.get(topic) is None:
            self._topics.ensure(topic)
            if self._consumer_offsets.get(group, topic, 0) is None:
                self._consumer_offsets.commit(group, topic, 0, 0)

    def _put_again(self, point: CheckPoint, offset: int, error: ServerError) -> None:
        """Store a check point of one message that could not be delivered, for a later time."""
        old = point.record
        if old.re_puts >= len(RE_PUT_S) and self._settings.re_puts_end:
            log.error(
                "a popped message of topic %s is given up after %d attempts: %s", old.key.topic, old.re_puts, error
            )
            return
        wait_ms = RE_PUT_S[min(old.re_puts, len(RE_PUT_S) - 1)] * 1000
        log.warning("a popped message of topic %s waits %d ms for its delivery: %s", old.key.topic, wait_ms, error)
        again = CheckPointRecord(
            old.key._replace(start_offset=offset),
            old.invisible_time_ms + wait_ms,
            (offset,),
            re_puts=old.re_puts + 1,
            suspended=old.suspended,
        )
        # Of one message alone: the new check point takes its place, once it is stored.
        takes_place = point if again.key == old.key else None
        self._in_flight.store_check_point(again, point.revive_queue_id, instead_of=takes_place)

    def _put_late(self, point: CheckPoint) -> None:
        log.warning(
            "what group %s popped of topic %s is delivered again late: its record did not come out of the timer wheel,"
            " check the disk",
            *(shown(point.record.key.group), shown(point.record.key.topic)),
        )
        again = point.record._replace(acked=point.acked)
        self._in_flight.store_check_point(again, point.revive_queue_id, instead_of=point)

    # -- the quarantine ----------------------------------------------------------------------------------------

    def _set_aside(self, point: CheckPoint, offset: int, error: Exception) -> None:
        key = point.record.key
        low, high = self._store.stored_range(key.topic, key.queue_id)
        position = -1
        if low <= offset < high and not self.messages.is_foreign(key):
            ((position, _, _),) = self._store.queue_units(key.topic, key.queue_id, offset, 1)
        entry = self._quarantine.add(KIND, key.topic, key.queue_id, offset, position, error)
        entry.group = key.group

    def _retry(self, entry: Quarantined) -> None:
        """Deliver a message of the quarantine, or read its record again."""
        stored = self.messages.record(entry.physical_offset)
        if entry.group:
            if stored.topic != entry.topic.encode():
                raise RecordError(f"the record at physical offset {stored.position} is another")
            self._to_retry_topic(stored, entry.topic, entry.group, entry.first_seen_ms, attempts=1)
            return
        queue = self.queues.get(entry.queue_id)
        if queue is not None:
            self._take(queue, entry.queue_offset, stored)


def _delivery_key(stored: Record) -> Hashable | None:
    """Return the identity of a delivery; None for another message."""
    if properties.find(stored.properties, ORIGIN_GROUP) is None:
        return None
    unique_id = properties.find(stored.properties, b"UNIQ_KEY")
    return unique_id, stored.reconsume_times, stored.born_time_ms, stored.crc


def records_of(store: Store, topic: str, queue_id: int, start: int) -> Iterator[tuple[int, Record]]:
    """Yield (offset, record) of a queue's messages from an offset on; those that cannot be read are left out."""
    low, high = store.stored_range(topic, queue_id)
    at = max(low, start)
    while at < high:
        units = store.queue_units(topic, queue_id, at, min(SCAN_COUNT, high - at))
        for offset, (position, size, _) in enumerate(units, at):
            if size == GAP_SIZE or position < store.min_position:
                continue
            found = store.record_at(position)
            if found is not None:
                try:
                    yield offset, decode_mended(found)
                except RecordError:
                    continue
        at += len(units)
