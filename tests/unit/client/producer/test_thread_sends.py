"""Futures that are cheap while nobody waits: everything concurrent.futures does with them, also against a race."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Future, TimeoutError, as_completed, wait

import pytest

from rocketspark.client.producer.thread_sends import CallbackThreads, QuickFuture


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
