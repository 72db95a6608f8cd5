"""Rows that are sent without a task each: each is told once, and goes elsewhere only where it may."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.client.fake import Fake, in_loop, until

from rocketspark.client.producer.prepared_message import PreparedMessage
from rocketspark.client.producer.producer import AsyncProducer
from rocketspark.client.results import SendResult
from rocketspark.model import MessageQueue
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.spark.exactly_once.half_messages import HalfMessageSender
from rocketspark.spark.write.bounded_flow import SendsInFlight
from rocketspark.spark.write.queue_choice import QueueTarget
from rocketspark.spark.write.row_sender import RowSender
from rocketspark.tables.options import parse_write

pytestmark = pytest.mark.shows("rows sent to a broker of Apache's exactly once")

ON_A, ON_B = MessageQueue("t", "broker-a", 0), MessageQueue("t", "broker-b", 0)
OUT = PreparedMessage("t", b"body", "UNIQ_KEY\x01U\x02", 0, 0, "U")


class Told:
    """What a send was told."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[SendResult | None, BaseException | None]] = []

    def __call__(self, result: SendResult | None, error: BaseException | None) -> None:
        self.outcomes.append((result, error))


def busy(h: Any, body: bytes) -> tuple[int, str]:
    return ResponseCode.SYSTEM_BUSY, "busy"


@pytest.mark.parametrize(
    ("target", "ends_on"), [(QueueTarget("t"), "broker-b"), (QueueTarget("t", "broker-a"), None)], ids=["free", "named"]
)
@in_loop
async def test_a_row_goes_to_another_broker_where_it_may(target: QueueTarget, ends_on: str | None) -> None:
    async with Fake(2, t=1) as fake, AsyncProducer(fake.namesrv, "pg", retries=2) as producer:
        sender = RowSender(producer, parse_write({"namesrv": fake.namesrv, "topic": "t"}))
        fake.names.brokers["broker-a"].rules[RequestCode.SEND_MESSAGE_V2] = busy
        for first in (ON_B, ON_A):
            told, flight = Told(), SendsInFlight(9, 999)
            sender.begin(OUT, target, first, told, flight.go_on)
            await until(lambda told=told: told.outcomes)
            await flight.end()
            ((result, error),) = told.outcomes
            expected = "broker-b" if first is ON_B else ends_on
            assert (result and result.queue.broker_name) == expected
            assert (error is None) == (expected is not None)


@in_loop
async def test_rows_under_way_are_given_up_when_their_sender_is_closed() -> None:
    async with Fake(1, t=1) as fake, AsyncProducer(fake.namesrv, "pg") as producer:
        fake.broker.silent.add(RequestCode.SEND_MESSAGE_V2)
        sender = HalfMessageSender.__new__(HalfMessageSender)
        sender._sender = RowSender(producer, parse_write({"namesrv": fake.namesrv, "topic": "t"}))
        sender.in_flight, sender._singles, sender._begun = SendsInFlight(9, 999), {}, 0
        await sender._sender.queues.find("t")
        for at in range(3):
            sender._begin_single(OUT, QueueTarget("t"), ON_A, None, at)  # type: ignore[arg-type]
        assert not sender.in_flight.has_room(999)
        await sender.close()
        assert sender._singles == {}
        assert sender.in_flight.has_room(999)
        await sender.in_flight.settle()
