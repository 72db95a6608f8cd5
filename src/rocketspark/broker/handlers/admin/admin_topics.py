"""Topics as an operator sees them: create, change, show, delete."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Generator, Iterable

import msgspec

from rocketspark.broker import topic_names
from rocketspark.broker.background_thread import BackgroundThread
from rocketspark.broker.declared_settings import QUEUES_MAX
from rocketspark.broker.lite import attributes as lite_attributes
from rocketspark.broker.lite.parts import LiteTopics
from rocketspark.broker.parts import StoreReads, Tables
from rocketspark.broker.pop.pops import Pops
from rocketspark.broker.storage.json_tables import sorted_json
from rocketspark.broker.storage.long_scans import QUEUES_IN_TURN
from rocketspark.broker.storage.table_pages import TablePages, page_wanted
from rocketspark.broker.storage.table_saving import SavedTable
from rocketspark.broker.topics import Topics, check_queue_type, has_batch_queues
from rocketspark.errors import ServerError
from rocketspark.model import MessageQueue
from rocketspark.model.text import LONG_MAX, shown, whole_number
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import CreateTopicHeader, Request, TopicHeader
from rocketspark.protocol.headers.static_topics import TopicConfigHeader
from rocketspark.protocol.headers.topics import TopicPageHeader, TopicPageReply
from rocketspark.protocol.json import bodies, java_json
from rocketspark.protocol.json.bodies import TopicConfig, TopicConfigTable
from rocketspark.protocol.json.static_topics import MappingDetail, TopicConfigAndMapping
from rocketspark.protocol.topic_attributes import (
    BATCH,
    CLEANUP_POLICY,
    KNOWN_TYPES,
    MESSAGE_TYPE,
    NORMAL,
    QUEUE_TYPE,
    RESERVE_TIME,
)
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Answer, Routes
from rocketspark.transport.request_frames import reply

# Rule: TopicFilterType, 5.x.
FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")
# Those that a topic may have (rule: TopicAttributes, 5.5.0).
ATTRIBUTES = (QUEUE_TYPE, CLEANUP_POLICY, MESSAGE_TYPE, RESERVE_TIME, lite_attributes.EXPIRATION)
ATTRIBUTES_MAX = 64
ATTRIBUTE_LENGTH_MAX = 1024


class TopicHandler:
    """Serves the requests about topics.

    `settled`: waits until the NameServers know of every change. `page_rows`: see TablePages.
    """

    def __init__(
        self,
        broker_name: str,
        reads: StoreReads,
        tables: Tables,
        pops: Pops,
        lite: LiteTopics,
        *,
        settled: Callable[[], Awaitable[None]],
        beside: BackgroundThread,
        page_rows: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._broker_name = broker_name
        self._store = reads.store
        self._traffic = reads.stats
        self._long_scans = reads.long_scans
        self._topics = topics = tables.topics
        self._offsets = tables.offsets
        self._clients = tables.clients
        self._settled = settled
        self._pops = pops
        self._lite = lite
        self._all = SavedTable(
            lambda: (topics.version, topics.statics.version), lambda: topics.table, topics.with_mappings, beside
        )
        self._pages = TablePages(lambda: topics.version, lambda: topics.table, beside)
        self._page_rows = page_rows
        topics.make_way = self._make_way

    def routes(self, routes: Routes) -> None:
        """Add what this handler serves."""
        routes.add(RequestCode.UPDATE_AND_CREATE_TOPIC, self.create)
        routes.add(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, self.create_static, CreateTopicHeader)
        routes.add(RequestCode.DELETE_TOPIC_IN_BROKER, self.delete)
        routes.add(RequestCode.GET_TOPIC_CONFIG, self.show, TopicConfigHeader)
        routes.add(RequestCode.GET_ALL_TOPIC_CONFIG, self.show_all, TopicPageHeader)
        routes.add(RequestCode.GET_TOPIC_STATS_INFO, self.stats)

    async def create(self, peer: Peer, request: Request[CreateTopicHeader], body: bytes) -> bytes:
        """UPDATE_AND_CREATE_TOPIC (17): create or change a topic. The NameServers know it before the reply (5.5.0)."""
        h = request.ext
        check_new(self._topics, h.topic, h.read_queue_count, h.write_queue_count, h.filter_type)
        known = self._topics.get(h.topic)
        attributes = checked_attributes(h.topic, known, h.attributes)
        self._topics.make_way([h.topic])
        if attributes.get(QUEUE_TYPE) == BATCH:
            self._store.make_batch_topic(h.topic)
        if known is not None and known.attributes != attributes:
            self._store.consume_queues.generation += 1  # Sends are looked at anew.
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
        await self._settled()
        return reply(request.opaque)

    async def create_static(self, peer: Peer, request: Request[CreateTopicHeader], body: bytes) -> bytes:
        """UPDATE_AND_CREATE_STATIC_TOPIC (513): a topic's settings with its mapping on this broker."""
        h = request.ext
        check_new(self._topics, h.topic, h.read_queue_count, h.write_queue_count, h.filter_type)
        detail = java_json.decode_request(body, MappingDetail)
        mapping = self._topics.statics.check(h.topic, detail, force=h.force is True)
        known = self._topics.get(h.topic)
        if known is not None and has_batch_queues(known):
            raise ServerError(ResponseCode.INVALID_PARAMETER, f"topic[{h.topic}] has batch queues: it cannot be static")
        self._topics.statics.put(mapping)
        self._topics.put(
            TopicConfig(
                topic_name=h.topic,
                read_queue_nums=h.read_queue_count,
                write_queue_nums=h.write_queue_count,
                perm=h.perm,
                topic_filter_type=h.filter_type,
                topic_sys_flag=h.topic_sys_flag or 0,
                attributes=known.attributes if known else {},
            )
        )
        await self._settled()
        return reply(request.opaque)

    async def delete(self, peer: Peer, request: Request[TopicHeader], body: bytes) -> bytes:
        """DELETE_TOPIC_IN_BROKER (215): its settings, queues and consumer offsets; the log keeps its records."""
        topic = request.ext.topic
        if topic not in self._store.queues():
            topic_names.check_topic(topic)
        self._topics.check_not_own(topic)
        # Its messages that were to come again go with it (rule: AdminBrokerProcessor, 5.5.0).
        gone = [*self._pops.retry_topics_of(topic), topic]
        noted = self._store.begin_deletion(gone)
        self._topics.statics.delete(topic)
        for name in gone:
            self._topics.delete(name)
        await self._topics.unsaved.saved()
        # One that was made anew meanwhile is another topic: `_make_way` removed what was left of this one.
        self._remove(name for name in gone if name not in self._topics.table)
        for _ in self._lite.delete_parent_steps(topic) if topic not in self._topics.table else ():
            await self._long_scans.next()
        self._store.end_deletion(noted)
        self._pops.ordered.save()
        await self._offsets.saved()
        await self._settled()
        return reply(request.opaque)

    def _remove(self, names: Iterable[str]) -> None:
        broadcasting = self._clients.broadcasting()
        for name in names:
            self._pops.delete_topic(name)
            self._offsets.delete_topic(name, broadcasting)
            self._store.delete_topic(name)
            self._traffic.forget_topic(name)

    def _make_way(self, names: Iterable[str]) -> None:
        """Remove what is left of topics whose deletion waits for the disk, or was broken off as it was full: whoever
        makes them anew, as a send may, would get their messages.

        Raises StoreFull, StoreUnwritable.
        """
        for name in names:
            if name not in self._topics.table and (leaving := self._store.leaving(name)):
                self._remove([name])
                for _ in self._lite.delete_parent_steps(name):
                    pass
                self._store.end_deletion(leaving)

    def show(self, peer: Peer, request: Request[TopicConfigHeader], body: bytes) -> bytes:
        """GET_TOPIC_CONFIG (351): the settings of one topic, and its mapping as a static topic if the request asks."""
        config = self._known(request.ext.topic)
        mapping = self._topics.statics.table.get(config.topic_name) if request.ext.lo else None
        if mapping is None:
            return reply(request.opaque, body=bodies.encode(config))
        both = TopicConfigAndMapping(**msgspec.structs.asdict(config), mapping_detail=mapping)
        return reply(request.opaque, body=bodies.encode(both))

    def show_all(self, peer: Peer, request: Request[TopicPageHeader], body: bytes) -> Answer:
        """GET_ALL_TOPIC_CONFIG (21): all, or a page of them; with the mappings of static topics."""
        wanted = page_wanted(request.ext, self._page_rows())
        if wanted is None:
            return self._all.answer(peer, request, "totalTopicNum")
        return self._pages.answer(
            peer,
            wanted,
            lambda rows, total: reply(
                request.opaque,
                header=TopicPageReply(total=total),
                body=sorted_json(self._page(rows)),
            ),
        )

    def _page(self, rows: dict[str, TopicConfig]) -> TopicConfigTable:
        statics = self._topics.statics
        return TopicConfigTable(
            topic_config_table=rows,
            data_version=self._topics.version,
            topic_queue_mapping_detail_map={name: statics.table[name] for name in rows if name in statics.table},
            mapping_data_version=statics.version,
        )

    def stats(self, peer: Peer, request: Request[TopicHeader], body: bytes) -> Answer:
        """GET_TOPIC_STATS_INFO (202): bounds and last store time of each queue, and the topic's rate."""
        return self._long_scans.answer(peer, self._stats(request))

    def _stats(self, request: Request[TopicHeader]) -> Generator[None, None, bytes]:
        config = self._known(request.ext.topic)
        rows = []
        for queue_id in range(max(config.read_queue_nums, config.write_queue_nums)):
            if queue_id and queue_id % QUEUES_IN_TURN == 0:
                yield
            low, high = self._store.readable_range(config.topic_name, queue_id)
            last_ms = self._store.store_time_at(config.topic_name, queue_id, high - 1) if high > low else 0
            queue = bodies.QueueBody.of(MessageQueue(config.topic_name, self._broker_name, queue_id))
            value = {"lastUpdateTimestamp": max(last_ms, 0), "maxOffset": high, "minOffset": low}
            rows.append(java_json.encode_object_key(queue, value))
        tps = bodies.encode(self._traffic.put_tps(config.topic_name))
        return reply(request.opaque, body=b'{"offsetTable":{%b},"topicPutTps":%b}' % (b",".join(rows), tps))

    def _known(self, topic: str) -> TopicConfig:
        config = self._topics.get(topic)
        if config is None:
            raise ServerError(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {topic}")
        return config


def check_new(topics: Topics, topic: str, read_queue_count: int, write_queue_count: int, filter_type: str) -> None:
    """Raise ServerError 29 for a topic that no operator may create."""
    topic_names.check_topic(topic)
    topics.check_not_own(topic)
    if topic.startswith(topic_names.LIGHT_PREFIX):
        raise ServerError(
            ResponseCode.INVALID_PARAMETER,
            f"topic[{topic}]: {topic_names.LIGHT_PREFIX} is for light queues, which messages make",
        )
    if not (0 <= read_queue_count <= QUEUES_MAX and 0 <= write_queue_count <= QUEUES_MAX):
        raise ServerError(
            ResponseCode.INVALID_PARAMETER,
            f"topic[{topic}]: {read_queue_count} read and {write_queue_count} write queues asked,"
            f" 0 to {QUEUES_MAX} are allowed",
        )
    if filter_type not in FILTER_TYPES:
        raise ServerError(
            ResponseCode.INVALID_PARAMETER,
            f"topic[{topic}]: filter type {shown(filter_type)!r} is none of {FILTER_TYPES}",
        )


def checked_attributes(topic: str, known: TopicConfig | None, change: str | None) -> dict[str, str]:
    """Return a topic's attributes after a change. Raises ServerError 29 if one of those that change may not be so."""
    before = known.attributes if known else {}
    attributes = merged_attributes(before, change, ATTRIBUTES)
    # What was wrong before, as another version took it, keeps nobody from changing something else.
    changed = dict(attributes.items() - before.items())
    check_message_type(changed)
    check_reserve_time(changed)
    lite_attributes.check_topic(changed)
    check_queue_type(topic, known, attributes)
    return attributes


def check_message_type(attributes: dict[str, str]) -> None:
    """Raise ServerError 29 for a type of messages that RocketMQ does not know."""
    kind = attributes.get(MESSAGE_TYPE, NORMAL)
    if kind not in KNOWN_TYPES:
        raise ServerError(
            ResponseCode.INVALID_PARAMETER, f"{MESSAGE_TYPE} {shown(kind)!r} is not one of {', '.join(KNOWN_TYPES)}"
        )


def check_reserve_time(attributes: dict[str, str]) -> None:
    """Raise ServerError 29 for a time in the second tier that is none."""
    given = attributes.get(RESERVE_TIME, "-1")
    if whole_number(given, low=-1, high=LONG_MAX) is None:
        text = f"{RESERVE_TIME} {shown(given)!r} is no number of ms from -1 to {LONG_MAX}"
        raise ServerError(ResponseCode.INVALID_PARAMETER, text)


def merged_attributes(known: dict[str, str], change: str | None, names: Collection[str]) -> dict[str, str]:
    """Return the attributes of a topic or group after a change such as "+name=value,-name" (add or set, remove).

    `names`: those that may be added; what is there already may be set too.
    """
    attributes = dict(known)
    for part in (change or "").split(","):
        part = part.strip()
        if part.startswith("-"):
            attributes.pop(part[1:].partition("=")[0], None)
        elif part:
            name, equals, value = part.removeprefix("+").partition("=")
            if not equals or not name:
                raise ServerError(
                    ResponseCode.INVALID_PARAMETER, f"attribute {shown(part)!r}: +name=value or -name is needed"
                )
            if name not in names and name not in attributes:
                text = f"attribute {shown(name)!r} is not one of {', '.join(names)}"
                raise ServerError(ResponseCode.INVALID_PARAMETER, text)
            attributes[name] = value
            if len(attributes) > ATTRIBUTES_MAX or len(part) > ATTRIBUTE_LENGTH_MAX:
                raise ServerError(
                    ResponseCode.INVALID_PARAMETER,
                    f"attribute {shown(name)!r}: at most {ATTRIBUTES_MAX} of {ATTRIBUTE_LENGTH_MAX} characters",
                )
    return attributes
