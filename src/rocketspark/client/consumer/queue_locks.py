"""Locks of queues at the broker, so that only one member of a group reads them in order.

Rule: a member counts on a lock for 30 s after the broker last confirmed it; the broker forgets it after 60 s
(RebalanceLockManager, 5.x). Whoever did not count on it for a while looks how far the group is before it goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable

from rocketspark import machine
from rocketspark.client.callbacks import every
from rocketspark.client.connection import client_api
from rocketspark.client.connection.instance import Instance
from rocketspark.errors import RocketSparkError
from rocketspark.model import MessageQueue

log = logging.getLogger("rocketspark.client")

LIFE_S = 30.0
RENEW_S = 20.0


class QueueLocks:
    """The locks of one member.

    `changed` is called with each queue that is locked or locked again; before, `regained` with one that another member
    may have had meanwhile: if it raises RocketSparkError the queue does not count as locked yet. `wanted`: the queues
    that were asked for and not given up since.
    """

    def __init__(self, instance: Instance, group: str, *, renew_s: float = RENEW_S, life_s: float = LIFE_S) -> None:
        self._instance = instance
        self._group = group
        self._renew_s = renew_s
        self._life_s = life_s
        self._until_s: dict[MessageQueue, float] = {}
        self._locked_ms: dict[MessageQueue, int] = {}
        # A renewal must not lock queues again that were given up meanwhile: one request at a time for each broker.
        self.wanted: set[MessageQueue] = set()
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.changed: Callable[[MessageQueue], None] = lambda queue: None
        self.regained: Callable[[MessageQueue], Awaitable[None]] = _nothing
        self._moved: set[str] = set()
        self._told = asyncio.Event()

    def holds(self, queue: MessageQueue) -> bool:
        """Tell whether the queue is locked, so that it may be read in order now."""
        # By the time of day too: where the machine sleeps, the clock that is never set may stand still.
        since_ms = machine.time() * 1000 - self.locked_ms(queue)
        return self._until_s.get(queue, 0) > machine.monotonic() and since_ms < self._life_s * 1000

    def locked_ms(self, queue: MessageQueue) -> int:
        """Return when the queue's lock was last confirmed, in ms since 1970; 0 if never."""
        return self._locked_ms.get(queue, 0)

    async def acquire(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Lock queues, as far as no other member has them; return those that are locked now."""
        wanted = list(queues)
        self.wanted.update(wanted)
        return await self._lock(wanted)

    async def _lock(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        locked: set[MessageQueue] = set()
        for name, of_broker in self._by_broker(queues).items():
            async with self._turns[name]:
                of_broker = [q for q in of_broker if q in self.wanted]
                if of_broker:
                    locked |= await self._ask(of_broker)
        return locked

    async def _ask(self, queues: list[MessageQueue]) -> set[MessageQueue]:
        asked_s, asked_ms = machine.monotonic(), int(machine.time() * 1000)
        try:
            peer = await self._instance.master_of(queues[0])
            got = await client_api.lock(peer, self._group, self._instance.client_id, queues)
        except RocketSparkError as e:
            log.info(
                "group %s: queues of %s are not locked: %s", self._group, self._instance.routes.leader(queues[0]), e
            )
            return set()
        for queue in queues:
            if queue in got and queue in self._locked_ms and not self.holds(queue):
                try:
                    await self.regained(queue)
                except RocketSparkError as e:
                    log.info("group %s: how far %s was read is not known: %s", self._group, queue, e)
                    got.discard(queue)
        for queue in queues:
            if queue in got:
                self._until_s[queue] = asked_s + self._life_s
                self._locked_ms[queue] = asked_ms
                self.changed(queue)
            else:
                self._until_s.pop(queue, None)
        return got & set(queues)

    async def release(self, queues: Iterable[MessageQueue]) -> None:
        """Give locks up; one whose broker cannot be told expires."""
        given_up = list(queues)
        self.wanted.difference_update(given_up)
        for queue in given_up:
            self._until_s.pop(queue, None)
        for name, of_broker in self._by_broker(given_up).items():
            async with self._turns[name]:
                for queue in of_broker:
                    # Once more: a renewal that was on its way may have been answered meanwhile.
                    self._until_s.pop(queue, None)
                    self._locked_ms.pop(queue, None)
                try:
                    peer = await self._instance.master_of(of_broker[0])
                    await client_api.unlock(peer, self._group, self._instance.client_id, of_broker)
                except RocketSparkError as e:
                    log.info("group %s: locks at %s end by themselves: %s", self._group, name, e)

    async def keep(self, queues: Callable[[], Iterable[MessageQueue]]) -> None:
        """Renew the locks of these queues every 20 s, until the call is cancelled."""
        await every(self._renew_s, lambda: self._lock(queues()), f"locks of group {self._group}")

    def master_moved(self, broker_name: str) -> None:
        """Note that a broker has another master, which knows of no lock until `follow` has asked it for them."""
        self._moved.add(broker_name)
        self._told.set()

    async def follow(self, queues: Callable[[], Iterable[MessageQueue]]) -> None:
        """Whenever a broker has a new master, lock there those of `queues()` that it leads; runs until the call is
        cancelled.
        """
        while True:
            await self._told.wait()
            self._told.clear()
            moved, self._moved = self._moved, set()
            await self._lock([queue for queue in queues() if self._instance.routes.leader(queue) in moved])

    def _by_broker(self, queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
        found: defaultdict[str, list[MessageQueue]] = defaultdict(list)
        for queue in queues:
            found[self._instance.routes.leader(queue)].append(queue)
        return found


async def _nothing(queue: MessageQueue) -> None:
    """Do nothing."""
