"""Transactions: half messages and their end by commit or rollback.

Rules: a half message ends once, however often its end is told (its unique id tells copies of it from others). An end
counts only if the half queue has the message where it says. Topics and properties are those of
TransactionalMessageServiceImpl, 5.x."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator

from rocketspark.broker import topic_names
from rocketspark.broker.messages.put_message import Accepted, FixedFields, pairs_of
from rocketspark.broker.messages.transactions.half_batches import PreparedBatch
from rocketspark.broker.messages.transactions.half_messages import (
    HALF_GONE,
    KIND,
    HalfMessage,
    TransactionKey,
    half_message,
    quarantine_name,
)
from rocketspark.broker.messages.transactions.transaction_checks import ALONE_MAX, TransactionChecks
from rocketspark.broker.messages.transactions.transaction_recovery import TransactionRecovery
from rocketspark.broker.statistics.histograms import FINISH_BOUNDS
from rocketspark.broker.statistics.stats import count
from rocketspark.broker.storage.json_tables import now_ms
from rocketspark.errors import ServerError
from rocketspark.model.histogram import Histogram
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.headers import EndTransactionHeader
from rocketspark.protocol.json.bodies import Quarantined
from rocketspark.protocol.message import properties, sysflags
from rocketspark.protocol.message.record import Record

log = LimitedLog("rocketspark.broker")

# Properties that belong to the half message alone.
_OF_THE_HALF = frozenset(
    name.encode() for name in (properties.REAL_TOPIC, properties.REAL_QUEUE_ID, properties.RECORD_CRC)
)


class Transactions(TransactionChecks):
    """The open half messages of one broker."""

    _recovery: TransactionRecovery | None = None

    @property
    def open_count(self) -> int:
        """The number of open half messages."""
        return len(self._open) + self.batched.runs.open_count

    @property
    def is_running(self) -> bool:
        """Tell whether half messages are checked here: `start` was called, and `stop` was not since."""
        return self._timer is not None

    def start(self) -> None:
        """Find the open half messages, and check them from time to time. May be called again after `stop`."""
        deque(self.start_in_turns(), 0)

    def start_in_turns(self) -> Iterator[None]:
        """Do what `start` does; it yields where others may have a turn, who neither store nor end half messages."""
        self.batched.runs.clear()
        self._noted = None
        self._op_messages.begin_anew()
        yield from self._recovered()
        self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._check_all)

    def stop(self) -> None:
        """Stop checking, and write the op messages of half messages that ended."""
        self._stop_timer()
        self._op_messages.write()

    def abandon(self) -> None:
        """Stop asking producers about half messages, and write nothing, as a kill would."""
        self._stop_timer()
        self._op_messages.begin_anew()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def finish(self) -> None:
        """Store up to where half queue and op queue are done; called after the store's last flush."""
        self._noted = None
        self._commit_progress()

    def _recovered(self) -> Iterator[None]:
        places = self._store, self._half_messages, self._op_messages, self._quarantine
        self._recovery = TransactionRecovery(*places, self._put_message.has_left)
        self._open = yield from self._recovery.find_open()

    def recovered_queues(self) -> dict[str, set[int]]:
        """Return, by topic, the queues of the transactions that were still open when the broker started."""
        return self._recovery.queues() if self._recovery is not None else {}

    def prepare(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        stored: bytes,
        pairs: dict[bytes, bytes],
        fields: FixedFields,
    ) -> Accepted:
        """Store a half message, invisible until its commit. Raises ServerError as `PutMessage.accept`.

        It is refused also for a delivery time with which its commit could not be stored.
        """
        self.check_room(1, topic, pairs)
        self._put_message.rules.check_half(pairs)
        stored = self._put_message.rules.as_sent(stored, pairs)
        if stored and stored[-1] != 2:
            stored = properties.of_pairs(pairs)
        unique_id, added = pairs.get(b"UNIQ_KEY"), b""
        if unique_id is not None:
            if pairs.pop(b"__transactionId__", None) is not None:
                stored = properties.without(stored, (b"__transactionId__",))
            added = b"__transactionId__\x01%b\x02" % unique_id
        self._put_message.check_later(topic, queue_id, stored + added, pairs)
        stored += b"REAL_TOPIC\x01%b\x02REAL_QID\x01%d\x02" % (topic.encode(), queue_id) + added
        fields = fields._replace(sys_flag=fields.sys_flag & ~sysflags.TRANSACTION_MASK)
        accepted = self._put_message.accept(topic_names.HALF_TOPIC, 0, body, stored, pairs, fields, delayed=False)
        position, queue_offset, end = accepted
        count(self._stats.prepared, topic, end - position)
        texts = {k.decode("utf-8", "replace"): v.decode("utf-8", "replace") for k, v in pairs.items()}
        key = TransactionKey(texts[properties.UNIQUE_ID], texts.get(properties.PRODUCER_GROUP, ""), topic)
        if len(self._alone) < ALONE_MAX:
            self._alone.add((key.group, topic))
        before = self._open.get(key)
        if before is not None:
            # A producer without an answer sends again: one transaction, of which the newest copy counts.
            self._op_messages.add(before.queue_offset)
        self._open[key] = half_message(queue_offset, position, now_ms(), texts)
        return accepted

    def note_batch(self, prepared: PreparedBatch) -> None:
        """Keep the half messages of a stored batch open; open older copies of them end, as the newest copy counts."""
        run = prepared.run
        copies, others = self.batched.add(run)

        def key_of(unique_id: bytes) -> TransactionKey:
            return TransactionKey(unique_id.decode("utf-8", "replace"), run.group, run.topic)

        # A batch is sent again whole; after a start, or a check, its copies are open by themselves.
        if others or (self._open and key_of(prepared.ids[0].tobytes()) in self._open):
            for row, unique_id in enumerate(prepared.ids):
                before = self._open.get(key := key_of(unique_id.tobytes()))
                if before is not None and (position := self.batched.take(run.first + row)) is not None:
                    copies.append(before.queue_offset)
                    self._open[key] = HalfMessage(
                        run.first + row, position, run.since_ms, run.immunity_ms, 0, before.group
                    )
            copies.sort()
        for offset in copies:
            self._op_messages.add(offset)

    def note_ended(self, offsets: range) -> None:
        """Note that half messages which came in batches ended; `offsets`: in the half queue."""
        self._op_messages.add_all(offsets)

    def end(self, h: EndTransactionHeader, *, same_topic: bool = False) -> int | None:
        """Commit or roll back; returns the physical offset that must be on disk before a commit is safe, else None.

        `same_topic`: the header must name the message's topic. Raises ServerError 1 if the header does not fit the half
        message, or if a commit would deliver nothing. A repeated end does nothing. A half message that was given up can
        still be committed, once (5.5.0 does so more than once).
        """
        half, pairs = self._half_messages.named_by(h, same_topic=same_topic)
        outcome = h.outcome & sysflags.TRANSACTION_MASK
        if outcome not in (sysflags.TRANSACTION_COMMIT, sysflags.TRANSACTION_ROLLBACK):
            return None
        key = TransactionKey.of(pairs, str(half.queue_offset))
        known = self._open_copy(half, key)
        if known is None and self._half_messages.was_committed(key):
            log.info("transaction %s of group %s was committed before", key.unique_id, h.producer_group)
            # The commit may have been just now.
            return self._store.written_position if outcome == sysflags.TRANSACTION_COMMIT else None
        if known is None and self._half_messages.was_given_up(key):
            return self._end_given_up(half, key, outcome)
        entry = None
        if known is None:
            known, entry = self._newest_copy(key)
        if known is None:
            log.info("transaction %s of group %s is not open", key.unique_id, h.producer_group)
            return self._end_unknown(key, outcome)
        end = None
        if outcome == sysflags.TRANSACTION_COMMIT:
            end = self._commit(half, known.position)
        else:
            self._stats.rolled_back[key.topic] = self._stats.rolled_back.get(key.topic, 0) + 1
        self._open.pop(key, None)
        self._op_messages.add(known.queue_offset)
        if known.aside:
            self._quarantine.discard(entry.name if entry is not None else quarantine_name(known.position))
        return end

    def _open_copy(self, half: Record, key: TransactionKey) -> HalfMessage | None:
        """Return the open copy of a half message, if there is one among those in memory."""
        if (found := self.batched.find_open(half.queue_offset)) is not None:
            self._take_over(*found)
        known = self._open.get(key)
        if known is not None and known.queue_offset < half.queue_offset and self._half_messages.was_committed(key):
            # Of a batch, which a copy that comes alone does not replace: the newer one ended before.
            del self._open[key]
            self._op_messages.add(known.queue_offset)
            return None
        return known

    def _newest_copy(self, key: TransactionKey) -> tuple[HalfMessage | None, Quarantined | None]:
        """Return the newest copy of a half message that is not among those in memory, if it can be ended.

        That is if its batch was sent again, or if it is in the quarantine: then with its entry there.
        """
        newest = self._half_messages.newest(topic_names.HALF_TOPIC, key)
        if newest is None:
            return None, None
        if (found := self.batched.find_open(newest.queue_offset)) is not None:
            self._take_over(*found)
            return self._open.get(key), None
        return self._unreadable(newest)

    def _end_unknown(self, key: TransactionKey, outcome: int) -> int | None:
        """Answer the end of a half message that is not open; returns what `end` does."""
        if outcome == sysflags.TRANSACTION_ROLLBACK:
            return None
        if self._store.index_service is None:
            # Nothing tells whether it was committed: most ends that come late were told before.
            return self._store.written_position
        raise ServerError(
            ResponseCode.SYSTEM_ERROR,
            f"{HALF_GONE}: transaction {key.unique_id} was rolled back or is lost",
        )

    def _end_given_up(self, half: Record, key: TransactionKey, outcome: int) -> int | None:
        """Commit or roll back a half message that was given up; returns what `end` does."""
        if outcome == sysflags.TRANSACTION_COMMIT:
            log.info("transaction %s is committed, though it was given up", key.unique_id)
            return self._commit(half, half.position)
        # A newer copy, which is ended: no later commit finds the message given up.
        _, queue_offset, _ = self._put_message.accept_again(half, topic_names.HALF_TOPIC, 0, half.properties)
        self._op_messages.add(queue_offset)
        return None

    def _unreadable(self, newest: Record) -> tuple[HalfMessage | None, Quarantined | None]:
        """Return the newest copy of a half message if it is in the quarantine, and its entry there."""
        for entry in self._quarantine.entries():
            if entry.kind == KIND and entry.queue_offset == newest.queue_offset:
                return HalfMessage(newest.queue_offset, newest.position, 0, 0, 0, "", aside=True), entry
        return None, None

    def _commit(self, half: Record, prepared_position: int) -> int:
        target = topic_names.target_of(pairs_of(half.properties))
        if target is None:
            raise ServerError(ResponseCode.SYSTEM_ERROR, "the half message has no topic and queue it may go to")
        topic, queue_id = target
        stored = properties.without(half.properties, _OF_THE_HALF)
        position, _, end = self._put_message.accept_again(
            half,
            topic,
            queue_id,
            stored,
            delayed=True,
            added_flags=sysflags.TRANSACTION_COMMIT,
            prepared_position=prepared_position,
        )
        count(self._stats.committed, topic, end - position)
        took_s = max(0, now_ms() - half.born_time_ms) // 1000
        self._stats.finished.setdefault(topic, Histogram(FINISH_BOUNDS)).add(took_s)
        return end
