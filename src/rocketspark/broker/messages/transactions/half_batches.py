"""The half messages that came in batches: stored together, kept in memory by runs, and ended by ranges.

A run is a batch as it lies in the half queue; it takes a few bytes for each message instead of an object.

Rule: what lies in the store afterwards is what half messages and ends one by one leave. A half message that has to be
looked at alone (checked, resumed, ended at an odd place) leaves its run, and `Transactions` keeps it from then on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from rocketspark import machine
from rocketspark.broker import topic_names
from rocketspark.broker.messages.put_message import AcceptedBatch, PutMessage, pairs_of
from rocketspark.broker.messages.send_rules import HALF_NAMES_MAX, layout_of
from rocketspark.broker.messages.transactions.half_batch_records import (
    HalfForm,
    HalfShape,
    Rest,
    StoredAlike,
    StoredHalves,
    committed_form,
    half_form,
    shape_of,
)
from rocketspark.broker.messages.transactions.half_messages import immunity_ms_of
from rocketspark.broker.statistics.histograms import FINISH_BOUNDS
from rocketspark.broker.statistics.stats import Stats, count_all
from rocketspark.errors import ServerError
from rocketspark.model.histogram import Histogram
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.message import batch, record_layout, sysflags
from rocketspark.store.commitlog.batch_append import Batch, Commits
from rocketspark.store.store import Store

# OPEN waits for its end; ELSEWHERE: it is one of `Transactions`' own again; COPIED: a newer run has it again.
OPEN, COMMITTED, ROLLED_BACK, ELSEWHERE, COPIED = 0, 1, 2, 3, 4
# Rows of runs without open ones that are kept, so that a repeated end finds its outcome: 9 bytes each.
ENDED_ROWS_MAX = 1 << 20
# A run takes some KB, as so many half messages that came alone, of 500 bytes each, of which one stands for 50 rows.
RUN_WEIGHT, ROWS_OF_ONE = 8, 50


def weight_of(count: int) -> int:
    """Return the memory that a run of messages takes, counted in half messages that came alone."""
    return RUN_WEIGHT + count // ROWS_OF_ONE


class HalfRun(msgspec.Struct, eq=False):
    """A batch of half messages as it lies in the half queue and in the log, one message behind another.

    `first`: the half queue offset of the first; `end`: the physical offset after the last; `cut`, `after`: as in
    `HalfForm`; `shape`: None if the messages have no shape in common; `states`: the state of each message (OPEN, …);
    `digest`: of topic, group and unique ids, the same if the batch is sent again.
    """

    first: int
    positions: NDArray[np.int64]
    end: int
    topic: str
    queue_id: int
    group: str
    since_ms: int
    immunity_ms: int
    cut: bytes
    after: int
    shape: HalfShape | None
    states: NDArray[np.uint8]
    open_count: int
    digest: bytes

    @property
    def count(self) -> int:
        """How many messages the run has."""
        return len(self.positions)

    def set(self, at: int, count: int, state: int) -> None:
        """Set the state of `count` open messages from number `at` on."""
        self.states[at : at + count] = state
        self.open_count -= count

    def end_of(self, at: int) -> int:
        """Return the physical offset after the message with the number `at`."""
        return int(self.positions[at + 1]) if at + 1 < self.count else self.end


class HalfRuns:
    """All runs of one broker, found by half queue offset."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._runs: list[HalfRun] = []
        self._newest: dict[bytes, HalfRun] = {}
        self._ended: deque[HalfRun] = deque()
        self._ended_rows = 0
        # Of those with open messages.
        self.weight = 0

    def clear(self) -> None:
        """Forget all runs, e.g. before a new start."""
        self.__init__()  # type: ignore[misc]

    def __iter__(self) -> Iterator[HalfRun]:
        return iter(list(self._runs))

    @property
    def open_count(self) -> int:
        """How many half messages of all runs are open."""
        return sum(run.open_count for run in self._runs)

    def add(self, run: HalfRun) -> None:
        """Add a run that lies behind all others in the half queue."""
        assert not self._firsts or run.first > self._firsts[-1]
        self._firsts.append(run.first)
        self._runs.append(run)
        self._newest[run.digest] = run
        self.weight += weight_of(run.count)

    def newest(self, digest: bytes) -> HalfRun | None:
        """Return the newest run with a digest, that is the newest copy of a batch; None if there is none."""
        return self._newest.get(digest)

    def find(self, offset: int) -> HalfRun | None:
        """Return the run that has the message at an offset of the half queue."""
        at = bisect_right(self._firsts, offset) - 1
        if at < 0 or offset >= self._runs[at].first + self._runs[at].count:
            return None
        return self._runs[at]

    def oldest_open(self) -> int | None:
        """Return the lowest half queue offset of an open message; None if none is open."""
        for run in self._runs:
            if run.open_count:
                return run.first + int(np.flatnonzero(run.states == OPEN)[0])
        return None

    def note_ended(self, run: HalfRun) -> None:
        """Keep a run whose messages have all ended for a while, and forget the oldest such runs."""
        run.shape = None  # It takes some KB.
        self._ended.append(run)
        self._ended_rows += run.count
        self.weight -= weight_of(run.count)
        while self._ended_rows > ENDED_ROWS_MAX and len(self._ended) > 1:
            gone = self._ended.popleft()
            self._ended_rows -= gone.count
            at = bisect_right(self._firsts, gone.first) - 1
            del self._firsts[at], self._runs[at]
            if self._newest[gone.digest] is gone:
                del self._newest[gone.digest]


