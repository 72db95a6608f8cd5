"""POP_LITE_MESSAGE: messages of the lite topics that a client subscribed to; and what it says of them afterwards.

Rule (PopLiteMessageProcessor, 5.5.0): replies with 0, 209 and 210 carry all numbers; codes, remarks and their order are
RocketMQ's.
"""

from __future__ import annotations

import logging

from rocketspark.broker.consumers.long_polling import request_weight
from rocketspark.broker.consumers.subscription_groups import check_consumes
from rocketspark.broker.lite import attributes
from rocketspark.broker.lite.parts import waiting_name
from rocketspark.broker.lite.pops import LitePops, Taken
from rocketspark.broker.parts import Tables
from rocketspark.broker.pop.requests import PopChecks, refusing
from rocketspark.broker.pop.waiting_pops import ALL_QUEUES, WaitingPop, WaitingPops
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.storage.json_tables import now_ms
from rocketspark.errors import ServerError
from rocketspark.model.route import PERM_READ
from rocketspark.model.text import shown
from rocketspark.protocol import lite_topics
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import (
    AckHeader,
    ChangeInvisibleTimeHeader,
    ChangeInvisibleTimeReply,
    PopLiteHeader,
    PopLiteReply,
    Request,
)
from rocketspark.protocol.light_queues import QUEUE_ID
from rocketspark.protocol.pop_answers import ORDERED_REVIVE_QUEUE
from rocketspark.store.store import Store
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Answer, Routes
from rocketspark.transport.request_frames import reply

log = logging.getLogger("rocketspark.broker")
# A request this much older than it may wait is answered at once.
LATE_MS = 500
# A request is answered so long before its client gives up.
EARLY_MS = 50


class PopLiteHandler:
    """Serves pops of lite topics."""

    def __init__(
        self, settings: BrokerSettings, tables: Tables, checks: PopChecks, pops: LitePops, waiting: WaitingPops
    ) -> None:
        self._settings = settings
        self._topics, self._groups = tables.topics, tables.groups
        self._checks = checks
        self._pops = pops
        self._waiting = waiting

    def routes(self, routes: Routes) -> None:
        """Add what this handler serves."""
        routes.add(RequestCode.POP_LITE_MESSAGE, self.pop, PopLiteHeader)

    def pop(self, peer: Peer, request: Request[PopLiteHeader], body: bytes) -> Answer:
        """POP_LITE_MESSAGE (200070): give out messages of a client's lite topics; wait if there are none."""
        return refusing(request, PopLiteReply(), lambda: self._checked(peer, request))

    def _checked(self, peer: Peer, request: Request[PopLiteHeader]) -> bytes | None:
        h, time_ms = request.ext, now_ms()
        if h.born_time_ms == 0:
            h.born_time_ms = time_ms
        if time_ms - h.born_time_ms - h.poll_time_ms > LATE_MS:
            remark = f"the broker[{self._settings.host}] pop message is timeout too much"
            raise ServerError(ResponseCode.POLLING_TIMEOUT, remark)
        self._check(h, peer.address)
        taken = self._take(h)
        if taken.count:
            return self._found(request, taken)
        left_ms = h.born_time_ms + h.poll_time_ms - EARLY_MS - time_ms
        if h.poll_time_ms <= 0 or left_ms < 0:
            return self._nothing(request, taken)
        weight = request_weight(request, None, None)
        name = waiting_name(h.client_id)
        has_room = self._waiting.has_room(name, h.group, ALL_QUEUES, peer, weight)
        if self._settings.lite_pop_log:
            what = f"is held for {left_ms} ms" if has_room else "is refused: too many are held"
            log.info("a pop of lite topics of %s by %s of %s %s", *map(shown, (h.topic, h.client_id, h.group)), what)
        if not has_room:
            return self._nothing(request, taken, ResponseCode.POLLING_FULL)
        self._hold(peer, request, name, left_ms, weight)
        return None

    def _check(self, h: PopLiteHeader, by: str = "") -> None:
        self._checks.check_what_is_asked(h.count_max, h.invisible_time_ms, h.attempt_id)
        config = self._topics.table.get(h.topic)
        if config is None:
            raise ServerError(ResponseCode.TOPIC_NOT_EXIST, f"topic [{h.topic}] not exist, apply first please!")
        if not config.perm & PERM_READ:
            raise ServerError(ResponseCode.NO_PERMISSION, f"the topic [{h.topic}] peeking message is forbidden")
        if not attributes.is_lite_topic(config):
            raise ServerError(ResponseCode.INVALID_PARAMETER, f"the topic [{h.topic}] message type not match")
        known = self._groups.get(h.group, by=by) if by else self._groups.table.get(h.group)
        group = check_consumes(known, h.group)
        if attributes.bind_topic(group) != h.topic:
            raise ServerError(ResponseCode.INVALID_PARAMETER, f"subscription bind topic not match, {h.group}")

    def _take(self, h: PopLiteHeader) -> Taken:
        if self._waiting.closed or not self._checks.is_master:
            return Taken(now_ms())
        return self._pops.take(h)

    def _hold(self, peer: Peer, request: Request[PopLiteHeader], name: str, left_ms: int, weight: int) -> None:
        """Hold a pop; answer it once there is a message, or when its time is over."""
        h = request.ext

        def retry(final: bool) -> int | None:
            if not self._waiting.may_answer(waiter, peer, final=final):
                return None
            try:
                self._check(h)
                taken = self._take(h) if peer.is_writable else Taken(now_ms())
                if not taken.count and not final:
                    return None
                if self._settings.lite_pop_log:
                    who = map(shown, (h.topic, h.client_id, h.group))
                    log.info("a held pop of lite topics of %s by %s of %s gets %d messages", *who, taken.count)
                peer.send(self._found(request, taken) if taken.count else self._nothing(request, taken))
                # Another event may be there for the next.
                return taken.count
            except Exception as e:
                self._waiting.failed(waiter, peer, request, e)
                return None

        waiter: WaitingPop = self._waiting.wait(
            name, h.group, ALL_QUEUES, left_ms, retry, owner=peer, kind=None, weight=weight
        )

    def _found(self, request: Request[PopLiteHeader], taken: Taken) -> bytes:
        return self._reply(request, taken, ResponseCode.SUCCESS, "FOUND")

    def _nothing(
        self, request: Request[PopLiteHeader], taken: Taken, code: int = ResponseCode.POLLING_TIMEOUT
    ) -> bytes:
        return self._reply(request, taken, code, "NO_MESSAGE_IN_QUEUE")

    @staticmethod
    def _reply(request: Request[PopLiteHeader], taken: Taken, code: int, remark: str) -> bytes:
        header = PopLiteReply(
            pop_time_ms=taken.pop_time_ms,
            invisible_time_ms=request.ext.invisible_time_ms,
            revive_queue_id=ORDERED_REVIVE_QUEUE,
            order_counts=";".join(taken.orders),
        )
        return reply(request.opaque, code, header, b"".join(taken.records), remark=remark)


