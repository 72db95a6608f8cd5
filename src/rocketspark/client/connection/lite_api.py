"""Calls of consumers of lite topics, on one broker. Rule: as in client_api."""

from __future__ import annotations

from typing import NamedTuple

from rocketspark.client.connection.client_api import TIMEOUT_MS
from rocketspark.client.connection.pop_api import POP_RESULTS
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import PopLiteHeader, PopLiteReply
from rocketspark.protocol.json import lite_bodies
from rocketspark.protocol.json.lite_bodies import LiteSubscription, LiteSubscriptions
from rocketspark.transport.peer import Peer


class LitePopResult(NamedTuple):
    """A reply to a pop of lite topics: `code` (messages found, none in time, or too many requests wait at the broker),
    its header, the raw records.
    """

    code: int
    header: PopLiteReply
    records: bytes


async def pop(broker: Peer, header: PopLiteHeader, *, timeout_ms: float) -> LitePopResult:
    """Pop messages of the lite topics that a client subscribed to."""
    reply = await broker.request(RequestCode.POP_LITE_MESSAGE, header, timeout_ms=timeout_ms)
    reply.raise_for_code(f"pop of lite topics of {header.topic!r}", *POP_RESULTS)
    return LitePopResult(reply.code, reply.header(PopLiteReply), reply.body)


async def subscribe(broker: Peer, change: LiteSubscription, *, timeout_ms: float = TIMEOUT_MS) -> None:
    """Change which lite topics a client reads. Raises ServerError: 2018 for more than the broker takes."""
    body = lite_bodies.encode(LiteSubscriptions(subscription_set=[change]))
    reply = await broker.request(RequestCode.LITE_SUBSCRIPTION_CTL, None, body, timeout_ms=timeout_ms)
    reply.raise_for_code(f"subscription to lite topics of {change.topic!r}")
