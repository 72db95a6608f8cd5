"""Lite topics on the wire: names of their queues, and the JSON bodies as RocketMQ 5.5.0 writes them."""

from __future__ import annotations

import pytest

from rocketspark.errors import ProtocolError
from rocketspark.protocol import lite_topics
from rocketspark.protocol.json import java_json, lite_bodies
from rocketspark.protocol.json.lite_bodies import (
    LiteAction,
    LiteSubscription,
    LiteSubscriptions,
    LiteTopicInfo,
    OffsetOption,
    OffsetOptionType,
)
from rocketspark.protocol.lite_topics import LiteTopic
from rocketspark.protocol.pop_answers import lite_order_counts

pytestmark = pytest.mark.shows("lite topics' names and bodies are RocketMQ's")

NAMES = [
    ("%LMQ%$orders$a", LiteTopic("orders", "a")),
    ("%LMQ%$orders$", None),
    ("%LMQ%$$a", None),
    ("%LMQ%$orders", None),
    ("%LMQ%$orders$a$b", None),
    ("%LMQ%orders$a", None),
    ("orders", None),
]


@pytest.mark.parametrize(("queue", "expected"), NAMES)
def test_a_queue_names_a_lite_topic_of_two_parts(queue: str, expected: LiteTopic | None) -> None:
    assert lite_topics.of_queue(queue) == expected
    assert expected is None or lite_topics.queue_name(*expected) == queue


def test_what_is_unknown_is_left_out_of_bodies() -> None:
    option = OffsetOption(type=OffsetOptionType.POLICY, value=1)
    change = LiteSubscription(
        action=LiteAction.PARTIAL_ADD,
        client_id="c",
        group="g",
        topic="t",
        lite_topic_set=["a"],
        offset_option=option,
    )
    body = LiteSubscriptions(subscription_set=[change, LiteSubscription(action=LiteAction.COMPLETE_REMOVE)])
    text = lite_bodies.encode(body)
    assert text == (
        b'{"subscriptionSet":[{"action":"PARTIAL_ADD","clientId":"c","group":"g","liteTopicSet":["a"],'
        b'"offsetOption":{"type":"POLICY","value":1},"topic":"t","version":0},'
        b'{"action":"COMPLETE_REMOVE","version":0}]}'
    )
    assert java_json.decode(text, LiteSubscriptions) == body
    info = LiteTopicInfo(parent_topic="t", subscriber=[])
    assert lite_bodies.encode(info) == b'{"parentTopic":"t","shardingToBroker":false,"subscriber":[]}'


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("0;2;1", [0, 2, 1]),
        ("0 qo0%5 1;0 qo0%6 0;0", [1, 0, 0]),
        ("1;2", [0] * 3),
        (None, [0] * 3),
        ("a;-1; ", [0] * 3),
    ],
)
def test_attempts_are_told_by_message_in_two_forms(text: str | None, counts: list[int]) -> None:
    assert lite_order_counts(text, 3) == counts


@pytest.mark.parametrize("text", [b'{"subscriptionSet":[{"action":"ADD"}]}', b'{"subscriptionSet":3}', b"[]", b"{"])
def test_a_body_that_is_none_is_an_error_of_the_protocol(text: bytes) -> None:
    with pytest.raises(ProtocolError):
        java_json.decode(text, LiteSubscriptions)
