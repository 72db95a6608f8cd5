"""PULL_MESSAGE: read a queue, or hold the request until something arrives."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from time import perf_counter
from typing import Any

import msgspec

from rocketspark.broker.arrivals import Arrivals
from rocketspark.broker.clients import Clients
from rocketspark.broker.groups import Groups
from rocketspark.broker.offsets import ConsumerOffsets
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.stats import Stats
from rocketspark.broker.topics import Topics
from rocketspark.errors import FilterIllegal, ServerError
from rocketspark.filters import sql92
from rocketspark.model import Subscription, subscribe
from rocketspark.model.route import PERM_READ
from rocketspark.protocol import frames, java_json, record, sysflags
from rocketspark.protocol.bodies import ClientCheck
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.frames import VERSION
from rocketspark.protocol.headers import PullHeader, Request
from rocketspark.store.reading import Found, Read
from rocketspark.store.store import Store
from rocketspark.transport.messages import Parts, reply
from rocketspark.transport.peer import Peer
from rocketspark.transport.routes import Routes

Accepts = Callable[[memoryview], bool]
_LENGTHS = struct.Struct(">ii")
_REPLY = (
    b'{"code":%d,"extFields":{"suggestWhichBrokerId":"0","groupSysFlag":"0","nextBeginOffset":"%d","maxOffset":"%d",'
    b'"minOffset":"%d","topicSysFlag":"%d"},"flag":1,"language":"JAVA","opaque":%d,"remark":"%b",'
    b'"serializeTypeCurrentRPC":"JSON","version":' + str(VERSION).encode() + b"}"
)

_OUTCOME: dict[Found, tuple[int, bytes]] = {
    Found.FOUND: (ResponseCode.SUCCESS, b"FOUND"),
    Found.NO_MATCHED: (ResponseCode.PULL_RETRY_IMMEDIATELY, b"NO_MATCHED_MESSAGE"),
    Found.AT_END: (ResponseCode.PULL_NOT_FOUND, b"OFFSET_OVERFLOW_ONE"),
    Found.OFFSET_TOO_BIG: (ResponseCode.PULL_OFFSET_MOVED, b"OFFSET_OVERFLOW_BADLY"),
    Found.OFFSET_TOO_SMALL: (ResponseCode.PULL_OFFSET_MOVED, b"OFFSET_TOO_SMALL"),
    Found.EMPTY: (ResponseCode.PULL_NOT_FOUND, b"NO_MESSAGE_IN_QUEUE"),
    Found.NO_QUEUE: (ResponseCode.PULL_NOT_FOUND, b"NO_MESSAGE_IN_QUEUE"),
}

# What one bulk pull may take at most: two fit a connection's write buffer.
BULK_COUNT_MAX = 16_384
BULK_BYTES_MAX = 2 << 20
# Records of a bulk pull that lie together in stretches of this size, on average, are not copied.
PART_BYTES_MIN = 16 << 10
HOLD_MS_MAX = 60_000
# Subscriptions that requests bring are kept parsed, unless their text is longer.
TEXT_KEPT_MAX = 1024
_NOTHING_YET = (Found.AT_END, Found.EMPTY, Found.NO_QUEUE)


class PullHandler:
    """Reads for consumers."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: Store,
        topics: Topics,
        groups: Groups,
        clients: Clients,
        offsets: ConsumerOffsets,
        arrivals: Arrivals,
        stats: Stats,
    ) -> None:
        self._settings = settings
        self._store = store
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._offsets = offsets
        self._arrivals = arrivals
        self._stats = stats

    def routes(self, routes: Routes) -> None:
        """Add what this handler serves."""
        routes.add(RequestCode.PULL_MESSAGE, self.pull)
        routes.add(RequestCode.LITE_PULL_MESSAGE, self.pull)
        routes.add(RequestCode.CHECK_CLIENT_CONFIG, self.check_client)

    def pull(self, peer: Peer, request: Request[PullHeader], body: bytes) -> bytes | Parts | None:
        """PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361); outcomes: wire.md 9.4."""
        h = request.ext
        topic_sys_flag = self._check(h)
        codes, accepts = self._filter(h)
        reset_to = self._offsets.take_reset(h.group, h.topic, h.queue_id)
        if reset_to is not None:
            return self._moved(request, reset_to, topic_sys_flag)
        if h.sys_flag & sysflags.PULL_COMMIT_OFFSET:
            self._offsets.commit(h.group, h.topic, h.queue_id, h.commit_offset)
        read = self._read(h, h.queue_offset, codes, accepts)
        if accepts is not None:
            # Some ms where hundreds of records were looked at.
            peer.rest()
        if (
            not read.count
            and read.status in _NOTHING_YET
            and h.queue_offset == read.next_offset
            and h.sys_flag & sysflags.PULL_SUSPEND
            and h.suspend_ms > 0
            and self._settings.long_polling
        ):
            self._hold(peer, request, codes, accepts, topic_sys_flag)
            return None
        self._offsets.note_pull(h.group, h.topic, h.queue_id, read.next_offset)
        if h.bulk and read.count and read.size >= PART_BYTES_MIN * len(read.records):
            # From the log's pages right into the socket: a copy of a MiB in between costs as much as all the rest.
            return Parts(self._head(request, read, topic_sys_flag), read.records)
        return self._answer(request, read, topic_sys_flag)

    def _hold(
        self,
        peer: Peer,
        request: Request[PullHeader],
        codes: frozenset[int] | None,
        accepts: Accepts | None,
        topic_sys_flag: int,
    ) -> None:
        """Answer once there is something, or when the time is over."""
        h = request.ext
        at = h.queue_offset

        def retry(final: bool) -> bool:
            nonlocal at
            if not peer.is_open:
                return True
            reset_to = self._offsets.take_reset(h.group, h.topic, h.queue_id)
            if reset_to is not None:
                peer.send(self._moved(request, reset_to, topic_sys_flag))
                return True
            found = self._read(h, at, codes, accepts)
            if found.status is Found.NO_MATCHED and not final:
                # Nothing for this consumer among what came: it goes on waiting behind it.
                at = found.next_offset
                return False
            if found.status in _NOTHING_YET and not final:
                return False
            if final and found.status is Found.AT_END and at != h.queue_offset:
                found = msgspec.structs.replace(found, status=Found.NO_MATCHED)
            peer.send(self._answer(request, found, topic_sys_flag))
            return True

        self._arrivals.wait((h.topic, h.queue_id), min(h.suspend_ms, HOLD_MS_MAX) / 1000, retry)

    def _read(self, h: PullHeader, offset: int, codes: frozenset[int] | None, accepts: Accepts | None) -> Read:
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
        began = perf_counter()
        read = self._store.read(h.topic, h.queue_id, offset, count, size, codes, accepts)
        if read.count:
            took_ms = (perf_counter() - began) * 1000
            self._stats.pulled(h.group, h.topic, h.queue_id, read.count, read.size, took_ms)
        else:
            self._stats.missed()
        return read

    def _check(self, h: PullHeader) -> int:
        if not self._settings.broker_permission & PERM_READ:
            raise ServerError(
                ResponseCode.NO_PERMISSION, f"the broker[{self._settings.broker_name}] pulling message is forbidden"
            )
        group = self._groups.get(h.group)
        if group is None:
            raise ServerError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{h.group}] does not exist"
            )
        if not group.consume_enable:
            raise ServerError(ResponseCode.NO_PERMISSION, f"subscription group no permission, {h.group}")
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

    def _subscription(self, h: PullHeader) -> Subscription:
        if h.sys_flag & sysflags.PULL_SUBSCRIPTION:
            kind = h.expression_type or "TAG"
            text = h.subscription or ""
            wanted = _parsed(h.topic, text, kind) if len(text) < TEXT_KEPT_MAX else subscribe(h.topic, text, kind=kind)
        else:
            group = self._clients.consumers.get(h.group)
            if group is None:
                raise ServerError(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist")
            known = group.subscriptions.get(h.topic)
            if known is None:
                raise ServerError(
                    ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist: {h.topic}"
                )
            if known.version < h.subscription_version:
                raise ServerError(
                    ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest: a heartbeat is due"
                )
            wanted = known
        return wanted

    def _filter(self, h: PullHeader) -> tuple[frozenset[int] | None, Accepts | None]:
        """(tag codes, test of a record) of what is wanted; None where everything passes."""
        if h.sys_flag & sysflags.PULL_SUBSCRIPTION and h.subscription == "*" and h.expression_type in ("TAG", None):
            return None, None
        subscription = self._subscription(h)
        if subscription.is_all:
            return None, None
        if subscription.expression_type == "TAG":
            return subscription.codes, None
        compiled = self._property_filter(subscription.expression, subscription.expression_type)
        return None, lambda stored: compiled.accepts_record(record.properties_of(stored))

    def _property_filter(self, expression: str, kind: str) -> sql92.Filter:
        """The filter of an expression. Raises ServerError: 1 if such filters are off, 23 for a wrong expression."""
        if kind != "SQL92" or not self._settings.property_filter:
            raise ServerError(
                ResponseCode.SYSTEM_ERROR,
                f"The broker does not support consumer to filter message by {kind}"
                + (" (enablePropertyFilter=true allows it)" if kind == "SQL92" else ""),
            )
        try:
            return sql92.compile(expression)
        except FilterIllegal as e:
            raise ServerError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(e)) from e

    def check_client(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """CHECK_CLIENT_CONFIG (46): a consumer asks whether its filter will work before it starts."""
        asked = java_json.decode(body, ClientCheck).subscription_data
        if asked is not None and (asked.expression_type or "TAG") != "TAG":
            self._property_filter(asked.sub_string, asked.expression_type or "")
        return reply(request.opaque)

    def _moved(self, request: Request[PullHeader], offset: int, topic_sys_flag: int) -> bytes:
        """An operator set the offset: the consumer is told once to go on from there."""
        low, high = self._store.queue_range(request.ext.topic, request.ext.queue_id)
        header = _REPLY % (
            ResponseCode.PULL_OFFSET_MOVED,
            offset,
            high,
            low,
            topic_sys_flag,
            request.opaque,
            b"OFFSET_RESET",
        )
        return _LENGTHS.pack(4 + len(header), len(header)) + header

    @classmethod
    def _answer(cls, request: Request[PullHeader], read: Read, topic_sys_flag: int) -> bytes:
        return b"".join((cls._head(request, read, topic_sys_flag), *read.records))

    @staticmethod
    def _head(request: Request[PullHeader], read: Read, topic_sys_flag: int) -> bytes:
        """A reply's frame but for its body."""
        code, remark = 0, b"FOUND"
        if not read.count:
            code, remark = _OUTCOME[read.status]
            if code == ResponseCode.PULL_NOT_FOUND and request.ext.queue_offset != read.next_offset:
                # An empty queue that is asked beyond its start (rule: wire.md 9.4).
                code = ResponseCode.PULL_OFFSET_MOVED
        header = _REPLY % (
            code,
            read.next_offset,
            read.max_offset,
            read.min_offset,
            topic_sys_flag,
            request.opaque,
            remark,
        )
        total = 4 + len(header) + read.size
        if total > frames.FRAME_BYTES_MAX:
            frames.check_length(total)
        return _LENGTHS.pack(total, len(header)) + header


@lru_cache(maxsize=1024)
def _parsed(topic: str, text: str, kind: str) -> Subscription:
    return subscribe(topic, text, kind=kind)
