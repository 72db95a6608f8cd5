"""NOTIFICATION and POLLING_INFO: whether there is something to pop, and how many requests wait for it.

Rule: NotificationProcessor, 5.5.0.
"""

from __future__ import annotations

from typing import Any

from rocketspark.broker.consumers.long_polling import request_weight
from rocketspark.broker.consumers.message_filters import ALL, PopFilter, PopFilters, ToCompile
from rocketspark.broker.pop.pops import Pops
from rocketspark.broker.pop.reading import PopReading, Round
from rocketspark.broker.pop.requests import NO_REMARK, PopChecks, refusing
from rocketspark.broker.pop.waiting_pops import ALL_QUEUES
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.storage.json_tables import now_ms
from rocketspark.broker.storage.long_scans import LongScans
from rocketspark.broker.topics import Topics
from rocketspark.protocol import pop_answers
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import (
    NotificationHeader,
    NotificationReply,
    PollingInfoHeader,
    PollingInfoReply,
    Request,
)
from rocketspark.protocol.pop_answers import RETRY_V1, RETRY_V2
from rocketspark.store.store import Store
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Answer, Routes
from rocketspark.transport.request_frames import reply

# A request is answered so long before its client gives up.
EARLY_MS = 50
# As many messages of a queue are looked at for their tags.
LOOKED_AT_MAX = 32


