"""A broker under a controller: it gets its number, asks who is master, tells that it lives, and follows each election.

`ReplicasManager` talks with the controller; `ControlledRole` makes the broker master or slave, as the controller said.

Rules: until the broker knows its master it writes nothing and registers nowhere (it is fenced). What the controller
says counts by its epoch: a higher epoch changes the role, the same epoch changes only the in-sync set. Roles change one
at a time, and a new epoch is noted on the disk before the master of that epoch writes. Where the controller waits for
the word of who it elected, nothing is taken before it was given (rule: controller/elections.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Set
from typing import Any

from rocketspark import machine
from rocketspark.broker.consumers.long_polling import LongPolling
from rocketspark.broker.repeated_work import pause
from rocketspark.broker.replication.broker_identity import Applied, identity_of
from rocketspark.broker.replication.controller_client import (
    AcceptedSet,
    ControllerClient,
    Elected,
    Master,
    SetState,
)
from rocketspark.broker.replication.in_sync_set import NO_NUMBER, InSyncReplicas, InSyncSet
from rocketspark.broker.replication.master_api import ask_who
from rocketspark.broker.replication.members import MemberGroup
from rocketspark.broker.replication.role import BrokerRole, Role
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import ReplicationError, RocketSparkError, ServerError, StoreError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.route import MASTER_ID
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import Request
from rocketspark.protocol.headers.controller import ElectMasterReply, ReplicaHeartbeatHeader
from rocketspark.protocol.json import bodies, java_json
from rocketspark.protocol.json.operator_bodies import SyncStateSet
from rocketspark.store.files.epoch_file import EpochList
from rocketspark.store.store import Store
from rocketspark.transport.connections import Connections, parse_addresses
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.request_frames import reply

log = logging.getLogger("rocketspark.broker.replication")
limited = LimitedLog("rocketspark.broker.replication")

RETRY_S = 1.0
# The same failure is told once in this time, however often it is tried.
TELL_S = 60.0
# So long one that could not begin as the master is elected last: two of them would take turns.
UNFIT_S = 60.0
UNFLUSHED = "the machine stopped before all was flushed"


class RoleDriver:
    """What carries out a change of role: the methods of `Replication` that ControlledRole calls."""

    async def finish_copying(self) -> None:
        """Take what the previous master still sends, then stop following it."""
        raise NotImplementedError

    async def take_office(self, reason: str, epoch: int) -> None:
        """Become the master, or stay the master in a new epoch."""
        raise NotImplementedError

    async def follow_master(self, reason: str, address: str, epoch: int, own_id: int) -> None:
        """Become a slave of that master, or of another one."""
        raise NotImplementedError


class ControlledRole:
    """The role of one broker under a controller. `in_sync`: its in-sync set, which counts while it is master."""

    def __init__(
        self,
        store: Store,
        role: BrokerRole,
        epochs: EpochList,
        driver: RoleDriver,
        in_sync: InSyncReplicas,
        long_polling: LongPolling,
    ) -> None:
        self._store = store
        self._role = role
        self._epochs = epochs
        self._driver = driver
        self.in_sync = in_sync
        self._long_polling = long_polling

    def begin(self, own_id: int) -> None:
        """Take this broker's number, once it is registered at the controller.

        A broker that registers again with the same number keeps its in-sync set, whose epoch tells what is older.
        """
        if own_id != self.own_id:
            self.in_sync.set = InSyncSet(own_id)

    @property
    def own_id(self) -> int:
        """This broker's number; -1 before it has one."""
        return self.in_sync.set.own_id

    async def become_master(self, epoch: int, members: Set[int], set_epoch: int) -> None:
        """Become the master: from now on all others copy what this log holds."""
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
            # Of a log without epochs, as a broker without a controller wrote it, all is of the first: who is empty
            # could not begin to copy it else (RocketMQ's cannot).
            self._epochs.begin(epoch, self._store.written_position if self._epochs else self._store.min_position)
        self.in_sync.begin(members, set_epoch)
        await self._driver.take_office(f"elected by the controller, epoch {epoch}", epoch)

    async def become_slave(self, address: str, epoch: int) -> None:
        """Become a slave of the master that was elected."""
        self.in_sync.end()
        # A pull that is held here while no master is known hears of what comes once that is confirmed.
        self._long_polling.keep_recent("unconfirmed", True)
        reason = f"{address} was elected by the controller, epoch {epoch}"
        await self._driver.follow_master(reason, address, epoch, self.own_id)
        self._store.show_up_to(self._store.confirmed_position)

    def same_master(self, members: Set[int], set_epoch: int) -> None:
        """Take the in-sync set that the controller sent within the same epoch."""
        if self._role.kind is Role.MASTER:
            self.in_sync.adopt(members, set_epoch)

    def confirmed(self, position: int) -> None:
        """Take, as a slave, the position up to which all of the in-sync set hold the log; readers see up to it."""
        if self._role.kind is not Role.MASTER and position != self._store.confirmed_position:
            self._store.confirmed_position = position
            self._store.show_up_to(position)
            self._long_polling.shown(self._store.shown_end)

    def check(self) -> None:
        """Check the in-sync set, and forget the epochs that ended before the log begins."""
        if self._role.is_master:
            self.in_sync.check()
            self.in_sync.confirm()
        if self._store.min_position:
            self._epochs.forget_before(self._store.min_position)

    def others_in_sync(self) -> list[int]:
        """Return the other members of this master's in-sync set."""
        return sorted(self.in_sync.set.all_members - {self.own_id})


