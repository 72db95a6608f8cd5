"""What enableSlaveActingMaster adds to a broker, master or slave: it joins late, sends heartbeats, and a slave may act.

Rule: the broker delivers nothing and registers at no NameServer before it is as far as the others of its name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from rocketspark.broker.repeated_work import pause
from rocketspark.broker.replication.acting.acting_master import ActingMaster
from rocketspark.broker.replication.acting.escape import EscapeBridge
from rocketspark.broker.replication.acting.way_back import Office, PreOnline, must_prepare
from rocketspark.broker.replication.link.ha_listener import HaConnection, HaListener
from rocketspark.broker.replication.link.links import LinkState
from rocketspark.broker.replication.parts import MasterSteps, PeerLinks, ReplicationParts
from rocketspark.broker.replication.slave_synchronize import reverse_synchronize
from rocketspark.broker.replication.standing import lately_s
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import ConfigError, RocketSparkError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.route import MASTER_ID
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import BrokerHeader
from rocketspark.protocol.json import bodies
from rocketspark.protocol.json.bodies import DataVersion
from rocketspark.transport.connections import Connections, is_ip, parse_address

heartbeats_log = LimitedLog("rocketspark.broker")
log = LimitedLog("rocketspark.broker.replication")

# A start waits so long for the way back, which goes on behind it.
JOIN_S = 3.0


class Heartbeats:
    """Sends a one-way heartbeat to every NameServer each brokerHeartbeatInterval.

    It is request 904, or with compatibleWithOldNameSrv 322, which NameServers before 5.0 know and treat the same.
    `version`: returns the version of the broker's topics; `may_tell`: raises RocketSparkError while no NameServer may
    hear of the broker.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        connections: Connections,
        version: Callable[[], DataVersion],
        may_tell: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._may_tell = may_tell
        self._connections = connections
        self._version = version
        self._task: asyncio.Task[None] | None = None

    def start(self, address: str) -> None:
        """Begin to send, as the broker at "host:port"."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(address))

    async def stop(self) -> None:
        """Stop sending heartbeats."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _run(self, address: str) -> None:
        s = self._settings
        while True:
            try:
                await asyncio.gather(*(self._beat(namesrv, address) for namesrv in s.namesrvs()))
            except Exception:
                heartbeats_log.exception("the NameServers were not told that this broker lives")
            await pause(lambda: s.heartbeat_interval_ms)

    async def _beat(self, namesrv: str, address: str) -> None:
        s = self._settings
        header = BrokerHeader(broker_name=s.broker_name, address=address, cluster=s.cluster_name, broker_id=s.broker_id)
        try:
            async with asyncio.timeout(s.heartbeat_timeout_ms / 1000):
                peer = await self._connections.get(namesrv)
            self._may_tell()
            if not peer.is_writable:
                return
            if s.old_nameservers:
                peer.oneway(RequestCode.QUERY_DATA_VERSION, header, bodies.encode(self._version()))
            else:
                peer.oneway(RequestCode.BROKER_HEARTBEAT, header)
        except (RocketSparkError, TimeoutError) as e:
            heartbeats_log.info("NameServer %s was not told that this broker lives: %s", namesrv, e)


