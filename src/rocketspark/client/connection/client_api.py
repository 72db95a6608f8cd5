"""Calls of clients on one broker or NameServer: a typed request out, a typed result back. Operators': admin_api.

Rule: nothing here chooses, retries or caches; every function takes the connection, and raises ServerError for a code
that is not a result of the call, TransportError when no reply could be had.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from rocketspark.errors import NotSent, RecordError, RocketSparkError, RouteNotFound
from rocketspark.model import MessageQueue, ReceivedMessage, TopicRoute
from rocketspark.model.namespace import RETRY_PREFIX
from rocketspark.model.route import DEFAULT_QUEUE_COUNT
from rocketspark.protocol import frames, headers
from rocketspark.protocol.codes import SEND_STORED, RequestCode, ResponseCode
from rocketspark.protocol.headers import PullHeader, PullReply, SendHeader, SendReply
from rocketspark.protocol.headers.static_topics import PartMaxHeader, PartQueueHeader, PartSearchHeader
from rocketspark.protocol.json import bodies, java_json
from rocketspark.protocol.message import half_ranges, record
from rocketspark.protocol.timers import RecallHeader, RecallReply
from rocketspark.transport.peer import Peer
from rocketspark.transport.request_frames import request as request_frame

TIMEOUT_MS = 3000.0
TIMES_END_MS = (1 << 63) - 1
# To which the bodies of one answer are inflated: 64 messages, as many as a broker finds, of 4 MiB, as a send may have.
FOUND_INFLATED_BYTES = 64 * 4 << 20

# Stand-ins in a frame's template begin here; those that a name holds are passed over.
_STAND_INS = 1_912_345_601
_encode_text = msgspec.json.Encoder().encode


class PullResult(NamedTuple):
    """A reply to a pull: `code` (found, not found, retry at once, offset moved), the bounds, the raw records."""

    code: int
    remark: str | None
    header: PullReply
    records: bytes


class QueriedMessages(NamedTuple):
    """Messages that a query found; `updated_ms`, `updated_position`: how far the index had come."""

    messages: list[ReceivedMessage]
    updated_ms: int = 0
    updated_position: int = 0


# -- NameServer ---------------------------------------------------------------------------------------------------


async def fetch_route(namesrv: Peer, topic: str, *, zone: str = "", timeout_ms: float = TIMEOUT_MS) -> TopicRoute:
    """Return the route of a topic, with a `zone` the brokers of that one. Raises RouteNotFound if there is none."""
    reply = await namesrv.request(
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        headers.RouteHeader(topic=topic, standard_json=True, zone=zone or None, zone_mode="true" if zone else None),
        timeout_ms=timeout_ms,
    )
    if reply.code == ResponseCode.TOPIC_NOT_EXIST:
        raise RouteNotFound(topic, address=reply.address)
    if reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        text = f"{reply.address} is no NameServer, but perhaps a broker: check the address"
        raise NotSent(text, address=reply.address)
    reply.raise_for_code(f"route of topic {topic!r}")
    return bodies.decode_route(topic, reply.body)


# -- sending ------------------------------------------------------------------------------------------------------


class SendFrames:
    """Makes the request frames of sends to one queue: SEND_MESSAGE_V2, or a batch or a reply, by `code`.

    All but the values that differ between sends is encoded once, as a template: to fill it in costs a third of encoding
    a typed header.
    """

    __slots__ = ("_template",)

    def __init__(
        self,
        queue: MessageQueue,
        *,
        group: str,
        code: int = RequestCode.SEND_MESSAGE_V2,
        oneway: bool = False,
        default_topic: str = "TBW102",
        default_queue_count: int = DEFAULT_QUEUE_COUNT,
        reconsume_times: int = 0,
        max_reconsume_times: int | None = None,
        unit_mode: bool = False,
    ) -> None:
        header = SendHeader(
            producer_group=group,
            topic=queue.topic,
            default_topic=default_topic,
            default_topic_queue_count=default_queue_count,
            queue_id=queue.queue_id,
            sys_flag=0,
            born_time_ms=0,
            flag=0,
            reconsume_times=reconsume_times,
            unit_mode=unit_mode,
            max_reconsume_times=max_reconsume_times,
            batch=code == RequestCode.SEND_BATCH_MESSAGE,
            broker_name=queue.broker_name,
        )
        first = _STAND_INS
        while (template := _template(header, code, first, oneway=oneway)) is None:
            first += 4
        self._template = template

    def frame(self, opaque: int, body: bytes, properties: str, sys_flag: int, born_time_ms: int, flag: int) -> bytes:
        """Return the frame of one send. Raises FrameError if it is over 16 MiB."""
        header = self._template % (sys_flag, born_time_ms, flag, _encode_text(properties), opaque)
        return frames.join(header, body)


def _template(header: SendHeader, code: int, first: int, *, oneway: bool) -> bytes | None:
    """Return a frame with placeholders for the values that differ; None if its text holds a number from `first` to
    `first` + 3 anyway.
    """
    sys_flag, born_time, flag, opaque = numbers = range(first, first + 4)
    place = f"\ue000{first:x}\ue000"
    header = msgspec.structs.replace(header, sys_flag=sys_flag, born_time_ms=born_time, flag=flag, properties=place)
    frame = request_frame(code, header, opaque=opaque, flag=frames.ONEWAY_FLAG if oneway else 0)
    text, properties = frame[8:].replace(b"%", b"%%"), _encode_text(place)
    if text.count(properties) != 1 or any(text.count(b"%d" % number) != 1 for number in numbers):
        return None
    text = text.replace(properties, b"%b")
    # In this order they stand in the header's fields.
    for number in numbers:
        text = text.replace(b"%d" % number, b"%d")
    return text


async def send(
    broker: Peer,
    header: SendHeader,
    body: bytes,
    *,
    code: int = RequestCode.SEND_MESSAGE_V2,
    timeout_ms: float = TIMEOUT_MS,
) -> tuple[int, SendReply]:
    """Send one message whose header is made already.

    Returns the code (one of SEND_STORED) and where the message is stored.
    """
    reply = await broker.request(code, header, body, timeout_ms=timeout_ms)
    if reply.code not in SEND_STORED:
        reply.raise_for_code("send")
    return reply.code, reply.header(SendReply)


async def send_batch(
    broker: Peer, header: SendHeader, body: bytes, *, timeout_ms: float = TIMEOUT_MS
) -> tuple[int, SendReply]:
    """Send a batch; `body` from `protocol.batch.encode`. Returns as `send` does."""
    return await send(broker, header, body, code=RequestCode.SEND_BATCH_MESSAGE, timeout_ms=timeout_ms)


async def send_back(
    broker: Peer,
    message: ReceivedMessage,
    group: str,
    *,
    delay_level: int = 0,
    max_reconsume_times: int | None = None,
    unit_mode: bool = False,
    timeout_ms: float = TIMEOUT_MS,
) -> None:
    """Have a message delivered to its group again later, or moved to the dead letters once it used up its attempts.

    `delay_level` 0: the broker takes 3 + attempts so far; below 0: to the dead letters at once. `max_reconsume_times`
    None: as many attempts as it has for the group.
    """
    header = headers.SendBackHeader(
        physical_offset=message.physical_offset,
        group=group,
        delay_level=delay_level,
        origin_message_id=message.offset_message_id,
        origin_topic=message.topic,
        unit_mode=unit_mode,
        max_reconsume_times=max_reconsume_times,
        broker_name=message.broker_name,
    )
    reply = await broker.request(RequestCode.CONSUMER_SEND_MSG_BACK, header, timeout_ms=timeout_ms)
    reply.raise_for_code(f"send back of message {message.message_id}")


def end_transaction(broker: Peer, header: headers.EndTransactionHeader, remark: str | None = None) -> None:
    """Tell a broker how a transaction ended; `remark` says why its state is unknown. There is no reply. Raises NotSent
    on a closed connection.
    """
    broker.oneway(RequestCode.END_TRANSACTION, header, remark=remark)


async def end_surely(broker: Peer, header: headers.EndTransactionHeader, *, timeout_ms: float = TIMEOUT_MS) -> None:
    """Tell a broker how a transaction ended, and wait until it is carried out."""
    reply = await broker.request(RequestCode.END_TRANSACTION, header, timeout_ms=timeout_ms)
    reply.raise_for_code(f"end of transaction {header.message_id}")


async def end_half_ranges(
    broker: Peer,
    header: headers.EndHalfRangesHeader,
    ranges: Iterable[half_ranges.Range],
    *,
    timeout_ms: float = TIMEOUT_MS,
) -> NDArray[np.int64]:
    """Commit or roll back ranges of half messages, which brokers of RocketSpark do. Returns the offsets in the half
    queue of those that can never be committed.
    """
    body = half_ranges.encode(ranges)
    reply = await broker.request(RequestCode.END_HALF_RANGES, header, body, timeout_ms=timeout_ms)
    reply.raise_for_code(f"end of half messages of topic {header.topic!r}")
    try:
        return half_ranges.decode_offsets(bytes(reply.body))
    except ValueError as e:
        raise RocketSparkError(f"the answer of {reply.address} about half messages: {e}") from None


async def recall(
    broker: Peer, topic: str, handle: str, *, group: str | None = None, timeout_ms: float = TIMEOUT_MS
) -> str:
    """Cancel a timer message that is not delivered yet; `handle` is its recall handle. Returns its unique id."""
    header = RecallHeader(group=group, topic=topic, handle=handle)
    reply = await broker.request(RequestCode.RECALL_MESSAGE, header, timeout_ms=timeout_ms)
    return reply.raise_for_code(f"recall of a message of topic {topic!r}").header(RecallReply).message_id


# -- reading ------------------------------------------------------------------------------------------------------

PULL_RESULTS = (
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


async def pull(broker: Peer, header: PullHeader, *, timeout_ms: float = 30_000) -> PullResult:
    """Pull messages of one queue. The result's `records` are the broker's own bytes, for
    `protocol.record.decode_messages`. Raises RecordError if the broker says that it found messages, and sends none.
    """
    reply = await broker.request(RequestCode.PULL_MESSAGE, header, timeout_ms=timeout_ms)
    reply.raise_for_code(f"pull of {header.topic!r} queue {header.queue_id}", *PULL_RESULTS)
    if reply.code == ResponseCode.SUCCESS and not reply.body:
        # Whoever believed its next offset would pass messages over.
        raise RecordError(f"pull of {header.topic!r} queue {header.queue_id}: found, but the reply holds no message")
    return PullResult(reply.code, reply.remark, reply.header(PullReply), reply.body)


async def max_offset(broker: Peer, queue: MessageQueue, *, timeout_ms: float = TIMEOUT_MS) -> int:
    """Return the offset that the queue's next message will get."""
    return (await queue_end(broker, queue, timeout_ms=timeout_ms)).offset


