"""Replies of handlers to requests, whatever the request says."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from rocketspark.faststream.producer import RocketProducer
from rocketspark.model import Message
from rocketspark.protocol.message import properties


@pytest.mark.parametrize(
    ("ttl", "is_sent"), [("60000000", True), ("1", False), ("9" * 5000, True), ("soon", True), ("", True)]
)
def test_a_reply_is_sent_unless_nobody_waits_for_it_any_more(ttl: str, *, is_sent: bool) -> None:
    sent: list[Any] = []

    async def reply(request: Any, body: bytes, **more: Any) -> None:
        sent.append(body)

    producer = RocketProducer()
    producer._client = SimpleNamespace(reply=reply)  # type: ignore[assignment]
    request: Any = SimpleNamespace(
        properties={properties.TTL: ttl}, born_time_ms=int(time.time() * 1000) - 10_000, message_id="1"
    )
    asyncio.run(producer._reply(request, Message("t", b"yes")))
    assert sent == ([b"yes"] if is_sent else [])
