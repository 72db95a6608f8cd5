"""Members of a group in one thread: their time, chance, network and ends come from one seed. Their disks are real."""

from __future__ import annotations

import random
import shutil
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.controller.sets_under_test import CLUSTER, NAME, SetLives

from rocketspark import machine
from rocketspark.controller import replicas_info
from rocketspark.controller.group import raft_member
from rocketspark.controller.group.entries import Entry, State, encode_entry
from rocketspark.controller.group.raft_log import FOUNDING, LEARNER, VOTER, RaftLog
from rocketspark.controller.group.raft_member import RaftMember
from rocketspark.controller.replica_sets import Looked
from rocketspark.controller.replicas_info import Decision
from rocketspark.protocol.headers.controller import (
    AlterSyncStateSetHeader,
    ApplyBrokerIdHeader,
    ElectMasterHeader,
    ReplicaInfoHeader,
)
from rocketspark.protocol.json.operator_bodies import SyncStateSet
from rocketspark.store.files.system_calls import OsFiles

NAMES = ("n0-a:1", "n1-b:1", "n2-c:1")
TICK_S = 0.05


class NoSync(OsFiles):
    """A disk that is not waited for: nobody loses power here."""

    def sync_file(self, path: str) -> None:
        pass

    def sync_directory(self, path: str) -> None:
        pass

    def write_file(self, path: str, content: bytes) -> None:
        Path(path).write_bytes(content)


class Asked:
    """A request: what was decided, and what had been answered when it was asked."""

    def __init__(self, decision: Decision, base: int, answered: int) -> None:
        self.decision = decision
        self.base = base
        self.answered = answered
        self.outcome: bool | None = None
        self.ended = False


