"""The sending half under a scheduler: whatever happens to sends, each moves as the table of states says, each caller is
told once, and a key keeps its order.

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
from tests.support.stand_ins import like

from rocketspark import machine
from rocketspark.client import AsyncProducer
from rocketspark.client.connection.topic_routes import RouteCache
from rocketspark.client.hooks import Hooks, Sending
from rocketspark.client.producer.accumulator import Accumulator, Batch
from rocketspark.client.producer.in_flight_send import AwaitedSend, InFlightSend
from rocketspark.client.producer.prepared_message import pack
from rocketspark.client.producer.send_states import TRANSITIONS, State
from rocketspark.client.producer.thread_sends import (
    FuturePart,
    FutureSend,
    SendFuture,
    ThreadInFlightLimit,
    WaitingSend,
)
from rocketspark.client.results import SendResult
from rocketspark.client.selectors import by_hash
from rocketspark.errors import ConnectionLost, NoReply, NotSent
from rocketspark.model import BrokerData, Message, MessageQueue, QueueData, TopicRoute
from rocketspark.protocol import frames, headers
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import SendHeader, SendReply
from rocketspark.protocol.message import batch
from rocketspark.transport.request_frames import Reply
from rocketspark.transport.request_frames import request as request_frame

pytestmark = pytest.mark.shows(
    "model tests: sends, push, ordered, pull and assigning consumers, rebalance, thread listeners, "
    "transactions of clients and of the broker, delays, timers",
    "one send, client: every way is an `InFlightSend` or a message of one, moved by one table, with one exit",
)

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

    def __init__(self) -> None:
        self.is_open = True
        self.reads = asyncio.Event()
        self.reads.set()
        self.opaques = itertools.count()
        self.asked: dict[int, tuple[Any, bytes]] = {}

    def next_opaque(self) -> int:
        return next(self.opaques)

    @property
    def is_writable(self) -> bool:
        return self.reads.is_set()

    async def writable(self) -> None:
        await self.reads.wait()

    def ask_for(self, waiting: Any, opaque: int, frame: bytes, code: int, timeout_ms: float) -> None:
        if not self.is_open:
            raise NotSent("gone", address=self.address)
        self.asked[opaque] = (waiting, frame)

    def ask_encoded(self, opaque: int, frame: bytes, code: int = 0, timeout_ms: float = 0) -> asyncio.Future[Reply]:
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.ask_for(future, opaque, frame, code, timeout_ms)
        return future

    async def request(self, code: int, header: Any, body: bytes = b"", *, timeout_ms: float = 0) -> Reply:
        opaque = self.next_opaque()
        return await self.ask_encoded(opaque, request_frame(code, header, body, opaque=opaque))

    def send(self, frame: bytes) -> None:
        """One-way: it is lost."""

    def oneway(self, code: int, header: Any, body: bytes = b"") -> None:
        """One-way: it is lost."""

    def end(self) -> None:
        self.is_open = False
        self.reads.set()
        asked, self.asked = self.asked, {}
        for waiting, _ in asked.values():
            if not waiting.done():
                waiting.set_exception(ConnectionLost("lost", address=self.address))


class Watch:
    """Sees each move and each end of the sends of one run."""

    def __init__(self) -> None:
        self.moves: set[tuple[State, State]] = set()
        self.wrong: list[str] = []
        self.told: dict[int, int] = {}
        self.kept: list[InFlightSend] = []

    def watched(self, kind: type) -> type:
        """A kind of sends that are seen."""
        watch = self

        def setattr_seen(send: InFlightSend, name: str, value: Any) -> None:
            if name == "state":
                watch.moves.add((send.state, value))
                if value not in TRANSITIONS[send.state].values():
                    watch.wrong.append(f"{type(send).__name__}: {send.state} -> {value}")
            super(seen, send).__setattr__(name, value)

        def tell(send: InFlightSend, result: SendResult | None, error: BaseException | None) -> None:
            if id(send) not in watch.told:
                watch.kept.append(send)  # No other gets its id.
            watch.told[id(send)] = watch.told.get(id(send), 0) + 1
            if isinstance(error, KeyError | AttributeError | AssertionError | TypeError):
                watch.wrong.append(f"{type(send).__name__}: {error!r}")
            super(seen, send).tell(result, error)

        seen: Any = type(kind)(kind.__name__, (kind,), {"__setattr__": setattr_seen, "tell": tell})
        return seen


class CountedFuture(SendFuture):
    """Counts how often it was ended."""

    ends = 0

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "_state" and self.done():
            self.ends += 1


class Ended(BaseException):
    """No Exception."""


class Raising(Hooks):
    """Raises before a send leaves."""

    error: BaseException | None = None

    def check_forbidden(self, sending: Sending) -> None:
        if self.error is not None:
            raise self.error


class Sends(RuleBasedStateMachine):
    linger_ms: float | None = None

    def __init__(self) -> None:
        super().__init__()
        self.loop = Clocked()
        self.patch = pytest.MonkeyPatch()
        self.watch = Watch()
        self.waiting, self.future = self.watch.watched(WaitingSend), self.watch.watched(FutureSend)
        self.patch.setattr("rocketspark.client.producer.producer.AwaitedSend", self.watch.watched(AwaitedSend))
        self.patch.setattr("rocketspark.client.producer.accumulator.Batch", self.watch.watched(Batch))
        for module in ("producer", "send_attempts", "thread_sends", "in_flight_send"):
            self.patch.setattr(
                f"rocketspark.client.producer.{module}.machine",
                like(machine, monotonic=self.loop.time, time=self.loop.time),
            )
        self.wire = Wire()
        self.stored: list[bytes] = []
        self.numbers = itertools.count()
        self.of_threads: list[WaitingSend | FutureSend] = []
        self.parts: list[CountedFuture] = []
        self.room = ThreadInFlightLimit(1 << 30)
        self.raising = Raising()
        self.tasks: list[asyncio.Task[SendResult]] = []
        self.closing: asyncio.Task[None] | None = None
        self.routed, self.dialable = asyncio.Event(), asyncio.Event()
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
            await self.dialable.wait()
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

    def runs(self, send: WaitingSend | FutureSend | FuturePart) -> None:
        """Begin it as LoopThread does."""

        def run() -> None:
            try:
                send.run(self.loop)
            except BaseException as e:
                send.refuse(e)

        self.loop.call_soon(run)

    @precondition(lambda self: len(self.of_threads) + len(self.tasks) < 40)
    @rule(
        key=st.sampled_from([None, "x", "y"]),
        size=st.sampled_from([0, 5000]),
        timeout_ms=st.sampled_from([None, 2000.0]),
        how=st.sampled_from(["coroutine", "thread", "future", "part", "packed"]),
    )
    def send(self, key: str | None, size: int, timeout_ms: float | None, how: str) -> None:
        message, core = self.message(None if how == "packed" else key, size), self.core
        out = pack(message, core.packing)
        fields: Any = (core.send_path, out, key, None, timeout_ms, core.attempts, message)
        if how == "thread":
            self.of_threads.append(self.waiting(*fields))
            self.runs(self.of_threads[-1])
        elif how == "future":
            self.of_threads.append(self.future(*fields, future=SendFuture(self.room, None)))
            self.runs(self.of_threads[-1])
        elif how == "part":
            # What a future of a thread is, if it can be gathered.
            accumulator = core.accumulator
            encoded = None if accumulator is None or timeout_ms else accumulator.encode(message, None)
            if accumulator is not None and encoded is not None:
                self.parts.append(CountedFuture(self.room, None))
                self.runs(FuturePart(self.parts[-1], accumulator, "t", b"", {}, encoded))
        elif how == "packed":
            # As transactions and Spark send: past the accumulator.
            self.tasks.append(self.loop.create_task(core.send_packed(out, None, None, timeout_ms)))
        else:
            self.tasks.append(self.loop.create_task(core.send(message, timeout_ms=timeout_ms)))

    @precondition(lambda self: len(self.of_threads) + len(self.tasks) < 40)
    @rule(way=st.sampled_from(["queue", "selector", "batch", "oneway", "retry not"]))
    def send_elsewhere(self, way: str) -> None:
        message, core, queue = self.message("q", 0), self.core, MessageQueue("t", "a", 1)
        message.sharding_key = None
        sends: dict[str, Callable[[], Any]] = {
            "queue": lambda: core.send(message, queue=queue),
            "selector": lambda: core.send(message, selector=by_hash, argument=1),
            "batch": lambda: core.send_batch([self.message(None, 0), self.message(None, 0)]),
            "oneway": lambda: core.send_oneway(message),
            "retry not": lambda: core.send_packed(pack(message, core.packing), None, queue, None, 1),
        }
        if way in ("oneway", "retry not"):
            message.tag = "any"
        self.tasks.append(self.loop.create_task(sends[way]()))

    @rule(error=st.sampled_from([None, ValueError("no"), Ended("no")]), on=st.booleans())
    def hook(self, error: BaseException | None, on: bool) -> None:
        self.raising.error = error
        self.core._hooks.sends[:] = [self.raising] if on else []

    @rule(turns=st.integers(0, 5))
    def turn(self, turns: int) -> None:
        self.loop.turns(turns)

    @rule(at=st.integers(0, 5), code=st.sampled_from([0, 0, 0, 0, 2, 13, 14, 10]))
    def answer(self, at: int, code: int) -> None:
        if not self.wire.asked:
            return
        opaque = list(self.wire.asked)[at % len(self.wire.asked)]
        waiting, frame = self.wire.asked.pop(opaque)
        if waiting.done():
            return  # Nobody waits for it: it was lost.
        first = len(self.stored)
        if code in (0, 10):
            self.stored += _bodies(frame)
        if not waiting.done():
            reply = SendReply(message_id="0" * 32, queue_id=0, queue_offset=first)
            answer = Reply(code, "as told", msgspec.json.encode(headers.to_ext(reply)), b"", "a:1")
            self.loop.call_soon(lambda: waiting.done() or waiting.set_result(answer))
            self.loop.turns(1)

    @rule(at=st.integers(0, 5))
    def no_reply(self, at: int) -> None:
        """A request ends without a reply, and was not stored."""
        if self.wire.asked:
            waiting, _ = self.wire.asked.pop(list(self.wire.asked)[at % len(self.wire.asked)])
            if not waiting.done():
                waiting.set_exception(NoReply("late", address="a:1"))

    @rule(another=st.booleans())
    def lose(self, another: bool) -> None:
        """The connection ends, and what it carried was not stored; another is there, or comes later."""
        ended = self.wire
        self.loop.call_soon(ended.end)
        if another:
            self.wire = Wire()
        self.loop.turns(1)

    @rule()
    def come_back(self) -> None:
        if not self.wire.is_open:
            self.wire = Wire()

    @rule(seconds=st.sampled_from([0.02, 0.3, 4.0]))
    def pass_time(self, seconds: float) -> None:
        self.loop.now_s += seconds
        self.loop.turns(3)

    @rule()
    def find_route(self) -> None:
        self.routed.set()

    @rule(on=st.booleans())
    def reads(self, on: bool) -> None:
        """The broker reads, or what is written waits."""
        (self.wire.reads.set if on or not self.wire.is_open else self.wire.reads.clear)()

    @rule(on=st.booleans())
    def dials(self, on: bool) -> None:
        """Connections come about, or take their time."""
        (self.dialable.set if on else self.dialable.clear)()

    @precondition(lambda self: self.tasks)
    @rule(at=st.integers(0, 40))
    def cancel(self, at: int) -> None:
        self.tasks[at % len(self.tasks)].cancel()

    @precondition(lambda self: self.of_threads)
    @rule(at=st.integers(0, 40))
    def interrupt(self, at: int) -> None:
        send = self.of_threads[at % len(self.of_threads)]
        if isinstance(send, WaitingSend):
            send.cancel()

    @precondition(lambda self: self.closing is None and len(self.of_threads) + len(self.tasks) > 4)
    @rule()
    def close(self) -> None:
        self.closing = self.loop.create_task(self.core.close())

    # -- what holds ----------------------------------------------------------------------------------------------

    @invariant()
    def nobody_is_told_twice(self) -> None:
        assert set(self.watch.told.values()) <= {1}
        assert {future.ends for future in self.parts} <= {0, 1}
        assert self.core.send_path.limit.count >= 0

    @invariant()
    def no_send_leaves_the_table(self) -> None:
        assert self.watch.wrong == []

    @invariant()
    def a_key_keeps_its_order(self) -> None:
        for key in (b"x", b"y", b"q"):
            # What is stored twice was tried again; its first place counts.
            of_key = list(dict.fromkeys(b for k, b in map(_split, self.stored) if k == key))
            assert of_key == sorted(of_key)

    def teardown(self) -> None:
        try:
            for late in (self.routed, self.dialable, self.wire.reads):
                late.set()
            self.core._hooks.sends.clear()
            for _ in range(60):
                for _ in range(len(self.wire.asked)):
                    self.answer(0, 0)
                self.come_back()
                self.loop.turns(3)
                self.loop.now_s += 0.5
            if self.closing is None:
                self.close_now()
            self.loop.turns(50)
            assert [send for send in self.of_threads if self.watch.told.get(id(send)) != 1] == []
            assert [t for t in self.tasks if not t.done()] == []
            assert [future for future in self.parts if future.ends != 1] == []
            for task in self.tasks:
                task.cancelled() or task.exception()  # Looked at: asyncio would complain.
            assert self.closing is not None
            assert self.closing.done()
            path = self.core.send_path
            assert (path.limit.count, path.limit._bytes, path.oneway_limit.count) == (0, 0, 0)
            assert (len(path.gate), path.newest, len(path.limit._waiting), path.waiting) == (0, {}, 0, {})
            if path.accumulator is not None:
                assert isinstance(path.accumulator, Accumulator)
                assert not path.accumulator._waiting
                assert not path.accumulator._routing
                assert not path.accumulator._unrouted
            self.no_send_leaves_the_table()
            self.nobody_is_told_twice()
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


MODEL = settings(max_examples=20, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck))


class TestSends(Sends.TestCase):  # type: ignore[misc,name-defined]
    settings = MODEL


class TestGathered(Gathered.TestCase):  # type: ignore[misc,name-defined]
    settings = MODEL


def test_the_table_has_one_beginning_and_one_end() -> None:
    """Every state is reached from the first, and the end from every state; nothing leaves the end."""
    reached, found = {State.PREPARED}, {State.PREPARED}
    while found:
        found = {to for state in found for to in TRANSITIONS[state].values()} - reached
        reached |= found
    assert reached == set(State) == set(TRANSITIONS)
    assert [state for state in State if State.DONE not in TRANSITIONS[state].values()] == [State.DONE]
    assert TRANSITIONS[State.DONE] == {}


def test_queue_of_the_model() -> None:
    """The model's route has two queues, so keys differ in their queues."""
    assert ROUTE.write_queues() == (MessageQueue("t", "a", 0), MessageQueue("t", "a", 1))
