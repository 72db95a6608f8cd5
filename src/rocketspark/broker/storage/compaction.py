"""Compaction of topics with cleanup.policy=COMPACTION: their queues are copied to compaction logs, which are compacted
from time to time.

Rules: what is copied is what readers may see; copies are made on the loop in small pieces, compactions in a thread; no
file of the commit log goes before what it has is copied and on the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

from rocketspark.broker.background_thread import BackgroundThread
from rocketspark.broker.repeated_work import pause
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import ProtocolError, RocketSparkError, ServerError, StoreError, TransportError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.message import record_layout
from rocketspark.store.compaction.copying import CompactionCopies
from rocketspark.store.consumequeue.consume_queue_store import offset_behind
from rocketspark.store.store import Store
from rocketspark.transport.shared_task import end_tasks

log = LimitedLog("rocketspark.broker")
_QUEUE_OFFSET = record_layout.only("queue_offset").unpack_from

COPY_MS = 1000
# Of a topic without the permission to be read, and of queues that it has no more.
NOT_TO_BE_READ = ResponseCode.NO_PERMISSION, ResponseCode.INVALID_PARAMETER


class Master(Protocol):
    """A broker that this one copies."""

    async def pull(self, topic: str, queue_id: int, offset: int) -> tuple[bytes, int]:
        """Return records of a queue from an offset on, and the offset to go on from."""


class Compaction:
    """Keeps the compaction logs of a broker."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: Store,
        names: Callable[[], frozenset[str]],
        master: Callable[[], Master | None],
        replicated: Callable[[], int] = lambda: 1 << 62,
    ) -> None:
        """`names`: returns the topics with compaction. `master`: returns the broker that this one copies, if any.
        `replicated`: returns the position before which all replicas in sync have the log.
        """
        self._replicated = replicated
        self._master = master
        self._settings = settings
        self._store, self._copies = store, CompactionCopies(store)
        self._wanted = names
        self._names: frozenset[str] = frozenset()
        # Queues whose older messages the master does not give.
        self._refused: set[tuple[str, int]] = set()
        self._thread = BackgroundThread("compaction")
        self._task: asyncio.Task[None] | None = None
        self._compacting: asyncio.Future[None] | None = None
        self._compacted_s = 0.0

    def start(self) -> None:
        """Copy and compact from time to time."""
        self._compacted_s = asyncio.get_running_loop().time()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Give up the compaction that runs, and copy the rest, as another program may open the store next."""
        if self._task is None:
            return
        await end_tasks(self._task)
        self._store.compaction.give_up()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.close)
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

    def is_whole(self) -> bool:
        """Tell whether this copy has all that its master's compaction logs alone hold: nothing comes before its log.

        What the master refuses as the topic may not be read does not count: else nobody would be in sync.
        """
        self._look()
        return not any(
            (topic, queue_id) not in self._refused and self._copies.gap(topic, queue_id) is not None
            for topic in self._names
            for queue_id in self._store.queues().get(topic, ())
        )

    async def copy(self, *, refused_too: bool = False) -> None:
        """Copy all that readers may see of all topics with compaction. Raises StoreFull, StoreUnwritable, after all the
        queues that could be copied.

        A queue whose older messages have to come from the master first waits for them, but not one of which the master
        refuses them, if `refused_too`.
        """
        self._look()
        if self._compacting is not None:
            return  # A queue that lost its end is not cut under it.
        failed: StoreError | None = None
        for topic in self._names:
            for queue_id in sorted(self._store.queues().get(topic, ())):
                try:
                    is_ready = await self._take_older(topic, queue_id)
                    if not is_ready and not (refused_too and (topic, queue_id) in self._refused):
                        continue
                    while self._copies.copy(topic, queue_id):
                        await asyncio.sleep(0)
                except StoreError as e:
                    failed = e
        if failed is not None:
            raise failed

    async def _take_older(self, topic: str, queue_id: int) -> bool:
        """Copy from the master what is older than the commit log that this broker, a new copy, began with.

        False if the master does not give it now.
        """
        master = self._master()
        while master is not None and (gap := self._copies.gap(topic, queue_id)) is not None:
            kept, end = gap
            try:
                content, following = await master.pull(topic, queue_id, kept.next)
            except (TransportError, ProtocolError, ServerError) as e:
                if isinstance(e, ServerError) and e.code in NOT_TO_BE_READ:
                    self._refused.add((topic, queue_id))
                log.warning("older messages of %s, kept by compaction, are not copied yet, tried again: %s", topic, e)
                return False
            self._refused.discard((topic, queue_id))
            records = [each for each in record_layout.split(memoryview(content)) if _QUEUE_OFFSET(each)[0] < end]
            # Where the master has nothing, the queue here goes on.
            if not kept.append(records, min(following, end) if following > kept.next else end):
                return False
        return True

    async def copied(self) -> int | None:
        """Copy all and put it on the disk, unless a compaction runs; return the position of the log before which
        everything is: a queue whose log cannot be written holds what it needs, and no more. None without any topic with
        compaction.
        """
        self._look()
        store = self._store
        if not self._names:
            return None
        lowest = store.written_position
        acts: list[Callable[[], Awaitable[None]]] = [
            partial(self.copy, refused_too=True),
            partial(self._thread.run, store.compaction.flush),
        ]
        for act in acts if self._compacting is None else ():
            try:
                await act()
            except StoreError as e:
                log.error("messages are not copied to a compaction log, and their log files stay until they are: %s", e)
        for topic in self._names:
            for queue_id in sorted(store.queues().get(topic, ())):
                lowest = min(lowest, self._copies.uncopied_from(topic, queue_id))
        return lowest

    async def compact(self) -> None:
        """Compact all logs that have something new. Raises StoreFull, StoreUnwritable.

        A message that not all replicas in sync have takes no other's place: it may be cut, if one of them becomes the
        master, and the older one of its key has to be there then.
        """
        store, until = self._store, {}
        # A replica may know of others from when it was the master.
        end = self._replicated() if self._master() is None else 1 << 62
        log_end = store.written_position
        for key in list(store.compaction.logs):
            queue = store.consume_queues.find(*key)
            until[key] = 0 if queue is None else min(offset_behind(queue, end, log_end), store.visible_next(queue))
        self._compacting = self._thread.run(partial(self._compact, until))
        try:
            await self._compacting
        finally:
            self._compacting = None

    def _compact(self, until: dict[tuple[str, int], int]) -> None:
        # What takes the place of older messages has to outlast them: a power cut may take what is not on the disk.
        self._store.flush_log()
        for topic, queue_id in self._store.compaction.compact_all(until):
            log.info("queue %d of %s was compacted", queue_id, topic)

    def _look(self) -> None:
        names = self._wanted() if self._settings.compaction else frozenset[str]()
        for topic in self._names - names:
            self._store.compaction.unfollow(topic)
        self._names = names
