"""How long calls take. Rule: a call pays for its time alone, and only where metrics are served."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any

from rocketspark.model.histogram import Histogram
from rocketspark.proxy.calls.call import CANCELLED

# In ms.
CALL_BOUNDS = (1, 3, 5, 7, 10, 100, 1000, 2000, 3000)

Serve = Callable[[Any, Any], Awaitable[Any]]


class CallTimes:
    """How long calls took, by method and status; one that the client gave up has the status `cancelled`."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[int, Histogram]] = {}

    def unary(self, rpc: str, serve: Serve) -> Serve:
        """Return what serves a method and measures it, at some 0.7 us a call."""
        rows = self.rows[rpc] = _Rows()

        async def timed(request: Any, context: Any) -> Any:
            code = CANCELLED
            began = perf_counter()
            try:
                answer = await serve(request, context)
                code = answer.status.code
                return answer
            finally:
                row, took_ms = rows[code], (perf_counter() - began) * 1000
                # As Histogram.add, without its call.
                row.counts[bisect_left(CALL_BOUNDS, took_ms)] += 1
                row.total += took_ms

        return timed

    def streaming(self, rpc: str, serve: Serve) -> Serve:
        """Return what serves a method with a stream of answers, and measures it; `serve` returns the status."""
        rows = self.rows[rpc] = _Rows()

        async def timed(request: Any, context: Any) -> None:
            code = CANCELLED
            began = perf_counter()
            try:
                code = await serve(request, context)
            finally:
                rows[code].add((perf_counter() - began) * 1000)

        return timed


class _Rows(dict[int, Histogram]):
    def __missing__(self, code: int) -> Histogram:
        row = self[code] = Histogram(CALL_BOUNDS)
        return row
