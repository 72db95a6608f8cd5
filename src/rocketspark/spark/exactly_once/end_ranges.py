"""The ends of many half messages by one request, on brokers that take it. Rule: what is told again changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rocketspark.errors import RocketSparkError
from rocketspark.model import MessageQueue
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import EndHalfRangesHeader
from rocketspark.protocol.message import half_ranges
from rocketspark.spark.exactly_once.transaction_handles import HandleManifest
from rocketspark.transport.peer import Peer

Rows = NDArray[np.int64]
# Half messages of one request: a broker ends them in some 10 ms.
ROWS_MAX = 4096
# Requests on their way at a time.
IN_FLIGHT_MAX = 2


class NoRanges(RocketSparkError):
    """Raised by a broker that took over from one that ends half messages by ranges."""


def requests_of(manifest: HandleManifest, rows: Rows) -> Iterator[tuple[str, Rows]]:
    """Yield the rows of each request, in order, and the topic that they are for."""
    names = [topic for topic, _, _ in manifest.head.queues]
    topics = np.array([names.index(topic) for topic in names], np.int32)[manifest.targets[rows]]
    breaks = np.flatnonzero(topics[1:] != topics[:-1]) + 1
    for part in np.split(np.arange(len(rows)), breaks):
        for at in range(0, len(part), ROWS_MAX):
            yield names[int(topics[part[0]])], rows[part[at : at + ROWS_MAX]]


def body_of(manifest: HandleManifest, rows: Rows) -> bytes:
    """Return the body of the request that ends these rows, in order."""
    offsets, positions = manifest.half_offsets[rows], manifest.positions[rows]
    breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
    return half_ranges.encode(
        (int(first[0]), at) for first, at in zip(np.split(offsets, breaks), np.split(positions, breaks), strict=True)
    )


async def ask(
    peer: Peer, group: str, anchor: MessageQueue, outcome: int, manifest: HandleManifest, topic: str, rows: Rows,
    *, timeout_ms: float,
) -> Rows:  # fmt: skip
    """End these rows; return those that can never be committed. Raises RocketSparkError if not all could be ended."""
    header = EndHalfRangesHeader(topic=topic, producer_group=group, outcome=outcome, broker_name=anchor.broker_name)
    reply = await peer.request(RequestCode.END_HALF_RANGES, header, body_of(manifest, rows), timeout_ms=timeout_ms)
    if reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise NoRanges(f"{reply.address} ends half messages one by one")
    if reply.code != ResponseCode.SUCCESS:
        raise RocketSparkError(f"code {reply.code} from {reply.address}: {reply.remark}")
    try:
        gone = half_ranges.decode_offsets(bytes(reply.body))
    except ValueError as e:
        raise RocketSparkError(f"the answer of {reply.address} about half messages: {e}") from None
    return rows[np.isin(manifest.half_offsets[rows], gone)] if len(gone) else rows[:0]
