"""Heartbeats, group members and queue locks: requests of clients about themselves and each other."""

from __future__ import annotations

from typing import Any

from rocketspark.broker import topic_names
from rocketspark.broker.consumers.connected_clients import ConnectedClients, ConsumerGroup
from rocketspark.broker.consumers.rebalance_locks import LockQuorum, RebalanceLocks
from rocketspark.broker.consumers.subscription_groups import SubscriptionGroups
from rocketspark.broker.declared_settings import QUEUES_MAX
from rocketspark.broker.pop.waiting_pops import WaitingPops
from rocketspark.broker.storage.json_tables import steady_ms
from rocketspark.broker.storage.long_scans import LongScans
from rocketspark.broker.topics import Topics
from rocketspark.errors import FilterIllegal, ServerError, TransportError
from rocketspark.model import MessageQueue
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import (
    ConsumerListHeader,
    HeartbeatReply,
    Request,
    UnregisterClientHeader,
    sender_language,
)
from rocketspark.protocol.json import bodies, java_json
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Answer, Routes, Sender
from rocketspark.transport.request_frames import reply

log = LimitedLog("rocketspark.broker")

# A longer heartbeat is taken in several turns of the loop: so many groups and subscriptions in one, some ms.
LONG_BEAT_BYTES, TOLD_IN_TURN = 128 << 10, 1000
LOCKS_IN_TURN = 4096


