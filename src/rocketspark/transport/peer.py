"""One connection on which both sides may send requests. Rule: bytes from a peer can harm its own connection only.

Requests are decoded in one pass by their code and handed to plain functions; all replies made from one read leave in
one write. A handler returns the reply's bytes, None (no reply, or a later `send`), or a coroutine that yields either.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, cast

import msgspec

from rocketspark import machine
from rocketspark.errors import ConnectionLost, FrameError, NotSent, RocketSparkError, ServerError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol import frames, headers, request_signing
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.frames import Frame
from rocketspark.protocol.headers import Request
from rocketspark.protocol.message.message_ids import pack_host
from rocketspark.transport.outgoing import LARGE_REPLY_BYTES, WRITE_BYTES_HIGH, Outgoing
from rocketspark.transport.processor_table import Answer, Handler, ReceivedRequest, Refusal, Route, Routes, Sender
from rocketspark.transport.request_frames import Parts, Reply, buffers, reply
from rocketspark.transport.server_bounds import SLICE, Overload

log = LimitedLog("rocketspark.transport")

# Errors that a decoder may raise on bytes that are no header.
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

# Shorter headers need no check: none of them nests too deep for a decoder.
CHECKED_HEADER_BYTES = 1024
# What is left of a read after its last whole frame counts as unfinished from so many bytes on; less is no load.
UNFINISHED_BYTES_MIN = 64 << 10
# Requests of one connection that are worked on in tasks; the others wait, unread.
TASKS_MAX = 1000
# And bytes of them, headers and bodies, which lie in memory until they are answered; of one connection.
TASK_BYTES_MAX = 16 << 20
# A server serves the requests of one read for so long, then the others have their turn: 1,500 requests of a read that
# take half a ms each would keep everybody waiting.
TURN_S = 0.005
# And of those that are answered in tasks so many are begun: what each does first is done in the same turn.
TASKS_IN_TURN = 8
NEVER = math.inf
# A client that ended its side still gets the promised replies for this long.
HALF_CLOSED_S = 10.0


class Peer(Outgoing):
    """One open connection.

    `routes`: who serves the other side's requests; `language`: the one named in every frame sent; `on_open`,
    `on_close`: called once each.
    """

    def __init__(
        self,
        routes: Routes | None = None,
        *,
        language: str = "PYTHON",
        on_open: Callable[[Peer], None] | None = None,
        on_close: Callable[[Peer], None] | None = None,
    ) -> None:
        super().__init__()
        self._routes = routes.table if routes else {}
        self._met_starting = routes is not None and routes.is_starting
        self._gate = routes.gate if routes else None
        # What the gate keeps for this connection.
        self.gate_notes: Any = None
        # Who said the newest heartbeat, as the gate found; None without one.
        self.sender: Sender | None = None
        # Behind a gate requests take the general way, which asks it, but for runs that ask it themselves.
        self._by_prefix = routes.by_prefix if routes and self._gate is None else {}
        self._runs = routes.runs if routes and (self._gate is None or routes.runs_ask_gate) else {}
        # The state that a run keeps for this connection.
        self.notes: Any = None
        self._overload = routes.overload if routes else None
        self._language = language
        self._on_open = on_open
        self._on_close = on_close
        self._splitter = frames.Splitter()
        # Requests that are worked on, with the bytes of each.
        self._tasks: dict[asyncio.Task[Any], int] = {}
        self._task_bytes = 0
        self._begun = 0
        self._alone = False
        # Frames of one read that are not served yet, and frames that wait for a later turn.
        self._received: Iterator[tuple[int, bytes, bytes]] = iter(())
        self._held: list[tuple[int, bytes, bytes]] | None = None
        # Opaques of requests that a run answers later, for whoever set the observers; it empties the list.
        self.later: list[bytes] = []
        self._promised = 0
        self._half_closed = False
        self._closed = asyncio.get_running_loop().create_future()
        self.address = ""
        self.remote_host = ""
        self.remote_port = 0
        # As its replies say: the ordinal of RocketMQ's release.
        self.remote_version = 0
        self.packed_host = b"\x7f\x00\x00\x01\x00\x00\x00\x00"
        self._made_s = self.last_read_s = 0.0
        self.last_write_s = 0.0
        self.loop = asyncio.get_running_loop()

    # -- asyncio's side ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is no subclass of asyncio's.
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=WRITE_BYTES_HIGH)
        name = transport.get_extra_info("peername") or ("", 0)
        self.remote_host, self.remote_port = str(name[0]), int(name[1])
        self.address = self.address or f"{self.remote_host}:{self.remote_port}"
        if self.remote_host:
            # As it stands in the records of what this peer sends.
            self.packed_host = pack_host(self.remote_host.partition("%")[0], self.remote_port)
        self._made_s = self.last_read_s = self.last_write_s = self.loop.time()
        if self._on_open:
            self._on_open(self)

    @property
    def local_host(self) -> str:
        """The address of this side; "" once the connection has ended."""
        name = self._transport.get_extra_info("sockname") if self._transport is not None else None
        return str(name[0]) if name else ""

    def go_on_over(self, transport: asyncio.Transport) -> None:
        """Read and write through another transport (TLS) from now on, which lies over the one that `connection_made`
        brought.
        """
        self._transport = transport

    def relayed_from(self, host: str, port: int) -> None:
        """Take the address of the client that a trusted proxy named as the other side's; called before the first
        frame.
        """
        self.remote_host, self.remote_port = host, port
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.packed_host = pack_host(host, port)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self.bounds is not None:
            self.bounds.closed(self)
        if self._stalled:
            self._stalled.cancel()
        pending, self._pending = self._pending, {}
        if self._sweeper:
            self._sweeper.cancel()
        # Servers that take TLS alone close so, without a word.
        hint = " (if that server takes TLS alone: use_tls)" if self.last_read_s == self._made_s else ""
        for future, *_ in pending.values():
            if not future.done():
                future.set_exception(
                    exc
                    if isinstance(exc, NotSent)
                    else ConnectionLost(
                        f"connection to {self.address} ended before the reply; the request may have been carried out"
                        f"{hint}",
                        address=self.address,
                    )
                )
        for task in self._tasks:
            task.cancel()
        if self._writable:
            self._writable.set()
        self._tell_writable()
        if self._on_close and not self._half_closed:
            self._on_close(self)
        if not self._closed.done():
            self._closed.set_result(None)

    def eof_received(self) -> bool:
        """Close the connection once all open requests are answered, as the other side sends no more."""
        self._write_soon()
        if not self._promised and not self._tasks and not self._held:
            return False
        self._half_closed = True
        if self._on_close:
            self._on_close(self)
        self.loop.call_later(HALF_CLOSED_S, self.abort)
        return True

    def resume_writing(self) -> None:
        super().resume_writing()
        # Not from within: what is written then may pause the connection again.
        self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        if self._transport is None or not self.is_writable or self._is_full():
            return
        held, self._held = self._held, None
        if held:
            self._take_all(held)
        if self._held is None and self._transport is not None and self.is_writable:
            self._transport.resume_reading()
            self._end_if_all_answered()

    def rest(self) -> None:
        """Serve the rest of what one read brought only after the other connections had a turn; for a handler that
        worked for long.
        """
        left = list(self._received)
        if left:
            self._hold(left)
            self.loop.call_soon(self._go_on)

    def alone(self, answer: Coroutine[Any, Any, bytes | None]) -> Coroutine[Any, Any, bytes | None]:
        """Return `answer` for a handler to return it; until it ends, no other request of this connection is served.

        So what the requests asked for keeps its order.
        """
        self._alone = True
        return self._ended_alone(answer)

    async def _ended_alone(self, answer: Coroutine[Any, Any, bytes | None]) -> bytes | None:
        try:
            return await answer
        finally:
            self._alone = False
            self.loop.call_soon(self._go_on)

    def _is_full(self) -> bool:
        """Tell whether the requests worked on are so many, or so large, that no more are read."""
        if self._alone or len(self._tasks) >= TASKS_MAX or self._task_bytes > TASK_BYTES_MAX:
            return True
        return bool(self._task_bytes) and self.bounds is not None and self.bounds.is_busy

    def _hold(self, left: list[tuple[int, bytes, bytes]]) -> None:
        """Keep these frames, and read no more, until `_go_on`."""
        if self._transport is not None:
            self._held = left
            self._transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        self.last_read_s = self.loop.time()
        try:
            data = self._splitter.join(data)
            at = 0
            if data[8:20] in self._runs and self._held is None and not self._pending:
                at = self._take_runs(data)
                if at == len(data) or not self.is_open:
                    return
            received = self._splitter.cut(data, at) if data else []
            if self._held is not None:
                self._held.extend(received)
            elif self._overload is None:
                self._take_all(received)
            else:
                self._take_in_time(received, self._overload)
            if self._splitter.broken and self.is_open:
                self._splitter.feed(b"")
            if self.bounds is not None and (not data or self._splitter.held > UNFINISHED_BYTES_MIN):
                self.bounds.unfinished(self, self._splitter.begun, self._splitter.held)
        except FrameError as e:
            self._drop_broken(e)

    def _take_runs(self, data: bytes) -> int:
        """Serve a read that begins with requests that have a run, and the frames between; return where it stopped."""
        overload = self._overload
        at, size, odd = 0, len(data), 1
        out = self._out = []
        try:
            while at < size and (run := self._runs.get(data[at + 8 : at + 20])) is not None:
                if overload is not None and (overload.waited() >= overload.least_s or overload.refusing):
                    break
                end = run(self, data, at, out)
                if end > at:
                    at, odd = end, 1
                    continue
                # Frames that the run left to the handlers: one, and more each time that no run follows.
                received, at = self._splitter.cut_some(data, at, odd)
                odd = min(2 * odd, SLICE)
                if not received:
                    break
                self._flush(out)
                self._take_all(received)
                if self._held is not None or not self.is_open:
                    break
                out = self._out = []
        finally:
            self._flush(out)
        return at

    def _take_in_time(self, received: list[tuple[int, bytes, bytes]], overload: Overload) -> None:
        """Serve the frames of one read, except those that waited too long."""
        for at in range(0, len(received), SLICE):
            part = received[at : at + SLICE] if len(received) > SLICE else received
            waited_s = overload.waited()
            if overload.refusing or waited_s >= overload.least_s:
                part, refused = overload.sift(part, waited_s)
                for answer in refused:
                    self.send(answer)
            self._take_all(part)
            if self._held is not None:
                self._held.extend(received[at + SLICE :])
                return
            if not self.is_open:
                return

    def _take_all(self, received: list[tuple[int, bytes, bytes]]) -> None:
        """Serve the frames of one read; replies leave together, large ones as soon as the bound is reached."""
        out = self._out = []
        by_prefix = self._by_prefix
        large = 0
        until_s = machine.perf_counter() + TURN_S if len(received) > 1 and self.bounds is not None else NEVER
        self._begun = 0
        self._received = rest = iter(received)
        try:
            for serialization, header, body in rest:
                # The hot path: a JSON request whose code stands first, as RocketMQ's clients write it.
                if (
                    self._pending
                    or serialization != 0
                    or (route := by_prefix.get(header[: header.find(b",", 8, 20)])) is None
                ):
                    answer = self._take(serialization, header, body)
                else:
                    answer = self._serve(route, header, body)
                if answer is not None:
                    out.append(answer)
                    if len(answer) > LARGE_REPLY_BYTES:
                        large += len(answer)
                        if large > WRITE_BYTES_HIGH:
                            large = 0
                            self._flush(out, apart=True)
                            out = self._out = []
                            if self._writable is not None and not self._writable.is_set():
                                # The other side does not read: its other requests wait until it does.
                                self._held = list(rest)
                                return
                if until_s is not NEVER and (machine.perf_counter() > until_s or self._begun >= TASKS_IN_TURN):
                    self.rest()
        except FrameError as e:
            self._flush(out, apart=large > 0)
            self._drop_broken(e)
            return
        finally:
            self._flush(out, apart=large > 0)

    def _drop_broken(self, error: FrameError) -> None:
        log.warning("%s sent a broken frame: %s; connection closed", self.address, error)
        self.close()

    # -- requests of the other side ------------------------------------------------------------------------------

    def _serve(self, route: Route, header: bytes, body: bytes) -> bytes | Parts | None:
        """Serve a request by its route, its header decoded in one pass."""
        if len(header) > CHECKED_HEADER_BYTES:
            frames.check_header(header)
        try:
            request = route[0].decode(header)
        except _UNREADABLE:
            return self._take(0, header, body)
        if request.flag & 1:
            return self._take(0, header, body)
        try:
            answer = route[2](self, request, body)
        except Exception as e:
            return self.failure(request, e)
        return (
            answer
            if type(answer) is bytes and not request.flag & 2
            else self._finish(request, answer, len(header) + len(body))
        )

    def _take(self, serialization: int, header: bytes, body: bytes) -> bytes | Parts | None:
        """Take any frame: replies to us, binary headers, unknown codes and broken requests."""
        frame: Frame | None = None
        if serialization == frames.JSON:
            if len(header) > CHECKED_HEADER_BYTES:
                frames.check_header(header)
            try:
                head = headers.head_decoder.decode(header)
            except _UNREADABLE as e:
                raise FrameError(f"the header is not RocketMQ's JSON: {e}") from e
            code, opaque, flag, remark = head.code, head.opaque, head.flag, head.remark
            version, language = head.version, head.language
            ext: bytes | msgspec.Raw = head.ext
        else:
            frame = frames.decode_header(header, serialization)
            code, opaque, flag, remark = frame.code, frame.opaque, frame.flag, frame.remark
            version, language = frame.version, frame.language
            ext = b""
        if flag & frames.RESPONSE_FLAG:
            self.remote_version = version
            waiting = self._pending.pop(opaque, None)
            if waiting is not None and not waiting[0].done():
                future = waiting[0]
                if frame is not None:
                    ext = msgspec.json.encode(frame.ext or {})
                future.set_result(Reply(code, remark, ext, body, self.address))
            return None
        route = self._routes.get(code)
        if route is None:
            log.info("%s asked for request code %d, which is not supported", self.address, code)
            if flag & frames.ONEWAY_FLAG:
                return None
            refused, text = ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {code} not supported"
            if self._met_starting and not self._routes:
                # Who sends goes to another server, or comes again.
                refused, text = ResponseCode.SERVICE_NOT_AVAILABLE, "this server is still starting"
            return reply(opaque, refused, remark=text, language=self._language)
        texts: dict[str, str] | None = None
        if self._gate is not None:
            texts = request_signing.ext_texts(ext) if frame is None else frame.ext or {}
            refusal = self._refusal(ReceivedRequest(self, code, flag, version, language, texts, body))
            if refusal is not None:
                if flag & frames.ONEWAY_FLAG:
                    return None
                return reply(opaque, refusal.code, remark=refusal.remark, language=self._language)
        try:
            if texts is not None:
                # The handler reads what the gate has read.
                request: Request[Any] = Request(
                    code, headers.from_ext(route[1], texts), opaque, flag, language, version
                )
            else:
                request = route[0].decode(header) if frame is None else headers.from_frame(route[1], frame)
        except (*_UNREADABLE, FrameError) as e:
            log.warning("%s sent request %d with a broken header: %s", self.address, code, e)
            if flag & frames.ONEWAY_FLAG:
                return None
            text = f"request {code}: {e}"
            return reply(opaque, ResponseCode.SYSTEM_ERROR, remark=text, language=self._language)
        return self._run(route[2], request, body, len(header) + len(body))

    def _refusal(self, request: ReceivedRequest) -> Refusal | None:
        """Ask the gate; a request about which it cannot decide is refused."""
        assert self._gate is not None
        try:
            return self._gate.refuses(request)
        except Exception:
            log.exception("request %d of %s could not be checked: refused", request.code, self.address)
            return Refusal(ResponseCode.SYSTEM_ERROR, "the request could not be checked; the broker's log says why")

    def _run(self, handler: Handler, request: Request[Any], body: bytes, size: int) -> bytes | Parts | None:
        try:
            return self._finish(request, handler(self, request, body), size)
        except Exception as e:
            return self.failure(request, e)

    def _finish(self, request: Request[Any], answer: Answer, size: int) -> bytes | Parts | None:
        if answer is None or isinstance(answer, bytes | Parts):
            return None if request.flag & frames.ONEWAY_FLAG else answer
        task = self.loop.create_task(self._await(request, answer))
        self._tasks[task] = size
        self._begun += 1
        self._count(size)
        task.add_done_callback(self._done)
        if self._is_full():
            self._hold(list(self._received))
        return None

    def _count(self, size: int) -> None:
        self._task_bytes += size
        if self.bounds is not None:
            self.bounds.worked_on_bytes += size

    def _done(self, task: asyncio.Task[Any]) -> None:
        was_large = self._task_bytes > TASK_BYTES_MAX
        self._count(-self._tasks.pop(task))
        left = len(self._tasks)
        if self._held is not None and (left in (0, TASKS_MAX // 2) or (was_large and not self._is_full())):
            self.loop.call_soon(self._go_on)
        self._end_if_all_answered()

    def _end_if_all_answered(self) -> None:
        if self._half_closed and not self._promised and not self._tasks and not self._held:
            self.close()

    def promise(self) -> None:
        """Note that a reply will come by `answer`, for a handler that returned None: until then the connection stays
        open, even if the client has ended its side.
        """
        self._promised += 1

    def answer(self, data: bytes) -> None:
        """Write the reply that was promised."""
        self._promised -= 1
        self.send(data)
        self._end_if_all_answered()

    def answer_run(self, replies: list[bytes]) -> None:
        """Write the replies to a run of requests, for which `promise` was called once."""
        self._promised -= 1
        if self.awaited_answers is None:
            self.send(b"".join(replies))
        else:
            for data in replies:
                self.send(data)
        self._end_if_all_answered()

    async def _await(self, request: Request[Any], answer: Awaitable[bytes | Parts | None]) -> None:
        try:
            data = await answer
        except Exception as e:
            data = self.failure(request, e)
        if data is None or request.flag & frames.ONEWAY_FLAG:
            return
        if isinstance(data, bytes):
            self.send(data)
            return
        self._write_soon()
        if self._transport is not None:
            self._transport.writelines(buffers([data]))

    def failure(self, request: Request[Any], error: Exception) -> bytes | None:
        """Return the reply to a request whose handler raised; None if it wants none."""
        code, remark = int(ResponseCode.SYSTEM_ERROR), f"{type(error).__name__}: {error}"
        if isinstance(error, ServerError):
            code, remark = error.code, error.remark
        elif isinstance(error, RocketSparkError):
            log.warning("request %d of %s failed: %s", request.code, self.address, error)
        else:
            log.exception("request %d of %s failed", request.code, self.address)
        if request.flag & frames.ONEWAY_FLAG:
            return None
        return reply(request.opaque, code, remark=remark, language=self._language)

    @property
    def unfinished_frame(self) -> int | None:
        """The number of the frame that has begun to arrive and is not whole; None if there is none."""
        return self._splitter.begun if self._splitter.held else None

    @property
    def has_left(self) -> bool:
        """True once the other side has ended the connection, or its half of it: it asks nothing more."""
        return self._half_closed or self._closed.done()

    def when_closed(self, act: Callable[[], None]) -> None:
        """Call `act` once the connection has ended."""
        self._closed.add_done_callback(lambda _: act())

    async def wait_closed(self) -> None:
        """Wait until the connection has ended."""
        await asyncio.shield(self._closed)
