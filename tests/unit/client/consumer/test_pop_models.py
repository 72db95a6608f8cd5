"""Consumers that pop, in any order of events, as test_consumer_models has it for those that pull: members come, go and
lose their connections, the broker restarts, shares and filters change, some pause, listeners are slow or fail.

docs/develop/clients.md says what becomes of a popped message wherever it is. Nothing is acknowledged that nobody was
through with, nothing is given out twice or late, and what nobody has is given back.
"""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from tests.support.stand_ins import like
from tests.unit.client.consumer.test_consumer_models import Machine, Pausing, which
from tests.unit.client.machines import run_machine
from tests.unit.client.world import QUEUES, Line, World

from rocketspark import machine
from rocketspark.client import AsyncPushConsumer, AsyncSimpleConsumer
from rocketspark.client.connection.pop_api import PopResult
from rocketspark.client.consumer.pop.pop_calls import GIVEN_BACK_MS
from rocketspark.client.consumer.pop.popper import PopSettings
from rocketspark.errors import NotSent, ServerError
from rocketspark.model import MessageQueue, ReceivedMessage
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.headers.pop import PopHeader, PopReply
from rocketspark.protocol.pop_answers import ReceiptHandle

pytestmark = pytest.mark.shows("consumers that pop (push, in lists, simple) in any order of events: a model")

BROKER = MessageQueue("t", "broker-a", -1)
INVISIBLE_MS = 5000
# As take_time has it.
REPLY_MS = 500
# A reply, the wait for a taker, and giving back.
ON_ITS_WAY_MS = 2 * REPLY_MS + 1500
Place = tuple[int, int]


def _handle(queue_id: int, offset: int, pop_time_ms: int, invisible_ms: int) -> ReceiptHandle:
    return ReceiptHandle(
        start_offset=offset,
        pop_time_ms=pop_time_ms,
        invisible_time_ms=invisible_ms,
        revive_queue_id=0,
        retry_flag="0",
        broker_name="broker-a",
        queue_id=queue_id,
        queue_offset=offset,
    )


class Popped:
    """A message that was popped, as its broker knows it."""

    def __init__(self, name: str, handle: ReceiptHandle) -> None:
        self.name, self.handle = name, handle
        # A call or a caller has it, or had it.
        self.taken = False

    @property
    def free_ms(self) -> int:
        return self.handle.next_visible_ms


