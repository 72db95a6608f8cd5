"""How long calls take: by method and status, and only where it is asked for."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

pytest.importorskip("grpc")

from rocketspark.proxy.call import CANCELLED, CallTimes
from rocketspark.proxy.service import Service
from rocketspark.proxy.wire import messages


def test_a_call_that_is_given_up_and_one_that_fails_are_counted_as_that() -> None:
    times = CallTimes()

    async def waits(request: Any, context: Any) -> Any:
        await asyncio.Event().wait()

    async def fails(request: Any, context: Any) -> Any:
        raise OSError("of the stream")

    async def main() -> None:
        for kind, make in (("One", times.unary), ("Many", times.streaming)):
            task = asyncio.ensure_future(make(f"{kind}Waits", waits)(None, None))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(OSError, match="of the stream"):
                await make(f"{kind}Fails", fails)(None, None)

    asyncio.run(main())
    found = {rpc: {code: row.count for code, row in rows.items()} for rpc, rows in times.rows.items()}
    assert found == {f"{kind}{what}": {CANCELLED: 1} for kind in ("One", "Many") for what in ("Waits", "Fails")}


def test_without_metrics_handlers_are_served_as_they_are() -> None:
    async def function(call: Any, request: Any) -> Any:
        raise AssertionError("not called")

    plain, measured = Service(), Service(times=CallTimes())
    for service in (plain, measured):
        service.serve("SendMessage", function)
    path = f"/{messages.SERVICE}/SendMessage"
    served = [inspect.getclosurevars(each._handlers[path].unary_unary).nonlocals["serve"] for each in (plain, measured)]
    assert [each.__qualname__ for each in served] == ["Service._unary.<locals>.serve", "CallTimes.unary.<locals>.timed"]
