"""Messages of a topic searched by key, tag, text and JSON in bodies, and time.

Rule: a search ends at a bound, says how many messages it passed and where to go on; queues are read together, in the
order of store times.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from rocketspark.admin.messages.json_path import JsonPath, same_value
from rocketspark.admin.messages.stored import PULL_BYTES, StoredOperations, pull_messages
from rocketspark.client import validators
from rocketspark.client.connection import client_api
from rocketspark.errors import UsageError
from rocketspark.model import MessageQueue, ReceivedMessage
from rocketspark.model.subscription import can_be_asked
from rocketspark.transport.peer import Peer

LIMIT, SCAN_MAX = 100, 100_000
# Of the bodies that one search returns, which inflate to a thousand times of what is stored.
FOUND_BYTES_MAX = 256 << 20
# Of one broker's answer, from its index of keys.
INDEXED_MAX = 64
# What is read ahead: messages of one queue and of all together; bytes of all, and of one at least.
AHEAD_MAX, AHEAD_ALL_MAX, AHEAD_MIN = 256, 4096, 8
AHEAD_BYTES, AHEAD_BYTES_MIN = 64 << 20, 64 << 10
AT_ONCE = 16
# A longer body is looked at beside the loop: JSON of a million values takes a second.
IN_TURN_BYTES = 256 << 10
PROGRESS_EVERY = 1000


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """Which messages are meant: those that are all of what is not None.

    `key`, `tag`: it has this one; `contains`: the body holds this text; `json_path`: the body is JSON, of a million
    values at most, in which this path leads to something (see JsonPath), with `json_value` to this value; `since_ms`,
    `until_ms`: stored in this time, `until_ms` not included; `ids`: it has one of these, unique ones or offset message
    ids.
    """

    ids: frozenset[str] | None = None
    key: str | None = None
    tag: str | None = None
    contains: str | bytes | None = None
    json_path: str | None = None
    json_value: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def predicate(self) -> Callable[[ReceivedMessage], bool]:
        """Return the function that tells whether a message is meant. Raises UsageError for a path that is none."""
        if self.json_value is not None and self.json_path is None:
            raise UsageError("a json_value needs the json_path that leads to it")
        path = None if self.json_path is None else JsonPath(self.json_path)
        text = self.contains.encode("utf-8", "surrogateescape") if isinstance(self.contains, str) else self.contains

        def meant(m: ReceivedMessage) -> bool:
            if self.tag is not None and m.tag != self.tag:
                return False
            if self.ids is not None and self.ids.isdisjoint((m.message_id, m.offset_message_id)):
                return False
            if self.key is not None and self.key not in m.keys:
                return False
            if not (self.since_ms or 0) <= m.store_time_ms < (1 << 63 if self.until_ms is None else self.until_ms):
                return False
            if text is not None and text not in m.body:
                return False
            if path is None:
                return True
            wanted = self.json_value
            return any(wanted is None or same_value(value, wanted) for value in path.values_in(m.body))

        return meant


class SearchProgress(msgspec.Struct, frozen=True):
    """How far a search is: messages it looked at, of how many there are to look at, and what it found."""

    looked_at: int
    total: int
    found: int


class FoundMessages(msgspec.Struct, frozen=True):
    """What a search found, in the order it was asked for.

    `looked_at`: how many messages it passed; `stopped`: why it ended before all were: "limit", "bytes", "scan_max", or
    "" if it did not; `next_offsets`: by queue where it goes on, given as `starts`; none where an index was asked.
    """

    messages: list[ReceivedMessage]
    looked_at: int
    stopped: str
    next_offsets: dict[MessageQueue, int]


class SearchOperations(StoredOperations):
    """The part of AsyncAdmin that searches messages."""

    async def find_messages(
        self,
        topic: str,
        search: Search | None = None,
        *,
        newest_first: bool = False,
        limit: int = LIMIT,
        scan_max: int = SCAN_MAX,
        bytes_max: int = FOUND_BYTES_MAX,
        queues: Iterable[MessageQueue] | None = None,
        starts: Mapping[MessageQueue, int] | None = None,
        ends: Mapping[MessageQueue, int] | None = None,
        on_progress: Callable[[SearchProgress], None] | None = None,
    ) -> FoundMessages:
        """Search a topic's messages, oldest first, or newest first.

        Args:
            search: which messages are meant; by default all.
            limit: how many are returned at most.
            scan_max: how many are looked at at most. A search by key asks the brokers' indexes, where that tells all.
            bytes_max: how many bytes the bodies returned have at most, but for the last one's.
            queues: only these; by default all that can be read.
            starts: by queue the offset to begin at (newest first: before which), as `next_offsets` of a search before.
            ends: by queue the offset before which to end, oldest first; what comes meanwhile is left out then.
            on_progress: called on the loop now and then.

        Raises UsageError for a search that cannot be, RouteNotFound, or what a broker raises.
        """
        search = search or Search()
        validators.check_counts(limit=limit, scan_max=scan_max, bytes_max=bytes_max)
        meant = search.predicate()
        route = await self._routes.refresh(validators.check_topic(topic))
        there = route.read_queues()
        if not there:
            raise UsageError(f"topic {topic!r} has no queue that can be read: give it permission 6")
        chosen = list(there if queues is None else queues)
        if wrong := next((q for q in chosen if q not in there), None):
            raise UsageError(f"topic {topic!r} has no queue {wrong.broker_name}/{wrong.queue_id} to read")
        if search.key is not None and queues is None and starts is None and limit <= INDEXED_MAX:
            found = await self._by_key(topic, search, meant, limit, newest_first)
            if found is not None:
                return found
        cursors = await self._cursors(chosen, search, starts or {}, ends or {}, newest_first)
        return await _Scan(cursors, meant, newest_first, _Bounds(limit, bytes_max, scan_max), on_progress).run()

    async def _by_key(
        self, topic: str, search: Search, meant: Callable[[ReceivedMessage], bool], limit: int, newest_first: bool
    ) -> FoundMessages | None:
        """Ask the indexes; None if they may have more than they tell."""
        assert search.key is not None
        # An index notes whole seconds.
        begin_ms = max(0, (search.since_ms or 0) - 1000)
        end_ms = client_api.TIMES_END_MS if search.until_ms is None else search.until_ms + 1000
        asked = await self._query(topic, search.key, count_max=INDEXED_MAX, begin_ms=begin_ms, end_ms=end_ms)
        by_broker: dict[str, int] = {}
        for m in asked:
            by_broker[m.broker_name] = by_broker.get(m.broker_name, 0) + 1
        if any(count >= INDEXED_MAX for count in by_broker.values()):
            return None
        found = [m for m in asked if meant(m)]
        if newest_first:
            found.reverse()
        return FoundMessages(found[:limit], len(asked), "limit" if len(found) > limit else "", {})

    async def _cursors(
        self,
        queues: list[MessageQueue],
        search: Search,
        starts: Mapping[MessageQueue, int],
        ends: Mapping[MessageQueue, int],
        newest_first: bool,
    ) -> list[_Cursor]:
        # A broker's filter knows hashes alone; what it lets pass is looked at here.
        tags = search.tag if search.tag and _is_plain(search.tag) else "*"
        ahead = max(AHEAD_MIN, min(AHEAD_MAX, AHEAD_ALL_MAX // len(queues)))
        ahead_bytes = max(AHEAD_BYTES_MIN, min(PULL_BYTES, AHEAD_BYTES // len(queues)))
        gate, held = asyncio.Semaphore(AT_ONCE), _Held()

        async def cursor(queue: MessageQueue) -> _Cursor:
            async with gate:
                peer = await self._broker(await self._routes.find_readable(queue))
                low, high = await asyncio.gather(
                    self._bound(peer, queue, search.since_ms, client_api.min_offset),
                    self._bound(peer, queue, search.until_ms, client_api.max_offset),
                )
            if (start := starts.get(queue)) is not None:
                low, high = (low, min(high, start)) if newest_first else (max(low, start), high)
            high = min(high, ends.get(queue, high))
            reading = _Reading(tags, ahead, ahead_bytes, newest_first, gate, held)
            return _Cursor(peer, queue, low, max(low, high), reading)

        return list(await asyncio.gather(*map(cursor, queues)))

    async def _bound(
        self, peer: Peer, queue: MessageQueue, time_ms: int | None, otherwise: Callable[..., object]
    ) -> int:
        if time_ms is not None:
            validators.check_time("time_ms", time_ms)
            return await client_api.search_offset(peer, queue, time_ms, timeout_ms=self._timeout_ms)
        return await otherwise(peer, queue, timeout_ms=self._timeout_ms)  # type: ignore[misc, no-any-return]


def _is_plain(tag: str) -> bool:
    return can_be_asked(tag) and not any(c in tag for c in "|* \t")


class _Held:
    """How many bytes of bodies all queues of a search have read ahead."""

    def __init__(self) -> None:
        self.bytes = 0


class _Reading(NamedTuple):
    """How queues are read: the broker's filter, what is read ahead of one, from which end, how many at once, and what
    all of them hold.
    """

    tags: str
    ahead: int
    ahead_bytes: int
    newest_first: bool
    gate: asyncio.Semaphore
    held: _Held


class _Cursor:
    """The offsets [low, high) of a queue that are still to be read, from the one end or the other."""

    def __init__(self, peer: Peer, queue: MessageQueue, low: int, high: int, reading: _Reading) -> None:
        self.queue = queue
        self._peer, self._reading = peer, reading
        self._low, self._high, self._newest_first = low, high, reading.newest_first
        self._begin = high if self._newest_first else low
        # Newest first, all of a step are read, whatever their size: it grows as far as they are small.
        self._step = 1 if self._newest_first else reading.ahead
        self.total = high - low
        self.buffer: deque[ReceivedMessage] = deque()
        self._held_bytes = 0
        # When the next message was stored: it is told also of one that is not held.
        self.next_ms: int | None = None

    @property
    def position(self) -> int:
        """The offset to go on at; newest first, the one before which to go on."""
        if self._newest_first:
            return self.buffer[0].queue_offset + 1 if self.buffer else self._high
        return self.buffer[0].queue_offset if self.buffer else self._low

    @property
    def looked_at(self) -> int:
        """How many offsets are behind it."""
        return abs(self.position - self._begin)

    @property
    def is_done(self) -> bool:
        """True if nothing is left."""
        return not self.buffer and self._low >= self._high

    async def fill(self, *, to_use: bool = False) -> None:
        """Read the next messages, of at most as many offsets as are read ahead.

        Where all queues hold too much already, they are not kept but for the time of the first, unless they are read
        `to_use` them now: small messages may have bodies that inflate to a thousand times of it.
        """
        async with self._reading.gate:
            count = min(self._step, self._high - self._low)
            if not self._newest_first:
                self._low = await self._read(self._low, self._low + count)
            else:
                at = first = self._high - count
                while at < self._high:
                    at = await self._read(at, self._high)
                self.buffer.reverse()
                self._high = first
            size = sum(len(m.body) for m in self.buffer)
            if self._newest_first:
                larger = min(2 * self._step, self._reading.ahead)
                self._step = larger if size * 2 <= self._reading.ahead_bytes else max(1, self._step // 2)
            self._hold(size)
            self.next_ms = self.buffer[0].store_time_ms if self.buffer else None
            if self.buffer and self._reading.held.bytes > AHEAD_BYTES and not to_use:
                if self._newest_first:
                    self._high = self.position
                else:
                    self._low = self.position
                self.buffer.clear()
                self._hold(-size)

    def _hold(self, size: int) -> None:
        self._held_bytes += size
        self._reading.held.bytes += size

    def take(self) -> ReceivedMessage:
        """Return the next message, which is behind it then."""
        message = self.buffer.popleft()
        self._hold(-len(message.body) if self.buffer else -self._held_bytes)
        self.next_ms = self.buffer[0].store_time_ms if self.buffer else None
        return message

    async def _read(self, first: int, end: int) -> int:
        """Put the messages of one pull behind the buffer; returns the offset to read on at, at most `end`."""
        how = self._reading
        pulled = await pull_messages(
            self._peer, self.queue, first, end - first, tags=how.tags, bytes_max=how.ahead_bytes
        )
        self.buffer.extend(m for m in pulled.messages if m.queue_offset < end)
        last = pulled.messages[-1].queue_offset + 1 if pulled.messages else first
        # A queue that says no more is done: what was there has expired meanwhile.
        reached = max(pulled.next_offset, last)
        return min(end, reached) if reached > first else end


class _Bounds(NamedTuple):
    """Where a search ends: messages found, bytes of their bodies, messages looked at."""

    limit: int
    bytes_max: int
    scan_max: int


class _Scan:
    """One search over queues, in the order of store times."""

    def __init__(
        self,
        cursors: list[_Cursor],
        meant: Callable[[ReceivedMessage], bool],
        newest_first: bool,
        bounds: _Bounds,
        on_progress: Callable[[SearchProgress], None] | None,
    ) -> None:
        self._cursors, self._meant, self._newest_first = cursors, meant, newest_first
        self._bounds, self._on_progress = bounds, on_progress
        self._total = sum(c.total for c in cursors)
        self._found: list[ReceivedMessage] = []
        self._found_bytes = 0
        self._numbers = {c.queue: number for number, c in enumerate(cursors)}

    async def run(self) -> FoundMessages:
        """Search until the end or a bound."""
        # Those to be read on, and those with something read: (time, number) of their next message.
        empty, heads = self._cursors, list[tuple[int, int]]()
        looked_at = told = 0
        stopped = ""
        while True:
            if empty := [c for c in empty if not c.is_done]:
                if looked_at >= self._bounds.scan_max or self._found_bytes >= self._bounds.bytes_max:
                    stopped = self._bound(looked_at)
                    break
                await asyncio.gather(*(c.fill() for c in empty))
                for c in empty:
                    if c.next_ms is not None:
                        heapq.heappush(heads, self._head(c, c.next_ms))
                # What was read may be not of this tag.
                empty = [c for c in empty if c.next_ms is None]
                looked_at = self._looked_at()
                continue
            if not heads:
                break
            if stopped := self._bound(looked_at):
                break
            cursor = self._cursors[heads[0][1]]
            if not cursor.buffer:
                await cursor.fill(to_use=True)
                if not cursor.buffer:
                    # It has expired meanwhile.
                    heapq.heappop(heads)
                    empty = [cursor]
                    continue
            message = cursor.take()
            looked_at += 1
            if await self._is_meant(message):
                self._found.append(message)
                self._found_bytes += len(message.body)
            if cursor.next_ms is not None:
                heapq.heapreplace(heads, self._head(cursor, cursor.next_ms))
            else:
                heapq.heappop(heads)
                empty = [cursor]
            if looked_at - told >= PROGRESS_EVERY:
                told = looked_at
                self._tell(looked_at)
        looked_at = self._looked_at()
        self._tell(looked_at)
        places = {c.queue: c.position for c in self._cursors}
        return FoundMessages(self._found, looked_at, stopped, places)

    async def _is_meant(self, message: ReceivedMessage) -> bool:
        if len(message.body) <= IN_TURN_BYTES:
            return self._meant(message)
        return await asyncio.to_thread(self._meant, message)

    def _bound(self, looked_at: int) -> str:
        """Return the bound that the search has come to, "" for none."""
        if len(self._found) >= self._bounds.limit:
            return "limit"
        if self._found_bytes >= self._bounds.bytes_max:
            return "bytes"
        return "scan_max" if looked_at >= self._bounds.scan_max else ""

    def _head(self, cursor: _Cursor, time_ms: int) -> tuple[int, int]:
        return -time_ms if self._newest_first else time_ms, self._numbers[cursor.queue]

    def _looked_at(self) -> int:
        return sum(c.looked_at for c in self._cursors)

    def _tell(self, looked_at: int) -> None:
        if self._on_progress is not None:
            self._on_progress(SearchProgress(looked_at, self._total, len(self._found)))
