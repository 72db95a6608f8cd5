"""Holds elections, those that are asked for and the controller's own, and has the brokers told how they ended.

Rule: each change of a role is a line in the log, with its reason. Who is elected: `elections`.
"""

from __future__ import annotations

import asyncio

from rocketspark.controller import replicas_info
from rocketspark.controller.decisions import Decisions
from rocketspark.controller.group.entries import State
from rocketspark.controller.live_table import Broker, LiveTable
from rocketspark.controller.replicas_info import Decision
from rocketspark.controller.role_notices import RoleNotices
from rocketspark.controller.settings import ControllerSettings
from rocketspark.errors import RocketSparkError, ServerError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.headers.controller import CONTROLLER_ASKS, ElectMasterHeader, ElectMasterReply
from rocketspark.protocol.json import bodies
from rocketspark.protocol.json.operator_bodies import SyncStateSet

log = LimitedLog("rocketspark.controller")


class Elections:
    """The elections of one controller: those that brokers and operators ask for, and its own."""

    def __init__(self, settings: ControllerSettings, journal: Decisions, live: LiveTable, notices: RoleNotices) -> None:
        self._settings = settings
        self._journal = journal
        self._live = live
        self._notices = notices
        # Elections of the controller's own, by the broker's name.
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._held: set[asyncio.Task[Decision]] = set()
        # By set and registered broker: why its last election had no result, as the log has it.
        self._told: dict[str, dict[int, str]] = {}

    async def hold(self, h: ElectMasterHeader, why: str) -> Decision:
        """Elect a master, tell the brokers, and return the answer. `why`: the reason, for the log. Raises StoreError.

        If whoever asked goes away meanwhile, the brokers are told all the same.
        """
        task = asyncio.create_task(self._hold(h, why))
        self._held.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Task[Decision]) -> None:
        self._held.discard(task)
        if not task.cancelled():
            task.exception()  # Told to who asked, if that one still waits.

    async def _hold(self, h: ElectMasterHeader, why: str) -> Decision:
        def decide(state: State) -> Decision:
            zones = self._settings.zones
            return replicas_info.elect(state.sets, h, self._live, unclean=self._settings.unclean, zones=zones)

        decision = await self._journal.carry_out(decide)
        answer = decision.header
        if decision.code == 0 and isinstance(answer, ElectMasterReply):
            self._told.pop(h.broker_name, None)
            log.info(
                "%s: %d (%s) is master in epoch %d: %s",
                h.broker_name,
                answer.master_broker_id,
                answer.master_address,
                answer.master_epoch,
                why,
            )
            if self._settings.notify:
                self._tell(h.broker_name, answer)
        elif decision.code != ResponseCode.CONTROLLER_MASTER_STILL_EXIST and self._is_news(h, decision.remark or ""):
            log.warning("%s has no new master (%s): %s", h.broker_name, why, decision.remark)
        return decision

    def _is_news(self, h: ElectMasterHeader, remark: str) -> bool:
        """Tell whether an election without a result has another reason than the last: each broker asks every second."""
        s = self._journal.sets.get(h.broker_name)
        if s is None or h.broker_id not in (*s.replicas, CONTROLLER_ASKS):
            return True
        told = self._told.setdefault(h.broker_name, {})
        before, told[h.broker_id] = told.get(h.broker_id), remark
        return before != remark

    def _tell(self, broker_name: str, answer: ElectMasterReply) -> None:
        s = self._journal.sets.get(broker_name)
        if s is None or s.master_epoch != answer.master_epoch or s.master is None:
            return  # Cleaned or elected anew meanwhile.
        living = [r.address for i, r in s.replicas.items() if self._live.alive(s.cluster, s.broker_name, i)]
        body = SyncStateSet(sync_state_set=[s.master], sync_state_set_epoch=answer.sync_state_set_epoch or 0)
        self._notices.tell(living, answer, bodies.encode(body))

    def gone(self, broker: Broker, how: str) -> None:
        """Elect another master if `broker`, which is gone, was it and this controller leads. `how`: for the log."""
        if not self._journal.leads:
            return
        s = self._journal.sets.get(broker.broker_name)
        if s is None or s.cluster != broker.cluster or broker.broker_id not in s.replicas:
            return
        log.warning("%s: %d (%s) %s", s.broker_name, broker.broker_id, s.address(broker.broker_id), how)
        if s.master == broker.broker_id:
            self._begin(broker.broker_name, f"master {broker.broker_id} {how}")

    def scan(self) -> None:
        """Elect a master, if this controller leads, for each set that has no live master and some live replica."""
        if not self._journal.leads:
            return
        for name in replicas_info.without_master(self._journal.sets, self._live):
            self._begin(name, f"master {self._journal.sets[name].master} is not alive")

    def _begin(self, broker_name: str, why: str) -> None:
        if broker_name not in self._under_way:
            self._under_way[broker_name] = asyncio.create_task(self._try(broker_name, why))

    async def _try(self, broker_name: str, why: str) -> None:
        # RocketMQ tries as often if nobody fits, too; but who fits is decided by what is known, which stays the same.
        try:
            for left in reversed(range(self._settings.tries)):
                try:
                    await self.hold(ElectMasterHeader(broker_name=broker_name), why)
                    return
                except RocketSparkError as e:
                    if isinstance(e, ServerError) and e.code == ResponseCode.CONTROLLER_NOT_LEADER:
                        log.warning("%s: no election was held (%s): %s", broker_name, why, e)
                        return
                    log.error("%s: no election could be held (%s), %d more tries: %s", broker_name, why, left, e)
        finally:
            del self._under_way[broker_name]

    async def close(self) -> None:
        """Wait for the elections under way."""
        while left := [*self._under_way.values(), *self._held]:
            await asyncio.wait(left)