_HALF_TOPIC = topic_names.HALF_TOPIC.encode()
_SUFFIX = record_layout.topic_field(_HALF_TOPIC)
# Half messages of a batch, stored in one turn of the loop: some 1 us each, 5 us if no two are alike.
BATCH_MAX = 8192
# Shapes kept, of some KB each: of larger records all but the copying is little.
SHAPES_MAX = 1024
SHAPE_BYTES_MAX = 8192
# Records put together in one turn of the loop: some 3 ms a MiB.
TOGETHER_BYTES = 2 << 20


class Ended(NamedTuple):
    """The result of ending the first `done` messages of a range.

    `first`: the half queue offset of the first of them, or of its newest copy if the batch was sent again; `end`: the
    physical offset that must be on the disk before a commit is safe; `gone`: they were rolled back before, so they
    cannot be committed; `before`: they had ended before; `bytes`: how many bytes of records were looked at.
    """

    done: int
    first: int
    end: int | None = None
    gone: bool = False
    before: bool = False
    bytes: int = 0


def too_many(count: int, count_max: int) -> ServerError:
    """Return the error for a batch that would hold the loop for long; on it a client sends the messages one by one."""
    return ServerError(
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        f"{count} half messages in a batch, of which {count_max} are taken at a time: send fewer, or one by one",
    )


class PreparedBatch(NamedTuple):
    """A batch that was stored as half messages: its run, and the unique id of each message."""

    accepted: AcceptedBatch
    run: HalfRun
    ids: NDArray[np.uint8]


