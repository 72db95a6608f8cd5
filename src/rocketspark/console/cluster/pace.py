"""How often a console asks each broker, and whom it does not ask for a moment. Rule: in no second more than so many
requests, whoever looks at pages; a broker that is silent keeps a page waiting once, and not for each of its questions.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from typing import Any, cast

from rocketspark import machine
from rocketspark.admin.operations import AsyncAdmin
from rocketspark.errors import NoReply, NotSent, RocketSparkError
from rocketspark.protocol.codes import RequestCode
from rocketspark.transport.peer import Peer

# Who would wait longer is told to come again.
WAIT_S_MAX = 8.0
# A little more, as a task may leave its sleep late.
_SECOND = 1.05
# A broker that did not answer is not asked again for so long; pages name it until somebody may have heard of it again.
SILENT_S, TOLD_S = 4.0, 15.0
# Reads that operations wait for longer than a page should.
READ_MS_MAX = 4000.0
READS = frozenset((RequestCode.PULL_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID, RequestCode.QUERY_MESSAGE))


class TooBusy(RocketSparkError):
    """Raised when so many requests go to a broker that the console would have to wait too long."""

    retriable = True


class _Line:
    """Who waits for a turn at one broker: of each user one in turn, so that nobody keeps the others from it."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        # When the last requests left, in seconds.
        self._times: deque[float] = deque(maxlen=per_second)
        # By user, the one whose turn is next in front.
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    def _free_s(self) -> float:
        """Return in how many seconds a request may leave."""
        if len(self._times) < self._per_second:
            return 0.0
        return max(0.0, self._times[0] + _SECOND - machine.monotonic())

    def wait_s(self, who: str) -> float:
        """Return for how long a user's next request would wait, if nobody else comes; 0: it may leave now."""
        own = len(self._waiting.get(who, ()))
        ahead = sum(min(len(line), own + 1) for name, line in self._waiting.items() if name != who) + own
        return self._free_s() + _SECOND * ahead / self._per_second

    async def turn(self, who: str) -> None:
        """Wait until a user's request may leave."""
        if not self._waiting and not self._free_s():
            self._times.append(machine.monotonic())
            return
        came: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(who, deque()).append(came)
        if self._timer is None:
            self._later()
        await came

    def _later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._free_s(), self._next)

    def _next(self) -> None:
        self._timer = None
        while self._waiting and not self._free_s():
            who, line = self._waiting.popitem(last=False)
            came = line.popleft()
            if line:
                self._waiting[who] = line
            # One that is done was given up.
            if not came.done():
                self._times.append(machine.monotonic())
                came.set_result(None)
        if self._waiting:
            self._later()


class Pace:
    """When requests to each broker may leave: at most `per_second` in any second."""

    def __init__(self, per_second: int) -> None:
        self.per_second = per_second
        self.sent = 0
        self.silence = Silence()
        self._lines: dict[str, _Line] = {}

    async def turn(self, address: str, who: str = "") -> None:
        """Wait until a user's request to the broker may leave. Raises TooBusy if that takes too long."""
        line = self._lines.setdefault(address, _Line(self.per_second))
        if line.wait_s(who) > WAIT_S_MAX:
            raise TooBusy(
                f"the console asks a broker {self.per_second} times a second at most, and so much is asked of {address}"
                " now: try again in some seconds"
            )
        self.sent += 1
        await line.turn(who)


class Silence:
    """Brokers that have not answered, by address: a request got no reply, and none of another came meanwhile."""

    def __init__(self) -> None:
        self._heard_s: dict[str, float] = {}
        # Since when, and when that was noted last.
        self._silent: dict[str, tuple[float, float]] = {}

    def heard(self, address: str) -> None:
        """Note that a broker answered, with whatever."""
        self._heard_s[address] = machine.monotonic()
        self._silent.pop(address, None)

    def unheard(self, address: str, asked_s: float) -> None:
        """Note that a request of that time got no reply."""
        if self._heard_s.get(address, -1.0) < asked_s:
            since_s = self._silent.get(address, (asked_s, 0.0))[0]
            self._silent[address] = since_s, machine.monotonic()

    def check(self, address: str) -> None:
        """Raise NotSent for a broker that was silent a moment ago."""
        since_s, noted_s = self._silent.get(address, (0.0, -SILENT_S))
        now_s = machine.monotonic()
        if now_s - noted_s < SILENT_S:
            raise NotSent(
                f"the broker at {address} has not answered for {now_s - since_s:.0f} s, and is asked again in some"
                " seconds",
                address=address,
            )

    def told(self) -> dict[str, float]:
        """Return for how many seconds each broker has been silent, by address."""
        now_s = machine.monotonic()
        found = sorted(self._silent.items())
        return {address: now_s - since_s for address, (since_s, noted_s) in found if now_s - noted_s < TOLD_S}


class PacedPeer:
    """A connection whose requests wait for their turn, unless its broker is silent; all else is the connection's
    own.
    """

    def __init__(self, peer: Peer, address: str, pace: Pace, who: str) -> None:
        self._peer, self._address, self._pace, self._who = peer, address, pace, who

    async def request(self, code: int, *args: Any, **kwargs: Any) -> Any:
        """Ask as `Peer.request` does, once it is this request's turn. Raises NotSent if the broker is silent."""
        silence = self._pace.silence
        silence.check(self._address)
        await self._pace.turn(self._address, self._who)
        if code in READS:
            kwargs["timeout_ms"] = min(kwargs.get("timeout_ms", READ_MS_MAX), READ_MS_MAX)
        asked_s = machine.monotonic()
        try:
            answer = await self._peer.request(code, *args, **kwargs)
        except NoReply:
            silence.unheard(self._address, asked_s)
            raise
        silence.heard(self._address)
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._peer, name)


class PacedAdmin(AsyncAdmin):
    """Operations of an operator whose requests to brokers keep to a pace."""

    def __init__(self, namesrv: str, pace: Pace, **options: Any) -> None:
        super().__init__(namesrv, **options)
        self._pace, self._who = pace, str(options.get("access_key") or "")

    async def _broker(self, address: str) -> Peer:
        return cast(Peer, PacedPeer(await super()._broker(address), address, self._pace, self._who))
