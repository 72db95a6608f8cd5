"""A NameServer: listens, and drops brokers that are silent or gone. Wiring only."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rocketspark.access.audit import Audit
from rocketspark.access.write_gate import WriteGate, audit_of
from rocketspark.model.limited_log import LimitedLog
from rocketspark.namesrv.handlers import AdminHandlers, NameServerHandlers, TopicLists, now_ms
from rocketspark.namesrv.kv_config import KvConfig
from rocketspark.namesrv.min_id_notices import MinIdNotices
from rocketspark.namesrv.registry import Registry
from rocketspark.namesrv.settings import DEFAULT_PORT, SCAN_S, Settings
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.request_signer import RequestSigner
from rocketspark.transport.server import Server
from rocketspark.transport.server_bounds import connections_max
from rocketspark.transport.tls.settings import TlsSettings

log = LimitedLog("rocketspark.namesrv")

SHARE_ALONE, SHARE_BESIDE_A_BROKER = 0.5, 0.25
# A look that comes so much too late tells that this process stood still, or was very busy.
LATE_MS = 1000


class NameServer:
    """One NameServer. `settings`: from a namesrv.conf; without it the arguments before it count.

    `kv_path`: the file of the key-value tables, None for memory only. `order_topics`: give the order settings of topics
    with their routes (rule: orderMessageEnable, off by default). `share`: which part of this process's descriptors its
    connections may take: beside a broker half of the usual one, so that clients of the NameServer leave the broker its
    own. `tls`, `signer`: used in place of the settings' own.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        *,
        kv_path: str | Path | None = None,
        order_topics: bool = False,
        scan_s: float = SCAN_S,
        settings: Settings | None = None,
        share: float = SHARE_ALONE,
        tls: TlsSettings | None = None,
        signer: RequestSigner | None = None,
    ) -> None:
        self.settings = settings or Settings(
            host=host, port=port, order_topics=order_topics, scan_s=scan_s, kv_path=str(kv_path or "")
        )
        self.settings.tls = tls or self.settings.tls
        self.settings.signer = signer or self.settings.signer
        self.settings.changed = self._settings_changed
        self._notices = MinIdNotices(self.settings.tls.client(), self.settings.signer)
        self.registry = Registry(self.settings, self._notices.send)
        kv = KvConfig(Path(self.settings.kv_path) if self.settings.kv_path else None)
        routes = Routes()
        routes.gate = self.settings.gate
        self._routes = routes
        lists = TopicLists(self.registry)
        NameServerHandlers(self.registry, kv, self.settings, lists).routes(routes)
        AdminHandlers(self.registry, self.settings, lists).routes(routes)
        self._server = Server(routes, on_close=self._peer_closed, idle_s=self.settings.idle_s, tls=self.settings.tls)
        self._share = share
        self._audit: Audit | None = None
        self._scanner: asyncio.TimerHandle | None = None
        self._scan_due_ms = 0
        self._settling = False

    @property
    def address(self) -> str:
        """ "host:port" that it listens on."""
        return self._server.address

    def let_write(self, secrets: dict[str, str], audit_path: str = "") -> None:
        """Take changes only from those who sign with one of these secrets, by access key; called before `start`.

        `audit_path`: the file in which changes are noted, "" for none.
        """
        self.settings.gate = self._routes.gate = WriteGate(secrets, audit_path=audit_path)

    async def start(self) -> None:
        """Listen. Raises ConfigError if the port cannot be had."""
        s = self.settings
        if s.gate is not None:
            self._audit = audit_of(s.gate, "namesrv", str(Path(s.kv_path).parent) if s.kv_path else "", self._routes)
        self._server.connections_max = connections_max(self._share)
        await self._server.start(self.settings.host, self.settings.port)
        self.settings.listening(self.address)
        self._scan_later()
        log.info("NameServer listens on %s", self.address)

    def _scan_later(self) -> None:
        self._scan_due_ms = now_ms() + int(self.settings.scan_s * 1000)
        self._scanner = asyncio.get_running_loop().call_later(self.settings.scan_s, self._scan)

    def _scan(self) -> None:
        try:
            now = now_ms()
            if now - self._scan_due_ms > LATE_MS:
                self.registry.heard_all(now)
            if self._audit is not None:
                self._audit.tick()
            for broker in self.registry.expire(now):
                log.warning("broker %s (%s) is silent: dropped", broker.broker_name, broker.address)
                # One that hangs is done with; one that lives connects and registers anew.
                if isinstance(broker.connection, Peer) and not self.registry.is_used(broker.connection):
                    broker.connection.close()
            self._settle()
        finally:
            # After any error: silent brokers would else stay for ever.
            self._scan_later()

    def _peer_closed(self, peer: Peer) -> None:
        for broker in self.registry.disconnected(peer):
            log.warning("broker %s (%s) closed its connection: dropped", broker.broker_name, broker.address)
        self._settle()

    def _settle(self) -> None:
        """Have the topics of brokers that left taken out, a step in each turn of the loop."""
        if not self._settling and not self.registry.is_settled:
            self._settling = True
            asyncio.get_running_loop().call_soon(self._settle_on)

    def _settle_on(self) -> None:
        next(self.registry.settle(), None)
        self._settling = False
        self._settle()

    def _settings_changed(self) -> None:
        self._server.set_idle(self.settings.idle_s)

    async def close(self) -> None:
        """Stop listening and close all connections."""
        if self._scanner:
            self._scanner.cancel()
        await self._server.close()
        await self._notices.close()
        if self._audit is not None:
            self._audit.close()
