"""The slave that does the work of a master that is gone (RIP-32), and how it learns that the master is gone or back.

Rules (5.5.0): the live broker with the master's name and the lowest id delivers what is due. The slave hands the work
back before it copies from the master that returns, so that the master can take back all that was done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from enum import Enum
from typing import Any, NamedTuple

from rocketspark.broker.replication.acting.escape import EscapeBridge
from rocketspark.broker.replication.acting.way_back import sure_for_s
from rocketspark.broker.replication.link.links import LinkState
from rocketspark.broker.replication.master_api import HaInfo, ask_ha_info
from rocketspark.broker.replication.parts import MasterSteps, PeerLinks, ReplicationParts
from rocketspark.broker.replication.role import Role
from rocketspark.broker.replication.slave_synchronize import reverse_synchronize
from rocketspark.broker.storage.json_tables import next_version
from rocketspark.errors import RocketSparkError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.route import MASTER_ID
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import MinBrokerIdHeader, Request
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.request_frames import reply

log = LimitedLog("rocketspark.broker.replication")

# A master that told where it is and does not register within this time is not waited for any more.
RETURN_S = 15.0
# The tables of a slave that acted are newer than its master's, whatever that did in the seconds before its end.
VERSIONS_AHEAD = 100


class Lowest(NamedTuple):
    """The live broker with the lowest id, among those of this broker's name."""

    broker_id: int
    address: str


class Course(Enum):
    """What a slave does, depending on which broker of its name has the lowest id."""

    ACT = "act for the master"
    FOLLOW = "follow the master"
    STAND_BY = "leave it to a slave with a lower id"
    WAIT = "wait"


def lowest(members: dict[int, str]) -> Lowest | None:
    """Return the broker with the lowest id, from addresses by broker id; None if there are none."""
    return Lowest(*min(members.items())) if members else None


def course(own_id: int, lowest_id: int, *, copying: bool, returning: bool) -> Course:
    """Return what a slave does, by its own id and the lowest id among the live brokers of its name.

    `copying`: a master's log arrives here, so the master lives even if no NameServer knows it; `returning`: a master
    told that it is about to register.
    """
    if lowest_id == MASTER_ID:
        return Course.FOLLOW
    if lowest_id < own_id:
        return Course.STAND_BY
    return Course.WAIT if copying or returning else Course.ACT


def pass_over_notices(routes: Routes) -> None:
    """Answer requests 905 (a new lowest id) without doing anything, on a broker that is not in acting mode."""
    routes.add(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, lambda peer, request, body: reply(request.opaque))


