"""The sending half under a scheduler: whatever happens to sends, each caller is told once, and a key keeps its order.

A loop with a clock of its own runs a producer whose broker is the test: connections take requests, and the machine
decides which is answered, how, in what order, what is cancelled, when time passes and when the producer is closed.
"""

from __future__ import annotations

import asyncio
import itertools
import selectors
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rocketspark.client import AsyncProducer
from rocketspark.client.connection.topic_routes import RouteCache
from rocketspark.client.producer.prepared_message import pack
from rocketspark.client.producer.thread_sends import ThreadSend
from rocketspark.client.results import SendResult
from rocketspark.errors import ConnectionLost, NotSent, RocketSparkError
from rocketspark.model import BrokerData, Message, MessageQueue, QueueData, TopicRoute
from rocketspark.protocol import frames, headers
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import SendHeader, SendReply
from rocketspark.protocol.message import batch
from rocketspark.transport.request_frames import Reply

ROUTE = TopicRoute("t", (BrokerData("c", "a", {0: "a:1"}),), (QueueData("a", 2, 2, 6),))


class NoWait(selectors.SelectSelector):
    """Never waits: time is the machine's."""

    def select(self, timeout: float | None = None) -> Any:
        return super().select(0)


class Clocked(asyncio.SelectorEventLoop):
    """A loop whose time passes when it is told."""

    def __init__(self) -> None:
        super().__init__(NoWait())
        self.now_s = 1000.0

    def time(self) -> float:
        return self.now_s

    def turns(self, count: int = 40) -> None:
        for _ in range(count):
            self.call_soon(self.stop)
            self.run_forever()


class Wire:
    """A connection: keeps requests until they are answered. `lost`: it ended."""

    address = "a:1"
    is_writable = True

    def __init__(self) -> None:
        self.is_open = True
        self.opaques = itertools.count()
        self.asked: dict[int, tuple[Any, bytes]] = {}

    def next_opaque(self) -> int:
        return next(self.opaques)

    def ask_for(self, waiting: Any, opaque: int, frame: bytes, code: int, timeout_ms: float) -> None:
        if not self.is_open:
            raise NotSent("gone", address=self.address)
        self.asked[opaque] = (waiting, frame)

    def ask_encoded(self, opaque: int, frame: bytes, code: int = 0, timeout_ms: float = 0) -> asyncio.Future[Reply]:
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.ask_for(future, opaque, frame, code, timeout_ms)
        return future

    def end(self) -> None:
        self.is_open = False
        asked, self.asked = self.asked, {}
        for waiting, _ in asked.values():
            if not waiting.done():
                waiting.set_exception(ConnectionLost("lost", address=self.address))


class Told(ThreadSend):
    """A send of a thread, as the loop sees it: counts how often it was told."""

    def __init__(self, core: AsyncProducer, message: Message, timeout_ms: float | None) -> None:
        super().__init__(core, message, pack(message, core.packing), None, timeout_ms, core.attempts)
        self.outcomes: list[SendResult | BaseException | None] = []

    def done(self) -> bool:
        return bool(self.outcomes)

    def finish(self, result: SendResult | None, error: BaseException | None) -> None:
        self.task = None
        self.outcomes.append(result or self.told(error))


