"""Memberships alone, without a consumer around them, in any order of events: see test_consumer_models.py.

What is read is finished some time later; queues are given up only once that has ended, however long it takes and
whatever it raises.
"""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule
from tests.unit.client.consumer.test_consumer_models import Machine, queue_of, run_consumers, which
from tests.unit.client.world import QUEUES

from rocketspark.client.connection.instance import Instance
from rocketspark.client.consumer.consumer_options import ConsumerSettings
from rocketspark.client.consumer.puller import Puller, PullSettings
from rocketspark.client.consumer.queue_locks import QueueLocks
from rocketspark.client.consumer.rebalance import Rebalance, RebalanceCalls
from rocketspark.errors import StateError
from rocketspark.model import MessageQueue, ReceivedMessage

pytestmark = pytest.mark.shows(
    "model tests: sends, push, ordered, pull and assigning consumers, rebalance, thread listeners, "
    "transactions of clients and of the broker, delays, timers"
)


class Member:
    """A rebalance that starts and closes as consumers do."""

    def __init__(self, machine: MembershipMachine, name: str) -> None:
        self._world = machine.world
        self._name = name
        self._state = "new"
        self._work: dict[Puller, set[asyncio.Task[None]]] = {}
        self._ending: asyncio.Task[None] | None = None
        self._instance: Any = SimpleNamespace(
            client_id=name, consumers={}, asked=SimpleNamespace(watchers={}), master_watchers={}, silences=0
        )
        self._instance.heartbeat_error, self._instance.members = None, partial(Instance.members, self._instance)
        self._rebalance = Rebalance(
            self._instance,
            "g",
            ConsumerSettings(consume_from="first"),
            PullSettings(backlog_count_max=10),
            RebalanceCalls(deliver=self._deliver, settled=self._settled),
            consume_type="CONSUME_PASSIVELY",
            with_retries=False,
            locks=QueueLocks(self._instance, "g"),
        )
        self._rebalance.subscribe("t")

    def subscribe(self, topic: str, expression: str = "*") -> None:
        self._rebalance.subscribe(topic, expression)

    def unsubscribe(self, topic: str) -> None:
        self._rebalance.unsubscribe(topic)

    def _deliver(self, puller: Puller, messages: list[ReceivedMessage]) -> None:
        for message in messages:
            self._world.gives(self._name, puller.queue, message.queue_offset)
        task = asyncio.ensure_future(self._finish(puller, messages))
        self._work.setdefault(puller, set()).add(task)
        task.add_done_callback(self._work[puller].discard)

    async def _finish(self, puller: Puller, messages: list[ReceivedMessage]) -> None:
        self._world.calls[self._name, puller.queue] += 1
        others = {n for (n, q), count in self._world.calls.items() if q == puller.queue and count} - {self._name}
        alone = not others or self._world.loop.time() <= self._world.doubtful_until_s
        self._world.holds(alone, f"{puller.queue} is in work at {others} and {self._name}")
        try:
            await self._world.take_time(3)
        finally:
            self._world.calls[self._name, puller.queue] -= 1
        self._world.done[puller.queue].update(m.queue_offset for m in messages)
        puller.process_queue.finish(messages)

    async def _settled(self, puller: Puller) -> None:
        while tasks := [t for f, work in self._work.items() if f.queue == puller.queue for t in work]:
            await asyncio.wait(tasks)

    async def start(self) -> None:
        if self._state != "new":
            raise StateError("closed")
        self._state = "started"
        self._rebalance.keep_committing()
        await self._rebalance.join()

    async def close(self) -> None:
        begun, self._state = self._state == "started", "closed"
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._end(begun))
        await asyncio.shield(self._ending)

    async def _end(self, begun: bool) -> None:
        if not begun:
            return
        await self._rebalance.stop_reading()
        while tasks := [t for work in self._work.values() for t in work]:
            await asyncio.wait(tasks)
        await self._rebalance.leave()
        await self._instance.close()


class MembershipMachine(Machine):
    def make(self, name: str) -> Member:
        return Member(self, name)

    @rule(at=which, share=st.floats(0, 1), queues=st.sets(queue_of, min_size=1))
    def a_broker_resets(self, at: int, share: float, queues: set[MessageQueue]) -> None:
        self.reset(at, share, queues)

    @rule(at=which, queues=st.sets(queue_of, min_size=1))
    def own(self, at: int, queues: set[MessageQueue]) -> None:
        """As if a rebalance of before came to its end only now; the next one mends it."""
        member = self.member(at)
        if member._state == "started":
            self.at_once(member._rebalance._leave_all_but, "t", sorted(queues))
            self.at_once(member._rebalance._notice.set)


def test_any_order_of_events() -> None:
    assert len(QUEUES) > 1
    run_consumers(MembershipMachine)
