"""Sends prepared rows, for writes at least once and exactly once. Rule: rows that name a queue or broker go to no
other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from rocketspark.client.producer.in_flight_send import InFlightSend
from rocketspark.client.producer.prepared_message import PackingSettings, PreparedMessage, shrink
from rocketspark.client.producer.producer import AsyncProducer
from rocketspark.client.results import SendResult
from rocketspark.errors import RocketSparkError
from rocketspark.model import MessageQueue
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.message import sysflags
from rocketspark.protocol.message.message_ids import UniqueIdBlocks
from rocketspark.spark.write.batch_encoding import BatchItems, encode, joined
from rocketspark.spark.write.queue_choice import QueueTarget, RowGroup, TargetQueues, targets
from rocketspark.spark.write.rows import CheckedRows
from rocketspark.tables.options import WriteOptions


class RowSender:
    """Encodes rows, finds their targets, prepares their messages and sends them by a producer, which the caller starts
    and closes.
    """

    def __init__(self, producer: AsyncProducer, options: WriteOptions) -> None:
        self._producer = producer
        self._options = options
        self._packing = PackingSettings(over_bytes=options.compress_over_bytes, kind=options.compression or "zlib")
        self._ids = UniqueIdBlocks()
        self.queues = TargetQueues(producer, options.timeout_ms)

    def encode(self, rows: CheckedRows) -> BatchItems:
        """Encode rows as items, each with a new unique id. Raises MessageIllegal."""
        return encode(rows, self._ids)

    def anew(self, items: BatchItems, at: int, end: int) -> BatchItems:
        """Return the items [at, end) with new unique ids, to be sent where copies of them may be stored already."""
        return items.with_new_ids(self._ids, at, end)

    async def targets(self, rows: CheckedRows) -> list[RowGroup]:
        """Group rows by where they go: return each queue, or group of queues, with the numbers of its rows.

        Raises ConfigError for a queue that does not exist, RouteNotFound for a topic that does not exist or that no
        broker takes messages for.
        """
        return await targets(rows, self.queues.find)

    def message(self, items: BatchItems, row: int, target: QueueTarget, sys_flag: int = 0) -> PreparedMessage:
        """Return the message of one row's item, compressed if the options say so. `sys_flag`: bits that are set in its
        sysFlag.
        """
        out = items.outgoing(row, self._options.access.wire(target.topic))
        body = out.body
        if self._options.compression and len(body) > self._packing.over_bytes:
            body, compressed = shrink(body, self._packing)
            sys_flag |= compressed
        return msgspec.structs.replace(out, body=body, sys_flag=sys_flag) if sys_flag else out

    def batch(self, pieces: list[bytes | memoryview], target: QueueTarget) -> PreparedMessage:
        """Return the message of a batch send; `pieces`: the bytes of its items."""
        return joined(pieces, self._options.access.wire(target.topic))

    def halves(self, items: BatchItems, at: int, end: int, target: QueueTarget) -> PreparedMessage:
        """Return the message of a batch of half messages: the items [at, end)."""
        out = joined([items.data[items.starts[at] : items.starts[end]]], self._options.access.wire(target.topic))
        code, sys_flag = RequestCode.SEND_HALF_BATCH, sysflags.TRANSACTION_PREPARED
        return msgspec.structs.replace(out, code=code, sys_flag=sys_flag)

    async def send(self, out: PreparedMessage, target: QueueTarget, queue: MessageQueue | None) -> SendResult:
        """Send a message to `queue`; if its broker fails, to another queue of the target, unless the rows name a queue
        or broker.

        `queue`: None if the topic does not exist yet; this send may make it. Raises the producer's errors.
        """
        if self._attempts_there(target, queue) == self._options.attempts_max:
            return await self._producer.send_packed(out, None, queue, None, self._options.attempts_max)
        began_s = time.monotonic()
        try:
            return await self._producer.send_packed(out, None, queue, None, 1)
        except RocketSparkError as e:
            return await self._send_elsewhere(out, began_s, e)

    def _attempts_there(self, target: QueueTarget, queue: MessageQueue | None) -> int:
        """Return how often a message is sent to its queue: once, if it may go to another one then."""
        return self._options.attempts_max if queue is None or not target.is_free else 1

    async def _send_elsewhere(self, out: PreparedMessage, began_s: float, error: RocketSparkError) -> SendResult:
        left_ms = self._options.timeout_ms - (time.monotonic() - began_s) * 1000
        if not error.retriable or left_ms <= 0:
            raise error
        return await self._producer.send_packed(out, None, None, left_ms, self._options.attempts_max - 1)

    def begin(
        self,
        out: PreparedMessage,
        target: QueueTarget,
        queue: MessageQueue | None,
        told: Callable[[SendResult | None, BaseException | None], None],
        go_on: Callable[[Coroutine[Any, Any, None]], object],
    ) -> RowSend:
        """Begin what `send` does, without a task, which would cost as much as the send. `told` is called once with the
        result or the error.

        `go_on`: runs the part that has to wait, which is the send to another queue, as a task.
        """
        attempts = self._attempts_there(target, queue)
        send = RowSend(self._producer.send_path, out, None, queue, None, attempts)

        def ended(result: SendResult | None, error: BaseException | None) -> None:
            if attempts < self._options.attempts_max and isinstance(error, RocketSparkError) and not send.given_up:
                go_on(elsewhere(error))
            else:
                told(result, error)

        async def elsewhere(error: RocketSparkError) -> None:
            try:
                result = await self._send_elsewhere(out, send.began_s, error)
            except BaseException as e:
                told(None, e)
                if not isinstance(e, Exception):
                    raise
            else:
                told(result, None)

        send.told = ended
        send.begin_now()
        return send


class RowSend(InFlightSend):
    """A send whose outcome is passed to the function `told`."""

    told: Callable[[SendResult | None, BaseException | None], None] = lambda result, error: None

    def tell(self, result: SendResult | None, error: BaseException | None) -> None:
        """Pass the outcome to `told`."""
        self.told(result, error)

    def give_up(self) -> None:
        """End the send, as nobody waits for it any more."""
        self.given_up = True
        self.finish(None, asyncio.CancelledError())