class World:
    """Members by name, None for one that does not run; messages on each way in order."""

    def __init__(self, folder: Path, seed: int, patch: pytest.MonkeyPatch, names: tuple[str, ...] = NAMES) -> None:
        self.folder, self.names = folder, names
        self.chance = random.Random(seed)
        self.now = 1000.0
        patch.setattr(machine, "monotonic", self._clock)
        patch.setattr(machine, "randrange", self.chance.randrange)
        patch.setattr(raft_member, "ENTRIES_MAX", 6)
        self.members: dict[str, RaftMember | None] = dict.fromkeys(names)
        self.logs: dict[str, RaftLog] = {}
        self.ways: dict[tuple[str, str], deque[bytes]] = {(a, b): deque() for a in names for b in names if a != b}
        self.cut: set[tuple[str, str]] = set()
        self.known: dict[str, tuple[str, ...]] = {}
        # One was removed, or may be.
        self.shrunk, self.removals = False, 0
        # By version: the state that all agree on, and the highest that somebody was answered.
        self.states: dict[int, State] = {0: State()}
        self.answered = 0
        self.asked: list[Asked] = []
        self.lives = SetLives(range(1, 6))
        self.counts = {"answers": 0, "looks": 0, "refused": 0, "members": 0}
        self.masters: dict[int, int | None] = {}
        for name in names:
            (folder / name).mkdir()
            self.start(name, FOUNDING)

    def _clock(self) -> float:
        # The library goes on with some things until time has passed.
        self.now += 1e-5
        return self.now

    # -- members ----------------------------------------------------------------------------------------------------

    def start(self, name: str, standing: str = "") -> None:
        log = RaftLog(str(self.folder / name), NoSync())
        log.open()
        if standing:
            log.stand(standing)
            log.flush()
        self.logs[name] = log
        own = self.folder / name
        member = RaftMember(
            name, self.names, log, str(own), lambda to, m: self._send(name, to, m), self._changed, NoSync()
        )
        self.members[name] = member
        self.known[name] = member.members
        for other in self.names:
            if other != name and self.members[other] is not None:
                self._open(name, other)
                self._open(other, name)

    def _open(self, a: str, b: str) -> None:
        member = self.members[a]
        if member is not None and self.members[b] is not None and (a, b) not in self.cut:
            self.ways[a, b].clear()
            member.up(b)

    def _close(self, a: str, b: str) -> None:
        self.ways[a, b].clear()
        member = self.members[a]
        if member is not None:
            member.down(b)

    def end(self, name: str) -> None:
        """End a member as SIGKILL would."""
        self.members[name] = None
        for other in self.names:
            if other != name:
                self._close(other, name)
                self.ways[name, other].clear()

    def wipe(self, name: str) -> None:
        """End it and exchange its disk for an empty one."""
        self.end(name)
        shutil.rmtree(self.folder / name)
        (self.folder / name).mkdir()
        self.logs[name].standing = LEARNER

    def cut_way(self, a: str, b: str) -> None:
        self.cut.add((a, b))
        self._close(a, b)

    def heal(self) -> None:
        cut, self.cut = self.cut, set()
        for a, b in cut:
            self._open(a, b)

    def _send(self, sender: str, to: str, message: dict[str, Any]) -> None:
        if to in self.names and self.members[to] is not None and (sender, to) not in self.cut:
            self.ways[sender, to].append(msgspec.msgpack.encode(message))

    def deliver(self, a: str, b: str) -> None:
        member = self.members[b]
        if member is not None and self.ways[a, b]:
            member.received(a, msgspec.msgpack.decode(self.ways[a, b].popleft()))

    def tick(self, name: str) -> None:
        member = self.members[name]
        if member is not None:
            member.step()
            # Ways are kept to those who are members now.
            known, now = self.known.get(name, ()), member.members
            self.known[name] = now
            for other in set(now) - set(known):
                if other != name:
                    self._open(name, other)

    # -- the state --------------------------------------------------------------------------------------------------

    def _changed(self, state: State) -> None:
        known = self.states.setdefault(state.version, state)
        assert known == state, "two members have another state of one version"
        s = state.sets.get(NAME)
        if s is not None:
            assert self.masters.setdefault(s.master_epoch, s.master) == s.master, "two masters of one epoch"

    def ask(self, name: str, decide: Callable[[State], Decision]) -> None:
        """Ask a member, which decides on what it knows if it believes that it leads."""
        member = self.members[name]
        if member is None or not member.leads:
            return
        decision = decide(member.state)
        asked = Asked(decision, member.state.version, self.answered)
        looked = (decision.looked,) if decision.looked else ()
        entry = Entry(member.state.version, decision.events, looked)
        self.asked.append(asked)
        member.propose(encode_entry(entry), lambda taken, code: self._answer(asked, taken, code))

    def _answer(self, asked: Asked, taken: bool | None, code: int) -> None:
        assert not asked.ended
        asked.ended = True
        asked.outcome = bool(taken) and code == 0
        if not asked.outcome:
            self.counts["refused"] += 1
            return
        # What was answered before this was asked is part of what it was decided on.
        assert asked.base >= asked.answered, "an answer that does not know of an earlier one"
        changes = bool(asked.decision.events or asked.decision.looked)
        self.counts["answers" if changes else "looks"] += 1
        self.answered = max(self.answered, asked.base + changes)

    def random_request(self) -> Callable[[State], Decision]:
        chance = self.chance
        broker, kind = chance.randint(1, 4), chance.randrange(6)
        if kind == 0:
            apply = ApplyBrokerIdHeader(
                cluster_name=CLUSTER, broker_name=NAME, applied_broker_id=broker, register_check_code=f"a:{broker};1"
            )
            return lambda state: replicas_info.apply_id(state.sets, apply)
        if kind == 1:
            self.lives.living = {i for i in range(1, 5) if chance.random() < 0.7}
            elect = ElectMasterHeader(
                cluster_name=CLUSTER, broker_name=NAME, broker_id=chance.choice((-1, broker)), designate_elect=False
            )
            return lambda state: replicas_info.elect(state.sets, elect, self.lives, unclean=chance.random() < 0.1)
        if kind == 2:
            return lambda state: self._alter(state, {i for i in range(1, 5) if chance.random() < 0.6}, broker)
        look = ReplicaInfoHeader(broker_name=NAME)
        if kind == 3:
            look = ReplicaInfoHeader(broker_name=NAME, master_broker_id=broker, asker=7, asked=chance.randint(1, 99))
        return lambda state: replicas_info.replica_info(state.sets, look)

    def _alter(self, state: State, members: set[int], asked: int) -> Decision:
        s = state.sets.get(NAME)
        if s is None or s.master is None:
            return Decision()
        self.lives.living |= members
        header = AlterSyncStateSetHeader(
            broker_name=NAME, master_broker_id=s.master, master_epoch=s.master_epoch, asker=7, asked=asked * 25
        )
        wanted = SyncStateSet(sync_state_set=sorted(members | {s.master}), sync_state_set_epoch=s.set_epoch)
        looked: Looked | None = state.looked.get(NAME)
        return replicas_info.alter(state.sets, header, wanted, self.lives, looked)

    # -- what happens -----------------------------------------------------------------------------------------------

    def do_something(self) -> None:
        chance = self.chance
        kind = chance.random()
        name = chance.choice(self.names)
        way = chance.choice(tuple(self.ways))
        if kind < 0.45:
            busy = [each for each, messages in self.ways.items() if messages]
            if busy:
                self.deliver(*chance.choice(busy))
        elif kind < 0.75:
            self.now += chance.random() * 0.1
            self.tick(name)
        elif kind < 0.90:
            self.ask(name, self.random_request())
        elif kind < 0.93:
            self.cut_way(*way)
        elif kind < 0.96:
            self.heal()
        elif kind < 0.97:
            self.end(name)
        elif kind < 0.971:
            self.change_members()
        elif kind < 0.974:
            # One that has not caught up yet may have lost what the others need of it.
            # And each knows all others: who missed a member's return does not answer it.
            whole = all(len(members) == len(self.names) for members in self.known.values())
            if (
                whole
                and not self.shrunk
                and all(self.logs[each].standing == VOTER for each in self.names if each != name)
            ):
                self.wipe(name)
        else:
            for each in self.names:
                if self.members[each] is None:
                    self.start(each, "" if RaftLog.is_in(str(self.folder / each)) else LEARNER)

    def change_members(self) -> None:
        """Have whoever leads remove another one, or take back one that was removed."""
        leading = [member for member in self.members.values() if member is not None and member.leads]
        if not leading:
            return
        leader = self.chance.choice(leading)
        others = [name for name in leader.members if name != leader.selfNode.id]
        gone = [name for name in self.names if name not in leader.members]
        if gone:
            self._change(leader, "add", gone[0])
        elif len(others) > 1 and all(log.standing == VOTER for log in self.logs.values()):
            # Two of two are needed then: none may have an empty disk.
            self._change(leader, "rem", self.chance.choice(others))

    def _change(self, leader: RaftMember, what: str, name: str) -> None:
        self.removals += what == "rem"
        before = self.removals

        def done(_: Any, code: int) -> None:
            self.counts["members"] += code == 0
            if what == "add" and code == 0 and self.removals == before:
                self.shrunk = False

        self.shrunk = self.shrunk or what == "rem"
        leader.change_members(what, name, done)

    def settle(self, limit: int = 4000) -> None:
        """Heal everything, and go on until all members have the same; fails if they do not."""
        self.heal()
        for name in self.names:
            if self.members[name] is None:
                self.start(name, "" if RaftLog.is_in(str(self.folder / name)) else LEARNER)
        final: Asked | None = None
        asked_of: list[str] = []
        for _ in range(limit):
            self.now += TICK_S / 2
            for name in self.names:
                self.tick(name)
            for way, messages in self.ways.items():
                for _ in range(len(messages)):
                    self.deliver(*way)
            leading = [name for name, member in self.members.items() if member is not None and member.leads]
            if len(leading) == 1 and self.chance.random() < 0.1:
                one = self.members[leading[0]]
                assert one is not None
                if len(one.members) < len(self.names):
                    self.change_members()
                    continue
            if len(leading) == 1 and (final is None or (final.ended and not final.outcome) or asked_of != leading):
                asked_of = leading
                self.ask(leading[0], lambda state: Decision())
                final = self.asked[-1]
            states = [member.state for member in self.members.values() if member is not None]
            if final is not None and final.outcome and all(each == states[0] for each in states):
                assert states[0].version >= self.answered
                return
        raise AssertionError("the group does not settle")
