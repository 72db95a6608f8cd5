"""Values: subscriptions, queues, routes, Java's string hash."""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.protocol.golden import hashes

from rocketspark.errors import FilterIllegal
from rocketspark.model import BrokerData, MessageQueue, QueueData, ReceivedMessage, TopicRoute, subscribe
from rocketspark.model import text as texts
from rocketspark.model.text import string_hash


@pytest.mark.parametrize("row", hashes()["string_hash"], ids=lambda row: ascii(row["s"])[:20])
def test_java_s_string_hash(row: dict[str, object]) -> None:
    assert string_hash(str(row["s"])) == row["hash"]


@pytest.mark.parametrize("row", hashes()["index_key_hash"], ids=lambda row: ascii(row["index_key"])[:30])
def test_the_hash_of_index_keys(row: dict[str, object]) -> None:
    found = string_hash(str(row["index_key"]))
    assert found == row["hash"]
    assert (0 if found == -(2**31) else abs(found)) == row["index_hash"]


@given(st.text(max_size=40))
def test_the_hash_is_the_sum_of_powers_of_31_over_utf_16_units(text: str) -> None:
    data = text.encode("utf-16-be", "surrogatepass")
    units = [int.from_bytes(data[i : i + 2], "big") for i in range(0, len(data), 2)]
    total = sum(unit * 31**power for power, unit in enumerate(reversed(units)))
    assert string_hash(text) == (total + 2**31) % 2**32 - 2**31


@pytest.mark.parametrize("expression", [None, "", " ", "*", " * ", "||", " || "])
def test_everything(expression: str | None) -> None:
    found = subscribe("T", expression, version=4)
    assert found.is_all
    assert (found.topic, found.expression, found.tags, found.codes, found.version) == (
        *("T", "*", frozenset(), frozenset()),
        4,
    )


def test_tags() -> None:
    found = subscribe("T", " TagA||TagB  || ")
    assert not found.is_all
    assert found.expression == "TagA||TagB  ||"
    assert found.tags == {"TagA", "TagB"}
    assert found.codes == {2598919, 2598920}
    # A star among tags is a tag like any other, as RocketMQ's own parser has it.
    assert not subscribe("T", "TagA || *").is_all


def test_sql_is_kept_as_it_is() -> None:
    found = subscribe("T", " a > 5 ", kind="SQL92")
    assert (found.expression, found.expression_type, found.is_all, found.tags) == ("a > 5", "SQL92", False, frozenset())
    assert not subscribe("T", "*", kind="SQL92").is_all


ROUTE = TopicRoute(
    "T",
    (
        BrokerData("c", "b", {0: "h:2", 1: "h:3"}),
        BrokerData("c", "a", {0: "h:1"}),
        BrokerData("c", "slave", {1: "h:4"}),
    ),
    (
        QueueData("b", 3, 1, 6),
        QueueData("a", 1, 2, 6),
        QueueData("slave", 1, 1, 6),
        QueueData("gone", 1, 1, 2),
        QueueData("c", 2, 2, 4),
    ),
)


def test_queues_to_send_to_have_a_live_master_and_may_be_written() -> None:
    assert ROUTE.write_queues() == (MessageQueue("T", "a", 0), MessageQueue("T", "a", 1), MessageQueue("T", "b", 0))


def test_queues_to_read_from_may_be_read() -> None:
    assert [(q.broker_name, q.queue_id) for q in ROUTE.read_queues()] == [
        *(("a", 0), ("b", 0), ("b", 1), ("b", 2), ("c", 0), ("c", 1), ("slave", 0)),
    ]


def test_brokers_of_a_route() -> None:
    broker = ROUTE.broker("b")
    assert broker is not None
    assert broker.master == "h:2"
    slave = ROUTE.broker("slave")
    assert slave is not None
    assert slave.master is None
    assert ROUTE.broker("nobody") is None