class LiteAcknowledgements:
    """What clients say of messages of lite topics: done, or wanted again at another time."""

    def __init__(self, store: Store, tables: Tables, checks: PopChecks, pops: LitePops) -> None:
        self._store = store
        self._groups = tables.groups
        self._checks = checks
        self._pops = pops

    def acknowledge(self, request: Request[AckHeader]) -> bytes:
        """ACK_MESSAGE (200051) with a lite topic. Raises ServerError."""
        h = request.ext
        if attributes.bind_topic(self._groups.table.get(h.group)) != h.topic:
            raise ServerError(ResponseCode.INVALID_PARAMETER, "group type or bind topic not match.")
        queue = lite_topics.queue_name(h.topic, h.lite_topic or "")
        if not 0 <= h.offset <= self._store.queue_range(queue, QUEUE_ID)[1]:
            raise ServerError(ResponseCode.NO_MESSAGE, "ack offset illegal.")
        handle = self._checks.handle(h.handle)
        if h.queue_id != QUEUE_ID or not handle.is_ordered:
            raise ServerError(ResponseCode.INVALID_PARAMETER, "ack queue illegal.")
        if not self._pops.acknowledge(queue, h.group, h.offset, handle.pop_time_ms):
            raise ServerError(ResponseCode.MESSAGE_ILLEGAL, "ack offset illegal.")
        return reply(request.opaque)

    def change(self, h: ChangeInvisibleTimeHeader) -> ChangeInvisibleTimeReply:
        """CHANGE_MESSAGE_INVISIBLETIME (200053) with a lite topic. Raises ServerError."""
        queue = lite_topics.queue_name(h.topic, h.lite_topic or "")
        if not 0 <= h.offset <= self._store.queue_range(queue, QUEUE_ID)[1]:
            raise ServerError(ResponseCode.NO_MESSAGE, "")
        self._checks.check_invisible_time(h.invisible_time_ms)
        handle = self._checks.handle(h.handle)
        time_ms = self._pops.change_time(
            queue, h.group, h.offset, handle.pop_time_ms, h.invisible_time_ms, suspend=bool(h.suspend)
        )
        if time_ms is None:
            return ChangeInvisibleTimeReply()
        return ChangeInvisibleTimeReply(
            pop_time_ms=handle.pop_time_ms,
            invisible_time_ms=time_ms - handle.pop_time_ms,
            revive_queue_id=handle.revive_queue_id,
        )
