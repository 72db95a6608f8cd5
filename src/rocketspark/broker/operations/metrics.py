"""A broker's metrics, under the names and labels of RocketMQ 5.5.0. Rule: counted nowhere but in the broker's own
state, which a collection reads. Only loaded with a metricsExporterType.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from rocketspark.access.audit import Audit, Check, request_name
from rocketspark.broker import topic_names
from rocketspark.broker.lite.attributes import bind_topic
from rocketspark.broker.lite.lags import LiteLags
from rocketspark.broker.operations.runtime_info import earliest_ms
from rocketspark.broker.parts import Messages, StoreReads, Tables
from rocketspark.broker.replication.role import Role
from rocketspark.broker.replication.standing import ReplicationFigures
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.statistics.histograms import MessageSizes, RequestTimes
from rocketspark.broker.statistics.looks import Looks
from rocketspark.broker.statistics.stats import TrafficStats
from rocketspark.broker.storage.json_tables import SaveFailures, now_ms
from rocketspark.model.histogram import Histogram
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.namespace import SYSTEM_GROUPS
from rocketspark.protocol.topic_attributes import FIFO, MESSAGE_TYPE
from rocketspark.transport.metrics.families import COUNTER, GAUGE, HISTOGRAM, Collected, Family, Row, histograms
from rocketspark.transport.metrics.settings import ExportSettings

log = LimitedLog("rocketspark.broker")

SCHEDULE_GROUP = "SCHEDULE_CONSUMER"
# Nothing waits in a queue of a thread pool here; the names are what dashboards look for.
_PROCESSORS = (
    *("ack", "admin", "async_put", "client_manager", "consumer_manager", "heartbeat"),
    *("lite_pull", "pull", "query_message", "reply", "send", "transaction"),
)
_CONSUME_MODES = {"CONSUME_PASSIVELY": "push", "CONSUME_ACTIVELY": "pull", "CONSUME_POP": "pop"}
_TIMER_BOUNDS_S = (5, 60, 300, 900, 3600, 14_400, 28_800, 86_400)
_STORAGE = {"storage_medium": "disk", "storage_type": "local"}

_V4, _PER_MAJOR = 213, 200
# Places of gauges in what `_lag` yields.
_UNCONSUMED, _AGE, _INFLIGHT, _READY, _WAITING = range(5)
# Queues of groups that are looked at in one turn: some ms.
LAGS_IN_TURN = 1024

T = TypeVar("T")
# Kind, name, help text, rows.
Told = tuple[str, str, str, Iterable[Row]]
Lag = tuple[float, float, float, float, float]


class AccessFigures(NamedTuple):
    """What metrics show of access control: the audit, None without one, and how many requests each check passed."""

    audit: Audit | None
    passed: Callable[[], Mapping[Check, int]]


class Metrics:
    """The counters and gauges of one broker, as a scrape gets them."""

    def __init__(
        self,
        settings: BrokerSettings,
        reads: StoreReads,
        tables: Tables,
        messages: Messages,
        saves: SaveFailures,
        refused: Callable[[], dict[str, int]],
        replication: Callable[[], ReplicationFigures],
        access: AccessFigures,
        lite: LiteLags,
    ) -> None:
        self._lite = lite
        self._tiering = reads.tiering
        self._settings = settings
        self._store = reads.store
        self._topics = tables.topics
        self._groups = tables.groups
        self._clients = tables.clients
        self._offsets = tables.offsets
        self._transactions = messages.transactions
        self._stats = reads.stats
        self._timers = messages.timers
        self._quarantine = messages.quarantine
        self._pops = messages.pops
        self._saves = saves
        self._refused = refused
        self._replication = replication
        self._audit = access.audit
        self._passed = access.passed
        self.sizes = MessageSizes(reads.store, self._sizes_apart, lite.run)
        self.times = RequestTimes()
        reads.stats.topic_was_forgotten = self._forget_topic
        self._lag = Looks[list[tuple[dict[str, str], Lag]]](self._look_at_lags, lite.run, []).found
        self._labels = ExportSettings.of(settings).labels() | {
            "cluster": settings.cluster_name,
            "node_type": "broker",
            "node_id": settings.broker_name,
        }

    def collect(self) -> Collected:
        """Return all metrics; to be called in the broker's loop."""
        self._stats.collect()
        told = (
            *self._messages(),
            *self._trouble(),
            *self._lags(),
            *self._state(),
            *self._popped(),
            *self._replicas(),
            *self._access(),
            *self._tier(),
        )
        found = [Family(kind, name, text, _as_far_as_known(name, rows)) for kind, name, text, rows in told]
        for name, text, rows in _as_far_as_known("histograms", self._histograms()):
            found.append(Family(HISTOGRAM, name, text, histograms(rows)))
        return Collected(self._labels, [family for family in found if family.rows])

    def _forget_topic(self, topic: str) -> None:
        self.sizes.forget_topic(topic)
        self._timers.statistics.forget_topic(topic)
        if self._tiering is not None:
            self._tiering.read_counts.pop(topic, None)
            if self._tiering.tier is not None:
                self._tiering.tier.appended.pop(topic, None)

    def _messages(self) -> Iterator[Told]:
        into = _as_far_as_known("messages in", self._into())
        out = _as_far_as_known("messages out", self._out())
        yield COUNTER, "rocketmq_messages_in", "Messages stored.", [(r, f.messages) for r, f in into]
        yield COUNTER, "rocketmq_throughput_in", "Bytes of messages stored.", [(r, f.bytes) for r, f in into]
        yield COUNTER, "rocketmq_messages_out", "Messages given to consumers.", [(r, f.messages) for r, f in out]
        yield COUNTER, "rocketmq_throughput_out", "Bytes given to consumers.", [(r, f.bytes) for r, f in out]
        yield COUNTER, "rocketmq_send_to_dlq_messages", "Messages given up to dead letters.", self._dead()
        yield COUNTER, "rocketmq_commit_messages", "Half messages committed.", self._ended(self._stats.committed)
        rolled_back = {topic: TrafficStats(count, 0) for topic, count in self._stats.rolled_back.items()}
        yield COUNTER, "rocketmq_rollback_messages", "Half messages rolled back.", self._ended(rolled_back)
        yield GAUGE, "rocketmq_half_messages", "Half messages that are open.", [({}, self._transactions.open_count)]

    def _tier(self) -> Iterator[Told]:
        """Yield what is told of the second tier; nothing without one."""
        tiering = self._tiering
        if tiering is None:
            return
        kind, name = {"file_type": "commit_log"}, "rocketmq_tiered_store"
        behind: list[Row] = [({"topic": t, "queue_id": str(q), **kind}, n) for (t, q), n in tiering.behind.items()]
        yield GAUGE, f"{name}_dispatch_behind", "Messages that are not in the second tier yet.", behind
        copied = tiering.tier.appended if tiering.tier is not None else {}
        sent: list[Row] = [({"topic": topic, **kind}, count) for topic, count in list(copied.items())]
        yield COUNTER, f"{name}_messages_dispatch", "Messages copied to the second tier.", sent
        read: list[Row] = [({"topic": topic}, count) for topic, count in tiering.read_counts.items()]
        yield COUNTER, f"{name}_messages_out", "Messages read from the second tier.", read
        failed = "Rounds of copying, or removing, that failed."
        yield COUNTER, "rocketspark_tiered_store_failures", failed, [({}, tiering.failures)]
        cache = tiering.cache
        if cache is not None:
            yield GAUGE, f"{name}_read_ahead_cache_count", "Messages of the tier in memory.", [({}, cache.count)]
            yield GAUGE, f"{name}_read_ahead_cache_bytes", "Their bytes.", [({}, cache.size)]
            yield COUNTER, f"{name}_read_ahead_cache_access", "Reads of the tier.", [({}, cache.asked)]
            yield COUNTER, f"{name}_read_ahead_cache_hit", "Reads found in memory.", [({}, cache.hits)]

    def _replicas(self) -> Iterator[Told]:
        """Yield role, epoch, and of a master how far its slaves are behind."""
        found = self._replication()
        roles: list[Row] = [({"role": role.value}, int(role is found.role)) for role in Role]
        yield GAUGE, "rocketspark_broker_role", "1 for the role that the broker has.", roles
        yield GAUGE, "rocketspark_broker_epoch", "The master's epoch, 0 without a controller.", [({}, found.epoch)]
        if found.role is Role.SLAVE:
            copying = "1 while a slave copies from its master."
            yield GAUGE, "rocketspark_replication_connected", copying, [({}, int(found.copying))]
        behind: list[Row] = [({"slave": s.name}, s.lag_bytes) for s in found.slaves]
        yield GAUGE, "rocketspark_replication_lag_bytes", "Bytes of the log that a slave lacks.", behind
        since: list[Row] = [({"slave": s.name}, s.lag_s) for s in found.slaves]
        yield GAUGE, "rocketspark_replication_lag_seconds", "Time since a slave last had all.", since
        in_sync: list[Row] = [({"slave": s.name}, int(s.in_sync)) for s in found.slaves]
        yield GAUGE, "rocketspark_replication_in_sync", "1 for a slave that is in sync.", in_sync
        troubles: list[Row] = [({"reason": reason}, count) for reason, count in found.troubles.items()]
        yield (
            COUNTER,
            "rocketspark_replication_troubles",
            "Links that ended because the logs or words do not fit.",
            troubles,
        )
        late = "Sends answered FLUSH_SLAVE_TIMEOUT."
        yield COUNTER, "rocketspark_replication_timeouts", late, [({}, found.timeouts)]

    def _trouble(self) -> Iterator[Told]:
        """Yield how much is in the quarantine, and what failed, was mended or refused."""
        kinds: list[Row] = [({"kind": kind}, n) for kind, n in self._quarantine.by_kind().items()]
        yield GAUGE, "rocketspark_quarantined_messages", "Messages put into quarantine.", kinds
        failures: list[Row] = [({"file": name}, n) for name, n in self._saves.failures.items()]
        yield COUNTER, "rocketspark_save_failures", "Attempts to save a table that failed.", failures
        failing: list[Row] = [({"file": name}, int(name in self._saves.failing)) for name in self._saves.failures]
        yield GAUGE, "rocketspark_save_failing", "1 while a table is not saved.", failing
        mender = self._store.mender
        units: list[Row] = [({"outcome": k}, n) for k, n in (("mended", mender.mended), ("lost", mender.lost)) if n]
        yield (
            COUNTER,
            "rocketspark_damaged_units",
            "Units of consume queues that pointed to no record of theirs.",
            units,
        )
        refused: list[Row] = [({"kind": kind}, count) for kind, count in self._refused().items() if count]
        yield COUNTER, "rocketspark_refused", "Connections and held pulls there was no room for.", refused
        left_out: list[Row] = [({}, count) for count in (LimitedLog.left_out_count,) if count]
        yield COUNTER, "rocketspark_log_lines_left_out", "Lines about what peers did, left out of the log.", left_out

    def _access(self) -> Iterator[Told]:
        """Yield what access control decided, and what became of the audit's lines."""
        if self._audit is None:
            return
        passed: list[Row] = [({"check": check, "decision": "allow"}, count) for check, count in self._passed().items()]
        refused: list[Row] = [
            ({"check": check, "decision": "deny", "request_code": request_name(code)}, count)
            for (check, code), count in self._audit.refusals.items()
        ]
        decisions = "Requests that access control let pass or refused."
        yield COUNTER, "rocketspark_access_decisions", decisions, passed + refused
        changes: list[Row] = [
            ({"request_code": request_name(code), "outcome": "done" if done else "failed"}, count)
            for (code, done), count in self._audit.changes.items()
        ]
        yield COUNTER, "rocketspark_admin_changes", "Changes that operators made, or tried to.", changes
        lines: list[Row] = [({"outcome": outcome}, count) for outcome, count in self._audit.lines.items()]
        yield COUNTER, "rocketspark_audit_lines", "Lines of the audit: written, left out of a flood, lost.", lines

    def _lags(self) -> Iterator[Told]:
        lag, lite = self._lag(), self._lite_lags()
        for column, (name, help_text) in enumerate(
            (
                ("rocketmq_consumer_lag_messages", "Messages not committed yet."),
                ("rocketmq_consumer_lag_latency_milliseconds", "Age of the oldest message not committed."),
                ("rocketmq_consumer_inflight_messages", "Messages pulled, not committed."),
                ("rocketmq_consumer_ready_messages", "Messages not pulled yet."),
                ("rocketmq_consumer_queueing_latency_milliseconds", "Age of the oldest message not pulled."),
            )
        ):
            rows: list[Row] = [(row, values[column]) for row, values in lag]
            yield GAUGE, name, help_text, [*rows, *lite.get(column, ())]

    def _lite_lags(self) -> dict[int, list[Row]]:
        """Return what groups lack of lite topics, by column of `_lags`, as far as settings ask for it."""
        s = self._settings
        if not (s.lite_lag_metrics or s.lite_lag_time_metrics):
            return {}
        found, now = self._lite.rows(), now_ms()
        counts: list[Row] = []
        ages: list[Row] = []
        for (group, topic), lag in found.items():
            labels = self._topic(topic, group) | {"is_retry": _text(False)}
            counts.append((labels, lag.messages))
            ages.append((labels, max(0, now - lag.oldest_ms) if lag.oldest_ms >= 0 else 0))
        columns = {_UNCONSUMED: counts, _READY: counts} if s.lite_lag_metrics else {}
        return columns | ({_AGE: ages} if s.lite_lag_time_metrics else {})

    def _state(self) -> Iterator[Told]:
        """Yield the broker's tables, its store and its timers."""
        yield GAUGE, "rocketmq_producer_connections", "Producers connected.", self._producers()
        yield GAUGE, "rocketmq_consumer_connections", "Consumers connected.", self._consumers()
        yield GAUGE, "rocketmq_topic_number", "Topics.", [({}, len(self._topics.table))]
        yield GAUGE, "rocketmq_consumer_group_number", "Consumer groups.", [({}, len(self._groups.table))]
        yield GAUGE, "rocketmq_broker_permission", "Read 4, write 2.", [({}, self._settings.broker_permission)]
        waiting: list[Row] = [({"processor": p}, 0) for p in _PROCESSORS]
        yield GAUGE, "rocketmq_processor_watermark", "Requests that wait.", waiting
        for name, help_text, value in _as_far_as_known("storage", self._storage()):
            yield GAUGE, name, help_text, [(_STORAGE, value)]
        for name, help_text, rows in _as_far_as_known("timers", self._timer_gauges()):
            yield GAUGE, name, help_text, [(_STORAGE | row, value) for row, value in rows]
        timers = self._timers.statistics
        for name, counts in (("enqueue", timers.enqueued), ("dequeue", timers.dequeued)):
            by_topic: list[Row] = [(_STORAGE | {"topic": topic}, count) for topic, count in counts.items()]
            yield COUNTER, f"rocketmq_timer_{name}", f"Timer messages: {name}d.", by_topic

    def _popped(self) -> Iterator[Told]:
        """Yield how far what was popped is behind. The lag counts messages, whatever the unit in its name says."""
        behind = _as_far_as_known("revive queues", self._behind())
        lag, latency = "rocketmq_pop_revive_lag_milliseconds", "rocketmq_pop_revive_latency_milliseconds"
        yield GAUGE, lag, "Messages of a revive queue that are not done.", [(row, count) for row, count, _ in behind]
        yield GAUGE, latency, "Age of the oldest of those.", [(row, age_ms) for row, _, age_ms in behind]
        points, offsets = len(self._pops.check_points), len(self._pops.offsets)
        yield GAUGE, "rocketmq_pop_checkpoint_buffer_size", "Pops that are not acknowledged.", [({}, points)]
        yield GAUGE, "rocketmq_pop_offset_buffer_size", "Pops whose offset is not committed yet.", [({}, offsets)]
        recorded: list[Row] = [
            ({"topic": topic, "consumer_group": group, "revive_message_type": kind, "put_status": "PUT_OK"}, count)
            for (topic, group, kind), count in self._pops.recorded.items()
        ]
        yield COUNTER, "rocketmq_pop_revive_in_message", "Check points and acknowledgements stored.", recorded

    def _behind(self) -> Iterator[tuple[dict[str, str], int, int]]:
        """Yield, of each revive queue, how many messages are not done, and since when in ms."""
        topic, now = self._pops.topic, now_ms()
        for queue_id in range(self._settings.revive_queue_count):
            low, high = self._store.queue_range(topic, queue_id)
            # The last one that is done is committed.
            last = self._offsets.get(topic_names.REVIVE_GROUP, topic, queue_id)
            at = low if last is None else max(low, last + 1)
            since = now - self._store.store_time_at(topic, queue_id, at) if at < high else 0
            yield {"queue_id": str(queue_id)}, max(0, high - at), max(0, since)

    # -- histograms ------------------------------------------------------------------------------------------------

    def _histograms(self) -> Iterator[tuple[str, str, list[tuple[dict[str, str], Histogram]]]]:
        times, stats = self.times, self._stats
        yield "rocketmq_message_size", "Bytes of messages stored.", list(self._message_sizes())
        yield (
            "rocketmq_rpc_latency_milliseconds",
            "How long requests took, in ms.",
            [(times.names(key), row) for key, row in times.rows.items()],
        )
        yield (
            "rocketmq_topic_create_execution_time_milliseconds",
            "How long it took to make a topic, in ms.",
            [({"invocation_status": _status(ok), "is_system": _text(own)}, h) for (ok, own), h in times.topics.items()],
        )
        yield (
            "rocketmq_consumer_group_create_execution_time_milliseconds",
            "How long it took to make a group, in ms.",
            [({"invocation_status": _status(ok)}, row) for ok, row in times.groups.items()],
        )
        yield (
            "rocketmq_finish_message_latency_milliseconds",
            "From birth to commit of a transaction, in s.",
            [({"topic": topic}, row) for topic, row in stats.finished.items()],
        )
        yield (
            "rocketmq_delay_message_latency_seconds",
            "From birth to the time a timer message asks for, in s.",
            [(_STORAGE | {"topic": topic}, row) for topic, row in self._timers.statistics.delays.items()],
        )

    def _message_sizes(self) -> Iterator[tuple[dict[str, str], Histogram]]:
        """Return message sizes by topic and kind, as `_into` has them."""
        s = self._stats
        self.sizes.collect()
        for topic, plain in self.sizes.by_topic.items():
            if topic in (topic_names.SCHEDULE_TOPIC, topic_names.HALF_TOPIC, topic_names.OP_HALF_TOPIC) or _is_retry(
                topic
            ):
                continue
            if plain.count:
                yield self._topic(topic, message_type=self._kind(topic)), plain
        for kind, flows in (("delay", s.parked), ("transaction", s.prepared)):
            for topic, flow in flows.items():
                if not _is_retry(topic) and flow.sizes is not None:
                    yield self._topic(topic, message_type=kind), flow.sizes

    def _sizes_apart(self, topic: str) -> Iterator[Histogram | None]:
        none = TrafficStats()
        for flows in (self._stats.delivered, self._stats.committed):
            yield flows.get(topic, none).sizes

    # -- timers ----------------------------------------------------------------------------------------------------

    def _timer_gauges(self) -> Iterator[tuple[str, str, list[Row]]]:
        if not self._settings.timers_enabled:
            return
        p = self._timers.progress()
        yield "rocketmq_timer_enqueue_lag", "Timer messages not on the wheel yet.", [({}, p.unread)]
        yield "rocketmq_timer_enqueue_latency_milliseconds", "Age of the oldest of those.", [({}, p.unread_ms)]
        yield "rocketmq_timer_dequeue_lag", "Timer messages that are due.", [({}, p.due)]
        yield "rocketmq_timer_dequeue_latency_milliseconds", "How late the first of those is.", [({}, p.late_ms)]
        waiting = [({"topic": topic}, float(count)) for topic, count in self._timers.statistics.waiting().items()]
        yield "rocketmq_timing_messages", "Timer messages that wait.", waiting
        counts = self._timers.within(_TIMER_BOUNDS_S)
        snapshot = [({"timer_bound_s": str(b)}, float(n)) for b, n in zip(_TIMER_BOUNDS_S, counts, strict=True)]
        yield "rocketmq_timer_message_snapshot", "Timer messages due between bounds, from now.", snapshot

    # -- messages --------------------------------------------------------------------------------------------------

    def _into(self) -> Iterator[tuple[dict[str, str], TrafficStats]]:
        """Return what producers sent, by topic and kind; a delayed or half message counts under its real topic."""
        s = self._stats
        none = TrafficStats()
        for topic, stored in s.by_topic.items():
            if topic in (topic_names.SCHEDULE_TOPIC, topic_names.HALF_TOPIC, topic_names.OP_HALF_TOPIC) or _is_retry(
                topic
            ):
                continue
            delivered, committed = s.delivered.get(topic, none), s.committed.get(topic, none)
            plain = TrafficStats(
                stored.messages - delivered.messages - committed.messages,
                stored.bytes - delivered.bytes - committed.bytes,
            )
            if plain.messages > 0:
                yield self._topic(topic, message_type=self._kind(topic)), plain
        for kind, flows in (("delay", s.parked), ("transaction", s.prepared)):
            for topic, flow in flows.items():
                if not _is_retry(topic):
                    yield self._topic(topic, message_type=kind), flow
        delivered = _sum(s.delivered.values())
        if delivered.messages:
            yield self._topic(topic_names.SCHEDULE_TOPIC, message_type="delay"), delivered

    def _out(self) -> Iterator[tuple[dict[str, str], TrafficStats]]:
        for (topic, group), flow in self._stats.read.items():
            yield self._topic(topic, group), flow
        for (topic, group, retry), flow in self._stats.popped.items():
            yield self._topic(topic, group, is_retry=_text(retry)), flow
        delivered = _sum(self._stats.delivered.values())
        if delivered.messages:
            yield self._topic(topic_names.SCHEDULE_TOPIC, SCHEDULE_GROUP), delivered

    def _dead(self) -> Iterator[Row]:
        for (topic, group), count in self._stats.dead.items():
            yield self._topic(topic, group), count

    def _ended(self, flows: dict[str, TrafficStats]) -> Iterator[Row]:
        for topic, flow in flows.items():
            yield {"topic": topic}, flow.messages

    def _kind(self, topic: str) -> str:
        """Return the topic's message.type in lower case; FIFO is told by it alone, not message by message."""
        config = self._topics.get(topic)
        is_fifo = config is not None and config.attributes.get(MESSAGE_TYPE) == FIFO
        return "fifo" if is_fifo else "normal"

    def _topic(self, topic: str, group: str | None = None, **more: str) -> dict[str, str]:
        labels = {"topic": topic, "is_system": _text(topic_names.is_system_topic(topic)), **more}
        return labels if group is None else labels | {"consumer_group": group}

    # -- consumers -------------------------------------------------------------------------------------------------

    def _look_at_lags(self) -> Generator[None, None, list[tuple[dict[str, str], Lag]]]:
        """Return (not committed, age of the oldest, pulled, not pulled, age of the oldest) by live group and topic."""
        now, seen = now_ms(), 0
        found: list[tuple[dict[str, str], Lag]] = []
        try:
            for name, group in list(self._clients.consumers.items()):
                # What a group lacks of lite topics does not stand in the queues of their topic.
                if group.message_model == "BROADCASTING" or bind_topic(self._groups.table.get(name)) is not None:
                    continue
                for config in filter(None, map(self._topics.get, list(group.subscriptions))):
                    topic, lag = config.topic_name, [0, now, 0, 0, now]
                    for queue_id in range(config.write_queue_nums):
                        seen += 1
                        if seen % LAGS_IN_TURN == 0:
                            yield
                        self._add_lag(lag, name, topic, queue_id)
                    unconsumed, oldest, inflight, ready, waiting = lag
                    labels = self._topic(topic, name) | {"is_retry": _text(_is_retry(topic))}
                    ages = max(0, now - oldest), max(0, now - waiting)
                    found.append((labels, (unconsumed, ages[0], inflight, ready, ages[1])))
        except Exception:
            log.exception("metrics of %s are not whole", "lag")
        return found

    def _add_lag(self, lag: list[int], group: str, topic: str, queue_id: int) -> None:
        """Add what a group lacks of a queue; the times are those of the oldest messages."""
        low, high = self._store.queue_range(topic, queue_id)
        committed = self._offsets.get(group, topic, queue_id)
        done = high if committed is None else min(max(committed, low), high)
        pulled = min(max(self._offsets.pulled(group, topic, queue_id), done), high)
        lag[_UNCONSUMED] += high - done
        lag[_INFLIGHT] += pulled - done
        lag[_READY] += high - pulled
        if done < high:
            lag[_AGE] = min(lag[_AGE], self._store.store_time_at(topic, queue_id, done))
        if pulled < high:
            lag[_WAITING] = min(lag[_WAITING], self._store.store_time_at(topic, queue_id, pulled))

    def _producers(self) -> Iterator[Row]:
        counts: dict[tuple[str, str], set[str]] = {}
        for members in self._clients.producers.values():
            for client in members.values():
                counts.setdefault((client.language, _version(client.version)), set()).add(client.client_id)
        for (language, version), ids in counts.items():
            yield {"language": language.lower(), "version": version, "protocol_type": "remoting"}, len(ids)

    def _consumers(self) -> Iterator[Row]:
        for name, group in self._clients.consumers.items():
            counts: dict[tuple[str, str], int] = {}
            for client in group.clients.values():
                key = client.language, _version(client.version)
                counts[key] = counts.get(key, 0) + 1
            for (language, version), count in counts.items():
                yield (
                    {
                        "consumer_group": name,
                        "consume_mode": _CONSUME_MODES.get(group.consume_type, group.consume_type.lower()),
                        "language": language.lower(),
                        "version": version,
                        "protocol_type": "remoting",
                        "is_system": _text(name in SYSTEM_GROUPS),
                    },
                    count,
                )

    # -- storage ---------------------------------------------------------------------------------------------------

    def _storage(self) -> Iterator[tuple[str, str, float]]:
        store = self._store
        yield "rocketmq_storage_size_bytes", "Bytes in the log.", store.written_position - store.min_position
        behind = store.written_position - store.flushed_position
        yield "rocketmq_storage_flush_behind_bytes", "Bytes not on the disk yet.", behind
        dispatch = store.end_position - store.written_position
        yield "rocketmq_storage_dispatch_behind_bytes", "Bytes not in queues and index yet.", dispatch
        oldest = earliest_ms(store)
        kept = now_ms() - oldest if oldest > 0 else 0
        yield "rocketmq_storage_message_reserve_time_milliseconds", "Age of the oldest message.", kept


def _as_far_as_known(what: str, rows: Iterable[T]) -> list[T]:
    """Return the rows up to the first that fails, e.g. for a queue with a broken file; the failure is logged."""
    found = []
    try:
        for row in rows:
            found.append(row)
    except Exception:
        log.exception("metrics of %s are not whole", what)
    return found


def _is_retry(topic: str) -> bool:
    return topic.startswith((topic_names.RETRY_PREFIX, topic_names.DLQ_PREFIX))


def _sum(flows: Iterable[TrafficStats]) -> TrafficStats:
    total = TrafficStats()
    for flow in flows:
        total.add(flow.messages, flow.bytes)
    return total


def _status(done: bool) -> str:
    return "success" if done else "failure"


def _text(value: bool) -> str:
    return "true" if value else "false"


def _version(number: int) -> str:
    """Return a client's version as RocketMQ names it in labels: 513 is v5_5_0, from 4.0.0 on two for each release."""
    if number < _V4:
        return str(number)
    major, rest = divmod(number - _V4, _PER_MAJOR)
    return f"v{4 + major}_{rest // 20}_{rest % 20 // 2}"
