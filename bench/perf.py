"""What our client does in a second, everything at its default: python -m bench.perf NAMESRV TOPIC CASE [WINDOW].

Cases: sync (WINDOW threads), future and async (WINDOW in flight), gathered to requests as batch-future and batch,
with sharding keys as keyed and batch-keyed, send-columns, await (one at a time on asyncio), consume and latency, also
as consume-async, consume-columns, consume-table and latency-async; open-threads, open-future, open-turn, open-batch,
and open-seen and -seen-batch (until a listener has the message) send WINDOW a second, whatever the replies take. Each
line of input is one round (seconds for the sends, messages for the others), answered by one line of JSON; whoever
asks drops the first, the warm-up. bench/java/Perf.java is the same for the Java client.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import itertools
import json
import os
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from bench.intended import OpenLoop, Result, percentiles
from rocketspark.client import AsyncProducer, AsyncPushConsumer, Producer, PullConsumer, PushConsumer
from rocketspark.client.options import ProducerOptions
from rocketspark.model import ReceivedMessage
from rocketspark.tables.read_table import read_batches

BODY = b"x" * 128
# Of one call.
COLUMN_ROWS = 20_000
LATENCY_PACE_S = 0.002
ROUND_S_MAX = 120.0
GROUP = "bench_perf"
# The Java client's defaults of autoBatch: batchMaxDelayMs, batchMaxBytes.
GATHERED: ProducerOptions = {"linger_ms": 10, "batch_bytes": 32 << 10}
# As long as confluent-kafka gathers by default.
OPEN_GATHERED: ProducerOptions = {"linger_ms": 5}
# What comes in one turn of the client's loop.
OPEN_TURN: ProducerOptions = {"linger_ms": 0}
OPEN_THREADS = 64
KEYS = 10_000
# Who sent it, its number, the sender's clock.
STAMP = struct.Struct(">qiq")

# What a case is called by, and the function that runs it: server, topic, sends in flight.
Cases = dict[str, Callable[[str, str, int], Coroutine[Any, Any, None] | None]]


def answer(result: Result) -> None:
    """Print a round's result, with the number of memory blocks that Python's objects take after it."""
    print(json.dumps(result | {"blocks": sys.getallocatedblocks()}), flush=True)


def serve(act: Callable[[float], Result]) -> None:
    """One round per line of standard input."""
    for line in sys.stdin:
        answer(act(float(line)))


async def serve_async(act: Callable[[float], Coroutine[Any, Any, Result]]) -> None:
    """The same on a running loop."""
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        answer(await act(float(line)))


def rate(count: int, started_s: float, failed: int = 0) -> Result:
    """The result of a round of sends that ends now."""
    return {"count": count, "seconds": time.perf_counter() - started_s, "failed": failed}


def new_group(what: str) -> str:
    """A group nobody knows yet."""
    return f"bench_{what}_{os.getpid()}_{time.time_ns()}"


# -- sends --------------------------------------------------------------------------------------------------------


def sync(namesrv: str, topic: str, window: int) -> None:
    """That many threads on one producer, each sends one at a time."""
    with Producer(namesrv, GROUP) as producer:

        def round_of(seconds: float) -> Result:
            started = time.perf_counter()
            end = started + seconds

            def work(_: int) -> list[float]:
                taken = []
                while (began := time.perf_counter()) < end:
                    producer.send(topic, BODY)
                    taken.append(time.perf_counter() - began)
                return taken

            each = [work(0)] if window == 1 else list(pool.map(work, range(window)))
            taken = sorted(s for of_thread in each for s in of_thread)
            return rate(len(taken), started) | percentiles([1e6 * s for s in taken])

        with ThreadPoolExecutor(window) as pool:
            serve(round_of)


def future(namesrv: str, topic: str, window: int, options: ProducerOptions | None = None) -> None:
    """One thread, futures; the producer itself bounds how many are in flight."""
    with Producer(namesrv, GROUP, **({"in_flight_max": window} | (options or {}))) as producer:

        def round_of(seconds: float) -> Result:
            failed = itertools.count()
            recent: deque[Future[Any]] = deque(maxlen=window)

            def ended(done: Future[Any]) -> None:
                if done.exception() is not None:
                    next(failed)

            count = 0
            started = time.perf_counter()
            end = started + seconds
            while time.perf_counter() < end:
                sent = producer.send_future(topic, BODY)
                sent.add_done_callback(ended)
                recent.append(sent)
                count += 1
            for each in recent:
                each.exception()
            return rate(count, started, next(failed))

        serve(round_of)


def send_columns(namesrv: str, topic: str, window: int) -> None:
    """One thread, a list of bodies at a call; every result is looked at."""
    with Producer(namesrv, GROUP) as producer:

        def round_of(seconds: float) -> Result:
            count = failed = 0
            started = time.perf_counter()
            end = started + seconds
            while time.perf_counter() < end:
                bodies = [BODY for _ in range(COLUMN_ROWS)]
                failed += int(producer.send_many(topic, bodies).failed.sum())
                count += len(bodies)
            return rate(count, started, failed)

        serve(round_of)


async def send_async(
    namesrv: str,
    topic: str,
    window: int,
    options: ProducerOptions | None = None,
    keys: Iterator[str] | None = None,
) -> None:
    """As many coroutines as may be in flight, each sends and awaits; `keys`: the sharding keys of the messages."""
    async with AsyncProducer(namesrv, GROUP, **(options or {})) as producer:

        async def round_of(seconds: float) -> Result:
            count = 0
            started = time.perf_counter()
            end = started + seconds

            async def work() -> None:
                nonlocal count
                while time.perf_counter() < end:
                    if keys is None:
                        await producer.send(topic, BODY)
                    else:
                        await producer.send(topic, BODY, sharding_key=next(keys))
                    count += 1

            await asyncio.gather(*(work() for _ in range(window)))
            return rate(count, started)

        await serve_async(round_of)


# -- consuming ----------------------------------------------------------------------------------------------------


class Arrivals:
    """Counts messages; `first_s` and `last_s`: when the first and the `count`th came."""

    def __init__(self, count: int, done: Callable[[], None]) -> None:
        self._count = count
        self._done = done
        self._numbers = itertools.count(1)
        self.first_s = self.last_s = 0.0

    def note(self, _: object) -> None:
        """One has come; called by any thread."""
        number = next(self._numbers)
        if number == self._count:
            self.last_s = time.perf_counter()
            self._done()
        elif number == 1:
            self.first_s = time.perf_counter()

    def result(self, started_s: float) -> Result:
        """The result of the round."""
        return {
            "count": self._count,
            "seconds": self.last_s - self.first_s,
            "failed": 0,
            "first_ms": (self.first_s - started_s) * 1000,
        }


def consume(namesrv: str, topic: str, window: int) -> None:
    """A plain listener, from the first message's arrival to the last one's, by a group that is new."""

    def round_of(count: float) -> Result:
        every = threading.Event()
        arrivals = Arrivals(int(count), every.set)
        consumer = PushConsumer(namesrv, new_group("consume"), consume_from="first")
        consumer.subscribe(topic)
        consumer.listen(arrivals.note)
        started = time.perf_counter()
        with consumer:
            if not every.wait(ROUND_S_MAX):
                raise SystemExit(f"not all of {count:.0f} messages came")
        return arrivals.result(started)

    serve(round_of)


async def consume_async(namesrv: str, topic: str, window: int) -> None:
    """The same with a coroutine as the listener."""

    async def round_of(count: float) -> Result:
        every = asyncio.Event()
        arrivals = Arrivals(int(count), every.set)
        consumer = AsyncPushConsumer(namesrv, new_group("consume"), consume_from="first")
        consumer.subscribe(topic)

        @consumer.listen
        async def on_message(message: ReceivedMessage) -> None:
            arrivals.note(message)

        started = time.perf_counter()
        async with consumer, asyncio.timeout(ROUND_S_MAX):
            await every.wait()
        return arrivals.result(started)

    await serve_async(round_of)


def consume_columns(namesrv: str, topic: str, window: int) -> None:
    """Polls of columns; every body is looked at."""

    def round_of(count: float) -> Result:
        every = threading.Event()
        arrivals = Arrivals(int(count), every.set)
        started = time.perf_counter()
        with PullConsumer(namesrv, new_group("columns"), consume_from="first") as consumer:
            consumer.subscribe(topic)
            while not every.is_set():
                for body in consumer.poll_batch().bodies:
                    arrivals.note(body)
                if time.perf_counter() - started > ROUND_S_MAX:
                    raise SystemExit(f"not all of {count:.0f} messages came")
        return arrivals.result(started)

    serve(round_of)


def consume_table(namesrv: str, topic: str, window: int) -> None:
    """The batches of a table, with the bodies alone; each is looked at."""

    def round_of(count: float) -> Result:
        every = threading.Event()
        arrivals = Arrivals(int(count), every.set)
        started = time.perf_counter()
        for batch in read_batches(namesrv, topic, columns=["body"]):
            for body in batch.column("body").to_pylist():
                arrivals.note(body)
            if every.is_set():
                return arrivals.result(started)
        raise SystemExit(f"not all of {count:.0f} messages came")

    serve(round_of)


# -- latency ------------------------------------------------------------------------------------------------------


class Latencies:
    """Send to listener, by the clock that each body carries."""

    def __init__(self, done: Callable[[], None]) -> None:
        self._mark = time.time_ns() ^ os.getpid()
        self._done = done
        self._taken: dict[int, int] = {}
        self._count = 0

    def begin(self, count: int) -> None:
        """A new round of so many."""
        self._taken = {}
        self._count = count

    def body(self, number: int) -> bytes:
        """What to send now."""
        return STAMP.pack(self._mark, number, time.perf_counter_ns()) + BODY[STAMP.size :]

    def note(self, message: ReceivedMessage) -> None:
        """One has come."""
        now = time.perf_counter_ns()
        mark, number, sent = STAMP.unpack_from(message.body)
        if mark == self._mark and number not in self._taken:
            self._taken[number] = now - sent
            if len(self._taken) == self._count:
                self._done()

    def result(self) -> Result:
        """The result of the round."""
        taken = sorted(self._taken.values())
        return {"count": len(taken)} | percentiles([ns / 1000 for ns in taken])


def paced(latencies: Latencies, every: threading.Event, send: Callable[[bytes], object]) -> Callable[[float], Result]:
    """A round of sends at an even pace, each waited for."""

    def round_of(count: float) -> Result:
        latencies.begin(int(count))
        every.clear()
        due = time.perf_counter()
        for number in range(int(count)):
            due = max(due + LATENCY_PACE_S, time.perf_counter())
            while (left := due - time.perf_counter()) > 0:
                time.sleep(left)
            send(latencies.body(number))
        if not every.wait(ROUND_S_MAX):
            raise SystemExit(f"not all of {count:.0f} messages came")
        return latencies.result()

    return round_of


def paced_async(
    latencies: Latencies, every: asyncio.Event, send: Callable[[bytes], Awaitable[object]]
) -> Callable[[float], Coroutine[Any, Any, Result]]:
    """The same on an asyncio loop."""

    async def round_of(count: float) -> Result:
        latencies.begin(int(count))
        every.clear()
        due = time.perf_counter()
        for number in range(int(count)):
            due = max(due + LATENCY_PACE_S, time.perf_counter())
            while (left := due - time.perf_counter()) > 0:
                await asyncio.sleep(left)
            await send(latencies.body(number))
        async with asyncio.timeout(ROUND_S_MAX):
            await every.wait()
        return latencies.result()

    return round_of


def latency(namesrv: str, topic: str, window: int) -> None:
    """A producer that sends one at a time and a consumer, both in this process."""
    every = threading.Event()
    latencies = Latencies(every.set)
    consumer = PushConsumer(namesrv, new_group("latency"), consume_from="first")
    consumer.subscribe(topic)
    consumer.listen(latencies.note)
    with consumer, Producer(namesrv, GROUP) as producer:
        serve(paced(latencies, every, lambda body: producer.send(topic, body)))


async def latency_async(namesrv: str, topic: str, window: int) -> None:
    """The same on one asyncio loop."""
    every = asyncio.Event()
    latencies = Latencies(every.set)
    consumer = AsyncPushConsumer(namesrv, new_group("latency"), consume_from="first")
    consumer.subscribe(topic)

    @consumer.listen
    async def on_message(message: ReceivedMessage) -> None:
        latencies.note(message)

    async with consumer, AsyncProducer(namesrv, GROUP) as producer:
        await serve_async(paced_async(latencies, every, lambda body: producer.send(topic, body)))


async def send_await(namesrv: str, topic: str, window: int) -> None:
    """One coroutine, one at a time."""
    await send_async(namesrv, topic, 1)


def batch_future(namesrv: str, topic: str, window: int) -> None:
    """As `future`; many messages in one request."""
    future(namesrv, topic, window, GATHERED)


async def batch(namesrv: str, topic: str, window: int) -> None:
    """As `async`; many messages in one request."""
    await send_async(namesrv, topic, window, GATHERED)


async def keyed(namesrv: str, topic: str, window: int, options: ProducerOptions | None = None) -> None:
    """As `async`; each message has the sharding key of one of many customers."""
    await send_async(namesrv, topic, window, options, itertools.cycle([f"customer-{n}" for n in range(KEYS)]))


async def batch_keyed(namesrv: str, topic: str, window: int) -> None:
    """As `keyed`; many messages in one request."""
    await keyed(namesrv, topic, window, GATHERED)


# -- sends at an even rate ----------------------------------------------------------------------------------------


def open_threads(namesrv: str, topic: str, window: int) -> None:
    """That many sends a second, each in a thread of a pool."""
    with Producer(namesrv, GROUP) as producer, ThreadPoolExecutor(OPEN_THREADS) as pool:

        def round_of(seconds: float) -> Result:
            loop = OpenLoop(window, seconds)

            def work(number: int) -> None:
                error = None
                try:
                    producer.send(topic, BODY)
                except Exception as e:
                    error = e
                loop.ended(number, error)

            loop.drive(lambda number: pool.submit(work, number))
            return loop.result()

        serve(round_of)


def open_future(namesrv: str, topic: str, window: int, options: ProducerOptions | None = None) -> None:
    """That many sends a second by one thread, each a future with a callback."""
    with Producer(namesrv, GROUP, **(options or {})) as producer:

        def round_of(seconds: float) -> Result:
            loop = OpenLoop(window, seconds)

            def ended(number: int, done: Future[Any]) -> None:
                loop.ended(number, done.exception())

            loop.drive(
                lambda number: producer.send_future(topic, BODY).add_done_callback(functools.partial(ended, number))
            )
            return loop.result()

        serve(round_of)


class Seen:
    """Ends each send of a round in an open loop when a listener has its message."""

    def __init__(self) -> None:
        self._mark = time.time_ns() ^ os.getpid()
        self._loop: OpenLoop | None = None

    def begin(self, loop: OpenLoop) -> None:
        """A new round, after all messages of the one before came."""
        self._loop = loop
        self._mark += 1

    def body(self, number: int) -> bytes:
        """The body of the message of this number."""
        return STAMP.pack(self._mark, number, 0) + BODY[STAMP.size :]

    def note(self, message: ReceivedMessage) -> None:
        """A message has come; called by any thread."""
        mark, number, _ = STAMP.unpack_from(message.body)
        if mark == self._mark and self._loop is not None:
            self._loop.ended(number)


def open_seen(namesrv: str, topic: str, window: int, options: ProducerOptions | None = None) -> None:
    """As `open_future`, until a listener of this process has the message."""
    seen = Seen()
    consumer = PushConsumer(namesrv, new_group("open"), consume_from="first")
    consumer.subscribe(topic)
    consumer.listen(seen.note)
    with consumer, Producer(namesrv, GROUP, **(options or {})) as producer:

        def round_of(seconds: float) -> Result:
            loop = OpenLoop(window, seconds)
            seen.begin(loop)

            def sent(number: int, done: Future[Any]) -> None:
                if (error := done.exception()) is not None:
                    loop.ended(number, error)

            loop.drive(
                lambda number: producer.send_future(topic, seen.body(number)).add_done_callback(
                    functools.partial(sent, number)
                )
            )
            return loop.result()

        serve(round_of)


def open_seen_batch(namesrv: str, topic: str, window: int) -> None:
    """As `open_seen`; many messages in one request."""
    open_seen(namesrv, topic, window, OPEN_GATHERED)


def open_turn(namesrv: str, topic: str, window: int) -> None:
    """As `open_future`; what comes in one turn of the client's loop leaves together."""
    open_future(namesrv, topic, window, OPEN_TURN)


