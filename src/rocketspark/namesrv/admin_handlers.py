"""Handlers of operators' requests about the NameServer itself: its settings, system topics, topics by unit."""

from __future__ import annotations

from typing import Any

from rocketspark.errors import ServerError
from rocketspark.namesrv.registry import Registry
from rocketspark.namesrv.settings import Settings
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import Request
from rocketspark.protocol.json import bodies
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.request_frames import reply

# Bits of a topic's system flag (rule: TopicSysFlag, 5.x).
UNIT = 1
UNIT_SUBSCRIBED = 2


class AdminHandlers:
    """Serves the requests of `mqadmin` that are about the NameServer."""

    def __init__(self, registry: Registry, settings: Settings) -> None:
        self._registry = registry
        self._settings = settings

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
        """GET_NAMESRV_CONFIG (319)."""
        return reply(request.opaque, body=self._settings.document().encode())

    def update_config(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """UPDATE_NAMESRV_CONFIG (318)."""
        self._settings.update(body.decode("utf-8", "replace"))
        return reply(request.opaque)

    def unit_topics(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """GET_UNIT_TOPIC_LIST (311): topics of one unit."""
        return self._topics(request, UNIT, UNIT)

    def subscribed_topics(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """GET_HAS_UNIT_SUB_TOPIC_LIST (312): topics that a unit subscribes to."""
        return self._topics(request, UNIT_SUBSCRIBED, UNIT_SUBSCRIBED)

    def subscribed_plain_topics(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST (313): those of them that are of no unit."""
        return self._topics(request, UNIT | UNIT_SUBSCRIBED, UNIT_SUBSCRIBED)

    def _topics(self, request: Request[Any], mask: int, wanted: int) -> bytes:
        if not self._settings.topic_list:
            raise ServerError(ResponseCode.SYSTEM_ERROR, "disable")
        found = [topic for topic, flag in self._registry.topic_flags() if flag & mask == wanted]
        return reply(request.opaque, body=bodies.encode(bodies.TopicList(topic_list=found)))
