"""Messages looked up by key, unique id or offset message id."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from rocketspark.broker.parts import StoreReads
from rocketspark.broker.storage.tiering import Tiering
from rocketspark.errors import ServerError
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import QueryMessageHeader, QueryMessageReply, Request, ViewMessageHeader
from rocketspark.protocol.message import record_layout
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Answer, Routes
from rocketspark.transport.request_frames import reply

# Queue and offset of a record, by which its copy in the tier is known.
_PLACE = record_layout.only("queue_id", "queue_offset").unpack_from
QUERY_COUNT_MAX = 64
UNIQUE_COUNT_MAX = 32


class QueryHandler:
    """Finds messages in the key index and the log."""

    def __init__(self, reads: StoreReads) -> None:
        self._store = reads.store
        self._long_scans = reads.long_scans
        self._tiering = reads.tiering

    def routes(self, routes: Routes) -> None:
        """Add what this handler serves."""
        routes.add(RequestCode.QUERY_MESSAGE, self.query)
        routes.add(RequestCode.VIEW_MESSAGE_BY_ID, self.view)

    def query(self, peer: Peer, request: Request[QueryMessageHeader], body: bytes) -> Answer:
        """QUERY_MESSAGE (12): the newest messages of a key (64 at most) or unique id (32), oldest first; or code 22."""
        if self._tiering is not None:
            return self._query_both(self._tiering, request)
        return self._long_scans.answer(peer, self._query(request))

    async def _query_both(self, tiering: Tiering, request: Request[QueryMessageHeader]) -> bytes:
        """Look in the store, then in the second tier for what may be older."""
        h = request.ext
        kind, limit = _kind_and_limit(h)
        steps = self._store.query_steps(h.topic, h.key, limit, h.begin_ms, h.end_ms, kind)
        found = [bytes(view) for view in await self._long_scans.whole(steps)]
        here = {_PLACE(stored) for stored in found}
        if len(found) < limit and not (found and kind == "U"):
            try:
                cold = await tiering.query(h.topic, h.key, limit, h.begin_ms, h.end_ms, kind)
            except ServerError:
                # What the store has is told while the tier cannot be read.
                if not found:
                    raise
                cold = []
            found += [stored for stored in cold if _PLACE(stored) not in here]
        return self._reply(request, found[:limit])

    def _query(self, request: Request[QueryMessageHeader]) -> Generator[None, None, bytes]:
        h = request.ext
        kind, limit = _kind_and_limit(h)
        found = yield from self._store.query_steps(h.topic, h.key, limit, h.begin_ms, h.end_ms, kind)
        return self._reply(request, found)

    def _reply(self, request: Request[QueryMessageHeader], found: Sequence[bytes | memoryview]) -> bytes:
        if not found:
            nothing = QueryMessageReply(updated_ms=0, updated_position=0)
            remark = "can not find message, maybe time range not correct"
            return reply(request.opaque, ResponseCode.QUERY_NOT_FOUND, nothing, remark=remark)
        header = QueryMessageReply(
            updated_ms=self._store.last_store_time_ms, updated_position=self._store.written_position
        )
        # Rule: DefaultMessageStore.queryMessage, 5.x.
        return reply(request.opaque, header=header, body=b"".join(reversed(found)))

    def view(self, peer: Peer, request: Request[ViewMessageHeader], body: bytes) -> bytes:
        """VIEW_MESSAGE_BY_ID (33): the record at a physical offset."""
        position = request.ext.physical_offset
        found = self._store.copied_at(position) if request.ext.unused else self._store.shown_at(position)
        if found is None:
            raise ServerError(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset: {position}")
        return reply(request.opaque, body=bytes(found))


def _kind_and_limit(h: QueryMessageHeader) -> tuple[str, int]:
    kind = h.kind or ("U" if h.unique else "K")
    return kind, UNIQUE_COUNT_MAX if h.unique else min(max(h.count_max, 1), QUERY_COUNT_MAX)
