"""Sends a task's rows in batches. Rule: rows of one queue keep their order, and there is a bound on the requests in
flight.

A send to a queue waits until the send before it to that queue has ended; if that one failed, it is not made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rocketspark.client.producer.prepared_message import PreparedMessage
from rocketspark.client.producer.producer import AsyncProducer
from rocketspark.client.producer.send_many import less_than
from rocketspark.errors import SendFailed, ServerError
from rocketspark.model import MessageQueue
from rocketspark.protocol.codes import ResponseCode
from rocketspark.spark.python_workers import plain_errors, settle
from rocketspark.spark.write.batch_encoding import BatchItems, halved
from rocketspark.spark.write.bounded_flow import ReadAhead, SendsInFlight
from rocketspark.spark.write.queue_choice import QueueTarget
from rocketspark.spark.write.row_sender import RowSender
from rocketspark.spark.write.rows import CheckedRows, offsets_of, parts
from rocketspark.tables.options import WriteOptions

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
    with plain_errors():
        rows = asyncio.run(_send_rows(batches, options))
    settle()
    return rows


async def _send_rows(batches: Iterator[pa.RecordBatch], options: WriteOptions) -> int:
    sender, ahead, rows = Sender(options), ReadAhead(batches), 0
    sender.in_flight.on_failure = ahead.fail
    try:
        await sender.start()
        async for batch in ahead:
            rows += batch.num_rows
            await sender.send(batch)
        await sender.finish()
    finally:
        ahead.close()
        await sender.close()
    return rows


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
        self._sender = RowSender(self._producer, options)
        # Items that wait for more of their target, and their bytes and rows.
        self._gathered: dict[QueueTarget, list[bytes | memoryview]] = {}
        self._sizes: dict[QueueTarget, int] = {}
        self._rows: dict[QueueTarget, int] = {}
        self._gathered_bytes = 0
        # Less once a broker refused as much.
        self._batch_bytes = options.batch_bytes_max
        self._bytes_max = options.batch_bytes_max * options.batches_in_flight_max
        self.in_flight = SendsInFlight(IN_FLIGHT_MAX, self._bytes_max)
        # The last send in order to each queue.
        self._last: dict[MessageQueue, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Start the producer."""
        await self._producer.start()

    async def close(self) -> None:
        """Cancel the sends in flight, and close the producer."""
        await self.in_flight.end()
        await self._producer.close()

    async def send(self, batch: pa.RecordBatch) -> None:
        """Take rows. Returns once as much of them is in flight as the bounds allow, and the rest is stored, or gathered
        for the next batch.
        """
        for part in parts(batch):
            rows = CheckedRows(part, self._options.topic)
            items = self._sender.encode(rows)
            manners = self._manners(rows, items)
            found = await self._sender.targets(rows)
            if len(found) == 1 and found[0][1] is None:
                await self._take(found[0][0], items, manners, 0, items.count)
                continue
            order = np.concatenate([group for _, group in found if group is not None])
            items, manners, at = items.take(order), None if manners is None else manners[order], 0
            for target, group in found:
                assert group is not None
                await self._take(target, items, manners, at, at + len(group))
                at += len(group)

    async def finish(self) -> None:
        """Send the rows that were gathered, and wait until all rows are stored."""
        for target in list(self._gathered):
            await self._flush(target)
        await self.in_flight.settle()

    def _manners(self, rows: CheckedRows, items: BatchItems) -> NDArray[np.int8] | None:
        """Return how each row is sent: in a batch, alone, or late; None if all go in batches."""
        alone = np.diff(items.starts) > self._options.batch_bytes_max
        if self._options.compression:
            alone |= np.diff(offsets_of(rows.bodies)) > self._options.compress_over_bytes
        if rows.delayed is not None:
            return np.where(rows.delayed, _LATE, np.where(alone, _ALONE, _BATCHED))
        return np.where(alone, _ALONE, _BATCHED) if alone.any() else None

    async def _take(
        self, target: QueueTarget, items: BatchItems, manners: NDArray[np.int8] | None, at: int, end: int
    ) -> None:
        """Take items [at, end), which go to one target."""
        if manners is not None:
            for row in (np.flatnonzero(manners[at:end]) + at).tolist():
                await self._gather(target, items, at, row)
                if manners[row] == _ALONE:
                    # Behind what its queue has gathered; a late one comes later anyway.
                    await self._flush(target)
                out = self._sender.message(items, row, target)
                await self._submit(target, out, in_order=manners[row] == _ALONE)
                at = row + 1
        await self._gather(target, items, at, end)

    async def _gather(self, target: QueueTarget, items: BatchItems, at: int, end: int) -> None:
        """Put items into batches; send those that are full."""
        starts = items.starts
        while at < end:
            gathered = self._sizes.get(target, 0)
            stop = int(np.searchsorted(starts, int(starts[at]) + self._batch_bytes - gathered, "right")) - 1
            # An item may be larger than batches have become.
            stop = stop if gathered else max(stop, at + 1)
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
        await self._submit(target, self._sender.batch(pieces, target))

    async def _submit(self, target: QueueTarget, out: PreparedMessage, *, in_order: bool = True) -> None:
        """Send it, `in_order` behind earlier sends to the same queue; wait while too much is in flight."""
        size = len(out.body)
        await self.in_flight.room(size)
        queue = await self._sender.queues.next(target)
        if queue is None:
            await self._store(out, target, None)
            return
        before = self._last.get(queue) if in_order else None
        task = self.in_flight.start(size, self._deliver(before, out, target, queue))
        if in_order:
            self._last[queue] = task
        await asyncio.sleep(0)

    async def _deliver(
        self, before: asyncio.Task[None] | None, out: PreparedMessage, target: QueueTarget, queue: MessageQueue
    ) -> None:
        """Send behind `before`, unless that or another send failed."""
        try:
            if before is not None and not before.done():
                await asyncio.wait([before])
            if self.in_flight.failed is None:
                await self._store(out, target, queue)
        except Exception as e:
            self.in_flight.fail(e)
        finally:
            self.in_flight.leave(len(out.body))

    async def _store(self, out: PreparedMessage, target: QueueTarget, queue: MessageQueue | None) -> None:
        """Send it; a batch that its broker calls illegal by halves, as it may be too large for it (maxMessageSize)."""
        try:
            await self._sender.send(out, target, queue)
        except (SendFailed, ServerError) as e:
            halves = halved(out) if e.code == ResponseCode.MESSAGE_ILLEGAL else ()
            if not halves:
                raise
            self._batch_bytes = less_than(out, self._batch_bytes)
            for half in halves:
                await self._store(half, target, queue)
