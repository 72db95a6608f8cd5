"""The table of headers by request code: of the request and of its reply."""

from __future__ import annotations

from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import admin, groups, messages, namesrv, topics
from rocketspark.protocol.headers.codec import Header, NoHeader

# Header of each request, by code: what servers decode and clients encode.
REQUEST_HEADERS: dict[int, type[Header]] = {
    RequestCode.SEND_MESSAGE: messages.SendHeaderV1,
    RequestCode.SEND_MESSAGE_V2: messages.SendHeader,
    RequestCode.SEND_BATCH_MESSAGE: messages.SendHeader,
    RequestCode.SEND_HALF_BATCH: messages.SendHeader,
    RequestCode.PULL_MESSAGE: messages.PullHeader,
    RequestCode.LITE_PULL_MESSAGE: messages.PullHeader,
    RequestCode.QUERY_MESSAGE: messages.QueryMessageHeader,
    RequestCode.VIEW_MESSAGE_BY_ID: messages.ViewMessageHeader,
    RequestCode.QUERY_CONSUMER_OFFSET: groups.QueryConsumerOffsetHeader,
    RequestCode.UPDATE_CONSUMER_OFFSET: groups.UpdateConsumerOffsetHeader,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: groups.SearchOffsetHeader,
    RequestCode.GET_MAX_OFFSET: groups.MaxOffsetHeader,
    RequestCode.GET_MIN_OFFSET: groups.QueueHeader,
    RequestCode.GET_EARLIEST_MSG_STORETIME: groups.QueueHeader,
    RequestCode.HEART_BEAT: NoHeader,
    RequestCode.UNREGISTER_CLIENT: groups.UnregisterClientHeader,
    RequestCode.CONSUMER_SEND_MSG_BACK: messages.SendBackHeader,
    RequestCode.END_TRANSACTION: messages.EndTransactionHeader,
    RequestCode.END_HALF_RANGES: messages.EndHalfRangesHeader,
    RequestCode.GET_BROKER_RUNTIME_INFO: admin.RuntimeInfoHeader,
    RequestCode.CHECK_TRANSACTION_STATE: messages.CheckTransactionHeader,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: groups.ConsumerListHeader,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: groups.ConsumerListHeader,
    RequestCode.UPDATE_AND_CREATE_TOPIC: topics.CreateTopicHeader,
    RequestCode.GET_TOPIC_CONFIG: topics.TopicHeader,
    RequestCode.DELETE_TOPIC_IN_BROKER: topics.TopicHeader,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: topics.TopicHeader,
    RequestCode.FORGET_TOPIC_OF_BROKER: topics.TopicHeader,
    RequestCode.GET_TOPIC_STATS_INFO: topics.TopicHeader,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: namesrv.RouteHeader,
    RequestCode.REGISTER_BROKER: namesrv.RegisterBrokerHeader,
    RequestCode.UNREGISTER_BROKER: namesrv.BrokerHeader,
    RequestCode.QUERY_DATA_VERSION: namesrv.BrokerHeader,
    RequestCode.BROKER_HEARTBEAT: namesrv.BrokerHeader,
    RequestCode.GET_BROKER_MEMBER_GROUP: namesrv.MemberGroupHeader,
    RequestCode.GET_BROKER_CLUSTER_INFO: NoHeader,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: NoHeader,
    RequestCode.GET_TOPICS_BY_CLUSTER: namesrv.ClusterHeader,
    RequestCode.GET_KV_CONFIG: namesrv.KvHeader,
    RequestCode.PUT_KV_CONFIG: namesrv.KvHeader,
    RequestCode.DELETE_KV_CONFIG: namesrv.KvHeader,
    RequestCode.GET_KVLIST_BY_NAMESPACE: namesrv.KvHeader,
    RequestCode.LOCK_BATCH_MQ: groups.LockHeader,
    RequestCode.UNLOCK_BATCH_MQ: groups.LockHeader,
    RequestCode.GET_CONSUME_STATS: groups.ConsumerStatsHeader,
}

# Header of each reply, where it has ext fields.
REPLY_HEADERS: dict[int, type[Header]] = {
    RequestCode.SEND_MESSAGE: messages.SendReply,
    RequestCode.SEND_MESSAGE_V2: messages.SendReply,
    RequestCode.SEND_BATCH_MESSAGE: messages.SendReply,
    RequestCode.SEND_HALF_BATCH: messages.SendReply,
    RequestCode.PULL_MESSAGE: messages.PullReply,
    RequestCode.LITE_PULL_MESSAGE: messages.PullReply,
    RequestCode.QUERY_MESSAGE: messages.QueryMessageReply,
    RequestCode.QUERY_CONSUMER_OFFSET: groups.OffsetReply,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: groups.OffsetReply,
    RequestCode.GET_MAX_OFFSET: groups.OffsetReply,
    RequestCode.GET_MIN_OFFSET: groups.OffsetReply,
    RequestCode.GET_EARLIEST_MSG_STORETIME: groups.TimeReply,
    RequestCode.HEART_BEAT: groups.HeartbeatReply,
    RequestCode.REGISTER_BROKER: namesrv.RegisterBrokerReply,
    RequestCode.QUERY_DATA_VERSION: namesrv.DataVersionReply,
    RequestCode.GET_KV_CONFIG: namesrv.ValueReply,
}
