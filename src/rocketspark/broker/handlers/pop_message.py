"""POP_MESSAGE and PEEK_MESSAGE: messages of any queue of a topic, taken for a time or left where they are.

A pop that finds nothing is held until there is something. `pop_handlers` makes all handlers of requests about pops.
Rule (PopMessageProcessor, PeekMessageProcessor, 5.5.0): replies with 0, 209 and 210 carry all numbers, as clients read
these of each.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Generator, Iterator
from typing import Any

from rocketspark import machine
from rocketspark.broker.background_thread import BackgroundThread
from rocketspark.broker.consumers.long_polling import request_weight
from rocketspark.broker.consumers.message_filters import PopFilter, PopFilters, ToCompile
from rocketspark.broker.handlers.ack_message import AckHandler, Answers, ChangeInvisibleTimeHandler
from rocketspark.broker.handlers.lite.pop_lite import LiteAcknowledgements, PopLiteHandler
from rocketspark.broker.handlers.notification import NotificationHandler
from rocketspark.broker.lite.parts import LiteTopics
from rocketspark.broker.parts import HasRoutes, StoreReads, Tables
from rocketspark.broker.pop.in_flight import InFlightMessages
from rocketspark.broker.pop.pops import Pops
from rocketspark.broker.pop.reading import Found, PopReading, Round, own_retries
from rocketspark.broker.pop.requests import COUNT_MAX, PopChecks, refusing
from rocketspark.broker.pop.waiting_pops import ALL_QUEUES, WaitingPop, WaitingPops
from rocketspark.broker.replication.waits import Durability
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.storage.json_tables import now_ms
from rocketspark.broker.storage.log_memory import LogMemory
from rocketspark.broker.storage.long_scans import LongScans
from rocketspark.broker.topics import Topics
from rocketspark.errors import ServerError
from rocketspark.protocol import frames, pop_answers
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.frames import VERSION
from rocketspark.protocol.headers import PeekHeader, PopHeader, PopReply, Request
from rocketspark.protocol.pop_answers import ORDERED_REVIVE_QUEUE, RETRY_V1, RETRY_V2
from rocketspark.store.get_message import GetStatus
from rocketspark.store.store import Store
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Answer, Routes
from rocketspark.transport.request_frames import reply

_LENGTHS = struct.Struct(">ii")
_REPLY = (
    b'{"code":%d,"extFields":{"popTime":"%d","invisibleTime":"%d","reviveQid":"%d","restNum":"%d",'
    b'"startOffsetInfo":"%b","msgOffsetInfo":"%b"%b},"flag":1,"language":"JAVA","opaque":%d,"remark":"%b",'
    b'"serializeTypeCurrentRPC":"JSON","version":' + str(VERSION).encode() + b"}"
)

# A request this much older than it may wait is answered at once.
LATE_MS = 500
# A request is answered so long before its client gives up.
EARLY_MS = 50


class PopHandler:
    """Serves pops."""

    def __init__(
        self,
        settings: BrokerSettings,
        checks: PopChecks,
        filters: PopFilters,
        reading: PopReading,
        waiting: WaitingPops,
        pops: InFlightMessages,
        scans: LongScans,
    ) -> None:
        self._scans = scans
        self._settings = settings
        self._checks = checks
        self._filters = filters
        self._reading = reading
        self._waiting = waiting
        self._pops = pops

    def routes(self, routes: Routes) -> None:
        """Add what this handler serves."""
        routes.add(RequestCode.POP_MESSAGE, self.pop, PopHeader)

    def pop(self, peer: Peer, request: Request[PopHeader], body: bytes) -> Answer:
        """POP_MESSAGE (200050): give out messages that stay invisible for a time; wait if there are none."""
        return refusing(request, PopReply(), lambda: self._checked(peer, request))

    def _checked(self, peer: Peer, request: Request[PopHeader]) -> Answer:
        h, time_ms = request.ext, now_ms()
        h.queue_id = max(h.queue_id, ALL_QUEUES)
        if h.born_time_ms == 0:
            h.born_time_ms = time_ms
        if time_ms - h.born_time_ms - h.poll_time_ms > LATE_MS:
            remark = f"the broker[{self._settings.host}] pop message is timeout too much"
            return reply(request.opaque, ResponseCode.POLLING_TIMEOUT, PopReply(), remark=remark)
        self._checks.check_pop(peer, h)
        try:
            wanted = self._filters.of(h.topic, h.expression_type, h.expression)
        except ToCompile as e:
            return self._compile_first(peer, request, str(e))
        return self._pop(peer, request, wanted)

    async def _compile_first(self, peer: Peer, request: Request[PopHeader], expression: str) -> Any:
        while True:
            await self._filters.compile(expression)
            if not peer.is_open:
                return None
            try:
                wanted = self._filters.of(request.ext.topic, request.ext.expression_type, expression)
            except ToCompile:
                continue
            return self._pop(peer, request, wanted)

    def _pop(self, peer: Peer, request: Request[PopHeader], wanted: PopFilter) -> Answer:
        """Answer a pop, or hold it."""
        h, time_ms, place = request.ext, now_ms(), Round()
        found = self._read(peer, h, wanted, time_ms, place)
        if wanted.accepts is not None:
            # Some ms where hundreds of records were looked at.
            peer.rest()
        if found.count:
            return self._taken(request, found)
        left_ms = h.born_time_ms + h.poll_time_ms - EARLY_MS - time_ms
        if h.poll_time_ms <= 0 or left_ms < 0:
            if place.is_cut:
                return self._look_at_all(peer, request, wanted, place)
            return self._nothing(request, found, ResponseCode.POLLING_TIMEOUT)
        weight = request_weight(request, wanted.codes, h.expression if wanted.codes is None else None)
        if not self._waiting.has_room(h.topic, h.group, h.queue_id, peer, weight):
            return self._nothing(request, found, ResponseCode.POLLING_FULL)
        self._hold(peer, request, wanted, left_ms, weight, place, go_on=found if found.cut else None)
        return None

    async def _look_at_all(
        self, peer: Peer, request: Request[PopHeader], wanted: PopFilter, place: Round
    ) -> bytes | None:
        """Look at the other queues, in later turns, for a pop that is not held."""
        while place.is_cut:
            await self._scans.next()
            if not peer.is_open:
                return None
            try:
                found = self._read(peer, request.ext, wanted, now_ms(), place)
            except ServerError as e:
                return reply(request.opaque, e.code, PopReply(), remark=e.remark)
            if found.count:
                return self._taken(request, found)
        return self._timed_out(request, Found(now_ms()))

    def _taken(self, request: Request[PopHeader], found: Found) -> bytes:
        if found.rest > 0:
            self._waiting.wake(request.ext.topic, request.ext.group, request.ext.queue_id)
        return self._found(request, found)

    def _read(self, peer: Peer, h: PopHeader, wanted: PopFilter, time_ms: int, place: Round) -> Found:
        if not self._pops.serving or self._waiting.closed:
            # Nothing can be noted, as on a slave (rule: 5.5.0, which finds nothing there either).
            return Found(time_ms)
        return self._reading.read(h, wanted, peer.address, time_ms, place)

    def _hold(
        self,
        peer: Peer,
        request: Request[PopHeader],
        wanted: PopFilter,
        left_ms: int,
        weight: int,
        place: Round,
        *,
        go_on: Found | None,
    ) -> WaitingPop:
        """Hold a pop; answer it once there is a message, or when its time is over."""
        h = request.ext

        def retry(final: bool) -> int | None:
            if not self._waiting.may_answer(waiter, peer, final=final):
                return None
            if waiter.woken:
                waiter.woken = False
                place.again()
            try:
                self._checks.check_again(h.topic, h.group)
                found = self._read(peer, h, wanted, now_ms(), place) if peer.is_writable else Found(now_ms())
                if not found.count and not final:
                    if found.cut:
                        self._look_on(waiter, wanted, found)
                    return None
                answer = self._found if found.count else self._timed_out
                peer.send(answer(request, found))
                return found.rest if found.count else 0
            except Exception as e:
                self._waiting.failed(waiter, peer, request, e)
                return None

        waiter = self._waiting.wait(
            h.topic,
            h.group,
            h.queue_id,
            left_ms,
            retry,
            owner=peer,
            kind=(h.order, h.expression_type, h.expression),
            weight=weight,
        )
        if go_on is not None:
            self._look_on(waiter, wanted, go_on)
        return waiter

    def _look_on(self, waiter: WaitingPop, wanted: PopFilter, found: Found) -> None:
        """Let a pop whose filter ended before the queues did, or whose messages are brought, go on in a later turn."""
        awaited: asyncio.Future[Any] | None = wanted.accepts.awaited if wanted.accepts is not None else None
        if found.loading is not None:
            # After a failure it waits until its time is over; the next pop tries again.
            found.loading.add_done_callback(lambda done: self._waiting.again(waiter) if _is_brought(done) else None)
            return
        if awaited is None or awaited.done():
            self._waiting.again(waiter)
        else:
            awaited.add_done_callback(lambda done: self._waiting.again(waiter))

    # -- replies --------------------------------------------------------------------------------------------------

    def _timed_out(self, request: Request[PopHeader], found: Found) -> bytes:
        return self._nothing(request, found, ResponseCode.POLLING_TIMEOUT)

    def _nothing(self, request: Request[PopHeader], found: Found, code: int) -> bytes:
        return self._reply(request, found, code, b"NO_MESSAGE_IN_QUEUE")

    def _found(self, request: Request[PopHeader], found: Found) -> bytes:
        return self._reply(request, found, ResponseCode.SUCCESS, b"FOUND")

    def _reply(self, request: Request[PopHeader], found: Found, code: int, remark: bytes) -> bytes:
        h = request.ext
        revive_queue_id = found.revive_queue_id
        if revive_queue_id < 0:
            revive_queue_id = ORDERED_REVIVE_QUEUE if h.order else 0
        orders = b',"orderCountInfo":"%b"' % ";".join(found.orders).encode() if h.order else b""
        header = _REPLY % (
            code,
            found.pop_time_ms,
            h.invisible_time_ms,
            revive_queue_id,
            found.rest,
            ";".join(found.starts).encode(),
            ";".join(found.texts).encode(),
            orders,
            request.opaque,
            remark,
        )
        total = 4 + len(header) + found.bytes
        if total > frames.FRAME_BYTES_MAX:
            frames.check_length(total)
        return b"".join((_LENGTHS.pack(total, len(header)), header, *found.records))


# One of so many looks reads the retries first.
RETRIES_FIRST_EVERY = 5
# Queues that are looked at in one turn of the loop: some ms.
QUEUES_IN_TURN = 1024


class PeekHandler:
    """Serves PEEK_MESSAGE: shows the messages that a pop would give out."""

    def __init__(
        self,
        settings: BrokerSettings,
        checks: PopChecks,
        store: Store,
        topics: Topics,
        reading: PopReading,
        scans: LongScans,
    ) -> None:
        self._scans = scans
        self._settings = settings
        self._checks = checks
        self._store = store
        self._topics = topics
        self._reading = reading

    def routes(self, routes: Routes) -> None:
        """Add what this handler serves."""
        routes.add(RequestCode.PEEK_MESSAGE, self.peek, PeekHeader)

    def peek(self, peer: Peer, request: Request[PeekHeader], body: bytes) -> Answer:
        """PEEK_MESSAGE (200052): return messages as a pop would, without giving them out."""
        return refusing(request, PopReply(), lambda: self._scans.answer(peer, self._peek(peer, request)))

    def _peek(self, peer: Peer, request: Request[PeekHeader]) -> Generator[None, None, bytes]:
        h = request.ext
        self._checks.check_readable()
        config = self._checks.check_queue(peer, h.topic, h.queue_id)
        self._checks.check_group(peer, h.group, h.topic)
        if not 0 < h.count_max <= COUNT_MAX:
            # RocketMQ looks at as many as are asked.
            raise ServerError(
                ResponseCode.INVALID_PARAMETER, f"{h.count_max} messages are to be peeked, 1 to {COUNT_MAX} may be"
            )
        chance = machine.randrange(100)
        queues = [h.queue_id]
        if h.queue_id < 0:
            queues = [(chance + n) % config.read_queue_nums for n in range(config.read_queue_nums)]
        places = [(h.topic, queue_id) for queue_id in queues]
        retries = self._retries(h)
        places = [*retries, *places] if chance % RETRIES_FIRST_EVERY == 0 else [*places, *retries]
        found: list[memoryview] = []
        rest = count = size = 0
        for number, (topic, queue_id) in enumerate(places, 1):
            if number % QUEUES_IN_TURN == 0:
                yield
            offset = self._reading.next_offset(topic, h.group, queue_id)
            rest += max(self._store.queue_range(topic, queue_id)[1] - offset, 0)
            bytes_max = self._settings.pull_bytes_max - size
            if count >= h.count_max or bytes_max <= 0:
                continue
            own = own_retries(topic, h.group)
            read = self._store.read(topic, queue_id, offset, h.count_max - count, bytes_max, accepts=own)
            if read.status in (GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_TOO_BIG, GetStatus.REMOVED):
                read = self._store.read(topic, queue_id, read.next_offset, h.count_max - count, bytes_max, accepts=own)
            found += read.records
            count, size = count + read.count, size + read.size
        header = PopReply(rest_count=rest)
        if not count:
            return reply(request.opaque, ResponseCode.PULL_NOT_FOUND, header, remark="NO_MESSAGE_IN_QUEUE")
        return reply(request.opaque, 0, header, b"".join(found), remark="FOUND")

    def _retries(self, h: PeekHeader) -> list[tuple[str, int]]:
        name = pop_answers.retry_topic(h.topic, h.group, RETRY_V2 if self._settings.retry_topics_v2 else RETRY_V1)
        config = self._topics.table.get(name)
        return [] if config is None else [(name, queue_id) for queue_id in range(config.read_queue_nums)]


def pop_handlers(
    settings: BrokerSettings,
    reads: StoreReads,
    tables: Tables,
    pops: Pops,
    filtering: BackgroundThread,
    durability: Durability,
    lite: LiteTopics,
) -> Iterator[HasRoutes]:
    """Make the handlers. `filtering`: the thread that costly filters run in."""
    store, scans, topics, offsets = reads.store, reads.long_scans, tables.topics, tables.offsets
    in_flight, ordered, block_ends = pops.in_flight, pops.ordered, pops.block_ends
    checks, filters = PopChecks(settings, tables, in_flight), PopFilters(filtering)
    reading = PopReading(settings, reads, tables, in_flight, ordered, block_ends, LogMemory(settings, store))
    yield PopHandler(settings, checks, filters, reading, pops.waiting, in_flight, scans)
    yield PeekHandler(settings, checks, store, topics, reading, scans)
    yield NotificationHandler(settings, checks, filters, store, topics, reading, pops, scans)
    answers = Answers(durability)
    of_lite = LiteAcknowledgements(store, tables, checks, lite.pops)
    yield AckHandler(checks, store, offsets, in_flight, ordered, block_ends, answers, scans, of_lite)
    yield ChangeInvisibleTimeHandler(checks, store, offsets, in_flight, ordered, block_ends, answers, of_lite)
    yield PopLiteHandler(settings, tables, checks, lite.pops, lite.waiting)


def _is_brought(loading: asyncio.Future[None]) -> bool:
    """Tell whether a load from the second tier has ended well."""
    return not loading.cancelled() and loading.exception() is None