class ClientHandler:
    """Serves the requests about connected clients and their queue locks."""

    def __init__(
        self,
        clients: ConnectedClients,
        groups: SubscriptionGroups,
        topics: Topics,
        locks: RebalanceLocks,
        waiting: WaitingPops,
        scans: LongScans,
    ) -> None:
        self._waiting = waiting
        self._scans = scans
        self._clients = clients
        self._groups = groups
        self._topics = topics
        self._locks = locks
        # Of a broker with replicas.
        self.quorum: LockQuorum | None = None

    def routes(self, routes: Routes) -> None:
        """Add what this handler serves."""
        routes.add(RequestCode.HEART_BEAT, self.heartbeat)
        routes.add(RequestCode.UNREGISTER_CLIENT, self.unregister)
        routes.add(RequestCode.GET_CONSUMER_LIST_BY_GROUP, self.consumer_list)
        routes.add(RequestCode.LOCK_BATCH_MQ, self.lock)
        routes.add(RequestCode.UNLOCK_BATCH_MQ, self.unlock)

    def heartbeat(self, peer: Peer, request: Request[Any], body: bytes) -> Answer:
        """HEART_BEAT (34): take a client's heartbeat; a group's first one creates the group and its retry topic."""
        if len(body) > LONG_BEAT_BYTES:
            return peer.alone(self._beat_in_turns(peer, request, body, peer.sender))
        beat = bodies.heartbeat(body)
        self._clients.check(peer, beat)
        return self._beat(peer, request, beat, peer.sender)

    async def _beat_in_turns(
        self, peer: Peer, request: Request[Any], body: bytes, sender: Sender | None
    ) -> bytes | None:
        """Take a long heartbeat some groups at a time: each group is told whole, and no other heartbeat of the
        connection comes between."""
        beat, answer = bodies.heartbeat(body), None
        await self._scans.next()
        self._clients.check(peer, beat)
        for part in beat.parts(TOLD_IN_TURN):
            await self._scans.next()
            if not peer.is_open:
                # It was taken out of all groups, and comes into no more.
                return None
            answer = self._beat(peer, request, part, sender)
        return answer

    def _beat(self, peer: Peer, request: Request[Any], beat: bodies.Heartbeat, sender: Sender | None) -> bytes:
        for consumer in beat.consumer_data_set:
            config = self._groups.get(consumer.group_name, by=peer.address)
            if config is not None:
                self._topics.ensure(topic_names.retry_topic(consumer.group_name), config.retry_queue_nums)
        try:
            self._clients.beat(peer, beat, sender_language(request.language), request.version, steady_ms(), sender)
        except FilterIllegal as e:
            raise ServerError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(e)) from e
        return reply(request.opaque, header=HeartbeatReply())

    def unregister(self, peer: Peer, request: Request[UnregisterClientHeader], body: bytes) -> bytes:
        """UNREGISTER_CLIENT (35): take a client out of a group; the pops that it has held are answered first."""
        h = request.ext
        self._clients.leave(peer, producer_group=h.producer_group, consumer_group=h.consumer_group)
        if h.consumer_group:
            self._waiting.answer_left(peer, h.consumer_group)
        return reply(request.opaque)

    def consumer_list(self, peer: Peer, request: Request[ConsumerListHeader], body: bytes) -> bytes:
        """GET_CONSUMER_LIST_BY_GROUP (38): ids of the live members, code 1 if there is none."""
        group = self._clients.consumers.get(request.ext.group)
        if group is None:
            raise ServerError(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {request.ext.group}")
        members = bodies.ConsumerList(consumer_id_list=group.client_ids())
        return reply(request.opaque, header={}, body=bodies.encode(members))

    def notify(self, group: ConsumerGroup) -> None:
        """Tell all members that the group changed (40); not in a broadcasting group, whose members share no queues."""
        if group.message_model == "BROADCASTING":
            return
        config = self._groups.table.get(group.name)
        if config is not None and not config.notify_consumer_ids_changed_enable:
            return
        code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        for peer, client in list(group.clients.items()):
            # One that does not read hears of it by its next rebalance.
            if not peer.is_writable or not self._clients.may_be_sent(code, client.sender, "", group.name):
                continue
            try:
                peer.oneway(code, ConsumerListHeader(group=group.name))
            except TransportError as e:
                log.info("%s was not told of a change of group %s: %s", peer.address, group.name, e)

    def lock(self, peer: Peer, request: Request[Any], body: bytes) -> Answer:
        """LOCK_BATCH_MQ (41): the queues asked for that this client holds now."""
        wanted = java_json.decode_request(body, bodies.LockRequest)
        topic_names.check_group(wanted.consumer_group)
        if len(wanted.mq_set) > QUEUES_MAX:
            raise ServerError(
                ResponseCode.INVALID_PARAMETER, f"{len(wanted.mq_set)} queues to lock; at most {QUEUES_MAX} at a time"
            )
        return peer.alone(self._lock(request, wanted))

    async def _lock(self, request: Request[Any], wanted: bodies.LockRequest) -> bytes:
        """Lock queue by queue, many in some turns: each is one client's at any time."""
        held: list[MessageQueue] = []
        rows: list[bodies.QueueBody] = []
        async for part in self._scans.pieces(wanted.mq_set, LOCKS_IN_TURN):
            queues = [q.queue() for q in part]
            taken = self._locks.lock(wanted.consumer_group, wanted.client_id, queues, steady_ms())
            held += taken
            rows += [bodies.QueueBody.of(q) for q in taken]
        if len(rows) > LOCKS_IN_TURN:
            await self._scans.next()
        if self.quorum is not None and self.quorum.is_needed(wanted):
            rows = [bodies.QueueBody.of(q) for q in await self.quorum.lock(wanted, held)]
        return reply(request.opaque, body=bodies.encode(bodies.LockReply(lock_ok_mq_set=rows)))

    def unlock(self, peer: Peer, request: Request[Any], body: bytes) -> Answer:
        """UNLOCK_BATCH_MQ (42): release the locks that a client of a group holds on queues."""
        return peer.alone(self._unlock(request, java_json.decode_request(body, bodies.LockRequest)))

    async def _unlock(self, request: Request[Any], wanted: bodies.LockRequest) -> bytes:
        async for part in self._scans.pieces(wanted.mq_set, LOCKS_IN_TURN):
            self._locks.unlock(wanted.consumer_group, wanted.client_id, [q.queue() for q in part])
        if self.quorum is not None and self.quorum.is_needed(wanted):
            await self.quorum.unlock(wanted)
        return reply(request.opaque)
