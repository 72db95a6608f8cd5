"""The in-sync set of a master under a controller: its members, up to where all of them hold the log, and its changes.

`InSyncSet` is the set itself, without input or output and with the time as an argument. `InSyncReplicas` feeds it
with what slaves report and asks the controller for each change, with one request at a time.

Rule: until the controller has answered, the members before and all that were asked for count together. RocketMQ 5.5.0
drops a lost member at once; a send is then acknowledged with fewer copies than the controller may elect from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Set

from rocketspark.broker.consumers.long_polling import LongPolling
from rocketspark.broker.replication.controller_client import ControllerClient
from rocketspark.broker.replication.link.ha_listener import HaConnection, HaListener
from rocketspark.broker.replication.role import BrokerRole
from rocketspark.broker.replication.waits import ReplicaWaits
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import NotSent, RocketSparkError, ServerError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.store.files.epoch_file import EpochList
from rocketspark.store.store import Store

log = LimitedLog("rocketspark.broker.replication")

# Of a broker that is not registered at its controller yet.
NO_NUMBER = -1
RETRY_S = 1.0
# As long a request whose answer was lost may still arrive at a controller of RocketMQ's, which takes it by its epoch.
LATE_S = 10.0


class InSyncSet:
    """The ids of the replicas that may become master without loss of messages, this one among them.

    `members`, `epoch`: as the controller said last; `target`: the set that is wanted. The controller is asked with one
    request at a time, over one connection, until an answer settles the set: see `is_open`.
    """

    def __init__(self, own_id: int) -> None:
        self.own_id = own_id
        self.members: frozenset[int] = frozenset({own_id})
        self.target = self.members
        self.epoch = 0
        # All that it was or will be asked for since its last answer: any of it may have been accepted.
        self._unanswered: frozenset[int] = frozenset()
        self._is_refused = False
        # When each slave last held all there was.
        self._caught_up_s: dict[int, float] = {}

    @property
    def all_members(self) -> frozenset[int]:
        """The members whose copies count: those of the last known set, and of all sets asked for since."""
        return self.members | self._unanswered

    @property
    def size(self) -> int:
        """How many members count: those of the last known set, and of all sets asked for since."""
        return len(self.all_members)

    @property
    def is_open(self) -> bool:
        """True while the controller must be asked, for another set or for the set that it has."""
        return self.target != self.members or bool(self._unanswered)

    @property
    def wanted(self) -> frozenset[int] | None:
        """The set to ask the controller for; None if its set is the one wanted, or must be asked for first."""
        return None if self._is_refused or self.target == self.members else self.target

    def begin(self, members: Set[int], epoch: int, now_s: float) -> None:
        """Begin as the master with the controller's set; `now_s`: from now on each member has time to connect."""
        self.target = frozenset(members) | {self.own_id}
        self._take(self.target, epoch)
        self._caught_up_s = {member: now_s for member in self.members if member != self.own_id}

    def adopt(self, members: Set[int], epoch: int) -> bool:
        """Take the set that the controller sent, asked or not; return False if its epoch is not newer."""
        if epoch <= self.epoch:
            return False
        # Whatever is on its way to it names an older epoch, and is taken no more.
        self._take(frozenset(members), epoch)
        return True

    def settle(self, members: Set[int], epoch: int) -> bool:
        """Take the set that the controller sent after all earlier requests ended; False if its epoch is older."""
        if epoch >= self.epoch:
            self._take(frozenset(members), epoch)
        return epoch >= self.epoch

    def _take(self, members: frozenset[int], epoch: int) -> None:
        self.members, self.epoch, self._is_refused = members, epoch, False
        # What is to be asked for next counts already.
        self._unanswered = self.target if self.target != members else frozenset()

    def refused(self) -> None:
        """Note that the controller refused a request: its set must be asked for, and slaves must report again."""
        self.target &= self.members
        self._is_refused = True

    def caught_up(self, replica_id: int, at_s: float) -> None:
        """Note that a slave held the whole log at that time."""
        self._caught_up_s[replica_id] = max(at_s, self._caught_up_s.get(replica_id, at_s))

    def joined(self, replica_id: int, position: int, *, confirmed: int, epoch_start: int) -> frozenset[int] | None:
        """Return the set wanted after a slave (no learner) reported its position; None if nothing changes.

        The slave joins once it holds all that is confirmed, and the log from where this master's epoch starts.
        """
        if replica_id in self.target or position < confirmed or position < epoch_start:
            return None
        return self._want(self.target | {replica_id})

    def lost(self, replica_id: int) -> frozenset[int] | None:
        """Return the set wanted after a slave's connection ended; None if the slave is no member."""
        if replica_id not in self.target or replica_id == self.own_id:
            return None
        return self._want(self.target - {replica_id})

    def overdue(self, now_s: float, lag_max_s: float) -> frozenset[int] | None:
        """Return the set without the slaves that did not hold the whole log for `lag_max_s`; None if nothing changes.

        A slave that never held the whole log is left out as well.
        """
        times = self._caught_up_s
        kept = frozenset(
            member
            for member in self.target
            if member == self.own_id or (member in times and now_s - times[member] <= lag_max_s)
        )
        return self._want(kept) if kept != self.target else None

    def _want(self, target: frozenset[int]) -> frozenset[int]:
        self.target = target
        self._unanswered |= target
        return target


