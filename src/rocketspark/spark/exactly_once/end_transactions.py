"""Commits or rolls back the half messages of a batch. Rule: each half message is committed once, though Apache's broker
commits one again for each request that it gets.

An "end" is the request that does it: END_TRANSACTION. Where the reply to an end was lost, the queues are read for the
messages that arrived, and only the other ends are sent again; a writer that takes over from another first waits until
no end of its predecessor can still be under way. RocketSpark's broker takes the ends of many half messages in one
request, by ranges of offsets, and there an end that is sent again changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rocketspark.client.connection import client_api
from rocketspark.errors import ConnectionLost, NotSent, RocketSparkError, ServerError
from rocketspark.model import MessageQueue
from rocketspark.model.text import whole_number
from rocketspark.protocol import frames
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import EndHalfRangesHeader, EndTransactionHeader, to_ext_of
from rocketspark.protocol.message import half_ranges, sysflags
from rocketspark.spark.exactly_once.broker_abilities import Abilities, BrokerAbilities
from rocketspark.spark.exactly_once.commit_records import AttemptPart, HandleManifest
from rocketspark.spark.exactly_once.commit_topic import PAUSE_S, CommitTopic
from rocketspark.spark.exactly_once.failpoints import passing
from rocketspark.tables.options import WriteOptions
from rocketspark.transport.peer import Peer
from rocketspark.transport.request_frames import Reply
from rocketspark.transport.request_frames import request as request_frame

log = logging.getLogger("rocketspark.spark")

COMMIT, ROLLBACK = sysflags.TRANSACTION_COMMIT, sysflags.TRANSACTION_ROLLBACK
# Ends that are sent together, after a check whether another writer has taken over; and how many such chunks may be
# under way.
CHUNK_ROWS = 256
CHUNKS_IN_FLIGHT = 2
# Apache's broker drops an end that waited for 3 s: after this time none that was sent before is carried out any more.
DRAIN_S = 6.0
# After so many requests by ranges in a row at which the connection ended, ends go one by one.
CUTS_MAX = 3
# Interval at which the records are read for a writer that took over; well below DRAIN_S.
GUARD_S = 1.0
# Part of the remark of a broker whose log no longer has the half message.
HALF_GONE = "prepared transaction message"

Bounds = Sequence[tuple[str, str, int, int]]
_HALF, _POSITION, _OPAQUE = 1_912_345_601, 1_912_345_602, 1_912_345_604


class _Round(NamedTuple):
    """The outcome of a round of ends: `rows`, whose ends are to be sent again; `gone`, whose half messages the broker
    no longer has; `unsure`: a reply was lost, so some of `rows` may be committed already; `cause`: the last error.
    """

    rows: NDArray[np.int64]
    gone: NDArray[np.int64]
    unsure: bool
    cause: BaseException | None


class EndTransactions:
    """Commits or rolls back the half messages of one batch.

    `bounds`: the batch's queues, and the offset at which each ended before any message of the batch was committed.
    `fresh`: no writer has sent an end of this batch before. `guard` is called from time to time while ends go to a
    broker that commits twice when it is asked twice; it raises if another writer has taken over.
    """

    def __init__(
        self,
        commit_log: CommitTopic,
        options: WriteOptions,
        bounds: Bounds,
        *,
        fresh: bool,
        guard: Callable[[], Awaitable[None]],
    ) -> None:
        self._log = commit_log
        self._budget_s = options.commit_timeout_ms / 1000
        self._timeout_ms = options.timeout_ms
        self._fresh = fresh
        self._bounds = bounds
        self._guard = guard
        self._guarded_s = time.monotonic()
        self._abilities = BrokerAbilities(commit_log, options.timeout_ms)
        # By broker: how far its queues were read for what arrived, and the physical offsets of what did.
        self._at: dict[str, dict[MessageQueue, int]] = {}
        self._arrived: dict[str, list[NDArray[np.int64]]] = {}
        for topic, broker, queue_id, offset in bounds:
            self._at.setdefault(broker, {})[MessageQueue(topic, broker, queue_id)] = offset

    async def wait_for_others(self, parts: Sequence[AttemptPart]) -> None:
        """Wait until the ends that another writer may have sent before have been carried out. `parts`: what it may have
        sent ends of. Brokers on which an end that is sent again changes nothing are not waited for.
        """
        anchors = {broker: MessageQueue(topic, broker, queue_id) for topic, broker, queue_id, _ in self._bounds}
        found = await asyncio.gather(*(self._abilities.of(anchor) for anchor in anchors.values()))
        if parts and not all(abilities.ends_once for abilities in found):
            await asyncio.sleep(DRAIN_S)

    async def commit(self, manifest: HandleManifest) -> None:
        """Commit all half messages of a manifest. Raises RocketSparkError if that cannot be done now, or never can."""
        await self._end(manifest, COMMIT)

    async def roll_back(self, manifest: HandleManifest) -> None:
        """Roll back all half messages of a manifest; where that fails, the broker asks about them later."""
        try:
            await self._end(manifest, ROLLBACK)
        except RocketSparkError as e:
            log.warning("half messages of a dead attempt are left to the broker's checks: %s", e)

    async def _end(self, manifest: HandleManifest, outcome: int) -> None:
        names = list(dict.fromkeys(broker for _, broker, _ in manifest.head.queues))
        numbers = np.array([names.index(broker) for _, broker, _ in manifest.head.queues], np.int32)
        of_row = numbers[manifest.targets] if len(numbers) else numbers
        works = (
            self._end_on(names[number], manifest, np.flatnonzero(of_row == number), outcome)
            for number in np.unique(of_row).tolist()
        )
        for result in await asyncio.gather(*works, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def _end_on(self, broker: str, manifest: HandleManifest, rows: NDArray[np.int64], outcome: int) -> None:
        """End some rows of a manifest, all on one broker."""
        anchor = manifest.queue(int(manifest.targets[rows[0]]))
        can = await self._abilities_for(anchor, outcome)
        unsure = not self._fresh
        if unsure and not can.ends_once:
            rows = await self._missing(broker, manifest, rows)
            unsure = False
        end_s = time.monotonic() + self._budget_s
        cuts = 0
        while len(rows):
            # What stands before the broker may end the connection at each range.
            round_ = self._round_of_ranges if can.batches and cuts < CUTS_MAX else self._round
            before = len(rows)
            rows, gone, lost, cause = await round_(anchor, manifest, rows, outcome, can.ends_once)
            cuts = cuts + 1 if len(rows) == before and isinstance(cause, ConnectionLost) else 0
            unsure = unsure or lost
            if len(gone) and outcome == COMMIT and len(gone := await self._missing(broker, manifest, gone)):
                raise RocketSparkError(
                    f"{len(gone)} rows of batch {manifest.head.batch} cannot be committed: broker {broker!r} no longer"
                    " has their half messages open: they are older than fileReservedTime hours, damaged or rolled back"
                )
            if not len(rows):
                return
            if time.monotonic() >= end_s:
                raise RocketSparkError(
                    f"batch {manifest.head.batch} is recorded as committed, but {len(rows)} or more of its messages on"
                    f" broker {broker!r} are not visible yet: {cause}; run it again, it goes on where it stopped"
                )
            # Another kind of broker may be its master now.
            can = await self._abilities_for(anchor, outcome)
            if can.batches and isinstance(cause, NoRanges):
                # It is of ours, and what stands before it lets no such request through.
                self._abilities.no_batches(anchor)
                can = can._replace(batches=False)
            if unsure and not can.ends_once:
                await asyncio.sleep(DRAIN_S)
                rows = await self._missing(broker, manifest, rows)
                unsure = False
            else:
                await asyncio.sleep(PAUSE_S)

    async def _abilities_for(self, anchor: MessageQueue, outcome: int) -> Abilities:
        """Return what a queue's broker can do. Every broker rolls back a half message only once."""
        found = await self._abilities.of(anchor)
        return found._replace(ends_once=True) if outcome == ROLLBACK else found

    async def _round_of_ranges(
        self, anchor: MessageQueue, manifest: HandleManifest, rows: NDArray[np.int64], outcome: int, once: bool
    ) -> _Round:
        """Send the ends of these rows by ranges, until some fail. Such a broker ends each row only once."""
        assert once
        gone: list[int] = []
        # Rows for chosen queues keep their order: the next ends are sent once those before are carried out.
        in_flight_max = 1 if manifest.head.ordered else RANGES_IN_FLIGHT_MAX
        peer = await self._log.again(lambda: self._log.instance.master_of(anchor), topic=anchor.topic)
        asked = list(range_requests(manifest, rows))
        for at in range(0, len(asked), in_flight_max):
            parts = asked[at : at + in_flight_max]
            replies = [
                asyncio.ensure_future(
                    ask_for_ranges(
                        *(peer, self._log.topic, anchor, outcome, manifest, topic, part), timeout_ms=self._timeout_ms
                    )
                )
                for topic, part in parts
            ]
            await asyncio.sleep(0)
            if outcome == COMMIT:
                passing("ends sent")
            results = await asyncio.gather(*replies, return_exceptions=True)
            failed: list[NDArray[np.int64]] = []
            cause: BaseException | None = None
            for (_, part), result in zip(parts, results, strict=True):
                if isinstance(result, BaseException):
                    if not isinstance(result, RocketSparkError):
                        raise result
                    failed.append(part)
                    cause = result
                    if isinstance(result, NoRanges):
                        self._abilities.forget(anchor)
                else:
                    gone += result.tolist()
            if cause is not None:
                left = [*failed, *(part for _, part in asked[at + in_flight_max :])]
                return _Round(np.sort(np.concatenate(left)), _array(gone), True, cause)
            if outcome == COMMIT:
                passing("some ends")
        return _Round(rows[:0], _array(gone), False, None)

    async def _round(
        self, anchor: MessageQueue, manifest: HandleManifest, rows: NDArray[np.int64], outcome: int, once: bool
    ) -> _Round:
        """Send the ends of these rows, until some fail."""
        gone: list[int] = []
        failed: list[NDArray[np.int64]] = []
        lost, cause = False, None
        ordered = manifest.head.ordered
        chunks = deque(_chunks(manifest, rows, one_each=ordered))
        peer = await self._log.again(lambda: self._log.instance.master_of(anchor), topic=anchor.topic)
        header = _header(self._log.topic, anchor, manifest.head.attempt, outcome)
        # While the broker carries out one chunk the answers to the one before are read.
        asked: deque[list[tuple[int, asyncio.Future[Reply]]]] = deque()
        while asked or (chunks and cause is None):
            while chunks and cause is None and len(asked) < (1 if ordered else CHUNKS_IN_FLIGHT):
                if not once:
                    try:
                        await self._guarded()
                    except BaseException:
                        under_way = [reply for chunk in asked for _, reply in chunk]
                        await asyncio.gather(*under_way, return_exceptions=True)
                        raise
                asked.append(self._ask(peer, header, manifest, chunks.popleft()))
                if outcome == COMMIT:
                    passing("ends sent")
            rest, was_lost, why = await self._replies(asked.popleft(), gone)
            failed.append(rest)
            lost, cause = lost or was_lost, cause or why
            if cause is None and outcome == COMMIT:
                passing("some ends")
        if cause is not None:
            return _Round(np.sort(np.concatenate((*failed, *chunks))), _array(gone), lost, cause)
        return _Round(rows[:0], _array(gone), False, None)

    def _ask(
        self, peer: Peer, header: EndTransactionHeader, manifest: HandleManifest, chunk: NDArray[np.int64]
    ) -> list[tuple[int, asyncio.Future[Reply]]]:
        """Send the ends of these rows at once; return each with its reply."""
        asked = []
        code, timeout_ms = RequestCode.END_TRANSACTION, self._timeout_ms
        frame = _template(header)
        # What hooks see, and sign, is a request of its own.
        ext_of = to_ext_of(header, "half_offset", "physical_offset") if peer.hooks is not None else None
        for row in chunk.tolist():
            at = int(manifest.half_offsets[row]), int(manifest.positions[row])
            try:
                if ext_of is not None:
                    reply = peer.ask(code, ext_of(*at), timeout_ms=timeout_ms)
                else:
                    opaque = peer.next_opaque()
                    reply = peer.ask_encoded(opaque, frames.join(frame % (*at, opaque)), code, timeout_ms)
            except NotSent as e:
                reply = asyncio.get_running_loop().create_future()
                reply.set_exception(e)
            asked.append((row, reply))
        return asked

    async def _replies(
        self, asked: list[tuple[int, asyncio.Future[Reply]]], gone: list[int]
    ) -> tuple[NDArray[np.int64], bool, BaseException | None]:
        """Await the replies; return the rows whose ends are to be sent again, whether a reply was lost, and the last
        error. Rows whose half message the broker no longer has are added to `gone`.
        """
        failed: list[int] = []
        cause: BaseException | None = None
        lost = False
        results = await asyncio.gather(*(reply for _, reply in asked), return_exceptions=True)
        for (row, _), result in zip(asked, results, strict=True):
            if isinstance(result, BaseException):
                if not isinstance(result, RocketSparkError):
                    raise result
                lost = lost or not isinstance(result, NotSent)
                failed.append(row)
                cause = result
            elif result.code == ResponseCode.SYSTEM_ERROR and HALF_GONE in (result.remark or ""):
                gone.append(row)
            elif result.code != 0:
                failed.append(row)
                cause = RocketSparkError(f"code {result.code} from {result.address}: {result.remark}")
        return _array(failed), lost, cause

    async def _guarded(self) -> None:
        if time.monotonic() - self._guarded_s >= GUARD_S:
            await self._guard()
            self._guarded_s = time.monotonic()

    # -- brokers that commit again when they are asked again -----------------------------------------------------

    async def _shown(self, anchor: MessageQueue) -> None:
        """Wait until the queues hold all that the broker's log holds now: Apache's broker adds it a little later."""
        goal, met = -1, 0
        while met < 2:  # Twice: the two numbers are not taken at the very same time.
            table = await self._abilities.runtime(anchor)
            end, behind = (whole_number(table.get(name)) or 0 for name in ("commitLogMaxOffset", "dispatchBehindBytes"))
            goal = end if goal < 0 else goal
            met += end - behind >= goal
            if met < 2:
                await asyncio.sleep(PAUSE_S / 10)

    async def _missing(self, broker: str, manifest: HandleManifest, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of a manifest that have not arrived in their queues."""
        arrived = self._arrived.setdefault(broker, [])
        if broker in self._at:
            await self._shown(next(iter(self._at[broker])))
        for queue, at in self._at.get(broker, {}).items():
            _, end = await self._log.bounds(queue)
            found = [
                stored.prepared_position
                async for stored in self._log.read(queue, at, end, check_bodies=False)
                if stored.sys_flag & sysflags.TRANSACTION_MASK == COMMIT
            ]
            arrived.append(_array(found))
            self._at[broker][queue] = end
        merged = np.unique(np.concatenate(arrived)) if arrived else _array([])
        self._arrived[broker] = [merged]
        return rows[np.isin(manifest.positions[rows], merged, invert=True)]


def _header(group: str, anchor: MessageQueue, attempt: str, outcome: int) -> EndTransactionHeader:
    """Return the header of END_TRANSACTION, with numbers to be replaced where the half message's place stands."""
    return EndTransactionHeader(
        topic=anchor.topic,
        producer_group=group,
        half_offset=_HALF,
        physical_offset=_POSITION,
        outcome=outcome,
        # An official broker refuses an end past the immunity unless it says that it answers a question.
        from_check=True,
        message_id=attempt,
        broker_name=anchor.broker_name,
    )


def _template(header: EndTransactionHeader) -> bytes:
    """Return the request as a template for (half offset, physical offset, opaque): at a third of the cost."""
    text = request_frame(RequestCode.END_TRANSACTION, header, opaque=_OPAQUE)[8:].replace(b"%", b"%%")
    order = sorted((_HALF, _POSITION, _OPAQUE), key=lambda number: text.index(b"%d" % number))
    assert order == [_HALF, _POSITION, _OPAQUE]
    for number in order:
        text = text.replace(b"%d" % number, b"%d")
    return text


def _chunks(manifest: HandleManifest, rows: NDArray[np.int64], *, one_each: bool) -> list[NDArray[np.int64]]:
    """Divide rows into parts whose ends are sent at once. `one_each`: one row for each queue."""
    if not one_each:
        return [rows[at : at + CHUNK_ROWS] for at in range(0, len(rows), CHUNK_ROWS)]
    # The official broker ends several at once, and any may refuse some of them (SYSTEM_BUSY): one at a time for each
    # queue keeps their order.
    targets = manifest.targets[rows]
    turns = np.zeros(len(rows), np.int64)
    for target in np.unique(targets).tolist():
        of_target = targets == target
        turns[of_target] = np.arange(int(of_target.sum()))
    order = np.argsort(turns, kind="stable")
    return np.split(rows[order], np.flatnonzero(np.diff(turns[order])) + 1)


def _array(numbers: Sequence[int]) -> NDArray[np.int64]:
    return np.array(numbers, np.int64)


Rows = NDArray[np.int64]
# Half messages of one request: a broker ends them in some 10 ms.
RANGE_ROWS_MAX = 4096
# Requests on their way at a time.
RANGES_IN_FLIGHT_MAX = 2


class NoRanges(RocketSparkError):
    """Raised when a broker does not end half messages by ranges of offsets, though the master before it did."""


def range_requests(manifest: HandleManifest, rows: Rows) -> Iterator[tuple[str, Rows]]:
    """Divide written rows, each a half message, into the requests that end them; yield for each request its topic and
    its rows. A request has rows of one topic, RANGE_ROWS_MAX at most, and rows keep their order.
    """
    names = [topic for topic, _, _ in manifest.head.queues]
    topics = np.array([names.index(topic) for topic in names], np.int32)[manifest.targets[rows]]
    breaks = np.flatnonzero(topics[1:] != topics[:-1]) + 1
    for part in np.split(np.arange(len(rows)), breaks):
        for at in range(0, len(part), RANGE_ROWS_MAX):
            yield names[int(topics[part[0]])], rows[part[at : at + RANGE_ROWS_MAX]]


def ranges_of(manifest: HandleManifest, rows: Rows) -> list[half_ranges.Range]:
    """Return the ranges of the half messages of these rows, in order."""
    offsets, positions = manifest.half_offsets[rows], manifest.positions[rows]
    breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
    parts = zip(np.split(offsets, breaks), np.split(positions, breaks), strict=True)
    return [(int(first[0]), at) for first, at in parts]


async def ask_for_ranges(
    peer: Peer, group: str, anchor: MessageQueue, outcome: int, manifest: HandleManifest, topic: str, rows: Rows,
    *, timeout_ms: float,
) -> Rows:  # fmt: skip
    """End the half messages of rows by one request; return the rows that never can be committed. Raises
    RocketSparkError if not all could be ended, NoRanges if the broker cannot do that.

    `group`: the producer group; `anchor`: a queue of the broker; `outcome`: commit or rollback.
    """
    header = EndHalfRangesHeader(topic=topic, producer_group=group, outcome=outcome, broker_name=anchor.broker_name)
    try:
        ranges = ranges_of(manifest, rows)
        gone = await client_api.end_half_ranges(peer, header, ranges, timeout_ms=timeout_ms)
    except ServerError as e:
        if e.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise NoRanges(f"{e.address} ends half messages one by one") from None
        raise
    return rows[np.isin(manifest.half_offsets[rows], gone)] if len(gone) else rows[:0]
