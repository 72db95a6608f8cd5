"""Rows to batches, batches to brokers. Rule: rows of one queue keep their order, and what is in flight has a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import pyarrow as pa

from rocketspark.client.outgoing import Outgoing, queue_of_key
from rocketspark.client.producer import AsyncProducer
from rocketspark.client.results import SendResult
from rocketspark.errors import ConfigError, RouteNotFound
from rocketspark.model import MessageQueue
from rocketspark.protocol import properties
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.message_ids import unique_ids
from rocketspark.spark.options import WriteOptions
from rocketspark.spark.plain_errors import plain_errors
from rocketspark.spark.rows import Rows

Target = tuple[str, MessageQueue | None]


def send_rows(batches: Iterator[pa.RecordBatch], options: WriteOptions) -> int:
    """Send every row and wait until all are stored; returns how many.

    Raises SendFailed, MessageIllegal, ConfigError, RouteNotFound.
    """
    with plain_errors(), asyncio.Runner() as runner:
        rows = 0
        sender = runner.run(_started(options))
        try:
            # The loop runs while there is something to wait for; meanwhile the sockets hold what is in flight.
            for batch in batches:
                rows += batch.num_rows
                runner.run(sender.send(batch))
            runner.run(sender.finish())
        finally:
            runner.run(sender.close())
        return rows


async def _started(options: WriteOptions) -> Sender:
    sender = Sender(options)
    await sender.start()
    return sender


class Sender:
    """Gathers rows into batches per queue and keeps a bounded number of them in flight."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._producer = AsyncProducer(
            options.namesrv,
            options.group,
            send_timeout_ms=options.timeout_ms,
            retries=options.attempts_max - 1,
        )
        self._queues: dict[str, list[MessageQueue]] = {}
        self._gathered: dict[Target, list[bytes]] = {}
        self._sizes: dict[Target, int] = {}
        self._in_flight: set[asyncio.Task[None]] = set()
        self._last: dict[Target, asyncio.Task[None]] = {}

    async def start(self) -> None:
        await self._producer.start()

    async def close(self) -> None:
        for task in self._in_flight:
            task.cancel()
        await asyncio.gather(*self._in_flight, return_exceptions=True)
        await self._producer.close()

    async def send(self, batch: pa.RecordBatch) -> None:
        """Take the rows; returns when they are gathered or in flight, within the bound."""
        rows = Rows(batch, self._options.topic)
        bytes_max = self._options.batch_bytes_max
        targets = await self._targets(rows)
        for row, item in enumerate(rows.items()):
            target = targets[row] if isinstance(targets, list) else targets
            if len(item) > bytes_max or (rows.delay_levels and rows.delay_levels[row]):
                # What no batch may hold goes alone, behind what its queue has gathered.
                await self._flush(target)
                await self._submit(target, self._producer.send(rows.message(row), queue=target[1]))
                continue
            size = self._sizes.get(target, 0) + len(item)
            if size > bytes_max:
                await self._flush(target)
                size = len(item)
            self._gathered.setdefault(target, []).append(item)
            self._sizes[target] = size

    async def _targets(self, rows: Rows) -> Target | list[Target]:
        """Where each row goes; one target if all go to the same."""
        if rows.queue_ids is None and rows.sharding_keys is None:
            if isinstance(rows.topics, str):
                return (rows.topics, None)
            return [(topic, None) for topic in rows.topics]
        targets: list[Target] = []
        for row in range(rows.count):
            topic = rows.topics if isinstance(rows.topics, str) else rows.topics[row]
            queue_id = rows.queue_ids[row] if rows.queue_ids is not None else None
            key = rows.sharding_keys[row] if rows.sharding_keys is not None else None
            queue = None
            if queue_id is not None or key:
                queues = self._queues.get(topic) or await self._find_queues(topic)
                if queue_id is not None:
                    queue = _chosen(topic, queues, rows.brokers[row] if rows.brokers else None, queue_id)
                else:
                    queue = queue_of_key(str(key), queues)
            targets.append((topic, queue))
        return targets

    async def _find_queues(self, topic: str) -> list[MessageQueue]:
        try:
            queues = await self._producer.queues(topic)
        except RouteNotFound:
            text = (
                f"topic {topic!r} does not exist: a row with shardingKey or queueId needs its queues; create it first"
            )
            raise RouteNotFound(topic, remark=text) from None
        if not queues:
            raise RouteNotFound(
                topic, remark=f"no broker takes messages for topic {topic!r}: none is up, or all refuse"
            )
        self._queues[topic] = queues
        return queues

    async def _flush(self, target: Target) -> None:
        """Send what a target has gathered."""
        items = self._gathered.pop(target, None)
        if not items:
            return
        del self._sizes[target]
        outer = f"{properties.UNIQUE_ID}\x01{unique_ids.next()}\x02{properties.WAIT}\x01true\x02"
        out = Outgoing(target[0], b"".join(items), outer, 0, 0, "", RequestCode.SEND_BATCH_MESSAGE)
        await self._submit(target, self._producer.send_packed(out, None, target[1], None))

    async def _submit(self, target: Target, sending: Coroutine[Any, Any, SendResult]) -> None:
        """Have it sent, behind what goes to the same queue; waits while too much is in flight."""
        while len(self._in_flight) >= self._options.batches_in_flight_max:
            await self._wait()
        before = self._last.get(target) if target[1] is not None else None
        task = asyncio.ensure_future(_after(before, sending))
        self._in_flight.add(task)
        self._last[target] = task
        await asyncio.sleep(0)

    async def _wait(self) -> None:
        """Wait until one is stored. Raises what one failed with."""
        done, self._in_flight = await asyncio.wait(self._in_flight, return_when=asyncio.FIRST_COMPLETED)
        if errors := [error for task in done if (error := task.exception()) is not None]:
            raise errors[0]

    async def finish(self) -> None:
        """Send what is gathered, wait for all."""
        for target in list(self._gathered):
            await self._flush(target)
        while self._in_flight:
            await self._wait()


async def _after(before: asyncio.Task[None] | None, sending: Coroutine[Any, Any, SendResult]) -> None:
    if before is not None and not before.done():
        await asyncio.wait([before])
    if before is not None and (before.cancelled() or before.exception() is not None):
        sending.close()
        return  # Its error ends the task; what stood behind it must not overtake.
    await sending


def _chosen(topic: str, queues: list[MessageQueue], broker: str | None, queue_id: int) -> MessageQueue:
    """The queue that a row names; without a broker, that of the first broker by name."""
    for queue in queues:
        if queue.queue_id == queue_id and broker in (None, queue.broker_name):
            return queue
    have = ", ".join(f"{q.broker_name}/{q.queue_id}" for q in queues)
    where = f" on broker {broker!r}" if broker else ""
    raise ConfigError(f"a row names queue {queue_id}{where} of topic {topic!r}, which is not there; there are: {have}")