class ReplicasManager:
    """Follows the controller, on one broker.

    `controlled`: carries out the role; `own_id`: this broker's number, None before it has one; `connections`: to other
    brokers, None to ask none of them.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        store: Store,
        role: BrokerRole,
        epochs: EpochList,
        controlled: ControlledRole,
        controller: ControllerClient,
        connections: Connections | None = None,
    ) -> None:
        self._settings = settings
        self._store = store
        self._role = role
        self._epochs = epochs
        self._controlled = controlled
        self._controller = controller
        self._connections = connections
        self._identity = identity_of(settings)
        if not store.written_position and not epochs and self._identity.outlives(settings.store_root):
            self._identity.give_up(f"the store in {settings.store_root} is empty")
        self._address = ""
        self.own_id = self._identity.granted()
        self._identity.check()
        # By what was tried: what failed last, and when that was told.
        self._told: dict[str, tuple[str, float]] = {}
        self._look_now = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._changing = asyncio.Lock()
        controlled.in_sync.doubted = self._look_now.set
        self._unfit_until_s = 0.0
        self._handed_over = False
        # While this log may lack some: the epoch of the master that it follows, and up to where that one's log went.
        self._to_copy: tuple[int, int] | None = None

    def routes(self, routes: Routes) -> None:
        """Add what this handler serves."""
        routes.add(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, self.notified, ElectMasterReply)
        routes.add(RequestCode.GET_BROKER_EPOCH_CACHE, self.epoch_cache)

    # -- start and end --------------------------------------------------------------------------------------------

    def start(self, address: str) -> None:
        """Begin to follow the controller, in the background."""
        self._address = address
        self._controller.addresses = parse_addresses(self._settings.controller_addresses)
        self._tasks.add(asyncio.create_task(self._run()))

    async def stop(self) -> None:
        """Stop following the controller, which takes this broker for gone once its connection ends."""
        self.own_id = None  # From here on no notice counts.
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._controller.close()

    async def _run(self) -> None:
        while not await self._tried("register at the controller", self._register):
            await asyncio.sleep(RETRY_S)
        self._tasks |= {asyncio.create_task(self._beat()), asyncio.create_task(self._check_in_sync())}
        while True:
            done = await self._tried("look at the controller's data", self._look)
            # One that may lack some of its log takes no office, should it be elected: it sees soon whether it does.
            settled = done and bool(self._role.epoch) and not self._store.may_lack
            await pause(
                lambda: self._settings.metadata_interval_ms if settled else RETRY_S * 1000,  # noqa: B023
                self._look_now,
            )

    async def _tried(self, what: str, act: Any) -> bool:
        try:
            await act()
        except RocketSparkError as e:
            self._tell(what, str(e))
            return False
        except Exception:
            limited.exception("could not %s; tried again", what)
            return False
        self._told.pop(what, None)
        return True

    def _tell(self, what: str, why: str, line: str = "could not %s: %s; tried again") -> None:
        now_s = machine.monotonic()
        before, told_s = self._told.get(what, ("", 0.0))
        if why != before or now_s - told_s >= TELL_S:
            self._told[what] = why, now_s
            limited.warning(line, what, why)

    # -- the number -----------------------------------------------------------------------------------------------

    async def _register(self) -> None:
        s, controller = self._settings, self._controller
        applied = self._identity.applied()
        if applied is None and self.own_id is None:
            broker_id = await controller.next_id(s.cluster_name, s.broker_name)
            applied = Applied(broker_id, f"{self._address};{machine.time_ns() // 1_000_000}")
            self._identity.apply(applied)
        if applied is not None:
            try:
                await controller.apply_id(s.cluster_name, s.broker_name, applied.broker_id, applied.check_code)
            except ServerError as e:
                if e.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID:
                    self._identity.forget_applied()
                raise
            self._identity.grant(applied.broker_id)
            self.own_id = applied.broker_id
            limited.info("this broker is number %d of %s", self.own_id, s.broker_name)
        else:
            await self._refuse_copy()
        assert self.own_id is not None
        try:
            found = await controller.register(s.cluster_name, s.broker_name, self.own_id, self._address)
        except ServerError as e:
            if e.code != ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED:
                raise
            raise ReplicationError(
                f"the controller knows no number {self.own_id} of {s.broker_name}: it was cleaned there, or the"
                " controller lost its data. Where it was cleaned stop this broker, remove its brokerIdentity and start"
                " it: it joins under a new number",
                reason="unknown-number",
            ) from e
        await controller.heartbeat(self._heartbeat())
        self._controlled.begin(self.own_id)
        await self._tried("take the role that the controller told", lambda: self._take(found))

    async def _refuse_copy(self) -> None:
        """Raise ReplicationError if another broker has this one's number and lives: one store is a copy of the other.

        Both would be masters at once, of one epoch, and acknowledge what the other does not have.
        """
        s, own_id = self._settings, self.own_id
        if self._connections is None or own_id is None:
            return
        found = await self._controller.live_replica(s.broker_name, own_id)
        if found is None or found.address == self._address:
            return
        try:
            told = await ask_who(self._connections, found.address)
        except RocketSparkError:
            return  # It was this broker, before it moved.
        if told.broker_name == s.broker_name and told.broker_id == (MASTER_ID if found.is_master else own_id):
            raise ReplicationError(
                f"the broker at {found.address} is number {own_id} of {s.broker_name} too: one of the two stores is a"
                " copy of the other. This one stays fenced: stop it, and remove its brokerIdentity (restore:"
                " --new-identity) to get a number of its own; or stop the other one",
                reason="two-of-one-number",
            )

    # -- who is master --------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        s, controller = self._settings, self._controller
        assert self.own_id is not None
        try:
            found = await controller.replica_info(s.broker_name)
        except ServerError as e:
            if e.code != ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST:
                raise
            found = await controller.register(s.cluster_name, s.broker_name, self.own_id, self._address)
        if found.master is None or not self._role.epoch:
            # The controller must have heard of this broker before it can elect it.
            await controller.heartbeat(self._heartbeat())
        if found.master is None:
            try:
                elected = await controller.elect(s.cluster_name, s.broker_name, self.own_id)
            except ServerError as e:
                if e.code != ResponseCode.CONTROLLER_ELECT_MASTER_FAILED:
                    raise
                self._tell("no master can be elected yet", e.remark, "%s: %s")
                return
            await self._take_elected(elected)
            return
        await self._take(found)
        if self._store.may_lack and self._role.kind is Role.SLAVE:
            await self._catch_up()

    async def _catch_up(self) -> None:
        """Note that this log lacks nothing more, once it has copied as far as its master's went after this start.

        What was acknowledged since then this broker holds, or it is not in sync.
        """
        address, epoch = self._role.master_address, self._role.epoch
        if self._connections is None or not address:
            return
        if self._to_copy is None or self._to_copy[0] != epoch:
            told = await ask_who(self._connections, address)
            if (
                told.broker_name == self._settings.broker_name
                and told.broker_id == MASTER_ID
                and told.last_epoch == epoch
            ):
                self._to_copy = epoch, told.max_offset
        elif (
            self._role.is_copying()
            and self._store.written_position >= self._to_copy[1]
            # An epoch in which nothing was written yet is noted at its master alone.
            and (self._epochs.last_epoch == epoch or self._store.written_position == self._to_copy[1])
        ):
            self._store.lacks_nothing()

    async def _take(self, found: SetState) -> None:
        if found.master is not None:
            master = found.master
            if master.broker_id == self.own_id and not self._role.epoch and await self._passed_on(found):
                return
            await self._change(master, found.in_sync)

    async def _passed_on(self, found: SetState) -> bool:
        """Have another one elected, if it has to hold what this log may lack, or else this one anew; False if it lacks
        nothing.

        A machine that lost its power may be back before it was missed: as the master that it still is it would cut the
        others' logs to its own. RocketMQ's does. ServerError: one is away that may hold it, and is waited for; not with
        SYNC_FLUSH, as what this master itself acknowledged is on its disk.
        """
        s = self._settings
        if not self._store.may_lack or (found.master is not None and found.master.awaits_word):
            return False
        others = sorted(found.in_sync - {self.own_id})
        for member in others or await self._those_further(found):
            try:
                elected = await self._controller.elect(s.cluster_name, s.broker_name, member, designate=True)
            except ServerError as e:
                limited.warning("broker %d holds what this log may lack, and is not elected: %s", member, e)
                continue
            limited.warning("%s: broker %d, which holds all, is elected", UNFLUSHED, member)
            await self._take_elected(elected)
            return True
        if others and not s.sync_flush and await self._gives_way(UNFLUSHED):
            return True
        # In an epoch of its own: what others hold of this one beyond its log's end is not what is written there now.
        await self._take_elected(
            await self._controller.elect(s.cluster_name, s.broker_name, self.own_id or 0, designate=True, may_lack=True)
        )
        return True

    async def _gives_way(self, why: str) -> bool:
        """Have a controller of ours elect one that holds more, or can write; False if none does.

        ServerError: one that may is away, and has to be waited for.
        """
        s = self._settings
        elected = await self._controller.elect(s.cluster_name, s.broker_name, self.own_id or 0, may_lack=True)
        master = elected.master
        if master.broker_id == self.own_id:
            return False
        limited.warning("%s: broker %d, which holds all, is elected", why, master.broker_id)
        self._look_now.set()
        return True

    async def _those_further(self, found: SetState) -> list[int]:
        """Bring the replicas into the set whose logs are this one's and more; return their numbers.

        Elected while its machine was down, and not missed yet, this broker is alone in the set, whoever was in it. For
        RocketMQ's controllers, which wait for no word.
        """
        s, own_id, master = self._settings, self.own_id, found.master
        if master is None or own_id is None or self._connections is None or master.epoch <= self._epochs.last_epoch:
            return []  # It was master in this epoch already: what is further than its log then is not its log.
        further = []
        try:
            for address in (await MemberGroup(s, self._connections).ask()).values():
                told = await ask_who(self._connections, address) if address != self._address else None
                if told is None or told.broker_name != s.broker_name or told.broker_id in (own_id, MASTER_ID):
                    continue
                if told.last_epoch == self._epochs.last_epoch and told.max_offset > self._store.end_position:
                    further.append(told.broker_id)
        except RocketSparkError as e:
            limited.warning("what this log may lack is not known of all others: %s", e)
        if further:
            await self._controller.alter_in_sync(
                s.broker_name, own_id, master.epoch, {own_id, *further}, found.set_epoch
            )
        return sorted(further)

    async def _take_elected(self, elected: Elected) -> None:
        await self._change(elected.master, elected.in_sync)

    async def _change(self, master: Master, members: frozenset[int]) -> None:
        broker_id, address, epoch, set_epoch, _ = master
        async with self._changing:
            if self.own_id is None or epoch < self._role.epoch:
                return
            if self._controlled.own_id == NO_NUMBER:
                # It is registered in this moment: once it is, it asks.
                self._look_now.set()
                return
            if epoch == self._role.epoch and (broker_id == self.own_id or address == self._role.master_address):
                self._controlled.same_master(members, set_epoch)
            elif broker_id == self.own_id:
                if master.awaits_word and epoch > self._epochs.last_epoch:
                    taken = await self._give_word(epoch, set_epoch)
                    if taken is None:
                        return
                    members, set_epoch = taken
                await self._controlled.become_master(epoch, members, set_epoch)
                if self._store.may_lack and self._role.is_master:
                    self._store.lacks_nothing()  # What is the log now is what it holds.
            else:
                await self._controlled.become_slave(address, epoch)

    async def _give_word(self, epoch: int, set_epoch: int) -> AcceptedSet | None:
        """Tell the controller that this broker begins; None if another one is elected in its place.

        A machine that lost its power while it was elected, unnoticed, would cut the others' logs to its own. It waits
        (ServerError) for those that may hold more, and one that cannot write for those that hold as much. RocketMQ's
        begins.
        """
        s, own_id = self._settings, self.own_id
        assert own_id is not None
        can_begin = self._can_begin()
        await self._controller.heartbeat(self._heartbeat())
        why = UNFLUSHED if can_begin else "this one cannot write to its disk"
        if (self._store.may_lack or not can_begin) and await self._gives_way(why):
            return None
        return await self._controller.alter_in_sync(s.broker_name, own_id, epoch, {own_id}, set_epoch)

    def _can_begin(self) -> bool:
        """Tell whether this broker can write what a master writes before its first message."""
        try:
            self._store.dispatch_received()
            self._epochs.check_writable()
        except StoreError as e:
            self._unfit_until_s = machine.monotonic() + UNFIT_S
            self._tell("begin as the master", str(e))
            return False
        return True

    @property
    def _is_unfit(self) -> bool:
        """Whether this broker's disk takes nothing: others are elected first."""
        log = self._store.log
        return bool(log.failed or log.refused) or machine.monotonic() < self._unfit_until_s

    async def notified(self, peer: Peer, request: Request[ElectMasterReply], body: bytes) -> bytes:
        """NOTIFY_BROKER_ROLE_CHANGED (1008): the controller tells the result of an election."""
        h = request.ext
        if h.master_broker_id is not None and h.master_address and h.master_epoch is not None:
            found = java_json.decode_request(body, SyncStateSet) if body else SyncStateSet()
            told = Master(
                h.master_broker_id,
                h.master_address,
                h.master_epoch,
                h.sync_state_set_epoch or 0,
                bool(h.awaits_word),
            )
            # One of this broker's tasks, so that it ends with them.
            heard = asyncio.create_task(self._hear(told, frozenset(found.sync_state_set)))
            self._tasks.add(heard)
            heard.add_done_callback(self._tasks.discard)
            await asyncio.wait((heard,))
        else:
            self._look_now.set()
        return reply(request.opaque)

    async def _hear(self, told: Master, members: frozenset[int]) -> None:
        if not await self._tried("take the role that the controller told", lambda: self._change(told, members)):
            self._look_now.set()

    def epoch_cache(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """GET_BROKER_EPOCH_CACHE (1007): tells in which epoch each part of this log was written."""
        s = self._settings
        found = {
            "brokerName": s.broker_name,
            "brokerId": self._role.broker_id,
            "clusterName": s.cluster_name,
            "epochList": [
                {"endOffset": entry.end, "epoch": entry.epoch, "startOffset": entry.start}
                for entry in self._epochs.entries
            ],
            "maxOffset": self._store.end_position,
        }
        return reply(request.opaque, body=bodies.encode(found))

    # -- signs of life --------------------------------------------------------------------------------------------

    def _whole_end(self) -> int:
        """Return up to where the log is whole: what is damaged behind that another replica may have."""
        store = self._store
        return min([store.end_position, *(begin for begin, end in store.log.damaged if end > store.min_position)])

    def _heartbeat(self) -> ReplicaHeartbeatHeader:
        s = self._settings
        return ReplicaHeartbeatHeader(
            cluster_name=s.cluster_name,
            broker_name=s.broker_name,
            address=self._address,
            broker_id=self.own_id,
            epoch=max(self._epochs.last_epoch, 0),
            max_offset=self._whole_end(),
            confirm_offset=self._store.confirmed_position,
            timeout_ms=s.controller_timeout_ms,
            election_priority=s.election_priority,
            zone=s.zone_name,
            may_lack=self._store.may_lack or self._is_unfit or None,
        )

    async def _beat(self) -> None:
        while True:
            # The first at once: a controller that never heard of a master waits for it as long as after its own start.
            await self._tried("tell the controllers of life", lambda: self._controller.heartbeat_all(self._heartbeat()))
            await pause(lambda: self._settings.heartbeat_interval_ms)

    async def _check_in_sync(self) -> None:
        while True:
            await pause(lambda: self._settings.sync_set_check_interval_ms)
            await self._tried("check the in-sync set", self._check)

    async def _check(self) -> None:
        self._controlled.check()
        others = self._controlled.others_in_sync()
        if self._store.log.failed is None or not self._role.is_master or not others:
            return
        # It takes nothing more before its disk is mended and it is started again; what one of them lacks still comes.
        if not self._controlled.in_sync.is_held_by_others() or await self._gives_way("a flush of the log failed"):
            return
        if not self._handed_over:
            # RocketMQ's controllers keep a master that lives, unless another one is named.
            self._handed_over = True
            await self.hand_over(others)

    async def hand_over(self, members: Iterable[int]) -> bool:
        """Have one of these members of the in-sync set elected, before this master leaves; False if none could be."""
        s = self._settings
        for member in members:
            try:
                elected = await self._controller.elect(s.cluster_name, s.broker_name, member, designate=True)
            except RocketSparkError as e:
                limited.warning("broker %d of %s was not elected before this one leaves: %s", member, s.broker_name, e)
                continue
            await self._take_elected(elected)
            return True
        return False
