"""The second tier of a broker: what is on the disk is appended to it. What is read from it: tier_reads.

Rules: uploads run in a thread, so a slow or broken tier holds no send. Only a master uploads, and only what is flushed
and confirmed; other replicas read what it has written. After a failure the same messages are uploaded again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple, TypeVar

from rocketspark import machine
from rocketspark.broker.repeated_work import pause
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.storage.json_tables import now_ms
from rocketspark.broker.storage.retention import FileCleaning
from rocketspark.broker.storage.tier_reads import TierReads
from rocketspark.broker.tiered_settings import DISABLE
from rocketspark.errors import RocketSparkError, StoreError, StoreUnwritable
from rocketspark.model.text import LONG_MAX, shown, whole_number
from rocketspark.protocol.json.bodies import TopicConfig
from rocketspark.protocol.message import record_layout
from rocketspark.protocol.topic_attributes import RESERVE_TIME
from rocketspark.store.consumequeue.batch_consume_queue import BatchConsumeQueue
from rocketspark.store.consumequeue.consume_queue import GAP_SIZE, ConsumeQueue
from rocketspark.store.files.system_calls import OsFiles
from rocketspark.store.store import Store
from rocketspark.store.tiered.attempts import Attempts
from rocketspark.store.tiered.cold_cache import ColdCache
from rocketspark.store.tiered.layout import broker_folder
from rocketspark.store.tiered.owner import TierOwner
from rocketspark.store.tiered.queue_tier import NewUnit, QueueTier
from rocketspark.store.tiered.segments import FAILURES_MAX, HeldSegments, SegmentStore, TierTaken
from rocketspark.store.tiered.tier import Queue, Tier
from rocketspark.transport.loose_threads import LooseThreads
from rocketspark.transport.shared_task import end_tasks

log = logging.getLogger("rocketspark.broker")
T = TypeVar("T")

ROUND_MS_MAX = 5000
# After a failure the next round waits so long, twice as long after each further one.
RETRY_MS, RETRY_MS_MAX = 1000, 60_000
QUEUES_IN_TURN = 256
UNITS_IN_TURN = 512
# A replica looks for what its master has written so often, and no sooner than the second again if a reader wants more.
FOLLOW_MS, FOLLOW_MS_MIN = 60_000, 2000
# Messages that are looked at for one that both the store and the tier have, where some are missing.
GAPS_MAX = 100
# A store that had no message at its start may have lost all: its tier, or its right to it, is waited for so long.
LOST_S = 60.0
# A stop waits for calls to the tier for so long.
STOP_S = 10.0


class Likeness(NamedTuple):
    """How a queue in the tier is like the store's: whether what it has before the store's oldest message is the
    store's, whether more may be added to it, and the offset below which both have the same.
    """

    is_readable: bool
    is_whole: bool
    same_below: int


class Tiering(TierReads):
    """Keeps a broker's tier. `segments`: where it lies; `is_master`: whether this broker uploads now."""

    def __init__(
        self, settings: BrokerSettings, store: Store, segments: SegmentStore, is_master: Callable[[], bool]
    ) -> None:
        super().__init__(settings, store)
        self._is_master = is_master
        tier = settings.tier.tier(
            settings.store_root, settings.cluster_name, settings.broker_name, index_enabled=settings.index_enabled
        )
        folder = broker_folder(settings.cluster_name, settings.broker_name)
        place = settings.tier.tiered_store_file_path
        self._owner = TierOwner(settings.store_root, place, folder, segments, OsFiles())
        self._make = partial(Tier, tier, HeldSegments(segments, self._owner.keep))
        self._opened_as = 0
        self._writer = LooseThreads("tier")
        self._task: asyncio.Task[None] | None = None
        self._expired_ms = 0
        # Whether the tier has anything that its table does not tell yet.
        self._unsaved = False
        self._upkeep, self._uploading = Attempts(), Attempts()
        self._followed_s = 0.0
        self.topic_of: Callable[[str], TopicConfig | None] = lambda topic: None
        self._may_be_lost_until_s = machine.monotonic() + LOST_S if not store.written_position else 0.0
        # Whether another store has the tier, of which it is not known whether its broker lives.
        self._is_held = False
        store.consume_queues.begins_at = self._begin_of
        # For metrics: by queue, the messages that are not in the tier yet.
        self.behind: dict[Queue, int] = {}
        self.failures = 0

    # -- life

    def start(self) -> None:
        """Begin to upload, and serve reads once it is known what the tier has."""
        self._task = asyncio.get_running_loop().create_task(self._go_on_forever())

    async def wait_if_lost(self) -> None:
        """Wait a little until it is known where a store without a message begins: it may have lost all."""
        until_s = machine.monotonic() + STOP_S
        while self._may_be_lost() and machine.monotonic() < until_s:
            try:
                await asyncio.wait_for(self._known.wait(), 0.1)
            except TimeoutError:
                pass

    @property
    def _own(self) -> Tier | None:
        """The tier, if it is this broker's to write in."""
        return None if self.tier is None or self.tier.is_read_only else self.tier

    def _may_be_lost(self) -> bool:
        is_unknown = self._own is None and (self._is_held or not self._failures)
        return is_unknown and machine.monotonic() < self._may_be_lost_until_s and self._is_master()

    async def stop(self) -> None:
        """Stop uploading, once the upload that is being written has ended; a tier that hangs is not waited for longer
        than some seconds.
        """
        await end_tasks(self._task)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + STOP_S
        if self._own is not None:
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

    # -- queues that the store has lost

    def _begin_of(self, topic: str, queue_id: int) -> int:
        """Return where a new queue of the store begins: behind what the tier has of it, which the store has lost then.

        Raises StoreUnwritable while that is not known of a store that may have lost all.
        """
        if not self._is_master():
            # What it has is its master's, so it has lost nothing: it may be elected while the tier is away.
            self._may_be_lost_until_s = 0.0
            return 0
        if not self._takes(topic) or self._store.made_at(topic) is not None:
            return 0
        if self._may_be_lost():
            text = "the store is empty, and it is not known yet where its queues end in the second tier: ask again"
            raise StoreUnwritable(text, retriable=True)
        own = self._own
        if own is not None and (topic, queue_id) in own.unread:
            raise StoreUnwritable(
                "it cannot be read where this queue ends in the second tier: ask again", retriable=True
            )
        tiered = own.find(topic, queue_id) if own is not None else None
        return tiered.next if tiered is not None else 0

    def _begin_lost(self, tier: Tier) -> None:
        """Make queues of which only the tier has anything, so that they are read."""
        for topic, queue_id in tier.queues:
            if queue_id in self._store.queues().get(topic, ()) or not self._takes(topic):
                continue
            config = self.topic_of(topic)
            if config is not None and queue_id < config.read_queue_nums:
                try:
                    queue = self._store.consume_queues.make(topic.encode(), queue_id)
                except StoreError as e:
                    # A full disk must not keep others from being copied, so that their files can go.
                    log.warning("queue %d of %s was lost, and cannot go on yet: %s", queue_id, shown(topic), e)
                    return
                log.warning(
                    "queue %d of %s was lost: it goes on at offset %d, behind what the second tier has of it",
                    queue_id,
                    shown(topic),
                    queue.next,
                )

    # -- uploads

    async def round(self) -> None:
        """Upload what is due, and remove what is too old; a replica looks for what its master has written. Raises
        StoreError.
        """
        if not self._is_master():
            await self._follow()
            return
        tier = self._own
        try:
            await self._writer.run(self._owner.hold)
        except TierTaken:
            self._is_held = not self._owner.other_lives
            # What it has is read all the same.
            await self._follow()
            raise
        self._is_held = False
        if tier is None or self._opened_as != self._owner.number:
            # Another store may have had it since it was opened.
            tier = await self._opened(self._make)
            self._opened_as = self._owner.number
        try:
            await self._write(tier)
        except TierTaken:
            # Another store may have written since it was opened.
            self._opened_as = 0
            raise

    async def _write(self, tier: Tier) -> None:
        now = now_ms()
        self._unsaved |= await self._drop_deleted(tier)
        s = self._settings.tier
        expired_ago_ms = now - self._expired_ms
        failed: list[StoreError] = []
        if s.tiered_store_delete_file_enable and not 0 <= expired_ago_ms < s.tiered_store_delete_file_interval:
            # First of all: a full disk gets room by it.
            expire = partial(tier.expire, now, s.tiered_store_file_reserved_time, self._reserved_ms)
            try:
                self._unsaved |= await self._writer.run(expire)
                self._expired_ms = now
                await self._save(tier, now)
            except TierTaken:
                raise
            except StoreError as e:
                # Who may write there and not remove still has all copied before the store's own files go.
                failed = [e]
        for queue in list(tier.unread):
            with self._upkeep.at(queue):
                await self._open_unread(tier, *queue)
        self._begin_lost(tier)
        await self._upload_all(tier)
        failed = [*self._upkeep.errors, *failed, *self._uploading.errors]
        self._unsaved |= await self._writer.run(partial(tier.upload_keys, now))
        await self._save(tier, now)
        if failed:
            raise failed[-1]

    async def _save(self, tier: Tier, now: int) -> None:
        if self._unsaved:
            await self._writer.run(partial(tier.save, now))
            self._unsaved = False

    def _reserved_ms(self, topic: str) -> int | None:
        """Return for how long a topic's messages are kept by its own attribute, 0 if by none; None for a topic that is
        not known: that of a store that was lost may be made again, with a longer time.
        """
        config = self.topic_of(topic)
        if config is None:
            return None
        return whole_number(config.attributes.get(RESERVE_TIME, ""), high=LONG_MAX) or 0

    async def _opened(self, make: Callable[[], Tier], before: Tier | None = None) -> Tier:
        """Find what the tier has, and let readers see what belongs to the store's queues."""
        tier = make()
        await self._writer.run(partial(tier.open, before))
        async for topic, queue_id, queue in self._queues():
            tiered = tier.find(topic, queue_id)
            if tiered is not None:
                try:
                    await self._bound(tiered, queue)
                except StoreUnwritable:
                    tier.set_aside(tiered)
                    if len(tier.unread) >= FAILURES_MAX:
                        raise
        if self.tier is not None:
            self.tier.close()
        self._set(tier)
        return tier

    async def _bound(self, tiered: QueueTier, queue: ConsumeQueue) -> None:
        """Let readers see of a queue what is the store's."""
        found = await self._compare(tiered, queue)
        if not found.is_readable or (self._is_master() and not found.is_whole):
            tiered.end_at(found.same_below)

    async def _open_unread(self, tier: Tier, topic: str, queue_id: int) -> None:
        """Look again at a queue that could not be read. Raises StoreUnwritable."""
        tiered = await self._writer.run(partial(tier.found_again, topic, queue_id))
        queue = self._store.consume_queues.find(topic, queue_id)
        if queue is not None and tiered.begun:
            await self._bound(tiered, queue)
        if tiered.begun:
            tier.queues[topic, queue_id] = tiered
        del tier.unread[topic, queue_id]

    async def _follow(self) -> None:
        """Look for what another broker has written, where the last look was too long ago."""
        loop = asyncio.get_running_loop()
        before = self.tier if self._own is None else None
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

    async def _upload_all(self, tier: Tier) -> None:
        """Upload what is due of all queues, unless many cannot be. Raises TierTaken."""
        behind: dict[Queue, int] = {}
        attempts = self._uploading
        attempts.begin()
        last = attempts.order([queue for queue in attempts.failed if self._is_kept(*queue)])
        async for topic, queue_id, queue in self._queues(last):
            with attempts.at((topic, queue_id)):
                done, left = await self._upload(tier, topic, queue_id, queue)
                self._unsaved |= done
                if left:
                    behind[topic, queue_id] = left
            if attempts.is_over:
                return
        self.behind = behind

    async def _queues(self, last: Sequence[Queue] = ()) -> AsyncIterator[tuple[str, int, ConsumeQueue]]:
        """Yield the queues that are kept in the tier (rule: MessageStoreTopicFilter, 5.5.0), some in each turn. `last`:
        those that come behind all others, in this order.
        """
        late = frozenset(last)
        topics = ((topic, ids) for topic, ids in list(self._store.queues().items()) if self._takes(topic))
        first = ((topic, queue_id, False) for topic, ids in topics for queue_id in list(ids))
        behind = ((topic, queue_id, True) for topic, queue_id in last)
        for looked_at, (topic, queue_id, is_late) in enumerate(chain(first, behind), 1):
            if looked_at % QUEUES_IN_TURN == 0:
                await asyncio.sleep(0)
            queue = self._store.consume_queues.find(topic, queue_id)
            if queue is not None and is_late is ((topic, queue_id) in late):
                yield topic, queue_id, queue

    def _is_former(self, queue: QueueTier) -> bool:
        """Tell whether its topic was made anew since, so that it has to go."""
        return queue.compared and not queue.left and self._is_made_anew(queue)

    async def _drop_deleted(self, tier: Tier) -> bool:
        queues, gone = self._store.queues(), False
        self._upkeep.begin()
        for topic, queue_id in self._upkeep.order(list(tier.queues)):
            # A deletion is forgotten once the log has nothing from before it: that says nothing of this one.
            is_deleted = topic not in queues and self._store.made_at(topic) is not None
            if (is_deleted or self._is_former(tier.queues[topic, queue_id])) and not self._upkeep.is_over:
                with self._upkeep.at((topic, queue_id)):
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
        if (topic, queue_id) in tier.unread:
            return False, queue.next - queue.min
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
        if tiered is not None and self._is_former(tiered):
            # It could not be removed yet.
            return changed, max(high - queue.min, 0)
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
        """Tell whether the tier's queue and the store's hold the same messages, by the time of one that both have.

        It is looked for at `at`, and from there in steps of `step` towards `end`. True if none is found.
        """
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
        if isinstance(queue, BatchConsumeQueue):
            return self._take_batches(queue, offset, count)
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

    def _take_batches(self, queue: BatchConsumeQueue, offset: int, count: int) -> list[NewUnit]:
        """Do what `_take` does, with the records that begin within the next messages: RocketMQ's tier has the record
        once for each message.
        """
        store, found, size = self._store, list[NewUnit](), 0
        missing = NewUnit(None, 0, max(store.last_store_time_ms, 0))
        end = offset + count
        for base, messages, position, bytes_of, code, stored in store.batch_mender.rows(queue, offset):
            size += bytes_of
            is_enough = found and size > self._settings.tier.tiered_store_group_commit_size
            if base >= end or is_enough or position + bytes_of > store.flushed_position:
                return found
            found += [missing] * (base - offset)
            offset, messages = base + messages, base + messages - max(base, offset)
            if stored is None:
                found += [missing] * messages
            else:
                found.append(NewUnit(stored, code, record_layout.store_time_of(stored), messages))
        return found + [missing] * (end - offset)

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
            is_ours = tiered is not None and tiered.compared and not self._is_former(tiered)
            at = max(tiered.next, queue.min) if tiered is not None and is_ours else queue.min
            at = queue.after_gap(at, queue.next) if at < queue.next else at
            if at < queue.next:
                lowest = min(lowest, queue.unit(at)[0])
        return lowest


def tiering_of(
    settings: BrokerSettings, store: Store, cleaning: FileCleaning, is_master: Callable[[], bool]
) -> Tiering | None:
    """Return the second tier that a broker's settings ask for, None if they ask for none. `cleaning` waits for it."""
    if not settings.tiered or settings.tier.tiered_storage_level == DISABLE:
        return None
    tiering = Tiering(settings, store, settings.tier.segments(), is_master)
    cleaning.kept_from = tiering.kept_from
    return tiering
