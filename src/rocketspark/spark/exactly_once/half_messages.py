"""A task's rows as half messages. Rule: a manifest is written once its half messages are stored, and tells of no other.

A row sent twice, after a reply that was lost, is one row: only the copy that was acknowledged is in the manifest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rocketspark.client.producer.prepared_message import PackingSettings, PreparedMessage, shrink
from rocketspark.errors import MessageIllegal, RocketSparkError, RouteNotFound
from rocketspark.model import MessageQueue
from rocketspark.protocol.message import properties, sysflags
from rocketspark.protocol.message.message_ids import UniqueIdBlocks, parse_offset_message_id
from rocketspark.spark.exactly_once import transaction_handles
from rocketspark.spark.exactly_once.commit_records import AttemptPart
from rocketspark.spark.exactly_once.commit_topic import DEDUPE_KEY, CommitTopic
from rocketspark.spark.exactly_once.failpoints import passing
from rocketspark.spark.exactly_once.transaction_handles import HandleHead, HandleManifest
from rocketspark.spark.options import WriteOptions
from rocketspark.spark.write.batch_encoding import encode
from rocketspark.spark.write.queue_choice import QueueTarget, targets
from rocketspark.spark.write.rows import CheckedRows, parts

# No question about a half message for so long: a batch is ended, or its rows are known to its successor, before.
IMMUNITY_S = 600
# Half messages in flight, each with its row in memory.
IN_FLIGHT_MAX = 512
IN_FLIGHT_BYTES_MAX = 4 << 20


class HalfMessageSender:
    """Sends the rows of one task attempt as half messages, and writes its manifest."""

    def __init__(
        self, log: CommitTopic, options: WriteOptions, *, attempt: str, query: str, batch: int, partition: int
    ) -> None:
        self._log = log
        self._options = options
        self._producer = log.producer
        self._attempt, self._query, self._batch = attempt, query, batch
        self._prefix = f"{log.name}/{batch}/{partition}/"
        self._packing = PackingSettings(over_bytes=options.compress_over_bytes, kind=options.compression or "zlib")
        self._ids = UniqueIdBlocks()
        self._known: dict[str, list[MessageQueue]] = {}
        self._turns: dict[QueueTarget, int] = {}
        self._queues: dict[MessageQueue, int] = {}
        self._ordered = False
        # Handles that no manifest has yet.
        self._targets: list[int] = []
        self._half_offsets: list[int] = []
        self._positions: list[int] = []
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
            if len(self._positions) > transaction_handles.ROWS_MAX - part.num_rows:
                await self._write_manifest()

    async def finish(self) -> AttemptPart:
        """Write the rest of the manifest; returns where it is."""
        if self._rows:
            passing("halves sent")
        if self._positions:
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
        items = encode(rows, self._ids)
        chosen = [QueueTarget("")] * rows.count
        for target, group in await targets(rows, self._find_queues):
            for row in range(rows.count) if group is None else group.tolist():
                chosen[row] = target
        found = np.empty((rows.count, 3), np.int64)
        sends = [(items.outgoing(row, self._options.access.wire(t.topic)), t) for row, t in enumerate(chosen)]
        await self._send_all(sends, found)
        self._targets += found[:, 0].tolist()
        self._half_offsets += found[:, 1].tolist()
        self._positions += found[:, 2].tolist()
        self._rows += rows.count

    async def _send_all(self, sends: Sequence[tuple[PreparedMessage, QueueTarget]], found: np.ndarray) -> None:
        """Send each; `found` gets (queue, half offset, physical offset) of each. Raises the error of one that
        failed.
        """
        room = asyncio.Semaphore(IN_FLIGHT_MAX)
        bytes_in_flight = 0
        left = asyncio.Event()

        async def one(row: int, out: PreparedMessage, target: QueueTarget) -> None:
            nonlocal bytes_in_flight
            try:
                found[row] = await self._send_one(out, target)
            finally:
                bytes_in_flight -= len(out.body)
                room.release()
                left.set()

        async with _Tasks() as tasks:
            for row, (out, target) in enumerate(sends):
                await room.acquire()
                while bytes_in_flight and bytes_in_flight + len(out.body) > IN_FLIGHT_BYTES_MAX:
                    left.clear()
                    await left.wait()
                tasks.check()
                bytes_in_flight += len(out.body)
                tasks.start(one(row, out, target))
            await asyncio.sleep(0)
            passing("halves under way")

    async def _send_one(self, out: PreparedMessage, target: QueueTarget) -> tuple[int, int, int]:
        sys_flag = out.sys_flag | sysflags.TRANSACTION_PREPARED
        if self._options.compression and len(out.body) > self._packing.over_bytes:
            body, flags = shrink(out.body, self._packing)
            out = msgspec.structs.replace(out, body=body, sys_flag=sys_flag | flags)
        else:
            out = msgspec.structs.replace(out, sys_flag=sys_flag)
        queue = target.queue or await self._next_queue(target)
        attempts, began_s = self._options.attempts_max, time.monotonic()
        is_free = target.queue is None and target.broker is None
        if queue is not None and target.queue is not None:
            self._ordered = True
        try:
            sent = await self._producer.send_packed(out, None, queue, None, 1 if is_free and queue else attempts)
        except RocketSparkError as e:
            left_ms = self._options.timeout_ms - (time.monotonic() - began_s) * 1000
            if not is_free or queue is None or attempts == 1 or not getattr(e, "retriable", False) or left_ms <= 0:
                raise
            sent = await self._producer.send_packed(out, None, None, left_ms, attempts - 1)
        place = self._queues.setdefault(self._options.access.wire_queue(sent.queue), len(self._queues))
        return place, sent.queue_offset, parse_offset_message_id(sent.offset_message_id)[2]

    async def _write_manifest(self) -> None:
        while self._positions:
            count = min(len(self._positions), transaction_handles.ROWS_MAX)
            head = HandleHead(
                attempt=self._attempt,
                sequence=self._sequence,
                rows=count,
                query=self._query,
                batch=self._batch,
                ordered=self._ordered,
                queues=tuple((q.topic, q.broker_name, q.queue_id) for q in self._queues),
            )
            manifest = HandleManifest(
                head,
                np.array(self._targets[:count], np.int32),
                np.array(self._half_offsets[:count], np.int64),
                np.array(self._positions[:count], np.int64),
            )
            offset = await self._log.append_manifest(manifest)
            if not self._sequence:
                self._first = offset
            self._last = offset
            self._sequence += 1
            del self._targets[:count], self._half_offsets[:count], self._positions[:count]

    # -- queues --------------------------------------------------------------------------------------------------

    async def _next_queue(self, target: QueueTarget) -> MessageQueue | None:
        """Return the next of the target's queues; None if the topic does not exist yet: the send may make it."""
        queues = await self._known_queues(target.topic)
        if queues is None:
            return None
        if target.broker is not None:
            queues = [queue for queue in queues if queue.broker_name == target.broker]
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
        queues = self._known.get(topic)
        if queues is None:
            try:
                queues = await self._producer.queues(topic)
            except RouteNotFound:
                return None
            if not queues:
                text = f"no broker takes messages for topic {topic!r}: none is up, or all refuse"
                raise RouteNotFound(topic, remark=text)
            self._known[topic] = queues
        return queues


class _Tasks:
    """Tasks that all end when the first of them fails."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()
        self._failed: BaseException | None = None

    async def __aenter__(self) -> _Tasks:
        return self

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._failed = self._failed or task.exception()

    def check(self) -> None:
        if self._failed is not None:
            raise self._failed

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        if error is not None or self._failed is not None:
            for task in list(self._running):
                task.cancel()
        while self._running:
            await asyncio.wait(self._running)
            if self._failed is not None:
                for task in list(self._running):
                    task.cancel()
        await asyncio.sleep(0)
        if error is None:
            self.check()


def _same(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), count)
