"""The broker server: builds the parts of a broker and hands each what it needs. Wiring only."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from rocketspark.access.audit import Audit
from rocketspark.broker.access.audit import CHANGES, OF_CONTROLLERS, audit_of
from rocketspark.broker.access.gate import Access, Recipients
from rocketspark.broker.assembly import drop_light, keep_within_queues, make_messages, make_tables
from rocketspark.broker.background_thread import BackgroundThread
from rocketspark.broker.consumers.assignments import TopicQueues
from rocketspark.broker.consumers.cold_reads import INTERVAL_S, ColdReads
from rocketspark.broker.consumers.long_polling import LongPolling
from rocketspark.broker.consumers.rebalance_locks import RebalanceLocks
from rocketspark.broker.declared_settings import Hearer
from rocketspark.broker.handlers.admin.access import AccessHandler
from rocketspark.broker.handlers.admin.admin_broker import AdminHandler, BrokerActs
from rocketspark.broker.handlers.admin.admin_groups import GroupHandler
from rocketspark.broker.handlers.admin.admin_topics import TopicHandler
from rocketspark.broker.handlers.admin.broker_tables import BrokerTablesHandler
from rocketspark.broker.handlers.admin.given_up import Changes, refuse_given_up
from rocketspark.broker.handlers.admin.plain_acl import PlainAclHandler
from rocketspark.broker.handlers.broker_to_client import BrokerToClientHandler
from rocketspark.broker.handlers.client_manage import ClientHandler
from rocketspark.broker.handlers.consumer_manage import ConsumerManageHandler
from rocketspark.broker.handlers.end_transaction import TransactionHandler
from rocketspark.broker.handlers.lite.lite_manager import lite_handlers
from rocketspark.broker.handlers.pop_message import pop_handlers
from rocketspark.broker.handlers.pull_message import PullHandler
from rocketspark.broker.handlers.query_assignment import AssignmentHandler
from rocketspark.broker.handlers.query_message import QueryHandler
from rocketspark.broker.handlers.recall_message import TimerHandler
from rocketspark.broker.handlers.reply_message import ReplyHandler
from rocketspark.broker.handlers.send_message import SendHandler
from rocketspark.broker.lite.parts import LiteTopics
from rocketspark.broker.messages.put_message import PutMessage
from rocketspark.broker.messages.send_rules import MessageSettings
from rocketspark.broker.messages.transactions.half_messages import CheckLimits
from rocketspark.broker.messages.unpark_message import delivery
from rocketspark.broker.operations.clock_watch import WATCH_S, ClockWatch
from rocketspark.broker.operations.fast_failure import FastFailure
from rocketspark.broker.operations.live_settings import LiveSettings
from rocketspark.broker.operations.registration import Registration, log_told_address
from rocketspark.broker.parts import HasRoutes, Messages, StoreReads, Tables
from rocketspark.broker.pop.lifecycle import pop_lifecycle
from rocketspark.broker.pop.ordered import FILE_NAME as POP_ORDER
from rocketspark.broker.pop.ordered import OrderedPops, OrderTable, encode_table
from rocketspark.broker.pop.pops import Pops
from rocketspark.broker.repeated_work import RepeatedWork
from rocketspark.broker.replication.broker_identity import identity_of
from rocketspark.broker.replication.master_api import HaInfoExchange
from rocketspark.broker.replication.members import open_store
from rocketspark.broker.replication.parts import ReplicationParts
from rocketspark.broker.replication.role import BrokerRole
from rocketspark.broker.replication.role_changes import Replication
from rocketspark.broker.replication.special_services import SpecialServices
from rocketspark.broker.replication.waits import Durability, ReplicaWaits
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.static_topics.cleaning import MappingCleaning
from rocketspark.broker.static_topics.logical_queues import LogicalQueues
from rocketspark.broker.static_topics.other_brokers import OtherBrokers
from rocketspark.broker.statistics.stats import Stats
from rocketspark.broker.storage.compaction import Compaction
from rocketspark.broker.storage.flush import FlushService
from rocketspark.broker.storage.foreign_stores import check_store
from rocketspark.broker.storage.json_tables import ConfigFolder, SaveFailures, now_ms, steady_ms
from rocketspark.broker.storage.long_scans import LongScans
from rocketspark.broker.storage.retention import FileCleaning, disk_used_percent
from rocketspark.broker.storage.tiering import tiering_of
from rocketspark.broker.topics import tell_store
from rocketspark.errors import ConfigError, RocketSparkError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.text import shown
from rocketspark.protocol.json.bodies import (
    TopicConfigTable,
)
from rocketspark.protocol.message.message_ids import pack_host
from rocketspark.store.files import config_files
from rocketspark.store.store import Store
from rocketspark.transport.dialing import number_of
from rocketspark.transport.metrics.exporters import MetricsOutlet
from rocketspark.transport.metrics.settings import DISABLE, ExportSettings
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.server import Server

if TYPE_CHECKING:
    from rocketspark.broker.operations.metrics import Metrics

log = logging.getLogger("rocketspark.broker")

damaged = LimitedLog("rocketspark.broker")

CLIENT_SCAN_S = 10.0
STATS_S = 1.0
AUDIT_S = 1.0
ACL_LOOK_S = 1.0
QUARANTINE_SAVE_S = 1.0
# Tables that could not be saved with the change itself.
SAVE_AGAIN_S = 5.0
TIMER_SAVE_S = 1.0
TIMED_PUTS = 16
# Only with metrics.
SIZES_S = 10.0
# Slaves ask for some tables there, and clients with vipChannelEnabled send there (rule: BrokerController, 5.x).
VIP_PORT_STEP = -2


class BrokerServer:
    """One broker. `start` takes the store and the port; `close` gives both back.

    `disk_used`: returns how many percent of a folder's disk are in use.
    """

    def __init__(self, settings: BrokerSettings, *, disk_used: Callable[[str], float] = disk_used_percent) -> None:
        settings.check()
        self.settings = settings
        self._disk_used = disk_used
        self._saves = SaveFailures()
        self._repeated = RepeatedWork(self._saves)
        self._closing = False
        self._built = self._started = False
        self.metrics: MetricsOutlet | None = None
        self._audit: Audit | None = None
        self._changes = Changes()

    @property
    def address(self) -> str:
        """ "host:port" that clients are told."""
        return self.settings.address(self._server.port)

    async def start(self) -> None:
        """Listen, recover the store, serve, register. Raises ConfigError or StoreError, with nothing left behind."""
        s = self.settings
        routes = Routes(is_starting=True)
        self.access = Access(s)
        routes.gate = self.access.gate
        routes.runs_ask_gate = self.access.standing_of is not None
        self._fast_failure = FastFailure(s)
        routes.overload = self._fast_failure.overload
        self._server = Server(
            routes,
            on_close=self._peer_closed,
            idle_s=s.client_idle_ms / 1000 if s.client_idle_ms > 0 else math.inf,
            connections_max=self._fast_failure.connections_max(),
            bounds=self._fast_failure.bounds(),
            tls=s.tls,
        )
        # The port first: it is part of every record's store host. Nothing is served before the routes are filled.
        await self._server.start(s.listen_host or "0.0.0.0", s.listen_port, tls_names=[s.host])
        await self._listen_for_vips()
        self.role = BrokerRole(s)
        try:
            check_store(s.store_root)
            self._config = ConfigFolder(s.store_root, self._saves)
            store_host = pack_host(await self._number(), self._server.port)
            self.store = Store(s.store_settings(), store_host=store_host)
            known = self._config.file("topics.json", TopicConfigTable).load()
            configs = known.topic_config_table.values() if known else ()
            tell_store(self.store, configs, compaction=s.compaction)
            self.store.fell_short = self._fell_short
            await open_store(s, self.store)
            config_files.remove_leftovers(f"{s.store_root}/config")
            self.access.load()
            self.access.look_into(self.store)
            for remark in self.store.recovered.remarks():
                log.warning("the store in %s: %s", s.store_root, remark)
        except BaseException:
            await self._server.close()
            raise
        try:
            self._build(routes)
            self._built = True
            self._file_cleaning.start()
            self._compaction.start()
            self._flush_service.start()
            await self.replication.start(self.address)
            self._repeated.every("timer messages", TIMER_SAVE_S, self._wheel.save)
            self._repeated.every("client scan", CLIENT_SCAN_S, self._expire_clients)
            self._repeated.every("consumer offsets", lambda: s.flush_offsets_interval_ms / 1000, self._offsets.save)
            self._repeated.every("ordered pops", lambda: s.flush_offsets_interval_ms / 1000, self._pop_state.save)
            self._repeated.every("delay offsets", lambda: s.flush_delay_offset_interval_ms / 1000, self._delays.save)
            self._repeated.every("quarantine", QUARANTINE_SAVE_S, self._quarantine.save)
            self._repeated.every("tables", SAVE_AGAIN_S, self._save_again)
            self._repeated.every("statistics", STATS_S, self._count)
            self._repeated.every("cold reads", INTERVAL_S, self._cold_reads.next_interval)
            hearers = self._pop_state.block_ends.clock_jumped, self._lite.pops.block_ends.clock_jumped
            self._repeated.every("clock", WATCH_S, ClockWatch(hearers=hearers).look)
            self._lite.repeat(self._repeated, lambda: self.role.is_master)
            if self.access.plain is not None:
                self._repeated.every("rules", ACL_LOOK_S, self.access.look)
            if self._audit is not None:
                self._repeated.every("audit", AUDIT_S, self._audit.tick)
            self._send.time_puts(TIMED_PUTS)
            self._pop_state.block_ends.look_at_all()
            self._started = True
            if self._tiering is not None:
                self._tiering.start()
                await self._tiering.wait_if_lost()
            if self._metrics is not None:
                await self._tell_metrics(self._metrics)
                self._repeated.every("message sizes", SIZES_S, self._metrics.sizes.collect)
            await self.replication.join()
        except BaseException:
            await self.close()
            raise
        log.info("broker %s listens on %s, store in %s", s.broker_name, self._server.address, s.store_root)
        log_told_address(s, self._server.address, self.address)

    async def _number(self) -> str:
        """Return the address that clients are told as a number, which stands in every record. Raises ConfigError."""
        try:
            return await number_of(self.settings.host)
        except OSError as e:
            raise ConfigError(
                f"brokerIP1={shown(self.settings.host)} cannot be resolved ({e.strerror}): a broker needs the address"
                " behind the name at its start; mend the name, or give the address as a number"
            ) from None

    def _fell_short(self, promised: int, end: int) -> None:
        if self.settings.controller_mode:
            identity_of(self.settings).give_up(f"the log was on the disk up to {promised} and ends at {end}")

    async def _listen_for_vips(self) -> None:
        s, port = self.settings, self._server.port + VIP_PORT_STEP
        if port <= 0:
            return
        try:
            await self._server.listen_also(self._server.host, port)
        except ConfigError as e:
            # Beside a port that the system chose it may well be another's.
            if s.listen_port:
                log.warning("Java slaves, and clients with vipChannelEnabled, need listenPort - 2: %s", e)

    def _build(self, routes: Routes) -> None:
        s = self.settings
        self._long_polling = LongPolling(log_end=lambda: self.store.written_position)
        self._cold_reads = ColdReads(s)
        self._flush_service = FlushService(
            self.store,
            interval_ms=s.flush_interval_ms,
            queue_interval_ms=s.flush_queue_interval_ms,
            timeout_ms=s.flush_timeout_ms,
            arrivals=self._long_polling,
        )
        self._flush_service.crowded = self._fast_failure.flushes_waiting
        self._waits = ReplicaWaits(s)
        self._durability = Durability(s, self._flush_service, self._waits, self.role)
        self._file_cleaning = FileCleaning(s, self.store, disk_used=self._disk_used)
        self._tiering = tiering_of(s, self.store, self._file_cleaning, lambda: self.role.is_master)
        self._stats = Stats(s.cluster_name, self.store.take_stored, now_ms(), light_apart=s.lmq_stats)
        self._stats.put_was_timed = self._fast_failure.put_took
        self._reads = StoreReads(self.store, self._stats, LongScans(), self._tiering)
        self._filters, self._tables_thread = BackgroundThread("filters"), BackgroundThread("tables")
        tables = make_tables(
            s,
            self._config,
            self.access.tables if self.access.users is not None and self.access.acls is not None else None,
            soon=asyncio.get_running_loop().call_soon,
            beside=self._tables_thread,
            notify=lambda group: self._client_handler.notify(group),
        )
        self._topics, self._groups, self._offsets = tables.topics, tables.groups, tables.offsets
        if self._tiering is not None:
            self._tiering.topic_of = self._topics.get
        self._compaction = Compaction(
            s, self.store, self._topics.compacted, lambda: self.replication.source, self._waits.held_by_all
        )
        self._file_cleaning.copied = self._compaction.copied
        self._file_cleaning.drop_light = lambda names: self._lite.drop(names)
        self._clients, self._modes = tables.clients, tables.request_modes
        self._clients.may_be_sent = Recipients(self.access.gate).may_be_sent
        messages = make_messages(s, self.store, self._config, tables, self._long_polling, self._stats, self._saves)
        self._delays, self._wheel, self._transactions = messages.delays, messages.timers, messages.transactions
        self._quarantine, self._pops = messages.quarantine, messages.pops
        self._ha_info = HaInfoExchange(own=lambda: self.replication.own_ha_info())
        ordered = OrderedPops(self._config.file(POP_ORDER, OrderTable, encode_table))
        keep_within_queues(self.store, tables, ordered)
        self._pop_state = Pops(s, tables, self._long_polling, self._pops, ordered)
        held, drop = self._pop_state.held, lambda names: drop_light(self.store, tables.offsets, names)
        self._lite = LiteTopics(s, self.store, tables, self._stats, self._long_polling, held, drop, self._go_through)
        self._registration = Registration(s, self._topics, self._tables_thread)
        self._topics.on_change = self._registration.changed
        self._topics.on_automatic = self._registration.created_automatically
        for handler in self._handlers(tables, messages):
            handler.routes(routes)
        if self._tiering is not None:
            self._tiering.hold(routes)
        refuse_given_up(routes, CHANGES - OF_CONTROLLERS)
        self._audit = self._make_audit(routes)
        # Around the audit, which so notes what came of a change.
        self._changes.carry_out(routes, CHANGES)
        self._durability.changed = self._send.configure
        self.access.tables.narrowed = self._ask_anew
        statics, others = self._topics.statics, OtherBrokers(s)
        cleaning = MappingCleaning(s, statics, self.store, others, self.role)
        self._logical_queues = LogicalQueues(s.broker_name, statics, self.store, self._offsets, others, cleaning)
        self._logical_queues.begin(
            routes,
            lambda: messages.put_message.rules.configure(MessageSettings.of(s)),
            self._long_polling.answer_all,
        )
        deliver = delivery(messages.put_message, self._stats)
        self._services = SpecialServices(
            self._delays,
            self._wheel,
            self._transactions,
            pop_lifecycle(s, self._reads, tables, messages, others),
            deliver,
        )
        self.replication = Replication(
            ReplicationParts(
                settings=s,
                store=self.store,
                role=self.role,
                services=self._services,
                registration=self._registration,
                durability=self._durability,
                waits=self._waits,
                ha_info=self._ha_info,
                long_polling=self._long_polling,
                routes=routes,
                tables=tables,
                messages=messages,
            )
        )
        self.replication.arrivals.is_whole = self._compaction.is_whole
        messages.put_message.stored = self._flush_service.shown_more = self.replication.wake
        self._client_handler.quorum = self.replication.lock_quorum()
        self._metrics: Metrics | None = None
        if s.metrics_exporter != DISABLE:
            self._metrics = self._make_metrics(routes, tables, messages)

    def _ask_anew(self) -> None:
        """Answer all pulls and pops that wait: they were allowed by users and rules that have changed."""
        self._long_polling.answer_all()
        self._pop_state.answer_all()

    def _handlers(self, tables: Tables, messages: Messages) -> Iterator[HasRoutes]:
        s, store, durability, stats = self.settings, self.store, self._durability, self._stats
        put_message, beside, standing_of = messages.put_message, self._tables_thread, self.access.standing_of
        reads, long_scans, tiering = self._reads, self._reads.long_scans, self._tiering
        self._send = SendHandler(s, store, tables, messages, durability, stats, self._settled, standing_of)
        yield self._send
        yield PullHandler(s, reads, tables, self._long_polling, self._filters, self.role, self._cold_reads)
        self._locks = RebalanceLocks(s.lock_expiry_ms)
        waiting = self._pop_state.waiting
        self._client_handler = ClientHandler(
            tables.clients, tables.groups, tables.topics, self._locks, waiting, long_scans
        )
        yield self._client_handler
        self._topic_queues = TopicQueues(s, tables.topics.get)
        yield AssignmentHandler(s, tables, self._topic_queues, self._client_handler.notify)
        yield ConsumerManageHandler(store, tables.offsets, tables.topics, tables.groups, tiering)
        yield from pop_handlers(s, reads, tables, self._pop_state, self._filters, durability, self._lite)
        yield from lite_handlers(s, store, tables, self._lite, self._topic_queues, long_scans)
        yield TopicHandler(
            s.broker_name,
            reads,
            tables,
            self._pop_state,
            self._lite,
            settled=self._settled,
            beside=beside,
            page_rows=s.page_rows,
        )
        yield QueryHandler(reads)
        yield TransactionHandler(messages.transactions, durability)
        yield TimerHandler(s, messages.timer_rules, put_message, tables.topics, durability)
        yield GroupHandler(
            s,
            self.address,
            reads,
            tables,
            self._long_polling,
            self._pop_state,
            self._lite,
            beside=beside,
        )
        yield BrokerToClientHandler(s.broker_name, store, tables.clients)
        yield AdminHandler(
            s,
            self._live_settings(put_message),
            self.address,
            reads,
            tables,
            messages,
            acts=BrokerActs(self._settled, self._file_cleaning.clean_now, lambda: self.replication.standing.status()),
            cold_reads=self._cold_reads,
        )
        if self.access.plain is not None:
            yield PlainAclHandler(self.access.plain, s.broker_name, s.cluster_name, self.address)
        yield AccessHandler(self.access.users, self.access.acls, is_master=lambda: self.role.is_master)
        yield BrokerTablesHandler(tables, messages, store, self._ha_info)
        yield ReplyHandler(s, put_message, tables.clients, store.store_host)

    def _make_audit(self, routes: Routes) -> Audit | None:
        audit = audit_of(self.settings)
        if audit is not None:
            audit.watch(routes)
            self.access.observe(audit.decided, CHANGES)
        return audit

    def _make_metrics(self, routes: Routes, tables: Tables, messages: Messages) -> Metrics:
        from rocketspark.broker.operations.metrics import AccessFigures, Metrics

        metrics = Metrics(
            self.settings,
            self._reads,
            tables,
            messages,
            self._saves,
            replication=lambda: self.replication.standing.figures(),
            refused=lambda: {"connection": self._server.refused, "pull": self._long_polling.refused},
            access=AccessFigures(self._audit, self.access.passed),
            lite=self._lite.lags,
        )
        metrics.times.watch(routes)
        return metrics

    async def _tell_metrics(self, metrics: Metrics) -> None:
        """Serve metrics, or send them. Raises ConfigError."""
        s = self.settings
        # Master and slaves have one name.
        process = {"service.name": "rocketspark-broker", "service.instance.id": self.address}
        self.metrics = MetricsOutlet(metrics.collect)
        if not self.metrics.send(ExportSettings.of(s), process, s.tls.client(True)):
            await self.metrics.serve(s.metrics_host, s.metrics_port)

    def _live_settings(self, put_message: PutMessage) -> LiveSettings:
        """Connect the settings that may change with the parts that use them."""
        s = self.settings

        def fast_failure() -> None:
            self._fast_failure.configure()
            self._flush_service.waiting_max = s.waiting_sends_max
            self._server.connections_max = self._fast_failure.connections_max()
            self._server.bounds.bounds = self._fast_failure.bounds()
            weights = self._long_polling.weights
            weights.all_max, weights.owner_max = s.held_pulls_max, s.held_pulls_of_connection_max

        def messages() -> None:
            self.store.limit_bodies(s.message_bytes_max)
            put_message.rules.configure(MessageSettings.of(s))

        hearers = {
            Hearer.MESSAGES: messages,
            Hearer.REPLIES: self._send.configure,
            Hearer.TOPICS: self._topics.announce,
            Hearer.FLUSH: lambda: self._flush_service.set_times(
                interval_ms=s.flush_interval_ms,
                queue_interval_ms=s.flush_queue_interval_ms,
                timeout_ms=s.flush_timeout_ms,
            ),
            Hearer.TRANSACTIONS: lambda: self._transactions.set_limits(CheckLimits.of(s)),
            Hearer.FAST_FAILURE: fast_failure,
            Hearer.REPLICATION: lambda: self.replication.configure(),
        }
        fast_failure()
        return LiveSettings(s, {"listenPort": str(self._server.port)}, hearers)

    async def _settled(self) -> None:
        """Wait until every change of the topics so far is on disk, and the NameServers have heard of it."""
        # Other requests of this turn change topics too: all changes are saved together in the next turn.
        await asyncio.sleep(0)
        await self._topics.unsaved.saved()
        await self._registration.settled()

    def _save_again(self) -> None:
        for table in (self._topics, self._groups, self._offsets.anew, self._offsets):
            table.unsaved.again()

    def _expire_clients(self) -> None:
        now = steady_ms()
        self._go_through(chain(self._clients.expire_steps(now), self._locks.expire_steps(now)))

    def _count(self) -> None:
        self._go_through(self._stats.tick_steps(now_ms()))
        mender = self.store.mender
        while mender.news:
            damaged.warning("%s", mender.news.popleft())
        self._send.time_puts(TIMED_PUTS)

    def _go_through(self, steps: Iterator[None]) -> None:
        """Make one step of some work in each turn of the loop."""
        if next(steps, ...) is None and not self._closing:
            asyncio.get_running_loop().call_soon(self._go_through, steps)

    def _peer_closed(self, peer: Peer) -> None:
        peer.notes = None  # What stands there names the connection, which would stay for a full collection.
        if self._started:
            self._long_polling.drop_owner(peer)
            self._pop_state.drop_owner(peer)
            self._go_through(self._clients.disconnected_steps(peer))

    def _stop_timers(self) -> None:
        self._closing = True
        self._repeated.stop()
        self._fast_failure.close()

    async def _stop_threads(self) -> None:
        await self._compaction.stop()
        if self._tiering is not None:
            await self._tiering.stop()
        loop = asyncio.get_running_loop()
        for stop in (self._filters.close, self._tables_thread.close, self._flush_service.stop_threads):
            await loop.run_in_executor(None, stop)

    async def _end_audit(self) -> None:
        if self._audit is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._audit.close)

    async def kill(self) -> None:
        """End as SIGKILL would, for tests: no answer, no word to anybody, and nothing written that was not before."""
        if self._closing:
            return
        self._stop_timers()
        self._server.abort()
        self._changes.close()
        if self.metrics is not None:
            await self.metrics.close()
        await self._end_unsaid()
        await self._end_audit()
        self.store.abandon()

    async def _end_unsaid(self) -> None:
        """End all parts that were begun, with no word to anybody and nothing written."""
        if not self._built:
            return
        ends: list[Callable[[], Awaitable[None]]] = [
            self.replication.abandon,
            self._registration.abandon,
            self._logical_queues.close,
            self._topic_queues.close,
            self._file_cleaning.stop,
            self._stop_threads,
        ]
        for end in ends:
            try:
                await end()
            except Exception:
                # One that had not begun keeps no other.
                log.exception("a part of the broker could not be ended")
        self._pop_state.block_ends.close()
        self._lite.pops.block_ends.close()
        self._services.close()

    async def close(self) -> None:
        """Answer the held requests, leave the NameServers, write everything down. May be called again."""
        if self._closing:
            return
        self._stop_timers()
        if self.metrics is not None:
            await self.metrics.close()
        if self._started:
            await self._file_cleaning.stop()
            await self.replication.stop()
            await self._registration.stop()
            await self._logical_queues.close()
            await self._topic_queues.close()
            self._long_polling.close()
            self._pop_state.close()
            self._lite.pops.block_ends.close()
            await self._stop_threads()
            self._flush_service.finish()
        else:
            await self._end_unsaid()
        await self._server.close()
        self._changes.close()
        await self._end_audit()
        self.store.prepare_to_close()
        if self._started:
            for save in (
                self._topics.unsaved.flush,
                self._groups.unsaved.flush,
                self._services.finish,
                self._offsets.finish,
                self._pop_state.save,
                self._quarantine.save,
            ):
                try:
                    save()
                except RocketSparkError as e:
                    log.error("while the broker closes: %s", e)
                except Exception:
                    log.exception("a table of the broker could not be written while it closes")
            self._services.close()
        self.store.close()