class NotificationHandler:
    """Answers whether there is something to pop, and how many requests wait for it."""

    def __init__(
        self,
        settings: BrokerSettings,
        checks: PopChecks,
        filters: PopFilters,
        store: Store,
        topics: Topics,
        reading: PopReading,
        pops: Pops,
        scans: LongScans,
    ) -> None:
        self._scans = scans
        self._settings = settings
        self._checks = checks
        self._filters = filters
        self._store = store
        self._topics = topics
        self._reading = reading
        self._ordered = pops.ordered
        self._pops = pops.waiting
        self._waiting = pops.notified

    def routes(self, routes: Routes) -> None:
        """Add what this handler serves."""
        routes.add(RequestCode.NOTIFICATION, self.notify, NotificationHeader)
        routes.add(RequestCode.POLLING_INFO, self.polling_info, PollingInfoHeader)

    def polling_info(self, peer: Peer, request: Request[PollingInfoHeader], body: bytes) -> Answer:
        """POLLING_INFO (200055): how many pops of a group wait at a queue."""
        return refusing(request, PollingInfoReply(), lambda: self._polling_info(peer, request))

    def _polling_info(self, peer: Peer, request: Request[PollingInfoHeader]) -> bytes:
        h = request.ext
        self._checks.check_readable()
        self._checks.check_queue(peer, h.topic, h.queue_id)
        self._checks.check_group(peer, h.group, h.topic)
        count = self._pops.count(h.topic, h.group, h.queue_id)
        return reply(request.opaque, header=PollingInfoReply(polling_count=count), remark=NO_REMARK)

    def notify(self, peer: Peer, request: Request[NotificationHeader], body: bytes) -> Answer:
        """NOTIFICATION (200054): tell whether there is a message to pop; wait if there is none."""
        return refusing(request, NotificationReply(), lambda: self._checked(peer, request))

    def _checked(self, peer: Peer, request: Request[NotificationHeader]) -> Answer:
        h = request.ext
        h.queue_id = max(h.queue_id, ALL_QUEUES)
        if h.born_time_ms == 0:
            h.born_time_ms = now_ms()
        self._checks.check_readable()
        self._checks.check_queue(peer, h.topic, h.queue_id)
        self._checks.check_group(peer, h.group, h.topic)
        wanted = ALL
        if self._settings.filter_notifications and h.expression_type and h.expression:
            try:
                wanted = self._filters.of(h.topic, h.expression_type, h.expression)
            except ToCompile as e:
                return self._compile_first(peer, request, str(e))
        return self._notify(peer, request, wanted)

    async def _compile_first(self, peer: Peer, request: Request[NotificationHeader], expression: str) -> Any:
        # Properties are not looked at here: that the expression is right is all there is to know.
        await self._filters.compile(expression)
        return self._notify(peer, request, ALL) if peer.is_open else None

    def _notify(self, peer: Peer, request: Request[NotificationHeader], wanted: PopFilter) -> Answer:
        h, place = request.ext, Round()
        if self._count(h, wanted, place):
            return self._answer(request, found=True)
        left_ms = h.born_time_ms + h.poll_time_ms - EARLY_MS - now_ms()
        if h.poll_time_ms <= 0 or left_ms < 0:
            if place.is_cut:
                return self._look_at_all(peer, request, wanted, place)
            return self._answer(request, found=False)
        weight = request_weight(request, wanted.codes, h.expression if wanted.codes is None else None)
        if not self._waiting.has_room(h.topic, h.group, h.queue_id, peer, weight):
            return self._answer(request, found=False, full=True)

        def retry(final: bool) -> int | None:
            if not peer.is_open:
                self._waiting.drop(waiter)
                return None
            if waiter.woken:
                waiter.woken = False
                place.again()
            try:
                self._checks.check_again(h.topic, h.group)
                count = self._count(h, wanted, place)
                if not count and not final:
                    if place.is_cut:
                        self._waiting.again(waiter)
                    return None
                peer.send(self._answer(request, found=count > 0))
                return max(count - 1, 0)
            except Exception as e:
                failure = peer.failure(request, e)
                if failure is not None:
                    peer.send(failure)
                self._waiting.drop(waiter)
                return None

        kind = (h.order, h.expression_type, h.expression)
        waiter = self._waiting.wait(h.topic, h.group, h.queue_id, left_ms, retry, owner=peer, kind=kind, weight=weight)
        if place.is_cut:
            self._waiting.again(waiter)
        return None

    async def _look_at_all(
        self, peer: Peer, request: Request[NotificationHeader], wanted: PopFilter, place: Round
    ) -> bytes | None:
        """Look at the other queues, in later turns, for a question that is not held."""
        count = 0
        while place.is_cut and not count:
            await self._scans.next()
            if not peer.is_open:
                return None
            count = self._count(request.ext, wanted, place)
        return self._answer(request, found=count > 0)

    @staticmethod
    def _answer(request: Request[Any], *, found: bool, full: bool = False) -> bytes:
        header = NotificationReply(has_message=found, polling_full=full)
        return reply(request.opaque, header=header, remark=NO_REMARK)

    def _count(self, h: NotificationHeader, wanted: PopFilter, place: Round) -> int:
        """Return about how many messages there are to be popped, of the first queue that has some; 0 for none, and
        where the place is cut, for none yet."""
        config = self._topics.table.get(h.topic)
        all_queues = config.read_queue_nums if config is not None else 0
        queues: tuple[int, ...] = (h.queue_id,)
        if h.queue_id < 0:
            queues = tuple(all_queues - 1 - queue_id for queue_id in place.step(all_queues))
        for queue_id in queues:
            if count := self._count_in(h, h.topic, queue_id, wanted):
                return count
        for flag in self._retry_forms():
            name = pop_answers.retry_topic(h.topic, h.group, flag)
            retries = self._topics.table.get(name)
            for queue_id in range(retries.read_queue_nums if retries is not None else 0):
                if count := self._count_in(h, name, queue_id, ALL):
                    return count
        return 0

    def _retry_forms(self) -> tuple[str, ...]:
        s = self._settings
        if not s.retry_topics_v2:
            return (RETRY_V1, RETRY_V2)
        return (RETRY_V2, RETRY_V1) if s.retry_topics_v1_read else (RETRY_V2,)

    def _count_in(self, h: NotificationHeader, topic: str, queue_id: int, wanted: PopFilter) -> int:
        if h.order and self._ordered.blocked_until_ms(h.topic, h.group, queue_id, h.attempt_id, 0) > now_ms():
            return 0
        offset = self._reading.next_offset(topic, h.group, queue_id)
        low, high = self._store.queue_range(topic, queue_id)
        rest = high - max(offset, low)
        # Among many there will be one (rule: maxMessageFilterNumForNotification).
        if rest <= 0 or wanted.codes is None or rest >= self._settings.notification_filter_max:
            return max(rest, 0)
        if offset < self._store.stored_range(topic, queue_id)[0]:
            return rest  # They are in the second tier, which is not looked into for this.
        units = self._store.queue_units(topic, queue_id, max(offset, low), min(rest, LOOKED_AT_MAX))
        return sum(code in wanted.codes for _, _, code in units)
