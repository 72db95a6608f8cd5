"""A client's membership of a cluster: its id, its connections, its heartbeats.

Rule: a connection to a broker begins with a heartbeat, so that the broker knows our groups before any other request.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from weakref import WeakSet

import msgspec

from rocketspark import machine
from rocketspark.client.callbacks import Tasks, ends_loop, trouble_log
from rocketspark.client.connection import admin_api, client_api
from rocketspark.client.connection.broker_requests import BrokerRequests
from rocketspark.client.connection.credentials import Signer
from rocketspark.client.connection.nameserver_discovery import fetch_addresses, where_to_look
from rocketspark.client.connection.topic_routes import DEFAULT_TOPIC, RouteCache, namesrv_addresses, own_zone
from rocketspark.client.hooks import HookSet
from rocketspark.client.validators import check_intervals
from rocketspark.errors import ConfigError, NotSent, RocketSparkError, ServerError, StateError
from rocketspark.model import BrokerData, MessageQueue, TopicRoute
from rocketspark.model.route import DEFAULT_QUEUE_COUNT
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.json import bodies
from rocketspark.transport.connections import Connections, parse_address
from rocketspark.transport.dialing import own_ip
from rocketspark.transport.peer import Peer
from rocketspark.transport.shared_task import outcome_of
from rocketspark.transport.tls.client_tls import client_tls

log = logging.getLogger("rocketspark.client")

ROUTE_INTERVAL_MS = 30_000.0
HEARTBEAT_INTERVAL_MS = 30_000.0
LOOKUP_INTERVAL_S = 120.0
# A broker takes a member of which it hears nothing for 120 s for gone, and the last heartbeat may be 30 s old.
AWAY_S = 90.0
_numbers = itertools.count(1)
# The producer group in every heartbeat, as in those of Java clients: it sends back messages that were not consumed.
INNER_GROUP = "CLIENT_INNER_PRODUCER"
# Instances with a name of their own, while they are in use.
_named: WeakSet[Instance] = WeakSet()


def unique_name() -> str:
    """Return a name that no other client has: process id, start time, number within the process."""
    return f"{machine.getpid()}#{machine.time_ns()}#{next(_numbers)}"


class InstanceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an instance: what ClientOptions says, and whose route a producer's new topics take."""

    namesrv_url: str | None = None
    instance_name: str | None = None
    client_ip: str | None = None
    unit_name: str | None = None
    unit_mode: bool = False
    namespace: str = ""
    timeout_ms: float = client_api.TIMEOUT_MS
    route_interval_ms: float = ROUTE_INTERVAL_MS
    heartbeat_interval_ms: float = HEARTBEAT_INTERVAL_MS
    use_tls: bool = False
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_key_password: str | None = None
    tls_verify: str | None = None
    tls_server_name: str | None = None
    access_key: str | None = None
    secret_key: str | None = None
    security_token: str | None = None
    default_topic: str = DEFAULT_TOPIC
    default_queue_count: int = DEFAULT_QUEUE_COUNT


