"""Finds, at a broker's start, which half messages are open, by the half queue, its op queue and the log.

Rule: after a kill the log shows the commits since the oldest open half message, whether an op message names them or
not, so a commit is neither lost nor applied twice."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

from rocketspark.broker import topic_names
from rocketspark.broker.messages.quarantine import Quarantine
from rocketspark.broker.messages.transactions.half_messages import (
    KIND,
    READ_COUNT,
    HalfMessage,
    HalfMessages,
    TransactionKey,
    half_message,
    is_commit,
    quarantine_name,
)
from rocketspark.broker.messages.transactions.op_messages import OpMessages
from rocketspark.errors import RecordError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.message import properties, sysflags
from rocketspark.protocol.message.properties import pairs_of
from rocketspark.protocol.message.record import Record
from rocketspark.store.store import Store

log = LimitedLog("rocketspark.broker")

# Records of the log that are looked at in one turn of the loop: some ms.
LOOKS_IN_TURN = 2048


class TransactionRecovery:
    """Finds the half messages that are open at one start, and remembers which queues they are for."""

    def __init__(
        self,
        store: Store,
        half_messages: HalfMessages,
        op_messages: OpMessages,
        quarantine: Quarantine,
        has_left: Callable[[Record], bool],
    ) -> None:
        self._store = store
        self._has_left = has_left
        self._half_messages = half_messages
        self._op_messages = op_messages
        self._quarantine = quarantine
        self._open: dict[TransactionKey, HalfMessage] = {}
        # Topic and queue (as text) that the open ones are for, each with where the last of them is.
        self._recovered: dict[tuple[str, str], int] = {}

    def find_open(self) -> Generator[None, None, dict[TransactionKey, HalfMessage]]:
        """Return the half messages that are open now, and write op messages for those that ended without one.

        It yields from time to time, so that the loop can do other work; the log's oldest files may be removed then.
        """
        ended, all_read = yield from self._op_messages.read()
        units = self._half_messages.units(topic_names.HALF_TOPIC)
        for number, (queue_offset, position) in enumerate(units, 1):
            if number % READ_COUNT == 0:
                yield
                if position < self._store.min_position:
                    continue  # Its file was removed meanwhile.
            if queue_offset in ended:
                continue
            try:
                half = self._half_messages.record(topic_names.HALF_TOPIC, queue_offset, position)
            except RecordError as e:
                self._quarantine.add(KIND, topic_names.HALF_TOPIC, 0, queue_offset, position, e)
                all_read = False
                continue
            if self._has_left(half):
                # Another broker has it and checks it; on a slave that acts nothing can be marked.
                if not self._store.log.is_replica:
                    self._op_messages.add(queue_offset)
                continue
            pairs = properties.decode(half.properties.decode("utf-8", "replace"))
            key = TransactionKey.of(pairs, str(queue_offset))
            before = self._open.get(key)
            if before is not None:
                self._op_messages.add(before.queue_offset)
            self._open[key] = found = half_message(queue_offset, position, half.store_time_ms, pairs)
            found.aside = quarantine_name(position) in self._quarantine
            self._recovered[key.topic, pairs.get(properties.REAL_QUEUE_ID, "")] = position
        if self._open:
            yield from self._find_unmarked_commits()
        if not all_read:
            yield from self._drop_committed()
        self._op_messages.write()
        if self._open:
            log.info("%d half messages are open", len(self._open))
        # Whoever has them from here on forgets those that end; of the start their queues alone are remembered.
        still_open, self._open = self._open, {}
        return still_open

    def queues(self) -> dict[str, set[int]]:
        """Return by topic the queues that the half messages open at the start are for.

        Topics that were deleted since are left out.
        """
        found: dict[str, set[int]] = {}
        deleted = self._store.deleted_topics()
        for (topic, queue_id), position in self._recovered.items():
            target = topic_names.target_of({b"REAL_TOPIC": topic.encode(), b"REAL_QID": queue_id.encode()})
            if target is not None and position >= deleted.get(topic, 0):
                found.setdefault(topic, set()).add(target[1])
        return found

    def _find_unmarked_commits(self) -> Iterator[None]:
        """Find the half messages that were committed but not marked before a kill, in the log.

        Open half messages are stored anew at each check, so the oldest is seldom older than that: the log since then is
        looked through at some 2 us for each message.
        """
        by_position = {h.position: key for key, h in self._open.items()}
        begin = max(min(by_position), self._store.min_position)
        looked_at = 0

        def is_wanted(stored: memoryview) -> bool:
            nonlocal looked_at
            looked_at += 1
            return looked_at % LOOKS_IN_TURN == 0 or is_commit(stored)

        for stored in self._store.iterate(begin, is_wanted, check_crc=False):
            if looked_at % LOOKS_IN_TURN == 0:
                yield
                if stored.sys_flag & sysflags.TRANSACTION_MASK != sysflags.TRANSACTION_COMMIT:
                    continue
            key = by_position.get(stored.prepared_position)
            if key is None or key not in self._open:
                continue
            # What was delivered later, or again, is a commit too, and states 0.
            if stored.prepared_position or _is_commit_of(key, stored):
                self._op_messages.add(self._open.pop(key).queue_offset)

    def _drop_committed(self) -> Iterator[None]:
        """Drop older copies that seem open because a mark or the newest copy cannot be read, if there was a commit."""
        for key, half in list(self._open.items()):
            yield
            if half.position < self._store.min_position:
                continue
            stored = self._half_messages.record(topic_names.HALF_TOPIC, half.queue_offset, half.position)
            pairs = properties.decode(stored.properties.decode("utf-8", "replace"))
            if self._half_messages.was_committed(TransactionKey.of(pairs, key.unique_id)):
                del self._open[key]
                self._op_messages.add(half.queue_offset)


def _is_commit_of(key: TransactionKey, stored: Record) -> bool:
    return pairs_of(stored.properties).get(b"UNIQ_KEY") == key.unique_id.encode() and key.is_of(stored, copy=False)
