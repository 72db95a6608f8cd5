"""What a listener of lite topics is shown where brokers are gone."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from rocketspark import AsyncLitePushConsumer
from rocketspark.errors import TransportError


class GonePops:
    """A broker that takes acknowledgements, and no word of what failed from the `fails_at`-th on."""

    def __init__(self, fails_at: int) -> None:
        self.left = fails_at

    def handle_of(self, message: Any) -> None:
        """It is valid."""

    async def attempts_max(self, message: Any) -> int:
        return 3

    async def ack(self, messages: Any) -> None:
        """It is taken."""

    async def change_invisible_time(self, message: Any, delay_ms: float) -> None:
        self.left -= 1
        if self.left < 0:
            raise TransportError("the connection ended")


@pytest.mark.shows(
    "mended: a push consumer of lite topics was shown messages before one that had failed, if its broker died then"
)
@pytest.mark.parametrize("fails_at", [0, 1, 2])
def test_nothing_is_shown_before_what_failed_though_its_broker_is_gone(fails_at: int) -> None:
    async def main() -> None:
        shown: list[int] = []
        consumer = AsyncLitePushConsumer("127.0.0.1:1", "g", "t")

        @consumer.listen
        async def listener(message: Any) -> bool:
            shown.append(message.queue_offset)
            return bool(message.queue_offset != 1)

        consumer._pops, consumer._state = GonePops(fails_at), "started"  # type: ignore[assignment]
        for offset in range(5):
            message: Any = SimpleNamespace(
                lite_topic="a", broker_name="b", queue_offset=offset, reconsume_times=0, body_error=None, message_id="m"
            )
            consumer._take_in(message)
        await asyncio.wait(list(consumer._working))
        assert shown == [0, 1]
        assert (consumer._backlog, consumer._waiting) == (0, {})

    asyncio.run(main())
