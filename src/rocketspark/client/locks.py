"""Locks of queues, so that one member of a group alone reads them in order.

Rule: a lock counts for 30 s after the broker last confirmed it, who forgets it after 60 s (RebalanceLockManager, 5.x).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable

from rocketspark.client import requests
from rocketspark.client.instance import Instance
from rocketspark.errors import RocketSparkError
from rocketspark.model import MessageQueue

log = logging.getLogger("rocketspark.client")

LIFE_S = 30.0
RENEW_S = 20.0


class QueueLocks:
    """The locks of one member. `changed` is called with a queue that is locked (again)."""

    def __init__(self, instance: Instance, group: str, *, renew_s: float = RENEW_S, life_s: float = LIFE_S) -> None:
        self._instance = instance
        self._group = group
        self._renew_s = renew_s
        self._life_s = life_s
        self._until_s: dict[MessageQueue, float] = {}
        self._locked_ms: dict[MessageQueue, int] = {}
        self.changed: Callable[[MessageQueue], None] = lambda queue: None

    def holds(self, queue: MessageQueue) -> bool:
        """Whether it may be read in order now."""
        return self._until_s.get(queue, 0) > time.monotonic()

    def locked_ms(self, queue: MessageQueue) -> int:
        """When its lock was last confirmed, in ms since 1970; 0 if never."""
        return self._locked_ms.get(queue, 0)

    async def acquire(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Lock queues, as far as nobody else has; returns those that are locked now."""
        locked: set[MessageQueue] = set()
        for of_broker in _by_broker(queues).values():
            asked_s = time.monotonic()
            try:
                peer = await self._instance.master_of(of_broker[0])
                got = await requests.lock(peer, self._group, self._instance.client_id, of_broker)
            except RocketSparkError as e:
                log.info("group %s: queues of %s are not locked: %s", self._group, of_broker[0].broker_name, e)
                continue
            for queue in of_broker:
                if queue in got:
                    self._until_s[queue] = asked_s + self._life_s
                    self._locked_ms[queue] = int(time.time() * 1000)
                    self.changed(queue)
                else:
                    self._until_s.pop(queue, None)
            locked |= got & set(of_broker)
        return locked

    async def release(self, queues: Iterable[MessageQueue]) -> None:
        """Give locks up; one that cannot be told ends by itself."""
        for of_broker in _by_broker(queues).values():
            for queue in of_broker:
                self._until_s.pop(queue, None)
                self._locked_ms.pop(queue, None)
            try:
                peer = await self._instance.master_of(of_broker[0])
                await requests.unlock(peer, self._group, self._instance.client_id, of_broker)
            except RocketSparkError as e:
                log.info("group %s: locks at %s end by themselves: %s", self._group, of_broker[0].broker_name, e)

    async def keep(self, queues: Callable[[], Iterable[MessageQueue]]) -> None:
        """Renew the locks of these queues every 20 s, for as long as it is not cancelled."""
        while True:
            await asyncio.sleep(self._renew_s)
            await self.acquire(list(queues()))


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    found: defaultdict[str, list[MessageQueue]] = defaultdict(list)
    for queue in queues:
        found[queue.broker_name].append(queue)
    return found
