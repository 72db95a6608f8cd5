"""Pops, acknowledgements and new invisible times of messages of lite topics.

Rule (PopLiteMessageProcessor, 5.5.0): a pop names the client, whose subscription brokers know; a message is named by
its lite topic and its offset there, and each is acknowledged by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from rocketspark.client.connection import lite_api, pop_api
from rocketspark.client.connection.instance import Instance
from rocketspark.client.consumer.lite.lite_subscriptions import LiteSubscriptions
from rocketspark.client.consumer.pop.pop_calls import REPLY_SPARE_MS, PopCalls, Wanted
from rocketspark.client.message_batch import without_namespace
from rocketspark.model import ReceivedMessage
from rocketspark.protocol import light_queues, lite_topics
from rocketspark.protocol.headers import PopLiteHeader
from rocketspark.protocol.pop_answers import lite_handle, lite_order_counts

log = logging.getLogger("rocketspark.client")


class LiteCalls(PopCalls):
    """The calls of one group that reads lite topics. `subscriptions`: a message of a lite topic that is not among them,
    which a broker may still give out after the subscription ended, is given back.
    """

    def __init__(self, instance: Instance, group: str, bare: str, subscriptions: LiteSubscriptions) -> None:
        super().__init__(instance, group, bare)
        self._subscriptions = subscriptions

    async def pop(self, wanted: Wanted, poll_ms: int) -> list[ReceivedMessage]:
        """Return messages of the client's lite topics; wait at the broker up to `poll_ms` for the first. Raises
        ServerError, TransportError.
        """
        queue = wanted.queue
        peer = await self._peer(queue.topic, queue.broker_name)
        await self._subscriptions.tell_once(peer)
        header = PopLiteHeader(
            client_id=self.instance.client_id,
            group=self.group,
            topic=queue.topic,
            count_max=wanted.count_max,
            invisible_time_ms=wanted.invisible_ms,
            poll_time_ms=poll_ms,
            broker_name=queue.broker_name,
        )
        found = await lite_api.pop(peer, header, timeout_ms=poll_ms + REPLY_SPARE_MS)
        messages = self._messages_of(found, queue.broker_name, peer.address)
        if not messages:
            return []
        told = found.header
        given = []
        for message, count in zip(messages, lite_order_counts(told.order_counts, len(messages)), strict=True):
            name = lite_topics.queue_name(message.topic, message.lite_topic or "")
            offset = light_queues.offset_in(name, message.properties)
            if offset is None:
                text = "group %s: message %s tells no offset in its lite topic, and is left out"
                log.warning(text, self.group, message.message_id)
                continue
            message.queue_id, message.queue_offset, message.reconsume_times = light_queues.QUEUE_ID, offset, count
            message.receipt_handle = lite_handle(told, queue.broker_name, offset).encode()
            given.append(message)
        without_namespace(given, self._namespace)
        self.give_back([message for message in given if message.lite_topic not in self._subscriptions])
        return [message for message in given if message.lite_topic in self._subscriptions]

    async def ack(self, messages: Iterable[ReceivedMessage]) -> None:
        """Acknowledge messages, each by a request of its own. Raises the first error, once all have been tried."""
        for result in await asyncio.gather(*map(self._ack_one, messages), return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def _ack_one(self, message: ReceivedMessage) -> None:
        handle, topic = self.handle_of(message), self._full_topic(message)
        peer = await self._peer(topic, handle.broker_name)
        timeout_ms = self.instance.timeout_ms
        await pop_api.ack(peer, self.group, topic, handle, lite_topic=message.lite_topic, timeout_ms=timeout_ms)

    async def change_invisible_time(self, message: ReceivedMessage, invisible_ms: int) -> None:
        """Let a message, and those behind it in its lite topic, be invisible for so long from now on. Raises as
        PopCalls'.
        """
        handle, topic = self.handle_of(message), self._full_topic(message)
        peer = await self._peer(topic, handle.broker_name)
        new = await pop_api.change_invisible_time(
            peer,
            self.group,
            topic,
            handle,
            invisible_ms,
            lite_topic=message.lite_topic,
            timeout_ms=self.instance.timeout_ms,
        )
        message.receipt_handle = new.encode()
