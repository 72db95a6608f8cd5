"""One broker among those of its name: its role, its links to slaves or to its master, and every change of role.

Rule: roles change here alone, one change at a time and in a fixed order: first nothing new is taken, then the store
changes, then deliveries start or stop, last the NameServers are told. Every change is one line in the log.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable
from typing import Any

from rocketspark.broker.consumers.rebalance_locks import LockQuorum
from rocketspark.broker.inner_connections import inner_connections
from rocketspark.broker.replication.acting.acting_master import pass_over_notices
from rocketspark.broker.replication.acting.acting_mode import ActingMode
from rocketspark.broker.replication.controller_client import ControllerClient
from rocketspark.broker.replication.in_sync_set import InSyncReplicas, InSyncSet
from rocketspark.broker.replication.link.doors import connect_of, hall_of
from rocketspark.broker.replication.link.ha_client import HaClient
from rocketspark.broker.replication.link.ha_listener import HaListener
from rocketspark.broker.replication.link.links import (
    NOWHERE,
    LinkState,
    MasterLink,
    SlaveLink,
    SwitchMasterLink,
    SwitchSlaveLink,
    another_log,
)
from rocketspark.broker.replication.link.troubles import Troubles
from rocketspark.broker.replication.master_api import HaInfo
from rocketspark.broker.replication.master_check import MasterIdentity, mend_doubtful, mend_log
from rocketspark.broker.replication.members import MasterSearch, MemberGroup, tables_taken
from rocketspark.broker.replication.parts import MasterSteps, PeerLinks, ReplicationParts
from rocketspark.broker.replication.replicas_manager import ControlledRole, ReplicasManager, RoleDriver
from rocketspark.broker.replication.role import ACCESS_CHANGES, TABLE_CHANGES, Refusal, Role, Situation, refusal
from rocketspark.broker.replication.slave_synchronize import Arrivals, SlaveSynchronize
from rocketspark.broker.replication.standing import LOOK_S, Standing, all_copied, heirs
from rocketspark.broker.replication.waits import Mode
from rocketspark.errors import ConfigError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.route import MASTER_ID
from rocketspark.protocol.headers import Request
from rocketspark.store.files.epoch_file import EpochList
from rocketspark.transport.connections import parse_address
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Handler
from rocketspark.transport.request_frames import reply

log = logging.getLogger("rocketspark.broker.replication")
limited = LimitedLog("rocketspark.broker.replication")

# haMasterAddress counts from so many characters on (rule: DefaultMessageStore, 5.x).
ADDRESS_CHARACTERS_MIN = 6
# How long a master that ends waits for its slaves, or for an election.
HAND_OVER_S = 5.0
# How long one that was elected goes on copying from a master that has not left yet.
LAST_PIECES_S = 0.5
# How long it waits for the tables of one that may be gone.
LAST_TABLES_S = 1.0
# How long it takes those of one that leaves and waits: less than a request of its waits.
HEIRS_TABLES_S = 2.5
# How long the answer to an operator waits for slaves to take what he changed.
CHANGED_S = 1.0


class Replication(RoleDriver):
    """One broker's role, and all that changes with it. `start` and `join` give it the role that the settings say."""

    def __init__(self, parts: ReplicationParts) -> None:
        settings, store, role, waits = parts.settings, parts.store, parts.role, parts.waits
        self._settings = settings
        self._store = store
        self.role = role
        self._services = parts.services
        self._registration = parts.registration
        self._durability = parts.durability
        self._waits = waits
        self._long_polling = parts.long_polling
        self._routes = parts.routes
        self._tables = parts.tables
        self._messages = parts.messages
        self._address = ""
        self._start_end = store.written_position
        self._connections = inner_connections(settings)
        self.arrivals = Arrivals(store, parts.tables, parts.long_polling)
        self.members = MemberGroup(settings, self._connections)
        self.troubles = Troubles()
        self.listener = HaListener(self._master_link, self.troubles, waits, hall=hall_of(settings))
        self.client = HaClient(
            self._slave_link,
            self.troubles,
            on_appended=self.arrivals.appended,
            check=self._check_master,
            connect=connect_of(settings),
        )
        self.standing = Standing(
            settings, store, role, self.listener, self.client, waits, self.members, lambda: self._sync_set
        )
        self._search = MasterSearch(
            settings,
            self._connections,
            role,
            self.members,
            self.client,
            self.troubles,
            follow=self._follow,
            own_address=lambda: self._address,
        )
        self.wake = self.listener.wake
        role.is_copying = lambda: self.client.state is LinkState.TRANSFER
        self.synchronize: SlaveSynchronize | None = None
        self._acting = self._acting_mode(parts)
        parts.ha_info.told = self._told
        parts.ha_info.epoch = self.epoch_of_tables
        parts.ha_info.reset_flush_offset = self._reset_flush_offset
        parts.registration.on_master = self._registered
        self._is_joined = False
        # A master that is not registered yet, from which this broker copies already.
        self._coming: HaInfo | None = None
        # Where this log's last record begins, if the master has another one there; of the last look before a link.
        self._other_at = NOWHERE
        self.manager: ReplicasManager | None = None
        if settings.controller_mode:
            self._be_controlled()
        parts.durability.in_sync = self.standing
        parts.durability.wake = self.wake

    def _be_controlled(self) -> None:
        """Make the parts for a broker under a controller.

        Raises ConfigError, StoreUnwritable for files that cannot be read.
        """
        s, store = self._settings, self._store
        self.epochs = EpochList(s.epoch_file or f"{s.store_root}/epochFileCheckpoint")
        controller = ControllerClient((), connections=inner_connections(s))
        in_sync = InSyncReplicas(
            s, store, self.role, self.listener, self._waits, self.epochs, controller, self._long_polling
        )
        self.controlled = ControlledRole(store, self.role, self.epochs, self, in_sync, self._long_polling)
        self.manager = ReplicasManager(s, store, self.role, self.epochs, self.controlled, controller, self._connections)
        self.manager.routes(self._routes)
        self.listener.on_report = in_sync.reported
        self.listener.on_lost = in_sync.lost
        self._durability.mode = Mode.CONTROLLER

    def _acting_mode(self, parts: ReplicationParts) -> ActingMode | None:
        if not self._settings.slave_acting_master:
            pass_over_notices(self._routes)
            return None
        self._durability.mode = Mode.ACTING_MASTER
        peers = PeerLinks(self.members, self._connections, self.client, self.listener)
        steps = MasterSteps(self.own_ha_info, self._follow, self._copy_from, self._leave_master, self.configure)
        return ActingMode(parts, peers, steps)

    @property
    def _sync_set(self) -> InSyncSet | None:
        return self.controlled.in_sync.set if self.manager is not None else None

    def lock_quorum(self) -> LockQuorum:
        """Return what asks the other brokers with this broker's name for queue locks."""
        return LockQuorum(self._settings, self._connections, self.members.others)

    def _master_link(self, now_s: float) -> MasterLink:
        if self.manager is None:
            return MasterLink(self._store, self._settings, now_s, sent_end=self._sent_end)
        return SwitchMasterLink(
            self._store,
            self._settings,
            now_s,
            epochs=self.epochs,
            # A slave shows no more than its master, which may not have flushed the rest.
            confirmed=lambda: min(self._store.confirmed_position, self._store.shown_end),
        )

    def _sent_end(self) -> int | None:
        """Return up to where slaves get the log: where no send waits for them they get what is flushed.

        What the power took of this master they would hold, and show, in place of what is written there then.
        """
        return None if self._durability.replicates else self._store.shown_end

    def _slave_link(self, now_s: float) -> SlaveLink:
        if self.manager is None:
            return SlaveLink(self._store, self._settings, now_s)
        return SwitchSlaveLink(
            self._store,
            self._settings,
            now_s,
            epochs=self.epochs,
            replica_id=self.controlled.own_id,
            confirm=self.controlled.confirmed,
            learner=self.synchronize is None or not self.synchronize.is_taken,
            other_at=self._other_at,
        )

    def _tables_taken(self) -> None:
        """Who may be elected has its master's tables: from now on this slave is no learner."""
        link = self.client.link
        if isinstance(link, SwitchSlaveLink) and link.learner and not self._settings.async_learner:
            self.client.again()

    # -- start and end --------------------------------------------------------------------------------------------

    async def start(self, address: str) -> None:
        """Take the role that the settings say, listen for slaves, begin to deliver. Raises ConfigError, StoreError."""
        self._address = address
        s = self._settings
        # Before anything is waited for: the port is open, and who knew this broker as the master may send already.
        if self.manager is not None:
            self.role.kind, self.role.reason = Role.FENCED, "the controller has not said yet who is master"
            s.broker_role = "SLAVE"
            self._store.show_up_to(self._store.confirmed_position)
        elif s.broker_role == "SLAVE":
            self.role.kind = Role.SLAVE
        if not self.role.is_master:
            self._store.become_replica()
        if self.manager is not None:
            for code in TABLE_CHANGES | ACCESS_CHANGES:
                self._routes.wrap(code, self._taken_by_slaves)
        self.configure()
        await self._listen()
        self._registration.ha_address = self._own_ha_address
        self._store.cut_happened = self._services.queue_was_cut
        store_side = self.arrivals.store_side()
        store_side.mend = self._mend
        self.synchronize = SlaveSynchronize(
            self._tables,
            self._messages,
            store_side,
            own_address=address,
            connections=inner_connections(s),
            epoch=lambda: self.role.epoch,
        )
        self.synchronize.taken = self._tables_taken
        self.arrivals.synchronize = self.synchronize
        self.synchronize.start()
        self.client.start()
        if s.broker_role == "SLAVE" and self._configured_master:
            self.client.set_address(self._configured_master)
        self._warn()
        if self.role.delivers and self._acting is None:
            self._services.start()

    @property
    def source(self) -> SlaveSynchronize | None:
        """What copies a master's tables, while this broker is none."""
        return None if self.role.is_master else self.synchronize

    async def join(self) -> None:
        """Register at the NameServers and look for the master; under a controller, once that named the master."""
        log.info("broker %s is %s (id %d)", self._settings.broker_name, self.role.kind.value, self.role.broker_id)
        if self._acting is not None:
            await self._acting.join(self._address)
            return
        if self.manager is not None:
            self.manager.start(self._address)
        else:
            await self._search.first_look()
            await self._announce()
        self._search.begin()

    async def _announce(self) -> None:
        """Tell the NameServers of the role."""
        if self._is_joined:
            self._registration.again()
        else:
            self._is_joined = True
            await self._registration.start(self._address)

    async def stop(self) -> None:
        """Hand over to the slaves, then end deliveries and links. It does not unregister at the NameServers."""
        if self._acting is not None and self.role.is_master:
            # What it would deliver now no slave would hear of, and deliver too.
            await self._services.stop()
        try:
            async with asyncio.timeout(HAND_OVER_S):
                await self._hand_over()
        except TimeoutError:
            log.warning("not all slaves have what this master took when it ends; they get it when it is back")
        except Exception:
            log.exception("the slaves were not waited for")
        await self._end_links()
        await self._services.stop()
        self._waits.give_up()

    async def abandon(self) -> None:
        """Stop as a kill would: no other broker is told, and nothing is saved."""
        await self._end_links()
        await self._services.abandon()

    async def _end_links(self) -> None:
        if self.manager is not None:
            # First of all: that the links end is no news for the controller.
            self.controlled.in_sync.end()
            await self.manager.stop()
        self.arrivals.close()
        await self._search.stop()
        if self._acting is not None:
            await self._acting.stop()
        if self.synchronize is not None:
            await self.synchronize.stop()
        await self.client.close()
        await self.listener.close()
        await self._connections.close()

    async def _hand_over(self) -> None:
        """Take nothing more and wait until each slave that is connected has all; a controller elects one of them."""
        if not self.role.is_master or not any(c.link.acked >= 0 for c in self.listener.connections):
            return
        others = self.controlled.others_in_sync() if self.manager is not None else []
        if self.manager is not None and not others:
            return
        info = self.own_ha_info()
        self.role.kind, self.role.reason = Role.FENCED, "the broker ends"
        self.configure()
        self.wake()
        if self.manager is None:
            await all_copied(self._store, self.listener)
            if self._acting is None and info is not None:
                await tables_taken(self.members, self._connections, info)
            return
        # One that holds all is enough; without any the controller has to find another.
        if await self.manager.hand_over(await heirs(self._store, self.listener, set(others), HAND_OVER_S / 2)):
            # It takes this broker's tables once more, and only then answers as master.
            while self.synchronize is not None and not self.synchronize.in_office:
                await asyncio.sleep(LOOK_S)

    def _taken_by_slaves(self, handler: Handler) -> Handler:
        """Have what an operator changes answered once the slaves that copy have it.

        One that was elected in the next moment would bring back the topic or the user that was deleted.
        """

        async def changed(peer: Peer, request: Request[Any], body: bytes) -> Any:
            answer = handler(peer, request, body)
            if inspect.isawaitable(answer):
                answer = await answer
            info = self.own_ha_info()
            copying = {c.link.replica_id for c in self.listener.connections if c.link.acked >= 0}
            if info is not None and copying:
                try:
                    async with asyncio.timeout(CHANGED_S):
                        await tables_taken(self.members, self._connections, info, copying)
                except TimeoutError:
                    limited.warning("a slave may lack what was changed: it did not take it within %.0f s", CHANGED_S)
            return answer

        return changed

    # -- changes of role ------------------------------------------------------------------------------------------

    def stop_copying(self) -> None:
        """End the link to the master, and the copying of its tables."""
        self.client.set_address(None)
        if self.synchronize is not None:
            self.synchronize.set_master(None)

    async def finish_copying(self) -> None:
        """Take what the previous master still sends, its tables too, until it closes the link or for a short time.

        It may still acknowledge messages: RocketMQ 5.5.0 does so alone as soon as the link to the last slave of
        its in-sync set is gone, so the link stays open for a while.
        """
        looks = [self.synchronize.last_look(LAST_TABLES_S)] if self.synchronize is not None else []
        await asyncio.gather(self.client.drained(LAST_PIECES_S), *looks)
        self.client.leave()
        self.stop_copying()
        # The master's offsets may count messages that never came here: others will stand in their place.
        self._tables.offsets.keep_within(lambda topic, queue_id: self._store.stored_range(topic, queue_id)[1])

    def _tell(self, before: Role, reason: str) -> None:
        self.role.reason = reason
        log.info(
            "broker %s: %s, was %s (%s); the log ends at %d",
            self._settings.broker_name,
            self.role.kind.value,
            before.value,
            reason,
            self._store.written_position,
        )

    async def take_office(self, reason: str, epoch: int) -> None:
        """Become the master, or stay the master in a new epoch; the store takes messages already."""
        before, s = self.role.kind, self._settings
        if before is not Role.MASTER:
            self.listener.end_connections()
            self._start_end = self._store.written_position
            # If it fails the role and its epoch stay: the next look at the controller tries again. Till then it refuses
            # what is sent.
            await self._services.begin()
        self.role.epoch, self.role.master_address = epoch, None
        s.broker_id, s.broker_role = MASTER_ID, "SYNC_MASTER"
        self.role.kind = Role.MASTER
        if before is not Role.MASTER:
            self.configure()
            self._find_topics()
        self._tables.topics.begin_epoch(epoch)
        self._tell(before, reason)
        await self._announce()

    def _find_topics(self) -> None:
        """Messages that were acknowledged stay readable, though the master died before it told of their topics.

        Half messages too, which are in no queue of these yet; delayed ones once they are due.
        """
        queues = self._messages.transactions.recovered_queues()
        for topic, numbers in self._store.queues().items():
            queues.setdefault(topic, set()).update(numbers)
        topics = self._tables.topics
        topics.find_missing(queues)
        topics.elected_at = self._start_end

    async def follow_master(self, reason: str, address: str, epoch: int, own_id: int) -> None:
        """Become a slave of that master, or of another one."""
        before, s = self.role.kind, self._settings
        self.role.master_address = address
        s.broker_id, s.broker_role = own_id, "SLAVE"
        self.role.kind = Role.SLAVE
        self.configure()
        self._waits.give_up()
        self.listener.end_connections()
        self.stop_copying()
        await self._services.stop()
        if not self._store.log.is_replica:
            self._store.become_replica()
        self._store.forget_deletions_beyond(self._store.written_position)
        # Only now: a change that failed before is made again at the next look at the controller.
        self.role.epoch = epoch
        self._tables.topics.begin_epoch(epoch)
        self._tell(before, reason)
        if self.synchronize is not None:
            self.synchronize.set_master(address)
        await self._announce()
        self._search.look_now()

    async def _listen(self) -> None:
        s = self._settings
        if not s.ha_listen:
            return
        port = s.ha_listen_port or int(self._address.rpartition(":")[2]) + 1
        host = s.ha_listen_host or s.listen_host or "0.0.0.0"
        try:
            await self.listener.start(host, port)
        except ConfigError as e:
            if s.ha_listen_port:
                raise ConfigError(f"replication: {e}") from e
            # The port beside one that the system chose may well be another's.
            if s.listen_port:
                log.warning("%s; replication takes a free port, which slaves learn from the NameServer", e)
            await self.listener.start(host, 0)

    @property
    def _own_ha_address(self) -> str:
        if not self._settings.ha_listen:
            return ""
        host = self._settings.ha_advertised_host or self._address.rpartition(":")[0]
        return f"{host}:{self.listener.port}"

    def epoch_of_tables(self) -> int:
        """Return the epoch of the master from which the tables here came; 0 if they came from none.

        They came from none if the controller says that the master is at this broker's own address, and it is not the
        master: it lost its disk and came back as another replica, before it was missed.
        """
        return 0 if not self.role.is_master and self.role.master_address == self._address else self.role.epoch

    def own_ha_info(self) -> HaInfo | None:
        """Return this broker's addresses while it is the master, else None."""
        if not self.role.is_master:
            return None
        return HaInfo(self._own_ha_address, self._start_end, self._address)

    def _warn(self) -> None:
        s = self._settings
        if s.broker_role == "SYNC_MASTER" and not self._durability.replicates:
            log.warning(
                "brokerRole=SYNC_MASTER waits for no slave with inSyncReplicas=%d: set inSyncReplicas=2 to answer a"
                " send once a slave has the message",
                s.in_sync_replicas,
            )

    def configure(self) -> None:
        """Adapt which requests are refused, and what answers to sends wait for, to settings and role."""
        self._durability.refresh()
        self.listener.accepting = self.role.is_master
        s, kind = self._settings, self.role.kind
        situation = Situation(
            copies=kind is not Role.MASTER,
            fenced=kind is Role.FENCED,
            acting_allowed=s.slave_acting_master or s.controller_mode,
            reads_allowed=s.slave_read,
            recalls_allowed=s.recall_enabled,
            resets_here=s.reset_offsets_here,
            controlled=self.manager is not None,
        )
        found = {code: refusal(code, situation, host=self._address) for code in self._routes.table}
        self._routes.refuse({code: _refusing(answer) for code, answer in found.items() if answer is not None})

    # -- a slave's master -----------------------------------------------------------------------------------------

    @property
    def _configured_master(self) -> str | None:
        found = self._settings.ha_master_address.strip()
        if len(found) < ADDRESS_CHARACTERS_MIN:
            return None
        parse_address(found)
        return found

    async def _check_master(self, address: str) -> None:
        """Raise ReplicationError for another's master, or another log; whom a controller or a NameServer told is right.

        Under a controller the epochs tell where two logs part, and another log is refused where they do not. What is
        damaged here is mended first.
        """
        identity, master = MasterIdentity(self._settings, self._connections), self.role.master_address
        self._other_at = NOWHERE
        if self.manager is None:
            if address == self._configured_master:
                master = await identity.check(address)
            if master is None and self._coming is not None and self._coming.ha_address == address:
                master = self._coming.master_address
        if master is not None:
            self._other_at = await identity.other_record(master, self._store)
        if self.manager is None and self._other_at > NOWHERE:
            raise another_log(self._other_at)
        if master is not None:
            await mend_log(self._store, self._connections, master)

    async def _mend(self, master: str) -> None:
        # One with another log has other records at these places.
        if self.client.link is not None and self.client.link.fits:
            await mend_doubtful(self._store, self._connections, master)

    def _registered(self, ha_address: str | None, master_address: str | None) -> None:
        """A NameServer told where the master is; None: it knows of none, others may."""
        if self.manager is not None and master_address != self.role.master_address:
            return  # The controller knows better.
        if self.role.kind is Role.SLAVE and master_address:
            self._follow(ha_address, master_address)

    def _told(self, info: HaInfo) -> Awaitable[bytes | None] | None:
        """The master told where it is; one that leaves waits for what this returns: its tables are taken then."""
        if self._acting is not None:
            return self._acting.master.told(info)
        if self.role.kind is not Role.SLAVE:
            return None
        if self.manager is None:
            self._follow(info.ha_address, info.master_address)
        elif info.master_address != self.role.master_address:
            return None  # The controller knows better.
        return self.synchronize.last_look(HEIRS_TABLES_S) if self.synchronize is not None else None

    def _follow(self, ha_address: str | None, master_address: str | None) -> None:
        if master_address and master_address != self._address:
            if master_address != self.role.master_address:
                log.info("the master is %s, its replication %s", master_address, ha_address)
                self._store.forget_deletions_beyond(self._store.written_position)
            self.role.master_address = master_address
            if self.synchronize is not None:
                self.synchronize.set_master(master_address)
        if not self._store.log.is_replica:
            return  # Its deliveries have not ended yet; `follow_master` looks again once they have.
        if ha_address and self._configured_master is None and ha_address != self._own_ha_address:
            self.client.set_address(ha_address)

    def _copy_from(self, info: HaInfo) -> None:
        """Copy the log of a master that no NameServer knows yet; its tables are taken once it is registered."""
        self._coming = info
        self._follow(info.ha_address, None)

    def _leave_master(self) -> None:
        """The master is gone: its tables and its log come no more."""
        self.role.master_address = None
        self.stop_copying()
        if self._configured_master is not None:
            self.client.set_address(self._configured_master)

    def _reset_flush_offset(self, offset: int) -> None:
        self._store.master_flushed_position = offset


def _refusing(answer: Refusal) -> Handler:
    def refuse(peer: Peer, request: Request[Any], body: bytes) -> bytes:
        return reply(request.opaque, answer.code, remark=answer.remark)

    return refuse
