"""Whoever waits is told: errands, futures and calls end with their loop, their client and their process half."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import pytest
from tests.unit.client.fake import Fake, in_loop, until
from tests.unit.client.producer.test_producer import SEND

from rocketspark.client import AsyncProducer, Producer, PushConsumer
from rocketspark.client.connection.loop_thread import LoopThread
from rocketspark.client.hooks import Hooks
from rocketspark.client.producer.prepared_message import pack
from rocketspark.client.producer.thread_sends import WaitingSend
from rocketspark.client.selectors import by_hash
from rocketspark.errors import MessageIllegal, NoReply, NotSent, SendFailed, StateError, TooManyInFlight, UsageError
from rocketspark.model import Message, MessageQueue
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.message import record

HANG_S = 60


@pytest.fixture(autouse=True)
def _no_shared_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoopThread, "_shared", None)


def waiting_send(core: AsyncProducer, message: Message) -> WaitingSend:
    out = pack(message, core.packing)
    return WaitingSend(core.send_path, out, message.sharding_key, None, None, core.attempts, message)


@pytest.fixture
def fake() -> Iterator[Fake]:
    """A fake cluster on a loop of its own, in another thread."""
    thread = LoopThread()
    made = Fake(t=4, u=1, other=4)
    thread.call(made.__aenter__())
    yield made
    thread.call(made.__aexit__())
    thread._users = 1
    thread.release()


def in_thread(act: Any) -> Future[Any]:
    """What a call gives that is made in a thread that nobody waits for in the end."""
    ended: Future[Any] = Future()

    def run() -> None:
        try:
            ended.set_result(act())
        except BaseException as e:
            ended.set_exception(e)

    threading.Thread(target=run, daemon=True).start()
    return ended


@pytest.mark.shows("mended: a lone surrogate or `flag=None` hangs `send`, others' sends too")
@pytest.mark.parametrize("field", [{"tag": "\ud800"}, {"keys": "a\udfffb"}, {"properties": {"p": "\udc80"}}])
@pytest.mark.parametrize("linger_ms", [None, 5])
def test_half_a_character_is_refused(fake: Fake, field: Any, linger_ms: float | None) -> None:
    with Producer(fake.namesrv, "pg", linger_ms=linger_ms) as producer:
        for send in (producer.send, producer.send_future, producer.send_oneway):
            with pytest.raises(MessageIllegal, match="half of a character"):
                send("u", b"x", **field)
        assert producer.send("u", b"x", tag="ä", keys="\U0001f680").queue_offset == 0


@pytest.mark.parametrize("flag", [None, "1", 1 << 31, -(1 << 31) - 1, 1.0, True])
def test_a_flag_is_a_number_of_32_bits(fake: Fake, flag: Any) -> None:
    with Producer(fake.namesrv, "pg") as producer:
        with pytest.raises(MessageIllegal, match="32 bits"):
            producer.send("u", b"x", flag=flag)
        assert producer.send("u", b"x", flag=-(1 << 31)).queue_offset == 0


@pytest.mark.parametrize("timeout_ms", [float("nan"), float("inf")])
def test_a_time_out_is_a_number(fake: Fake, timeout_ms: float) -> None:
    with Producer(fake.namesrv, "pg") as producer, pytest.raises(UsageError, match="timeout_ms"):
        producer.send("u", b"x", timeout_ms=timeout_ms)


@pytest.mark.shows("mended: a lone surrogate or `flag=None` hangs `send`, others' sends too")
def test_an_errand_that_raises_ends_its_own_caller_and_no_other() -> None:
    thread = LoopThread.acquire()

    class Errand:
        def __init__(self, error: BaseException | None) -> None:
            self.error = error
            self.ended: Future[str] = Future()

        def run(self, loop: asyncio.AbstractEventLoop) -> None:
            if self.error is not None:
                raise self.error
            self.ended.set_result("run")

        def refuse(self, error: BaseException) -> None:
            self.ended.set_exception(error)
            raise RuntimeError("who is told may fail too")

    errands = [Errand(e) for e in (TypeError("1"), None, SystemExit("2"), None, KeyboardInterrupt("3"), None)]
    gate = threading.Event()
    thread._loop.call_soon_threadsafe(gate.wait, HANG_S)
    for errand in errands:
        thread.put(errand)
    gate.set()
    for errand in errands:
        if errand.error is None:
            assert errand.ended.result(HANG_S) == "run"
        else:
            assert errand.ended.exception(HANG_S) is errand.error
    thread.release()


@pytest.mark.shows("mended: sys.exit in a callback")
def test_what_wants_to_end_the_thread_ends_nothing(fake: Fake) -> None:
    with Producer(fake.namesrv, "pg") as producer:
        producer.send("u", b"warm")
        gate = threading.Event()
        producer._loop._loop.call_soon_threadsafe(gate.wait, HANG_S)
        futures = [producer.send_future("u", b"%d" % i) for i in range(50)]
        # While the thread is held: one that had ended would call it here.
        futures[10].add_done_callback(lambda _: sys.exit(1))
        gate.set()

        async def leave() -> None:
            raise SystemExit(3)

        with pytest.raises(SystemExit):
            producer._loop.call(leave())
        futures += [producer.send_future("u", b"%d" % i) for i in range(50)]
        assert {f.result(HANG_S).status for f in futures} == {"SEND_OK"}


@pytest.mark.shows("mended: futures never end when the loop thread ends (g2, g3, g4)")
def test_a_client_closed_by_a_callback_tells_all(fake: Fake) -> None:
    producer = Producer(fake.namesrv, "pg", in_flight_max=500, send_timeout_ms=30_000)
    producer.start()
    thread = producer._loop.thread
    producer.send("u", b"warm")
    futures = [producer.send_future("u", b"first")]
    futures[0].add_done_callback(lambda _: producer.close())

    def send_until_closed() -> None:
        while len(futures) < 100_000:
            futures.append(producer.send_future("u", b"x"))

    with pytest.raises(StateError):
        send_until_closed()
    done, left = wait(futures, timeout=HANG_S)
    assert not left
    assert {type(f.exception()) for f in done} <= {type(None), StateError}
    thread.join(HANG_S)
    assert not thread.is_alive()


@pytest.mark.shows("mended: futures never end when the loop thread ends (g2, g3, g4)")
def test_a_send_in_the_last_turn_of_the_loop_is_told(fake: Fake) -> None:
    """Its task is made, and cancelled before it begins."""
    with Producer(fake.namesrv, "pg") as producer:
        producer.send("u", b"warm")
        thread = LoopThread()
        message = Message(topic="u", body=b"x", sharding_key="k")
        core = producer._core
        core._loop = None  # Any loop may send.
        core._hooks.sends.append(Hooks())  # With hooks each has a task.
        send = waiting_send(core, message)

        async def last() -> None:
            send.run(asyncio.get_running_loop())
            assert send._task is not None
            send._task.cancel()

        thread.call(last())
        assert send.lock.acquire(timeout=HANG_S)
        assert isinstance(send.error, StateError)
        send = waiting_send(core, message)
        thread._loop.call_soon_threadsafe(lambda: (thread.put(send), thread._loop.stop()))
        thread._users = 1
        thread.release()
        assert send.lock.acquire(timeout=HANG_S)
        assert send.done()


@pytest.mark.shows("mended: interrupted start or close leaves a live member (facade half)")
def test_an_interrupted_close_goes_on_and_tells_all(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = Producer(fake.namesrv, "pg", retries=0, future_retries=0, send_timeout_ms=1500)
    producer.start()
    thread = producer._loop.thread
    producer.send("u", b"warm")
    fake.broker.silent.add(SEND)
    futures = [producer.send_future("u", b"x") for _ in range(10)]
    futures += [producer.send_future("u", b"x", sharding_key="k") for _ in range(3)]
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        producer.close()
    _, left = wait(futures, timeout=HANG_S)
    assert not left
    assert all(f.exception() is not None for f in futures)
    thread.join(HANG_S)
    assert not thread.is_alive()
    assert fake.broker.unregistered[-1].producer_group == "pg"


@pytest.mark.shows("mended: interrupted start or close leaves a live member (facade half)")
def test_an_interrupted_start_leaves_nothing(fake: Fake) -> None:
    other = Producer(fake.namesrv, "other")
    other.start()
    consumer = PushConsumer(fake.namesrv, "g", consume_from="first")
    consumer.subscribe("u")
    consumer.listen(lambda message: None)
    begun = threading.Event()
    undone = threading.Event()
    core = consumer._core

    async def start() -> None:
        begun.set()
        await asyncio.sleep(HANG_S)

    async def close() -> None:
        undone.set()

    core.start, core.close = start, close  # type: ignore[method-assign]
    users = LoopThread.acquire()._users

    def interrupt() -> None:
        begun.wait(HANG_S)
        # A signal in the very moment in which a thread begins to wait would not wake it.
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        consumer.start()
    assert undone.wait(HANG_S)
    other._loop.call(until(lambda: other._loop._users == users))
    other._loop.release()
    other.close()


@pytest.mark.shows("mended: `send_future` from a done-callback with the bound in flight blocks the loop")
def test_a_future_sent_from_a_callback_never_waits_for_room(fake: Fake) -> None:
    with Producer(fake.namesrv, "pg", in_flight_max=4) as producer:
        producer.send("u", b"warm")
        more: list[Future[Any]] = []
        done = threading.Event()

        def again(_: Future[Any]) -> None:
            more.extend(producer.send_future("u", b"again") for _ in range(20))
            done.set()

        futures = [producer.send_future("u", b"x") for _ in range(20)]
        futures[0].add_done_callback(again)
        assert done.wait(HANG_S)
        assert all(f.result(HANG_S) for f in futures + more)


@pytest.mark.shows("mended: `send_future` with selector, `in_flight_max`, executor")
def test_futures_wait_for_room_as_long_as_their_time(fake: Fake) -> None:
    with Producer(fake.namesrv, "pg", in_flight_max=2, send_timeout_ms=60_000, future_retries=0) as producer:
        producer.send("u", b"warm")
        fake.broker.silent.add(SEND)
        first = [producer.send_future("u", b"x", timeout_ms=1500) for _ in range(2)]
        with pytest.raises(TooManyInFlight, match="in_flight_max"):
            producer.send_future("u", b"x", timeout_ms=50)
        wait(first, timeout=HANG_S)
        fake.broker.silent.clear()
        # The number of the one that gave up is free again.
        assert [producer.send_future("u", b"y").result(HANG_S).status for _ in range(5)] == ["SEND_OK"] * 5


@pytest.mark.shows("mended: `send_future` with selector, `in_flight_max`, executor")
def test_callbacks_may_have_an_executor(fake: Fake) -> None:
    with (
        ThreadPoolExecutor(1, thread_name_prefix="mine") as pool,
        Producer(fake.namesrv, "pg", callback_executor=pool) as producer,
    ):
        names: Future[str] = Future()

        def called(_: Future[Any]) -> None:
            producer.send("u", b"a callback there may wait")
            names.set_result(threading.current_thread().name)

        future = producer.send_future("u", b"x")
        future.add_done_callback(called)
        assert names.result(HANG_S).startswith(("mine", "MainThread"))


@pytest.mark.shows("mended: `send_future` with selector, `in_flight_max`, executor")
def test_a_future_with_a_selector(fake: Fake) -> None:
    with Producer(fake.namesrv, "pg") as producer:
        message = Message(topic="t", body=b"x", tag="A")
        seen: list[Message] = []

        def selector(queues: Any, message: Message, argument: Any) -> MessageQueue:
            seen.append(message)
            return by_hash(queues, message, argument)

        future = producer.send_future(message, selector=selector, argument="order-1")
        message.tag = "changed"
        assert future.result(HANG_S).queue == MessageQueue("t", "broker-a", 2)
        assert (seen[0].tag, seen[0].topic) == ("A", "t")
        with pytest.raises(UsageError, match="not both"):
            producer.send_future("t", b"x", selector=by_hash, argument=1, queue=MessageQueue("t", "broker-a", 0))
        failed = producer.send_future("t", b"x", selector=lambda *_: MessageQueue("u", "broker-a", 0))
        assert isinstance(failed.exception(HANG_S), UsageError)


@pytest.mark.shows("mended: futures never end when the loop thread ends (g2, g3, g4)")
def test_a_copied_future_ends_in_a_forked_child(fake: Fake) -> None:
    with Producer(fake.namesrv, "pg", send_timeout_ms=60_000) as producer:
        producer.send("u", b"warm")
        fake.broker.silent.add(SEND)
        future = producer.send_future("u", b"x")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                told = isinstance(future.exception(), StateError)
                producer.close()  # Nothing to close here.
                status = 0 if told else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not future.done()
        fake.broker.silent.clear()
        fake.broker.server.peers and producer._loop.call(_end_connections(producer))


async def _end_connections(producer: Producer) -> None:
    for peer in producer._core._instance._greeted.values():
        peer.abort()


@pytest.mark.shows("mended: hang at interpreter exit (close in `__del__`)")
def test_the_end_of_the_interpreter_does_not_hang(fake: Fake) -> None:
    code = f"""
