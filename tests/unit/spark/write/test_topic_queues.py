"""The queues of topics: asked for once, taken in turns, and told apart from topics that do not exist."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.unit.client.fake import in_loop

from rocketspark.errors import RouteNotFound
from rocketspark.model import MessageQueue
from rocketspark.spark.write.queue_choice import QueueTarget
from rocketspark.spark.write.topic_queues import TopicQueues

QUEUES = [MessageQueue("t", broker, i) for broker in ("a", "b") for i in (0, 1)]


class Producer:
    """Knows topic t with four queues, and topic shut with none that takes messages."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def queues(self, topic: str) -> list[MessageQueue]:
        self.asked.append(topic)
        if topic == "t":
            return QUEUES
        if topic == "shut":
            return []
        raise RouteNotFound(topic)


@in_loop
async def test_targets_take_turns_each_among_its_own_queues() -> None:
    producer = Producer()
    queues = TopicQueues(producer)  # type: ignore[arg-type]
    everywhere, on_b, one = QueueTarget("t"), QueueTarget("t", "b"), QueueTarget("t", None, QUEUES[1])
    taken = [(await queues.next(everywhere), await queues.next(on_b), await queues.next(one)) for _ in range(8)]
    assert Counter(queue for queue, _, _ in taken) == dict.fromkeys(QUEUES, 2)
    assert Counter(queue for _, queue, _ in taken) == dict.fromkeys(QUEUES[2:], 4)
    assert {queue for _, _, queue in taken} == {QUEUES[1]}
    assert producer.asked == ["t"]


@in_loop
async def test_a_topic_that_does_not_exist_has_no_next_queue_and_is_asked_for_again() -> None:
    producer = Producer()
    queues = TopicQueues(producer)  # type: ignore[arg-type]
    assert await queues.next(QueueTarget("new")) is None
    with pytest.raises(RouteNotFound, match="'new' does not exist: a row with queueId or broker needs"):
        await queues.find("new")
    assert producer.asked == ["new", "new"]


@in_loop
async def test_a_topic_that_no_broker_takes_messages_for_is_an_error() -> None:
    queues = TopicQueues(Producer())  # type: ignore[arg-type]
    for call in (queues.find("shut"), queues.next(QueueTarget("shut"))):
        with pytest.raises(RouteNotFound, match="no broker takes messages for topic 'shut'"):
            await call