def open_batch(namesrv: str, topic: str, window: int) -> None:
    """As `open_future`; many messages in one request."""
    open_future(namesrv, topic, window, OPEN_GATHERED)


CASES: Cases = {
    "sync": sync,
    "future": future,
    "await": send_await,
    "async": send_async,
    "batch": batch,
    "batch-future": batch_future,
    "keyed": keyed,
    "batch-keyed": batch_keyed,
    "send-columns": send_columns,
    "consume": consume,
    "consume-async": consume_async,
    "consume-columns": consume_columns,
    "consume-table": consume_table,
    "latency": latency,
    "latency-async": latency_async,
    "open-threads": open_threads,
    "open-future": open_future,
    "open-turn": open_turn,
    "open-batch": open_batch,
    "open-seen": open_seen,
    "open-seen-batch": open_seen_batch,
}


def run_case(cases: Cases, prog: str, text: str | None, server: str, window: int) -> None:
    """Run the case that the command line names. `server`: the name of its first argument; `window`: the default."""
    parser = argparse.ArgumentParser(prog=prog, description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(server)
    parser.add_argument("topic")
    parser.add_argument("case", choices=cases)
    parser.add_argument("window", type=int, nargs="?", default=window)
    a = parser.parse_args()
    work = cases[a.case](getattr(a, server), a.topic, a.window)
    if work is not None:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work)


if __name__ == "__main__":
    run_case(CASES, "python -m bench.perf", __doc__, "namesrv", 256)
