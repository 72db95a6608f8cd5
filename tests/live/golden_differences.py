"""What may differ between RocketMQ's captured answers and ours, and why. Rule: a row covers what it must, no more.

A row names scenarios, requests and paths by patterns; its kind says how far the values may be apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from tests.live.golden_replay import CAPTURED_MS, now_ms
from tests.live.golden_values import ABSENT, Seen
from tests.unit.broker.test_settings_table import OURS_ALONE

DAY_MS = 86_400_000


def _number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return not isinstance(value, bool)


def time(captured: Any, ours: Any) -> bool:
    """Both are times in ms, as numbers or as text."""
    if type(captured) is not type(ours) or not (_number(captured) and _number(ours)):
        return False
    return CAPTURED_MS[0] <= int(captured) <= CAPTURED_MS[1] and abs(int(ours) - now_ms()) < DAY_MS


def number(captured: Any, ours: Any) -> bool:
    """Both are numbers of one kind."""
    return type(captured) is type(ours) and _number(captured) and _number(ours)


def port(captured: Any, ours: Any) -> bool:
    """The same address but for its port."""
    if isinstance(captured, bytes):
        return captured[:4] == ours[:4] and len(captured) == len(ours)  # type: ignore[no-any-return]
    return re.sub(r":\d+$", "", str(captured)) == re.sub(r":\d+$", "", str(ours))


def message_id(captured: Any, ours: Any) -> bool:
    """Ids of messages of the same broker, as many."""
    return [i[:16] for i in str(captured).split(",")] == [i[:16] for i in str(ours).split(",")]


def text(captured: Any, ours: Any) -> bool:
    """Both say something."""
    return isinstance(captured, str) and isinstance(ours, str) and bool(captured) and bool(ours)


def figure(captured: Any, ours: Any) -> bool:
    """Both are texts, of figures."""
    return isinstance(captured, str) and isinstance(ours, str)


def unset(captured: Any, ours: Any) -> bool:
    """The text of RocketMQ's that says nothing, nothing here."""
    return captured == "not set any response code" and ours is None


def empty(captured: Any, ours: Any) -> bool:
    """An empty text there, none here."""
    return captured == "" and ours is None


def words(captured: Any, ours: Any) -> bool:
    """Both are sentences: names like FOUND have no blanks."""
    return text(captured, ours) and " " in captured and " " in ours


def not_ours(captured: Any, ours: Any) -> bool:
    """We leave it out."""
    return ours is ABSENT or ours is None


def ours_alone(captured: Any, ours: Any) -> bool:
    """Only we have it."""
    return captured is ABSENT


def anything(captured: Any, ours: Any) -> bool:
    return True


VARYING = (time, number, port, message_id, text, figure)


class Row(NamedTuple):
    """`kind` holds for the two values wherever the patterns match."""

    scenario: str
    request: str
    path: str
    kind: Callable[[Any, Any], bool]
    reason: str

    def covers(self, seen: Seen) -> bool:
        return (
            fnmatchcase(seen.path, self.path)
            and fnmatchcase(seen.request, self.request)
            and fnmatchcase(seen.scenario, self.scenario)
        )

    def allows(self, seen: Seen) -> bool:
        return self.kind(seen.captured, seen.ours)

    @property
    def varies(self) -> bool:
        """True where equal values are chance."""
        return self.kind in VARYING


LEFT_OUT: dict[str, str] = {
    "query_assignment": "POP",
    "pop_message": "POP",
    "ack_message": "POP",
    "change_invisible_time": "POP",
    "batch_ack_message": "POP",
    "pop_no_message_polling": "POP",
    "v497_bin_send_batch": "the captured broker was too busy to take it",
    "auth2_admin_users_and_acls": "access control",
    "auth2_ok": "access control",
    "auth2_bad_signature": "access control",
    "auth2_unknown_user": "access control",
    "auth2_no_credentials": "access control",
    "auth2_denied": "access control",
    "ha_slave_start": "replication",
    "ha_send_while_slave_connected": "replication",
    "ha_status_and_route_with_slave": "replication",
    "ha_slave_stop": "replication",
}

