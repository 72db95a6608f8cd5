"""Serves the requests about committed consumer offsets, and about the first, last and dated offset of a queue."""

from __future__ import annotations

from rocketspark.broker.consumers.consumer_offsets import ConsumerOffsets, is_of_before
from rocketspark.broker.consumers.subscription_groups import SubscriptionGroups
from rocketspark.broker.storage.tiering import Tiering
from rocketspark.broker.topics import Topics
from rocketspark.errors import ServerError
from rocketspark.protocol import light_queues, lite_topics
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import (
    MaxOffsetHeader,
    OffsetReply,
    QueryConsumerOffsetHeader,
    QueueHeader,
    Request,
    SearchOffsetHeader,
    TimeReply,
    UpdateConsumerOffsetHeader,
)
from rocketspark.protocol.json.bodies import TopicConfig
from rocketspark.store.store import Store
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Answer, Routes
from rocketspark.transport.request_frames import reply

# Offsets of queues that a topic has not are kept below this number.
QUEUE_IDS_KEPT = 1024


def may_have_offset(topic: TopicConfig, queue_id: int) -> bool:
    """Tell whether a group may commit an offset in the queue of this id, which need not exist any more."""
    return queue_id < max(topic.read_queue_nums, topic.write_queue_nums, QUEUE_IDS_KEPT)


