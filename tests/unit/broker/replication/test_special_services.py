"""What a new master begins in turns: stopped meanwhile, nothing of it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from rocketspark.broker.replication.special_services import SpecialServices
from rocketspark.errors import StoreUnwritable


@pytest.mark.shows(
    "a new master finds open half messages in turns of its loop, and delivers nothing if it is stopped meanwhile"
)
def test_services_that_are_stopped_while_they_begin_do_not_run() -> None:
    looked = list[int]()

    def turns() -> Iterator[None]:
        for number in range(5):
            looked.append(number)
            yield

    async def main() -> None:
        parts: dict[str, Any] = {name: Mock() for name in ("delays", "timers", "transactions", "pops")}
        parts["timers"].stop = AsyncMock()
        parts["transactions"].start_in_turns = turns
        services = SpecialServices(**parts, deliver=Mock())
        others = list[int]()
        asyncio.get_running_loop().call_soon(lambda: others.append(len(looked)))
        await services.begin()
        assert services.running
        assert 0 < others[0] < len(looked)  # Others had a turn.
        parts["timers"].start.assert_called_once()
        await services.begin()
        parts["timers"].start.assert_called_once()
        for end in (services.stop, services.abandon):
            await end()
            parts["timers"].start.reset_mock()
            begun = asyncio.ensure_future(services.begin())
            await asyncio.sleep(0)
            await end()
            with pytest.raises(StoreUnwritable, match="stops its deliveries"):
                await begun
            assert not services.running
            parts["timers"].start.assert_not_called()
            parts["transactions"].abandon.assert_called()

    asyncio.run(main())
