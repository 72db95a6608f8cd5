"""How producers end half messages: END_TRANSACTION for one, END_HALF_RANGES (our own) for ranges of them.

HalfRanges handles batches: it stores a batch as half messages (SEND_HALF_BATCH), and ends ranges of half messages.

Rule: a part of a batch or range that cannot be done together with the others is done one by one, with the same outcome.
One call holds the event loop for some milliseconds at most."""

from __future__ import annotations

import asyncio
import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rocketspark import machine
from rocketspark.broker.messages.put_message import AcceptedBatch, FixedFields, pairs_of
from rocketspark.broker.messages.send_rules import illegal, items_of
from rocketspark.broker.messages.transactions.half_batches import too_many
from rocketspark.broker.messages.transactions.half_messages import HALF_GONE
from rocketspark.broker.messages.transactions.transactions import Transactions
from rocketspark.broker.replication.waits import Durability
from rocketspark.broker.storage.json_tables import now_ms
from rocketspark.errors import ServerError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol import frames
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import EndHalfRangesHeader, EndTransactionHeader, Request
from rocketspark.protocol.message import half_ranges, sysflags
from rocketspark.protocol.message.message_ids import id_after
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.request_frames import reply

log = LimitedLog("rocketspark.broker")

# Ends carried out in one turn of the loop: together, some 2 us each; one by one, 20 to 100 us each.
TOGETHER_MAX = 2048
SINGLE_MAX = 64
# After so long others have their turn, whatever is left: a message may be of some MB, or take a search of the index.
SINGLE_S = 0.005
_RANGE_COST = _SINGLE_COST = 32
# Bytes that cost as much as a message.
_COST_BYTES = 1024
# Messages ended before the loop serves others, or work that costs as much.
TURN = 2048
# Half messages of a batch that go one by one in one turn: some 20 us each.
SINGLE_BATCH_MAX = 1024
# And their properties together, counted by what ends one.
SINGLE_PROPERTIES_MAX = 1 << 15


class EndedRange(NamedTuple):
    """The result of ending the first `done` messages of a range; `gone`: half queue offsets that cannot be committed.

    `end`: the physical offset that must be on the disk before the commits are safe, None without commits; `cost`: the
    work done, counted as so many messages that end together.
    """

    done: int
    gone: list[int]
    end: int | None
    cost: int = 0


