"""What a slave copies beside the log, and what it does as the log arrives.

`SlaveSynchronize` keeps topics, groups, offsets, delay levels, timers and users equal to the master's. `Arrivals` makes
the messages that arrived readable. `reverse_synchronize` goes the other way, from a slave that acted to its master.

The rule for offsets: from master to slave the master is right, also where its offsets are lower (an operator reset
them) or missing (an operator deleted a group). The whole table is replaced, and consumers commit once more what they
committed at the slave while the master was away. From an acting slave back to its master the higher offset of each
queue is taken, so that nothing that was finished on either side is delivered again.

What counts messages (offsets, delay levels, timers) is taken once the log here reaches where the master's log ended
when it was asked: a slave that is behind and becomes the master must not skip messages that it has not received.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from rocketspark.broker.consumers.long_polling import LongPolling
from rocketspark.broker.parts import Messages, Tables
from rocketspark.broker.replication.master_api import MasterApi, MasterOffsets
from rocketspark.broker.storage.json_tables import now_ms
from rocketspark.broker.topics import has_batch_queues
from rocketspark.errors import ProtocolError, RocketSparkError, ServerError, StoreError, TransportError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.json import metadata
from rocketspark.protocol.json.bodies import DataVersion, TopicConfig
from rocketspark.protocol.json.metadata import BrokerState, PeerDelayOffsets
from rocketspark.store.store import Store
from rocketspark.store.timers.timer_files import TimerCheckpoint
from rocketspark.transport.connections import Connections
from rocketspark.transport.peer import Peer

log = LimitedLog("rocketspark.broker")
replication_log = LimitedLog("rocketspark.broker.replication")

INTERVAL_S = 3.0
RETRY_S = 1.0
# How long one look waits for the log to arrive; what is not taken then is taken later.
ARRIVE_S = 1.0
ARRIVE_STEP_S = 0.02
# How soon a master that was elected and is not in office yet is asked again.
OFFICE_S = 0.1

DISPATCH_RETRY_S = 1.0


async def _nothing(master: str) -> None:
    pass


@dataclass(slots=True)
class StoreSide:
    """The functions by which a slave's store hears of its master's tables, and is asked for its own state.

    `log_end`: returns up to where the log has arrived here, None if nothing waits for it; `topics_taken`: called with
    new and changed topics; `topics_gone`: called with the topics that a Java master no longer has, perhaps before the
    log up to the deletion has arrived; `deleted_topics`: called with the topics that a RocketSpark master has deleted,
    each with the end of its log at that time; `queue_ends`: called with a topic and the offsets at which queues of the
    master end that have no messages any more; `is_whole`: tells whether the store has what its master keeps of messages
    that are no more in the master's log; `mend`: takes records that are in doubt from the master at that address.
    """

    log_end: Callable[[], int] | None = None
    topics_taken: Callable[[list[TopicConfig]], None] = lambda topics: None
    topics_gone: Callable[[list[str]], None] = lambda names: None
    deleted_topics: Callable[[dict[str, int]], None] = lambda positions: None
    queue_ends: Callable[[str, dict[int, int]], None] = lambda topic, ends: None
    is_whole: Callable[[], bool] = lambda: True
    mend: Callable[[str], Awaitable[None]] = _nothing


@dataclass(slots=True)
class _Progress:
    """What one look at the master found of what counts messages. `log_end`: that of the master, asked afterwards."""

    offsets: MasterOffsets | None = None
    delays: PeerDelayOffsets | None = None
    timers: TimerCheckpoint | None = None
    log_end: int = 0
    is_whole: bool = False


class SlaveSynchronize:
    """Copies the tables of one master, which may change or be unknown. `own_address`: this broker's, never a master's.

    `passes`: how many copies of all tables have ended; `failing`: by table, the error of the last copy. `is_taken`: the
    tables are taken, the log here reached where the master's ended when they were asked for, and the store is whole;
    `taken` is called then. `in_office`: the master answers as a master. `epoch`: returns this broker's, 0 without a
    controller.
    """

    def __init__(
        self,
        tables: Tables,
        messages: Messages,
        store_side: StoreSide,
        *,
        own_address: str = "",
        interval_s: float = INTERVAL_S,
        connections: Connections | None = None,
        epoch: Callable[[], int] = lambda: 0,
    ) -> None:
        self._tables = tables
        self._messages = messages
        self._store_side = store_side
        self._own_address = own_address
        self._interval_s = interval_s
        self._connections = connections or Connections(language="JAVA")
        self._epoch = epoch
        self.taken: Callable[[], None] = lambda: None
        self.is_taken = self.in_office = False
        self._master: str | None = None
        self._peer: Peer | None = None
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.passes = self._begun = 0
        self.failing: dict[str, str] = {}
        self._forget()

    def _forget(self) -> None:
        """Forget all that is known of the master's tables, so that they are copied whole."""
        self._whole = {"topics", "groups"}
        self._offsets_state, self._offsets_changes = "", -1
        self._is_ours = True
        self._waiting: _Progress | None = None
        # After which topic the master is to tell of queues without messages; None once it has told all.
        self._ends_after: str | None = ""
        self._told = False

    # -- following ------------------------------------------------------------------------------------------------

    @property
    def master(self) -> str | None:
        """Return the master's address, None while it is not known."""
        return self._master

    async def pull(self, topic: str, queue_id: int, offset: int) -> tuple[bytes, int]:
        """Return what `MasterApi.pull` does, of the master. Raises TransportError while none is known."""
        if self._master is None:
            raise TransportError("the master is not known yet")
        return await MasterApi(self._connections, self._master).pull(topic, queue_id, offset)

    def set_master(self, address: str | None) -> None:
        """Copy from another master from now on, at once; None: there is no master, and the tables stay as they are."""
        address = None if address == self._own_address else address
        if address == self._master:
            return
        if self._master is not None:
            self._connections.forget(self._master)
        self._master = address
        self.is_taken = self.in_office = False
        self.failing.clear()
        self._forget()
        self._wake.set()

    def look(self) -> None:
        """Copy the tables now, without waiting for the interval."""
        self._wake.set()

    def start(self) -> None:
        """Begin to copy the master's tables, in the background."""
        assert self._task is None
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop copying, and close the connection to the master."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        await self._connections.close()

    async def passed(self) -> None:
        """Wait until a copy of all tables that begins after this call has ended."""
        wanted = self._begun + 1
        while self.passes < wanted:
            await asyncio.shield(self._passed)

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            wait_s: float | None = None
            if self._master is not None:
                await self.synchronize()
                is_done = self.is_taken and not self.failing
                wait_s = self._interval_s if is_done else min(RETRY_S, self._interval_s)
                if not self.in_office and not self.failing:
                    wait_s = min(OFFICE_S, wait_s)
            await self._rest(wait_s)

    async def _rest(self, wait_s: float | None) -> None:
        """Wait at most `wait_s` seconds until `look` is called or the log that waiting tables need has arrived."""
        arriving = self._waiting
        try:
            async with asyncio.timeout(wait_s):
                while not self._wake.is_set():
                    if arriving is None or self._store_side.log_end is None:
                        await self._wake.wait()
                    elif self._store_side.log_end() >= arriving.log_end:
                        return
                    else:
                        await asyncio.sleep(ARRIVE_STEP_S)
        except TimeoutError:
            pass

    async def last_look(self, limit_s: float) -> None:
        """Copy the tables once more from a master that this broker stops following; give up after `limit_s` seconds."""
        if self._master is not None:
            self.look()
            try:
                async with asyncio.timeout(limit_s):
                    await self.passed()
            except TimeoutError:
                pass

    async def synchronize(self) -> None:
        """Copy every table from the master once. If one fails, the others are still copied; nothing is raised."""
        address = self._master
        if address is None:
            return
        self._begun += 1
        try:
            await self._all(address)
        finally:
            self.passes = self._begun
            done, self._passed = self._passed, asyncio.get_running_loop().create_future()
            done.set_result(None)

    async def _all(self, address: str) -> None:
        api = MasterApi(self._connections, address)
        progress = _Progress()
        items: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            ("connection", lambda: self._connect(api)),
            ("state", lambda: self._state(api)),
            ("records", lambda: self._store_side.mend(address)),
            ("users", lambda: self._users(api)),
            ("topics", lambda: self._topics(api)),
            ("groups", lambda: self._groups(api)),
            ("request modes", lambda: self._request_modes(api)),
            ("timer counts", lambda: self._timer_counts(api)),
            ("offsets", lambda: self._offsets(api, progress)),
            ("delay levels", lambda: self._delays(api, progress)),
            ("timers", lambda: self._timers(api, progress)),
            ("progress", lambda: self._progress(api, progress)),
        ]
        for name, fetch in items:
            try:
                await fetch()
            except RocketSparkError as e:
                self._failed(address, name, e)
                if isinstance(e, TransportError):
                    # The others would only wait as long.
                    return
            except Exception as e:
                # A mistake here must not end the following for good.
                log.exception("%s of the master at %s were not taken", name, address)
                self.failing[name] = str(e)
            else:
                self._worked(address, name)
            if self._master != address or (name == "state" and not self.in_office):
                return
        if not self._told and not self.failing:
            self._told = True
            log.info(
                "the tables of the master at %s are taken: %d topics, %d groups",
                address,
                len(self._tables.topics.table),
                len(self._tables.groups.table),
            )

    def _failed(self, address: str, name: str, error: RocketSparkError) -> None:
        if self._master == address:
            if name not in self.failing:
                log.warning("%s of the master at %s were not taken: %s; tried again", name, address, error)
            self.failing[name] = str(error)

    def _worked(self, address: str, name: str) -> None:
        if self.failing.pop(name, None) is not None:
            log.info("%s of the master at %s are taken again", name, address)

    def _is_master(self, api: MasterApi) -> bool:
        """Tell whether the asked broker is still the one to follow: else its answer is thrown away."""
        return api.address == self._master

    async def _connect(self, api: MasterApi) -> None:
        """A new connection may lead to another broker, at the same address."""
        peer = await self._connections.get(api.address)
        if peer is not self._peer and self._is_master(api):
            self._peer = peer
            self._forget()

    # -- the tables -----------------------------------------------------------------------------------------------

    def _known(self, name: str, version: DataVersion) -> DataVersion | None:
        """Return the version to ask with, at which the master need not send the table; None to get the whole table.

        It is None at first, and once more after each change: a Java broker may tell the new version with the
        old rows.
        """
        return None if name in self._whole else version

    async def _topics(self, api: MasterApi) -> None:
        topics = self._tables.topics
        found = await api.topics(self._known("topics", topics.version))
        if found is None or not self._is_master(api):
            return
        before = topics.version
        topics.statics.take(found.mappings, found.mapping_version)
        changed, gone = topics.take(found.table, found.version)
        self._took("topics", again=topics.version != before)
        if changed:
            self._store_side.topics_taken(changed)
        if gone and not self._is_ours:
            self._store_side.topics_gone(gone)

    async def _groups(self, api: MasterApi) -> None:
        groups = self._tables.groups
        found = await api.groups(self._known("groups", groups.version))
        if found is None or not self._is_master(api):
            return
        before = groups.version
        groups.take(found.table, found.forbidden, found.version)
        self._took("groups", again=groups.version != before)

    def _took(self, name: str, *, again: bool) -> None:
        if again:
            self._whole.add(name)
        else:
            self._whole.discard(name)

    async def _users(self, api: MasterApi) -> None:
        """Take users and rules; a RocketMQ master tells them too, its own slaves do not ask."""
        access = self._tables.access
        if access is None:
            return
        try:
            users, acls = await api.users(), await api.acls()
        except ServerError as e:
            if e.code == ResponseCode.SYSTEM_ERROR:
                # It keeps none: its settings have no access control.
                return
            raise
        if self._is_master(api):
            access.replace(users, acls)

    async def _request_modes(self, api: MasterApi) -> None:
        found = await api.request_modes()
        if self._is_master(api):
            self._tables.request_modes.take(found)

    async def _timer_counts(self, api: MasterApi) -> None:
        found = await api.timer_counts()
        if self._is_master(api):
            statistics = self._messages.timers.statistics
            statistics.take(found)
            statistics.save(now_ms())

    async def _state(self, api: MasterApi) -> None:
        found: BrokerState | None = await api.state(self._ends_after) if self._is_ours else None
        if not self._is_master(api):
            return
        # One that was elected takes once more what its master before had, and only then is to be followed.
        self.in_office = found is None or found.epoch is None or found.epoch >= self._epoch()
        if found is None:
            self._is_ours = False
            return
        if not self.in_office:
            return
        self._store_side.deleted_topics(found.deleted_topics)
        await self._queue_ends(api, found)
        if not self._is_master(api):
            return
        self._messages.quarantine.take(found.quarantine)
        self._tables.offsets.take_resets((r.group, r.topic, r.queue_id, r.offset) for r in found.resets)

    async def _queue_ends(self, api: MasterApi, found: BrokerState) -> None:
        """Take where queues end that have no messages: elected, this broker goes on there, not at offset 0."""
        while self._ends_after is not None:
            for topic, ends in found.queue_ends.items():
                self._store_side.queue_ends(topic, ends)
                await asyncio.sleep(0)
            self._ends_after = found.ends_until
            if self._ends_after is None:
                return
            more = await api.state(self._ends_after)
            if more is None or not self._is_master(api):
                return
            found = more

    # -- what counts messages -------------------------------------------------------------------------------------

    async def _offsets(self, api: MasterApi, progress: _Progress) -> None:
        # What was committed here meanwhile goes, also if nothing changed there.
        is_known = self._tables.offsets.changes == self._offsets_changes
        progress.offsets = await api.offsets(self._offsets_state if is_known else "")

    async def _delays(self, api: MasterApi, progress: _Progress) -> None:
        progress.delays = await api.delay_offsets()

    async def _timers(self, api: MasterApi, progress: _Progress) -> None:
        progress.timers = await api.timer_checkpoint()

    async def _progress(self, api: MasterApi, progress: _Progress) -> None:
        """Take what was found as soon as the log is here; a slave far behind keeps the oldest of what it found."""
        log_end = self._store_side.log_end
        if log_end is None:
            self._take_progress(api, progress)
            return
        try:
            progress.log_end = await api.log_end()
        except ServerError:
            # A broker that tells nothing of its log.
            progress.log_end = 0
        progress.is_whole = not self.failing.keys() & {"state", "topics", "groups", "offsets"}
        waiting, self._waiting = self._waiting, None
        # A log that ends before where it ended is another one.
        if waiting is not None and waiting.log_end <= progress.log_end:
            if log_end() < waiting.log_end:
                self._waiting = waiting
                return
            self._take_progress(api, waiting)
        left = round(ARRIVE_S / ARRIVE_STEP_S)
        while log_end() < progress.log_end and left > 0:
            left -= 1
            await asyncio.sleep(ARRIVE_STEP_S)
        if not self._is_master(api):
            return  # What would wait for its log waits no more: this broker may be master by now.
        if log_end() < progress.log_end:
            self._waiting = progress
        else:
            self._take_progress(api, progress)

    def _take_progress(self, api: MasterApi, progress: _Progress) -> None:
        if not self._is_master(api):
            return
        if progress.offsets is not None:
            table, state = progress.offsets
            self._tables.offsets.take(table.offset_table, table.data_version)
            self._tables.offsets.anew.replace(table.readers_anew)
            self._offsets_state, self._offsets_changes = state or "", self._tables.offsets.changes
        if progress.delays is not None:
            self._messages.delays.take(progress.delays.offset_table, progress.delays.data_version)
        if progress.timers is not None:
            self._messages.timers.take_checkpoint(progress.timers)
        if progress.is_whole and not self.is_taken and self._store_side.is_whole():
            self.is_taken = True
            self.taken()


