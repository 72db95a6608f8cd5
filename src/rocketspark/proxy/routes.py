"""QueryRoute and QueryAssignment: which queues a topic has, and that all of them are reached through this proxy.

Rule: the order of queues is that of Apache's proxy: of each broker those to read, to write, for both, for neither.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from rocketspark.model import QueueData
from rocketspark.model.route import MASTER_ID, PERM_READ, PERM_WRITE
from rocketspark.protocol import topic_attributes
from rocketspark.proxy.brokers import Brokers
from rocketspark.proxy.call import Call
from rocketspark.proxy.checks import checked_group, checked_topic
from rocketspark.proxy.message_form import WIRE_TYPES
from rocketspark.proxy.settings import PORT_MAX, ProxySettings
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.enumerations import AddressScheme, Code, MessageType, Permission
from rocketspark.proxy.wire.statuses import Refused, status

MIXED_TYPES = (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION)
ANY_QUEUE = -1
# What a client names stands in the answer once for each queue: the bytes of both together.
REQUEST_BYTES_MAX, ANSWER_BYTES_MAX = 16 << 10, 32 << 20
# Queues of one answer that are written in one turn of the loop, some 10 us each; an answer of more is alone in memory.
QUEUES_IN_TURN = 512


# A queue without its number and what it may be used for, and these of each.
Part = tuple[Any, Sequence[tuple[int, Permission]]]


class QueryRoutes:
    """Serves QueryRoute and QueryAssignment. `port`: the one that clients reach the proxy by."""

    def __init__(self, settings: ProxySettings, brokers: Brokers) -> None:
        self._settings, self._brokers = settings, brokers
        self.port = settings.port
        self._alone = asyncio.Lock()

    async def query_route(self, call: Call, request: Any) -> Any:
        """QueryRoute: every queue of the topic, on every broker."""
        _check_size(request)
        topic = checked_topic(request.topic.name)
        endpoints = self._endpoints(request.endpoints)
        route = await self._brokers.route(topic)
        kind = await self._brokers.topic_type(topic)
        types = MIXED_TYPES if kind == topic_attributes.MIXED else (WIRE_TYPES.get(kind, int(MessageType.NORMAL)),)
        parts = []
        for data in route.queues:
            broker = route.broker(data.broker_name)
            for broker_id in sorted(broker.addresses) if broker is not None else ():
                place = messages.Broker(name=data.broker_name, id=broker_id, endpoints=endpoints)
                one = messages.MessageQueue(topic=request.topic, broker=place, accept_message_types=types)
                parts.append((one, list(enumerate(permissions(data)))))
        answer = messages.QueryRouteResponse(status=status(Code.OK))
        async with self._room(request, parts):
            await _write(answer.message_queues.add, parts)
            return answer

    async def query_assignment(self, call: Call, request: Any) -> Any:
        """QueryAssignment: of each master one entry for all of its queues; each queue for a group in order."""
        _check_size(request)
        topic, group = checked_topic(request.topic.name), checked_group(request.group.name)
        endpoints = self._endpoints(request.endpoints)
        route = await self._brokers.route(topic)
        config = await self._brokers.group(group)
        in_order = config is not None and config.consume_message_orderly
        parts = []
        for data in route.queues:
            broker = route.broker(data.broker_name)
            if broker is None or broker.master is None or not data.perm & PERM_READ or not data.read_queue_count:
                continue
            place = messages.Broker(name=data.broker_name, id=MASTER_ID, endpoints=endpoints)
            permission = Permission.READ_WRITE if data.perm & PERM_WRITE else Permission.READ
            numbers = range(data.read_queue_count) if in_order else (ANY_QUEUE,)
            one = messages.MessageQueue(topic=request.topic, broker=place)
            parts.append((one, [(number, permission) for number in numbers]))
        if not parts:
            self._brokers.forget_route(topic)
            raise Refused(Code.FORBIDDEN, "no readable queue")
        answer = messages.QueryAssignmentResponse(status=status(Code.OK))
        async with self._room(request, parts):
            await _write(lambda: answer.assignments.add().message_queue, parts)
            return answer

    def _room(self, request: Any, parts: Sequence[Part]) -> contextlib.AbstractAsyncContextManager[None]:
        """Return what to hold while queues are written. Raises Refused if their answer would be too large."""
        count, size = sum(len(numbers) for _, numbers in parts), request.ByteSize()
        if count * size > ANSWER_BYTES_MAX:
            text = f"the request has {size} bytes, which stand in the answer {count} times: name shorter endpoints"
            raise Refused(Code.BAD_REQUEST, text)
        return self._alone if count > QUEUES_IN_TURN else contextlib.nullcontext()

    def _endpoints(self, used: Any) -> Any:
        """Return where clients reach the brokers: this proxy, by the hosts that they use."""
        if not used.addresses:
            raise Refused(Code.ILLEGAL_ACCESS_POINT, "endpoints hold no address")
        if used.scheme == AddressScheme.ADDRESS_SCHEME_UNSPECIFIED:
            raise Refused(Code.ILLEGAL_ACCESS_POINT, "endpoints have no address scheme")
        host, asked = self._settings.advertised_host, self._settings.asked_port
        if asked and not all(0 < each.port <= PORT_MAX for each in used.addresses):
            raise Refused(Code.ILLEGAL_ACCESS_POINT, f"a port from 1 to {PORT_MAX} is needed in each endpoint")
        addresses = [
            messages.Address(host=host or each.host, port=each.port if asked else self.port) for each in used.addresses
        ]
        return messages.Endpoints(scheme=used.scheme, addresses=addresses[:1] if host else addresses)


async def _write(add: Callable[[], Any], parts: Sequence[Part]) -> None:
    """Write queues into an answer; `add` returns the next one, empty."""
    count = 0
    for one, numbers in parts:
        for number, permission in numbers:
            if count and not count % QUEUES_IN_TURN:
                await asyncio.sleep(0)
            queue = add()
            queue.CopyFrom(one)
            queue.id, queue.permission = number, int(permission)
            count += 1


def _check_size(request: Any) -> None:
    if (size := request.ByteSize()) > REQUEST_BYTES_MAX:
        raise Refused(Code.BAD_REQUEST, f"the request has {size} bytes: {REQUEST_BYTES_MAX} at most")


def permissions(data: QueueData) -> list[Permission]:
    """Return what each queue of a topic on one broker may be used for, by queue id."""
    readable, writable = data.perm & PERM_READ, data.perm & PERM_WRITE
    r, w = data.read_queue_count, data.write_queue_count
    if readable and writable:
        return (
            [Permission.READ] * max(r - w, 0) + [Permission.WRITE] * max(w - r, 0) + [Permission.READ_WRITE] * min(r, w)
        )
    if readable:
        return [Permission.READ] * r
    if writable:
        return [Permission.WRITE] * w
    return [Permission.NONE] * max(1, r, w)
