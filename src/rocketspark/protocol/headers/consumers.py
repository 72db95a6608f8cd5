"""Headers of the frequent requests of clients: offsets, heartbeats, members."""

from __future__ import annotations

from rocketspark.protocol.headers.codec import Header, Long


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