ROWS: list[Row] = [
    # -- times, ports and places in the log, which are of the run ----------------------------------------------------
    Row("*", "*", "record.store_time_ms", time, "when it was stored"),
    Row("*", "*", "record.born_host", port, "the client's port"),
    Row("*", "*", "record.position", number, "other records lie between: what was not captured, and POP's"),
    Row("*", "*", "record.prepared_position", number, "a place in the log, as above"),
    Row("*", "SEND*", "ext.msgId", message_id, "holds a place in the log"),
    Row("*", "SEND*", "ext.recallHandle", text, "holds the time of delivery"),
    Row("*", "*", "record.properties.ORIGIN_MESSAGE_ID", message_id, "holds a place in the log"),
    Row("*", "*", "record.properties.TIMER_*_MS", time, "when it was to come, and came"),
    Row("*", "CHECK_TRANSACTION_STATE", "ext.commitLogOffset", number, "a place in the log"),
    Row("*", "CHECK_TRANSACTION_STATE", "ext.offsetMsgId", message_id, "holds a place in the log"),
    Row("*", "QUERY_MESSAGE", "ext.indexLastUpdatePhyoffset", number, "a place in the log"),
    Row("*", "QUERY_MESSAGE", "ext.indexLastUpdateTimestamp", time, "when the last message came"),
    Row("*", "GET_EARLIEST_MSG_STORETIME", "ext.timestamp", time, "when it was stored"),
    Row("*", "PUSH_REPLY_MESSAGE_TO_CLIENT", "ext.storeTimestamp", time, "when it was stored"),
    Row("*", "PUSH_REPLY_MESSAGE_TO_CLIENT", "ext.properties.PUSH_REPLY_TIME", time, "when it was pushed"),
    Row("*", "PUSH_REPLY_MESSAGE_TO_CLIENT", "ext.bornHost", port, "the client's port"),
    Row("*", "GET_*_CONNECTION_LIST", "body.connectionSet.#.clientAddr", port, "the client's port"),
    Row("*", "GET_ALL_PRODUCER_INFO", "body.data.*.#.remoteIP", port, "the client's port"),
    Row("*", "GET_ALL_PRODUCER_INFO", "body.data.*.#.lastUpdateTimestamp", time, "when it sent a heartbeat"),
    Row("*", "GET_*", "body.dataVersion.timestamp", time, "when topics or groups last changed"),
    Row("*", "GET_TOPIC_STATS_INFO", "body.*.lastUpdateTimestamp", time, "when the last message came"),
    Row("*", "GET_*CONSUME_STATS", "body.*.lastTimestamp", time, "when the last message came"),
    Row("*", "QUERY_CONSUME_TIME_SPAN", "body.*.*TimeStamp", time, "when messages came"),
    Row("*", "QUERY_CONSUME_TIME_SPAN", "body.*.*TimeStampStr", text, "the same in words"),
    Row("*", "QUERY_CONSUME_QUEUE", "body.queueData.#.physicOffset", number, "a place in the log"),
    Row("*", "GET_BROKER_HA_STATUS", "body.masterCommitLogMaxOffset", number, "a place in the log"),
    Row("raw_errors", "SEND*", "ext.transactionId", text, "made by the broker, of its own address"),
    Row("raw_errors", "PULL_MESSAGE", "record.properties.UNIQ_KEY", text, "the same"),
    Row("raw_errors", "PULL_MESSAGE", "record.size", number, "with the same"),
    # -- what was measured -------------------------------------------------------------------------------------------
    Row("*", "GET_*CONSUME_STATS", "body.*consumeTps", number, "a rate"),
    Row("*", "GET_TOPIC_STATS_INFO", "body.topicPutTps", number, "a rate"),
    Row("*", "VIEW_BROKER_STATS_DATA", "body.statsMinute.*", number, "what the last minute held"),
    *(
        Row("admin_broker_runtime_info", "*", f"body.table.{name}", figure, "measured, or the machine's")
        for name in (
            *(
                "timer*",
                "*HeadWaitTimeMills",
                "*QueueSize",
                "dispatchBehindBytes",
                "pageCacheLockTimeMills",
                "*Tps",
                "*Ratio",
                "putLatency*",
                "*EntireTimeMax",
                "putMessage*",
                "msg*TotalTodayNow",
                "commitLogMaxOffset",
            ),
            *(
                "commitLogDirCapacity",
                "remainHowManyDataToFlush",
                "runtime",
                "bootTimestamp",
                "earliestMessageTimeStamp",
            ),
        )
    ),
    Row(
        "*", "GET_BROKER_RUNTIME_INFO", "body.table.commitLogDiskRatio_*", anything, "the name holds the store's folder"
    ),
    # -- what a broker tells its NameServer --------------------------------------------------------------------------
    Row("*", ">REGISTER_BROKER", "ext.bodyCrc32", number, "of the body"),
    Row("*", ">REGISTER_BROKER", "ext.haServerAddr", port, "the port of replication"),
    Row("*", ">REGISTER_BROKER", "body.*.dataVersion.timestamp", time, "when topics last changed"),
    Row("*", ">REGISTER_BROKER", "body.*.mappingDataVersion.timestamp", number, "static topics"),
    # -- in words ----------------------------------------------------------------------------------------------------
    Row("*", "*", "remark", unset, "what Java's server sends where nobody set a remark"),
    Row("*", "GET_MIN_OFFSET", "remark", empty, "nothing is said either way"),
    Row("*", "*", "remark", words, "the same in our words, without a link to RocketMQ's site"),
    # -- how the servers were started --------------------------------------------------------------------------------
    *(
        Row("*", "GET_BROKER_CONFIG", f"body.{name}", anything, "the test's broker is small, and keeps its files apart")
        for name in (
            *(
                "brokerFastFailureEnable",
                "consumerOffsetUpdateVersionStep",
                "mappedFileSize*",
                "max*Num",
                "namesrvAddr",
            ),
            *("*istenPort", "rocketmqHome", "storePath*", "transaction*", "messageDelayLevel"),
        )
    ),
    Row(
        "*", "GET_BROKER_CONFIG", "ext.version", anything, "the test changes settings, the captured broker has had none"
    ),
    Row(
        "*",
        "GET_BROKER_CONFIG",
        "body.bitMapLengthConsumeQueueExt",
        number,
        "RocketMQ computes it for files that we do not use",
    ),
    Row("*", "GET_MAX_OFFSET", "ext.logEnd", ours_alone, "what a stream knows a message of a topic made anew by"),
    Row(
        "*", "GET_MAX_OFFSET", "ext.storeNumber", ours_alone, "what a stream knows an empty store under an old name by"
    ),
    *(
        Row("*", "GET_BROKER_CONFIG", f"body.{name}", ours_alone, "a setting of ours")
        for name in sorted(OURS_ALONE - {"brokerIP1", "brokerIP2", "brokerName", "storePathRootDir"})
    ),
    *(
        Row("*", "GET_NAMESRV_CONFIG", f"body.{name}", anything, "how the servers were started")
        for name in ("bindAddress", "configStorePath", "kvConfigPath", "listenPort", "rocketmqHome")
    ),
    # -- what we do not have -----------------------------------------------------------------------------------------
    *(
        Row("*", request, f"body.topic{table}.{topic}", not_ours, reason)
        for request, table in (
            ("GET_ALL_TOPIC_LIST_FROM_NAMESERVER", "List"),
            ("GET_TOPICS_BY_CLUSTER", "List"),
            ("GET_ALL_TOPIC_CONFIG", "ConfigTable"),
            (">REGISTER_BROKER", "ConfigSerializeWrapper.topicConfigTable"),
        )
        for topic, reason in (
            ("RMQ_SYS_ROCKSDB_TRANS_*", "transactions in RocksDB"),
            ("rmq_sys_SYNC_BROKER_MEMBER_*", "replication"),
        )
    ),
    Row("*", "GET_ALL_TOPIC_CONFIG", "body.topicConfigTable.%RETRY%GG_pop_GoldPop", not_ours, "POP"),
    Row("*", "GET_ALL_TOPIC_CONFIG", "ext.totalTopicNum", number, "without the topics above"),
    Row("*", "GET_ALL_TOPIC_CONFIG", "body.dataVersion.counter", number, "without the topics above"),
    Row("*", "GET_ALL_TOPIC_CONFIG", "body.mappingDataVersion.timestamp", number, "static topics"),
    Row("*", "*_WRITE_PERM_OF_BROKER", "ext.*TopicCount", number, "without the topics above"),
    *(
        Row("pull_system_topics", "PULL_MESSAGE", path, anything, "the last of the five topics is POP's")
        for path in (
            "code",
            "remark",
            "body",
            "ext.*Offset",
        )
    ),
    Row("pull_system_topics", "PULL_MESSAGE", "records", number, "marks of several ends may stand in one record"),
    Row("pull_system_topics", "PULL_MESSAGE", "record.body", anything, "as above"),
    Row("pull_system_topics", "PULL_MESSAGE", "record.crc", anything, "as above"),
    Row("pull_system_topics", "PULL_MESSAGE", "record.size", anything, "as above"),
    Row("pull_system_topics", "PULL_MESSAGE", "record.born_time_ms", time, "when the marks were written"),
    # -- what another moment shows -----------------------------------------------------------------------------------
    Row(
        "admin_producer_connection", "*", "body.data.CLIENT_INNER_PRODUCER.#*", anything, "one whose end was overtaken"
    ),
    Row(
        "broker_unregister",
        "",
        "unasked.connection 17: NOTIFY_CONSUMER_IDS_CHANGED",
        anything,
        "the capture ended before",
    ),
    Row(
        "broker_unregister",
        "",
        "unasked.connection 53: NOTIFY_CONSUMER_IDS_CHANGED",
        anything,
        "the capture ended before",
    ),
    # -- where ours is better ----------------------------------------------------------------------------------------
    Row("*", "GET_BROKER_CONSUME_STATS", "body.*pullOffset", number, "RocketMQ has always 0 here"),
    Row("*", "GET_BROKER_CONSUME_STATS", "body.totalInflightDiff", number, "hence below 0 there"),
    Row("*", "GET_BROKER_CONSUME_STATS", "body.totalDiff", number, "without POP's"),
    Row("*", "GET_BROKER_CONSUME_STATS", "body.consumeStatsList.#.GG_pop.#", anything, "POP"),
    Row("*", "GET_BROKER_CONSUME_STATS", "body.*.CID_RMQ_SYS_TRANS.*", number, "checked at other times"),
    Row("*", "QUERY_CONSUME_TIME_SPAN", "body.*.delayTime", anything, "of an empty queue: RocketMQ's is since 1970"),
]

