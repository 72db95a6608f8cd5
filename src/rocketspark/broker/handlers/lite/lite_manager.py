"""What operators ask about lite topics. Rules: LiteManagerProcessor and LiteConsumerLagCalculator, 5.5.0."""

from __future__ import annotations

import heapq
from collections.abc import Generator, Iterator
from typing import Any

from rocketspark.broker.consumers.assignments import TopicQueues
from rocketspark.broker.handlers.lite.lite_subscription_ctl import LiteSharding, LiteSubscriptionHandler
from rocketspark.broker.lite import attributes
from rocketspark.broker.lite.parts import LiteTopics
from rocketspark.broker.lite.subscriptions import Subscriber
from rocketspark.broker.parts import HasRoutes, Tables
from rocketspark.broker.pop.requests import NO_REMARK
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.storage.long_scans import LongScans
from rocketspark.errors import ServerError
from rocketspark.protocol import lite_topics
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import (
    LiteClientInfoHeader,
    LiteGroupInfoHeader,
    LiteTopicInfoHeader,
    ParentTopicInfoHeader,
    Request,
    TriggerLiteDispatchHeader,
)
from rocketspark.protocol.json import lite_bodies
from rocketspark.protocol.json.bodies import GroupConfig, TopicConfig
from rocketspark.protocol.json.group_bodies import QueueStats
from rocketspark.protocol.json.lite_bodies import (
    BrokerLiteInfo,
    ListedLiteTopic,
    LiteClient,
    LiteClientInfo,
    LiteGroupInfo,
    LiteLag,
    LiteTopicInfo,
    LiteTopicOffset,
    ParentTopicInfo,
)
from rocketspark.protocol.light_queues import QUEUE_ID
from rocketspark.store.store import Store
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Answer, Routes
from rocketspark.transport.request_frames import reply

# Names in one reply about a client, or lite topics in one about a group.
NAMES_MAX = 10_000
# Lite topics in one list of those of a topic.
LISTED_MAX = 1000
# Rows of offsets that are looked at in one turn: some ms.
ROWS_IN_TURN = 4096


def lite_handlers(
    settings: BrokerSettings, store: Store, tables: Tables, lite: LiteTopics, queues: TopicQueues, scans: LongScans
) -> Iterator[HasRoutes]:
    """Make the handlers of subscriptions, and of what operators ask; pops are among the other pops' handlers."""
    sharding = LiteSharding(settings, store, queues)
    yield LiteSubscriptionHandler(tables, lite.subscriptions, sharding, scans)
    yield LiteManagerHandler(settings, store, tables, lite, sharding, scans)


def _unconsumed_since(lag: LiteLag) -> int:
    return lag.earliest_unconsumed_timestamp


