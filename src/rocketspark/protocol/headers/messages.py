"""Headers of the requests that carry messages: sends, pulls, send-backs, transactions, look-ups."""

from __future__ import annotations

from typing import Any

from msgspec import field

from rocketspark.protocol.headers.codec import Header, Long
from rocketspark.protocol.message import sysflags


class SendHeader(Header, kw_only=True, gc=False):
    """SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320), SEND_REPLY_MESSAGE_V2 (325) and our own SEND_HALF_BATCH
    (7310005): one-letter names.

    `born_time_ms`: ms since 1970; `queue_id` below 0: the broker picks one.
    """

    producer_group: str = field(name="a")
    topic: str = field(name="b")
    default_topic: str = field(name="c", default="TBW102")
    default_topic_queue_count: Long = field(name="d", default=4)
    queue_id: Long = field(name="e")
    sys_flag: Long = field(name="f")
    born_time_ms: Long = field(name="g")
    flag: Long = field(name="h")
    properties: str = field(name="i", default="")
    reconsume_times: Long = field(name="j", default=0)
    unit_mode: bool = field(name="k", default=False)
    max_reconsume_times: Long | None = field(name="l", default=None)
    batch: bool = field(name="m", default=False)
    broker_name: str | None = field(name="n", default=None)


class SendHeaderV1(Header, kw_only=True, gc=False):
    """SEND_MESSAGE (10) and SEND_REPLY_MESSAGE (324): the same fields by their long names."""

    producer_group: str
    topic: str
    default_topic: str = "TBW102"
    default_topic_queue_count: Long = field(name="defaultTopicQueueNums", default=4)
    queue_id: Long
    sys_flag: Long
    born_time_ms: Long = field(name="bornTimestamp")
    flag: Long
    properties: str = ""
    reconsume_times: Long = 0
    unit_mode: bool = False
    max_reconsume_times: Long | None = None
    batch: bool = False
    broker_name: str | None = field(name="bname", default=None)


class SendReply(Header, kw_only=True, gc=False):
    """Reply to a send. `message_id`: offset message ids, comma separated for a batch."""

    message_id: str = field(name="msgId")
    queue_id: Long
    queue_offset: Long
    transaction_id: str | None = None
    region: str | None = field(name="MSG_REGION", default=None)
    trace_on: bool | None = field(name="TRACE_ON", default=None)
    recall_handle: str | None = None


class PullHeader(Header, kw_only=True, gc=False):
    """PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361). `sys_flag`: the PULL_ bits of sysflags.

    `bulk` is our own: it asks for as much as one frame takes well, beyond the limits that suit a consumer's pulls.
    Other brokers do not know it and answer as usual.
    """

    group: str = field(name="consumerGroup")
    topic: str
    queue_id: Long
    queue_offset: Long
    count_max: Long = field(name="maxMsgNums")
    sys_flag: Long
    commit_offset: Long
    suspend_ms: Long = field(name="suspendTimeoutMillis")
    subscription: str | None = None
    subscription_version: Long = field(name="subVersion")
    expression_type: str | None = None
    bytes_max: Long | None = field(name="maxMsgBytes", default=None)
    request_source: Long | None = None
    broker_name: str | None = field(name="bname", default=None)
    bulk: bool | None = None


def plain_pull(
    group: str,
    topic: str,
    queue_id: int,
    offset: int,
    count_max: int,
    subscription: str = "*",
    *,
    kind: type[PullHeader] = PullHeader,
    **more: Any,
) -> PullHeader:
    """Return the header of a pull that is answered at once and commits no offset; `more`: further fields of
    `kind`.
    """
    return kind(
        group=group,
        topic=topic,
        queue_id=queue_id,
        queue_offset=offset,
        count_max=count_max,
        sys_flag=sysflags.PULL_SUBSCRIPTION,
        commit_offset=0,
        suspend_ms=0,
        subscription=subscription,
        subscription_version=0,
        **more,
    )


class PullReply(Header, kw_only=True, gc=False):
    """Reply to a pull: where to read on, and the queue's bounds.

    `offset_delta`: for a logical queue (of a static topic), what has to be added to the offsets in the records.
    """

    suggested_broker_id: Long = field(name="suggestWhichBrokerId", default=0)
    next_offset: Long = field(name="nextBeginOffset", default=0)
    min_offset: Long = 0
    max_offset: Long = 0
    topic_sys_flag: Long | None = None
    group_sys_flag: Long | None = None
    offset_delta: Long | None = None


