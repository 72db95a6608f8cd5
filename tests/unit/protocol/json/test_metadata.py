"""Tables of other brokers: any bytes are a table that a broker may have, or an error of the protocol."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rocketspark.errors import ProtocolError
from rocketspark.protocol.json import metadata
from rocketspark.protocol.json.bodies import DataVersion, GroupConfig, TopicConfig
from rocketspark.protocol.json.metadata import (
    BrokerState,
    GroupPage,
    PeerDelayOffsets,
    PeerOffsets,
    PeerTimerCounts,
    RequestModeTable,
    TopicPage,
)
from rocketspark.store.timers.timer_files import TimerCheckpoint, decode_checkpoint

KINDS = [TopicPage, GroupPage, PeerOffsets, PeerDelayOffsets, PeerTimerCounts, RequestModeTable, BrokerState]
LONG = st.integers(-(1 << 70), 1 << 70)
JSON = st.recursive(
    st.none() | st.booleans() | LONG | st.text(max_size=5) | st.sampled_from(["0", "-1", "X", "X@G"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("topicConfigTable", "dataVersion", "counter", "timestamp", "stateVersion", "topicName", "X"),
                    *("readQueueNums", "offsetTable", "X@G", "0", "1", "subscriptionGroupTable", "groupName"),
                    *("forbiddenTable", "timingCount", "messageRequestModeMap", "layout", "quarantine", "resets"),
                    *("deletedTopics", "topic", "group", "queueId", "offset", "name", "mode"),
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def numbers(value: Any) -> Any:
    """All numbers of a document."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key.lstrip("-").isdigit():
                yield int(key)
            yield from numbers(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from numbers(inner)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield value


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_a_table_or_an_error(kind: type[Any], data: bytes) -> None:
    try:
        found = metadata.decode(data, kind)
    except ProtocolError:
        return
    assert isinstance(found, kind)
    # What was let in fits Java's longs, so that it can be told on.
    if kind is not TopicPage:
        assert all(-(1 << 63) <= number < 1 << 63 for number in numbers(json.loads(msgspec.json.encode(found))))


# BIG stands for 2**63, LONG for 5,000 characters.
BEYOND = [
    (TopicPage, '{"topicConfigTable":{"X":{"topicName":"X","topicSysFlag":BIG}}}'),
    (GroupPage, '{"subscriptionGroupTable":{"G":{"groupName":"G","retryMaxTimes":BIG}}}'),
    (GroupPage, '{"subscriptionGroupTable":{"G":{"groupName":"G","consumeTimeoutMinute":BIG}}}'),
    (GroupPage, '{"subscriptionGroupTable":{"G":{"groupName":"G","groupRetryPolicy":{"x":"LONG"}}}}'),
    (PeerTimerCounts, '{"dataVersion":{},"timingCount":{"X":{"count":BIG}}}'),
    (RequestModeTable, '{"messageRequestModeMap":{"X":{"G":{"popShareQueueNum":BIG}}}}'),
    (PeerOffsets, '{"offsetTable":{},"dataVersion":{"timestamp":BIG}}'),
    (PeerOffsets, '{"offsetTable":{},"readersAnew":{"T@G":{"BIG":0}}}'),
]


@pytest.mark.parametrize(("kind", "text"), BEYOND)
def test_what_could_not_be_saved_or_told_on_is_refused(kind: type[Any], text: str) -> None:
    with pytest.raises(ProtocolError):
        metadata.decode(text.replace("BIG", str(1 << 63)).replace("LONG", "y" * 5000).encode(), kind)
    # It is the number or the length alone.
    assert metadata.decode(text.replace("BIG", "7").encode(), kind)


VERSIONS = st.builds(
    DataVersion, state_version=st.integers(0, 3), timestamp=st.integers(0, 3), counter=st.integers(0, 3)
)


@given(VERSIONS, VERSIONS)
def test_versions_are_ordered_as_in_rocketmq(one: DataVersion, other: DataVersion) -> None:
    def compare(a: DataVersion, b: DataVersion) -> int:
        """DataVersion.compare of 5.5.0, step by step."""
        for mine, its in ((a.state_version, b.state_version), (a.counter, b.counter), (a.timestamp, b.timestamp)):
            if mine != its:
                return 1 if mine > its else -1
        return 0

    assert metadata.is_older(one, other) == (compare(one, other) < 0)
    at = [TimerCheckpoint(0, 0, 0, 0, v.state_version, v.timestamp, v.counter) for v in (one, other)]
    assert at[0].is_older(at[1]) == (compare(one, other) < 0)
    assert metadata.decode_version(metadata.encode_version(one)) == one


@given(st.text(max_size=20))
def test_any_text_is_a_version_or_none(text: str) -> None:
    found = metadata.decode_version(text)
    assert found is None or isinstance(found, DataVersion)


def test_the_version_in_a_request_is_java_s_text() -> None:
    version = DataVersion(state_version=2, timestamp=1_795_384_562_989, counter=7)
    assert metadata.encode_version(version) == '{"counter":7,"stateVersion":2,"timestamp":1795384562989}'
    assert metadata.encode_version(None) == ""


@given(st.binary(max_size=80))
@example(b"\xff" * 56)
def test_any_bytes_are_a_checkpoint_or_an_error(data: bytes) -> None:
    try:
        found = decode_checkpoint(data)
    except ProtocolError:
        assert len(data) not in (32, 56) or min(TimerCheckpoint(*_longs(data))) < -1
        return
    assert found.encode()[: len(data)] == data
    assert found.encode()[len(data) :] == bytes(56 - len(data))


def _longs(data: bytes) -> list[int]:
    return [int.from_bytes(data.ljust(56, b"\0")[n : n + 8], "big", signed=True) for n in range(0, 56, 8)]


def test_a_topic_s_or_group_s_settings_come_back() -> None:
    topics = TopicPage(topic_config_table={"X": TopicConfig(topic_name="X")}, data_version=DataVersion(counter=1))
    assert metadata.decode(msgspec.json.encode(topics), TopicPage) == topics
    groups = GroupPage(subscription_group_table={"G": GroupConfig(group_name="G")}, forbidden_table={"G": {"X": 4}})
    assert metadata.decode(msgspec.json.encode(groups), GroupPage) == groups
