"""Listeners in threads in any order of events: what is put, given up, ends well or badly, and when all is closed.

The calls wait in their threads until the machine says how they end, so it is known what runs. Each message is given out
once at most and in order, what began is reported once and as it ended, no more run at once than may, as many run as
can, and nothing is left after the close.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.unit.client.consumer.test_listeners import message
from tests.unit.client.fake import until
from tests.unit.client.machines import run_machine

from rocketspark.client.callbacks import Outcome, Overdue
from rocketspark.client.consume_stats import TopicCounts
from rocketspark.client.consumer.listeners import ThreadListeners

pytestmark = pytest.mark.shows(
    "model tests: sends, push, ordered, pull and assigning consumers, rebalance, thread listeners, "
    "transactions of clients and of the broker, delays, timers"
)

ENDINGS = ["taken", "taken", "refused", "raises", "exits", "coroutine", "refused later"]


class Call:
    """One call of the listener, in its thread."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.ending = ""
        self.go_on = threading.Event()


class Machine(RuleBasedStateMachine):
    @initialize(count=st.integers(1, 4))
    def begin(self, count: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.count = count
        self.pullers = [SimpleNamespace(dropped=False, counts=TopicCounts()) for _ in range(3)]
        self.put: list[tuple[Any, Any]] = []
        # Numbers of messages: those given out, in order; those that were given up before.
        self.given: list[int] = []
        self.gone: set[int] = set()
        self.running: dict[int, Call] = {}
        self.ended: dict[int, bool] = {}
        self.reported: list[tuple[int, bool]] = []
        self.closing: asyncio.Task[None] | None = None
        self.guard = threading.Lock()
        self.most = 0

        async def make() -> ThreadListeners:
            return ThreadListeners(self.listen, count, self.report, Overdue(1e9, lambda owner, given: None))

        self.listeners = self.loop.run_until_complete(make())

    def listen(self, given: Any) -> Any:
        call = Call(given.queue_offset)
        with self.guard:
            self.given.append(call.number)
            self.running[call.number] = call
            self.most = max(self.most, len(self.running))
        call.go_on.wait()
        with self.guard:
            del self.running[call.number]
        return ENDS[call.ending]()

    def report(self, outcomes: list[Outcome]) -> None:
        for _, done, failed in outcomes:
            self.reported += [(given.queue_offset, True) for given in done]
            self.reported += [(given.queue_offset, False) for given in failed]

    def settle(self) -> None:
        """Until as many run as may, and all that ended was reported."""

        def settled() -> bool:
            with self.guard:
                room = min(self.count, len(self.running) + len(self.left()))
                return len(self.running) == room and len(self.reported) == len(self.ended)

        self.loop.run_until_complete(until(settled))
        assert self.most <= self.count
        assert self.gone.isdisjoint(self.given), "what was given up is given out"
        assert dict(self.reported) == self.ended
        assert self.given == [n for n in range(len(self.put)) if n in set(self.given)], "one overtook another"

    def left(self) -> list[int]:
        """What waits and is to be given out."""
        begun = set(self.given)
        return [] if self.closing else [n for n, (f, _) in enumerate(self.put) if n not in begun and not f.dropped]

    @rule(at=st.integers(0, 2), count=st.integers(1, 6))
    def messages_come(self, at: int, count: int) -> None:
        first = len(self.put)
        messages = [message(first + n) for n in range(count)]
        if self.closing is None:
            self.put += [(self.pullers[at], given) for given in messages]
            self.loop.run_until_complete(self.act(self.listeners.put, self.pullers[at], messages))
            self.settle()

    async def act(self, function: Callable[..., Any], *arguments: Any) -> None:
        function(*arguments)

    @rule(at=st.integers(0, 2))
    def a_queue_is_given_up(self, at: int) -> None:
        # Nothing begins just now: whoever may begin something waits in a call.
        begun = set(self.given)
        self.gone |= {n for n, (f, _) in enumerate(self.put) if f is self.pullers[at] and n not in begun}
        self.pullers[at].dropped = True
        self.pullers[at] = SimpleNamespace(dropped=False, counts=TopicCounts())
        self.settle()

    @precondition(lambda self: self.running)
    @rule(which=st.sets(st.integers(0, 3), min_size=1), ending=st.sampled_from(ENDINGS))
    def calls_end(self, which: set[int], ending: str) -> None:
        with self.guard:
            calls = [call for at, call in enumerate(self.running.values()) if at in which]
        for call in calls:
            self.end(call, ending)
        self.settle()

    def end(self, call: Call, ending: str) -> None:
        call.ending = ending
        self.ended[call.number] = ending in ("taken", "coroutine")
        call.go_on.set()

    @rule(chance=st.integers(0, 9))
    def close(self, chance: int) -> None:
        if chance == 9 and self.closing is None:
            self.closing = self.loop.create_task(self.listeners.close())
            self.loop.run_until_complete(asyncio.sleep(0))
            self.settle()

    def teardown(self) -> None:
        if not hasattr(self, "listeners"):
            return
        try:
            if self.closing is None:
                self.closing = self.loop.create_task(self.listeners.close())
                self.loop.run_until_complete(asyncio.sleep(0))
            assert not (self.running and self.closing.done()), "closed while calls run"
            begun = list(self.given)
            for call in list(self.running.values()):
                self.end(call, "taken")
            self.loop.run_until_complete(self.closing)
            assert self.given == begun, "a call began after the close"
            assert self.gone.isdisjoint(self.given), "what was given up is given out"
            assert dict(self.reported) == self.ended
            assert len(self.reported) == len(self.given), "a call was reported twice, or never"
            assert not any(thread.is_alive() for thread in self.listeners._threads)
            assert asyncio.all_tasks(self.loop) == set()
        finally:
            for call in list(self.running.values()):
                call.go_on.set()
            self.loop.close()


async def _later(value: bool) -> bool:
    await asyncio.sleep(0)
    return value


def _raise(error: BaseException) -> None:
    raise error


ENDS: dict[str, Callable[[], Any]] = {
    "taken": lambda: None,
    "refused": lambda: False,
    "raises": lambda: _raise(ValueError("as the machine wants it")),
    "exits": lambda: _raise(SystemExit(3)),
    "coroutine": lambda: _later(True),
    "refused later": lambda: _later(False),
}


@pytest.mark.hypothesis
def test_any_order_of_events() -> None:
    run_machine(Machine, 30, steps=25)
