"""Keeps the broker known to every NameServer: at the start, every 30 s, on each change, and after a lost connection.

A broker may leave and come back under another id while it runs; a slave learns its master's addresses from the replies.
"""

from __future__ import annotations

import asyncio
import functools
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping

from rocketspark.broker.background_thread import BackgroundThread
from rocketspark.broker.inner_connections import inner_connections
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.storage.table_saving import SMALL_ROWS, joined
from rocketspark.broker.topics import Topics
from rocketspark.errors import RocketSparkError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import BrokerHeader, RegisterBrokerHeader, RegisterBrokerReply, TopicHeader
from rocketspark.protocol.json import bodies, java_json
from rocketspark.protocol.json.bodies import RegisterBrokerBody, TopicConfig

log = LimitedLog("rocketspark.broker")

RETRY_S = 1.0
TIMEOUT_MS = 6000
# Some 4 MB, a quarter of what a frame holds; taking them together keeps the loop for some 10 ms.
TOPICS_IN_REQUEST = 20_000
# Less than an admin client waits for its own request (5 s).
SETTLE_S = 3.0


class _Teller:
    """Tells one NameServer of changed topics; changes that come meanwhile go together in the next request."""

    def __init__(self, tell: Callable[[list[str]], Awaitable[None]]) -> None:
        self._tell = tell
        self._changed: dict[str, None] = {}
        # The futures of the request under way and of the next one.
        self._told: asyncio.Future[None] | None = None
        self._next: asyncio.Future[None] | None = None
        self.task: asyncio.Task[None] | None = None

    def add(self, topics: Iterable[str]) -> None:
        """Have the next request tell of these changed topics; it is sent for an empty list as well."""
        self._changed.update(dict.fromkeys(topics))
        if self._next is None:
            loop = asyncio.get_running_loop()
            self._next = loop.create_future()
            # The longest wait, whether the NameServer answers or not: one timer for all who wait.
            loop.call_later(SETTLE_S, _end, self._next)
        if self.task is None:
            self.task = asyncio.create_task(self._run())

    @property
    def latest(self) -> asyncio.Future[None] | None:
        """A future that ends once the NameServer was told of all changes so far, or took too long; None if it was."""
        return self._next or self._told

    async def _run(self) -> None:
        try:
            while self._next is not None:
                self._told, self._next = self._next, None
                changed, self._changed = self._changed, {}
                await self._tell(list(changed))
                _end(self._told)
        finally:
            for waited in (self._told, self._next):
                if waited is not None:
                    _end(waited)
            self._told = self._next = self.task = None


def _end(waited: asyncio.Future[None]) -> None:
    if not waited.done():
        waited.set_result(None)