def master_confirmed(
    members: Set[int], own_id: int, acked: Mapping[int, int], *, end_position: int, before: int, all_ack: bool
) -> int:
    """Return the position up to which every member of the in-sync set holds the master's log.

    `acked`: by id, up to where each connected slave holds the log, 0 or less before its first report; `before`: the
    last confirmed position, which stays while a member is not connected or has not reported (Java ignores those that
    have not). Without `all_ack` (allAckInSyncStateSet) the result is the log's end (5.5.0).
    """
    others = members - {own_id}
    if not others or not all_ack:
        return end_position
    if not others <= acked.keys():
        return before
    return min(end_position, *(acked[member] if acked[member] > 0 else before for member in others))


class InSyncReplicas:
    """The in-sync set of one broker, which counts while the broker is the master.

    `set`: the InSyncSet; it is replaced once the broker has an id.
    """

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
    ) -> None:
        self._settings = settings
        self._store = store
        self._role = role
        self._listener = listener
        self._waits = waits
        self._epochs = epochs
        self._controller = controller
        self._long_polling = long_polling
        self.set = InSyncSet(NO_NUMBER)
        self.confirmed = store.confirmed_position
        self._began_at = 0
        # By slave, the furthest that it held since this broker took office.
        self._held: dict[int, int] = {}
        self._asking: asyncio.Task[None] | None = None
        self._is_on = False
        # Of the newest request whose answer was lost: the epoch that it names, and when that was.
        self._lost_answer: tuple[int, float] | None = None
        # Called when the controller says that it knows this master no more: its data have to be looked at.
        self.doubted: Callable[[], None] = lambda: None

    # -- in office ------------------------------------------------------------------------------------------------

    def begin(self, members: Set[int], epoch: int) -> None:
        """Begin as the master, with the in-sync set that the controller sent."""
        store = self._store
        # This log may have been cut since this broker was master last. Who joins must hold it as it is now: what was
        # acknowledged before a restart may go beyond what is known as confirmed.
        self._began_at = store.written_position
        self.confirmed = min(store.confirmed_position, self._began_at)
        self._held.clear()
        self.set.begin(members, epoch, asyncio.get_running_loop().time())
        self._is_on = True
        self._changed()

    def adopt(self, members: Set[int], epoch: int) -> None:
        """Take the set that the controller sent without being asked."""
        if self._is_on and self.set.adopt(members, epoch):
            self._changed()

    def end(self) -> None:
        """Stop; called when this broker is no longer the master, and when it shuts down."""
        self._is_on = False
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None

    def _changed(self) -> None:
        self._waits.set_members(self.set.all_members, self.set.own_id)
        self.confirm()

    # -- what slaves report ---------------------------------------------------------------------------------------

    def reported(self, connection: HaConnection) -> None:
        """Take a slave's report of how far it is, by which it may join the set."""
        link = connection.link
        replica_id = link.replica_id
        if not self._is_on or replica_id is None:
            return
        held = self._held.get(replica_id, 0)
        if link.acked < min(held, self.confirmed):
            # Its machine lost power, say, and it is back before its old link ended: elected, it would cut the others.
            self._held[replica_id] = link.acked
            if self.set.lost(replica_id) is not None:
                log.warning("broker %d holds less than it did: it is in sync once it has all again", replica_id)
                self._ask_soon()
            return
        self._held[replica_id] = max(held, link.acked)
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
        """Ask the controller for a set without a slave, because its connection ended."""
        replica_id = connection.link.replica_id
        if self._is_on and replica_id is not None and self._connected(replica_id) is None:
            if self.set.lost(replica_id) is not None:
                self._ask_soon()
            self.confirm()

    def _connected(self, replica_id: int) -> HaConnection | None:
        return next((c for c in self._listener.connections if c.is_open and c.link.replica_id == replica_id), None)

    def check(self) -> None:
        """Drop members that lag for too long or never connected; called each checkSyncStateSetPeriod."""
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
        """Move the confirmed position forward, and let readers see the log up to it."""
        store, members = self._store, self.set.all_members
        all_ack = self._settings.all_ack_in_sync_set
        end = store.written_position
        acked = self._acked()
        before, shown = self.confirmed, store.shown_end
        self.confirmed = max(
            before,
            master_confirmed(members, self.set.own_id, acked, end_position=end, before=before, all_ack=all_ack),
        )
        store.confirmed_position = self.confirmed
        alone = len(members) <= 1 or not all_ack
        self._long_polling.keep_recent("unconfirmed", not alone)
        store.show_up_to(None if alone else self.confirmed)
        if store.shown_end > shown:
            self._long_polling.shown(store.shown_end)

    def is_held_by_others(self) -> bool:
        """Tell whether all others of the set hold the whole log."""
        end, acked = self._store.written_position, self._acked()
        return all(acked.get(member, -1) >= end for member in self.set.all_members - {self.set.own_id})

    def _acked(self) -> dict[int, int]:
        """Return the position up to which each replica that is connected says that it holds the log."""
        return {
            c.link.replica_id: c.link.acked
            for c in self._listener.connections
            if c.is_open and c.link.replica_id is not None
        }

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
