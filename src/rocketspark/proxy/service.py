"""Calls of MessagingService to the functions that serve them. Rule: each ends with a status in its answer; only calls
that nobody serves, and streams whose answer has no status, end with an error of gRPC.

A unary call is served by `async f(call, request) -> response`; one with a stream of answers by `async f(call, request)`
and Telemetry by `async f(call, requests)`, which write by themselves and so learn that the client is gone.

A call counts until gRPC has done with it: gRPC keeps a request, and what was answered, until the answer has left, which
is the client's to let it. Of one host three quarters of what all may have count (`Shares`). A refusal waits as any
answer does: past `REFUSALS_BYTES_MAX` of them a call ends with an error of gRPC, for which nothing waits. Who leaves an
answer unread for `UNREAD_S` loses the connection.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf import message_factory
from google.protobuf.message import DecodeError

from rocketspark.model.limited_log import LimitedLog
from rocketspark.proxy.call import CANCELLED, AddressOf, Call, CallTimes, address_of
from rocketspark.proxy.checks import COUNTED_BYTES_MIN, Shares, check_bytes, check_fields, check_size
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.crowds import IN_TURN, Kind, count_fields
from rocketspark.proxy.wire.enumerations import Code
from rocketspark.proxy.wire.statuses import Refused, status_of

log = LimitedLog("rocketspark.proxy")

# Looks at a call before it is served; raises Refused.
Guard = Callable[[Call, Any], Awaitable[None]]
# So long a stream's status waits for a client that does not read; until then its call counts.
STATUS_S = 5.0


# Calls at work in one process, receives that wait and answers that are not read among them; telemetry streams, which
# last as long as their clients, as many more.
CALLS_MAX = 20_000
# Of all requests at work, and of all answers that are not read, which stand in memory three to four times; smaller
# ones are bounded by their number.
REQUESTS_BYTES_MAX = ANSWERS_BYTES_MAX = 128 << 20
# What an empty message within a request takes.
FIELD_BYTES = 80
# Of requests that were refused for want of room, each with what its call costs.
REFUSALS_BYTES_MAX = 32 << 20
REFUSAL_BYTES = 8 << 10
UNREAD_S = 30.0


class Work:
    """What one call is counted for until it is over. `host`, `address`: the client's, once they are known."""

    __slots__ = ("_taken", "address", "answered_s", "host")

    def __init__(self) -> None:
        self.host = self.address = ""
        self.answered_s = 0.0
        self._taken: list[tuple[Shares, int]] = []

    def take(self, shares: Shares, size: int) -> None:
        """Count `size` of the shares for this call until it is over. Raises Refused if there is not so much left."""
        shares.take(self.host, size)
        self._taken.append((shares, size))

    def over(self) -> None:
        """End the counting of this call: all that it took is given back."""
        for shares, size in self._taken:
            shares.give(self.host, size)
        self._taken.clear()


class AtWork:
    """Counts all calls of one proxy that are being served, and their bytes. `close`: ends the connections of a client's
    address.
    """

    def __init__(self, calls_max: int = CALLS_MAX) -> None:
        self.calls = Shares(calls_max, "as many calls are at work as the proxy takes")
        self.streams = Shares(calls_max, "as many streams are open as the proxy takes")
        self.requests = Shares(REQUESTS_BYTES_MAX, "as much is asked at once as the proxy takes")
        self.answers = Shares(ANSWERS_BYTES_MAX, "as much waits for clients to read it as the proxy takes")
        self.refusals = Shares(REFUSALS_BYTES_MAX, "as many refusals wait for clients to read them as may")
        self.close: Callable[[str], None] = lambda address: None
        # Those whose answers are not read, in the order of these.
        self._answered: dict[Work, None] = {}

    def begin(self, context: Any) -> Work:
        """Return the counting of a new call; it ends by itself when the call has ended."""
        work = Work()
        context.add_done_callback(functools.partial(self._over, work))
        return work

    def _over(self, work: Work, context: Any) -> None:
        self._answered.pop(work, None)
        work.over()

    async def admit(self, work: Work, context: Any, size: int) -> None:
        """Count a call whose request has `size` bytes. Raises Refused if that is too much, or ends the call if too many
        refusals wait for their clients.
        """
        try:
            work.take(self.calls, 1)
            if size >= COUNTED_BYTES_MIN:
                work.take(self.requests, size)
        except Refused as e:
            try:
                work.take(self.refusals, size + REFUSAL_BYTES)
            except Refused:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{int(e.code)} {e}")
            raise

    def answered(self, work: Work, size: int) -> None:
        """Count the `size` bytes of an answer that is about to leave. Raises Refused if too many bytes of answers wait
        for clients to read them.
        """
        self._answered[work] = None
        work.answered_s = asyncio.get_running_loop().time()
        if size >= COUNTED_BYTES_MIN:
            work.take(self.answers, size)

    def sweep(self) -> None:
        """End the connections of clients that do not read what they were answered."""
        until_s = asyncio.get_running_loop().time() - UNREAD_S
        late = set()
        for work in self._answered:
            if work.answered_s > until_s:
                break
            late.add(work.address)
        for address in late:
            log.warning("%s does not read what it was answered: connection closed", address)
            self.close(address)