class Sends(RuleBasedStateMachine):
    linger_ms: float | None = None

    def __init__(self) -> None:
        super().__init__()
        self.loop = Clocked()
        self.patch = pytest.MonkeyPatch()
        for module in ("producer", "send_attempts", "in_flight_limit", "thread_sends", "accumulator"):
            self.patch.setattr(f"rocketspark.client.producer.{module}.time", _Time(self.loop))
        self.wire = Wire()
        self.stored: list[bytes] = []
        self.numbers = itertools.count()
        self.told: list[Told] = []
        self.tasks: list[asyncio.Task[SendResult]] = []
        self.given_up: set[int] = set()
        self.closing: asyncio.Task[None] | None = None
        self.routed = asyncio.Event()
        self.run(self.begin())

    def run(self, act: Any) -> Any:
        task = self.loop.create_task(act)
        self.loop.turns()
        return task.result()

    async def begin(self) -> None:
        self.core = core = AsyncProducer(
            "127.0.0.1:9", "pg", in_flight_max=3, retries=2, linger_ms=self.linger_ms, telemetry=False
        )
        instance = core._instance

        async def start(**_: Any) -> None:
            pass

        async def fetch(routes: RouteCache, topic: str) -> TopicRoute:
            await self.routed.wait()
            routes._learn(ROUTE)
            routes._write_queues[topic] = ROUTE.write_queues()
            return ROUTE

        async def dial(address: str) -> Wire:
            await asyncio.sleep(0)
            if not self.wire.is_open:
                raise NotSent("nobody there", address=address)
            return self.wire

        self.patch.setattr(instance, "start", start)
        self.patch.setattr(instance, "close", start)
        self.patch.setattr(instance, "introduce", lambda topics: None)
        self.patch.setattr(instance, "broker", dial)
        self.patch.setattr(instance, "open_broker", lambda address: self.wire if self.wire.is_open else None)
        self.patch.setattr(RouteCache, "_fetch", fetch)
        await core.start()

    # -- what happens --------------------------------------------------------------------------------------------

    def message(self, key: str | None, size: int) -> Message:
        return Message(topic="t", body=b"%05d" % next(self.numbers) + b"z" * size, sharding_key=key, tag=key)

    @precondition(lambda self: len(self.told) + len(self.tasks) < 40)
    @rule(
        key=st.sampled_from([None, "x", "y"]),
        size=st.sampled_from([0, 5000]),
        timeout_ms=st.sampled_from([None, 2000.0]),
        thread=st.booleans(),
    )
    def send(self, key: str | None, size: int, timeout_ms: float | None, thread: bool) -> None:
        message = self.message(key, size)
        if thread:
            told = Told(self.core, message, timeout_ms)
            self.told.append(told)

            def run() -> None:
                try:
                    told.run(self.loop)
                except RocketSparkError as e:
                    told.refuse(e)  # As LoopThread does.

            self.loop.call_soon(run)
        else:
            self.tasks.append(self.loop.create_task(self.core.send(message, timeout_ms=timeout_ms)))

    @rule(turns=st.integers(0, 5))
    def turn(self, turns: int) -> None:
        self.loop.turns(turns)

    @rule(at=st.integers(0, 5), code=st.sampled_from([0, 0, 0, 0, 2, 13, 14, 10]))
    def answer(self, at: int, code: int) -> None:
        if not self.wire.asked:
            return
        opaque = list(self.wire.asked)[at % len(self.wire.asked)]
        waiting, frame = self.wire.asked.pop(opaque)
        first = len(self.stored)
        if code in (0, 10):
            self.stored += _bodies(frame)
        if not waiting.done():
            reply = SendReply(message_id="0" * 32, queue_id=0, queue_offset=first)
            answer = Reply(code, "as told", msgspec.json.encode(headers.to_ext(reply)), b"", "a:1")
            self.loop.call_soon(lambda: waiting.done() or waiting.set_result(answer))
            self.loop.turns(1)

    @rule()
    def lose(self) -> None:
        """The connection ends, after what it carried was not stored; another is there."""
        ended, self.wire = self.wire, Wire()
        self.loop.call_soon(ended.end)
        self.loop.turns(1)

    @rule(seconds=st.sampled_from([0.02, 0.3, 4.0]))
    def pass_time(self, seconds: float) -> None:
        self.loop.now_s += seconds
        self.loop.turns(3)

    @rule()
    def find_route(self) -> None:
        self.routed.set()

    @precondition(lambda self: self.tasks)
    @rule(at=st.integers(0, 40))
    def cancel(self, at: int) -> None:
        self.tasks[at % len(self.tasks)].cancel()

    @precondition(lambda self: self.told)
    @rule(at=st.integers(0, 40))
    def interrupt(self, at: int) -> None:
        told = self.told[at % len(self.told)]
        told.given_up = True
        if told.task is not None:
            told.task.cancel()

    @precondition(lambda self: self.closing is None and len(self.told) + len(self.tasks) > 4)
    @rule()
    def close(self) -> None:
        self.closing = self.loop.create_task(self.core.close())

    # -- what holds ----------------------------------------------------------------------------------------------

    @invariant()
    def nobody_is_told_twice(self) -> None:
        assert all(len(t.outcomes) <= 1 for t in self.told)
        assert self.core._in_flight_limit.count >= 0

    @invariant()
    def a_key_keeps_its_order(self) -> None:
        for key in (b"x", b"y"):
            # What is stored twice was tried again; its first place counts.
            of_key = list(dict.fromkeys(b for k, b in map(_split, self.stored) if k == key))
            assert of_key == sorted(of_key)

    def teardown(self) -> None:
        try:
            self.routed.set()
            for _ in range(60):
                for _ in range(len(self.wire.asked)):
                    self.answer(0, 0)
                self.loop.turns(3)
                self.loop.now_s += 0.5
            if self.closing is None:
                self.close_now()
            self.loop.turns(50)
            assert [t.outcomes for t in self.told if len(t.outcomes) != 1] == []
            assert [t for t in self.tasks if not t.done()] == []
            for task in self.tasks:
                task.cancelled() or task.exception()  # Looked at: asyncio would complain.
            assert self.closing is not None
            assert self.closing.done()
            core = self.core
            assert (
                core._in_flight_limit.count,
                core._in_flight_limit._bytes,
                len(core._key_gate),
                len(core._retrying),
            ) == (0, 0, 0, 0)
            assert not core._in_flight_limit._waiting
            if core._batcher is not None:
                assert not (core._batcher._tasks)
                assert not (core._batcher._last)
                assert not (core._batcher._unrouted)
        finally:
            self.patch.undo()
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.turns()
            self.loop.close()

    def close_now(self) -> None:
        self.closing = self.loop.create_task(self.core.close())


