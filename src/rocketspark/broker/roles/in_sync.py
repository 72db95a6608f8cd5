"""A master's in-sync set under a controller: who is in it, up to where all of it holds the log, what it is asked for.

Rule: one request to the controller at a time; until it answered, the set before and the one asked for count together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Set

from rocketspark.broker.consumers.long_polling import LongPolling
from rocketspark.broker.replication.controller_client import ControllerClient
from rocketspark.broker.replication.link.ha_listener import HaConnection, HaListener
from rocketspark.broker.replication.replica_waits import ReplicaWaits
from rocketspark.broker.replication.role import BrokerRole
from rocketspark.broker.replication.sync_state_set import SyncStateSet, master_confirmed
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import NotSent, RocketSparkError, ServerError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.store.files.epoch_file import EpochList
from rocketspark.store.store import Store

log = LimitedLog("rocketspark.broker.replication")

RETRY_S = 1.0
# As long a request whose answer was lost may still arrive at a controller of RocketMQ's, which takes it by its epoch.
LATE_S = 10.0


class InSyncReplicas:
    """The in-sync set while this broker is master. `own_id`: its number at the controller."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: Store,
        role: BrokerRole,
        listener: HaListener,
        waits: ReplicaWaits,
        epochs: EpochList,
        controller: ControllerClient,
        long_polling: LongPolling,
        own_id: int,
    ) -> None:
        self._settings = settings
        self._store = store
        self._role = role
        self._listener = listener
        self._waits = waits
        self._epochs = epochs
        self._controller = controller
        self._long_polling = long_polling
        self.set = SyncStateSet(own_id)
        self.confirmed = store.confirmed_position
        self._began_at = 0
        self._asking: asyncio.Task[None] | None = None
        self._is_on = False
        # Of the newest request whose answer was lost: the epoch that it names, and when that was.
        self._lost_answer: tuple[int, float] | None = None
        # Called when the controller says that it knows this master no more: its data have to be looked at.
        self.doubted: Callable[[], None] = lambda: None

    # -- in office ------------------------------------------------------------------------------------------------

    def begin(self, members: Set[int], epoch: int) -> None:
        """Take office with the controller's set."""
        store = self._store
        # This log may have been cut since this broker was master last. Who joins must hold it as it is now: what was
        # acknowledged before a restart may go beyond what is known as confirmed.
        self._began_at = store.written_position
        self.confirmed = min(store.confirmed_position, self._began_at)
        self.set.begin(members, epoch, asyncio.get_running_loop().time())
        self._is_on = True
        self._changed()

    def adopt(self, members: Set[int], epoch: int) -> None:
        """Take the set that the controller told by itself."""
        if self._is_on and self.set.adopt(members, epoch):
            self._changed()

    def end(self) -> None:
        """Leave office."""
        self._is_on = False
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None

    def _changed(self) -> None:
        self._waits.set_members(self.set.all_members, self.set.own_id)
        self.confirm()

    # -- what slaves report ---------------------------------------------------------------------------------------

    def reported(self, connection: HaConnection) -> None:
        """A slave told how far it is."""
        link = connection.link
        replica_id = link.replica_id
        if not self._is_on or replica_id is None:
            return
        if link.caught_up_s is not None and not link.learner:
            self.set.caught_up(replica_id, link.caught_up_s)
        if not link.learner:
            if len(self.set.all_members) == 1:
                # Alone, all that was stored is confirmed by now: who joins must hold it.
                self.confirm()
            last = self._epochs.last
            start = last.start if last is not None else 0
            confirmed = max(self.confirmed, self._began_at)
            if self.set.joined(replica_id, link.acked, confirmed=confirmed, epoch_start=start) is not None:
                self._ask_soon()
        if replica_id in self.set.all_members:
            self.confirm()

    def lost(self, connection: HaConnection) -> None:
        """A slave's connection ended."""
        replica_id = connection.link.replica_id
        if self._is_on and replica_id is not None and self._connected(replica_id) is None:
            if self.set.lost(replica_id) is not None:
                self._ask_soon()
            self.confirm()

    def _connected(self, replica_id: int) -> HaConnection | None:
        return next((c for c in self._listener.connections if c.is_open and c.link.replica_id == replica_id), None)

    def check(self) -> None:
        """Drop who was not caught up for too long, or never connected; to be called every checkSyncStateSetPeriod."""
        if not self._is_on:
            return
        now_s = asyncio.get_running_loop().time()
        for connection in self._listener.connections:
            link = connection.link
            if link.replica_id is not None and link.caught_up_s is not None and not link.learner:
                self.set.caught_up(link.replica_id, link.caught_up_s)
        if self.set.overdue(now_s, self._settings.slave_not_caught_up_ms / 1000) is not None or self.set.is_open:
            self._ask_soon()

    # -- up to where it is held -----------------------------------------------------------------------------------

    def confirm(self) -> None:
        """Move the confirmed position on, and show readers what it covers."""
        store, members = self._store, self.set.all_members
        all_ack = self._settings.all_ack_in_sync_set
        end = store.written_position
        acked = {
            c.link.replica_id: c.link.acked
            for c in self._listener.connections
            if c.is_open and c.link.replica_id is not None
        }
        before = self.confirmed
        self.confirmed = max(
            before,
            master_confirmed(members, self.set.own_id, acked, end_position=end, before=before, all_ack=all_ack),
        )
        store.confirmed_position = self.confirmed
        alone = len(members) <= 1 or not all_ack
        self._long_polling.keeps_recent = not alone
        store.show_up_to(None if alone else self.confirmed)
        if alone or self.confirmed > before:
            self._long_polling.confirmed(everything=alone or self.confirmed >= end)

    # -- asking the controller ------------------------------------------------------------------------------------

    def _ask_soon(self) -> None:
        self._waits.set_members(self.set.all_members, self.set.own_id)
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())

    async def _ask(self) -> None:
        """Ask until an answer says that the set is as it should be."""
        found = self.set
        while self._is_on and found.is_open:
            wanted = found.wanted
            try:
                if wanted is None:
                    await self._look()
                else:
                    await self._alter(wanted)
            except ServerError as e:
                log.warning("the in-sync set stays %s, the controller refused: %s", _ids(found.members), e)
                found.refused()
                self.doubted()
                await asyncio.sleep(RETRY_S)
                self.check()
            except RocketSparkError as e:
                if wanted is not None and not isinstance(e, NotSent):
                    self._lost_answer = found.epoch, asyncio.get_running_loop().time()
                log.warning("the in-sync set may be %s, the controller does not answer: %s", _ids(found.all_members), e)
                await asyncio.sleep(RETRY_S)
            else:
                self._changed()
                for connection in list(self._listener.connections):
                    self.reported(connection)

    async def _alter(self, wanted: frozenset[int]) -> None:
        found = self.set
        taken = await self._controller.alter_in_sync(
            self._settings.broker_name, found.own_id, self._role.epoch, wanted, found.epoch
        )
        log.info("the in-sync set is %s (before: %s)", _ids(taken.members), _ids(found.members))
        found.adopt(taken.members, taken.epoch)

    async def _look(self) -> None:
        """Ask which set the controller has: what it did not get or take of the requests before it never will.

        RocketMQ's may, as long as the set's epoch is what such a request names: until it would have arrived, those
        count that it may bring into the set.
        """
        state = await self._controller.replica_info(self._settings.broker_name, self.set.own_id)
        if state.master is not None and (state.master.broker_id, state.epoch) == (self.set.own_id, self._role.epoch):
            if not state.ends_earlier and self._may_arrive(state.set_epoch):
                await asyncio.sleep(RETRY_S)
            elif not self.set.settle(state.in_sync, state.set_epoch):
                log.warning(
                    "the controller has the in-sync set of epoch %d, and this master a later one, %d: it lost data, or"
                    " leads no more; asked again",
                    state.set_epoch,
                    self.set.epoch,
                )
                await asyncio.sleep(RETRY_S)
        else:
            self.doubted()
            await asyncio.sleep(RETRY_S)

    def _may_arrive(self, set_epoch: int) -> bool:
        if self._lost_answer is None:
            return False
        epoch, at_s = self._lost_answer
        return epoch == set_epoch and asyncio.get_running_loop().time() < at_s + LATE_S


def _ids(members: Set[int]) -> str:
    return ", ".join(map(str, sorted(members)))