class Asked:
    """A request as it came: its bytes until they are decoded, their number, and the counting of its call once that has
    begun.
    """

    __slots__ = ("data", "size", "work")

    def __init__(self, data: bytes) -> None:
        self.data, self.size = data, len(data)
        self.work: Work

    def taken(self) -> bytes:
        """Return the bytes, which are kept here no more."""
        data, self.data = self.data, b""
        return data


class Reader:
    """Decodes the requests of one method of MessagingService."""

    def __init__(self, rpc: str) -> None:
        kind = messages.service().methods_by_name[rpc].input_type
        self._rpc, self._kind = rpc, Kind(kind)
        self._decode = message_factory.GetMessageClass(kind).FromString

    async def read(self, data: bytes, take: Callable[[int], None]) -> Any:
        """Return a request; `take` is called before with the memory that its fields will take beside its bytes. Raises
        Refused.
        """
        if len(data) >= COUNTED_BYTES_MIN:
            check_bytes(self._rpc, len(data))
            count = 0
            for count in count_fields(data, self._kind):
                check_fields(self._rpc, count)
                if count >= IN_TURN:
                    await asyncio.sleep(0)
            take(count * FIELD_BYTES)
        try:
            return self._decode(data)
        except DecodeError:
            raise Refused(Code.BAD_REQUEST, f"the request is no {self._kind.name}") from None


