"""The brokers behind the proxy: routes from NameServers, requests by a broker's name, settings of topics and groups.

Rule: the proxy asks brokers by remoting requests alone, also the one beside it. A copy that it uses is at most
`route_refresh_ms` old while somebody answers (docs/run/proxy.md lists the copies). `requests` holds the handlers of
what brokers ask of the proxy, and is filled before the first connection. How often, and after which time, a failed
message is delivered again is read from its group's settings (RetryPolicy, 5.5.0); a value there that is no number,
which brokers keep as it is, counts as the default.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, TypeVar

from rocketspark import machine
from rocketspark.client.connection import admin_api
from rocketspark.client.connection.topic_routes import RouteCache, namesrv_addresses
from rocketspark.errors import NotSent, RocketSparkError, RouteNotFound, TransportError
from rocketspark.model import MessageQueue, TopicRoute
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.text import shown
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import Header
from rocketspark.protocol.json import java_json
from rocketspark.protocol.json.bodies import ClusterInfo, GroupConfig
from rocketspark.protocol.topic_attributes import KNOWN_TYPES, MESSAGE_TYPE, NORMAL
from rocketspark.proxy.settings import ProxySettings
from rocketspark.proxy.wire.enumerations import Code
from rocketspark.proxy.wire.statuses import Refused
from rocketspark.transport.connections import Connections
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes, RpcHooks
from rocketspark.transport.request_frames import Reply
from rocketspark.transport.shared_task import outcome_of
from rocketspark.transport.tls.client_tls import ClientTls

log = LimitedLog("rocketspark.proxy")


T = TypeVar("T")


CACHED_MAX = 20_000
# After a fetch that failed for want of an answer.
AGAIN_S = 1.0
# A copy is fetched anew in the background once this part of its life is over: who uses it often waits for nothing.
AHEAD = 0.75
# Of a group that no broker knows.
DEFAULT_GROUP = GroupConfig(group_name="")
# A topic's type that is in doubt is asked for anew, if it is known for as long.
DOUBT_S = 1.0


class _Cache(Generic[T]):
    """Values that are fetched anew before they are too old; the old one stays in use while no broker answers."""

    def __init__(self, fetch: Callable[[str], Awaitable[T]], life_s: float) -> None:
        self._fetch, self._life_s = fetch, life_s
        self._found: dict[str, tuple[float, T]] = {}
        self._begun: dict[str, asyncio.Task[T]] = {}

    async def get(self, name: str) -> T:
        """Return the value of a name: the known one while it is fresh, else one that is fetched.

        While no broker can be reached an old value is returned. Raises what fetching raises if none is known.
        """
        if (fresh := self._fresh(name)) is not None:
            return fresh[1]
        found = self._found.get(name)
        try:
            return await outcome_of(self.begin(name))
        except TransportError:
            if found is None:
                raise
            return found[1]

    def begin(self, name: str) -> asyncio.Task[T]:
        """Have the value fetched, unless it is being fetched already; nobody need wait for it."""
        task = self._begun.get(name)
        if task is None:
            task = self._begun[name] = asyncio.ensure_future(self._refresh(name))
            task.add_done_callback(lambda done: self._ended(name, done))
        return task

    def old(self, name: str) -> T | None:
        """Return the value if it is known, however old."""
        found = self._found.get(name)
        return found[1] if found is not None else None

    def age_s(self, name: str) -> float:
        """Return for how long the value is known as it is."""
        found = self._found.get(name)
        return machine.monotonic() - found[0] if found is not None else math.inf

    def known(self, name: str) -> T | None:
        """Return the value if it is known and not too old."""
        fresh = self._fresh(name)
        return None if fresh is None else fresh[1]

    def _fresh(self, name: str) -> tuple[float, T] | None:
        """Return what is not too old; what soon is begins to be fetched anew."""
        found = self._found.get(name)
        if found is None or (age_s := machine.monotonic() - found[0]) >= self._life_s:
            return None
        if age_s >= self._life_s * AHEAD and name not in self._begun:
            self.begin(name)
        return found

    def expire(self, name: str) -> None:
        """Fetch the value anew when it is asked for next."""
        if (found := self._found.get(name)) is not None:
            self._found[name] = (-math.inf, found[1])

    def clear(self) -> None:
        """Fetch every value anew when it is asked for next."""
        self._found = {name: (-math.inf, value) for name, (_, value) in self._found.items()}

    async def _refresh(self, name: str) -> T:
        try:
            value = await self._fetch(name)
        except TransportError:
            if (old := self._found.get(name)) is not None:
                # Asked again soon, but nobody waits for it.
                self._found[name] = (machine.monotonic() - self._life_s * AHEAD + AGAIN_S, old[1])
            raise
        except RocketSparkError:
            self._found.pop(name, None)
            raise
        self._found.pop(name, None)
        if len(self._found) >= CACHED_MAX:
            del self._found[next(iter(self._found))]
        self._found[name] = (machine.monotonic(), value)
        return value

    def _ended(self, name: str, task: asyncio.Task[T]) -> None:
        self._begun.pop(name, None)
        if not task.cancelled():
            task.exception()


class Brokers:
    """All brokers of the cluster, by name: the routes, connections and settings that the proxy has of them.

    `signer`: signs the proxy's own requests, None for no signature; `tls`: the TLS of its connections to servers, None
    for plain ones.
    """

    def __init__(
        self, settings: ProxySettings, *, signer: RpcHooks | None = None, tls: ClientTls | None = None
    ) -> None:
        self.requests = Routes()
        self._signer, self._tls = signer, tls
        self._timeout_ms = settings.request_timeout_ms
        self.routes = RouteCache(namesrv_addresses(settings.namesrv), hooks=signer, tls=tls)
        self._connections = self.connections(self.requests)
        # Masters asked for by name, and brokers whose master did not answer when last asked.
        self._found: dict[str, str] = {}
        self._lost: set[str] = set()
        # As a NameServer told it last with the brokers; "" if it knows none, or several.
        self.cluster_name = ""
        life_s = settings.route_refresh_ms / 1000
        self._routes = _Cache(self._fetch_route, life_s)
        self._topic_types = _Cache(self._fetch_topic_type, life_s)
        self._groups: _Cache[tuple[str, GroupConfig] | None] = _Cache(self._fetch_group, life_s)
        # The one entry is the cluster.
        self._infos = _Cache(lambda _: self._cluster_info(), AGAIN_S)

    def connections(self, requests: Routes, language: str = "PYTHON") -> Connections:
        """Return a new set of connections to brokers, apart from the proxy's own.

        `requests`: serves what brokers ask on these connections; `language`: the client's language that their requests
        name.
        """
        return Connections(requests, language=language, hooks=self._signer, tls=self._tls)

    async def route(self, topic: str) -> TopicRoute:
        """Return a topic's route. Raises RouteNotFound (no topic is made by asking), TransportError."""
        return await self._routes.get(topic)

    def write_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues of a topic that messages are sent to, by the route that is kept; none without one."""
        return self.routes.write_queues(topic) if self._routes.known(topic) is not None else ()

    async def find_write_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues of a topic that messages are sent to, possibly none; the route is fetched if none is kept.
        Raises RouteNotFound, TransportError.
        """
        return (await self.route(topic)).producer_queues()

    async def _fetch_route(self, topic: str) -> TopicRoute:
        try:
            route = await self.routes.refresh(topic)
        except RouteNotFound:
            old = self._routes.old(topic)
            if old is not None and not await self._knows_one_of(old):
                raise NotSent(f"no broker of topic {topic} is known to a NameServer") from None
            self.routes.forget(topic)
            raise
        for broker in route.brokers:
            # Another member may be the master by now, while the old one still answers.
            if broker.master is not None:
                self._found.pop(broker.broker_name, None)
        return route

    async def _knows_one_of(self, route: TopicRoute) -> bool:
        """Tell whether a NameServer knows any of a route's brokers: one that was started again does not for a while."""
        known = (await self._cluster_info()).broker_addr_table
        return any(broker.broker_name in known for broker in route.brokers)

    async def topic_type(self, topic: str) -> str:
        """Return the type of a topic, its attribute message.type: NORMAL, FIFO, DELAY, TRANSACTION, MIXED, …"""
        return await self._topic_types.get(topic)

    def known_topic_type(self, topic: str) -> str | None:
        """Return the type of a topic without asking a broker; None if it is not kept."""
        return self._topic_types.known(topic)

    async def topic_type_now(self, topic: str) -> str:
        """Return the type of a topic as brokers have it by now: they are asked, unless they were a moment ago.

        If no broker answers, the type that is kept is returned. Raises TransportError if none is kept.
        """
        if self._topic_types.age_s(topic) > DOUBT_S:
            try:
                return await outcome_of(self._topic_types.begin(topic))
            except TransportError:
                pass
        return await self._topic_types.get(topic)

    async def _fetch_topic_type(self, topic: str) -> str:
        silent: TransportError | None = NotSent(f"no broker that has topic {topic} is known")
        for broker in (await self.route(topic)).brokers:
            if broker.master is None:
                continue
            try:
                config = await admin_api.topic_config(await self.peer(broker.broker_name), topic)
            except TransportError as e:
                # The next one knows it too.
                silent = e
                continue
            if config is not None:
                found = config.attributes.get(MESSAGE_TYPE, NORMAL)
                return found if found in KNOWN_TYPES else NORMAL
            silent = None
        if silent is not None:
            raise silent
        return NORMAL

    async def group(self, group: str) -> GroupConfig | None:
        """Return a consumer group's settings, as the first master that knows it has them; None if none does."""
        found = await self._groups.get(group)
        return None if found is None else found[1]

    async def _fetch_group(self, group: str) -> tuple[str, GroupConfig] | None:
        """Return a group's settings with the name of the broker that told them; None if brokers say it is not there."""
        header = headers.GroupHeader(group=group)
        old = self._groups.old(group)
        silent: TransportError | None = None
        answered = False
        masters = await self.masters_by_name()
        for name, address in masters.items():
            try:
                peer = await self._connections.get(address)
                reply = await peer.request(
                    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, header, timeout_ms=self._timeout_ms
                )
            except TransportError as e:
                # The next one knows it too.
                silent = e
                continue
            answered = True
            if reply.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                continue
            reply.raise_for_code(f"settings of group {group!r}")
            return name, java_json.decode(reply.body, GroupConfig)
        # A NameServer that was started again knows no broker for a while, or not the one that knows the group.
        if silent is None and (not answered or (old is not None and old[0] not in masters)):
            silent = NotSent(f"no broker that knows group {group} is known to a NameServer")
        if silent is not None and (not answered or old is not None):
            raise silent
        return None

    async def _cluster_info(self) -> ClusterInfo:
        info = await self.routes.ask(lambda namesrv: admin_api.cluster_info(namesrv, timeout_ms=self._timeout_ms))
        names = list(info.cluster_addr_table)
        self.cluster_name = names[0] if len(names) == 1 else ""
        return info

    async def masters(self) -> list[str]:
        """Return "host:port" of the masters of all brokers of the cluster."""
        return list((await self.masters_by_name()).values())

    async def masters_by_name(self) -> dict[str, str]:
        """Return "host:port" of the masters of all brokers of the cluster, by broker name."""
        table = (await self._cluster_info()).broker_addr_table
        addresses = {name: broker.broker_addrs.get(0) for name, broker in table.items()}
        return self.note_masters(addresses)

    def note_masters(self, told: Mapping[str, str | None]) -> dict[str, str]:
        """Note which masters a NameServer has just told, by broker name, and return those that it told.

        Another member may be the master by now, while the one that was before still answers, as a slave.
        """
        found = {name: address for name, address in told.items() if address}
        self._lost -= found.keys()
        self._found |= found
        return found

    async def peer_at(self, address: str) -> Peer:
        """Return the connection to the broker at this "host:port". Raises NotSent if it cannot be reached."""
        return self._connections.open_peer(address) or await self._connections.get(address)

    def _known_master(self, broker_name: str) -> str | None:
        if broker_name in self._lost:
            return None
        return self._found.get(broker_name) or self.routes.master(broker_name)

    async def master(self, broker_name: str) -> str:
        """Return "host:port" of a broker's master. Raises Refused for a name that no route has, NotSent."""
        return self._known_master(broker_name) or await self._find(broker_name)

    async def peer(self, broker_name: str) -> Peer:
        """Return the connection to a broker's master. If the known master cannot be reached, a NameServer is asked for
        another.

        Raises Refused for a name that no route has, NotSent if the master cannot be reached.
        """
        known = self._known_master(broker_name)
        address = known or await self._find(broker_name)
        try:
            return await self.peer_at(address)
        except NotSent:
            self.note_lost(broker_name)
            moved = None if known is None else await self._moved(broker_name, known)
            if moved is None:
                raise
        try:
            return await self.peer_at(moved)
        except NotSent:
            self.note_lost(broker_name)
            raise

    async def _moved(self, broker_name: str, known: str) -> str | None:
        """Return the address of a broker's master if it is another one than was known."""
        try:
            found = await self._find(broker_name)
        except RocketSparkError:
            return None
        if found != known:
            return found
        self._lost.add(broker_name)
        return None

    def open_peer(self, broker_name: str) -> Peer | None:
        """Return the connection to a broker's master if there is an open one; else None."""
        address = self._known_master(broker_name)
        return None if address is None else self._connections.open_peer(address)

    def name_at(self, address: str) -> str:
        """Return the name of the broker whose master is at "host:port", from the addresses that are known."""
        for name, found in self._found.items():
            if found == address:
                return name
        return self.routes.name_at(address)

    def note_lost(self, broker_name: str) -> None:
        """Note that a broker's master did not answer, so that its address is asked for again: another may be master by
        now.
        """
        self._lost.add(broker_name)
        self._routes.clear()

    def forget_route(self, topic: str) -> None:
        """Have a topic's route fetched anew when it is needed next: it seems to have changed, or has no master yet."""
        self._routes.expire(topic)

    async def _find(self, broker_name: str) -> str:
        """Ask a NameServer for the master as it is now; for names that nobody has it is not asked again and again.

        Raises Refused for a name that no broker ever had here, NotSent for one that has no master at the moment.
        """
        info = self._infos.known("")
        if info is None or broker_name in info.broker_addr_table:
            info = await outcome_of(self._infos.begin(""))
        broker = info.broker_addr_table.get(broker_name)
        address = broker.broker_addrs.get(0) if broker is not None else None
        if not address:
            text = f"broker {shown(broker_name)!r} has no master that is known"
            if broker is not None or broker_name in self._found or self.routes.master(broker_name):
                raise NotSent(text)
            raise Refused(Code.BAD_REQUEST, text)
        self._lost.discard(broker_name)
        self._found[broker_name] = address
        return address

    async def ask(
        self,
        broker_name: str,
        code: int,
        header: Header | dict[str, str] | None,
        body: bytes = b"",
        *,
        timeout_ms: float = 0,
    ) -> Reply:
        """Ask a broker's master; returns its reply, whatever its code. Raises Refused, TransportError.

        `timeout_ms`: 0 for the setting's.
        """
        peer = await self.peer(broker_name)
        try:
            return await peer.request(code, header, body, timeout_ms=timeout_ms or self._timeout_ms)
        except TransportError:
            self.note_lost(broker_name)
            raise

    async def close(self) -> None:
        """End all connections to brokers and NameServers."""
        await self._connections.close()
        await self.routes.close()


