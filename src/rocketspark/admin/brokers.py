"""An operator's work on brokers: their state, settings, counters and replicas, and the traffic of topics and groups."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from rocketspark.admin.broker_states import (
    BrokerFigures,
    GroupTraffic,
    QueueStats,
    Replica,
    ReplicaSet,
    ReplicationState,
    SettingState,
    TopicStats,
    TopicTraffic,
    broker_figures,
    day_sum,
    known_settings,
    replication_state,
    setting_states,
)
from rocketspark.admin.cluster_client import BrokerState, ClusterClient
from rocketspark.client import validators
from rocketspark.client.connection import admin_api, broker_api, client_api
from rocketspark.client.connection.broker_api import Counter, EpochCache
from rocketspark.errors import RocketSparkError, ServerError, TransportError, UsageError
from rocketspark.model.route import BrokerData, MessageQueue
from rocketspark.model.text import nearest, shown
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.json.bodies import TopicConfig
from rocketspark.protocol.topic_attributes import MESSAGE_TYPE
from rocketspark.transport.connections import parse_addresses
from rocketspark.transport.peer import Peer

# Requests to one broker under way at once, so that a look at 1,000 topics leaves room for those of clients.
AT_ONCE = 16
_CONTROL = re.compile("[\x00-\x1f\x7f]")
T = TypeVar("T")


class BrokerOperations(ClusterClient):
    """The operations on brokers, a part of AsyncAdmin.

    `broker`: a name, which means its master; "name:id" for a slave; or "host:port".
    """

    async def find_broker(self, broker: str) -> BrokerState:
        """Return the broker that a name, "name:id" or "host:port" means. Raises UsageError for one that the NameServer
        does not know: this cluster's keys are not for it.
        """
        known = await self.cluster_info()
        for one in known:
            if broker in (f"{one.broker_name}:{one.broker_id}", one.address):
                return one
        # Without a master the slave that may act for it.
        if named := [one for one in known if one.broker_name == broker]:
            return min(named, key=lambda one: one.broker_id)
        names = sorted({one.broker_name for one in known})
        raise UsageError(f"no broker {broker!r}: these are up: {', '.join(names) or 'none'}")

    async def _peer_of(self, broker: str) -> tuple[BrokerState, Peer]:
        found = await self.find_broker(broker)
        return found, await self._broker(found.address)

    # -- state -----------------------------------------------------------------------------------------------------

    async def broker_info(self, broker: str) -> BrokerFigures:
        """Return the state of one broker. Raises UsageError, or what the broker raises."""
        found, peer = await self._peer_of(broker)
        return broker_figures(found, await broker_api.runtime_info(peer, timeout_ms=self._timeout_ms))

    async def broker_states(self, cluster: str | None = None) -> list[BrokerFigures]:
        """Return the state of every broker, ordered by cluster, name and id; one that does not answer says why.

        `cluster`: only that one's brokers.
        """
        known = [one for one in await self.cluster_info() if cluster in (None, one.cluster)]

        async def ask(one: BrokerState) -> BrokerFigures:
            try:
                peer = await self._broker(one.address)
                return broker_figures(one, await broker_api.runtime_info(peer, timeout_ms=self._timeout_ms))
            except RocketSparkError as e:
                return BrokerFigures(one.cluster, one.broker_name, one.broker_id, one.address, str(e))

        return list(await asyncio.gather(*map(ask, known)))

    async def broker_counter(self, broker: str, name: str, key: str) -> Counter | None:
        """Return one of a broker's counters, in the last minute, hour and day; None if it never counted.

        `name`, `key`: RocketMQ's, as TOPIC_PUT_NUMS of a topic, GROUP_GET_NUMS of topic@group, BROKER_PUT_NUMS of the
        cluster's name.
        """
        _, peer = await self._peer_of(broker)
        return await broker_api.counter(peer, name, key, timeout_ms=self._timeout_ms)

    # -- settings --------------------------------------------------------------------------------------------------

    async def broker_config(self, broker: str) -> list[SettingState]:
        """Return a broker's settings, by key, each with its default and whether it may change while a broker runs."""
        _, peer = await self._peer_of(broker)
        return setting_states(await broker_api.config(peer, timeout_ms=self._timeout_ms))

    async def set_broker_config(self, broker: str, changes: Mapping[str, str]) -> list[SettingState]:
        """Change settings of a broker that runs, all or none; returns those settings as the broker shows them now.

        Raises UsageError for a key that neither the broker nor RocketMQ 5.5.0 knows, ServerError if the broker refuses
        the change, as ours do for a wrong value and for a key that needs a restart.
        """
        _, peer = await self._peer_of(broker)
        known = await broker_api.config(peer, timeout_ms=self._timeout_ms)
        names = set(known) | known_settings()
        for key, value in changes.items():
            if key not in names:
                raise UsageError(f"no setting {shown(key)!r}{nearest(key, sorted(names))}")
            if _CONTROL.search(value):
                raise UsageError(f"{key}={shown(value)!r}: a value of one line without control characters is needed")
        await broker_api.put_config(peer, dict(changes), timeout_ms=self._timeout_ms)
        now = await broker_api.config(peer, timeout_ms=self._timeout_ms)
        # Those without a value are not shown.
        return setting_states({key: now.get(key, "") for key in changes})

    # -- replicas --------------------------------------------------------------------------------------------------

    async def replication(self, broker: str) -> ReplicationState:
        """Return how replication stands on one broker: a master's slaves, or a slave's link to its master."""
        found, peer = await self._peer_of(broker)
        return replication_state(found, await broker_api.ha_status(peer, timeout_ms=self._timeout_ms))

    async def broker_epochs(self, broker: str) -> EpochCache | None:
        """Return in which epochs a broker's log was written; None for a broker without a controller."""
        _, peer = await self._peer_of(broker)
        return await broker_api.epochs(peer, timeout_ms=self._timeout_ms)

    async def replica_sets(self, brokers: Iterable[str] | None = None) -> dict[str, ReplicaSet]:
        """Return the replicas and in-sync sets that controllers know, by broker name; names without a controller, and
        those whose controllers do not answer, are left out.

        `brokers`: these names alone.
        """
        wanted = None if brokers is None else set(brokers)
        first: dict[str, BrokerState] = {}
        for one in await self.cluster_info():
            if wanted is None or one.broker_name in wanted:
                first.setdefault(one.broker_name, one)

        async def controllers(one: BrokerState) -> str:
            try:
                peer = await self._broker(one.address)
                values = await broker_api.config(peer, timeout_ms=self._timeout_ms)
            except RocketSparkError:
                return ""
            return values.get("controllerAddr", "") if values.get("enableControllerMode") == "true" else ""

        of_controllers: dict[str, list[str]] = {}
        for name, addresses in zip(first, await asyncio.gather(*map(controllers, first.values())), strict=True):
            if addresses:
                of_controllers.setdefault(addresses, []).append(name)
        found = await asyncio.gather(*(self._replica_sets(*each) for each in of_controllers.items()))
        return {name: one for part in found for name, one in sorted(part.items())}

    async def _replica_sets(self, controllers: str, names: list[str]) -> dict[str, ReplicaSet]:
        for address in parse_addresses(controllers):
            try:
                peer = await self._broker(address)
                leader = await broker_api.controller_leader(peer, timeout_ms=self._timeout_ms) or address
                told = await broker_api.replica_sets(await self._broker(leader), names, timeout_ms=self._timeout_ms)
            except RocketSparkError:
                continue
            return {
                name: ReplicaSet(
                    *(name, leader, one.master_address or "", one.master_epoch, one.sync_state_set_epoch),
                    tuple(
                        sorted(
                            Replica(each.broker_id, each.broker_address, each.alive, in_sync)
                            for in_sync, part in ((True, one.in_sync_replicas), (False, one.not_in_sync_replicas))
                            for each in part
                        )
                    ),
                )
                for name, one in told.items()
            }
        return {}

    # -- topics and groups -----------------------------------------------------------------------------------------

    async def topic_stats(self, topic: str) -> TopicStats:
        """Return a topic's queues, with when each got its last message, and its rate. Raises RouteNotFound, or what a
        broker raises.
        """
        route = await self._routes.refresh(validators.check_topic(topic))
        peers = [await self._broker(broker.master) for broker in route.brokers if broker.master]
        found = await asyncio.gather(
            *(broker_api.topic_stats(peer, topic, timeout_ms=self._timeout_ms) for peer in peers)
        )
        queues = [
            QueueStats(broker_api.queue_of(key).queue(), q.min_offset, q.max_offset, q.last_update_timestamp)
            for table in found
            for key, q in table.offset_table.items()
        ]
        queues.sort(key=lambda q: (q.queue.broker_name, q.queue.queue_id))
        return TopicStats(topic, tuple(queues), sum(table.topic_put_tps for table in found))

    async def topic_making(self, topic: str) -> dict[str, int]:
        """Return by broker a number that rises when a topic is deleted and made anew, if messages were stored in
        between; -1 where there was no other one of its name, and on RocketMQ's brokers, which tell none. Raises
        RouteNotFound, or what a broker raises.
        """
        route = await self._routes.refresh(validators.check_topic(topic))

        async def one(broker: BrokerData) -> tuple[str, int]:
            queue = MessageQueue(topic, broker.broker_name, 0)
            peer = await self._broker(broker.master or "")
            end = await client_api.queue_end(peer, queue, timeout_ms=self._timeout_ms)
            return broker.broker_name, -1 if end.made_at is None else end.made_at

        return dict(await asyncio.gather(*(one(broker) for broker in route.brokers if broker.master)))

    async def topic_configs(self, topic: str) -> dict[str, TopicConfig]:
        """Return a topic's settings by broker; brokers that do not have it are left out."""
        validators.check_topic(topic)
        found = {}
        for target in await self._masters(None, None):
            peer = await self._broker(target.address)
            config = await admin_api.topic_settings(peer, topic, timeout_ms=self._timeout_ms)
            if config is not None:
                found[target.broker_name] = config
        return found

    async def topic_traffic(
        self, *, cluster: str | None = None, rates: bool = True, groups: bool = True
    ) -> list[TopicTraffic]:
        """Return all topics with their settings, rates and groups, by name, of the masters that answer.

        `rates`, `groups`: whether they are asked for: a request for each topic on each broker.
        """
        settings: dict[str, dict[str, TopicConfig]] = {}
        counts: dict[str, list[Counter]] = {}
        readers: dict[str, set[str]] = {}

        async def look(target: BrokerState, peer: Peer) -> None:
            topics = await broker_api.topics(peer, timeout_ms=self._timeout_ms)
            for topic, config in topics.items():
                settings.setdefault(topic, {})[target.broker_name] = config

            async def ask(topic: str) -> None:
                if rates and (counter := await self._counter(peer, "TOPIC_PUT_NUMS", topic)) is not None:
                    counts.setdefault(topic, []).append(counter)
                if groups:
                    found = await admin_api.groups_of_topic(peer, topic, timeout_ms=self._timeout_ms)
                    readers.setdefault(topic, set()).update(found)

            if rates or groups:
                await _each_of(topics, ask)

        await self._look_at_masters(cluster, look)
        found = []
        for topic, by_broker in sorted(settings.items()):
            some = next(iter(by_broker.values()))
            found.append(
                TopicTraffic(
                    topic,
                    tuple(sorted(by_broker)),
                    sum(config.read_queue_nums for config in by_broker.values()),
                    sum(config.write_queue_nums for config in by_broker.values()),
                    some.perm,
                    some.attributes.get(MESSAGE_TYPE, ""),
                    sum(counter.stats_minute.tps for counter in counts.get(topic, ())),
                    sum(map(day_sum, counts.get(topic, ()))),
                    tuple(sorted(readers.get(topic, ()))),
                )
            )
        return found

    async def _counter(self, peer: Peer, name: str, key: str) -> Counter | None:
        return await broker_api.counter(peer, name, key, timeout_ms=self._timeout_ms)

    async def group_traffic(self, *, cluster: str | None = None) -> list[GroupTraffic]:
        """Return every group in each topic that it consumes, with lag and rate, of the masters that answer: one request
        to each broker.
        """
        found: dict[tuple[str, str], GroupTraffic] = {}

        async def look(target: BrokerState, peer: Peer) -> None:
            told = await broker_api.lags(peer, timeout_ms=self._timeout_ms)
            rows = ((name, lag) for part in told.consume_stats_list for name in part for lag in part[name])
            for group, lag in rows:
                if not lag.offset_table:
                    continue
                topic = broker_api.queue_of(next(iter(lag.offset_table))).topic
                before = found.get((group, topic)) or GroupTraffic(group, topic, 0, 0, 0.0)
                queues = lag.offset_table.values()
                found[group, topic] = GroupTraffic(
                    group,
                    topic,
                    before.lag + sum(max(0, q.broker_offset - q.consumer_offset) for q in queues),
                    before.in_flight + sum(max(0, q.pull_offset - q.consumer_offset) for q in queues),
                    before.out_tps + lag.consume_tps,
                )

        await self._look_at_masters(cluster, look)
        return sorted(found.values())

    async def _look_at_masters(self, cluster: str | None, look: Callable[[BrokerState, Peer], Awaitable[None]]) -> None:
        """Do `look` at each master at once. One that does not answer is passed over; raises what it raised if it was
        the only one.
        """
        masters = await self._masters(cluster, None)

        async def try_one(target: BrokerState) -> TransportError | None:
            try:
                await look(target, await self._broker(target.address))
            except TransportError as e:
                return e
            return None

        failed = await asyncio.gather(*map(try_one, masters))
        errors = [error for error in failed if error is not None]
        if len(errors) == len(masters):
            raise errors[0]


async def _each_of(names: Iterable[str], ask: Callable[[str], Awaitable[None]]) -> None:
    """Ask for each name, `AT_ONCE` at a time; a name that is gone meanwhile is passed over."""
    left = iter(list(names))

    async def worker() -> None:
        for name in left:
            try:
                await ask(name)
            except ServerError as e:
                if e.code != ResponseCode.TOPIC_NOT_EXIST:
                    raise

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