class HalfRanges:
    """Stores batches as half messages on one broker, and ends ranges of half messages."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._batched = transactions.batched

    def prepare(
        self, topic: str, queue_id: int, body: bytes, sys_flag: int, born_time_ms: int, born_host: bytes
    ) -> AcceptedBatch:
        """Store the messages of a batch as half messages, at consecutive offsets of the half queue.

        Raises ServerError as `Transactions.prepare`. The messages before the one at fault may be stored then; they are
        checked like all half messages that nobody ends. Raises code 3, with nothing stored, for a batch that would hold
        the loop for long.
        """
        found = self._batched.prepare(topic, queue_id, body, sys_flag, born_time_ms, born_host, now_ms())
        if found is not None:
            self._transactions.note_batch(found)
            return found.accepted
        items = items_of(body)
        if len(items) > SINGLE_BATCH_MAX or body.count(b"\2") > SINGLE_PROPERTIES_MAX:
            raise too_many(len(items), SINGLE_BATCH_MAX)
        self._transactions.check_room(len(items))
        placed = [
            self._transactions.prepare(
                *(topic, queue_id, item.body, item.properties, pairs_of(item.properties)),
                FixedFields(item.flag, sys_flag, born_time_ms, born_host),
            )
            for item in items
        ]
        return AcceptedBatch([position for position, _, _ in placed], placed[0][1], placed[-1][2])

    def end(
        self, topic: str, group: str, outcome: int, first: int, positions: NDArray[np.int64], unique_id: str = ""
    ) -> EndedRange:
        """Commit or roll back half messages at consecutive offsets of the half queue, from `first` on.

        `positions`: their physical offsets; `unique_id`: of the first, if it is known. The call may end fewer than all:
        it is made again for the rest, after other requests had a turn. Raises ServerError as `Transactions.end` if the
        first one cannot be ended.
        """
        if unique_id:
            self._transactions.check_id(int(positions[0]), unique_id)
        ended = self._batched.end(topic, group, outcome, first, positions[:TOGETHER_MAX])
        if ended is None:
            return self._end_single(topic, group, outcome, first, positions[:SINGLE_MAX].tolist(), unique_id)
        offsets = range(first, first + ended.done)
        if not ended.before:
            self._transactions.note_ended(range(ended.first, ended.first + ended.done))
        cost = ended.done + _RANGE_COST + ended.bytes // _COST_BYTES
        return EndedRange(ended.done, list(offsets) if ended.gone else [], ended.end, cost)

    def _end_single(
        self, topic: str, group: str, outcome: int, first: int, positions: list[int], unique_id: str
    ) -> EndedRange:
        gone: list[int] = []
        end: int | None = None
        until = machine.perf_counter() + SINGLE_S
        for done, position in enumerate(positions):
            if done and machine.perf_counter() >= until:
                return EndedRange(done, gone, end, TURN)
            header = EndTransactionHeader(
                topic=topic,
                producer_group=group,
                half_offset=first + done,
                physical_offset=position,
                outcome=outcome,
                transaction_id=id_after(unique_id, done),
            )
            try:
                told = self._transactions.end(header, same_topic=True)
            except ServerError as e:
                if HALF_GONE in (e.remark or ""):
                    gone.append(first + done)
                    continue
                if not done:
                    raise
                return EndedRange(done, gone, end, done * _SINGLE_COST)  # The next call raises it.
            end = end if told is None else told
        return EndedRange(len(positions), gone, end, len(positions) * _SINGLE_COST)


class TransactionHandler:
    """Serves the requests that end half messages; the requests that send batches of them are SendHandler's."""

    def __init__(self, transactions: Transactions, durability: Durability) -> None:
        self._transactions = transactions
        self._ranges = HalfRanges(transactions)
        self._durability = durability

    def routes(self, routes: Routes) -> None:
        """Add what this handler serves."""
        routes.add(RequestCode.END_TRANSACTION, self.end)
        routes.add(RequestCode.END_HALF_RANGES, self.end_ranges, EndHalfRangesHeader)

    def end(self, peer: Peer, request: Request[EndTransactionHeader], body: bytes) -> bytes | None:
        """END_TRANSACTION (37): commit or roll back a half message, usually one-way. Repeated, it changes nothing."""
        outcome = request.ext.outcome & sysflags.TRANSACTION_MASK
        if not outcome:
            text = "the state of transaction %s of group %s is unknown to %s, which will be asked: %s"
            log.info(
                text, request.ext.message_id, request.ext.producer_group, peer.address, request.remark or "no reason"
            )
        if outcome == sysflags.TRANSACTION_COMMIT:
            # The half message stays open, and is asked for again, while too few could hold the commit.
            self._durability.check()
        end = self._transactions.end(request.ext)
        if end is None or not self._durability.needed or request.flag & frames.ONEWAY_FLAG:
            return reply(request.opaque)
        self._durability.reply_when_durable(peer, request, end, lambda code: reply(request.opaque, code))
        return None

    async def end_ranges(self, peer: Peer, request: Request[EndHalfRangesHeader], body: bytes) -> bytes | None:
        """END_HALF_RANGES (7310006): commit or roll back ranges of half messages. A repeated request changes nothing.

        Raises ServerError for the first half message that does not exist or is not the sender's; those before it are
        ended.
        """
        h = request.ext
        if h.outcome not in (sysflags.TRANSACTION_COMMIT, sysflags.TRANSACTION_ROLLBACK):
            raise illegal(f"outcome {h.outcome}: 8 commits, 12 rolls back")
        try:
            ranges = half_ranges.decode(body)
        except (struct.error, ValueError) as e:
            raise illegal(f"ranges of half messages: {e}") from None
        gone: list[int] = []
        end: int | None = None
        worked = before = 0
        for first, positions in ranges:
            at = 0
            while at < len(positions):
                # In the middle of a batch too: of one that was cut off with a master the first may be there.
                ended = self._end_range(h, first + at, positions[at:], id_after(h.message_id or "", before))
                at += ended.done
                before += ended.done
                gone += ended.gone
                end = end if ended.end is None else ended.end
                worked += ended.cost
                if worked >= TURN:
                    worked = 0
                    await asyncio.sleep(0)
        told = half_ranges.encode_offsets(gone)
        if end is None or not self._durability.needed:
            return reply(request.opaque, body=told)
        self._durability.reply_when_durable(peer, request, end, lambda code: reply(request.opaque, code, body=told))
        return None

    def _end_range(
        self, h: EndHalfRangesHeader, first: int, positions: NDArray[np.int64], unique_id: str
    ) -> EndedRange:
        if not self._transactions.is_running:
            # Between two turns of the loop it became a slave, or stops.
            raise ServerError(ResponseCode.SERVICE_NOT_AVAILABLE, "this broker is no master any more: ask again")
        if h.outcome == sysflags.TRANSACTION_COMMIT:
            # The half messages stay open, and are asked for again, while too few could hold the commits.
            self._durability.check()
        return self._ranges.end(h.topic, h.producer_group, h.outcome, first, positions, unique_id)
