"""Op messages: the offsets of half messages that ended, in RMQ_SYS_TRANS_OP_HALF_TOPIC.

Rules: what is ended in one turn of the loop is written at once; one message has at most 4096 bytes; the op queue is
done up to where all that it marks is behind (TransactionalOpBatchService, 5.x).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from rocketspark.broker import topic_names
from rocketspark.broker.messages.half_messages import HalfMessages
from rocketspark.broker.messages.put_message import PutMessage
from rocketspark.broker.storage.json_tables import now_ms
from rocketspark.errors import RecordError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.text import whole_number
from rocketspark.protocol.message.batch import BatchItem
from rocketspark.store.store import Store

log = LimitedLog("rocketspark.broker")

MARK_BYTES_MAX = 4096


class OpMessages:
    """Writes which half messages ended, and reads it at the start."""

    def __init__(self, store: Store, put_message: PutMessage, half_messages: HalfMessages) -> None:
        self._store = store
        self._put_message = put_message
        self._half_messages = half_messages
        self._marks: list[int] = []
        # (offset in the op queue, highest half offset it marks).
        self._written: deque[tuple[int, int]] = deque()

    def begin_anew(self) -> None:
        """Forget what was written; what was not is known from the log."""
        self._marks = []
        self._written.clear()

    def read(self) -> tuple[set[int], bool]:
        """Return the offsets of half messages that ended, and whether all op messages could be read."""
        ended: set[int] = set()
        all_read = True
        for op_offset, position in self._half_messages.units(topic_names.OP_HALF_TOPIC):
            try:
                body = self._half_messages.record(topic_names.OP_HALF_TOPIC, op_offset, position).body
            except RecordError as e:
                # Its half messages are checked again; the log shows which of them were committed.
                log.error("ends of transactions at physical offset %d cannot be read: %s", position, e)
                all_read = False
                continue
            offsets = [n for piece in body.split(b",") if (n := whole_number(piece.strip())) is not None]
            ended.update(offsets)
            self._written.append((op_offset, max(offsets, default=-1)))
        return ended, all_read

    def add(self, queue_offset: int) -> None:
        """Note the end of a half message; it is written in the next turn of the loop."""
        self.add_all((queue_offset,))

    def add_all(self, queue_offsets: Iterable[int]) -> None:
        """Note the ends of half messages; they are written in the next turn of the loop."""
        if not self._marks:
            try:
                asyncio.get_running_loop().call_soon(self.write)
            except RuntimeError:
                pass
        self._marks.extend(queue_offsets)

    def write(self) -> None:
        """Write which half messages ended: several at once, at most 4096 bytes in one."""
        marks, self._marks = self._marks, []
        if self._put_message.door is not None:
            # A slave writes none: the master finds the same in its log.
            return
        every = "".join([f"{offset}," for offset in marks]).encode()
        at = 0
        while marks:
            text = every[at : every.rindex(b",", at, at + MARK_BYTES_MAX) + 1]
            at, count = at + len(text), text.count(b",")
            # As a batch of one: RocketMQ's carries neither a unique id nor the broker's marks.
            item = BatchItem(0, text, b"WAIT\x01true\x02TAGS\x01d\x02")
            try:
                ((_, op_offset, _),) = self._put_message.accept_items(
                    topic_names.OP_HALF_TOPIC,
                    0,
                    [item],
                    sys_flag=0,
                    born_time_ms=now_ms(),
                    born_host=self._store.store_host,
                )
            except Exception as e:
                log.error("the end of %d transactions could not be noted: %s; it will be", len(marks), e)
                self._marks = marks + self._marks
                return
            self._written.append((op_offset, max(marks[:count])))
            marks = marks[count:]

    def progress(self, done: int) -> tuple[int, int]:
        """Return up to which offsets half queue and op queue are done; `done`: no half message before it is open."""
        if self._marks:
            done = min(done, *self._marks)
        op_done = self._store.stored_range(topic_names.OP_HALF_TOPIC, 0)[1]
        while self._written and self._written[0][1] < done:
            self._written.popleft()
        return done, self._written[0][0] if self._written else op_done