_POWER_MAX = 32
_INITIAL_MS, _LONGEST_MS, _MULTIPLIER = 5000, 7_200_000, 2.0
# A hundred years.
_MS_MAX, _MULTIPLIER_MAX = 100 * 366 * 86_400_000, 1e6
# The waits of the retry policy CUSTOMIZED, in seconds, as Apache's (the delay levels from the third on).
RETRY_WAITS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)


def attempts_max(group: GroupConfig) -> int:
    """Return how often a message is delivered to a group at most: once, and as often again as retryMaxTimes says."""
    return max(group.retry_max_times, 0) + 1


def exponential(policy: dict[str, Any]) -> tuple[int, int, float] | None:
    """Return what a retry policy of type EXPONENTIAL says: the first and the longest wait in ms, and by what each wait
    is multiplied to get the next. None for a policy of another type.
    """
    if policy.get("type") != "EXPONENTIAL":
        return None
    given = policy.get("exponentialRetryPolicy")
    given = given if isinstance(given, dict) else {}
    initial_ms, longest_ms = (
        int(_number(given.get(name), default, _MS_MAX))
        for name, default in (("initial", _INITIAL_MS), ("max", _LONGEST_MS))
    )
    return initial_ms, longest_ms, _number(given.get("multiplier"), _MULTIPLIER, _MULTIPLIER_MAX)


