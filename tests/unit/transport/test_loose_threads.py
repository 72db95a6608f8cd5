"""Calls in threads beside the loop."""

from __future__ import annotations

import asyncio
import threading

from rocketspark.transport.loose_threads import LooseThreads


def test_a_call_that_is_cancelled_before_its_turn_is_left_out() -> None:
    async def main() -> list[str]:
        threads, may_end, made = LooseThreads("test"), threading.Event(), list[str]()
        first = threads.run(lambda: may_end.wait(60))
        gone = threads.run(lambda: made.append("gone"))
        last = threads.run(lambda: made.append("last"))
        gone.cancel()
        may_end.set()
        assert await first
        await last
        assert await threads.close(60)
        return made

    assert asyncio.run(main()) == ["last"]
