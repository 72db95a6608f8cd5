"""The thread of one member, in which the library works and waits for its disk, so that the controller's loop goes on.

Rule: a member whose disk fails is silent, logs one line, and begins anew from what its disk holds: it answers nothing
that it could not keep."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from rocketspark import machine
from rocketspark.controller.group.entries import State
from rocketspark.controller.group.raft_log import RaftLog
from rocketspark.errors import RocketSparkError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.store.files.system_calls import OsFiles

log = LimitedLog("rocketspark.controller")

TICK_S = 0.05
RETRY_S = 3.0
TURN_MAX = 200


class Status(NamedTuple):
    """What a member knows of its group, and how it stands there: who leads, the term, the members."""

    leads: bool = False
    leader: str | None = None
    term: int = 0
    members: tuple[str, ...] = ()
    standing: str = ""


class Hears(Protocol):
    """What a member's thread calls when something happens, in that thread."""

    def send(self, name: str, message: dict[str, Any]) -> None:
        """Send a message to another member."""

    def state(self, state: State) -> None:
        """Take the new state that the group agreed on."""

    def status(self, status: Status) -> None:
        """Take the member's new status."""


# True: it was taken. False: it was not, and never will be. None: nobody knows.
Outcome = bool | None
Done = Callable[[Outcome], None]


class RaftThread:
    """Runs a member until `stop`. `own`: its name; `others`: names of the other members when the group began."""

    def __init__(
        self, own: str, others: Iterable[str], folder: str, hears: Hears, files: OsFiles | None = None
    ) -> None:
        self._own, self._others = own, tuple(others)
        self._folder = folder
        self._hears = hears
        self._files = files or OsFiles()
        self._inbox: deque[tuple[Any, ...]] = deque()
        self._wake = machine.Event()
        self._steps: machine.Joinable | None = None
        self._stopping = False
        self._status = Status()
        self._up: set[str] = set()
        # What was asked for and has no outcome yet.
        self._waiting: set[Done] = set()

    def start(self) -> None:
        """Start the thread."""
        self._steps = machine.start_steps(self._run(), "rocketspark-controller")

    def stop(self) -> None:
        """End the thread, and wait for that; it may be in a write."""
        self._stopping = True
        self._put("stop")
        if self._steps is not None:
            self._steps.join()

    def _put(self, *item: Any) -> None:
        self._inbox.append(item)
        self._wake.set()

    # -- from the loop ----------------------------------------------------------------------------------------------

    def received(self, sender: str, message: dict[str, Any]) -> None:
        """Take a message of another member."""
        self._put("received", sender, message)

    def way(self, name: str, *, is_open: bool) -> None:
        """Tell the member that the way to another one was opened or has ended."""
        self._put("way", name, is_open)

    def propose(self, entry: bytes, done: Done) -> None:
        """Propose an entry; `done` is called with the outcome, in the member's thread."""
        self._put("propose", entry, done)

    def change_members(self, what: str, name: str, done: Done) -> None:
        """Propose to "add" or "rem" a member; `done` is called with the outcome, False if it is impossible now."""
        self._put("members", what, name, done)

    def hand_over(self) -> None:
        """Have another member become the leader."""
        self._put("hand_over")

    # -- in the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> machine.Steps:
        while not self._stopping:
            try:
                yield from self._run_member()
            except RocketSparkError as e:
                log.error("this controller takes no part until its disk does: %s", e)
            except Exception:
                log.exception("this controller begins anew")
            self._give_up()
            self._tell(Status(members=self._status.members, standing=self._status.standing))
            again = machine.monotonic() + RETRY_S
            while not self._stopping and machine.monotonic() < again:
                self._refuse()
                yield self._wake, TICK_S

    def _refuse(self) -> None:
        self._wake.clear()
        while self._inbox:
            item = self._inbox.popleft()
            if item[0] == "way":
                (self._up.add if item[2] else self._up.discard)(item[1])
            elif item[0] in ("propose", "members"):
                item[-1](None)

    def _run_member(self) -> machine.Steps:
        from rocketspark.controller.group.raft_member import RaftMember

        raft_log = RaftLog(self._folder, self._files)
        raft_log.open()
        member = RaftMember(
            self._own,
            self._others,
            raft_log,
            self._folder,
            self._hears.send,
            self._hears.state,
            self._files,
        )
        for name in self._up:
            member.up(name)
        while not self._stopping:
            self._wake.clear()
            for _ in range(min(len(self._inbox), TURN_MAX)):
                self._take(member, self._inbox.popleft())
            member.step()
            self._tell_of(member, raft_log)
            if not self._inbox:
                yield self._wake, TICK_S

    def _take(self, member: Any, item: tuple[Any, ...]) -> None:
        kind = item[0]
        if kind == "received":
            member.received(item[1], item[2])
        elif kind == "way":
            (self._up.add if item[2] else self._up.discard)(item[1])
            (member.up if item[2] else member.down)(item[1])
        elif kind in ("propose", "members"):
            done: Done = item[-1]
            if not member.leads:
                done(False)
                return
            self._waiting.add(done)
            if kind == "propose":
                member.propose(item[1], lambda taken, code: self._ended(done, taken, code))
            else:
                # Who is a member counts once the entry is in the log; an answer waits until it is agreed on.
                member.change_members(item[1], item[2], lambda _, code: self._ended(done, code == 0, code))
        elif kind == "hand_over":
            member.transferLeadership()

    def _ended(self, done: Done, taken: bool | None, code: int) -> None:
        if done not in self._waiting:
            return
        self._waiting.discard(done)
        done(bool(taken) if code in _CERTAIN else None)

    def _give_up(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for done in waiting:
            done(None)

    def _tell_of(self, member: Any, raft_log: RaftLog) -> None:
        status = Status(member.leads, member.leader, member.raftCurrentTerm, member.members, raft_log.standing)
        if self._waiting and not status.leads:
            self._give_up()
        self._tell(status)

    def _tell(self, status: Status) -> None:
        if status != self._status:
            self._status = status
            self._hears.status(status)


# Of the library's codes: agreed on; no room; no leader; another entry has its place; refused.
_CERTAIN = frozenset((0, 1, 2, 3, 6))