class PopWorld(World):
    """A broker that hands out messages for a time."""

    def __init__(self, seed: int, failures: float) -> None:
        super().__init__(seed, failures)
        self.popped: dict[Place, Popped] = {}
        self.acked: set[Place] = set()
        # A connection was lost, and what it carried.
        self.troubled = False
        # What each member may pop, if the broker has said so.
        self.shares: dict[str, list[MessageQueue]] = {}
        clock = like(machine, monotonic=self.loop.time, time=self.loop.time)
        names = ["pop", "ack", "ack_all", "change_invisible_time", "query_assignment"]
        more = [mock.patch(f"rocketspark.client.connection.pop_api.{n}", getattr(self, f"_pop_{n}")) for n in names]
        more += [mock.patch(f"rocketspark.client.consumer.pop.{n}.machine", clock) for n in ("pop_calls", "popper")]
        for patch in more:
            patch.start()
        self._patches += more

    def now_ms(self) -> int:
        return int(self.loop.time() * 1000)

    def unregister(self, name: str) -> None:
        super().unregister(name)
        if name in self.lines:
            self.lines[name].wake()  # What is held for who leaves is answered.

    async def _some_time(self, line: Line) -> None:
        await self.take_time()
        line.check()
        if self.fails():
            raise NotSent("as the seed wants it", address="address")

    def _visible(self, queue_id: int, count_max: int) -> list[Place]:
        at_s = self.now_ms()
        places = [
            (q.queue_id, offset) for q in QUEUES if queue_id in (-1, q.queue_id) for offset in range(self.sizes[q])
        ]
        free = [p for p in places if p not in self.acked and (p not in self.popped or self.popped[p].free_ms <= at_s)]
        return free[:count_max]

    async def _pop_pop(self, line: Line, header: PopHeader, *, timeout_ms: float) -> PopResult:
        await self._some_time(line)
        end_s = self.loop.time() + header.poll_time_ms / 1000
        while not (found := self._visible(header.queue_id, header.count_max)):
            if self.loop.time() >= end_s or line.name not in self.registered:
                return PopResult(ResponseCode.POLLING_TIMEOUT, PopReply(), b"")
            due_ms = [m.free_ms for p, m in self.popped.items() if p not in self.acked]
            wait_s = min([end_s - self.loop.time(), *((ms - self.now_ms()) / 1000 for ms in due_ms)])
            future = self.loop.create_future()
            line.held.add(future)
            await asyncio.wait([future], timeout=max(wait_s, 0.001))
            line.held.discard(future)
            line.check()
        reply, records = self._give(line.name, found, int(header.invisible_time_ms))
        await self.take_time()
        line.check()
        return PopResult(0, reply, records)

    def _give(self, name: str, found: list[Place], invisible_ms: int) -> tuple[PopReply, bytes]:
        now_ms, records = self.now_ms(), []
        offsets: dict[int, list[int]] = {}
        for queue_id, offset in found:
            offsets.setdefault(queue_id, []).append(offset)
            handle = _handle(queue_id, offset, now_ms, invisible_ms)
            self.popped[queue_id, offset] = Popped(name, handle)
            records.append(self._stored(QUEUES[queue_id], offset))
        return PopReply(
            pop_time_ms=now_ms,
            invisible_time_ms=invisible_ms,
            start_offsets=";".join(f"0 {q} {min(of)}" for q, of in offsets.items()),
            message_offsets=";".join(f"0 {q} {','.join(map(str, of))}" for q, of in offsets.items()),
        ), b"".join(records)

    def known(self, handle: ReceiptHandle) -> Popped | None:
        """The message that a handle is for, unless it was given to somebody else since, or is visible again."""
        popped = self.popped[handle.queue_id, handle.queue_offset]
        same = popped.handle.pop_time_ms == handle.pop_time_ms
        return popped if same and popped.free_ms > self.now_ms() else None

    async def _pop_ack(self, line: Line, group: str, topic: str, handle: ReceiptHandle, **_: Any) -> None:
        await self._pop_ack_all(line, group, "broker-a", [(topic, handle)])

    async def _pop_ack_all(self, line: Line, group: str, broker: str, handles: Any, **_: Any) -> None:
        await self._some_time(line)
        for _topic, handle in handles:
            place = handle.queue_id, handle.queue_offset
            through = place[1] in self.done[QUEUES[place[0]]]
            self.holds(through, f"{line.name} acknowledges {place}, and nobody was through with it")
            if self.known(handle) is not None:
                self.acked.add(place)
        await self._some_time(line)

    async def _pop_change_invisible_time(
        self, line: Line, group: str, topic: str, handle: ReceiptHandle, invisible_ms: int, **_: Any
    ) -> ReceiptHandle:
        await self._some_time(line)
        popped = self.known(handle)
        if popped is None:
            raise ServerError(ResponseCode.INVALID_PARAMETER, "no such handle", address="address")
        popped.handle = _handle(handle.queue_id, handle.queue_offset, self.now_ms(), invisible_ms)
        await self._some_time(line)
        return popped.handle

    async def _pop_query_assignment(self, line: Line, topic: str, *_: Any, **__: Any) -> dict[MessageQueue, str] | None:
        await self._some_time(line)
        mine = self.shares.get(line.name, [BROKER]) if not self.calm else [BROKER]
        return dict.fromkeys(mine, "POP") if topic == "t" else {}

    # -- what must hold ------------------------------------------------------------------------------------------

    def takes(self, name: str, message: ReceivedMessage) -> Popped | None:
        """Somebody begins with a message that was popped for him, for the first time, while nobody else can get it: but
        for the time that a reply takes, which nobody can tell from that which a pop was held.
        """
        assert message.receipt_handle is not None
        what = f"{name} is given {message.queue_offset} of {message.queue}"
        handle = ReceiptHandle.decode(message.receipt_handle)
        in_time = self.now_ms() < handle.next_visible_ms + REPLY_MS
        self.holds(in_time, f"{what}, {self.now_ms() - handle.next_visible_ms} ms after it came to be others'")
        popped = self.known(handle)
        if popped is not None:
            self.holds(popped.name == name and not popped.taken, f"{what} twice, or that of {popped.name}")
            popped.taken = True
        return popped

    def lose(self, name: str) -> None:
        super().lose(name)
        self.troubled = True

    def check(self) -> None:
        super().check()
        self.check_held_back()

    def check_held_back(self) -> None:
        """Nothing waits for the end of its invisible time that nobody has, and no reply or call lost."""
        if self.failures or self.troubled:
            return
        now_ms = self.now_ms()
        in_hand = {
            (h.queue_id, h.queue_offset, h.pop_time_ms)
            for consumer in self.consumers.values()
            for h in (ReceiptHandle.decode(m.receipt_handle or "") for m in _in_hand(consumer))
        }
        held = [
            (place, popped.name)
            for place, popped in self.popped.items()
            if place not in self.acked
            and not popped.taken
            and now_ms - popped.handle.pop_time_ms > ON_ITS_WAY_MS
            and popped.free_ms > now_ms + GIVEN_BACK_MS
            and (*place, popped.handle.pop_time_ms) not in in_hand
        ]
        assert not held, f"held back: {held}"


def _in_hand(consumer: Any) -> list[ReceivedMessage]:
    """What a consumer has, and no call or caller got yet."""
    if isinstance(consumer, AsyncSimpleConsumer):
        return [message for _, message in consumer._kept]
    return [message for batch in consumer._popping._batches for message in batch.pending.values()]


