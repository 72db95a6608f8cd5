"""What producers and consumers may ask of topics, queues and stored messages (rule: MQAdmin, 5.x)."""

from __future__ import annotations

import asyncio

from rocketspark.client import requests, validate
from rocketspark.client.base import AsyncClient
from rocketspark.client.routes import DEFAULT_TOPIC
from rocketspark.errors import RocketSparkError, RouteNotFound, ServerError
from rocketspark.model import MessageQueue, ReceivedMessage, namespace
from rocketspark.protocol.message_ids import parse_offset_message_id

QUERY_TIMEOUT_MS = 6000.0


class Inquiries(AsyncClient):
    """Questions of a client that is started; each raises ServerError or TransportError if it gets no answer."""

    async def create_topic(
        self, topic: str, *, queue_count: int = 4, default_topic: str = DEFAULT_TOPIC, attributes: str = ""
    ) -> None:
        """Create a topic on every master that has `default_topic`, or change its queue counts there.

        `attributes`: "+name=value,…". Raises RouteNotFound if no broker is known.
        """
        self._check_started()
        topic = namespace.wrap(self._namespace, validate.check_target(topic))
        route = await self._instance.routes.get(default_topic)
        masters = [b.master for b in route.brokers if b.master]
        if not masters:
            raise RouteNotFound(default_topic)
        for address in masters:
            peer = await self._instance.broker(address)
            await requests.create_topic(
                peer, topic, read_queue_count=queue_count, write_queue_count=queue_count, attributes=attributes
            )
        self._instance.routes.forget(topic)

    async def search_offset(self, queue: MessageQueue, time_ms: int) -> int:
        """The offset of a queue's first message stored at or after `time_ms`; the end if there is none."""
        full = self._full(queue)
        return await requests.search_offset(await self._instance.peer_of(full), full, time_ms)

    async def min_offset(self, queue: MessageQueue) -> int:
        """The offset of a queue's oldest message."""
        full = self._full(queue)
        return await requests.min_offset(await self._instance.peer_of(full), full)

    async def max_offset(self, queue: MessageQueue) -> int:
        """The offset that a queue's next message will get."""
        full = self._full(queue)
        return await requests.max_offset(await self._instance.peer_of(full), full)

    async def earliest_store_time(self, queue: MessageQueue) -> int:
        """When a queue's oldest message was stored, in ms since 1970; -1 if there is none."""
        full = self._full(queue)
        return await requests.earliest_store_time(await self._instance.peer_of(full), full)

    async def view_message(self, topic: str, message_id: str) -> ReceivedMessage:
        """A message by its offset message id, else by its unique id. Raises ServerError if there is none."""
        self._check_started()
        try:
            host, port, position = parse_offset_message_id(message_id)
            peer = await self._instance.broker(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
            found = await requests.view_message(peer, position, topic=namespace.wrap(self._namespace, topic))
            return self._bare(found)
        except RocketSparkError:
            by_unique_id = await self._query(topic, message_id, unique=True, count_max=32)
            if not by_unique_id:
                text = f"no message {message_id} of topic {topic!r} is found; was it deleted, or is the id another's?"
                raise ServerError(22, text) from None
            return by_unique_id[0]

    async def query_message(
        self, topic: str, key: str, *, count_max: int = 32, begin_ms: int = 0, end_ms: int = requests.TIMES_END_MS
    ) -> list[ReceivedMessage]:
        """Messages with a key, stored in a time range, oldest first; at most `count_max`, 64 at most, per broker."""
        return await self._query(topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms)

    async def _query(
        self,
        topic: str,
        key: str,
        *,
        count_max: int,
        begin_ms: int = 0,
        end_ms: int = requests.TIMES_END_MS,
        unique: bool = False,
    ) -> list[ReceivedMessage]:
        self._check_started()
        full = namespace.wrap(self._namespace, validate.check_topic(topic))
        route = await self._instance.routes.get(full)

        async def ask(broker_name: str, address: str) -> list[ReceivedMessage]:
            found = await requests.query_message(
                await self._instance.broker(address),
                full,
                key,
                count_max=count_max,
                begin_ms=begin_ms,
                end_ms=end_ms,
                unique=unique,
                broker_name=broker_name,
                timeout_ms=QUERY_TIMEOUT_MS,
            )
            # The index knows hashes of keys.
            return [m for m in found.messages if (m.message_id == key if unique else key in m.keys)]

        asked = [ask(b.broker_name, b.addresses[min(b.addresses)]) for b in route.brokers if b.addresses]
        answers = await asyncio.gather(*asked)
        return [self._bare(m) for m in sorted((m for a in answers for m in a), key=lambda m: m.store_time_ms)]

    def _full(self, queue: MessageQueue) -> MessageQueue:
        self._check_started()
        return self._in_namespace(queue)

    def _in_namespace(self, queue: MessageQueue) -> MessageQueue:
        if not self._namespace:
            return queue
        return MessageQueue(namespace.wrap(self._namespace, queue.topic), queue.broker_name, queue.queue_id)

    def _bare_queue(self, queue: MessageQueue) -> MessageQueue:
        if not self._namespace:
            return queue
        return MessageQueue(namespace.unwrap(self._namespace, queue.topic), queue.broker_name, queue.queue_id)

    def _bare(self, message: ReceivedMessage) -> ReceivedMessage:
        if self._namespace:
            message.topic = namespace.unwrap(self._namespace, message.topic)
        return message
