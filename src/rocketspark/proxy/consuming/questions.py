"""What operators ask of one consumer through its broker: how it does, and to consume one message by hand.

Rule: the client itself is asked over its telemetry stream where only it knows (ClientActivity, 5.5.0); the rest of the
answer is what the proxy knows. One that does not answer is told of as such, in time for the broker's own answer.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from typing import Any

from rocketspark.access.resources import SUB
from rocketspark.errors import RecordError
from rocketspark.model import MessageQueue
from rocketspark.model.text import shown
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import (
    ConsumeDirectlyHeader,
    ConsumerStatusHeader,
    NoHeader,
    Request,
    RunningInfoHeader,
)
from rocketspark.protocol.json import bodies, java_json
from rocketspark.protocol.json.bodies import QueueBody
from rocketspark.protocol.message import properties, record
from rocketspark.protocol.retry_topics import first_topic
from rocketspark.proxy.clients import Clients, ProxyClient
from rocketspark.proxy.consuming.group_members import subscriptions
from rocketspark.proxy.consuming.handle_calls import Held, now_ms
from rocketspark.proxy.consuming.renewals import Renewals
from rocketspark.proxy.message_form import message_of, pairs_of
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.codes import Code
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.request_frames import reply

# By the status that a client gives its answer.
RESULTS = {
    Code.OK: "CR_SUCCESS",
    Code.FAILED_TO_CONSUME_MESSAGE: "CR_LATER",
    Code.MESSAGE_CORRUPTED: "CR_RETURN_NULL",
}


class Questions:
    """Answers for the proxy's consumers."""

    def __init__(self, clients: Clients, renewals: Renewals, namesrv: str, timeout_ms: float) -> None:
        self._clients, self._renewals = clients, renewals
        self._namesrv, self._timeout_s = namesrv, timeout_ms / 1000
        self.routes = Routes()
        self.routes.add(RequestCode.GET_CONSUMER_RUNNING_INFO, self.running_info, RunningInfoHeader)
        self.routes.add(RequestCode.CONSUME_MESSAGE_DIRECTLY, self.consume, ConsumeDirectlyHeader)
        self.routes.add(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, self.positions, ConsumerStatusHeader)
        # Who pops has no queues of his own, and no offsets.
        for code in (RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, RequestCode.RESET_CONSUMER_CLIENT_OFFSET):
            self.routes.add(code, self.ignored, NoHeader)

    def ignored(self, peer: Peer, request: Request[NoHeader], body: bytes) -> bytes | None:
        """Serve what has no answer and means nothing here."""
        return None

    def positions(self, peer: Peer, request: Request[ConsumerStatusHeader], body: bytes) -> bytes:
        """GET_CONSUMER_STATUS_FROM_CLIENT (221): it has no offsets."""
        return reply(request.opaque, body=b'{"consumerTable":{},"messageQueueTable":{}}')

    def _client(self, group: str, client_id: str | None) -> ProxyClient | None:
        return self._clients.of_group(client_id or "", group)

    async def _ask(self, client: ProxyClient, command: Any, kind: str, nonce: str) -> Any:
        """Return the client's answer, which is of a kind. Raises TimeoutError, with what to tell."""
        streams = list(client.streams)
        if not streams:
            raise TimeoutError(f"client {shown(client.client_id)} has no telemetry stream at the moment")
        try:
            return await streams[-1].ask(command, kind, nonce, self._timeout_s)
        except TimeoutError:
            text = f"client {shown(client.client_id)} did not answer within {self._timeout_s:g} s"
            raise TimeoutError(f"{text}: not every client can") from None

    # -- how it does -----------------------------------------------------------------------------------------------

    async def running_info(self, peer: Peer, request: Request[RunningInfoHeader], body: bytes) -> bytes:
        """GET_CONSUMER_RUNNING_INFO (307); with the stacks of its threads, or why there are none."""
        h = request.ext
        client = self._client(h.group, h.client_id)
        if client is None:
            return _nobody(request.opaque, h.group)
        parts = [
            b'"mqPopTable":%b' % java_json.encode_object_keys(_waiting(self._renewals.of_client(client.identity))),
            b'"mqTable":{}',
            b'"properties":%b' % bodies.encode(self._properties(client)),
            b'"statusTable":{}',
            b'"subscriptionSet":%b' % bodies.encode(subscriptions(client)),
        ]
        if h.stacks:
            parts.insert(0, b'"jstack":%b' % bodies.encode(await self._stacks(client)))
        return reply(request.opaque, body=b"{%b}" % b",".join(parts))

    async def _stacks(self, client: ProxyClient) -> str:
        nonce = uuid.uuid4().hex
        command = messages.TelemetryCommand(print_thread_stack_trace_command={"nonce": nonce})
        try:
            answer = await self._ask(client, command, "thread_stack_trace", nonce)
        except TimeoutError as e:
            return str(e)
        if answer.status.code not in (Code.OK, 0):
            return f"client {shown(client.client_id)} tells no stacks: {_told(answer.status)}"
        return str(answer.thread_stack_trace.thread_stack_trace)

    def _properties(self, client: ProxyClient) -> dict[str, str]:
        settings = client.settings
        return {
            "PROP_CLIENT_VERSION": client.version,
            "PROP_CONSUMEORDERLY": str(bool(settings.subscription.fifo)).lower(),
            "PROP_CONSUMER_START_TIMESTAMP": str(client.began_ms),
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY" if client.is_push_consumer else "CONSUME_ACTIVELY",
            "PROP_NAMESERVER_ADDR": self._namesrv,
            "PROP_THREADPOOL_CORE_SIZE": "0",
            "clientAddress": client.address,
            "consumerGroup": client.group,
            "hostname": settings.user_agent.hostname,
            "language": client.language,
        }

    # -- one message by hand ---------------------------------------------------------------------------------------

    async def consume(self, peer: Peer, request: Request[ConsumeDirectlyHeader], body: bytes) -> bytes:
        """CONSUME_MESSAGE_DIRECTLY (309): nothing is acknowledged for it."""
        h = request.ext
        client = self._client(h.group, h.client_id)
        if client is None:
            return _nobody(request.opaque, h.group)
        try:
            stored = record.decode(body, check_crc=False)
        except RecordError as e:
            return reply(request.opaque, ResponseCode.SYSTEM_ERROR, remark=f"the message cannot be decoded: {e}")
        pairs = pairs_of(stored)
        topic = first_topic(pairs.get(properties.RETRY_TOPIC) or stored.topic.decode("utf-8", "replace"), h.group)
        if not await self._clients.may_be_sent(client, topic, SUB):
            text = f"client {shown(client.client_id)} may not be sent it: no Sub for its user on topic {shown(topic)}"
            return reply(request.opaque, ResponseCode.NO_PERMISSION, remark=text)
        nonce = uuid.uuid4().hex
        command = messages.TelemetryCommand()
        command.verify_message_command.nonce = nonce
        command.verify_message_command.message.CopyFrom(message_of(stored, topic, pairs, now_ms()))
        began_s = time.monotonic()
        try:
            answer = await self._ask(client, command, "verify_message_result", nonce)
        except TimeoutError as e:
            return reply(request.opaque, ResponseCode.SYSTEM_BUSY, remark=str(e))
        result = RESULTS.get(answer.status.code)
        if result is None:
            text = f"client {shown(client.client_id)} did not consume the message: {_told(answer.status)}"
            return reply(request.opaque, ResponseCode.SYSTEM_ERROR, remark=text)
        told = {
            "autoCommit": True,
            "consumeResult": result,
            "order": bool(client.settings.subscription.fifo),
            "remark": "from gRPC client",
            "spentTimeMills": int((time.monotonic() - began_s) * 1000),
        }
        return reply(request.opaque, body=bodies.encode(told))


def _waiting(held: Iterable[Held]) -> list[tuple[QueueBody, dict[str, Any]]]:
    """Return how many messages a client has that it did not acknowledge, by queue."""
    found: dict[MessageQueue, dict[str, Any]] = {}
    for one in held:
        queue = MessageQueue(one.topic, one.handle.broker_name, one.handle.queue_id)
        row = found.setdefault(queue, {"droped": False, "lastPopTimestamp": 0, "waitAckCount": 0})
        row["waitAckCount"] += 1
        row["lastPopTimestamp"] = max(row["lastPopTimestamp"], one.handle.pop_time_ms)
    return [(QueueBody.of(queue), row) for queue, row in sorted(found.items())]


def _told(status: Any) -> str:
    return f"{status.code} {shown(status.message)}".strip()


def _nobody(opaque: int, group: str) -> bytes:
    text = f"The Consumer Group <{group}> not exist in this consumer"
    return reply(opaque, ResponseCode.SYSTEM_ERROR, remark=text)