async def queue_end(
    broker: Peer, queue: MessageQueue, *, lo: bool | None = None, timeout_ms: float = TIMEOUT_MS
) -> headers.OffsetReply:
    """Return the whole reply to a question for a queue's max offset, with what our brokers alone tell (see
    OffsetReply). `lo`: false for a broker's own queue of a static topic.
    """
    header = PartMaxHeader(topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name, lo=lo)
    reply = await broker.request(RequestCode.GET_MAX_OFFSET, header, timeout_ms=timeout_ms)
    return reply.raise_for_code(f"max offset of {queue}").header(headers.OffsetReply)


async def min_offset(
    broker: Peer, queue: MessageQueue, *, lo: bool | None = None, timeout_ms: float = TIMEOUT_MS
) -> int:
    """Return the offset of the oldest message that is still there. `lo`: as of `queue_end`."""
    header = PartQueueHeader(topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name, lo=lo)
    reply = await broker.request(RequestCode.GET_MIN_OFFSET, header, timeout_ms=timeout_ms)
    return reply.raise_for_code(f"min offset of {queue}").header(headers.OffsetReply).offset


async def search_offset(
    broker: Peer, queue: MessageQueue, time_ms: int, *, lo: bool | None = None, timeout_ms: float = TIMEOUT_MS
) -> int:
    """Return the offset of the first message stored at or after `time_ms`; the max offset if there is none. `lo`: as of
    `queue_end`.
    """
    header = PartSearchHeader(
        topic=queue.topic, queue_id=queue.queue_id, time_ms=time_ms, broker_name=queue.broker_name, lo=lo
    )
    reply = await broker.request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header, timeout_ms=timeout_ms)
    return reply.raise_for_code(f"offset by time of {queue}").header(headers.OffsetReply).offset