async def reverse_synchronize(connections: Connections, address: str, tables: Tables, messages: Messages) -> None:
    """Take over, on a master that was away, what the slave at `address` did in its place, before serving again.

    Offsets of consumers are taken if their version is not older than here (rule: BrokerPreOnlineService, 5.5.0), the
    higher of each queue. Of delay levels the higher number is taken, of timers the later time, whatever the versions: a
    slave that never saw its master's has an older one, and what it sent elsewhere must not be delivered again. Raises
    RocketSparkError if any of the three cannot be had or has no version: nothing is taken then.
    """
    api = MasterApi(connections, address)
    delays = await api.delay_offsets()
    found = await api.offsets()
    timers = await api.timer_checkpoint()
    assert found is not None
    offsets = found.table
    if delays.data_version is None or offsets.data_version is None:
        raise ProtocolError(f"{address} tells no version of its offsets: an older RocketMQ cannot act for a master")
    if not metadata.is_older(offsets.data_version, tables.offsets.version):
        tables.offsets.take_back(offsets.offset_table, offsets.data_version)
    own = messages.delays.table()
    highest = dict(own.offset_table)
    for level, offset in delays.offset_table.items():
        highest[level] = max(offset, highest.get(level, offset))
    is_older = metadata.is_older(delays.data_version, own.data_version)
    messages.delays.take(highest, own.data_version if is_older else delays.data_version)
    checkpoint = messages.timers.checkpoint()
    newer = checkpoint if timers.is_older(checkpoint) else timers
    # Never the higher of each: what came here and not to the slave still waits, though the slave is past its time.
    read_ms, read_to = max((c.read_time_ms, c.master_queue_offset) for c in (timers, checkpoint))
    messages.timers.take_checkpoint(newer._replace(read_time_ms=read_ms, master_queue_offset=read_to))
    log.info("what the broker at %s did in this master's place is taken back", address)


