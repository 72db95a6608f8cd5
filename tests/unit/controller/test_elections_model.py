"""Any requests in any order, brokers that die and return, restarts: what must hold of epochs, masters and ids."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.unit.controller.sets_under_test import NAME, Controlled

from rocketspark.controller import journal, replicas_info
from rocketspark.controller.elections import LogEnd
from rocketspark.controller.replica_sets import ReplicaSet
from rocketspark.protocol.headers.controller import ElectMasterReply

pytestmark = pytest.mark.shows(
    "the controller: ids, registration, elections, in-sync sets, cleaning, metadata (1001 to 1006, 1008 to 1013, 904)"
)

IDS = st.integers(1, 5)


class Elections(RuleBasedStateMachine):
    """A set of up to five replicas. `masters`: who was master in each epoch; `given`: ids that were given."""

    def __init__(self) -> None:
        super().__init__()
        self.state = Controlled(())
        self.forget()

    def forget(self) -> None:
        self.masters: dict[int, int | None] = {}
        self.given: set[int] = set()
        self.before: ReplicaSet | None = None

    @rule(broker_id=IDS, code=st.sampled_from(["", "a:1;1", "b:1;2"]))
    def applies(self, broker_id: int, code: str) -> None:
        s = self.state.sets.get(NAME)
        own = s.replicas.get(broker_id) if s else None
        decision = self.state.apply_id(broker_id, code)
        if own is not None:
            assert (decision.code == 0) == (own.check_code == (code or f"127.0.0.1:{9000 + broker_id};{broker_id}"))
            assert decision.events == ()
        else:
            assert (decision.code == 0) == (s is not None or broker_id == 1)

    @rule()
    def joins(self) -> None:
        broker_id = self.state.next_id()
        s = self.state.sets.get(NAME)
        assert s is None or broker_id not in s.replicas
        if broker_id <= 5:
            assert self.state.apply_id(broker_id).code == 0

    @rule(
        broker_id=IDS,
        epoch=st.integers(0, 3),
        offset=st.integers(0, 3),
        priority=st.integers(0, 2),
        ours=st.booleans(),
        may_lack=st.booleans(),
    )
    def is_heard(self, broker_id: int, epoch: int, offset: int, priority: int, ours: bool, may_lack: bool) -> None:
        self.state.lives.living.add(broker_id)
        self.state.lives.ends[broker_id] = LogEnd(epoch, offset, priority, may_lack=ours and may_lack, gives_word=ours)

    @rule(broker_id=IDS, maybe=st.booleans())
    def is_gone(self, broker_id: int, maybe: bool) -> None:
        self.state.lives.living.discard(broker_id)
        (self.state.lives.unheard.add if maybe else self.state.lives.unheard.discard)(broker_id)

    @rule(broker_id=st.one_of(st.just(-1), IDS), designate=st.booleans(), unclean=st.booleans())
    def elects(self, broker_id: int, designate: bool, unclean: bool) -> None:
        s, lives = self.state.sets.get(NAME), self.state.lives
        self.state.unclean = unclean
        decision = self.state.elect(broker_id, designate=designate)
        if s is None:
            assert decision.code == 2010
            return
        asking = None if broker_id == -1 else broker_id
        wanted = expected(s, self.state, asking, designate, unclean)
        answer = decision.header
        assert isinstance(answer, ElectMasterReply)
        if asking is not None and s.set_epoch == 0 and asking not in s.replicas:
            assert decision.code == 2010
        elif wanted is None:
            assert decision.code == (2004 if asking is None else 2012)
            assert self.state.set.master == (None if asking is None else s.master)
        elif wanted == s.master:
            assert (decision.code, self.state.set) == (2011, s)
            assert (answer.master_epoch, answer.sync_state_set_epoch) == (s.master_epoch, s.set_epoch)
        else:
            after = self.state.set
            assert (decision.code, answer.master_broker_id, after.master) == (0, wanted, wanted)
            assert (after.in_sync, after.master_epoch) == ((wanted,), s.master_epoch + 1)
            assert unclean or s.set_epoch == 0 or wanted in s.in_sync + s.heirs
            gives_word = lives.ends.get(wanted, LogEnd()).gives_word
            held = {*s.in_sync, *s.heirs}
            assert after.heirs == (tuple(sorted(held)) if gives_word and wanted in held and len(held) > 1 else ())
            assert bool(answer.awaits_word) == bool(after.heirs)
            assert (answer.master_epoch, answer.sync_state_set_epoch) == (after.master_epoch, after.set_epoch)
            assert wanted in lives.living or s.set_epoch == 0

    @rule(unclean=st.booleans())
    def the_master_may_lack_some(self, unclean: bool) -> None:
        s, lives = self.state.sets.get(NAME), self.state.lives
        if s is None or s.master is None:
            return
        self.state.unclean = unclean
        lives.living.add(s.master)
        decision = self.state.elect(s.master, may_lack=True)
        others = {*s.in_sync, *s.heirs} - {s.master}
        after = self.state.set
        assert decision.code == (0 if after.master != s.master else 2011 if unclean or others <= lives.living else 2012)
        if decision.code == 0:
            assert after.master in others & lives.living
            assert set(after.heirs) in ({*others, s.master}, set())
        else:
            assert after == s
            assert all(lives.ends.get(i, LogEnd()).may_lack for i in others & lives.living)

    @rule(master=IDS, epoch_off=st.integers(-1, 0), set_off=st.integers(-1, 0), members=st.sets(IDS))
    def alters(self, master: int, epoch_off: int, set_off: int, members: set[int]) -> None:
        s = self.state.sets.get(NAME)
        if s is None:
            return
        decision = self.state.alter(master, s.master_epoch + epoch_off, members, s.set_epoch + set_off)
        taken = (
            master == s.master
            and epoch_off == set_off == 0
            and master in members
            and (members != set(s.in_sync) or s.heirs)
            and members <= s.replicas.keys()
            and members <= self.state.lives.living
        )
        assert (decision.code == 0) == bool(taken)
        assert (self.state.set != s) == bool(taken)

    @rule(
        data=st.data(),
        off=st.sampled_from([(0, 0), (0, 0), (-1, 0), (0, -1)]),
    )
    def the_master_alters(self, data: st.DataObject, off: tuple[int, int]) -> None:
        s = self.state.sets.get(NAME)
        if s is None or s.master is None:
            return
        self.state.lives.living.add(s.master)
        living = sorted(self.state.lives.living & s.replicas.keys())
        members = data.draw(st.sets(st.sampled_from(living))) | {s.master}
        decision = self.state.alter(s.master, s.master_epoch + off[0], members, s.set_epoch + off[1])
        wanted = 2013 if members == set(s.in_sync) and not s.heirs else 2000 if off[0] else 2001 if off[1] else 0
        assert decision.code == wanted
        after = self.state.set
        same = (s.in_sync, s.set_epoch)
        assert (after.in_sync, after.set_epoch) == (same if wanted else (tuple(sorted(members)), s.set_epoch + 1))

    @rule(ids=st.one_of(st.none(), st.sets(IDS, min_size=1)), living=st.booleans())
    def cleans(self, ids: set[int] | None, living: bool) -> None:
        s = self.state.sets.get(NAME)
        decision = self.state.clean(";".join(map(str, ids)) if ids else None, living=living)
        if s is None:
            assert decision.code == 2009
            return
        if not living:
            assert (decision.code == 0) == (not ids & self.state.lives.living if ids else s.master is None)
        left = set(s.replicas) - (set(s.replicas) if ids is None else ids) if decision.code == 0 else set(s.replicas)
        assert set(self.state.sets[NAME].replicas if NAME in self.state.sets else ()) == left
        if not left:
            self.forget()

    @rule()
    def the_controller_starts_again(self) -> None:
        content = journal.encode(self.state.sets)
        assert journal.decode(content, "file") == self.state.sets
        self.state.sets = journal.decode(content, "file")
        self.state.lives.unheard |= self.state.lives.living
        self.state.lives.living.clear()

    @rule()
    def the_controller_scans(self) -> None:
        for name in replicas_info.without_master(self.state.sets, self.state.lives):
            old = self.state.sets[name]
            self.state.elect()
            assert self.state.sets[name].master != old.master
            assert self.state.sets[name].master_epoch == old.master_epoch + 1

    @invariant()
    def all_is_well(self) -> None:
        s = self.state.sets.get(NAME)
        if s is None:
            return
        if self.before is not None:
            assert s.master_epoch >= self.before.master_epoch
            assert s.set_epoch >= self.before.set_epoch
            assert s.next_id >= self.before.next_id
            changed = s.master != self.before.master
            assert s.master_epoch > self.before.master_epoch or not changed
        # One master in each epoch, and never another.
        assert self.masters.setdefault(s.master_epoch, s.master) == s.master
        assert set(s.in_sync) <= s.replicas.keys()
        assert list(s.in_sync) == sorted(set(s.in_sync))
        assert s.master is None or s.master in s.in_sync
        # Who was elected, and has not begun, is alone.
        assert set(s.heirs) <= s.replicas.keys()
        assert not s.heirs or set(s.in_sync) <= set(s.heirs)
        assert not s.heirs or len(s.in_sync) <= 1
        self.before = s


def expected(s: ReplicaSet, state: Controlled, asking: int | None, designate: bool, unclean: bool) -> int | None:
    """Who is elected, by the rules as they stand in RocketMQ's documents."""
    if s.set_epoch == 0 and asking is not None:
        return asking
    groups = [s.in_sync, s.heirs] + ([tuple(s.replicas)] if unclean else [])
    for at, group in enumerate(groups):
        may = {i for i in group if i in state.lives.living or (i == s.master and i in state.lives.unheard)}
        if designate and asking is not None:
            if asking in may:
                return asking
        elif s.master in may:
            return s.master
        elif may:
            ends = [(state.lives.ends.get(i, LogEnd()), i) for i in may]
            # Of those that were not in sync the longest log is elected, whatever it may lack.
            ends.sort(key=lambda each: (each[0].priority, each[1]))
            if at < 2:
                ends.sort(key=lambda each: (-each[0].epoch, -each[0].offset))
            ends.sort(key=lambda each: each[0].may_lack)
            if at == 2:
                ends.sort(key=lambda each: (-each[0].epoch, -each[0].offset))
            return ends[0][1]
    return None


TestElections = Elections.TestCase
