"""What a NameServer is asked: registrations, routes, clusters, topics, key-value tables."""

from __future__ import annotations

import logging
import time
import zlib
from typing import Any

from rocketspark.errors import ServerError
from rocketspark.namesrv.kv_config import ORDER_TOPICS, KvConfig
from rocketspark.namesrv.registry import Registry
from rocketspark.namesrv.settings import Settings
from rocketspark.protocol import bodies, java_json
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
from rocketspark.protocol.registration import decode_compressed
from rocketspark.transport.messages import reply
from rocketspark.transport.peer import Peer
from rocketspark.transport.routes import Routes

log = logging.getLogger("rocketspark.namesrv")

# Releases from 4.9.4 on read broker ids as quoted JSON keys.
QUOTED_IDS_VERSION = 401


def now_ms() -> int:
    """The wall clock in ms."""
    return int(time.time() * 1000)


class NameServerHandlers:
    """The requests of one NameServer over its registry and key-value tables."""

    def __init__(self, registry: Registry, kv: KvConfig, settings: Settings) -> None:
        self._registry = registry
        self._kv = kv
        self._settings = settings

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
        add(RequestCode.DELETE_TOPIC_IN_NAMESRV, self.delete_topic)
        add(RequestCode.REGISTER_TOPIC_IN_NAMESRV, self.register_topic, TopicHeader)
        add(RequestCode.WIPE_WRITE_PERM_OF_BROKER, self.wipe_write, BrokerNameHeader)
        add(RequestCode.ADD_WRITE_PERM_OF_BROKER, self.add_write, BrokerNameHeader)
        add(RequestCode.GET_KV_CONFIG, self.get_value)
        add(RequestCode.PUT_KV_CONFIG, self.put_value)
        add(RequestCode.DELETE_KV_CONFIG, self.delete_value)
        add(RequestCode.GET_KVLIST_BY_NAMESPACE, self.values)

    def route(self, peer: Peer, request: Request[RouteHeader], body: bytes) -> bytes:
        """GET_ROUTEINFO_BY_TOPIC: TopicRouteData, or code 17."""
        topic = request.ext.topic
        found = self._registry.route(topic)
        if found is None:
            raise ServerError(
                ResponseCode.TOPIC_NOT_EXIST, f"No topic route info in name server for the topic: {topic}"
            )
        return reply(
            request.opaque,
            body=bodies.encode_route(
                *found,
                order_conf=self._kv.get(ORDER_TOPICS, topic) if self._settings.order_topics else None,
                quoted_ids=request.version >= QUOTED_IDS_VERSION or request.ext.standard_json,
            ),
        )

    def register(self, peer: Peer, request: Request[RegisterBrokerHeader], body: bytes) -> bytes:
        """REGISTER_BROKER; a body whose CRC is wrong is refused."""
        h = request.ext
        if h.crc and zlib.crc32(body) & 0x7FFFFFFF != h.crc:
            raise ServerError(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        if not body:
            registered = bodies.RegisterBrokerBody()
        elif h.compressed:
            registered = decode_compressed(body)
        else:
            registered = java_json.decode(body, bodies.RegisterBrokerBody)
        master = self._registry.register(
            cluster=h.cluster,
            broker_name=h.broker_name,
            broker_id=h.broker_id,
            address=h.address,
            ha_address=h.ha_address,
            topics=registered.topic_config_serialize_wrapper,
            now_ms=now_ms(),
            connection=peer,
            expiry_ms=h.expiry_ms,
            acting_master=bool(h.acting_master),
        )
        header = RegisterBrokerReply(
            ha_address=master.ha_address if master else None, master_address=master.address if master else None
        )
        orders = self._kv.table(ORDER_TOPICS) if self._settings.return_order_topics else None
        return reply(request.opaque, header=header, body=bodies.encode(bodies.KvTable(table=orders)) if orders else b"")

    def unregister(self, peer: Peer, request: Request[BrokerHeader], body: bytes) -> bytes:
        """UNREGISTER_BROKER."""
        h = request.ext
        self._registry.unregister(h.cluster, h.broker_name, h.broker_id, h.address)
        log.info("broker %s (%s) left", h.broker_name, h.address)
        return reply(request.opaque)

    def heartbeat(self, peer: Peer, request: Request[BrokerHeader], body: bytes) -> bytes:
        """BROKER_HEARTBEAT: the broker lives."""
        self._registry.heard(request.ext.cluster, request.ext.address, now_ms())
        return reply(request.opaque)

    def data_version(self, peer: Peer, request: Request[BrokerHeader], body: bytes) -> bytes:
        """QUERY_DATA_VERSION: does the broker need to register again?"""
        held = self._registry.version_of(request.ext.cluster, request.ext.address, now_ms())
        changed = held is None or held != java_json.decode(body, bodies.DataVersion)
        return reply(
            request.opaque,
            header=DataVersionReply(changed=changed),
            body=bodies.encode(held) if held is not None else b"",
        )

    def clusters(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """GET_BROKER_CLUSTER_INFO."""
        return reply(request.opaque, body=bodies.encode_cluster_info(self._registry.clusters()))

    def members(self, peer: Peer, request: Request[MemberGroupHeader], body: bytes) -> bytes:
        """GET_BROKER_MEMBER_GROUP: the addresses under one broker name."""
        h = request.ext
        data = self._registry.members(h.broker_name)
        group = {
            "brokerAddrs": {str(i): a for i, a in data.broker_addrs.items()} if data else {},
            "brokerName": h.broker_name,
            "cluster": h.cluster,
        }
        return reply(request.opaque, body=bodies.encode({"brokerMemberGroup": group}))

    def topics(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """GET_ALL_TOPIC_LIST_FROM_NAMESERVER."""
        return reply(request.opaque, body=bodies.encode(bodies.TopicList(topic_list=self._registry.topics())))

    def topics_of_cluster(self, peer: Peer, request: Request[ClusterHeader], body: bytes) -> bytes:
        """GET_TOPICS_BY_CLUSTER."""
        names = self._registry.topics_of_cluster(request.ext.cluster)
        return reply(request.opaque, body=bodies.encode(bodies.TopicList(topic_list=names)))

    def delete_topic(self, peer: Peer, request: Request[TopicHeader], body: bytes) -> bytes:
        """DELETE_TOPIC_IN_NAMESRV."""
        self._registry.delete_topic(request.ext.topic)
        return reply(request.opaque)

    def register_topic(self, peer: Peer, request: Request[TopicHeader], body: bytes) -> bytes:
        """REGISTER_TOPIC_IN_NAMESRV (217): one topic, as brokers with enableSingleTopicRegister tell of it."""
        if body:
            self._registry.set_queues(request.ext.topic, java_json.decode(body, bodies.RouteBody).queue_datas)
        return reply(request.opaque)

    def wipe_write(self, peer: Peer, request: Request[BrokerNameHeader], body: bytes) -> bytes:
        """WIPE_WRITE_PERM_OF_BROKER: producers turn away from the broker."""
        count = self._registry.set_writable(request.ext.broker_name, False)
        return reply(request.opaque, header={"wipeTopicCount": str(count)})

    def add_write(self, peer: Peer, request: Request[BrokerNameHeader], body: bytes) -> bytes:
        """ADD_WRITE_PERM_OF_BROKER: producers may use the broker again."""
        count = self._registry.set_writable(request.ext.broker_name, True)
        return reply(request.opaque, header={"addTopicCount": str(count)})

    def get_value(self, peer: Peer, request: Request[KvHeader], body: bytes) -> bytes:
        """GET_KV_CONFIG: the value, or code 22."""
        h = request.ext
        value = self._kv.get(h.namespace, h.key)
        if value is None:
            raise ServerError(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {h.namespace} Key: {h.key}")
        return reply(request.opaque, header=ValueReply(value=value))

    def put_value(self, peer: Peer, request: Request[KvHeader], body: bytes) -> bytes:
        """PUT_KV_CONFIG."""
        self._kv.put(request.ext.namespace, request.ext.key, request.ext.value)
        return reply(request.opaque)

    def delete_value(self, peer: Peer, request: Request[KvHeader], body: bytes) -> bytes:
        """DELETE_KV_CONFIG."""
        self._kv.delete(request.ext.namespace, request.ext.key)
        return reply(request.opaque)

    def values(self, peer: Peer, request: Request[KvHeader], body: bytes) -> bytes:
        """GET_KVLIST_BY_NAMESPACE: all values, or code 22."""
        table = self._kv.table(request.ext.namespace)
        if table is None:
            raise ServerError(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {request.ext.namespace}")
        return reply(request.opaque, body=bodies.encode(bodies.KvTable(table=table)))
