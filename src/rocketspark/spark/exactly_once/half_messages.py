"""A task's rows as half messages. Rule: a manifest is written once its half messages are stored, and tells of no other.

A row sent twice, after a reply that was lost, is one row: only the copy that was acknowledged is in the manifest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rocketspark.client.producer.prepared_message import PreparedMessage
from rocketspark.errors import MessageIllegal
from rocketspark.model import MessageQueue
from rocketspark.protocol.message import properties, sysflags
from rocketspark.protocol.message.message_ids import parse_offset_message_id
from rocketspark.spark.exactly_once import transaction_handles
from rocketspark.spark.exactly_once.commit_records import AttemptPart
from rocketspark.spark.exactly_once.commit_topic import DEDUPE_KEY, CommitTopic, safely_stored
from rocketspark.spark.exactly_once.failpoints import passing
from rocketspark.spark.exactly_once.transaction_handles import HandleHead, HandleManifest
from rocketspark.spark.options import WriteOptions
from rocketspark.spark.write.batch_encoding import BatchItems
from rocketspark.spark.write.queue_choice import QueueTarget
from rocketspark.spark.write.row_sender import RowSender
from rocketspark.spark.write.rows import CheckedRows, parts
from rocketspark.spark.write.sends_in_flight import SendsInFlight

# No question about a half message for so long: a batch is ended, or its rows are known to its successor, before.
IMMUNITY_S = 600
# Half messages in flight, each with its row in memory.
IN_FLIGHT_MAX = 512
IN_FLIGHT_BYTES_MAX = 4 << 20
PREPARED = sysflags.TRANSACTION_PREPARED


# The place of a half message: the number of its queue, its offset in the half queue, its physical offset.
HalfPlace = tuple[int, int, int]
_NOWHERE: HalfPlace = (-1, -1, -1)


class HalfMessageSender:
    """Sends the rows of one task attempt as half messages, and writes its manifest."""

    def __init__(
        self, log: CommitTopic, options: WriteOptions, *, attempt: str, query: str, batch: int, partition: int
    ) -> None:
        self._log = log
        self._options = options
        self._sender = RowSender(log.producer, options)
        self._attempt, self._query, self._batch = attempt, query, batch
        self._prefix = f"{log.name}/{batch}/{partition}/"
        self._queues: dict[MessageQueue, int] = {}
        self._ordered = False
        # Handles that no manifest has yet.
        self._found: list[HalfPlace] = []
        self._rows = 0
        self._sequence = 0
        self._first, self._last = 0, -1

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        """Return the queues of the rows so far."""
        return tuple(self._queues)

    async def send(self, batch: pa.RecordBatch) -> None:
        """Send the rows; returns when all are stored as half messages."""
        await asyncio.sleep(0)
        for part in parts(batch):
            await self._send_part(part)
            if len(self._found) > transaction_handles.ROWS_MAX - part.num_rows:
                await self._write_manifest()

    async def finish(self) -> AttemptPart:
        """Write the rest of the manifest; returns where it is."""
        if self._rows:
            passing("halves sent")
        if self._found:
            await self._write_manifest()
        return AttemptPart(self._attempt, self._rows, self._first, self._last)

    async def _send_part(self, part: pa.RecordBatch) -> None:
        rows = CheckedRows(part, self._options.topic, leave_out=(DEDUPE_KEY,))
        if rows.delayed is not None:
            raise MessageIllegal(
                "a row asks for a later delivery, which a message in a transaction cannot have: leave delayLevel,"
                " delayMs and deliverTime out, or write with delivery at-least-once"
            )
        numbers = pa.array(np.arange(self._rows, self._rows + rows.count)).cast(pa.string())
        rows.texts |= {
            properties.TRANSACTION: _same("true", rows.count),
            properties.PRODUCER_GROUP: _same(self._log.topic, rows.count),
            properties.CHECK_IMMUNITY_S: _same(str(IMMUNITY_S), rows.count),
            DEDUPE_KEY: pc.binary_join_element_wise(_same(self._prefix, rows.count), numbers, ""),
        }
        items = self._sender.encode(rows)
        chosen = [QueueTarget("")] * rows.count
        for target, group in await self._sender.targets(rows):
            for row in range(rows.count) if group is None else group.tolist():
                chosen[row] = target
        self._found += await self._send_all(items, chosen)
        self._rows += rows.count

    async def _send_all(self, items: BatchItems, chosen: Sequence[QueueTarget]) -> list[HalfPlace]:
        """Send each item to its target; return where each is stored. Raises the error of one that failed."""
        found: list[HalfPlace] = [_NOWHERE] * len(chosen)
        in_flight = SendsInFlight(IN_FLIGHT_MAX, IN_FLIGHT_BYTES_MAX)

        async def send_one(row: int, out: PreparedMessage, target: QueueTarget) -> None:
            try:
                queue = target.queue or await self._sender.queues.next(target)
                sent = safely_stored(await self._sender.send(out, target, queue))
                place = self._queues.setdefault(self._options.access.wire_queue(sent.queue), len(self._queues))
                found[row] = place, sent.queue_offset, parse_offset_message_id(sent.offset_message_id)[2]
            except Exception as e:
                in_flight.fail(e)
            finally:
                in_flight.leave(len(out.body))

        try:
            for row, target in enumerate(chosen):
                out = self._sender.message(items, row, target, PREPARED)
                if target.queue is not None:
                    self._ordered = True
                size = len(out.body)
                if not in_flight.has_room(size):
                    await in_flight.room(size)
                in_flight.start(size, send_one(row, out, target))
            await asyncio.sleep(0)
            passing("halves under way")
            await in_flight.settle()
        finally:
            await in_flight.end()
        return found

    async def _write_manifest(self) -> None:
        while self._found:
            count = min(len(self._found), transaction_handles.ROWS_MAX)
            head = HandleHead(
                attempt=self._attempt,
                sequence=self._sequence,
                rows=count,
                query=self._query,
                batch=self._batch,
                ordered=self._ordered,
                queues=tuple((q.topic, q.broker_name, q.queue_id) for q in self._queues),
            )
            queues, half_offsets, positions = np.array(self._found[:count], np.int64).T
            manifest = HandleManifest(head, queues.astype(np.int32), half_offsets, positions)
            offset = await self._log.append_manifest(manifest)
            if not self._sequence:
                self._first = offset
            self._last = offset
            self._sequence += 1
            del self._found[:count]


def _same(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), count)
