"""The table of headers by request code: of the request and of its reply."""

from __future__ import annotations

from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers.admin import RuntimeInfoHeader
from rocketspark.protocol.headers.codec import (
    Header,
    NoHeader,
)
from rocketspark.protocol.headers.groups import (
    ConsumerListHeader,
    ConsumerStatsHeader,
    HeartbeatReply,
    LockHeader,
    MaxOffsetHeader,
    OffsetReply,
    QueryConsumerOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    TimeReply,
    UnregisterClientHeader,
    UpdateConsumerOffsetHeader,
)
from rocketspark.protocol.headers.messages import (
    CheckTransactionHeader,
    EndHalfRangesHeader,
    EndTransactionHeader,
    PullHeader,
    PullReply,
    QueryMessageHeader,
    QueryMessageReply,
    SendBackHeader,
    SendHeader,
    SendHeaderV1,
    SendReply,
    ViewMessageHeader,
)
from rocketspark.protocol.headers.namesrv import (
    BrokerHeader,
    ClusterHeader,
    DataVersionReply,
    KvHeader,
    MemberGroupHeader,
    RegisterBrokerHeader,
    RegisterBrokerReply,
    RouteHeader,
    ValueReply,
)
from rocketspark.protocol.headers.topics import (
    CreateTopicHeader,
    TopicHeader,
)

# Header of each request, by code: what servers decode and clients encode.
REQUEST_HEADERS: dict[int, type[Header]] = {
    RequestCode.SEND_MESSAGE: SendHeaderV1,
    RequestCode.SEND_MESSAGE_V2: SendHeader,
    RequestCode.SEND_BATCH_MESSAGE: SendHeader,
    RequestCode.SEND_HALF_BATCH: SendHeader,
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
    RequestCode.END_HALF_RANGES: EndHalfRangesHeader,
    RequestCode.GET_BROKER_RUNTIME_INFO: RuntimeInfoHeader,
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
    RequestCode.SEND_HALF_BATCH: SendReply,
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
