"""The controller's request handlers. Rule: what changes a set is answered once it is on the disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rocketspark.controller import replicas_info
from rocketspark.controller.decisions import Decisions, Leadership
from rocketspark.controller.group.entries import State
from rocketspark.controller.held_elections import Elections
from rocketspark.controller.live_table import LiveTable
from rocketspark.controller.replicas_info import Decision
from rocketspark.controller.settings import ControllerSettings
from rocketspark.errors import ServerError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import Request
from rocketspark.protocol.headers.controller import (
    AlterSyncStateSetHeader,
    ApplyBrokerIdHeader,
    BrokerSetHeader,
    CleanBrokerDataHeader,
    ControllerMetadataReply,
    ElectMasterHeader,
    RegisterToControllerHeader,
    ReplicaHeartbeatHeader,
    ReplicaInfoHeader,
)
from rocketspark.protocol.json import java_json
from rocketspark.protocol.json.operator_bodies import SyncStateSet
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.request_frames import reply

log = LimitedLog("rocketspark.controller")

NAMES_MAX = 10_000


class ControllerHandlers:
    """Serves the requests to one controller. `leadership`: returns which controller leads."""

    def __init__(
        self,
        settings: ControllerSettings,
        journal: Decisions,
        live: LiveTable,
        elections: Elections,
        leadership: Callable[[], Leadership],
    ) -> None:
        self._settings = settings
        self._journal = journal
        self._live = live
        self._elections = elections
        self._leadership = leadership

    def routes(self, routes: Routes) -> None:
        """Add what this handler serves."""
        add = routes.add
        add(RequestCode.BROKER_HEARTBEAT, self.heartbeat, ReplicaHeartbeatHeader)
        add(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, self.alter, AlterSyncStateSetHeader)
        add(RequestCode.CONTROLLER_ELECT_MASTER, self.elect, ElectMasterHeader)
        add(RequestCode.CONTROLLER_REGISTER_BROKER, self.register, RegisterToControllerHeader)
        add(RequestCode.CONTROLLER_GET_REPLICA_INFO, self.replica_info, ReplicaInfoHeader)
        add(RequestCode.CONTROLLER_GET_METADATA_INFO, self.metadata)
        add(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, self.sync_state)
        add(RequestCode.UPDATE_CONTROLLER_CONFIG, self.update_config)
        add(RequestCode.GET_CONTROLLER_CONFIG, self.config)
        add(RequestCode.CLEAN_BROKER_DATA, self.clean, CleanBrokerDataHeader)
        add(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, self.next_id, BrokerSetHeader)
        add(RequestCode.CONTROLLER_APPLY_BROKER_ID, self.apply_id, ApplyBrokerIdHeader)

    def heartbeat(self, peer: Peer, request: Request[ReplicaHeartbeatHeader], body: bytes) -> bytes:
        """BROKER_HEARTBEAT (904): note that the broker lives, and where its log ends."""
        if request.ext.broker_id is None:
            raise ServerError(ResponseCode.CONTROLLER_INVALID_REQUEST, "a heartbeat needs the broker's id")
        if not self._live.heard(request.ext, request.ext.broker_id, peer):
            log.warning("%s: a heartbeat was dropped, as many brokers as possible are known", peer.address)
            raise ServerError(ResponseCode.SYSTEM_BUSY, "as many brokers as possible are known")
        return reply(request.opaque)

    def metadata(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """CONTROLLER_GET_METADATA_INFO (1005): tell which controller leads, as far as this one knows."""
        found = self._leadership()
        return reply(
            request.opaque,
            header=ControllerMetadataReply(
                group=self._settings.group,
                controller_leader_id=found.node or None,
                controller_leader_address=found.address or None,
                is_leader=found.is_own,
                peers=found.peers,
            ),
        )

    async def next_id(self, peer: Peer, request: Request[BrokerSetHeader], body: bytes) -> bytes:
        """CONTROLLER_GET_NEXT_BROKER_ID (1012): tell an id that no broker of the set has or had."""
        h = request.ext
        return _answer(request, await self._journal.carry_out(lambda state: replicas_info.next_id(state.sets, h)))

    async def replica_info(self, peer: Peer, request: Request[ReplicaInfoHeader], body: bytes) -> bytes:
        """CONTROLLER_GET_REPLICA_INFO (1004): tell a set's master and in-sync set, after all changes under way.

        A master that asks about its own set gives up its earlier requests for another in-sync set: they are refused
        from now on.
        """
        h = request.ext
        return _answer(request, await self._journal.carry_out(lambda state: replicas_info.replica_info(state.sets, h)))

    async def sync_state(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """CONTROLLER_GET_SYNC_STATE_DATA (1006): masters and in-sync sets of the broker sets named."""
        names = java_json.decode_request(body, list[str]) if body else []
        if not 0 < len(names) <= NAMES_MAX:
            raise ServerError(ResponseCode.SYSTEM_ERROR, f"1 to {NAMES_MAX} names of brokers are needed")
        decision = await self._journal.carry_out(lambda state: replicas_info.sync_state(state.sets, names, self._live))
        return _answer(request, decision)

    async def apply_id(self, peer: Peer, request: Request[ApplyBrokerIdHeader], body: bytes) -> bytes:
        """CONTROLLER_APPLY_BROKER_ID (1013): give a broker the id that it applies for, if it is free or its own."""
        h = request.ext
        decision = await self._journal.carry_out(lambda state: replicas_info.apply_id(state.sets, h))
        if decision.events:
            log.info("%s: id %d is that of %s", h.broker_name, h.applied_broker_id, h.register_check_code)
        return _answer(request, decision)

    async def register(self, peer: Peer, request: Request[RegisterToControllerHeader], body: bytes) -> bytes:
        """CONTROLLER_REGISTER_BROKER (1003): note a broker's address, and tell it the master if that lives."""
        h = request.ext
        decision = await self._journal.carry_out(lambda state: replicas_info.register(state.sets, h, self._live))
        if decision.events:
            log.info("%s: %d listens on %s now", h.broker_name, h.broker_id, h.broker_address)
        return _answer(request, decision)

    async def alter(self, peer: Peer, request: Request[AlterSyncStateSetHeader], body: bytes) -> bytes:
        """CONTROLLER_ALTER_SYNC_STATE_SET (1001): the master of a broker set asks for another in-sync set."""
        h, wanted = request.ext, java_json.decode_request(body, SyncStateSet)

        def decide(state: State) -> Decision:
            return replicas_info.alter(state.sets, h, wanted, self._live, state.looked.get(h.broker_name))

        decision = await self._journal.carry_out(decide)
        if decision.events:
            log.info("%s: %s are in sync with master %d", h.broker_name, wanted.sync_state_set, h.master_broker_id)
        else:
            log.info("%s", decision.remark)
        return _answer(request, decision)

    async def elect(self, peer: Peer, request: Request[ElectMasterHeader], body: bytes) -> bytes:
        """CONTROLLER_ELECT_MASTER (1002): elect the master of a broker set, for a broker or an operator."""
        how = "was chosen by an operator" if request.ext.designate_elect else f"{request.ext.broker_id} asked"
        return _answer(request, await self._elections.hold(request.ext, how))

    async def clean(self, peer: Peer, request: Request[CleanBrokerDataHeader], body: bytes) -> bytes:
        """CLEAN_BROKER_DATA (1011): forget brokers of a set, or the whole set."""
        h = request.ext
        decision = await self._journal.carry_out(lambda state: replicas_info.clean(state.sets, h, self._live))
        if decision.events:
            log.warning("%s: %s cleaned by %s", h.broker_name, h.broker_controller_ids_to_clean or "all", peer.address)
        return _answer(request, decision)

    def config(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """GET_CONTROLLER_CONFIG (1010): the controller's settings, as lines of text."""
        return reply(request.opaque, body=self._settings.document().encode())

    def update_config(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """UPDATE_CONTROLLER_CONFIG (1009): change settings while the controller runs."""
        changed = self._settings.update(body.decode("utf-8", "replace"))
        if changed:
            log.info("%s changed by %s", ", ".join(changed), peer.address)
        return reply(request.opaque)


def _answer(request: Request[Any], decision: Decision) -> bytes:
    return reply(request.opaque, decision.code, decision.header, decision.body, remark=decision.remark)