class LiteManagerHandler:
    """Serves what operators ask about lite topics."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: Store,
        tables: Tables,
        lite: LiteTopics,
        sharding: LiteSharding,
        scans: LongScans,
    ) -> None:
        self._settings = settings
        self._store = store
        self._topics, self._groups, self._offsets = tables.topics, tables.groups, tables.offsets
        self._subscriptions, self._events, self._ordered = lite.subscriptions, lite.events, lite.ordered
        self._sharding = sharding
        self._scans = scans

    def routes(self, routes: Routes) -> None:
        """Add what this handler serves."""
        routes.add(RequestCode.GET_BROKER_LITE_INFO, self.broker)
        routes.add(RequestCode.GET_PARENT_TOPIC_INFO, self.parent, ParentTopicInfoHeader)
        routes.add(RequestCode.GET_LITE_TOPIC_INFO, self.topic, LiteTopicInfoHeader)
        routes.add(RequestCode.GET_LITE_CLIENT_INFO, self.client, LiteClientInfoHeader)
        routes.add(RequestCode.GET_LITE_GROUP_INFO, self.group, LiteGroupInfoHeader)
        routes.add(RequestCode.TRIGGER_LITE_DISPATCH, self.dispatch, TriggerLiteDispatchHeader)

    def broker(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """GET_BROKER_LITE_INFO (200074): the sizes of the broker's tables, and the topics that have lite topics."""
        topics = {
            name: attributes.expiration_minutes(config)
            for name, config in self._topics.table.items()
            if attributes.is_lite_topic(config)
        }
        info = BrokerLiteInfo(
            store_type="default",
            max_lmq_num=self._settings.light_queues_max,
            current_lmq_num=self._store.consume_queues.light_count,
            lite_subscription_count=self._subscriptions.count,
            order_info_count=len(self._ordered.table),
            cq_table_size=len(self._store.queues()),
            offset_table_size=len(self._offsets.table),
            event_map_size=len(self._events.clients),
            topic_meta=topics,
            group_meta=self._groups_by_topic(),
        )
        return reply(request.opaque, body=lite_bodies.encode(info))

    def _groups_by_topic(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name, config in self._groups.table.items():
            if (topic := attributes.bind_topic(config)) is not None:
                found.setdefault(topic, []).append(name)
        return found

    def parent(self, peer: Peer, request: Request[ParentTopicInfoHeader], body: bytes) -> Answer:
        """GET_PARENT_TOPIC_INFO (200075): a topic's groups, and how many lite topics it has."""
        return self._scans.answer(peer, self._parent(request))

    def _parent(self, request: Request[ParentTopicInfoHeader]) -> Generator[None, None, bytes]:
        config = self._lite_topic(request.ext.topic)
        h, prefix, count = request.ext, lite_topics.queue_name(config.topic_name, ""), 0
        listed_max = max(0, min(h.listed_max, LISTED_MAX))
        first: list[str] = []
        found: list[str] = []
        for number, name in enumerate(list(self._store.queues()), 1):
            if name.startswith(prefix) and lite_topics.of_queue(name):
                count += 1
                lite = name[len(prefix) :]
                if listed_max and lite > (h.after or "") and (h.part or "") in lite:
                    found.append(lite)
            if number % ROWS_IN_TURN == 0:
                first, found = heapq.nsmallest(listed_max, first + found), []
                yield
        first = heapq.nsmallest(listed_max, first + found)
        info = ParentTopicInfo(
            topic=config.topic_name,
            ttl=attributes.expiration_minutes(config),
            groups=self._groups_by_topic().get(config.topic_name),
            lmq_num=self._store.consume_queues.light_count,
            lite_topic_count=count,
            listed=[self._listed(lite_topics.queue_name(config.topic_name, lite), lite) for lite in first]
            if listed_max
            else None,
        )
        return reply(request.opaque, body=lite_bodies.encode(info))

    def _listed(self, queue: str, name: str) -> ListedLiteTopic:
        low, high = self._store.queue_range(queue, QUEUE_ID)
        return ListedLiteTopic(
            lite_topic=name,
            min_offset=low,
            max_offset=high,
            last_update_timestamp=self._store.store_time_at(queue, QUEUE_ID, high - 1) if high else 0,
            subscriber_count=len(self._shown_subscribers(queue)),
        )

    async def topic(self, peer: Peer, request: Request[LiteTopicInfoHeader], body: bytes) -> bytes:
        """GET_LITE_TOPIC_INFO (200076): the offsets and clients of one lite topic."""
        config, name = self._lite_topic(request.ext.parent_topic or ""), request.ext.lite_topic or ""
        brokers = await self._sharding.brokers_of(config.topic_name)
        queue = lite_topics.queue_name(config.topic_name, name)
        low, high = self._store.queue_range(queue, QUEUE_ID)
        last_ms = self._store.store_time_at(queue, QUEUE_ID, high - 1) if high else 0
        info = LiteTopicInfo(
            parent_topic=config.topic_name,
            lite_topic=name,
            subscriber=[LiteClient(client_id=s.client_id, group=s.group) for s in self._shown_subscribers(queue)],
            topic_offset=LiteTopicOffset(min_offset=low, max_offset=high, last_update_timestamp=last_ms),
            sharding_to_broker=self._sharding.is_here(brokers, name),
        )
        return reply(request.opaque, body=lite_bodies.encode(info))

    def _shown_subscribers(self, queue: str) -> list[Subscriber]:
        found: list[Subscriber] = []
        for group, members in self._subscriptions.subscribers(queue).items():
            has_wildcard = attributes.is_wildcard(self._groups.table.get(group))
            found += [Subscriber("*", group)] if has_wildcard else members
        return found

    def client(self, peer: Peer, request: Request[LiteClientInfoHeader], body: bytes) -> bytes:
        """GET_LITE_CLIENT_INFO (200077): what a client subscribed to, and when it was last there."""
        h = request.ext
        topic, group = self._lite_topic(h.parent_topic or ""), self._group(h.group or "")
        if attributes.bind_topic(group) != topic.topic_name:
            remark = f"Subscription [{h.group}]-[{topic.topic_name}] not match."
            raise ServerError(ResponseCode.INVALID_PARAMETER, remark)
        subscription = self._subscriptions.clients.get(h.client_id or "")
        if subscription is not None and subscription.subscriber.group != h.group:
            # Who may ask about this group may not look into another.
            subscription = None
        events = self._events.clients.get(h.client_id or "") if subscription is not None else None
        info = LiteClientInfo(
            parent_topic=topic.topic_name,
            group=h.group,
            client_id=h.client_id,
            last_access_time=-1 if events is None else events.accessed_ms,
            lite_topic_count=-1 if subscription is None else len(subscription.queues),
        )
        if subscription is not None:
            info.lite_topic_set = list(subscription.queues)[: max(min(h.count_max, NAMES_MAX), 0)]
        return reply(request.opaque, body=lite_bodies.encode(info))

    def group(self, peer: Peer, request: Request[LiteGroupInfoHeader], body: bytes) -> Answer:
        """GET_LITE_GROUP_INFO (200078): how far a group is behind, in one lite topic or in those farthest behind."""
        return self._scans.answer(peer, self._group_info(request))

    def _group_info(self, request: Request[LiteGroupInfoHeader]) -> Generator[None, None, bytes]:
        h = request.ext
        topic = attributes.bind_topic(self._lite_group(h.group)) or ""
        info = LiteGroupInfo(group=h.group, parent_topic=topic, lite_topic=h.lite_topic)
        if h.lite_topic:
            self._one_lag(info, lite_topics.queue_name(topic, h.lite_topic))
            return reply(request.opaque, body=lite_bodies.encode(info), remark=NO_REMARK)
        if not 0 < h.top_k <= NAMES_MAX:
            raise ServerError(ResponseCode.INVALID_PARAMETER, f"topK {h.top_k} is not from 1 to {NAMES_MAX}")
        lags: list[tuple[int, str, int]] = []
        end = f"@{h.group}"
        table = self._offsets.table
        # Not as pairs: many new objects have the garbage collection look through all.
        for number, key in enumerate(list(table), 1):
            offset = table.get(key, {}).get(QUEUE_ID) if key.endswith(end) and lite_topics.is_lite(key) else None
            if offset is not None:
                queue = key.removesuffix(end)
                lag = self._store.queue_range(queue, QUEUE_ID)[1] - offset
                if lag > 0:
                    info.total_lag_count += lag
                    lags.append((lag, queue, offset))
            if number % ROWS_IN_TURN == 0:
                yield
        largest = heapq.nlargest(h.top_k, lags, key=lambda row: row[0])
        info.lag_count_top_k, info.lag_timestamp_top_k = [self._lag(*row) for row in largest], []
        times_max = min(h.top_k, self._settings.lite_lag_times_max)
        if self._settings.lite_lag_times and times_max:
            times: list[LiteLag] = []
            for number, row in enumerate(lags, 1):
                times.append(self._lag(*row))
                if number % ROWS_IN_TURN == 0:
                    yield
            info.lag_timestamp_top_k = heapq.nsmallest(times_max, times, key=_unconsumed_since)
            if times:
                info.earliest_unconsumed_timestamp = info.lag_timestamp_top_k[0].earliest_unconsumed_timestamp
        return reply(request.opaque, body=lite_bodies.encode(info), remark=NO_REMARK)

    def _lag(self, lag: int, queue: str, offset: int) -> LiteLag:
        lite = lite_topics.of_queue(queue)
        return LiteLag(
            lite_topic=lite.name if lite else "",
            lag_count=lag,
            earliest_unconsumed_timestamp=self._store.store_time_at(queue, QUEUE_ID, offset),
        )

    def _one_lag(self, info: LiteGroupInfo, queue: str) -> None:
        high = self._store.queue_range(queue, QUEUE_ID)[1]
        offset = self._offsets.get(info.group or "", queue, QUEUE_ID)
        if not high:
            info.total_lag_count = -1
        elif offset is not None:
            info.total_lag_count = high - offset
            info.earliest_unconsumed_timestamp = self._store.store_time_at(queue, QUEUE_ID, offset)
            info.lite_topic_offset_wrapper = QueueStats(broker_offset=high, consumer_offset=offset)
            if offset > 0:
                before_ms = self._store.store_time_at(queue, QUEUE_ID, offset - 1)
                info.lite_topic_offset_wrapper.last_timestamp = before_ms

    def dispatch(self, peer: Peer, request: Request[TriggerLiteDispatchHeader], body: bytes) -> bytes:
        """TRIGGER_LITE_DISPATCH (200079): look through the lite topics of a client, or of all of a group, at once."""
        h = request.ext
        self._lite_group(h.group)
        self._events.look_through(Subscriber(h.client_id or "", h.group))
        return reply(request.opaque, remark=NO_REMARK)

    # -- checks ---------------------------------------------------------------------------------------------------

    def _lite_topic(self, name: str) -> TopicConfig:
        config = self._topics.table.get(name)
        if config is None:
            raise ServerError(ResponseCode.TOPIC_NOT_EXIST, f"Topic [{name}] not exist.")
        if not attributes.is_lite_topic(config):
            raise ServerError(ResponseCode.INVALID_PARAMETER, f"Topic [{name}] type not match.")
        return config

    def _group(self, name: str) -> GroupConfig:
        config = self._groups.table.get(name)
        if config is None:
            raise ServerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group [{name}] not exist.")
        return config

    def _lite_group(self, name: str) -> GroupConfig:
        config = self._group(name)
        if not attributes.bind_topic(config):
            raise ServerError(ResponseCode.INVALID_PARAMETER, f"Group [{name}] is not a LITE group.")
        return config
