"""The tables of codes, flags and levels are those of RocketMQ 5.5.0."""

from __future__ import annotations

from tests.unit.protocol.golden import table

from rocketspark.broker import topic_names
from rocketspark.broker.settings import BrokerSettings
from rocketspark.model import route
from rocketspark.protocol import codes, frames
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.message import sysflags
from rocketspark.store.settings import DELAY_LEVELS_MS


def test_request_codes() -> None:
    rows = table("request_codes")
    assert len(rows) == 169
    # Beyond a million: our own.
    theirs = {int(code): code.name for code in RequestCode if code < 1_000_000}
    # 5.5.0 has access control 1.0 no more.
    older = {code: theirs.pop(code) for code in (50, 51, 52, 53, 54)}
    assert all("ACL" in name or "WHITE_ADDRS" in name for name in older.values())
    assert {int(row["code"]): row["name"] for row in rows} == theirs
    assert {code.name for code in RequestCode if code.name not in (theirs | older).values()} == {
        "LIST_QUARANTINE",
        "RETRY_QUARANTINED",
        "DROP_QUARANTINED",
        "GET_BROKER_STATE",
        "SEND_HALF_BATCH",
        "END_HALF_RANGES",
        "GET_GROUP_STATES",
        "FORGET_TOPIC_OF_BROKER",
        "CONTROLLER_GROUP_MESSAGE",
        "CONTROLLER_GROUP_HELLO",
        "CONTROLLER_GROUP_CHANGE",
    }


def test_response_codes() -> None:
    # Negative ones never travel: a Java client's inner helper uses them.
    rows = [row for row in table("response_codes") if int(row["code"]) >= 0]
    assert len(rows) == 64
    assert {int(row["code"]): row["name"] for row in rows} == {int(code): code.name for code in ResponseCode}


def test_every_response_code_has_a_verdict() -> None:
    assert codes.RESPONSES.keys() == {int(code) for code in ResponseCode}
    # Rule: DefaultMQProducer 5.x, its set of codes to retry at.
    assert {code for code, row in codes.RESPONSES.items() if row.retriable} == {1, 2, 14, 16, 17, 204, 205, 1500}
    assert {code for code, row in codes.RESPONSES.items() if row.refresh_route} == {16, 17, 501, 1500}
    assert codes.verdict(4711) == codes.UNKNOWN
    assert not codes.verdict(4711).retriable
    assert {0, 10, 11, 12} == codes.SEND_STORED


def test_languages() -> None:
    assert list(frames.LANGUAGES) == [row["name"] for row in table("languages")]
    assert [int(row["code"]) for row in table("languages")] == list(range(14))


def test_flags() -> None:
    ours = {
        ("message", "COMPRESSED"): sysflags.COMPRESSED,
        ("message", "MULTI_TAGS"): sysflags.MULTI_TAGS,
        ("message", "TRANSACTION_PREPARED"): sysflags.TRANSACTION_PREPARED,
        ("message", "TRANSACTION_COMMIT"): sysflags.TRANSACTION_COMMIT,
        ("message", "TRANSACTION_ROLLBACK"): sysflags.TRANSACTION_ROLLBACK,
        ("message", "BORNHOST_V6"): sysflags.BORN_HOST_V6,
        ("message", "STOREHOST_V6"): sysflags.STORE_HOST_V6,
        ("message", "NEED_UNWRAP"): sysflags.NEED_UNWRAP,
        ("message", "INNER_BATCH"): sysflags.INNER_BATCH,
        ("message", "COMPRESSION_TYPE"): sysflags.COMPRESSION_MASK,
        ("pull", "COMMIT_OFFSET"): sysflags.PULL_COMMIT_OFFSET,
        ("pull", "SUSPEND"): sysflags.PULL_SUSPEND,
        ("pull", "SUBSCRIPTION"): sysflags.PULL_SUBSCRIPTION,
        ("rpc", "RESPONSE"): frames.RESPONSE_FLAG,
        ("rpc", "ONEWAY"): frames.ONEWAY_FLAG,
    }
    wanted = {(row["kind"], row["name"]): int(row["bits"], 16) for row in table("sysflags")}
    assert {key: wanted[key] for key in ours} == ours
    # Not in use: TRANSACTION_NOT is no bit, units of topics and groups are a legacy deployment, as class filters are.
    assert {name for key in wanted.keys() - ours.keys() for name in key} == {
        *("message", "TRANSACTION_NOT", "topic", "group", "UNIT", "UNIT_SUB", "pull", "CLASS_FILTER", "LITE_PULL"),
    }


def test_permissions() -> None:
    bits = {row["name"]: int(row["bit"]) for row in table("permissions")}
    assert (bits["READ"], bits["WRITE"], bits["INHERIT"]) == (route.PERM_READ, route.PERM_WRITE, route.PERM_INHERIT)


def test_delay_levels() -> None:
    rows = table("delay_levels")
    assert [int(row["ms"]) for row in rows] == list(DELAY_LEVELS_MS) == list(BrokerSettings().delays_ms())
    assert BrokerSettings().delay_levels == " ".join(row["text"] for row in rows)


def test_system_topics_that_no_client_may_send_to() -> None:
    rows = {row["topic"]: row["sendable_by_clients"] for row in table("system_topics")}
    # The RocksDB stores of transactions do not exist here, nor their topics.
    absent = {"RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"}
    assert {topic for topic, sendable in rows.items() if sendable == "no"} - absent == topic_names.NOT_SENDABLE