from rocketspark import Producer
class Keeper:
    def __init__(self, act): self.producer, self.act = producer, act
    def __del__(self): self.act(self.producer)
producer = Producer({fake.namesrv!r}, "pg")
producer.start()
producer.send("u", b"x")
future = Keeper(lambda producer: producer.send_future("u", b"y").result())
send = Keeper(lambda producer: producer.send("u", b"y"))
close = Keeper(lambda producer: producer.close())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_S)
    assert (done.returncode, done.stderr.count("StateError: ")) == (0, 2)


# -- asyncio --------------------------------------------------------------------------------------------------------


@pytest.mark.shows("mended: a message to a queue of another topic is stored in that other topic")
@in_loop
async def test_a_message_goes_to_no_queue_of_another_topic() -> None:
    async with Fake(t=4, other=4) as fake, AsyncProducer(fake.namesrv, "pg") as producer:
        wrong = MessageQueue("other", "broker-a", 1)
        batch = [Message(topic="t", body=b"x")] * 2
        for send in (
            producer.send("t", b"x", queue=wrong),
            producer.send("t", b"x", queue=wrong, sharding_key="k"),
            producer.send_oneway("t", b"x", queue=wrong),
            producer.send_batch(batch, queue=wrong),
            producer.request("t", b"x", queue=wrong),
        ):
            with pytest.raises(MessageIllegal, match="'other'"):
                await send
        assert fake.broker.requests[SEND] == 0
    async with Fake(t=4) as fake, AsyncProducer(fake.namesrv, "pg", linger_ms=0) as producer:
        with pytest.raises(MessageIllegal, match="'other'"):
            await producer.send("t", b"x", queue=wrong)


