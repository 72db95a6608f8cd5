"""Sends rows in batches, for `send_many`. Rule: rows of one sharding key are sent in order, one send to their queue at
a time; each batch is a send as any other, with its attempts and hooks, and only it is sent again.

Rows with a delay go one by one, as brokers take no batch of such, and so do half messages to those that are not ours. A
batch is encoded when its turn comes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from rocketspark.client.callbacks import passes_on
from rocketspark.client.producer.given_columns import Rows
from rocketspark.client.producer.in_flight_send import InFlightSend
from rocketspark.client.producer.prepared_message import (
    PackingSettings,
    PreparedMessage,
    batch_message,
    queue_of_key,
    shrink,
)
from rocketspark.client.producer.send_attempts import QUEUE_GONE
from rocketspark.client.producer.send_path import InFlightLimit, SendPath
from rocketspark.client.results import RowsOutcome, SendManyResult, SendResult
from rocketspark.errors import NotSent, RocketSparkError, SendFailed, ServerError, StateError
from rocketspark.model import MessageQueue, namespace
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.message import batch, batch_columns, sysflags
from rocketspark.protocol.message.message_ids import joined_ids

# Each doubling up to here takes less of the processor, of both sides; more saves nothing.
BATCH_BYTES = 512 << 10
# Larger batches that a broker calls illegal may be too large for it (maxMessageSize); of smaller ones a row is wrong.
BATCH_BYTES_LEAST = 4 << 10
# After so many batches that were stored, larger ones are tried again; after each trial in vain, after twice as many.
GROW_AFTER = 16
# Of one call: requests, and bytes of them. A broker refuses what waits there for 200 ms, and should not come to that.
IN_FLIGHT_MAX = 256
IN_FLIGHT_BYTES_MAX = 2 << 20
# Half messages of one batch: a broker takes no more of them at a time.
HALF_ROWS_MAX = 4096
# After so many failures in a row no more is tried.
FAILURES_MAX = 16


def less_than(refused: PreparedMessage, bytes_max: int) -> int:
    """Return how many bytes a batch may have from now on, as a broker called one of `bytes_max` illegal."""
    return min(bytes_max, max(len(refused.body) // 2, BATCH_BYTES_LEAST))


class RowsSend(InFlightSend, kw_only=True):
    """The send of the rows [at, end); `told` gets it with its outcome."""

    at: int
    end: int
    told: Callable[[RowsSend, SendResult | None, BaseException | None], None]

    def tell(self, result: SendResult | None, error: BaseException | None) -> None:
        """Pass the outcome of a batch on to its rows."""
        self.told(self, result, error)

    def is_refused(self, error: BaseException | None) -> bool:
        """Tell whether its broker takes half messages one by one alone, or maybe smaller batches; none is stored."""
        code = error.code if isinstance(error, SendFailed | ServerError) else 0
        if code == ResponseCode.MESSAGE_ILLEGAL:
            return self.end - self.at > 1 and len(self.out.body) > BATCH_BYTES_LEAST
        return code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and self.out.code == RequestCode.SEND_HALF_BATCH

    def _tell_failure(self, cause: RocketSparkError, queue: MessageQueue) -> None:
        if not self.is_refused(cause):
            super()._tell_failure(cause, queue)

    def give_up(self) -> None:
        """End it, as nobody waits for it any more."""
        self.given_up = True
        if self._task is not None:
            self._task.cancel()
        self.finish(None, asyncio.CancelledError())


class Lane(msgspec.Struct, eq=False):
    """The rows [at, end) that are still to be sent, to one queue or to each in turn.

    `one_by_one`: no batch may hold them; `in_flight`: how many of its sends are.
    """

    at: int
    end: int
    queue: MessageQueue | None = None
    one_by_one: bool = False
    in_flight: int = 0

    @property
    def is_free(self) -> bool:
        """Tell whether it may send more now."""
        return self.queue is None or not self.in_flight


class RowsInFlight:
    """Sends the rows of one call. `ids`: the prefix of their unique ids, and the number of the first; `is_hooked`:
    somebody looks at the ids of a batch; `half`: as half messages.
    """

    def __init__(
        self,
        path: SendPath[InFlightSend],
        packing: PackingSettings,
        rows: Rows,
        ids: tuple[str, int],
        attempts: int,
        timeout_ms: float | None,
        *,
        is_hooked: bool = False,
        half: bool = False,
    ) -> None:
        self._path = path
        self._packing = packing
        self._rows = rows
        self._prefix, self._first = ids
        self._attempts = attempts
        self._timeout_ms = timeout_ms
        self._is_hooked = is_hooked
        self._half = half
        self._count_max = HALF_ROWS_MAX if half else batch.COUNT_MAX
        self._topic = namespace.wrap(packing.namespace, rows.topic)
        self._ends = np.zeros(0, np.int64)
        self._lanes: deque[Lane] = deque()
        self._sends: dict[RowsSend, Lane] = {}
        self._batch_bytes = self._batch_bytes_max = min(BATCH_BYTES, packing.body_bytes_max)
        self._stored, self._grow_after, self._grew = 0, GROW_AFTER, False
        self._room = InFlightLimit(IN_FLIGHT_MAX, IN_FLIGHT_BYTES_MAX)
        self._failures = 0
        self._queue_is_gone = False
        self._outcomes: list[RowsOutcome] = []
        self._woken = asyncio.Event()

    async def run(self) -> SendManyResult:
        """Send the rows and return their results. Raises what keeps all of them from being sent: RouteNotFound,
        NotSent.
        """
        attempts, count = self._path.attempts, len(self._rows)
        order: NDArray[np.int64] | None = None
        if count:
            try:
                order = self._sort(await attempts.queues(self._topic, attempts.end_s(self._timeout_ms)))
            except asyncio.CancelledError as e:
                if passes_on(e):
                    raise
                raise StateError("the client was closed before anything was sent") from None
        self._ends = np.concatenate(([0], np.cumsum(self._rows.item_bytes)))
        try:
            while self._lanes or self._sends:
                if self._begin_next():
                    # What is written leaves, and replies are read, between.
                    await asyncio.sleep(0)
                else:
                    self._woken.clear()
                    await self._woken.wait()
        except BaseException:
            self._lanes.clear()
            for send in list(self._sends):
                send.give_up()
            raise
        if self._queue_is_gone:
            # Whoever sends those rows again is to find the queues that there are.
            await attempts.look_again(self._topic, attempts.end_s(self._timeout_ms))
        self._outcomes.sort()
        return SendManyResult(count, self._outcomes, (self._prefix, self._first), order)

    def _sort(self, queues: tuple[MessageQueue, ...]) -> NDArray[np.int64] | None:
        """Make the lanes; bring the rows of each together, and return their numbers in that order, None: as they are.

        A lane is a number: 0 of rows that go to each queue in turn, then one of each queue; and as many for rows with
        a delay.
        """
        rows = self._rows
        lane_of = np.zeros(len(rows), np.int64)
        if (keys := rows.sharding_keys) is not None:
            places = {queue: place for place, queue in enumerate(queues, 1)}
            lanes = {key: places[queue_of_key(key, queues)] if key else 0 for key in set(keys)}
            lane_of = np.fromiter(map(lanes.__getitem__, keys), np.int64, len(keys))
        if rows.delays_ms is not None:
            lane_of[rows.delays_ms > 0] += len(queues) + 1
        order: NDArray[np.int64] | None = None
        if (lane_of[1:] < lane_of[:-1]).any():
            order = np.argsort(lane_of, kind="stable")
            lane_of, self._rows = lane_of[order], rows.in_order(order)
        starts = [0, *(np.flatnonzero(np.diff(lane_of)) + 1).tolist()]
        for at, end in zip(starts, [*starts[1:], len(rows)], strict=True):
            late, place = divmod(int(lane_of[at]), len(queues) + 1)
            self._lanes.append(Lane(at, end, queues[place - 1] if place else None, bool(late)))
        return order

    # -- sending -------------------------------------------------------------------------------------------------

    def _begin_next(self) -> bool:
        """Begin the next send of a lane, each in turn. False if none may send now."""
        for _ in range(len(self._lanes)):
            lane = self._lanes[0]
            self._lanes.rotate(-1)
            if lane.is_free:
                end = self._end_of_batch(lane)
                size = int(self._ends[end] - self._ends[lane.at])
                if self._room.try_enter(size):
                    self._begin(lane, end, size)
                    return True
        return False

    def _end_of_batch(self, lane: Lane) -> int:
        if lane.one_by_one:
            return lane.at + 1
        end = int(np.searchsorted(self._ends, self._ends[lane.at] + self._batch_bytes, "right")) - 1
        return min(max(end, lane.at + 1), lane.end, lane.at + self._count_max)

    def _begin(self, lane: Lane, end: int, size: int) -> None:
        """Begin the send of the next rows of a lane."""
        path, at = self._path, lane.at
        lane.at = end
        if end == lane.end:
            self._lanes.remove(lane)
        alone = lane.one_by_one or size > self._batch_bytes
        out = self._message(at) if alone else self._batch(at, end)
        if self._half:
            code = out.code if alone else RequestCode.SEND_HALF_BATCH
            out = replace(out, code=code, sys_flag=out.sys_flag | sysflags.TRANSACTION_PREPARED)
        send = RowsSend(path, out, None, lane.queue, self._timeout_ms, self._attempts, at=at, end=end, told=self._told)
        if lane.queue is not None:
            send.follow(lane.queue)
        # What was gathered before goes first.
        send.accumulator = path.accumulator
        lane.in_flight += 1
        self._sends[send] = lane
        try:
            if not send.begin():
                send.drive()
        except Exception as e:
            send.finish(None, e)

    def _told(self, send: RowsSend, result: SendResult | None, error: BaseException | None) -> None:
        """Note what became of a send."""
        lane = self._sends.pop(send)
        lane.in_flight -= 1
        self._room.leave(int(self._ends[send.end] - self._ends[send.at]))
        if send.is_refused(error):
            assert isinstance(error, SendFailed | ServerError)
            self._again(send, lane, one_by_one=error.code != ResponseCode.MESSAGE_ILLEGAL)
            return
        self._outcomes.append(RowsOutcome(send.at, send.end, result, error))
        self._failures = self._failures + 1 if error is not None else 0
        if error is None and self._batch_bytes < self._batch_bytes_max:
            self._stored += 1
            if self._stored >= self._grow_after:
                self._stored, self._grew = 0, True
                self._batch_bytes = min(2 * self._batch_bytes, self._batch_bytes_max)
        if isinstance(error, StateError) or self._failures >= FAILURES_MAX:
            for each in list(self._lanes):
                self._leave(each, error)
        elif error is not None and lane.queue is not None:
            self._queue_is_gone |= isinstance(error, SendFailed) and error.code == QUEUE_GONE
            self._leave(lane, error)
        self._woken.set()

    def _again(self, send: RowsSend, lane: Lane, *, one_by_one: bool) -> None:
        """Send the rows of a batch that was refused, and those that follow, in smaller batches or by themselves."""
        if one_by_one:
            lane.one_by_one = True
        else:
            self._batch_bytes = less_than(send.out, self._batch_bytes)
            self._stored = 0
            if self._grew:
                self._grew, self._grow_after = False, 2 * self._grow_after
        if lane.queue is None:
            lane = Lane(send.at, send.end, one_by_one=one_by_one)
        else:
            lane.at = send.at  # Up to its end, which is this batch's if the rest was left.
        if lane not in self._lanes:
            self._lanes.append(lane)
        self._woken.set()

    def _leave(self, lane: Lane, cause: BaseException | None) -> None:
        """Send no more of a lane: what fails may be sent again, and must not come behind what was to follow it."""
        if lane in self._lanes:
            self._lanes.remove(lane)
            error = cause
            if not isinstance(cause, StateError):
                error = NotSent("not sent, as rows before it failed")
                error.__cause__ = cause
            self._outcomes.append(RowsOutcome(lane.at, lane.end, None, error))
            lane.end = lane.at

    # -- messages ------------------------------------------------------------------------------------------------

    def _batch(self, at: int, end: int) -> PreparedMessage:
        rows, first = slice(at, end), self._first + at
        body = batch_columns.encode(self._rows.bodies[rows], self._rows.pieces_of(rows), self._prefix, first)
        # Of half messages the first one's says to which place an end belongs.
        ids = joined_ids(self._prefix, first, end - at if self._is_hooked else int(self._half))
        return batch_message(self._topic, body, ids)

    def _message(self, row: int) -> PreparedMessage:
        """Return a row as a message that is sent alone, compressed if it is large."""
        message_id = joined_ids(self._prefix, self._first + row, 1)
        pieces = [
            piece if isinstance(piece, bytes) else piece[0] for piece in self._rows.pieces_of(slice(row, row + 1))
        ]
        stored = b"".join([batch_columns.first_properties(message_id), *pieces])
        body, sys_flag = self._rows.bodies[row], 0
        if len(body) >= self._packing.over_bytes:
            body, sys_flag = shrink(body, self._packing)
        return PreparedMessage(self._topic, body, stored.decode(), sys_flag, 0, message_id)
