"""PULL_MESSAGE: read a queue, or hold the request until something arrives."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from rocketspark import machine
from rocketspark.broker.background_thread import BackgroundThread
from rocketspark.broker.consumers.cold_reads import ColdReads
from rocketspark.broker.consumers.consumer_offsets import is_of_before
from rocketspark.broker.consumers.long_polling import NO_QUEUE, HeldRequest, LongPolling, request_weight
from rocketspark.broker.consumers.message_filters import TEXT_KEPT_MAX, PullFilter, PullSubscriptions, ToCompile
from rocketspark.broker.consumers.subscription_groups import check_consumes
from rocketspark.broker.parts import StoreReads, Tables
from rocketspark.broker.replication.role import BrokerRole
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.storage.log_memory import LogMemory
from rocketspark.broker.storage.tier_reads import ColdMiss
from rocketspark.errors import ServerError
from rocketspark.model.route import MASTER_ID, PERM_READ
from rocketspark.protocol import frames
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.frames import VERSION
from rocketspark.protocol.headers import PullHeader, Request
from rocketspark.protocol.json import java_json
from rocketspark.protocol.json.bodies import ClientCheck
from rocketspark.protocol.message import sysflags
from rocketspark.store.get_message import NOTHING_SO_FAR, GetMessageResult, GetStatus, SoFar
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Answer, Routes
from rocketspark.transport.request_frames import Parts, reply

_LENGTHS = struct.Struct(">ii")
_REPLY = (
    b'{"code":%d,"extFields":{"suggestWhichBrokerId":"%d","groupSysFlag":"0","nextBeginOffset":"%d","maxOffset":"%d",'
    b'"minOffset":"%d","topicSysFlag":"%d"},"flag":1,"language":"JAVA","opaque":%d,"remark":"%b",'
    b'"serializeTypeCurrentRPC":"JSON","version":' + str(VERSION).encode() + b"}"
)

_OUTCOME: dict[GetStatus, tuple[int, bytes]] = {
    GetStatus.FOUND: (ResponseCode.SUCCESS, b"FOUND"),
    GetStatus.NO_MATCHED: (ResponseCode.PULL_RETRY_IMMEDIATELY, b"NO_MATCHED_MESSAGE"),
    # RocketMQ silently skips them (RETRY_IMMEDIATELY): a reader that counts messages could not notice.
    GetStatus.REMOVED: (ResponseCode.PULL_OFFSET_MOVED, b"MESSAGE_WAS_REMOVING"),
    GetStatus.AT_END: (ResponseCode.PULL_NOT_FOUND, b"OFFSET_OVERFLOW_ONE"),
    GetStatus.OFFSET_TOO_BIG: (ResponseCode.PULL_OFFSET_MOVED, b"OFFSET_OVERFLOW_BADLY"),
    GetStatus.OFFSET_TOO_SMALL: (ResponseCode.PULL_OFFSET_MOVED, b"OFFSET_TOO_SMALL"),
    GetStatus.EMPTY: (ResponseCode.PULL_NOT_FOUND, b"NO_MESSAGE_IN_QUEUE"),
    GetStatus.NO_QUEUE: (ResponseCode.PULL_NOT_FOUND, b"NO_MESSAGE_IN_QUEUE"),
}

# The limit of one bulk pull: two fit a connection's write buffer.
BULK_COUNT_MAX = 16_384
BULK_BYTES_MAX = 2 << 20
# Records of a bulk pull that lie together in stretches of this size, on average, are not copied.
PART_BYTES_MIN = 16 << 10
HOLD_MS_MAX = 60_000
_NOTHING_YET = (GetStatus.AT_END, GetStatus.EMPTY, GetStatus.NO_QUEUE)


@dataclass(slots=True)
class _HeldPull:
    """A pull that waits: `at` is the offset from which on nothing was looked at yet.

    `is_cold`: it has messages, which its group may not read before the pull's time is over.
    """

    peer: Peer
    request: Request[PullHeader]
    codes: frozenset[int] | None
    accepts: PullFilter | None
    topic_sys_flag: int
    at: int
    is_cold: bool
    waiter: HeldRequest = field(init=False)


class PullHandler:
    """Serves pulls."""

    def __init__(
        self,
        settings: BrokerSettings,
        reads: StoreReads,
        tables: Tables,
        long_polling: LongPolling,
        beside: BackgroundThread,
        role: BrokerRole,
        cold_reads: ColdReads,
    ) -> None:
        self._settings = settings
        self._store = reads.store
        self._stats = reads.stats
        self._long_scans = reads.long_scans
        self._tiering = reads.tiering
        self._role = role
        self._cold_reads = cold_reads
        memory = LogMemory(settings, reads.store)
        self._is_far_behind, self._is_cold = memory.is_far_behind, memory.is_cold
        self._topics = tables.topics
        self._groups = tables.groups
        self._offsets = tables.offsets
        self._clients = tables.clients
        self._long_polling = long_polling
        self._subscriptions = PullSubscriptions(settings, tables.clients, beside)
        self._filter_of, self._compiler = self._subscriptions.filter_of, self._subscriptions.compiler
        self._filter_turn = self._compiler.turn
        # Held pulls with something for a connection that does not read.
        self._stalled: dict[Peer, dict[HeldRequest, None]] = {}

    def routes(self, routes: Routes) -> None:
        """Add what this handler serves."""
        routes.add(RequestCode.PULL_MESSAGE, self.pull)
        routes.add(RequestCode.LITE_PULL_MESSAGE, self.pull)
        routes.add(RequestCode.CHECK_CLIENT_CONFIG, self.check_client)

    def pull(self, peer: Peer, request: Request[PullHeader], body: bytes) -> Answer:
        """PULL_MESSAGE (11), LITE_PULL_MESSAGE (361): return messages from an offset on, or wait for some."""
        h = request.ext
        topic_sys_flag = self._check(peer, h)
        try:
            codes, accepts = self._filter_of(h)
        except ToCompile as e:
            return self._compile_first(peer, request, body, str(e))
        reset_to = self._reset_to(peer, h, h.queue_offset)
        if reset_to is not None:
            return self._moved(request, reset_to, topic_sys_flag)
        if h.sys_flag & sysflags.PULL_COMMIT_OFFSET and h.commit_offset >= 0:
            self._commit(peer, h)
        if self._cold_reads.is_over(h.group) and self._is_cold(h.topic, h.queue_id, h.queue_offset):
            self._hold(peer, request, codes, accepts, topic_sys_flag, until_s=self._cold_reads.left_s)
            return None
        in_own_turn = accepts is None or not self._filter_turn.is_over()
        try:
            read = self._read(h, h.queue_offset, codes, accepts, in_own_turn=in_own_turn)
        except ColdMiss as e:
            return self._load_first(peer, request, body, e)
        if accepts is not None:
            # Some ms where hundreds of records were looked at.
            peer.rest()
            if accepts.cut:
                return self._sift_on(peer, request, read, codes, accepts, topic_sys_flag)
        self._offsets.note_pull(h.group, h.topic, h.queue_id, read.next_offset)
        if (
            not read.count
            and read.status in _NOTHING_YET
            and h.queue_offset == read.next_offset
            and h.sys_flag & sysflags.PULL_SUSPEND
            and h.suspend_ms > 0
            and not self._role.has_live_master
        ):
            self._hold(peer, request, codes, accepts, topic_sys_flag)
            return None
        if h.bulk and read.count and read.size >= PART_BYTES_MIN * len(read.records):
            # From the log's pages right into the socket: a copy of a MiB in between costs as much as all the rest.
            return Parts(self._head(request, read, topic_sys_flag), read.records)
        return self._answer(request, read, topic_sys_flag)

    def _commit(self, peer: Peer, h: PullHeader) -> None:
        """Take the offset that a pull commits, but for one of a topic's earlier life."""
        where = h.group, h.topic, h.queue_id
        if not is_of_before(self._store, *where, h.commit_offset) and not self._offsets.is_unheard(
            *where, h.commit_offset
        ):
            self._offsets.admit(h.group, h.topic, peer.address)
            self._offsets.commit(*where, h.commit_offset)

    async def _compile_first(
        self, peer: Peer, request: Request[PullHeader], body: bytes, expression: str
    ) -> bytes | Parts | None:
        while True:
            await self._compiler.compile(expression)
            if not peer.is_open:
                return None
            try:
                answer = self.pull(peer, request, body)
            except ToCompile:
                continue
            return answer if answer is None or isinstance(answer, bytes | Parts) else await answer

    async def _load_first(
        self, peer: Peer, request: Request[PullHeader], body: bytes, miss: ColdMiss
    ) -> bytes | Parts | None:
        assert self._tiering is not None
        await self._tiering.loaded(miss)
        if not peer.is_open:
            return None
        answer = self.pull(peer, request, body)
        return answer if answer is None or isinstance(answer, bytes | Parts) else await answer

    async def _sift_on(
        self,
        peer: Peer,
        request: Request[PullHeader],
        read: GetMessageResult,
        codes: frozenset[int] | None,
        sieve: PullFilter,
        topic_sys_flag: int,
    ) -> bytes | None:
        """Continue a read that its filter cut, in later turns of the loop; return the answer."""
        h = request.ext
        # Copies, as the log may lose its oldest file before this is answered.
        records = [bytes(r) for r in read.records]
        count, size, at = read.count, read.size, read.next_offset
        while sieve.cut:
            if sieve.awaited is not None:
                await asyncio.wait([sieve.awaited])
            await self._long_scans.next()
            if not peer.is_open:
                return None
            try:
                read = self._read(h, at, codes, sieve, SoFar(at - h.queue_offset, count, size))
            except ColdMiss:
                break
            if read.status not in (GetStatus.FOUND, GetStatus.NO_MATCHED):
                # The next pull's answer tells the state of the queue.
                break
            records += [bytes(r) for r in read.records]
            count, size, at = count + read.count, size + read.size, read.next_offset
        views = [memoryview(r) for r in records]
        low, high = self._store.readable_range(h.topic, h.queue_id)
        whole = GetMessageResult(GetStatus.FOUND if count else GetStatus.NO_MATCHED, views, count, size, at, low, high)
        self._offsets.note_pull(h.group, h.topic, h.queue_id, at)
        return self._answer(request, whole, topic_sys_flag)

    def _weight(
        self, peer: Peer, request: Request[PullHeader], codes: frozenset[int] | None, accepts: PullFilter | None
    ) -> int:
        """Return what holding a pull costs. Raises ServerError 2 if too many are held."""
        weight = request_weight(request, codes, request.ext.subscription if accepts is not None else None)
        if not self._long_polling.has_room(peer, weight):
            self._long_polling.refused += 1
            raise ServerError(
                ResponseCode.SYSTEM_BUSY,
                "too many pulls are held for this connection, or in all: pull less side by side",
            )
        return weight

    def _hold(
        self,
        peer: Peer,
        request: Request[PullHeader],
        codes: frozenset[int] | None,
        accepts: PullFilter | None,
        topic_sys_flag: int,
        *,
        until_s: float | None = None,
    ) -> None:
        """Hold a pull; answer it once there is a message, or when its time is over.

        `until_s`: it has messages, which its group may not read for so many seconds.
        """
        h = request.ext
        weight = self._weight(peer, request, codes, accepts)
        if h.subscription is not None and len(h.subscription) > TEXT_KEPT_MAX:
            # Its tags are in `codes`, or it is compiled.
            h.subscription = ""
        held = _HeldPull(peer, request, codes, accepts, topic_sys_flag, h.queue_offset, until_s is not None)
        key, hold_ms = (h.topic, h.queue_id), float(min(h.suspend_ms, HOLD_MS_MAX))
        if until_s is not None:
            key, hold_ms = NO_QUEUE, until_s * 1000
        elif not self._settings.long_polling:
            # Looked at once more, and what comes does not end it (rule: PullRequestHoldService, 5.x).
            key, hold_ms = NO_QUEUE, self._settings.short_polling_ms
        retry = partial(self._retry, held)
        held.waiter = self._long_polling.wait(key, hold_ms / 1000, retry, owner=peer, weight=weight)

    def _retry(self, held: _HeldPull, final: bool) -> bool:
        """Read once more for a held pull; return whether it is over, which it is if this is the `final` time."""
        peer = held.peer
        if not peer.is_open:
            return True
        try:
            if not peer.is_writable:
                return self._put_off(held, final)
            reset_to = self._reset_to(peer, held.request.ext, held.at)
            if reset_to is not None:
                peer.send(self._moved(held.request, reset_to, held.topic_sys_flag))
                return True
            if held.is_cold and not final:
                return False
            return self._look(held, final)
        except Exception as e:
            failure = peer.failure(held.request, e)
            if failure is not None:
                peer.send(failure)
            return True

    def _put_off(self, held: _HeldPull, final: bool) -> bool:
        """Give nothing large to a client that does not read: it asks again once it does."""
        h = held.request.ext
        if final:
            low, high = self._store.readable_range(h.topic, h.queue_id)
            nothing = GetMessageResult(GetStatus.AT_END, [], 0, 0, h.queue_offset, low, high)
            held.peer.send(self._answer(held.request, nothing, held.topic_sys_flag))
        else:
            self._stall(held.peer, held.waiter)
        return final

    def _look(self, held: _HeldPull, final: bool) -> bool:
        h, accepts = held.request.ext, held.accepts
        if held.is_cold and self._cold_reads.is_over(h.group):
            # Others were first in the new interval.
            h.count_max = 1
        found = self._read(h, held.at, held.codes, accepts)
        if found.status is GetStatus.NO_MATCHED and not final:
            # Nothing for this consumer among what came: it goes on waiting behind it.
            held.at = found.next_offset
            if accepts is not None and accepts.cut and accepts.awaited is not None:
                accepts.awaited.add_done_callback(lambda done: self._long_polling.again(held.waiter))
            elif held.at < found.max_offset:
                self._long_polling.again(held.waiter)
            return False
        if found.status in _NOTHING_YET and not final:
            return False
        if final and found.status is GetStatus.AT_END and held.at != h.queue_offset:
            found = msgspec.structs.replace(found, status=GetStatus.NO_MATCHED)
        if found.count:
            self._offsets.note_pull(h.group, h.topic, h.queue_id, found.next_offset)
        held.peer.send(self._answer(held.request, found, held.topic_sys_flag))
        return True

    def _stall(self, peer: Peer, waiter: HeldRequest) -> None:
        """Set a held pull aside while the client does not read its replies; it is retried once the client does."""
        stalled = self._stalled.get(peer)
        if stalled is None:
            stalled = self._stalled[peer] = {}
            peer.when_writable(lambda: self._go_on(peer))
        stalled[waiter] = None

    def _go_on(self, peer: Peer) -> None:
        for waiter in self._stalled.pop(peer, {}):
            self._long_polling.again(waiter)

    def _read(
        self,
        h: PullHeader,
        offset: int,
        codes: frozenset[int] | None,
        accepts: PullFilter | None,
        so_far: SoFar = NOTHING_SO_FAR,
        *,
        in_own_turn: bool = True,
    ) -> GetMessageResult:
        if h.bulk:
            count = min(max(h.count_max, 1), BULK_COUNT_MAX)
            size = min(h.bytes_max or BULK_BYTES_MAX, BULK_BYTES_MAX)
        else:
            count, most = h.count_max, self._settings.pull_count_max
            if not 0 < count <= most:
                count = min(max(count, 1), most)
            size = self._settings.pull_bytes_max
            if h.bytes_max:
                size = min(h.bytes_max, size)
            if self._is_far_behind(h.topic, h.queue_id, offset):
                count = min(count, self._settings.disk_pull_count_max)
                size = min(size, self._settings.disk_pull_bytes_max)
        began = machine.perf_counter()
        if accepts is not None:
            accepts.begin(in_own_turn=in_own_turn)
        tiering = self._tiering
        if tiering is not None and tiering.is_preferred(h.topic, h.queue_id, offset):
            read = tiering.read(h.topic, h.queue_id, offset, count, size, codes, accepts, so_far)
        else:
            read = self._store.read(h.topic, h.queue_id, offset, count, size, codes, accepts, so_far)
        if read.status is GetStatus.OFFSET_TOO_SMALL and tiering is not None:
            if tiering.has(h.topic, h.queue_id, offset):
                read = tiering.read(h.topic, h.queue_id, offset, count, size, codes, accepts, so_far)
            else:
                low = self._store.queue_range(h.topic, h.queue_id)[0]
                read = msgspec.structs.replace(read, next_offset=low, min_offset=low)
        if read.status is GetStatus.OFFSET_TOO_BIG and self._is_of_another_store(h):
            read = msgspec.structs.replace(read, next_offset=read.min_offset)
        if read.count:
            took_ms = (machine.perf_counter() - began) * 1000
            self._stats.pulled(h.group, h.topic, h.queue_id, read.count, read.size, took_ms)
            if self._settings.cold_flow_control and self._is_cold(h.topic, h.queue_id, offset):
                self._cold_reads.add(h.group, read.size)
        else:
            self._stats.missed()
        return read

    def _low(self, h: PullHeader, low: int) -> int:
        """Return the oldest offset that a reply tells: that of the second tier if there is one."""
        return low if self._tiering is None else self._store.queue_range(h.topic, h.queue_id)[0]

    def _is_of_another_store(self, h: PullHeader) -> bool:
        """Tell whether a consumer that reads on counts messages of a store that was here before: it is sent to the
        first message of this one, where RocketMQ's passes over all that came before its pull.

        A group that was given messages of this store counts these; of a broadcasting one each member by itself.
        """
        if not (h.sys_flag & sysflags.PULL_SUSPEND and self._store.began_empty and self._role.is_master):
            return False
        group = self._clients.consumers.get(h.group)
        if group is not None and group.message_model == "BROADCASTING":
            return True
        return not self._offsets.pulled(h.group, h.topic, h.queue_id)

    def _check(self, peer: Peer, h: PullHeader) -> int:
        if not self._settings.broker_permission & PERM_READ:
            raise ServerError(
                ResponseCode.NO_PERMISSION, f"the broker[{self._settings.broker_name}] pulling message is forbidden"
            )
        check_consumes(self._groups.get(h.group, by=peer.address), h.group)
        config = self._topics.get(h.topic)
        if config is None:
            raise ServerError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{h.topic}] not exist, apply first please!")
        if self._groups.forbidden and not self._groups.readable(h.group, h.topic):
            raise ServerError(
                ResponseCode.NO_PERMISSION, f"the consumer group[{h.group}] is forbidden for topic[{h.topic}]"
            )
        if not config.perm & PERM_READ:
            raise ServerError(ResponseCode.NO_PERMISSION, f"the topic[{h.topic}] pulling message is forbidden")
        if not 0 <= h.queue_id < config.read_queue_nums:
            raise ServerError(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{h.queue_id}] is illegal, topic:[{h.topic}] topicConfig.readQueueNums:"
                f"[{config.read_queue_nums}]",
            )
        return config.topic_sys_flag

    def check_client(self, peer: Peer, request: Request[Any], body: bytes) -> Answer:
        """CHECK_CLIENT_CONFIG (46): a consumer asks whether its filter will work before it starts."""
        asked = java_json.decode_request(body, ClientCheck).subscription_data
        if asked is not None and (asked.expression_type or "TAG") != "TAG":
            try:
                self._subscriptions.property_filter(asked.sub_string, asked.expression_type or "")
            except ToCompile as e:
                return self._check_compiled(request, str(e))
        return reply(request.opaque)

    async def _check_compiled(self, request: Request[Any], expression: str) -> bytes:
        if mistake := await self._compiler.compile(expression):
            raise ServerError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, mistake)
        return reply(request.opaque)

    def _reset_to(self, peer: Peer, h: PullHeader, at: int) -> int | None:
        """Return where a consumer is to go on instead; who reads ranges in bulk, and waits for none, means the offsets
        that it names.

        One that begins where an offset was set by hand follows that, and commits its own from there on.
        """
        if h.bulk and not h.sys_flag & sysflags.PULL_SUSPEND:
            self._offsets.went_to(h.group, h.topic, h.queue_id, at)
            return None
        if not self._offsets.anew:
            return None
        # Where a master serves it knows whom it told.
        follows = bool(h.sys_flag & sysflags.PULL_SUSPEND) and not self._role.has_live_master
        member = partial(self._clients.member_id, h.group, peer)
        return self._offsets.sent_to(h.group, h.topic, h.queue_id, at, follows=follows, member=member)

    # -- where to pull from ---------------------------------------------------------------------------------------

    def _placed(self, h: PullHeader, read: GetMessageResult, code: int) -> tuple[int, int, int]:
        """Return code, suggested broker id and next offset of a reply where slaves serve too.

        Rule: composeResponseHeader, 5.5.0.
        """
        role, suggested, next_offset = self._role, MASTER_ID, read.next_offset
        group = self._groups.table.get(h.group)
        far_behind = False
        if self._settings.slave_read and group is not None:
            far_behind = self._is_far_behind(h.topic, h.queue_id, max(next_offset - 1, h.queue_offset))
            suggested = group.which_broker_when_consume_slowly if far_behind else group.broker_id
        if not role.is_master:
            corrected = not read.count and read.status not in (GetStatus.NO_MATCHED, GetStatus.REMOVED)
            if corrected and not self._settings.offset_check_in_slave:
                # A slave may be behind: it moves no consumer.
                next_offset = h.queue_offset
                if code == ResponseCode.PULL_OFFSET_MOVED:
                    code = ResponseCode.PULL_RETRY_IMMEDIATELY
                    suggested = group.broker_id if group is not None else MASTER_ID
            if not far_behind and role.has_live_master:
                suggested = MASTER_ID
                if code != ResponseCode.SUCCESS:
                    code = ResponseCode.PULL_RETRY_IMMEDIATELY
        return code, suggested, next_offset

    # -- replies --------------------------------------------------------------------------------------------------

    def _moved(self, request: Request[PullHeader], offset: int, topic_sys_flag: int) -> bytes:
        """Return the one answer that sends a consumer to an offset that an operator set."""
        low, high = self._store.readable_range(request.ext.topic, request.ext.queue_id)
        header = _REPLY % (
            ResponseCode.PULL_OFFSET_MOVED,
            MASTER_ID,
            offset,
            high,
            low,
            topic_sys_flag,
            request.opaque,
            b"OFFSET_RESET",
        )
        return _LENGTHS.pack(4 + len(header), len(header)) + header

    def _answer(self, request: Request[PullHeader], read: GetMessageResult, topic_sys_flag: int) -> bytes:
        return b"".join((self._head(request, read, topic_sys_flag), *read.records))

    def _head(self, request: Request[PullHeader], read: GetMessageResult, topic_sys_flag: int) -> bytes:
        """Return a reply's frame without its body."""
        code, remark = 0, b"FOUND"
        if not read.count:
            code, remark = _OUTCOME[read.status]
            if code == ResponseCode.PULL_NOT_FOUND and request.ext.queue_offset != read.next_offset:
                # An empty queue that is asked beyond its start (rule: PullMessageProcessor, 5.x).
                code = ResponseCode.PULL_OFFSET_MOVED
        suggested, next_offset = MASTER_ID, read.next_offset
        if self._settings.slave_read or not self._role.is_master:
            code, suggested, next_offset = self._placed(request.ext, read, code)
        header = _REPLY % (
            code,
            suggested,
            next_offset,
            read.max_offset,
            self._low(request.ext, read.min_offset),
            topic_sys_flag,
            request.opaque,
            remark,
        )
        total = 4 + len(header) + read.size
        if total > frames.FRAME_BYTES_MAX:
            frames.check_length(total)
        return _LENGTHS.pack(total, len(header)) + header