class Registration:
    """Registers one broker at all its NameServers; a slow NameServer does not hold up the others."""

    def __init__(self, settings: BrokerSettings, topics: Topics, beside: BackgroundThread) -> None:
        self._settings = settings
        # "host:port" of this broker's replication, and who hears of a reply to a slave.
        self.ha_address = ""
        self.on_master: Callable[[str | None, str | None], None] = lambda ha_address, master_address: None
        # Raises RocketSparkError while no NameServer may hear of this broker.
        self.may_tell: Callable[[], None] = lambda: None
        self._again: dict[str, asyncio.Event] = {}
        self._topics = topics
        self._beside = beside
        self._connections = inner_connections(settings)
        self._address = ""
        self._tellers: dict[str, _Teller] = {}
        # Topics made by a first send, to be looked for on the cluster's other brokers; and the task that does it.
        self._automatic: list[str] = []
        self._warning: asyncio.Task[None] | None = None
        self._keepers: list[asyncio.Task[None]] = []
        # Of the registrations of all topics that are under way, by NameServer.
        self._whole: dict[str, asyncio.Future[None]] = {}
        # Deleted topics that a NameServer has not forgotten yet, by NameServer.
        self._to_forget: dict[str, dict[str, None]] = {}

    async def start(self, address: str) -> None:
        """Register everywhere; a NameServer that is not there yet is tried again in the background."""
        self._address = address
        self._again = {namesrv: asyncio.Event() for namesrv in self._settings.namesrvs()}
        first = [asyncio.Event() for _ in self._settings.namesrvs()]
        for namesrv, done in zip(self._settings.namesrvs(), first, strict=True):
            self._keepers.append(asyncio.create_task(self._keep(namesrv, done)))
        if first:
            await asyncio.wait([asyncio.ensure_future(e.wait()) for e in first], timeout=TIMEOUT_MS / 1000)

    async def _keep(self, namesrv: str, first: asyncio.Event) -> None:
        interval_s = self._settings.registration_ms / 1000
        failing = False
        again = self._again[namesrv]
        while True:
            wait_s = interval_s
            again.clear()
            whole = asyncio.get_running_loop().create_future()
            self._whole[namesrv] = whole
            try:
                ordered = await self._register_all(namesrv)
                self._topics.set_ordered(ordered)
                failing = False
            except RocketSparkError as e:
                if not failing:
                    log.warning("NameServer %s: %s; tried again every %.0f s", namesrv, e, RETRY_S)
                failing = True
                wait_s = min(RETRY_S, interval_s)
            except Exception:
                # After any error: a broker that stops registering is soon gone from all routes.
                log.exception("NameServer %s: registration failed; tried again", namesrv)
                failing = True
                wait_s = min(RETRY_S, interval_s)
            finally:
                del self._whole[namesrv]
                _end(whole)
            first.set()
            if not failing:
                await self._tell_again_of_deleted(namesrv)
            peer = self._connections.open_peer(namesrv)
            asked = asyncio.create_task(again.wait())
            try:
                if peer is None:
                    await asyncio.wait([asked], timeout=wait_s)
                    continue
                # A connection that ends means a NameServer that forgot this broker: register again soon.
                closed = asyncio.ensure_future(peer.wait_closed())
                try:
                    await asyncio.wait([asked, closed], timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    closed.cancel()
                if not peer.is_open and not asked.done():
                    await asyncio.wait([asked], timeout=min(0.1, wait_s))
            finally:
                asked.cancel()

    def again(self) -> None:
        """Register everywhere now, as after a change of role."""
        for event in self._again.values():
            event.set()

    def changed(self, topics: list[str]) -> None:
        """Tell every NameServer at once of topics that were changed, or deleted."""
        if not self._address:
            return
        for namesrv in self._settings.namesrvs():
            teller = self._tellers.get(namesrv)
            if teller is None:
                teller = self._tellers[namesrv] = _Teller(functools.partial(self._tell, namesrv))
            teller.add(topics)

    def created_automatically(self, topic: str) -> None:
        """Warn that a topic was made on this broker alone, by its first send, if the cluster has other brokers."""
        self._automatic.append(topic)
        if self._warning is None:
            self._warning = asyncio.create_task(self._warn_if_several())

    async def _warn_if_several(self) -> None:
        try:
            while self._automatic:
                topics, self._automatic = self._automatic, []
                others = await self._others()
                for topic in topics if others > 0 else ():
                    log.warning(
                        "topic %s was created automatically on this broker only; %d other broker(s) of the cluster do"
                        " not have it: `rocketspark topic create %s` spreads it over all",
                        topic,
                        others,
                        topic,
                    )
        finally:
            self._warning = None

    async def _others(self) -> int:
        """Return the number of other brokers in the cluster by the first NameServer; 0 if it does not answer."""
        for namesrv in self._settings.namesrvs()[:1]:
            try:
                peer = await self._connections.get(namesrv)
                answer = await peer.request(RequestCode.GET_BROKER_CLUSTER_INFO)
                info = java_json.decode(answer.raise_for_code("cluster").body, bodies.ClusterInfo)
            except RocketSparkError as e:
                log.info("NameServer %s was not asked for the cluster: %s", namesrv, e)
                return 0
            return len(info.cluster_addr_table.get(self._settings.cluster_name, [])) - 1
        return 0

    async def settled(self) -> None:
        """Wait until the NameServers have heard of every change so far, or do not answer.

        It also waits for registrations under way that may name a topic deleted since: a NameServer that was told of the
        deletion first would take the topic for one that exists.
        """
        waited = [teller.latest for teller in self._tellers.values() if teller.latest is not None]
        if waited := [*waited, *self._whole.values()]:
            await asyncio.wait(waited, timeout=SETTLE_S)

    async def _tell(self, namesrv: str, topics: list[str]) -> None:
        # First of all: a NameServer that cannot be reached is told later.
        deleted = (topic for topic in topics if self._topics.get(topic) is None)
        self._to_forget.setdefault(namesrv, {}).update(dict.fromkeys(deleted))
        try:
            if len(topics) > SMALL_ROWS:
                await self._register_parts(namesrv, topics, self._topics_in_request())
            else:
                # With the version as it is now: all changes up to it are in this table, or were told before.
                known = [config for topic in topics if (config := self._topics.get(topic)) is not None]
                body = bodies.encode(RegisterBrokerBody(topic_config_serialize_wrapper=self._topics.wrapper(known)))
                await self._register(namesrv, body, zlib.crc32(body))
            await self._tell_of_deleted(namesrv)
        except RocketSparkError as e:
            log.warning("NameServer %s was not told of a changed topic: %s; it will be", namesrv, e)
        except Exception:
            log.exception("NameServer %s was not told of a changed topic; it will be", namesrv)

    async def _tell_of_deleted(self, namesrv: str) -> None:
        """Have a NameServer forget this broker's queues of topics that it deleted; one of RocketMQ's keeps them."""
        topics = self._to_forget.get(namesrv, {})
        whole = self._whole.get(namesrv)
        if topics and whole is not None:
            # It may name them still, and would bring them back.
            await asyncio.wait([whole], timeout=SETTLE_S)
        for topic in list(topics):
            peer = await self._connections.get(namesrv)
            self.may_tell()
            if self._topics.get(topic) is None:
                header = TopicHeader(topic=topic)
                answer = await peer.request(RequestCode.FORGET_TOPIC_OF_BROKER, header, timeout_ms=TIMEOUT_MS)
                if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    topics.clear()
                    return
                answer.raise_for_code(f"forget topic {topic!r} at NameServer {namesrv}")
            topics.pop(topic, None)

    async def _tell_again_of_deleted(self, namesrv: str) -> None:
        try:
            await self._tell_of_deleted(namesrv)
        except RocketSparkError as e:
            log.warning("NameServer %s has not forgotten a deleted topic: %s; it is asked again", namesrv, e)

    async def _register_all(self, namesrv: str) -> list[str]:
        """Register all topics, many in parts; return the topics that have an order table at the NameServer."""
        names, size = list(self._topics.table), self._topics_in_request()
        if len(names) <= size:
            return await self._register(namesrv, *await self._body(None, 0))
        return await self._register_parts(namesrv, names, size)

    def _topics_in_request(self) -> int:
        s = self._settings
        return max(s.split_registration_topics, 2) if s.split_registration else TOPICS_IN_REQUEST

    async def _register_parts(self, namesrv: str, names: list[str], size: int) -> list[str]:
        """Register these topics, `size` in a request."""
        ordered: list[str] = []
        for at in range(0, len(names), size):
            # As they are now: a change of one may have been told of meanwhile.
            found = ((name, self._topics.get(name)) for name in names[at : at + size])
            part = {name: config for name, config in found if config is not None}
            following = (len(names) - at - 1) // size
            ordered = await self._register(namesrv, *await self._body(part, following))
        return ordered

    async def _body(self, part: Mapping[str, TopicConfig] | None, following: int) -> tuple[bytes, int]:
        """Return the registration of all topics, or a part of them, and its checksum."""
        parts = self._topics.wrapper_json(
            lambda table: RegisterBrokerBody(topic_config_serialize_wrapper=table), part, following
        )

        def make() -> tuple[bytes, int]:
            body = joined(parts)
            return body, zlib.crc32(body)

        count = len(self._topics.table if part is None else part)
        return make() if count <= SMALL_ROWS else await self._beside.run(make)

    async def _register(self, namesrv: str, body: bytes, crc: int) -> list[str]:
        """Register; return the topics that have an order table at the NameServer."""
        s = self._settings
        header = RegisterBrokerHeader(
            broker_name=s.broker_name,
            address=self._address,
            cluster=s.cluster_name,
            ha_address=self.ha_address,
            broker_id=s.broker_id,
            acting_master=s.slave_acting_master,
            expiry_ms=s.not_active_timeout_ms if s.slave_acting_master else None,
            compressed=False,
            crc=crc & 0x7FFFFFFF,
            zone=s.zone_name,
        )
        peer = await self._connections.get(namesrv)
        self.may_tell()
        reply = await peer.request(RequestCode.REGISTER_BROKER, header, body, timeout_ms=TIMEOUT_MS)
        reply.raise_for_code(f"register at NameServer {namesrv}")
        if s.broker_id:
            addresses = reply.header(RegisterBrokerReply)
            self.on_master(addresses.ha_address, addresses.master_address)
        return list(java_json.decode(reply.body, bodies.KvTable).table) if reply.body else []

    def _cancel_all(self) -> None:
        for task in [*self._keepers, *(teller.task for teller in self._tellers.values()), self._warning]:
            if task is not None:
                task.cancel()

    async def leave(self) -> None:
        """Unregister at every NameServer that can be reached; `start` registers again."""
        self._cancel_all()
        self._keepers.clear()
        self._tellers.clear()
        if self._address:
            s = self._settings
            header = BrokerHeader(
                broker_name=s.broker_name, address=self._address, cluster=s.cluster_name, broker_id=s.broker_id
            )
            for namesrv in s.namesrvs():
                peer = self._connections.open_peer(namesrv)
                if peer is None:
                    continue
                try:
                    await peer.request(RequestCode.UNREGISTER_BROKER, header, timeout_ms=1000)
                except RocketSparkError as e:
                    log.info("NameServer %s was not told of the end: %s", namesrv, e)
        self._address = ""

    async def abandon(self) -> None:
        """Stop without telling the NameServers, as a kill would."""
        self._address = ""
        self._cancel_all()
        await self._connections.close()

    async def stop(self) -> None:
        """Unregister at the NameServers and close the connections."""
        await self.leave()
        await self._connections.close()


def log_told_address(settings: BrokerSettings, own: str, told: str) -> None:
    """Log the address that clients are told if it is not the broker's own; warn if other machines cannot reach it."""
    if settings.tells_loopback_alone:
        log.warning(
            "broker %s listens on %s but tells clients %s, which other machines cannot reach: set brokerIP1 to the"
            " address at which they reach this one",
            settings.broker_name,
            own,
            told,
        )
    elif told != own:
        log.info("broker %s tells clients %s (brokerIP1)", settings.broker_name, told)
