"""Stored records of a queue range, by many pulls in flight. Rule: pieces are in queue order and leave no offset out.

Queue offsets are dense, so pulls at later offsets need not wait for the replies before them. A broker may answer with
less than asked (Apache RocketMQ: 32 messages by default): the rest is asked again, and later pulls ask for that much.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import msgspec

from rocketspark.errors import ServerError, TransportError
from rocketspark.model import Subscription
from rocketspark.model.subscription import SQL92
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode, ResponseCode, is_retriable
from rocketspark.protocol.headers import PullHeader, PullReply, plain_pull
from rocketspark.protocol.headers.static_topics import PartPullHeader
from rocketspark.protocol.message import sysflags
from rocketspark.protocol.message.record_layout import AT
from rocketspark.tables.offset_ranges import OffsetRange
from rocketspark.tables.options import ReadOptions
from rocketspark.tables.read.data_loss import lost
from rocketspark.tables.read.executor_queries import addresses_now, broker_away, is_compacted, may_tell_of_loss
from rocketspark.tables.read.pipelined_connection import PipelinedConnection, PipelinedReply, joined
from rocketspark.tables.read.read_filter import EVERY_MESSAGE, ReadFilter
from rocketspark.transport.retries import Retries, RetryRule

log = logging.getLogger("rocketspark.spark")

ROWS_PER_PIECE = 16_384
BYTES_PER_PIECE = 8 << 20
ROWS_IN_FLIGHT = 16_384
# Replies smaller than this are copied to lie side by side: 0.1 us a KiB, where a small piece costs 1 ms to decode.
JOINED_BYTES_MAX = 4 << 20
PULLS_IN_FLIGHT_MIN, PULLS_IN_FLIGHT_MAX = 2, 64
# What replies on their way may hold, as large as the last one: a broker keeps them until they are received.
BYTES_IN_FLIGHT = 32 << 20
# Full replies in a row after which a pull asks for twice as much again.
GROW_AFTER, GROW_AFTER_MAX = 16, 1024
# A range may stand still for a while, as its broker may be started anew.
RETRIES = RetryRule(attempts_max=4, budget_s=30.0, pauses_s=(0.2, 0.4, 0.6, 0.8))
# Pause before asking again for messages that a lagging broker does not have yet, though the driver saw them.
UNSEEN_WAIT_S = 0.05
_INNER = sysflags.INNER_BATCH | sysflags.NEED_UNWRAP
NOT_AT_SLAVE = "the slave does not have them yet"


class _FilterRefused(Exception):
    """Raised when the broker does not filter by expressions, or not by this one."""


class PulledPiece(NamedTuple):
    """The records of the offsets [first, end) of a queue: `spans` are byte ranges of whole records in `buffer`,
    ascending.

    A broker that filters, or keeps batches as one record, may send a few records twice or from beyond the end. `whole`:
    the broker was asked for all messages, so those that are missing are gone.
    """

    buffer: memoryview | bytes
    spans: list[tuple[int, int]]
    first: int
    end: int
    whole: bool


class _Pull:
    """Offsets [first, end) wanted: not asked yet, asked (`opaque`), or answered (`reply`, which may hold nothing)."""

    __slots__ = ("answered", "end", "first", "opaque", "reply", "waits")

    def __init__(self, first: int, end: int) -> None:
        self.first, self.end = first, end
        self.opaque = 0
        self.answered = False
        self.reply: PipelinedReply | None = None
        self.waits = 0


class _Proof:
    """A piece that a broker filtered, held back until the broker shows that its first message is still there.

    Files go oldest first, so whatever came after it was there as well while the broker chose. Apache RocketMQ does not
    tell otherwise: it passes over what it is removing, as over what does not match.
    """

    __slots__ = ("opaque", "piece")

    def __init__(self, piece: PulledPiece, opaque: int) -> None:
        self.piece = piece
        # 0 once proved.
        self.opaque = opaque


def in_flight_max(step: int, reply_bytes: int) -> int:
    """Return how many pulls may be in flight at once. `step`: the messages that each asks for; `reply_bytes`: the size
    of each reply.
    """
    most = min(ROWS_IN_FLIGHT // step, BYTES_IN_FLIGHT // max(reply_bytes, 1), PULLS_IN_FLIGHT_MAX)
    return max(most, PULLS_IN_FLIGHT_MIN)


def fetch(
    source: OffsetRange,
    addresses: tuple[str, ...],
    options: ReadOptions,
    asked: Subscription | None = None,
    *,
    is_part: bool = False,
) -> Iterator[PulledPiece]:
    """Fetch the records of a queue range, piece by piece, from the first of `addresses` that answers.

    `asked`: the filter that the broker is asked to apply, by default that of the options; it may send more messages. A
    broker that refuses to filter is asked for everything. `is_part`: the queue is a broker's own one that is part of a
    logical queue.

    If the connection is lost, reading goes on with a new one, so a broker may be started anew meanwhile, or another
    take its place: the NameServer is asked who it is. After 4 attempts and 30 s without progress the error is raised.

    Raises TransportError, ServerError, and DataLost if messages are gone and `fail_on_data_loss` is set.
    """
    at = source.first
    address = ""
    retries = Retries(RETRIES)
    asked = ReadFilter.of(options).asked() if asked is None else asked
    while at < source.end:
        try:
            if not addresses and not (addresses := addresses_now(source.queue, (), options)):
                raise broker_away(source.queue)
            address = addresses[retries.failed % len(addresses)]
            for piece in _Puller(source._replace(first=at), address, options, asked, is_part=is_part):
                at = piece.end
                yield piece
                retries.progressed()
        except _FilterRefused as e:
            log.info("%s; everything is read, and filtered here", e)
            asked = EVERY_MESSAGE
        except (TransportError, ServerError) as e:
            time.sleep(retries.pause_s(e))
            addresses = addresses_now(source.queue, addresses, options)
            if address and (now := addresses[retries.failed % len(addresses)]) != address:
                log.warning("broker %r: reading goes on at %s (%s)", source.queue.broker_name, now, e)


class _Puller:
    """Reads a range over one connection."""

    def __init__(
        self, source: OffsetRange, address: str, options: ReadOptions, wanted: Subscription, *, is_part: bool
    ) -> None:
        self._wanted = wanted
        self._lo = False if is_part else None
        self._source = source
        self._address = address
        self._options = options
        # Pulls that were asked, in order, and where the next one begins; those of them to ask (again), lowest first.
        self._pulls: list[_Pull] = []
        self._next = source.first
        self._again: deque[_Pull] = deque()
        self._asked: dict[int, _Pull] = {}
        # Pieces in order; with `_proving` by the number of the request.
        self._held: deque[_Proof] = deque()
        self._proving: dict[int, _Proof] = {}
        self._step = options.rows_per_pull_max
        self._full_replies = self._reply_bytes = 0
        # Full replies in a row after which the step grows, and whether it grew last.
        self._grow_after, self._grew = GROW_AFTER, False
        # The queue holds inner batches: a pull that does not begin where one does brings it all the same, so pulls go
        # one after another, each from where the one before it ended.
        self._in_batches = False
        # The number of pulls at the front that are answered and go together, their bytes, and the reply of the last.
        self._leading = self._leading_bytes = 0
        self._last: PipelinedReply | None = None
        self._connection: PipelinedConnection | None = None

    def __iter__(self) -> Iterator[PulledPiece]:
        self._connection = PipelinedConnection(
            self._address, timeout_ms=self._options.timeout_ms, access=self._options.access
        )
        try:
            pull_request = self._connection.requests(
                RequestCode.PULL_MESSAGE, self._header(self._wanted), "queue_offset", "count_max"
            )
            self._ask(pull_request)
            while self._pulls or self._held:
                for reply in self._connection.receive():
                    pull = self._asked.pop(reply.opaque, None)
                    if pull is not None:
                        self._take(pull, reply)
                    elif proof := self._proving.pop(reply.opaque, None):
                        self._prove(proof, reply)
                # The broker looks for the next ones while these are decoded.
                self._ask(pull_request)
                self._connection.flush()
                if self._wanted.is_all:
                    yield from self._ready()
                else:
                    yield from self._ready_and_proved(self._connection)
        finally:
            self._connection.close()

    def _ask(self, send: Callable[[int, int], int]) -> None:
        """Send pulls, first offsets first, until enough are in flight."""
        step, asked, end = self._step, self._asked, self._source.end
        count_max = 1 if self._in_batches else in_flight_max(step, self._reply_bytes)
        while len(asked) < count_max:
            if self._again:
                pull = self._again.popleft()
                if pull.end - pull.first > step:
                    self._ask_again(_Pull(pull.first + step, pull.end), behind=pull)
                    pull.end = pull.first + step
            elif self._next < end:
                pull = _Pull(self._next, min(self._next + step, end))
                self._next = pull.end
                self._pulls.append(pull)
            else:
                return
            pull.opaque = send(pull.first, pull.end - pull.first)
            asked[pull.opaque] = pull

    def _ask_again(self, pull: _Pull, *, behind: _Pull | None = None) -> None:
        """Have a pull asked; `behind`: it is a new one, with what that one does not bring."""
        if behind is not None:
            self._pulls.insert(self._pulls.index(behind) + 1, pull)
        if self._again and self._again[-1].first > pull.first:
            self._again = deque(sorted([*self._again, pull], key=lambda each: each.first))
        else:
            self._again.append(pull)

    def _header(self, wanted: Subscription) -> PullHeader:
        """Return the header of every pull, but for its offset and count."""
        queue = self._source.queue
        return plain_pull(
            self._options.access.wire(self._options.group),
            self._options.access.wire(queue.topic),
            queue.queue_id,
            0,
            0,
            wanted.expression,
            expression_type=wanted.expression_type,
            bytes_max=self._options.bytes_per_pull_max,
            broker_name=queue.broker_name,
            bulk=True,
            kind=PartPullHeader,
            lo=self._lo,
        )

    def _take(self, pull: _Pull, reply: PipelinedReply) -> None:
        """Note a reply; the rest of its pull becomes a pull of its own."""
        pull.opaque = 0
        if reply.code == ResponseCode.SUCCESS:
            self._reply_bytes = reply.end - reply.start
            if not self._reply_bytes:
                raise self._refused(reply, "found, but the reply holds no message")
            after = headers.decode_ext(PullReply, reply.ext).next_offset
            if not self._in_batches and (after > pull.end or pull.first == self._source.first):
                self._in_batches = _holds_batches(reply)
            self._answer(pull, reply, max(after, pull.first + 1))
        elif _lags(reply, pull.first):
            raise self._refused(reply, NOT_AT_SLAVE)
        elif reply.code == ResponseCode.PULL_RETRY_IMMEDIATELY and not self._wanted.is_all and not _removing(reply):
            self._answer(pull, None, max(headers.decode_ext(PullReply, reply.ext).next_offset, pull.first + 1))
        elif reply.code in (ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED):
            self._skip(pull, reply)
        elif reply.code == ResponseCode.PULL_NOT_FOUND:
            self._wait(pull, reply)
        elif self._wanted.expression_type == SQL92 and _refuses(reply):
            raise _FilterRefused(reply.remark)
        elif reply.code == ResponseCode.TOPIC_NOT_EXIST or _has_no_such_queue(reply):
            self._believe(reply)
            why = "the topic was deleted" if reply.code == ResponseCode.TOPIC_NOT_EXIST else "it has fewer queues now"
            self._gone(pull.first, pull.end, why)
            self._answer(pull, None, pull.end)
        else:
            raise self._refused(reply)

    def _refused(self, reply: PipelinedReply, why_for_now: str | None = None) -> ServerError:
        """Return the error of a reply; `why_for_now`: it may be another soon, or elsewhere."""
        queue = self._source.queue
        return ServerError(
            reply.code,
            why_for_now or reply.remark,
            address=self._address,
            doing=f"pull of topic {queue.topic!r} queue {queue.queue_id}",
            retriable=why_for_now is not None or is_retriable(reply.code, reply.remark),
        )

    def _answer(self, pull: _Pull, reply: PipelinedReply | None, after: int) -> None:
        """End [first, after) of a pull; `reply` holds its records, None means there are none."""
        pull.answered, pull.reply = True, reply
        if self._in_batches and pull is self._pulls[-1]:
            # The next one begins where the last batch of this one ends.
            self._next = pull.end = min(after, self._source.end)
        elif after < pull.end:
            self._ask_again(_Pull(after, pull.end), behind=pull)
            if not self._in_batches:
                self._gives_less(after - pull.first)
            pull.end = after
        else:
            self._full_replies += 1
            if self._full_replies >= self._grow_after:
                self._full_replies = 0
                self._grew = True
                self._step = min(2 * self._step, self._options.rows_per_pull_max)

    def _gives_less(self, count: int) -> None:
        """Ask for no more than a broker gave; if it was asked for more as a trial, try that more seldom."""
        self._full_replies = 0
        self._step = max(1, min(self._step, count))
        if self._grew:
            self._grow_after, self._grew = min(2 * self._grow_after, GROW_AFTER_MAX), False

    def _believe(self, reply: PipelinedReply) -> None:
        """Return if messages that this broker does not have are gone. Raises ServerError for a slave: it may be
        behind, or have joined late.
        """
        if not may_tell_of_loss(self._address, self._source.queue, self._options):
            raise self._refused(reply, NOT_AT_SLAVE)

    def _gone(self, first: int, end: int, why: str) -> None:
        """Tell that offsets are gone. If all were asked for, the reader finds out what is missing and warns of that."""
        if self._options.fail_on_data_loss or not self._wanted.is_all:
            lost(self._source._replace(first=first, end=end), why, self._options)

    def _skip(self, pull: _Pull, reply: PipelinedReply) -> None:
        """Skip to the offset that the broker names, as it has nothing at this one."""
        header = headers.decode_ext(PullReply, reply.ext)
        after = header.next_offset
        if after <= pull.first:
            # The queue ends before this offset: its master is new and shows it soon, or it lost its end.
            self._wait(pull, reply)
            return
        self._believe(reply)
        after = min(after, pull.end)
        if not is_compacted(self._source.queue.topic, (self._address,), self._options):
            self._gone(pull.first, after, reply.remark or "deleted")
        self._answer(pull, None, after)

    def _wait(self, pull: _Pull, reply: PipelinedReply) -> None:
        """Wait, as the broker does not have this offset yet, though the driver saw it there."""
        header = headers.decode_ext(PullReply, reply.ext)
        pull.waits += 1
        if pull.waits * UNSEEN_WAIT_S * 1000 > min(self._options.timeout_ms, 5000):
            self._believe(reply)
            self._gone(pull.first, pull.end, f"the queue ends at {header.max_offset}")
            self._answer(pull, None, pull.end)
            return
        time.sleep(UNSEEN_WAIT_S)
        self._ask_again(pull)

    def _ready(self) -> Iterator[PulledPiece]:
        """Return answered pulls from the front, together once they make a good batch or must go apart."""
        while count := self._count_ready():
            done = self._pulls[:count]
            del self._pulls[:count]
            self._leading, self._leading_bytes, self._last = 0, 0, None
            yield _piece(done, self._wanted.is_all)

    def _ready_and_proved(self, link: PipelinedConnection) -> Iterator[PulledPiece]:
        """Return them as `_ready`, each once its first message was seen to be there still."""
        for piece in self._ready():
            header = msgspec.structs.replace(self._header(EVERY_MESSAGE), queue_offset=piece.first, count_max=1)
            proof = _Proof(piece, link.send(RequestCode.PULL_MESSAGE, header))
            self._held.append(proof)
            self._proving[proof.opaque] = proof
        while self._held and not self._held[0].opaque:
            yield self._held.popleft().piece

    def _prove(self, proof: _Proof, reply: PipelinedReply) -> None:
        """Note whether the broker still has the first offset of a piece."""
        proof.opaque = 0
        first, end = proof.piece.first, proof.piece.end
        if _lags(reply, first):
            raise self._refused(reply, NOT_AT_SLAVE)
        if reply.code == ResponseCode.SUCCESS and reply.end > reply.start:
            at = reply.start
            found = int.from_bytes(reply.buffer[at + AT["queue_offset"] : at + AT["position"]], "big")
        elif reply.code in (ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED):
            found = headers.decode_ext(PullReply, reply.ext).next_offset
            found = found if found > first else end
        elif reply.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.TOPIC_NOT_EXIST):
            found = end
        else:
            raise self._refused(reply)
        topic = self._source.queue.topic
        if found > first and not is_compacted(topic, (self._address,), self._options):
            self._believe(reply)
            gone = self._source._replace(first=first, end=min(found, end))
            lost(gone, f"removed while they were filtered; {reply.remark or 'deleted'}", self._options)

    def _count_ready(self) -> int:
        """Return how many pulls from the front make the next piece; 0 if it is worth waiting for more."""
        pulls = self._pulls
        while self._leading < len(pulls):
            rows = pulls[self._leading - 1].end - pulls[0].first if self._leading else 0
            if rows >= ROWS_PER_PIECE or self._leading_bytes >= BYTES_PER_PIECE:
                break
            pull = pulls[self._leading]
            if not pull.answered:
                return 0
            if pull.reply is not None:
                if self._last is not None and _must_go_apart(self._last, pull.reply):
                    break
                self._last = pull.reply
                self._leading_bytes += pull.reply.end - pull.reply.start
            self._leading += 1
        else:
            if self._next < self._source.end:
                return 0
        return self._leading


def _holds_batches(reply: PipelinedReply) -> bool:
    """Tell whether the first record of a reply is an inner batch."""
    at = reply.start + AT["sys_flag"]
    flags = int.from_bytes(reply.buffer[at : at + 4], "big") if at + 4 <= reply.end else 0
    return flags & _INNER == _INNER


def _follows(before: PipelinedReply, after: PipelinedReply) -> bool:
    return after.buffer is before.buffer and after.start >= before.start


def _must_go_apart(before: PipelinedReply, after: PipelinedReply) -> bool:
    """Tell whether two replies cannot be one piece as they lie, and copying them costs more than two pieces do."""
    large = max(before.end - before.start, after.end - after.start) >= JOINED_BYTES_MAX
    return large and not _follows(before, after)


def _piece(done: list[_Pull], whole: bool) -> PulledPiece:
    replies = [pull.reply for pull in done if pull.reply is not None]
    buffer: memoryview | bytes = replies[0].buffer if replies else b""
    spans = [(r.start, r.end) for r in replies]
    if len(replies) > 1:
        small = max(end - start for start, end in spans) < JOINED_BYTES_MAX
        if small or not all(_follows(*pair) for pair in pairwise(replies)):
            # A piece's records ascend in one buffer; small replies may have come in any order and are copied so.
            buffer = joined([r.buffer[r.start : r.end] for r in replies])
            spans = [(0, len(buffer))]
    return PulledPiece(buffer, spans, done[0].first, done[-1].end, whole)


def _removing(reply: PipelinedReply) -> bool:
    """Tell whether a filtered pull that found nothing ran into files being removed (remark: GetMessageStatus, 4.9 to
    5.x).
    """
    return "MESSAGE_WAS_REMOVING" in (reply.remark or "")


def _has_no_such_queue(reply: PipelinedReply) -> bool:
    """Tell whether the topic has no such queue to read (remark: PullMessageProcessor, 4.9 with code 1, 5.x with 29)."""
    refusals = (ResponseCode.SYSTEM_ERROR, ResponseCode.INVALID_PARAMETER)
    return reply.code in refusals and (reply.remark or "").startswith("queueId[")


def _lags(reply: PipelinedReply, asked: int) -> bool:
    """Tell whether a slave has nothing at the offset asked for, and leaves it to the master to say why.

    It sends the consumer there, to ask for the same again (rule: PullMessageProcessor, 5.x); a master moves it.
    """
    return (
        reply.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        and not _removing(reply)
        and headers.decode_ext(PullReply, reply.ext).next_offset == asked
    )


def _refuses(reply: PipelinedReply) -> bool:
    """Tell whether the broker refuses the expression: it has enablePropertyFilter off, or is older than what
    it uses.
    """
    if reply.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED:
        return True
    return reply.code == ResponseCode.SYSTEM_ERROR and "does not support consumer to filter" in (reply.remark or "")
