"""Calls of MessagingService to the functions that serve them. Rule: each ends with a status in its answer; only calls
that nobody serves, and streams whose answer has no status, end with an error of gRPC.

A unary call is served by `async f(call, request) -> response`; one with a stream of answers by `async f(call, request)`
and Telemetry by `async f(call, requests)`, which write by themselves and so learn that the client is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf import message_factory

from rocketspark.model.limited_log import LimitedLog
from rocketspark.proxy.call import CANCELLED, AddressOf, Call, CallTimes, Refused, address_of, status, status_of
from rocketspark.proxy.checks import check_size
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.codes import Code

log = LimitedLog("rocketspark.proxy")

# Looks at a call before it is served; raises Refused.
Guard = Callable[[Call, Any], Awaitable[None]]
# Calls at work in one process; receives that wait count.
CALLS_MAX = 20_000
# So long a stream's status waits for a client that does not read; until then its call counts.
STATUS_S = 5.0


class Service(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The table of calls. `guards`: asked in turn before each call that brings a request (access control); `times`:
    measures them, None for nothing.
    """

    def __init__(self, *, times: CallTimes | None = None, calls_max: int = CALLS_MAX) -> None:
        self._times = times
        self.guards: list[Guard] = []
        self.address_of: AddressOf = address_of
        # Calls at work but telemetry streams, and those: they last as long as their clients.
        self.at_work = self.streams = 0
        self._calls_max = calls_max
        self._handlers: dict[str, Any] = {}

    def serve(self, rpc: str, function: Callable[..., Any]) -> None:
        """Serve a method of MessagingService, such as "SendMessage"."""
        method = messages.service().methods_by_name[rpc]
        takes = message_factory.GetMessageClass(method.input_type)
        gives = message_factory.GetMessageClass(method.output_type)
        coders = {"request_deserializer": takes.FromString, "response_serializer": gives.SerializeToString}
        path = f"/{messages.SERVICE}/{rpc}"
        if method.client_streaming:
            # In a box that is emptied: gRPC keeps what it gave until the next one comes.
            coders["request_deserializer"] = lambda data: [takes.FromString(data)]
            self._handlers[path] = grpc.stream_stream_rpc_method_handler(self._both(rpc, function), **coders)
        elif method.server_streaming:
            serve = self._streaming(rpc, function, gives)
            timed = serve if self._times is None else self._times.streaming(rpc, serve)
            self._handlers[path] = grpc.unary_stream_rpc_method_handler(timed, **coders)
        else:
            serve = self._unary(rpc, function, gives)
            timed = serve if self._times is None else self._times.unary(rpc, serve)
            self._handlers[path] = grpc.unary_unary_rpc_method_handler(timed, **coders)

    def service(self, handler_call_details: Any) -> Any:
        """Return the handler of a method; None for one that nobody serves."""
        return self._handlers.get(handler_call_details.method)

    def _begin(self, rpc: str, context: Any) -> Call:
        call = Call(rpc, context, self.address_of)
        _ = call.remote_address, call.client_id
        if self.at_work >= self._calls_max:
            raise Refused(Code.TOO_MANY_REQUESTS, "flow limit: as many calls are at work as the proxy takes")
        return call

    async def _guard(self, call: Call, request: Any) -> None:
        for guard in self.guards:
            await guard(call, request)

    def _unary(self, rpc: str, function: Callable[..., Any], gives: Any) -> Callable[..., Any]:
        async def serve(request: Any, context: Any) -> Any:
            self.at_work += 1
            try:
                call = self._begin(rpc, context)
                check_size(rpc, request)
                if self.guards:
                    await self._guard(call, request)
                return await function(call, request)
            except Exception as e:
                return gives(status=status_of(e))
            finally:
                self.at_work -= 1

        return serve

    def _streaming(self, rpc: str, function: Callable[..., Any], gives: Any) -> Callable[..., Any]:
        async def serve(request: Any, context: Any) -> int:
            self.at_work += 1
            try:
                call = self._begin(rpc, context)
                check_size(rpc, request)
                if self.guards:
                    await self._guard(call, request)
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
                self.at_work -= 1

        return serve

    def _both(self, rpc: str, function: Callable[..., Any]) -> Callable[..., Any]:
        async def serve(requests: Any, context: Any) -> None:
            self.streams += 1
            try:
                call = self._begin(rpc, context)
                if self.streams > self._calls_max:
                    raise Refused(Code.TOO_MANY_REQUESTS, "flow limit: as many streams are open as the proxy takes")
                await function(call, self._guarded(call, requests))
            except asyncio.CancelledError:
                raise
            except Refused as e:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{int(e.code)} {e}")
            except Exception as e:
                found = status_of(e)
                await context.abort(grpc.StatusCode.INTERNAL, found.message)
            finally:
                self.streams -= 1

        return serve

    async def _guarded(self, call: Call, requests: Any) -> Any:
        async for box in requests:
            request = box.pop()
            check_size(call.rpc, request)
            if self.guards:
                await self._guard(call, request)
            yield request
            del request


def is_of_grpc(error: BaseException) -> bool:
    """Tell whether gRPC raised it, which it does if the stream is gone; the errors have no base of their own."""
    return type(error).__module__.partition(".")[0] == "grpc"


def not_supported(rpc: str) -> Callable[[Call, Any], Awaitable[Any]]:
    """Return what serves a method that is known and not supported: a status that says so."""
    gives = message_factory.GetMessageClass(messages.service().methods_by_name[rpc].output_type)

    async def refuse(call: Call, request: Any) -> Any:
        return gives(status=status(Code.NOT_IMPLEMENTED, f"{rpc} is not supported"))

    return refuse
