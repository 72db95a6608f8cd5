"""What Kafka's Python clients do in a second: python -m bench.kafka_perf BROKER TOPIC CASE [WINDOW].

Cases: confluent-sync, -batch (WINDOW in flight), -consume and -latency; the same of aiokafka; confluent-open-at-once
and -open-gathered (WINDOW a second, whatever the replies take), -open-seen-… (until a consumer has them); fill makes
the topic and writes as many messages as a round says. Rounds and answers are those of bench.perf; everything is at
its default but for acks=1.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import threading
import time
from typing import Any

from bench.intended import OpenLoop, Result
from bench.perf import (
    BODY,
    ROUND_S_MAX,
    Arrivals,
    Cases,
    Latencies,
    Seen,
    new_group,
    paced,
    paced_async,
    rate,
    run_case,
    serve,
    serve_async,
)

QUEUES = 8
FETCHED_MAX = 500
WAIT_S = 10.0
TOPIC_WAIT_S = 30.0


# -- confluent-kafka ----------------------------------------------------------------------------------------------


def confluent_producer(broker: str, **options: Any) -> Any:
    """A producer of confluent-kafka."""
    from confluent_kafka import Producer

    return Producer({"bootstrap.servers": broker, "acks": 1} | options)


def confluent_fill(broker: str, topic: str, window: int) -> None:
    """Make the topic, and write as many messages as a round says."""
    from confluent_kafka.admin import AdminClient, NewTopic

    # Kept while its futures are awaited: its end would end them.
    admin = AdminClient({"bootstrap.servers": broker})
    for made in admin.create_topics([NewTopic(topic, QUEUES, 1)]).values():
        made.result(TOPIC_WAIT_S)
    producer = confluent_producer(broker)

    def round_of(count: float) -> Result:
        started = time.perf_counter()
        for number in range(int(count)):
            producer.produce(topic, BODY, partition=number % QUEUES)
            if number % 1000 == 999:
                producer.flush(WAIT_S)
        left = producer.flush(WAIT_S)
        return rate(int(count) - left, started, left)

    serve(round_of)


def confluent_sync(broker: str, topic: str, window: int) -> None:
    """One thread, one at a time, without lingering."""
    producer = confluent_producer(broker, **{"linger.ms": 0})
    failed = itertools.count()

    def ended(error: Any, _: Any) -> None:
        if error is not None:
            next(failed)

    def round_of(seconds: float) -> Result:
        count = 0
        started = time.perf_counter()
        end = started + seconds
        while time.perf_counter() < end:
            producer.produce(topic, BODY, on_delivery=ended)
            producer.flush(WAIT_S)
            count += 1
        return rate(count, started)

    serve(round_of)


def confluent_batch(broker: str, topic: str, window: int) -> None:
    """One thread, callbacks; the client gathers messages to requests."""
    producer = confluent_producer(broker)
    ended_count = failed_count = 0

    def ended(error: Any, _: Any) -> None:
        nonlocal ended_count, failed_count
        ended_count += 1
        failed_count += error is not None

    def round_of(seconds: float) -> Result:
        nonlocal ended_count, failed_count
        ended_count = failed_count = count = 0
        started = time.perf_counter()
        end = started + seconds
        while time.perf_counter() < end:
            while count - ended_count >= window:
                producer.poll(0.1)
            producer.produce(topic, BODY, on_delivery=ended)
            producer.poll(0)
            count += 1
        left = producer.flush(WAIT_S)
        return rate(count - failed_count - left, started, failed_count + left)

    serve(round_of)


def produce(producer: Any, topic: str, body: bytes, ended: Any) -> None:
    """Hand a message to the client; where its queue is full, wait."""
    while True:
        try:
            return producer.produce(topic, body, on_delivery=ended)
        except BufferError:
            time.sleep(0.001)


def confluent_open(broker: str, topic: str, window: int, options: dict[str, Any] | None = None) -> None:
    """That many sends a second by one thread, callbacks by another that polls; gathered as by default."""
    producer = confluent_producer(broker, **(options or {}))
    closed = threading.Event()

    def poll() -> None:
        while not closed.is_set():
            producer.poll(0.1)

    def round_of(seconds: float) -> Result:
        loop = OpenLoop(window, seconds)

        def ended(number: int, error: Any, _: Any) -> None:
            loop.ended(number, error)

        loop.drive(lambda number: produce(producer, topic, BODY, functools.partial(ended, number)))
        return loop.result()

    poller = threading.Thread(target=poll)
    poller.start()
    try:
        serve(round_of)
    finally:
        closed.set()
        poller.join()


def confluent_open_seen(broker: str, topic: str, window: int, options: dict[str, Any] | None = None) -> None:
    """The same until a consumer of this process has the message; it takes many at a time, as `confluent_consume`."""
    closed = threading.Event()
    seen = Seen()
    consumer = confluent_consumer(broker, "open", topic)
    producer = confluent_producer(broker, **(options or {}))

    def read() -> None:
        while not closed.is_set():
            for message in consumer.consume(FETCHED_MAX, 0.001):
                if message.error() is None:
                    seen.note(Value(message.value()))  # type: ignore[arg-type]

    def poll() -> None:
        while not closed.is_set():
            producer.poll(0.1)

    def round_of(seconds: float) -> Result:
        loop = OpenLoop(window, seconds)
        seen.begin(loop)

        def sent(number: int, error: Any, _: Any) -> None:
            if error is not None:
                loop.ended(number, error)

        loop.drive(lambda number: produce(producer, topic, seen.body(number), functools.partial(sent, number)))
        return loop.result()

    threads = [threading.Thread(target=work) for work in (read, poll)]
    for thread in threads:
        thread.start()
    try:
        serve(round_of)
    finally:
        closed.set()
        for thread in threads:
            thread.join()
        consumer.close()


def confluent_open_seen_at_once(broker: str, topic: str, window: int) -> None:
    """The same without lingering."""
    confluent_open_seen(broker, topic, window, {"linger.ms": 0})


def confluent_open_at_once(broker: str, topic: str, window: int) -> None:
    """The same without lingering."""
    confluent_open(broker, topic, window, {"linger.ms": 0})


def confluent_consumer(broker: str, what: str, topic: str) -> Any:
    """A consumer of confluent-kafka in a new group."""
    from confluent_kafka import Consumer

    consumer = Consumer({"bootstrap.servers": broker, "group.id": new_group(what), "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    return consumer


def confluent_consume(broker: str, topic: str, window: int) -> None:
    """From the first message's arrival to the last one's, by a group that is new."""

    def round_of(count: float) -> Result:
        every = threading.Event()
        arrivals = Arrivals(int(count), every.set)
        started = time.perf_counter()
        consumer = confluent_consumer(broker, "consume", topic)
        while not every.is_set():
            for message in consumer.consume(FETCHED_MAX, 1.0):
                arrivals.note(message)
            if time.perf_counter() - started > ROUND_S_MAX:
                raise SystemExit(f"not all of {count:.0f} messages came")
        consumer.close()
        return arrivals.result(started)

    serve(round_of)


class Value:
    """A message as bench.perf looks at it."""

    __slots__ = ("body",)

    def __init__(self, body: bytes) -> None:
        self.body = body


def confluent_latency(broker: str, topic: str, window: int) -> None:
    """A producer that sends one at a time and a consumer, both in this process."""
    every, ended = threading.Event(), threading.Event()
    latencies = Latencies(every.set)
    consumer = confluent_consumer(broker, "latency", topic)
    producer = confluent_producer(broker, **{"linger.ms": 0})

    def read() -> None:
        while not ended.is_set():
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                latencies.note(Value(message.value()))  # type: ignore[arg-type]

    reader = threading.Thread(target=read)
    reader.start()

    def send(body: bytes) -> None:
        producer.produce(topic, body)
        producer.flush(WAIT_S)

    try:
        serve(paced(latencies, every, send))
    finally:
        ended.set()
        reader.join()
        consumer.close()


# -- aiokafka -----------------------------------------------------------------------------------------------------


async def aiokafka_sync(broker: str, topic: str, window: int) -> None:
    """One coroutine, one at a time."""
    await aiokafka_batch(broker, topic, 1)


async def aiokafka_batch(broker: str, topic: str, window: int) -> None:
    """As many coroutines as may be in flight, each sends and awaits; the client gathers messages to requests."""
    from aiokafka import AIOKafkaProducer

    async with AIOKafkaProducer(bootstrap_servers=broker, acks=1) as producer:

        async def round_of(seconds: float) -> Result:
            count = 0
            started = time.perf_counter()
            end = started + seconds

            async def work() -> None:
                nonlocal count
                while time.perf_counter() < end:
                    await producer.send_and_wait(topic, BODY)
                    count += 1

            await asyncio.gather(*(work() for _ in range(window)))
            return rate(count, started)

        await serve_async(round_of)


def aiokafka_consumer(broker: str, what: str, topic: str) -> Any:
    """A consumer of aiokafka in a new group."""
    from aiokafka import AIOKafkaConsumer

    return AIOKafkaConsumer(topic, bootstrap_servers=broker, group_id=new_group(what), auto_offset_reset="earliest")


async def aiokafka_consume(broker: str, topic: str, window: int) -> None:
    """From the first message's arrival to the last one's, by a group that is new."""

    async def round_of(count: float) -> Result:
        every = asyncio.Event()
        arrivals = Arrivals(int(count), every.set)
        started = time.perf_counter()
        async with aiokafka_consumer(broker, "consume", topic) as consumer, asyncio.timeout(ROUND_S_MAX):
            while not every.is_set():
                for messages in (await consumer.getmany(timeout_ms=1000, max_records=FETCHED_MAX)).values():
                    for message in messages:
                        arrivals.note(message)
        return arrivals.result(started)

    await serve_async(round_of)


async def aiokafka_latency(broker: str, topic: str, window: int) -> None:
    """The latency on one asyncio loop."""
    from aiokafka import AIOKafkaProducer

    every = asyncio.Event()
    latencies = Latencies(every.set)

    async def read(consumer: Any) -> None:
        async for message in consumer:
            latencies.note(Value(message.value))  # type: ignore[arg-type]

    async with (
        aiokafka_consumer(broker, "latency", topic) as consumer,
        AIOKafkaProducer(bootstrap_servers=broker, acks=1) as producer,
    ):
        reader = asyncio.ensure_future(read(consumer))

        try:
            await serve_async(paced_async(latencies, every, lambda body: producer.send_and_wait(topic, body)))
        finally:
            reader.cancel()
            await asyncio.wait([reader])


CASES: Cases = {
    "fill": confluent_fill,
    "confluent-sync": confluent_sync,
    "confluent-batch": confluent_batch,
    "confluent-send-columns": confluent_batch,
    "confluent-consume": confluent_consume,
    "confluent-columns": confluent_consume,
    "confluent-table": confluent_consume,
    "confluent-latency": confluent_latency,
    "confluent-open-at-once": confluent_open_at_once,
    "confluent-open-gathered": confluent_open,
    "confluent-open-seen-at-once": confluent_open_seen_at_once,
    "confluent-open-seen-gathered": confluent_open_seen,
    "aiokafka-sync": aiokafka_sync,
    "aiokafka-batch": aiokafka_batch,
    "aiokafka-send-columns": aiokafka_batch,
    "aiokafka-consume": aiokafka_consume,
    "aiokafka-columns": aiokafka_consume,
    "aiokafka-table": aiokafka_consume,
    "aiokafka-latency": aiokafka_latency,
}


if __name__ == "__main__":
    run_case(CASES, "python -m bench.kafka_perf", __doc__, "broker", 1)
