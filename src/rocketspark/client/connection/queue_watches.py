"""Watches of topics: an application is told when a topic's queues change.

Rule: registerTopicMessageQueueChangeListener of DefaultLitePullConsumer, 5.x.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from rocketspark.client.callbacks import every
from rocketspark.client.hooks import OnQueues, call_with_queues
from rocketspark.errors import RocketSparkError, RouteNotFound
from rocketspark.model import MessageQueue

log = logging.getLogger("rocketspark.client")


class QueueWatches:
    """The watches of one consumer. `find` gives a topic's queues as known; `refresh` asks the NameServer for them."""

    def __init__(
        self,
        find: Callable[[str], Awaitable[list[MessageQueue]]],
        refresh: Callable[[str], Awaitable[None]],
        interval_s: float,
    ) -> None:
        self._find = find
        self._refresh = refresh
        self._interval_s = interval_s
        self.tasks: set[asyncio.Task[None]] = set()

    async def begin(self, topic: str, changed: OnQueues) -> None:
        """Call `changed` with all queues of a topic whenever they differ from before. Raises RouteNotFound."""
        known = await self._find(topic)

        async def look() -> None:
            nonlocal known
            try:
                await self._refresh(topic)
                found = await self._find(topic)
            except RouteNotFound:
                found = []
            except RocketSparkError as e:
                log.info("queues of topic %s are not known just now: %s", topic, e)
                return
            if found != known:
                known = found
                await call_with_queues(changed, found)

        task = asyncio.ensure_future(every(self._interval_s, look, f"the watch of topic {topic}"))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
