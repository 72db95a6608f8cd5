"""Transactions: half messages, their end by commit or rollback, the check-back of those left open.

Rules: a half message ends once, however often its end is told (its unique id tells copies of it apart from others).
After a kill the log tells what was committed since the oldest open half message, marked or not, so a commit is neither
lost nor applied twice. While nobody can be asked, a half message waits, for as long as messages are kept.
Topics, properties and intervals: wire.md 9.7, TransactionalMessageServiceImpl 5.x.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import Iterable

import msgspec

from rocketspark.broker import names
from rocketspark.broker.clients import Client, Clients
from rocketspark.broker.config import now_ms
from rocketspark.broker.histograms import FINISH_BOUNDS, Histogram
from rocketspark.broker.intake import Accepted, Intake, pairs_of
from rocketspark.broker.offsets import ConsumerOffsets
from rocketspark.broker.stats import Stats, count
from rocketspark.errors import RocketSparkError, ServerError, TransportError
from rocketspark.protocol import properties, record, sysflags
from rocketspark.protocol.batch import BatchItem
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import CheckTransactionHeader, EndTransactionHeader
from rocketspark.protocol.message_ids import offset_message_id
from rocketspark.protocol.record import Record
from rocketspark.store.store import Store
from rocketspark.transport.peer import Peer

log = logging.getLogger("rocketspark.broker")

GROUP = "CID_RMQ_SYS_TRANS"
ENDED_TAG = "d"
CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
FIRST_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
MARK_BYTES_MAX = 4096
# What a half message's properties say of it alone.
_OF_THE_HALF = frozenset({properties.REAL_TOPIC, properties.REAL_QUEUE_ID, properties.RECORD_CRC})
# Kept so that an end told again long after is still answered from memory; older ones are looked up in the log.
READ_COUNT = 256
# Half messages looked at in one turn of the loop; one that is asked about takes some 50 us.
CHECKS_AT_ONCE = 200
# Those that nobody can be asked about are stored anew so often at most, and only once the log is this far ahead of
# them: a start looks through the log from the oldest open one on.
REFRESH_INTERVAL_MS = 600_000
REFRESH_BYTES = 1 << 30
RESUMED_COUNT_MAX = 32
NEVER_MS = (1 << 63) - 1


class Half(msgspec.Struct):
    """An open half message: where its newest copy is, since when it is open, how often it was checked."""

    queue_offset: int
    position: int
    since_ms: int
    immunity_ms: int
    checks: int
    group: str


class Transactions:
    """The open half messages of one broker.

    `timeout_ms`: age at which a half message is first checked; `interval_ms`: between checks; `checks_max`: after so
    many questions it is given up to TRANS_CHECK_MAX_TIME_TOPIC; `reserved_ms`: at this age too, asked or not.
    """

    def __init__(
        self,
        store: Store,
        intake: Intake,
        offsets: ConsumerOffsets,
        clients: Clients,
        stats: Stats,
        *,
        broker_name: str,
        store_host: bytes,
        timeout_ms: int,
        interval_ms: int,
        checks_max: int,
        reserved_ms: int,
    ) -> None:
        self._store = store
        self._intake = intake
        self._offsets = offsets
        self._clients = clients
        self._stats = stats
        self._broker_name = broker_name
        self._store_host = store_host
        self._timer: asyncio.TimerHandle | None = None
        self.set_limits(timeout_ms=timeout_ms, interval_ms=interval_ms, checks_max=checks_max, reserved_ms=reserved_ms)
        self._refreshed_ms = now_ms()
        self._open: dict[str, Half] = {}
        self._marks: list[int] = []
        # (offset in the op queue, highest half offset it marks): the op queue is done up to where all are behind.
        self._marked: deque[tuple[int, int]] = deque()
        self._turn = 0

    def set_limits(self, *, timeout_ms: int, interval_ms: int, checks_max: int, reserved_ms: int) -> None:
        """Change when and how often half messages are checked; a new interval begins at once."""
        self._timeout_ms = timeout_ms
        self._interval_s = interval_ms / 1000
        self._checks_max = checks_max
        self._reserved_ms = reserved_ms
        if self._timer is not None:
            self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._check_all)

    @property
    def open_count(self) -> int:
        """How many half messages wait for their end."""
        return len(self._open)

    # -- start ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Find the half messages that are open, then check them from time to time."""
        self._recover()
        self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._check_all)

    def stop(self) -> None:
        """Stop checking; write what was ended."""
        if self._timer is not None:
            self._timer.cancel()
        self._write_marks()
        self._commit_progress()

    def _recover(self) -> None:
        ended: set[int] = set()
        for op in self._records(names.OP_HALF_TOPIC):
            offsets = [int(n) for n in op.body.decode("ascii", "ignore").split(",") if n.strip().isdigit()]
            ended.update(offsets)
            self._marked.append((op.queue_offset, max(offsets, default=-1)))
        superseded: list[int] = []
        for half in self._records(names.HALF_TOPIC):
            pairs = properties.decode(half.properties.decode("utf-8", "replace"))
            key = pairs.get(properties.UNIQUE_ID, str(half.queue_offset))
            before = self._open.get(key)
            if half.queue_offset in ended:
                continue
            if before is not None:
                superseded.append(before.queue_offset)
            self._open[key] = _half(half.queue_offset, half.position, half.store_time_ms, pairs)
        if self._open:
            self._find_unmarked_commits()
        self._marks.extend(superseded)
        self._write_marks()
        if self._open:
            log.info("%d half messages are open", len(self._open))

    def _find_unmarked_commits(self) -> None:
        """A kill may fall between a commit and its mark, and between two marks: the log tells.

        Open half messages are stored anew at each check, so the oldest is seldom older than that: what came since is
        looked through at some 2 us for each message.
        """
        by_position = {h.position: key for key, h in self._open.items()}
        for stored in self._store.iterate(max(min(by_position), self._store.min_position), _is_commit):
            key = by_position.get(stored.prepared_position)
            if key is not None and key in self._open:
                self._marks.append(self._open.pop(key).queue_offset)

    def _records(self, topic: str) -> Iterable[Record]:
        low, high = self._store.queue_range(topic, 0)
        at = max(low, self._offsets.get(GROUP, topic, 0) or 0)
        while at < high:
            found = self._store.read(topic, 0, at, READ_COUNT, 1 << 20)
            for chunk in found.records:
                yield from record.decode_all(chunk)
            if found.next_offset <= at:
                break
            at = found.next_offset

    # -- half messages --------------------------------------------------------------------------------------------

    def prepare(
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
    ) -> Accepted:
        """Store a half message: invisible until its commit. Raises ServerError as `Intake.accept`."""
        if stored and stored[-1] != 2:
            stored = b"".join([b"%b\x01%b\x02" % pair for pair in pairs.items()])
        unique_id = pairs.get(b"UNIQ_KEY")
        stored += b"REAL_TOPIC\x01%b\x02REAL_QID\x01%d\x02" % (topic.encode(), queue_id)
        if unique_id is not None and b"__transactionId__" not in pairs:
            stored += b"__transactionId__\x01%b\x02" % unique_id
        accepted = self._intake.accept(
            names.HALF_TOPIC,
            0,
            body,
            stored,
            pairs,
            flag,
            sys_flag & ~sysflags.TRANSACTION_MASK,
            born_time_ms,
            born_host,
            delayed=False,
        )
        position, queue_offset, end = accepted
        count(self._stats.prepared, topic, end - position)
        texts = {k.decode("utf-8", "replace"): v.decode("utf-8", "replace") for k, v in pairs.items()}
        key = texts[properties.UNIQUE_ID]
        before = self._open.get(key)
        if before is not None:
            # A producer that had no answer sends again: one transaction, its newest copy counts.
            self._mark(before.queue_offset)
        self._open[key] = _half(queue_offset, position, now_ms(), texts)
        return accepted

    def end(self, h: EndTransactionHeader) -> int | None:
        """Commit or roll back; returns the log position that must be on disk before a commit is safe, else None.

        Raises ServerError 1 if the header does not fit the half message. An end that was told before does nothing; one
        that was given up can still be committed (as 5.5.0 does, but once).
        """
        found = self._store.record_at(h.log_position)
        if found is None:
            raise ServerError(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
        half = record.decode(found)
        pairs = properties.decode(half.properties.decode("utf-8", "replace"))
        if half.topic.decode("utf-8", "replace") != names.HALF_TOPIC or properties.REAL_TOPIC not in pairs:
            raise ServerError(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
        if pairs.get(properties.PRODUCER_GROUP) != h.producer_group:
            raise ServerError(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if half.queue_offset != h.half_offset:
            raise ServerError(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
        if half.position != h.log_position:
            raise ServerError(ResponseCode.SYSTEM_ERROR, "The commit log offset wrong")
        outcome = h.outcome & sysflags.TRANSACTION_MASK
        if outcome not in (sysflags.TRANSACTION_COMMIT, sysflags.TRANSACTION_ROLLBACK):
            return None
        key = pairs.get(properties.UNIQUE_ID, str(half.queue_offset))
        known = self._open.get(key)
        if known is None and outcome == sysflags.TRANSACTION_COMMIT and self._was_given_up(key, pairs):
            log.info("transaction %s of group %s is committed, though it was given up", key, h.producer_group)
            return self._commit(half, pairs, half.position)
        if known is None:
            log.info("transaction %s of group %s was ended before", key, h.producer_group)
            # Perhaps just now.
            return self._store.written_position if outcome == sysflags.TRANSACTION_COMMIT else None
        end = None
        if outcome == sysflags.TRANSACTION_COMMIT:
            end = self._commit(half, pairs, known.position)
        else:
            topic = pairs[properties.REAL_TOPIC]
            self._stats.rolled_back[topic] = self._stats.rolled_back.get(topic, 0) + 1
        del self._open[key]
        self._mark(known.queue_offset)
        return end

    def _commit(self, half: Record, pairs: dict[str, str], prepared_position: int) -> int:
        topic, queue_id = pairs[properties.REAL_TOPIC], int(pairs.get(properties.REAL_QUEUE_ID, "0"))
        kept = {k: v for k, v in pairs.items() if k not in _OF_THE_HALF}
        stored = properties.encode(kept).encode()
        position, _, end = self._intake.accept(
            topic,
            queue_id,
            half.body,
            stored,
            pairs_of(stored),
            half.flag,
            half.sys_flag & ~record.HOST_FLAGS | sysflags.TRANSACTION_COMMIT,
            half.born_time_ms,
            half.born_host,
            half.reconsume_times,
            prepared_position,
        )
        count(self._stats.committed, topic, end - position)
        took_s = max(0, now_ms() - half.born_time_ms) // 1000
        self._stats.finished.setdefault(topic, Histogram(FINISH_BOUNDS)).add(took_s)
        return end

    def _mark(self, queue_offset: int) -> None:
        if not self._marks:
            try:
                asyncio.get_running_loop().call_soon(self._write_marks)
            except RuntimeError:
                pass
        self._marks.append(queue_offset)

    def _write_marks(self) -> None:
        """Write which half messages ended: several at once, at most 4096 bytes in one."""
        marks, self._marks = self._marks, []
        while marks:
            text, count = b"", 0
            for offset in marks:
                piece = b"%d," % offset
                if text and len(text) + len(piece) > MARK_BYTES_MAX:
                    break
                text += piece
                count += 1
            # As a batch of one: RocketMQ's carries neither a unique id nor the broker's marks.
            item = BatchItem(0, text, b"WAIT\x01true\x02TAGS\x01d\x02")
            try:
                ((_, op_offset, _),) = self._intake.accept_batch(
                    names.OP_HALF_TOPIC, 0, [item], sys_flag=0, born_time_ms=now_ms(), born_host=self._store_host
                )
            except ServerError as e:
                log.error("the end of %d transactions could not be noted: %s; it will be", len(marks), e)
                self._marks = marks + self._marks
                return
            self._marked.append((op_offset, max(marks[:count])))
            marks = marks[count:]

    # -- check-back -----------------------------------------------------------------------------------------------

    def _check_all(self) -> None:
        try:
            self._write_marks()
        except RocketSparkError as e:
            log.error("check of open transactions: %s", e)
        now = now_ms()
        refresh = now - self._refreshed_ms >= REFRESH_INTERVAL_MS
        if refresh:
            self._refreshed_ms = now
        due = deque(k for k, h in self._open.items() if now - h.since_ms >= max(h.immunity_ms, self._timeout_ms))
        self._check_due(due, refresh)

    def _check_due(self, due: deque[str], refresh: bool) -> None:
        """Check the next of those that are due; others have their turn in between."""
        try:
            for _ in range(min(len(due), CHECKS_AT_ONCE)):
                key = due.popleft()
                half = self._open.get(key)
                if half is not None:
                    self._check(key, half, refresh=refresh)
            if not due:
                self._commit_progress()
        except RocketSparkError as e:
            log.error("check of open transactions: %s", e)
            due.clear()
        loop = asyncio.get_running_loop()
        if due:
            self._timer = loop.call_later(0, self._check_due, due, refresh)
        else:
            self._timer = loop.call_later(self._interval_s, self._check_all)

    def _check(self, key: str, half: Half, *, refresh: bool = False) -> None:
        producer = self._producer(half.group)
        asked_enough = half.checks >= self._checks_max
        too_old = now_ms() - half.since_ms >= self._reserved_ms
        given_up = asked_enough or too_old
        far_behind = refresh and self._store.written_position - half.position >= REFRESH_BYTES
        if producer is None and not given_up and not far_behind:
            return
        found = self._store.record_at(half.position)
        if found is None:
            log.warning("half message %s at %d is gone from the log; dropped", key, half.position)
            del self._open[key]
            return
        stored = record.decode(found)
        pairs = properties.decode(stored.properties.decode("utf-8", "replace"))
        if given_up:
            why = f"{half.checks} checks" if asked_enough else "the time that messages are kept"
            log.warning("half message %s had no end after %s: given up", key, why)
            self._store_again(names.CHECK_MAX_TOPIC, stored, pairs)
            del self._open[key]
            self._mark(half.queue_offset)
            return
        if producer is not None:
            half.checks += 1
            pairs[CHECK_TIMES] = str(half.checks)
        position, queue_offset, _ = self._store_again(names.HALF_TOPIC, stored, pairs)
        self._mark(half.queue_offset)
        half.position, half.queue_offset = position, queue_offset
        if producer is None:
            return
        again = self._store.record_at(position)
        assert again is not None
        self._ask(producer.peer, key, record.decode(again), pairs)

    def _store_again(self, topic: str, stored: Record, pairs: dict[str, str]) -> Accepted:
        encoded = properties.encode(pairs).encode()
        return self._intake.accept(
            topic,
            0,
            stored.body,
            encoded,
            pairs_of(encoded),
            stored.flag,
            stored.sys_flag & ~record.HOST_FLAGS,
            stored.born_time_ms,
            stored.born_host,
            stored.reconsume_times,
            delayed=False,
        )

    def resume(self, position: int) -> None:
        """Check the message at a log position again, from the first time on, e.g. one that was given up.

        Raises ServerError 1 if there is no such half message.
        """
        found = self._store.record_at(position)
        stored = record.decode(found) if found is not None else None
        pairs = properties.decode(stored.properties.decode("utf-8", "replace")) if stored is not None else {}
        if stored is None or properties.REAL_TOPIC not in pairs:
            raise ServerError(ResponseCode.SYSTEM_ERROR, f"no half message at log position {position}")
        given_up = stored.topic.decode() == names.CHECK_MAX_TOPIC
        key = pairs.get(properties.UNIQUE_ID, "")
        if key not in self._open and (not given_up or self._was_committed(pairs)):
            raise ServerError(ResponseCode.SYSTEM_ERROR, f"the half message at log position {position} was ended")
        pairs[CHECK_TIMES] = "0"
        new_position, queue_offset, _ = self._store_again(names.HALF_TOPIC, stored, pairs)
        before = self._open.get(key)
        if before is not None:
            self._mark(before.queue_offset)
        self._open[key] = _half(queue_offset, new_position, now_ms(), pairs)

    def _was_committed(self, pairs: dict[str, str]) -> bool:
        """Whether the message of a half message is in its topic, e.g. because it was resumed and committed before."""
        key = pairs.get(properties.UNIQUE_ID, "")
        found = self._store.query(pairs[properties.REAL_TOPIC], key, RESUMED_COUNT_MAX, 0, NEVER_MS, "U")
        return any(record.decode(r).sys_flag & sysflags.TRANSACTION_MASK == sysflags.TRANSACTION_COMMIT for r in found)

    def _was_given_up(self, key: str, pairs: dict[str, str]) -> bool:
        """Whether a half message that is not open has no end yet: it was given up, and not resumed."""
        if not self._store.queue_range(names.CHECK_MAX_TOPIC, 0)[1]:
            return False
        given_up = self._newest(names.CHECK_MAX_TOPIC, key)
        return given_up > self._newest(names.HALF_TOPIC, key) and not self._was_committed(pairs)

    def _newest(self, topic: str, key: str) -> int:
        """Log position of the newest copy in a topic; -1 if there is none."""
        found = self._store.query(topic, key, 1, 0, NEVER_MS, "U")
        return record.decode(found[0]).position if found else -1

    def _producer(self, group: str) -> Client | None:
        members = [c for c in self._clients.producers.get(group, {}).values() if c.peer.is_open]
        if not members:
            return None
        self._turn += 1
        return members[self._turn % len(members)]

    def _ask(self, peer: Peer, key: str, half: Record, pairs: dict[str, str]) -> None:
        """CHECK_TRANSACTION_STATE: the producer answers with an end of its own."""
        told = properties.decode(half.properties.decode("utf-8", "replace")) | {properties.WAIT: "false"}
        body = record.encode(
            topic=pairs[properties.REAL_TOPIC].encode(),
            queue_id=int(pairs.get(properties.REAL_QUEUE_ID, "0")),
            queue_offset=half.queue_offset,
            position=half.position,
            body=half.body,
            properties=properties.encode(told).encode(),
            flag=half.flag,
            sys_flag=half.sys_flag,
            born_time_ms=half.born_time_ms,
            born_host=half.born_host,
            store_time_ms=half.store_time_ms,
            store_host=half.store_host,
            reconsume_times=half.reconsume_times,
        )
        header = CheckTransactionHeader(
            topic=names.HALF_TOPIC,
            half_offset=half.queue_offset,
            log_position=half.position,
            message_id=key,
            transaction_id=key,
            offset_message_id=offset_message_id(half.store_host, half.position),
            broker_name=self._broker_name,
        )
        try:
            peer.oneway(RequestCode.CHECK_TRANSACTION_STATE, header, body)
        except TransportError as e:
            log.info("%s could not be asked for transaction %s: %s", peer.address, key, e)

    def _commit_progress(self) -> None:
        """Note how far both queues are done, where a later start begins to read (as CID_RMQ_SYS_TRANS)."""
        _, high = self._store.queue_range(names.HALF_TOPIC, 0)
        done = min((h.queue_offset for h in self._open.values()), default=high)
        if self._marks:
            done = min(done, *self._marks)
        if not high:
            return  # As long as there was no transaction the group shows nowhere.
        self._offsets.commit(GROUP, names.HALF_TOPIC, 0, done)
        op_done = self._store.queue_range(names.OP_HALF_TOPIC, 0)[1]
        while self._marked and self._marked[0][1] < done:
            self._marked.popleft()
        if self._marked:
            op_done = self._marked[0][0]
        self._offsets.commit(GROUP, names.OP_HALF_TOPIC, 0, op_done)


def _is_commit(stored: memoryview) -> bool:
    return record.sys_flag_of(stored) & sysflags.TRANSACTION_MASK == sysflags.TRANSACTION_COMMIT


def _half(queue_offset: int, position: int, since_ms: int, pairs: dict[str, str]) -> Half:
    immunity = pairs.get(IMMUNITY, "")
    checks = pairs.get(CHECK_TIMES, "")
    return Half(
        queue_offset,
        position,
        since_ms,
        int(immunity) * 1000 if immunity.isdigit() else 0,
        int(checks) if checks.isdigit() else 0,
        # The same for many: kept once.
        sys.intern(pairs.get(properties.PRODUCER_GROUP, "")),
    )