class ActingMaster:
    """Acts for the master on one slave, if that has the lowest id. `bridge`: sends due messages to other brokers."""

    def __init__(self, parts: ReplicationParts, peers: PeerLinks, steps: MasterSteps, bridge: EscapeBridge) -> None:
        self._settings = parts.settings
        self._store = parts.store
        self._role = parts.role
        self._services = parts.services
        self._tables = parts.tables
        self._messages = parts.messages
        self._long_polling = parts.long_polling
        self._members = peers.members
        self._connections = peers.connections
        self._client = peers.client
        self._steps = steps
        self._bridge = bridge
        self._left = parts.messages.left
        self._one_at_a_time = asyncio.Lock()
        self._returning_until_s = 0.0
        # The link was made for a master that no NameServer knows yet: it does not show that the master delivers.
        self._linked_early = False
        # When it was asked for what a NameServer then told: that this broker has the lowest id.
        self._sure_s = self._acting_since_s = float("-inf")
        bridge.is_sure = self._is_sure
        self._tasks: set[asyncio.Task[None]] = set()

    def routes(self, routes: Routes) -> None:
        """Add the request that this handler serves."""
        routes.add(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, self.notified, MinBrokerIdHeader)

    def notified(self, peer: Peer, request: Request[MinBrokerIdHeader], body: bytes) -> bytes:
        """NOTIFY_MIN_BROKER_ID_CHANGE (905): a NameServer tells the lowest id; it does not read the answer."""
        h, s = request.ext, self._settings
        if h.broker_id is not None and h.address and h.broker_name in (None, "", s.broker_name):
            self._soon(self.take(Lowest(h.broker_id, h.address), h.ha_address))
        return reply(request.opaque)

    def begin(self) -> None:
        """Note that this broker has just registered.

        For a while it acts for no master: a NameServer that has just started may not know a master that lives.
        """
        s = self._settings
        wait_ms = max(s.not_active_timeout_ms, s.registration_ms)
        self._returning_until_s = asyncio.get_running_loop().time() + wait_ms / 1000

    async def told(self, info: HaInfo) -> bytes:
        """Hand the work back to a master that announced its return (906); ends once nothing is delivered here.

        Returns the notes of the messages that left for other brokers.
        """
        await asyncio.shield(self._soon(self._hand_back(info)))
        return self._left.all()

    def _soon(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(self._logged(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _logged(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except RocketSparkError as e:
            log.warning("replication: %s; looked at again soon", e)
        except Exception:
            log.exception("news of this broker's name could not be followed")

    async def stop(self) -> None:
        """Cancel what is under way, and end the sends to other brokers."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._bridge.drain()

    async def look(self) -> None:
        """Ask which brokers with this broker's name are alive, and act, follow or wait.

        Raises RocketSparkError if no NameServer answers.
        """
        asked_s = asyncio.get_running_loop().time()
        found = lowest(await self._members.ask())
        if found is not None:
            unsure_s = asked_s - max(self._sure_s, self._acting_since_s)
            if self._role.kind is Role.ACTING and unsure_s > sure_for_s(self._settings):
                # Others may have acted meanwhile: it begins anew, from what they did.
                async with self._one_at_a_time:
                    await self._stand_back("it hung or was cut off")
            if found.broker_id == self._settings.broker_id:
                self._sure_s = asked_s
            await self.take(found, None)

    def _is_sure(self) -> bool:
        """Tell whether no other broker acts: if this one hung or was cut off, its master may be back."""
        return asyncio.get_running_loop().time() - self._sure_s <= sure_for_s(self._settings)

    async def take(self, found: Lowest, ha_address: str | None) -> None:
        """Act, follow or wait, depending on the lowest id.

        `ha_address`: of the master's replication port, None if not known.
        """
        role = self._role
        if role.is_master or role.kind is Role.FENCED:
            return
        async with self._one_at_a_time:
            role.min_broker_id, role.min_broker_address = found.broker_id, found.address
            returning = asyncio.get_running_loop().time() < self._returning_until_s
            copying = self._client.state is LinkState.TRANSFER and not self._linked_early
            match course(self._settings.broker_id, found.broker_id, copying=copying, returning=returning):
                case Course.ACT:
                    if role.kind is not Role.ACTING:
                        await self._take_over()
                    self._act()
                case Course.FOLLOW:
                    await self._stand_back("the master is back")
                    await self._follow_master(found.address, ha_address)
                case Course.STAND_BY:
                    await self._stand_back(f"the broker with the id {found.broker_id} acts")
                    if not copying and not returning:
                        self._steps.leave_master()
                case Course.WAIT:
                    pass

    # -- changes --------------------------------------------------------------------------------------------------

    async def _take_over(self) -> None:
        """Take what slaves did that acted while this one was away; those that did not have nothing newer."""
        own_id = self._settings.broker_id
        for address in [a for i, a in self._members.addresses.items() if i not in (MASTER_ID, own_id)]:
            try:
                await reverse_synchronize(self._connections, address, self._tables, self._messages)
            except RocketSparkError as e:
                log.warning("what the slave at %s did in the master's place is not known here: %s", address, e)

    def _act(self) -> None:
        role = self._role
        if role.kind is Role.ACTING and self._services.running:
            return
        self._linked_early = False
        self._acting_since_s = asyncio.get_running_loop().time()
        self._steps.leave_master()
        self._claim()
        role.kind, role.reason = Role.ACTING, "the master is gone and this is the lowest id"
        self._bridge.open()
        self._steps.configure()
        self._services.start()
        log.warning(
            "broker %s (id %d) acts for its master, which is gone: reads, offsets, locks; due messages %s",
            self._settings.broker_name,
            self._settings.broker_id,
            "leave to other brokers" if self._settings.remote_escape else "wait (enableRemoteEscape=false)",
        )

    def _claim(self) -> None:
        """Give this slave's tables newer versions than the master's, which takes back only what is not older."""
        offsets, delays, timers = self._tables.offsets, self._messages.delays, self._messages.timers
        offsets.version = next_version(offsets.version, VERSIONS_AHEAD)
        offsets.changes += 1
        delays.version = next_version(delays.version, VERSIONS_AHEAD)
        known = timers.checkpoint()
        timers.take_checkpoint(
            known._replace(
                version_counter=known.version_counter + VERSIONS_AHEAD, version_time_ms=delays.version.timestamp
            )
        )

    async def _stand_back(self, reason: str) -> None:
        """Stop delivering, with the progress saved."""
        role = self._role
        if role.kind is not Role.ACTING:
            return
        await self._bridge.drain()
        await self._services.stop()
        # What is noted counts only with the log on the disk.
        self._store.flush_log()
        await self._services.hand_back()
        role.kind, role.reason = Role.SLAVE, reason
        self._steps.configure()
        log.warning("broker %s (id %d) is a slave again: %s", self._settings.broker_name, role.broker_id, reason)

    async def _hand_back(self, info: HaInfo) -> None:
        """Make way for a master that comes back, then copy from it; its tables are taken once it is registered."""
        async with self._one_at_a_time:
            if self._role.is_master:
                return
            self._returning_until_s = asyncio.get_running_loop().time() + RETURN_S
            await self._stand_back(f"the master at {info.master_address} comes back")
            self._take_flush_offset(info)
            if self._client.address != info.ha_address:
                self._linked_early = True
            self._steps.copy_from(info)
            self._client.retry()

    async def _follow_master(self, address: str, ha_address: str | None) -> None:
        self._returning_until_s, self._linked_early = 0.0, False
        is_new = self._role.master_address != address
        if is_new or self._client.state is not LinkState.TRANSFER:
            if ha_address is None:
                info = await ask_ha_info(self._connections, address)
                if info is None:
                    # It is no master yet, or not any more.
                    return
                self._take_flush_offset(info)
                ha_address = info.ha_address
            self._steps.follow(ha_address, address)
            if self._client.state is not LinkState.TRANSFER:
                self._client.retry()
        if is_new:
            self._long_polling.answer_all()

    def _take_flush_offset(self, info: HaInfo) -> None:
        if self._settings.take_master_flush_offset and not self._store.master_flushed_position:
            self._store.master_flushed_position = info.flush_offset
