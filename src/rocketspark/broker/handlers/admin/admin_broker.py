"""Requests of operators about the broker itself: settings, state, statistics, clean-up, quarantine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, NamedTuple

import msgspec

from rocketspark.broker import topic_names
from rocketspark.broker.consumers.cold_reads import ColdReads
from rocketspark.broker.handlers.admin.admin_topics import check_new, checked_attributes
from rocketspark.broker.operations.live_settings import LiveSettings
from rocketspark.broker.operations.runtime_info import runtime_info
from rocketspark.broker.parts import Messages, StoreReads, Tables
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.statistics.stats import Window
from rocketspark.broker.storage.json_tables import now_ms
from rocketspark.broker.storage.long_scans import QUEUES_IN_TURN
from rocketspark.broker.topics import batch_topics
from rocketspark.errors import ConfigError, RocketSparkError, ServerError, UsageError
from rocketspark.model import MessageQueue
from rocketspark.model.conf_lines import parse_request
from rocketspark.model.text import LONG_MAX, shown, whole_number
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import Request
from rocketspark.protocol.headers.admin import (
    BrokerConsumeStatsHeader,
    ConfigReply,
    QuarantinedHeader,
    QueueUnitsHeader,
    ReadAheadHeader,
    ResumeCheckHeader,
    RuntimeInfoHeader,
    StatsHeader,
    TimerEngineHeader,
)
from rocketspark.protocol.json import bodies, java_json
from rocketspark.protocol.json.bodies import QueueBody, SubscriptionBody
from rocketspark.protocol.message.message_ids import parse_offset_message_id
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Answer, Routes
from rocketspark.transport.request_frames import reply

UNITS_MAX = 10_000


class BrokerActs(NamedTuple):
    """What an operator's requests make the running broker do.

    `settled`: waits until the NameServers know its topics; `expire`: deletes expired files now; `ha_status`: returns
    how replication stands, as RocketMQ's HARuntimeInfo.
    """

    settled: Callable[[], Awaitable[None]]
    expire: Callable[[], None]
    ha_status: Callable[[], dict[str, Any]]


class AdminHandler:
    """Serves operators' requests about the broker. `address`: the broker's own "host:port", as clients are told.

    `acts`: what the requests make the broker do.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        live: LiveSettings,
        address: str,
        reads: StoreReads,
        tables: Tables,
        messages: Messages,
        *,
        acts: BrokerActs,
        cold_reads: ColdReads,
    ) -> None:
        self._settings = settings
        self._live = live
        self._address = address
        self._store = reads.store
        self._stats = reads.stats
        self._long_scans = reads.long_scans
        self._topics = tables.topics
        self._groups = tables.groups
        self._clients = tables.clients
        self._offsets = tables.offsets
        self._delays = messages.delays
        self._timers = messages.timers
        self._transactions = messages.transactions
        self._quarantine = messages.quarantine
        self._pops = messages.pops
        self._acts = acts
        self._cold_reads = cold_reads

    def routes(self, routes: Routes) -> None:
        """Add what this handler serves."""
        add = routes.add
        add(RequestCode.UPDATE_BROKER_CONFIG, self.update_config)
        add(RequestCode.GET_BROKER_CONFIG, self.config)
        add(RequestCode.GET_BROKER_RUNTIME_INFO, self.runtime)
        add(RequestCode.VIEW_BROKER_STATS_DATA, self.stats_data, StatsHeader)
        add(RequestCode.GET_BROKER_CONSUME_STATS, self.consume_stats, BrokerConsumeStatsHeader)
        add(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, self.system_topics)
        add(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, self.create_topics)
        add(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, self.expire)
        add(RequestCode.DELETE_EXPIRED_COMMITLOG, self.expire)
        add(RequestCode.CLEAN_UNUSED_TOPIC, self.clean_topics)
        add(RequestCode.QUERY_CONSUME_QUEUE, self.queue_units, QueueUnitsHeader)
        add(RequestCode.RESUME_CHECK_HALF_MESSAGE, self.resume_check, ResumeCheckHeader)
        add(RequestCode.GET_BROKER_HA_STATUS, self.replication)
        add(RequestCode.SET_COMMITLOG_READ_MODE, self.read_ahead, ReadAheadHeader)
        add(RequestCode.SWITCH_TIMER_ENGINE, self.timer_engine, TimerEngineHeader)
        add(RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, self.limit_cold_reads)
        add(RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, self.unlimit_cold_reads)
        add(RequestCode.GET_COLD_DATA_FLOW_CTR_INFO, self.cold_reads)
        add(RequestCode.POP_ROLLBACK, self.pop_records)
        add(RequestCode.LIST_QUARANTINE, self.quarantined)
        add(RequestCode.RETRY_QUARANTINED, self.retry_quarantined, QuarantinedHeader)
        add(RequestCode.DROP_QUARANTINED, self.drop_quarantined, QuarantinedHeader)

    # -- settings --------------------------------------------------------------------------------------------------

    async def update_config(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """UPDATE_BROKER_CONFIG (25): lines of key=value, all or none."""
        self._live.update(body.decode("utf-8", "replace"))
        await self._acts.settled()
        return reply(request.opaque)

    def config(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """GET_BROKER_CONFIG (26): every key of 5.5.0 with its value."""
        version = msgspec.json.encode(self._live.version, order="sorted").decode()
        return reply(request.opaque, header=ConfigReply(version=version), body=self._live.document().encode())

    # -- state and statistics --------------------------------------------------------------------------------------

    def runtime(self, peer: Peer, request: Request[RuntimeInfoHeader], body: bytes) -> bytes:
        """GET_BROKER_RUNTIME_INFO (28): the broker's state and figures, as a table of texts."""
        table = runtime_info(
            self._store,
            self._stats,
            self._delays,
            self._timers.progress(),
            self._live.properties(),
            now_ms=now_ms(),
            active=True,
        )
        if request.ext.extensions:
            table["transactionEndsOnce"] = table["halfBatches"] = "true"
        if aside := self._quarantine.entries():
            # Not among RocketMQ's: shown only if there is something to look at.
            table["quarantinedMessages"] = str(len(aside))
        return reply(request.opaque, body=bodies.encode(bodies.KvTable(table=table)))

    def stats_data(self, peer: Peer, request: Request[StatsHeader], body: bytes) -> bytes:
        """VIEW_BROKER_STATS_DATA (315): one counter's minute, hour and day; code 1 if it never counted."""
        h = request.ext
        item = self._stats.item(h.name, h.key)
        if item is None:
            raise ServerError(ResponseCode.SYSTEM_ERROR, f"The stats <{h.name}> <{h.key}> not exist")
        answer = {
            "statsDay": _window(item.day()),
            "statsHour": _window(item.hour()),
            "statsMinute": _window(item.minute()),
        }
        return reply(request.opaque, body=bodies.encode(answer))

    def consume_stats(self, peer: Peer, request: Request[BrokerConsumeStatsHeader], body: bytes) -> Answer:
        """GET_BROKER_CONSUME_STATS (317): the progress of every group in every topic."""
        return self._long_scans.answer(peer, self._consume_stats(request))

    def _consume_stats(self, request: Request[BrokerConsumeStatsHeader]) -> Generator[None, None, bytes]:
        seen = 0
        total = inflight = 0
        groups = []
        topics_of = self._offsets.topics_by_group()
        for group in list(self._groups.table):
            rows = []
            seen += 1
            if seen % QUEUES_IN_TURN == 0:
                yield
            for topic in topics_of.get(group, ()):
                config = self._topics.get(topic)
                if config is None or (request.ext.order and not config.order):
                    continue
                live = self._clients.consumers.get(group)
                if live is not None and live.subscriptions and topic not in live.subscriptions:
                    continue
                queues = []
                for queue_id in range(config.write_queue_nums):
                    seen += 1
                    if seen % QUEUES_IN_TURN == 0:
                        yield
                    value = self._progress(group, topic, queue_id)
                    total += value["brokerOffset"] - value["consumerOffset"]
                    inflight += value["pullOffset"] - value["consumerOffset"]
                    queue = QueueBody.of(MessageQueue(topic, self._settings.broker_name, queue_id))
                    queues.append(java_json.encode_object_key(queue, value))
                tps = msgspec.json.encode(self._stats.consume_tps(group, topic))
                rows.append(b'{"consumeTps":%b,"offsetTable":{%b}}' % (tps, b",".join(queues)))
            groups.append(b"{%b:[%b]}" % (msgspec.json.encode(group), b",".join(rows)))
        text = b'{"brokerAddr":%b,"consumeStatsList":[%b],"totalDiff":%d,"totalInflightDiff":%d}' % (
            msgspec.json.encode(self._address),
            b",".join(groups),
            total,
            inflight,
        )
        return reply(request.opaque, body=text)

    def _progress(self, group: str, topic: str, queue_id: int) -> dict[str, int]:
        low, high = self._store.queue_range(topic, queue_id)
        offset = max(self._offsets.get(group, topic, queue_id) or 0, 0)
        last_ms = self._store.store_time_at(topic, queue_id, offset - 1) if offset > low else 0
        return {
            "brokerOffset": high,
            "consumerOffset": offset,
            "lastTimestamp": max(last_ms, 0),
            "pullOffset": max(self._offsets.pulled(group, topic, queue_id), offset),
        }

    def replication(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """GET_BROKER_HA_STATUS (907): a master's slaves, or a slave's link to its master."""
        return reply(request.opaque, body=bodies.encode(self._acts.ha_status()))

    def read_ahead(self, peer: Peer, request: Request[ReadAheadHeader], body: bytes) -> bytes:
        """SET_COMMITLOG_READ_MODE (2004): whether the kernel reads the log ahead, until the broker stops."""
        mode = request.ext.mode
        if mode not in (0, 1):
            raise ServerError(ResponseCode.INVALID_PARAMETER, "set commitlog readahead mode param value error")
        self._store.read_ahead(mode == 0)
        return reply(request.opaque, remark=f"set commitlog readahead mode success, mode: {mode}")

    def timer_engine(self, peer: Peer, request: Request[TimerEngineHeader], body: bytes) -> bytes:
        """SWITCH_TIMER_ENGINE (5001): F, the wheel in files, is the only engine here; R, RocksDB, is refused."""
        if not self._settings.timers_enabled:
            raise ServerError(ResponseCode.INVALID_PARAMETER, "broker timerWheelEnable is false")
        if request.ext.engine == "R":
            raise ServerError(
                ResponseCode.INVALID_PARAMETER, "timerRocksDBEnable must be configured true when broker start"
            )
        if request.ext.engine != "F":
            raise ServerError(ResponseCode.INVALID_PARAMETER, f"timer engine {request.ext.engine!r}: F is needed")
        return reply(request.opaque)

    def limit_cold_reads(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """UPDATE_COLD_DATA_FLOW_CTR_CONFIG (2001): bytes that groups may read cold in an interval; all or none."""
        try:
            given = parse_request(body.decode())
        except (ConfigError, UnicodeDecodeError) as e:
            raise ServerError(ResponseCode.INVALID_PARAMETER, str(e)) from e
        limits = {}
        for name, text in given.items():
            size = whole_number(text, high=LONG_MAX)
            if size is None:
                raise ServerError(ResponseCode.INVALID_PARAMETER, f"{shown(name)}={shown(text)}: bytes are needed")
            limits[name] = size
        self._cold_reads.set_limits(limits)
        return reply(request.opaque)

    def unlimit_cold_reads(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """REMOVE_COLD_DATA_FLOW_CTR_CONFIG (2002): a group has the limit of all others again."""
        self._cold_reads.remove_limit(body.decode("utf-8", "replace"))
        return reply(request.opaque)

    def cold_reads(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """GET_COLD_DATA_FLOW_CTR_INFO (2003): what groups read cold in this interval, and their limits."""
        return reply(request.opaque, body=msgspec.json.encode(self._cold_reads.report()))

    def pop_records(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """POP_ROLLBACK (200056): move check points from RocksDB into the topics of POP, where ours are already."""
        return reply(request.opaque)

    # -- topics and queues -----------------------------------------------------------------------------------------

    def system_topics(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """GET_SYSTEM_TOPIC_LIST_FROM_BROKER (305): the names of the system topics."""
        s = self._settings
        topics = sorted(
            topic_names.SYSTEM_TOPICS
            | topic_names.RESERVED_TOPICS
            | {
                s.cluster_name,
                s.broker_name,
                f"{s.cluster_name}_REPLY_TOPIC",
                f"rmq_sys_REVIVE_LOG_{s.cluster_name}",
                topic_names.MEMBER_TOPIC_PREFIX + s.broker_name,
            }
        )
        return reply(request.opaque, body=bodies.encode(bodies.TopicList(topic_list=topics)))

    async def create_topics(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """UPDATE_AND_CREATE_TOPIC_LIST (18): create or change several topics; if one is invalid, none."""
        wanted = java_json.decode_request(body, bodies.TopicConfigList).topic_config_list
        async for part in self._long_scans.pieces(wanted):
            for config in part:
                counts = config.read_queue_nums, config.write_queue_nums
                check_new(self._topics, config.topic_name, *counts, config.topic_filter_type)
        async for part in self._long_scans.pieces(wanted):
            for config in part:
                known = self._topics.get(config.topic_name)
                change = ",".join(f"{k if k[:1] in '+-' else '+' + k}={v}" for k, v in config.attributes.items())
                config.attributes = checked_attributes(config.topic_name, known, change)
        self._topics.make_way(config.topic_name for config in wanted)
        for topic in batch_topics(wanted):
            self._store.make_batch_topic(topic)
        self._store.consume_queues.generation += 1  # Sends are looked at anew.
        self._topics.put_all(wanted)
        await self._acts.settled()
        return reply(request.opaque)

    def expire(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """CLEAN_EXPIRED_CONSUMEQUEUE (306) and DELETE_EXPIRED_COMMITLOG (329): delete expired files now."""
        self._acts.expire()
        return reply(request.opaque)

    async def clean_topics(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """CLEAN_UNUSED_TOPIC (316): delete the queues and offsets of topics that the broker does not have. Light queues
        stay, also while they are switched off.

        A slave deletes none: messages of a new topic may be there before its settings.
        """
        if self._store.log.is_replica:
            return reply(request.opaque)
        for topic in list(self._store.queues()):
            is_kept = topic_names.is_system_topic(topic) or topic.startswith(topic_names.LIGHT_PREFIX)
            if self._topics.get(topic) is None and not is_kept:
                self._pops.delete_topic(topic)
                self._offsets.delete_topic(topic)
                self._store.delete_topic(topic)
                self._stats.forget_topic(topic)
        await self._offsets.saved()
        return reply(request.opaque)

    def queue_units(self, peer: Peer, request: Request[QueueUnitsHeader], body: bytes) -> bytes:
        """QUERY_CONSUME_QUEUE (321): units of a queue (position, size, hash of tags), and if a group's filter fits."""
        h = request.ext
        if h.queue_id not in self._store.queues().get(h.topic, ()):
            raise ServerError(ResponseCode.SYSTEM_ERROR, f"{h.queue_id}@{h.topic} is not exist!")
        low, high = self._store.queue_range(h.topic, h.queue_id)
        answer: dict[str, Any] = {"maxQueueIndex": high, "minQueueIndex": low}
        subscription = None
        if h.group:
            live = self._clients.consumers.get(h.group)
            subscription = live.subscriptions.get(h.topic) if live is not None else None
            answer["filterData"] = "null" if subscription else f"{h.group}@{h.topic} is not online!"
        if subscription is not None:
            answer["subscriptionData"] = SubscriptionBody.of(subscription)
        # Units of messages that only the second tier has are not shown.
        first = max(h.queue_offset, self._store.stored_range(h.topic, h.queue_id)[0])
        if first >= high:
            raise ServerError(
                ResponseCode.SYSTEM_ERROR, f"Index {h.queue_offset} of {h.queue_id}@{h.topic} is not exist!"
            )
        units = self._store.queue_units(h.topic, h.queue_id, first, min(max(h.count, 0), UNITS_MAX, high - first))
        answer["queueData"] = [
            {
                "eval": subscription is not None and code in subscription.codes,
                "physicOffset": position,
                "physicSize": size,
                "tagsCode": code,
            }
            for position, size, code in units
        ]
        return reply(request.opaque, body=bodies.encode(answer))

    def resume_check(self, peer: Peer, request: Request[ResumeCheckHeader], body: bytes) -> bytes:
        """RESUME_CHECK_HALF_MESSAGE (323): check a half message again whose checks were given up."""
        try:
            _, _, position = parse_offset_message_id(request.ext.message_id)
        except UsageError as e:
            raise ServerError(ResponseCode.INVALID_PARAMETER, str(e)) from e
        self._transactions.resume(position)
        return reply(request.opaque)

    # -- the quarantine: its codes are our own ------------------------------------------------------------------------

    def quarantined(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """LIST_QUARANTINE (7310001): the quarantined messages, oldest first."""
        return reply(request.opaque, body=bodies.encode(bodies.QuarantineTable(entries=self._quarantine.entries())))

    def retry_quarantined(self, peer: Peer, request: Request[QuarantinedHeader], body: bytes) -> bytes:
        """RETRY_QUARANTINED (7310002): one message is tried again. Code 22: no such message; 1: it failed again."""
        try:
            self._quarantine.retry(request.ext.name)
        except ServerError:
            raise
        except RocketSparkError as e:
            raise ServerError(ResponseCode.SYSTEM_ERROR, str(e)) from e
        except Exception as e:
            raise ServerError(ResponseCode.SYSTEM_ERROR, shown(f"{type(e).__name__}: {e}")) from e
        return reply(request.opaque)

    def drop_quarantined(self, peer: Peer, request: Request[QuarantinedHeader], body: bytes) -> bytes:
        """DROP_QUARANTINED (7310003): a message leaves the quarantine, not the log. Code 22: there is no such one."""
        self._quarantine.drop(request.ext.name)
        return reply(request.opaque)


def _window(window: Window) -> dict[str, Any]:
    return {"avgpt": window.avgpt, "sum": window.sum, "tps": window.tps}
