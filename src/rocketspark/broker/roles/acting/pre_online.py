"""How a broker with replicas comes back among those of its name: known to nobody until it is as far as they are.

Rules (BrokerPreOnlineService, 5.5.0): a master waits until each of its slaves copies from it and takes back what they
did in its place; a slave waits until it copies; without others, or with skipPreOnline, nobody waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import NamedTuple

from rocketspark.broker.replication.tables.ha_info import HaInfo, ask_ha_info, tell_ha_info
from rocketspark.broker.roles.member_group import MemberGroup
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import ReplicationError, RocketSparkError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.route import MASTER_ID
from rocketspark.transport.connections import Connections, parse_address

log = LimitedLog("rocketspark.broker.replication")

RETRY_S = 1.0
# How long another broker has to connect, or to be connected to.
LINK_S = 10.0
STEP_S = 0.02


class Preparation(Enum):
    """What a broker has to do before the NameServers hear of it."""

    NOTHING = "nothing"
    TAKE_BACK = "take back what slaves did"
    COPY = "copy from the master"


class Plan(NamedTuple):
    """`addresses`: of the slaves in the order of their ids, or of the master alone."""

    preparation: Preparation
    addresses: tuple[str, ...] = ()


def is_needed(settings: BrokerSettings) -> bool:
    """Tell whether a broker prepares at all."""
    return settings.slave_acting_master and settings.replicas_total > 1 and not settings.skip_pre_online


def plan(broker_id: int, own_address: str, members: dict[int, str]) -> Plan:
    """Return what a broker that starts has to do with these live brokers of its name; what it was itself is past."""
    others = {i: a for i, a in sorted(members.items()) if i != broker_id and a != own_address}
    if not others:
        return Plan(Preparation.NOTHING)
    if broker_id == MASTER_ID:
        return Plan(Preparation.TAKE_BACK, tuple(others.values()))
    if MASTER_ID in others:
        return Plan(Preparation.COPY, (others[MASTER_ID],))
    return Plan(Preparation.NOTHING)


class PreOnline:
    """One broker's way back.

    `own_info`: a master's addresses; `is_linked`: whether a slave on a host copies from here; `take_back`: takes what
    the slave at an address did; `follow`: copies from a master; `is_copying`: whether that has begun.
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
        follow: Callable[[HaInfo], None],
        is_copying: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._members = members
        self._connections = connections
        self._own_info = own_info
        self._is_linked = is_linked
        self._take_back = take_back
        self._follow = follow
        self._is_copying = is_copying
        # Slaves whose work is taken back: not again after a failure with another.
        self._done: set[str] = set()

    async def run(self, own_address: str) -> None:
        """Return once the broker may register."""
        self._done.clear()
        while is_needed(self._settings):
            try:
                await self._prepare(own_address)
                return
            except RocketSparkError as e:
                log.warning("broker %s is not back yet, tried again: %s", self._settings.broker_name, e)
            except Exception:
                log.exception("broker %s is not back yet, tried again", self._settings.broker_name)
            await asyncio.sleep(RETRY_S)

    async def _prepare(self, own_address: str) -> None:
        found = plan(self._settings.broker_id, own_address, await self._members.ask())
        for address in found.addresses:
            if found.preparation is Preparation.TAKE_BACK:
                if address not in self._done:
                    await self._back_from(address)
                    self._done.add(address)
            else:
                info = await ask_ha_info(self._connections, address)
                if info is not None:
                    self._follow(info)
                    await self._until(self._is_copying, f"the master's log does not arrive from {info.ha_address}")

    async def _back_from(self, address: str) -> None:
        info = self._own_info()
        if info is None:
            raise ReplicationError("this broker is no master")
        await tell_ha_info(self._connections, address, info)
        host = parse_address(address)[0]
        await self._until(
            lambda: self._is_linked(host), f"the slave at {address} does not connect to {info.ha_address}"
        )
        await self._take_back(address)

    async def _until(self, reached: Callable[[], bool], failure: str) -> None:
        try:
            async with asyncio.timeout(LINK_S):
                while not reached():
                    await asyncio.sleep(STEP_S)
        except TimeoutError:
            raise ReplicationError(f"{failure} within {LINK_S:.0f} s") from None
