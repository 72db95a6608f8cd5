"""A client's cache of topic routes and broker addresses, fetched from the NameServers.

Rule: one fetch at a time per topic; a NameServer that does not answer passes its turn to the next; what is known stays
in use while no NameServer answers.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from rocketspark import machine
from rocketspark.client.connection import client_api
from rocketspark.errors import (
    BrokerNotFound,
    ConfigError,
    NoNameServer,
    NotSent,
    RocketSparkError,
    RouteNotFound,
    ServerError,
    TransportError,
)
from rocketspark.model import BrokerData, MessageQueue, QueueData, TopicRoute, is_logical
from rocketspark.model.route import DEFAULT_QUEUE_COUNT, NO_LEADER
from rocketspark.protocol import light_queues
from rocketspark.transport.connections import Connections, parse_addresses
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import RpcHooks
from rocketspark.transport.shared_task import outcome_of
from rocketspark.transport.tls.client_tls import ClientTls

T = TypeVar("T")

log = logging.getLogger("rocketspark.client")

DEFAULT_TOPIC = "TBW102"
# What a broker answers that the route still calls master and that is one no more: SYSTEM_BUSY, SERVICE_NOT_AVAILABLE.
NO_MASTER_CODES = frozenset((2, 14))
NAMESRV_VARIABLES = ("ROCKETMQ_NAMESRV_ADDR", "NAMESRV_ADDR")


def namesrv_addresses(namesrv: str | None) -> list[str]:
    """Return the NameServers' addresses: those given as "host:port;host:port", else the environment's. Raises
    ConfigError.
    """
    if namesrv:
        return parse_addresses(namesrv)
    for name in NAMESRV_VARIABLES:
        if os.environ.get(name):
            return parse_addresses(os.environ[name])
    raise ConfigError(
        f"no NameServer address: pass namesrv='host:port', or set {NAMESRV_VARIABLES[0]} in the environment"
        " (or ROCKETMQ_NAMESRV_DOMAIN, a server that names them)"
    )


def own_zone() -> str:
    """Return the zone whose brokers alone this process uses, by RocketMQ's variables of the environment; empty: all."""
    is_on = os.environ.get("ROCKETMQ_ZONE_MODE", "").lower() == "true"
    return os.environ.get("ROCKETMQ_ZONE", "").strip() if is_on else ""


def _told(route: TopicRoute) -> str:
    """Return a route for the log: each broker's queues, permission and addresses."""
    addresses = {b.broker_name: ",".join(a for _, a in sorted(b.addresses.items())) for b in route.brokers}
    queues = sorted(route.queues, key=lambda q: q.broker_name)
    return (
        "; ".join(
            f"{q.broker_name} at {addresses.get(q.broker_name, 'none')} with {q.read_queue_count} read and"
            f" {q.write_queue_count} write queues, perm {q.perm}"
            for q in queues
        )
        or "no broker"
    )


