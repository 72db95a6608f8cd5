"""The requests of a broker to its controllers.

Rule: one connection to each controller is kept open, because a controller takes its end for the end of the broker. Any
controller tells which one leads; that is remembered, and asked again once the leader does not answer or no longer
leads. The codes with which a controller refuses are raised as ServerError (ResponseCode.CONTROLLER_…).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from typing import NamedTuple

from rocketspark import machine
from rocketspark.errors import NotSent, RocketSparkError, ServerError, TransportError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import Header
from rocketspark.protocol.headers.controller import (
    AlterSyncStateSetHeader,
    AlterSyncStateSetReply,
    ApplyBrokerIdHeader,
    BrokerSetHeader,
    ControllerMetadataReply,
    ElectMasterHeader,
    ElectMasterReply,
    NextBrokerIdReply,
    RegisterToControllerHeader,
    RegisterToControllerReply,
    ReplicaHeartbeatHeader,
    ReplicaInfoHeader,
    ReplicaInfoReply,
)
from rocketspark.protocol.json import bodies, java_json
from rocketspark.protocol.json.operator_bodies import ElectMasterBody, ReplicasInfo, ReplicasOfSet, SyncStateSet
from rocketspark.transport.connections import Connections
from rocketspark.transport.request_frames import Reply

# A controller may be away for long, and is told each second.
log = LimitedLog("rocketspark.broker", lines_max=1, period_s=60.0)

TIMEOUT_MS = 3000
# After so long without an answer of one controller another one is asked who leads.
NEXT_S = 1.0


class Master(NamedTuple):
    """The master of a replica set, by what the controller sent last.

    `epoch`: how often the master has changed; `set_epoch`: how often the in-sync set has; `awaits_word`: the controller
    waits for this master's first request for its in-sync set, before which the master takes no messages.
    """

    broker_id: int
    address: str
    epoch: int
    set_epoch: int
    awaits_word: bool = False


class SetState(NamedTuple):
    """A replica set as its controller has it. `master`: None if there is none, or, after a registration, if it is dead.

    `epoch`: the master's, None if it was not told; `ends_earlier`: the controller will refuse the requests that the
    asking master sent before this one and that arrive after it.
    """

    master: Master | None
    epoch: int | None
    in_sync: frozenset[int]
    set_epoch: int
    ends_earlier: bool = False


class Elected(NamedTuple):
    """The result of an election. `new`: False if the previous master stays master."""

    master: Master
    in_sync: frozenset[int]
    new: bool


class AcceptedSet(NamedTuple):
    """The in-sync set that the controller accepted, with its epoch."""

    members: frozenset[int]
    epoch: int


class LiveReplica(NamedTuple):
    """Where a live replica listens, and whether the controller has it as master."""

    address: str
    is_master: bool


class ControllerClient:
    """Sends a broker's requests to the leader of its controllers. `addresses`: "host:port" of each; they may change."""

    def __init__(
        self, addresses: Iterable[str], *, timeout_ms: float = TIMEOUT_MS, connections: Connections | None = None
    ) -> None:
        self.addresses = list(addresses)
        self._timeout_ms = timeout_ms
        self._connections = connections or Connections(connect_timeout_ms=timeout_ms, language="JAVA")
        self.leader: str | None = None
        # This process, and how many requests about its in-sync set it made.
        self._asker, self._asked = machine.randbits(62), 0

    async def find_leader(self) -> str:
        """Return the address of the controller that leads, by asking one after the other. Raises TransportError.

        One that does not answer soon is not waited for: the next is asked beside it.
        """
        failed: list[str] = []
        left = list(dict.fromkeys([*([self.leader] if self.leader else []), *self.addresses]))
        asked: dict[asyncio.Task[ControllerMetadataReply], str] = {}
        try:
            while left or asked:
                if left:
                    address = left.pop(0)
                    asked[asyncio.ensure_future(self.metadata(address))] = address
                await asyncio.wait(asked, timeout=NEXT_S if left else None, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in asked if task.done()]:
                    address = asked.pop(task)
                    try:
                        leader = task.result().controller_leader_address
                    except RocketSparkError as e:
                        failed.append(str(e))
                        continue
                    if leader:
                        self.leader = leader
                        return leader
                    failed.append(f"{address} knows no leader")
        finally:
            for task in asked:
                if not task.cancel():
                    task.exception()
        self.leader = None
        raise NotSent(f"no controller leads: {'; '.join(failed) or 'no address is set'}")

    async def metadata(self, address: str) -> ControllerMetadataReply:
        """Return what one controller says of its group: who leads. Raises TransportError, ServerError."""
        reply = await self._ask(address, RequestCode.CONTROLLER_GET_METADATA_INFO, None)
        return reply.raise_for_code("controller's metadata").header(ControllerMetadataReply)

    async def next_id(self, cluster: str, broker_name: str) -> int:
        """Return the id that a new replica may apply for. Raises TransportError, ServerError."""
        header = BrokerSetHeader(cluster_name=cluster, broker_name=broker_name)
        reply = await self._ask_leader(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, header)
        return reply.raise_for_code("next broker id").header(NextBrokerIdReply).next_broker_id

    async def apply_id(self, cluster: str, broker_name: str, broker_id: int, check_code: str) -> None:
        """Apply for an id; an id that was granted for the same check code before is granted again.

        Raises ServerError 2014 if another broker has it; TransportError.
        """
        header = ApplyBrokerIdHeader(
            cluster_name=cluster,
            broker_name=broker_name,
            applied_broker_id=broker_id,
            register_check_code=check_code,
        )
        reply = await self._ask_leader(RequestCode.CONTROLLER_APPLY_BROKER_ID, header)
        reply.raise_for_code(f"apply for id {broker_id} of {broker_name}")

    async def register(self, cluster: str, broker_name: str, broker_id: int, address: str) -> SetState:
        """Tell where this broker listens. Raises ServerError 2010 if its id is not known; TransportError."""
        header = RegisterToControllerHeader(
            cluster_name=cluster,
            broker_name=broker_name,
            broker_id=broker_id,
            broker_address=address,
            invoke_time=_now_ms(),
        )
        reply = await self._ask_leader(RequestCode.CONTROLLER_REGISTER_BROKER, header)
        found = reply.raise_for_code(f"register {broker_id} of {broker_name}").header(RegisterToControllerReply)
        return _state(found, reply.body)

    async def elect(
        self, cluster: str, broker_name: str, broker_id: int, *, designate: bool = False, may_lack: bool = False
    ) -> Elected:
        """Ask the controller to elect a master, if there is none. `designate`: elect this broker and no other.

        `may_lack`: this broker is the elected master and may lack acknowledged messages: the controller is to elect a
        replica that holds them in its place; with `designate` this broker again, in a new epoch.

        Raises ServerError 2012 if no broker can be elected, 2010 if the set is not known; TransportError.
        """
        header = ElectMasterHeader(
            cluster_name=cluster,
            broker_name=broker_name,
            broker_id=broker_id,
            designate_elect=designate,
            invoke_time=_now_ms(),
            may_lack=may_lack or None,
        )
        reply = await self._ask_leader(RequestCode.CONTROLLER_ELECT_MASTER, header)
        reply.raise_for_code(f"elect a master of {broker_name}", ResponseCode.CONTROLLER_MASTER_STILL_EXIST)
        found = reply.header(ElectMasterReply)
        in_sync = java_json.decode(reply.body, ElectMasterBody).sync_state_set if reply.body else []
        master = _master(found, found.sync_state_set_epoch or 0)
        if master is None:
            raise ServerError(
                ResponseCode.CONTROLLER_ELECT_MASTER_FAILED,
                "the controller named no master",
                address=reply.address,
                doing=f"elect a master of {broker_name}",
            )
        return Elected(master, frozenset(in_sync), reply.code == 0)

    async def alter_in_sync(
        self, broker_name: str, master_id: int, master_epoch: int, members: Iterable[int], set_epoch: int
    ) -> AcceptedSet:
        """Ask the controller, as the master, for a new in-sync set. `set_epoch`: the epoch of the present set.

        Raises ServerError: 2000, 2001 another epoch, 2002 not the master, 2003 or 2006 an unknown or dead member, 2013
        the same set; TransportError, after which the controller may have either set.
        """
        self._asked += 1
        header = AlterSyncStateSetHeader(
            broker_name=broker_name,
            master_broker_id=master_id,
            master_epoch=master_epoch,
            invoke_time=_now_ms(),
            asker=self._asker,
            asked=self._asked,
        )
        wanted = SyncStateSet(sync_state_set=sorted(members), sync_state_set_epoch=set_epoch)
        reply = await self._ask_leader(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, header, bodies.encode(wanted))
        epoch = reply.raise_for_code(f"in-sync set of {broker_name}").header(AlterSyncStateSetReply)
        taken = java_json.decode(reply.body, SyncStateSet) if reply.body else wanted
        return AcceptedSet(frozenset(taken.sync_state_set), epoch.new_sync_state_set_epoch)

    async def replica_info(self, broker_name: str, master_id: int | None = None) -> SetState:
        """Return a set as the controller has it. Raises ServerError 2008 if it is not known; TransportError.

        `master_id`: given by the set's master about itself. A controller of ours then refuses this master's earlier
        requests for another in-sync set, should they arrive later over a connection that was lost.
        """
        header = ReplicaInfoHeader(broker_name=broker_name)
        if master_id is not None:
            self._asked += 1
            header = ReplicaInfoHeader(
                broker_name=broker_name, master_broker_id=master_id, asker=self._asker, asked=self._asked
            )
        reply = await self._ask_leader(RequestCode.CONTROLLER_GET_REPLICA_INFO, header)
        found = reply.raise_for_code(f"replicas of {broker_name}").header(ReplicaInfoReply)
        state = _state(found, reply.body)
        return state._replace(ends_earlier=header.asked is not None and found.asked == header.asked)

    async def live_replica(self, broker_name: str, broker_id: int) -> LiveReplica | None:
        """Return where a replica listens; None for one that is not alive, or not known. Raises TransportError."""
        s = await self._replicas(broker_name)
        if s is None:
            return None
        for found in [*s.in_sync_replicas, *s.not_in_sync_replicas]:
            if found.broker_id == broker_id and found.alive:
                return LiveReplica(found.broker_address, s.master_broker_id == broker_id)
        return None

    async def live_in_sync(self, broker_name: str) -> set[int]:
        """Return the numbers of those in sync that are alive. Raises TransportError."""
        s = await self._replicas(broker_name)
        return set() if s is None else {found.broker_id for found in s.in_sync_replicas if found.alive}

    async def may_hold_all(self, broker_name: str, broker_id: int) -> bool:
        """Tell whether a replica's log may have to hold all that was acknowledged. Raises ServerError, TransportError.

        It is False where a master took office without it, or no broker ever did.
        """
        try:
            found = await self.replica_info(broker_name)
        except ServerError as e:
            if e.code == ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST:
                return False
            raise
        # Who was in sync before an election is not told: it counts until the elected one has begun.
        began = found.master is not None and not found.master.awaits_word
        return broker_id in found.in_sync or (bool(found.in_sync) and not began)

    async def _replicas(self, broker_name: str) -> ReplicasOfSet | None:
        names = bodies.encode([broker_name])
        reply = await self._ask_leader(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, Header(), names)
        if reply.code or not reply.body:
            return None
        return java_json.decode(reply.body, ReplicasInfo).replicas_info_table.get(broker_name)

    async def heartbeat(self, header: ReplicaHeartbeatHeader) -> None:
        """Tell the leader that this broker lives, and wait for the reply, as is needed before an election is asked for.

        Raises TransportError, ServerError.
        """
        header.asker = self._asker
        reply = await self._ask_leader(RequestCode.BROKER_HEARTBEAT, header)
        reply.raise_for_code("heartbeat to the controller")

    async def heartbeat_all(self, header: ReplicaHeartbeatHeader) -> int:
        """Send every controller a one-way heartbeat; return to how many it could be sent."""
        header.asker = self._asker
        addresses = list(dict.fromkeys([*self.addresses, *([self.leader] if self.leader else [])]))
        told = await asyncio.gather(*(self._tell(address, header) for address in addresses))
        return sum(told)

    async def _tell(self, address: str, header: ReplicaHeartbeatHeader) -> bool:
        try:
            peer = await self._connections.get(address)
            peer.oneway(RequestCode.BROKER_HEARTBEAT, header)
        except RocketSparkError as e:
            log.info("controller %s was not told that this broker lives: %s", address, e)
            return False
        return True

    async def _ask(self, address: str, code: int, header: Header | None, body: bytes = b"") -> Reply:
        peer = await self._connections.get(address)
        return await peer.request(code, header, body, timeout_ms=self._timeout_ms)

    async def _ask_while_it_leads(self, leader: str, code: int, header: Header, body: bytes) -> Reply:
        """Ask the leader; one that is silent is given up once another controller says that another one leads.

        Raises TransportError, after which the request may have been carried out.
        """
        others = itertools.cycle([address for address in self.addresses if address != leader])
        asking = asyncio.ensure_future(self._ask(leader, code, header, body))
        looking: asyncio.Task[ControllerMetadataReply] | None = None
        try:
            while not (await asyncio.wait([asking], timeout=NEXT_S))[0] and (other := next(others, None)) is not None:
                looking = asyncio.ensure_future(self.metadata(other))
                await asyncio.wait([asking, looking], timeout=NEXT_S, return_when=asyncio.FIRST_COMPLETED)
                if looking.done() and looking.exception() is None and not asking.done():
                    found = looking.result().controller_leader_address
                    if found and found != leader:
                        self.leader = found
                        raise TransportError(f"{leader} does not answer, and {found} leads by now", address=leader)
                looking.cancel()
            return await asking
        finally:
            for task in (asking, looking):
                if task is not None and not task.cancel() and not task.cancelled():
                    task.exception()

    async def _ask_leader(self, code: int, header: Header, body: bytes = b"") -> Reply:
        """Ask the leader; look for another leader once if this one no longer leads or cannot be reached."""
        known = self.leader
        leader = known or await self.find_leader()
        try:
            reply = await self._ask_while_it_leads(leader, code, header, body)
        except NotSent:
            self.leader = None
            if known is None:
                raise
            return await self._ask_while_it_leads(await self.find_leader(), code, header, body)
        except TransportError:
            # It may have been carried out: not asked again here.
            if self.leader == leader:
                self.leader = None
            raise
        if reply.code != ResponseCode.CONTROLLER_NOT_LEADER:
            return reply
        self.leader = None
        try:
            return await self._ask(await self.find_leader(), code, header, body)
        except NotSent as e:
            # It was: who leads no more may have written it before, and the next leader may find it agreed on.
            raise TransportError(str(e), address=leader) from None

    async def close(self) -> None:
        """Close the connections; the controllers then take this broker for gone."""
        await self._connections.close()


def _master(h: RegisterToControllerReply | ElectMasterReply | ReplicaInfoReply, set_epoch: int) -> Master | None:
    if h.master_broker_id is None or not h.master_address:
        return None
    return Master(h.master_broker_id, h.master_address, h.master_epoch or 0, set_epoch, bool(h.awaits_word))


def _state(h: RegisterToControllerReply | ReplicaInfoReply, body: bytes) -> SetState:
    members = java_json.decode(body, SyncStateSet) if body else SyncStateSet()
    set_epoch = members.sync_state_set_epoch
    return SetState(_master(h, set_epoch), h.master_epoch, frozenset(members.sync_state_set), set_epoch)


def _now_ms() -> int:
    return machine.time_ns() // 1_000_000
