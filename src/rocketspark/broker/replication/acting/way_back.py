"""How a master knows that a slave may act for it, and how a broker returns among the brokers of its name.

`Office` tells whether a running master may still act as one: while it hung or was cut off, a slave may have acted.
`PreOnline` prepares the return: the broker is not registered before it is as far as the others.

Rules (BrokerPreOnlineService, 5.5.0): a master waits until each of its slaves has a link to it, and takes back what
they did in its place; a slave waits until it copies; without others, or with skipPreOnline, nobody waits. Once the
NameServers may have dropped a master it delivers nothing, tells no consumer where to read on and tells no NameServer
of itself, until it has taken back what was done in its place.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, NamedTuple

from rocketspark.broker.replication.master_api import HaInfo, ask_ha_info, ask_source, tell_ha_info
from rocketspark.broker.replication.members import MemberGroup
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import MessageStays, NotSent, ReplicationError, RocketSparkError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.route import MASTER_ID
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import Request
from rocketspark.transport.connections import Connections, parse_address
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Answer, Handler, Routes
from rocketspark.transport.request_frames import reply

log = LimitedLog("rocketspark.broker.replication")

# Of brokerNotActiveTimeoutMillis: the NameServers count from a heartbeat that may be older than the last look here.
_SHARE = 0.75
AWAY = "this broker was away, and first takes back what was done in its place"
# Where a consumer reads on, and what a slave takes instead of what it did itself.
READS_ON = (
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.POP_MESSAGE,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_DELAY_OFFSET,
    RequestCode.GET_TIMER_CHECK_POINT,
)

RETRY_S = 1.0
# How long another broker has to connect, or to be connected to.
LINK_S = 10.0
STEP_S = 0.02
# Between two questions to a slave whose link is not seen.
ASK_S = 0.5
# Less than a slave waits for a master that told it of its return (RETURN_S), with time to register.
FRESH_S = 5.0
# No address: a slave's link from anywhere.
ANY_HOST = ""


def sure_for_s(settings: BrokerSettings) -> float:
    """Return for how many seconds after a NameServer named this broker as lowest no other broker acts in its place."""
    return _SHARE * settings.not_active_timeout_ms / 1000


class Office:
    """Tells whether one master may act as the master now, or is away: a slave may be acting for it.

    `is_held`: returns whether all other brokers with this broker's name copy from here, so that none of them acts.
    """

    def __init__(self, settings: BrokerSettings, is_held: Callable[[], bool]) -> None:
        self._limit_s = sure_for_s(settings)
        self._is_held = is_held
        self._away = False
        self._looked_s = self._sure_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def guard(self, routes: Routes) -> None:
        """Have the requests of READS_ON refused with SYSTEM_BUSY while this broker is away."""
        for code in READS_ON:
            routes.wrap(code, self._guarded)

    def begin(self) -> None:
        """Begin as the master: no slave acts now."""
        self._away = False
        self._looked_s = self._sure_s = asyncio.get_running_loop().time()
        if self._timer is None:
            self._look()

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def sure(self, at_s: float) -> None:
        """Note that at this time (of the loop, in s) a NameServer knew this broker as the master."""
        self._sure_s = max(self._sure_s, at_s)

    def doubt(self) -> None:
        """Note that a NameServer knows of no master: this broker is away, unless all others copy from it."""
        self._away |= not self._is_held()

    @property
    def is_away(self) -> bool:
        """True once a slave may act, also in the first turn of the loop after the process hung."""
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


class Preparation(Enum):
    """What a broker has to do before the NameServers hear of it."""

    NOTHING = "nothing"
    TAKE_BACK = "take back what slaves did"
    COPY = "copy from the master"


class ReturnPlan(NamedTuple):
    """What a broker does before it registers. `addresses`: of the slaves by rising id, or of the master alone."""

    preparation: Preparation
    addresses: tuple[str, ...] = ()


def must_prepare(settings: BrokerSettings) -> bool:
    """Tell whether a broker with these settings takes back, or copies, what other brokers of its name did while it was
    away, before it registers with NameServers.
    """
    return settings.slave_acting_master and settings.replicas_total > 1 and not settings.skip_pre_online


def return_plan(broker_id: int, own_address: str, members: dict[int, str]) -> ReturnPlan:
    """Return what a broker that starts has to do first, beside these live brokers of its name.

    An entry of `members` with its own id or address is left from before its restart and does not count.
    """
    others = {i: a for i, a in sorted(members.items()) if i != broker_id and a != own_address}
    if not others:
        return ReturnPlan(Preparation.NOTHING)
    if broker_id == MASTER_ID:
        return ReturnPlan(Preparation.TAKE_BACK, tuple(others.values()))
    if MASTER_ID in others:
        return ReturnPlan(Preparation.COPY, (others[MASTER_ID],))
    return ReturnPlan(Preparation.NOTHING)


class PreOnline:
    """Prepares the return of one broker among those of its name.

    `own_info`: returns this master's addresses; `is_linked`: tells whether a slave on a host copies from here;
    `take_back`: takes over what the slave at an address did while it acted; `take_left`: takes its notes of the
    messages that left; `follow`: begins to copy from a master; `is_copying`: tells whether the log arrives.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        members: MemberGroup,
        connections: Connections,
        *,
        own_info: Callable[[], HaInfo | None],
        is_linked: Callable[[str], bool],
        take_back: Callable[[str], Awaitable[None]],
        take_left: Callable[[bytes], None],
        follow: Callable[[HaInfo], None],
        is_copying: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._members = members
        self._connections = connections
        self._own_info = own_info
        self._is_linked = is_linked
        self._take_back = take_back
        self._take_left = take_left
        self._follow = follow
        self._is_copying = is_copying

    async def run(self, own_address: str) -> None:
        """Prepare, and try again until it succeeds; return once the broker may register."""
        while must_prepare(self._settings):
            try:
                await self._prepare(own_address)
                return
            except RocketSparkError as e:
                log.warning("broker %s is not back yet, tried again: %s", self._settings.broker_name, e)
            except Exception:
                log.exception("broker %s is not back yet, tried again", self._settings.broker_name)
            await asyncio.sleep(RETRY_S)

    async def _prepare(self, own_address: str) -> None:
        loop, began_s = asyncio.get_running_loop(), 0.0
        found = return_plan(self._settings.broker_id, own_address, await self._members.ask_all())
        if found.preparation is Preparation.TAKE_BACK:
            # A slave waits a while for who told it, and then acts again: all of them are told anew until all are done
            # with at once, also after a failure with another.
            while not began_s or loop.time() - began_s > FRESH_S:
                began_s = loop.time()
                for address in found.addresses:
                    await self._back_from(address)
        for address in found.addresses if found.preparation is Preparation.COPY else ():
            info = await ask_ha_info(self._connections, address)
            if info is not None:
                self._follow(info)
                await self._until(self._is_copying, f"the master's log does not arrive from {info.ha_address}")

    async def _back_from(self, address: str) -> None:
        info = self._own_info()
        if info is None:
            raise ReplicationError("this broker is no master")
        self._take_left(await tell_ha_info(self._connections, address, info))
        host = parse_address(address)[0]
        if not self._is_linked(host):
            asking = asyncio.create_task(self._says_so(address, info))
            try:
                await self._until(
                    lambda: self._is_linked(host) or asking.done(),
                    f"the slave at {address} does not connect to {info.ha_address}",
                )
            finally:
                asking.cancel()
        await self._take_back(address)

    async def _says_so(self, address: str, info: HaInfo) -> None:
        """Return once a slave says that it copies from here, and some slave does.

        Its link may come from another address than its requests go to (brokerIP1, a network for replication).
        """
        while True:
            await asyncio.sleep(ASK_S)
            with contextlib.suppress(RocketSparkError):
                if await ask_source(self._connections, address) == info.ha_address and self._is_linked(ANY_HOST):
                    return

    async def _until(self, reached: Callable[[], bool], failure: str) -> None:
        try:
            async with asyncio.timeout(LINK_S):
                while not reached():
                    await asyncio.sleep(STEP_S)
        except TimeoutError:
            raise ReplicationError(f"{failure} within {LINK_S:.0f} s") from None
