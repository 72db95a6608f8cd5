"""The second tier of a broker: what is on the disk is appended to it, and messages that only it has are read from it.

Rules: uploads and reads run in threads, so a slow or broken tier holds no send and no other reader. Only a master
uploads, and only what is flushed and confirmed; other replicas read what it has written. After a failure the same
messages are uploaded again. Until it is known what the tier has, who asks for old messages is told to ask again.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from rocketspark import machine
from rocketspark.broker import topic_names
from rocketspark.broker.repeated_work import pause
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.storage.json_tables import now_ms
from rocketspark.broker.storage.log_memory import LogMemory
from rocketspark.broker.storage.retention import FileCleaning
from rocketspark.broker.tiered_settings import DISABLE, FORCE, NOT_IN_MEM
from rocketspark.errors import RocketSparkError, ServerError, StoreError
from rocketspark.model.text import shown
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.message import record_layout
from rocketspark.store.consumequeue.batch_consume_queue import BatchConsumeQueue
from rocketspark.store.consumequeue.consume_queue import GAP_SIZE, ConsumeQueue
from rocketspark.store.files.system_calls import OsFiles
from rocketspark.store.get_message import NOTHING_SO_FAR, Accepts, GetMessageResult, SoFar
from rocketspark.store.store import Store
from rocketspark.store.tiered.cold_cache import ColdCache
from rocketspark.store.tiered.layout import broker_folder
from rocketspark.store.tiered.owner import TierOwner, TierTaken
from rocketspark.store.tiered.queue_tier import NewUnit, QueueTier
from rocketspark.store.tiered.segments import SegmentStore
from rocketspark.store.tiered.tier import Queue, Tier
from rocketspark.transport.loose_threads import LooseThreads
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Answer, Handler, Routes

log = logging.getLogger("rocketspark.broker")
T = TypeVar("T")

ROUND_MS_MAX = 5000
# After a failure the next round waits so long, twice as long after each further one.
RETRY_MS, RETRY_MS_MAX = 1000, 60_000
QUEUES_IN_TURN = 256
UNITS_IN_TURN = 512
READERS = 4
# A replica looks for what its master has written so often, and no sooner than the second again if a reader wants more.
FOLLOW_MS, FOLLOW_MS_MIN = 60_000, 2000
FAILURES_IN_ROUND = 3  # Queues that fail in one round before the others wait for the next.
GAPS_MAX = 100  # Messages that are looked at for one that both the store and the tier have, where some are missing.
# What waits for the tier is told to ask again after so long: until it is known what it has, and for messages from it.
KNOWN_S, READ_S = 3.0, 10.0
AVOIDED_S = 30.0  # A tier that could not be read is asked for so long only for what the store has not.
STOP_S = 10.0  # A stop waits for calls to the tier for so long.

# Requests, each with a topic and a queue, that are answered wrong without the tier.
OF_OLD_OFFSETS = (
    *(RequestCode.GET_MIN_OFFSET, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, RequestCode.GET_EARLIEST_MSG_STORETIME),
    *(RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET),
)


class ColdMiss(ServerError):
    """Messages have to be read from the tier first: `load` does. Who cannot wait is told to ask again."""

    queue: Queue = ("", 0)
    offset = 0


class Likeness(NamedTuple):
    """How a queue in the tier is like the store's: whether what it has before the store's oldest message is the
    store's, whether more may be added to it, and the offset below which both have the same.
    """

    is_readable: bool
    is_whole: bool
    same_below: int


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
        folder = broker_folder(settings.cluster_name, settings.broker_name)
        place = settings.tier.tiered_store_file_path
        self._owner = TierOwner(settings.store_root, place, folder, segments, OsFiles())
        self.tier: Tier | None = None
        self.cache: ColdCache | None = None
        self._writer = LooseThreads("tier")
        self._readers = LooseThreads("cold", READERS)
        self._loading: dict[tuple[Queue, int], asyncio.Future[None]] = {}
        self._wanted, self._known = asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failures = 0
        self._level, self._avoided_until_s = settings.tier.tiered_storage_level, 0.0
        self._is_far_behind = LogMemory(settings, store).is_far_behind
        self._expired_ms = 0
        self._followed_s, self._wants_more = 0.0, False
        # For metrics: by queue, the messages that are not in the tier yet; by topic, those that were read from it.
        self.behind: dict[Queue, int] = {}
        self.read_counts: dict[str, int] = {}
        self.failures = 0

    # -- life

    def start(self) -> None:
        """Begin to upload, and serve reads once it is known what the tier has."""
        self._task = asyncio.get_running_loop().create_task(self._go_on_forever())

    async def stop(self) -> None:
        """Stop uploading, once the upload that is being written has ended; a tier that hangs is not waited for longer
        than some seconds.
        """
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + STOP_S
        if self.tier is not None and not self.tier.is_read_only:
            released = self._writer.run(self._owner.release)
            await asyncio.wait([released], timeout=STOP_S)
            if released.done() and (error := released.exception()) is not None:
                log.warning("the second tier: %s; the next broker there has to wait for it", error)
        ended = [await threads.close(until_s - loop.time()) for threads in (self._writer, self._readers)]
        if not all(ended):
            log.warning("the second tier has not answered for %.0f s: the broker stops without it", STOP_S)
        elif self.tier is not None:
            self.tier.close()
        self._set(None)

    def _set(self, tier: Tier | None) -> None:
        self.tier = self._store.cold = tier
        self.cache = None
        if tier is not None:
            self.cache = ColdCache(tier, self._settings.tier.tiered_store_read_cache_size)
            self._known.set()
        else:
            self._known.clear()

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
        """Upload what is due, and remove what is too old; a replica looks for what its master has written. Raises
        StoreError.
        """
        if not self._is_master():
            await self._follow()
            return
        tier = self.tier
        try:
            await self._writer.run(self._owner.hold)
        except TierTaken:
            # What it has is read all the same.
            await self._follow()
            raise
        if tier is None or tier.is_read_only:
            tier = await self._opened(self._make)
        changed = await self._drop_deleted(tier)
        changed |= await self._upload_all(tier)
        now = now_ms()
        changed |= await self._writer.run(partial(tier.upload_keys, now))
        s = self._settings.tier
        expired_ago_ms = now - self._expired_ms
        if s.tiered_store_delete_file_enable and not 0 <= expired_ago_ms < s.tiered_store_delete_file_interval:
            changed |= await self._writer.run(partial(tier.expire, now, s.tiered_store_file_reserved_time))
            self._expired_ms = now
        if changed:
            await self._writer.run(partial(tier.save, now))

    async def _opened(self, make: Callable[[], Tier], before: Tier | None = None) -> Tier:
        """Find what the tier has, and let readers see what belongs to the store's queues."""
        tier = make()
        await self._writer.run(partial(tier.open, before))
        async for topic, queue_id, queue in self._queues():
            tiered = tier.find(topic, queue_id)
            if tiered is None:
                continue
            found = await self._compare(tiered, queue)
            if not found.is_readable or (self._is_master() and not found.is_whole):
                tiered.end_at(found.same_below)
        if self.tier is not None:
            self.tier.close()
        self._set(tier)
        return tier

    async def _follow(self) -> None:
        """Look for what another broker has written, where the last look was too long ago."""
        loop = asyncio.get_running_loop()
        before = self.tier if self.tier is not None and self.tier.is_read_only else None
        least_s = (FOLLOW_MS_MIN if self._wants_more else FOLLOW_MS) / 1000
        if before is not None and loop.time() - self._followed_s < least_s:
            return
        self._wants_more = False
        self.behind = {}
        if before is None and self.tier is not None:
            # It was this one's until now.
            await self._writer.run(self._owner.release)
        await self._writer.run(self._owner.look)
        await self._opened(partial(self._make, is_read_only=True), before)
        self._followed_s = loop.time()

    async def _upload_all(self, tier: Tier) -> bool:
        """Upload what is due of all queues; return whether anything was. Raises StoreError, after the queues that could
        be uploaded unless many cannot.
        """
        behind: dict[Queue, int] = {}
        changed, failed = False, list[StoreError]()
        async for topic, queue_id, queue in self._queues():
            try:
                done, left = await self._upload(tier, topic, queue_id, queue)
            except TierTaken:
                raise
            except StoreError as e:
                failed.append(e)
                if len(failed) >= FAILURES_IN_ROUND:
                    raise
                continue
            changed |= done
            if left:
                behind[topic, queue_id] = left
        self.behind = behind
        if failed:
            raise failed[0]
        return changed

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
            # A deletion is forgotten once the log has nothing from before it: that says nothing of this one.
            made_anew = queue.compared and not queue.left and self._is_made_anew(queue)
            if made_anew or (topic not in queues and self._store.made_at(topic) is not None):
                await self._drop(tier, topic, queue_id)
                gone = True
        return gone

    def _is_made_anew(self, queue: QueueTier) -> bool:
        """Tell whether the topic was deleted, and made again, since the tier got its messages."""
        made_at = self._store.made_at(queue.topic)
        return made_at is not None and made_at > (queue.made_at or -1)

    async def _drop(self, tier: Tier, topic: str, queue_id: int) -> None:
        await self._writer.run(partial(tier.drop, topic, queue_id))
        if self.cache is not None:
            self.cache.forget((topic, queue_id))

    async def _upload(self, tier: Tier, topic: str, queue_id: int, queue: ConsumeQueue) -> tuple[bool, int]:
        """Upload what is due of a queue; return whether anything was, and how many messages are left."""
        s, changed = self._settings.tier, False
        tiered = tier.find(topic, queue_id)
        if tiered is not None and not tiered.compared and not (likeness := await self._compare(tiered, queue)).is_whole:
            if self._store.made_at(topic) is None:
                # Nothing says that these messages may go.
                log.error(
                    "queue %d of %s in the second tier is of another store, or has messages up to offset %d that this"
                    " one lost: its messages stay there, and none is added; name another folder to begin anew",
                    queue_id,
                    shown(topic),
                    tiered.next,
                )
                tiered.leave(likeness.same_below)
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
            await self._writer.run(partial(self._append, tier, tiered, messages))
            changed = True
        return changed, max(high - tiered.next, 0)

    def _append(self, tier: Tier, tiered: QueueTier, messages: list[NewUnit]) -> None:
        self._owner.hold()
        tier.append(tiered, messages, now_ms())

    async def _compare(self, tiered: QueueTier, queue: ConsumeQueue) -> Likeness:
        """Compare a queue found in the tier with the store's, by the oldest and the newest message that both have."""
        first, end = max(queue.min, tiered.low), min(queue.next, tiered.next)
        made_at = self._store.made_at(tiered.topic)
        if first >= end and tiered.next <= queue.min:
            found = Likeness(True, True, tiered.next)
        elif first >= end:
            # The store lost all that it had, or has messages of an earlier topic there.
            found = Likeness(made_at is None, False, queue.min if made_at is None else tiered.low)
        elif not await self._are_alike(tiered, queue, first, end, 1):
            found = Likeness(False, False, tiered.low)
        elif not await self._are_alike(tiered, queue, end - 1, first - 1, -1):
            found = Likeness(True, False, first)
        else:
            found = Likeness(True, tiered.next <= queue.next, end)
        # Replicas may be behind their master.
        is_right = found.is_whole or (found.is_readable and not self._is_master())
        if is_right:
            tiered.compared, tiered.made_at = True, made_at
        return found

    async def _are_alike(self, tiered: QueueTier, queue: ConsumeQueue, at: int, end: int, step: int) -> bool:
        """Tell whether the first message that both have, from `at` on in steps towards `end`, is the same one."""
        for _ in range(GAPS_MAX):
            if at == end:
                break
            there = await self._writer.run(partial(tiered.time_of, at))
            if there >= 0 and queue.unit(at)[1] != GAP_SIZE:
                return there == self._store.store_time_at(tiered.topic, tiered.queue_id, at)
            at += step
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
        if not self._settings.tier.tiered_store_keep_until_uploaded:
            return store.written_position
        if tier is None:
            return store.min_position
        lowest = store.written_position
        async for topic, queue_id, queue in self._queues():
            tiered = tier.find(topic, queue_id)
            if tiered is not None and tiered.left:
                continue
            at = max(tiered.next, queue.min) if tiered is not None and tiered.compared else queue.min
            at = queue.after_gap(at, queue.next) if at < queue.next else at
            if at < queue.next:
                lowest = min(lowest, queue.unit(at)[0])
        return lowest

    # -- reads

    def _is_kept(self, topic: str, queue_id: int) -> bool:
        queue = self._store.consume_queues.find(topic, queue_id)
        return queue is not None and not isinstance(queue, BatchConsumeQueue) and self._takes(topic)

    def has(self, topic: str, queue_id: int, offset: int) -> bool:
        """Tell whether the tier has a message, or may have it, as it is not known yet what the tier has."""
        tier = self.tier
        if tier is None:
            return self._is_kept(topic, queue_id)
        if tier.has(topic, queue_id, offset):
            return True
        tiered = tier.find(topic, queue_id)
        if not tier.is_read_only or tiered is None or offset < tiered.next or not tiered.compared:
            return False
        # Its master has uploaded it since, or will.
        self._wants_more = True
        if not self._failures:
            self._wanted.set()
        return True

    def is_preferred(self, topic: str, queue_id: int, offset: int) -> bool:
        """Tell whether a message is read from the tier though the store may have it too (`tieredStorageLevel`)."""
        tier = self.tier if self._level in (NOT_IN_MEM, FORCE) else None
        queue = tier.find(topic, queue_id) if tier is not None else None
        high = self._store.queue_range(topic, queue_id)[1] if queue is not None else 0  # A replica's may be behind.
        if queue is None or not queue.low <= offset < queue.high <= high or self._is_made_anew(queue):
            return False
        wanted = self._level == FORCE or self._is_far_behind(topic, queue_id, offset)
        is_read = machine.monotonic() >= self._avoided_until_s and (topic, queue_id) not in self._store.compacted
        return wanted and is_read

    def hold(self, routes: Routes) -> None:
        """Let requests for old offsets wait a little where their answer is not known before the tier's is."""
        for code in OF_OLD_OFFSETS:
            routes.wrap(code, self._once_known)

    def _once_known(self, inner: Handler) -> Handler:
        def answer(peer: Peer, request: Any, body: bytes) -> Answer:
            if self.tier is None and self.is_missed(request.ext.topic, request.ext.queue_id):
                return self._later(inner, peer, request, body)
            return inner(peer, request, body)

        return answer

    def is_missed(self, topic: str, queue_id: int) -> bool:
        """Tell whether the tier is not open, and may have messages of a queue (-1: of any) that the store has not."""
        if self.tier is not None:
            return False
        ids = [queue_id] if queue_id >= 0 else list(self._store.queues().get(topic, ()))
        return any(self._is_kept(topic, at) and self._store.stored_range(topic, at)[0] > 0 for at in ids)

    async def _later(self, inner: Handler, peer: Peer, request: Any, body: bytes) -> Any:
        await self._open_tier()
        answer = inner(peer, request, body)
        return await answer if inspect.isawaitable(answer) else answer

    async def _open_tier(self) -> None:
        """Wait a little until the tier is open. Raises ServerError: who asks has to ask again."""
        try:
            async with asyncio.timeout(KNOWN_S):
                await self._known.wait()
        except TimeoutError:
            raise ServerError(ResponseCode.SYSTEM_BUSY, "the second tier is not open yet: ask again") from None

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
            if cache is None:
                loading = asyncio.get_running_loop().create_future()
                loading.set_exception(StoreError("the second tier is not open"))
            else:
                loading = self._readers.run(partial(cache.load, queue, offset))
                self._loading[key] = loading
            loading.add_done_callback(partial(self._loaded, key))
        return loading

    def _loaded(self, key: tuple[Queue, int], loading: asyncio.Future[None]) -> None:
        self._loading.pop(key, None)
        if not loading.cancelled():
            loading.exception()  # Those of reads ahead are nobody's.

    async def loaded(self, miss: ColdMiss) -> None:
        """Wait until the messages of a miss are in memory. Raises ServerError: the reader asks again."""
        if self.tier is None:
            await self._open_tier()
        await self._answered(self.load(miss.queue, miss.offset))

    async def _answered(self, call: asyncio.Future[T]) -> T:
        """Wait for a call to the tier, and not for long if it hangs. Raises ServerError."""
        await asyncio.wait([call], timeout=READ_S)
        if not call.done():
            self._avoided_until_s = machine.monotonic() + AVOIDED_S
            raise ServerError(
                ResponseCode.SYSTEM_BUSY, f"the second tier has not answered for {READ_S:.0f} s: ask again"
            )
        try:
            return call.result()
        except StoreError as e:
            self._avoided_until_s = machine.monotonic() + AVOIDED_S
            raise ServerError(ResponseCode.SYSTEM_BUSY, f"the second tier cannot be read now: {e}") from e

    def is_before_store(self, topic: str, queue_id: int, time_ms: int) -> bool:
        """Tell whether messages of a time may be in the tier alone: the store's first one is younger."""
        tiered = self.tier.find(topic, queue_id) if self.tier is not None else None
        low = self._store.stored_range(topic, queue_id)[0]
        if tiered is None or not tiered.low < low <= tiered.high:
            return False
        first_ms = self._store.store_time_at(topic, queue_id, low)
        return first_ms < 0 or time_ms <= first_ms

    async def offset_at_time(self, topic: str, queue_id: int, time_ms: int, upper: bool) -> int:
        """Do what `Store.offset_at_time` does, for a time before the store's first message. Raises ServerError."""
        tiered = self.tier.find(topic, queue_id) if self.tier is not None else None
        if tiered is None:
            return self._store.offset_at_time(topic, queue_id, time_ms, upper)
        found = await self._answered(self._readers.run(partial(tiered.offset_at_time, time_ms, upper)))
        if found >= tiered.high - upper:
            # None there: the store's first, which the tier may have too, is the one.
            return max(self._store.offset_at_time(topic, queue_id, time_ms, upper), found)
        return found

    async def query(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int, kind: str) -> list[bytes]:
        """Return records with a key that are in the tier, newest first. Raises ServerError."""
        tier = self.tier
        if tier is None or count_max <= 0:
            return []
        return await self._answered(
            self._readers.run(partial(tier.query, topic, key, count_max, begin_ms, end_ms, kind))
        )


def tiering_of(
    settings: BrokerSettings, store: Store, cleaning: FileCleaning, is_master: Callable[[], bool]
) -> Tiering | None:
    """Return the second tier that a broker's settings ask for, None if they ask for none. `cleaning` waits for it."""
    if not settings.tiered or settings.tier.tiered_storage_level == DISABLE:
        return None
    tiering = Tiering(settings, store, settings.tier.segments(), is_master)
    cleaning.kept_from = tiering.kept_from
    return tiering
