"""Request and response codes of RocketMQ 5.5.0, one table each, with the meaning of a response code for a retry.

Rule: whether a reply may be retried is looked up here and nowhere else.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class RequestCode(IntEnum):
    """The code of a request."""

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    QUERY_MESSAGE = 12
    QUERY_BROKER_OFFSET = 13
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    UPDATE_AND_CREATE_TOPIC = 17
    UPDATE_AND_CREATE_TOPIC_LIST = 18
    GET_ALL_TOPIC_CONFIG = 21
    GET_TOPIC_CONFIG_LIST = 22
    GET_TOPIC_NAME_LIST = 23
    UPDATE_BROKER_CONFIG = 25
    GET_BROKER_CONFIG = 26
    TRIGGER_DELETE_FILES = 27
    GET_BROKER_RUNTIME_INFO = 28
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_EARLIEST_MSG_STORETIME = 32
    VIEW_MESSAGE_BY_ID = 33
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MSG_BACK = 36
    END_TRANSACTION = 37
    GET_CONSUMER_LIST_BY_GROUP = 38
    CHECK_TRANSACTION_STATE = 39
    NOTIFY_CONSUMER_IDS_CHANGED = 40
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    GET_ALL_CONSUMER_OFFSET = 43
    GET_ALL_DELAY_OFFSET = 45
    CHECK_CLIENT_CONFIG = 46
    GET_CLIENT_CONFIG = 47
    # Access control 1.0, which 5.5.0 has no more.
    UPDATE_AND_CREATE_ACL_CONFIG = 50
    DELETE_ACL_CONFIG = 51
    GET_BROKER_CLUSTER_ACL_INFO = 52
    UPDATE_GLOBAL_WHITE_ADDRS_CONFIG = 53
    GET_BROKER_CLUSTER_ACL_CONFIG = 54
    GET_TIMER_CHECK_POINT = 60
    GET_TIMER_METRICS = 61
    PUT_KV_CONFIG = 100
    GET_KV_CONFIG = 101
    DELETE_KV_CONFIG = 102
    REGISTER_BROKER = 103
    UNREGISTER_BROKER = 104
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
    GET_TOPIC_STATS_INFO = 202
    GET_CONSUMER_CONNECTION_LIST = 203
    GET_PRODUCER_CONNECTION_LIST = 204
    WIPE_WRITE_PERM_OF_BROKER = 205
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206
    DELETE_SUBSCRIPTIONGROUP = 207
    GET_CONSUME_STATS = 208
    SUSPEND_CONSUMER = 209
    RESUME_CONSUMER = 210
    RESET_CONSUMER_OFFSET_IN_CONSUMER = 211
    RESET_CONSUMER_OFFSET_IN_BROKER = 212
    ADJUST_CONSUMER_THREAD_POOL = 213
    WHO_CONSUME_THE_MESSAGE = 214
    DELETE_TOPIC_IN_BROKER = 215
    DELETE_TOPIC_IN_NAMESRV = 216
    REGISTER_TOPIC_IN_NAMESRV = 217
    GET_KVLIST_BY_NAMESPACE = 219
    RESET_CONSUMER_CLIENT_OFFSET = 220
    GET_CONSUMER_STATUS_FROM_CLIENT = 221
    INVOKE_BROKER_TO_RESET_OFFSET = 222
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS = 223
    GET_TOPICS_BY_CLUSTER = 224
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST = 225
    QUERY_TOPIC_CONSUME_BY_WHO = 300
    REGISTER_FILTER_SERVER = 301
    REGISTER_MESSAGE_FILTER_CLASS = 302
    QUERY_CONSUME_TIME_SPAN = 303
    GET_SYSTEM_TOPIC_LIST_FROM_NS = 304
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER = 305
    CLEAN_EXPIRED_CONSUMEQUEUE = 306
    GET_CONSUMER_RUNNING_INFO = 307
    QUERY_CORRECTION_OFFSET = 308
    CONSUME_MESSAGE_DIRECTLY = 309
    SEND_MESSAGE_V2 = 310
    GET_UNIT_TOPIC_LIST = 311
    GET_HAS_UNIT_SUB_TOPIC_LIST = 312
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST = 313
    CLONE_GROUP_OFFSET = 314
    VIEW_BROKER_STATS_DATA = 315
    CLEAN_UNUSED_TOPIC = 316
    GET_BROKER_CONSUME_STATS = 317
    UPDATE_NAMESRV_CONFIG = 318
    GET_NAMESRV_CONFIG = 319
    SEND_BATCH_MESSAGE = 320
    QUERY_CONSUME_QUEUE = 321
    QUERY_DATA_VERSION = 322
    RESUME_CHECK_HALF_MESSAGE = 323
    SEND_REPLY_MESSAGE = 324
    SEND_REPLY_MESSAGE_V2 = 325
    PUSH_REPLY_MESSAGE_TO_CLIENT = 326
    ADD_WRITE_PERM_OF_BROKER = 327
    GET_ALL_PRODUCER_INFO = 328
    DELETE_EXPIRED_COMMITLOG = 329
    QUERY_TOPICS_BY_CONSUMER = 343
    QUERY_SUBSCRIPTION_BY_CONSUMER = 345
    GET_TOPIC_CONFIG = 351
    GET_SUBSCRIPTIONGROUP_CONFIG = 352
    UPDATE_AND_GET_GROUP_FORBIDDEN = 353
    CHECK_ROCKSDB_CQ_WRITE_PROGRESS = 354
    EXPORT_ROCKSDB_CONFIG_TO_JSON = 355
    LITE_PULL_MESSAGE = 361
    RECALL_MESSAGE = 370
    QUERY_ASSIGNMENT = 400
    SET_MESSAGE_REQUEST_MODE = 401
    GET_ALL_MESSAGE_REQUEST_MODE = 402
    UPDATE_AND_CREATE_STATIC_TOPIC = 513
    GET_BROKER_MEMBER_GROUP = 901
    ADD_BROKER = 902
    REMOVE_BROKER = 903
    BROKER_HEARTBEAT = 904
    NOTIFY_MIN_BROKER_ID_CHANGE = 905
    EXCHANGE_BROKER_HA_INFO = 906
    GET_BROKER_HA_STATUS = 907
    RESET_MASTER_FLUSH_OFFSET = 908
    CONTROLLER_ALTER_SYNC_STATE_SET = 1001
    CONTROLLER_ELECT_MASTER = 1002
    CONTROLLER_REGISTER_BROKER = 1003
    CONTROLLER_GET_REPLICA_INFO = 1004
    CONTROLLER_GET_METADATA_INFO = 1005
    CONTROLLER_GET_SYNC_STATE_DATA = 1006
    GET_BROKER_EPOCH_CACHE = 1007
    NOTIFY_BROKER_ROLE_CHANGED = 1008
    UPDATE_CONTROLLER_CONFIG = 1009
    GET_CONTROLLER_CONFIG = 1010
    CLEAN_BROKER_DATA = 1011
    CONTROLLER_GET_NEXT_BROKER_ID = 1012
    CONTROLLER_APPLY_BROKER_ID = 1013
    BROKER_CLOSE_CHANNEL_REQUEST = 1014
    CHECK_NOT_ACTIVE_BROKER_REQUEST = 1015
    GET_BROKER_LIVE_INFO_REQUEST = 1016
    GET_SYNC_STATE_DATA_REQUEST = 1017
    RAFT_BROKER_HEART_BEAT_EVENT_REQUEST = 1018
    UPDATE_COLD_DATA_FLOW_CTR_CONFIG = 2001
    REMOVE_COLD_DATA_FLOW_CTR_CONFIG = 2002
    GET_COLD_DATA_FLOW_CTR_INFO = 2003
    SET_COMMITLOG_READ_MODE = 2004
    AUTH_CREATE_USER = 3001
    AUTH_UPDATE_USER = 3002
    AUTH_DELETE_USER = 3003
    AUTH_GET_USER = 3004
    AUTH_LIST_USER = 3005
    AUTH_CREATE_ACL = 3006
    AUTH_UPDATE_ACL = 3007
    AUTH_DELETE_ACL = 3008
    AUTH_GET_ACL = 3009
    AUTH_LIST_ACL = 3010
    SWITCH_TIMER_ENGINE = 5001
    POP_MESSAGE = 200050
    ACK_MESSAGE = 200051
    PEEK_MESSAGE = 200052
    CHANGE_MESSAGE_INVISIBLETIME = 200053
    NOTIFICATION = 200054
    POLLING_INFO = 200055
    POP_ROLLBACK = 200056
    POP_LITE_MESSAGE = 200070
    LITE_SUBSCRIPTION_CTL = 200071
    ACK_LITE_MESSAGE = 200072
    NOTIFY_UNSUBSCRIBE_LITE = 200073
    GET_BROKER_LITE_INFO = 200074
    GET_PARENT_TOPIC_INFO = 200075
    GET_LITE_TOPIC_INFO = 200076
    GET_LITE_CLIENT_INFO = 200077
    GET_LITE_GROUP_INFO = 200078
    TRIGGER_LITE_DISPATCH = 200079
    BATCH_ACK_MESSAGE = 200151
    # Our own, far from RocketMQ's: the broker's quarantine.
    LIST_QUARANTINE = 7_310_001
    RETRY_QUARANTINED = 7_310_002
    DROP_QUARANTINED = 7_310_003
    # What only brokers of ours keep, for their slaves.
    GET_BROKER_STATE = 7_310_004
    # Many half messages at a time, where the broker's runtime table says `halfBatches`.
    SEND_HALF_BATCH = 7_310_005
    END_HALF_RANGES = 7_310_006
    # Members and lag of many consumer groups at a time.
    GET_GROUP_STATES = 7_310_007
    # A broker tells a NameServer that it has a topic no more.
    FORGET_TOPIC_OF_BROKER = 7_310_008
    # What the controllers of a group tell each other, and who belongs to it.
    CONTROLLER_GROUP_MESSAGE = 7_310_021
    CONTROLLER_GROUP_HELLO = 7_310_022
    CONTROLLER_GROUP_CHANGE = 7_310_023


class ResponseCode(IntEnum):
    """The code of a reply: the outcome of its request."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    TRANSACTION_FAILED = 4
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    VERSION_NOT_SUPPORTED = 15
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    TOPIC_EXIST_ALREADY = 18
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    FILTER_DATA_NOT_EXIST = 27
    FILTER_DATA_NOT_LATEST = 28
    INVALID_PARAMETER = 29
    TRANSACTION_SHOULD_COMMIT = 200
    TRANSACTION_SHOULD_ROLLBACK = 201
    TRANSACTION_STATE_UNKNOW = 202
    TRANSACTION_STATE_GROUP_WRONG = 203
    NO_BUYER_ID = 204
    NOT_IN_CURRENT_UNIT = 205
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    NO_MESSAGE = 208
    POLLING_FULL = 209
    POLLING_TIMEOUT = 210
    BROKER_NOT_EXIST = 211
    BROKER_DISPATCH_NOT_COMPLETE = 212
    BROADCAST_CONSUMPTION = 213
    FLOW_CONTROL = 215
    NOT_LEADER_FOR_QUEUE = 501
    ILLEGAL_OPERATION = 604
    GO_AWAY = 1500
    CONTROLLER_FENCED_MASTER_EPOCH = 2000
    CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH = 2001
    CONTROLLER_INVALID_MASTER = 2002
    CONTROLLER_INVALID_REPLICAS = 2003
    CONTROLLER_MASTER_NOT_AVAILABLE = 2004
    CONTROLLER_INVALID_REQUEST = 2005
    CONTROLLER_BROKER_NOT_ALIVE = 2006
    CONTROLLER_NOT_LEADER = 2007
    CONTROLLER_BROKER_METADATA_NOT_EXIST = 2008
    CONTROLLER_INVALID_CLEAN_BROKER_METADATA = 2009
    CONTROLLER_BROKER_NEED_TO_BE_REGISTERED = 2010
    CONTROLLER_MASTER_STILL_EXIST = 2011
    CONTROLLER_ELECT_MASTER_FAILED = 2012
    CONTROLLER_ALTER_SYNC_STATE_SET_FAILED = 2013
    CONTROLLER_BROKER_ID_INVALID = 2014
    CONTROLLER_JRAFT_INTERNAL_ERROR = 2015
    CONTROLLER_BROKER_LIVE_INFO_NOT_EXISTS = 2016
    LMQ_QUOTA_EXCEEDED = 2017
    LITE_SUBSCRIPTION_QUOTA_EXCEEDED = 2018
    USER_NOT_EXIST = 3001
    POLICY_NOT_EXIST = 3002


