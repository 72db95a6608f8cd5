"""Heartbeats, group members, queue locks: what clients tell of themselves and ask about each other."""

from __future__ import annotations

import logging
from typing import Any

from rocketspark.broker import names
from rocketspark.broker.clients import Clients, ConsumerGroup
from rocketspark.broker.config import now_ms
from rocketspark.broker.groups import Groups
from rocketspark.broker.locks import QueueLocks
from rocketspark.broker.topics import Topics
from rocketspark.errors import ServerError, TransportError
from rocketspark.protocol import bodies, java_json
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import (
    ConsumerListHeader,
    HeartbeatReply,
    Request,
    UnregisterClientHeader,
    sender_language,
)
from rocketspark.transport.messages import reply
from rocketspark.transport.peer import Peer
from rocketspark.transport.routes import Routes

log = logging.getLogger("rocketspark.broker")


class ClientHandler:
    """Keeps the broker's view of its clients."""

    def __init__(self, clients: Clients, groups: Groups, topics: Topics, locks: QueueLocks) -> None:
        self._clients = clients
        self._groups = groups
        self._topics = topics
        self._locks = locks

    def routes(self, routes: Routes) -> None:
        """Add what this handler serves."""
        routes.add(RequestCode.HEART_BEAT, self.heartbeat)
        routes.add(RequestCode.UNREGISTER_CLIENT, self.unregister)
        routes.add(RequestCode.GET_CONSUMER_LIST_BY_GROUP, self.consumer_list)
        routes.add(RequestCode.LOCK_BATCH_MQ, self.lock)
        routes.add(RequestCode.UNLOCK_BATCH_MQ, self.unlock)

    def heartbeat(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """HEART_BEAT (34): a group's first one makes its settings and its retry topic."""
        beat = java_json.decode(body, bodies.Heartbeat)
        for consumer in beat.consumer_data_set:
            config = self._groups.get(consumer.group_name)
            if config is not None:
                self._topics.ensure(names.retry_topic(consumer.group_name), config.retry_queue_nums)
        self._clients.beat(peer, beat, sender_language(request.language), request.version, now_ms())
        return reply(request.opaque, header=HeartbeatReply())

    def unregister(self, peer: Peer, request: Request[UnregisterClientHeader], body: bytes) -> bytes:
        """UNREGISTER_CLIENT (35)."""
        h = request.ext
        self._clients.leave(peer, producer_group=h.producer_group, consumer_group=h.consumer_group)
        return reply(request.opaque)

    def consumer_list(self, peer: Peer, request: Request[ConsumerListHeader], body: bytes) -> bytes:
        """GET_CONSUMER_LIST_BY_GROUP (38): ids of the live members, code 1 if there is none."""
        group = self._clients.consumers.get(request.ext.group)
        if group is None:
            raise ServerError(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {request.ext.group}")
        members = bodies.ConsumerList(consumer_id_list=group.client_ids())
        return reply(request.opaque, header={}, body=bodies.encode(members))

    def notify(self, group: ConsumerGroup) -> None:
        """Tell all members that the group changed (40); those of a broadcast group share nothing."""
        if group.message_model == "BROADCASTING":
            return
        config = self._groups.table.get(group.name)
        if config is not None and not config.notify_consumer_ids_changed_enable:
            return
        for peer in list(group.clients):
            try:
                peer.oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ConsumerListHeader(group=group.name))
            except TransportError as e:
                log.info("%s was not told of a change of group %s: %s", peer.address, group.name, e)

    def lock(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """LOCK_BATCH_MQ (41): the queues asked for that this client holds now."""
        wanted = java_json.decode(body, bodies.LockRequest)
        held = self._locks.lock(wanted.consumer_group, wanted.client_id, [q.queue() for q in wanted.mq_set], now_ms())
        answer = bodies.LockReply(lock_ok_mq_set=[bodies.QueueBody.of(q) for q in held])
        return reply(request.opaque, body=bodies.encode(answer))

    def unlock(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """UNLOCK_BATCH_MQ (42)."""
        wanted = java_json.decode(body, bodies.LockRequest)
        self._locks.unlock(wanted.consumer_group, wanted.client_id, [q.queue() for q in wanted.mq_set])
        return reply(request.opaque)
