"""Members of ordered groups that lost locks of their queues: they stood still, slept, or were cut off."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.client.fake import Fake, in_loop, until

from rocketspark.client import AsyncPushConsumer
from rocketspark.client.consumer import queue_locks
from rocketspark.client.consumer.queue_locks import QueueLocks
from rocketspark.model import MessageQueue, ReceivedMessage
from rocketspark.protocol.codes import RequestCode

Q0 = MessageQueue("t", "broker-a", 0)
OWN, OFFSET = ("g", Q0), ("g", "t", 0)
pytestmark = pytest.mark.shows("an ordered consumer that lost a lock goes on where others have come to")


class Reader:
    """An ordered consumer, and what its listener got; the call with `held` waits until it is told to go on."""

    def __init__(self, fake: Fake, held: int = -1) -> None:
        self.fake, self.got = fake, list[int]()
        self.consumer = AsyncPushConsumer(fake.namesrv, "g", ordered=True, consume_from="first")
        self.consumer.subscribe("t")
        self.consumer.listen(self._listen)
        self._held = held
        self.go_on = threading.Event()

    def _listen(self, message: ReceivedMessage) -> None:
        self.got.append(number := int(message.body))
        if number == self._held:
            assert self.go_on.wait(120)

    async def lock(self) -> bool:
        """Ask for the lock as each 20 s; returns whether it is there."""
        locks: Any = self.consumer._locks
        await locks._lock([Q0])
        return bool(locks.holds(Q0))

    async def lose(self) -> None:
        """Have another member take the lock, and the broker say so."""
        self.fake.broker.owners[OWN] = "other"
        assert not await self.lock()


def fill(fake: Fake, count: int) -> None:
    for number in range(count):
        fake.broker.put("t", 0, b"%d" % number)


@in_loop
async def test_who_lost_a_lock_goes_on_where_the_next_member_ended() -> None:
    async with Fake(t=1) as fake:
        fill(fake, 10)
        reader = Reader(fake, held=3)
        async with reader.consumer as consumer:
            await until(lambda: reader.got == [0, 1, 2, 3])
            await reader.lose()
            reader.go_on.set()
            await until(lambda: consumer._rebalance.pullers[Q0].process_queue.lowest == 4)
            # What it has done is told by nobody: the other one may be further.
            fake.broker.offsets.pop(OFFSET, None)
            await consumer._rebalance.commit(oneway=True)
            assert OFFSET not in fake.broker.offsets
            pulls: list[Any] = []
            fake.broker.rules[RequestCode.PULL_MESSAGE] = lambda header, body: pulls.append(header)
            fake.broker.put("t", 0, b"10")
            await until(lambda: [pull for pull in pulls if pull.topic == "t"])
            assert [pull.commit_offset for pull in pulls if pull.topic == "t"] == [0]
            fake.broker.offsets[OFFSET] = 8
            del fake.broker.owners[OWN]
            assert await reader.lock()
            await until(lambda: reader.got[4:] == [8, 9, 10])
        assert fake.broker.offsets[OFFSET] == 11


@in_loop
async def test_who_lost_a_lock_that_nobody_used_goes_on_where_it_was() -> None:
    async with Fake(t=1) as fake:
        fill(fake, 10)
        reader = Reader(fake, held=3)
        async with reader.consumer:
            await until(lambda: reader.got == [0, 1, 2, 3])
            await reader.lose()
            del fake.broker.owners[OWN]
            assert await reader.lock()
            reader.go_on.set()
            await until(lambda: len(reader.got) == 10)
        assert reader.got == list(range(10))


@in_loop
async def test_a_lock_does_not_count_until_it_is_known_how_far_others_came() -> None:
    async with Fake(t=1) as fake:
        fill(fake, 10)
        reader = Reader(fake, held=3)
        async with reader.consumer:
            await until(lambda: reader.got == [0, 1, 2, 3])
            await reader.lose()
            fake.broker.offsets[OFFSET] = 8
            del fake.broker.owners[OWN]
            fake.broker.rules[RequestCode.QUERY_CONSUMER_OFFSET] = lambda *asked: (1, "busy")
            reader.go_on.set()
            assert not await reader.lock()
            fake.broker.rules.clear()
            assert await reader.lock()
            await until(lambda: len(reader.got) == 6)
        assert reader.got[4:] == [8, 9]


@pytest.mark.parametrize("stands_still", ["monotonic", "neither"])
def test_a_lock_is_over_after_a_sleep_that_the_clock_did_not_count(
    stands_still: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = {"time": 1e9, "monotonic": 5.0}
    monkeypatch.setattr(
        queue_locks,
        "machine",
        SimpleNamespace(time=lambda: clocks["time"], monotonic=lambda: clocks["monotonic"]),
    )
    locks = QueueLocks(SimpleNamespace(), "g")  # type: ignore[arg-type]
    locks._until_s[Q0], locks._locked_ms[Q0] = 35.0, 10**12
    assert locks.holds(Q0)
    for name in clocks.keys() - {stands_still}:
        clocks[name] += 31
    assert not locks.holds(Q0)
    # A clock that was set back makes no lock last.
    clocks["time"] -= 3600
    assert locks.holds(Q0) is (stands_still == "monotonic")
