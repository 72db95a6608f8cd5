"""What a controller's word does to a broker: it becomes master or slave, with the epoch noted before it writes.

Rule: only `ReplicasManager` calls this, one change at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Set

from rocketspark.broker.consumers.long_polling import LongPolling
from rocketspark.broker.replication.controller_client import ControllerClient
from rocketspark.broker.replication.link.ha_listener import HaConnection, HaListener
from rocketspark.broker.replication.replica_waits import ReplicaWaits
from rocketspark.broker.replication.role import BrokerRole, Role
from rocketspark.broker.roles.in_sync import InSyncReplicas
from rocketspark.broker.settings import BrokerSettings
from rocketspark.store.files.epoch_file import EpochList
from rocketspark.store.store import Store

log = logging.getLogger("rocketspark.broker.replication")


class RoleDriver:
    """What carries a change of role out; `Replication` does."""

    async def finish_copying(self) -> None:
        """Take what the master before still sends, then stop following it."""
        raise NotImplementedError

    async def take_office(self, reason: str, epoch: int) -> None:
        """Become the master, or go on as it in a new epoch."""
        raise NotImplementedError

    async def follow_master(self, reason: str, address: str, epoch: int, own_id: int) -> None:
        """Become a slave of that master, or of another one."""
        raise NotImplementedError


class ControlledRole:
    """The role of one broker under a controller."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: Store,
        role: BrokerRole,
        epochs: EpochList,
        driver: RoleDriver,
        listener: HaListener,
        waits: ReplicaWaits,
        controller: ControllerClient,
        long_polling: LongPolling,
    ) -> None:
        self._settings = settings
        self._store = store
        self._role = role
        self._epochs = epochs
        self._driver = driver
        self._listener = listener
        self._waits = waits
        self._controller = controller
        self._long_polling = long_polling
        self.in_sync: InSyncReplicas | None = None
        self.doubted: Callable[[], None] = lambda: None

    def begin(self, own_id: int) -> None:
        """This broker has its number."""
        if self.in_sync is None:
            self.in_sync = InSyncReplicas(
                self._settings,
                self._store,
                self._role,
                self._listener,
                self._waits,
                self._epochs,
                self._controller,
                self._long_polling,
                own_id,
            )
            self.in_sync.doubted = lambda: self.doubted()

    def end(self) -> None:
        """This broker ends: nothing more is asked for."""
        if self.in_sync is not None:
            self.in_sync.end()

    @property
    def own_id(self) -> int:
        """This broker's number; -1 before it has one."""
        return -1 if self.in_sync is None else self.in_sync.set.own_id

    async def become_master(self, epoch: int, members: Set[int], set_epoch: int) -> None:
        """Take office: what this log holds is the truth from here on."""
        assert self.in_sync is not None
        if epoch < self._epochs.last_epoch:
            log.error(
                "the controller names this broker master in epoch %d, but its log is of epoch %d: it stays fenced; the"
                " controller has lost its data, give it back its store",
                epoch,
                self._epochs.last_epoch,
            )
            return
        await self._driver.finish_copying()
        self._store.become_master()
        if epoch > self._epochs.last_epoch:
            self._epochs.begin(epoch, self._store.written_position)
        self.in_sync.begin(members, set_epoch)
        await self._driver.take_office(f"elected by the controller, epoch {epoch}", epoch)

    async def become_slave(self, address: str, epoch: int) -> None:
        """Follow the master that was elected."""
        if self.in_sync is not None:
            self.in_sync.end()
        self._long_polling.keeps_recent = False
        reason = f"{address} was elected by the controller, epoch {epoch}"
        await self._driver.follow_master(reason, address, epoch, self.own_id)
        self._store.show_up_to(self._store.confirmed_position)

    def same_master(self, members: Set[int], set_epoch: int) -> None:
        """Take the in-sync set of the epoch this broker is in."""
        if self._role.kind is Role.MASTER and self.in_sync is not None:
            self.in_sync.adopt(members, set_epoch)

    def confirmed(self, position: int) -> None:
        """The master told up to where the in-sync set holds what is here."""
        if self._role.kind is not Role.MASTER and position != self._store.confirmed_position:
            self._store.confirmed_position = position
            self._store.show_up_to(position)
            self._long_polling.confirmed(everything=position >= self._store.written_position)

    def reported(self, connection: HaConnection) -> None:
        """See `InSyncReplicas.reported`."""
        if self.in_sync is not None:
            self.in_sync.reported(connection)

    def lost(self, connection: HaConnection) -> None:
        """See `InSyncReplicas.lost`."""
        if self.in_sync is not None:
            self.in_sync.lost(connection)

    def check(self) -> None:
        """See `InSyncReplicas.check`; epochs that the log does not reach back to are forgotten."""
        if self.in_sync is not None and self._role.is_master:
            self.in_sync.check()
            self.in_sync.confirm()
        if self._store.min_position:
            self._epochs.forget_before(self._store.min_position)

    def others_in_sync(self) -> list[int]:
        """Return the other members of this master's in-sync set."""
        if self.in_sync is None:
            return []
        return sorted(self.in_sync.set.all_members - {self.own_id})

    async def wait_in_sync(self, count: int) -> None:
        """Wait until the in-sync set has so many members."""
        while self.in_sync is None or len(self.in_sync.set.members) < count:
            await asyncio.sleep(0.02)