class Arrivals:
    """Makes the messages that arrived over the link readable. `synchronize`: copies the master's tables; set later, as
    is `is_whole`: see `StoreSide`.
    """

    def __init__(self, store: Store, tables: Tables, long_polling: LongPolling) -> None:
        self._store = store
        self._tables = tables
        self._long_polling = long_polling
        self.synchronize: SlaveSynchronize | None = None
        self.is_whole: Callable[[], bool] = lambda: True
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False

    def close(self) -> None:
        """Do nothing more with what arrives."""
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()

    def appended(self) -> None:
        """Make the messages that arrived readable, and answer the pulls that wait for them."""
        store = self._store
        if self._closing or not store.log.is_replica:
            return
        try:
            store.dispatch_received()
        except StoreError as e:
            replication_log.warning("what came from the master cannot be read yet, tried again: %s", e)
            self._try_again()
        except Exception:
            # After any error: else nothing would be looked at until more comes.
            replication_log.exception("what came from the master cannot be read yet, tried again")
            self._try_again()
        for topic, queue_id, _ in store.take_arrived():
            self._long_polling.mark(topic, queue_id)
            if topic not in self._tables.topics.table and self.synchronize is not None:
                # A new topic: its settings should be here before the master can be gone.
                self.synchronize.look()

    def _try_again(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DISPATCH_RETRY_S, self._again)

    def _again(self) -> None:
        self._timer = None
        self.appended()

    def store_side(self) -> StoreSide:
        """Return the StoreSide by which the store hears of the master's tables."""
        return StoreSide(
            log_end=lambda: self._store.written_position,
            topics_taken=self._topics_taken,
            topics_gone=self._topics_gone,
            deleted_topics=self._store.take_deletions,
            queue_ends=self._store.take_queue_ends,
            is_whole=lambda: self.is_whole(),
        )

    def _topics_taken(self, topics: list[TopicConfig]) -> None:
        for topic in topics:
            self._store.take_kind(topic.topic_name, is_batch=has_batch_queues(topic))

    def _topics_gone(self, names: list[str]) -> None:
        for name in names:
            try:
                self._store.delete_topic(name)
            except StoreError as e:
                replication_log.warning("topic %s is deleted at the master, but not here: %s", name, e)
