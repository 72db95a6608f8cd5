"""Headers of the requests that pop messages: received for a time, acknowledged one by one. Times in ms."""

from __future__ import annotations

from msgspec import field

from rocketspark.protocol.headers.codec import Header, Long

# Where a group that is new to a queue begins (rule: ConsumeInitMode, 5.x).
INIT_MIN = 0
INIT_MAX = 1
# Characters of an attempt's id, which brokers keep for a day.
ATTEMPT_ID_MAX = 512


class PopHeader(Header, kw_only=True, gc=False):
    """POP_MESSAGE (200050). `queue_id` -1: any queue of the topic; `born_time_ms` 0: when the broker gets it.

    `poll_time_ms`: from `born_time_ms` on, how long the broker may hold the request while there is nothing.
    `order`: messages of a queue are given out once those given out before are acknowledged; `attempt_id`: names a
    receive that may be tried again.
    """

    group: str = field(name="consumerGroup")
    topic: str
    queue_id: Long
    count_max: Long = field(name="maxMsgNums")
    invisible_time_ms: Long = field(name="invisibleTime")
    poll_time_ms: Long = field(name="pollTime")
    born_time_ms: Long = field(name="bornTime", default=0)
    init_mode: Long
    expression_type: str | None = field(name="expType", default=None)
    expression: str | None = field(name="exp", default=None)
    order: bool = False
    attempt_id: str | None = None
    broker_name: str | None = field(name="bname", default=None)


class PopReply(Header, kw_only=True, gc=False):
    """Reply to a pop, and to PEEK_MESSAGE; the body is records. The texts name what was read of each queue:
    `pop_answers` reads and writes them. `rest_count`: some of the messages that are left to be popped.
    """

    pop_time_ms: Long = field(name="popTime", default=0)
    invisible_time_ms: Long = field(name="invisibleTime", default=0)
    revive_queue_id: Long = field(name="reviveQid", default=0)
    rest_count: Long = field(name="restNum", default=0)
    start_offsets: str | None = field(name="startOffsetInfo", default=None)
    message_offsets: str | None = field(name="msgOffsetInfo", default=None)
    order_counts: str | None = field(name="orderCountInfo", default=None)


class AckHeader(Header, kw_only=True, gc=False):
    """ACK_MESSAGE (200051). `handle`: a receipt handle, at least its first seven fields; `topic`: the one the message
    was read from, which is a retry topic for one that came again.
    """

    group: str = field(name="consumerGroup")
    topic: str
    queue_id: Long
    handle: str = field(name="extraInfo")
    offset: Long
    lite_topic: str | None = None
    broker_name: str | None = field(name="bname", default=None)


class ChangeInvisibleTimeHeader(Header, kw_only=True, gc=False):
    """CHANGE_MESSAGE_INVISIBLETIME (200053): the message is to be visible again `invisible_time_ms` from now."""

    group: str = field(name="consumerGroup")
    topic: str
    queue_id: Long
    handle: str = field(name="extraInfo")
    offset: Long
    invisible_time_ms: Long = field(name="invisibleTime")
    lite_topic: str | None = None
    suspend: bool | None = None
    broker_name: str | None = field(name="bname", default=None)


class ChangeInvisibleTimeReply(Header, kw_only=True, gc=False):
    """Reply to CHANGE_MESSAGE_INVISIBLETIME: what the message's new handle says."""

    pop_time_ms: Long = field(name="popTime", default=0)
    invisible_time_ms: Long = field(name="invisibleTime", default=0)
    revive_queue_id: Long = field(name="reviveQid", default=0)


class PeekHeader(Header, kw_only=True, gc=False):
    """PEEK_MESSAGE (200052): what a pop would give, left where it is. Its reply is a PopReply."""

    group: str = field(name="consumerGroup")
    topic: str
    queue_id: Long
    count_max: Long = field(name="maxMsgNums")
    broker_name: str | None = field(name="bname", default=None)


class NotificationHeader(Header, kw_only=True, gc=False):
    """NOTIFICATION (200054): is answered once there is something to pop, or when its time is over."""

    group: str = field(name="consumerGroup")
    topic: str
    queue_id: Long
    poll_time_ms: Long = field(name="pollTime")
    born_time_ms: Long = field(name="bornTime", default=0)
    order: bool = False
    attempt_id: str | None = None
    expression_type: str | None = field(name="expType", default=None)
    expression: str | None = field(name="exp", default=None)
    broker_name: str | None = field(name="bname", default=None)


class NotificationReply(Header, kw_only=True, gc=False):
    """Reply to NOTIFICATION (200054): whether there is something to pop."""

    has_message: bool = field(name="hasMsg", default=False)
    polling_full: bool = False


class PollingInfoHeader(Header, kw_only=True, gc=False):
    """POLLING_INFO (200055): how many requests wait for messages of a queue."""

    group: str = field(name="consumerGroup")
    topic: str
    queue_id: Long
    broker_name: str | None = field(name="bname", default=None)


class PollingInfoReply(Header, kw_only=True, gc=False):
    """Reply to POLLING_INFO (200055): how many requests wait."""

    polling_count: Long = field(name="pollingNum", default=0)
