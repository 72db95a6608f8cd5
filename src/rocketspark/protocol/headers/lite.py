"""Headers of the requests about lite topics: small topics below a parent topic. Times in ms."""

from __future__ import annotations

from msgspec import field

from rocketspark.protocol.headers.codec import Header, Long


class PopLiteHeader(Header, kw_only=True, gc=False):
    """POP_LITE_MESSAGE (200070): messages of the lite topics of `topic` that a client subscribed to.

    `born_time_ms` 0: when the broker gets it; `poll_time_ms`: from then on, how long the broker may hold the request
    while there is nothing; `attempt_id`: names a receive that may be tried again.
    """

    client_id: str
    group: str = field(name="consumerGroup")
    topic: str
    count_max: Long = field(name="maxMsgNum")
    invisible_time_ms: Long = field(name="invisibleTime")
    poll_time_ms: Long = field(name="pollTime")
    born_time_ms: Long = field(name="bornTime", default=0)
    attempt_id: str | None = None
    broker_name: str | None = field(name="bname", default=None)


class PopLiteReply(Header, kw_only=True, gc=False):
    """Reply to POP_LITE_MESSAGE; the body is records. `order_counts`: how often each message was given out before,
    with semicolons between.
    """

    pop_time_ms: Long = field(name="popTime", default=0)
    invisible_time_ms: Long = field(name="invisibleTime", default=0)
    revive_queue_id: Long = field(name="reviveQid", default=0)
    order_counts: str | None = field(name="orderCountInfo", default=None)


class NotifyUnsubscribeLiteHeader(Header, kw_only=True, gc=False):
    """NOTIFY_UNSUBSCRIBE_LITE (200073), one way from a broker: a client lost its subscription to a lite topic."""

    lite_topic: str
    group: str = field(name="consumerGroup")
    client_id: str


class ParentTopicInfoHeader(Header, kw_only=True, gc=False):
    """GET_PARENT_TOPIC_INFO (200075).

    Ours alone: `listed_max` lite topics are wanted in the reply, by name, those `after` a name, with `part` in theirs.
    """

    topic: str
    listed_max: Long = field(name="listedMax", default=0)
    after: str | None = field(name="listedAfter", default=None)
    part: str | None = field(name="listedPart", default=None)


class LiteTopicInfoHeader(Header, kw_only=True, gc=False):
    """GET_LITE_TOPIC_INFO (200076)."""

    parent_topic: str | None = None
    lite_topic: str | None = None


class LiteClientInfoHeader(Header, kw_only=True, gc=False):
    """GET_LITE_CLIENT_INFO (200077). `count_max`: of the names of lite topics in the reply."""

    parent_topic: str | None = None
    group: str | None = None
    client_id: str | None = None
    count_max: Long = field(name="maxCount", default=1000)


class LiteGroupInfoHeader(Header, kw_only=True, gc=False):
    """GET_LITE_GROUP_INFO (200078): of one lite topic, or of the `top_k` that are farthest behind."""

    group: str
    lite_topic: str | None = None
    top_k: Long = field(name="topK", default=0)


class TriggerLiteDispatchHeader(Header, kw_only=True, gc=False):
    """TRIGGER_LITE_DISPATCH (200079). `client_id`: of one client of the group; None for all."""

    group: str
    client_id: str | None = None