async def earliest_store_time(broker: Peer, queue: MessageQueue, *, timeout_ms: float = TIMEOUT_MS) -> int:
    """Return the store time of the queue's oldest message, in ms; -1 if there is none."""
    header = headers.QueueHeader(topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name)
    reply = await broker.request(RequestCode.GET_EARLIEST_MSG_STORETIME, header, timeout_ms=timeout_ms)
    return reply.raise_for_code(f"earliest store time of {queue}").header(headers.TimeReply).time_ms


async def query_consumer_offset(
    broker: Peer,
    queue: MessageQueue,
    group: str,
    *,
    zero_if_not_found: bool | None = None,
    timeout_ms: float = TIMEOUT_MS,
) -> int | None:
    """Return the group's committed offset, None if there is none.

    For a queue that still has its first messages, the broker answers 0 where none is committed, unless
    `zero_if_not_found` is false.
    """
    header = headers.QueryConsumerOffsetHeader(
        group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        zero_if_not_found=zero_if_not_found,
        broker_name=queue.broker_name,
    )
    reply = await broker.request(RequestCode.QUERY_CONSUMER_OFFSET, header, timeout_ms=timeout_ms)
    if reply.code == ResponseCode.QUERY_NOT_FOUND:
        return None
    return reply.raise_for_code(f"committed offset of {queue}").header(headers.OffsetReply).offset


