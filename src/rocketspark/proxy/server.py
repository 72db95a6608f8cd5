"""A proxy: RocketMQ 5's gRPC protocol in front of the brokers that its NameServers name. Wiring only: what producers
ask, what consumers ask, and the rest, put together.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc

from rocketspark.access.audit import Audit
from rocketspark.errors import ConfigError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import CheckTransactionHeader, NotifyUnsubscribeLiteHeader
from rocketspark.protocol.pop_answers import ReceiptHandle
from rocketspark.proxy.brokers import Brokers, retry_wait_ms
from rocketspark.proxy.call import CallTimes
from rocketspark.proxy.checks import SendLimits
from rocketspark.proxy.clients import GRACE_S, Clients, ProxyClient, Telemetry
from rocketspark.proxy.consuming.group_members import GroupMembers, Questions
from rocketspark.proxy.consuming.handle_calls import HandleCalls, Held, changed, now_ms
from rocketspark.proxy.consuming.lite_subscriptions import LiteSubscriptions
from rocketspark.proxy.consuming.outcomes import Outcomes
from rocketspark.proxy.consuming.receive import Receives
from rocketspark.proxy.consuming.renewals import Renewals, RenewSettings
from rocketspark.proxy.guard import AccessControl
from rocketspark.proxy.health import Tools
from rocketspark.proxy.metrics import Metrics
from rocketspark.proxy.port import HOST, Port
from rocketspark.proxy.producing.producer_groups import Orphans, ProducerGroups
from rocketspark.proxy.producing.send import Recalls, Sends
from rocketspark.proxy.producing.transactions import TransactionData, Transactions, monotonic_ms
from rocketspark.proxy.remoting import Behind, RemotingRelay
from rocketspark.proxy.routes import QueryRoutes
from rocketspark.proxy.service import Service
from rocketspark.proxy.settings import ProxySettings
from rocketspark.transport.metrics.settings import DISABLE
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import RpcHooks
from rocketspark.transport.tls.client_tls import ClientTls
from rocketspark.transport.tls.settings import TlsSettings

log = LimitedLog("rocketspark.proxy")

END_S = 2.0


class Consuming:
    """What a proxy does for consumers: serves ReceiveMessage and the calls about received messages, gives back the
    messages of clients that vanished, tells brokers of consumers, and answers what brokers ask about them.
    """

    def __init__(self, settings: ProxySettings, brokers: Brokers, clients: Clients, service: Service) -> None:
        self._brokers = brokers
        self._interval_s = settings.renew_interval_ms / 1000
        self.calls = HandleCalls(brokers, settings.invisible_ms_of_undelivered)
        how = RenewSettings(settings.renew_ahead_ms, settings.renew_ms_max, settings.renew_failures_max)
        self.renewals = Renewals(self._change, self._retry_wait_ms, now_ms, how)
        self._task: asyncio.Task[None] | None = None
        outcomes = Outcomes(
            settings, brokers, self.calls, self.renewals, lambda identity: clients.get(identity) is not None
        )
        self.receives = Receives(settings, brokers, clients, self.calls, self.renewals)
        service.serve("ReceiveMessage", self.receives.receive_message)
        service.serve("AckMessage", outcomes.ack_message)
        service.serve("ChangeInvisibleDuration", outcomes.change_invisible_duration)
        service.serve("ForwardMessageToDeadLetterQueue", outcomes.forward)
        lite = LiteSubscriptions(settings, brokers, clients)
        service.serve("SyncLiteSubscription", lite.sync)
        brokers.requests.add(RequestCode.NOTIFY_UNSUBSCRIBE_LITE, lite.unsubscribed, NotifyUnsubscribeLiteHeader)
        clients.when_gone(lite.gone)
        questions = Questions(clients, self.renewals, settings.namesrv, settings.relay_timeout_ms)
        self.members = GroupMembers(
            brokers,
            clients,
            lambda language: brokers.connections(questions.routes, language),
            settings.heartbeat_interval_ms / 1000,
        )
        clients.when_told(self.members.changed)
        clients.when_gone(self.members.gone)
        clients.when_gone(self._gone)

    async def _change(self, held: Held, invisible_ms: int) -> ReceiptHandle | None:
        reply = await self.calls.change(held, invisible_ms)
        return None if reply.code else changed(held.handle, reply)

    async def _retry_wait_ms(self, group: str, attempts: int) -> int | None:
        config = await self._brokers.group(group)
        return None if config is None else retry_wait_ms(config.group_retry_policy, attempts)

    async def _gone(self, client: ProxyClient) -> None:
        self.calls.give_back(await self.renewals.take_all(client.identity), had=True)

    def begin(self) -> None:
        """Begin the work in the background: renewing handles, and telling brokers of consumers."""
        self._task = asyncio.ensure_future(self._renew())
        self.members.begin()

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                self.renewals.begin_due()
            except Exception as e:
                log.exception("handles were not renewed: %s", e)

    async def close(self) -> None:
        """Give the messages that clients hold back to the brokers, since nobody renews them now; end the tasks."""
        task: asyncio.Task[Any] | None = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
        await self.renewals.close()
        await self.members.close()
        for client in self.renewals.clients():
            self.calls.give_back(await self.renewals.take_all(client), had=True)
        await self.calls.settle(END_S)


class Producing:
    """What a proxy does for producers: serves SendMessage, EndTransaction and RecallMessage, and answers what brokers
    ask about transactions.
    """

    def __init__(self, settings: ProxySettings, brokers: Brokers, clients: Clients, service: Service) -> None:
        limits = SendLimits(
            body_bytes_max=settings.body_bytes_max,
            empty_bodies=not settings.body_must_not_be_empty,
            user_properties_max=settings.user_properties_max,
            user_properties_bytes_max=settings.user_properties_bytes_max,
            message_group_bytes_max=settings.message_group_bytes_max,
            lite_topic_bytes_max=settings.lite_topic_bytes_max,
            delay_ms_max=settings.delay_ms_max,
            recovery_s_max=settings.transaction_recovery_s_max,
            use_delay_level=settings.use_delay_level,
        )
        self._data = TransactionData(settings.transaction_data_ms, settings.transaction_data_max)
        check = settings.check_topic_type
        self.sends = Sends(brokers, self._data, limits, check_types=check)
        self._groups = ProducerGroups(brokers, clients, settings.heartbeat_interval_ms / 1000)
        self._orphans = Orphans(brokers, clients, self._data)
        service.serve("SendMessage", self.sends.send_message)
        service.serve("EndTransaction", Transactions(brokers, self._data).end_transaction)
        service.serve("RecallMessage", Recalls(brokers, check_types=check).recall_message)
        brokers.requests.add(RequestCode.CHECK_TRANSACTION_STATE, self._orphans.asked, CheckTransactionHeader)
        clients.when_told(self._groups.changed)
        clients.when_gone(self._groups.gone)

    def begin(self) -> None:
        """Begin the work in the background: telling brokers of producer groups."""
        self._groups.begin()

    def sweep(self) -> None:
        """Forget transactions that were noted too long ago."""
        self._data.sweep(monotonic_ms())

    async def close(self) -> None:
        """End the work in the background."""
        await self._groups.close()


SWEEP_S = 5.0
# Calls at work of one connection.
STREAMS_MAX = 10_000
# Past this number gRPC cancels calls by lot, of anybody. The port bounds by host what waits for the loop, and the bytes
# that calls without a message count for: there are never so many.
WAITING_MAX = 40_000
# Of a call's messages, before they are asked for.
LOOKAHEAD_BYTES = 64 << 10


class ProxyServer:
    """One proxy. `signer`, `tls`: sign and encrypt its own requests to NameServers and brokers; `front_tls`: the TLS of
    its port, None for plain connections beside TLS with a certificate made at this start.
    """

    def __init__(
        self,
        settings: ProxySettings,
        *,
        signer: RpcHooks | None = None,
        tls: ClientTls | None = None,
        front_tls: TlsSettings | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        self.settings = settings
        self.brokers = Brokers(settings, signer=signer, tls=tls)
        self.clients = Clients(settings.client_idle_ms / 1000, grace_s)
        times = CallTimes() if settings.metrics_port is not None or settings.metrics_exporter != DISABLE else None
        self.service = Service(times=times)
        self.tools = Tools(self.service)
        self.access: AccessControl | None = None
        self._audit: Audit | None = None
        # A proxy that signs may do what its clients may not: it asks them, unless it is told not to.
        authenticates = signer is not None if settings.authentication is None else settings.authentication
        authorizes = signer is not None if settings.authorization is None else settings.authorization
        if authorizes and not authenticates:
            log.warning("authorization without authentication: whoever names a user is taken for him")
        if authenticates or authorizes:
            self.access = AccessControl(
                settings, self.brokers, self.clients, authenticates=authenticates, authorizes=authorizes
            )
            self.service.guards.append(self.access.guard)
            if settings.audit_path:
                # No call of this port is an operator's change.
                path = Path(settings.audit_path)
                self._audit = Audit({"server": "proxy"}, path, changes=(), what=lambda code, header, body: {})
                self.access.told = self._audit.decided
        access = None if self.access is None else (self.access.of_remoting(), self.access.tables.fresh)
        self.remoting = RemotingRelay(Behind(self.brokers, signer, tls), self._own_address, access)
        names = [settings.advertised_host] if settings.advertised_host else ()
        self.front = Port(
            tls=front_tls,
            routes=self.remoting.routes,
            on_close=self.remoting.left,
            names=names,
            share_port=settings.share_port,
        )
        self.remoting.take = lambda peer: self.front.server.take_descriptors(peer, 1)
        self.service.address_of = self.front.address_of
        self.front.clients.when_left = self.clients.connection_ended
        self.service.work.close = self.front.clients.close
        self._routes = QueryRoutes(settings, self.brokers)
        self._telemetry = Telemetry(settings, self.brokers, self.clients)
        self.producing = Producing(settings, self.brokers, self.clients, self.service)
        self.consuming = Consuming(settings, self.brokers, self.clients, self.service)
        renewals = self.consuming.renewals
        self.metrics = (
            None if times is None else Metrics(settings, times, self.clients, self.service, lambda: renewals.count, tls)
        )
        self._server: grpc.aio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self.port = 0
        serve = self.service.serve
        serve("QueryRoute", self._routes.query_route)
        serve("QueryAssignment", self._routes.query_assignment)
        serve("Telemetry", self._telemetry.telemetry)
        serve("Heartbeat", self._telemetry.heartbeat)
        serve("NotifyClientTermination", self._telemetry.notify_client_termination)

    @property
    def address(self) -> str:
        """ "host:port" that it listens on."""
        return self._at(self.settings.host)

    def _at(self, host: str) -> str:
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    def _own_address(self, peer: Peer) -> str:
        """Return what a client before 5.0 reaches this proxy by."""
        return self._at(self.settings.advertised_host or peer.local_host or self.settings.host)

    async def start(self) -> None:
        """Listen. Raises ConfigError if a port cannot be had, StoreUnwritable if the audit's file cannot be opened."""
        if self._audit is not None:
            self._audit.check()
        if self.metrics is not None:
            await self.metrics.start()
        try:
            await self._start()
        except BaseException:
            if self.metrics is not None:
                await self.metrics.close()
            raise
        if self.metrics is not None:
            try:
                self.metrics.send(self.address)
            except BaseException:
                await self.close()
                raise

    async def _start(self) -> None:
        s = self.settings
        options = [
            ("grpc.max_receive_message_length", s.inbound_bytes_max),
            ("grpc.max_send_message_length", -1),
            # Clients pack bodies themselves; a packed message would become the largest one that is taken.
            ("grpc.compression_enabled_algorithms_bitset", 1),
            ("grpc.so_reuseport", 0),
            ("grpc.http2.min_ping_interval_without_data_ms", 5000),
            ("grpc.http2.max_ping_strikes", 2),
            ("grpc.keepalive_permit_without_calls", 1),
            # Clients whose machine is gone are found so.
            ("grpc.keepalive_time_ms", s.client_idle_ms),
            ("grpc.keepalive_timeout_ms", 20_000),
            ("grpc.max_connection_idle_ms", s.client_idle_ms),
            ("grpc.server_handshake_timeout_ms", 10_000),
            ("grpc.max_concurrent_streams", STREAMS_MAX),
            ("grpc.server.max_pending_requests", WAITING_MAX),
            ("grpc.server.max_pending_requests_hard_limit", 2 * WAITING_MAX),
            # What a call may send behind its request, or before it is its turn: else it grows to 64 MiB for each.
            ("grpc.http2.bdp_probe", 0),
            ("grpc.http2.lookahead_bytes", LOOKAHEAD_BYTES),
        ]
        self._server = grpc.aio.server(options=options)
        self._server.add_generic_rpc_handlers((self.service, self.tools))
        try:
            inner_port = self._server.add_insecure_port(f"{HOST}:0")
        except RuntimeError:
            raise ConfigError(f"no port can be had on {HOST}: it is needed between the proxy's own parts") from None
        await self._server.start()
        try:
            self.port = self._routes.port = await self.front.start(s.host, s.port, inner_port)
        except BaseException:
            # Else it says at its end, in a traceback, that nobody stopped it.
            await self._server.stop(None)
            self._server = None
            raise
        self.producing.begin()
        self.consuming.begin()
        if s.remoting_port is not None:
            await self.front.server.listen_also(s.host, s.remoting_port)
        self._sweep_later()
        log.info("proxy listens on %s", self.address)

    def _sweep_later(self) -> None:
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        self.clients.expire()
        self.producing.sweep()
        self.service.work.sweep()
        if self._audit is not None:
            self._audit.tick()
        self._sweep_later()

    async def close(self, grace_s: float = 0.5) -> None:
        """Stop listening, end all calls and connections."""
        if self._sweeper:
            self._sweeper.cancel()
        if self._server is not None:
            await self._server.stop(grace_s)
        await self.front.close()
        if self.metrics is not None:
            await self.metrics.close()
        if self.access is not None:
            self.access.tables.close()
        await self.consuming.close()
        await self.producing.close()
        await self.brokers.close()
        if self._audit is not None:
            self._audit.close()
