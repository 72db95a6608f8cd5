"""POP_MESSAGE: messages of any queue of a topic for a time, or the request is held until there are some.

Rule (PopMessageProcessor, 5.5.0): replies with 0, 209 and 210 carry all numbers, as clients read these of each.
"""

from __future__ import annotations

import struct
from typing import Any

from rocketspark.broker.consumers.filter_compiler import ToCompile
from rocketspark.broker.consumers.long_polling import request_weight
from rocketspark.broker.operations.long_scans import LongScans
from rocketspark.broker.pop.in_flight import InFlightMessages
from rocketspark.broker.pop.pop_filter import PopFilter, PopFilters
from rocketspark.broker.pop.reading import Found, PopReading, Round
from rocketspark.broker.pop.requests import PopChecks, refusing
from rocketspark.broker.pop.waiting_pops import ALL_QUEUES, WaitingPop, WaitingPops
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.storage.json_tables import now_ms
from rocketspark.errors import ServerError
from rocketspark.protocol import frames
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.frames import VERSION
from rocketspark.protocol.headers import PopHeader, PopReply, Request
from rocketspark.protocol.pop_answers import ORDERED_REVIVE_QUEUE
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Answer, Routes
from rocketspark.transport.request_frames import reply

_LENGTHS = struct.Struct(">ii")
_REPLY = (
    b'{"code":%d,"extFields":{"popTime":"%d","invisibleTime":"%d","reviveQid":"%d","restNum":"%d",'
    b'"startOffsetInfo":"%b","msgOffsetInfo":"%b"%b},"flag":1,"language":"JAVA","opaque":%d,"remark":"%b",'
    b'"serializeTypeCurrentRPC":"JSON","version":' + str(VERSION).encode() + b"}"
)

# RocketMQ's limit of one pop.
COUNT_MAX = 32
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
        """POP_MESSAGE (200050)."""
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
        self._hold(peer, request, wanted, left_ms, weight, place, go_on=found.cut)
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
        go_on: bool,
    ) -> WaitingPop:
        """Hold a pop; answer it once there is a message, or when its time is over."""
        h = request.ext

        def retry(final: bool) -> int | None:
            if not peer.is_open:
                # What it was woken for is left to the next.
                self._waiting.drop(waiter)
                return None
            if not peer.is_writable and not final:
                # Nothing is given to one that does not read.
                self._waiting.leave_line(waiter)
                peer.when_writable(lambda: self._waiting.enter_again(waiter))
                return None
            if waiter.woken:
                waiter.woken = False
                place.again()
            try:
                self._checks.check_again(h.topic, h.group)
                found = self._read(peer, h, wanted, now_ms(), place) if peer.is_writable else Found(now_ms())
                if not found.count and not final:
                    if found.cut:
                        self._look_on(waiter, wanted)
                    return None
                answer = self._found if found.count else self._timed_out
                peer.send(answer(request, found))
                return found.rest if found.count else 0
            except Exception as e:
                failure = peer.failure(request, e)
                if failure is not None:
                    peer.send(failure)
                self._waiting.drop(waiter)
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
        if go_on:
            self._look_on(waiter, wanted)
        return waiter

    def _look_on(self, waiter: WaitingPop, wanted: PopFilter) -> None:
        """Let a pop whose filter ended before the queues did go on in a later turn."""
        awaited = wanted.accepts.awaited if wanted.accepts is not None else None
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
