"""Queries of topics, queues and stored messages, for producers and consumers (rule: MQAdmin, 5.x)."""

from __future__ import annotations

import asyncio
import logging

from rocketspark.client import validators
from rocketspark.client.base import AsyncClient
from rocketspark.client.connection import admin_api, client_api
from rocketspark.client.connection.topic_changes import TopicChange, put_topic
from rocketspark.client.connection.topic_routes import DEFAULT_TOPIC
from rocketspark.client.results import QueryResult
from rocketspark.errors import NotSent, RocketSparkError, RouteNotFound, ServerError, TransportError, UsageError
from rocketspark.model import BrokerData, MessageQueue, ReceivedMessage, namespace
from rocketspark.model.route import MASTER_ID
from rocketspark.model.text import INT_MAX
from rocketspark.protocol.message.message_ids import parse_offset_message_id

QUERY_TIMEOUT_MS = 6000.0
log = logging.getLogger(__name__)


class StoredMessages(AsyncClient):
    """The queries of stored messages; each raises ServerError or TransportError if it gets no answer."""

    async def view_message(self, topic: str, message_id: str) -> ReceivedMessage:
        """Return a message by its offset message id, else by its unique id. Raises ServerError if there is none.

        If none of the cluster's brokers answers at the address in the id, the message is looked for at those of the
        topic's route. No other address is dialled: anybody can write an id.
        """
        self._check_started()
        try:
            host, port, position = parse_offset_message_id(message_id)
            address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            full = namespace.wrap(self._namespace, validators.check_topic(topic))
            try:
                if not await self._is_brokers(address, full):
                    raise NotSent(f"{address} is no broker of the cluster")
                found = await client_api.view_message(await self._instance.broker(address), position, topic=full)
            except TransportError:
                found = await self._view_elsewhere(full, message_id, position)
            return self._bare(found)
        except RocketSparkError:
            by_unique_id = await self._query(topic, message_id, unique=True, count_max=32)
            if not by_unique_id:
                text = f"no message {message_id} of topic {topic!r} is found; was it deleted, or is the id another's?"
                raise ServerError(22, text) from None
            return by_unique_id[0]

    async def _is_brokers(self, address: str, topic: str) -> bool:
        """Tell whether an address is that of a broker, most often one of `topic`'s: another would get our heartbeat and
        signed requests.
        """
        routes = self._instance.routes
        if address in routes.broker_addresses(slaves=True):
            return True
        try:
            # That is kept, and less than all brokers.
            await routes.get(topic)
            if address in routes.broker_addresses(slaves=True):
                return True
        except RouteNotFound:
            pass
        try:
            known = await self._cluster_addresses()
        except RocketSparkError:  # A proxy serves routes alone.
            return False
        return any(address in of_one.values() for of_one in known.values())

    async def _cluster_addresses(self) -> dict[str, dict[int, str]]:
        """Return the addresses of all brokers of the cluster, by name and id."""
        instance = self._instance
        info = await instance.routes.ask(lambda n: admin_api.cluster_info(n, timeout_ms=instance.timeout_ms))
        return {name: broker.broker_addrs for name, broker in info.broker_addr_table.items()}

    async def _view_elsewhere(self, full_topic: str, message_id: str, position: int) -> ReceivedMessage:
        """Return the message of this id from a broker that is not where it was. Raises RocketSparkError."""
        for broker in (await self._instance.routes.get(full_topic)).brokers:
            for address in broker.addresses.values():
                try:
                    peer = await self._instance.broker(address)
                    found = await client_api.view_message(peer, position, topic=full_topic)
                except RocketSparkError:
                    continue  # None of its records begins there, or it is away.
                # The address in the record is the old one.
                if found.offset_message_id == message_id.upper():
                    return found
        raise NotSent(f"no broker of topic {full_topic!r} has {message_id}")

    async def query_message(
        self, topic: str, key: str, *, count_max: int = 32, begin_ms: int = 0, end_ms: int = client_api.TIMES_END_MS
    ) -> QueryResult:
        """Return messages with a key, stored in a time range, oldest first; at most `count_max`, 64 at most, per
        broker.

        A broker that is away is left out; if all others found nothing, what it failed with is raised.
        """
        begin_ms = validators.check_time("begin_ms", begin_ms)
        end_ms = validators.check_time("end_ms", end_ms)
        return await self._query(topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms)

    async def _query(
        self,
        topic: str,
        key: str,
        *,
        count_max: int,
        begin_ms: int = 0,
        end_ms: int = client_api.TIMES_END_MS,
        unique: bool = False,
    ) -> QueryResult:
        self._check_started()
        full = namespace.wrap(self._namespace, validators.check_topic(topic))
        route = await self._instance.routes.get(full)

        async def ask(broker: BrokerData) -> client_api.QueriedMessages:
            for number in sorted(broker.addresses):
                try:
                    return await client_api.query_message(
                        await self._instance.broker(broker.addresses[number]),
                        full,
                        key,
                        count_max=count_max,
                        begin_ms=begin_ms,
                        end_ms=end_ms,
                        unique=unique,
                        broker_name=broker.broker_name,
                        timeout_ms=QUERY_TIMEOUT_MS,
                    )
                except TransportError as e:
                    failed = e  # Its slaves have the messages too.
            raise failed

        answers = await asyncio.gather(*(ask(b) for b in route.brokers if b.addresses), return_exceptions=True)
        found = [answer for answer in answers if not isinstance(answer, BaseException)]
        # The index knows hashes of keys.
        messages = [m for a in found for m in a.messages if (m.message_id == key if unique else key in m.keys)]
        for error in answers:
            if isinstance(error, BaseException) and (not messages or not isinstance(error, RocketSparkError)):
                raise error
        messages.sort(key=lambda m: m.store_time_ms)
        return QueryResult(
            map(self._bare, messages),
            index_time_ms=max((a.updated_ms for a in found), default=0),
            index_position=max((a.updated_position for a in found), default=0),
        )

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


