"""Consumers of one group in any order of events: members come, go and lose their connections, the broker restarts,
shares and filters change, queues are reset and sought, what an application gave is slow, raises or is cancelled.

What has to hold stands in world.py, which looks at every call, commit and lock; and once it is calm, everything is
handed out and committed, whoever waited was told, and nothing runs after the last close.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from tests.unit.client.machines import run_machine
from tests.unit.client.world import QUEUES, RETRIES, World

from rocketspark.client import AsyncPullConsumer, AsyncPushConsumer
from rocketspark.client.consumer.handed_out import MessageIterator
from rocketspark.errors import RocketSparkError
from rocketspark.model import MessageQueue, ReceivedMessage

pytestmark = pytest.mark.shows(
    "mended: an offset that waited for its turn, or a pull for its connection, was committed after a newer one",
    "model tests: sends, push, ordered, pull and assigning consumers, rebalance, thread listeners, "
    "transactions of clients and of the broker, delays, timers",
    "a record that cannot be read between others: push (threads, coroutines, ordered, lists), pull, pop, "
    "simple consumers get all the others, fetched ahead or not",
)

FILTERS = ["*", "A", "A || B"]
MEMBERS_MAX = 2
queue_of = st.sampled_from(QUEUES)
# One of those that live; taken modulo how many there are.
which = st.integers(0, MEMBERS_MAX - 1)


class Machine(RuleBasedStateMachine):
    """What all kinds of consumers live through."""

    world_of: type[World] = World

    def __init__(self) -> None:
        super().__init__()
        self.tasks: list[asyncio.Task[Any]] = []
        self.names: list[str] = []

    def make(self, name: str) -> Any:
        raise NotImplementedError

    @initialize(
        seed=st.integers(0, 1 << 32),
        sizes=st.lists(st.integers(0, 30), min_size=3, max_size=3),
        seconds=st.sampled_from([0, 3, 3, 3]),
        failures=st.sampled_from([0, 0.03, 0.1, 0.3]),
    )
    def begin(self, seed: int, sizes: list[int], seconds: int, failures: float) -> None:
        self.world = self.world_of(seed, failures)
        self.world.loop.set_exception_handler(self.note_fault)
        for queue, size in zip(QUEUES, sizes, strict=True):
            self.world.sizes[queue] = size
        self.at_once(self.add)
        self.world.run(asyncio.sleep(seconds))

    def note_fault(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.world.faults.append(context.get("exception") or RuntimeError(context["message"]))

    # -- members -------------------------------------------------------------------------------------------------

    def add(self) -> None:
        name = f"me-{len(self.world.consumers)}"
        self.world.carry(name, self.make(name))
        self.names.append(name)
        self.go(self.world.consumers[name].start())

    def member(self, at: int) -> Any:
        """One that lives; the last one that did if there is none."""
        names = self.names or list(self.world.consumers)[-1:]
        return self.world.consumers[names[at % len(names)]]

    def go(self, act: Any) -> None:
        """Begin something; whatever of our errors it raises is no matter."""

        async def run() -> None:
            try:
                await act
            except RocketSparkError:
                pass
            except Exception as e:
                self.world.faults.append(e)

        self.tasks.append(asyncio.ensure_future(run()))

    def at_once(self, act: Any, *arguments: Any) -> None:
        async def run() -> None:
            try:
                found = act(*arguments)
                if asyncio.iscoroutine(found):
                    self.go(found)
            except RocketSparkError:
                pass
            # Often the next thing happens while this one is under way.
            for _ in range(self.world.random.choice([0, 1, 2, 3, 5])):
                await asyncio.sleep(0)
            await asyncio.sleep(self.world.random.choice([0, 0, 0.05, 0.2, 0.4, 1, 4]))

        self.world.run(run())

    async def end(self, name: str) -> None:
        began_s = self.world.loop.time()
        await self.world.consumers[name].close()
        # A function of the application may be left to itself after so long.
        if self.world.loop.time() - began_s < 4:
            self.world.check_left(name)

    # -- events --------------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.0, 0.05, 0.3, 1.0, 7.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.run(asyncio.sleep(seconds))

    @rule(queue=queue_of, count=st.integers(1, 12))
    def messages_come(self, queue: MessageQueue, count: int) -> None:
        self.at_once(self.world.put, queue, count)

    @rule(queue=queue_of, share=st.floats(0, 1))
    def messages_are_deleted(self, queue: MessageQueue, share: float) -> None:
        oldest = self.world.oldest[queue] = max(self.world.oldest[queue], int(share * self.world.sizes[queue]))
        self.world.done[queue].update(range(oldest))
        # A member that is moved on by its broker commits what the next one may not know of.
        self.world.again.add(queue)

    @rule(queue=queue_of, count=st.integers(1, 12), share=st.floats(0, 1))
    def some_cannot_be_read(self, queue: MessageQueue, count: int, share: float) -> None:
        damaged = self.world.sizes[queue] + int(share * (count - 1))
        self.world.damaged[queue].add(damaged)
        self.world.done[queue].add(damaged)
        self.at_once(self.world.put, queue, count)

    @rule(queue=queue_of, share=st.floats(0, 1))
    def an_operator_sets_an_offset(self, queue: MessageQueue, share: float) -> None:
        offset = self.world.set_to[queue] = int(share * self.world.sizes[queue])
        self.world.done[queue].update(range(offset))
        self.world.again.add(queue)
        self.at_once(lambda: None)

    @rule(queue=queue_of, share=st.floats(0, 0.99))
    def the_end_seems_lost(self, queue: MessageQueue, share: float) -> None:
        self.world.left[queue] = share
        self.world.again.add(queue)
        self.at_once(lambda: None)

    @rule(names=st.sampled_from([[], ["a"], ["z"], ["a", "z"]]))
    def others_change(self, names: list[str]) -> None:
        self.world.ghosts = names
        self.at_once(self.world.tell_of_members)

    @precondition(lambda self: len(self.names) < MEMBERS_MAX)
    @rule()
    def a_member_comes(self) -> None:
        self.at_once(self.add)

    @rule(at=which, chance=st.integers(0, 2))
    def a_member_goes(self, at: int, chance: int) -> None:
        if chance == 2 and self.names:
            name = self.names.pop(at % len(self.names))
            self.at_once(self.end, name)

    @rule(at=which)
    def a_connection_is_lost(self, at: int) -> None:
        self.at_once(self.world.lose, self.member(at)._instance.client_id)

    @rule(at=which)
    def its_id_vanishes(self, at: int) -> None:
        # The broker takes its heartbeats for lost.
        self.at_once(self.world.unregister, self.member(at)._instance.client_id)

    @rule(away_s=st.sampled_from([0, 2, 20, 90]))
    def the_broker_restarts(self, away_s: float) -> None:
        self.at_once(self.world.restart, away_s)

    @rule(at=which, expression=st.sampled_from(FILTERS))
    def subscribe(self, at: int, expression: str) -> None:
        self.expect_again(self.member(at), expression)
        self.at_once(self.member(at).subscribe, "t", expression)

    def expect_again(self, consumer: Any, expression: str) -> None:
        """What runs just then is read again with a new filter, or once a topic is subscribed to anew."""
        known = consumer._rebalance.subscriptions.get("t")
        if known is None or known.expression != expression:
            self.world.again.update(QUEUES)

    @rule(at=which)
    def unsubscribe(self, at: int) -> None:
        self.at_once(self.member(at).unsubscribe, "t")

    @rule()
    def somebody_stops_to_wait(self) -> None:
        for task in self.tasks:
            if not task.done():
                self.at_once(task.cancel)
                return

    @invariant()
    def all_is_well(self) -> None:
        if hasattr(self, "world"):
            self.world.check()
            if self.world.faults:
                raise self.world.faults[0]

    # -- the end -------------------------------------------------------------------------------------------------

    def calm_down(self) -> None:
        """All failures end; who lives wants everything, and has no other members beside."""
        self.world.calm = True
        self.world.down_until_s = 0
        self.world.ghosts = []
        self.names = [n for n in self.names if self.world.consumers[n]._state == "started"]
        if not self.names:
            self.add()
        for name in self.names:
            self.want_all(self.world.consumers[name])
        self.world.tell_of_members()

    def reset(self, at: int, share: float, queues: set[MessageQueue]) -> None:
        """Reset the offsets of queues at one member, as a broker asks it to."""
        offsets = {queue: int(share * self.world.sizes[queue]) for queue in queues}
        for queue, offset in offsets.items():
            self.world.done[queue].update(range(offset))
        self.world.again.update(queues)
        self.at_once(self.member(at)._rebalance.reset, offsets)

    def want_all(self, consumer: Any) -> None:
        self.expect_again(consumer, "*")
        consumer.subscribe("t")

    def readers(self) -> dict[MessageQueue, Any]:
        """Who reads each queue; once it is calm that is one."""
        found = {}
        for queue in QUEUES:
            (found[queue],) = [
                f for n in self.names for q, f in self.world.consumers[n]._rebalance.pullers.items() if q == queue
            ]
        return found

    def all_is_read(self) -> bool:
        return all(f.process_queue.lowest == self.world.sizes[q] for q, f in self.readers().items())

    def check_committed(self) -> None:
        assert {q: self.world.committed.get(q, 0) for q in QUEUES} == {q: self.world.sizes[q] for q in QUEUES}

    async def finish(self) -> None:
        """Until everything was handed out."""
        await asyncio.sleep(300)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self.world.run(asyncio.sleep(1))
            self.at_once(self.calm_down)
            self.world.run(asyncio.sleep(200))
            self.world.run(self.finish())
            self.all_is_well()
            assert self.all_is_read(), {
                q: (f.process_queue.lowest, self.world.sizes[q]) for q, f in self.readers().items()
            }
            for name in list(self.world.consumers):
                self.world.run(self.end(name))
            self.check_committed()
            self.world.run(asyncio.sleep(60))
            for name in self.world.consumers:
                self.world.check_left(name)
            self.world.check_closed()
            self.all_is_well()
        finally:
            for task in asyncio.all_tasks(self.world.loop):
                task.cancel()
            self.world.run(asyncio.sleep(0))
            self.world.close()


class Pausing(Machine):
    """Consumers that pause and go on."""

    @rule(at=which)
    def pause(self, at: int) -> None:
        self.at_once(self.member(at).pause)

    @rule(at=which)
    def resume(self, at: int) -> None:
        self.at_once(self.member(at).resume)

    def want_all(self, consumer: Any) -> None:
        super().want_all(consumer)
        consumer.resume()


class PushMachine(Pausing):
    """Push consumers; their listeners are slow, fail, or are cancelled by something of their own."""

    ordered = False
    batch_max = 1
    columns = False

    def make(self, name: str) -> AsyncPushConsumer:
        consumer = AsyncPushConsumer(
            "127.0.0.1:1",
            "g",
            consume_from="first",
            threads=4,
            ordered=self.ordered,
            batch_max=self.batch_max,
            span_max=20,
            backlog_count_max=10,
        )
        consumer.subscribe("t")

        async def listen(given: Any) -> bool:
            if self.columns:
                assert [message.queue_offset for message in given] == given.queue_offsets.tolist()
            return await self.listen(name, [given] if self.batch_max == 1 and not self.columns else given)

        if self.columns:
            consumer.listen(listen, batch="columns")
        else:
            consumer.listen(listen)
        return consumer

    async def listen(self, name: str, messages: list[ReceivedMessage]) -> bool:
        queue = messages[0].queue
        assert len(messages) <= self.batch_max or (self.columns and self.batch_max == 1)
        given = set()
        for offset in (m.queue_offset for m in messages):
            puller = self.world.gives(name, queue, offset)
            if self.ordered and offset == messages[0].queue_offset:
                self.world.called(name, queue, offset)
            assert puller is not None
            given.add((puller, offset))
        self.world.refused |= given
        self.world.calls[name, queue] += 1
        try:
            await self.world.take_time(3)
            if self.world.fails(3):
                return False
            await self.world.suffer()
        finally:
            self.world.calls[name, queue] -= 1
        self.world.refused -= given
        self.world.done[queue].update(m.queue_offset for m in messages)
        return True

    @rule(at=which, share=st.floats(0, 1), queues=st.sets(queue_of, min_size=1))
    def a_broker_resets(self, at: int, share: float, queues: set[MessageQueue]) -> None:
        self.reset(at, share, queues)


class OrderedMachine(PushMachine):
    """The same in order."""

    ordered = True


class BatchMachine(PushMachine):
    """The same in lists of messages."""

    batch_max = 3


class ColumnsMachine(PushMachine):
    """The same in columns, as many messages as were read together."""

    columns = True


class OrderedColumnsMachine(OrderedMachine):
    """In order, in columns of a few messages."""

    columns = True
    batch_max = 3


class PullMachine(Machine):
    """Pull consumers: what a poll returned is done with when the next one begins."""

    def make(self, name: str) -> AsyncPullConsumer:
        has: set[MessageQueue] = set()
        running = 0

        async def told(queues: list[MessageQueue], taken: bool) -> None:
            nonlocal running
            self.world.holds(not running, "told of two changes at once")
            fits = has.isdisjoint(queues) if taken else has.issuperset(queues)
            self.world.holds(fits, f"told of {queues}, taken: {taken}, while it has {has}")
            has.symmetric_difference_update(queues)
            running += 1
            try:
                await self.world.take_time(self.world.random.choice([0.5, 4]))
                await self.world.suffer()
            finally:
                running -= 1

        async def assigned(queues: list[MessageQueue]) -> None:
            await told(queues, True)

        async def revoked(queues: list[MessageQueue]) -> None:
            await told(queues, False)

        self.given[name], self.last[name], self.loans[name] = [], [], []
        consumer = AsyncPullConsumer(
            "127.0.0.1:1", "g", consume_from="first", backlog_count_max=10, on_assigned=assigned, on_revoked=revoked
        )
        self.want(consumer)
        return consumer

    def want(self, consumer: AsyncPullConsumer) -> None:
        # Others subscribe while they start, or later.
        if self.world.random.random() < 0.6:
            consumer.subscribe("t")

    def __init__(self) -> None:
        super().__init__()
        # By member: what was returned and is not known to be done with, what was returned last, what is lent.
        self.given: dict[str, list[ReceivedMessage]] = {}
        self.last: dict[str, list[ReceivedMessage]] = {}
        self.loans: dict[str, list[Loan]] = {}

    def named(self, at: int) -> tuple[str, AsyncPullConsumer]:
        consumer = self.member(at)
        return consumer._instance.client_id, consumer

    def settle(self, name: str) -> None:
        if self.world.consumers[name]._state == "started":
            for message in self.given[name]:
                self.world.done[message.queue].add(message.queue_offset)
            self.given[name].clear()

    async def polled(self, name: str, timeout_ms: float, count_max: int, columns: bool = False) -> None:
        self.settle(name)
        consumer = self.world.consumers[name]
        if columns:
            batch = await consumer.poll_batch(timeout_ms, count_max=count_max)
            offsets = batch.queue_offsets.tolist()
            messages = list(batch)
            assert [message.queue_offset for message in messages] == offsets
        else:
            messages = await consumer.poll(timeout_ms, count_max=count_max)
        assert len(messages) <= count_max
        if not messages and consumer._state == "started":
            assert all(puller.dropped for puller, _ in consumer._handed_out.fetched), "what is there is not given out"
        for message in messages:
            self.world.gives(name, message.queue, message.queue_offset)
        self.last[name] = messages
        self.given[name] += messages

    @rule(at=which, timeout_ms=st.sampled_from([0, 20, 5000]), count_max=st.integers(1, 10), columns=st.booleans())
    def poll(self, at: int, timeout_ms: float, count_max: int, columns: bool) -> None:
        self.at_once(self.polled, self.named(at)[0], timeout_ms, count_max, columns)

    async def borrow(self, name: str, count_max: int) -> None:
        self.settle(name)
        portion = await self.world.consumers[name].lend(20, count_max=count_max)
        for _, messages in portion.rest():
            for message in messages:
                self.world.gives(name, message.queue, message.queue_offset)
        self.loans[name].append(Loan(portion))

    @rule(at=which, count_max=st.integers(1, 10))
    def lend(self, at: int, count_max: int) -> None:
        self.at_once(self.borrow, self.named(at)[0], count_max)

    @rule(at=which, count=st.integers(1, 12))
    def iterate(self, at: int, count: int) -> None:
        name, consumer = self.named(at)
        for loan in self.loans[name][:1]:
            for _ in range(count):
                if loan.in_hand is not None:
                    self.world.done[MessageQueue(*loan.in_hand.queue)].add(loan.in_hand.queue_offset)
                loan.in_hand = next(loan.each, None)
            self.at_once(consumer._rebalance._notice.set)

    @rule(at=which)
    def take_back(self, at: int) -> None:
        name, _ = self.named(at)
        if self.loans[name]:
            self.at_once(self.return_loan, name, self.loans[name].pop(0))

    def return_loan(self, name: str, loan: Loan) -> None:
        self.world.consumers[name].take_back(loan.portion)
        if loan.in_hand is not None:
            self.given[name].append(loan.in_hand)

    @rule(at=which, share=st.floats(0, 1))
    def unread(self, at: int, share: float) -> None:
        name, consumer = self.named(at)
        back = self.last[name][int(share * len(self.last[name])) :]
        if back:
            lowest: dict[MessageQueue, int] = {}
            for message in back:
                queue = message.queue
                lowest[queue] = min(message.queue_offset, lowest.get(queue, message.queue_offset))
            # They may have been done with by a later poll: taking them back does not undo that.
            self.given[name] = [m for m in self.given[name] if m.queue_offset < lowest.get(m.queue, 1 << 60)]
            self.last[name] = []
            self.at_once(consumer.unread_now, back)

    @rule(at=which)
    def commit(self, at: int) -> None:
        name, consumer = self.named(at)
        self.settle(name)
        self.at_once(consumer.commit)

    @rule(at=which, queue=queue_of, share=st.floats(0, 1))
    def seek(self, at: int, queue: MessageQueue, share: float) -> None:
        offset = int(share * self.world.sizes[queue])
        self.world.done[queue].update(range(offset))
        self.at_once(self.member(at).seek, queue, offset)

    @rule(at=which, queue=queue_of)
    def pause(self, at: int, queue: MessageQueue) -> None:
        self.at_once(self.member(at).pause, [queue])

    @rule(at=which, queue=queue_of)
    def resume(self, at: int, queue: MessageQueue) -> None:
        self.at_once(self.member(at).resume, [queue])

    async def end(self, name: str) -> None:
        # Who closes is through with what was returned, and gives back what was lent.
        while self.loans[name]:
            self.return_loan(name, self.loans[name].pop(0))
        self.settle(name)
        await super().end(name)

    async def finish(self) -> None:
        for queue, puller in self.readers().items():
            await self.world.consumers[puller._instance.client_id].resume([queue])
        for name in self.names:
            while self.loans[name]:
                self.return_loan(name, self.loans[name].pop(0))
        for _ in range(400):
            if self.all_is_read():
                break
            for name in self.names:
                await self.polled(name, 1000, 10)
        for name in self.names:
            await self.polled(name, 0, 1)


class AssignMachine(PullMachine):
    """Pull consumers that are told by hand what to read, also while they are being told."""

    begun = 0

    def make(self, name: str) -> Any:
        consumer = super().make(name)
        start = consumer.start

        async def begin() -> None:
            await start()
            if not self.world.calm:
                await self.assigned(name, QUEUES, "*")

        consumer.start = begin
        return consumer

    def want(self, consumer: AsyncPullConsumer) -> None:
        pass

    async def assigned(self, name: str, queues: list[MessageQueue], expression: str) -> None:
        consumer = self.world.consumers[name]
        self.begun += 1
        mine = self.begun
        await consumer.assign(queues, expression)
        if mine == self.begun:
            assert consumer.assignment() == sorted(set(queues))

    def check_committed(self) -> None:
        # Two of them may have read the same queue, and the one that was behind committed last.
        for queue, puller in self.readers().items():
            assert puller.committed == self.world.sizes[queue]

    def subscribe(self, at: int, expression: str) -> None:
        """Nobody does both."""

    @rule(at=which, queues=st.sets(queue_of), expression=st.sampled_from(FILTERS))
    def assign(self, at: int, queues: set[MessageQueue], expression: str) -> None:
        self.at_once(self.assigned, self.named(at)[0], list(queues), expression)

    async def assign_in_turn(self) -> None:
        await asyncio.sleep(5)
        for at, name in enumerate(self.names):
            await self.assigned(name, QUEUES[at :: len(self.names)], "*")

    def want_all(self, consumer: Any) -> None:
        if consumer is self.world.consumers[self.names[-1]]:
            self.go(self.assign_in_turn())


class Loan:
    """What an iterator was lent, and what it holds of it."""

    def __init__(self, portion: MessageIterator) -> None:
        self.portion = portion
        self.each = iter(portion)
        self.in_hand: ReceivedMessage | None = None


def run_consumers(machine: type[Machine]) -> None:
    run_machine(machine, 60, steps=40)


@pytest.mark.hypothesis
@pytest.mark.parametrize(
    "machine",
    [
        PushMachine,
        OrderedMachine,
        BatchMachine,
        ColumnsMachine,
        OrderedColumnsMachine,
        PullMachine,
        AssignMachine,
    ],
)
def test_any_order_of_events(machine: type[Machine]) -> None:
    assert RETRIES not in QUEUES
    run_consumers(machine)
