"""How often a console asks each broker. Rule: in no second more than so many requests, whoever looks at pages."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, cast

from rocketspark import machine
from rocketspark.admin.operations import AsyncAdmin
from rocketspark.errors import RocketSparkError
from rocketspark.transport.peer import Peer

# Who would wait longer is told to come again.
WAIT_S_MAX = 8.0
# A little more, as a task may leave its sleep late.
_SECOND = 1.05


class TooBusy(RocketSparkError):
    """So much is asked of a broker that the console would have to wait too long."""

    retriable = True


class Pace:
    """When requests to each broker may leave: at most `per_second` in any second."""

    def __init__(self, per_second: int) -> None:
        self.per_second = per_second
        self.sent = 0
        # Of each broker, when the last requests left or are to leave, in seconds.
        self._times: dict[str, deque[float]] = {}

    async def turn(self, address: str) -> None:
        """Wait until a request to the broker may leave. Raises TooBusy."""
        times = self._times.setdefault(address, deque(maxlen=self.per_second))
        now = machine.monotonic()
        at = max(now, times[0] + _SECOND) if len(times) == self.per_second else now
        if at - now > WAIT_S_MAX:
            raise TooBusy(
                f"the console asks a broker {self.per_second} times a second at most, and so much is asked of {address}"
                " now: try again in some seconds"
            )
        times.append(at)
        self.sent += 1
        if at > now:
            await asyncio.sleep(at - now)


class PacedPeer:
    """A connection whose requests wait for their turn; all else is the connection's own."""

    def __init__(self, peer: Peer, address: str, pace: Pace) -> None:
        self._peer, self._address, self._pace = peer, address, pace

    async def request(self, *args: Any, **kwargs: Any) -> Any:
        """Ask as `Peer.request` does, once it is this request's turn."""
        await self._pace.turn(self._address)
        return await self._peer.request(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._peer, name)


class PacedAdmin(AsyncAdmin):
    """Operations of an operator whose requests to brokers keep to a pace."""

    def __init__(self, namesrv: str, pace: Pace, **options: Any) -> None:
        super().__init__(namesrv, **options)
        self._pace = pace

    async def _broker(self, address: str) -> Peer:
        return cast(Peer, PacedPeer(await super()._broker(address), address, self._pace))
