"""Changes that nobody waits for any more: whoever asked closed the connection before the broker came to the request.

Rule: what was begun is carried out; what was given up before is not. A request may lie in a connection for long, while
the broker's process or the network between stands still. Meanwhile its client said that it may have been carried out,
closed the connection, and the operator may have done something else: a topic deleted late takes the messages of the
topic that was made in its place. The end of a connection arrives right behind its last request, so a change looks for
it first. A client that keeps its connection open after a timeout is not noticed, as requests do not say how long they
are waited for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from typing import Any

from rocketspark.errors import ServerError
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.frames import ONEWAY_FLAG
from rocketspark.protocol.headers import Request
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Answer, Handler, Routes
from rocketspark.transport.request_frames import Parts

log = logging.getLogger("rocketspark.broker")

# In the first turn the loop finds that the connection has ended, in the second the peer knows.
TURNS = 2


class Changes:
    """Begins the changes that are still waited for, and carries each out once it is begun, whoever leaves meanwhile."""

    def __init__(self) -> None:
        self._begun: set[asyncio.Future[bytes | Parts | None]] = set()

    def carry_out(self, routes: Routes, codes: Iterable[int]) -> None:
        """Let no lost connection cancel requests of `codes`: half of a deletion leaves queues without their topic."""
        for code in codes:
            routes.wrap(code, self._kept)

    def close(self) -> None:
        """Cancel what is under way, as the broker stops."""
        for change in self._begun:
            change.cancel()

    def _kept(self, handler: Handler) -> Handler:
        def serve(peer: Peer, request: Request[Any], body: bytes) -> Answer:
            answer = handler(peer, request, body)
            return (
                answer
                if answer is None or isinstance(answer, bytes | Parts)
                else self._carried_out(peer, request, answer)
            )

        return serve

    async def _carried_out(
        self, peer: Peer, request: Request[Any], answer: Coroutine[Any, Any, bytes | Parts | None]
    ) -> bytes | Parts | None:
        def log_failure(change: asyncio.Future[Any]) -> None:
            try:
                change.result()
            except Exception as e:
                peer.failure(request, e)
            except asyncio.CancelledError:
                return

        change = asyncio.ensure_future(answer)
        self._begun.add(change)
        change.add_done_callback(self._begun.discard)
        try:
            return await asyncio.shield(change)
        except asyncio.CancelledError:
            change.add_done_callback(log_failure)
            raise


def refuse_given_up(routes: Routes, codes: Iterable[int]) -> None:
    """Refuse requests of `codes` whose connection has ended before they are begun, but for one-way requests."""
    for code in codes:
        routes.wrap(code, _if_awaited)


def _if_awaited(handler: Handler) -> Handler:
    async def serve(peer: Peer, request: Request[Any], body: bytes) -> bytes | Parts | None:
        for _ in range(0 if request.flag & ONEWAY_FLAG else TURNS):
            await asyncio.sleep(0)
        if peer.has_left and not request.flag & ONEWAY_FLAG:
            log.warning("request %d of %s was not carried out: its connection had ended", request.code, peer.address)
            raise ServerError(ResponseCode.SYSTEM_BUSY, "not carried out: the connection had ended before it was begun")
        answer = handler(peer, request, body)
        return answer if answer is None or isinstance(answer, bytes | Parts) else await answer

    return serve
