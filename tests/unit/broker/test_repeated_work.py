"""Intervals that change while they pass."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from rocketspark.broker import repeated_work
from rocketspark.broker.pop import revive
from rocketspark.broker.repeated_work import RepeatedWork, pause
from rocketspark.broker.storage.flush import FlushService
from rocketspark.broker.storage.json_tables import SaveFailures

pytestmark = pytest.mark.shows("settings of intervals that change live")

HOUR_MS = 3_600_000


class Interval:
    """A setting: an hour until it was asked for, a millisecond from then on."""

    def __init__(self) -> None:
        self.asked = 0

    def ms(self) -> float:
        self.asked += 1
        return HOUR_MS if self.asked <= 2 else 1

    @property
    def revive_interval_ms(self) -> float:
        return self.ms()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (repeated_work, revive):
        monkeypatch.setattr(module, "LOOK_S", 0.01)


def run(main: Callable[[], Any]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await main()

    asyncio.run(bounded())


@pytest.mark.parametrize("event", [None, asyncio.Event])
def test_a_pause_made_shorter_ends(event: type[asyncio.Event] | None) -> None:
    async def main() -> None:
        interval = Interval()
        await pause(interval.ms, event() if event is not None else None)
        assert interval.asked == 3

    run(main)


def test_a_pause_ends_with_its_event_which_is_cleared() -> None:
    async def main() -> None:
        wanted = asyncio.Event()
        asyncio.get_running_loop().call_later(0.02, wanted.set)
        await pause(lambda: HOUR_MS, wanted)
        assert not wanted.is_set()

    run(main)


def test_work_whose_interval_is_made_shorter_is_done_by_the_new_one() -> None:
    async def main() -> None:
        interval, done = Interval(), asyncio.Event()
        work = RepeatedWork(SaveFailures())
        work.every("w", lambda: interval.ms() / 1000, done.set)
        await done.wait()
        work.stop()

    run(main)


def test_popped_messages_go_by_a_shorter_interval_at_once() -> None:
    async def main() -> None:
        interval, turns = Interval(), asyncio.Queue[int]()
        revived: Any = object.__new__(revive.Revive)
        revived._settings, revived._timer, revived.messages = interval, None, Mock()

        def work() -> float:
            turns.put_nowait(interval.asked)
            return interval.ms() / 1000

        revived.work = work
        revived.start()
        for _ in range(3):
            await turns.get()
        revived.stop()

    run(main)


def test_flushes_go_by_new_times_at_once() -> None:
    flushed, queues = threading.Event(), threading.Event()

    class Flushed:
        written_position = 0

        def flush_log(self) -> int:
            flushed.set()
            return 0

        def populate_ahead(self) -> None: ...
        def flush_queues(self) -> None: ...
        def flush_indexes(self) -> None: ...
        def write_checkpoint(self) -> None: ...
        def remove_deleted(self) -> None:
            queues.set()

    async def main() -> None:
        store: Any = Flushed()
        service = FlushService(store, interval_ms=HOUR_MS, queue_interval_ms=HOUR_MS, timeout_ms=1000)
        service.start()
        service.set_times(interval_ms=1, queue_interval_ms=1, timeout_ms=1000)
        for _ in range(2):
            for event in (flushed, queues):
                assert await asyncio.to_thread(event.wait, 50)
                event.clear()
        service.stop_threads()

    run(main)
