"""The look at the other brokers of the name: a slave that lost its master finds it, a master finds another one.

Rule: under a controller nothing is found here that it did not say; where it says who is master, its address is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from rocketspark.broker.repeated_work import pause
from rocketspark.broker.replication.link.ha_client import HaClient
from rocketspark.broker.replication.link.slave_link import State
from rocketspark.broker.replication.link.troubles import Troubles
from rocketspark.broker.replication.role import BrokerRole, Role
from rocketspark.broker.replication.tables.ha_info import ask_ha_info
from rocketspark.broker.roles.member_group import MemberGroup
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import ReplicationError, RocketSparkError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.route import MASTER_ID
from rocketspark.transport.connections import Connections

log = logging.getLogger("rocketspark.broker.replication")
limited = LimitedLog("rocketspark.broker.replication")

# How often a master looks whether another one has its name.
ANOTHER_LOOK_S = 30.0
# The look before a master tells the NameServers of itself takes no longer.
FIRST_LOOK_S = 1.0


class MasterSearch:
    """`follow(ha_address, master_address)` is told of a slave's master; `troubles` of another master of the name."""

    def __init__(
        self,
        settings: BrokerSettings,
        connections: Connections,
        role: BrokerRole,
        members: MemberGroup,
        client: HaClient,
        troubles: Troubles,
        follow: Callable[[str | None, str | None], None],
        own_address: Callable[[], str],
    ) -> None:
        self._settings = settings
        self._connections = connections
        self._role = role
        self._members = members
        self._client = client
        self._troubles = troubles
        self._follow = follow
        self._own_address = own_address
        self._ended = False
        self._looked_s = -ANOTHER_LOOK_S
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def first_look(self) -> None:
        """Look for another master, for a short time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LOOK_S):
                await self._look_for_another()

    def begin(self) -> None:
        """Look at intervals from now on."""
        self._task = asyncio.create_task(self._watch())

    def look_now(self) -> None:
        """Look in this turn of the loop or the next."""
        self._wanted.set()

    async def stop(self) -> None:
        """Look no more."""
        self._ended = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _watch(self) -> None:
        while not self._ended:
            try:
                await self._look()
            except RocketSparkError as e:
                limited.info("the brokers of the name are not known now: %s", e)
            except Exception:
                log.exception("the brokers of the name could not be looked at")
            await pause(lambda: self._settings.member_group_interval_ms, self._wanted)

    async def _look(self) -> None:
        controlled = self._settings.controller_mode
        if not controlled:
            await self._look_for_another()
        if self._role.kind is not Role.SLAVE or self._client.state is State.TRANSFER:
            return
        master = self._role.master_address if controlled else (await self._members.ask()).get(MASTER_ID)
        if master is None or master == self._own_address():
            return
        info = await ask_ha_info(self._connections, master)
        if info is not None and self._role.kind is Role.SLAVE:
            self._follow(info.ha_address, master)

    async def _look_for_another(self) -> None:
        """Tell of a second master of this name that lives: clients and slaves go now to the one, now to the other."""
        s, now_s = self._settings, asyncio.get_running_loop().time()
        if not self._role.is_master or not s.namesrvs() or now_s - self._looked_s < ANOTHER_LOOK_S:
            return
        self._looked_s = now_s
        try:
            other = (await MemberGroup(s, self._connections).ask()).get(MASTER_ID)
            if other in (None, self._own_address()) or await ask_ha_info(self._connections, other or "") is None:
                return
        except RocketSparkError:
            return
        text = f"the broker {other} is a master of the name {s.broker_name} too: end one of the two, it is no copy"
        self._troubles.note(other or "", ReplicationError(text, reason="two-masters"))