class Verdict(NamedTuple):
    """The meaning of a response code: `retriable` on another broker, `refresh_route` before that."""

    meaning: str
    retriable: bool = False
    refresh_route: bool = False


# Retriable codes: DefaultMQProducer 5.x (SYSTEM_BUSY and GO_AWAY are new in 5.x).
RESPONSES: dict[int, Verdict] = {
    0: Verdict("request served"),
    1: Verdict("unspecified failure; remark tells", retriable=True),
    2: Verdict(
        "overloaded: thread pool queue full, page cache busy, or request waited too long; producers try another broker",
        retriable=True,
    ),
    3: Verdict("no processor for that request code"),
    4: Verdict("transaction could not be handled"),
    10: Verdict("stored in memory, disk flush not confirmed in time (SYNC_FLUSH); still a success for the client"),
    11: Verdict("no slave in reach (SYNC_MASTER); send status SLAVE_NOT_AVAILABLE, still a success for the client"),
    12: Verdict("slave did not confirm in time; send status FLUSH_SLAVE_TIMEOUT, still a success for the client"),
    13: Verdict("message too large, topic or properties too long, or otherwise malformed"),
    14: Verdict("store not writable (shutting down, disk full, slave) or service not started", retriable=True),
    15: Verdict("peer version not supported"),
    16: Verdict(
        "not readable or writable, group not allowed, or authentication failed (5.x)",
        retriable=True,
        refresh_route=True,
    ),
    17: Verdict("topic unknown at the broker, or no route at the name server", retriable=True, refresh_route=True),
    18: Verdict("topic exists already"),
    19: Verdict("no message at the offset and the poll was not or no longer suspended"),
    20: Verdict("retry at once with nextBeginOffset (filter matched nothing, or file was switched)"),
    21: Verdict("offset outside the queue; nextBeginOffset holds the corrected one"),
    22: Verdict("key, config item or consumer offset not found"),
    23: Verdict("filter expression cannot be parsed"),
    24: Verdict("consumer group or its subscription is not registered at the broker"),
    25: Verdict("the client subscription version is older or newer than the one the broker holds: retry"),
    26: Verdict("subscription group does not exist (auto creation off)"),
    27: Verdict("SQL filter data for the group is missing"),
    28: Verdict("SQL filter data is older than the subscription"),
    29: Verdict("a request parameter is out of range (e.g. queue id)"),
    200: Verdict("transaction state: commit"),
    201: Verdict("transaction state: rollback"),
    202: Verdict("transaction state: unknown"),
    203: Verdict("transaction belongs to another group"),
    204: Verdict("legacy unit deployment: no buyer id", retriable=True),
    205: Verdict("legacy unit deployment: message of another unit", retriable=True),
    206: Verdict("no such consumer online"),
    207: Verdict("direct consumption timed out"),
    208: Verdict("client-side: query returned nothing"),
    209: Verdict("too many requests held for polling"),
    210: Verdict("polling time is over without a message"),
    211: Verdict("broker not found (client side)"),
    212: Verdict("dispatch to indexes not complete yet"),
    213: Verdict("operation not allowed for broadcast groups"),
    215: Verdict("flow control"),
    501: Verdict("static topic: this broker does not lead the queue", refresh_route=True),
    604: Verdict("illegal operation, e.g. recall not possible"),
    1500: Verdict("server asks the client to reconnect elsewhere", retriable=True, refresh_route=True),
    2000: Verdict("controller: fenced master epoch"),
    2001: Verdict("controller: fenced sync state set epoch"),
    2002: Verdict("controller: invalid master"),
    2003: Verdict("controller: invalid replicas"),
    2004: Verdict("controller: master not available"),
    2005: Verdict("controller: invalid request"),
    2006: Verdict("controller: broker not alive"),
    2007: Verdict("controller: not leader"),
    2008: Verdict("controller: broker metadata not exist"),
    2009: Verdict("controller: invalid clean broker metadata"),
    2010: Verdict("controller: broker need to be registered"),
    2011: Verdict("controller: master still exist"),
    2012: Verdict("controller: elect master failed"),
    2013: Verdict("controller: alter sync state set failed"),
    2014: Verdict("controller: broker id invalid"),
    2015: Verdict("controller: jraft internal error"),
    2016: Verdict("controller: broker live info not exists"),
    2017: Verdict("light message queue quota exceeded"),
    2018: Verdict("lite subscription quota exceeded"),
    3001: Verdict("user does not exist"),
    3002: Verdict("access policy does not exist"),
}
UNKNOWN = Verdict("unknown response code")


# The remark of a broker whose enablePropertyFilter is off, with a code that it has for passing failures too.
FILTER_REFUSED = "The broker does not support consumer to filter message"


def verdict(code: int) -> Verdict:
    """Return the table's row for a response code; unknown codes are not retriable."""
    return RESPONSES.get(code, UNKNOWN)


def is_retriable(code: int, remark: str | None) -> bool:
    """Tell whether a request that was answered so may succeed later: as its code says, but for a refused filter."""
    return verdict(code).retriable and not (remark or "").startswith(FILTER_REFUSED)


# Replies to a send that mean the message is stored: its status tells the rest.
SEND_STORED = frozenset({0, 10, 11, 12})