async def update_consumer_offset(
    broker: Peer, queue: MessageQueue, group: str, offset: int, *, oneway: bool = False, timeout_ms: float = TIMEOUT_MS
) -> None:
    """Commit `offset`, the next one to consume, for a group's queue. `oneway`: without waiting for the reply."""
    header = headers.UpdateConsumerOffsetHeader(
        group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset, broker_name=queue.broker_name
    )
    if oneway:
        broker.oneway(RequestCode.UPDATE_CONSUMER_OFFSET, header)
        return
    reply = await broker.request(RequestCode.UPDATE_CONSUMER_OFFSET, header, timeout_ms=timeout_ms)
    reply.raise_for_code(f"commit of {queue}")


def commits_in_turn(queues: Iterable[MessageQueue]) -> tuple[list[MessageQueue], list[MessageQueue]]:
    """Divide queues to commit: first one of each topic and broker, whose replies are awaited before the others are
    sent.

    Why: if a group's first two commits to a topic arrive at once, a 5.5.0 broker forgets one
    (ConsumerOffsetManager.commitOffset).
    """
    first: dict[tuple[str, str], MessageQueue] = {}
    others = [queue for queue in queues if first.setdefault((queue.broker_name, queue.topic), queue) is not queue]
    return list(first.values()), others


async def query_message(
    broker: Peer,
    topic: str,
    key: str,
    *,
    count_max: int = 64,
    begin_ms: int = 0,
    end_ms: int = TIMES_END_MS,
    unique: bool = False,
    broker_name: str = "",
    timeout_ms: float = TIMEOUT_MS,
) -> QueriedMessages:
    """Return the messages that a broker's index has for a key, or for a unique id if `unique`.

    The index knows keys by their hashes alone, so messages of other keys may be among them: compare the keys.
    """
    header = headers.QueryMessageHeader(
        topic=topic,
        key=key,
        count_max=count_max,
        begin_ms=begin_ms,
        end_ms=end_ms,
        kind="U" if unique else "K",
        unique=unique,
    )
    reply = await broker.request(RequestCode.QUERY_MESSAGE, header, timeout_ms=timeout_ms)
    if reply.code == ResponseCode.QUERY_NOT_FOUND:
        return QueriedMessages([])
    reply.raise_for_code(f"query of topic {topic!r}")
    index = reply.header(headers.QueryMessageReply)
    return QueriedMessages(_looked_at(reply.body, broker_name), index.updated_ms, index.updated_position)


async def view_message(
    broker: Peer,
    physical_offset: int,
    *,
    topic: str | None = None,
    broker_name: str = "",
    timeout_ms: float = TIMEOUT_MS,
) -> ReceivedMessage:
    """Return the message at a position of the broker's log."""
    header = headers.ViewMessageHeader(topic=topic, physical_offset=physical_offset)
    reply = await broker.request(RequestCode.VIEW_MESSAGE_BY_ID, header, timeout_ms=timeout_ms)
    reply.raise_for_code(f"view of the message at {physical_offset}")
    messages = _looked_at(reply.body, broker_name)
    if not messages:
        raise RecordError(f"the broker's reply to the view of the message at {physical_offset} holds no message")
    return messages[0]


