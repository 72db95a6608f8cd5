"""A broker: builds the parts and hands each what it needs. Wiring only."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rocketspark.broker import inner_batches
from rocketspark.broker.arrivals import Arrivals
from rocketspark.broker.clients import Clients
from rocketspark.broker.config import JsonFile, now_ms
from rocketspark.broker.delays import Delays, encode_delay_offsets
from rocketspark.broker.durability import Durability
from rocketspark.broker.groups import Groups
from rocketspark.broker.handlers.admin import AdminHandler
from rocketspark.broker.handlers.clients import ClientHandler
from rocketspark.broker.handlers.consumers import ConsumerHandler
from rocketspark.broker.handlers.groups import GroupHandler
from rocketspark.broker.handlers.offsets import OffsetHandler
from rocketspark.broker.handlers.pull import PullHandler
from rocketspark.broker.handlers.query import QueryHandler
from rocketspark.broker.handlers.reply import ReplyHandler
from rocketspark.broker.handlers.send import SendHandler
from rocketspark.broker.handlers.timers import TimerHandler
from rocketspark.broker.handlers.topics import TopicHandler
from rocketspark.broker.handlers.transactions import TransactionHandler
from rocketspark.broker.intake import Intake
from rocketspark.broker.live_settings import LiveSettings
from rocketspark.broker.locks import QueueLocks
from rocketspark.broker.offsets import ConsumerOffsets, encode_offsets
from rocketspark.broker.pressure import Pressure
from rocketspark.broker.registration import Registration
from rocketspark.broker.retention import HOUR_MS, Retention, disk_used_percent
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.stats import Stats
from rocketspark.broker.timer_rules import TimerRules
from rocketspark.broker.timers import Timers
from rocketspark.broker.topics import Topics
from rocketspark.broker.transactions import Transactions
from rocketspark.errors import RocketSparkError
from rocketspark.protocol.bodies import DelayOffsetTable, GroupConfigTable, OffsetTable, TopicConfigTable
from rocketspark.protocol.message_ids import pack_host
from rocketspark.protocol.timers import TimerCounts
from rocketspark.store.store import Store
from rocketspark.store.timer_files import TimerFiles
from rocketspark.transport.peer import Peer
from rocketspark.transport.routes import Routes
from rocketspark.transport.server import Server

if TYPE_CHECKING:
    from rocketspark.broker.metrics import Metrics, MetricsServer

log = logging.getLogger("rocketspark.broker")

CLIENT_SCAN_S = 10.0
STATS_S = 1.0
TIMER_SAVE_S = 1.0
TIMED_PUTS = 16
# Only with metrics.
SIZES_S = 10.0


class BrokerServer:
    """One broker. `start` takes the store and the port; `close` gives both back.

    `disk_used`: percent in use of the disk that a folder is on.
    """

    def __init__(self, settings: BrokerSettings, *, disk_used: Callable[[str], float] = disk_used_percent) -> None:
        settings.check()
        self.settings = settings
        self._disk_used = disk_used
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._closing = False
        self._started = False
        self.metrics: MetricsServer | None = None

    @property
    def address(self) -> str:
        """ "host:port" that clients are told."""
        return self.settings.address(self._server.port)

    async def start(self) -> None:
        """Listen, recover the store, serve, register. Raises ConfigError or StoreError, with nothing left behind."""
        s = self.settings
        routes = Routes()
        self._pressure = Pressure(s)
        routes.overload = self._pressure.overload
        self._server = Server(
            routes,
            on_close=self._peer_closed,
            idle_s=s.client_idle_ms / 1000,
            connections_max=self._pressure.connections_max(),
        )
        # The port first: it is part of every record's store host. Nothing is served before the routes are filled.
        await self._server.start(s.listen_host or "0.0.0.0", s.listen_port)
        try:
            store_host = pack_host(s.host, self._server.port)
            self.store = Store(s.store_settings(), store_host=store_host)
            known = JsonFile(Path(s.store_root) / "config" / "topics.json", TopicConfigTable).load()
            self.store.batch_topics = inner_batches.batch_topics(known.topic_config_table.values() if known else ())
            self.store.open()
        except BaseException:
            await self._server.close()
            raise
        try:
            self._build(routes, store_host)
            self._retention.start()
            self._durability.start()
            self._delays.start(self._send.deliver)
            self._transactions.start()
            self._wheel.start()
            self._every("timer messages", TIMER_SAVE_S, self._wheel.save)
            self._every("client scan", CLIENT_SCAN_S, lambda: self._clients.expire(now_ms()))
            self._every("consumer offsets", lambda: s.flush_offsets_interval_ms / 1000, self._offsets.save)
            self._every("delay offsets", lambda: s.flush_delay_offset_interval_ms / 1000, self._delays.save)
            self._every("statistics", STATS_S, self._count)
            self._send.time_puts(TIMED_PUTS)
            self._started = True
            if self._metrics is not None:
                self.metrics = self._metrics_server(self._metrics)
                self.metrics.start(s.metrics_host, s.metrics_port)
                self._every("message sizes", SIZES_S, self._metrics.sizes.collect)
            await self._registration.start(self.address)
        except BaseException:
            await self.close()
            raise
        log.info("broker %s listens on %s, store in %s", s.broker_name, self.address, s.store_root)

    def _build(self, routes: Routes, store_host: bytes) -> None:
        s = self.settings
        config = Path(s.store_root) / "config"
        self._topics = Topics(s, JsonFile(config / "topics.json", TopicConfigTable))
        self._groups = Groups(s, JsonFile(config / "subscriptionGroup.json", GroupConfigTable))
        self._offsets = ConsumerOffsets(JsonFile(config / "consumerOffset.json", OffsetTable, encode_offsets))
        delay_file = JsonFile(config / "delayOffset.json", DelayOffsetTable, encode_delay_offsets)
        self._delays = Delays(self.store, s.delays_ms(), delay_file)
        self._arrivals = Arrivals()
        self._durability = Durability(
            self.store,
            interval_ms=s.flush_interval_ms,
            queue_interval_ms=s.flush_queue_interval_ms,
            timeout_ms=s.flush_timeout_ms,
        )
        self._durability.crowded = self._pressure.flushes_waiting
        self._retention = Retention(s, self.store, disk_used=self._disk_used)
        self._stats = Stats(s.cluster_name, self.store.take_stored, now_ms())
        self._stats.put_was_timed = self._pressure.put_took
        timer_rules = TimerRules(
            broker_name=s.broker_name,
            enabled=s.timers_enabled,
            precision_ms=s.timer_precision_ms,
            delay_max_ms=s.timer_delay_max_s * 1000,
        )
        intake = Intake(
            self.store,
            self._arrivals,
            self._delays,
            self._stats,
            body_bytes_max=s.message_bytes_max,
            marks=_marks(s),
            timer_rules=timer_rules,
        )
        timer_files = TimerFiles(
            s.store_root,
            precision_ms=s.timer_precision_ms,
            log_file_bytes=s.timer_log_file_bytes,
            roll_slots=s.timer_roll_slots,
        )
        self._wheel = Timers(
            self.store, intake, timer_files, JsonFile(config / "timermetrics", TimerCounts), self._stats
        )
        intake.timer_arrived = self._wheel.arrived
        self._clients = Clients(
            lambda group: client_handler.notify(group) if s.notify_group_changes else None,
            expiry_ms=s.client_expiry_ms,
        )
        self._transactions = Transactions(
            self.store,
            intake,
            self._offsets,
            self._clients,
            self._stats,
            broker_name=s.broker_name,
            store_host=store_host,
            timeout_ms=s.transaction_timeout_ms,
            interval_ms=s.transaction_check_interval_ms,
            checks_max=s.transaction_checks_max,
            reserved_ms=s.reserved_hours * HOUR_MS,
        )
        self._send = SendHandler(
            s,
            self.store,
            intake,
            self._topics,
            self._groups,
            self._durability,
            self._transactions,
            self._stats,
            # The registration is made below: it needs the topics, as this does.
            lambda: self._registration.settled(),
            store_host,
            timer_rules,
            self._arrivals,
        )
        client_handler = ClientHandler(self._clients, self._groups, self._topics, QueueLocks(s.lock_expiry_ms))
        pulls = PullHandler(
            s, self.store, self._topics, self._groups, self._clients, self._offsets, self._arrivals, self._stats
        )
        self._registration = Registration(s, self._topics)
        self._topics.save()
        self._groups.save()
        self._topics.on_change = self._registration.changed
        self._topics.on_automatic = self._registration.created_automatically
        for handler in (
            self._send,
            pulls,
            client_handler,
            OffsetHandler(self.store, self._offsets, self._topics, self._groups),
            TopicHandler(
                s.broker_name,
                self.store,
                self._topics,
                self._offsets,
                self._registration.settled,
                self._stats.forget_topic,
                self._stats.put_tps,
            ),
            QueryHandler(self.store),
            TransactionHandler(s, self._transactions, self._durability),
            TimerHandler(s, timer_rules, intake, self._topics, self._durability),
            GroupHandler(
                s.broker_name,
                self.address,
                self.store,
                self._topics,
                self._groups,
                self._clients,
                self._offsets,
                self._arrivals,
                self._stats.consume_tps,
                lambda: s.reset_offsets_here,
            ),
            ConsumerHandler(s.broker_name, self.store, self._clients),
            AdminHandler(
                s,
                self._live_settings(intake),
                self.address,
                self.store,
                self._topics,
                self._groups,
                self._clients,
                self._offsets,
                self._delays,
                self._wheel,
                self._transactions,
                self._stats,
                self._registration.settled,
                self._retention.clean_now,
            ),
            ReplyHandler(s, intake, self._topics, self._clients, store_host),
        ):
            handler.routes(routes)
        self._metrics: Metrics | None = None
        if s.metrics_exporter == "PROM":
            self._metrics = self._make_metrics(routes)

    def _make_metrics(self, routes: Routes) -> Metrics:
        from rocketspark.broker.metrics import Metrics

        metrics = Metrics(
            self.settings,
            self.store,
            self._topics,
            self._groups,
            self._clients,
            self._offsets,
            self._transactions,
            self._stats,
            self._wheel,
        )
        metrics.times.watch(routes)
        return metrics

    def _metrics_server(self, metrics: Metrics) -> MetricsServer:
        from rocketspark.broker.metrics import MetricsServer

        return MetricsServer(metrics, asyncio.get_running_loop())

    def _live_settings(self, intake: Intake) -> LiveSettings:
        """Which part hears of which change."""
        s = self.settings
        live = LiveSettings(s, {"listenPort": str(self._server.port)})
        # Asked for each time by those who use them.
        live.watch(
            "autoCreateSubscriptionGroup rejectTransactionMessage longPollingEnable enablePropertyFilter".split()
        )
        live.watch("maxTransferCountOnMessageInMemory maxTransferBytesOnMessageInMemory".split())
        live.watch("notifyConsumerIdsChangedEnable storeReplyMessageEnable useServerSideResetOffset".split())
        live.watch("recallMessageEnable allowRecallWhenBrokerNotWriteable".split())
        live.watch("flushConsumerOffsetInterval flushDelayOffsetInterval".split())
        live.watch("fileReservedTime deleteWhen diskMaxUsedSpaceRatio diskSpaceCleanForciblyRatio".split())
        live.watch("diskSpaceWarningLevelRatio cleanFileForciblyEnable cleanResourceInterval".split())
        live.watch("deleteCommitLogFilesInterval deleteFileBatchMax".split())

        def pressure() -> None:
            self._pressure.configure()
            self._durability.waiting_max = s.waiting_sends_max
            self._server.connections_max = self._pressure.connections_max()

        live.watch("waitTimeMillsInPullQueue waitTimeMillsInLitePullQueue waitTimeMillsInSendQueue".split(), pressure)
        live.watch("waitTimeMillsInHeartbeatQueue waitTimeMillsInTransactionQueue maxConnections".split(), pressure)
        live.watch("brokerFastFailureEnable osPageCacheBusyTimeOutMills sendThreadPoolQueueCapacity".split(), pressure)
        pressure()

        def limits() -> None:
            self.store.limit_bodies(s.message_bytes_max)
            intake.configure(body_bytes_max=s.message_bytes_max, marks=_marks(s))

        live.watch("maxMessageSize regionId traceOn".split(), limits)
        live.watch("regionId traceOn brokerPermission".split(), self._send.configure)
        live.watch("brokerPermission autoCreateTopicEnable".split(), self._topics.announce)
        live.watch(
            "flushIntervalCommitLog flushIntervalConsumeQueue syncFlushTimeout".split(),
            lambda: self._durability.set_times(
                interval_ms=s.flush_interval_ms,
                queue_interval_ms=s.flush_queue_interval_ms,
                timeout_ms=s.flush_timeout_ms,
            ),
        )
        live.watch(
            "transactionTimeOut transactionCheckInterval transactionCheckMax fileReservedTime".split(),
            lambda: self._transactions.set_limits(
                timeout_ms=s.transaction_timeout_ms,
                interval_ms=s.transaction_check_interval_ms,
                checks_max=s.transaction_checks_max,
                reserved_ms=s.reserved_hours * HOUR_MS,
            ),
        )
        return live

    def _count(self) -> None:
        self._count_on(self._stats.tick_steps(now_ms()))
        self._send.time_puts(TIMED_PUTS)

    def _count_on(self, steps: Iterator[None]) -> None:
        """One step in each turn of the loop."""
        if next(steps, ...) is None and not self._closing:
            asyncio.get_running_loop().call_soon(self._count_on, steps)

    def _every(self, name: str, interval_s: float | Callable[[], float], act: Callable[[], None]) -> None:
        def run() -> None:
            try:
                act()
            except RocketSparkError as e:
                log.error("%s: %s", name, e)
            if not self._closing:
                arm()

        def arm() -> None:
            seconds = interval_s if isinstance(interval_s, float) else interval_s()
            self._timers[name] = asyncio.get_running_loop().call_later(seconds, run)

        arm()

    def _peer_closed(self, peer: Peer) -> None:
        if self._started:
            self._clients.disconnected(peer)

    async def close(self) -> None:
        """Answer who waits, leave the NameServers, write everything down. May be called again."""
        if self._closing:
            return
        self._closing = True
        for timer in self._timers.values():
            timer.cancel()
        self._pressure.close()
        if self.metrics is not None:
            await self.metrics.close()
        if self._started:
            await self._retention.stop()
            self._delays.stop()
            self._transactions.stop()
            await self._wheel.stop()
            await self._registration.stop()
            self._arrivals.close()
            await asyncio.get_running_loop().run_in_executor(None, self._durability.stop_threads)
            self._durability.finish()
        await self._server.close()
        if self._started:
            for save in (self._offsets.save, self._delays.save, self._wheel.finish):
                try:
                    save()
                except RocketSparkError as e:
                    log.error("%s", e)
            self._wheel.close()
        self.store.close()


def _marks(s: BrokerSettings) -> dict[str, str]:
    """Properties put into every message."""
    return {"MSG_REGION": s.region, "TRACE_ON": "true" if s.trace_on else "false", "CLUSTER": s.cluster_name}
