"""Checks of open transactions: producers are asked how they ended, and what was asked about often enough is given up.

Rules: while no producer can be asked, a half message waits, for as long as messages are kept. One that cannot be
checked goes into the quarantine, and the others are checked. Intervals are those of TransactionalMessageServiceImpl,
5.x."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import numpy as np

from rocketspark.broker import topic_names
from rocketspark.broker.consumers.connected_clients import ConnectedClients
from rocketspark.broker.consumers.consumer_offsets import ConsumerOffsets
from rocketspark.broker.messages.put_message import PutMessage
from rocketspark.broker.messages.quarantine import Quarantine, fails_again
from rocketspark.broker.messages.transactions.half_batches import OPEN, BatchedHalves, HalfRun
from rocketspark.broker.messages.transactions.half_messages import (
    CHECK_TIMES,
    GROUP,
    KIND,
    CheckLimits,
    HalfMessage,
    HalfMessages,
    TransactionKey,
    check_request,
    half_message,
    quarantine_name,
)
from rocketspark.broker.messages.transactions.op_messages import OpMessages
from rocketspark.broker.statistics.stats import Stats
from rocketspark.broker.storage.json_tables import now_ms
from rocketspark.errors import MessageStays, RecordError, ServerError, StoreError, TransportError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.json.bodies import Quarantined
from rocketspark.protocol.message import properties
from rocketspark.protocol.message.record import Record
from rocketspark.store.store import Store
from rocketspark.transport.peer import Peer

log = LimitedLog("rocketspark.broker")

# Half messages looked at in one turn of the loop; one that is asked about takes some 50 us.
CHECKS_AT_ONCE = 200
# Those that are not due are looked at only: a twentieth of that.
_LOOKS_PER_CHECK = 20
# A check stores the message anew and sends it: large ones are few in a turn, some 16 MiB.
_BYTES_PER_LOOK = 4096
# Those that nobody can be asked about are stored anew so often at most, and only once the log is this far ahead of
# them: a start looks through the log from the oldest open one on.
REFRESH_INTERVAL_MS = 600_000
REFRESH_BYTES = 1 << 30
# Kept of those that came alone, each with its topic; with so many all are looked up.
ALONE_MAX = 10_000


class TransactionChecks:
    """The open half messages of one broker, and how producers are asked about them: the base of `Transactions`."""

    def __init__(
        self,
        store: Store,
        put_message: PutMessage,
        offsets: ConsumerOffsets,
        clients: ConnectedClients,
        stats: Stats,
        quarantine: Quarantine,
        limits: CheckLimits,
        broker_name: str,
        make_topic: Callable[[str], object] = lambda topic: None,
    ) -> None:
        self._store = store
        self._half_messages = HalfMessages(store, offsets)
        self.check_id = self._half_messages.check_id
        self._op_messages = OpMessages(store, put_message, self._half_messages)
        self.batched = BatchedHalves(store, put_message, stats, self.check_room)
        self._put_message = put_message
        self._offsets = offsets
        self._clients = clients
        self._stats = stats
        self._quarantine = quarantine
        quarantine.retries(KIND, self._retry)
        self._broker_name = broker_name
        self._make_topic = make_topic
        self._timer: asyncio.TimerHandle | None = None
        self.set_limits(limits)
        self._refreshed_ms = now_ms()
        self._open: dict[TransactionKey, HalfMessage] = {}
        # Groups and topics of half messages that came alone.
        self._alone: set[tuple[str, str]] = set()
        # Progress of half and op queue, to be saved once the log is on the disk up to a position.
        self._noted: tuple[int, int, int] | None = None
        self._turn = 0

    def _may_have_come_alone(self, group: str, topic: str) -> bool:
        """Tell whether newer copies of a batch's half messages may have come alone, which do not replace those."""
        return (group, topic) in self._alone or len(self._alone) >= ALONE_MAX

    def check_room(self, more: int, topic: str = "", pairs: dict[bytes, bytes] | None = None) -> None:
        """Raise ServerError 2 if this would be too many, unless the message (topic, pairs) is a copy of an open one."""
        if len(self._open) + self.batched.runs.weight + more > self._limits.open_max:
            key, group = ((pairs or {}).get(k, b"").decode("utf-8", "replace") for k in (b"UNIQ_KEY", b"PGROUP"))
            if TransactionKey(key, group, topic) not in self._open:
                raise self._limits.too_many()

    def set_limits(self, limits: CheckLimits) -> None:
        """Change when and how often half messages are checked; a new interval begins at once."""
        self._limits = limits
        self._interval_s = limits.interval_ms / 1000
        if self._timer is not None:
            self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._check_all)

    def _take_over(self, run: HalfRun, offset: int) -> TransactionKey | None:
        """Make an open half message of a batch one of `_open`; return its key, None for an older copy of one there, or
        of one that was committed.

        Raises RecordError, with the message where it was.
        """
        position = int(run.positions[offset - run.first])
        stored = self._half_messages.record(topic_names.HALF_TOPIC, offset, position)
        pairs = properties.decode(stored.properties.decode("utf-8", "replace"))
        key = TransactionKey.of(pairs, str(offset))
        self.batched.take(offset)
        before = self._open.get(key)
        if before is not None and before.queue_offset > offset:
            self._op_messages.add(offset)
            return None
        if before is not None:
            self._op_messages.add(before.queue_offset)
        elif self._may_have_come_alone(run.group, run.topic) and self._half_messages.was_committed(key):
            self._op_messages.add(offset)
            return None
        self._open[key] = half_message(offset, position, run.since_ms, pairs)
        return key

    def _check_all(self) -> None:
        self._op_messages.write()
        now = now_ms()
        self._refreshed_ms = min(self._refreshed_ms, now)  # The clock was ahead then.
        refresh = now - self._refreshed_ms >= REFRESH_INTERVAL_MS
        if refresh:
            self._refreshed_ms = now
        runs = [run for run in self.batched.runs if run.open_count]
        if self._put_message.door is not None:
            halves = sorted((h.queue_offset, key) for key, h in self._open.items() if not h.aside)
            self._check_due(deque([*runs, *(key for _, key in halves)]), refresh=False)
            return
        for run in runs:
            run.since_ms = min(run.since_ms, now)
            self._drop_gone(run)
        self._check_due(
            deque([*(run for run in runs if run.open_count and self._is_due(run, now)), *self._open]), refresh
        )

    def _is_due(self, half: HalfMessage | HalfRun, now: int) -> bool:
        """Tell whether a half message is to be checked: however long it asks to be left alone, not longer than messages
        are kept (rule: needSkip, 5.x).
        """
        return now - half.since_ms >= max(min(half.immunity_ms, self._limits.reserved_ms), self._limits.timeout_ms)

    def _check_due(self, due: deque[TransactionKey | HalfRun], refresh: bool) -> None:
        """Check the next that are due of these; others have their turn in between."""
        now, oldest, every = now_ms(), self._store.min_position, self._put_message.door is not None
        left = CHECKS_AT_ONCE * _LOOKS_PER_CHECK
        while due and left > 0:
            left -= 1
            half = None
            try:
                if isinstance(key := due.popleft(), HalfRun):
                    left -= _LOOKS_PER_CHECK
                    self._take_next(key, due)
                    continue
                half = self._open.get(key)
                if half is None:
                    continue
                half.since_ms = min(half.since_ms, now)  # The clock was ahead when it came.
                if not every and half.position >= oldest and (half.aside or not self._is_due(half, now)):
                    continue
                left -= _LOOKS_PER_CHECK
                left -= self._check(key, half, refresh=refresh) // _BYTES_PER_LOOK
            except MessageStays as e:
                # In their order, so that the progress tells which have left.
                due.appendleft(key)
                if e.when_ended is not None:
                    e.when_ended(lambda: self._check_due(due, refresh) if self._timer is not None else None)
                    return
                due.clear()
                break
            except Exception as e:
                if isinstance(key, HalfRun) or half is None or not fails_again(e):
                    # A passing error such as a full disk: the next round finds all of them again.
                    log.error("check of open transactions: %s", e)
                    due.clear()
                    break
                self._set_aside(key, half, e)
        loop = asyncio.get_running_loop()
        if due:
            self._timer = loop.call_later(0, self._check_due, due, refresh)
            return
        self._timer = loop.call_later(self._interval_s, self._check_all)
        self._commit_progress()

    def _take_next(self, run: HalfRun, due: deque[TransactionKey | HalfRun]) -> None:
        """Put the next open half message of a batch before those that are due, to be checked by itself."""
        # One of before a stop and a new start is no more: its messages are open by themselves.
        if self.batched.runs.find(run.first) is not run:
            return
        self._drop_gone(run)
        rows = np.flatnonzero(run.states == OPEN)[:1].tolist()
        if not rows:
            return
        offset = run.first + rows[0]
        due.appendleft(run)
        try:
            key = self._take_over(run, offset)
        except Exception as e:
            if not fails_again(e):
                raise
            self._quarantine.add(KIND, topic_names.HALF_TOPIC, 0, offset, int(run.positions[rows[0]]), e)
            self.batched.take(offset)
            return
        if key is not None:
            due.appendleft(key)

    def _drop_gone(self, run: HalfRun) -> None:
        if gone := self.batched.drop_before(run, self._store.min_position):
            log.warning("%d half messages from offset %d on are gone from the log; dropped", gone, run.first)

    def _set_aside(self, key: TransactionKey, half: HalfMessage, error: Exception) -> None:
        """Stop checking a half message and quarantine it; one that cannot be read cannot be ended, so it is closed."""
        self._quarantine.add(KIND, topic_names.HALF_TOPIC, 0, half.queue_offset, half.position, error)
        half.aside = True
        if isinstance(error, RecordError):
            del self._open[key]

    def _retry(self, entry: Quarantined) -> None:
        """Check a half message of the quarantine again."""
        for half in self._open.values():
            if half.queue_offset == entry.queue_offset:
                half.aside = False
                return
        stored = self._half_messages.set_aside_before(entry)
        pairs = properties.decode(stored.properties.decode("utf-8", "replace"))
        key = TransactionKey.of(pairs, str(stored.queue_offset))
        if key in self._open or self._half_messages.was_committed(key):
            log.info("the half message %s has its end and leaves the quarantine", key.unique_id)
            return
        self._open[key] = half_message(stored.queue_offset, stored.position, stored.store_time_ms, pairs)

    def _check(self, key: TransactionKey, half: HalfMessage, *, refresh: bool = False) -> int:
        """Check a half message; returns how many bytes were stored anew."""
        self._turn += 1
        producer = self._clients.producer_to_ask(half.group, key.topic, self._turn)
        asked_enough = half.checks >= self._limits.checks_max
        too_old = now_ms() - half.since_ms >= self._limits.reserved_ms
        given_up = asked_enough or too_old
        far_behind = refresh and self._store.written_position - half.position >= REFRESH_BYTES
        gone = half.position < self._store.min_position
        leaves = self._put_message.door is not None
        if producer is None and not given_up and not far_behind and not gone and not leaves:
            return 0
        if gone:
            log.warning("half message %s at %d is gone from the log; dropped", key.unique_id, half.position)
            del self._open[key]
            self._quarantine.discard(quarantine_name(half.position))
            return 0
        stored = self._half_messages.record(topic_names.HALF_TOPIC, half.queue_offset, half.position)
        if leaves:
            # Another broker has it then, and checks it.
            self._put_message.accept_again(stored, topic_names.HALF_TOPIC, 0, stored.properties)
            del self._open[key]
            return len(stored.body)
        if given_up:
            why = f"{half.checks} checks" if asked_enough else "the time that messages are kept"
            log.warning("half message %s had no end after %s: given up", key.unique_id, why)
            # Made with the first one, so that readers and queries find it (rule: createTopicOfTranCheckMaxTime, 5.x).
            self._make_topic(topic_names.CHECK_MAX_TOPIC)
            self._put_message.accept_again(stored, topic_names.CHECK_MAX_TOPIC, 0, stored.properties)
            del self._open[key]
            self._op_messages.add(half.queue_offset)
            return len(stored.body)
        kept = stored.properties
        if producer is not None:
            kept = properties.with_value(kept, CHECK_TIMES.encode(), b"%d" % (half.checks + 1))
        asked = stored
        try:
            position, queue_offset, _ = self._put_message.accept_again(stored, topic_names.HALF_TOPIC, 0, kept)
        except ServerError as e:
            if e.code != ResponseCode.MESSAGE_ILLEGAL:
                raise
            # Its properties have the largest length, without room for the count: it stays where it is.
        else:
            self._op_messages.add(half.queue_offset)
            half.position, half.queue_offset = position, queue_offset
            asked = self._half_messages.record(topic_names.HALF_TOPIC, queue_offset, position)
        if producer is not None:
            half.checks += 1
            self._ask(producer.peer, key.unique_id, asked)
        return len(stored.body)

    def resume(self, position: int) -> None:
        """Check the half message at a physical offset again, counting checks from 0; it may have been given up.

        Raises ServerError 1 if there is no such half message.
        """
        stored = self._half_messages.told(position)
        if stored is None:
            raise ServerError(ResponseCode.SYSTEM_ERROR, f"no half message at physical offset {position}")
        pairs = properties.decode(stored.properties.decode("utf-8", "replace"))
        given_up = stored.topic.decode() == topic_names.CHECK_MAX_TOPIC
        key = TransactionKey.of(pairs, "")
        run = self.batched.runs.find(stored.queue_offset) if not given_up else None
        if run is not None and run.states[stored.queue_offset - run.first] == OPEN:
            self._take_over(run, stored.queue_offset)
        if key not in self._open and (not given_up or self._half_messages.was_committed(key)):
            raise ServerError(ResponseCode.SYSTEM_ERROR, f"the half message at physical offset {position} was ended")
        pairs[CHECK_TIMES] = "0"
        kept = properties.with_value(stored.properties, CHECK_TIMES.encode(), b"0")
        if len(kept) > properties.BYTES_MAX:
            kept = properties.without(kept, (CHECK_TIMES.encode(),))
        new_position, queue_offset, _ = self._put_message.accept_again(stored, topic_names.HALF_TOPIC, 0, kept)
        before = self._open.get(key)
        if before is not None:
            self._op_messages.add(before.queue_offset)
        self._open[key] = half_message(queue_offset, new_position, now_ms(), pairs)

    def _ask(self, peer: Peer, unique_id: str, half: Record) -> None:
        """Send CHECK_TRANSACTION_STATE to a producer of the group, which answers by END_TRANSACTION."""
        header, body = check_request(half, unique_id, self._broker_name)
        try:
            peer.oneway(RequestCode.CHECK_TRANSACTION_STATE, header, body)
        except TransportError as e:
            log.info("%s could not be asked for transaction %s: %s", peer.address, unique_id, e)

    def _commit_progress(self) -> None:
        """Note how far both queues are done, where a later start begins to read (as CID_RMQ_SYS_TRANS)."""
        _, high = self._store.stored_range(topic_names.HALF_TOPIC, 0)
        if not high:
            return  # As long as there was no transaction the group shows nowhere.
        if self._noted is None:
            done = min((h.queue_offset for h in self._open.values()), default=high)
            oldest = self.batched.runs.oldest_open()
            done = done if oldest is None else min(done, oldest)
            self._noted = (self._store.written_position, *self._op_messages.progress(done))
        if self._noted[0] > self._store.flushed_position:
            return  # A power cut would take the ends away of what is said to have ended: a later round notes it.
        _, half_done, op_done = self._noted
        self._noted = None
        try:
            # The quarantine first: it holds the half messages closed because they cannot be read.
            self._quarantine.save()
        except StoreError as e:
            log.error("%s", e)
            return
        self._offsets.commit(GROUP, topic_names.HALF_TOPIC, 0, half_done)
        self._offsets.commit(GROUP, topic_names.OP_HALF_TOPIC, 0, op_done)
