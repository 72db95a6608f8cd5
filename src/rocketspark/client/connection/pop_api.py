"""Calls of consumers that pop, on one broker. Rule: as in client_api."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rocketspark.client.connection.client_api import TIMEOUT_MS
from rocketspark.model import MessageQueue
from rocketspark.protocol import pop_answers
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers.pop import (
    AckHeader,
    ChangeInvisibleTimeHeader,
    ChangeInvisibleTimeReply,
    PopHeader,
    PopReply,
)
from rocketspark.protocol.json import bodies, java_json, pop_records
from rocketspark.protocol.json.pop_records import AckedBatch, Assignment, AssignmentQuery, BatchAck
from rocketspark.protocol.pop_answers import ReceiptHandle, real_topic
from rocketspark.transport.peer import Peer

POP_RESULTS = (ResponseCode.POLLING_FULL, ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND)
# Bits of one entry of a batch of acknowledgements: what filters left out lies between.
BITS_MAX = 1 << 16


class PopResult(NamedTuple):
    """A reply to a pop: `code` (messages found, none in time, or too many requests wait at the broker), its header, the
    raw records.
    """

    code: int
    header: PopReply
    records: bytes


async def pop(broker: Peer, header: PopHeader, *, timeout_ms: float) -> PopResult:
    """Pop messages. The result's `records` are the broker's own bytes, for `protocol.record.decode_messages`."""
    reply = await broker.request(RequestCode.POP_MESSAGE, header, timeout_ms=timeout_ms)
    reply.raise_for_code(f"pop of {header.topic!r}", *POP_RESULTS)
    return PopResult(reply.code, reply.header(PopReply), reply.body)


def ack_header(group: str, topic: str, handle: ReceiptHandle, *, lite_topic: str | None = None) -> AckHeader:
    """Return the request header that acknowledges one popped message; `topic`: the topic that it was first sent to,
    the parent of its `lite_topic` if it has one.
    """
    return AckHeader(
        group=group,
        topic=real_topic(topic, group, handle.retry_flag),
        queue_id=handle.queue_id,
        handle=handle.encode(),
        offset=handle.queue_offset,
        lite_topic=lite_topic,
        broker_name=handle.broker_name,
    )


def change_header(
    group: str,
    topic: str,
    handle: ReceiptHandle,
    invisible_time_ms: int,
    *,
    suspend: bool | None = None,
    lite_topic: str | None = None,
) -> ChangeInvisibleTimeHeader:
    """Return the request header that makes a popped message invisible for `invisible_time_ms` from now on.

    `suspend`: the delivery that ends now does not count as an attempt.
    """
    return ChangeInvisibleTimeHeader(
        group=group,
        topic=real_topic(topic, group, handle.retry_flag),
        queue_id=handle.queue_id,
        handle=handle.encode(),
        offset=handle.queue_offset,
        invisible_time_ms=invisible_time_ms,
        lite_topic=lite_topic,
        suspend=suspend,
        broker_name=handle.broker_name,
    )


async def ack(
    broker: Peer,
    group: str,
    topic: str,
    handle: ReceiptHandle,
    *,
    lite_topic: str | None = None,
    timeout_ms: float = TIMEOUT_MS,
) -> None:
    """Acknowledge one message; `topic`: the one it was first sent to, the parent of its `lite_topic` if it has one."""
    header = ack_header(group, topic, handle, lite_topic=lite_topic)
    reply = await broker.request(RequestCode.ACK_MESSAGE, header, timeout_ms=timeout_ms)
    reply.raise_for_code(f"acknowledgement of a message of topic {topic!r}")


async def ack_all(
    broker: Peer,
    group: str,
    broker_name: str,
    handles: Sequence[tuple[str, ReceiptHandle]],
    *,
    timeout_ms: float = TIMEOUT_MS,
) -> None:
    """Acknowledge messages of one broker in one request; each with the topic it was first sent to."""
    near = [(topic, h) for topic, h in handles if 0 <= h.queue_offset - h.start_offset < BITS_MAX]
    for topic, handle in handles:
        if not 0 <= handle.queue_offset - handle.start_offset < BITS_MAX:
            await ack(broker, group, topic, handle, timeout_ms=timeout_ms)
    if near:
        body = pop_records.encode_batch_ack(BatchAck(broker_name=broker_name, acks=_batches(group, near)))
        reply = await broker.request(RequestCode.BATCH_ACK_MESSAGE, None, body, timeout_ms=timeout_ms)
        reply.raise_for_code(f"acknowledgement of {len(near)} messages")


def _batches(group: str, handles: Sequence[tuple[str, ReceiptHandle]]) -> list[AckedBatch]:
    offsets: dict[tuple[str, str, int, int, int, int, int], list[int]] = {}
    for topic, h in handles:
        key = (topic, h.retry_flag, h.start_offset, h.queue_id, h.revive_queue_id, h.pop_time_ms, h.invisible_time_ms)
        offsets.setdefault(key, []).append(h.queue_offset)
    return [
        AckedBatch(
            group=group,
            topic=topic,
            retry_flag=flag,
            start_offset=start,
            queue_id=queue_id,
            revive_queue_id=revive_queue_id,
            pop_time_ms=pop_ms,
            invisible_time_ms=invisible_ms,
            bits=pop_records.bits_of(start, acked),
        )
        for (topic, flag, start, queue_id, revive_queue_id, pop_ms, invisible_ms), acked in offsets.items()
    ]


async def change_invisible_time(
    broker: Peer,
    group: str,
    topic: str,
    handle: ReceiptHandle,
    invisible_time_ms: int,
    *,
    lite_topic: str | None = None,
    timeout_ms: float = TIMEOUT_MS,
) -> ReceiptHandle:
    """Make a popped message invisible for `invisible_time_ms` from now on; returns its new handle, the old one is
    void.
    """
    header = change_header(group, topic, handle, invisible_time_ms, lite_topic=lite_topic)
    reply = await broker.request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header, timeout_ms=timeout_ms)
    new = reply.raise_for_code(f"change of the invisible time of a message of topic {topic!r}").header(
        ChangeInvisibleTimeReply
    )
    return pop_answers.with_new_time(handle, new.pop_time_ms, new.invisible_time_ms, new.revive_queue_id)


async def query_assignment(
    broker: Peer,
    topic: str,
    group: str,
    client_id: str,
    strategy_name: str,
    *,
    timeout_ms: float = TIMEOUT_MS,
) -> dict[MessageQueue, str] | None:
    """Ask a broker which queues a member of a group reads: returns each with "PULL" or "POP", None if the member keeps
    its queues.
    """
    body = AssignmentQuery(topic=topic, consumer_group=group, client_id=client_id, strategy_name=strategy_name)
    reply = await broker.request(RequestCode.QUERY_ASSIGNMENT, None, bodies.encode(body), timeout_ms=timeout_ms)
    reply.raise_for_code(f"assignment of topic {topic!r}")
    found = java_json.decode(reply.body, Assignment).message_queue_assignments
    return None if found is None else {a.message_queue.queue(): a.mode for a in found}