def waits_ms(policy: dict[str, Any]) -> list[int]:
    """Return the waits in ms that a retry policy of type CUSTOMIZED lists, or RocketMQ's own if it lists none that can
    be used.
    """
    given = policy.get("customizedRetryPolicy")
    listed = given.get("next") if isinstance(given, dict) else None
    waits = [int(_number(each, -1, _MS_MAX)) for each in listed] if isinstance(listed, list) else []
    return waits if waits and min(waits) >= 0 else [wait_s * 1000 for wait_s in RETRY_WAITS_S]


def _number(value: Any, default: float, most: float) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return default
    return found if 0 <= found <= most else default


def retry_wait_ms(policy: dict[str, Any], attempts: int) -> int:
    """Return how many ms a message waits before it is delivered again, by its group's retry policy.

    `attempts`: how often it was delivered before the delivery that has just failed.
    """
    attempts = max(attempts, 0)
    if (grown := exponential(policy)) is not None:
        initial_ms, longest_ms, multiplier = grown
        return int(min(initial_ms * multiplier ** min(attempts, _POWER_MAX), longest_ms))
    waits = waits_ms(policy)
    # The first two waits are not those of messages that came back (CustomizedRetryPolicy, 5.5.0).
    return waits[min(attempts + 2, len(waits) - 1)]
