"""SendMessage and RecallMessage: messages to a queue of a broker, and a delayed one taken back.

Rule: a message is sent once; one that certainly never left goes to another broker within the same time, all else is
told to the client, who sends again (SendMessageActivity, 5.5.0). A normal message takes no task and no second look. All
messages of a group, and of a lite topic, go to one queue, whichever proxy takes them: Guava's consistentHash of Java's
hash of the name, over the queues ordered by broker and id (MessageQueueSelector, 5.5.0). A message is recalled at the
broker that its handle names (RecallMessageActivity, 5.5.0).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any

from rocketspark import machine
from rocketspark.client.connection import client_api
from rocketspark.client.connection.client_api import SendFrames
from rocketspark.errors import NotSent, ProtocolError, TransportError, UsageError
from rocketspark.model import MessageQueue
from rocketspark.model.allocation import bucket_of
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol import topic_attributes
from rocketspark.protocol.codes import SEND_STORED, RequestCode, ResponseCode
from rocketspark.protocol.headers import SendHeader, SendReply
from rocketspark.protocol.message import batch, sysflags
from rocketspark.protocol.message.message_ids import parse_offset_message_id
from rocketspark.protocol.timers import decode_handle
from rocketspark.proxy.brokers import Brokers
from rocketspark.proxy.call import ASK_TIMEOUT_MS, Call
from rocketspark.proxy.checks import TURN, SendLimits, check_body, checked_topic
from rocketspark.proxy.producing.stored_form import StoredForm, stored_form
from rocketspark.proxy.producing.transactions import HalfPlace, TransactionData, monotonic_ms
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.enumerations import Code
from rocketspark.proxy.wire.statuses import Refused, status
from rocketspark.transport.peer import Peer
from rocketspark.transport.request_frames import Reply

log = LimitedLog("rocketspark.proxy")


# Beyond it round robin begins with any queue again.
TOPICS_KEPT = 10_000


class QueueChoice:
    """Chooses the queues that messages are sent to; remembers for each topic which queue is next."""

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}

    def of_group(self, message_group: str, queues: Sequence[MessageQueue]) -> MessageQueue:
        """Return the queue that all messages of a message group go to."""
        return queues[bucket_of(message_group, len(queues))]

    def next(self, topic: str, queues: Sequence[MessageQueue], avoid: Collection[str] = ()) -> MessageQueue:
        """Return the next of a topic's queues in turn. A queue of a broker in `avoid`, which lately did not answer, is
        returned only if there is no other.
        """
        turn = self._turns.get(topic)
        if turn is None:
            turn = machine.randrange(len(queues))
            if len(self._turns) >= TOPICS_KEPT:
                self._turns.clear()
        if avoid:
            for step in range(1, len(queues) + 1):
                queue = queues[(turn + step) % len(queues)]
                if queue.broker_name not in avoid:
                    self._turns[topic] = (turn + step) & 0xFFFFFFFF
                    return queue
        self._turns[topic] = turn = (turn + 1) & 0xFFFFFFFF
        return queues[turn % len(queues)]


# A broker that did not answer is left alone for this long, if there is another.
AVOIDED_S = 5.0
# Frames kept: those of other queues are made when needed.
TARGETS_MAX = 100_000
_SEND, _BATCH = int(RequestCode.SEND_MESSAGE_V2), int(RequestCode.SEND_BATCH_MESSAGE)
# Types of messages for them are not checked.
_UNTYPED = ("%RETRY%", "%DLQ%")
# Stored, but not as safely as asked for.
_NOT_SAFE = {
    int(ResponseCode.FLUSH_DISK_TIMEOUT): (Code.MASTER_PERSISTENCE_TIMEOUT, "FLUSH_DISK_TIMEOUT"),
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): (Code.SLAVE_PERSISTENCE_TIMEOUT, "FLUSH_SLAVE_TIMEOUT"),
    int(ResponseCode.SLAVE_NOT_AVAILABLE): (Code.HA_NOT_AVAILABLE, "SLAVE_NOT_AVAILABLE"),
}
OK = status(Code.OK)
_REROUTED = (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.NO_PERMISSION, ResponseCode.SERVICE_NOT_AVAILABLE)


class Sends:
    """Serves the SendMessage calls of one proxy."""

    def __init__(
        self,
        brokers: Brokers,
        transactions: TransactionData,
        limits: SendLimits,
        *,
        check_types: bool = True,
    ) -> None:
        self._brokers = brokers
        self._transactions = transactions
        self._limits = limits
        self._check_types = check_types
        self._choice = QueueChoice()
        self._frames: dict[MessageQueue, SendFrames] = {}
        self._avoided: dict[str, float] = {}

    async def send_message(self, call: Call, request: Any) -> Any:
        """Serve SendMessage. Raises Refused and RocketSparkError."""
        listed = request.messages
        if len(listed) != 1:
            return await self._send_batch(call, listed)
        message = listed[0]
        topic = checked_topic(message.topic.name)
        form = stored_form(message, topic, call.remote_address, int(machine.time() * 1000), self._limits)
        if self._check_types and self._brokers.known_topic_type(topic) != form.type:
            await check_type(self._brokers, topic, form.type)
        reply, broker_name = await self._send(call, topic, form.queue_key, form)
        return _response([self._entry(topic, form, reply, broker_name)])

    # -- batches -------------------------------------------------------------------------------------------------

    async def _send_batch(self, call: Call, listed: Sequence[Any]) -> Any:
        if not listed:
            raise Refused(Code.MESSAGE_CORRUPTED, "messages: there is none")
        first = listed[0].topic
        topic = checked_topic(first.name)
        now_ms = int(machine.time() * 1000)
        forms, items = [], []
        for at, message in enumerate(listed):
            if message.topic != first:
                raise Refused(Code.MESSAGE_CORRUPTED, "messages: their topics are not the same")
            if at % TURN == TURN - 1:
                await asyncio.sleep(0)
            form = stored_form(message, topic, call.remote_address, now_ms, self._limits)
            forms.append(form)
            items.append(batch.encode_item(0, form.body, form.properties.encode()))
        if self._check_types:
            for kind in {form.type: None for form in forms}:
                await check_type(self._brokers, topic, kind)
        whole = _batch_form(forms, topic, b"".join(items))
        check_body(len(whole.body), self._limits)
        reply, _ = await self._send(call, topic, whole.message_group, whole, code=_BATCH)
        told = reply.header(SendReply)
        entries = []
        for at, form in enumerate(forms):
            if at % TURN == TURN - 1:
                await asyncio.sleep(0)
            entries.append(_batch_entry(form, reply.code, told, at))
        return _response(entries)

    # -- one send ------------------------------------------------------------------------------------------------

    async def _send(
        self, call: Call, topic: str, queue_key: str, form: StoredForm, *, code: int = _SEND
    ) -> tuple[Reply, str]:
        """Send it to one queue, to another if it did not leave. Raises Refused, RocketSparkError."""
        timeout_ms = call.ask_timeout_ms
        end_s = machine.monotonic() + timeout_ms / 1000
        queues = self._brokers.write_queues(topic) or await self._find_queues(topic)
        tried: set[str] = set()
        while True:
            if queue_key:
                queue = self._choice.of_group(queue_key, _in_order(queues))
            else:
                avoided = self._avoided_now()
                queue = self._choice.next(topic, queues, {*tried, *avoided} if tried else avoided)
            name = self._brokers.routes.leader(queue)
            try:
                reply = await self._ask(topic, queue, name, form, code, end_s)
            except TransportError as e:
                if timeout_ms < ASK_TIMEOUT_MS and machine.monotonic() >= end_s:
                    # The client did not wait long enough to say that the broker is away.
                    raise
                self._avoided[name] = machine.monotonic()
                self._brokers.note_lost(name)
                tried.add(queue.broker_name)
                if (
                    isinstance(e, NotSent)
                    and not queue_key
                    and machine.monotonic() < end_s
                    and any(q.broker_name not in tried for q in queues)
                ):
                    continue
                raise
            if reply.code not in SEND_STORED:
                if reply.code in _REROUTED:
                    self._brokers.forget_route(topic)
                reply.raise_for_code(f"send to topic {topic}")
            return reply, name

    async def _find_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        queues = await self._brokers.find_write_queues(topic)
        if not queues:
            self._brokers.forget_route(topic)
            raise Refused(Code.FORBIDDEN, "no writable queue")
        return queues

    def _avoided_now(self) -> dict[str, float]:
        avoided = self._avoided
        if avoided:
            now_s = machine.monotonic()
            for name in [n for n, since_s in avoided.items() if now_s - since_s > AVOIDED_S]:
                del avoided[name]
        return avoided

    async def _ask(
        self, topic: str, queue: MessageQueue, broker_name: str, form: StoredForm, code: int, end_s: float
    ) -> Reply:
        peer = self._brokers.open_peer(broker_name)
        if peer is None or not peer.is_writable:
            peer = await self._ready(broker_name, end_s)
        timeout_ms = max((end_s - machine.monotonic()) * 1000, 1)
        if peer.hooks is not None or code != _SEND or (form.delivery_attempt and topic.startswith("%RETRY%")):
            return await peer.ask(code, _header(topic, queue, form, code), form.body, timeout_ms=timeout_ms)
        frames = self._frames.get(queue)
        if frames is None:
            if len(self._frames) >= TARGETS_MAX:
                self._frames.clear()
            frames = self._frames[queue] = SendFrames(queue, group=topic)
        opaque = peer.next_opaque()
        data = frames.frame(opaque, form.body, form.properties, form.sys_flag, form.born_time_ms, 0)
        return await peer.ask_encoded(opaque, data, code, timeout_ms)

    async def _ready(self, broker_name: str, end_s: float) -> Peer:
        """Return the connection to a broker once it can be written to. Raises NotSent if it cannot in time."""
        try:
            async with asyncio.timeout(max(end_s - machine.monotonic(), 0.001)):
                peer = await self._brokers.peer(broker_name)
                if not peer.is_writable:
                    await peer.writable()
                return peer
        except TimeoutError:
            raise NotSent(f"no connection to broker {broker_name} in time: the message was not sent") from None
        except Refused as e:
            # It has no master at the moment; others may have one.
            raise NotSent(f"{e}: the message was not sent") from None

    # -- results -------------------------------------------------------------------------------------------------

    def _entry(self, topic: str, form: StoredForm, reply: Reply, broker_name: str) -> Any:
        """Return the result of a message that was stored; where a half message lies is noted for its end."""
        if reply.code:
            return _not_safe(reply.code)
        told = reply.header(SendReply)
        transaction_id = told.transaction_id or ""
        if form.sys_flag & sysflags.TRANSACTION_PREPARED and transaction_id:
            try:
                *_, physical_offset = parse_offset_message_id(told.message_id)
            except UsageError as e:
                log.warning("broker %s told no place of a half message: %s", broker_name, e)
            else:
                place = HalfPlace(broker_name, told.queue_offset, physical_offset)
                self._transactions.add(topic, transaction_id, place, monotonic_ms())
        return messages.SendResultEntry(
            status=OK,
            message_id=form.message_id,
            transaction_id=transaction_id,
            offset=told.queue_offset,
            recall_handle=told.recall_handle or "",
        )


async def check_type(brokers: Brokers, topic: str, actual: str) -> None:
    """Raise Refused 40014 if the topic does not take messages of the type `actual`; RocketSparkError if no broker tells
    the topic's type.
    """
    if topic.startswith(_UNTYPED):
        return
    expected = await brokers.topic_type(topic)
    if expected not in (actual, topic_attributes.MIXED):
        # The topic may have been changed, or made anew.
        expected = await brokers.topic_type_now(topic)
    if expected not in (actual, topic_attributes.MIXED):
        text = f"TopicMessageType validate failed, the expected type is {expected}, but actual type is {actual}"
        raise Refused(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, text)


def _in_order(queues: tuple[MessageQueue, ...]) -> tuple[MessageQueue, ...]:
    """Return queues by broker and id; those of a topic with a set order stand as that says."""
    first, last = queues[0], queues[-1]
    if first.broker_name == last.broker_name and last.queue_id - first.queue_id == len(queues) - 1:
        return queues
    return tuple(sorted(queues))


def _header(topic: str, queue: MessageQueue, form: StoredForm, code: int) -> SendHeader:
    return SendHeader(
        producer_group=topic,
        topic=topic,
        queue_id=queue.queue_id,
        sys_flag=form.sys_flag,
        born_time_ms=form.born_time_ms,
        flag=0,
        properties=form.properties,
        reconsume_times=form.delivery_attempt if topic.startswith("%RETRY%") else 0,
        batch=code == _BATCH,
        broker_name=queue.broker_name,
    )


def _batch_form(forms: Sequence[StoredForm], topic: str, body: bytes) -> StoredForm:
    """Return messages as a batch with this body. Raises Refused 40016 for those that brokers cannot store together."""
    first = forms[0]
    for form in forms:
        if form.sys_flag != first.sys_flag:
            raise Refused(Code.MESSAGE_CORRUPTED, "messages: their body encodings are not the same")
        if form.message_group != first.message_group:
            raise Refused(Code.MESSAGE_CORRUPTED, "messages: their message groups are not the same")
        if form.type in (topic_attributes.TRANSACTION, topic_attributes.DELAY, topic_attributes.LITE):
            text = f"messages: one of type {form.type} goes alone, not with others"
            raise Refused(Code.MESSAGE_CORRUPTED, text)
    if topic.startswith("%RETRY%"):
        raise Refused(Code.MESSAGE_CORRUPTED, "messages: those of a retry topic go alone")
    return first._replace(body=body)


def _batch_entry(form: StoredForm, code: int, told: SendReply, at: int) -> Any:
    if code:
        return _not_safe(code)
    return messages.SendResultEntry(status=OK, message_id=form.message_id, offset=told.queue_offset + at)


def _not_safe(code: int) -> Any:
    grpc_code, name = _NOT_SAFE[code]
    return messages.SendResultEntry(status=status(grpc_code, f"send message failed, sendStatus={name}"))


def _response(entries: list[Any]) -> Any:
    """Return the response: the status that all entries have, or that they differ."""
    codes = {entry.status.code for entry in entries}
    code = codes.pop() if len(codes) == 1 else Code.MULTIPLE_RESULTS
    return messages.SendMessageResponse(status=status(Code(code)), entries=entries)


class Recalls:
    """Serves the RecallMessage calls of one proxy."""

    def __init__(self, brokers: Brokers, *, check_types: bool = True) -> None:
        self._brokers = brokers
        self._check_types = check_types

    async def recall_message(self, call: Call, request: Any) -> Any:
        """Serve RecallMessage. Raises Refused, RocketSparkError."""
        topic = checked_topic(request.topic.name)
        if self._check_types:
            await check_type(self._brokers, topic, topic_attributes.DELAY)
        try:
            handle = decode_handle(request.recall_handle)
        except ProtocolError as e:
            raise Refused(Code.INTERNAL_SERVER_ERROR, str(e)) from None
        timeout_ms = call.ask_timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                peer = await self._brokers.peer(handle.broker_name)
        except TimeoutError:
            raise NotSent(f"no connection to broker {handle.broker_name} in time") from None
        message_id = await client_api.recall(peer, topic, request.recall_handle, timeout_ms=timeout_ms)
        return messages.RecallMessageResponse(status=status(Code.OK), message_id=message_id)
