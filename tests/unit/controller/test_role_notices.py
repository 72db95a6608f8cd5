"""Notices of who is master: each broker hears of the newest alone."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from rocketspark.controller.elections import RoleNotices
from rocketspark.protocol.headers.controller import ElectMasterReply


def test_a_newer_notice_takes_the_place_of_one_that_has_not_left() -> None:
    told: list[tuple[str, bytes]] = []
    reached = asyncio.Event()

    class Slow:
        async def get(self, address: str) -> Any:
            await reached.wait()
            return SimpleNamespace(oneway=lambda code, header, body: told.append((address, body)))

        async def close(self) -> None:
            pass

    async def main() -> None:
        notices = RoleNotices(cast(Any, Slow()))
        for body in (b"old", b"new"):
            notices.tell(["a", "b"], ElectMasterReply(), body)
            # The older ones are over, and called back.
            for _ in range(5):
                await asyncio.sleep(0)
        assert notices._tasks.keys() == {"a", "b"}
        reached.set()
        while notices._tasks:
            await asyncio.sleep(0)
        assert sorted(told) == [("a", b"new"), ("b", b"new")]
        # One that ended leaves the place to the next.
        notices.tell(["a"], ElectMasterReply(), b"third")
        while notices._tasks:
            await asyncio.sleep(0)
        assert told[-1] == ("a", b"third")
        await notices.close()

    asyncio.run(asyncio.wait_for(main(), 60))
