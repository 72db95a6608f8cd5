"""Compaction of topics with cleanup.policy=COMPACTION: their queues are copied to compaction logs, which are compacted
from time to time.

Rules: what is copied is what readers may see; copies are made on the loop in small pieces, compactions in a thread; no
file of the commit log goes before what it has is copied and on the disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from rocketspark.broker.background_thread import BackgroundThread
from rocketspark.broker.repeated_work import pause
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import RocketSparkError
from rocketspark.store.store import Store

log = logging.getLogger("rocketspark.broker")

COPY_MS = 1000


class Compaction:
    """Keeps the compaction logs of a broker."""

    def __init__(self, settings: BrokerSettings, store: Store, names: Callable[[], frozenset[str]]) -> None:
        """`names`: returns the topics with compaction."""
        self._settings = settings
        self._store = store
        self._wanted = names
        self._names: frozenset[str] = frozenset()
        self._thread = BackgroundThread("compaction")
        self._task: asyncio.Task[None] | None = None
        self._compacting: asyncio.Future[None] | None = None
        self._compacted_s = 0.0

    def start(self) -> None:
        """Copy and compact from time to time."""
        self._compacted_s = asyncio.get_running_loop().time()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Wait for the compaction that runs, and copy the rest, as another program may open the store next."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._thread.close()
        try:
            await self.copy()
        except RocketSparkError as e:
            log.error("messages could not be copied to compaction logs: %s", e)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await pause(lambda: COPY_MS)
            try:
                await self.copy()
                if self._names and loop.time() - self._compacted_s >= self._settings.compaction_interval_ms / 1000:
                    self._compacted_s = loop.time()
                    await self.compact()
            except RocketSparkError as e:
                log.error("topics cannot be compacted: %s", e)
            except Exception:
                # After any error the next round comes.
                log.exception("topics cannot be compacted")

    async def copy(self) -> None:
        """Copy all that readers may see of all topics with compaction. Raises StoreFull, StoreUnwritable."""
        self._look()
        if self._compacting is not None:
            return  # A queue that lost its end is not cut under it.
        for topic in self._names:
            for queue_id in sorted(self._store.queues().get(topic, ())):
                while self._store.copy_to_compaction(topic, queue_id):
                    await asyncio.sleep(0)

    async def copied(self) -> bool:
        """Copy all and put it on the disk; False if that has to wait. Raises StoreFull, StoreUnwritable."""
        self._look()
        if not self._names:
            return True
        if self._compacting is not None:
            return False
        await self.copy()
        await self._thread.run(self._store.compaction.flush)
        return True

    async def compact(self) -> None:
        """Compact all logs that have something new. Raises StoreFull, StoreUnwritable."""
        self._compacting = self._thread.run(self._compact)
        try:
            await self._compacting
        finally:
            self._compacting = None

    def _compact(self) -> None:
        for topic, queue_id in self._store.compaction.compact_all():
            log.info("queue %d of %s was compacted", queue_id, topic)

    def _look(self) -> None:
        names = self._wanted() if self._settings.compaction else frozenset[str]()
        for topic in self._names - names:
            self._store.compaction.unfollow(topic)
        self._names = names
