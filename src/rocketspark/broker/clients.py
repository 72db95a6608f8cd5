"""The clients that live: producer and consumer groups with their connections.

Rules (ProducerManager, ConsumerManager 5.x): a client lives for 120 s after its last heartbeat and not beyond its
connection; every change of a group's members or subscriptions is told to all its members.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from rocketspark.model import Subscription
from rocketspark.protocol.bodies import ConsumerData, Heartbeat
from rocketspark.transport.peer import Peer

log = logging.getLogger("rocketspark.broker")


class Client(msgspec.Struct):
    """One member of a group: its id, connection and what its frames say about it."""

    client_id: str
    peer: Peer
    language: str
    version: int
    beat_ms: int


class ConsumerGroup(msgspec.Struct):
    """A consumer group with live members; `subscriptions` by topic."""

    name: str
    consume_type: str
    message_model: str
    consume_from: str
    clients: dict[Peer, Client] = {}
    subscriptions: dict[str, Subscription] = {}

    def client_ids(self) -> list[str]:
        """Ids of all members."""
        return [c.client_id for c in self.clients.values()]


class Clients:
    """All live clients of a broker. `on_change(group)` is called when a consumer group's members must be told."""

    def __init__(self, on_change: Callable[[ConsumerGroup], None], *, expiry_ms: int = 120_000) -> None:
        self._on_change = on_change
        self._expiry_ms = expiry_ms
        self.consumers: dict[str, ConsumerGroup] = {}
        self.producers: dict[str, dict[Peer, Client]] = {}

    def beat(self, peer: Peer, beat: Heartbeat, language: str, version: int, now_ms: int) -> None:
        """Take a client's heartbeat: all its groups."""
        for producer in beat.producer_data_set:
            self.producers.setdefault(producer.group_name, {})[peer] = Client(
                beat.client_id, peer, language, version, now_ms
            )
        for consumer in beat.consumer_data_set:
            self._beat_consumer(consumer, Client(beat.client_id, peer, language, version, now_ms))

    def _beat_consumer(self, data: ConsumerData, client: Client) -> None:
        group = self.consumers.get(data.group_name)
        if group is None:
            group = self.consumers[data.group_name] = ConsumerGroup(
                data.group_name, str(data.consume_type), str(data.message_model), str(data.consume_from_where), {}, {}
            )
        group.consume_type = str(data.consume_type)
        group.message_model = str(data.message_model)
        group.consume_from = str(data.consume_from_where)
        changed = client.peer not in group.clients
        # A client that reconnects has a new connection while the old one may not have ended yet.
        for peer in [p for p, c in group.clients.items() if c.client_id == client.client_id and p is not client.peer]:
            if not peer.is_open:
                del group.clients[peer]
        group.clients[client.peer] = client
        wanted = {s.topic: s.subscription() for s in data.subscription_data_set}
        for topic, subscription in wanted.items():
            known = group.subscriptions.get(topic)
            if known is None or subscription.version > known.version:
                changed = changed or known is None or known.expression != subscription.expression
                group.subscriptions[topic] = subscription
        for topic in [t for t in group.subscriptions if t not in wanted]:
            del group.subscriptions[topic]
            changed = True
        if changed:
            self._on_change(group)

    def leave(self, peer: Peer, *, producer_group: str | None = None, consumer_group: str | None = None) -> None:
        """Take a client out of the groups named."""
        if producer_group is not None and producer_group in self.producers:
            self.producers[producer_group].pop(peer, None)
            if not self.producers[producer_group]:
                del self.producers[producer_group]
        if consumer_group is not None:
            self._leave_consumer(consumer_group, peer)

    def _leave_consumer(self, name: str, peer: Peer) -> None:
        group = self.consumers.get(name)
        if group is None or group.clients.pop(peer, None) is None:
            return
        if not group.clients:
            del self.consumers[name]
        else:
            self._on_change(group)

    def disconnected(self, peer: Peer) -> None:
        """The connection ended: its client leaves all groups."""
        for name in [n for n, members in self.producers.items() if peer in members]:
            self.leave(peer, producer_group=name)
        for name in [n for n, g in self.consumers.items() if peer in g.clients]:
            self._leave_consumer(name, peer)

    def expire(self, now_ms: int) -> None:
        """Take out clients without a heartbeat for too long."""
        oldest = now_ms - self._expiry_ms
        for name, members in list(self.producers.items()):
            for client in [c for c in members.values() if c.beat_ms < oldest]:
                log.warning("producer %s of group %s is silent: dropped", client.client_id, name)
                self.leave(client.peer, producer_group=name)
        for name, group in list(self.consumers.items()):
            for client in [c for c in group.clients.values() if c.beat_ms < oldest]:
                log.warning("consumer %s of group %s is silent: dropped", client.client_id, name)
                self._leave_consumer(name, client.peer)
