"""What the answer to a send waits for: the disk, copies on other brokers, both or neither.

`Durability` decides and waits; `ReplicaWaits` keeps the sends that wait for copies.

Rules: the waits for the disk and for copies run side by side, each with its own deadline; if both fail the answer tells
of the copies. Every waiting send is answered once, the earliest deadline first, and none waits for another one
(RocketMQ's single queue delays all behind a slow one).
"""

from __future__ import annotations

import asyncio
import collections
import logging
from collections.abc import Callable, Hashable, Set
from enum import Enum
from typing import Any, Protocol

from rocketspark.broker.replication.role import BrokerRole
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.storage.flush import FlushService
from rocketspark.errors import ServerError
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.frames import ONEWAY_FLAG
from rocketspark.protocol.headers import Request
from rocketspark.transport.peer import Peer

log = logging.getLogger("rocketspark.broker")

# Instead of a number of copies: every member of the in-sync set, as it is when a slave reports.
ALL_IN_SYNC = -1
# Instead of one: too few are in sync, the send is refused with NOT_ENOUGH_TEXT and nothing is stored.
NOT_ENOUGH = 0
# Nobody is waited for: the master's own copy is enough.
NOBODY = 1
NOT_ENOUGH_TEXT = "in-sync replicas not enough"

Wanted = int | frozenset[int]
Tell = Callable[[bool], None]


class Mode(Enum):
    """Who tells which brokers of a name live: nobody, the NameServer, or a controller."""

    CLASSIC = "classic"
    ACTING_MASTER = "acting master"
    CONTROLLER = "controller"


def acks_wanted(settings: BrokerSettings, mode: Mode, *, in_sync_count: int, sync_set_size: int) -> int:
    """Return how many copies a send waits for: a number with the master's, NOBODY, ALL_IN_SYNC or NOT_ENOUGH.

    It counts for messages of a SYNC_MASTER whose WAIT property is not false; all others need NOBODY. `in_sync_count`:
    how many live members, the master among them, are close to its log's end (`in_sync_members`); `sync_set_size`: the
    size of the controller's set with all that was asked for and not answered (5.5.0: the larger of the known and the
    wanted one). Rule: CommitLog.asyncPutMessage, 5.5.0.
    """
    wanted = settings.in_sync_replicas
    if mode is Mode.CONTROLLER:
        if sync_set_size < settings.in_sync_replicas_min:
            return NOT_ENOUGH
        if settings.all_ack_in_sync_set:
            return ALL_IN_SYNC if sync_set_size > 1 else NOBODY
    elif mode is Mode.ACTING_MASTER:
        if settings.auto_in_sync_replicas:
            wanted = max(min(wanted, in_sync_count), settings.in_sync_replicas_min)
        if wanted > in_sync_count:
            return NOT_ENOUGH
    return max(wanted, NOBODY)


def in_sync_members(alive_count: int, in_sync_slaves: int, heard_slaves: int) -> int:
    """Return how many live brokers of a name hold nearly all of the log, never more than are connected and close.

    `alive_count`: how many live for a NameServer, the master among them; `in_sync_slaves`: how many are close to the
    log's end; `heard_slaves`: how many of those were heard of lately. The latter live in any case: a NameServer that
    has just started knows nobody yet.
    """
    return max(min(alive_count, 1 + in_sync_slaves), 1 + heard_slaves)


