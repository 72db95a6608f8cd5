"""Our own requests on a connection: numbered, sent, awaited. Rule: each ends with a reply or an error, once."""

from __future__ import annotations

import asyncio
import functools
import itertools
import math

from rocketspark.errors import NoReply, NotSent
from rocketspark.protocol import frames, headers
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import Header
from rocketspark.transport.processor_table import ReplyWaiter, RpcHooks
from rocketspark.transport.request_frames import Reply, request

# Requests with time-outs from here on are looked at together, so long after the next is due; shorter ones have timers
# of their own.
SWEPT_MS_MIN = 1000
SWEEP_S = 0.05


class PendingRequests(asyncio.Protocol):
    """The requesting half of a connection; Peer opens it, writes, and brings the replies."""

    loop: asyncio.AbstractEventLoop
    address: str
    last_write_s: float
    _language: str
    _writable: asyncio.Event | None

    def __init__(self) -> None:
        self._opaque = itertools.count()
        # By opaque: the waiter, its deadline (loop time), and for the error: the code and its time-out.
        self._pending: dict[int, tuple[ReplyWaiter, float, int, float]] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._next_due_s = math.inf
        self.hooks: RpcHooks | None = None

    @property
    def is_open(self) -> bool:
        """True until the connection ended or is being closed."""
        raise NotImplementedError

    def send(self, data: bytes) -> None:
        """Write whole frames."""
        raise NotImplementedError

    def ask(
        self, code: int, header: Header | dict[str, str] | None, body: bytes = b"", *, timeout_ms: float = 0
    ) -> asyncio.Future[Reply]:
        """Send a request; the future becomes its Reply, ConnectionLost, or NoReply after `timeout_ms` (0: never).

        Raises NotSent if the connection ended.
        """
        opaque = self.next_opaque()
        if self.hooks is None:
            data = request(code, header, body, opaque=opaque, language=self._language)
            return self.ask_encoded(opaque, data, code, timeout_ms)
        ext = self._hooked(code, header, body)
        data = request(code, ext, body, opaque=opaque, language=self._language)
        future = self.ask_encoded(opaque, data, code, timeout_ms)
        future.add_done_callback(functools.partial(self._tell_response, self.hooks, code))
        return future

    def _hooked(self, code: int, header: Header | dict[str, str] | None, body: bytes) -> dict[str, str]:
        assert self.hooks is not None
        ext = headers.to_ext(header) if isinstance(header, Header) else dict(header or {})
        self.hooks.before_request(self.address, code, ext, body)
        return ext

    def _tell_response(self, hooks: RpcHooks, code: int, done: asyncio.Future[Reply]) -> None:
        if done.cancelled():
            return
        error = done.exception()
        hooks.after_response(self.address, code, None if error is not None else done.result(), error)

    def ask_encoded(self, opaque: int, data: bytes, code: int = 0, timeout_ms: float = 0) -> asyncio.Future[Reply]:
        """Like `ask` with a frame that is encoded already; `opaque` must come from `next_opaque`."""
        future: asyncio.Future[Reply] = self.loop.create_future()
        self.ask_for(future, opaque, data, code, timeout_ms)
        return future

    def ask_for(self, waiting: ReplyWaiter, opaque: int, data: bytes, code: int, timeout_ms: float) -> None:
        """Send a request as `ask_encoded` does; `waiting` gets the reply at once, while the read that brings it is
        handled.
        """
        if not self.is_open:
            raise NotSent(f"no connection to {self.address}: the request was not sent", address=self.address)
        self.last_write_s = now_s = self.loop.time()
        if not timeout_ms:
            self._pending[opaque] = (waiting, math.inf, code, 0)
        else:
            deadline_s = now_s + timeout_ms / 1000
            self._pending[opaque] = (waiting, deadline_s, code, timeout_ms)
            if timeout_ms < SWEPT_MS_MIN:
                self.loop.call_at(deadline_s, self._expire, opaque)
            elif deadline_s < self._next_due_s:
                self._sweep_after(deadline_s)
        self.send(data)

    def next_opaque(self) -> int:
        """Return a number for the next request of this connection."""
        return next(self._opaque) & 0x7FFFFFFF

    async def request(
        self,
        code: int,
        header: Header | dict[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_ms: float = 3000,
    ) -> Reply:
        """Ask and wait for the reply.

        Raises NotSent, NoReply after `timeout_ms`, ConnectionLost; a reply with any code is returned.
        """
        if self._writable is not None and not self._writable.is_set():
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    await self._writable.wait()
            except TimeoutError:
                raise NotSent(f"{self.address} does not read: the request was not sent", address=self.address) from None
        return await self.ask(code, header, body, timeout_ms=max(timeout_ms, 1))

    def _sweep_after(self, deadline_s: float) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._next_due_s = deadline_s
        self._sweeper = self.loop.call_at(deadline_s + SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        """Expire the requests with longer time-outs by one timer: a timer for each would cost a tenth of a send."""
        now_s, due_s = self.loop.time(), math.inf
        self._sweeper, self._next_due_s = None, math.inf
        for opaque, (future, deadline_s, _, timeout_ms) in list(self._pending.items()):
            if future.done():
                del self._pending[opaque]
            elif deadline_s <= now_s:
                self._expire(opaque)
            elif timeout_ms >= SWEPT_MS_MIN and deadline_s < due_s:
                due_s = deadline_s
        if due_s < self._next_due_s:
            self._sweep_after(due_s)

    def _expire(self, opaque: int) -> None:
        waiting = self._pending.pop(opaque, None)
        if waiting is None or waiting[0].done():
            return
        future, _, code, timeout_ms = waiting
        name = RequestCode(code).name if code in RequestCode._value2member_map_ else str(code)
        future.set_exception(
            NoReply(
                f"{name} to {self.address}: no reply within {timeout_ms:.0f} ms; it may have been carried out",
                address=self.address,
            )
        )

    def oneway(
        self, code: int, header: Header | dict[str, str] | None = None, body: bytes = b"", *, remark: str | None = None
    ) -> None:
        """Send a request that wants no reply. Raises NotSent if the connection ended."""
        if not self.is_open:
            raise NotSent(f"no connection to {self.address}: the request was not sent", address=self.address)
        self.last_write_s = self.loop.time()
        if self.hooks is not None:
            header = self._hooked(code, header, body)
        opaque, flag = self.next_opaque(), frames.ONEWAY_FLAG
        self.send(request(code, header, body, opaque=opaque, flag=flag, language=self._language, remark=remark))
