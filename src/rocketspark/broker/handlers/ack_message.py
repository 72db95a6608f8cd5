"""ACK_MESSAGE, BATCH_ACK_MESSAGE and CHANGE_MESSAGE_INVISIBLETIME: what a consumer says of messages that it popped.

It is done with them, or wants them to be visible again sooner or later than they would be. Rule: a message that is not
in flight is answered as done.
"""

from __future__ import annotations

from typing import Any

from rocketspark.broker.consumers.consumer_offsets import ConsumerOffsets
from rocketspark.broker.handlers.lite.pop_lite import LiteAcknowledgements
from rocketspark.broker.pop.check_points import CheckPoint
from rocketspark.broker.pop.in_flight import InFlightMessages
from rocketspark.broker.pop.ordered import BlockEnds, OrderedPops
from rocketspark.broker.pop.requests import NO_REMARK, PopChecks, refusing
from rocketspark.broker.replication.waits import Durability
from rocketspark.broker.storage.json_tables import now_ms
from rocketspark.broker.storage.long_scans import LongScans
from rocketspark.errors import ServerError
from rocketspark.protocol import frames, pop_answers
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import AckHeader, ChangeInvisibleTimeHeader, ChangeInvisibleTimeReply, Request
from rocketspark.protocol.json import pop_records
from rocketspark.protocol.json.bodies import TopicConfig
from rocketspark.protocol.json.pop_records import AckedBatch, BatchAck, CheckPointKey
from rocketspark.protocol.pop_answers import ORDERED_REVIVE_QUEUE, ReceiptHandle
from rocketspark.store.store import Store
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Answer, Routes
from rocketspark.transport.request_frames import reply

# Of one request, looked at in a turn of the loop: some ms.
BATCHES_IN_TURN = 512
# The offsets of one pop of a queue lie closer together.
SPREAD_MAX = 16_384
# Of ordered pops, whose offsets are looked at one by one.
ORDERED_MAX = 16_384


class Answers:
    """Answers requests about popped messages once what they changed is as durable as the settings say."""

    def __init__(self, durability: Durability) -> None:
        self._durability = durability

    def when_noted(
        self, peer: Peer, requests: list[Request[Any]], answers: list[bytes], end: int, error: ServerError | None
    ) -> None:
        """Send the answers to requests that one record of the log settled together.

        `end`: the physical offset after that record, 0 if nothing was stored; `error`: sent in place of the answers.
        """
        if requests[0].flag & frames.ONEWAY_FLAG:
            return
        if error is not None:
            answers = [peer.failure(request, error) or b"" for request in requests]
        elif end and self._durability.needed:
            # Like RocketMQ's the answer is a success, also if it is late.
            wanted = self._durability.wanted()
            self._durability.when_durable(end, wanted, lambda code: _answer(peer, answers), len(answers))
            return
        _answer(peer, answers)


def _answer(peer: Peer, answers: list[bytes]) -> None:
    if len(answers) == 1:
        peer.answer(answers[0])
    else:
        peer.answer_run(answers)


class _Run:
    """Acknowledgements of one turn, of messages of one pop of a queue: checked once, noted and answered together.

    `low`, `high`: the bounds of their offsets.
    """

    __slots__ = ("config", "group", "high", "low", "peer", "point", "queue_id", "requests", "topic")
    point: CheckPoint

    def __init__(self, peer: Peer, request: Request[AckHeader], config: TopicConfig, low: int, high: int) -> None:
        h = request.ext
        self.peer, self.requests = peer, [request]
        self.topic, self.group, self.queue_id = h.topic, h.group, h.queue_id
        self.config, self.low, self.high = config, low, high


