"""What brokers ask of a client. Rule: who answers is found by group or correlation id; an unknown one is logged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from rocketspark.errors import RecordError
from rocketspark.model import ReceivedMessage
from rocketspark.protocol import compression, properties, record, sysflags
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import CheckTransactionHeader, ConsumerListHeader, PushReplyHeader, Request
from rocketspark.transport.peer import Peer, Routes, reply

log = logging.getLogger("rocketspark.client")

# Gets the broker's connection, its question and the half message.
Check = Callable[[Peer, CheckTransactionHeader, ReceivedMessage], Awaitable[None]]


class Asked:
    """The answers of one client id.

    `watchers`: by group, what to call when its members changed; `checks`: by producer group, who knows how its
    transactions ended; `replies`: by correlation id, who waits for a reply.
    """

    def __init__(self) -> None:
        self.routes = Routes()
        self.watchers: dict[str, Callable[[], None]] = {}
        self.checks: dict[str, Check] = {}
        self.replies: dict[str, asyncio.Future[ReceivedMessage]] = {}
        self.routes.add(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._group_changed, ConsumerListHeader)
        self.routes.add(RequestCode.CHECK_TRANSACTION_STATE, self._check, CheckTransactionHeader)
        self.routes.add(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._reply, PushReplyHeader)

    def _group_changed(self, peer: Peer, request: Request[ConsumerListHeader], body: bytes) -> bytes | None:
        watcher = self.watchers.get(request.ext.group)
        if watcher:
            watcher()
        return None

    async def _check(self, peer: Peer, request: Request[CheckTransactionHeader], body: bytes) -> bytes | None:
        try:
            message = record.decode_messages(body, request.ext.broker_name or "")[0]
        except (RecordError, IndexError) as e:
            log.error("%s asks about a transaction, but its message cannot be decoded: %s", peer.address, e)
            return None
        group = message.properties.get(properties.PRODUCER_GROUP, "")
        check = self.checks.get(group)
        if check is None:
            log.warning("%s asks about a transaction of group %r, which nobody here is in", peer.address, group)
            return None
        # Its half message was stored under the topic of half messages.
        message.topic = message.properties.get(properties.REAL_TOPIC, message.topic)
        await check(peer, request.ext, message)
        return None

    def _reply(self, peer: Peer, request: Request[PushReplyHeader], body: bytes) -> bytes:
        h = request.ext
        pairs = properties.decode(h.properties)
        waiting = self.replies.get(pairs.get(properties.CORRELATION_ID, ""))
        if waiting is None or waiting.done():
            log.info("a reply for %s came too late", pairs.get(properties.CORRELATION_ID))
            return reply(request.opaque)
        try:
            inflated = compression.inflate(body, h.sys_flag) if h.sys_flag & sysflags.COMPRESSED else body
        except RecordError as e:
            return reply(request.opaque, ResponseCode.SYSTEM_ERROR, remark=str(e))
        waiting.set_result(
            ReceivedMessage(
                topic=h.topic,
                body=inflated,
                tag=pairs.get(properties.TAGS),
                keys=tuple(pairs.get(properties.KEYS, "").split()),
                properties=pairs,
                broker_name="",
                queue_id=h.queue_id,
                queue_offset=0,
                log_position=0,
                stored_bytes=0,
                message_id=pairs.get(properties.UNIQUE_ID, ""),
                offset_message_id="",
                born_time_ms=h.born_time_ms,
                born_host=h.born_host.removeprefix("/"),
                store_time_ms=h.store_time_ms,
                store_host=h.store_host.removeprefix("/"),
                reconsume_times=h.reconsume_times,
                flag=h.flag,
                sys_flag=h.sys_flag,
            )
        )
        return reply(request.opaque)