class Service(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The table of gRPC methods and what serves them. `guards`: called in turn before each call that has a request, for
    access control; `times`: measures calls, None for no measuring.
    """

    def __init__(self, *, times: CallTimes | None = None, calls_max: int = CALLS_MAX) -> None:
        self._times = times
        self.guards: list[Guard] = []
        self.address_of: AddressOf = address_of
        self.work = AtWork(calls_max)
        self._handlers: dict[str, Any] = {}

    @property
    def at_work(self) -> int:
        """How many calls are being served, telemetry streams not counted."""
        return self.work.calls.total

    @property
    def streams(self) -> int:
        """How many telemetry streams are open."""
        return self.work.streams.total

    def serve(self, rpc: str, function: Callable[..., Any]) -> None:
        """Have a function serve a method of MessagingService, such as "SendMessage"."""
        method = messages.service().methods_by_name[rpc]
        gives = message_factory.GetMessageClass(method.output_type)
        reader = Reader(rpc)
        coders: dict[str, Any] = {"request_deserializer": Asked, "response_serializer": gives.SerializeToString}
        path = f"/{messages.SERVICE}/{rpc}"
        if method.client_streaming:
            self._handlers[path] = grpc.stream_stream_rpc_method_handler(self._both(rpc, function, reader), **coders)
        elif method.server_streaming:
            serve = self._streaming(rpc, function, gives, reader)
            timed = serve if self._times is None else self._times.streaming(rpc, serve)
            self._handlers[path] = grpc.unary_stream_rpc_method_handler(timed, **coders)
        else:
            serve = self._unary(rpc, function, gives, reader)
            timed = serve if self._times is None else self._times.unary(rpc, serve)
            self._handlers[path] = grpc.unary_unary_rpc_method_handler(self._answered(timed, gives), Asked)

    def service(self, handler_call_details: Any) -> Any:
        """Return the handler of a method; None for one that nobody serves."""
        return self._handlers.get(handler_call_details.method)

    def _call(self, rpc: str, context: Any, work: Work) -> Call:
        call = Call(rpc, context, self.address_of)
        work.address, work.host = call.remote_address, call.remote_host
        return call

    async def enter(self, rpc: str, context: Any, asked: Asked) -> Call:
        """Return a call that counts as at work until gRPC has done with it. Raises Refused, or ends the call."""
        work = asked.work = self.work.begin(context)
        try:
            return self._call(rpc, context, work)
        finally:
            # One that is refused waits for its client as any other.
            await self.work.admit(work, context, asked.size)

    async def _begin(self, rpc: str, context: Any, asked: Asked, reader: Reader) -> Any:
        """Return (the call, its request), whose sender may make it. Raises Refused."""
        call = await self.enter(rpc, context, asked)
        _ = call.client_id
        request = await reader.read(asked.taken(), functools.partial(asked.work.take, self.work.requests))
        check_size(rpc, request)
        if self.guards:
            call.check_again = functools.partial(self._guard, call, request)
            await call.check_again()
        return call, request

    async def _guard(self, call: Call, request: Any) -> None:
        for guard in self.guards:
            await guard(call, request)

    def _unary(self, rpc: str, function: Callable[..., Any], gives: Any, reader: Reader) -> Callable[..., Any]:
        async def serve(asked: Asked, context: Any) -> Any:
            try:
                return await function(*await self._begin(rpc, context, asked, reader))
            except grpc.aio.AbortError:
                raise
            except Exception as e:
                return gives(status=status_of(e))

        return serve

    def _answered(self, serve: Callable[..., Any], gives: Any) -> Callable[..., Any]:
        async def answered(asked: Asked, context: Any) -> bytes:
            data: bytes = (await serve(asked, context)).SerializeToString()
            try:
                self.work.answered(asked.work, len(data))
            except Refused as e:
                data = gives(status=status_of(e)).SerializeToString()
            return data

        return answered

    def _streaming(self, rpc: str, function: Callable[..., Any], gives: Any, reader: Reader) -> Callable[..., Any]:
        async def serve(asked: Asked, context: Any) -> int:
            try:
                call: Call
                call, request = await self._begin(rpc, context, asked, reader)
                # It may wait for long; the port learns so that it has begun.
                await context.send_initial_metadata(())
                await function(call, request)
                return call.code
            except Exception as e:
                if is_of_grpc(e):
                    log.info("%s: its client has gone: %s", rpc, e)
                    return CANCELLED
                found = status_of(e)
                try:
                    async with asyncio.timeout(STATUS_S):
                        await context.write(gives(status=found))
                except Exception as gone:
                    # gRPC has several errors for a stream that is gone; or the client does not read.
                    log.info("%s was not answered: %s", rpc, gone)
                return int(found.code)
            finally:
                self.work.answered(asked.work, 0)

        return serve

    def _both(self, rpc: str, function: Callable[..., Any], reader: Reader) -> Callable[..., Any]:
        async def serve(requests: Any, context: Any) -> None:
            work = self.work.begin(context)
            try:
                call = self._call(rpc, context, work)
                _ = call.client_id
                work.take(self.work.streams, 1)
                await context.send_initial_metadata(())
                await function(call, self._guarded(call, requests, reader))
            except asyncio.CancelledError:
                raise
            except Refused as e:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{int(e.code)} {e}")
            except Exception as e:
                found = status_of(e)
                await context.abort(grpc.StatusCode.INTERNAL, found.message)

        return serve

    async def _guarded(self, call: Call, requests: Any, reader: Reader) -> Any:
        async for asked in requests:
            # gRPC keeps what it gave until the next one comes.
            request = await reader.read(asked.taken(), lambda size: None)
            check_size(call.rpc, request)
            if self.guards:
                await self._guard(call, request)
            yield request
            del request


def is_of_grpc(error: BaseException) -> bool:
    """Tell whether gRPC raised an error, as it does if the stream is gone; gRPC's errors have no common base class."""
    return type(error).__module__.partition(".")[0] == "grpc"