class AckHandler:
    """Serves acknowledgements."""

    def __init__(
        self,
        checks: PopChecks,
        store: Store,
        offsets: ConsumerOffsets,
        pops: InFlightMessages,
        ordered: OrderedPops,
        block_ends: BlockEnds,
        answers: Answers,
        scans: LongScans,
        lite: LiteAcknowledgements,
    ) -> None:
        self._lite = lite
        self._checks = checks
        self._store = store
        self._offsets = offsets
        self._pops = pops
        self._ordered = ordered
        self._block_ends = block_ends
        self._answers = answers
        self._scans = scans
        # Of this turn, by the handles without their last field.
        self._runs: dict[str, _Run] = {}

    def routes(self, routes: Routes) -> None:
        """Add what this handler serves."""
        routes.add(RequestCode.ACK_MESSAGE, self.ack, AckHeader)
        routes.add(RequestCode.BATCH_ACK_MESSAGE, self.ack_batch)

    def ack(self, peer: Peer, request: Request[AckHeader], body: bytes) -> bytes | None:
        """ACK_MESSAGE (200051): a popped message is done, and is not given out again."""
        h = request.ext
        common, _, last = h.handle.rpartition(" ")
        found = self._runs.get(common)
        if found is not None and self._joins(found, peer, request, last):
            return None
        config = self._checks.check_popped(peer, h.topic, h.queue_id)
        if h.lite_topic and h.lite_topic.strip():
            return self._lite.acknowledge(request)
        low, high = self._store.queue_range(h.topic, h.queue_id)
        if not low <= h.offset <= high:
            raise ServerError(
                ResponseCode.NO_MESSAGE,
                f"offset is illegal, key:{h.topic}@{h.queue_id}, commit:{h.offset}, store:{low}~{high}",
            )
        handle = self._checks.handle(h.handle)
        if handle.is_ordered:
            self._ack_ordered(peer, h.topic, h.group, h.queue_id, h.offset, handle.pop_time_ms)
            return reply(request.opaque)
        run = _Run(peer, request, config, low, high)

        def tell(end: int, error: ServerError | None) -> None:
            self._runs.clear()
            self._answers.when_noted(peer, run.requests, [reply(each.opaque) for each in run.requests], end, error)

        is_oneway = request.flag & frames.ONEWAY_FLAG
        if not is_oneway:
            peer.promise()
        point = self._pops.ack(h.topic, h.group, h.queue_id, handle, h.offset, tell)
        if point is not None and not is_oneway:
            run.point = point
            self._runs[common] = run
        return None

    def _joins(self, run: _Run, peer: Peer, request: Request[AckHeader], last: str) -> bool:
        """Take an acknowledgement into a run if it differs from those there by its message alone."""
        h = request.ext
        if (
            h.queue_id == run.queue_id
            and h.topic == run.topic
            and h.group == run.group
            and peer is run.peer
            and run.low <= h.offset <= run.high
            and len(last) < 19
            and last.isdigit()
            and last.isascii()
            and not h.lite_topic
            and not request.flag & frames.ONEWAY_FLAG
            and self._checks.is_current(run.config)
            and self._pops.ack_also(run.point, h.offset)
        ):
            run.requests.append(request)
            return True
        return False

    def _ack_ordered(self, peer: Peer, topic: str, group: str, queue_id: int, offset: int, pop_time_ms: int) -> None:
        """Acknowledge a message of an ordered pop. Raises ServerError 13 for one that was not given out."""
        committed = self._offsets.get(group, topic, queue_id)
        if committed is not None and offset < committed:
            return
        if self._ordered.is_anothers(topic, group, queue_id, offset, pop_time_ms, committed, self._store):
            return
        try:
            next_offset = self._ordered.acknowledge(topic, group, queue_id, offset, pop_time_ms)
        except KeyError:
            old = -1 if committed is None else committed
            raise ServerError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"offset is illegal, key:{topic}@{group}@{queue_id}, old:{old}, commit:{offset}, next:-1,"
                f" /{peer.address}",
            ) from None
        if next_offset is None or next_offset > self._store.queue_range(topic, queue_id)[1]:
            # Of a batch before, or of a message that is not there: no consumer goes on behind the queue's end.
            return
        if not self._offsets.is_reset(group, topic, queue_id):
            self._offsets.commit(group, topic, queue_id, self._store.record_from(topic, queue_id, next_offset))
        self._block_ends.look(topic, group, queue_id)

    def ack_batch(self, peer: Peer, request: Request[Any], body: bytes) -> Answer:
        """BATCH_ACK_MESSAGE (200151): several popped messages are done; those no longer in flight are passed over."""
        found = pop_records.decode_batch_ack(body) if body else None
        if found is None or not found.acks:
            return reply(request.opaque, ResponseCode.NO_MESSAGE)
        self._checks.check_master()
        noted = _Noted(self._answers, peer, request, len(found.acks))
        if len(found.acks) > BATCHES_IN_TURN:
            return self._ack_in_turns(peer, found, noted)
        for batch in found.acks:
            self._ack_one_batch(peer, batch, found.broker_name, noted)
        return None

    async def _ack_in_turns(self, peer: Peer, found: BatchAck, noted: _Noted) -> None:
        async for part in self._scans.pieces(found.acks or [], BATCHES_IN_TURN):
            for batch in part:
                self._ack_one_batch(peer, batch, found.broker_name, noted)

    def _ack_one_batch(self, peer: Peer, batch: AckedBatch, broker_name: str | None, noted: _Noted) -> None:
        topic = pop_answers.real_topic(batch.topic, batch.group, batch.retry_flag)
        if batch.revive_queue_id == ORDERED_REVIVE_QUEUE:
            try:
                self._ack_ordered_batch(peer, topic, batch, noted)
            except ServerError as e:
                noted.tell(0, e)
            else:
                noted.tell(0, None)
            return
        key = CheckPointKey(
            topic, batch.group, batch.queue_id, batch.start_offset, batch.pop_time_ms, broker_name or ""
        )
        point = self._pops.check_points.get(key)
        offsets = batch.among(() if point is None else point.record.offsets)
        low, high = self._store.queue_range(topic, batch.queue_id)
        offsets = [offset for offset in offsets if low <= offset <= high]
        if offsets:
            self._pops.ack_offsets(key, offsets, noted.tell)
        else:
            noted.tell(0, None)

    def _ack_ordered_batch(self, peer: Peer, topic: str, batch: AckedBatch, noted: _Noted) -> None:
        low, high = self._store.queue_range(topic, batch.queue_id)
        for offset in batch.offsets(low, min(high, batch.start_offset + SPREAD_MAX)):
            noted.ordered += 1
            if noted.ordered > ORDERED_MAX:
                raise ServerError(
                    ResponseCode.INVALID_PARAMETER,
                    f"more than {ORDERED_MAX} ordered messages are acknowledged at once",
                )
            self._ack_ordered(peer, topic, batch.group, batch.queue_id, offset, batch.pop_time_ms)