class BatchedHalves:
    """The half messages of one broker that came in batches and are open, or have ended not long ago."""

    def __init__(self, store: Store, put_message: PutMessage, stats: Stats, check_room: Callable[[int], None]) -> None:
        self._store = store
        self._check_room = check_room
        self._put_message = put_message
        self._stats = stats
        self.runs = HalfRuns()
        # By topic and queue, that of the batch before.
        self._shapes: dict[tuple[str, int], HalfShape] = {}

    def prepare(
        self, topic: str, queue_id: int, body: bytes, sys_flag: int, born_time_ms: int, born_host: bytes, now_ms: int
    ) -> PreparedBatch | None:
        """Store a batch's messages as half messages; None if they must be stored one by one. Raises ServerError."""
        layout = layout_of(body)
        if layout is not None and layout.message_count > BATCH_MAX:
            raise too_many(layout.message_count, BATCH_MAX)
        target = {b"REAL_TOPIC": topic.encode(), b"REAL_QID": b"%d" % queue_id}
        if layout is None or topic_names.target_of(target) != (topic, queue_id):
            return None
        form: HalfShape | HalfForm | None
        shape = self._shape(layout, topic, queue_id) if 0 < layout.width <= SHAPE_BYTES_MAX else None
        messages: Batch
        if shape is not None and (alike := shape.halves(layout)) is not None:
            form, (messages, found, ids) = shape, alike
        else:
            shape, form = None, self._form(layout, topic, queue_id)
            if form is None:
                return None
            messages, found, ids = form.layout, form.found, form.ids
        if len(form.group) + ids.shape[1] > HALF_NAMES_MAX:
            return None
        digest = _digest(topic.encode(), form.group, ids)
        if (before := self.runs.newest(digest)) is None or not before.open_count:
            self._check_room(weight_of(layout.message_count))
        flags = sys_flag & ~(sysflags.TRANSACTION_MASK | record_layout.HOST_FLAGS)
        accepted = self._put_message.accept_layout(
            topic_names.HALF_TOPIC, 0, messages, flags, born_time_ms, born_host, found=found
        )
        if accepted is None:
            return None
        positions = np.asarray(accepted.positions, np.int64)
        count_all(self._stats.prepared, topic, np.diff(positions, append=accepted.end))
        run = HalfRun(
            first=accepted.queue_offset,
            positions=positions,
            end=accepted.end,
            topic=topic,
            queue_id=queue_id,
            group=form.group.decode("utf-8", "replace"),
            since_ms=now_ms,
            immunity_ms=immunity_ms_of(None if form.immunity is None else form.immunity.decode()),
            cut=form.cut,
            after=form.after,
            shape=shape,
            states=np.zeros(len(positions), np.uint8),
            open_count=len(positions),
            digest=digest,
        )
        return PreparedBatch(accepted, run, ids)

    def add(self, run: HalfRun) -> tuple[list[int], bool]:
        """Add the run of a batch that was stored, which may be a copy: a batch that was sent before.

        Returns the half queue offsets of the older copy's messages that were open here till now, and whether
        `Transactions` keeps other messages of the older copy.
        """
        before = self.runs.newest(run.digest)
        self.runs.add(run)
        if before is None:
            return [], False
        rows = np.flatnonzero(before.states == OPEN)
        if len(rows):
            before.states[rows] = COPIED
            before.open_count = 0
            self.runs.note_ended(before)
        return (rows + before.first).tolist(), bool((before.states == ELSEWHERE).any())

    def _shape(self, layout: batch.Layout, topic: str, queue_id: int) -> HalfShape | None:
        """Return the shape of a batch's first message; None if it has none."""
        rules = self._put_message.rules
        rest = Rest(rules.alone_half, rules.marks, _SUFFIX)
        shape = self._shapes.get((topic, queue_id))
        if shape is None or not shape.fits(layout, rest):
            shape = shape_of(layout, topic.encode(), queue_id, rest)
            if shape is not None:
                if len(self._shapes) >= SHAPES_MAX:
                    self._shapes.clear()
                self._shapes[topic, queue_id] = shape
        return shape

    def _form(self, layout: batch.Layout, topic: str, queue_id: int) -> HalfForm | None:
        rules = self._put_message.rules
        return half_form(
            *(layout, pairs_of, self._put_message.tag_code, topic.encode(), queue_id, rules.alone_half, rules.marks)
        )

    def end(
        self,
        topic: str,
        group: str,
        outcome: int,
        first: int,
        positions: NDArray[np.int64],
    ) -> Ended | None:
        """Commit or roll back the half messages from half queue offset `first` on, up to the first in another state.

        `positions`: the physical offsets of all that are to be ended. None if the first must be ended by
        `Transactions`, or does not exist here. Raises ServerError as `Transactions.end`.
        """
        run = self.runs.find(first)
        if run is None:
            return None
        at = first - run.first
        count = min(len(positions), run.count - at)
        if run.group != group:
            raise ServerError(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if run.topic != topic:
            raise ServerError(ResponseCode.SYSTEM_ERROR, f"the half messages are not for topic {topic!r}")
        if (run.positions[at : at + count] != positions[:count]).any():
            raise ServerError(ResponseCode.SYSTEM_ERROR, "The commit log offset wrong")
        # Those that begin within so many bytes.
        count = 1 + int(np.searchsorted(run.positions[at + 1 : at + count], run.positions[at] + TOGETHER_BYTES))
        states = run.states[at : at + count]
        state = int(states[0])
        others = np.flatnonzero(states != state)
        count = int(others[0]) if len(others) else count
        commits = outcome == sysflags.TRANSACTION_COMMIT
        if state == ELSEWHERE:
            return None
        if state == COPIED:
            # The newest copy counts.
            newest = self.runs.newest(run.digest)
            if newest is None or newest is run:
                return None
            return self.end(topic, group, outcome, newest.first + at, newest.positions[at : at + count])
        if state != OPEN:
            # The commit may have been just now.
            end = self._store.written_position if commits and state == COMMITTED else None
            return Ended(count, first, end, gone=commits and state == ROLLED_BACK, before=True)
        if not commits:
            run.set(at, count, ROLLED_BACK)
            self._stats.rolled_back[topic] = self._stats.rolled_back.get(topic, 0) + count
            self._note_ended(run)
            return Ended(count, first)
        end = self._commit(run, at, count)
        if end is None:
            return None
        run.set(at, count, COMMITTED)
        size = run.end_of(at + count - 1) - int(run.positions[at])
        self._note_ended(run)
        return Ended(count, first, end, bytes=size)

    def _note_ended(self, run: HalfRun) -> None:
        if not run.open_count:
            self.runs.note_ended(run)

    def _commit(self, run: HalfRun, at: int, count: int) -> int | None:
        """Store the messages of open half messages; None if that must be done one by one."""
        if self._put_message.door is not None:
            return None
        positions, end = run.positions[at : at + count], run.end_of(at + count - 1)
        stored = self._store.log.slice(int(positions[0]), end - int(positions[0]))
        if stored is None:
            return None
        form: StoredAlike | StoredHalves | None = None
        if run.shape is not None:
            form = run.shape.committed(stored, positions, run.first + at)
        if form is None:
            form = committed_form(stored, positions, run.first + at, end, _SUFFIX, run.cut, run.after)
        if form is None:
            return None
        flags = form.sys_flag & ~record_layout.HOST_FLAGS | sysflags.TRANSACTION_COMMIT
        target = run.topic, run.queue_id
        try:
            if isinstance(form, StoredAlike):
                accepted = self._put_message.accept_layout(
                    *target, form.messages, flags, form.born_time_ms, form.born_host, found=form.found
                )
            else:
                accepted = self._put_message.accept_layout(
                    *target, form.layout, flags, form.born_time_ms, form.born_host, Commits(positions, form.crcs)
                )
        except ServerError as e:
            if e.code != ResponseCode.MESSAGE_ILLEGAL:
                raise
            return None
        if accepted is None:
            return None
        count_all(self._stats.committed, run.topic, np.diff(np.asarray(accepted.positions), append=accepted.end))
        took_s = max(0, int(machine.time() * 1000) - form.born_time_ms) // 1000
        finished = self._stats.finished.setdefault(run.topic, Histogram(FINISH_BOUNDS))
        finished.add_all(np.full(count, took_s))
        return accepted.end

    def find_open(self, offset: int) -> tuple[HalfRun, int] | None:
        """Return the open half message at a half queue offset, or its newest copy, as (run, offset); else None."""
        run = self.runs.find(offset)
        if run is None:
            return None
        row = offset - run.first
        if run.states[row] == COPIED:
            run = self.runs.newest(run.digest)
        return (run, run.first + row) if run is not None and run.states[row] == OPEN else None

    def take(self, offset: int) -> int | None:
        """Hand an open half message over to `Transactions`; return its physical offset, None if it is not open here."""
        run = self.runs.find(offset)
        if run is None or run.states[offset - run.first] != OPEN:
            return None
        run.set(offset - run.first, 1, ELSEWHERE)
        self._note_ended(run)
        return int(run.positions[offset - run.first])

    def drop_before(self, run: HalfRun, position: int) -> int:
        """Forget a run's open half messages that begin before a physical offset; return how many they were."""
        at = int(np.searchsorted(run.positions, position))
        gone = np.flatnonzero(run.states[:at] == OPEN)
        run.states[gone] = ELSEWHERE
        run.open_count -= len(gone)
        if len(gone):
            self._note_ended(run)
        return len(gone)


def _digest(topic: bytes, group: bytes, ids: NDArray[np.uint8]) -> bytes:
    found = blake2b(b"%d %b %d %b %d " % (len(topic), topic, len(group), group, ids.shape[1]), digest_size=16)
    found.update(ids.data)
    return found.digest()
