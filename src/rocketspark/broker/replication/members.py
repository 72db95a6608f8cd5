"""The other brokers of this broker's name: who they are, as the NameServers know them, and which one is the master.

`MemberGroup` asks the NameServers. `MasterSearch` asks at intervals: a slave without a link learns where its master is,
and a master learns of a second master of its name. Under a controller the search takes no broker for the master but
the one that the controller named; it only asks that broker for its replication port.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Set

from rocketspark import machine
from rocketspark.broker import topic_names
from rocketspark.broker.inner_connections import inner_connections
from rocketspark.broker.repeated_work import pause
from rocketspark.broker.replication.broker_identity import identity_of
from rocketspark.broker.replication.controller_client import ControllerClient
from rocketspark.broker.replication.link.ha_client import HaClient
from rocketspark.broker.replication.link.links import LinkState
from rocketspark.broker.replication.link.troubles import Troubles
from rocketspark.broker.replication.master_api import HaInfo, ask_ha_info, tell_ha_info
from rocketspark.broker.replication.role import BrokerRole, Role
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import ConfigError, LogMissing, NoNameServer, ReplicationError, RocketSparkError, ServerError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.route import MASTER_ID
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import MemberGroupHeader
from rocketspark.protocol.headers.namesrv import RouteHeader
from rocketspark.protocol.json import java_json
from rocketspark.protocol.json.bodies import RouteBody
from rocketspark.protocol.json.metadata import MemberGroupReply
from rocketspark.store.files import config_files
from rocketspark.store.store import Store
from rocketspark.transport.connections import Connections, parse_addresses
from rocketspark.transport.peer import Peer

log = logging.getLogger("rocketspark.broker.replication")
limited = LimitedLog("rocketspark.broker.replication")

TIMEOUT_MS = 3000

# How often a master looks whether another one has its name.
ANOTHER_LOOK_S = 30.0
# The look before a master tells the NameServers of itself takes no longer.
FIRST_LOOK_S = 1.0
# So long one whose log is not there waits at its start for another that has it.
HOLDER_WAIT_S, HOLDER_LOOK_S = 15.0, 0.5
# How long an operator's change looks for the slaves.
FIND_S = 0.3


class MemberGroup:
    """The live brokers of this broker's name, as the NameServers know them.

    `addresses`: by broker id, as last asked for; `alive_count`: how many live, this broker included.
    """

    def __init__(self, settings: BrokerSettings, connections: Connections) -> None:
        self._settings = settings
        self._connections = connections
        self.addresses: dict[int, str] = {}
        # Until a NameServer was asked, all replicas count (rule: DefaultMessageStore, 5.x).
        self.alive_count = max(settings.replicas_total, 1)

    def others(self) -> list[str]:
        """Return the addresses of the others, as they were when last asked for."""
        return [address for broker_id, address in self.addresses.items() if broker_id != self._settings.broker_id]

    async def ask(self) -> dict[int, str]:
        """Return the addresses, by id, from the first NameServer that answers. Raises RocketSparkError if none does."""
        error: RocketSparkError = NoNameServer("no NameServer is set (namesrvAddr)")
        for namesrv in self._settings.namesrvs():
            try:
                return self._take(await self._known_to(namesrv))
            except RocketSparkError as e:
                error = e
        raise error

    async def ask_all(self) -> dict[int, str]:
        """Return the brokers that any NameServer knows, as one that just started knows none yet.

        Raises RocketSparkError if none answers.
        """
        asked = [self._known_to(namesrv) for namesrv in self._settings.namesrvs()]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        found: dict[int, str] = {}
        for answer in reversed(answers):
            if isinstance(answer, BaseException):
                if not isinstance(answer, RocketSparkError):
                    raise answer
                limited.info("a NameServer does not tell the brokers of the name: %s", answer)
            else:
                found |= answer
        if all(isinstance(answer, BaseException) for answer in answers):
            raise NoNameServer("no NameServer tells the brokers of the name")
        return self._take(found)

    async def find(self, wanted: Set[int | None]) -> dict[int, str]:
        """Return the addresses of brokers, by id, once the NameServers that answer know those of the `wanted` ids.

        All are asked at once, and one that is silent is not waited for: after a short time those count that are known.
        """
        asked = [asyncio.create_task(self._known_to(namesrv)) for namesrv in self._settings.namesrvs()]
        found: dict[int, str] = {}
        try:
            async with asyncio.timeout(FIND_S):
                for answer in asyncio.as_completed(asked):
                    try:
                        found |= await answer
                    except RocketSparkError as e:
                        limited.info("a NameServer does not tell the brokers of the name: %s", e)
                    if wanted <= found.keys():
                        break
        except TimeoutError:
            pass
        finally:
            for task in asked:
                task.cancel()
        return self._take(self.addresses | found)

    async def _known_to(self, namesrv: str) -> dict[int, str]:
        s = self._settings
        peer = await self._connections.get(namesrv)
        by_route = s.slave_acting_master and s.old_nameservers
        return await (self._routed(peer) if by_route else self._told(peer))

    def _take(self, found: dict[int, str]) -> dict[int, str]:
        self.addresses = dict(found)
        self.alive_count = max(len(found | {self._settings.broker_id: ""}), 1)
        return self.addresses

    async def _told(self, peer: Peer) -> dict[int, str]:
        s = self._settings
        header = MemberGroupHeader(cluster=s.cluster_name, broker_name=s.broker_name)
        answer = await peer.request(RequestCode.GET_BROKER_MEMBER_GROUP, header, timeout_ms=TIMEOUT_MS)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise ServerError(answer.code, "it is older than 5.0", address=peer.address)
        body = answer.raise_for_code("ask for the brokers of the name").body
        return java_json.decode(body, MemberGroupReply).broker_member_group.broker_addrs

    async def _routed(self, peer: Peer) -> dict[int, str]:
        """Ask as NameServers before 5.0 can be asked (compatibleWithOldNameSrv)."""
        s = self._settings
        header = RouteHeader(topic=topic_names.MEMBER_TOPIC_PREFIX + s.broker_name)
        answer = await peer.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header, timeout_ms=TIMEOUT_MS)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return {}
        route = java_json.decode(answer.raise_for_code("ask for the brokers of the name").body, RouteBody)
        found = (b.broker_addrs for b in route.broker_datas if b.broker_name == s.broker_name)
        return next((addresses for addresses in found if addresses), {})


class MasterSearch:
    """Looks for the master at intervals. `follow`: told where a slave's master is; `troubles`: logs a second master."""

    def __init__(
        self,
        settings: BrokerSettings,
        connections: Connections,
        role: BrokerRole,
        members: MemberGroup,
        client: HaClient,
        troubles: Troubles,
        follow: Callable[[str | None, str | None], None],
        own_address: Callable[[], str],
    ) -> None:
        self._settings = settings
        self._connections = connections
        self._role = role
        self._members = members
        self._client = client
        self._troubles = troubles
        self._follow = follow
        self._own_address = own_address
        self._ended = False
        self._looked_s = -ANOTHER_LOOK_S
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def first_look(self) -> None:
        """Look for another master with this broker's name, for a short time, before this broker registers."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LOOK_S):
                await self._look_for_another()

    def begin(self) -> None:
        """Begin to look at intervals."""
        self._task = asyncio.create_task(self._watch())

    def look_now(self) -> None:
        """Look again soon, without waiting for the interval."""
        self._wanted.set()

    async def stop(self) -> None:
        """Stop looking."""
        self._ended = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _watch(self) -> None:
        while not self._ended:
            try:
                await self._look()
            except RocketSparkError as e:
                limited.info("the brokers of the name are not known now: %s", e)
            except Exception:
                log.exception("the brokers of the name could not be looked at")
            await pause(lambda: self._settings.member_group_interval_ms, self._wanted)

    async def _look(self) -> None:
        controlled = self._settings.controller_mode
        if not controlled:
            await self._look_for_another()
        if self._role.kind is not Role.SLAVE or self._client.state is LinkState.TRANSFER:
            return
        master = self._role.master_address if controlled else (await self._members.ask()).get(MASTER_ID)
        if master is None or master == self._own_address():
            return
        info = await ask_ha_info(self._connections, master)
        if info is not None and self._role.kind is Role.SLAVE:
            self._follow(info.ha_address, master)

    async def _look_for_another(self) -> None:
        """Log that a second master with this broker's name is alive: clients and slaves go now to one, now to the
        other.
        """
        s, now_s = self._settings, asyncio.get_running_loop().time()
        if not self._role.is_master or not s.namesrvs() or now_s - self._looked_s < ANOTHER_LOOK_S:
            return
        self._looked_s = now_s
        try:
            other = (await MemberGroup(s, self._connections).ask()).get(MASTER_ID)
            if other in (None, self._own_address()) or await ask_ha_info(self._connections, other or "") is None:
                return
        except RocketSparkError:
            return
        text = f"the broker {other} is a master of the name {s.broker_name} too: end one of the two, it is no copy"
        self._troubles.note(other or "", ReplicationError(text, reason="two-masters"))


async def tables_taken(
    members: MemberGroup, connections: Connections, info: HaInfo, among: Set[int | None] | None = None
) -> None:
    """Tell each slave where this master is, and wait: a RocketSpark slave answers once it has copied the tables.

    `among`: the ids of those that are told; None for all.
    """
    try:
        await (members.ask() if among is None else members.find(among))
    except RocketSparkError as e:
        limited.info("the slaves are those known before: %s", e)
    others = [i for i in members.addresses if i != MASTER_ID and (among is None or i in among)]
    told = (tell_ha_info(connections, members.addresses[i], info) for i in others)
    for failed in await asyncio.gather(*told, return_exceptions=True):
        if isinstance(failed, BaseException):
            limited.warning("a slave may lack what changed in the last seconds in topics, groups and users: %s", failed)


async def open_store(settings: BrokerSettings, store: Store) -> None:
    """Open a broker's store. Raises ConfigError or StoreError.

    Under a controller a store without its log is begun anew, as a copy, once another replica runs that has it.
    """
    s = settings
    log_folder = s.store_commit_log or f"{s.store_root}/commitlog"
    is_away = not os.path.isdir(f"{s.store_root}/config") and not config_files.has_log(log_folder)
    if s.controller_mode and is_away and (identity := identity_of(s)).outlives(s.store_root):
        # Nothing is left that tells a disk that is not mounted from one that is lost.
        why = f"there is no store in {s.store_root}, of which {s.identity_file} has the number: mount its disk"
        await find_holder(s, LogMissing(why), in_sync_only=True)
        identity.give_up(f"the store in {s.store_root} is lost")
    try:
        store.open()
    except LogMissing as e:
        if not s.controller_mode:
            raise
        await find_holder(s, e)
        store.settings.is_copied = True
        store.open()


async def find_holder(settings: BrokerSettings, missing: LogMissing, *, in_sync_only: bool = False) -> None:
    """Look for another replica that is in sync and runs, and so holds what was acknowledged; wait for it if need be.

    Without one this broker keeps its number while its log's disk is away, as those of all others may be: none could be
    elected else once they are back. Raises LogMissing then, ConfigError if no controller can tell. `in_sync_only`: not
    where this broker's own log does not count, as it was not in sync.
    """
    s, own_id = settings, identity_of(settings).granted()
    if own_id is None:
        return
    controller = ControllerClient(parse_addresses(s.controller_addresses), connections=inner_connections(s))
    try:
        if in_sync_only and not await controller.may_hold_all(s.broker_name, own_id):
            return
        until_s = machine.monotonic() + HOLDER_WAIT_S
        while not await controller.live_in_sync(s.broker_name) - {own_id}:
            if machine.monotonic() >= until_s:
                raise LogMissing(f"{missing}; or start another replica first: none runs that is in sync") from missing
            await asyncio.sleep(HOLDER_LOOK_S)
    except LogMissing:
        raise
    except RocketSparkError as e:
        raise ConfigError(
            f"no file of the log is there, and no controller tells whether another replica has it ({e}): mount the"
            " log's disk, or start the controllers"
        ) from e
    finally:
        await controller.close()