# Answers that RocketMQ's threads gave in another order than that of the requests.
OVERTAKEN: dict[str, str] = {
    "push_consumer_broadcast[26]": "the client had left when its pull was looked at",
    "push_consumer_broadcast[27]": "the client had left when its pull was looked at",
    "v497_bin_push_consumer[34]": "the heartbeat before it was still waiting",
    "v497_bin_push_consumer[35]": "the heartbeat before it was still waiting",
    "v497_bin_push_consumer[36]": "the heartbeat before it was still waiting",
    "v497_orderly_consumer[8]": "the retry topic had not been registered yet",
}


def judge(seen: list[Seen], rows: list[Row], overtaken: dict[str, str]) -> list[str]:
    """Every difference without a row, and every row without a difference."""
    late = {one.where for one in seen if one.where in overtaken and one.captured != one.ours}
    wrong = [f"not overtaken: {where}" for where in overtaken if where not in late]
    needed: set[Row] = set()
    for one in seen:
        if one.where in late:
            continue
        equal = one.captured == one.ours
        row = next((r for r in rows if r.covers(one) and (equal or r.allows(one))), None)
        if row is not None and (row.varies or not equal):
            needed.add(row)
        if row is None and not equal:
            values = f"{one.captured!r:.200} captured, {one.ours!r:.200} ours"
            wrong.append(f"{one.where} {one.request} {one.path}: {values}")
    return wrong + [f"not needed: {row}" for row in rows if row not in needed]
