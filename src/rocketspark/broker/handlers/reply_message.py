"""Request-reply: a consumer's reply is pushed to the producer that asked, and stored."""

from __future__ import annotations

from typing import Any

from rocketspark.broker.consumers.connected_clients import ConnectedClients
from rocketspark.broker.messages.put_message import FixedFields, PutMessage, pairs_of
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.storage.json_tables import now_ms
from rocketspark.errors import ServerError, TransportError
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import PushReplyHeader, Request, SendHeader, SendHeaderV1, SendReply
from rocketspark.protocol.message import properties
from rocketspark.protocol.message.message_ids import offset_message_id, unpack_host
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.request_frames import reply

PUSH_TIMEOUT_MS = 3000
REPLY_TO = "REPLY_TO_CLIENT"
PUSHED_AT = "PUSH_REPLY_TIME"


class ReplyHandler:
    """Serves SEND_REPLY_MESSAGE in both forms."""

    def __init__(
        self,
        settings: BrokerSettings,
        put_message: PutMessage,
        clients: ConnectedClients,
        store_host: bytes,
    ) -> None:
        self._settings = settings
        self._put_message = put_message
        self._clients = clients
        self._store_host = store_host

    def routes(self, routes: Routes) -> None:
        """Add what this handler serves."""
        routes.add(RequestCode.SEND_REPLY_MESSAGE, self.send_reply, SendHeaderV1)
        routes.add(RequestCode.SEND_REPLY_MESSAGE_V2, self.send_reply, SendHeader)

    async def send_reply(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """SEND_REPLY_MESSAGE (324, 325): push a reply to the client that asked, then store it (as 5.x does)."""
        h: SendHeader = request.ext
        marks = {"MSG_REGION": self._settings.region, "TRACE_ON": "true" if self._settings.trace_on else "false"}
        queue_id = self._put_message.rules.admit_reply(h)
        failure = await self._push(peer, h, marks, body)
        stored = h.properties.encode()
        pairs = pairs_of(stored)
        rules = self._put_message.rules
        stored = rules.as_sent(stored, pairs, rules.owned - {b"CLUSTER"})
        if not self._settings.store_replies:
            if failure:
                raise ServerError(ResponseCode.SYSTEM_ERROR, failure)
            header = SendReply(message_id="", queue_id=0, queue_offset=0, transaction_id="")
            return reply(request.opaque, header=header, remark=failure)
        position, queue_offset, _ = self._put_message.accept(
            h.topic,
            queue_id,
            body,
            stored,
            pairs,
            FixedFields(h.flag, h.sys_flag, h.born_time_ms, peer.packed_host, h.reconsume_times),
            marks=rules.reply_marks,
        )
        header = SendReply(
            message_id=offset_message_id(self._store_host, position),
            queue_id=queue_id,
            queue_offset=queue_offset,
            transaction_id=pairs[b"UNIQ_KEY"].decode("utf-8", "replace"),
            region=self._settings.region,
            trace_on=self._settings.trace_on,
        )
        return reply(request.opaque, header=header, remark=failure)

    async def _push(self, peer: Peer, h: SendHeader, marks: dict[str, str], body: bytes) -> str | None:
        """Push the reply to the client that sent the request; return the error as text, None if the client took it."""
        pairs = properties.decode(h.properties)
        client_id = pairs.get(REPLY_TO)
        if not client_id:
            return f"reply message properties[{REPLY_TO}] is null"
        client = self._clients.producer_named(client_id)
        if client is None:
            return f"push reply message fail, channel of <{client_id}> not found."
        now = now_ms()
        header = PushReplyHeader(
            producer_group=h.producer_group,
            topic=h.topic,
            default_topic=h.default_topic,
            default_topic_queue_count=h.default_topic_queue_count,
            queue_id=h.queue_id,
            sys_flag=h.sys_flag,
            born_time_ms=h.born_time_ms,
            flag=h.flag,
            properties=properties.encode(pairs | marks | {PUSHED_AT: str(now)}),
            reconsume_times=h.reconsume_times,
            unit_mode=h.unit_mode,
            born_host=peer.address,
            store_host=unpack_host(self._store_host),
            store_time_ms=now,
        )
        try:
            answer = await self._clients.ask(
                client, RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, header, body, timeout_ms=PUSH_TIMEOUT_MS
            )
        except TransportError as e:
            return f"push reply message to {client_id} fail: {e}"
        return None if answer.code == 0 else f"push reply message to {client_id} fail: code {answer.code}"