class SendBackHeader(Header, kw_only=True, gc=False):
    """CONSUMER_SEND_MSG_BACK (36): deliver the message at `physical_offset` again later, or give it up."""

    physical_offset: Long = field(name="offset")
    group: str
    delay_level: Long
    origin_message_id: str | None = field(name="originMsgId", default=None)
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Long | None = None
    broker_name: str | None = field(name="bname", default=None)


class EndTransactionHeader(Header, kw_only=True, gc=False):
    """END_TRANSACTION (37). `outcome`: 8 commit, 12 rollback, 0 unknown; `half_offset`: the half message's offset in
    the half queue.
    """

    topic: str | None = None
    producer_group: str
    half_offset: Long = field(name="tranStateTableOffset")
    physical_offset: Long = field(name="commitLogOffset")
    outcome: Long = field(name="commitOrRollback")
    from_check: bool | None = field(name="fromTransactionCheck", default=False)
    message_id: str = field(name="msgId", default="")
    transaction_id: str | None = None
    broker_name: str | None = field(name="bname", default=None)


class EndHalfRangesHeader(Header, kw_only=True, gc=False):
    """END_HALF_RANGES (7310006), our own: ends the transactions of ranges of half messages, all of them for `topic`.

    `outcome`: 8 commit, 12 rollback; `message_id`: the unique id of the first, which those of the others follow as
    `joined_ids` makes them. The body is made by `half_ranges.encode`.
    """

    topic: str
    producer_group: str
    outcome: Long = field(name="commitOrRollback")
    message_id: str | None = field(name="msgId", default=None)
    broker_name: str | None = field(name="bname", default=None)


class CheckTransactionHeader(Header, kw_only=True, gc=False):
    """CHECK_TRANSACTION_STATE (39), a broker's question to a producer; the body is the half message's record."""

    topic: str | None = None
    half_offset: Long = field(name="tranStateTableOffset")
    physical_offset: Long = field(name="commitLogOffset")
    message_id: str | None = field(name="msgId", default=None)
    transaction_id: str | None = None
    offset_message_id: str | None = field(name="offsetMsgId", default=None)
    broker_name: str | None = field(name="bname", default=None)


class QueryMessageHeader(Header, kw_only=True, gc=False):
    """QUERY_MESSAGE (12). `kind`: K keys, U unique id, T tag; `unique` marks a query by unique id."""

    topic: str
    key: str
    count_max: Long = field(name="maxNum")
    begin_ms: Long = field(name="beginTimestamp")
    end_ms: Long = field(name="endTimestamp")
    kind: str | None = field(name="indexType", default=None)
    unique: bool | None = field(name="_UNIQUE_KEY_QUERY", default=None)


class QueryMessageReply(Header, kw_only=True, gc=False):
    """Reply to QUERY_MESSAGE: how far the index had come."""

    updated_ms: Long = field(name="indexLastUpdateTimestamp")
    updated_position: Long = field(name="indexLastUpdatePhyoffset")


class ViewMessageHeader(Header, kw_only=True, gc=False):
    """VIEW_MESSAGE_BY_ID (33): asks for the record at a physical offset.

    `unused`, our own, from a replica: what readers do not see yet is wanted too, and if the unused end of a log file is
    there, the mark that says so.
    """

    topic: str | None = None
    physical_offset: Long = field(name="offset")
    unused: bool | None = None


class PushReplyHeader(Header, kw_only=True, gc=False):
    """PUSH_REPLY_MESSAGE_TO_CLIENT (326): brings a reply message to the client that sent the request message; hosts as
    "ip:port".
    """

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_count: Long = field(name="defaultTopicQueueNums")
    queue_id: Long
    sys_flag: Long
    born_time_ms: Long = field(name="bornTimestamp")
    flag: Long
    properties: str = ""
    reconsume_times: Long = 0
    unit_mode: bool = False
    born_host: str
    store_host: str
    store_time_ms: Long = field(name="storeTimestamp")
