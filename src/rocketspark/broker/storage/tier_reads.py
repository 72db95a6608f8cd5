"""What is read from the second tier of a broker: messages that only it has, or that are preferred there.

Rules: reads run in threads, so a slow or broken tier holds no other reader. Until it is known what the tier has, who
asks for old messages is told to ask again.
"""

from __future__ import annotations

import asyncio
import inspect
from functools import partial
from typing import Any, TypeVar

from rocketspark import machine
from rocketspark.broker import topic_names
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.storage.log_memory import LogMemory
from rocketspark.broker.tiered_settings import FORCE, NOT_IN_MEM
from rocketspark.errors import ServerError, StoreError
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.store.get_message import NOTHING_SO_FAR, Accepts, GetMessageResult, SoFar
from rocketspark.store.store import Store
from rocketspark.store.tiered.cold_cache import ColdCache
from rocketspark.store.tiered.queue_tier import QueueTier
from rocketspark.store.tiered.tier import Queue, Tier
from rocketspark.transport.loose_threads import LooseThreads
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Answer, Handler, Routes

T = TypeVar("T")

READERS = 4
# What waits for the tier is told to ask again after so long: until it is known what it has, and for messages from it.
KNOWN_S, READ_S = 3.0, 10.0
# A tier that could not be read is asked for so long only for what the store has not.
AVOIDED_S = 30.0
# Requests, each with a topic and a queue, that are answered wrong without the tier.
OF_OLD_OFFSETS = (
    RequestCode.GET_MIN_OFFSET,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.GET_EARLIEST_MSG_STORETIME,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
)


class ColdMiss(ServerError):
    """Messages have to be read from the tier first: `load` does. Who cannot wait is told to ask again."""

    queue: Queue = ("", 0)
    offset = 0


class TierReads:
    """The reading half of `Tiering`, which opens the tier: then it has `tier` and `cache`."""

    def __init__(self, settings: BrokerSettings, store: Store) -> None:
        self._settings = settings
        self._store = store
        self.tier: Tier | None = None
        self.cache: ColdCache | None = None
        self._readers = LooseThreads("cold", READERS)
        self._loading: dict[tuple[Queue, int], asyncio.Future[None]] = {}
        # `_known`: what the tier has; `_wanted`: a look for what the master has written since, as is `_wants_more`.
        self._wanted, self._known = asyncio.Event(), asyncio.Event()
        self._wants_more = False
        # Rounds of uploads, or of looks, that have failed one after the other.
        self._failures = 0
        self._level, self._avoided_until_s = settings.tier.tiered_storage_level, 0.0
        self._is_far_behind = LogMemory(settings, store).is_far_behind
        # For metrics: by topic, the messages that were read from the tier.
        self.read_counts: dict[str, int] = {}

    def _takes(self, topic: str) -> bool:
        return not (
            topic_names.is_system_topic(topic)
            or topic.startswith(topic_names.LIGHT_PREFIX)
            or topic in (self._settings.cluster_name, self._settings.broker_name)
        )

    def _is_made_anew(self, queue: QueueTier) -> bool:
        """Tell whether the topic was deleted, and made again, since the tier got its messages."""
        made_at = self._store.made_at(queue.topic)
        return made_at is not None and made_at > (queue.made_at or -1)

    def _is_kept(self, topic: str, queue_id: int) -> bool:
        return self._store.consume_queues.find(topic, queue_id) is not None and self._takes(topic)

    def has(self, topic: str, queue_id: int, offset: int) -> bool:
        """Tell whether the tier has a message, or may have it, as it is not known yet what the tier has."""
        tier = self.tier
        if tier is None or (topic, queue_id) in tier.unread:
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
        return wanted and is_read and not (self.cache is not None and self.cache.is_damaged((topic, queue_id), offset))

    def hold(self, routes: Routes) -> None:
        """Let requests for old offsets wait a little where their answer is not known before the tier's is."""
        for code in OF_OLD_OFFSETS:
            routes.wrap(code, self._once_known)

    def _once_known(self, inner: Handler) -> Handler:
        def answer(peer: Peer, request: Any, body: bytes) -> Answer:
            if self.is_missed(request.ext.topic, request.ext.queue_id):
                return self._later(inner, peer, request, body)
            return inner(peer, request, body)

        return answer

    def is_missed(self, topic: str, queue_id: int) -> bool:
        """Tell whether the tier is not open, or cannot be read there, and may have messages of a queue (-1: of any)
        that the store has not.
        """
        if self.tier is not None and not self.tier.unread:
            return False
        ids = [queue_id] if queue_id >= 0 else list(self._store.queues().get(topic, ()))
        unread = [at for at in ids if self.tier is None or (topic, at) in self.tier.unread]
        return any(self._is_kept(topic, at) and self._store.stored_range(topic, at)[0] > 0 for at in unread)

    async def _later(self, inner: Handler, peer: Peer, request: Any, body: bytes) -> Any:
        await self._open_tier()
        if self.is_missed(request.ext.topic, request.ext.queue_id):
            raise ServerError(ResponseCode.SYSTEM_BUSY, "the second tier cannot be read there: ask again")
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
