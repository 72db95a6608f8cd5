"""Where readers see what is flushed alone: nothing that is stored stays hidden, whatever happens between."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.live.support import run, until
from tests.unit.broker.test_parts import Asked, Disk, flush_service

from rocketspark.broker.consumers.long_polling import LongPolling
from rocketspark.store.consumequeue.consume_queue import GAP_SIZE
from rocketspark.store.consumequeue.consume_queue_store import offset_behind


@pytest.mark.shows("mended: a new master hid what it had copied last, if it had flushed as far before it was cut")
def test_who_is_master_again_shows_a_log_that_ends_where_it_ended() -> None:
    async def main() -> None:
        disk = Disk()
        service = flush_service(disk, arrivals=LongPolling(log_end=lambda: disk.written_position))
        service.show_flushed(True)
        told: list[bool] = []
        disk.written_position = 7
        service.reached(7, told.append)
        await until(lambda: told)
        assert disk.shown == [0, 7]
        service.show_flushed(False)
        # Its log was cut at 5, and as much was copied since, which is not flushed yet.
        disk.flushed_position = 5
        service.show_flushed(True)
        assert disk.shown == [0, 7, None, 5]
        await until(lambda: disk.shown[-1] == 7)
        service.stop_threads()
        service.finish()

    run(main())


def test_what_no_send_waits_for_is_flushed_and_shown_at_once_and_all_is_shown_to_who_waits_once_it_may_be() -> None:
    async def main() -> None:
        disk = Disk()
        arrivals = LongPolling(log_end=lambda: disk.written_position)
        # Nothing but what is asked for is flushed within a minute.
        service = flush_service(disk, arrivals=arrivals)
        service.show_flushed(True)
        await until(lambda: disk.flushes == 1)
        waiter = Asked()
        arrivals.wait(("T", 0), 60, waiter)
        disk.written_position = 7
        arrivals.mark("T", 0)
        await until(lambda: disk.shown == [0, 7])
        disk.gate.clear()
        disk.written_position = 9
        arrivals.mark("T", 0)
        await asyncio.sleep(0)
        looks = len(waiter.asked)
        service.show_flushed(False)
        await asyncio.sleep(0)
        assert (disk.shown, len(waiter.asked)) == ([0, 7, None], looks + 1)
        disk.gate.set()
        service.stop_threads()
        service.finish()
        arrivals.close()

    run(main())


@pytest.mark.shows("mended: who waited for what a listener stored meanwhile was not told once it was shown")
def test_what_is_stored_while_others_are_shown_is_marked_again() -> None:
    async def main() -> None:
        end = [0]
        arrivals = LongPolling(log_end=lambda: end[0])
        arrivals.keep_recent("unflushed", True)

        def store(topic: str, queue_id: int) -> None:
            if end[0] == 2:
                end[0] = 3
                arrivals.mark("T", 0)

        for end[0], topic in ((1, "A"), (2, "T")):
            arrivals.mark(topic, 0)
        arrivals.listen("A", store)
        waiter = Asked()
        arrivals.wait(("T", 0), 60, waiter)
        for position, looks in ((1, 1), (2, 2), (3, 3), (4, 3)):
            arrivals.shown(position)
            await asyncio.sleep(0)
            assert len(waiter.asked) == looks
        arrivals.close()

    run(main())


class Units:
    """A queue of messages of one byte each, and gaps: `looked_at` are the offsets whose units were read."""

    def __init__(self, low: int, high: int, gaps: frozenset[int] = frozenset()) -> None:
        self.min, self.next, self.gaps = low, high, gaps
        self.looked_at: list[int] = []

    def unit(self, offset: int) -> tuple[int, int, int]:
        assert self.min <= offset < self.next
        self.looked_at.append(offset)
        return (0, GAP_SIZE, 0) if offset in self.gaps else (offset, 1, 0)

    def after_gap(self, offset: int, end: int) -> int:
        return next((at for at in range(offset, end) if at not in self.gaps), end)


@pytest.mark.shows("mended: readers were shown what is not flushed yet where a gap lay within it")
@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 120), st.frozensets(st.integers(0, 100)))
def test_a_queue_ends_for_readers_behind_its_last_message_before_a_position(
    low: int, count: int, end: int, gaps: frozenset[int]
) -> None:
    high = low + count
    queue: Any = Units(low, high, gaps - {high - 1})
    hidden = [offset for offset in range(low, high) if offset not in queue.gaps and offset + 1 > end]
    shown = [offset for offset in range(low, high) if offset not in queue.gaps and offset + 1 <= end]
    found = offset_behind(queue, end, 1 << 40)
    assert found <= min(hidden, default=high)
    assert found > max(shown, default=-1)


def test_a_long_queue_s_end_for_readers_is_found_near_its_end() -> None:
    """What lies far before may not be in memory, and each pull asks for it."""
    queue: Any = Units(0, 10_000_000)
    assert offset_behind(queue, queue.next - 3, 1 << 40) == queue.next - 3
    assert min(queue.looked_at) > queue.next - 10
