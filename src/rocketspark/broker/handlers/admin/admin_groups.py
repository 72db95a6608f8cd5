"""Consumer groups as an operator sees them: settings, connections, progress, offsets set by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterable
from datetime import datetime
from typing import Any

import msgspec

from rocketspark.broker import topic_names
from rocketspark.broker.background_thread import BackgroundThread
from rocketspark.broker.consumers.connected_clients import ConnectedClient, ConsumerGroup
from rocketspark.broker.consumers.long_polling import LongPolling
from rocketspark.broker.declared_settings import QUEUES_MAX
from rocketspark.broker.handlers.admin.admin_topics import merged_attributes
from rocketspark.broker.handlers.consumer_manage import may_have_offset
from rocketspark.broker.lite import attributes as lite_attributes
from rocketspark.broker.lite.parts import LiteTopics
from rocketspark.broker.parts import StoreReads, Tables
from rocketspark.broker.pop.pops import Pops
from rocketspark.broker.pop.reading import PRIORITY_FACTOR
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.storage.json_tables import now_ms, sorted_json, steady_ms
from rocketspark.broker.storage.long_scans import QUEUES_IN_TURN
from rocketspark.broker.storage.table_pages import TablePages, page_wanted
from rocketspark.broker.storage.table_saving import SavedTable
from rocketspark.errors import ServerError
from rocketspark.model import MessageQueue
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import (
    CloneOffsetsHeader,
    ConsumerListHeader,
    ConsumerStatsHeader,
    CorrectionHeader,
    DeleteGroupHeader,
    ForbiddenHeader,
    GroupHeader,
    GroupTopicHeader,
    ProducerGroupHeader,
    Request,
    ResetOffsetHeader,
    TopicHeader,
)
from rocketspark.protocol.headers.topics import GroupPageHeader, GroupPageReply, KnownStateHeader, StateReply
from rocketspark.protocol.json import bodies, java_json
from rocketspark.protocol.json.bodies import (
    GroupConfig,
    GroupConfigList,
    GroupConfigTable,
    QueueBody,
    SubscriptionBody,
    TopicConfig,
)
from rocketspark.protocol.json.group_bodies import GroupNames
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Answer, Routes
from rocketspark.transport.request_frames import reply

log = LimitedLog("rocketspark.broker")
# The attributes that a group may have (rule: SubscriptionGroupAttributes, 5.5.0).
ATTRIBUTES = (PRIORITY_FACTOR, *lite_attributes.OF_GROUPS)

GROUPS_OF_REQUEST_MAX = 100
# Clients of this version (V3_0_7_SNAPSHOT) and later reset their offsets when told.
_RESETS_SINCE = 16


class GroupHandler:
    """Serves the requests about consumer and producer groups."""

    def __init__(
        self,
        settings: BrokerSettings,
        address: str,
        reads: StoreReads,
        tables: Tables,
        long_polling: LongPolling,
        pops: Pops,
        lite: LiteTopics,
        *,
        beside: BackgroundThread,
    ) -> None:
        self._settings = settings
        self._store = reads.store
        self._stats = reads.stats
        self._long_scans = reads.long_scans
        self._tiering = reads.tiering
        topics, groups, offsets = tables.topics, tables.groups, tables.offsets
        self._address = address
        self._topics = topics
        self._groups = groups
        self._clients = tables.clients
        self._offsets = offsets
        self._long_polling = long_polling
        self._pops = pops
        self._lite = lite
        self._group_pages = TablePages(lambda: groups.version, lambda: groups.table, beside)
        self._all_groups = SavedTable(lambda: groups.version, lambda: groups.table, groups.snapshot, beside)
        self._all_offsets = SavedTable(offsets.state, offsets.rows, offsets.reply_snapshot, beside)

    def routes(self, routes: Routes) -> None:
        """Add what this handler serves."""
        add = routes.add
        add(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, self.put)
        add(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, self.put_all)
        add(RequestCode.DELETE_SUBSCRIPTIONGROUP, self.delete, DeleteGroupHeader)
        add(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, self.show, GroupHeader)
        add(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, self.show_all, GroupPageHeader)
        add(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, self.forbid, ForbiddenHeader)
        add(RequestCode.GET_CONSUMER_CONNECTION_LIST, self.consumer_connections, ConsumerListHeader)
        add(RequestCode.GET_PRODUCER_CONNECTION_LIST, self.producer_connections, ProducerGroupHeader)
        add(RequestCode.GET_ALL_PRODUCER_INFO, self.producers)
        add(RequestCode.GET_CONSUME_STATS, self.progress)
        add(RequestCode.GET_GROUP_STATES, self.states)
        add(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, self.groups_of_topic, TopicHeader)
        add(RequestCode.QUERY_TOPICS_BY_CONSUMER, self.topics_of_group, GroupHeader)
        add(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, self.subscription, GroupTopicHeader)
        add(RequestCode.QUERY_CONSUME_TIME_SPAN, self.time_span, GroupTopicHeader)
        add(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, self.reset, ResetOffsetHeader)
        add(RequestCode.CLONE_GROUP_OFFSET, self.clone, CloneOffsetsHeader)
        add(RequestCode.QUERY_CORRECTION_OFFSET, self.correction, CorrectionHeader)
        add(RequestCode.GET_ALL_CONSUMER_OFFSET, self.all_offsets, KnownStateHeader)

    # -- settings -------------------------------------------------------------------------------------------------

    async def put(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200): create a consumer group, or change its settings."""
        config = java_json.decode_request(body, GroupConfig)
        self._check_new(config)
        self._merge_attributes(config)
        self._groups.put(config)
        await self._groups.unsaved.saved()
        return reply(request.opaque)

    async def put_all(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST (225): create several consumer groups, or change their settings."""
        configs = java_json.decode_request(body, GroupConfigList).group_config_list
        async for part in self._long_scans.pieces(configs):
            for config in part:
                self._check_new(config)
                self._merge_attributes(config)
        self._groups.put_all(configs)
        await self._groups.unsaved.saved()
        return reply(request.opaque)

    @staticmethod
    def _check_new(config: GroupConfig) -> None:
        """Raise ServerError 29 for settings that no group may have."""
        topic_names.check_group(config.group_name)
        if not 0 <= config.retry_queue_nums <= QUEUES_MAX:
            raise ServerError(
                ResponseCode.INVALID_PARAMETER,
                f"group[{config.group_name}]: {config.retry_queue_nums} retry queues asked,"
                f" 0 to {QUEUES_MAX} are allowed",
            )

    def _merge_attributes(self, config: GroupConfig) -> None:
        known = self._groups.table.get(config.group_name)
        change = ",".join(f"{name}={value}" for name, value in config.attributes.items())
        before = known.attributes if known else {}
        config.attributes = merged_attributes(before, change, ATTRIBUTES)
        changed = dict(config.attributes.items() - before.items())
        lite_attributes.check_number(changed, PRIORITY_FACTOR, 0, 100)
        lite_attributes.check_group(changed)

    async def delete(self, peer: Peer, request: Request[DeleteGroupHeader], body: bytes) -> bytes:
        """DELETE_SUBSCRIPTIONGROUP (207): delete a consumer group, and its offsets if the request asks for it."""
        is_lite = lite_attributes.bind_topic(self._groups.table.get(request.ext.group)) is not None
        self._groups.delete(request.ext.group)
        self._pops.delete_group(request.ext.group)
        self._lite.subscriptions.forget_group(request.ext.group)
        self._lite.ordered.delete_group(request.ext.group)
        self._stats.forget_group(request.ext.group)
        # A new group of this name starts at its own offsets.
        self._offsets.drop_resets(group=request.ext.group)
        if request.ext.clean_offsets or is_lite:
            self._offsets.delete_group(request.ext.group)
            # Else what it has would make the group again once it is due, and come twice to a new one of its name.
            has = self._pops.in_flight.check_points.of_group(request.ext.group)
            async for part in self._long_scans.pieces(has):
                self._pops.in_flight.give_up(part)
        self._pops.ordered.save()
        await self._groups.unsaved.saved()
        await self._offsets.saved()
        return reply(request.opaque)

    def show(self, peer: Peer, request: Request[GroupHeader], body: bytes) -> bytes:
        """GET_SUBSCRIPTIONGROUP_CONFIG (352): the settings of one consumer group."""
        config = self._groups.table.get(request.ext.group)
        if config is None:
            raise ServerError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"No group in this broker. group: {request.ext.group}"
            )
        return reply(request.opaque, body=bodies.encode(config))

    def show_all(self, peer: Peer, request: Request[GroupPageHeader], body: bytes) -> Answer:
        """GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201): all groups, or a page of them with the topics they may not read."""
        wanted = page_wanted(request.ext, self._settings.page_rows())
        if wanted is None:
            return self._all_groups.answer(peer, request, "totalGroupNum")
        forbidden, groups = self._groups.forbidden, self._groups.table
        return self._group_pages.answer(
            peer,
            wanted,
            lambda rows, total: reply(
                request.opaque,
                header=GroupPageReply(total=total),
                body=sorted_json(
                    GroupConfigTable(
                        subscription_group_table=rows,
                        # Of groups that are not made yet in each page: they are in none.
                        forbidden_table={n: bits for n, bits in forbidden.items() if n in rows or n not in groups},
                        data_version=self._groups.version,
                    )
                ),
            ),
        )

    async def forbid(self, peer: Peer, request: Request[ForbiddenHeader], body: bytes) -> bytes:
        """UPDATE_AND_GET_GROUP_FORBIDDEN (353): allow or forbid a group to read a topic, and tell which it is."""
        h = request.ext
        if h.readable is not None:
            # Only valid names of topics and groups are kept.
            topic_names.check_group(h.group)
            topic_names.check_topic(h.topic)
            self._groups.set_readable(h.group, h.topic, h.readable)
            await self._groups.unsaved.saved()
        answer = {"group": h.group, "readable": self._groups.readable(h.group, h.topic), "topic": h.topic}
        return reply(request.opaque, body=bodies.encode(answer), remark="")

    # -- connections ----------------------------------------------------------------------------------------------

    def consumer_connections(self, peer: Peer, request: Request[ConsumerListHeader], body: bytes) -> bytes:
        """GET_CONSUMER_CONNECTION_LIST (203): the live members and what the group subscribes to."""
        group = self._clients.consumers.get(request.ext.group)
        if group is None:
            raise ServerError(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{request.ext.group}] not online")
        subscriptions = {t: SubscriptionBody.of(s) for t, s in group.subscriptions.items()}
        return reply(request.opaque, body=bodies.encode(_members(group) | {"subscriptionTable": subscriptions}))

    def producer_connections(self, peer: Peer, request: Request[ProducerGroupHeader], body: bytes) -> bytes:
        """GET_PRODUCER_CONNECTION_LIST (204): the clients connected in one producer group."""
        members = self._clients.producers.get(request.ext.group)
        if not members:
            raise ServerError(ResponseCode.SYSTEM_ERROR, f"the producer group[{request.ext.group}] not exist")
        return reply(request.opaque, body=bodies.encode({"connectionSet": [_connection(c) for c in members.values()]}))

    async def producers(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """GET_ALL_PRODUCER_INFO (328): the connected clients of all producer groups."""
        rows = []
        async for part in self._long_scans.pieces(list(self._clients.producers.items())):
            for group, members in part:
                told = [
                    {
                        "clientId": c.client_id,
                        "language": c.language,
                        "lastUpdateTimestamp": now_ms() - steady_ms() + c.beat_ms,
                        "remoteIP": f"/{c.peer.address}",
                        "version": c.version,
                    }
                    for c in members.values()
                ]
                rows.append(b"%b:%b" % (msgspec.json.encode(group), bodies.encode(told)))
        return reply(request.opaque, body=b'{"data":{%b}}' % b",".join(rows))

    # -- progress -------------------------------------------------------------------------------------------------

    def progress(self, peer: Peer, request: Request[ConsumerStatsHeader], body: bytes) -> Answer:
        """GET_CONSUME_STATS (208): the end, the group's offset and the last consumed time of every queue."""
        return self._long_scans.answer(peer, self._progress(request))

    def _progress(self, request: Request[ConsumerStatsHeader]) -> Generator[None, None, bytes]:
        h = request.ext
        rows: list[bytes] = []
        tps = 0.0
        topics = [h.topic] if h.topic else (yield from self._offsets.topics_of_steps(h.group))
        for number, topic in enumerate(topics, 1):
            if number % QUEUES_IN_TURN == 0:
                yield
            config = self._topics.get(topic)
            if config is None:
                continue
            tps += self._stats.consume_tps(h.group, topic)
            committed = self._offsets.of(h.group, topic)
            for queue_id in range(config.read_queue_nums):
                if len(rows) % QUEUES_IN_TURN == QUEUES_IN_TURN - 1:
                    yield
                low, high = self._store.queue_range(topic, queue_id)
                offset = max(committed.get(queue_id, 0), 0)
                last_ms = self._store.store_time_at(topic, queue_id, offset - 1) if offset > low else 0
                value = {
                    "brokerOffset": high,
                    "consumerOffset": offset,
                    "lastTimestamp": max(last_ms, 0),
                    # Tools show what lies between.
                    "pullOffset": self._fetched(h.group, topic, queue_id, offset),
                }
                queue = QueueBody.of(MessageQueue(topic, self._settings.broker_name, queue_id))
                rows.append(java_json.encode_object_key(queue, value))
        text = b",".join(rows)
        return reply(request.opaque, body=b'{"consumeTps":%b,"offsetTable":{%b}}' % (msgspec.json.encode(tps), text))

    def states(self, peer: Peer, request: Request[Any], body: bytes) -> Answer:
        """GET_GROUP_STATES (7310007): members and lag of many groups; of each what 203 and 208 tell, added up."""
        names = java_json.decode_request(body, GroupNames).groups
        if len(names) > GROUPS_OF_REQUEST_MAX:
            raise ServerError(
                ResponseCode.INVALID_PARAMETER,
                f"{len(names)} groups are asked for: at most {GROUPS_OF_REQUEST_MAX} at a time",
            )
        return self._long_scans.answer(peer, self._states(request, names))

    def _states(self, request: Request[Any], names: list[str]) -> Generator[None, None, bytes]:
        found: dict[str, Any] = {}
        for number, name in enumerate(names):
            if number:
                yield
            group = self._clients.consumers.get(name)
            tps, lag, in_flight = yield from self._sums(name)
            found[name] = {
                "connections": None if group is None else _members(group),
                "consumeTps": tps,
                "lag": lag,
                "inFlight": in_flight,
            }
        return reply(request.opaque, body=bodies.encode({"groups": found}))

    def _sums(self, group: str) -> Generator[None, None, tuple[float, int, int]]:
        """Return messages a second, lag and messages in flight of a group; yield after each few queues."""
        tps, lag, in_flight, seen = 0.0, 0, 0, 0
        topics = yield from self._offsets.topics_of_steps(group)
        for config in filter(None, map(self._topics.get, topics)):
            topic = config.topic_name
            tps += self._stats.consume_tps(group, topic)
            committed = self._offsets.of(group, topic)
            for queue_id in range(config.read_queue_nums):
                seen += 1
                if seen % QUEUES_IN_TURN == 0:
                    yield
                offset = max(committed.get(queue_id, 0), 0)
                lag += max(0, self._store.queue_range(topic, queue_id)[1] - offset)
                in_flight += max(0, self._fetched(group, topic, queue_id, offset) - offset)
        return tps, lag, in_flight

    def _fetched(self, group: str, topic: str, queue_id: int, offset: int) -> int:
        """Return up to where a group fetched a queue: messages that are popped count as consumed before their end."""
        pops = self._pops.count(topic, group, queue_id)
        return max(self._offsets.pulled(group, topic, queue_id), offset + pops)

    def groups_of_topic(self, peer: Peer, request: Request[TopicHeader], body: bytes) -> Answer:
        """QUERY_TOPIC_CONSUME_BY_WHO (300): groups that subscribe or have offsets there."""
        return self._long_scans.answer(peer, self._groups_of_topic(request))

    def _groups_of_topic(self, request: Request[TopicHeader]) -> Generator[None, None, bytes]:
        topic = request.ext.topic
        with_offsets = yield from self._offsets.groups_of_steps(topic)
        online = [n for n, g in self._clients.consumers.items() if topic in g.subscriptions]
        groups = list(dict.fromkeys([*online, *with_offsets]))
        return reply(request.opaque, body=bodies.encode({"groupList": groups}))

    def topics_of_group(self, peer: Peer, request: Request[GroupHeader], body: bytes) -> Answer:
        """QUERY_TOPICS_BY_CONSUMER (343): the topics in which a group has offsets."""
        return self._long_scans.answer(peer, self._topics_of_group(request))

    def _topics_of_group(self, request: Request[GroupHeader]) -> Generator[None, None, bytes]:
        topics = yield from self._offsets.topics_of_steps(request.ext.group)
        return reply(request.opaque, body=bodies.encode(bodies.TopicList(topic_list=topics, broker_addr=self._address)))

    def subscription(self, peer: Peer, request: Request[GroupTopicHeader], body: bytes) -> bytes:
        """QUERY_SUBSCRIPTION_BY_CONSUMER (345): what a connected group subscribes to in a topic."""
        h = request.ext
        group = self._clients.consumers.get(h.group)
        answer: dict[str, Any] = {"group": h.group, "topic": h.topic}
        if group is not None and h.topic in group.subscriptions:
            answer["subscriptionData"] = SubscriptionBody.of(group.subscriptions[h.topic])
        return reply(request.opaque, body=bodies.encode(answer))

    def time_span(self, peer: Peer, request: Request[GroupTopicHeader], body: bytes) -> Answer:
        """QUERY_CONSUME_TIME_SPAN (303): first, last and consumed store time of every queue."""
        return self._long_scans.answer(peer, self._time_span(request))

    def _time_span(self, request: Request[GroupTopicHeader]) -> Generator[None, None, bytes]:
        h = request.ext
        config = self._topics.get(h.topic or "")
        if config is None:
            raise ServerError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{h.topic}] not exist")
        topic = config.topic_name
        spans = []
        for queue_id in range(config.write_queue_nums):
            if queue_id and queue_id % QUEUES_IN_TURN == 0:
                yield
            low, high = self._store.queue_range(topic, queue_id)
            first = self._store.store_time_at(topic, queue_id, low) if high > low else -1
            last = self._store.store_time_at(topic, queue_id, high - 1) if high > low else -1
            offset = self._offsets.get(h.group, topic, queue_id) or 0
            consumed = self._store.store_time_at(topic, queue_id, offset - 1) if offset > 0 else first
            oldest = self._store.store_time_at(topic, queue_id, offset) if offset < high else now_ms()
            span = {
                "consumeTimeStamp": consumed,
                "consumeTimeStampStr": _clock(consumed),
                "delayTime": max(0, now_ms() - oldest) if offset < high else 0,
                "maxTimeStamp": last,
                "maxTimeStampStr": _clock(last),
                "messageQueue": QueueBody.of(MessageQueue(topic, self._settings.broker_name, queue_id)),
                "minTimeStamp": first,
                "minTimeStampStr": _clock(first),
            }
            spans.append(bodies.encode(span))
        return reply(request.opaque, body=b'{"consumeTimeSpanSet":[%b]}' % b",".join(spans))

    # -- offsets --------------------------------------------------------------------------------------------------

    async def reset(self, peer: Peer, request: Request[ResetOffsetHeader], body: bytes) -> bytes:
        """INVOKE_BROKER_TO_RESET_OFFSET (222), done here: the next pull of each queue is told where to go on.

        Rule: useServerSideResetOffset of 5.x; without it the broker asks the clients (220).
        """
        h = request.ext
        config = self._topics.get(h.topic)
        if not self._settings.reset_offsets_here:
            return await self._reset_by_clients(request, config)
        if config is None:
            raise ServerError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {h.topic} does not exist")
        if self._groups.table.get(h.group) is None:
            raise ServerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {h.group} does not exist")
        if not may_have_offset(config, h.queue_id):
            raise ServerError(ResponseCode.SYSTEM_ERROR, f"Topic {h.topic} has no queue {h.queue_id}")
        rows = []
        ids = [h.queue_id] if h.queue_id >= 0 else range(config.read_queue_nums)
        async for part in self._long_scans.pieces(ids):
            for queue_id in part:
                target = await self._reset_queue(h, queue_id)
                queue = QueueBody.of(MessageQueue(h.topic, self._settings.broker_name, queue_id))
                rows.append(java_json.encode_object_key(queue, target))
        self._pops.ordered.save()
        await self._offsets.saved()
        return reply(request.opaque, body=b'{"offsetTable":{%b}}' % b",".join(rows))

    async def _at_time(self, topic: str, queue_id: int, time_ms: int) -> int:
        tiering = self._tiering
        if tiering is not None and tiering.is_before_store(topic, queue_id, time_ms):
            return await tiering.offset_at_time(topic, queue_id, time_ms, False)
        return self._store.offset_at_time(topic, queue_id, time_ms)

    async def _reset_queue(self, h: ResetOffsetHeader, queue_id: int) -> int:
        """Set the group's offset in one queue to what the request asks for; return that offset."""
        low, high = self._store.queue_range(h.topic, queue_id)
        by_hand = h.queue_id >= 0 and h.offset is not None and h.offset >= 0
        if by_hand:
            target = h.offset if h.offset is not None else high
            if not low <= target <= high:
                raise ServerError(
                    ResponseCode.SYSTEM_ERROR,
                    f"Target offset {target} not in consume queue range [{low}-{high}]",
                )
        elif h.time_ms < 0:
            target = high
        else:
            target = await self._at_time(h.topic, queue_id, h.time_ms)
            current = self._offsets.get(h.group, h.topic, queue_id)
            if not h.force and current is not None and current <= target:
                target = current
        self._offsets.reset(h.group, h.topic, queue_id, target)
        # A held pull must hear of it now.
        self._long_polling.mark(h.topic, queue_id)
        self._begin_anew(h.topic, h.group, queue_id)
        return target

    def _begin_anew(self, topic: str, group: str, queue_id: int) -> None:
        """Have pops of a queue go on from the offset that was set, also those that wait."""
        self._pops.reset(topic, group, queue_id)
        self._lite.reset(topic, group)

    async def _reset_by_clients(self, request: Request[ResetOffsetHeader], config: TopicConfig | None) -> bytes:
        """Make the group's live consumers reset their offsets, as before 5.x (rule: Broker2Client, 5.x).

        The broker's own offsets stay until the consumers commit theirs.
        """
        h = request.ext
        if config is None:
            remark = f"[reset-offset] reset offset failed, no topic in this broker. topic={h.topic}"
            raise ServerError(ResponseCode.SYSTEM_ERROR, remark)
        rows = []
        for queue_id in range(config.write_queue_nums):
            current = self._offsets.get(h.group, h.topic, queue_id)
            if current is None:
                raise ServerError(ResponseCode.SYSTEM_ERROR, f"THe consumer group <{h.group}> not exist")
            if h.time_ms == -1:
                target = self._store.queue_range(h.topic, queue_id)[1]
            else:
                target = max(0, await self._at_time(h.topic, queue_id, h.time_ms))
            rows.append((queue_id, target if h.force or target < current else current))
        members = self._clients.consumers.get(h.group)
        if members is None or not members.clients:
            raise ServerError(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {h.group} Topic: {h.topic}"
                f" Timestamp: {h.time_ms}",
            )
        table: list[tuple[Any, Any]] = [
            (QueueBody.of(MessageQueue(h.topic, self._settings.broker_name, n)), target) for n, target in rows
        ]
        body = b'{"offsetTable":%b}' % java_json.encode_object_keys(table)
        # The C++ client reads a list: its JSON has no objects as keys.
        listed = [
            {"topic": h.topic, "brokerName": self._settings.broker_name, "queueId": n, "offset": target}
            for n, target in rows
        ]
        told = ResetOffsetHeader(group=h.group, topic=h.topic, time_ms=h.time_ms)
        for client in members.clients.values():
            if client.version < _RESETS_SINCE:
                remark = f"the client does not support this feature. version={client.version}"
                raise ServerError(ResponseCode.SYSTEM_ERROR, remark)
            code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
            if (
                client.peer.is_open
                and client.peer.is_writable
                and self._clients.may_be_sent(code, client.sender, h.topic, h.group)
            ):
                its_body = bodies.encode({"offsetTable": listed}) if client.language == "CPP" else body
                client.peer.oneway(code, told, its_body)
                log.info("%s of %s was told to reset its offsets of %s", client.client_id, h.group, h.topic)
        return reply(request.opaque, body=body)

    async def clone(self, peer: Peer, request: Request[CloneOffsetsHeader], body: bytes) -> bytes:
        """CLONE_GROUP_OFFSET (314): the target group starts where the source group stands.

        Rule: in a queue where the source has no offset the target has none either (5.5.0 copies the table whole).
        """
        h = request.ext
        topic_names.check_group(h.target)
        topics = [h.topic] if h.topic else await self._long_scans.whole(self._offsets.topics_of_steps(h.source))
        cloned: dict[str, set[int]] = {}
        there = ((h.source, topic) for topic in topics if self._topics.get(topic) is not None)
        async for topic, queue_id, offset in self._offsets_in_turns(there):
            self._offsets.asked(h.target, topic, queue_id)
            self._offsets.drop_reset(h.target, topic, queue_id)
            self._offsets.commit(h.target, topic, queue_id, offset)
            self._begin_anew(topic, h.target, queue_id)
            cloned.setdefault(topic, set()).add(queue_id)
        for topic, queue_ids in cloned.items():
            for queue_id in self._offsets.keep_only(h.target, topic, queue_ids):
                self._begin_anew(topic, h.target, queue_id)
        self._pops.ordered.save()
        await self._offsets.saved()
        return reply(request.opaque)

    async def _offsets_in_turns(self, pairs: Iterable[tuple[str, str]]) -> AsyncIterator[tuple[str, int, int]]:
        """Yield the offsets of groups in topics with their topic and queue, some in each turn of the loop."""
        count = 0
        for group, topic in pairs:
            for queue_id, offset in self._offsets.of(group, topic).items():
                count += 1
                if count % QUEUES_IN_TURN == 0:
                    await self._long_scans.next()
                yield topic, queue_id, offset

    async def correction(self, peer: Peer, request: Request[CorrectionHeader], body: bytes) -> bytes:
        """QUERY_CORRECTION_OFFSET (308): the lowest offset per queue of all groups but those that are filtered out."""
        h = request.ext
        left_out = {g.strip() for g in (h.filtered or "").split(",")} | {h.compared}
        lowest = self._offsets.of(h.compared, h.topic)
        groups = await self._long_scans.whole(self._offsets.groups_of_steps(h.topic))
        compared = ((group, h.topic) for group in groups if group not in left_out)
        async for _, queue_id, offset in self._offsets_in_turns(compared):
            lowest[queue_id] = min(offset, lowest.get(queue_id, offset))
        return reply(request.opaque, body=b'{"correctionOffsets":%b}' % java_json.encode_number_keys(lowest))

    def all_offsets(self, peer: Peer, request: Request[KnownStateHeader], body: bytes) -> Answer:
        """GET_ALL_CONSUMER_OFFSET (43): the offsets of all groups; no table if the slave that asks has this state."""
        known, mark = request.ext.known, self._offsets.mark()
        if known is None:
            return self._all_offsets.answer(peer, request)
        if known == mark:
            return reply(request.opaque, header=StateReply(state=mark))
        return self._all_offsets.answer(peer, request, header={"state": mark})


def _members(group: ConsumerGroup) -> dict[str, Any]:
    return {
        "connectionSet": [_connection(c) for c in group.clients.values()],
        "consumeFromWhere": group.consume_from,
        "consumeType": group.consume_type,
        "messageModel": group.message_model,
    }


def _connection(client: ConnectedClient) -> dict[str, Any]:
    return {
        "clientAddr": client.peer.address,
        "clientId": client.client_id,
        "language": client.language,
        "version": client.version,
    }


def _clock(time_ms: int) -> str:
    """Return a time as RocketMQ's tools print it, in local time."""
    at = datetime.fromtimestamp(time_ms // 1000)
    return f"{at:%Y-%m-%d#%H:%M:%S}:{time_ms % 1000:03d}"
