"""A controller, alone or in a group: listens, and watches which brokers live. Wiring only."""

from __future__ import annotations

import asyncio

from rocketspark.access.audit import Audit
from rocketspark.access.write_gate import audit_of
from rocketspark.controller.decisions import Leadership
from rocketspark.controller.group.group_journal import GroupJournal
from rocketspark.controller.handlers import ControllerHandlers
from rocketspark.controller.held_elections import Elections
from rocketspark.controller.journal import Journal, StateFile
from rocketspark.controller.live_table import Clock, LiveTable
from rocketspark.controller.role_notices import RoleNotices
from rocketspark.controller.settings import ControllerSettings
from rocketspark.model.limited_log import LimitedLog
from rocketspark.transport.connections import Connections
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.server import Server
from rocketspark.transport.server_bounds import connections_max

log = LimitedLog("rocketspark.controller")

TICK_S = 0.25
SHARE_ALONE = 0.5


class ControllerServer:
    """One controller, on the running loop. `share`: the part of the process's descriptors its connections may take."""

    def __init__(self, settings: ControllerSettings, *, share: float = SHARE_ALONE) -> None:
        self.settings = settings
        self._journal: Journal | GroupJournal
        if settings.own_member is None:
            self._journal = Journal(StateFile(settings.folder))
        else:
            self._journal = GroupJournal(
                settings.folder,
                settings.group,
                settings.own_member,
                settings.members,
                hooks=settings.signer,
                tls=settings.tls.client(),
            )
        self._clock = Clock()
        self._live = LiveTable(self._clock.now_ms)
        self._notices = RoleNotices(Connections(language="JAVA", hooks=settings.signer, tls=settings.tls.client()))
        self._elections = Elections(settings, self._journal, self._live, self._notices)
        routes = Routes()
        routes.gate = settings.gate
        handlers = ControllerHandlers(settings, self._journal, self._live, self._elections, self._leadership)
        handlers.routes(routes)
        if isinstance(self._journal, GroupJournal):
            # What the leader before had no time for: masters that went with it.
            self._journal.leads_now = self._elections.scan
            self._journal.routes(routes)
        self._routes = routes
        self._audit: Audit | None = None
        self._server = Server(routes, on_close=self._peer_closed, tls=settings.tls)
        self._share = share
        self._ticker: asyncio.TimerHandle | None = None
        self._brokers_at_ms = self._masters_at_ms = 0
        self._closing = False
        self.address = ""

    async def start(self) -> None:
        """Read the state and listen; `address` is then set to what brokers are told. Raises ConfigError, StoreError."""
        self._journal.open()
        try:
            if self.settings.gate is not None:
                self._audit = audit_of(self.settings.gate, "controller", self.settings.folder, self._routes)
            self._server.connections_max = connections_max(self._share)
            await self._server.start(self.settings.host, self.settings.port)
        except BaseException:
            await self._journal.close()
            raise
        settings = self.settings
        self.address = settings.listening(self._server.port)
        now_ms = self._clock.tick()
        self._brokers_at_ms = now_ms + settings.scan_brokers_ms
        self._masters_at_ms = now_ms + settings.scan_masters_ms
        self._ticker = asyncio.get_running_loop().call_later(TICK_S, self._tick)
        if isinstance(self._journal, GroupJournal):
            self._journal.begin()
        else:
            log.warning(
                "controller on %s is a single node: while it is down no master is elected, and its state (in %s) has no"
                " copy",
                self.address,
                settings.folder,
            )

    @property
    def leads(self) -> bool:
        """True while this controller may decide."""
        return self._journal.leads

    def _leadership(self) -> Leadership:
        node = self.settings.node
        if not isinstance(self._journal, GroupJournal):
            return Leadership(node, self.address, True, f"{node}:{self.address};")
        peers = "".join(f"{each.node}:{each.address};" for each in self._journal.members)
        leader = self._journal.leader
        if leader is None:
            return Leadership("", "", False, peers)
        return Leadership(leader.node, leader.address, leader.node == node, peers)

    def _tick(self) -> None:
        try:
            if self._audit is not None:
                self._audit.tick()
            self._scan(self._clock.tick())
        finally:
            # After any error: masters that are gone would else never be replaced.
            self._ticker = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _scan(self, now_ms: int) -> None:
        settings = self.settings
        # A shorter interval that was set meanwhile holds at once.
        self._brokers_at_ms = min(self._brokers_at_ms, now_ms + settings.scan_brokers_ms)
        self._masters_at_ms = min(self._masters_at_ms, now_ms + settings.scan_masters_ms)
        if now_ms >= self._brokers_at_ms:
            self._brokers_at_ms = now_ms + settings.scan_brokers_ms
            for broker in self._live.expire():
                self._elections.gone(broker, "is silent")
        if now_ms >= self._masters_at_ms:
            self._masters_at_ms = now_ms + settings.scan_masters_ms
            self._elections.scan()

    def _peer_closed(self, peer: Peer) -> None:
        # Connections that this controller closes itself, as it stops, say nothing about brokers.
        if not self._closing:
            for broker in self._live.closed(peer):
                self._elections.gone(broker, "closed its connection")

    async def close(self) -> None:
        """Stop listening, close all connections, finish what is being written."""
        self._closing = True
        if self._ticker:
            self._ticker.cancel()
        await self._elections.close()
        await self._server.close()
        await self._notices.close()
        if self._audit is not None:
            self._audit.close()
        await self._journal.close()