class Instance:
    """A client id with its connections.

    `producers`: groups it sends as; `consumers`: by group, what to put into the heartbeat; `asked`: what brokers ask.
    """

    def __init__(
        self,
        namesrv: str | None,
        how: InstanceSettings | None = None,
        *,
        rpc_hooks: HookSet | None = None,
    ) -> None:
        how = how or InstanceSettings()
        check_intervals(
            timeout_ms=how.timeout_ms,
            route_interval_ms=how.route_interval_ms,
            heartbeat_interval_ms=how.heartbeat_interval_ms,
        )
        tls = client_tls(
            how.use_tls,
            tls_ca=how.tls_ca,
            tls_cert=how.tls_cert,
            tls_key=how.tls_key,
            tls_key_password=how.tls_key_password,
            tls_verify=how.tls_verify,
            tls_server_name=how.tls_server_name,
        )
        self._how = how
        self._asked_hooks = rpc_hooks.requests if rpc_hooks is not None else []
        self.namespace = how.namespace
        # Taken by the process that starts it, which may be a fork of the one that made it.
        self._name = how.instance_name or ""
        self._process: int | None = None
        self._url = where_to_look(namesrv, how.namesrv_url, how.unit_name)
        self.timeout_ms = how.timeout_ms
        self.asked = BrokerRequests()
        self.rpc_hooks = rpc_hooks if rpc_hooks is not None and rpc_hooks.requests else None
        if how.access_key or how.secret_key:
            # Last, so that it signs what other hooks add.
            signed = HookSet()
            signed.requests = [
                *(rpc_hooks.requests if rpc_hooks else ()),
                Signer(how.access_key or "", how.secret_key or "", how.security_token),
            ]
            self.rpc_hooks = signed
        self.connections = Connections(
            self.asked.routes, connect_timeout_ms=how.timeout_ms, hooks=self.rpc_hooks, tls=tls
        )
        self.routes = RouteCache(
            [] if self._url else namesrv_addresses(namesrv),
            timeout_ms=how.timeout_ms,
            default_topic=how.default_topic,
            default_queue_count=how.default_queue_count,
            zone=own_zone(),
            hooks=self.rpc_hooks,
            tls=tls,
        )
        self.routes.changed = self._broker_changed
        # Told of a broker name whose master is at another address than before, or at one again.
        self.master_watchers: dict[str, Callable[[str], None]] = {}
        self.client_id = ""
        self.unit_mode = how.unit_mode
        # The parts of the client id: one id is one client to a broker.
        self._id = (how.instance_name, how.client_ip, how.unit_name)
        self._places = {self._url} if self._url else set(self.routes.addresses)
        # Why a broker took the last heartbeat not; None if it did.
        self.heartbeat_error: RocketSparkError | None = None
        # How often a broker took a heartbeat, and had taken none for so long that others may have had our queues.
        self.silences = 0
        self._heard_s: dict[str, float] = {}
        self.producers: set[str] = set()
        self._joined: set[str] = set()
        self._closed = False
        self.consumers: dict[str, Callable[[], bodies.ConsumerData]] = {}
        self._greeted: dict[str, Peer] = {}
        self._greeting: dict[str, asyncio.Task[Peer]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._introducing = Tasks()
        self._users = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, namesrv: str | None, asked: HookSet, /, **options: Any) -> Instance:
        """Return the instance of that name at these NameServers, if there is one in this process, else a new one.

        Raises ConfigError if the one of that name has other options.
        """
        how = InstanceSettings(**options)
        made = cls(namesrv, how, rpc_hooks=asked)
        name = how.instance_name
        if not name:
            return made
        for found in _named:
            # A forked child has no use for its parent's connections.
            if found._process not in (None, machine.getpid()) or found._closed:
                continue
            if found._id == made._id and found._places & made._places:
                if (found._how, found._asked_hooks) != (how, made._asked_hooks):
                    text = f"instance_name {name!r} is in use by a client with other options, and one client id is one"
                    raise ConfigError(f"{text} client to a broker: give both the same, or another name")
                return found
        _named.add(made)
        return made

    async def start(self, *, producer: str | None = None, consumer: str | None = None) -> None:
        """Join as a producer or consumer group; the first one to start takes the id and begins with heartbeats.

        Raises StateError if the group is in use here already, or the instance belongs to another event loop.
        """
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):
            raise StateError(f"instance {self._name!r} runs on another event loop: give this client another name")
        if self._process is None:
            self._process = machine.getpid()
            self._name = "@".join(filter(None, (self._name or unique_name(), self._id[-1])))
        if producer in self.producers or consumer in self._joined:
            what = f"producer group {producer!r}" if producer else f"consumer group {consumer!r}"
            raise StateError(f"{what} is in use in instance {self._name!r}: give it another group, or instance_name")
        self._loop = loop
        self._users += 1
        if producer:
            self.producers.add(producer)
        if consumer:
            self._joined.add(consumer)
        starting = self._starting
        if starting is None:
            starting = self._starting = asyncio.ensure_future(self._start())
            starting.add_done_callback(_look_at)
        try:
            await asyncio.shield(starting)
        except BaseException:
            if starting.done() and self._starting is starting:
                self._starting = None
            # In a task of its own: a second cancellation does not leave half of it.
            await asyncio.shield(asyncio.ensure_future(self.close(producer=producer, consumer=consumer)))
            raise

    async def _start(self) -> None:
        if self._url:
            await self._look_up_namesrv()
        self.routes.spread()
        ip = self._how.client_ip or await _own_ip(self.routes.addresses[0])
        self.client_id = f"{ip}@{self._name}"
        self._tasks = [
            asyncio.ensure_future(_every(self._how.route_interval_ms / 1000, self.routes.refresh_all)),
            asyncio.ensure_future(_every(self._how.heartbeat_interval_ms / 1000, self.heartbeat_all)),
        ]
        if self._url:
            self._tasks.append(asyncio.ensure_future(_every(LOOKUP_INTERVAL_S, self._look_up_namesrv)))

    async def _look_up_namesrv(self) -> None:
        """Fetch the NameServers' addresses. Raises NoNameServer if there are none from before either."""
        assert self._url is not None
        try:
            self.routes.set_addresses(await fetch_addresses(self._url, self.timeout_ms))
        except RocketSparkError as e:
            if not self.routes.addresses:
                raise
            log.warning("%s; %s stay in use", e, ", ".join(self.routes.addresses))

    def introduce(self, topics: Sequence[str]) -> None:
        """Send heartbeats in the background to the brokers of these topics, now and from now on, so that they know this
        client.
        """
        self.routes.want(topics)
        self._introducing.begin(self._introduce(topics))

    async def _introduce(self, topics: Sequence[str]) -> None:
        for topic in topics:
            try:
                await self.routes.get(topic)
            except RocketSparkError as e:
                log.info("brokers of topic %s do not know this client yet: %s", topic, e)
        try:
            await self.heartbeat_all()
        except RocketSparkError as e:
            log.info("brokers do not know this client yet: %s", e)

    def _broker_changed(self, before: BrokerData | None, after: BrokerData) -> None:
        """Have the members of a broker that were not known know our groups at once; tell who watches masters."""
        if self._closed:
            return
        elected = after.master if before is None or before.master != after.master else None
        wanted: set[str | None] = set()
        if self.consumers:
            wanted |= set(after.addresses.values())
            wanted -= set(before.addresses.values() if before is not None else ())
        if self.consumers or before is not None:
            wanted.add(elected)
        fresh = [address for address in wanted if address is not None and self.open_broker(address) is None]
        if fresh and (self.consumers or self.producers):
            self._introducing.begin(self._meet(fresh))
        if elected is not None:
            for tell in list(self.master_watchers.values()):
                tell(after.broker_name)

    async def _meet(self, addresses: list[str]) -> None:
        for address, result in zip(
            addresses, await asyncio.gather(*map(self.broker, addresses), return_exceptions=True), strict=True
        ):
            if isinstance(result, RocketSparkError):
                log.info("broker %s does not know this client yet: %s", address, result)

    async def check_namesrv(self) -> None:
        """Raise NotSent unless a NameServer answers."""
        try:
            await self.routes.ask(lambda peer: admin_api.cluster_info(peer, timeout_ms=self.timeout_ms))
        except ServerError as e:
            # A proxy answers so: it serves routes alone.
            if e.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            # A broker serves not even those.
            with contextlib.suppress(ServerError):
                await self.routes.refresh(DEFAULT_TOPIC)

    async def close(
        self,
        *,
        producer: str | None = None,
        consumer: str | None = None,
        then: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Leave the producer or consumer group.

        `then` is called once the brokers have been told. The last user of the instance to close also ends the
        heartbeats, and closes all connections after `then`.
        """
        self._users -= 1
        last = self._users == 0
        if last:
            self._closed = True
            own = [*self._tasks, *self._introducing, *([self._starting] if self._starting else [])]
            for task in [*own, *self._greeting.values()]:
                task.cancel()
            await asyncio.gather(*own, return_exceptions=True)
        await asyncio.gather(*(self._leave(a, producer, consumer) for a in list(self._greeted)), return_exceptions=True)
        self.producers.discard(producer or "")
        self._joined.discard(consumer or "")
        self.consumers.pop(consumer or "", None)
        self.master_watchers.pop(consumer or "", None)
        if then is not None:
            await then()
        if last:
            await self.connections.close()
            await self.routes.close()

    async def _leave(self, address: str, producer: str | None, consumer: str | None) -> None:
        peer = self.connections.open_peer(address)
        if peer is None:
            return
        with contextlib.suppress(RocketSparkError):
            if producer or consumer:
                await client_api.unregister(
                    peer, self.client_id, producer_group=producer, consumer_group=consumer, timeout_ms=1000
                )

    # -- connections to brokers ----------------------------------------------------------------------------------

    def open_broker(self, address: str) -> Peer | None:
        """Return the connection to a broker that knows us already, if there is one."""
        peer = self._greeted.get(address)
        return peer if peer is not None and peer.is_open else None

    async def broker(self, address: str) -> Peer:
        """Return the connection to a broker, opened and begun with a heartbeat if need be. Raises NotSent."""
        peer = self._greeted.get(address)
        if peer is not None and peer.is_open:
            return peer
        task = self._greeting.get(address)
        if task is None:
            task = asyncio.ensure_future(self._greet(address))
            self._greeting[address] = task
            task.add_done_callback(lambda done: self._ended(address, done))
        return await outcome_of(task)

    def _ended(self, address: str, task: asyncio.Task[Peer]) -> None:
        self._greeting.pop(address, None)
        _look_at(task)

    async def _greet(self, address: str) -> Peer:
        peer = await self.connections.get(address)
        await self._heartbeat(peer)
        self._greeted[address] = peer
        return peer

    async def greet_all(self) -> None:
        """Open a connection to every broker in the routes; one that cannot be reached is left out."""
        missing = [a for a in self.routes.broker_addresses(slaves=False) if self.open_broker(a) is None]
        for result in await asyncio.gather(*map(self.broker, missing), return_exceptions=True):
            if isinstance(result, BaseException) and not isinstance(result, RocketSparkError):
                raise result

    def peer_in_use(self, queue: MessageQueue) -> Peer | None:
        """Return the connection that `peer_of` returns, if it is open already."""
        address = self.routes.readable(self.routes.leader(queue))
        return self.open_broker(address) if address else None

    async def peer_of(self, queue: MessageQueue, *, master_first: bool = False) -> Peer:
        """Return the connection to a broker that a queue can be read from. Raises RouteNotFound, NotSent.

        `master_first`: a slave only if the route names no master, even after it was fetched anew.
        """
        if master_first and self.routes.master_of(queue) is None:
            with contextlib.suppress(RocketSparkError):
                await self.routes.refresh(queue.topic)
        return await self._reach(queue, self.routes.find_readable)

    async def master_of(self, queue: MessageQueue) -> Peer:
        """Return the connection to the master of a queue's broker. Raises RouteNotFound, NotSent."""
        return await self._reach(queue, self.routes.find_master)

    async def _reach(self, queue: MessageQueue, find: Callable[[MessageQueue], Awaitable[str]]) -> Peer:
        """Return the connection to the address that the route names; if nobody is there, to the one it names now."""
        address = await find(queue)
        peer = self.open_broker(address)
        if peer is not None:
            return peer
        try:
            return await self.broker(address)
        except NotSent:
            with contextlib.suppress(RocketSparkError):
                await self.routes.refresh(queue.topic)
                if (now := await find(queue)) != address:
                    return await self.broker(now)
            raise

    async def members(
        self, group: str, route: TopicRoute, refused: Callable[[RocketSparkError], None]
    ) -> list[str] | None:
        """Return a group's members as a broker of a topic tells them, sorted; None while none lists this client.
        `refused`: gets the errors.
        """
        brokers = [b for b in route.brokers if b.addresses]
        machine.shuffle(brokers)
        for broker in brokers:
            address = broker.addresses[min(broker.addresses)]
            try:
                peer = await self.broker(address)
                members = await client_api.consumer_list(peer, group)
                if self.client_id not in members:
                    await self.heartbeat(address)
                    members = await client_api.consumer_list(peer, group)
            except RocketSparkError as e:
                trouble_log.warning("members of group %s: %s", group, e)
                refused(e)
                continue
            if self.client_id in members:
                return sorted(members)
        if self.heartbeat_error is not None:
            refused(self.heartbeat_error)
        return None

    # -- heartbeats ----------------------------------------------------------------------------------------------

    def _heartbeat_body(self) -> bodies.Heartbeat:
        consumers = [self.consumers[g]() for g in sorted(self.consumers)]
        for consumer in consumers:
            consumer.unit_mode = self.unit_mode
        return bodies.Heartbeat(
            client_id=self.client_id,
            producer_data_set=[bodies.ProducerData(group_name=g) for g in (*sorted(self.producers), INNER_GROUP)],
            consumer_data_set=consumers,
        )

    async def _heartbeat(self, peer: Peer) -> None:
        if not self.producers and not self.consumers:
            return
        try:
            await client_api.heartbeat(peer, self._heartbeat_body(), timeout_ms=self.timeout_ms)
            self.heartbeat_error = None
            now_s = machine.monotonic()
            self.silences += now_s - self._heard_s.get(peer.address, now_s) > AWAY_S
            self._heard_s[peer.address] = now_s
        except RocketSparkError as e:
            self.heartbeat_error = e
            log.warning("heartbeat to %s failed: %s", peer.address, e)
            if not peer.is_open:
                raise NotSent(f"{peer.address} ended the connection at once", address=peer.address) from e

    async def heartbeat(self, address: str) -> None:
        """Tell one broker our groups now. Raises NotSent if it cannot be reached."""
        peer = self.open_broker(address)
        if peer is None:
            await self.broker(address)
        else:
            await self._heartbeat(peer)

    async def heartbeat_all(self) -> None:
        """Tell every broker in the routes our groups; one that cannot be reached is left for the next time."""
        if not self.producers and not self.consumers:
            return
        addresses = self.routes.broker_addresses(slaves=bool(self.consumers))
        for address, result in zip(
            addresses, await asyncio.gather(*map(self.heartbeat, addresses), return_exceptions=True), strict=True
        ):
            if isinstance(result, RocketSparkError):
                trouble_log.warning("broker %s not reached for a heartbeat: %s", address, result)
            elif isinstance(result, BaseException):
                raise result


def _look_at(task: asyncio.Task[Any]) -> None:
    """Take a task's exception, so that asyncio does not log it when no caller waits for the task any more."""
    if not task.cancelled():
        task.exception()


async def _every(interval_s: float, act: Callable[[], object]) -> None:
    while True:
        await asyncio.sleep(interval_s)
        try:
            await act()  # type: ignore[misc]
        except BaseException as e:
            if ends_loop(e):
                raise
            if isinstance(e, RocketSparkError):
                log.warning("%s", e)
            else:
                log.exception("a periodic task of the client failed; it goes on")


async def _own_ip(address: str) -> str:
    """Return the address this machine has towards a server; that of itself if there is no way to it."""
    try:
        return await own_ip(*parse_address(address))
    except OSError:
        return "127.0.0.1"
