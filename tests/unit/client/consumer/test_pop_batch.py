"""What was popped together: of messages that are stored as one record, the last to be done acknowledges it."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

from tests.unit.protocol.test_pop_answers import message

from rocketspark.client.consumer.pop.popper import PopBatch
from rocketspark.model import ReceivedMessage


def popped(offset: int, handle: str) -> ReceivedMessage:
    made = message("t", 0, offset)
    made.receipt_handle = handle
    return made


def batch_of(messages: list[ReceivedMessage]) -> PopBatch:
    popper: Any = SimpleNamespace(counts=None, waiting=len(messages), batches=set(), wake=lambda: None)
    return PopBatch(popper, messages, time.monotonic() + 3600)


def test_a_record_is_acknowledged_once_with_its_last_message() -> None:
    async def main() -> None:
        a, b, c, single = popped(0, "one"), popped(1, "one"), popped(2, "one"), popped(3, "two")
        batch = batch_of([a, b, c, single])
        assert batch.to_acknowledge([b]) == []
        assert batch.to_acknowledge([single, a]) == [single]
        assert batch.to_acknowledge([c]) == [c]
        batch.finish([a, b, c, single])

    asyncio.run(main())


def test_a_record_of_which_a_message_failed_is_not_acknowledged() -> None:
    async def main() -> None:
        done, failed = popped(0, "one"), popped(1, "one")
        batch = batch_of([done, failed])
        batch.finish([failed])
        assert batch.to_acknowledge([done]) == []
        batch.finish([done])

    asyncio.run(main())


def test_messages_with_handles_of_their_own_are_acknowledged_as_they_are_done() -> None:
    async def main() -> None:
        messages = [popped(number, str(number)) for number in range(3)]
        batch = batch_of(messages)
        assert batch.to_acknowledge(messages[1:]) == messages[1:]
        batch.finish(messages)

    asyncio.run(main())