def _looked_at(stored: bytes, broker_name: str) -> list[ReceivedMessage]:
    """Decode messages for a query: one whose body cannot be had says why, and the others are still returned."""
    inflation = record.Inflation(FOUND_INFLATED_BYTES, check_crc=False, to_end=True)
    return record.decode_messages(stored, broker_name, inflation)


# -- groups -------------------------------------------------------------------------------------------------------


async def heartbeat(broker: Peer, body: bodies.Heartbeat, *, timeout_ms: float = TIMEOUT_MS) -> None:
    """Tell the broker which groups this client is in."""
    reply = await broker.request(RequestCode.HEART_BEAT, None, bodies.encode(body), timeout_ms=timeout_ms)
    reply.raise_for_code("heartbeat")


async def unregister(
    broker: Peer,
    client_id: str,
    *,
    producer_group: str | None = None,
    consumer_group: str | None = None,
    timeout_ms: float = TIMEOUT_MS,
) -> None:
    """Tell a broker that a client leaves a producer group, a consumer group, or both."""
    header = headers.UnregisterClientHeader(
        client_id=client_id, producer_group=producer_group, consumer_group=consumer_group
    )
    reply = await broker.request(RequestCode.UNREGISTER_CLIENT, header, timeout_ms=timeout_ms)
    reply.raise_for_code("unregister")


async def consumer_list(broker: Peer, group: str, *, timeout_ms: float = TIMEOUT_MS) -> list[str]:
    """Return client ids of the group's members, each once; empty if the broker knows none."""
    header = headers.ConsumerListHeader(group=group)
    reply = await broker.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header, timeout_ms=timeout_ms)
    # RocketMQ answers "no consumer for this group" with the general error code.
    if reply.code == ResponseCode.SYSTEM_ERROR and not reply.no_permission:
        return []
    reply.raise_for_code(f"members of group {group!r}")
    # RocketMQ's broker has a member twice whose connection broke without an end and was made anew.
    return list(dict.fromkeys(java_json.decode(reply.body, bodies.ConsumerList).consumer_id_list))


async def group_subscriptions(broker: Peer, group: str, *, timeout_ms: float = TIMEOUT_MS) -> dict[str, str]:
    """Return the filter of each topic that a broker knows a group to subscribe to, retry topics left out."""
    header = headers.ConsumerListHeader(group=group)
    reply = await broker.request(RequestCode.GET_CONSUMER_CONNECTION_LIST, header, timeout_ms=timeout_ms)
    reply.raise_for_code(f"subscriptions of group {group!r}")
    table = java_json.decode(reply.body, bodies.ConsumerConnections).subscription_table
    return {topic: s.sub_string for topic, s in table.items() if not topic.startswith(RETRY_PREFIX)}


async def lock(
    broker: Peer, group: str, client_id: str, queues: list[MessageQueue], *, timeout_ms: float = TIMEOUT_MS
) -> set[MessageQueue]:
    """Lock queues for this client, for 60 s. Returns those that it holds now."""
    body = _lock_body(group, client_id, queues)
    reply = await broker.request(
        RequestCode.LOCK_BATCH_MQ, headers.LockHeader(), bodies.encode(body), timeout_ms=timeout_ms
    )
    reply.raise_for_code(f"lock for group {group!r}")
    return {q.queue() for q in java_json.decode(reply.body, bodies.LockReply).lock_ok_mq_set}


async def unlock(
    broker: Peer, group: str, client_id: str, queues: list[MessageQueue], *, timeout_ms: float = TIMEOUT_MS
) -> None:
    """Release the locks that a client holds on queues for its group."""
    body = _lock_body(group, client_id, queues)
    reply = await broker.request(
        RequestCode.UNLOCK_BATCH_MQ, headers.LockHeader(), bodies.encode(body), timeout_ms=timeout_ms
    )
    reply.raise_for_code(f"unlock for group {group!r}")


def _lock_body(group: str, client_id: str, queues: list[MessageQueue]) -> bodies.LockRequest:
    return bodies.LockRequest(
        client_id=client_id, consumer_group=group, mq_set=[bodies.QueueBody.of(q) for q in queues]
    )
