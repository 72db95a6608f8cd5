"""Headers of the requests that carry messages: sends, pulls, send-backs, transactions, look-ups."""

from __future__ import annotations

from typing import Any

from rocketspark.protocol.headers.codec import Header, Long
from rocketspark.protocol.message import sysflags


class SendHeader(
    Header,
    kw_only=True,
    gc=False,
    rename={
        "producer_group": "a",
        "topic": "b",
        "default_topic": "c",
        "default_topic_queue_count": "d",
        "queue_id": "e",
        "sys_flag": "f",
        "born_time_ms": "g",
        "flag": "h",
        "properties": "i",
        "reconsume_times": "j",
        "unit_mode": "k",
        "max_reconsume_times": "l",
        "batch": "m",
        "broker_name": "n",
    },
):
    """SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320), SEND_REPLY_MESSAGE_V2 (325) and our own SEND_HALF_BATCH
    (7310005): one-letter names.

    `born_time_ms`: ms since 1970; `queue_id` below 0: the broker picks one.
    """

    producer_group: str
    topic: str
    default_topic: str = "TBW102"
    default_topic_queue_count: Long = 4
    queue_id: Long
    sys_flag: Long
    born_time_ms: Long
    flag: Long
    properties: str = ""
    reconsume_times: Long = 0
    unit_mode: bool = False
    max_reconsume_times: Long | None = None
    batch: bool = False
    broker_name: str | None = None


class SendHeaderV1(
    Header,
    kw_only=True,
    gc=False,
    rename={
        "producer_group": "producerGroup",
        "default_topic": "defaultTopic",
        "default_topic_queue_count": "defaultTopicQueueNums",
        "queue_id": "queueId",
        "sys_flag": "sysFlag",
        "born_time_ms": "bornTimestamp",
        "reconsume_times": "reconsumeTimes",
        "unit_mode": "unitMode",
        "max_reconsume_times": "maxReconsumeTimes",
        "broker_name": "bname",
    },
):
    """SEND_MESSAGE (10) and SEND_REPLY_MESSAGE (324): the same fields by their long names."""

    producer_group: str
    topic: str
    default_topic: str = "TBW102"
    default_topic_queue_count: Long = 4
    queue_id: Long
    sys_flag: Long
    born_time_ms: Long
    flag: Long
    properties: str = ""
    reconsume_times: Long = 0
    unit_mode: bool = False
    max_reconsume_times: Long | None = None
    batch: bool = False
    broker_name: str | None = None


class SendReply(
    Header,
    kw_only=True,
    gc=False,
    rename={
        "message_id": "msgId",
        "queue_id": "queueId",
        "queue_offset": "queueOffset",
        "transaction_id": "transactionId",
        "region": "MSG_REGION",
        "trace_on": "TRACE_ON",
        "recall_handle": "recallHandle",
    },
):
    """Reply to a send. `message_id`: offset message ids, comma separated for a batch."""

    message_id: str
    queue_id: Long
    queue_offset: Long
    transaction_id: str | None = None
    region: str | None = None
    trace_on: bool | None = None
    recall_handle: str | None = None


class PullHeader(
    Header,
    kw_only=True,
    gc=False,
    rename={
        "group": "consumerGroup",
        "queue_id": "queueId",
        "queue_offset": "queueOffset",
        "count_max": "maxMsgNums",
        "sys_flag": "sysFlag",
        "commit_offset": "commitOffset",
        "suspend_ms": "suspendTimeoutMillis",
        "subscription_version": "subVersion",
        "expression_type": "expressionType",
        "bytes_max": "maxMsgBytes",
        "request_source": "requestSource",
        "broker_name": "bname",
    },
):
    """PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361). `sys_flag`: the PULL_ bits of sysflags.

    `bulk` is our own: it asks for as much as one frame takes well, beyond the limits that suit a consumer's pulls.
    Other brokers do not know it and answer as usual.
    """

    group: str
    topic: str
    queue_id: Long
    queue_offset: Long
    count_max: Long
    sys_flag: Long
    commit_offset: Long
    suspend_ms: Long
    subscription: str | None = None
    subscription_version: Long
    expression_type: str | None = None
    bytes_max: Long | None = None
    request_source: Long | None = None
    broker_name: str | None = None
    bulk: bool | None = None


