"""Op messages: they hold the offsets of half messages that ended, and lie in RMQ_SYS_TRANS_OP_HALF_TOPIC.

Rules (TransactionalOpBatchService, 5.x): all that ended in one turn of the loop is written at once; an op message has
at most 4096 bytes; the op queue is done up to the first op message that names a half message which is not done."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator

import numpy as np

from rocketspark.broker import topic_names
from rocketspark.broker.messages.put_message import PutMessage
from rocketspark.broker.messages.transactions.half_messages import READ_COUNT, HalfMessages
from rocketspark.broker.storage.json_tables import now_ms
from rocketspark.errors import RecordError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.text import whole_number
from rocketspark.protocol.message.batch import BatchItem
from rocketspark.store.store import Store

log = LimitedLog("rocketspark.broker")

MARK_BYTES_MAX = 4096
_TOGETHER_MIN = 32
# The last three digits of numbers, and a comma.
_LAST_DIGITS = np.frombuffer(b"".join([b"%03d," % number for number in range(1000)]), np.uint8).reshape(1000, 4)


class OpMessages:
    """Writes which half messages ended, and reads it at the start."""

    def __init__(self, store: Store, put_message: PutMessage, half_messages: HalfMessages) -> None:
        self._store = store
        self._put_message = put_message
        self._half_messages = half_messages
        # Ranges of offsets: those of a batch end together.
        self._marks: list[range] = []
        # (offset in the op queue, highest half offset it marks).
        self._written: deque[tuple[int, int]] = deque()

    def begin_anew(self) -> None:
        """Forget which ends were written and which were to be: `read` and the log tell them at the next start."""
        self._marks = []
        self._written.clear()

    def read(self) -> Generator[None, None, tuple[set[int], bool]]:
        """Return the offsets of half messages that ended, and whether all op messages could be read; it yields where
        others may have a turn.
        """
        ended: set[int] = set()
        all_read = True
        for number, (op_offset, position) in enumerate(self._half_messages.units(topic_names.OP_HALF_TOPIC), 1):
            if number % READ_COUNT == 0:
                yield
                if position < self._store.min_position:
                    continue  # Its file was removed meanwhile.
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
        self.add_all(range(queue_offset, queue_offset + 1))

    def add_all(self, queue_offsets: range) -> None:
        """Note the ends of half messages; they are written in the next turn of the loop."""
        if not self._marks:
            try:
                asyncio.get_running_loop().call_soon(self.write)
            except RuntimeError:
                pass
        self._marks.append(queue_offsets)

    def write(self) -> None:
        """Write which half messages ended: several at once, at most 4096 bytes in one."""
        marks, self._marks = self._marks, []
        if self._put_message.door is not None:
            # A slave writes none: the master finds the same in its log.
            return
        every = b"".join(map(_text, marks))
        offsets = np.concatenate([np.arange(one.start, one.stop) for one in marks]) if marks else np.empty(0, np.int64)
        at = done = 0
        while done < len(offsets):
            text = every[at : every.rindex(b",", at, at + MARK_BYTES_MAX) + 1]
            marked = offsets[done : done + text.count(b",")]
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
                left = offsets[done:].tolist()
                log.error("the end of %d transactions could not be noted: %s; it will be", len(left), e)
                self._marks = [range(offset, offset + 1) for offset in left] + self._marks
                return
            self._written.append((op_offset, int(marked.max())))
            at, done = at + len(text), done + len(marked)

    def progress(self, done: int) -> tuple[int, int]:
        """Return up to which offsets (half queue, op queue) all is done; no half message before `done` is open."""
        done = min(done, *(marks.start for marks in self._marks)) if self._marks else done
        op_done = self._store.stored_range(topic_names.OP_HALF_TOPIC, 0)[1]
        while self._written and self._written[0][1] < done:
            self._written.popleft()
        return done, self._written[0][0] if self._written else op_done


def _text(offsets: range) -> bytes:
    """Return each offset with a comma behind; many of them by thousands."""
    if len(offsets) < _TOGETHER_MIN:
        return b"".join([b"%d," % offset for offset in offsets])
    pieces = []
    at = offsets.start
    while at < offsets.stop:
        thousands, first = divmod(at, 1000)
        count = min(1000 - first, offsets.stop - at)
        before = np.frombuffer(b"%d" % thousands, np.uint8)
        if thousands:
            rows = np.empty((count, len(before) + 4), np.uint8)
            rows[:, : len(before)] = before
            rows[:, len(before) :] = _LAST_DIGITS[first : first + count]
            pieces.append(rows.tobytes())
        else:
            pieces.append(b"".join([b"%d," % offset for offset in range(at, at + count)]))
        at += count
    return b"".join(pieces)