def test_nor_does_one_of_a_thread(fake: Fake) -> None:
    wrong = MessageQueue("other", "broker-a", 1)
    for linger_ms in (None, 0):
        with Producer(fake.namesrv, "pg", linger_ms=linger_ms) as producer:
            for send in (producer.send, producer.send_future):
                with pytest.raises(MessageIllegal, match="'other'"):
                    send("t", b"x", queue=wrong)


@in_loop
async def test_a_closing_goes_on_when_its_caller_is_cancelled() -> None:
    async with Fake(t=1) as fake:
        producer = AsyncProducer(fake.namesrv, "pg", send_timeout_ms=400, retries=0)
        await producer.start()
        await producer.send("t", b"warm")
        fake.broker.silent.add(SEND)
        sending = asyncio.ensure_future(producer.send("t", b"x"))
        await until(lambda: fake.broker.requests[SEND] == 2)
        closing = asyncio.ensure_future(producer.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await producer.close()
        assert sending.done()
        assert fake.broker.unregistered[-1].producer_group == "pg"
        assert producer._instance._closed


@pytest.mark.shows("mended: leaks per failed start (instance, checker, thread pool)")
@in_loop
async def test_a_start_given_up_leaves_nothing() -> None:
    async with Fake(t=1) as fake:
        before = asyncio.all_tasks()
        producer = AsyncProducer(fake.namesrv, "pg")
        starting = asyncio.ensure_future(producer.start())
        await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await until(lambda: asyncio.all_tasks() == before)
        with pytest.raises(StateError, match="closed"):
            await producer.send("t", b"x")
        await producer.close()
        # Closed while it starts.
        producer = AsyncProducer(fake.namesrv, "pg")
        starting = asyncio.ensure_future(producer.start())
        await asyncio.sleep(0)
        await producer.close()
        with pytest.raises(StateError, match="while it started"):
            await starting
        await until(lambda: asyncio.all_tasks() == before)


@pytest.mark.shows("mended: request() in close raises CancelledError")
@in_loop
async def test_a_request_ends_with_its_producer() -> None:
    async with Fake(t=1) as fake:
        producer = AsyncProducer(fake.namesrv, "pg", send_timeout_ms=60_000)
        await producer.start()
        asking = asyncio.ensure_future(producer.request("t", b"x"))
        await until(
            lambda: (
                fake.broker.requests[SEND] == 1
                and producer._instance.asked.replies
                and not producer.send_path.limit.count
            )
        )
        await producer.close()
        with pytest.raises(NoReply, match="closed"):
            await asking


def test_a_request_of_a_thread_ends_with_its_producer(fake: Fake) -> None:
    producer = Producer(fake.namesrv, "pg", send_timeout_ms=60_000)
    producer.start()
    asking = in_thread(lambda: producer.request("u", b"x"))
    producer._loop.call(until(lambda: producer._core._requests and not producer._core.send_path.limit.count))
    producer.close()
    assert isinstance(asking.exception(HANG_S), NoReply | StateError)


def bodies(fake: Fake, topic: str) -> dict[int, list[bytes]]:
    return {
        queue_id: [record.decode(r).body[:3] for r in queue]
        for (t, queue_id), queue in fake.broker.queues.items()
        if t == topic
    }


@pytest.mark.shows("mended: linger_ms breaks order per sharding key")
@pytest.mark.parametrize("linger_ms", [None, 0, 20])
def test_first_sends_of_a_key_keep_their_order(fake: Fake, linger_ms: float | None) -> None:
    """Some wait for the route, some are compressed, some have a time of their own or wait for no flush."""
    fake.names.delay_s = 0.05
    with Producer(fake.namesrv, "pg", linger_ms=linger_ms) as producer:
        futures = []
        for i in range(100):
            body = b"%03d" % i + (b"x" * 6000 if i % 5 == 4 else b"y")
            timeout_ms = 30_000 if i % 7 == 6 else None
            futures.append(
                producer.send_future("t", body, sharding_key="k", timeout_ms=timeout_ms, wait_store_ok=i % 11 != 3)
            )
        offsets = [f.result(HANG_S).queue_offset for f in futures]
    # All in one queue, each behind the one before.
    assert offsets == list(range(100))


@pytest.mark.shows("mended: linger_ms loses sends at an immediate close")
@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("linger_ms", [None, 0, 60_000])
def test_a_close_right_after_loses_nothing(fake: Fake, linger_ms: float | None, key: str | None) -> None:
    with Producer(fake.namesrv, "pg", linger_ms=linger_ms) as producer:
        futures = [producer.send_future("t", b"x", sharding_key=key) for _ in range(20)]
    assert {f.result(0).status for f in futures} == {"SEND_OK"}


@pytest.mark.shows("mended: linger_ms breaks order per sharding key")
@in_loop
async def test_room_is_no_way_to_overtake() -> None:
    async with Fake(t=4) as fake, AsyncProducer(fake.namesrv, "pg", in_flight_max=2) as producer:
        sends = []
        for i in range(60):
            sends.append(asyncio.ensure_future(producer.send("t", b"%03d" % i, sharding_key="k")))
            sends.append(asyncio.ensure_future(producer.send("t", b"not")))
            if i % 3 == 0:
                await asyncio.sleep(0)
        await asyncio.gather(*sends)
        of_key = [b for queue in bodies(fake, "t").values() for b in queue if b != b"not"]
        assert of_key == [b"%03d" % i for i in range(60)]


@pytest.mark.shows("mended: sends to a chosen queue or by selector in order when retried")
@in_loop
async def test_a_retry_to_a_chosen_queue_is_not_overtaken() -> None:
    async with Fake(t=4) as fake, AsyncProducer(fake.namesrv, "pg") as producer:
        count = iter(range(1000))
        fake.broker.rules[SEND] = lambda header, body: (14, "later") if next(count) == 0 else None
        queue = MessageQueue("t", "broker-a", 2)
        first = asyncio.ensure_future(producer.send("t", b"000", queue=queue))
        await until(lambda: fake.broker.requests[SEND] == 1)
        await asyncio.gather(first, *(producer.send("t", b"%03d" % i, queue=queue) for i in range(1, 20)))
        assert bodies(fake, "t")[2] == [b"%03d" % i for i in range(20)]
        assert (len(producer.send_path.gate), producer.send_path.newest, producer.send_path.limit.count) == (0, {}, 0)


@pytest.mark.shows("mended: sends to a chosen queue or by selector in order when retried")
@in_loop
async def test_of_sends_to_a_chosen_queue_that_are_followed_a_failed_one_is_not_tried_again() -> None:
    async with Fake(t=4) as fake, AsyncProducer(fake.namesrv, "pg") as producer:
        await producer.send("t", b"warm", selector=by_hash, argument=2)
        failed = {b"003", b"019"}
        fake.broker.rules[SEND] = lambda header, body: (14, "later") if body in failed else None
        sends = [
            asyncio.ensure_future(producer.send("t", b"%03d" % i, selector=by_hash, argument=2)) for i in range(20)
        ]
        await until(lambda: len(producer.send_path.gate) == 1 and sum(s.done() for s in sends) == 19)
        # The last one is being tried again, since nothing followed it: what comes now waits for it.
        more = [asyncio.ensure_future(producer.send("t", b"%03d" % i, selector=by_hash, argument=2)) for i in (20, 21)]
        failed.clear()
        told = await asyncio.gather(*sends, *more, return_exceptions=True)
        assert [i for i, each in enumerate(told) if isinstance(each, SendFailed)] == [3]
        assert bodies(fake, "t")[2][1:] == [b"%03d" % i for i in range(22) if i != 3]
        assert (len(producer.send_path.gate), producer.send_path.newest, producer.send_path.limit.count) == (0, {}, 0)


@pytest.mark.shows("mended: sends to a chosen queue or by selector in order when retried")
@pytest.mark.parametrize("options", [{}, {"log_sends": True}, {"in_flight_max": 7}])
@in_loop
async def test_sends_to_a_chosen_queue_do_not_wait_for_replies(options: Any) -> None:
    async with Fake(t=4) as fake, AsyncProducer(fake.namesrv, "pg", **options) as producer:
        queue = MessageQueue("t", "broker-a", 2)
        await producer.send("t", b"warm", queue=queue)
        fake.broker.silent.add(SEND)
        asked = 1 + options.get("in_flight_max", 100)
        sends = [asyncio.ensure_future(producer.send("t", b"x", queue=queue)) for _ in range(100)]
        await until(lambda: fake.broker.requests[SEND] == asked)
        for each in sends:
            each.cancel()
        await asyncio.wait(sends)
        assert (len(producer.send_path.gate), producer.send_path.newest, producer.send_path.limit.count) == (0, {}, 0)
        fake.broker.silent.clear()
        assert (await producer.send("t", b"x", queue=queue)).queue == queue


@in_loop
async def test_a_batch_that_waits_too_long_is_told_and_not_overtaken() -> None:
    batch = RequestCode.SEND_BATCH_MESSAGE
    async with Fake(t=1) as fake:
        options: Any = {"linger_ms": 0, "send_timeout_ms": 300, "retries": 0}
        async with AsyncProducer(fake.namesrv, "pg", **options) as producer:
            await producer.send("t", b"warm")
            fake.broker.silent |= {SEND, batch}
            first = asyncio.ensure_future(producer.send("t", b"1", sharding_key="k", timeout_ms=1000))
            await until(lambda: fake.broker.requests[SEND] == 2)
            second = asyncio.ensure_future(producer.send("t", b"2", sharding_key="k"))
            with pytest.raises(NotSent, match="took too long"):
                await second
            assert not first.done()
            third = asyncio.ensure_future(producer.send("t", b"3", sharding_key="k", timeout_ms=5000))
            fake.broker.silent.clear()
            assert (await third).status == "SEND_OK"
            assert first.done()
            assert isinstance(first.exception(), Exception)


@pytest.mark.shows("tens of thousands of sends at once right after `start`, before route and connection are known")
def test_what_waits_for_a_route_and_a_broker_takes_no_task_and_keeps_its_order(fake: Fake) -> None:
    fake.names.delay_s = 0.2
    with Producer(fake.namesrv, "pg") as producer:
        path = producer._core.send_path
        futures = [producer.send_future("u", b"%d" % i) for i in range(2000)]

        async def look() -> int:
            await until(lambda: len(path.waiting) == 2000)
            return len(asyncio.all_tasks())

        assert producer._loop.call(look()) < 20
        assert [f.result(HANG_S).queue_offset for f in futures] == list(range(2000))
        assert (path.waiting, fake.names.fetches["u"]) == ({}, 1)


LATE = {
    "route": r"^route of topic 't': not had in time, nothing was sent$",
    "connection": r"connection to 127.0.0.1:\d+: not had in time, nothing was sent$",
    "reader": r"127.0.0.1:\d+ does not read: not had in time, nothing was sent$",
    "key": "what goes before to the same key or queue took too long: not had in time, nothing was sent$",
    "room": "^nothing was sent: 1 requests of 1 bytes are in flight; send slower",
}


@pytest.mark.shows("tens of thousands of sends at once right after `start`, before route and connection are known")
@pytest.mark.parametrize("oneway", [False, True])
@pytest.mark.parametrize("lack", LATE)
@in_loop
async def test_who_waits_without_a_task_is_told_for_what(
    lack: str, oneway: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = {"room": TooManyInFlight, "connection": SendFailed, "reader": SendFailed}.get(lack, NotSent)
    async with (
        Fake(t=1) as fake,
        AsyncProducer(fake.namesrv, "pg", in_flight_max=1, oneway_in_flight_max=1) as producer,
    ):
        path = producer.send_path
        if lack == "route":
            fake.names.delay_s = 0.3
        elif lack == "connection":
            monkeypatch.setattr(producer._instance, "broker", lambda address: asyncio.sleep(HANG_S))
        else:
            sent = await producer.send("t", b"warm")
            peer = producer._send_attempts.open_peer(sent.queue)
            if lack == "reader":
                peer.pause_writing()
            elif lack == "key":
                path.gate.take_place(MessageQueue("t", "broker-a", 0))
            else:
                assert path.limit.try_enter(1)
                assert path.oneway_limit.try_enter(1)
        queue = MessageQueue("t", "broker-a", 0) if lack == "key" else None
        send = producer.send_oneway if oneway and lack != "key" else producer.send
        with pytest.raises(NotSent if oneway and kind is SendFailed else kind, match=LATE[lack]):
            await send("t", b"x", queue=queue, timeout_ms=50)
        assert path.waiting == {}
        if lack == "reader":
            peer.resume_writing()
        elif lack == "key":
            path.gate.leave(queue)
        elif lack == "room":
            path.limit.leave(1)
            path.oneway_limit.leave(1)


def test_nothing_is_left_after_failed_starts() -> None:
    async def run() -> None:
        for _ in range(5):
            producer = AsyncProducer("127.0.0.1:1", "pg", namesrv_url=None)
            await producer.start()
            await producer.close()

    asyncio.run(run())
    gc.collect()
    left = [o for o in gc.get_objects() if type(o) is AsyncProducer and o.group == "pg" and o._state == "started"]
    assert left == []
