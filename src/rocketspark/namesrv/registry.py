"""Which brokers live and what they carry. Pure: no sockets, the time is an argument.

Rules (RouteInfoManager, 5.x): a registration merges, it never drops topics; a broker's queue data is taken when it is
a master's and its data version changed or the topic is new; a broker is dropped when it leaves, is silent too long or
its connection ends.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import msgspec

from rocketspark.model.route import MASTER_ID, PERM_READ, PERM_WRITE
from rocketspark.protocol.bodies import (
    BrokerDataBody,
    ClusterInfo,
    DataVersion,
    QueueDataBody,
    TopicConfig,
    TopicConfigTable,
)

EXPIRY_MS = 120_000


class LiveBroker(msgspec.Struct):
    """One broker process: when it was last heard of, and over which connection."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str
    heard_ms: int
    expiry_ms: int
    version: DataVersion
    connection: Hashable


class Registry:
    """The route table of one NameServer."""

    def __init__(self) -> None:
        self._brokers: dict[str, BrokerDataBody] = {}
        self._topics: dict[str, dict[str, QueueDataBody]] = {}
        self._live: dict[tuple[str, str], LiveBroker] = {}

    # -- brokers ---------------------------------------------------------------------------------------------------

    def register(
        self,
        *,
        cluster: str,
        broker_name: str,
        broker_id: int,
        address: str,
        ha_address: str,
        topics: TopicConfigTable,
        now_ms: int,
        connection: Hashable,
        expiry_ms: int | None = None,
        acting_master: bool = False,
    ) -> LiveBroker | None:
        """Take a broker's registration; returns its live master if it is a slave, else None."""
        data = self._brokers.get(broker_name)
        if data is None:
            data = self._brokers[broker_name] = BrokerDataBody(
                cluster=cluster, broker_name=broker_name, broker_addrs={}
            )
        data.cluster = cluster
        data.enable_acting_master = acting_master
        # One address is one broker: a restart under another id replaces the old entry.
        for other_id in [i for i, a in data.broker_addrs.items() if a == address and i != broker_id]:
            del data.broker_addrs[other_id]
        replaced = data.broker_addrs.get(broker_id)
        if replaced is not None and replaced != address:
            self._live.pop((cluster, replaced), None)
        first = replaced is None
        data.broker_addrs[broker_id] = address
        key = (cluster, address)
        known = self._live.get(key)
        changed = first or known is None or known.version != topics.data_version
        if broker_id == MASTER_ID:
            for config in topics.topic_config_table.values():
                # A topic that is missing is taken under a known version too: registrations overtake each other.
                if changed or broker_name not in self._topics.get(config.topic_name, ()):
                    self._set_queues(broker_name, config)
        self._live[key] = LiveBroker(
            cluster,
            broker_name,
            broker_id,
            address,
            ha_address,
            now_ms,
            expiry_ms or EXPIRY_MS,
            topics.data_version,
            connection,
        )
        if broker_id == MASTER_ID:
            return None
        master = data.broker_addrs.get(MASTER_ID)
        return self._live.get((cluster, master)) if master else None

    def _set_queues(self, broker_name: str, config: TopicConfig) -> None:
        self._topics.setdefault(config.topic_name, {})[broker_name] = QueueDataBody(
            broker_name=broker_name,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm,
            topic_sys_flag=config.topic_sys_flag,
        )

    def heard(self, cluster: str, address: str, now_ms: int) -> None:
        """A heartbeat of a broker: it lives."""
        live = self._live.get((cluster, address))
        if live is not None:
            live.heard_ms = now_ms

    def version_of(self, cluster: str, address: str, now_ms: int) -> DataVersion | None:
        """The data version a broker registered last, None if it is unknown; counts as a sign of life."""
        self.heard(cluster, address, now_ms)
        live = self._live.get((cluster, address))
        return live.version if live else None

    def unregister(self, cluster: str, broker_name: str, broker_id: int, address: str) -> None:
        """Drop a broker at once; with its last address its queues leave every route."""
        self._live.pop((cluster, address), None)
        data = self._brokers.get(broker_name)
        if data is None or data.broker_addrs.get(broker_id) != address:
            return
        del data.broker_addrs[broker_id]
        if data.broker_addrs:
            return
        del self._brokers[broker_name]
        for topic in [t for t, queues in self._topics.items() if broker_name in queues]:
            del self._topics[topic][broker_name]
            if not self._topics[topic]:
                del self._topics[topic]

    def expire(self, now_ms: int) -> list[LiveBroker]:
        """Drop the brokers that were silent longer than they promised; returns them."""
        silent = [b for b in self._live.values() if b.heard_ms + b.expiry_ms < now_ms]
        for broker in silent:
            self.unregister(broker.cluster, broker.broker_name, broker.broker_id, broker.address)
        return silent

    def disconnected(self, connection: Hashable) -> list[LiveBroker]:
        """Drop the brokers that registered over a connection that ended; returns them."""
        lost = [b for b in self._live.values() if b.connection == connection]
        for broker in lost:
            self.unregister(broker.cluster, broker.broker_name, broker.broker_id, broker.address)
        return lost

    def clusters(self) -> ClusterInfo:
        """Every broker, and the names of each cluster."""
        clusters: dict[str, list[str]] = {}
        for name, data in self._brokers.items():
            clusters.setdefault(data.cluster, []).append(name)
        return ClusterInfo(broker_addr_table=dict(self._brokers), cluster_addr_table=clusters)

    def members(self, broker_name: str) -> BrokerDataBody | None:
        """The addresses under one broker name."""
        return self._brokers.get(broker_name)

    # -- topics ----------------------------------------------------------------------------------------------------

    def route(self, topic: str) -> tuple[list[BrokerDataBody], list[QueueDataBody]] | None:
        """(brokers, queues) of a topic, None if no live broker has it."""
        queues = self._topics.get(topic)
        if not queues:
            return None
        brokers = [self._brokers[name] for name in queues if name in self._brokers]
        return (brokers, list(queues.values())) if brokers else None

    def topics(self) -> list[str]:
        """Every topic some broker registered."""
        return list(self._topics)

    def topic_flags(self) -> list[tuple[str, int]]:
        """Every topic with its system flag, as the first of its brokers has it."""
        return [(topic, next(iter(queues.values())).topic_sys_flag) for topic, queues in self._topics.items() if queues]

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """The topics that a broker of the cluster carries."""
        names = {n for n, d in self._brokers.items() if d.cluster == cluster}
        return [t for t, queues in self._topics.items() if not names.isdisjoint(queues)]

    def set_queues(self, topic: str, queues: Iterable[QueueDataBody]) -> None:
        """Take a topic that a broker tells of alone, up to the first broker that does not live; a new one whole or not.

        Rule: registerTopic, 5.x.
        """
        taken: dict[str, QueueDataBody] = {}
        for data in queues:
            if data.broker_name not in self._brokers:
                if topic not in self._topics:
                    return
                break
            taken[data.broker_name] = data
        if taken:
            self._topics.setdefault(topic, {}).update(taken)

    def delete_topic(self, topic: str, broker_names: Iterable[str] | None = None) -> None:
        """Forget a topic, on all brokers or those named. Brokers that still have it may register it again."""
        if broker_names is None:
            self._topics.pop(topic, None)
            return
        queues = self._topics.get(topic)
        if queues is None:
            return
        for name in broker_names:
            queues.pop(name, None)
        if not queues:
            del self._topics[topic]

    def set_writable(self, broker_name: str, writable: bool) -> int:
        """Wipe or give back the write permission of a broker's queues; returns how many topics it has."""
        count = 0
        for queues in self._topics.values():
            data = queues.get(broker_name)
            if data is not None:
                data.perm = PERM_READ | PERM_WRITE if writable else data.perm & ~PERM_WRITE
                count += 1
        return count
