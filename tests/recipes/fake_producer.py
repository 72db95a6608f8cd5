"""A producer that fails as it is told, and notes what was sent. For tests of the outbox alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from rocketspark import Message, MessageQueue, SendResult, SendStatus
from rocketspark.client.producer.prepared_message import PackingSettings
from rocketspark.errors import NoReply, SendFailed, ServerError


def no_reply(topic: str = "T") -> SendFailed:
    return SendFailed(topic, NoReply("no reply in time"), attempts=1, brokers=("b",), cost_ms=1)


def refused(topic: str = "T", code: int = 13) -> SendFailed:
    cause = ServerError(code, "the message is illegal", retriable=False)
    return SendFailed(topic, cause, attempts=1, brokers=("b",), cost_ms=1)


class FakeProducer:
    """`fails(message)`: the error of a send, or None; `sent`: (body, unique id) in order; `lanes`: keys in flight."""

    client_id = "fake"
    packing = PackingSettings()

    def __init__(self, fails: Callable[[Message], BaseException | None] = lambda message: None) -> None:
        self.fails = fails
        self.sent: list[tuple[str, str]] = []
        self.messages: list[Message] = []
        self.lanes: set[str] = set()
        self.collisions: list[str] = []
        self.arrived = asyncio.Event()

    async def resend(self, message: Message, message_id: str, *, timeout_ms: float | None = None) -> SendResult:
        lane = message.sharding_key or message_id
        if lane in self.lanes:
            self.collisions.append(lane)
        self.lanes.add(lane)
        try:
            await asyncio.sleep(0)
            error = self.fails(message)
            if error is not None:
                raise error
            self.sent.append((message.body.decode(), message_id))
            self.messages.append(message)
            self.arrived.set()
            return SendResult(SendStatus.SEND_OK, message_id, "", MessageQueue(message.topic, "b", 0), len(self.sent))
        finally:
            self.lanes.discard(lane)

    @property
    def bodies(self) -> list[str]:
        return [body for body, _ in self.sent]

    async def until_sent(self, count: int, limit_s: float = 120) -> None:
        async with asyncio.timeout(limit_s):
            while len(self.sent) < count:
                self.arrived.clear()
                await self.arrived.wait()


def anything(producer: FakeProducer) -> Any:
    """The producer, for arguments that ask for a real one."""
    return producer
