"""Times and durations that a person wrote; topics whose names match, and queues by hand."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.errors import ConfigError
from rocketspark.model import MessageQueue
from rocketspark.tables.client_access import Access
from rocketspark.tables.option_values import (
    assigned_of,
    check_all_there,
    duration_ms,
    matching,
    parse_assigned,
    time_ms,
)

pytestmark = pytest.mark.shows("mended: `--since 20261121`")


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("1763690000000", 1763690000000),
        ("1763690000", 1763690000),
        ("20269999", 20269999),
        ("020261121", 20261121),
        ("2026-11-21", 1795219200000),
        ("20261121T00", 1795219200000),
        ("1969-01-01", 0),
    ],
)
def test_times(text: str, ms: int) -> None:
    assert time_ms("--since", text) == ms


@pytest.mark.parametrize("text", ["20261121", "2026112106", "202611210630", "20261121063015"])
def test_digits_that_may_be_a_date_are_refused_with_both_readings(text: str) -> None:
    with pytest.raises(ConfigError, match=f"write 2026-11-21 for the date, 0{text} for the ms"):
        time_ms("--since", text)


@pytest.mark.parametrize("text", ["9" * 5000, "\u00b2", "1_000", "-1", "nan", "2026-02-30", "\x1b[0m", "\uff12"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ConfigError, match="option x is") as raised:
        time_ms("option x", text)
    assert len(str(raised.value)) < 400
    assert str(raised.value).isprintable()


def test_durations() -> None:
    texts = ("500", "30s", "15m", "1 hour", "2d")
    assert [duration_ms("option x", text) for text in texts] == [500, 30_000, 900_000, 3_600_000, 172_800_000]
    for text in ("9" * 5000, "\u00b2s", "1 week", "s", ""):
        with pytest.raises(ConfigError, match="option x is"):
            duration_ms("option x", text)


SERVERS = ["broker-a", "DefaultCluster"]
SYSTEM = [
    *("%RETRY%orders", "%DLQ%orders", "rmq_sys_wheel_timer", "RMQ_SYS_TRACE_TOPIC", "SCHEDULE_TOPIC_XXXX", "TBW102"),
    *("broker-a", "DefaultCluster", "DefaultCluster_REPLY_TOPIC", "BenchmarkTest", "SELF_TEST_TOPIC"),
]
TOPICS = ["orders", "orders-2", "my-orders", *SYSTEM]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (".*", ["my-orders", "orders", "orders-2"]),
        ("orders", ["orders"]),
        ("order", []),
        ("orders.*", ["orders", "orders-2"]),
        ("^orders-[0-9]$", ["orders-2"]),
        ("orders|my-.*", ["my-orders", "orders"]),
        ("%RETRY%.*", ["%RETRY%orders"]),
        ("orders|%DLQ%orders", ["%DLQ%orders", "orders"]),
        ("RMQ_SYS_.*", ["RMQ_SYS_TRACE_TOPIC"]),
        ("SCHEDULE_TOPIC_XXXX", ["SCHEDULE_TOPIC_XXXX"]),
        ("SCHEDULE_.*", []),
        ("broker-.", []),
        ("broker-a", ["broker-a"]),
    ],
)
def test_whole_names_match_and_rocketmq_s_own_only_if_named(pattern: str, found: list[str]) -> None:
    assert matching(pattern, TOPICS, SERVERS) == found


@given(st.from_regex(r"[%a-zA-Z0-9_-]{1,20}", fullmatch=True))
def test_every_name_is_a_pattern_for_its_topic(topic: str) -> None:
    assert matching(topic, [topic, "!"], ["a", topic]) == [topic]


def test_queues_by_hand() -> None:
    text = '{"t": {"a": [0, 2, 0]}, "u": [1], "v": {"a": [0], "b": [3]}}'
    assigned = parse_assigned(text)
    assert assigned == {"t": {"a": (0, 2)}, "u": {"": (1,)}, "v": {"a": (0,), "b": (3,)}}
    queues = [MessageQueue(topic, broker, i) for topic in "tuv" for broker in "ab" for i in range(4)]
    found = [(q.topic, q.broker_name, q.queue_id) for q in assigned_of(queues, assigned)]
    assert found == [("t", "a", 0), ("t", "a", 2), ("u", "a", 1), ("u", "b", 1), ("v", "a", 0), ("v", "b", 3)]
    check_all_there(queues, assigned)
    with pytest.raises(ConfigError, match="queue 2 on broker 'a' of topic 't', which is not there") as caught:
        check_all_there([MessageQueue("t", "a", 0), MessageQueue("t", "b", 2)], assigned)
    assert str(caught.value).endswith("there are: a/0, b/2")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([], "no JSON object"),
        ({}, "no JSON object with a topic"),
        ({"t": 1}, "under 't' a list of queue ids"),
        ({"t": []}, "under 't' a list of queue ids"),
        ({"t": {}}, "under 't' there is no broker"),
        ({"t": {"a": 0}}, "under 't', 'a' a list"),
        ({"t": {"a": ["0"]}}, "under 't', 'a' a list"),
        ({"t": [True]}, "under 't' a list"),
        ({"t": [-1]}, "under 't' a list"),
    ],
)
def test_wrong_queues_by_hand_are_told(value: object, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_assigned(json.dumps(value))


@given(st.recursive(st.none() | st.integers() | st.text(), lambda c: st.lists(c) | st.dictionaries(st.text(), c)))
def test_any_json_is_queues_or_a_config_error(value: object) -> None:
    try:
        assigned = parse_assigned(json.dumps(value))
    except ConfigError:
        return
    assert assigned
    assert all(ids for brokers in assigned.values() for ids in brokers.values())


def test_names_in_a_namespace() -> None:
    space = Access(namespace="team")
    assert [space.wire(n) for n in ("t", "%RETRY%g", "rmq_sys_x")] == ["team%t", "%RETRY%team%g", "rmq_sys_x"]
    assert [space.own(n) for n in ("team%t", "%RETRY%team%g", "t", "other%t", "rmq_sys_x")] == [
        *("t", "%RETRY%g"),
        *(None, None, None),
    ]
    assert [Access().own(n) for n in ("t", "team%t")] == ["t", "team%t"]


def test_what_is_secret_is_not_shown() -> None:
    access = Access("team", "the-key", "the-secret", "the-token")
    for text in (repr(access), str(access), f"{access}", repr((access,))):
        assert "the-" not in text
        assert "signed" in text


@pytest.mark.shows("mended: topicPattern '.*' takes SPARK_TX_*")
def test_commit_topics_of_writes_match_only_a_pattern_that_names_them() -> None:
    topics = ["orders", "SPARK_TX_orders-query"]
    assert matching(".*", topics, ()) == ["orders"]
    assert matching("SPARK_TX_.*", topics, ()) == ["SPARK_TX_orders-query"]
