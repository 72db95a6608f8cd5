"""What requests about pops need: the topic and the group, also for messages that came again."""

from __future__ import annotations

import pytest

from rocketspark.access.policies import GROUP, SUB, TOPIC
from rocketspark.access.request_contexts import Context, contexts_of, topic_context
from rocketspark.protocol.codes import RequestCode

BOTH = {Context(GROUP, "G", (SUB,)), Context(TOPIC, "T", (SUB,))}
LONG = b'{"acks":[{"consumerGroup":"G","topic":"T","retry":"1","bitSet":"AQ=="}]}'
SHORT = b'{"acks":[{"c":"G","t":"T","r":"2","b":"AQ=="}]}'


@pytest.mark.parametrize("topic", ["T", "%RETRY%G_T", "%RETRY%G+T"])
@pytest.mark.parametrize("code", [RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME])
def test_an_acknowledgement_needs_the_topic_it_was_sent_to(code: int, topic: str) -> None:
    assert set(contexts_of(code, {"consumerGroup": "G", "topic": topic}, b"")) == BOTH


def test_another_group_s_retry_topic_is_no_detour() -> None:
    for code in (RequestCode.POP_MESSAGE, RequestCode.PEEK_MESSAGE, RequestCode.NOTIFICATION):
        found = contexts_of(code, {"consumerGroup": "G", "topic": "%RETRY%G_X_T"}, b"")
        assert set(found) == {Context(GROUP, "G", (SUB,)), Context(GROUP, "G_X_T", (SUB,))}


def test_as_rocketmq_checks_it_the_retry_topic_is_a_group() -> None:
    found = contexts_of(RequestCode.ACK_MESSAGE, {"consumerGroup": "G", "topic": "%RETRY%G_T"}, b"", complete=False)
    assert set(found) == {Context(GROUP, "G", (SUB,)), Context(GROUP, "G_T", (SUB,))}


@pytest.mark.parametrize("body", [SHORT, LONG])
def test_a_batch_needs_what_each_acknowledgement_does(body: bytes) -> None:
    assert set(contexts_of(RequestCode.BATCH_ACK_MESSAGE, {}, body)) == BOTH


def test_a_pops_retry_topic_is_the_groups_whatever_topic_stands_behind_it() -> None:
    for name in ("%RETRY%G", "%RETRY%G+T", "%RETRY%G+T+U"):
        assert topic_context(name, "Sub") == Context("Group", "G", ("Sub",))
        found = contexts_of(RequestCode.PULL_MESSAGE, {"consumerGroup": "mine", "topic": name}, b"")
        assert ("Group", "G", ("Sub",)) in found
