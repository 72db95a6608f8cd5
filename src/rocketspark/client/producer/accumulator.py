"""The accumulator: gathers many small sends into one request. Rule: each send has its own result; what is gathered for
one queue goes in order.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any, NamedTuple, Protocol

import msgspec

from rocketspark.client.producer.prepared_message import PreparedMessage, queue_of_key
from rocketspark.client.results import SendResult
from rocketspark.errors import ConfigError, NotSent, StateError
from rocketspark.model import MessageQueue
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.message import batch, properties
from rocketspark.protocol.message.message_ids import unique_ids

# By topic, queue if it is given, and whether the flush is waited for.
Kind = tuple[str, MessageQueue | None, bool]


class SendBudget(NamedTuple):
    """The budget of a send that goes alone: until the monotonic time `end_s`, so many attempts.

    `codes`: after which responses it is tried again, if not those of the producer.
    """

    end_s: float
    attempts: int
    codes: Collection[int] | None = None


# Sends a prepared message, within a budget.
Send = Callable[[PreparedMessage, MessageQueue | None, SendBudget], Awaitable[SendResult]]


class ResultTaker(Protocol):
    """The receiver of one message's result: a future, or the like."""

    def done(self) -> bool: ...

    def cancelled(self) -> bool: ...

    def set_result(self, result: SendResult, /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...


class QueueChooser(Protocol):
    """The part of a producer that chooses queues."""

    def known_queues(self, topic: str) -> tuple[MessageQueue, ...]: ...

    async def queues(self, topic: str, end_s: float) -> tuple[MessageQueue, ...]: ...


class GatheredMessage(msgspec.Struct):
    """A message that waits in the accumulator. `own`: it goes alone."""

    out: PreparedMessage
    wait_store_ok: bool
    result: ResultTaker
    own: SendBudget | None = None
    item: bytes = b""


class Accumulator:
    """Gathers sends of one kind until they are `bytes_max` bytes or the first has waited for `linger_ms`.

    With `linger_ms` 0 what comes within one turn of the loop goes together, and nothing waits. `send` sends a batch,
    which has `budget()` from when it is complete. What goes to one queue goes in the order in which it came: each
    batch, and what goes alone, waits for the one before.
    """

    def __init__(
        self, send: Send, queues: QueueChooser, budget: Callable[[], SendBudget], *, linger_ms: float, bytes_max: int
    ) -> None:
        if not linger_ms >= 0 or bytes_max < 1:
            raise ConfigError("linger_ms must be 0 or more, batch_bytes 1 or more")
        self._send = send
        self._queues = queues
        self._budget = budget
        self._linger_s = linger_ms / 1000
        self._bytes_max = bytes_max
        # By topic: sends by sharding key that wait for the route, in the order in which they came.
        self._unrouted: dict[str, list[tuple[GatheredMessage, str]]] = {}
        self._waiting: dict[Kind, list[GatheredMessage]] = {}
        self._sizes: dict[Kind, int] = {}
        self._timers: dict[Kind, asyncio.Handle] = {}
        # The last send to each given queue: the next one goes after it, so that the order is kept.
        self._last: dict[MessageQueue, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, entry: GatheredMessage, queue: MessageQueue | None, sharding_key: str | None = None) -> None:
        """Have a message sent, with others if it may; its `result` becomes its own."""
        if queue is None and sharding_key:
            topic = entry.out.topic
            unrouted = self._unrouted.get(topic)
            if unrouted is None:
                queues = self._queues.known_queues(topic)
                if not queues:
                    self._unrouted[topic] = [(entry, sharding_key)]
                    self._begin(self._route(topic))
                    return
                queue = queue_of_key(sharding_key, queues)
            else:
                unrouted.append((entry, sharding_key))
                return
        self._place(entry, queue)

    async def _route(self, topic: str) -> None:
        try:
            queues = await self._queues.queues(topic, self._budget().end_s)
        except BaseException as e:
            _fail([entry for entry, _ in self._unrouted.pop(topic)], e)
            if not isinstance(e, Exception):
                raise
            return
        for entry, sharding_key in self._unrouted.pop(topic):
            try:
                self._place(entry, queue_of_key(sharding_key, queues))
            except Exception as e:
                _fail([entry], e)

    def _place(self, entry: GatheredMessage, queue: MessageQueue | None) -> None:
        out = entry.out
        if entry.own is not None:
            assert queue is not None
            self._flush((out.topic, queue, True))
            self._flush((out.topic, queue, False))
            self._hand_over((out.topic, queue, True), [entry], entry.own)
            return
        kind = (out.topic, queue, entry.wait_store_ok)
        if queue is not None:
            self._flush((out.topic, queue, not entry.wait_store_ok))
        entry.item = batch.encode_item(out.flag, out.body, out.properties.encode())
        size = self._sizes.get(kind, 0)
        if size and size + len(entry.item) > self._bytes_max:
            self._flush(kind)
            size = 0
        entries = self._waiting.get(kind)
        if entries is None:
            entries = self._waiting[kind] = []
            loop = asyncio.get_running_loop()
            if self._linger_s:
                self._timers[kind] = loop.call_later(self._linger_s, self._flush, kind)
            else:
                self._timers[kind] = loop.call_soon(self._flush, kind)
        entries.append(entry)
        self._sizes[kind] = size = size + len(entry.item)
        if size >= self._bytes_max:
            self._flush(kind)

    def _flush(self, kind: Kind) -> None:
        entries = self._waiting.pop(kind, None)
        if entries is None:
            return
        self._sizes.pop(kind)
        self._timers.pop(kind).cancel()
        self._hand_over(kind, entries, self._budget())

    def _hand_over(self, kind: Kind, entries: list[GatheredMessage], own: SendBudget) -> None:
        queue = kind[1]
        task = self._begin(self._deliver(kind, entries, own, self._last.get(queue) if queue is not None else None))
        if queue is not None:
            self._last[queue] = task

    def _begin(self, act: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(act)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _deliver(
        self, kind: Kind, entries: list[GatheredMessage], own: SendBudget, before: asyncio.Task[None] | None
    ) -> None:
        try:
            if before is not None and not before.done():
                await asyncio.wait([before], timeout=max(own.end_s - time.monotonic(), 0))
                if not before.done():
                    text = f"topic {kind[0]!r}: what goes before to the same queue took too long; nothing was sent"
                    _fail(entries, NotSent(text))
                    await asyncio.wait([before])  # What comes after must not overtake it either.
                    return
            _fail([e for e in entries if e.result.cancelled()], NotSent("nobody waits for it: nothing was sent"))
            entries = [e for e in entries if not e.result.cancelled()]
            if entries:
                _tell(entries, await self._send(_joined(kind, entries), kind[1], own))
        except BaseException as e:
            _fail(entries, e)
            if not isinstance(e, Exception):
                raise
        finally:
            if kind[1] is not None and self._last.get(kind[1]) is asyncio.current_task():
                del self._last[kind[1]]

    async def close(self) -> None:
        """Send what waits, and wait for all."""
        while self._waiting or self._tasks:
            for kind in list(self._waiting):
                self._flush(kind)
            await asyncio.wait(self._tasks)


def _fail(entries: list[GatheredMessage], error: BaseException) -> None:
    if isinstance(error, asyncio.CancelledError):
        error = StateError("the client was closed before a broker had answered: the message may have been stored")
    for entry in entries:
        if not entry.result.done():
            entry.result.set_exception(error)
            if isinstance(entry.result, asyncio.Future):
                # Whoever gave up on it need not hear of it.
                entry.result.exception()


def _tell(entries: list[GatheredMessage], sent: SendResult) -> None:
    if len(entries) == 1:
        if not entries[0].result.done():
            entries[0].result.set_result(sent)
        return
    places = sent.offset_message_id.split(",")
    for number, entry in enumerate(entries):
        if not entry.result.done():
            entry.result.set_result(
                SendResult(
                    sent.status,
                    entry.out.message_id,
                    places[number] if len(places) == len(entries) else sent.offset_message_id,
                    sent.queue,
                    sent.queue_offset + number,
                    entry.out.message_id,
                )
            )


def _joined(kind: Kind, entries: list[GatheredMessage]) -> PreparedMessage:
    if len(entries) == 1:
        return entries[0].out
    wait = "true" if kind[2] else "false"
    outer = properties.encode({properties.UNIQUE_ID: unique_ids.next(), properties.WAIT: wait})
    ids = ",".join([e.out.message_id for e in entries])
    body = b"".join([e.item for e in entries])
    return PreparedMessage(kind[0], body, outer, 0, 0, ids, RequestCode.SEND_BATCH_MESSAGE)
