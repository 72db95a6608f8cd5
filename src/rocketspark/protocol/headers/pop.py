"""Headers of the requests that pop messages: received for a time, acknowledged one by one. Times in ms."""

from __future__ import annotations

from rocketspark.protocol.headers.codec import Header, Long

# Where a group that is new to a queue begins (rule: ConsumeInitMode, 5.x).
INIT_MIN = 0
INIT_MAX = 1


class PopHeader(
    Header,
    kw_only=True,
    gc=False,
    rename={
        "group": "consumerGroup",
        "queue_id": "queueId",
        "count_max": "maxMsgNums",
        "invisible_time_ms": "invisibleTime",
        "poll_time_ms": "pollTime",
        "born_time_ms": "bornTime",
        "init_mode": "initMode",
        "expression_type": "expType",
        "expression": "exp",
        "attempt_id": "attemptId",
        "broker_name": "bname",
    },
):
    """POP_MESSAGE (200050). `queue_id` -1: any queue of the topic; `born_time_ms` 0: when the broker gets it.

    `poll_time_ms`: from `born_time_ms` on, how long the broker may hold the request while there is nothing.
    `order`: messages of a queue are given out once those given out before are acknowledged; `attempt_id`: names a
    receive that may be tried again.
    """

    group: str
    topic: str
    queue_id: Long
    count_max: Long
    invisible_time_ms: Long
    poll_time_ms: Long
    born_time_ms: Long = 0
    init_mode: Long
    expression_type: str | None = None
    expression: str | None = None
    order: bool = False
    attempt_id: str | None = None
    broker_name: str | None = None


class PopReply(
    Header,
    kw_only=True,
    gc=False,
    rename={
        "pop_time_ms": "popTime",
        "invisible_time_ms": "invisibleTime",
        "revive_queue_id": "reviveQid",
        "rest_count": "restNum",
        "start_offsets": "startOffsetInfo",
        "message_offsets": "msgOffsetInfo",
        "order_counts": "orderCountInfo",
    },
):
    """Reply to a pop, and to PEEK_MESSAGE; the body is records. The texts name what was read of each queue:
    `pop_answers` reads and writes them. `rest_count`: some of the messages that are left to be popped.
    """

    pop_time_ms: Long = 0
    invisible_time_ms: Long = 0
    revive_queue_id: Long = 0
    rest_count: Long = 0
    start_offsets: str | None = None
    message_offsets: str | None = None
    order_counts: str | None = None


class AckHeader(
    Header,
    kw_only=True,
    gc=False,
    rename={
        "group": "consumerGroup",
        "queue_id": "queueId",
        "handle": "extraInfo",
        "lite_topic": "liteTopic",
        "broker_name": "bname",
    },
):
    """ACK_MESSAGE (200051). `handle`: a receipt handle, at least its first seven fields; `topic`: the one the message
    was read from, which is a retry topic for one that came again.
    """

    group: str
    topic: str
    queue_id: Long
    handle: str
    offset: Long
    lite_topic: str | None = None
    broker_name: str | None = None


class ChangeInvisibleTimeHeader(
    Header,
    kw_only=True,
    gc=False,
    rename={
        "group": "consumerGroup",
        "queue_id": "queueId",
        "handle": "extraInfo",
        "invisible_time_ms": "invisibleTime",
        "lite_topic": "liteTopic",
        "broker_name": "bname",
    },
):
    """CHANGE_MESSAGE_INVISIBLETIME (200053): the message is to be visible again `invisible_time_ms` from now."""

    group: str
    topic: str
    queue_id: Long
    handle: str
    offset: Long
    invisible_time_ms: Long
    lite_topic: str | None = None
    suspend: bool | None = None
    broker_name: str | None = None


class ChangeInvisibleTimeReply(
    Header,
    kw_only=True,
    gc=False,
    rename={"pop_time_ms": "popTime", "invisible_time_ms": "invisibleTime", "revive_queue_id": "reviveQid"},
):
    """Reply to CHANGE_MESSAGE_INVISIBLETIME: what the message's new handle says."""

    pop_time_ms: Long = 0
    invisible_time_ms: Long = 0
    revive_queue_id: Long = 0


class PeekHeader(
    Header,
    kw_only=True,
    gc=False,
    rename={
        "group": "consumerGroup",
        "queue_id": "queueId",
        "count_max": "maxMsgNums",
        "broker_name": "bname",
    },
):
    """PEEK_MESSAGE (200052): what a pop would give, left where it is. Its reply is a PopReply."""

    group: str
    topic: str
    queue_id: Long
    count_max: Long
    broker_name: str | None = None


class NotificationHeader(
    Header,
    kw_only=True,
    gc=False,
    rename={
        "group": "consumerGroup",
        "queue_id": "queueId",
        "poll_time_ms": "pollTime",
        "born_time_ms": "bornTime",
        "attempt_id": "attemptId",
        "expression_type": "expType",
        "expression": "exp",
        "broker_name": "bname",
    },
):
    """NOTIFICATION (200054): answered once there is something to pop, or when its time is over."""

    group: str
    topic: str
    queue_id: Long
    poll_time_ms: Long
    born_time_ms: Long = 0
    order: bool = False
    attempt_id: str | None = None
    expression_type: str | None = None
    expression: str | None = None
    broker_name: str | None = None


class NotificationReply(
    Header, kw_only=True, gc=False, rename={"has_message": "hasMsg", "polling_full": "pollingFull"}
):
    """Reply to NOTIFICATION."""

    has_message: bool = False
    polling_full: bool = False


class PollingInfoHeader(
    Header,
    kw_only=True,
    gc=False,
    rename={"group": "consumerGroup", "queue_id": "queueId", "broker_name": "bname"},
):
    """POLLING_INFO (200055): how many requests wait for messages of a queue."""

    group: str
    topic: str
    queue_id: Long
    broker_name: str | None = None


class PollingInfoReply(Header, kw_only=True, gc=False, rename={"polling_count": "pollingNum"}):
    """Reply to POLLING_INFO."""

    polling_count: Long = 0
