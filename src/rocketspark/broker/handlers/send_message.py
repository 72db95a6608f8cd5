"""SEND_MESSAGE in all its forms, and the consumer's send-back. The hottest path of the broker."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rocketspark import machine
from rocketspark.broker import topic_names
from rocketspark.broker.handlers.end_transaction import HalfRanges
from rocketspark.broker.handlers.send_fast_path import SendFastPath, StandingOf
from rocketspark.broker.messages import retry_and_dead_letter
from rocketspark.broker.messages.put_message import Accepted, FixedFields, ReadBatch, pairs_of
from rocketspark.broker.messages.send_rules import LITE_TOPIC, PRIORITY, any_queue, illegal
from rocketspark.broker.parts import Messages, Tables
from rocketspark.broker.replication.waits import Durability
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.statistics.stats import Stats
from rocketspark.broker.topics import check_inner_batch
from rocketspark.errors import ServerError
from rocketspark.model.text import whole_number
from rocketspark.protocol import frames
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.frames import VERSION
from rocketspark.protocol.headers import Request, SendBackHeader, SendHeader
from rocketspark.protocol.json.bodies import GroupConfig
from rocketspark.protocol.message import properties, record, sysflags
from rocketspark.store.store import Store
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Answer, Routes
from rocketspark.transport.request_frames import Parts, reply

# Two hex digits for each byte.
_HEX = np.frombuffer(b"".join([b"%02X" % i for i in range(256)]), np.uint16)
# A longer batch is read in several turns of the loop before it is stored.
LONG_BATCH_BYTES = 256 << 10
_PACK_LENGTHS = struct.Struct(">ii").pack


class SendHandler:
    """Serves sends of producers, and send-backs of failed messages from consumers."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: Store,
        tables: Tables,
        messages: Messages,
        durability: Durability,
        stats: Stats,
        settled: Callable[[], Awaitable[None]],
        standing_of: StandingOf | None = None,
    ) -> None:
        put_message = messages.put_message
        self._settings = settings
        self._store = store
        self._put_message = put_message
        self._rules = put_message.rules
        self._admit, self._as_sent = put_message.rules.admit, put_message.rules.as_sent
        self._accept: Callable[..., Accepted] = put_message.accept
        self._accept_again: Callable[..., Accepted] = put_message.accept_again
        # Puts that are still to be timed.
        self._untimed = 0
        self._topics = tables.topics
        self._groups = tables.groups
        self._durability = durability
        self._settled = settled
        self._transactions = messages.transactions
        self._ranges = HalfRanges(messages.transactions)
        self._stats = stats
        self._timer_rules = messages.timer_rules
        self._host_hex = store.store_host.hex().upper().encode()
        self._plain = SendFastPath(put_message, durability, standing_of)
        self.configure()

    def configure(self) -> None:
        """Take over the settings that may change while the broker runs."""
        settings = self._settings
        region, trace = msgspec.json.encode(settings.region), b"true" if settings.trace_on else b"false"
        self._marks = {"MSG_REGION": settings.region, "TRACE_ON": trace.decode()}
        # A reply is put together from this template: an encoder would cost three times as much.
        reply_of = (
            b'{"code":%%b,"extFields":{"queueId":"%%b","transactionId":"%%%%b","msgId":"%%b","TRACE_ON":"%b",'
            b'"MSG_REGION":%b,"queueOffset":"%%%%d"},"flag":1,"language":"JAVA","opaque":%%b,'
            b'"serializeTypeCurrentRPC":"JSON","version":%d}' % (trace, region.replace(b"%", b"%%%%"), VERSION)
        )
        self._reply = reply_of % (b"%d", b"%d", b"%b", b"%d")
        self._plain.configure(
            reply=reply_of % (b"0", b"%d", self._host_hex + b"%016X", b"%b"),
        )

    def routes(self, routes: Routes) -> None:
        """Add what this handler serves."""
        routes.add(RequestCode.SEND_MESSAGE_V2, self.send)
        routes.add_run(RequestCode.SEND_MESSAGE_V2, self._plain.take)
        routes.add(RequestCode.SEND_MESSAGE, self.send)
        routes.add(RequestCode.SEND_BATCH_MESSAGE, self.send)
        routes.add(RequestCode.SEND_HALF_BATCH, self.send_halves)
        routes.add(RequestCode.CONSUMER_SEND_MSG_BACK, self.send_back)

    def time_puts(self, count_max: int) -> None:
        """Measure how long the next `count_max` puts take; the puts after them go unmeasured and cost nothing."""
        self._untimed = self._plain.pause = count_max
        self._accept = self._timed(self._put_message.accept)
        self._accept_again = self._timed(self._put_message.accept_again)

    def _timed(self, accept: Callable[..., Accepted]) -> Callable[..., Accepted]:
        def timed(*args: Any, **options: Any) -> Accepted:
            self._untimed -= 1
            if self._untimed <= 0:
                self._accept, self._accept_again = self._put_message.accept, self._put_message.accept_again
                self._plain.pause = 0
            began = machine.perf_counter()
            try:
                return accept(*args, **options)
            finally:
                self._stats.put_took((machine.perf_counter() - began) * 1000)

        return timed

    def send(self, peer: Peer, request: Request[SendHeader], body: bytes, read: ReadBatch | None = None) -> Answer:
        """SEND_MESSAGE (10, 310) and SEND_BATCH_MESSAGE (320): store messages. `read`: a long batch, read before."""
        h = request.ext
        topic = h.topic
        try:
            queue_id = self._admit(h)
            if queue_id is None:
                self._rules.topic_for(h, peer.address)
                return self._answer_settled(self.send(peer, request, body))
            stored = h.properties.encode()
            pairs = pairs_of(stored)
            stored = self._as_sent(stored, pairs)
            if self._durability.needed and pairs.get(b"WAIT") != b"false":
                self._durability.check()
            if h.batch or request.code == 320 or h.sys_flag & sysflags.INNER_BATCH:
                # How many messages it holds, and from which offset on, is not its sender's to say.
                h.batch, h.sys_flag = True, h.sys_flag & ~(sysflags.INNER_BATCH | sysflags.NEED_UNWRAP)
                if read is None and len(body) > LONG_BATCH_BYTES:
                    return peer.alone(self._read_first(peer, request, body))
                batch = self._put_message.accept_batch(h, queue_id, body, pairs, peer.packed_host, read)
                ids = self._ids(batch.positions)
                return self._answer_batch(peer, request, queue_id, batch.queue_offset, ids, batch.end, pairs)
            if LITE_TOPIC in pairs:
                stored = self._rules.to_lite_topic(topic, stored, pairs)
            if not pairs.get(b"KEYS", b"").strip():
                self._rules.check_key(topic, (b"",))
            if PRIORITY in pairs:
                queue_id, stored = self._rules.by_priority(h, queue_id, stored, pairs)
            sys_flag = self._rules.sys_flag(h)
            if topic[0] == "%" and topic.startswith(topic_names.RETRY_PREFIX):
                topic, queue_id, stored = self._retry_target(peer, h, queue_id, stored, pairs)
            if h.sys_flag & sysflags.TRANSACTION_MASK == sysflags.TRANSACTION_PREPARED:
                position, queue_offset, end = self._transactions.prepare(
                    topic,
                    queue_id,
                    body,
                    stored,
                    pairs,
                    FixedFields(h.flag, sys_flag, h.born_time_ms, peer.packed_host),
                )
            else:
                position, queue_offset, end = self._accept(
                    topic,
                    queue_id,
                    body,
                    stored,
                    pairs,
                    FixedFields(h.flag, sys_flag, h.born_time_ms, peer.packed_host, h.reconsume_times),
                )
        except ServerError as e:
            return reply(request.opaque, e.code, self._marks, remark=e.remark)
        message_id = b"%b%016X" % (self._host_hex, position)
        if self._durability.needed and pairs.get(b"WAIT") != b"false":
            self._answer_when_durable(peer, request, queue_id, queue_offset, message_id, end, pairs)
            return None
        transaction_id = pairs[b"UNIQ_KEY"]
        if not transaction_id.isalnum() or b"TIMER_OUT_MS" in pairs:
            return self._answer(0, request, queue_id, queue_offset, message_id, pairs)
        header = self._reply % (0, queue_id, transaction_id, message_id, queue_offset, request.opaque)
        return _PACK_LENGTHS(4 + len(header), len(header)) + header

    async def _read_first(self, peer: Peer, request: Request[SendHeader], body: bytes) -> bytes | None:
        """Read a long batch in turns of the loop, then store it in one; what follows on the connection waits."""
        steps = self._put_message.read_batch(request.ext, body)
        while True:
            try:
                next(steps)
            except StopIteration as e:
                read: ReadBatch = e.value
                break
            except ServerError as e:
                return reply(request.opaque, e.code, self._marks, remark=e.remark)
            await asyncio.sleep(0)
        answer = self.send(peer, request, body, read)
        assert not isinstance(answer, Parts)
        answered = answer if answer is None or isinstance(answer, bytes) else await answer
        assert not isinstance(answered, Parts)
        return answered

    def send_halves(self, peer: Peer, request: Request[SendHeader], body: bytes) -> Answer:
        """SEND_HALF_BATCH (7310005): store each message of a batch as a half message of its own.

        The reply is that of a batch: `queueOffset` is the first message's offset in the half queue. Code 3 tells the
        client to send the half messages one by one: the topic does not exist yet, is static, or has batch queues.
        """
        h = request.ext
        try:
            if h.sys_flag & sysflags.TRANSACTION_MASK != sysflags.TRANSACTION_PREPARED:
                raise illegal("a batch of half messages has the flag of a prepared transaction")
            queue_id = self._admit(h)
            if queue_id is None or h.topic in self._rules.static_topics or self._rules.check_batch(h, body):
                remark = f"topic {h.topic} takes no half messages in a batch yet: they are sent one by one"
                return reply(request.opaque, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
            pairs = pairs_of(h.properties.encode())
            if self._durability.needed:
                self._durability.check()
            batch = self._ranges.prepare(h.topic, queue_id, body, h.sys_flag, h.born_time_ms, peer.packed_host)
        except ServerError as e:
            return reply(request.opaque, e.code, self._marks, remark=e.remark)
        return self._answer_batch(
            peer, request, queue_id, batch.queue_offset, self._ids(batch.positions), batch.end, pairs
        )

    async def _answer_settled(self, answer: Answer) -> bytes | None:
        """Return the answer to a send that made its topic, once the NameServers know it: the sender asks them next."""
        assert not isinstance(answer, Parts)
        answered = answer if answer is None or isinstance(answer, bytes) else await answer
        assert not isinstance(answered, Parts)
        await self._settled()
        return answered

    def _answer(
        self,
        code: int,
        request: Request[SendHeader],
        queue_id: int,
        queue_offset: int,
        message_ids: bytes,
        pairs: dict[bytes, bytes],
    ) -> bytes:
        transaction_id = pairs.get(b"UNIQ_KEY", b"")
        if not transaction_id.isalnum():
            transaction_id = msgspec.json.encode(transaction_id.decode("utf-8", "replace"))[1:-1]
        header = self._reply % (code, queue_id, transaction_id, message_ids, queue_offset, request.opaque)
        if not transaction_id:
            header = header.replace(b'"transactionId":"",', b"", 1)
        if b"INNER_NUM" in pairs and (request.ext.batch or request.code == 320):
            header = header.replace(b'"extFields":{', b'"extFields":{"batchUniqId":"%b",' % transaction_id, 1)
        if b"TIMER_OUT_MS" in pairs:
            header = header.replace(b'"extFields":{', b'"extFields":{' + self._recall_handle(pairs), 1)
        return _PACK_LENGTHS(4 + len(header), len(header)) + header

    def _recall_handle(self, pairs: dict[bytes, bytes]) -> bytes:
        """Return the header field by which a timer message can be recalled; none for a retry (rule: 5.5.0)."""
        topic = pairs.get(b"REAL_TOPIC", b"").decode("utf-8", "replace")
        out_ms = whole_number(pairs[b"TIMER_OUT_MS"])
        message_id = pairs.get(b"UNIQ_KEY", b"").decode("utf-8", "replace")
        if not topic or topic.startswith(topic_names.RETRY_PREFIX) or out_ms is None or not message_id:
            return b""
        return b'"recallHandle":"%b",' % self._timer_rules.handle(topic, out_ms, message_id).encode()

    def _answer_when_durable(
        self,
        peer: Peer,
        request: Request[SendHeader],
        queue_id: int,
        queue_offset: int,
        message_ids: bytes,
        end: int,
        pairs: dict[bytes, bytes],
    ) -> None:
        self._durability.reply_when_durable(
            peer, request, end, lambda code: self._answer(code, request, queue_id, queue_offset, message_ids, pairs)
        )

    def _answer_batch(
        self,
        peer: Peer,
        request: Request[SendHeader],
        queue_id: int,
        queue_offset: int,
        ids: bytes,
        end: int,
        pairs: dict[bytes, bytes],
    ) -> bytes | None:
        if self._durability.needed and pairs.get(b"WAIT") != b"false":
            self._answer_when_durable(peer, request, queue_id, queue_offset, ids, end, pairs)
            return None
        return self._answer(0, request, queue_id, queue_offset, ids, pairs)

    def _ids(self, positions: Sequence[int] | NDArray[np.int64]) -> bytes:
        """Return the broker's ids of records, separated by commas."""
        host, positions = self._host_hex, np.asarray(positions, np.int64)
        rows = np.empty((len(positions), len(host) + 17), np.uint8)
        rows[:, : len(host)] = np.frombuffer(host, np.uint8)
        rows[:, len(host) : -1] = _HEX[positions.astype(">i8").view(np.uint8).reshape(-1, 8)].view(np.uint8)
        rows[:, -1] = ord(",")
        return rows.tobytes()[:-1]

    def _retry_target(
        self, peer: Peer, h: SendHeader, queue_id: int, stored: bytes, pairs: dict[bytes, bytes]
    ) -> tuple[str, int, bytes]:
        """Return topic, queue and properties of what a consumer resends: after its last attempt a dead letter's."""
        group = h.topic[len(topic_names.RETRY_PREFIX) :]
        if not retry_and_dead_letter.is_dead_letter(h, self._group(peer, group).retry_max_times):
            return h.topic, queue_id, stored
        left = properties.fitted(stored, properties.BYTES_MAX - len(self._rules.marks))
        if left is not stored:
            pairs.clear()
            pairs.update(pairs_of(left))
        pairs.pop(b"DELAY", None)
        return self._topics.ensure(topic_names.dead_letter_topic(group)).topic_name, 0, left

    def _group(self, peer: Peer, group: str) -> GroupConfig:
        config = self._groups.get(group, by=peer.address)
        if config is None:
            raise ServerError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group}; create it first"
            )
        return config

    def send_back(self, peer: Peer, request: Request[SendBackHeader], body: bytes) -> bytes | None:
        """CONSUMER_SEND_MSG_BACK (36): a message failed; it is delivered again later, or becomes a dead letter."""
        h = request.ext
        config = self._group(peer, h.group)
        self._rules.check_writable()
        if self._durability.needed:
            self._durability.check()
        if config.retry_queue_nums <= 0:
            return reply(request.opaque)
        found = self._store.record_at(h.physical_offset)
        if found is None:
            raise ServerError(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {h.physical_offset}")
        failed = record.decode(found)
        # One message of several cannot be told from the others: its consumer sends it again itself (rule: 5.x).
        check_inner_batch(topic_names.retry_topic(h.group), None, failed.sys_flag)
        max_times = h.max_reconsume_times if h.max_reconsume_times is not None else config.retry_max_times
        plan = retry_and_dead_letter.route(failed, h.group, delay_level=h.delay_level, max_times=max_times)
        if plan.dead and failed.topic.decode("utf-8", "replace") == plan.topic:
            # Its group reads its own dead letters: stored anew at once at each failure, they would fill the disk.
            return reply(request.opaque)
        if plan.dead:
            target = self._topics.ensure(plan.topic)
            queue_id = 0
        else:
            target = self._topics.ensure(plan.topic, config.retry_queue_nums)
            queue_id = any_queue(min(config.retry_queue_nums, max(1, target.write_queue_nums)))
        self._rules.admit_back(target)
        pairs = pairs_of(plan.stored)
        _, _, end = self._accept_again(
            failed, plan.topic, queue_id, plan.stored, pairs, delayed=True, reconsume_times=plan.reconsume_times
        )
        # Senders write that property: counters are of topics that are there.
        named = pairs[b"RETRY_TOPIC"].decode("utf-8", "replace")
        topic = named if self._topics.get(named) is not None else target.topic_name
        self._stats.sent_back(h.group, topic, dead=plan.dead)
        if self._durability.needed and not request.flag & frames.ONEWAY_FLAG:
            self._durability.reply_when_durable(peer, request, end, lambda code: reply(request.opaque, code))
            return None
        return reply(request.opaque)
