"""Who waits for replicas: sends that are answered once enough of them hold the message, or too late.

Rule: each is told once, the first deadline first, and none waits for another's (RocketMQ's one queue delays all).
"""

from __future__ import annotations

import asyncio
import collections
import logging
from collections.abc import Callable, Hashable, Set
from enum import Enum

from rocketspark.broker.settings import BrokerSettings

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
    """Who says which brokers of a name are there: nobody, the NameServer, a controller."""

    CLASSIC = "classic"
    ACTING_MASTER = "acting master"
    CONTROLLER = "controller"


def acks_wanted(settings: BrokerSettings, mode: Mode, *, in_sync_count: int, sync_set_size: int) -> int:
    """Return how many copies a send needs: a number with the master's, NOBODY, ALL_IN_SYNC or NOT_ENOUGH.

    It is for a SYNC_MASTER's message whose WAIT property is not false; all others need NOBODY. `in_sync_count`: live
    members close to the master's end, itself among them (`in_sync_members`); `sync_set_size`: the controller's set and
    all that was asked for and not answered (5.5.0: the larger of the known and the wanted one). Rule:
    CommitLog.asyncPutMessage, 5.5.0.
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
    """Return how many of the live members hold nearly all: never more than are connected and close.

    `alive_count`: as a NameServer knows them, the master too. One that just started knows nobody yet: those of the
    close slaves that were heard of lately (`heard_slaves`) are alive, whatever it says.
    """
    return max(min(alive_count, 1 + in_sync_slaves), 1 + heard_slaves)


class ReplicaWaits:
    """The waiting sends, on the loop they were begun on.

    Those with the same wish and timeout stand in one row, whose positions and deadlines rise: an ack costs one look at
    the first of each row and what it releases.
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
        """How many wait."""
        return sum(waiting[3] for row in self._rows.values() for waiting in row)

    def reached(self, position: int, wanted: Wanted, tell: Tell, count: int = 1) -> None:
        """Call `tell(True)` once `wanted` copies hold the log up to `position`, `tell(False)` after slaveTimeout.

        `wanted`: a number with the master's own copy, ALL_IN_SYNC, or the ids of slaves. Positions of calls never fall.
        `count`: how many sends it stands for.
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
        """A slave holds the log up to `position`. `slave`: whatever stands for its connection."""
        self._slaves[slave] = replica_id, position
        if self._rows:
            self._release()

    def left(self, slave: Hashable) -> None:
        """A slave's connection ended: it counts no more."""
        self._slaves.pop(slave, None)

    def set_members(self, members: Set[int], own_id: int) -> None:
        """The in-sync set of the controller, ids of slaves and of this master; who waits for all waits for these."""
        self._members, self._own_id = members, own_id
        if self._rows:
            self._release()

    def give_up(self) -> None:
        """Tell all who wait False: this broker is master no more, or stops."""
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
