"""Frames made from a template equal those of the typed header, and arrive as what was sent; acknowledgements."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rocketspark.client.connection.client_api import SendFrames
from rocketspark.client.connection.pop_api import ack_all
from rocketspark.model import MessageQueue
from rocketspark.protocol import frames, headers
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.frames import ONEWAY_FLAG
from rocketspark.protocol.headers import SendHeader
from rocketspark.protocol.json import pop_records
from rocketspark.protocol.json.pop_records import AckedBatch, BatchAck
from rocketspark.protocol.pop_answers import ReceiptHandle
from rocketspark.transport.peer import Peer

TEXTS = ["", "UNIQ_KEY\x01AB\x02WAIT\x01true\x02", 'quote" back\\slash %d %b {} é 漢 \x00\x1f']


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("topic", ["t", "%RETRY%g", "a|b-c_d"])
@pytest.mark.parametrize("batch", [False, True])
def test_template_equals_typed_header(text: str, topic: str, batch: bool) -> None:
    code = RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
    made = SendFrames(MessageQueue(topic, "broker-a", 3), group="g%d", code=code)
    frame = frames.decode(made.frame(77, b"body", text, 1, 1_700_000_000_000, -5))
    assert (frame.code, frame.opaque, frame.flag) == (320 if batch else 310, 77, 0)
    assert frame.body == b"body"
    assert headers.from_ext(SendHeader, frame.ext) == SendHeader(
        producer_group="g%d",
        topic=topic,
        queue_id=3,
        sys_flag=1,
        born_time_ms=1_700_000_000_000,
        flag=-5,
        properties=text,
        batch=batch,
        broker_name="broker-a",
    )


def test_oneway_is_marked() -> None:
    made = SendFrames(MessageQueue("t", "b", 0), group="g", oneway=True)
    frame = frames.decode(made.frame(1, b"x", "", 0, 0, 0))
    assert frame.flag & ONEWAY_FLAG
    assert frame.code == RequestCode.SEND_MESSAGE_V2


@pytest.mark.shows("mended: a topic ending in the template's digits breaks framing")
@pytest.mark.parametrize(
    "name", ["t1912345601", "1912345604", "a1912345602b1912345605", "1912345601_1912345605_1912345609"]
)
def test_a_name_may_hold_any_digits(name: str) -> None:
    made = SendFrames(MessageQueue(name, "\ue00071fbe401\ue000" + name, 3), group=name, default_topic=name)
    frame = frames.decode(made.frame(77, b"body", "A\x01B\x02", 1, 1_700_000_000_000, -5))
    assert (frame.opaque, frame.flag) == (77, 0)
    header = headers.from_ext(SendHeader, frame.ext)
    assert (header.topic, header.producer_group, header.default_topic, header.properties) == (
        name,
        name,
        name,
        "A\x01B\x02",
    )
    assert (header.sys_flag, header.born_time_ms, header.flag) == (1, 1_700_000_000_000, -5)


def test_messages_of_one_pop_of_a_queue_are_acknowledged_together() -> None:
    asked: list[Any] = []

    class Told:
        async def request(self, code: int, header: Any, body: bytes = b"", **_: Any) -> Any:
            asked.append(header.handle if header else pop_records.decode_batch_ack(body))
            return SimpleNamespace(raise_for_code=lambda what: None)

    def handle(queue_id: int, offset: int, *, pop_time_ms: int = 11) -> ReceiptHandle:
        return ReceiptHandle(7, pop_time_ms, 60_000, 3, "1", "b", queue_id, offset)

    def batch(queue_id: int, *offsets: int, pop_time_ms: int = 11) -> AckedBatch:
        bits = pop_records.bits_of(7, list(offsets))
        return AckedBatch(
            group="g",
            topic="T",
            retry_flag="1",
            start_offset=7,
            queue_id=queue_id,
            revive_queue_id=3,
            pop_time_ms=pop_time_ms,
            invisible_time_ms=60_000,
            bits=bits,
        )

    far = [handle(2, 6), handle(2, 7 + (1 << 16))]
    near = [handle(2, 7), handle(2, 6 + (1 << 16)), handle(1, 8), handle(2, 9, pop_time_ms=12)]
    given = [("T", h) for h in (*near, *far)]
    asyncio.run(ack_all(cast(Peer, Told()), "g", "b", given))
    batches = [batch(2, 7, 6 + (1 << 16)), batch(1, 8), batch(2, 9, pop_time_ms=12)]
    # What has no bit within the body's limit goes on its own.
    assert asked == [*(h.encode() for h in far), BatchAck(broker_name="b", acks=batches)]
