"""The in-flight limit: how many requests and bytes may be unanswered. Rule: a send without room waits in turn, up to a
deadline, then fails.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict

from rocketspark.errors import ConfigError, TooManyInFlight


class InFlightLimit:
    """Room for `count_max` requests of `bytes_max` bytes together; a single larger one is let in alone."""

    __slots__ = ("_bytes", "_bytes_max", "_count_max", "_waiting", "count")

    def __init__(self, count_max: int, bytes_max: int) -> None:
        if count_max < 1 or bytes_max < 1:
            raise ConfigError("in_flight_max, oneway_in_flight_max and in_flight_bytes_max must be 1 or more")
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._bytes = 0
        # By turn, the bytes it needs: whoever gives up leaves at once, however many wait.
        self._waiting: OrderedDict[asyncio.Future[None], int] = OrderedDict()
        self.count = 0

    def try_enter(self, size: int) -> bool:
        """Take room for a request of that many bytes, if there is some and no other send waits for it."""
        # As `_fits`, without a call: it runs for every send.
        if self._waiting or (self.count and (self.count >= self._count_max or self._bytes + size > self._bytes_max)):
            return False
        self.count += 1
        self._bytes += size
        return True

    def _fits(self, size: int) -> bool:
        return not self.count or (self.count < self._count_max and self._bytes + size <= self._bytes_max)

    async def enter(self, size: int, end_s: float) -> None:
        """Take room as soon as there is some. Raises TooManyInFlight at the monotonic time `end_s`."""
        if self.try_enter(size):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = size
        try:
            async with asyncio.timeout(end_s - time.monotonic()):
                await turn
        except BaseException as e:
            if turn.done() and not turn.cancelled():
                self.leave(size)
            else:
                self._waiting.pop(turn, None)
                self._admit()
            if isinstance(e, TimeoutError):
                text = f"nothing was sent: {self.count} requests of {self._bytes} bytes are in flight"
                raise TooManyInFlight(f"{text}; send slower, or allow more with in_flight_max") from None
            raise

    def leave(self, size: int) -> None:
        """Give room back."""
        self.count -= 1
        self._bytes -= size
        if self._waiting:
            self._admit()

    def _admit(self) -> None:
        while self._waiting:
            turn, size = next(iter(self._waiting.items()))
            if not turn.done():
                if not self._fits(size):
                    return
                self.count += 1
                self._bytes += size
                turn.set_result(None)
            del self._waiting[turn]
