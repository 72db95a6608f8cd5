"""The NameServer's handlers of requests: those of brokers and clients, and operators' about the NameServer itself."""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import Callable, Generator
from typing import Any

from rocketspark import machine
from rocketspark.errors import ConnectionLost, ProtocolError, ServerError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.route import MASTER_ID
from rocketspark.model.steps import finished
from rocketspark.model.text import INT_MAX
from rocketspark.namesrv.kv_config import ORDER_TOPICS, KvConfig
from rocketspark.namesrv.registration_limits import check_broker, check_version
from rocketspark.namesrv.registry import EXPIRY_MS, LiveBroker, Registry
from rocketspark.namesrv.settings import Settings
from rocketspark.protocol import frames
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import (
    BrokerHeader,
    BrokerNameHeader,
    ClusterHeader,
    DataVersionReply,
    KvHeader,
    MemberGroupHeader,
    RegisterBrokerHeader,
    RegisterBrokerReply,
    Request,
    RouteHeader,
    TopicHeader,
    ValueReply,
)
from rocketspark.protocol.headers.namesrv import DeleteTopicHeader
from rocketspark.protocol.json import bodies, java_json
from rocketspark.protocol.json.registration import TOPICS_MAX, decode_compressed, decode_plain
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Answer, Routes
from rocketspark.transport.request_frames import reply

log = LimitedLog("rocketspark.namesrv")

# Releases from 4.9.4 on read broker ids as quoted JSON keys.
QUOTED_IDS_VERSION = 401
# A registration over this is read beside the loop: it may take a second.
LARGE_BYTES = 64 << 10
# Topics of a list that are looked at in one turn of the loop: some ms.
TOPICS_IN_TURN = 16_384
# The limit of a registration's size after inflating, in times of its deflated size; honest brokers stay below.
DEFLATED = 32


def now_ms() -> int:
    """Return the time in ms of a clock that is never set: a jump must not make every broker look silent."""
    return int(machine.monotonic() * 1000)


