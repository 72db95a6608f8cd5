"""Headers of requests about groups and their members: the frequent ones of clients (offsets, heartbeats, members), and
those of operators.
"""

from __future__ import annotations

from rocketspark.protocol.headers.codec import Header, Long


class GroupHeader(Header, kw_only=True, gc=False):
    """GET_SUBSCRIPTIONGROUP_CONFIG (352), QUERY_TOPICS_BY_CONSUMER (343)."""

    group: str


class ConsumerStatsHeader(Header, kw_only=True, gc=False, rename={"group": "consumerGroup"}):
    """GET_CONSUME_STATS (208)."""

    group: str
    topic: str | None = None


class ProducerGroupHeader(Header, kw_only=True, gc=False, rename={"group": "producerGroup"}):
    """GET_PRODUCER_CONNECTION_LIST (204)."""

    group: str


class DeleteGroupHeader(Header, kw_only=True, gc=False, rename={"group": "groupName", "clean_offsets": "cleanOffset"}):
    """DELETE_SUBSCRIPTIONGROUP (207)."""

    group: str
    clean_offsets: bool = False


class GroupTopicHeader(Header, kw_only=True, gc=False):
    """QUERY_SUBSCRIPTION_BY_CONSUMER (345), QUERY_CONSUME_TIME_SPAN (303)."""

    group: str
    topic: str | None = None


class ForbiddenHeader(Header, kw_only=True, gc=False):
    """UPDATE_AND_GET_GROUP_FORBIDDEN (353). `readable` None only asks."""

    group: str
    topic: str
    readable: bool | None = None


class CloneOffsetsHeader(Header, kw_only=True, gc=False, rename={"source": "srcGroup", "target": "destGroup"}):
    """CLONE_GROUP_OFFSET (314)."""

    source: str
    target: str
    topic: str | None = None
    offline: bool = False


class CorrectionHeader(Header, kw_only=True, gc=False, rename={"filtered": "filterGroups", "compared": "compareGroup"}):
    """QUERY_CORRECTION_OFFSET (308). `filtered`: comma list of groups to leave out."""

    filtered: str | None = None
    compared: str
    topic: str


class ResetOffsetHeader(
    Header, kw_only=True, gc=False, rename={"queue_id": "queueId", "time_ms": "timestamp", "force": "isForce"}
):
    """INVOKE_BROKER_TO_RESET_OFFSET (222), RESET_CONSUMER_CLIENT_OFFSET (220). `time_ms` -1: the end of each queue."""

    group: str
    topic: str
    queue_id: Long = -1
    offset: Long | None = None
    time_ms: Long = -1
    force: bool = False


class ConsumerStatusHeader(Header, kw_only=True, gc=False, rename={"client": "clientAddr"}):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223), GET_CONSUMER_STATUS_FROM_CLIENT (221)."""

    topic: str
    group: str
    client: str | None = None


class RunningInfoHeader(
    Header, kw_only=True, gc=False, rename={"group": "consumerGroup", "client_id": "clientId", "stacks": "jstackEnable"}
):
    """GET_CONSUMER_RUNNING_INFO (307)."""

    group: str
    client_id: str
    stacks: bool = False


class ConsumeDirectlyHeader(
    Header,
    kw_only=True,
    gc=False,
    rename={
        "group": "consumerGroup",
        "client_id": "clientId",
        "message_id": "msgId",
        "broker_name": "brokerName",
        "topic_sys_flag": "topicSysFlag",
        "group_sys_flag": "groupSysFlag",
    },
):
    """CONSUME_MESSAGE_DIRECTLY (309). `message_id`: an offset message id."""

    group: str
    client_id: str | None = None
    message_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: Long | None = None
    group_sys_flag: Long | None = None


class MaxOffsetHeader(Header, kw_only=True, gc=False, rename={"queue_id": "queueId", "broker_name": "bname"}):
    """GET_MAX_OFFSET (30). `committed` is always answered with the next offset to be written."""

    topic: str
    queue_id: Long
    committed: bool | None = None
    broker_name: str | None = None


class QueueHeader(Header, kw_only=True, gc=False, rename={"queue_id": "queueId", "broker_name": "bname"}):
    """GET_MIN_OFFSET (31), GET_EARLIEST_MSG_STORETIME (32): one queue."""

    topic: str
    queue_id: Long
    broker_name: str | None = None


class SearchOffsetHeader(
    Header,
    kw_only=True,
    gc=False,
    rename={
        "queue_id": "queueId",
        "time_ms": "timestamp",
        "boundary": "boundaryType",
        "broker_name": "bname",
    },
):
    """SEARCH_OFFSET_BY_TIMESTAMP (29). `boundary`: LOWER (first at or after) or UPPER (last at or before)."""

    topic: str
    queue_id: Long
    time_ms: Long
    boundary: str = "LOWER"
    broker_name: str | None = None


class OffsetReply(Header, kw_only=True, gc=False, rename={"made_at": "madeAt", "log_end": "logEnd"}):
    """A queue offset. Of our brokers' ends of queues alone: `made_at`, `Store.made_at` of the topic; `log_end`, where
    the log ends then: what comes later to the queue, or to one made anew, lies behind it.
    """

    offset: Long
    made_at: Long | None = None
    log_end: Long | None = None


class TimeReply(Header, kw_only=True, gc=False, rename={"time_ms": "timestamp"}):
    """A time in ms, -1 for none."""

    time_ms: Long


class QueryConsumerOffsetHeader(
    Header,
    kw_only=True,
    gc=False,
    rename={
        "group": "consumerGroup",
        "queue_id": "queueId",
        "zero_if_not_found": "setZeroIfNotFound",
        "broker_name": "bname",
    },
):
    """QUERY_CONSUMER_OFFSET (14)."""

    group: str
    topic: str
    queue_id: Long
    zero_if_not_found: bool | None = None
    broker_name: str | None = None


class UpdateConsumerOffsetHeader(
    Header,
    kw_only=True,
    gc=False,
    rename={
        "group": "consumerGroup",
        "queue_id": "queueId",
        "commit_offset": "commitOffset",
        "broker_name": "bname",
    },
):
    """UPDATE_CONSUMER_OFFSET (15): `commit_offset` is the next offset to consume."""

    group: str
    topic: str
    queue_id: Long
    commit_offset: Long
    broker_name: str | None = None


class HeartbeatReply(
    Header,
    kw_only=True,
    gc=False,
    rename={"heartbeat_v2": "IS_SUPPORT_HEART_BEAT_V2", "subscription_changed": "IS_SUB_CHANGE"},
):
    """Reply to HEART_BEAT (34)."""

    heartbeat_v2: bool = True
    subscription_changed: bool = True


class UnregisterClientHeader(
    Header,
    kw_only=True,
    gc=False,
    rename={"client_id": "clientID", "producer_group": "producerGroup", "consumer_group": "consumerGroup"},
):
    """UNREGISTER_CLIENT (35): leaves the groups named."""

    client_id: str
    producer_group: str | None = None
    consumer_group: str | None = None


class ConsumerListHeader(Header, kw_only=True, gc=False, rename={"group": "consumerGroup"}):
    """GET_CONSUMER_LIST_BY_GROUP (38) and NOTIFY_CONSUMER_IDS_CHANGED (40)."""

    group: str


class LockHeader(Header, kw_only=True, gc=False):
    """LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42): everything stands in the body."""
