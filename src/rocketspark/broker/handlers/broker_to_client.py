"""Requests that only a connected client can answer: the broker passes them on to it and returns its answer."""

from __future__ import annotations

from rocketspark.broker.consumers.connected_clients import ConnectedClient, ConnectedClients
from rocketspark.errors import ServerError, TransportError
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import ConsumeDirectlyHeader, ConsumerStatusHeader, Header, Request, RunningInfoHeader
from rocketspark.protocol.message import record
from rocketspark.protocol.message.message_ids import parse_offset_message_id
from rocketspark.store.store import Store
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.request_frames import Reply, reply

TIMEOUT_MS = 10_000


class BrokerToClientHandler:
    """Passes requests on to consumers."""

    def __init__(self, broker_name: str, store: Store, clients: ConnectedClients) -> None:
        self._broker_name = broker_name
        self._store = store
        self._clients = clients

    def routes(self, routes: Routes) -> None:
        """Add what this handler serves."""
        routes.add(RequestCode.GET_CONSUMER_RUNNING_INFO, self.running_info, RunningInfoHeader)
        routes.add(RequestCode.CONSUME_MESSAGE_DIRECTLY, self.consume_directly, ConsumeDirectlyHeader)
        routes.add(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, self.status, ConsumerStatusHeader)

    def _client(self, group: str, client_id: str | None) -> ConnectedClient:
        members = self._clients.consumers.get(group)
        for client in members.clients.values() if members else ():
            if client.client_id == client_id:
                return client
        raise ServerError(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")

    async def _ask(
        self, client: ConnectedClient, group: str, topic: str, code: int, header: Header, body: bytes = b""
    ) -> Reply:
        if not self._clients.may_be_sent(code, client.sender, topic, group):
            remark = f"consumer <{client.client_id}> may not be sent this: no Sub for its user on {topic or group}"
            raise ServerError(ResponseCode.NO_PERMISSION, remark)
        try:
            return await self._clients.ask(client, code, header, body, timeout_ms=TIMEOUT_MS)
        except TransportError as e:
            raise ServerError(
                ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer <{client.client_id}> did not answer: {e}"
            ) from e

    async def running_info(self, peer: Peer, request: Request[RunningInfoHeader], body: bytes) -> bytes:
        """GET_CONSUMER_RUNNING_INFO (307): ask a connected consumer for its state, and pass its answer on."""
        h = request.ext
        client = self._client(h.group, h.client_id)
        answer = await self._ask(client, h.group, "", RequestCode.GET_CONSUMER_RUNNING_INFO, h)
        return reply(request.opaque, answer.code, body=answer.body, remark=answer.remark)

    async def consume_directly(self, peer: Peer, request: Request[ConsumeDirectlyHeader], body: bytes) -> bytes:
        """CONSUME_MESSAGE_DIRECTLY (309): the client consumes one stored message now."""
        h = request.ext
        client = self._client(h.group, h.client_id)
        _, _, position = parse_offset_message_id(h.message_id or "")
        found = self._store.record_at(position)
        if found is None:
            raise ServerError(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset: {position}")
        header = ConsumeDirectlyHeader(
            group=h.group,
            client_id=h.client_id,
            message_id=h.message_id,
            broker_name=self._broker_name,
            topic=h.topic,
            topic_sys_flag=0,
            group_sys_flag=0,
        )
        topic = record.decode(found, check_crc=False).topic.decode("utf-8", "replace")
        answer = await self._ask(client, h.group, topic, RequestCode.CONSUME_MESSAGE_DIRECTLY, header, bytes(found))
        return reply(request.opaque, answer.code, body=answer.body, remark=answer.remark)

    async def status(self, peer: Peer, request: Request[ConsumerStatusHeader], body: bytes) -> bytes:
        """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223): the offsets as each client of the group has them."""
        h = request.ext
        group = self._clients.consumers.get(h.group)
        code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
        clients = [
            c
            for c in (group.clients.values() if group else ())
            if c.client_id == (h.client or c.client_id) and self._clients.may_be_sent(code, c.sender, h.topic, h.group)
        ]
        if not clients:
            raise ServerError(ResponseCode.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{h.group}]")
        rows = []
        for client in clients:
            asked = ConsumerStatusHeader(topic=h.topic, group=h.group)
            answer = await self._ask(client, h.group, h.topic, code, asked)
            if answer.code == 0 and answer.body:
                rows.append((client.client_id, _queue_table(answer.body)))
        table = b",".join(b'"%b":%b' % (client_id.encode(), text) for client_id, text in rows)
        return reply(request.opaque, body=b'{"consumerTable":{%b},"messageQueueTable":{}}' % table)


def _queue_table(body: bytes) -> bytes:
    """Return the messageQueueTable of a client's answer, as the client wrote it."""
    mark = b'"messageQueueTable":'
    start = body.find(mark)
    if start < 0:
        return b"{}"
    start += len(mark)
    depth = 0
    for at in range(start, len(body)):
        depth += (body[at] == 0x7B) - (body[at] == 0x7D)
        if depth == 0:
            return body[start : at + 1]
    return b"{}"