class RouteCache:
    """The routes of the topics in use.

    `default_topic`: a topic that does not exist yet is sent to the brokers that have this one, on at most
    `default_queue_count` queues of each (rule: DefaultMQProducer, 5.x). `zone`: only the brokers of this zone are used,
    and slaves of a master that is gone; empty: all. `changed` is called with each broker whose addresses have changed.
    """

    def __init__(
        self,
        addresses: list[str],
        *,
        timeout_ms: float = client_api.TIMEOUT_MS,
        default_topic: str = DEFAULT_TOPIC,
        default_queue_count: int = DEFAULT_QUEUE_COUNT,
        zone: str = "",
        hooks: RpcHooks | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        self.addresses: list[str] = []
        self._turn = 0
        self._zone = zone
        self._whole_timeout_ms = timeout_ms
        self._default_topic = default_topic
        self._default_queue_count = default_queue_count
        self.set_addresses(addresses)
        self._connections = Connections(connect_timeout_ms=self._timeout_ms, hooks=hooks, tls=tls)
        self._wanted: dict[str, None] = {}
        self._routes: dict[str, TopicRoute] = {}
        self._assumed: dict[str, TopicRoute] = {}
        self._write_queues: dict[str, tuple[MessageQueue, ...]] = {}
        self._brokers: dict[str, BrokerData] = {}
        self._fetches: dict[str, asyncio.Task[TopicRoute]] = {}
        self._fetched_s: dict[str, float] = {}
        # At the last refresh no NameServer answered.
        self._is_lost = False
        self.changed: Callable[[BrokerData | None, BrokerData], None] = lambda before, after: None

    def set_addresses(self, addresses: list[str]) -> None:
        """Use these NameServers from now on. The time-out is divided among them, so that all can be tried within it."""
        self.addresses = addresses
        self._timeout_ms = max(self._whole_timeout_ms / max(len(addresses), 1), 200)

    def spread(self) -> None:
        """Start with a NameServer chosen at random, so that many clients spread over all of them.

        Rule: NettyRemotingClient, 5.x.
        """
        self._turn = machine.randrange(max(len(self.addresses), 1))

    async def ask(self, call: Callable[[Peer], Awaitable[T]]) -> T:
        """Make a call on the first NameServer that answers. Raises NotSent if none does."""
        cause: TransportError | None = None
        addresses, turn = self.addresses, self._turn
        # Each caller asks every NameServer once, without regard to other callers' results.
        for step in range(len(addresses)):
            address = addresses[(turn + step) % len(addresses)]
            try:
                return await call(await self._connections.get(address))
            except TransportError as e:
                cause = e
                if self._turn == turn + step:
                    self._turn += 1
        names = ", ".join(self.addresses)
        text = f"no NameServer answers ({names}): {cause}"
        if "check the address" not in text:
            text += "; check the address and that one runs"
        raise NoNameServer(text, address=names) from cause

    async def ask_all(self, call: Callable[[Peer], Awaitable[object]]) -> None:
        """Make a call on every NameServer, as they do not tell each other. Raises the first failure, a ServerError or
        NotSent, once all were asked.
        """
        failed: list[TransportError | ServerError] = []
        for address in self.addresses:
            try:
                await call(await self._connections.get(address))
            except (TransportError, ServerError) as e:
                failed.append(e)
        if failed:
            raise failed[0]

    def forget(self, topic: str) -> None:
        """Drop a topic's route."""
        self._routes.pop(topic, None)
        self._assumed.pop(topic, None)
        self._write_queues.pop(topic, None)
        self._fetched_s.pop(topic, None)

    def known(self, topic: str) -> TopicRoute | None:
        """Return the route as last fetched, or None."""
        return self._routes.get(topic)

    async def get(self, topic: str) -> TopicRoute:
        """Return the topic's route, fetched if it is not known. Raises RouteNotFound, NotSent."""
        return self._routes.get(topic) or await self.refresh(topic)

    async def refresh(self, topic: str) -> TopicRoute:
        """Return the topic's route as it is now. Raises RouteNotFound, NotSent; then the known one stays."""
        return await outcome_of(self.begin_refresh(topic))

    def begin_refresh(self, topic: str) -> asyncio.Task[TopicRoute]:
        """Have the topic's route fetched, unless it is being fetched already; nobody need wait for it."""
        task = self._fetches.get(topic)
        if task is None:
            task = asyncio.ensure_future(self._fetch(topic))
            self._fetches[topic] = task
            task.add_done_callback(lambda done: self._ended(topic, done))
        return task

    def _ended(self, topic: str, task: asyncio.Task[TopicRoute]) -> None:
        self._fetches.pop(topic, None)
        if not task.cancelled():
            task.exception()  # Looked at here, in case that nobody waits for it any more.

    async def _fetch(self, topic: str) -> TopicRoute:
        route = await self.ask(
            lambda peer: client_api.fetch_route(peer, topic, zone=self._zone, timeout_ms=self._timeout_ms)
        )
        if self._is_lost:
            self._is_lost = False
            log.warning("a NameServer answers again")
        before = self._routes.get(topic)
        if before is not None and before != route and _told(before) != _told(route):
            log.info("the route of topic %s changed from %s to %s", topic, _told(before), _told(route))
        self._learn(route)
        self._fetched_s[topic] = machine.monotonic()
        self._routes[topic] = route
        self._assumed.pop(topic, None)
        self._write_queues[topic] = route.producer_queues()
        return route

    def want(self, topics: Iterable[str]) -> None:
        """Fetch and refresh the routes of these topics too from now on, with those in use."""
        self._wanted |= dict.fromkeys(topics)

    def _learn(self, route: TopicRoute) -> None:
        for broker in route.brokers:
            before = self._brokers.get(broker.broker_name)
            self._brokers[broker.broker_name] = broker
            if before is None or before.addresses != broker.addresses:
                self.changed(before, broker)

    def age_s(self, topic: str) -> float:
        """Return how many seconds ago the topic's route was fetched; infinity if it never was."""
        return machine.monotonic() - self._fetched_s.get(topic, -math.inf)

    def is_without_master(self, topic: str) -> bool:
        """Tell whether brokers of the topic are known, and none of them has a master: one may be elected."""
        route = self._routes.get(topic)
        return route is not None and bool(route.brokers) and not any(b.master for b in route.brokers)

    def write_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return queues to send to as far as known now; none if `find_write_queues` is needed first."""
        return self._write_queues.get(topic, ())

    async def find_write_queues(self, topic: str, *, refresh: bool = False) -> tuple[MessageQueue, ...]:
        """Return queues to send to, by the default topic's route if the topic does not exist yet.

        Raises RouteNotFound if no broker would take it, NotSent if no NameServer answers and nothing is known.
        """
        known = self._write_queues.get(topic, ())
        if known and not refresh:
            return known
        try:
            queues = (await self.refresh(topic)).producer_queues()
        except RouteNotFound:
            try:
                queues = await self._assume(topic)
            except RouteNotFound:
                self._write_queues.pop(topic, None)
                raise RouteNotFound(topic) from None
        except NotSent:
            if known:
                return known
            raise
        if not queues:
            raise RouteNotFound(
                topic, remark=f"no broker takes messages for topic {topic!r}: none is up, or all refuse"
            )
        return queues

    async def _assume(self, topic: str) -> tuple[MessageQueue, ...]:
        default = await self.refresh(self._default_topic)
        counts = [(q, min(self._default_queue_count, q.read_queue_count)) for q in default.queues]
        queues = tuple(QueueData(q.broker_name, n, n, q.perm, q.topic_sys_flag) for q, n in counts)
        route = TopicRoute(topic, default.brokers, queues)
        self._routes.pop(topic, None)
        self._assumed[topic] = route
        self._write_queues[topic] = route.producer_queues()
        return self._write_queues[topic]

    def broker(self, broker_name: str) -> BrokerData | None:
        """Return a broker's addresses, if they are known."""
        return self._brokers.get(broker_name)

    def master(self, broker_name: str) -> str | None:
        """Return "host:port" of a broker's master, if known."""
        broker = self._brokers.get(broker_name)
        return broker.master if broker else None

    def name_at(self, address: str) -> str:
        """Return the name of the broker whose member is at "host:port"; empty if none is known there."""
        return next((name for name, b in self._brokers.items() if address in b.addresses.values()), "")

    def readable(self, broker_name: str, broker_id: int = 0) -> str | None:
        """Return "host:port" to read from: the broker's member with this id; in place of a slave that is not there the
        next slave, else the master, else the slave of the lowest id (rule: findBrokerAddressInSubscribe, 5.x).
        """
        broker = self._brokers.get(broker_name)
        if broker is None or not broker.addresses:
            return None
        addresses = broker.addresses
        found = addresses.get(broker_id) or (addresses.get(broker_id + 1) if broker_id else None)
        return found or addresses[min(addresses)]

    def leader(self, queue: MessageQueue) -> str:
        """Return the name of a queue's broker: of a logical queue the one that leads it, as far as known."""
        if not is_logical(queue):
            return queue.broker_name
        route = self._routes.get(queue.topic)
        return NO_LEADER if route is None else route.leaders.get(queue, NO_LEADER)

    def broker_of(self, queue: MessageQueue) -> BrokerData | None:
        """Return the addresses of a queue's broker, if they are known."""
        return self._brokers.get(queue.broker_name) or (
            self._brokers.get(self.leader(queue)) if is_logical(queue) else None
        )

    def master_of(self, queue: MessageQueue) -> str | None:
        """Return "host:port" of the master of a queue's broker, if known."""
        broker = self.broker_of(queue)
        return broker.master if broker else None

    async def find_master(self, queue: MessageQueue) -> str:
        """Return "host:port" of the master of a queue's broker. Raises RouteNotFound."""
        return self.master_of(queue) or await self._find(queue, self.master)

    async def find_readable(self, queue: MessageQueue, broker_id: int = 0) -> str:
        """Return "host:port" to read a queue from, as `readable` finds it. Raises RouteNotFound."""
        found = self.readable(self.leader(queue), broker_id)
        return found or await self._find(queue, lambda name: self.readable(name, broker_id))

    async def look_again(self, topic: str) -> None:
        """Fetch the route of a topic anew; of a light queue, which has none, those of all topics in use."""
        await (self.refresh_all() if topic.startswith(light_queues.NAME_PREFIX) else self.refresh(topic))

    async def _find(self, queue: MessageQueue, look: Callable[[str], str | None]) -> str:
        await self.look_again(queue.topic)
        address = look(self.leader(queue))
        if address is None and self.leader(queue) == NO_LEADER:
            text = f"no broker leads queue {queue.queue_id} of the static topic {queue.topic!r}: start it, or remap it"
            raise BrokerNotFound(queue.topic, remark=text)
        if address is None:
            text = f"no broker {queue.broker_name!r} is known for topic {queue.topic!r}: check the name, or start it"
            raise BrokerNotFound(queue.topic, remark=text)
        return address

    def broker_addresses(self, *, slaves: bool) -> list[str]:
        """Return addresses of all brokers in the known routes, masters first."""
        masters = [b.master for b in self._brokers.values() if b.master]
        others = [a for b in self._brokers.values() for i, a in b.addresses.items() if i != 0] if slaves else []
        return list(dict.fromkeys(masters + others))

    async def refresh_all(self) -> None:
        """Fetch the routes of all topics in use, and forget brokers that are in none. A route that cannot be fetched
        stays as it is.
        """
        for topic in dict.fromkeys([*self._routes, *self._assumed, *self._wanted]):
            try:
                await self.refresh(topic)
            except RouteNotFound:
                continue
            except NotSent as e:
                if not self._is_lost:
                    self._is_lost = True
                    log.warning("routes stay as they are known: %s", e)
                return
            except RocketSparkError as e:
                # Only this topic fails: its known route stays in use.
                log.warning("the route of topic %s cannot be fetched: %s", topic, e)
        # What was fetched last says where a broker's master is: a route that could not be fetched names a former one.
        routes = sorted([*self._routes.values(), *self._assumed.values()], key=lambda route: -self.age_s(route.topic))
        self._brokers = {b.broker_name: b for route in routes for b in route.brokers}

    async def close(self) -> None:
        """Close the connections to the NameServers."""
        for task in list(self._fetches.values()):
            task.cancel()
        await self._connections.close()
