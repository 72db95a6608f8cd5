"""Many small sends in one request. Rule: each send has its own result; what is gathered for one queue goes in order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from rocketspark.client.outgoing import Outgoing
from rocketspark.client.results import SendResult
from rocketspark.errors import ConfigError
from rocketspark.model import MessageQueue
from rocketspark.protocol import batch, properties
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.message_ids import unique_ids

# By topic, queue if it is given, and whether the flush is waited for.
Kind = tuple[str, MessageQueue | None, bool]
Send = Callable[[Outgoing, MessageQueue | None], Awaitable[SendResult]]


class Outcome(Protocol):
    """What gets the result of one message: a future, or the like."""

    def done(self) -> bool: ...

    def cancelled(self) -> bool: ...

    def set_result(self, result: SendResult, /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...


class Entry(msgspec.Struct):
    """A message that waits."""

    out: Outgoing
    item: bytes
    result: Outcome


class Batcher:
    """Gathers sends of one kind until they are `bytes_max` bytes or the first has waited for `linger_ms`.

    With `linger_ms` 0 what comes within one turn of the loop goes together, and nothing waits. `send` sends a batch.
    """

    def __init__(self, send: Send, *, linger_ms: float, bytes_max: int) -> None:
        if linger_ms < 0 or bytes_max < 1:
            raise ConfigError("linger_ms must be 0 or more, batch_bytes 1 or more")
        self._send = send
        self._linger_s = linger_ms / 1000
        self._bytes_max = bytes_max
        self._waiting: dict[Kind, list[Entry]] = {}
        self._sizes: dict[Kind, int] = {}
        self._timers: dict[Kind, asyncio.Handle] = {}
        # The last batch of each given queue: the next one goes after it, so that the order is kept.
        self._last: dict[Kind, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, out: Outgoing, queue: MessageQueue | None, wait_store_ok: bool, result: Outcome) -> None:
        """Have a message sent with others; `result` becomes its own."""
        kind = (out.topic, queue, wait_store_ok)
        item = batch.encode_item(out.flag, out.body, out.properties.encode())
        size = self._sizes.get(kind, 0)
        if size and size + len(item) > self._bytes_max:
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
        entries.append(Entry(out, item, result))
        self._sizes[kind] = size = size + len(item)
        if size >= self._bytes_max:
            self._flush(kind)

    def _flush(self, kind: Kind) -> None:
        entries = self._waiting.pop(kind, None)
        if entries is None:
            return
        self._sizes.pop(kind)
        self._timers.pop(kind).cancel()
        before = self._last.get(kind) if kind[1] is not None else None
        task = asyncio.ensure_future(self._deliver(kind, entries, before))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if kind[1] is not None:
            self._last[kind] = task

    async def _deliver(self, kind: Kind, entries: list[Entry], before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        entries = [e for e in entries if not e.result.cancelled()]
        if not entries:
            return
        try:
            sent = await self._send(_joined(kind, entries), kind[1])
        except BaseException as e:
            for entry in entries:
                if not entry.result.done():
                    entry.result.set_exception(e)
                    if isinstance(entry.result, asyncio.Future):
                        # Whoever gave up on it need not hear of it.
                        entry.result.exception()
            if not isinstance(e, Exception):
                raise
            return
        finally:
            if self._last.get(kind) is asyncio.current_task():
                del self._last[kind]
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

    async def close(self) -> None:
        """Send what waits, and wait for all."""
        for kind in list(self._waiting):
            self._flush(kind)
        if self._tasks:
            await asyncio.wait(self._tasks)


def _joined(kind: Kind, entries: list[Entry]) -> Outgoing:
    if len(entries) == 1:
        return entries[0].out
    wait = "true" if kind[2] else "false"
    outer = properties.encode({properties.UNIQUE_ID: unique_ids.next(), properties.WAIT: wait})
    ids = ",".join([e.out.message_id for e in entries])
    body = b"".join([e.item for e in entries])
    return Outgoing(kind[0], body, outer, 0, 0, ids, RequestCode.SEND_BATCH_MESSAGE)
