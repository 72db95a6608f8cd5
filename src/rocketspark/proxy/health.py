"""What tools ask of any gRPC server: is it well (grpc.health.v1), and what does it serve (reflection, v1 and v1alpha).

Rule: their messages stand in a pool of their own, as grpcio's packages would register them in the default one.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from rocketspark.proxy.checks import Shares
from rocketspark.proxy.service import Asked, Service
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.statuses import Refused
from rocketspark.transport.server_bounds import host_of

HEALTH = "grpc.health.v1.Health"
REFLECTIONS = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
SERVING, SERVICE_UNKNOWN = 1, 3
# Health may be watched by so many at a time, and what is served be asked for; the latter for so long.
WATCHING_MAX, REFLECTING_MAX = 1000, 100
REFLECTING_S = 60.0
# Between two answers, of all who ask: each has 30 KB, and whoever asks need be nobody.
APART_S = 0.01
# A question holds a name; its sender reads it in the answer.
QUESTION_BYTES_MAX = 4096
_NOT_FOUND = grpc.StatusCode.NOT_FOUND.value[0]
_BYTES, _INT, _TEXT, _MESSAGE = 12, 5, 9, 11
# Of each message: its fields by name, with number, type, and for repeated ones a mark.
_FIELDS: dict[str, dict[str, tuple[int, int | str, bool]]] = {
    "Check": {"service": (1, _TEXT, False)},
    "Health": {"status": (1, _INT, False)},
    "Ask": {
        "host": (1, _TEXT, False),
        "file_by_filename": (3, _TEXT, False),
        "file_containing_symbol": (4, _TEXT, False),
        "list_services": (7, _TEXT, False),
    },
    "Files": {"file_descriptor_proto": (1, _BYTES, True)},
    "Name": {"name": (1, _TEXT, False)},
    "Names": {"service": (1, "Name", True)},
    "Error": {"error_code": (1, _INT, False), "error_message": (2, _TEXT, False)},
    "Tell": {
        "valid_host": (1, _TEXT, False),
        "original_request": (2, "Ask", False),
        "file_descriptor_response": (4, "Files", False),
        "list_services_response": (6, "Names", False),
        "error_response": (7, "Error", False),
    },
}
# Their first questions, for a name that nothing has.
_NOTHING = {"Check": b"\x0a\x01 ", "Ask": b"\x1a\x01 "}
_QUESTIONS = ("file_by_filename", "file_containing_symbol", "list_services")


@functools.cache
def _pool() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="health.proto", package="tools", syntax="proto3")
    for name, fields in _FIELDS.items():
        made = file.message_type.add(name=name)
        for field, (number, kind, repeated) in fields.items():
            added = made.field.add(name=field, number=number, label=3 if repeated else 1)
            if isinstance(kind, str):
                added.type, added.type_name = _MESSAGE, f".tools.{kind}"
            else:
                added.type = kind
            if field in _QUESTIONS:
                if not made.oneof_decl:
                    made.oneof_decl.add(name="question")
                added.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return pool


def _class(name: str) -> Any:
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"tools.{name}"))


def _question(name: str) -> Callable[[bytes], Any]:
    """Return the reader of a question; one that is too long, or none, asks for nothing that there is: of an error gRPC
    would write a traceback into the log.
    """
    made = _class(name)

    def read(data: bytes) -> Any:
        with contextlib.suppress(DecodeError):
            if len(data) <= QUESTION_BYTES_MAX:
                return made.FromString(data)
        return made.FromString(_NOTHING[name])

    return read


class Tools(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Serves health checks and reflection. `service`: the proxy's calls, which those of tools are counted with."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._read_check = _question("Check")
        watch = {
            "request_deserializer": _question("Check"),
            "response_serializer": _class("Health").SerializeToString,
        }
        ask = {
            "request_deserializer": _question("Ask"),
            "response_serializer": _class("Tell").SerializeToString,
        }
        self._handlers = {
            f"/{HEALTH}/Check": grpc.unary_unary_rpc_method_handler(self._check, Asked),
            f"/{HEALTH}/Watch": grpc.unary_stream_rpc_method_handler(self._watch, **watch),
        }
        for name in REFLECTIONS:
            handler = grpc.stream_stream_rpc_method_handler(self._reflect, **ask)
            self._handlers[f"/{name}/ServerReflectionInfo"] = handler
        self._watching = Shares(WATCHING_MAX, "as many watch as may")
        self._reflecting = Shares(REFLECTING_MAX, "as many ask as may")
        self._turn = asyncio.Lock()
        self._services = (messages.SERVICE, HEALTH, *REFLECTIONS)

    def service(self, handler_call_details: Any) -> Any:
        """Return the handler of a method; None for one that nobody serves."""
        return self._handlers.get(handler_call_details.method)

    async def _check(self, asked: Asked, context: Any) -> bytes:
        try:
            await self._service.enter("Check", context, asked)
        except Refused as e:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(e))
        if self._read_check(asked.taken()).service not in ("", *self._services):
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        found: bytes = _class("Health")(status=SERVING).SerializeToString()
        self._service.work.answered(asked.work, len(found))
        return found

    @contextlib.asynccontextmanager
    async def _counted(self, calls: Shares, context: Any) -> AsyncIterator[None]:
        """Count a call as one of its client's host, or end it."""
        try:
            host = host_of(self._service.address_of(context.peer()))
            calls.take(host, 1)
        except Refused as e:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(e))
        try:
            yield
        finally:
            calls.give(host, 1)

    async def _watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        known = request.service in ("", *self._services)
        async with self._counted(self._watching, context):
            yield _class("Health")(status=SERVING if known else SERVICE_UNKNOWN)
            await asyncio.Event().wait()

    async def _reflect(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        async with self._counted(self._reflecting, context):
            try:
                async with asyncio.timeout(REFLECTING_S):
                    async for answer in self._answers(requests):
                        yield answer
            except TimeoutError:
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "asked for long enough: begin another call")

    async def _answers(self, requests: Any) -> AsyncIterator[Any]:
        async for ask in requests:
            async with self._turn:
                await asyncio.sleep(APART_S)
            answer = _class("Tell")(valid_host=ask.host, original_request=ask)
            kind = ask.WhichOneof("question")
            if kind == "list_services":
                for name in self._services:
                    answer.list_services_response.service.add(name=name)
            elif (found := _files(kind, getattr(ask, kind) if kind else "")) is not None:
                answer.file_descriptor_response.file_descriptor_proto.extend(found)
            else:
                answer.error_response.error_code = _NOT_FOUND
                answer.error_response.error_message = "nothing of that name"
            yield answer


def _files(kind: str | None, name: str) -> list[bytes] | None:
    """Return the file that is asked for, and all that it imports; None if there is none."""
    pool = messages.pool()
    try:
        first = pool.FindFileByName(name) if kind == "file_by_filename" else pool.FindFileContainingSymbol(name)
    except (KeyError, ValueError):
        return None
    wanted, found = [first], dict[str, bytes]()
    while wanted:
        file = wanted.pop()
        if file.name not in found:
            found[file.name] = file.serialized_pb
            wanted += file.dependencies
    return list(found.values())
