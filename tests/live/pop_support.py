"""Raw requests that pop, and what their replies tell."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from tests.live.support import GROUP, TOPIC

from rocketspark.protocol import headers, pop_answers
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.message import properties, record
from rocketspark.protocol.message.record import Record
from rocketspark.protocol.pop_answers import ReceiptHandle, retry_flag
from rocketspark.transport.peer import Peer
from rocketspark.transport.request_frames import Reply

BROKER = "broker-a"


class Popped(NamedTuple):
    """One message with its handle; `count`: what the order counts tell of it."""

    body: bytes
    handle: str
    topic: str
    queue_id: int
    offset: int
    reconsume_times: int
    count: int
    record: Record


def pop_header(topic: str = TOPIC, queue_id: int = -1, /, **changes: Any) -> headers.PopHeader:
    values: dict[str, Any] = {
        "group": GROUP,
        "topic": topic,
        "queue_id": queue_id,
        "count_max": 32,
        "invisible_time_ms": 60_000,
        "poll_time_ms": 0,
        "born_time_ms": int(time.time() * 1000),
        "init_mode": 0,
    }
    return headers.PopHeader(**values | changes)


async def pop(peer: Peer, topic: str = TOPIC, queue_id: int = -1, /, **changes: Any) -> Reply:
    """POP_MESSAGE, which does not wait unless it is told."""
    return await peer.request(RequestCode.POP_MESSAGE, pop_header(topic, queue_id, **changes))


async def popped(peer: Peer, topic: str = TOPIC, queue_id: int = -1, /, **changes: Any) -> list[Popped]:
    """What a pop gave; nothing if it found nothing."""
    return messages(await pop(peer, topic, queue_id, **changes), topic)


def messages(reply: Reply, topic: str = TOPIC) -> list[Popped]:
    """The messages of a pop's reply with their handles, as RocketMQ's client makes them of the reply's texts."""
    reply.raise_for_code("pop", 210)
    head = reply.header(headers.PopReply)
    starts = pop_answers.parse_start_offsets(head.start_offsets)
    offsets = pop_answers.parse_message_offsets(head.message_offsets)
    counts = pop_answers.parse_order_counts(head.order_counts)
    found = []
    for kept in record.decode_all(reply.body):
        given = properties.find(kept.properties, b"POP_CK")
        flag = given.decode().split(" ")[4] if given else retry_flag(kept.topic.decode())
        source = flag, kept.queue_id
        assert kept.queue_offset in offsets[source]
        handle = ReceiptHandle(
            start_offset=starts[source],
            pop_time_ms=head.pop_time_ms,
            invisible_time_ms=head.invisible_time_ms,
            revive_queue_id=head.revive_queue_id,
            retry_flag=flag,
            broker_name=BROKER,
            queue_id=kept.queue_id,
            queue_offset=kept.queue_offset,
        )
        text = given.decode() if given else handle.encode()
        assert text == handle.encode()
        key = counts.get((flag, f"qo{kept.queue_id}%{kept.queue_offset}"), counts.get((flag, str(kept.queue_id)), 0))
        found.append(
            Popped(
                kept.body,
                text,
                kept.topic.decode(),
                kept.queue_id,
                kept.queue_offset,
                kept.reconsume_times,
                key,
                kept,
            )
        )
    assert sum(map(len, offsets.values())) == len(found)
    return found


def real_topic(message: Popped, topic: str = TOPIC, group: str = GROUP) -> str:
    """The topic that an acknowledgement names."""
    flag = message.handle.split(" ")[4]
    return {"0": topic, "1": f"%RETRY%{group}_{topic}", "2": f"%RETRY%{group}+{topic}"}[flag]


async def ack(peer: Peer, message: Popped, topic: str = TOPIC, /, **changes: Any) -> Reply:
    """ACK_MESSAGE."""
    values: dict[str, Any] = {
        "group": GROUP,
        "topic": changes.get("topic") or real_topic(message, topic, changes.get("group", GROUP)),
        "queue_id": message.queue_id,
        "handle": message.handle,
        "offset": message.offset,
    }
    return await peer.request(RequestCode.ACK_MESSAGE, headers.AckHeader(**values | changes))


async def change(
    peer: Peer, message: Popped, invisible_time_ms: int, topic: str = TOPIC, /, **changes: Any
) -> tuple[Reply, str]:
    """CHANGE_MESSAGE_INVISIBLETIME; with the reply the new handle, as RocketMQ's client makes it."""
    values: dict[str, Any] = {
        "group": GROUP,
        "topic": real_topic(message, topic),
        "queue_id": message.queue_id,
        "handle": message.handle,
        "offset": message.offset,
        "invisible_time_ms": invisible_time_ms,
    }
    header = headers.ChangeInvisibleTimeHeader(**values | changes)
    reply = await peer.request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
    if reply.code:
        return reply, ""
    told = reply.header(headers.ChangeInvisibleTimeReply)
    flag = message.handle.split(" ")[4]
    numbers = f"{message.offset} {told.pop_time_ms} {told.invisible_time_ms} {told.revive_queue_id}"
    return reply, f"{numbers} {flag} {BROKER} {message.queue_id} {message.offset}"