class PopMachine(Machine):
    """What all that pop live through."""

    world: PopWorld
    world_of = PopWorld

    @initialize(
        seed=st.integers(0, 1 << 32),
        sizes=st.lists(st.integers(0, 30), min_size=3, max_size=3),
        seconds=st.sampled_from([0, 3]),
        # What is held back shows where nothing fails.
        failures=st.sampled_from([0, 0, 0.1, 0.3]),
    )
    def begin(self, seed: int, sizes: list[int], seconds: int, failures: float) -> None:
        Machine.begin(self, seed, sizes, seconds, failures)

    @rule()
    def what_is_on_its_way_comes(self) -> None:
        self.world.run(asyncio.sleep(ON_ITS_WAY_MS / 1000 + 0.3))

    def messages_are_deleted(self, **_: Any) -> None:
        """Brokers tell a pop nothing of it."""

    some_cannot_be_read = an_operator_sets_an_offset = the_end_seems_lost = messages_are_deleted

    def expect_again(self, consumer: Any, expression: str) -> None:
        """What was popped is known by its handle."""

    def all_is_read(self) -> bool:
        return all((q.queue_id, o) in self.world.acked for q in QUEUES for o in range(self.world.sizes[q]))

    def readers(self) -> dict[MessageQueue, Any]:
        return {}

    def check_committed(self) -> None:
        self.world.check_held_back()

    async def end(self, name: str) -> None:
        await super().end(name)
        await asyncio.sleep(ON_ITS_WAY_MS / 1000)  # What brokers answered to the leave is given back.
        self.world.check_held_back()


class PopPushMachine(Pausing, PopMachine):
    """Push consumers that pop."""

    batch_max = 1

    def make(self, name: str) -> AsyncPushConsumer:
        consumer = AsyncPushConsumer(
            "127.0.0.1:1",
            "g",
            consume_from="first",
            threads=3,
            batch_max=self.batch_max,
            max_reconsume_times=-1,
            pop=True,
            pop_settings=PopSettings(INVISIBLE_MS, count_max=8, backlog_count_max=10, delays_ms=(200, 1000)),
        )
        consumer.subscribe("t")

        async def listen(given: Any) -> bool:
            return await self.listen(name, [given] if self.batch_max == 1 else given)

        consumer.listen(listen)
        return consumer

    async def listen(self, name: str, messages: list[ReceivedMessage]) -> bool:
        assert len(messages) <= self.batch_max
        for message in messages:
            self.world.takes(name, message)
        queue = messages[0].queue
        self.world.calls[name, queue] += 1
        try:
            await self.world.take_time(self.world.random.choice([0.3, 3, 8]))
            if self.world.fails(3):
                return False
            await self.world.suffer()
        finally:
            self.world.calls[name, queue] -= 1
        self.world.done[queue].update(m.queue_offset for m in messages)
        return True

    @rule(at=which, queues=st.sampled_from([[], [BROKER], QUEUES[:1], QUEUES[1:]]))
    def the_broker_shares(self, at: int, queues: list[MessageQueue]) -> None:
        self.world.shares[self.member(at)._instance.client_id] = queues
        self.at_once(self.world.tell_of_members)


class PopBatchMachine(PopPushMachine):
    """The same in lists of messages."""

    batch_max = 3


class SimpleMachine(PopMachine):
    """Simple consumers: callers receive, acknowledge, want more time or let messages be."""

    def make(self, name: str) -> AsyncSimpleConsumer:
        consumer = AsyncSimpleConsumer("127.0.0.1:1", "g", consume_from="first", invisible_ms=INVISIBLE_MS)
        consumer.subscribe("t")
        return consumer

    async def received(self, name: str, count_max: int, timeout_ms: float, invisible_ms: float | None) -> None:
        consumer = self.world.consumers[name]
        messages = await consumer.receive(count_max, timeout_ms=timeout_ms, invisible_ms=invisible_ms)
        assert len(messages) <= count_max
        for message in messages:
            self.world.takes(name, message)
        await self.world.take_time(self.world.random.choice([0.3, 6]))
        if messages and self.world.random.random() < 0.3:
            await consumer.change_invisible_time(messages[0], self.world.random.choice([1, 3000]))
        if self.world.calm or self.world.random.random() < 0.8:
            for message in messages:
                self.world.done[message.queue].add(message.queue_offset)
            await consumer.ack(messages)

    @rule(
        at=which,
        count_max=st.integers(1, 10),
        timeout_ms=st.sampled_from([0, 20, 5000]),
        invisible_ms=st.sampled_from([None, None, 900]),
    )
    def receive(self, at: int, count_max: int, timeout_ms: float, invisible_ms: float | None) -> None:
        name = self.member(at)._instance.client_id
        self.at_once(self.received, name, count_max, timeout_ms, invisible_ms)

    async def finish(self) -> None:
        """Until everything was handed out."""
        for _ in range(100):
            if self.all_is_read():
                break
            for name in self.names:
                self.go(self.received(name, 32, 1000, None))
            await asyncio.sleep(3)


@pytest.mark.hypothesis
@pytest.mark.parametrize("machine", [PopPushMachine, PopBatchMachine, SimpleMachine])
def test_any_order_of_events(machine: type[Machine]) -> None:
    run_machine(machine, 60, steps=40)
