"""What runs listeners: coroutines that plain functions return, failures of every kind, workers that end, close."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.unit.client.consumer.test_push_consumer import consumer
from tests.unit.client.fake import Fake, in_loop, until

from rocketspark.client import AsyncPushConsumer
from rocketspark.client.callbacks import Outcome, Overdue, in_thread
from rocketspark.client.consume_stats import TopicCounts
from rocketspark.client.consumer.listeners import OrderedListeners, TaskListeners, ThreadListeners
from rocketspark.client.hooks import Consuming, Hooks
from rocketspark.errors import UsageError
from rocketspark.model import MessageQueue, ReceivedMessage
from rocketspark.protocol.message import record

QUEUE = MessageQueue("t", "broker-a", 0)


def message(offset: int, topic: str = "t") -> ReceivedMessage:
    data = record.encode(
        topic=topic.encode(),
        queue_id=0,
        queue_offset=offset,
        position=offset * 100,
        body=b"%d" % offset,
        properties=b"",
    )
    (made,) = record.decode_messages(data, "broker-a")
    return made


def puller(queue: MessageQueue = QUEUE) -> Any:
    return SimpleNamespace(dropped=False, counts=TopicCounts(), queue=queue)


def plain(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """An everyday decorator."""

    @functools.wraps(function)
    def call(given: Any) -> Any:
        return function(given)

    return call


class Outcomes:
    def __init__(self) -> None:
        self.done: list[int] = []
        self.failed: list[int] = []

    def report(self, outcomes: list[Outcome]) -> None:
        for _, done, failed in outcomes:
            self.done += [given.queue_offset for given in done]
            self.failed += [given.queue_offset for given in failed]


def tasks(listener: Any, count: int, outcomes: Outcomes) -> TaskListeners:
    return TaskListeners(listener, count, outcomes.report, Overdue(100, lambda owner, given: None))


def ordered(listener: Any, outcomes: Outcomes, **more: Any) -> OrderedListeners:
    async def give_up(puller: Any, messages: list[ReceivedMessage]) -> bool:
        return True

    settings: dict[str, Any] = {"suspend_ms": 1, "attempts_max": -1, "may_run": lambda queue: True, "give_up": give_up}
    return OrderedListeners(listener, 2, outcomes.report, **(settings | more))


@pytest.mark.shows("mended: coroutine listeners: a message stuck until the next arrives")
@pytest.mark.parametrize("count", [1, 20])
def test_what_is_put_as_the_last_worker_ends_is_run(count: int) -> None:
    @in_loop
    async def run() -> None:
        async def listener(given: ReceivedMessage) -> None:
            pass

        outcomes, f = Outcomes(), puller()
        listeners = tasks(listener, count, outcomes)
        for turns in range(4):
            listeners.put(f, [message(i) for i in range(count)])
            for _ in range(turns):
                await asyncio.sleep(0)
            listeners.put(f, [message(1000)])
            await until(lambda: 1000 in outcomes.done)
            await until(lambda: len(outcomes.done) == count + 1)
            outcomes.done.clear()
        await listeners.close()

    run()


@pytest.mark.shows("mended: a listener that returns a coroutine acknowledges without running (ordered too)")
@pytest.mark.parametrize("hooks", [False, True])
@pytest.mark.parametrize("is_ordered", [False, True])
def test_a_coroutine_that_a_plain_function_returns_is_run(is_ordered: bool, hooks: bool) -> None:
    @in_loop
    async def run() -> None:
        seen: list[tuple[bytes, bool]] = []

        class Look(Hooks):
            def after_consume(self, consuming: Consuming) -> None:
                seen.append((consuming.messages[0].body, consuming.success))

        async with Fake(t=1) as fake:
            fake.broker.put("t", 0, b"good")
            fake.broker.put("t", 0, b"bad")
            ran: list[tuple[bytes, int, bool]] = []
            loop_thread = threading.get_ident()

            @plain
            async def listener(message: ReceivedMessage) -> bool:
                await asyncio.sleep(0)
                ran.append((message.body, message.reconsume_times, threading.get_ident() == loop_thread))
                if message.body == b"bad" and not message.reconsume_times:
                    raise ValueError("as the test wants it")
                return True

            more: dict[str, Any] = {"hooks": [Look()]} if hooks else {}
            async with consumer(fake, listener, ordered=is_ordered, suspend_ms=1, **more):
                await until(lambda: len(ran) == 3)
            assert sorted(ran) == [(b"bad", 0, True), (b"bad", 1, True), (b"good", 0, True)]
            assert fake.broker.offsets["g", "t", 0] == 2
            assert len(fake.broker.send_backs) == (0 if is_ordered else 1)
            if hooks:
                assert sorted(seen) == [(b"bad", False), (b"bad", True), (b"good", True)]

    run()


@pytest.mark.shows("mended: a listener that returns a coroutine acknowledges without running (ordered too)")
@pytest.mark.parametrize("is_ordered", [False, True])
def test_a_coroutine_that_a_coroutine_returns_is_run(is_ordered: bool) -> None:
    @in_loop
    async def run() -> None:
        ran: list[int] = []

        async def handle(given: ReceivedMessage) -> bool:
            ran.append(given.queue_offset)
            return len(ran) > 1

        async def forgot_to_await(given: ReceivedMessage) -> Any:
            return handle(given)

        outcomes = Outcomes()
        listeners = ordered(forgot_to_await, outcomes) if is_ordered else tasks(forgot_to_await, 1, outcomes)
        listeners.put(puller(), [message(7)])
        if is_ordered:
            await until(lambda: outcomes.done == [7])
            assert ran == [7, 7]
        else:
            await until(lambda: outcomes.failed == [7])
        await listeners.close()

    run()


@pytest.mark.shows("mended: a listener that returns a coroutine acknowledges without running (ordered too)")
@pytest.mark.parametrize("how", ["plain", "coroutine", "ordered", "hooks"])
def test_a_false_of_numpy_is_one(how: str) -> None:
    """As what is computed of columns is: `(batch.reconsume_times > 0).all()`."""

    @in_loop
    async def run() -> None:
        async with Fake(t=1) as fake:
            fake.broker.put("t", 0, b"x")
            got: list[int] = []

            def listener(given: ReceivedMessage) -> Any:
                got.append(given.reconsume_times)
                return np.bool_(given.reconsume_times > 0)

            async def coroutine(given: ReceivedMessage) -> Any:
                return listener(given)

            class Look(Hooks):
                def after_consume(self, consuming: Consuming) -> None:
                    assert consuming.success is (consuming.messages[0].reconsume_times > 0)

            more: dict[str, Any] = {"ordered": True, "suspend_ms": 1} if how == "ordered" else {}
            if how == "hooks":
                more = {"hooks": [Look()]}
            async with consumer(fake, coroutine if how == "coroutine" else listener, **more):
                await until(lambda: len(got) == 2)
            assert got == [0, 1]

    run()


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("how", ["plain", "coroutine", "ordered", "hooks"])
def test_a_list_that_a_listener_empties_is_done_or_comes_again(how: str, fails: bool) -> None:
    """`while messages: messages.pop()` is how some take what they are given."""

    @in_loop
    async def run() -> None:
        async with Fake(t=1) as fake:
            for number in range(4):
                fake.broker.put("t", 0, b"%d" % number)
            got: list[tuple[bytes, int]] = []

            def listener(given: list[ReceivedMessage]) -> None:
                again = given[0].reconsume_times > 0
                while given:
                    message = given.pop()
                    got.append((message.body, message.reconsume_times))
                if fails and not again:
                    raise RuntimeError("as the test wants it")

            async def coroutine(given: list[ReceivedMessage]) -> None:
                listener(given)

            more: dict[str, Any] = {"ordered": True, "suspend_ms": 1} if how == "ordered" else {}
            if how == "hooks":
                more = {"hooks": [Hooks()]}
            made = consumer(
                fake,
                coroutine if how == "coroutine" else listener,
                batch_max=10,
                threads=1,
                commit_interval_ms=5,
                **more,
            )
            async with made:
                await until(lambda: len(got) == (8 if fails else 4))
                await until(lambda: fake.broker.offsets.get(("g", "t", 0)) == 4)
            assert sorted({body for body, times in got if times == int(fails)}) == [b"0", b"1", b"2", b"3"]

    run()


@in_loop
async def test_a_generator_is_no_listener() -> None:
    def yields(given: ReceivedMessage) -> Any:
        yield given

    async def yields_too(given: ReceivedMessage) -> Any:
        yield given

    made = AsyncPushConsumer("127.0.0.1:1", "g")
    for listener in (yields, yields_too):
        with pytest.raises(UsageError, match="yield"):
            made.listen(listener)
    outcomes = Outcomes()
    threads = ThreadListeners(plain(yields), 2, outcomes.report, Overdue(100, lambda owner, given: None))
    threads.put(puller(), [message(0)])
    await until(lambda: outcomes.failed == [0])
    await threads.close()
    assert outcomes.done == []


@pytest.mark.shows("quick listeners: one hand-over to a thread, one back, and one task for a run of messages")
@in_loop
async def test_messages_read_together_are_handed_over_together(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, told, last = asyncio.get_running_loop(), 0, threading.Event()

    class Loop:
        """The loop, whose wake-ups by threads are counted."""

        def __getattr__(self, name: str) -> Any:
            return getattr(loop, name)

        def call_soon_threadsafe(self, *what: Any) -> Any:
            nonlocal told
            told += 1
            return loop.call_soon_threadsafe(*what)

    outcomes, f = Outcomes(), puller()
    threads = ThreadListeners(
        lambda given: last.set() if given.queue_offset == 255 else None,
        20,
        outcomes.report,
        Overdue(100, lambda owner, given: None),
    )
    monkeypatch.setattr(threads, "_loop", Loop())
    threads.put(f, [message(i) for i in range(256)])
    # The loop does nothing else until all calls were made.
    assert last.wait(60)
    await until(lambda: len(outcomes.done) == 256)
    # The last one may end as the loop looks already.
    assert (outcomes.done, told in (1, 2), len(threads._threads)) == (list(range(256)), True, 1)
    await threads.close()

    made: set[Any] = set()

    async def listener(given: ReceivedMessage) -> None:
        made.add(asyncio.current_task())

    outcomes = Outcomes()
    listeners = tasks(listener, 20, outcomes)
    listeners.put(f, [message(i) for i in range(256)])
    await until(lambda: len(outcomes.done) == 256)
    assert (outcomes.done, len(made)) == (list(range(256)), 1)
    await listeners.close()


@in_loop
async def test_coroutines_that_wait_run_side_by_side() -> None:
    """As many as may, soon; however they are put: as one run, one by one, behind a run of which no call is left."""
    for puts in ([30], [1] * 30, [1, 29], [29, 1]):
        go_on, running = asyncio.Event(), 0

        async def listener(given: ReceivedMessage, go_on: asyncio.Event = go_on) -> None:
            nonlocal running
            running += 1
            await go_on.wait()

        outcomes, f, number = Outcomes(), puller(), 0
        listeners = tasks(listener, 20, outcomes)
        for count in puts:
            listeners.put(f, [message(number + i) for i in range(count)])
            number += count
        for _ in range(20):
            await asyncio.sleep(0)
        assert running == 20
        go_on.set()
        await until(lambda o=outcomes: len(o.done) == 30)
        assert sorted(outcomes.done) == list(range(30))
        await listeners.close()


@pytest.mark.parametrize("is_coroutine", [False, True])
def test_one_listener_at_a_time_goes_on_after_every_message(is_coroutine: bool) -> None:
    """`threads=1`, each message put as the one before it ends."""

    @in_loop
    async def run() -> None:
        async def coroutine(given: ReceivedMessage) -> None:
            pass

        outcomes, f = Outcomes(), puller()
        listeners: Any = (
            tasks(coroutine, 1, outcomes)
            if is_coroutine
            else ThreadListeners(lambda given: None, 1, outcomes.report, Overdue(100, lambda owner, given: None))
        )
        for i in range(300):
            listeners.put(f, [message(i)])
            await until(lambda i=i: len(outcomes.done) == i + 1)
        assert outcomes.done == list(range(300))
        await listeners.close()

    run()


@in_loop
async def test_a_call_that_takes_too_long_is_reported_once_and_its_end_counts_no_more() -> None:
    go_on, expired = threading.Event(), []
    outcomes, f = Outcomes(), puller()
    overdue = Overdue(0.05, lambda owner, given: expired.append((owner, given.queue_offset)))

    def listener(given: ReceivedMessage) -> None:
        if given is slow:
            go_on.wait(60)

    slow = message(1)
    threads = ThreadListeners(listener, 2, outcomes.report, overdue)
    threads.put(f, [message(0), slow, message(2)])
    await until(lambda: len(expired) == 1)
    # It comes again while the first call still runs: that is another call.
    go_on.set()
    threads.put(f, [slow])
    await until(lambda: len(outcomes.done) == 3)
    await threads.close()
    assert (expired, sorted(outcomes.done), outcomes.failed) == ([(f, 1)], [0, 1, 2], [])


class Stop(BaseException):
    """Nothing that anybody knows."""


async def cancelled_elsewhere(given: Any) -> None:
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


async def exits(given: Any) -> None:
    raise SystemExit(3)


async def stops(given: Any) -> None:
    raise Stop


FAILURES: list[Any] = [cancelled_elsewhere, exits, stops]


@pytest.mark.shows("mended: a coroutine listener that raises CancelledError (concurrent, ordered)")
@pytest.mark.parametrize("failure", FAILURES)
def test_whatever_a_coroutine_raises_is_the_failure_of_its_message(failure: Any) -> None:
    @in_loop
    async def run() -> None:
        async def listener(given: ReceivedMessage) -> None:
            if given.queue_offset == 2:
                await failure(given)

        outcomes, f = Outcomes(), puller()
        listeners = tasks(listener, 1, outcomes)
        listeners.put(f, [message(i) for i in range(5)])
        await until(lambda: len(outcomes.done) == 4)
        assert outcomes.failed == [2]
        # The same where a thread waits for it.
        threads = ThreadListeners(plain(listener), 1, outcomes.report, Overdue(100, lambda owner, given: None))
        threads.put(f, [message(2), message(3)])
        await until(lambda: len(outcomes.done) == 5)
        assert outcomes.failed == [2, 2]
        await threads.close()
        await listeners.close()

    run()


@pytest.mark.shows("mended: a coroutine listener that raises CancelledError (concurrent, ordered)")
@pytest.mark.parametrize("failure", FAILURES)
def test_in_order_nothing_overtakes_what_failed_by_whatever(failure: Any) -> None:
    @in_loop
    async def run() -> None:
        calls: list[int] = []

        async def listener(given: ReceivedMessage) -> None:
            calls.append(given.queue_offset)
            if given.queue_offset == 2 and calls.count(2) < 3:
                await failure(given)

        for each in (listener, plain(listener)):
            calls.clear()
            outcomes, f = Outcomes(), puller()
            listeners = ordered(each, outcomes)
            listeners.put(f, [message(i) for i in range(5)])
            await until(lambda o=outcomes: len(o.done) == 5)
            assert (calls, outcomes.done) == ([0, 1, 2, 2, 2, 3, 4], [0, 1, 2, 3, 4])
            await listeners.close()

    run()


@pytest.mark.shows("mended: a coroutine listener that raises CancelledError (concurrent, ordered)")
@in_loop
async def test_a_worker_that_is_cancelled_leaves_its_message_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketspark.client.consumer.listeners.CANCELLED_PAUSE_S", 0.001)

    async def listener(given: ReceivedMessage) -> None:
        if given.queue_offset == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

    outcomes, f = Outcomes(), puller()
    listeners = tasks(listener, 1, outcomes)
    listeners.put(f, [message(i) for i in range(4)])
    await until(lambda: sorted(outcomes.done) == [0, 2, 3])
    assert outcomes.failed == [1]
    await listeners.close()
    calls: list[int] = []

    async def once(given: ReceivedMessage) -> None:
        calls.append(given.queue_offset)
        if calls == [0]:
            await listener(message(1))

    outcomes = Outcomes()
    in_order = ordered(once, outcomes)
    in_order.put(f, [message(i) for i in range(3)])
    await until(lambda: outcomes.done == [0, 1, 2])
    assert calls == [0, 0, 1, 2]
    await in_order.close()


@in_loop
async def test_in_order_a_message_that_cannot_be_given_up_stays() -> None:
    tries = 0

    async def give_up(puller: Any, messages: list[ReceivedMessage]) -> bool:
        nonlocal tries
        tries += 1
        return tries == 3

    async def listener(given: ReceivedMessage) -> bool:
        return given.queue_offset != 1

    outcomes, f = Outcomes(), puller()
    listeners = ordered(listener, outcomes, attempts_max=0, give_up=give_up)
    listeners.put(f, [message(i) for i in range(3)])
    await until(lambda: len(outcomes.done) == 3)
    assert (outcomes.done, tries) == ([0, 1, 2], 3)
    await listeners.close()


@pytest.mark.shows("mended: leaks: messages of ended tasks; a consumer and a timer per failed start")
@in_loop
async def test_messages_of_calls_that_ended_are_let_go() -> None:
    async def listener(given: ReceivedMessage) -> None:
        await asyncio.sleep(0)

    outcomes = Outcomes()
    overdue = Overdue(100, lambda owner, given: None)
    listeners = TaskListeners(listener, 8, outcomes.report, overdue)
    for i in range(100):
        listeners.put(puller(), [message(i)])
        overdue._timer.cancel()
        await asyncio.sleep(0)
        overdue._look()
    assert overdue._seen
    await until(lambda: len(outcomes.done) + len(outcomes.failed) == 100)
    overdue._timer.cancel()
    overdue._look()
    await listeners.close()
    assert (overdue._seen, overdue.slots, overdue._given_up) == ({}, set(), {})


@pytest.mark.filterwarnings("ignore:coroutine '.*' was never awaited")
def test_a_thread_that_waits_for_a_loop_that_ended_goes_on() -> None:
    loop = asyncio.new_event_loop()
    outcome: list[type[BaseException]] = []

    async def never() -> None:
        raise AssertionError

    def wait() -> None:
        try:
            in_thread(never(), loop)
        except BaseException as e:
            outcome.append(type(e))

    thread = threading.Thread(target=wait)
    thread.start()
    loop.call_soon(loop.stop)
    loop.close()
    thread.join(60)
    assert not thread.is_alive()
    assert len(outcome) == 1
    gc.collect()


@pytest.mark.shows("mended: sys.exit in a callback (consumer half: listeners, hooks, on_assigned/on_revoked)")
@in_loop
async def test_a_hook_that_raises_anything_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Wild(Hooks):
        def before_consume(self, consuming: Consuming) -> None:
            raise SystemExit

        def after_consume(self, consuming: Consuming) -> None:
            raise asyncio.CancelledError

    async with Fake(t=1) as fake:
        fake.broker.put("t", 0, b"0")
        got: list[bytes] = []

        async def listener(given: ReceivedMessage) -> None:
            got.append(given.body)

        with caplog.at_level(logging.CRITICAL, "rocketspark.client"):
            async with consumer(fake, listener, hooks=[Wild()]):
                await until(lambda: got == [b"0"])
        assert fake.broker.offsets["g", "t", 0] == 1