class Gathered(Sends):
    linger_ms = 10.0


class _Time:
    """The module `time` with the machine's clock."""

    def __init__(self, loop: Clocked) -> None:
        self.monotonic: Callable[[], float] = loop.time
        self.time: Callable[[], float] = loop.time


def _bodies(frame: bytes) -> list[bytes]:
    """Key and number of each message of a send."""
    decoded = frames.decode(frame)
    header = headers.from_ext(SendHeader, decoded.ext)
    items = [batch.BatchItem(0, decoded.body, header.properties.encode())]
    if decoded.code == RequestCode.SEND_BATCH_MESSAGE:
        items = batch.decode(decoded.body)
    found = []
    for item in items:
        key = item.properties.partition(b"TAGS\x01")[2].partition(b"\x02")[0]
        number = item.body[:5] if item.body[:5].isdigit() else b""
        found.append(key + b":" + (number or _inflated(item.body)))
    return found


def _inflated(body: bytes) -> bytes:
    import zlib

    return zlib.decompress(body)[:5]


def _split(stored: bytes) -> tuple[bytes, bytes]:
    key, _, number = stored.partition(b":")
    return key, number


MODEL = settings(
    max_examples=20, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck), derandomize=False
)


class TestSends(Sends.TestCase):  # type: ignore[misc,name-defined]
    settings = MODEL


class TestGathered(Gathered.TestCase):  # type: ignore[misc,name-defined]
    settings = MODEL


def test_queue_of_the_model() -> None:
    """The model's route has two queues, so keys differ in their queues."""
    assert ROUTE.write_queues() == (MessageQueue("t", "a", 0), MessageQueue("t", "a", 1))
