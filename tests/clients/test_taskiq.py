"""taskiq's broker, on our broker and on Apache's: tasks that are done, renewed, given back, or become dead letters."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from taskiq import Context, TaskiqDepends, TaskiqMessage
from taskiq.acks import AcknowledgeType
from taskiq.brokers.inmemory_broker import InmemoryResultBackend
from tests.clients.scene import Scene
from tests.clients.taskiq_worker import worker
from tests.java.mqadmin import until
from tests.support.patience import LIMIT_S

from rocketspark import Producer, PullConsumer
from rocketspark.admin import Admin
from rocketspark.taskiq import RocketBroker


def broker_of(scene: Scene, **options: Any) -> RocketBroker:
    broker = RocketBroker(scene.namesrv, topic=scene.topic, group=scene.group, **options)
    broker.result_backend = InmemoryResultBackend(max_stored_results=-1)
    return broker


def dead_letters(scene: Scene) -> int:
    topic = f"%DLQ%{scene.group}"
    with Admin(scene.namesrv) as admin:
        return admin.show_topic(topic).message_count if topic in admin.list_topics() else 0


def done_count(scene: Scene) -> int:
    """Return how many messages the group has acknowledged."""
    with PullConsumer(scene.namesrv, scene.group) as consumer:
        return sum(consumer.committed(queue) or 0 for queue in consumer.queues(scene.topic))


@pytest.mark.shows("taskiq: tasks, dependencies, results, delays by the broker, dead letters where others drop")
def test_tasks_are_done_and_what_is_no_task_becomes_a_dead_letter(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    broker = broker_of(scene)

    @broker.task
    async def add(one: int, other: int, context: Context = TaskiqDepends()) -> tuple[str, int]:  # noqa: B008
        return context.message.task_id, one + other

    @broker.task
    def fails() -> None:
        raise ValueError("no")

    async def run() -> None:
        await broker.startup()
        late = await add.kicker().with_labels(delay=1).with_task_id("late").kiq(1, 1)
        with Producer(scene.namesrv) as producer:
            producer.send(scene.topic, b"\xff is no task")
        message = TaskiqMessage(task_id="lost", task_name="elsewhere:work", labels={}, args=[], kwargs={})
        await broker.kick(broker.formatter.dumps(message))
        async with worker(broker):
            sums = [await add.kiq(number, 1) for number in range(50)]
            for number, task in enumerate(sums):
                result = await task.wait_result(timeout=LIMIT_S)
                assert tuple(result.return_value) == (task.task_id, number + 1)
            assert (await (await fails.kiq()).wait_result(timeout=LIMIT_S)).is_err
            assert (await late.wait_result(timeout=LIMIT_S)).return_value[1] == 2
            # 50 sums, one that fails, one that is late, and the two that are no tasks.
            await asyncio.to_thread(until, lambda: done_count(scene) == 54)
            await asyncio.to_thread(until, lambda: dead_letters(scene) == 2)
        await broker.shutdown()

    asyncio.run(run())
    assert "its body is no task" in caplog.text
    assert "no task 'elsewhere:work' is known here, import its module in the worker" in caplog.text


@pytest.mark.shows("taskiq: a task is renewed while it runs, given back at the end, buried after max_deliveries")
def test_a_long_task_is_not_delivered_twice_and_an_unfinished_one_is_given_back(scene: Scene) -> None:
    began: list[str] = []

    def make(**options: Any) -> tuple[RocketBroker, Any]:
        broker = broker_of(scene, **options)

        @broker.task(task_name="work")
        async def work(name: str, seconds: float) -> None:
            began.append(name)
            await asyncio.sleep(seconds)

        return broker, work

    async def run() -> None:
        broker, work = make(visibility_timeout=1)
        await broker.startup()
        async with worker(broker):
            await (await work.kiq("long", 2.5)).wait_result(timeout=LIMIT_S)
            await asyncio.to_thread(until, lambda: done_count(scene) == 1)
        await broker.shutdown()
        # Never acknowledged: given back as its worker ends, though its time is far from over.
        broker, work = make(visibility_timeout=3600)
        await broker.startup()
        await work.kiq("given back", 0)
        async with worker(broker, ack_time=AcknowledgeType.MANUAL):
            await asyncio.to_thread(until, lambda: len(began) == 2)
        await broker.shutdown()
        broker, work = make(visibility_timeout=3600, max_deliveries=1)
        await broker.startup()
        async with worker(broker):
            await (await work.kiq("next", 0)).wait_result(timeout=LIMIT_S)
            await asyncio.to_thread(until, lambda: dead_letters(scene) == 1)
        await broker.shutdown()

    asyncio.run(run())
    assert began == ["long", "given back", "next"]