class ActingMode:
    """The acting mode of one broker, which is a master or a slave."""

    def __init__(self, parts: ReplicationParts, peers: PeerLinks, steps: MasterSteps) -> None:
        settings = self._settings = parts.settings
        tables, messages, connections = parts.tables, parts.messages, peers.connections
        self._role = parts.role
        self._services = parts.services
        self._registration = parts.registration
        self._put_message = messages.put_message
        self._routes = parts.routes
        self._members = peers.members
        self.bridge = EscapeBridge(settings, connections, messages.left)
        self._store = parts.store
        self._listener = peers.listener
        # Of who would not prepare for its way back at a start nobody keeps away.
        needed = settings.broker_role != "SLAVE" and must_prepare(settings) and settings.namesrvs()
        self._office = Office(settings, self._is_held) if needed else None
        may_tell = self._office.may_tell if self._office is not None else lambda: None
        self._registration.may_tell = may_tell
        self._heartbeats = Heartbeats(settings, connections, lambda: tables.topics.version, may_tell)
        self.master = ActingMaster(parts, peers, steps, self.bridge)
        self.master.routes(parts.routes)
        self._pre_online = PreOnline(
            settings,
            peers.members,
            connections,
            own_info=steps.own_ha_info,
            is_linked=partial(_is_linked, peers.listener),
            take_back=lambda address: reverse_synchronize(connections, address, tables, messages),
            take_left=messages.left.take,
            follow=steps.copy_from,
            is_copying=lambda: peers.client.state is LinkState.TRANSFER,
        )
        self._task: asyncio.Task[None] | None = None
        self.is_online = False

    async def join(self, address: str) -> None:
        """Prepare the return among the brokers with this broker's name, and register. `address`: this broker's
        "host:port".

        What takes longer than JOIN_S seconds goes on in the background; an error before that is raised.
        """
        if not self._role.is_master:
            self._put_message.door = self.bridge
        elif self._office is not None:
            self._put_message.guard = self._office.may_deliver
            self._office.guard(self._routes)
        online = asyncio.Event()
        self._task = asyncio.create_task(self._run(address, online))
        waited = asyncio.create_task(online.wait())
        try:
            await asyncio.wait([self._task, waited], timeout=JOIN_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waited.cancel()
        if self._task.done():
            self._task.result()
        elif not online.is_set():
            log.warning("broker %s is not back among its replicas yet", self._settings.broker_name)

    async def _run(self, address: str, online: asyncio.Event) -> None:
        await self._pre_online.run(address)
        if self._role.delivers:
            try:
                self._services.start()
            except (RocketSparkError, ConfigError) as e:
                log.error("broker %s cannot deliver what is due and stays away: %s", self._settings.broker_name, e)
                raise
        if self._office is not None:
            self._office.begin()
        await self._registration.start(address)
        self._heartbeats.start(address)
        self.is_online = True
        self.master.begin()
        log.info("broker %s (id %d) is online", self._settings.broker_name, self._settings.broker_id)
        first = True
        while True:
            try:
                if self._role.is_master:
                    await self._look_as_master(address)
                else:
                    await self.master.look()
            except RocketSparkError as e:
                log.info("the brokers of the name are not known now: %s", e)
            except Exception:
                log.exception("the brokers of the name could not be looked at")
            if first:
                first = False
                online.set()
            await pause(lambda: self._settings.member_group_interval_ms)

    async def _look_as_master(self, address: str) -> None:
        office, asked_s = self._office, asyncio.get_running_loop().time()
        found = await self._members.ask()
        if office is None:
            return
        if found.get(MASTER_ID) == address:
            office.sure(asked_s)
        else:
            office.doubt()
        if office.is_away:
            await self._come_back(office, address)

    async def _come_back(self, office: Office, address: str) -> None:
        """Bring a master that was cut off back into service as if it had just started.

        Its services stop, what the acting slave did meanwhile is taken over, then they start and it registers again.
        """
        log.warning("broker %s was away, it hung or was cut off: a slave may have acted", self._settings.broker_name)
        await self._services.stop()
        self._store.flush_log()
        await self._services.hand_back()
        await self._pre_online.run(address)
        self._services.start()
        office.begin()
        self._registration.again()
        log.info("broker %s is back", self._settings.broker_name)

    def _is_held(self) -> bool:
        since_s = lately_s(self._settings)
        others = [parse_address(address)[0] for address in self._members.others()]
        # Their links may come from other addresses than their requests go to: then their number tells.
        return bool(others) and (
            all(_is_linked(self._listener, host, since_s) for host in others)
            or sum(_is_heard(c, since_s) for c in self._listener.connections) >= len(others)
        )

    async def stop(self) -> None:
        """Stop; an acting slave first learns of every message that it sent away."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._office is not None:
            self._office.close()
        await self._heartbeats.stop()
        await self.master.stop()
        await self.bridge.close()


def _is_linked(listener: HaListener, host: str, since_s: float = 0.0) -> bool:
    """Tell whether a slave on a host copies from here, and was heard; slaves are told apart by their hosts alone."""
    return any(_is_heard(c, since_s) and (c.host == host or not is_ip(host)) for c in listener.connections)


def _is_heard(connection: HaConnection, since_s: float) -> bool:
    """Tell whether a slave copies over a connection, and was heard."""
    return connection.link.acked >= 0 and connection.link.last_read_s >= since_s