class _Noted:
    """The answer to a request of several batches, once all are noted. `ordered`: offsets of ordered pops so far."""

    __slots__ = ("_answers", "_end", "_error", "_left", "_peer", "_request", "ordered")

    def __init__(self, answers: Answers, peer: Peer, request: Request[Any], count: int) -> None:
        self._answers = answers
        self._peer = peer
        self._request = request
        self._left = count
        self.ordered = 0
        self._end = 0
        self._error: ServerError | None = None
        if not request.flag & frames.ONEWAY_FLAG:
            peer.promise()

    def tell(self, end: int, error: ServerError | None) -> None:
        self._left -= 1
        self._end = max(self._end, end)
        self._error = error or self._error
        if not self._left:
            answer = reply(self._request.opaque)
            self._answers.when_noted(self._peer, [self._request], [answer], self._end, self._error)


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
        lite: LiteAcknowledgements,
    ) -> None:
        self._lite = lite
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
        """CHANGE_MESSAGE_INVISIBLETIME (200053): change when a popped message becomes visible again."""
        return refusing(request, ChangeInvisibleTimeReply(), lambda: self._change(peer, request))

    def _change(self, peer: Peer, request: Request[ChangeInvisibleTimeHeader]) -> bytes | None:
        h = request.ext
        self._checks.check_popped(peer, h.topic, h.queue_id)
        if h.lite_topic and h.lite_topic.strip():
            return reply(request.opaque, header=self._lite.change(h), remark=NO_REMARK)
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
