"""Messages found by id and place, sent, sent again, and given to a consumer by hand.

Rule: only brokers of the cluster are asked, never the address that an id names by itself.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple, Unpack

import msgspec

from rocketspark.admin.cluster_client import ClusterClient
from rocketspark.admin.messages.dead_letter_rules import origin_of
from rocketspark.client import validators
from rocketspark.client.connection import admin_api, client_api
from rocketspark.client.consumer.puller import make_logical
from rocketspark.client.producer.producer import AsyncProducer
from rocketspark.client.queries import StoredMessages
from rocketspark.client.results import SendResult
from rocketspark.errors import RecordError, RocketSparkError, RouteNotFound, ServerError, TransportError, UsageError
from rocketspark.model import Message, MessageFields, MessageQueue, ReceivedMessage, namespace
from rocketspark.model.text import LONG_MAX, shown
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.headers import plain_pull
from rocketspark.protocol.json.operator_bodies import DirectConsumption
from rocketspark.protocol.message import origins, properties, record
from rocketspark.protocol.message.message_ids import parse_offset_message_id
from rocketspark.transport.peer import Peer

# RocketMQ's group of tools, which every broker has from the start.
GROUP = "TOOLS_CONSUMER"
PRODUCER_GROUP = "rocketspark_admin"
PULL_BYTES = 1 << 20
# To which bodies of one pull are inflated.
INFLATED_BYTES = 16 << 20
PULL_TIMEOUT_MS = 10_000.0
# Topics that are looked in at the same time for an id, and in all.
TOPICS_AT_ONCE, TOPICS_MAX = 16, 2000
DIRECT_TIMEOUT_MS = 60_000.0
_OWN_PREFIXES = (namespace.RETRY_PREFIX, namespace.DLQ_PREFIX, "rmq_sys_", "RMQ_SYS_")


class DirectResult(msgspec.Struct, frozen=True):
    """What a consumer made of a message that it was given by hand.

    `result`: CR_SUCCESS, CR_LATER, CR_THROW_EXCEPTION, CR_ROLLBACK, CR_COMMIT or CR_RETURN_NULL, as RocketMQ calls
    them; `remark`: the exception; `spent_ms`: how long the listener took; `ordered`: its group consumes in order.
    """

    client_id: str
    broker_name: str
    result: str
    remark: str | None
    spent_ms: int
    ordered: bool
    auto_commit: bool


class Pulled(NamedTuple):
    """Messages of a queue, and where to read on; `min_offset`, `max_offset`: what the queue holds."""

    messages: list[ReceivedMessage]
    next_offset: int
    min_offset: int
    max_offset: int


async def pull_messages(
    peer: Peer,
    queue: MessageQueue,
    offset: int,
    count_max: int,
    *,
    tags: str = "*",
    bytes_max: int = PULL_BYTES,
    timeout_ms: float = PULL_TIMEOUT_MS,
) -> Pulled:
    """Read messages of a queue from an offset on, without waiting for new ones; a body that cannot be had says why.

    `bytes_max`: of them together, as stored, unless the first has more.
    """
    header = plain_pull(
        GROUP,
        queue.topic,
        queue.queue_id,
        offset,
        count_max,
        tags,
        broker_name=queue.broker_name,
        bytes_max=bytes_max,
        bulk=True,
    )
    found = await client_api.pull(peer, header, timeout_ms=timeout_ms)
    messages: list[ReceivedMessage] = []
    next_offset = found.header.next_offset
    if found.code == ResponseCode.SUCCESS:
        inflation = record.Inflation(INFLATED_BYTES, check_crc=False)
        messages = record.decode_messages(found.records, queue.broker_name, inflation)
        if found.header.offset_delta is not None:
            make_logical(messages, queue, found.header.offset_delta)
        if messages and inflation.at < len(found.records):
            next_offset = messages[-1].queue_offset + 1  # The others' bodies would be too much at once.
        # A batch may have begun before.
        messages = [m for m in messages if m.queue_offset >= offset]
    return Pulled(messages, next_offset, found.header.min_offset, found.header.max_offset)


class StoredOperations(ClusterClient, StoredMessages):
    """The part of AsyncAdmin that is about single messages."""

    _producer: AsyncProducer | None = None
    _making: asyncio.Lock | None = None

    async def close(self) -> None:
        """Close the connections. May be called again."""
        producer, self._producer = self._producer, None
        try:
            if producer is not None:
                await producer.close()
        finally:
            await super().close()

    async def _sender(self) -> AsyncProducer:
        """Return the producer of this object, which is made when it is first needed."""
        self._check_started()
        self._making = self._making or asyncio.Lock()
        async with self._making:
            if self._producer is None:
                producer = AsyncProducer(self._given_namesrv, PRODUCER_GROUP, **self._access)
                await producer.start()
                self._producer = producer
        return self._producer

    # -- one message -------------------------------------------------------------------------------------------------

    async def get_message(self, message_id: str, *, topic: str | None = None) -> ReceivedMessage:
        """Return a message by its offset message id (the broker's) or its unique id (the producer's).

        `topic`: where to look; without it a unique id is looked for in every topic of the cluster's users. Raises
        ServerError 22 if there is none.
        """
        addresses = {b.address: b for b in await self.cluster_info()}
        try:
            host, port, position = parse_offset_message_id(message_id)
        except UsageError:
            host, port, position = "", 0, -1
        full = None if topic is None else validators.check_topic(topic)
        found = None
        # Half of the unique ids read as positions beyond those that brokers have.
        if 0 <= position <= LONG_MAX:
            address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            found = await self._view(addresses, address, message_id, position, full)
        if found is None:
            found = await self._by_unique_id(message_id, [full] if full is not None else await self._users_topics())
        if found is None:
            where = f"of topic {topic!r} " if topic is not None else ""
            text = f"no message {shown(message_id)} {where}is found; was it deleted, or is the id another's?"
            raise ServerError(ResponseCode.QUERY_NOT_FOUND, text)
        if not found.broker_name and found.store_host in addresses:
            found.broker_name = addresses[found.store_host].broker_name
        return found

    async def _view(
        self, addresses: dict[str, Any], address: str, message_id: str, position: int, topic: str | None
    ) -> ReceivedMessage | None:
        if address not in addresses:
            # Where brokers have other addresses for clients than for themselves, their records name the latter.
            try:
                return None if topic is None else await self._view_elsewhere(topic, message_id, position)
            except TransportError:
                return None
        peer, name = await self._broker(address), addresses[address].broker_name
        try:
            found = await client_api.view_message(peer, position, topic=topic, broker_name=name)
        except (ServerError, RecordError):
            return None  # No record begins there; it may be a unique id.
        return found if found.offset_message_id == message_id.upper() else None

    async def _users_topics(self) -> list[str]:
        names = await self._routes.ask(lambda peer: admin_api.topic_list(peer, timeout_ms=self._timeout_ms))
        own = validators.SYSTEM_TOPICS
        topics = sorted(name for name in names if name not in own and not name.startswith(_OWN_PREFIXES))
        if len(topics) > TOPICS_MAX:
            raise UsageError(f"the cluster has {len(topics)} topics: name the one that the message is in")
        return topics

    async def _by_unique_id(self, message_id: str, topics: list[str]) -> ReceivedMessage | None:
        error: RocketSparkError | None = None
        for at in range(0, len(topics), TOPICS_AT_ONCE):
            asked = (
                self._query(topic, message_id, unique=True, count_max=32) for topic in topics[at : at + TOPICS_AT_ONCE]
            )
            for answer in await asyncio.gather(*asked, return_exceptions=True):
                if isinstance(answer, RouteNotFound) and len(topics) > 1:
                    continue  # Of a broker that is gone.
                if isinstance(answer, RocketSparkError):
                    error = error or answer
                elif isinstance(answer, BaseException):
                    raise answer
                elif answer:
                    return answer[0]
        if error is not None:
            raise error
        return None

    async def get_message_at(self, queue: MessageQueue, offset: int) -> ReceivedMessage:
        """Return the message at an offset of a queue. Raises RouteNotFound; ServerError 22 if there is none."""
        validators.check_queue(queue)
        if not 0 <= offset <= LONG_MAX:
            raise UsageError(f"offset {offset} is not from 0 to {LONG_MAX}")
        peer = await self._broker(await self._routes.find_readable(queue))
        pulled = await pull_messages(peer, queue, offset, 1)
        if not pulled.messages or pulled.messages[0].queue_offset != offset:
            text = f"{queue} has no message at offset {offset}; it holds offsets {pulled.min_offset} to"
            raise ServerError(ResponseCode.QUERY_NOT_FOUND, f"{text} {pulled.max_offset - 1}")
        return pulled.messages[0]

    # -- sending -----------------------------------------------------------------------------------------------------

    async def send_message(
        self, topic: str, body: bytes, *, queue: MessageQueue | None = None, **fields: Unpack[MessageFields]
    ) -> SendResult:
        """Send a message. `queue`: to this one; `fields`: the other fields of a Message. Raises as a producer's
        `send`.
        """
        return await (await self._sender()).send(topic, body, queue=queue, **fields)

    async def resend_message(self, message_id: str, *, topic: str | None = None, to: str | None = None) -> SendResult:
        """Send a stored message once more: body, tag, keys, sharding key, flag, own properties and unique id stay.

        `topic`: where to look for it (see `get_message`); `to`: the topic to send it to, by default its own, for a dead
        letter the one that it came from. Raises ServerError 22 if it is not found, UsageError where its body is
        damaged or no topic can be told.
        """
        found = await self.get_message(message_id, topic=topic)
        return await (await self._sender()).resend(message_again(found, to), found.message_id)

    # -- given to a consumer by hand ---------------------------------------------------------------------------------

    async def consume_directly(
        self, message_id: str, group: str, *, client_id: str | None = None, topic: str | None = None
    ) -> DirectResult:
        """Have a connected member of a group handle a message now; its offsets stay as they are.

        `client_id`: which member, by default the first one. Raises ServerError 22 if the message is not found, 206 if
        the member is not connected, UsageError if the group has none.
        """
        validators.check_group(group)
        found = await self.get_message(message_id, topic=topic)
        addresses = {b.broker_name: b.address for b in await self.cluster_info() if b.broker_id == 0}
        address = addresses.get(found.broker_name)
        if address is None:
            raise UsageError(f"the master of {shown(found.broker_name)!r} is not up, which has the message")
        peer = await self._broker(address)
        if client_id is None:
            members = await client_api.consumer_list(peer, group, timeout_ms=self._timeout_ms)
            if not members:
                raise UsageError(f"group {group!r} has no member that is connected to {found.broker_name}: start one")
            client_id = min(members)
        told = await admin_api.consume_directly(
            peer, group, client_id, found.topic, found.offset_message_id, timeout_ms=DIRECT_TIMEOUT_MS
        )
        return _direct_result(client_id, found.broker_name, told)


def message_again(found: ReceivedMessage, to: str | None = None) -> Message:
    """Return a stored message as one to send. `to`: its topic, by default the one it was first sent to.

    Raises UsageError where that is not told, or the body is damaged.
    """
    if found.body_error is not None:
        raise UsageError(f"message {found.message_id} cannot be sent again: {found.body_error}")
    target = to or found.topic
    if to is None and target.startswith((namespace.DLQ_PREFIX, namespace.RETRY_PREFIX)):
        target = origin_of(found.properties)
        if not target:
            raise UsageError(f"message {found.message_id} does not tell the topic it came from: name one to send it to")
    own = {
        name: value
        for name, value in found.properties.items()
        if name not in properties.SYSTEM_NAMES and name not in origins.NAMES
    }
    return Message(
        target,
        found.body,
        tag=found.tag,
        keys=found.keys,
        properties=own,
        sharding_key=found.properties.get(properties.SHARDING_KEY),
        flag=found.flag,
    )


def _direct_result(client_id: str, broker_name: str, told: DirectConsumption) -> DirectResult:
    return DirectResult(
        client_id=client_id,
        broker_name=broker_name,
        result=told.consume_result or "",
        remark=told.remark,
        spent_ms=told.spent_time_mills,
        ordered=told.order,
        auto_commit=told.auto_commit,
    )