class TopicLists:
    """Answers with lists of topics, of which there may be a million: a long list is made in several turns."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._making = asyncio.Lock()

    def answer(self, peer: Peer, request: Request[Any], pick: Callable[[list[str]], list[str]]) -> Answer:
        """Return the reply with those topics that `pick` selects from the lists of topics it is called with."""
        topics = self._registry.topics()
        if len(topics) > TOPICS_IN_TURN:
            return self._answer_later(peer, request, pick)
        return reply(request.opaque, body=bodies.encode(bodies.TopicList(topic_list=pick(topics))))

    async def _answer_later(
        self, peer: Peer, request: Request[Any], pick: Callable[[list[str]], list[str]]
    ) -> bytes | None:
        while peer.is_open:
            async with self._making:
                if peer.is_writable:
                    return reply(request.opaque, body=await self._made(pick))
            # Many may wait here: nothing is made for one that does not read.
            await peer.writable()
        return None

    async def _made(self, pick: Callable[[list[str]], list[str]]) -> bytes:
        topics, parts, size = self._registry.topics(), list[bytes](), 0
        for at in range(0, len(topics), TOPICS_IN_TURN):
            await asyncio.sleep(0)
            if found := pick(topics[at : at + TOPICS_IN_TURN]):
                parts.append(bodies.encode(found)[1:-1])
                size += len(parts[-1])
            if size > frames.FRAME_BYTES_MAX:
                # No reply holds it.
                break
        return b'{"topicList":[%b]}' % b",".join(parts) if parts else bodies.encode(bodies.TopicList())


class NameServerHandlers:
    """Serves brokers and clients of one NameServer, from its registry and key-value tables."""

    def __init__(self, registry: Registry, kv: KvConfig, settings: Settings, lists: TopicLists) -> None:
        self._registry = registry
        self._kv = kv
        self._settings = settings
        self._started_ms = now_ms()
        self._large = asyncio.Lock()
        self._lists = lists
        # The number of large registrations not taken yet, by the broker's cluster and address.
        self._under_way: Counter[tuple[str, str]] = Counter()

    def routes(self, routes: Routes) -> None:
        """Add what this handler serves."""
        add = routes.add
        add(RequestCode.GET_ROUTEINFO_BY_TOPIC, self.route)
        add(RequestCode.REGISTER_BROKER, self.register)
        add(RequestCode.UNREGISTER_BROKER, self.unregister)
        add(RequestCode.BROKER_HEARTBEAT, self.heartbeat)
        add(RequestCode.QUERY_DATA_VERSION, self.data_version)
        add(RequestCode.GET_BROKER_CLUSTER_INFO, self.clusters)
        add(RequestCode.GET_BROKER_MEMBER_GROUP, self.members)
        add(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, self.topics)
        add(RequestCode.GET_TOPICS_BY_CLUSTER, self.topics_of_cluster)
        add(RequestCode.DELETE_TOPIC_IN_NAMESRV, self.delete_topic, DeleteTopicHeader)
        add(RequestCode.FORGET_TOPIC_OF_BROKER, self.forget_topic)
        add(RequestCode.REGISTER_TOPIC_IN_NAMESRV, self.register_topic, TopicHeader)
        add(RequestCode.WIPE_WRITE_PERM_OF_BROKER, self.wipe_write, BrokerNameHeader)
        add(RequestCode.ADD_WRITE_PERM_OF_BROKER, self.add_write, BrokerNameHeader)
        add(RequestCode.GET_KV_CONFIG, self.get_value)
        add(RequestCode.PUT_KV_CONFIG, self.put_value)
        add(RequestCode.DELETE_KV_CONFIG, self.delete_value)
        add(RequestCode.GET_KVLIST_BY_NAMESPACE, self.values)

    def route(self, peer: Peer, request: Request[RouteHeader], body: bytes) -> bytes:
        """GET_ROUTEINFO_BY_TOPIC: return brokers and queues of a topic (TopicRouteData), or code 17 if unknown."""
        topic = request.ext.topic
        s = self._settings
        if s.wait_needed and now_ms() - self._started_ms < s.wait_seconds * 1000:
            # Brokers are still coming: a route of some of them would turn clients away from the others.
            raise ServerError(ResponseCode.SYSTEM_ERROR, "name server not ready")
        found = self._registry.route(topic)
        if found is None:
            raise ServerError(
                ResponseCode.TOPIC_NOT_EXIST, f"No topic route info in name server for the topic: {topic}"
            )
        h = request.ext
        if h.zone and not h.zone.isspace() and (h.zone_mode or "").lower() == "true":
            found = _of_zone(*found, h.zone)
        return reply(
            request.opaque,
            body=bodies.encode_route(
                *found,
                order_conf=self._kv.get(ORDER_TOPICS, topic) if s.order_topics else None,
                mappings=self._registry.mappings(topic),
                quoted_ids=request.version >= QUOTED_IDS_VERSION or request.ext.standard_json,
            ),
        )

    def register(self, peer: Peer, request: Request[RegisterBrokerHeader], body: bytes) -> Answer:
        """REGISTER_BROKER: take a broker's address and topics; a body whose CRC is wrong is refused."""
        h = request.ext
        check_broker(h.cluster, h.broker_name, h.broker_id, h.address, h.ha_address, h.zone or "")
        large = len(body) * (DEFLATED if h.compressed else 1) > LARGE_BYTES
        # None of a broker's registrations passes an older one of it.
        if large or (h.cluster, h.address) in self._under_way:
            return self._register_large(peer, request, body)
        return finished(self._registered(peer, request, _registration(h, body)))

    async def _register_large(self, peer: Peer, request: Request[RegisterBrokerHeader], body: bytes) -> bytes:
        broker = request.ext.cluster, request.ext.address
        self._under_way[broker] += 1
        try:
            # Others are answered meanwhile; one after the other, as memory is bounded.
            async with self._large:
                registered = await asyncio.to_thread(_registration, request.ext, body)
                if not peer.is_open:
                    raise ConnectionLost(f"the connection to {peer.address} ended before its registration was read")
                steps = self._registered(peer, request, registered)
                while True:
                    try:
                        next(steps)
                    except StopIteration as e:
                        whole: bytes = e.value
                        return whole
                    await asyncio.sleep(0)
        finally:
            self._under_way -= Counter([broker])

    def _registered(
        self, peer: Peer, request: Request[RegisterBrokerHeader], registered: bodies.RegisterBrokerBody
    ) -> Generator[None, None, bytes]:
        h = request.ext
        topics = registered.topic_config_serialize_wrapper
        live = LiveBroker(
            cluster=h.cluster,
            broker_name=h.broker_name,
            broker_id=h.broker_id,
            address=h.address,
            ha_address=h.ha_address,
            heard_ms=now_ms(),
            expiry_ms=min(max(h.expiry_ms, 1), INT_MAX) if h.expiry_ms else EXPIRY_MS,
            zone=h.zone,
            version=topics.data_version,
            connection=peer,
        )
        master = yield from self._registry.register(live, topics, h.acting_master)
        header = RegisterBrokerReply(
            ha_address=master.ha_address if master else None, master_address=master.address if master else None
        )
        orders = self._kv.table(ORDER_TOPICS) if self._settings.return_order_topics else None
        return reply(request.opaque, header=header, body=bodies.encode(bodies.KvTable(table=orders)) if orders else b"")

    def unregister(self, peer: Peer, request: Request[BrokerHeader], body: bytes) -> Answer:
        """UNREGISTER_BROKER: remove a broker; with the last one of its name, its queues leave the routes."""
        h = request.ext
        self._registry.unregister(h.cluster, h.broker_name, h.broker_id, h.address)
        log.info("broker %s (%s) left", h.broker_name, h.address)
        return reply(request.opaque) if self._registry.is_settled else self._unregister_large(request)

    async def _unregister_large(self, request: Request[BrokerHeader]) -> bytes:
        for _ in self._registry.settle():
            await asyncio.sleep(0)
        return reply(request.opaque)

    def heartbeat(self, peer: Peer, request: Request[BrokerHeader], body: bytes) -> bytes:
        """BROKER_HEARTBEAT: note that a broker lives."""
        self._registry.heard(request.ext.cluster, request.ext.address, now_ms())
        return reply(request.opaque)

    def data_version(self, peer: Peer, request: Request[BrokerHeader], body: bytes) -> bytes:
        """QUERY_DATA_VERSION: tell whether the broker needs to register again."""
        held = self._registry.version_of(request.ext.cluster, request.ext.address, now_ms())
        changed = held is None or not body or held != java_json.decode(body, bodies.DataVersion)
        return reply(
            request.opaque,
            header=DataVersionReply(changed=changed),
            body=bodies.encode(held) if held is not None else b"",
        )

    def clusters(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """GET_BROKER_CLUSTER_INFO: all brokers with their addresses, and the clusters they are in."""
        return reply(request.opaque, body=bodies.encode_cluster_info(self._registry.clusters()))

    def members(self, peer: Peer, request: Request[MemberGroupHeader], body: bytes) -> bytes:
        """GET_BROKER_MEMBER_GROUP: the addresses under one broker name."""
        h = request.ext
        data = self._registry.members(h.broker_name)
        addresses = data.broker_addrs if data is not None else {}
        return reply(request.opaque, body=bodies.encode_member_group(h.cluster, h.broker_name, addresses))

    def topics(self, peer: Peer, request: Request[Any], body: bytes) -> Answer:
        """GET_ALL_TOPIC_LIST_FROM_NAMESERVER: the names of all topics."""
        _check_enabled(self._settings.all_topic_list)
        return self._lists.answer(peer, request, lambda topics: topics)

    def topics_of_cluster(self, peer: Peer, request: Request[ClusterHeader], body: bytes) -> Answer:
        """GET_TOPICS_BY_CLUSTER: the topics on the brokers of one cluster."""
        _check_enabled(self._settings.topic_list)
        names = self._registry.brokers_of_cluster(request.ext.cluster)
        return self._lists.answer(peer, request, lambda topics: self._registry.carried_by(topics, names))

    def delete_topic(self, peer: Peer, request: Request[DeleteTopicHeader], body: bytes) -> bytes:
        """DELETE_TOPIC_IN_NAMESRV: forget a topic, in all clusters or in the one that is named."""
        h = request.ext
        of = self._registry.clusters().cluster_addr_table.get(h.cluster, []) if h.cluster else None
        self._registry.delete_topic(h.topic, of)
        return reply(request.opaque)

    def forget_topic(self, peer: Peer, request: Request[TopicHeader], body: bytes) -> bytes:
        """FORGET_TOPIC_OF_BROKER (7310008): the broker of this connection has a topic no more."""
        self._registry.forget_topic(request.ext.topic, peer)
        return reply(request.opaque)

    def register_topic(self, peer: Peer, request: Request[TopicHeader], body: bytes) -> bytes:
        """REGISTER_TOPIC_IN_NAMESRV (217): take one topic, from brokers with enableSingleTopicRegister."""
        if body:
            self._registry.set_queues(request.ext.topic, java_json.decode(body, bodies.RouteBody).queue_datas)
        return reply(request.opaque)

    def wipe_write(self, peer: Peer, request: Request[BrokerNameHeader], body: bytes) -> bytes:
        """WIPE_WRITE_PERM_OF_BROKER: take the write permission off a broker's queues, so that producers avoid it."""
        count = self._registry.set_writable(request.ext.broker_name, False)
        return reply(request.opaque, header={"wipeTopicCount": str(count)})

    def add_write(self, peer: Peer, request: Request[BrokerNameHeader], body: bytes) -> bytes:
        """ADD_WRITE_PERM_OF_BROKER: give a broker's queues their write permission back."""
        count = self._registry.set_writable(request.ext.broker_name, True)
        return reply(request.opaque, header={"addTopicCount": str(count)})

    def get_value(self, peer: Peer, request: Request[KvHeader], body: bytes) -> bytes:
        """GET_KV_CONFIG: return the value of a key in a namespace, or code 22."""
        h = request.ext
        value = self._kv.get(h.namespace, h.key)
        if value is None:
            raise ServerError(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {h.namespace} Key: {h.key}")
        return reply(request.opaque, header=ValueReply(value=value))

    def put_value(self, peer: Peer, request: Request[KvHeader], body: bytes) -> bytes:
        """PUT_KV_CONFIG: set the value of a key in a namespace."""
        self._kv.put(request.ext.namespace, request.ext.key, request.ext.value)
        return reply(request.opaque)

    def delete_value(self, peer: Peer, request: Request[KvHeader], body: bytes) -> bytes:
        """DELETE_KV_CONFIG: remove a key of a namespace."""
        self._kv.delete(request.ext.namespace, request.ext.key)
        return reply(request.opaque)

    def values(self, peer: Peer, request: Request[KvHeader], body: bytes) -> bytes:
        """GET_KVLIST_BY_NAMESPACE: return all values of a namespace, or code 22."""
        table = self._kv.table(request.ext.namespace)
        if table is None:
            raise ServerError(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {request.ext.namespace}")
        return reply(request.opaque, body=bodies.encode(bodies.KvTable(table=table)))


def _registration(h: RegisterBrokerHeader, body: bytes) -> bodies.RegisterBrokerBody:
    """Return the body of a broker's registration. Raises ServerError or ProtocolError."""
    if h.crc and zlib.crc32(body) & 0x7FFFFFFF != h.crc:
        raise ServerError(ResponseCode.SYSTEM_ERROR, "crc32 not match")
    if not body:
        return bodies.RegisterBrokerBody()
    registered = decode_compressed(body) if h.compressed else decode_plain(body)
    if (count := len(registered.topic_config_serialize_wrapper.topic_config_table)) > TOPICS_MAX:
        raise ProtocolError(f"{count} topics in one registration: {TOPICS_MAX} are taken, set enableSplitRegistration")
    check_version(registered.topic_config_serialize_wrapper.data_version)
    return registered


def _check_enabled(enabled: bool) -> None:
    """Raise the refusal of a list of topics that the settings do not allow."""
    if not enabled:
        raise ServerError(ResponseCode.SYSTEM_ERROR, "disable")


# Bits of a topic's system flag (rule: TopicSysFlag, 5.x).
UNIT = 1
UNIT_SUBSCRIBED = 2


class AdminHandlers:
    """Serves the requests of `mqadmin` that are about the NameServer."""

    def __init__(self, registry: Registry, settings: Settings, lists: TopicLists) -> None:
        self._registry = registry
        self._settings = settings
        self._lists = lists

    def routes(self, routes: Routes) -> None:
        """Add what this handler serves."""
        add = routes.add
        add(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, self.system_topics)
        add(RequestCode.UPDATE_NAMESRV_CONFIG, self.update_config)
        add(RequestCode.GET_NAMESRV_CONFIG, self.config)
        add(RequestCode.GET_UNIT_TOPIC_LIST, self.unit_topics)
        add(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, self.subscribed_topics)
        add(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, self.subscribed_plain_topics)

    def system_topics(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """GET_SYSTEM_TOPIC_LIST_FROM_NS (304): the names of clusters and brokers, which are topics too."""
        info = self._registry.clusters()
        taken = {*info.cluster_addr_table, *info.broker_addr_table}
        addresses = [a for data in info.broker_addr_table.values() for a in data.broker_addrs.values()]
        found = bodies.TopicList(topic_list=sorted(taken), broker_addr=addresses[0] if addresses else None)
        return reply(request.opaque, body=bodies.encode(found))

    def config(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """GET_NAMESRV_CONFIG (319): the NameServer's settings, as lines of text."""
        return reply(request.opaque, body=self._settings.document().encode())

    def update_config(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """UPDATE_NAMESRV_CONFIG (318): change settings while the NameServer runs."""
        self._settings.update(body.decode("utf-8", "replace"))
        return reply(request.opaque)

    def unit_topics(self, peer: Peer, request: Request[Any], body: bytes) -> Answer:
        """GET_UNIT_TOPIC_LIST (311): the topics whose system flag says that they belong to a unit."""
        return self._topics(peer, request, UNIT, UNIT)

    def subscribed_topics(self, peer: Peer, request: Request[Any], body: bytes) -> Answer:
        """GET_HAS_UNIT_SUB_TOPIC_LIST (312): the topics whose system flag says that a unit subscribes to them."""
        return self._topics(peer, request, UNIT_SUBSCRIBED, UNIT_SUBSCRIBED)

    def subscribed_plain_topics(self, peer: Peer, request: Request[Any], body: bytes) -> Answer:
        """GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST (313): topics that a unit subscribes to and that belong to none."""
        return self._topics(peer, request, UNIT | UNIT_SUBSCRIBED, UNIT_SUBSCRIBED)

    def _topics(self, peer: Peer, request: Request[Any], mask: int, wanted: int) -> Answer:
        _check_enabled(self._settings.topic_list)
        return self._lists.answer(peer, request, lambda topics: self._registry.of_flag(topics, mask, wanted))


def _of_zone(
    brokers: list[bodies.BrokerDataBody], queues: list[bodies.QueueDataBody], zone: str
) -> tuple[list[bodies.BrokerDataBody], list[bodies.QueueDataBody]]:
    """Return a route without the masters of other zones; a name without a master stays, for its slaves are read.

    Rule: ZoneRouteRPCHook, 5.5.0.
    """
    away = {
        b.broker_name for b in brokers if MASTER_ID in b.broker_addrs and (b.zone_name or "").lower() != zone.lower()
    }
    return [b for b in brokers if b.broker_name not in away], [q for q in queues if q.broker_name not in away]
