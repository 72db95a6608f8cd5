"""The sender of a task's rows in batches. Rule: rows of one queue keep their order, and the requests in flight have a
bound.

What goes to one queue waits for what went there before; if that fails, it is not sent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from functools import partial

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rocketspark.client.producer.prepared_message import PackingSettings, PreparedMessage, shrink
from rocketspark.client.producer.producer import AsyncProducer
from rocketspark.errors import RocketSparkError, RouteNotFound
from rocketspark.model import MessageQueue
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.message import properties
from rocketspark.protocol.message.message_ids import UniqueIdBlocks, unique_ids
from rocketspark.spark.options import WriteOptions
from rocketspark.spark.plain_errors import plain_errors
from rocketspark.spark.python_workers import settle
from rocketspark.spark.write.batch_encoding import BatchItems, encode
from rocketspark.spark.write.queue_choice import QueueTarget, targets
from rocketspark.spark.write.rows import CheckedRows, offsets_of, parts

# A batch has no more rows: brokers count those of an inner batch in 15 bits.
BATCH_ROWS_MAX = 0x7FFF
# Rows that go alone are small, at times: no more of them are in flight.
IN_FLIGHT_MAX = 1024
# The ways a row is sent. Large or compressed rows go alone, as no batch may hold them; so do those for a later time.
_BATCHED, _ALONE, _LATE = np.int8(0), np.int8(1), np.int8(2)


def send_rows(batches: Iterator[pa.RecordBatch], options: WriteOptions) -> int:
    """Send every row and wait until all are stored; return how many.

    Raises SendFailed, MessageIllegal, ConfigError, RouteNotFound.
    """
    with plain_errors(), asyncio.Runner() as runner:
        rows = 0
        sender = runner.run(_started(options))
        try:
            for batch in batches:
                rows += batch.num_rows
                runner.run(sender.send(batch))
            runner.run(sender.finish())
        finally:
            runner.run(sender.close())
    settle()
    return rows


async def _started(options: WriteOptions) -> Sender:
    sender = Sender(options)
    await sender.start()
    return sender


class Sender:
    """Gathers rows into batches for each target and keeps a bounded number of them in flight."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._producer = AsyncProducer(
            options.namesrv,
            options.group,
            send_timeout_ms=options.timeout_ms,
            retries=options.attempts_max - 1,
            **options.access.client_options(),
        )
        self._packing = PackingSettings(over_bytes=options.compress_over_bytes, kind=options.compression or "zlib")
        self._ids = UniqueIdBlocks()
        self._queues: dict[str, list[MessageQueue]] = {}
        self._turns: dict[QueueTarget, int] = {}
        # Items that wait for more of their target, and their bytes and rows.
        self._gathered: dict[QueueTarget, list[bytes | memoryview]] = {}
        self._sizes: dict[QueueTarget, int] = {}
        self._rows: dict[QueueTarget, int] = {}
        self._gathered_bytes = 0
        self._in_flight: set[asyncio.Task[None]] = set()
        self._in_flight_bytes = 0
        self._bytes_max = options.batch_bytes_max * options.batches_in_flight_max
        self._ended = asyncio.Event()
        self._failed: Exception | None = None
        self._last: dict[MessageQueue, asyncio.Task[None]] = {}

    async def start(self) -> None:
        await self._producer.start()

    async def close(self) -> None:
        tasks = list(self._in_flight)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._producer.close()

    async def send(self, batch: pa.RecordBatch) -> None:
        """Take the rows; return when they are stored, but for fewer than fill a batch.

        Nothing is in flight after: this loop stands still while Spark makes the next rows, however long that takes.
        """
        # Connections that ended meanwhile are seen now: read, told, noted.
        for _ in range(3):
            await asyncio.sleep(0)
        for part in parts(batch):
            rows = CheckedRows(part, self._options.topic)
            items = encode(rows, self._ids)
            manners = self._manners(rows, items)
            found = await targets(rows, self._find_queues)
            if len(found) == 1 and found[0][1] is None:
                await self._take(found[0][0], items, manners, 0, items.count)
                continue
            order = np.concatenate([group for _, group in found if group is not None])
            items, manners, at = items.take(order), None if manners is None else manners[order], 0
            for target, group in found:
                assert group is not None
                await self._take(target, items, manners, at, at + len(group))
                at += len(group)
        await self._settle()

    async def finish(self) -> None:
        """Send the rows gathered, and wait for all."""
        for target in list(self._gathered):
            await self._flush(target)
        await self._settle()

    def _manners(self, rows: CheckedRows, items: BatchItems) -> NDArray[np.int8] | None:
        """Return how each row is sent: in a batch, alone, or late; None if all go in batches."""
        alone = np.diff(items.starts) > self._options.batch_bytes_max
        if self._options.compression:
            alone |= np.diff(offsets_of(rows.bodies)) > self._packing.over_bytes
        if rows.delayed is not None:
            return np.where(rows.delayed, _LATE, np.where(alone, _ALONE, _BATCHED))
        return np.where(alone, _ALONE, _BATCHED) if alone.any() else None

    async def _take(
        self, target: QueueTarget, items: BatchItems, manners: NDArray[np.int8] | None, at: int, end: int
    ) -> None:
        """Take items [at, end), which go to one target."""
        if manners is not None:
            topic = self._options.access.wire(target.topic)
            for row in (np.flatnonzero(manners[at:end]) + at).tolist():
                await self._gather(target, items, at, row)
                if manners[row] == _ALONE:
                    # Behind what its queue has gathered; a late one comes later anyway.
                    await self._flush(target)
                out = self._compressed(items.outgoing(row, topic))
                await self._submit(target, out, in_order=manners[row] == _ALONE)
                at = row + 1
        await self._gather(target, items, at, end)

    def _compressed(self, out: PreparedMessage) -> PreparedMessage:
        if not self._options.compression or len(out.body) <= self._packing.over_bytes:
            return out
        body, sys_flag = shrink(out.body, self._packing)
        return msgspec.structs.replace(out, body=body, sys_flag=sys_flag)

    async def _gather(self, target: QueueTarget, items: BatchItems, at: int, end: int) -> None:
        """Put items into batches; send those that are full."""
        starts, bytes_max = items.starts, self._options.batch_bytes_max
        while at < end:
            room = bytes_max - self._sizes.get(target, 0)
            stop = int(np.searchsorted(starts, int(starts[at]) + room, "right")) - 1
            stop = min(stop, end, at + BATCH_ROWS_MAX - self._rows.get(target, 0))
            if stop > at:
                size = int(starts[stop] - starts[at])
                piece = items.data[starts[at] : starts[stop]]
                # An item that stays here is copied, so that it does not keep all the others in memory.
                self._gathered.setdefault(target, []).append(piece if stop < end else bytes(piece))
                self._sizes[target] = self._sizes.get(target, 0) + size
                self._rows[target] = self._rows.get(target, 0) + stop - at
                self._gathered_bytes += size
                at = stop
            if at < end:
                await self._flush(target)
        if self._gathered_bytes > self._bytes_max:
            for each in list(self._gathered):
                await self._flush(each)

    async def _flush(self, target: QueueTarget) -> None:
        """Send the rows that a target has gathered."""
        pieces = self._gathered.pop(target, None)
        if not pieces:
            return
        self._gathered_bytes -= self._sizes.pop(target)
        del self._rows[target]
        outer = f"{properties.UNIQUE_ID}\x01{unique_ids.next()}\x02{properties.WAIT}\x01true\x02"
        topic = self._options.access.wire(target.topic)
        out = PreparedMessage(topic, b"".join(pieces), outer, 0, 0, "", RequestCode.SEND_BATCH_MESSAGE)
        await self._submit(target, out)

    async def _submit(self, target: QueueTarget, out: PreparedMessage, *, in_order: bool = True) -> None:
        """Send it, `in_order` behind earlier sends to the same queue; wait while too much is in flight."""
        size = len(out.body)
        while self._in_flight and (
            self._in_flight_bytes + size > self._bytes_max or len(self._in_flight) >= IN_FLIGHT_MAX
        ):
            await self._wait()
        queue = target.queue or await self._next_queue(target)
        if queue is None:
            # The topic is not there yet: this send may make it.
            await self._producer.send_packed(out, None, None, None)
            return
        is_free = target.queue is None and target.broker is None
        before = self._last.get(queue) if in_order else None
        task = asyncio.ensure_future(self._deliver(before, out, queue, is_free))
        if in_order:
            self._last[queue] = task
        self._in_flight.add(task)
        self._in_flight_bytes += size
        task.add_done_callback(partial(self._end, size))
        await asyncio.sleep(0)

    async def _deliver(
        self, before: asyncio.Task[None] | None, out: PreparedMessage, queue: MessageQueue, is_free: bool
    ) -> None:
        """Send to a queue; `is_free`: to another if its broker fails."""
        if before is not None and not before.done():
            await asyncio.wait([before])
        if self._failed is not None:
            return  # That ends the task; what stands behind it must not overtake.
        send, attempts = self._producer.send_packed, self._options.attempts_max
        began_s = time.monotonic()
        try:
            try:
                await send(out, None, queue, None, 1 if is_free else attempts)
            except RocketSparkError as e:
                left_ms = self._options.timeout_ms - (time.monotonic() - began_s) * 1000
                if not is_free or attempts == 1 or not e.retriable or left_ms <= 0:
                    raise
                await send(out, None, None, left_ms, attempts - 1)
        except Exception as e:
            self._failed = self._failed or e

    def _end(self, size: int, task: asyncio.Task[None]) -> None:
        self._in_flight.discard(task)
        self._in_flight_bytes -= size
        self._ended.set()

    async def _settle(self) -> None:
        """Wait for all that is in flight. Raises the error of a send that failed."""
        while self._in_flight:
            await self._wait()
        if self._failed is not None:
            raise self._failed

    async def _wait(self) -> None:
        """Wait until something in flight has ended. Raises the error of a send that failed."""
        self._ended.clear()
        await self._ended.wait()
        if self._failed is not None:
            raise self._failed

    async def _next_queue(self, target: QueueTarget) -> MessageQueue | None:
        """Return the next of the target's queues; None if the topic does not exist yet."""
        queues = await self._known_queues(target.topic)
        if queues is None:
            return None
        if target.broker is not None:
            queues = [queue for queue in queues if queue.broker_name == target.broker]
        # Not all tasks begin at the same queue.
        turn = self._turns.get(target, time.monotonic_ns() >> 10) + 1
        self._turns[target] = turn
        return queues[turn % len(queues)]

    async def _find_queues(self, topic: str) -> list[MessageQueue]:
        queues = await self._known_queues(topic)
        if queues is None:
            text = (
                f"topic {topic!r} does not exist: a row with shardingKey, queueId or broker needs its queues;"
                " create it first"
            )
            raise RouteNotFound(topic, remark=text)
        return queues

    async def _known_queues(self, topic: str) -> list[MessageQueue] | None:
        """Return the topic's queues; None if it does not exist. Raises RouteNotFound if no broker takes messages for
        it.
        """
        queues = self._queues.get(topic)
        if queues is None:
            try:
                queues = await self._producer.queues(topic)
            except RouteNotFound:
                return None
            if not queues:
                text = f"no broker takes messages for topic {topic!r}: none is up, or all refuse"
                raise RouteNotFound(topic, remark=text)
            self._queues[topic] = queues
        return queues
