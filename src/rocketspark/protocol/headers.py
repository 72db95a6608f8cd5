"""Typed ext fields of requests and replies. Rule: the wire's names stop here.

A header is a Struct whose fields are renamed to the wire's. `request_decoder` makes the decoder that reads a whole
JSON header in one pass; `to_ext` and `from_ext` turn a header into text fields and back.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Generic, TypeVar

import msgspec

from rocketspark.errors import FrameError
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.frames import Frame, language_name

H = TypeVar("H", bound="Header")


class Header(msgspec.Struct, rename="camel", kw_only=True, gc=False):
    """Base of all typed headers. Ext fields that a header does not name are ignored."""


class NoHeader(Header, kw_only=True, gc=False):
    """No ext fields of interest."""


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
    """SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320), SEND_REPLY_MESSAGE_V2 (325): one-letter names.

    `born_time_ms`: ms since 1970; `queue_id` below 0: the broker picks one.
    """

    producer_group: str
    topic: str
    default_topic: str = "TBW102"
    default_topic_queue_count: int = 4
    queue_id: int
    sys_flag: int
    born_time_ms: int
    flag: int
    properties: str = ""
    reconsume_times: int = 0
    unit_mode: bool = False
    max_reconsume_times: int | None = None
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
    default_topic_queue_count: int = 4
    queue_id: int
    sys_flag: int
    born_time_ms: int
    flag: int
    properties: str = ""
    reconsume_times: int = 0
    unit_mode: bool = False
    max_reconsume_times: int | None = None
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
    queue_id: int
    queue_offset: int
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
    queue_id: int
    queue_offset: int
    count_max: int
    sys_flag: int
    commit_offset: int
    suspend_ms: int
    subscription: str | None = None
    subscription_version: int
    expression_type: str | None = None
    bytes_max: int | None = None
    request_source: int | None = None
    broker_name: str | None = None
    bulk: bool | None = None


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
    },
):
    """Reply to a pull: where to read on, and the queue's bounds."""

    suggested_broker_id: int = 0
    next_offset: int = 0
    min_offset: int = 0
    max_offset: int = 0
    topic_sys_flag: int | None = None
    group_sys_flag: int | None = None


class MaxOffsetHeader(Header, kw_only=True, gc=False, rename={"queue_id": "queueId", "broker_name": "bname"}):
    """GET_MAX_OFFSET (30). `committed` is always answered with the next offset to be written."""

    topic: str
    queue_id: int
    committed: bool | None = None
    broker_name: str | None = None


class QueueHeader(Header, kw_only=True, gc=False, rename={"queue_id": "queueId", "broker_name": "bname"}):
    """GET_MIN_OFFSET (31), GET_EARLIEST_MSG_STORETIME (32): one queue."""

    topic: str
    queue_id: int
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
    queue_id: int
    time_ms: int
    boundary: str = "LOWER"
    broker_name: str | None = None


class OffsetReply(Header, kw_only=True, gc=False):
    """A queue offset."""

    offset: int


class TimeReply(Header, kw_only=True, gc=False, rename={"time_ms": "timestamp"}):
    """A time in ms, -1 for none."""

    time_ms: int


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
    queue_id: int
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
    queue_id: int
    commit_offset: int
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


class SendBackHeader(
    Header,
    kw_only=True,
    gc=False,
    rename={
        "log_position": "offset",
        "delay_level": "delayLevel",
        "origin_message_id": "originMsgId",
        "origin_topic": "originTopic",
        "unit_mode": "unitMode",
        "max_reconsume_times": "maxReconsumeTimes",
        "broker_name": "bname",
    },
):
    """CONSUMER_SEND_MSG_BACK (36): deliver the message at `log_position` again later, or give it up."""

    log_position: int
    group: str
    delay_level: int
    origin_message_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: int | None = None
    broker_name: str | None = None


