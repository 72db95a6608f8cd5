"""Requests for logical queues, translated to the broker's own and back, or to the broker that holds the part.

Replies are translated on their way to the client, too: those that a handler returns, and those that it sends later.

Rule: it stands before the ordinary handlers, and only on a broker that has static topics. A request that says `lo`
false is for a broker's own queue, as brokers ask each other.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Coroutine
from typing import Any, cast

import msgspec

from rocketspark.broker.consumers.consumer_offsets import ConsumerOffsets
from rocketspark.broker.static_topics.cleaning import MappingCleaning
from rocketspark.broker.static_topics.mappings import StaticTopics
from rocketspark.broker.static_topics.other_brokers import OtherBrokers
from rocketspark.errors import ServerError
from rocketspark.protocol import frames
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import OffsetReply, PullHeader, Request, TimeReply
from rocketspark.protocol.headers.static_topics import (
    PartMaxHeader,
    PartPullHeader,
    PartQueryHeader,
    PartQueueHeader,
    PartSearchHeader,
    PartUpdateHeader,
)
from rocketspark.protocol.json import static_topics
from rocketspark.protocol.json.static_topics import MappingDetail, MappingItem
from rocketspark.protocol.message import sysflags
from rocketspark.store.store import Store
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Answer, Handler, Routes
from rocketspark.transport.request_frames import Parts, reply

_LENGTHS = struct.Struct(">ii")
# (code, ext fields, which it changes) to the reply's code.
Translation = Callable[[int, dict[str, str]], int]


def translated_frame(frame: bytes | memoryview, translate: Translation, more_bytes: int = 0) -> bytes:
    """Return a reply's frame with its header translated. `more_bytes`: how many bytes of body follow the frame."""
    size = _LENGTHS.unpack_from(frame)[1]
    header = msgspec.json.decode(frame[8 : 8 + size])
    ext = header.get("extFields")
    if ext is not None:
        header["code"] = translate(header["code"], ext)
    text = msgspec.json.encode(header)
    total = 4 + len(text) + len(frame) - 8 - size + more_bytes
    frames.check_length(total)
    return b"".join((_LENGTHS.pack(total, len(text)), text, frame[8 + size :]))


def translated(answer: Answer, translate: Translation) -> Answer:
    """Return a handler's answer with its header translated."""
    if isinstance(answer, bytes):
        return translated_frame(answer, translate)
    if isinstance(answer, Parts):
        return Parts(translated_frame(answer.head, translate, answer.size - len(answer.head)), answer.body)
    return answer if answer is None else _later(answer, translate)


async def _later(answer: Coroutine[Any, Any, bytes | Parts | None], translate: Translation) -> bytes | Parts | None:
    found = translated(await answer, translate)
    assert not isinstance(found, Coroutine)
    return found


class _TranslatedPeer:
    """A client's connection whose later replies to one request are translated; else it is that connection."""

    __slots__ = ("_shown", "_translate")

    def __init__(self, peer: Peer, translate: Translation) -> None:
        self._shown = peer
        self._translate = translate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shown, name)

    def __hash__(self) -> int:
        return hash(self._shown)

    def __eq__(self, other: object) -> bool:
        return self._shown is (other._shown if isinstance(other, _TranslatedPeer) else other)

    def send(self, data: bytes) -> None:
        self._shown.send(translated_frame(data, self._translate))

    def answer(self, data: bytes) -> None:
        self._shown.answer(translated_frame(data, self._translate))


def translated_peer(peer: Peer, translate: Translation) -> Peer:
    """Return a peer to hand to a handler for one request: replies that it sends later are translated too."""
    return cast(Peer, _TranslatedPeer(peer, translate))


_PULLED = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)
HOLD_MS_MAX = 60_000
# (inner handler, peer, request, body, mapping): serves a request for a static topic.
Served = Callable[[Handler, Peer, Request[Any], bytes, MappingDetail], Answer]


