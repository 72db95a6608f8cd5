"""Futures that are cheap while nobody waits: everything concurrent.futures does with them, also against a race."""

from __future__ import annotations

import functools
import sys
import threading
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Future, TimeoutError, as_completed, wait

import pytest

from rocketspark.client.producer.gathered_sends import BatchOutcome
from rocketspark.client.producer.thread_sends import (
    THREADS_MAX,
    CallbackThreads,
    FuturePart,
    QuickFuture,
    SendFuture,
    ThreadInFlightLimit,
)
from rocketspark.client.results import SendResult, SendStatus
from rocketspark.model import MessageQueue


def ended(result: int = 1) -> QuickFuture[int]:
    future: QuickFuture[int] = QuickFuture()
    future.end(result, None)
    return future


def test_results_and_errors() -> None:
    assert ended(7).result(0) == 7
    assert ended().exception(0) is None
    failed: QuickFuture[int] = QuickFuture()
    failed.end(None, ValueError("no"))
    assert failed.done()
    assert isinstance(failed.exception(), ValueError)
    with pytest.raises(ValueError, match="no"):
        failed.result()
    pending: QuickFuture[int] = QuickFuture()
    assert not pending.done()
    assert not pending.cancel()
    assert not pending.running()
    with pytest.raises(TimeoutError):
        pending.result(0.01)
    assert "QuickFuture" in repr(pending)


def test_callbacks_before_and_after_in_their_order(caplog: pytest.LogCaptureFixture) -> None:
    called: list[str] = []
    future: QuickFuture[int] = QuickFuture()
    future.add_done_callback(lambda f: called.append(f"first {f.result()}"))
    future.add_done_callback(lambda f: 1 // 0)
    future.add_done_callback(lambda f: called.append("third"))
    future.end(5, None)
    future.add_done_callback(lambda f: called.append("late"))
    assert called == ["first 5", "third", "late"]
    assert "a callback of a send failed" in caplog.text


@pytest.mark.parametrize("threads", [None, CallbackThreads()], ids=["own thread", "threads"])
def test_a_callback_that_wants_to_end_its_thread_ends_no_other(
    threads: CallbackThreads | None, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[int] = []
    futures: list[QuickFuture[int]] = [QuickFuture() for _ in range(6)]
    for future in futures:
        future.executor = threads
        future.add_done_callback(lambda f: sys.exit(3))
        future.add_done_callback(lambda f: called.append(f.result()))
    for number, future in enumerate(futures):
        future.end(number, None)
    assert threads is None or threads.wait(120)
    assert sorted(called) == [0, 1, 2, 3, 4, 5]
    assert caplog.text.count("wanted to end its thread, which others need; it goes on") == 6


def test_wait_and_as_completed() -> None:
    futures: list[QuickFuture[int]] = [QuickFuture() for _ in range(50)]
    threading.Timer(0.02, lambda: [f.end(n, None) for n, f in enumerate(futures)]).start()
    done, pending = wait(futures, timeout=120, return_when=ALL_COMPLETED)
    assert (len(done), len(pending)) == (50, 0)
    assert sorted(f.result() for f in as_completed(futures)) == list(range(50))
    more: list[Future[int]] = [QuickFuture(), ended()]
    assert wait(more, return_when=FIRST_COMPLETED).done == {more[1]}


def test_ends_and_waits_race() -> None:
    """Each future is ended while others wait for it, add callbacks to it, or look at it: nobody is forgotten."""
    futures: list[QuickFuture[int]] = [QuickFuture() for _ in range(3000)]
    called = [0] * len(futures)
    start = threading.Barrier(4)

    def end() -> None:
        start.wait()
        for n, future in enumerate(futures):
            future.end(n, None)

    def wait_for_each() -> None:
        start.wait()
        for n, future in enumerate(futures):
            assert future.result(120) == n

    def add_callbacks() -> None:
        start.wait()
        for n, future in enumerate(futures):
            future.add_done_callback(lambda f, n=n: called.__setitem__(n, called[n] + 1))  # type: ignore[misc]

    def wait_in_groups() -> None:
        start.wait()
        for n in range(0, len(futures), 100):
            assert not wait(futures[n : n + 100], timeout=120).not_done

    threads = [threading.Thread(target=t) for t in (end, wait_for_each, add_callbacks, wait_in_groups)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert called == [1] * len(futures)


def test_callbacks_that_wait_are_joined_by_others() -> None:
    """Four meet, though one thread runs callbacks as long as that is enough; also one that waits for a later one."""
    threads = CallbackThreads()
    together, later = threading.Barrier(THREADS_MAX), threading.Event()
    met: list[str] = []

    def meet() -> None:
        together.wait(120)
        met.append(threading.current_thread().name)

    threads.submit_all([meet] * THREADS_MAX)
    assert threads.wait(120)
    assert met == ["rocketspark-callbacks"] * THREADS_MAX
    threads.submit_all([lambda: met.append(str(later.wait(120))), later.set])
    assert threads.wait(120)
    assert met[THREADS_MAX:] == ["True"]
    threads.close(120)


def test_callbacks_run_in_their_order_and_end_with_their_threads() -> None:
    threads = CallbackThreads()
    called: list[int] = []
    inside: list[bool] = []
    for first in range(0, 3000, 30):
        threads.submit_all([functools.partial(called.append, number) for number in range(first, first + 30)])
    threads.submit(lambda: inside.append(threads.wait(0)))
    assert threads.wait(120)
    assert sorted(called) == list(range(3000))
    assert inside == [True]
    threads.close(120)
    for thread in threads._threads:
        thread.join(120)
        assert not thread.is_alive()


def test_a_result_is_made_of_its_batch_when_it_is_asked_for() -> None:
    queue = MessageQueue("t", "a", 3)
    whole = SendResult(SendStatus.SEND_OK, "a,b,c", "x,y,z", queue, 50)
    outcome = BatchOutcome(whole, None, ["a", "b", "c"])
    futures = [SendFuture(ThreadInFlightLimit(9), None) for _ in range(3)]
    called: list[SendResult] = []
    futures[1].add_done_callback(lambda done: called.append(done.result()))
    outcome.tell([FuturePart(future, None, "t", b"x", {}) for future in futures])  # type: ignore[arg-type]
    expected = [
        SendResult(SendStatus.SEND_OK, name, place, queue, 50 + number, name)
        for number, (name, place) in enumerate(zip("abc", "xyz", strict=True))
    ]
    assert [future.result(0) for future in futures] == expected
    assert called == [expected[1]]
    assert futures[2].result() is futures[2].result()
    failed = SendFuture(ThreadInFlightLimit(9), None)
    BatchOutcome(None, ValueError("no"), ["a"]).tell([FuturePart(failed, None, "t", b"x", {})])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no"):
        failed.result(0)
