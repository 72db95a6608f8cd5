"""SEND_HALF_BATCH and END_HALF_RANGES: our own requests for many half messages at a time."""

from __future__ import annotations

import asyncio
import struct

import numpy as np
from numpy.typing import NDArray

from rocketspark.broker.messages.half_batches import half_ranges
from rocketspark.broker.messages.half_batches.half_ranges import EndedRange, HalfRanges
from rocketspark.broker.messages.send_rules import illegal
from rocketspark.broker.messages.transactions import Transactions
from rocketspark.broker.replication.waits import Durability
from rocketspark.errors import ServerError
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import EndHalfRangesHeader, Request
from rocketspark.protocol.message import half_ranges as encoded_ranges
from rocketspark.protocol.message import sysflags
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.request_frames import reply


class HalfRangesHandler:
    """Serves the ends of ranges of half messages; their batches come by SendHandler."""

    def __init__(self, transactions: Transactions, durability: Durability) -> None:
        self._transactions = transactions
        self._ranges = HalfRanges(transactions)
        self._durability = durability

    def routes(self, routes: Routes) -> None:
        """Add what this handler serves."""
        routes.add(RequestCode.END_HALF_RANGES, self.end, EndHalfRangesHeader)

    async def end(self, peer: Peer, request: Request[EndHalfRangesHeader], body: bytes) -> bytes | None:
        """END_HALF_RANGES (7310006). A repeated one is answered and changes nothing.

        Raises ServerError for the first half message that is not there or not the sender's: those before are ended.
        """
        h = request.ext
        if h.outcome not in (sysflags.TRANSACTION_COMMIT, sysflags.TRANSACTION_ROLLBACK):
            raise illegal(f"outcome {h.outcome}: 8 commits, 12 rolls back")
        try:
            ranges = encoded_ranges.decode(body)
        except (struct.error, ValueError) as e:
            raise illegal(f"ranges of half messages: {e}") from None
        gone: list[int] = []
        end: int | None = None
        worked = 0
        for first, positions in ranges:
            at = 0
            while at < len(positions):
                ended = self._end(h, first + at, positions[at:])
                at += ended.done
                gone += ended.gone
                end = end if ended.end is None else ended.end
                worked += ended.cost
                if worked >= half_ranges.TURN:
                    worked = 0
                    await asyncio.sleep(0)
        told = encoded_ranges.encode_offsets(gone)
        if end is None or not self._durability.needed:
            return reply(request.opaque, body=told)
        self._durability.reply_when_durable(peer, request, end, lambda code: reply(request.opaque, code, body=told))
        return None

    def _end(self, h: EndHalfRangesHeader, first: int, positions: NDArray[np.int64]) -> EndedRange:
        if not self._transactions.is_running:
            # Between two turns of the loop it became a slave, or stops.
            raise ServerError(ResponseCode.SERVICE_NOT_AVAILABLE, "this broker is no master any more: ask again")
        if h.outcome == sysflags.TRANSACTION_COMMIT:
            # The half messages stay open, and are asked for again, while too few could hold the commits.
            self._durability.check()
        return self._ranges.end(h.topic, h.producer_group, h.outcome, first, positions)