class LogicalQueues:
    """Serves the requests for logical queues of one broker."""

    def __init__(
        self,
        broker_name: str,
        statics: StaticTopics,
        store: Store,
        offsets: ConsumerOffsets,
        others: OtherBrokers,
        cleaning: MappingCleaning,
    ) -> None:
        self._broker_name = broker_name
        self._statics = statics
        self._store = store
        self._offsets = offsets
        self._others = others
        self.cleaning = cleaning
        self._installed = False

    def begin(self, routes: Routes, forget_sends: Callable[[], None], answer_held: Callable[[], None]) -> None:
        """Serve static topics, from when the first one exists.

        `forget_sends`: called after each change, so that the fast path of sends is set up again; `answer_held`: called
        then to answer held pulls, so that the readers of a queue that moved ask for its route again.
        """

        def changed() -> None:
            if self._statics.table and not self._installed:
                self._installed = True
                self.install(routes)
                self.cleaning.start()
            forget_sends()
            answer_held()

        self._statics.on_change = changed
        if self._statics.table:
            changed()

    async def close(self) -> None:
        """End cleaning, close the connections to other brokers."""
        await self.cleaning.stop()
        await self._others.close()

    def install(self, routes: Routes) -> None:
        """Put this part before the handlers of all requests that name a queue."""
        for code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
            routes.wrap(code, self._before(self._send))
        for code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
            routes.wrap(code, self._before(self._pull), PartPullHeader)
        routes.wrap(RequestCode.QUERY_CONSUMER_OFFSET, self._before(self._query), PartQueryHeader)
        routes.wrap(RequestCode.UPDATE_CONSUMER_OFFSET, self._before(self._update), PartUpdateHeader)
        routes.wrap(RequestCode.GET_MAX_OFFSET, self._before(self._max), PartMaxHeader)
        routes.wrap(RequestCode.GET_MIN_OFFSET, self._before(self._min), PartQueueHeader)
        routes.wrap(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, self._before(self._search), PartSearchHeader)
        routes.wrap(RequestCode.GET_EARLIEST_MSG_STORETIME, self._before(self._earliest), PartQueueHeader)

    def _before(self, serve: Served) -> Callable[[Handler], Handler]:
        table = self._statics.table

        def around(inner: Handler) -> Handler:
            def handle(peer: Peer, request: Request[Any], body: bytes) -> Answer:
                detail = table.get(request.ext.topic)
                if detail is None or getattr(request.ext, "lo", None) is False:
                    return inner(peer, request, body)
                return serve(inner, peer, request, body, detail)

            return handle

        return around

    def _led(self, detail: MappingDetail, queue_id: int) -> list[MappingItem]:
        """Return the parts of a queue that this broker leads. Raises ServerError 501 if another one does."""
        items = detail.hosted_queues.get(queue_id)
        if not items or items[-1].bname != self._broker_name:
            raise ServerError(
                ResponseCode.NOT_LEADER_FOR_QUEUE,
                f"{detail.topic}-{queue_id} is not led by the broker {self._broker_name}: ask for the route again",
            )
        return items

    def _part(self, items: list[MappingItem], logical: int) -> MappingItem:
        part = static_topics.part_of(items, logical)
        if part is None:
            raise ServerError(ResponseCode.SYSTEM_ERROR, "no part of the queue has offsets yet: it is being remapped")
        return part

    def _own(self, item: MappingItem) -> bool:
        return item.bname == self._broker_name

    # -- sends ----------------------------------------------------------------------------------------------------

    def _send(self, inner: Handler, peer: Peer, request: Request[Any], body: bytes, detail: MappingDetail) -> Answer:
        """A send goes to the queue's last part; below 0 the broker picks one of the queues that it leads."""
        h = request.ext
        queue_id = h.queue_id
        if queue_id < 0:
            led = (q for q, items in detail.hosted_queues.items() if items and self._own(items[-1]))
            queue_id = next(led, queue_id)
        leader = self._led(detail, queue_id)[-1]
        # A half message's offset is that of the half messages, by which its end is asked for.
        is_half = bool(h.sys_flag & sysflags.TRANSACTION_PREPARED)

        def to_logical(code: int, ext: dict[str, str]) -> int:
            if "queueOffset" in ext:
                if is_half:
                    ext["queueId"] = str(queue_id)
                    return code
                ext["queueOffset"] = str(leader.to_logical_loosely(int(ext["queueOffset"])))
                ext["queueId"] = str(queue_id)
            return code

        asked = msgspec.structs.replace(request, ext=msgspec.structs.replace(h, queue_id=leader.queue_id))
        return translated(inner(translated_peer(peer, to_logical), asked, body), to_logical)

    # -- pulls ----------------------------------------------------------------------------------------------------

    def _pull(
        self,
        inner: Handler,
        peer: Peer,
        request: Request[PartPullHeader],
        body: bytes,
        detail: MappingDetail,
    ) -> Answer:
        h = request.ext
        items = self._led(detail, h.queue_id)
        part = self._part(items, h.queue_offset)
        sys_flag = h.sys_flag & ~sysflags.PULL_COMMIT_OFFSET
        if h.sys_flag & sysflags.PULL_COMMIT_OFFSET:
            self._commit_own(peer, h, items)
        if part is not items[-1]:
            # Nothing more comes there: the reader goes on at the next part.
            sys_flag &= ~sysflags.PULL_SUSPEND
        count = h.count_max if not part.is_ended else min(h.count_max, part.end_offset - part.start_offset)
        asked = msgspec.structs.replace(
            h,
            queue_id=part.queue_id,
            queue_offset=part.to_physical(h.queue_offset),
            count_max=count,
            sys_flag=sys_flag,
            broker_name=part.bname,
        )
        to_logical = _pull_translation(items, part, asked.queue_offset)
        if not self._own(part):
            return self._pull_elsewhere(request, asked, part, to_logical)
        answer = inner(translated_peer(peer, to_logical), msgspec.structs.replace(request, ext=asked), body)
        if part is items[-1] or answer is None:
            return translated(answer, to_logical)
        return self._until_decided(translated(answer, to_logical), h)

    def _commit_own(self, peer: Peer, h: PullHeader, items: list[MappingItem]) -> None:
        """Take a pull's commit if its part is here; the consumer's own commits follow for every part."""
        part = static_topics.part_of(items, h.commit_offset)
        if part is not None and self._own(part) and h.commit_offset >= part.logic_offset:
            self._offsets.admit(h.group, h.topic, peer.address)
            self._offsets.commit(h.group, h.topic, part.queue_id, part.to_physical(h.commit_offset))

    async def _pull_elsewhere(
        self,
        request: Request[PartPullHeader],
        asked: PartPullHeader,
        part: MappingItem,
        to_logical: Callable[[int, dict[str, str]], int],
    ) -> bytes | Parts | None:
        asked.lo = False
        sent = await self._others.ask(part.bname, RequestCode.PULL_MESSAGE, asked)
        ext = {name: str(value) for name, value in msgspec.json.decode(bytes(sent.ext) or b"{}").items()}
        code = to_logical(sent.code, ext)
        answer = reply(request.opaque, code, ext, sent.body, remark=sent.remark)
        return await self._until_decided(answer, request.ext)

    async def _until_decided(self, answer: Answer, h: PullHeader) -> bytes | Parts | None:
        """Hold the answer "nothing yet" of a part that is not the last one: while the next one's start is undecided."""
        found = await answer if isinstance(answer, Coroutine) else answer
        if found is not None and h.sys_flag & sysflags.PULL_SUSPEND and h.suspend_ms > 0:
            head = found.head if isinstance(found, Parts) else found
            if head[8:].startswith(b'{"code":%d,' % ResponseCode.PULL_NOT_FOUND):
                await self._statics.changed(min(h.suspend_ms, HOLD_MS_MAX) / 1000)
        return found

    # -- committed offsets ----------------------------------------------------------------------------------------

    def _query(
        self,
        inner: Handler,
        peer: Peer,
        request: Request[PartQueryHeader],
        body: bytes,
        detail: MappingDetail,
    ) -> Answer:
        h = request.ext
        items = self._led(detail, h.queue_id)
        if len(items) == 1 and items[0].logic_offset == 0:
            asked = msgspec.structs.replace(h, queue_id=items[0].queue_id)
            return translated(
                inner(peer, msgspec.structs.replace(request, ext=asked), body), _offset_translation(items[0])
            )
        return self._query_parts(request, items)

    async def _query_parts(self, request: Request[PartQueryHeader], items: list[MappingItem]) -> bytes:
        """The latest part that a group committed to tells where it is."""
        h = request.ext
        for part in reversed(static_topics.decided(items)):
            if self._own(part):
                found = self._offsets.get(h.group, h.topic, part.queue_id)
            else:
                asked = msgspec.structs.replace(
                    h, queue_id=part.queue_id, broker_name=part.bname, lo=False, zero_if_not_found=False
                )
                sent = await self._others.ask(part.bname, RequestCode.QUERY_CONSUMER_OFFSET, asked)
                sent.raise_for_code("committed offset", ResponseCode.QUERY_NOT_FOUND)
                found = sent.header(OffsetReply).offset if sent.code == 0 else None
            if found is not None:
                return reply(request.opaque, header=OffsetReply(offset=part.to_logical(found)))
        raise ServerError(ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first")

    def _update(
        self,
        inner: Handler,
        peer: Peer,
        request: Request[PartUpdateHeader],
        body: bytes,
        detail: MappingDetail,
    ) -> Answer:
        h = request.ext
        part = self._part(self._led(detail, h.queue_id), h.commit_offset)
        asked = msgspec.structs.replace(
            h,
            queue_id=part.queue_id,
            # Below the first part's start nothing is: the group stands at it.
            commit_offset=max(part.to_physical(h.commit_offset), 0) if h.commit_offset >= 0 else h.commit_offset,
            broker_name=part.bname,
            lo=False,
        )
        if self._own(part):
            return inner(peer, msgspec.structs.replace(request, ext=asked), body)
        return self._forward(request, part, asked)

    async def _forward(self, request: Request[Any], part: MappingItem, asked: PartUpdateHeader) -> bytes:
        sent = await self._others.ask(part.bname, request.code, asked)
        return reply(request.opaque, sent.code, remark=sent.remark)

    # -- bounds ---------------------------------------------------------------------------------------------------

    async def _bound(self, topic: str, part: MappingItem, code: int) -> int:
        """Return the first (GET_MIN_OFFSET) or next offset (GET_MAX_OFFSET) of a part's queue."""
        if self._own(part):
            return self._store.queue_range(topic, part.queue_id)[code == RequestCode.GET_MAX_OFFSET]
        asked = PartQueueHeader(topic=topic, queue_id=part.queue_id, broker_name=part.bname, lo=False)
        sent = await self._others.ask(part.bname, code, asked)
        return sent.raise_for_code("bounds of a queue").header(OffsetReply).offset

    async def _max(
        self, inner: Handler, peer: Peer, request: Request[PartMaxHeader], body: bytes, detail: MappingDetail
    ) -> bytes:
        h = request.ext
        part = self._part(self._led(detail, h.queue_id), (1 << 63) - 1)
        high = await self._bound(h.topic, part, RequestCode.GET_MAX_OFFSET)
        return reply(request.opaque, header=OffsetReply(offset=part.to_logical(high)))

    async def _min(
        self, inner: Handler, peer: Peer, request: Request[PartQueueHeader], body: bytes, detail: MappingDetail
    ) -> bytes:
        h = request.ext
        part = self._part(self._led(detail, h.queue_id), 0)
        low = await self._bound(h.topic, part, RequestCode.GET_MIN_OFFSET)
        return reply(request.opaque, header=OffsetReply(offset=part.to_logical_loosely(low)))

    async def _store_time(self, topic: str, part: MappingItem) -> int:
        """Return the store time of a part's first message in ms, -1 without one."""
        if self._own(part):
            low, _ = self._store.queue_range(topic, part.queue_id)
            return self._store.store_time_at(topic, part.queue_id, low)
        asked = PartQueueHeader(topic=topic, queue_id=part.queue_id, broker_name=part.bname, lo=False)
        sent = await self._others.ask(part.bname, RequestCode.GET_EARLIEST_MSG_STORETIME, asked)
        return sent.raise_for_code("first store time").header(TimeReply).time_ms

    async def _earliest(
        self, inner: Handler, peer: Peer, request: Request[PartQueueHeader], body: bytes, detail: MappingDetail
    ) -> bytes:
        h = request.ext
        for part in static_topics.decided(self._led(detail, h.queue_id)):
            time_ms = await self._store_time(h.topic, part)
            if time_ms > 0:
                return reply(request.opaque, header=TimeReply(time_ms=time_ms))
        return reply(request.opaque, header=TimeReply(time_ms=-1))

    async def _search(
        self, inner: Handler, peer: Peer, request: Request[PartSearchHeader], body: bytes, detail: MappingDetail
    ) -> bytes:
        h = request.ext
        items = self._led(detail, h.queue_id)
        self._part(items, 0)
        parts = static_topics.decided(items)
        offset = -1
        if h.boundary.upper() == "UPPER":
            # The last part that begins before the time holds the last message before it.
            for part in reversed(parts):
                begin_ms = await self._store_time(h.topic, part)
                if part is parts[0] or 0 < begin_ms <= h.time_ms:
                    offset = part.to_logical(await self._search_part(h, part))
                    break
        else:
            for part in parts:
                found = await self._search_part(h, part)
                high = await self._bound(h.topic, part, RequestCode.GET_MAX_OFFSET)
                if found < high or part is parts[-1]:
                    offset = part.to_logical(found)
                    break
        return reply(request.opaque, header=OffsetReply(offset=offset))

    async def _search_part(self, h: PartSearchHeader, part: MappingItem) -> int:
        if self._own(part):
            return self._store.offset_at_time(h.topic, part.queue_id, h.time_ms, h.boundary.upper() == "UPPER")
        asked = msgspec.structs.replace(h, queue_id=part.queue_id, broker_name=part.bname, lo=False)
        sent = await self._others.ask(part.bname, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, asked)
        return max(sent.raise_for_code("offset at a time").header(OffsetReply).offset, 0)


def _pull_translation(items: list[MappingItem], part: MappingItem, asked: int) -> Callable[[int, dict[str, str]], int]:
    """Return what turns the code and the ext fields of a part's reply into those of the logical queue."""

    def to_logical(code: int, ext: dict[str, str]) -> int:
        if code not in _PULLED or "nextBeginOffset" not in ext:
            return code
        found = static_topics.logical_reply(
            items,
            part,
            asked,
            code=code,
            next_offset=int(ext["nextBeginOffset"]),
            min_offset=int(ext["minOffset"]),
            max_offset=int(ext["maxOffset"]),
        )
        ext["nextBeginOffset"], ext["offsetDelta"] = str(found.next_offset), str(found.delta)
        ext["minOffset"], ext["maxOffset"] = str(found.min_offset), str(found.max_offset)
        return found.code

    return to_logical


def _offset_translation(part: MappingItem) -> Callable[[int, dict[str, str]], int]:
    def to_logical(code: int, ext: dict[str, str]) -> int:
        if code == ResponseCode.SUCCESS and "offset" in ext:
            ext["offset"] = str(part.to_logical(int(ext["offset"])))
        return code

    return to_logical
