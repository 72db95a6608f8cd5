"""CHANGE_MESSAGE_INVISIBLETIME: a popped message is to be visible again sooner or later than it was to be."""

from __future__ import annotations

from rocketspark.broker.consumers.consumer_offsets import ConsumerOffsets
from rocketspark.broker.handlers.pops.ack_message import Answers
from rocketspark.broker.pop.block_ends import BlockEnds
from rocketspark.broker.pop.in_flight import InFlightMessages
from rocketspark.broker.pop.ordered import OrderedPops
from rocketspark.broker.pop.requests import NO_REMARK, PopChecks, refusing
from rocketspark.broker.storage.json_tables import now_ms
from rocketspark.errors import ServerError
from rocketspark.protocol import frames
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import ChangeInvisibleTimeHeader, ChangeInvisibleTimeReply, Request
from rocketspark.protocol.pop_answers import ReceiptHandle
from rocketspark.store.store import Store
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Answer, Routes
from rocketspark.transport.request_frames import reply


class ChangeInvisibleTimeHandler:
    """Serves changes of invisible times."""

    def __init__(
        self,
        checks: PopChecks,
        store: Store,
        offsets: ConsumerOffsets,
        pops: InFlightMessages,
        ordered: OrderedPops,
        block_ends: BlockEnds,
        answers: Answers,
    ) -> None:
        self._checks = checks
        self._store = store
        self._offsets = offsets
        self._pops = pops
        self._ordered = ordered
        self._block_ends = block_ends
        self._answers = answers

    def routes(self, routes: Routes) -> None:
        """Add what this handler serves."""
        routes.add(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, self.change, ChangeInvisibleTimeHeader)

    def change(self, peer: Peer, request: Request[ChangeInvisibleTimeHeader], body: bytes) -> Answer:
        """CHANGE_MESSAGE_INVISIBLETIME (200053)."""
        return refusing(request, ChangeInvisibleTimeReply(), lambda: self._change(peer, request))

    def _change(self, peer: Peer, request: Request[ChangeInvisibleTimeHeader]) -> bytes | None:
        h = request.ext
        self._checks.check_popped(peer, h.topic, h.queue_id, h.lite_topic)
        low, high = self._store.queue_range(h.topic, h.queue_id)
        if not low <= h.offset < high:
            return reply(request.opaque, ResponseCode.NO_MESSAGE, ChangeInvisibleTimeReply(), remark=NO_REMARK)
        self._checks.check_invisible_time(h.invisible_time_ms)
        handle = self._checks.handle(h.handle)
        if handle.is_ordered:
            return reply(request.opaque, header=self._change_ordered(h, handle), remark=NO_REMARK)
        ends: list[tuple[int, ServerError | None]] = []
        # Told at once, or at the end of the turn: by then the reply is known.
        answer: list[bytes] = []

        def tell(end: int, error: ServerError | None) -> None:
            ends.append((end, error))
            if answer:
                self._answers.when_noted(peer, [request], answer, end, error)

        changed = self._pops.change_invisible_time(
            h.topic,
            h.group,
            h.queue_id,
            handle,
            h.offset,
            h.invisible_time_ms,
            tell,
            suspended=bool(h.suspend),
        )
        answer.append(
            reply(
                request.opaque,
                header=ChangeInvisibleTimeReply(
                    pop_time_ms=changed.pop_time_ms,
                    invisible_time_ms=changed.invisible_time_ms,
                    revive_queue_id=changed.revive_queue_id,
                ),
                remark=NO_REMARK,
            )
        )
        if not request.flag & frames.ONEWAY_FLAG:
            peer.promise()
        if ends:
            self._answers.when_noted(peer, [request], answer, *ends[0])
        return None

    def _change_ordered(self, h: ChangeInvisibleTimeHeader, handle: ReceiptHandle) -> ChangeInvisibleTimeReply:
        """Change the time of a message of an ordered pop; of one that is acknowledged nothing is told (5.5.0)."""
        committed = self._offsets.get(h.group, h.topic, h.queue_id)
        if committed is not None and h.offset < committed:
            return ChangeInvisibleTimeReply()
        next_visible_ms = now_ms() + h.invisible_time_ms
        self._ordered.change_next_visible(
            h.topic, h.group, h.queue_id, h.offset, handle.pop_time_ms, next_visible_ms, unseen=bool(h.suspend)
        )
        self._block_ends.look(h.topic, h.group, h.queue_id)
        return ChangeInvisibleTimeReply(
            pop_time_ms=handle.pop_time_ms,
            invisible_time_ms=next_visible_ms - handle.pop_time_ms,
            revive_queue_id=handle.revive_queue_id,
        )