def test_queues_are_ordered_by_topic_broker_and_id() -> None:
    queues = [MessageQueue(t, b, i) for t in "TU" for b in ("a", "b") for i in (2, 10)]
    assert sorted([*queues[5:], *queues[:5]]) == queues
    assert len({*queues, MessageQueue("T", "a", 2)}) == 8


def test_a_received_message_knows_its_queue() -> None:
    message = ReceivedMessage(
        topic="T", body=b"", tag=None, keys=(), properties={}, broker_name="a", queue_id=3, queue_offset=7,
        physical_offset=0, stored_bytes=0, message_id="", offset_message_id="", born_time_ms=0, born_host="",
        store_time_ms=0, store_host="",
    )  # fmt: skip
    assert message.queue == MessageQueue("T", "a", 3)
    assert tuple(message.queue) == ("T", "a", 3)
    message.read_from = "%RETRY%g"
    assert message.queue == MessageQueue("%RETRY%g", "a", 3)


@given(st.text(alphabet=st.characters(codec="utf-16"), max_size=400))
def test_long_texts_hash_as_short_ones(text: str) -> None:
    assert texts._long_hash(text + "x") == texts._kept_hash(text + "x")


@pytest.mark.shows("mended: tag cache without a bound in bytes")
def test_long_texts_are_not_kept() -> None:
    before = texts._kept_hash.cache_info().currsize
    texts.string_hash("y" * 32_000)
    assert texts._kept_hash.cache_info().currsize == before


def test_a_filter_is_no_longer_than_may_be() -> None:
    with pytest.raises(FilterIllegal, match="at most 65536"):
        subscribe("T", "a" * 65_537)


@pytest.mark.shows("mended: order topics in the producer")
@pytest.mark.parametrize(
    ("conf", "queues"),
    [
        ("b:1;a:2", [("b", 0), ("a", 0), ("a", 1)]),
        ("gone:1;a:1;", [("gone", 0), ("a", 0)]),
        # What is no order is as if there were none.
        *(
            (conf, None)
            for conf in (None, "", "a", "a:x", "a:\u00b2", "a:0", "a:-1", "a:" + "9" * 5000, ":1", "a:1;a:1")
        ),
        ("a:262144;b:1", None),
    ],
)
def test_queues_of_a_set_order(conf: str | None, queues: list[tuple[str, int]] | None) -> None:
    route = msgspec.structs.replace(ROUTE, order_conf=conf)
    expected = ROUTE.write_queues() if queues is None else tuple(MessageQueue("T", name, i) for name, i in queues)
    assert route.producer_queues() == expected


def test_a_queue_in_a_text_is_in_words() -> None:
    assert f"{MessageQueue('orders', 'broker-a', 3)}" == "queue 3 of topic 'orders' on broker-a"


GIVEN: dict[str, Any] = {
    "topic": "t", "body": b"x", "tag": None, "keys": (), "properties": {"a": "b"}, "broker_name": "b", "queue_id": 0,
    "queue_offset": 1, "physical_offset": 2, "stored_bytes": 3, "message_id": "m", "offset_message_id": "o",
    "born_time_ms": 1, "born_host": "h", "store_time_ms": 1, "store_host": "h",
}  # fmt: skip


class Noted(ReceivedMessage):
    """An application's message, with a field and an attribute of its own."""

    priority: int = 3

    def __init__(self, note: str, **given: Any) -> None:
        super().__init__(**given)
        self.note = note


def test_an_applications_own_class_of_messages_keeps_what_it_adds() -> None:
    message = Noted("urgent", **GIVEN)
    message.priority = 9
    assert (message.topic, message.queue_id, message.properties) == ("t", 0, {"a": "b"})
    for made in (copy.copy(message), copy.deepcopy(message), pickle.loads(pickle.dumps(message))):
        assert type(made) is Noted
        assert made == message
        assert (made.note, made.priority, made.broker_name) == ("urgent", 9, "b")
    # The collector looks at what may be in a cycle.
    assert gc.is_tracked(message)
    assert not gc.is_tracked(ReceivedMessage(**GIVEN))
