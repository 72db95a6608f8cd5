"""Whether a master that runs may take itself for one: for one that hung, or was cut off, a slave may act.

Rule: once the NameServers may have dropped it nothing due is delivered, nobody is told where to read on, and no
NameServer hears of it, until it has taken back what was done in its place, as at a start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import MessageStays, NotSent
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import Request
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Answer, Handler, Routes
from rocketspark.transport.request_frames import reply

# Of brokerNotActiveTimeoutMillis: the NameServers count from a heartbeat that may be older than the last look here.
SHARE = 0.75
AWAY = "this broker was away, and first takes back what was done in its place"
# Where a consumer reads on, and what a slave takes instead of what it did itself.
READS_ON = (
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.POP_MESSAGE,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_DELAY_OFFSET,
    RequestCode.GET_TIMER_CHECK_POINT,
)


class Office:
    """That of one master. `is_held`: tells whether all other brokers of the name copy from here, so that none acts."""

    def __init__(self, settings: BrokerSettings, is_held: Callable[[], bool]) -> None:
        self._limit_s = SHARE * settings.not_active_timeout_ms / 1000
        self._is_held = is_held
        self._away = False
        self._looked_s = self._sure_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def guard(self, routes: Routes) -> None:
        """Let none of these requests be served while this broker is away."""
        for code in READS_ON:
            routes.wrap(code, self._guarded)

    def begin(self) -> None:
        """Take office: nobody acts now."""
        self._away = False
        self._looked_s = self._sure_s = asyncio.get_running_loop().time()
        if self._timer is None:
            self._look()

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def sure(self, at_s: float) -> None:
        """At that time a NameServer knew this broker as the master."""
        self._sure_s = max(self._sure_s, at_s)

    def doubt(self) -> None:
        """A NameServer knows of no master."""
        self._away |= not self._is_held()

    @property
    def is_away(self) -> bool:
        """True once a slave may act: also in the first turn of the loop of a process that hung."""
        if self._timer is not None and asyncio.get_running_loop().time() - self._looked_s > self._limit_s:
            self._away = True
        return self._away

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        if not self.is_away:
            self._looked_s = loop.time()
            if self._is_held():
                self._sure_s = self._looked_s
            self._away = self._looked_s - self._sure_s > self._limit_s
        self._timer = loop.call_later(self._limit_s / 4, self._look)

    # -- what waits meanwhile -------------------------------------------------------------------------------------

    def may_deliver(self) -> None:
        """Raise MessageStays while this broker is away."""
        if self.is_away:
            raise MessageStays(AWAY)

    def may_tell(self) -> None:
        """Raise NotSent while this broker is away."""
        if self.is_away:
            raise NotSent(f"not told yet: {AWAY}")

    def _guarded(self, serve: Handler) -> Handler:
        def served(peer: Peer, request: Request[Any], body: bytes) -> Answer:
            if self.is_away:
                return reply(request.opaque, ResponseCode.SYSTEM_BUSY, remark=AWAY)
            return serve(peer, request, body)

        return served