class ReplicaWaits:
    """The sends that wait for copies, on the event loop on which they began.

    Sends that wait for the same copies with the same timeout are one row, in which positions and deadlines rise. So a
    slave's report costs one look at the first send of each row, and the sends that it releases.
    """

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        # By slave: (its controller id or None, up to where it holds the log).
        self._slaves: dict[Hashable, tuple[int | None, int]] = {}
        self._members: Set[int] = frozenset()
        self._own_id: int | None = None
        self._rows: dict[tuple[Wanted, int], collections.deque[tuple[int, float, Tell, int]]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        self.timeouts_count = 0

    @property
    def waiting_count(self) -> int:
        """How many sends wait."""
        return sum(waiting[3] for row in self._rows.values() for waiting in row)

    def reached(self, position: int, wanted: Wanted, tell: Tell, count: int = 1) -> None:
        """Call `tell(True)` once `wanted` copies hold the log up to `position`, `tell(False)` after slaveTimeout.

        `wanted`: a number with the master's own copy, ALL_IN_SYNC, or the ids of slaves. Each call's position is at
        least the one before. `count`: how many sends the call stands for.
        """
        timeout_ms = self._settings.slave_timeout_ms
        row = self._rows.get((wanted, timeout_ms))
        if row is not None and self._loop is not None:
            # Who stands before waits for less, so this one waits too; the timer is set.
            row.append((position, self._loop.time() + timeout_ms / 1000, tell, count))
            return
        if self._holds(wanted) >= position:
            tell(True)
            return
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        deadline_s = self._loop.time() + timeout_ms / 1000
        self._rows[wanted, timeout_ms] = collections.deque(((position, deadline_s, tell, count),))
        if self._timer is None or self._timer_s > deadline_s:
            if self._timer is not None:
                self._timer.cancel()
            self._set_timer(deadline_s)

    def acked(self, slave: Hashable, position: int, replica_id: int | None = None) -> None:
        """Note that a slave holds the log up to `position`. `slave`: any key that stands for its connection."""
        self._slaves[slave] = replica_id, position
        if self._rows:
            self._release()

    def held_by_all(self) -> int:
        """Return up to where all slaves that are connected, and all members in sync, hold the log; -1 if one of those
        is away, beyond any log if there is none.
        """
        connected = min((position for _, position in self._slaves.values()), default=1 << 62)
        return min(connected, self._holds(ALL_IN_SYNC))

    def left(self, slave: Hashable) -> None:
        """Stop counting a slave, whose connection ended."""
        self._slaves.pop(slave, None)

    def set_members(self, members: Set[int], own_id: int) -> None:
        """Take the controller's in-sync set, ids of slaves and this master: ALL_IN_SYNC waits for its members."""
        self._members, self._own_id = members, own_id
        if self._rows:
            self._release()

    def give_up(self) -> None:
        """Call `tell(False)` for all waiting sends, because this broker stops or is no longer the master."""
        rows, self._rows = self._rows, {}
        for row in rows.values():
            for _, _, tell, _ in row:
                self._tell(tell, False)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _holds(self, wanted: Wanted) -> int:
        """Return up to where as many hold the log as are wanted; -1 if fewer are there."""
        if wanted == ALL_IN_SYNC:
            members = self._members
            if len(members) <= 1:
                return 1 << 62
        elif isinstance(wanted, int):
            if wanted <= 1:
                return 1 << 62
            if len(self._slaves) < wanted - 1:
                return -1
            held = sorted((position for _, position in self._slaves.values()), reverse=True)
            return held[wanted - 2]
        else:
            members = wanted
        of_id = dict(self._slaves.values())
        return min((of_id.get(member, -1) for member in members if member != self._own_id), default=1 << 62)

    def _release(self) -> None:
        for key in list(self._rows):
            held = self._holds(key[0])
            row = self._rows.get(key)
            while row and row[0][0] <= held:
                self._tell(row.popleft()[2], True)
            if not row:
                self._rows.pop(key, None)

    def _set_timer(self, at_s: float) -> None:
        assert self._loop is not None
        # Kept beside it: a timer that is due at once is none for uvloop, and has no time.
        self._timer_s, self._timer = at_s, self._loop.call_at(at_s, self._time_out)

    def _time_out(self) -> None:
        assert self._loop is not None
        self._timer = None
        now_s = self._loop.time()
        late: list[tuple[float, Tell]] = []
        for key, row in list(self._rows.items()):
            while row and row[0][1] <= now_s:
                _, deadline_s, tell, count = row.popleft()
                self.timeouts_count += count
                late.append((deadline_s, tell))
            if not row:
                del self._rows[key]
        first_s = min((row[0][1] for row in self._rows.values()), default=None)
        if first_s is not None:
            self._set_timer(first_s)
        late.sort(key=lambda waiting: waiting[0])
        for _, tell in late:
            self._tell(tell, False)

    @staticmethod
    def _tell(tell: Tell, enough: bool) -> None:
        try:
            tell(enough)
        except Exception:
            # A failing callback must not keep other sends waiting.
            log.exception("a send that waited for replicas could not be answered")


class CopiesHeld(Protocol):
    """What `Durability` asks about the copies of the log on other brokers; `Standing` answers it."""

    def in_sync_slaves(self) -> int:
        """Return how many slaves are connected and close to the log's end."""

    def heard_slaves(self) -> int:
        """Return how many slaves that are close to the log's end sent something lately."""

    def alive_members(self) -> int:
        """Return how many brokers with this broker's name a NameServer counts as alive, this one among them."""

    def sync_set_size(self) -> int:
        """Return the size of the controller's in-sync set, with all that was asked for and not answered."""


class Durability:
    """Decides what the answer to a send waits for, and answers it then.

    `needed`: False while no answer waits for anything, so that handlers need not ask; it follows settings and role.
    """

    def __init__(
        self, settings: BrokerSettings, flush_service: FlushService, waits: ReplicaWaits, role: BrokerRole
    ) -> None:
        self._settings = settings
        self._flush_service = flush_service
        self._waits = waits
        self._role = role
        self.mode = Mode.CLASSIC
        self.in_sync: CopiesHeld | None = None
        self.flushes = settings.sync_flush
        self.replicates = False
        self.needed = False
        self.changed: Callable[[], None] = lambda: None
        # Called when a message waits for copies: the log has grown.
        self.wake: Callable[[], None] = lambda: None
        self.refresh()

    def refresh(self) -> None:
        """Make `flushes`, `replicates` and `needed` follow a change of settings or role."""
        s = self._settings
        self.flushes = s.sync_flush
        self._flush_service.show_flushed(s.sync_flush and self._role.is_master)
        self.replicates = self._role.is_sync_master and (
            s.in_sync_replicas > 1
            or (self.mode is Mode.CONTROLLER and (s.all_ack_in_sync_set or s.in_sync_replicas_min > 1))
            or (self.mode is Mode.ACTING_MASTER and s.auto_in_sync_replicas and s.in_sync_replicas_min > 1)
        )
        needed = self.flushes or self.replicates
        if needed != self.needed:
            self.needed = needed
            self.changed()

    def wanted(self) -> int:
        """Return how many copies a message's answer waits for: see `acks_wanted`."""
        if not self.replicates or self.in_sync is None:
            return NOBODY
        found, mode = self.in_sync, self.mode
        in_sync_count = sync_set_size = 0
        if mode is Mode.ACTING_MASTER:
            in_sync_count = in_sync_members(found.alive_members(), found.in_sync_slaves(), found.heard_slaves())
        elif mode is Mode.CONTROLLER:
            sync_set_size = found.sync_set_size()
        return acks_wanted(self._settings, mode, in_sync_count=in_sync_count, sync_set_size=sync_set_size)

    def check(self) -> None:
        """Raise ServerError 1, before anything is stored, if there are too few replicas for the copies wanted."""
        if self.replicates and self.wanted() == NOT_ENOUGH:
            raise ServerError(ResponseCode.SYSTEM_ERROR, NOT_ENOUGH_TEXT)

    def reply_when_durable(
        self, peer: Peer, request: Request[Any], position: int, reply_of: Callable[[int], bytes]
    ) -> None:
        """Answer a request by `reply_of(code)` once what it stored, up to `position`, is as durable as it should be."""
        wanted = self.wanted()
        if request.flag & ONEWAY_FLAG:
            self.wake()
            if self.flushes:
                self._flush_service.reached(position, lambda done: None)
            return
        peer.promise()
        self.when_durable(position, wanted, lambda code: peer.answer(reply_of(code)))

    def when_durable(self, position: int, wanted: int, tell: Callable[[int], None], count: int = 1) -> None:
        """Call `tell(code)` once the log up to `position` is as durable as `wanted` and the settings ask, or too late.

        `count`: how many messages the call stands for.
        """
        if wanted == NOT_ENOUGH:
            # Stored before that was known: it waits for the copies that are promised, and is late without them.
            wanted = max(self._settings.in_sync_replicas, self._settings.in_sync_replicas_min, 2)
        if wanted == NOBODY:
            if self.flushes:
                self._flush_service.reached(position, _told(tell, ResponseCode.FLUSH_DISK_TIMEOUT), count)
            else:
                tell(ResponseCode.SUCCESS)
            return
        self.wake()
        if not self.flushes:
            self._waits.reached(position, wanted, _told(tell, ResponseCode.FLUSH_SLAVE_TIMEOUT), count)
            return
        both = _Both(tell)
        self._flush_service.reached(position, both.flushed, count)
        self._waits.reached(position, wanted, both.replicated, count)


def _told(tell: Callable[[int], None], too_late: int) -> Callable[[bool], None]:
    return lambda done: tell(ResponseCode.SUCCESS if done else too_late)


class _Both:
    """An answer that waits for the disk and for copies."""

    __slots__ = ("_flushed", "_replicated", "_tell")

    def __init__(self, tell: Callable[[int], None]) -> None:
        self._tell = tell
        self._flushed: bool | None = None
        self._replicated: bool | None = None

    def flushed(self, done: bool) -> None:
        self._flushed = done
        self._answer()

    def replicated(self, done: bool) -> None:
        self._replicated = done
        self._answer()

    def _answer(self) -> None:
        if self._flushed is None or self._replicated is None:
            return
        code = ResponseCode.SUCCESS
        if not self._replicated:
            code = ResponseCode.FLUSH_SLAVE_TIMEOUT
        elif not self._flushed:
            code = ResponseCode.FLUSH_DISK_TIMEOUT
        self._tell(code)
