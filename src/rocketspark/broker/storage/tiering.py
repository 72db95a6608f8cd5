"""The second tier of a broker: what is on the disk is appended to it, and messages that only it has are read from it.

Rules: uploads and reads run in threads, so a slow or broken tier holds no send and no other reader. Only a master
uploads, and only what is flushed and confirmed. After a failure the same messages are uploaded again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from rocketspark.broker import topic_names
from rocketspark.broker.background_thread import BackgroundThread
from rocketspark.broker.repeated_work import pause
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.storage.json_tables import now_ms
from rocketspark.broker.storage.retention import FileCleaning
from rocketspark.errors import RocketSparkError, ServerError, StoreError
from rocketspark.model.text import shown
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.message import record_layout
from rocketspark.store.consumequeue.batch_consume_queue import BatchConsumeQueue
from rocketspark.store.consumequeue.consume_queue import GAP_SIZE, ConsumeQueue
from rocketspark.store.get_message import NOTHING_SO_FAR, Accepts, GetMessageResult, SoFar
from rocketspark.store.store import Store
from rocketspark.store.tiered.cold_cache import ColdCache
from rocketspark.store.tiered.queue_tier import NewUnit, QueueTier
from rocketspark.store.tiered.segments import SegmentStore
from rocketspark.store.tiered.tier import Queue, Tier

log = logging.getLogger("rocketspark.broker")
T = TypeVar("T")

ROUND_MS_MAX = 5000
# After a failure the next round waits so long, twice as long after each further one.
RETRY_MS, RETRY_MS_MAX = 1000, 60_000
QUEUES_IN_TURN = 256
UNITS_IN_TURN = 512
READERS = 4


class ColdMiss(ServerError):
    """Messages have to be read from the tier first: `load` does. Who cannot wait is told to ask again."""

    queue: Queue = ("", 0)
    offset = 0


class Tiering:
    """Keeps a broker's tier. `segments`: where it lies; `is_master`: whether this broker uploads now."""

    def __init__(
        self, settings: BrokerSettings, store: Store, segments: SegmentStore, is_master: Callable[[], bool]
    ) -> None:
        self._settings = settings
        self._store = store
        self._is_master = is_master
        self._segments = segments
        tier = settings.tier.tier(
            settings.store_root, settings.cluster_name, settings.broker_name, index_enabled=settings.index_enabled
        )
        self._make = partial(Tier, tier, segments)
        self.tier: Tier | None = None
        self.cache: ColdCache | None = None
        self._writer = BackgroundThread("tier")
        self._readers = ThreadPoolExecutor(READERS, "rocketspark-cold")
        self._loading: dict[tuple[Queue, int], asyncio.Future[None]] = {}
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failures = 0
        self._expired_ms = 0
        # For metrics: by queue, the messages that are not in the tier yet; by topic, those that were read from it.
        self.behind: dict[Queue, int] = {}
        self.read_counts: dict[str, int] = {}
        self.failures = 0

    # -- life

    def start(self) -> None:
        """Begin to upload, and serve reads once it is known what the tier has."""
        self._task = asyncio.get_running_loop().create_task(self._go_on_forever())

    async def stop(self) -> None:
        """Stop uploading, once the upload that is being written has ended."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._writer.close)
        await loop.run_in_executor(None, partial(self._readers.shutdown, cancel_futures=True))
        if self.tier is not None:
            self.tier.close()
            self.tier = self._store.cold = self.cache = None

    def _pause_ms(self) -> int:
        if self._failures:
            return min(RETRY_MS << min(self._failures - 1, 10), RETRY_MS_MAX)
        return max(50, min(self._settings.tier.tiered_store_group_commit_timeout // 2, ROUND_MS_MAX))

    async def _go_on_forever(self) -> None:
        while True:
            try:
                await self.round()
                if self._failures:
                    log.info("the second tier can be reached again")
                self._failures = 0
            except RocketSparkError as e:
                if not self._failures:
                    log.error("the second tier: %s; nothing is lost, it is tried again", e)
                self._failures += 1
                self.failures += 1
            except Exception:
                log.exception("the second tier")
                self._failures += 1
                self.failures += 1
            await pause(self._pause_ms, self._wanted)

    # -- uploads

    async def round(self) -> None:
        """Upload what is due, and remove what is too old. Raises StoreError."""
        if not self._is_master():
            # Another broker writes to the tier now.
            if self.tier is not None:
                self.tier.close()
            self.tier = self._store.cold = self.cache = None
            return
        if self.tier is None:
            tier = self._make()
            await self._writer.run(tier.open)
            self.tier = self._store.cold = tier
            self.cache = ColdCache(tier, self._settings.tier.tiered_store_read_cache_size)
        tier = self.tier
        changed = await self._drop_deleted(tier)
        behind: dict[Queue, int] = {}
        async for topic, queue_id, queue in self._queues():
            done, left = await self._upload(tier, topic, queue_id, queue)
            changed |= done
            if left:
                behind[topic, queue_id] = left
        self.behind = behind
        now = now_ms()
        changed |= await self._writer.run(partial(tier.upload_keys, now))
        s = self._settings.tier
        expired_ago_ms = now - self._expired_ms
        if s.tiered_store_delete_file_enable and not 0 <= expired_ago_ms < s.tiered_store_delete_file_interval:
            changed |= await self._writer.run(partial(tier.expire, now, s.tiered_store_file_reserved_time))
            self._expired_ms = now
        if changed:
            await self._writer.run(partial(tier.save, now))

    async def _queues(self) -> AsyncIterator[tuple[str, int, ConsumeQueue]]:
        """Yield the queues that are kept in the tier (rule: MessageStoreTopicFilter, 5.5.0), some in each turn."""
        looked_at = 0
        for topic, ids in list(self._store.queues().items()):
            if not self._takes(topic):
                continue
            for queue_id in list(ids):
                looked_at += 1
                if looked_at % QUEUES_IN_TURN == 0:
                    await asyncio.sleep(0)
                queue = self._store.consume_queues.find(topic, queue_id)
                # RocketMQ's tier has no units of batches.
                if queue is not None and not isinstance(queue, BatchConsumeQueue):
                    yield topic, queue_id, queue

    def _takes(self, topic: str) -> bool:
        return not (
            topic_names.is_system_topic(topic)
            or topic.startswith(topic_names.LIGHT_PREFIX)
            or topic in (self._settings.cluster_name, self._settings.broker_name)
        )

    async def _drop_deleted(self, tier: Tier) -> bool:
        queues, gone = self._store.queues(), False
        for (topic, queue_id), queue in list(tier.queues.items()):
            made_anew = queue.compared and not queue.left and queue.made_at != self._store.made_at(topic)
            if made_anew or (topic not in queues and self._store.made_at(topic) is not None):
                await self._drop(tier, topic, queue_id)
                gone = True
        return gone

    async def _drop(self, tier: Tier, topic: str, queue_id: int) -> None:
        await self._writer.run(partial(tier.drop, topic, queue_id))
        if self.cache is not None:
            self.cache.forget((topic, queue_id))

    async def _upload(self, tier: Tier, topic: str, queue_id: int, queue: ConsumeQueue) -> tuple[bool, int]:
        """Upload what is due of a queue; return whether anything was, and how many messages are left."""
        s, changed = self._settings.tier, False
        tiered = tier.find(topic, queue_id)
        if tiered is not None and not tiered.compared and not await self._fits(tiered, queue):
            if self._store.made_at(topic) is None:
                # Nothing says that these messages may go.
                log.error(
                    "queue %d of %s in the second tier is of another store: its messages stay there, and none is added;"
                    " move the tier's folder away, or name another one, to begin anew",
                    queue_id,
                    shown(topic),
                )
                tiered.leave()
            else:
                await self._drop(tier, topic, queue_id)
                tiered, changed = None, True
        if tiered is not None and tiered.left:
            return changed, 0
        high = self._store.queue_range(topic, queue_id)[1]
        if tiered is None:
            if queue.min == high:
                return changed, 0
            tiered = tier.begin(topic, queue_id, queue.min, self._store.made_at(topic), now_ms())
        while (left := high - tiered.next) > 0:
            first = max(tiered.next, queue.min)
            waited_ms = now_ms() - self._store.store_time_at(topic, queue_id, first)
            # A clock that was ahead when they were stored, and still is for those that follow, holds nothing back.
            is_due = not 0 <= waited_ms < s.tiered_store_group_commit_timeout
            if left < s.tiered_store_group_commit_count and not is_due:
                break
            messages = await self._take(
                topic, queue_id, queue, tiered.next, min(left, s.tiered_store_group_commit_count)
            )
            if not messages:
                break
            await self._writer.run(partial(tier.append, tiered, messages, now_ms()))
            changed = True
        return changed, max(high - tiered.next, 0)

    async def _fits(self, tiered: QueueTier, queue: ConsumeQueue) -> bool:
        """Tell whether a queue found in the tier is the store's: both have the message that the tier has last."""
        topic, queue_id = tiered.topic, tiered.queue_id
        last = tiered.next - 1
        if last >= queue.next:
            return False
        if last >= max(queue.min, tiered.low):
            here = self._store.store_time_at(topic, queue_id, last)
            if here != await self._writer.run(partial(tiered.time_at, last)):
                return False
        tiered.compared, tiered.made_at = True, self._store.made_at(topic)
        return True

    async def _take(self, topic: str, queue_id: int, queue: ConsumeQueue, offset: int, count: int) -> list[NewUnit]:
        """Return the next messages that are on the disk; they stay readable if their file goes."""
        store, found, size = self._store, list[NewUnit](), 0
        if offset < queue.min:
            # Removed before it could be uploaded, on a full disk or by an operator: its offsets stay empty.
            time_ms = store.store_time_at(topic, queue_id, queue.min)
            return [NewUnit(None, 0, max(time_ms, 0))] * min(queue.min - offset, count)
        for at in range(offset, offset + count, UNITS_IN_TURN):
            if at > offset:
                await asyncio.sleep(0)
            if at < queue.min:
                return found
            for position, bytes_of, code in store.queue_units(
                topic, queue_id, at, min(UNITS_IN_TURN, offset + count - at)
            ):
                if bytes_of != GAP_SIZE and position + bytes_of > store.flushed_position:
                    return found
                stored = None if bytes_of == GAP_SIZE else store.record_at(position)
                size += bytes_of if stored is not None else 0
                if found and size > self._settings.tier.tiered_store_group_commit_size:
                    return found
                if stored is None:
                    found.append(NewUnit(None, 0, found[-1].time_ms if found else max(store.last_store_time_ms, 0)))
                else:
                    found.append(NewUnit(stored, code, record_layout.store_time_of(stored)))
        return found

    async def kept_from(self) -> int:
        """Return the position of the log before which every message is in the tier, or is kept in none."""
        tier, store = self.tier, self._store
        if not self._settings.tier.tiered_store_keep_until_uploaded or not self._is_master():
            return store.written_position
        if tier is None:
            return store.min_position
        lowest = store.written_position
        async for topic, queue_id, queue in self._queues():
            tiered = tier.find(topic, queue_id)
            if tiered is not None and tiered.left:
                continue
            at = max(tiered.next, queue.min) if tiered is not None else queue.min
            at = queue.after_gap(at, queue.next) if at < queue.next else at
            if at < queue.next:
                lowest = min(lowest, queue.unit(at)[0])
        return lowest

    # -- reads

    def has(self, topic: str, queue_id: int, offset: int) -> bool:
        """Tell whether the tier has a message, or may have it, as it is not known yet what a master's tier has."""
        return self._is_master() if self.tier is None else self.tier.has(topic, queue_id, offset)

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        count_max: int,
        bytes_max: int,
        codes: frozenset[int] | None,
        accepts: Accepts | None,
        so_far: SoFar = NOTHING_SO_FAR,
    ) -> GetMessageResult:
        """Do what `Store.read` does with messages that only the tier has. Raises ColdMiss until they are in memory."""
        queue, cache = (topic, queue_id), self.cache
        high = self._store.queue_range(topic, queue_id)[1]
        found = None
        if cache is not None:
            found = cache.read(queue, offset, count_max, bytes_max, codes, accepts, so_far, high)
        if found is None or cache is None:
            miss = ColdMiss(ResponseCode.SYSTEM_BUSY, "the messages are read from the second tier: ask again")
            miss.queue, miss.offset = queue, offset
            raise miss
        self.read_counts[topic] = self.read_counts.get(topic, 0) + found.count
        following = cache.next_stretch(queue, found.next_offset)
        if following is not None:
            self.load(queue, following)
        return found

    def load(self, queue: Queue, offset: int) -> asyncio.Future[None]:
        """Bring messages into memory; who waits for the same ones shares the read. Its errors are StoreErrors."""
        key = queue, offset
        loading = self._loading.get(key)
        if loading is None:
            cache = self.cache
            loop = asyncio.get_running_loop()
            if cache is None:
                loading = loop.create_future()
                loading.set_exception(StoreError("the second tier is not open"))
            else:
                loading = loop.run_in_executor(self._readers, partial(cache.load, queue, offset))
                self._loading[key] = loading
            loading.add_done_callback(partial(self._loaded, key))
        return loading

    def _loaded(self, key: tuple[Queue, int], loading: asyncio.Future[None]) -> None:
        self._loading.pop(key, None)
        if not loading.cancelled():
            loading.exception()  # Those of reads ahead are nobody's.

    async def loaded(self, miss: ColdMiss) -> None:
        """Wait until the messages of a miss are in memory. Raises ServerError: the reader asks again."""
        try:
            await asyncio.shield(self.load(miss.queue, miss.offset))
        except StoreError as e:
            raise ServerError(ResponseCode.SYSTEM_BUSY, f"the second tier cannot be read now: {e}") from e

    async def _beside(self, call: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._readers, call)
        except StoreError as e:
            raise ServerError(ResponseCode.SYSTEM_BUSY, f"the second tier cannot be read now: {e}") from e

    def is_before_store(self, topic: str, queue_id: int, time_ms: int) -> bool:
        """Tell whether messages of a time may be in the tier alone: the store's first one is younger."""
        tiered = self.tier.find(topic, queue_id) if self.tier is not None else None
        low = self._store.stored_range(topic, queue_id)[0]
        if tiered is None or not tiered.low < low <= tiered.next:
            return False
        first_ms = self._store.store_time_at(topic, queue_id, low)
        return first_ms < 0 or time_ms <= first_ms

    async def offset_at_time(self, topic: str, queue_id: int, time_ms: int, upper: bool) -> int:
        """Do what `Store.offset_at_time` does, for a time before the store's first message. Raises ServerError."""
        tiered = self.tier.find(topic, queue_id) if self.tier is not None else None
        if tiered is None:
            return self._store.offset_at_time(topic, queue_id, time_ms, upper)
        found = await self._beside(partial(tiered.offset_at_time, time_ms, upper))
        if found >= tiered.next - upper:
            # None there: the store's first, which the tier may have too, is the one.
            return max(self._store.offset_at_time(topic, queue_id, time_ms, upper), found)
        return found

    async def query(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int, kind: str) -> list[bytes]:
        """Return records with a key that are in the tier, newest first. Raises ServerError."""
        tier = self.tier
        if tier is None or count_max <= 0:
            return []
        return await self._beside(partial(tier.query, topic, key, count_max, begin_ms, end_ms, kind))


def is_brought(loading: asyncio.Future[None]) -> bool:
    """Tell whether a load has ended well."""
    return not loading.cancelled() and loading.exception() is None


def tiering_of(
    settings: BrokerSettings, store: Store, cleaning: FileCleaning, is_master: Callable[[], bool]
) -> Tiering | None:
    """Return the second tier that a broker's settings ask for, None if they ask for none. `cleaning` waits for it."""
    if not settings.tiered or settings.tier.tiered_storage_level == "DISABLE":
        return None
    tiering = Tiering(settings, store, settings.tier.segments(), is_master)
    cleaning.kept_from = tiering.kept_from
    return tiering
