"""A record that cannot be read, between others: every consumer gets all the others, fetched ahead or not."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.patience import LIMIT_S

from rocketspark import Producer, PullConsumer, PushConsumer, ReceivedMessage, SimpleConsumer
from rocketspark.admin.operations import Admin
from rocketspark.client import AsyncPullConsumer, AsyncPushConsumer
from rocketspark.testing import Cluster, run_cluster

pytestmark = pytest.mark.shows(
    "a record that cannot be read between others: push (threads, coroutines, ordered, lists), pull, pop, "
    "simple consumers get all the others, fetched ahead or not"
)

COUNT, DAMAGED = 60, 40
GOOD = [i for i in range(COUNT) if i != DAMAGED]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("store")
    with run_cluster(store=folder) as cluster, Producer(cluster.namesrv) as producer:
        producer.create_topic("T", queue_count=1)
        for i in range(COUNT):
            producer.send("T", b"message %d ends" % i)
    spoil(next(Path(folder).glob("*/commitlog/*")))
    with run_cluster(store=folder) as cluster:
        yield cluster


def spoil(log: Path) -> None:
    """Overwrite a record's body, as a bad block would."""
    body = b"message %d ends" % DAMAGED
    with log.open("r+b") as file:
        at = file.read(1 << 20).index(body)
        file.seek(at)
        file.write(bytes(len(body)))


def wait(until: Callable[[], bool]) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not until():
        assert time.monotonic() < end_s
        time.sleep(0.005)


def is_ahead(core: Any) -> bool:
    """Tell whether all was fetched, beyond the damaged record."""
    return [p.process_queue.next_offset for p in core._rebalance.pullers.values() if p.queue.topic == "T"] == [COUNT]


def number(message: ReceivedMessage) -> int:
    return int(message.body.split()[1])


def test_what_was_fetched_before_it_is_polled(cluster: Cluster) -> None:
    with PullConsumer(cluster.namesrv, "pull", consume_from="first") as consumer:
        consumer.assign(consumer.queues("T"))
        wait(lambda: is_ahead(consumer._core))
        assert [number(m) for m in consumer.poll(0, count_max=COUNT)] == GOOD
        consumer.commit()
        assert consumer.committed(consumer.queues("T")[0]) == COUNT


def test_a_pull_consumer_on_a_loop_of_its_own_polls_it_too(cluster: Cluster) -> None:
    async def main() -> None:
        async with AsyncPullConsumer(cluster.namesrv, "asyncpull", consume_from="first") as consumer:
            await consumer.assign(await consumer.queues("T"))
            while not is_ahead(consumer):
                await asyncio.sleep(0.005)
            assert [number(m) for m in await consumer.poll(0, count_max=COUNT)] == GOOD

    asyncio.run(main())


@pytest.mark.parametrize("options", [{}, {"threads": 1}, {"batch_max": 7}, {"ordered": True}, {"pop": True}], ids=str)
def test_a_listener_gets_what_was_fetched_before_it(cluster: Cluster, options: dict[str, Any]) -> None:
    got: list[int] = []
    fetched = threading.Event()
    consumer = PushConsumer(cluster.namesrv, f"push{len(str(options))}", consume_from="first", **options)
    consumer.subscribe("T")

    @consumer.listen
    def work(given: Any) -> None:
        assert fetched.wait(LIMIT_S)
        got.extend(number(m) for m in (given if isinstance(given, list) else [given]))

    with consumer:
        wait(lambda: is_ahead(consumer._core))
        fetched.set()
        wait(lambda: len(got) >= len(GOOD))
    assert sorted(got) == GOOD


def test_a_coroutine_gets_what_was_fetched_before_it(cluster: Cluster) -> None:
    async def main() -> None:
        got: list[int] = []
        fetched = asyncio.Event()
        consumer = AsyncPushConsumer(cluster.namesrv, "asyncpush", consume_from="first")
        consumer.subscribe("T")

        @consumer.listen
        async def work(message: ReceivedMessage) -> None:
            await fetched.wait()
            got.append(number(message))

        async with consumer:
            while not is_ahead(consumer):
                await asyncio.sleep(0.005)
            fetched.set()
            while len(got) < len(GOOD):
                await asyncio.sleep(0.005)
        assert sorted(got) == GOOD

    asyncio.run(main())


def test_what_is_popped_passes_over_it_alone(cluster: Cluster) -> None:
    got: list[int] = []
    with Admin(cluster.namesrv) as operations:
        operations.put_group("popping")
        operations.set_request_mode("T", "popping", "POP")
    consumer = PushConsumer(cluster.namesrv, "popping", consume_from="first", pop=True)
    consumer.subscribe("T")
    consumer.listen(lambda message: got.append(number(message)))
    with consumer, SimpleConsumer(cluster.namesrv, "simple", consume_from="first") as simple:
        simple.subscribe("T")
        received: list[int] = []
        while len(received) < len(GOOD):
            messages = simple.receive(32, timeout_ms=15_000)
            received += [number(m) for m in messages]
            simple.ack(messages)
        wait(lambda: len(got) >= len(GOOD))
    assert sorted(received) == sorted(got) == GOOD