class Queries(StoredMessages):
    """The queries of a client that is started; each raises ServerError or TransportError if it gets no answer."""

    group: str

    async def create_topic(
        self,
        topic: str,
        *,
        queue_count: int | None = None,
        default_topic: str = DEFAULT_TOPIC,
        topic_sys_flag: int | None = None,
        attributes: str = "",
        force: bool = False,
    ) -> None:
        """Create a topic on every master that has `default_topic`; where it exists, what is not named stays as it is.

        Brokers that create topics by themselves have TBW102. Where none does, the topic is created on every master.

        Args:
            queue_count: on each broker; a new topic gets 4.
            topic_sys_flag: 1 the topic is a unit's (FLAG_UNIT), 2 units subscribe to it (FLAG_UNIT_SUB), 3 both.
            attributes: "+name=value,…".
            force: also take queues away that hold messages, which nobody can read then.

        A master that does not answer is left out, unless none does. Raises UsageError for a flag that cannot be and
        for fewer queues than hold messages, RouteNotFound if no broker is known.
        """
        self._check_started()
        if topic_sys_flag is not None and not 0 <= topic_sys_flag <= INT_MAX:
            raise UsageError(f"topic_sys_flag {topic_sys_flag} is not from 0 to {INT_MAX}")
        topic = namespace.wrap(self._namespace, validators.check_target(topic))
        change = TopicChange(
            read_queue_count=queue_count,
            write_queue_count=queue_count,
            topic_sys_flag=topic_sys_flag,
            attributes=attributes,
        )
        masters = await self._masters_with(default_topic)
        if not masters:
            raise RouteNotFound(default_topic)
        done = await put_topic(topic, change, masters, self._instance.broker, self._instance.routes, force=force)
        failed = {name: error for name, error in done.items() if isinstance(error, TransportError)}
        if len(failed) == len(masters):
            raise next(iter(failed.values()))
        for name, error in failed.items():
            log.warning("topic %s is not created on %s, which others have: %s", topic, name, error)
        self._instance.routes.forget(topic)

    async def _masters_with(self, default_topic: str) -> dict[str, str]:
        """Return the addresses, by name, of the masters that a new topic is created on."""
        try:
            route = await self._instance.routes.get(default_topic)
        except RouteNotFound as e:
            if default_topic != DEFAULT_TOPIC:
                raise
            try:
                known = await self._cluster_addresses()
            except ServerError:  # A proxy, which serves routes alone.
                raise e from None
            return {name: of_one[MASTER_ID] for name, of_one in known.items() if of_one.get(MASTER_ID)}
        return {b.broker_name: b.master for b in route.brokers if b.master}

    async def search_offset(self, queue: MessageQueue, time_ms: int) -> int:
        """Return the offset of a queue's first message stored at or after `time_ms`; the end if there is none."""
        full, time_ms = self._full(queue), validators.check_time("time_ms", time_ms)
        return await client_api.search_offset(await self._instance.peer_of(full), full, time_ms)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of a queue's oldest message."""
        full = self._full(queue)
        return await client_api.min_offset(await self._instance.peer_of(full), full)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that a queue's next message will get."""
        full = self._full(queue)
        return await client_api.max_offset(await self._instance.peer_of(full), full)

    async def earliest_store_time(self, queue: MessageQueue) -> int:
        """Return the store time of a queue's oldest message, in ms since 1970; -1 if there is none."""
        full = self._full(queue)
        return await client_api.earliest_store_time(await self._instance.peer_of(full), full)

    def _full(self, queue: MessageQueue) -> MessageQueue:
        self._check_started()
        return self._in_namespace(validators.check_queue(queue))
