"""Requests that brokers send to a client. Rule: the part that answers is found by group or correlation id; an unknown
one is logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from rocketspark.errors import ProtocolError, RecordError
from rocketspark.model import MessageQueue, ReceivedMessage
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import (
    CheckTransactionHeader,
    ConsumeDirectlyHeader,
    ConsumerListHeader,
    ConsumerStatusHeader,
    NotifyUnsubscribeLiteHeader,
    PushReplyHeader,
    Request,
    ResetOffsetHeader,
    RunningInfoHeader,
)
from rocketspark.protocol.json import java_json
from rocketspark.protocol.json.bodies import QueueBody
from rocketspark.protocol.json.metadata import decode_offsets
from rocketspark.protocol.message import compression, properties, record, sysflags
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.request_frames import reply

log = logging.getLogger("rocketspark.client")

# Gets the broker's connection, its question and the half message.
Check = Callable[[Peer, CheckTransactionHeader, ReceivedMessage], Awaitable[None]]


class Consumer(Protocol):
    """A consumer's answers to brokers' requests."""

    async def reset(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Read on from these offsets."""

    def positions(self, topic: str) -> dict[MessageQueue, int]:
        """Return the offsets up to which queues were read."""

    def running_info(self, *, stacks: bool) -> bytes:
        """Return the body of the answer to GET_CONSUMER_RUNNING_INFO; `stacks`: with those of this process."""

    async def consume(self, message: ReceivedMessage) -> bytes | None:
        """Return the body of the answer to CONSUME_MESSAGE_DIRECTLY; None if the consumer has no listener."""


class BrokerRequests:
    """The answers of one client id to brokers' requests.

    `watchers`: by group, the call for a change of its members; `checks`: by producer group, the call that knows how its
    transactions ended; `replies`: by correlation id, the requests that wait for a reply; `consumers`: by group;
    `lite_losses`: by group, the call for a lite topic that this client no longer reads.
    """

    def __init__(self) -> None:
        self.routes = Routes()
        self.watchers: dict[str, Callable[[], None]] = {}
        self.checks: dict[str, Check] = {}
        self.replies: dict[str, asyncio.Future[ReceivedMessage]] = {}
        self.consumers: dict[str, Consumer] = {}
        self.lite_losses: dict[str, Callable[[str], None]] = {}
        self.routes.add(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._group_changed, ConsumerListHeader)
        self.routes.add(RequestCode.CHECK_TRANSACTION_STATE, self._check, CheckTransactionHeader)
        self.routes.add(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._reply, PushReplyHeader)
        self.routes.add(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, self._reset, ResetOffsetHeader)
        self.routes.add(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, self._status, ConsumerStatusHeader)
        self.routes.add(RequestCode.GET_CONSUMER_RUNNING_INFO, self._running_info, RunningInfoHeader)
        self.routes.add(RequestCode.NOTIFY_UNSUBSCRIBE_LITE, self._lite_topic_lost, NotifyUnsubscribeLiteHeader)
        self.routes.add(RequestCode.CONSUME_MESSAGE_DIRECTLY, self._consume, ConsumeDirectlyHeader)

    def _lite_topic_lost(self, peer: Peer, request: Request[NotifyUnsubscribeLiteHeader], body: bytes) -> bytes | None:
        lost = self.lite_losses.get(request.ext.group)
        if lost is not None:
            lost(request.ext.lite_topic)
        return None

    def _group_changed(self, peer: Peer, request: Request[ConsumerListHeader], body: bytes) -> bytes | None:
        watcher = self.watchers.get(request.ext.group)
        if watcher:
            watcher()
        return None

    async def _check(self, peer: Peer, request: Request[CheckTransactionHeader], body: bytes) -> bytes | None:
        try:
            # Its properties say how it ended, whatever became of its body.
            as_stored = record.Inflation(len(body), check_crc=False)
            message = record.decode_messages(body, request.ext.broker_name or "", as_stored)[0]
        except (RecordError, IndexError) as e:
            log.error("%s asks about a transaction, but its message cannot be decoded: %s", peer.address, e)
            return None
        group = message.properties.get(properties.PRODUCER_GROUP, "")
        check = self.checks.get(group)
        if check is None:
            log.warning(
                "%s asks about a transaction of group %r, which has no producer in this process", peer.address, group
            )
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
                physical_offset=0,
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

    # -- consumers -----------------------------------------------------------------------------------------------

    async def _reset(self, peer: Peer, request: Request[ResetOffsetHeader], body: bytes) -> bytes | None:
        group, topic = request.ext.group, request.ext.topic
        consumer = self.consumers.get(group)
        if consumer is None:
            log.info("%s resets group %s, which has no consumer in this process", peer.address, group)
            return None
        try:
            await consumer.reset(topic, decode_offsets(body) if body else {})
        except ProtocolError as e:
            log.error("%s resets group %s, but its offsets cannot be read: %s", peer.address, group, e)
        return None

    def _status(self, peer: Peer, request: Request[ConsumerStatusHeader], body: bytes) -> bytes:
        consumer = self.consumers.get(request.ext.group)
        offsets = consumer.positions(request.ext.topic) if consumer else {}
        table = java_json.encode_object_keys([(QueueBody.of(q), offset) for q, offset in offsets.items()])
        return reply(request.opaque, body=b'{"consumerTable":{},"messageQueueTable":%b}' % table)

    def _running_info(self, peer: Peer, request: Request[RunningInfoHeader], body: bytes) -> bytes:
        consumer = self.consumers.get(request.ext.group)
        if consumer is None:
            return _nobody(request.opaque, request.ext.group)
        return reply(request.opaque, body=consumer.running_info(stacks=request.ext.stacks))

    async def _consume(self, peer: Peer, request: Request[ConsumeDirectlyHeader], body: bytes) -> bytes:
        h = request.ext
        consumer = self.consumers.get(h.group)
        try:
            message = record.decode_messages(body, h.broker_name or "")[0]
        except (RecordError, IndexError) as e:
            return reply(request.opaque, ResponseCode.SYSTEM_ERROR, remark=f"the message cannot be decoded: {e}")
        answer = await consumer.consume(message) if consumer else None
        return _nobody(request.opaque, h.group) if answer is None else reply(request.opaque, body=answer)


def _nobody(opaque: int, group: str) -> bytes:
    text = f"The Consumer Group <{group}> not exist in this consumer"
    return reply(opaque, ResponseCode.SYSTEM_ERROR, remark=text)
