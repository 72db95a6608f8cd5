"""Topics as an operator sees them: create, change, show, delete."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from rocketspark.broker import inner_batches, names
from rocketspark.broker.offsets import ConsumerOffsets
from rocketspark.broker.topics import Topics
from rocketspark.errors import ServerError
from rocketspark.model import MessageQueue
from rocketspark.protocol import bodies, java_json
from rocketspark.protocol.bodies import TopicConfig
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import CreateTopicHeader, Request, TopicHeader
from rocketspark.store.store import Store
from rocketspark.transport.messages import reply
from rocketspark.transport.peer import Peer
from rocketspark.transport.routes import Routes

QUEUES_MAX = 65_536


class TopicHandler:
    """Serves the requests about topics.

    `settled`: waits until the NameServers know of every change; `deleted`: told of a topic that is gone;
    `put_tps`: messages per second that were stored in a topic in the last minute.
    """

    def __init__(
        self,
        broker_name: str,
        store: Store,
        topics: Topics,
        offsets: ConsumerOffsets,
        settled: Callable[[], Awaitable[None]],
        deleted: Callable[[str], None] = lambda topic: None,
        put_tps: Callable[[str], float] = lambda topic: 0.0,
    ) -> None:
        self._broker_name = broker_name
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._settled = settled
        self._deleted = deleted
        self._put_tps = put_tps

    def routes(self, routes: Routes) -> None:
        """Add what this handler serves."""
        routes.add(RequestCode.UPDATE_AND_CREATE_TOPIC, self.create)
        routes.add(RequestCode.DELETE_TOPIC_IN_BROKER, self.delete)
        routes.add(RequestCode.GET_TOPIC_CONFIG, self.show)
        routes.add(RequestCode.GET_ALL_TOPIC_CONFIG, self.show_all)
        routes.add(RequestCode.GET_TOPIC_STATS_INFO, self.stats)

    async def create(self, peer: Peer, request: Request[CreateTopicHeader], body: bytes) -> bytes:
        """UPDATE_AND_CREATE_TOPIC (17). Who has the reply finds the topic's route (rule: the 5.5.0 broker)."""
        h = request.ext
        check_new(h.topic, h.read_queue_count, h.write_queue_count)
        known = self._topics.get(h.topic)
        attributes = merged_attributes(known.attributes if known else {}, h.attributes)
        inner_batches.check_queue_type(h.topic, known, attributes)
        self._topics.put(
            TopicConfig(
                topic_name=h.topic,
                read_queue_nums=h.read_queue_count,
                write_queue_nums=h.write_queue_count,
                perm=h.perm,
                topic_filter_type=h.filter_type,
                topic_sys_flag=h.topic_sys_flag or 0,
                order=h.order,
                attributes=attributes,
            )
        )
        if attributes.get(inner_batches.QUEUE_TYPE) == inner_batches.BATCH:
            self._store.make_batch_topic(h.topic)
        await self._settled()
        return reply(request.opaque)

    def delete(self, peer: Peer, request: Request[TopicHeader], body: bytes) -> bytes:
        """DELETE_TOPIC_IN_BROKER (215): its settings, queues and consumer offsets; the log keeps its records."""
        topic = request.ext.topic
        names.check_topic(topic)
        if names.is_system_topic(topic):
            raise ServerError(ResponseCode.INVALID_PARAMETER, f"The topic[{topic}] is conflict with system topic.")
        self._topics.delete(topic)
        self._offsets.delete_topic(topic)
        self._store.delete_topic(topic)
        self._deleted(topic)
        return reply(request.opaque)

    def show(self, peer: Peer, request: Request[TopicHeader], body: bytes) -> bytes:
        """GET_TOPIC_CONFIG (351)."""
        return reply(request.opaque, body=bodies.encode(self._known(request.ext.topic)))

    def show_all(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """GET_ALL_TOPIC_CONFIG (21)."""
        table = self._topics.wrapper()
        return reply(
            request.opaque, header={"totalTopicNum": str(len(table.topic_config_table))}, body=bodies.encode(table)
        )

    def stats(self, peer: Peer, request: Request[TopicHeader], body: bytes) -> bytes:
        """GET_TOPIC_STATS_INFO (202): bounds and last store time of each queue, and the topic's rate."""
        config = self._known(request.ext.topic)
        rows = []
        for queue_id in range(max(config.read_queue_nums, config.write_queue_nums)):
            low, high = self._store.queue_range(config.topic_name, queue_id)
            last_ms = self._store.store_time_at(config.topic_name, queue_id, high - 1) if high > low else 0
            queue = bodies.QueueBody.of(MessageQueue(config.topic_name, self._broker_name, queue_id))
            rows.append((queue, {"lastUpdateTimestamp": max(last_ms, 0), "maxOffset": high, "minOffset": low}))
        tps = bodies.encode(self._put_tps(config.topic_name))
        table = java_json.encode_object_keys(rows)
        return reply(request.opaque, body=b'{"offsetTable":%b,"topicPutTps":%b}' % (table, tps))

    def _known(self, topic: str) -> TopicConfig:
        config = self._topics.get(topic)
        if config is None:
            raise ServerError(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {topic}")
        return config


def check_new(topic: str, read_queue_count: int, write_queue_count: int) -> None:
    """Raise ServerError 29 for what no operator may create."""
    names.check_topic(topic)
    if names.is_system_topic(topic):
        raise ServerError(ResponseCode.INVALID_PARAMETER, f"The topic[{topic}] is conflict with system topic.")
    if not (0 <= read_queue_count <= QUEUES_MAX and 0 <= write_queue_count <= QUEUES_MAX):
        raise ServerError(
            ResponseCode.INVALID_PARAMETER,
            f"topic[{topic}]: {read_queue_count} read and {write_queue_count} write queues asked,"
            f" 0 to {QUEUES_MAX} are allowed",
        )


def merged_attributes(known: dict[str, str], change: str | None) -> dict[str, str]:
    """A topic's attributes after "+name=value,-name"."""
    attributes = dict(known)
    for part in (change or "").split(","):
        part = part.strip()
        if part.startswith("-"):
            attributes.pop(part[1:].partition("=")[0], None)
        elif part:
            name, equals, value = part.removeprefix("+").partition("=")
            if not equals or not name:
                raise ServerError(ResponseCode.INVALID_PARAMETER, f"attribute {part!r}: +name=value or -name is needed")
            attributes[name] = value
    return attributes