class ConsumerManageHandler:
    """Serves the requests about committed offsets and the bounds of queues."""

    def __init__(
        self,
        store: Store,
        offsets: ConsumerOffsets,
        topics: Topics,
        groups: SubscriptionGroups,
        tiering: Tiering | None = None,
    ) -> None:
        self._tiering = tiering
        self._store = store
        self._offsets = offsets
        self._topics = topics
        self._groups = groups

    def routes(self, routes: Routes) -> None:
        """Add what this handler serves."""
        routes.add(RequestCode.QUERY_CONSUMER_OFFSET, self.query)
        routes.add(RequestCode.UPDATE_CONSUMER_OFFSET, self.update)
        routes.add(RequestCode.GET_MAX_OFFSET, self.max_offset)
        routes.add(RequestCode.GET_MIN_OFFSET, self.min_offset)
        routes.add(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, self.search)
        routes.add(RequestCode.GET_EARLIEST_MSG_STORETIME, self.earliest)

    def query(self, peer: Peer, request: Request[QueryConsumerOffsetHeader], body: bytes) -> bytes:
        """QUERY_CONSUMER_OFFSET (14): the committed offset; else 0 if the queue has its first message, else code 22."""
        h = request.ext
        self._offsets.asked(h.group, h.topic, h.queue_id)
        offset = self._offsets.get(h.group, h.topic, h.queue_id)
        if offset is None:
            low, high = self._store.readable_range(h.topic, h.queue_id)
            # A queue that still has its first message is read from there: nothing sent so far is missed.
            if h.zero_if_not_found is False or low > 0 or high == 0:
                raise ServerError(ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first")
            offset = 0
        return reply(request.opaque, header=OffsetReply(offset=offset))

    def update(self, peer: Peer, request: Request[UpdateConsumerOffsetHeader], body: bytes) -> bytes:
        """UPDATE_CONSUMER_OFFSET (15): commit the offset of a group in a queue."""
        h = request.ext
        if not self._groups.has(h.group):
            raise ServerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {h.group} not exist!")
        topic = self._topics.get(h.topic)
        if topic is None:
            raise ServerError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {h.topic} not exist!")
        if h.queue_id < 0:
            raise ServerError(ResponseCode.SYSTEM_ERROR, f"QueueId is less than 0, queueId: {h.queue_id}")
        # RocketMQ takes any: of topics that were made smaller, and numbers that clients keep beside their offsets.
        if not may_have_offset(topic, h.queue_id):
            raise ServerError(
                ResponseCode.SYSTEM_ERROR,
                f"QueueId {h.queue_id}: topic {h.topic} has {topic.read_queue_nums} queues to read,"
                f" {topic.write_queue_nums} to write, and offsets of others are kept below {QUEUE_IDS_KEPT}",
            )
        if h.commit_offset < 0:
            raise ServerError(ResponseCode.SYSTEM_ERROR, f"Offset is less than 0, offset: {h.commit_offset}")
        if self._offsets.is_reset(h.group, h.topic, h.queue_id):
            return reply(request.opaque, header={}, remark="Offset has been previously reset")
        if h.queue_id < topic.read_queue_nums and is_of_before(
            self._store, h.group, h.topic, h.queue_id, h.commit_offset
        ):
            remark = "the offset is beyond the queue's end, of a topic that was deleted: it is left out"
            return reply(request.opaque, header={}, remark=remark)
        if self._offsets.is_unheard(h.group, h.topic, h.queue_id, h.commit_offset):
            remark = "the offset is of a topic that was deleted, and made anew since: it is left out"
            return reply(request.opaque, header={}, remark=remark)
        self._offsets.admit(h.group, h.topic, peer.address)
        self._offsets.commit(h.group, h.topic, h.queue_id, h.commit_offset)
        return reply(request.opaque)

    def max_offset(self, peer: Peer, request: Request[MaxOffsetHeader], body: bytes) -> bytes:
        """GET_MAX_OFFSET (30): the next offset to be written."""
        h = request.ext
        low, end = self._store.queue_range(h.topic, h.queue_id)
        # Records of a compaction log state their places there; what the second tier alone has may be of a store that
        # was lost.
        elsewhere = h.topic in self._topics.compacted() or low < self._store.stored_range(h.topic, h.queue_id)[0]
        told = OffsetReply(
            offset=end,
            made_at=self._store.made_at(h.topic),
            log_end=None if elsewhere else self._store.written_position,
            store_number=self._store.number,
            shared_ends=self._shared_ends(h.topic, h.queue_id),
        )
        return reply(request.opaque, header=told)

    def _shared_ends(self, topic: str, queue_id: int) -> str | None:
        ends = ((number, ends.get(topic, {}).get(str(queue_id), 0)) for number, ends in self._store.shared_ends)
        return " ".join(f"{number}:{end}" for number, end in ends) or None

    def min_offset(self, peer: Peer, request: Request[QueueHeader], body: bytes) -> bytes:
        """GET_MIN_OFFSET (31): the oldest offset still there."""
        return reply(
            request.opaque,
            header=OffsetReply(offset=self._store.readable_range(request.ext.topic, request.ext.queue_id)[0]),
        )

    def search(self, peer: Peer, request: Request[SearchOffsetHeader], body: bytes) -> Answer:
        """SEARCH_OFFSET_BY_TIMESTAMP (29): the offset in a queue of the message stored at a time."""
        h = request.ext
        upper = h.boundary.upper() == "UPPER"
        if h.lite_topic and not h.lite_topic.isspace():
            queue = lite_topics.queue_name(h.topic, h.lite_topic)
            # No light queue is in the second tier.
            found = self._store.offset_at_time(queue, light_queues.QUEUE_ID, h.time_ms, upper)
            return reply(request.opaque, header=OffsetReply(offset=found))
        if self._tiering is not None and self._tiering.is_before_store(h.topic, h.queue_id, h.time_ms):
            return self._search_tier(self._tiering, request, upper)
        offset = self._store.offset_at_time(h.topic, h.queue_id, h.time_ms, upper)
        return reply(request.opaque, header=OffsetReply(offset=offset))

    async def _search_tier(self, tiering: Tiering, request: Request[SearchOffsetHeader], upper: bool) -> bytes:
        h = request.ext
        offset = await tiering.offset_at_time(h.topic, h.queue_id, h.time_ms, upper)
        return reply(request.opaque, header=OffsetReply(offset=offset))

    def earliest(self, peer: Peer, request: Request[QueueHeader], body: bytes) -> bytes:
        """GET_EARLIEST_MSG_STORETIME (32): the store time of a queue's oldest message, in ms; -1 for an empty queue."""
        h = request.ext
        low, _ = self._store.readable_range(h.topic, h.queue_id)
        return reply(request.opaque, header=TimeReply(time_ms=self._store.store_time_at(h.topic, h.queue_id, low)))