class EndTransactionHeader(
    Header,
    kw_only=True,
    gc=False,
    rename={
        "producer_group": "producerGroup",
        "half_offset": "tranStateTableOffset",
        "log_position": "commitLogOffset",
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
    half_offset: int
    log_position: int
    outcome: int
    from_check: bool | None = False
    message_id: str = ""
    transaction_id: str | None = None
    broker_name: str | None = None


class CheckTransactionHeader(
    Header,
    kw_only=True,
    gc=False,
    rename={
        "half_offset": "tranStateTableOffset",
        "log_position": "commitLogOffset",
        "message_id": "msgId",
        "transaction_id": "transactionId",
        "offset_message_id": "offsetMsgId",
        "broker_name": "bname",
    },
):
    """CHECK_TRANSACTION_STATE (39), a broker's question to a producer; the body is the half message's record."""

    topic: str | None = None
    half_offset: int
    log_position: int
    message_id: str | None = None
    transaction_id: str | None = None
    offset_message_id: str | None = None
    broker_name: str | None = None


class ConsumerListHeader(Header, kw_only=True, gc=False, rename={"group": "consumerGroup"}):
    """GET_CONSUMER_LIST_BY_GROUP (38) and NOTIFY_CONSUMER_IDS_CHANGED (40)."""

    group: str


class TopicHeader(Header, kw_only=True, gc=False):
    """Requests about one topic: GET_TOPIC_CONFIG (351), DELETE_TOPIC (215, 216), GET_TOPIC_STATS_INFO (202)."""

    topic: str


class CreateTopicHeader(
    Header,
    kw_only=True,
    gc=False,
    rename={
        "default_topic": "defaultTopic",
        "read_queue_count": "readQueueNums",
        "write_queue_count": "writeQueueNums",
        "filter_type": "topicFilterType",
        "topic_sys_flag": "topicSysFlag",
    },
):
    """UPDATE_AND_CREATE_TOPIC (17). `perm`: 2 write, 4 read; `attributes`: "+name=value,-name"."""

    topic: str
    default_topic: str = "TBW102"
    read_queue_count: int
    write_queue_count: int
    perm: int
    filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int | None = None
    order: bool = False
    attributes: str | None = None
    force: bool | None = None


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
    count_max: int
    begin_ms: int
    end_ms: int
    kind: str | None = None
    unique: bool | None = None


class QueryMessageReply(
    Header,
    kw_only=True,
    gc=False,
    rename={"updated_ms": "indexLastUpdateTimestamp", "updated_position": "indexLastUpdatePhyoffset"},
):
    """Reply to QUERY_MESSAGE: how far the index had come."""

    updated_ms: int
    updated_position: int


class ViewMessageHeader(Header, kw_only=True, gc=False, rename={"log_position": "offset"}):
    """VIEW_MESSAGE_BY_ID (33)."""

    topic: str | None = None
    log_position: int


class RouteHeader(Header, kw_only=True, gc=False, rename={"standard_json": "acceptStandardJsonOnly"}):
    """GET_ROUTEINFO_BY_TOPIC (105)."""

    topic: str
    standard_json: bool = False


class RegisterBrokerHeader(
    Header,
    kw_only=True,
    gc=False,
    rename={
        "broker_name": "brokerName",
        "address": "brokerAddr",
        "cluster": "clusterName",
        "ha_address": "haServerAddr",
        "broker_id": "brokerId",
        "expiry_ms": "heartbeatTimeoutMillis",
        "acting_master": "enableActingMaster",
        "crc": "bodyCrc32",
    },
):
    """REGISTER_BROKER (103). `expiry_ms`: how long the broker may be silent; `crc`: of the body as sent, 0 none."""

    broker_name: str
    address: str
    cluster: str
    ha_address: str = ""
    broker_id: int
    expiry_ms: int | None = None
    acting_master: bool | None = None
    compressed: bool = False
    crc: int | None = None


class RegisterBrokerReply(
    Header, kw_only=True, gc=False, rename={"ha_address": "haServerAddr", "master_address": "masterAddr"}
):
    """Reply to a slave's REGISTER_BROKER: its master."""

    ha_address: str | None = None
    master_address: str | None = None


class BrokerHeader(
    Header,
    kw_only=True,
    gc=False,
    rename={
        "broker_name": "brokerName",
        "address": "brokerAddr",
        "cluster": "clusterName",
        "broker_id": "brokerId",
    },
):
    """UNREGISTER_BROKER (104), QUERY_DATA_VERSION (322), BROKER_HEARTBEAT (904): one broker."""

    broker_name: str
    address: str
    cluster: str
    broker_id: int = 0


class DataVersionReply(Header, kw_only=True, gc=False):
    """Reply to QUERY_DATA_VERSION (322)."""

    changed: bool


class MemberGroupHeader(Header, kw_only=True, gc=False, rename={"cluster": "clusterName", "broker_name": "brokerName"}):
    """GET_BROKER_MEMBER_GROUP (901)."""

    cluster: str
    broker_name: str


class KvHeader(Header, kw_only=True, gc=False):
    """PUT_KV_CONFIG (100), GET_KV_CONFIG (101), DELETE_KV_CONFIG (102), GET_KVLIST_BY_NAMESPACE (219)."""

    namespace: str
    key: str = ""
    value: str = ""


class ValueReply(Header, kw_only=True, gc=False):
    """Reply to GET_KV_CONFIG."""

    value: str | None = None


class BrokerNameHeader(Header, kw_only=True, gc=False, rename={"broker_name": "brokerName"}):
    """WIPE_WRITE_PERM_OF_BROKER (205), ADD_WRITE_PERM_OF_BROKER (327)."""

    broker_name: str


class ClusterHeader(Header, kw_only=True, gc=False):
    """GET_TOPICS_BY_CLUSTER (224)."""

    cluster: str


class GroupHeader(Header, kw_only=True, gc=False):
    """GET_SUBSCRIPTIONGROUP_CONFIG (352), QUERY_TOPICS_BY_CONSUMER (343)."""

    group: str


class ConsumerStatsHeader(Header, kw_only=True, gc=False, rename={"group": "consumerGroup"}):
    """GET_CONSUME_STATS (208)."""

    group: str
    topic: str | None = None


class LockHeader(Header, kw_only=True, gc=False):
    """LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42): everything stands in the body."""


class Request(msgspec.Struct, Generic[H], rename={"ext": "extFields"}, gc=False):
    """A request's whole JSON header with its ext fields typed.

    `language` is a name, or a number as some clients write it; `version` the ordinal of the sender's release.
    """

    code: int
    ext: H
    opaque: int = 0
    flag: int = 0
    language: str | int = "OTHER"
    version: int = 0


class ReplyHead(msgspec.Struct, rename={"ext": "extFields"}, gc=False):
    """What a frame's header says about itself, its ext fields left as they are."""

    code: int
    opaque: int = 0
    flag: int = 0
    remark: str | None = None
    language: str | int = "OTHER"
    version: int = 0
    ext: msgspec.Raw = msgspec.Raw(b"{}")


@lru_cache(maxsize=256)
def request_decoder(kind: type[H]) -> msgspec.json.Decoder[Request[H]]:
    """The decoder of whole JSON headers whose ext fields are a `kind`; values in text become what they are."""
    if any(f.required for f in msgspec.structs.fields(kind)):
        return msgspec.json.Decoder(Request[kind], strict=False)  # type: ignore[valid-type]
    # Clients leave extFields out when there is none.
    lenient = msgspec.defstruct(
        f"Request_{kind.__name__}",
        [
            ("code", int),
            ("ext", kind, msgspec.field(default_factory=kind)),
            ("opaque", int, 0),
            ("flag", int, 0),
            ("language", str | int, "OTHER"),
            ("version", int, 0),
        ],
        rename={"ext": "extFields"},
        gc=False,
    )
    return msgspec.json.Decoder(lenient, strict=False)


head_decoder = msgspec.json.Decoder(ReplyHead, strict=False)


@lru_cache(maxsize=256)
def _ext_decoder(kind: type[H]) -> msgspec.json.Decoder[H]:
    return msgspec.json.Decoder(kind, strict=False)


def decode_ext(kind: type[H], ext: bytes | msgspec.Raw) -> H:
    """A header from the JSON text of its ext fields. Raises FrameError naming the field that is wrong."""
    try:
        header: H = _ext_decoder(kind).decode(ext)
        return header
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise FrameError(f"{kind.__name__}: {e}") from e


def from_ext(kind: type[H], ext: dict[str, str] | None) -> H:
    """A header from text fields. Raises FrameError naming the field that is missing or wrong."""
    try:
        return msgspec.convert(ext or {}, kind, strict=False)
    except msgspec.ValidationError as e:
        raise FrameError(f"{kind.__name__}: {e}") from e


def from_frame(kind: type[H], frame: Frame) -> Request[H]:
    """A typed request from a frame that was read the general way (a binary header)."""
    return Request(frame.code, from_ext(kind, frame.ext), frame.opaque, frame.flag, frame.language, frame.version)


@lru_cache(maxsize=256)
def _fields(kind: type[Header]) -> tuple[tuple[str, str], ...]:
    return tuple((f.name, f.encode_name) for f in msgspec.structs.fields(kind))


def to_ext(header: Header) -> dict[str, str]:
    """The header as text fields; None is left out, booleans are "true" and "false"."""
    ext = {}
    for name, wire_name in _fields(type(header)):
        value: Any = getattr(header, name)
        if value is None:
            continue
        if value is True:
            ext[wire_name] = "true"
        elif value is False:
            ext[wire_name] = "false"
        else:
            ext[wire_name] = value if type(value) is str else str(value)
    return ext


def sender_language(language: str | int) -> str:
    """The name of a sender's language, however its header wrote it."""
    return language if isinstance(language, str) else language_name(language)


# Header of each request, by code: what servers decode and clients encode.
REQUEST_HEADERS: dict[int, type[Header]] = {
    RequestCode.SEND_MESSAGE: SendHeaderV1,
    RequestCode.SEND_MESSAGE_V2: SendHeader,
    RequestCode.SEND_BATCH_MESSAGE: SendHeader,
    RequestCode.PULL_MESSAGE: PullHeader,
    RequestCode.LITE_PULL_MESSAGE: PullHeader,
    RequestCode.QUERY_MESSAGE: QueryMessageHeader,
    RequestCode.VIEW_MESSAGE_BY_ID: ViewMessageHeader,
    RequestCode.QUERY_CONSUMER_OFFSET: QueryConsumerOffsetHeader,
    RequestCode.UPDATE_CONSUMER_OFFSET: UpdateConsumerOffsetHeader,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: SearchOffsetHeader,
    RequestCode.GET_MAX_OFFSET: MaxOffsetHeader,
    RequestCode.GET_MIN_OFFSET: QueueHeader,
    RequestCode.GET_EARLIEST_MSG_STORETIME: QueueHeader,
    RequestCode.HEART_BEAT: NoHeader,
    RequestCode.UNREGISTER_CLIENT: UnregisterClientHeader,
    RequestCode.CONSUMER_SEND_MSG_BACK: SendBackHeader,
    RequestCode.END_TRANSACTION: EndTransactionHeader,
    RequestCode.CHECK_TRANSACTION_STATE: CheckTransactionHeader,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: ConsumerListHeader,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: ConsumerListHeader,
    RequestCode.UPDATE_AND_CREATE_TOPIC: CreateTopicHeader,
    RequestCode.GET_TOPIC_CONFIG: TopicHeader,
    RequestCode.DELETE_TOPIC_IN_BROKER: TopicHeader,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: TopicHeader,
    RequestCode.GET_TOPIC_STATS_INFO: TopicHeader,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: RouteHeader,
    RequestCode.REGISTER_BROKER: RegisterBrokerHeader,
    RequestCode.UNREGISTER_BROKER: BrokerHeader,
    RequestCode.QUERY_DATA_VERSION: BrokerHeader,
    RequestCode.BROKER_HEARTBEAT: BrokerHeader,
    RequestCode.GET_BROKER_MEMBER_GROUP: MemberGroupHeader,
    RequestCode.GET_BROKER_CLUSTER_INFO: NoHeader,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: NoHeader,
    RequestCode.GET_TOPICS_BY_CLUSTER: ClusterHeader,
    RequestCode.GET_KV_CONFIG: KvHeader,
    RequestCode.PUT_KV_CONFIG: KvHeader,
    RequestCode.DELETE_KV_CONFIG: KvHeader,
    RequestCode.GET_KVLIST_BY_NAMESPACE: KvHeader,
    RequestCode.LOCK_BATCH_MQ: LockHeader,
    RequestCode.UNLOCK_BATCH_MQ: LockHeader,
    RequestCode.GET_CONSUME_STATS: ConsumerStatsHeader,
}

# Header of each reply, where it has ext fields.
REPLY_HEADERS: dict[int, type[Header]] = {
    RequestCode.SEND_MESSAGE: SendReply,
    RequestCode.SEND_MESSAGE_V2: SendReply,
    RequestCode.SEND_BATCH_MESSAGE: SendReply,
    RequestCode.PULL_MESSAGE: PullReply,
    RequestCode.LITE_PULL_MESSAGE: PullReply,
    RequestCode.QUERY_MESSAGE: QueryMessageReply,
    RequestCode.QUERY_CONSUMER_OFFSET: OffsetReply,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: OffsetReply,
    RequestCode.GET_MAX_OFFSET: OffsetReply,
    RequestCode.GET_MIN_OFFSET: OffsetReply,
    RequestCode.GET_EARLIEST_MSG_STORETIME: TimeReply,
    RequestCode.HEART_BEAT: HeartbeatReply,
    RequestCode.REGISTER_BROKER: RegisterBrokerReply,
    RequestCode.QUERY_DATA_VERSION: DataVersionReply,
    RequestCode.GET_KV_CONFIG: ValueReply,
}
