"""Messages that consumers popped and have not acknowledged: what handlers ask and tell.

Rules: a pop counts once its check point is stored, and the group's offset follows when that is on the disk, in the
order of the pops. What is acknowledged in one turn of the loop for one check point is one record. All of it is in the
revive topic (file mode of RocketMQ 5.5.0); in memory are the check points that are not done, made again at a start.
PopOffsets keeps where the next pop of each queue begins.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from rocketspark.broker import topic_names
from rocketspark.broker.consumers.consumer_offsets import ConsumerOffsets
from rocketspark.broker.messages.put_message import FixedFields, PutMessage, pairs_of
from rocketspark.broker.pop.check_points import CheckPoint, CheckPoints
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.storage.json_tables import now_ms
from rocketspark.errors import ServerError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.text import shown
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.json.pop_records import (
    ACK_TAG,
    BATCH_ACK_TAG,
    CHECK_POINT_TAG,
    AckRecord,
    CheckPointKey,
    CheckPointRecord,
)
from rocketspark.protocol.message.record import Record
from rocketspark.protocol.message.record_layout import HOST_FLAGS
from rocketspark.protocol.pop_answers import GIVEN_BACK_MS, ReceiptHandle

# Topic, group, queue id.
Key = tuple[str, str, int]

LOOK_S = 0.1


class PopOffsets:
    """The offsets up to which queues were popped, until they can be committed."""

    def __init__(self, consumer_offsets: ConsumerOffsets, flushed_position: Callable[[], int]) -> None:
        self._consumer_offsets = consumer_offsets
        self._flushed_position = flushed_position
        # (physical offset after the check point, key, next offset), in the order of the pops.
        self._waiting: deque[tuple[int, Key, int]] = deque()
        # The last of each queue.
        self._next: dict[Key, int] = {}
        self._timer: asyncio.Handle | None = None

    def popped(self, topic: str, group: str, queue_id: int, next_offset: int, end: int) -> None:
        """Note where the next pop of a queue begins, and commit that offset once the log is on the disk up to `end`.

        With 0 as `end` there is nothing to wait for.
        """
        key = topic, group, queue_id
        self.commit_flushed()
        if end <= self._flushed_position() and key not in self._next:
            self._commit(key, next_offset)
            return
        self._next[key] = next_offset
        self._waiting.append((end, key, next_offset))
        if self._timer is None:
            self._arm()

    def _arm(self) -> None:
        try:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)
        except RuntimeError:
            pass  # Without a loop the next pop looks.

    def __len__(self) -> int:
        """How many pops' offsets are not committed yet."""
        return len(self._waiting)

    @property
    def is_waiting(self) -> bool:
        """Tell whether a pop's offset is not committed yet."""
        return bool(self._waiting)

    def next_offset(self, topic: str, group: str, queue_id: int) -> int | None:
        """Return where the next pop of a queue begins; None if it begins at the committed offset."""
        return self._next.get((topic, group, queue_id)) if self._next else None

    def forget(self, topic: str, group: str, queue_id: int) -> None:
        """Drop the offsets of a queue that are not committed yet."""
        key = topic, group, queue_id
        if self._next.pop(key, None) is not None:
            self._waiting = deque(row for row in self._waiting if row[1] != key)

    def clear(self) -> None:
        """Drop all offsets that are not committed yet, as the log may have been cut before them."""
        self._next.clear()
        self._waiting.clear()

    def _look(self) -> None:
        self._timer = None
        self.commit_flushed()
        if self._waiting:
            self._arm()

    def commit_flushed(self, *, everything: bool = False) -> None:
        """Commit the offsets whose check points are on the disk, or (`everything`) all of them."""
        if not self._waiting:
            return
        flushed = self._flushed_position()
        while self._waiting and (everything or self._waiting[0][0] <= flushed):
            _, key, next_offset = self._waiting.popleft()
            self._commit(key, next_offset)
            if self._next.get(key) == next_offset:
                del self._next[key]

    def _commit(self, key: Key, next_offset: int) -> None:
        topic, group, queue_id = key
        if not self._consumer_offsets.is_reset(group, topic, queue_id):
            self._consumer_offsets.commit(group, topic, queue_id, next_offset)

    def stop(self) -> None:
        """Cancel the timer that commits offsets once the log before them is on the disk."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


log = LimitedLog("rocketspark.broker")

# How long before its time a check point is in the revive topic (rule: PopAckConstants.ackTimeInterval, 5.x).
AHEAD_MS = 1000
# Check points that are not done, of some 500 bytes each: no more is popped then.
CHECK_POINTS_MAX = 1_000_000

# Called with the physical offset up to which the log has what was told, or with the error for which it has not.
Tell = Callable[[int, ServerError | None], None]


class Changed(NamedTuple):
    """What is new in the receipt handle of a message whose invisible time was changed."""

    pop_time_ms: int
    invisible_time_ms: int
    revive_queue_id: int


class InFlightMessages:
    """The messages in flight of one broker: popped, and not acknowledged.

    `check_points`: those that are not done; `offsets`: how far queues were popped by check points not on the disk yet.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        put_message: PutMessage,
        consumer_offsets: ConsumerOffsets,
        flushed_position: Callable[[], int],
        *,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self._settings = settings
        self._put_message = put_message
        self._clock = clock
        self.topic = topic_names.REVIVE_TOPIC_PREFIX + settings.cluster_name
        self.check_points = CheckPoints()
        self.offsets = PopOffsets(consumer_offsets, flushed_position)
        # Called with (topic, group) of a retry topic that got a message.
        self.revived: Callable[[str, str], None] = lambda topic, group: None
        # Called when a message was given back that nobody has any more.
        self.given_back: Callable[[], None] = lambda: None
        # True while what is in flight is known, and looked after.
        self.serving = False
        self._pops = 0
        # Records of the revive topic, by topic, group and kind (CK, ACK).
        self.recorded: Counter[tuple[str, str, str]] = Counter()
        # Of this turn: what is acknowledged, by check point, and who is told.
        self._acked: dict[CheckPoint, int] = {}
        self._tells: list[tuple[CheckPoint, Tell]] = []

    # -- pops -----------------------------------------------------------------------------------------------------

    def next_revive_queue(self) -> int:
        """Return the revive queue for one pop request, for the check points of all queues that it reads."""
        self._pops += 1
        return self._pops % self._settings.revive_queue_count

    def record_pop(
        self,
        key: CheckPointKey,
        offsets: Sequence[int],
        *,
        invisible_time_ms: int,
        revive_queue_id: int,
        next_offset: int | None = None,
    ) -> int:
        """Store the check point of messages about to be given out; returns the physical offset after its record.

        `key`: names the topic that the messages are in (a retry topic for retries) and the offset at which the pop
        began to read. `offsets`: of the messages, 32 at most; `next_offset`: where the next pop begins, by default
        after the last of them. The group's offset is committed later. Raises ServerError: then nothing may be given
        out.
        """
        self._check_serving()
        if not 0 < len(offsets) <= 32:
            raise ServerError(ResponseCode.INVALID_PARAMETER, f"{len(offsets)} messages of one pop, 1 to 32 may be")
        if len(self.check_points) >= CHECK_POINTS_MAX:
            raise ServerError(
                ResponseCode.SYSTEM_BUSY, f"{CHECK_POINTS_MAX} pops are not acknowledged: no more are given out"
            )
        if key in self.check_points:
            raise ServerError(ResponseCode.SYSTEM_BUSY, f"{shown(key.topic)} was popped from there in this millisecond")
        record = CheckPointRecord(key, invisible_time_ms, tuple(offsets))
        end = self.store_check_point(record, revive_queue_id)
        after = offsets[-1] + 1 if next_offset is None else next_offset
        self.offsets.popped(key.topic, key.group, key.queue_id, after, end)
        return end

    def _check_serving(self) -> None:
        if not self.serving:
            raise ServerError(
                ResponseCode.SERVICE_NOT_AVAILABLE, "this broker is no master: nothing is popped or acknowledged here"
            )

    def skip(self, topic: str, group: str, queue_id: int, next_offset: int) -> None:
        """Note that a group needs no message of a queue before an offset, e.g. because none has its tags."""
        self.offsets.popped(topic, group, queue_id, next_offset, 0)

    def next_offset(self, topic: str, group: str, queue_id: int) -> int | None:
        """Return where the next pop of a queue begins, if that is not committed yet; None: at the committed offset."""
        return self.offsets.next_offset(topic, group, queue_id)

    def forget(self, topic: str, group: str, queue_id: int) -> None:
        """Forget where the next pop begins, as an offset was set by hand. Messages in flight stay in flight."""
        self.offsets.forget(topic, group, queue_id)

    def delete_topic(self, topic: str) -> None:
        """Count all check points of a deleted topic as done, as its offsets will be those of other messages."""
        self.check_points.delete_topic(topic)
        for each in [each for each in self.recorded if each[0] == topic]:
            del self.recorded[each]

    def give_up(self, points: Iterable[CheckPoint]) -> None:
        """Acknowledge the open messages of check points whose group is deleted with its offsets. Raises ServerError."""
        for point in points:
            if bits := point.all_bits & ~point.acked:
                self.check_points.acknowledge(point, bits)
                self._store_ack(point, bits)

    def count(self, topic: str, group: str, queue_id: int) -> int:
        """Return how many messages of a queue a group popped and has not acknowledged."""
        return self.check_points.count(topic, group, queue_id)

    # -- acknowledgements -----------------------------------------------------------------------------------------

    def ack(
        self, topic: str, group: str, queue_id: int, handle: ReceiptHandle, offset: int, tell: Tell
    ) -> CheckPoint | None:
        """Acknowledge one message.

        `topic`: the topic or retry topic that it is in; `tell`: called with the outcome, at once, or at the end of this
        turn of the loop, and then the check point is returned. A message that is acknowledged already, or was delivered
        again since, counts as acknowledged.
        """
        h = handle
        return self.ack_offsets(
            CheckPointKey(topic, group, queue_id, h.start_offset, h.pop_time_ms, h.broker_name), (offset,), tell
        )

    def ack_offsets(self, key: CheckPointKey, offsets: Iterable[int], tell: Tell) -> CheckPoint | None:
        """Acknowledge the messages of one check point at these offsets, as `ack` does for one message."""
        if not self.serving:
            tell(0, ServerError(ResponseCode.SERVICE_NOT_AVAILABLE, "this broker is no master: acknowledge there"))
            return None
        point = self.check_points.get(key)
        bits = point.bits_of(offsets) if point is not None else 0
        if point is None or not bits & ~point.acked:
            # In this turn it may have been noted and not stored yet.
            if point is not None and point in self._acked:
                self._tells.append((point, tell))
                return point
            tell(0, None)
            return None
        if not self._tells:
            self._at_end_of_turn()
        self._tells.append((point, tell))
        self._acked[point] = self._acked.get(point, 0) | (bits & ~point.acked)
        self.check_points.acknowledge(point, bits)
        return point

    def ack_also(self, point: CheckPoint, offset: int) -> bool:
        """Acknowledge one more message of a check point together with others whose `tell` is not called yet.

        Returns False if that was called, or none is waiting: then `ack` is needed.
        """
        if point not in self._acked or point.is_done or not self.serving:
            return False
        bits = point.bits_of((offset,)) & ~point.acked
        if bits:
            self._acked[point] |= bits
            self.check_points.acknowledge(point, bits)
        return True

    def _at_end_of_turn(self) -> None:
        try:
            asyncio.get_running_loop().call_soon(self.write_acks)
        except RuntimeError:
            pass  # Without a loop whoever works calls it.

    def write_acks(self) -> None:
        """Store the acknowledgements of this turn of the loop."""
        acked, self._acked = self._acked, {}
        tells, self._tells = self._tells, []
        errors: dict[CheckPoint, ServerError] = {}
        end = 0
        for point, bits in acked.items():
            try:
                end = self._store_ack(point, bits)
            except ServerError as e:
                self.check_points.take_back(point, bits)
                errors[point] = e
            except Exception as e:
                log.exception("an acknowledgement could not be noted")
                self.check_points.take_back(point, bits)
                errors[point] = ServerError(ResponseCode.SYSTEM_ERROR, f"the acknowledgement could not be noted: {e}")
        for point, tell in tells:
            try:
                tell(end, errors.get(point))
            except Exception:
                # One that is told must not keep the others waiting.
                log.exception("an acknowledgement could not be answered")

    def _store_ack(self, point: CheckPoint, bits: int) -> int:
        offsets = point.offsets_of(bits)
        record = AckRecord(point.record.key, offsets, is_batch=len(offsets) > 1)
        tag = BATCH_ACK_TAG if record.is_batch else ACK_TAG
        position, end, waits = self._store(
            point.revive_queue_id, tag, record.encode(), record.unique_key(), point.record.next_visible_ms
        )
        self.recorded[point.record.key.topic, point.record.key.group, "ACK"] += 1
        self.check_points.stored_acks(point, bits, position if waits else -1)
        return end

    def change_invisible_time(
        self,
        topic: str,
        group: str,
        queue_id: int,
        handle: ReceiptHandle,
        offset: int,
        invisible_time_ms: int,
        tell: Tell,
        *,
        suspended: bool = False,
    ) -> Changed:
        """Make a message invisible for a time from now on; returns the new handle, as the old one is void then.

        `tell`: as for `ack`. Nothing is stored for a message that was acknowledged or delivered again since.
        `suspended`: its next delivery does not count as a further attempt. Raises ServerError: then the old handle
        stays valid.
        """
        self._check_serving()
        # Never the key of the check point before, so that its acknowledgement is not the new one's.
        pop_time_ms = max(self._clock(), handle.pop_time_ms + 1)
        changed = Changed(pop_time_ms, invisible_time_ms, handle.revive_queue_id)
        old = CheckPointKey(topic, group, queue_id, handle.start_offset, handle.pop_time_ms, handle.broker_name)
        point = self.check_points.get(old)
        if point is None or not point.bits_of((offset,)) & ~point.acked:
            tell(0, None)
            return changed
        key = CheckPointKey(topic, group, queue_id, offset, pop_time_ms, handle.broker_name)
        while key in self.check_points:
            pop_time_ms += 1
            key = key._replace(pop_time_ms=pop_time_ms)
        record = CheckPointRecord(key, invisible_time_ms, (offset,), suspended=suspended)
        self.store_check_point(record, point.revive_queue_id)
        self.ack_offsets(old, (offset,), tell)
        if invisible_time_ms == GIVEN_BACK_MS:
            self.given_back()
        return changed._replace(pop_time_ms=pop_time_ms, revive_queue_id=point.revive_queue_id)

    # -- records --------------------------------------------------------------------------------------------------

    def store_check_point(
        self, record: CheckPointRecord, revive_queue_id: int, *, instead_of: CheckPoint | None = None
    ) -> int:
        """Store a check point and keep it in memory; returns the physical offset after it. Raises ServerError.

        `instead_of`: the check point that it replaces, which is done then.
        """
        position, end, _ = self._store(
            revive_queue_id,
            CHECK_POINT_TAG,
            record.encode(),
            record.unique_key(),
            record.next_visible_ms - AHEAD_MS,
        )
        self.recorded[record.key.topic, record.key.group, "CK"] += 1
        if instead_of is not None:
            self.check_points.remove(instead_of)
        self.check_points.add(CheckPoint(record, revive_queue_id, position))
        return end

    def take_over(self, stored: Record, queue_id: int) -> None:
        """Copy a record from another revive topic into this broker's, unchanged. Raises ServerError."""
        self._put_message.accept(
            self.topic,
            queue_id,
            stored.body,
            stored.properties,
            pairs_of(stored.properties),
            FixedFields(stored.flag, stored.sys_flag & ~HOST_FLAGS, stored.born_time_ms, stored.born_host),
            delayed=False,
            again=True,
        )

    def _store(
        self, queue_id: int, tag: bytes, body: bytes, unique_key: bytes, deliver_ms: int
    ) -> tuple[int, int, bool]:
        """Store a record for the revive topic. Returns (physical offset, physical offset after it, whether it waits in
        the timer wheel for its time).
        """
        pairs = {b"TAGS": tag, b"TIMER_DELIVER_MS": b"%d" % deliver_ms, b"UNIQ_KEY": unique_key}
        return self._put_message.accept_own(self.topic, queue_id, body, pairs, self._clock())
