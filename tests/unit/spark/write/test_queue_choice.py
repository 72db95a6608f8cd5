"""Which rows go where: for whole columns the same as row by row. The queues of topics are asked for once,
taken in turns, and told apart from topics that do not exist.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.client.fake import in_loop

from rocketspark.client.producer.prepared_message import queue_of_key
from rocketspark.errors import ConfigError, RouteNotFound
from rocketspark.model import MessageQueue
from rocketspark.spark.write import queue_choice
from rocketspark.spark.write.queue_choice import QueueTarget, TargetQueues, targets
from rocketspark.spark.write.rows import CheckedRows
from rocketspark.transport.retries import RetryRule

pytestmark = pytest.mark.shows(
    "batch and stream, all columns and options, delivery times, bounded memory, order per queue, a killed "
    "broker, inner batches",
    "one frame for pipelines and writers",
)

QUEUES = {
    "one": [MessageQueue("one", "broker-a", 0)],
    "two": [MessageQueue("two", broker, i) for broker in ("broker-a", "broker-b") for i in range(3)],
}
KINDS = {"topic": pa.string(), "queueId": pa.int32(), "broker": pa.string(), "shardingKey": pa.string()}


async def find_queues(topic: str, *, made_by_sends: bool = False) -> Sequence[MessageQueue]:
    return QUEUES[topic]


def found(topic: str | None = None, /, **columns: list[Any]) -> list[tuple[QueueTarget, list[int]]]:
    count = len(next(iter(columns.values()))) if columns else 2
    arrays = {"body": pa.array(["x"] * count)} | {n: pa.array(v, KINDS[n]) for n, v in columns.items()}
    result = asyncio.run(targets(CheckedRows(pa.RecordBatch.from_pydict(arrays), topic), find_queues))
    return [(target, list(range(count)) if rows is None else rows.tolist()) for target, rows in result]


def by_row(topic: str, queue_id: int | None, broker: str | None, key: str | None) -> QueueTarget:
    if queue_id is not None:
        queues = [q for q in QUEUES[topic] if q.queue_id == queue_id and broker in (None, q.broker_name)]
        return QueueTarget(topic, None, queues[0])
    if key:
        return QueueTarget(topic, None, queue_of_key(key, QUEUES[topic]))
    return QueueTarget(topic, broker)


row = st.one_of(
    st.tuples(st.just("one"), st.sampled_from([None, 0]), st.sampled_from([None, "broker-a"]), st.text(max_size=3)),
    st.tuples(
        st.just("two"),
        st.none() | st.integers(0, 2),
        st.sampled_from([None, "broker-a", "broker-b"]),
        st.none() | st.text(st.sampled_from("ab\u00e9\U0001f680"), max_size=9),
    ),
)


@given(st.lists(row, min_size=1, max_size=40))
def test_rows_go_where_each_alone_goes(given_rows: list[tuple[str, int | None, str | None, str | None]]) -> None:
    texts = [None if key is None else "".join(c for c in key if c not in "\x01\x02") for *_, key in given_rows]
    wanted: dict[QueueTarget, list[int]] = {}
    for number, ((topic, queue_id, broker, _), key) in enumerate(zip(given_rows, texts, strict=True)):
        wanted.setdefault(by_row(topic, queue_id, broker, key), []).append(number)
    topics, ids, brokers, _ = (list(column) for column in zip(*given_rows, strict=True))
    result = found(None, topic=topics, queueId=ids, broker=brokers, shardingKey=texts)
    assert len(result) == len(wanted)
    assert dict(result) == wanted


def test_without_such_columns_all_go_one_way() -> None:
    assert found("two") == [(QueueTarget("two"), [0, 1])]
    assert found("two", queueId=[None, None]) == [(QueueTarget("two"), [0, 1])]
    assert found(None, topic=["one", "one"]) == [(QueueTarget("one"), [0, 1])]
    assert found("two", topic=["one", None]) == [(QueueTarget("two"), [0, 1])]
    assert found("two", queueId=[]) == [(QueueTarget("two"), [])]


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"queueId": [7]}, "names queue 7 of topic 'two', which is not there; there are: broker-a/0, broker-a/1"),
        ({"queueId": [0], "broker": ["broker-z"]}, "names queue 0 on broker 'broker-z'"),
        (
            {"broker": ["broker-z"]},
            "names broker 'broker-z', which has no queue of topic 'two'; there are: broker-a, broker-b",
        ),
    ],
)
def test_what_is_not_there_is_named(columns: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        found("two", **columns)


TOPIC_QUEUES = [MessageQueue("t", broker, i) for broker in ("a", "b") for i in (0, 1)]


class Producer:
    """Knows topic t with four queues, and topic shut with none that takes messages; of topic elects none of the brokers
    has a master before the route was fetched so often.
    """

    _namespace = ""

    def __init__(self, looks: int = 0) -> None:
        self.asked: list[str] = []
        self.looks = looks
        self._routes = self

    def _bare_queue(self, queue: MessageQueue) -> MessageQueue:
        return queue

    async def refresh(self, topic: str) -> mock.Mock:
        self.asked.append(f"route of {topic}")
        self.looks -= 1
        taking = TOPIC_QUEUES if topic == "elects" and self.looks < 0 else []
        return mock.Mock(producer_queues=lambda: taking)

    def is_without_master(self, topic: str) -> bool:
        return topic == "elects" and self.looks >= 0

    async def queues(self, topic: str) -> list[MessageQueue]:
        self.asked.append(topic)
        if topic == "t":
            return TOPIC_QUEUES
        if topic in ("shut", "elects"):
            return []
        raise RouteNotFound(topic)


@in_loop
async def test_targets_take_turns_each_among_its_own_queues() -> None:
    producer = Producer()
    queues = TargetQueues(producer, 10_000)  # type: ignore[arg-type]
    everywhere, on_b, one = QueueTarget("t"), QueueTarget("t", "b"), QueueTarget("t", None, TOPIC_QUEUES[1])
    taken = [(await queues.next(everywhere), await queues.next(on_b), await queues.next(one)) for _ in range(8)]
    assert Counter(queue for queue, _, _ in taken) == dict.fromkeys(TOPIC_QUEUES, 2)
    assert Counter(queue for _, queue, _ in taken) == dict.fromkeys(TOPIC_QUEUES[2:], 4)
    assert {queue for _, _, queue in taken} == {TOPIC_QUEUES[1]}
    assert producer.asked == ["t"]


@in_loop
async def test_a_topic_that_does_not_exist_has_no_next_queue_and_is_asked_for_again() -> None:
    producer = Producer()
    queues = TargetQueues(producer, 10_000)  # type: ignore[arg-type]
    assert await queues.next(QueueTarget("new")) is None
    with pytest.raises(RouteNotFound, match="'new' does not exist: a row with queueId or broker needs"):
        await queues.find("new")
    assert producer.asked == ["new", "new"]


@in_loop
async def test_a_topic_that_no_broker_takes_messages_for_is_an_error() -> None:
    queues = TargetQueues(Producer(), 10_000)  # type: ignore[arg-type]
    for call in (queues.find("shut"), queues.next(QueueTarget("shut"))):
        with pytest.raises(RouteNotFound, match="no broker takes messages for topic 'shut'"):
            await call


@in_loop
async def test_a_master_that_is_elected_just_now_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_choice, "RetryRule", partial(RetryRule, pauses_s=(0,)))
    producer = Producer(looks=3)
    queues = TargetQueues(producer, 10_000)  # type: ignore[arg-type]
    assert await queues.next(QueueTarget("elects")) in TOPIC_QUEUES
    assert await queues.find("elects") == TOPIC_QUEUES
    assert producer.asked == ["elects"] + ["route of elects"] * 4
    late = TargetQueues(Producer(looks=1 << 30), 20)  # type: ignore[arg-type]
    with pytest.raises(RouteNotFound, match="no broker takes messages for topic 'elects'"):
        await late.next(QueueTarget("elects"))
