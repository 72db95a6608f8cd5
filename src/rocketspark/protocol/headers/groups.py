"""Headers of requests about groups and their members: the frequent ones of clients (offsets, heartbeats, members), and
those of operators.
"""

from __future__ import annotations

from msgspec import field

from rocketspark.protocol.headers.codec import Header, Long


class GroupHeader(Header, kw_only=True, gc=False):
    """A group whose settings GET_SUBSCRIPTIONGROUP_CONFIG (352) asks for, or topics QUERY_TOPICS_BY_CONSUMER (343)."""

    group: str


class ConsumerStatsHeader(Header, kw_only=True, gc=False):
    """GET_CONSUME_STATS (208): asks how far a group has consumed a topic, or all of its topics."""

    group: str = field(name="consumerGroup")
    topic: str | None = None


class ProducerGroupHeader(Header, kw_only=True, gc=False):
    """GET_PRODUCER_CONNECTION_LIST (204): asks for the connections of a producer group."""

    group: str = field(name="producerGroup")


class DeleteGroupHeader(Header, kw_only=True, gc=False):
    """DELETE_SUBSCRIPTIONGROUP (207): removes a consumer group, with its offsets if that is asked for."""

    group: str = field(name="groupName")
    clean_offsets: bool = field(name="cleanOffset", default=False)


class GroupTopicHeader(Header, kw_only=True, gc=False):
    """A group in a topic: QUERY_SUBSCRIPTION_BY_CONSUMER (345), QUERY_CONSUME_TIME_SPAN (303)."""

    group: str
    topic: str | None = None


class ForbiddenHeader(Header, kw_only=True, gc=False):
    """UPDATE_AND_GET_GROUP_FORBIDDEN (353): sets whether a group may read a topic; without `readable` it only asks."""

    group: str
    topic: str
    readable: bool | None = None


class CloneOffsetsHeader(Header, kw_only=True, gc=False):
    """CLONE_GROUP_OFFSET (314): gives a group the offsets of another one in a topic."""

    source: str = field(name="srcGroup")
    target: str = field(name="destGroup")
    topic: str | None = None
    offline: bool = False


class CorrectionHeader(Header, kw_only=True, gc=False):
    """QUERY_CORRECTION_OFFSET (308): asks for the lowest offsets that the other groups of a topic have. `filtered`:
    groups to leave out, separated by commas.
    """

    filtered: str | None = field(name="filterGroups", default=None)
    compared: str = field(name="compareGroup")
    topic: str


class ResetOffsetHeader(Header, kw_only=True, gc=False):
    """INVOKE_BROKER_TO_RESET_OFFSET (222), RESET_CONSUMER_CLIENT_OFFSET (220): sets a group's offsets by a time.
    `time_ms` -1: the end of each queue.
    """

    group: str
    topic: str
    queue_id: Long = -1
    offset: Long | None = None
    time_ms: Long = field(name="timestamp", default=-1)
    force: bool = field(name="isForce", default=False)


class ConsumerStatusHeader(Header, kw_only=True, gc=False):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223): asks for the offsets that a group's clients have; the broker asks
    them by request 221.
    """

    topic: str
    group: str
    client: str | None = field(name="clientAddr", default=None)


class RunningInfoHeader(Header, kw_only=True, gc=False):
    """GET_CONSUMER_RUNNING_INFO (307): asks a consumer through its broker what it is doing."""

    group: str = field(name="consumerGroup")
    client_id: str
    stacks: bool = field(name="jstackEnable", default=False)


class ConsumeDirectlyHeader(Header, kw_only=True, gc=False):
    """CONSUME_MESSAGE_DIRECTLY (309): has a consumer handle the message of this offset message id now."""

    group: str = field(name="consumerGroup")
    client_id: str | None = None
    message_id: str | None = field(name="msgId", default=None)
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: Long | None = None
    group_sys_flag: Long | None = None


class MaxOffsetHeader(Header, kw_only=True, gc=False):
    """GET_MAX_OFFSET (30): asks for a queue's next offset. `committed` makes no difference to the answer."""

    topic: str
    queue_id: Long
    committed: bool | None = None
    broker_name: str | None = field(name="bname", default=None)


class QueueHeader(Header, kw_only=True, gc=False):
    """GET_MIN_OFFSET (31), GET_EARLIEST_MSG_STORETIME (32): one queue."""

    topic: str
    queue_id: Long
    broker_name: str | None = field(name="bname", default=None)


class SearchOffsetHeader(Header, kw_only=True, gc=False):
    """SEARCH_OFFSET_BY_TIMESTAMP (29). `boundary`: LOWER (first at or after) or UPPER (last at or before);
    `lite_topic`: of the topic, the lite topic that is searched, whatever the queue.
    """

    topic: str
    queue_id: Long
    time_ms: Long = field(name="timestamp")
    boundary: str = field(name="boundaryType", default="LOWER")
    lite_topic: str | None = None
    broker_name: str | None = field(name="bname", default=None)


class OffsetReply(Header, kw_only=True, gc=False):
    """Reply with a queue offset.

    Our brokers alone add to the end of a queue: `made_at`, which tells the topic from deleted ones of its name
    (`Store.made_at`); `log_end`, where the log ended then: what is stored in the queue later lies behind it (not told
    of topics with compaction, whose records state other places, nor where the second tier alone has messages, which may
    be of a store that was lost); `store_number`, which tells the broker's store from
    others that it had before (`Store.number`); `shared_ends`, of a copy of a backup: "number:end" of each store that it
    continues, with the offset up to which the queue is the same, with blanks between.
    """

    offset: Long
    made_at: Long | None = None
    log_end: Long | None = None
    store_number: Long | None = None
    shared_ends: str | None = None


class TimeReply(Header, kw_only=True, gc=False):
    """A time in ms, -1 for none."""

    time_ms: Long = field(name="timestamp")


class QueryConsumerOffsetHeader(Header, kw_only=True, gc=False):
    """QUERY_CONSUMER_OFFSET (14): asks for the offset of a group in a queue."""

    group: str = field(name="consumerGroup")
    topic: str
    queue_id: Long
    zero_if_not_found: bool | None = field(name="setZeroIfNotFound", default=None)
    broker_name: str | None = field(name="bname", default=None)


class UpdateConsumerOffsetHeader(Header, kw_only=True, gc=False):
    """UPDATE_CONSUMER_OFFSET (15): `commit_offset` is the next offset to consume."""

    group: str = field(name="consumerGroup")
    topic: str
    queue_id: Long
    commit_offset: Long
    broker_name: str | None = field(name="bname", default=None)


class HeartbeatReply(Header, kw_only=True, gc=False):
    """Reply to HEART_BEAT (34): what this broker can do for the client."""

    heartbeat_v2: bool = field(name="IS_SUPPORT_HEART_BEAT_V2", default=True)
    subscription_changed: bool = field(name="IS_SUB_CHANGE", default=True)


class UnregisterClientHeader(Header, kw_only=True, gc=False):
    """UNREGISTER_CLIENT (35): leaves the groups named."""

    client_id: str = field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class ConsumerListHeader(Header, kw_only=True, gc=False):
    """GET_CONSUMER_LIST_BY_GROUP (38) and NOTIFY_CONSUMER_IDS_CHANGED (40)."""

    group: str = field(name="consumerGroup")


class LockHeader(Header, kw_only=True, gc=False):
    """LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42): everything stands in the body."""