def plain_pull(
    group: str, topic: str, queue_id: int, offset: int, count_max: int, subscription: str = "*", **more: Any
) -> PullHeader:
    """Return the header of a pull that is answered at once and commits nothing; `more`: fields it has beside these."""
    return PullHeader(
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


class PullReply(
    Header,
    kw_only=True,
    gc=False,
    rename={
        "suggested_broker_id": "suggestWhichBrokerId",
        "next_offset": "nextBeginOffset",
        "min_offset": "minOffset",
        "max_offset": "maxOffset",
        "topic_sys_flag": "topicSysFlag",
        "group_sys_flag": "groupSysFlag",
        "offset_delta": "offsetDelta",
    },
):
    """Reply to a pull: where to read on, and the queue's bounds. `offset_delta`: of a logical queue, what the offsets
    in the records lack.
    """

    suggested_broker_id: Long = 0
    next_offset: Long = 0
    min_offset: Long = 0
    max_offset: Long = 0
    topic_sys_flag: Long | None = None
    group_sys_flag: Long | None = None
    offset_delta: Long | None = None


class SendBackHeader(
    Header,
    kw_only=True,
    gc=False,
    rename={
        "physical_offset": "offset",
        "delay_level": "delayLevel",
        "origin_message_id": "originMsgId",
        "origin_topic": "originTopic",
        "unit_mode": "unitMode",
        "max_reconsume_times": "maxReconsumeTimes",
        "broker_name": "bname",
    },
):
    """CONSUMER_SEND_MSG_BACK (36): deliver the message at `physical_offset` again later, or give it up."""

    physical_offset: Long
    group: str
    delay_level: Long
    origin_message_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Long | None = None
    broker_name: str | None = None


class EndTransactionHeader(
    Header,
    kw_only=True,
    gc=False,
    rename={
        "producer_group": "producerGroup",
        "half_offset": "tranStateTableOffset",
        "physical_offset": "commitLogOffset",
        "outcome": "commitOrRollback",
        "from_check": "fromTransactionCheck",
        "message_id": "msgId",
        "transaction_id": "transactionId",
        "broker_name": "bname",
    },
):
    """END_TRANSACTION (37). `outcome`: 8 commit, 12 rollback, 0 unknown; `half_offset`: in the half queue."""

    topic: str | None = None
    producer_group: str
    half_offset: Long
    physical_offset: Long
    outcome: Long
    from_check: bool | None = False
    message_id: str = ""
    transaction_id: str | None = None
    broker_name: str | None = None


class EndHalfRangesHeader(
    Header,
    kw_only=True,
    gc=False,
    rename={"producer_group": "producerGroup", "outcome": "commitOrRollback", "broker_name": "bname"},
):
    """END_HALF_RANGES (7310006), our own. `outcome`: 8 commit, 12 rollback; the body is `half_ranges.encode`'s, of half
    messages that are all for `topic`.
    """

    topic: str
    producer_group: str
    outcome: Long
    broker_name: str | None = None


class CheckTransactionHeader(
    Header,
    kw_only=True,
    gc=False,
    rename={
        "half_offset": "tranStateTableOffset",
        "physical_offset": "commitLogOffset",
        "message_id": "msgId",
        "transaction_id": "transactionId",
        "offset_message_id": "offsetMsgId",
        "broker_name": "bname",
    },
):
    """CHECK_TRANSACTION_STATE (39), a broker's question to a producer; the body is the half message's record."""

    topic: str | None = None
    half_offset: Long
    physical_offset: Long
    message_id: str | None = None
    transaction_id: str | None = None
    offset_message_id: str | None = None
    broker_name: str | None = None


class QueryMessageHeader(
    Header,
    kw_only=True,
    gc=False,
    rename={
        "count_max": "maxNum",
        "begin_ms": "beginTimestamp",
        "end_ms": "endTimestamp",
        "kind": "indexType",
        "unique": "_UNIQUE_KEY_QUERY",
    },
):
    """QUERY_MESSAGE (12). `kind`: K keys, U unique id, T tag; `unique` marks a query by unique id."""

    topic: str
    key: str
    count_max: Long
    begin_ms: Long
    end_ms: Long
    kind: str | None = None
    unique: bool | None = None


class QueryMessageReply(
    Header,
    kw_only=True,
    gc=False,
    rename={"updated_ms": "indexLastUpdateTimestamp", "updated_position": "indexLastUpdatePhyoffset"},
):
    """Reply to QUERY_MESSAGE: how far the index had come."""

    updated_ms: Long
    updated_position: Long


class ViewMessageHeader(Header, kw_only=True, gc=False, rename={"physical_offset": "offset"}):
    """VIEW_MESSAGE_BY_ID (33)."""

    topic: str | None = None
    physical_offset: Long


class PushReplyHeader(
    Header,
    kw_only=True,
    gc=False,
    rename={
        "producer_group": "producerGroup",
        "default_topic": "defaultTopic",
        "default_topic_queue_count": "defaultTopicQueueNums",
        "queue_id": "queueId",
        "sys_flag": "sysFlag",
        "born_time_ms": "bornTimestamp",
        "reconsume_times": "reconsumeTimes",
        "unit_mode": "unitMode",
        "born_host": "bornHost",
        "store_host": "storeHost",
        "store_time_ms": "storeTimestamp",
    },
):
    """PUSH_REPLY_MESSAGE_TO_CLIENT (326): a reply for the client that sent the request; hosts as "ip:port"."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_count: Long
    queue_id: Long
    sys_flag: Long
    born_time_ms: Long
    flag: Long
    properties: str = ""
    reconsume_times: Long = 0
    unit_mode: bool = False
    born_host: str
    store_host: str
    store_time_ms: Long
