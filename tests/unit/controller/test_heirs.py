"""Who was in sync before an election is kept, and may be elected, until who was elected says that it begins."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.controller.sets_under_test import NAME, Controlled, three_in_sync
from tests.unit.controller.test_replicas_info import elected

from rocketspark.controller import journal, replicas_info
from rocketspark.controller.elections import LogEnd
from rocketspark.controller.group import entries
from rocketspark.controller.replica_sets import Looked, ReplicaSet
from rocketspark.model import typed_json
from rocketspark.protocol.headers.controller import (
    AlterSyncStateSetHeader,
    RegisterToControllerReply,
    ReplicaInfoHeader,
    ReplicaInfoReply,
)
from rocketspark.protocol.json.operator_bodies import SyncStateSet

pytestmark = pytest.mark.shows(
    "the controller keeps who was in sync until who was elected has begun; who was elected dead, or is back with"
    " less, gives way",
)


def of_ours(state: Controlled, *may_lack: int, **ends: int) -> None:
    """Brokers of ours, whose logs end at 10 unless `ends` (as "n2") says where."""
    state.lives.ends = {
        i: LogEnd(1, ends.get(f"n{i}", 10), may_lack=i in may_lack, gives_word=True) for i in state.set.replicas
    }


def test_who_was_in_sync_is_kept_until_who_was_elected_gave_its_word() -> None:
    state = three_in_sync()
    of_ours(state, n3=11)
    state.lives.living = {2, 3}
    found = elected(state.elect())
    assert (found.master_broker_id, found.awaits_word) == (3, True)
    assert (state.set.in_sync, state.set.heirs) == ((3,), (1, 2, 3))
    told = replicas_info.replica_info(state.sets, ReplicaInfoHeader(broker_name="broker-set-a")).header
    assert isinstance(told, ReplicaInfoReply)
    assert told.awaits_word
    registered = state.register(3).header
    assert isinstance(registered, RegisterToControllerReply)
    assert registered.awaits_word
    # It was dead already, say, or its log is lost: who holds what was acknowledged is elected in its place.
    state.lives.living = {2}
    assert elected(state.elect()).master_broker_id == 2
    assert (state.set.in_sync, state.set.heirs) == ((2,), (1, 2, 3))
    # Its word is its first request for an in-sync set, though that is what the set is.
    assert [state.alter(3, 2, [3], 3).code, state.alter(2, 3, [2], 4).code] == [2002, 0]
    assert (state.set.in_sync, state.set.heirs, state.set.set_epoch) == ((2,), (), 5)
    assert state.alter(2, 3, [2], 5).code == 2013
    # From now on it alone holds all.
    state.lives.living = {1, 3}
    assert state.elect().code == 2004


def test_nobody_is_kept_for_who_gives_no_word() -> None:
    """RocketMQ's brokers begin when they are elected."""
    state = three_in_sync()
    state.lives.living = {2, 3}
    assert elected(state.elect()).awaits_word is None
    assert (state.set.in_sync, state.set.heirs) == ((2,), ())
    assert state.alter(2, 2, [2], 3).code == 2013
    state.lives.living = {1, 3}
    assert state.elect().code == 2004


def test_nobody_is_kept_where_who_was_not_in_sync_is_elected_or_one_alone_was() -> None:
    state = three_in_sync()
    of_ours(state)
    assert state.alter(1, 1, [1, 2], 2).code == 0
    state.lives.living, state.unclean = {3}, True
    assert elected(state.elect()).master_broker_id == 3
    assert state.set.heirs == ()
    state.lives.living = {1}
    assert elected(state.elect()).master_broker_id == 1
    assert state.set.heirs == ()


def test_who_may_lack_some_of_its_log_is_elected_last() -> None:
    state = three_in_sync()
    of_ours(state, 2, n2=11)
    state.lives.living, state.zones = {2, 3}, ("east",)
    state.lives.ends[2] = state.lives.ends[2]._replace(zone="east")
    assert elected(state.elect()).master_broker_id == 3


@pytest.mark.parametrize(
    ("living", "may_lack", "ends", "unclean", "master"),
    [
        ({1, 2}, {2}, {}, False, 1),
        # What a broker told of its log last may be from before its master wrote more.
        ({1, 2}, {2}, {"n1": 9}, False, 1),
        ({1, 2, 3}, {2, 3}, {"n3": 99}, False, 1),
        ({2}, {2}, {}, False, None),
        ({2}, {2}, {}, True, 2),
        ({2, 3}, {2, 3}, {"n3": 11}, False, 3),
        ({2, 3}, {2, 3}, {}, False, None),
        # All machines lost their power: the longest log goes on.
        ({1, 2, 3}, {1, 2, 3}, {"n2": 11}, False, 2),
        ({1, 2, 3}, {1, 2, 3}, {"n3": 11}, False, 3),
    ],
)
@pytest.mark.parametrize("begun", [False, True])
def test_a_master_that_may_lack_what_was_acknowledged_waits_for_who_holds_it(
    living: set[int], may_lack: set[int], ends: dict[str, int], unclean: bool, master: int | None, begun: bool
) -> None:
    state = three_in_sync()
    of_ours(state)
    assert state.elect(2, designate=True).code == 0
    if begun:
        assert state.alter(2, 2, [1, 2, 3], 3).code == 0
    before = state.set
    of_ours(state, *may_lack, **ends)
    state.lives.living, state.unclean = living, unclean
    decision = state.elect(2, may_lack=True)
    if master is None:
        assert decision.code == 2012
        assert "2 of broker-set-a may lack what was acknowledged, and not all of [1, 2, 3]" in (decision.remark or "")
    else:
        assert (decision.code, elected(decision).master_broker_id) == (2011 if master == 2 else 0, master)
    assert (state.set == before) == (master in (None, 2))
    if master not in (None, 2):
        assert (state.set.in_sync, state.set.heirs) == ((master,), (1, 2, 3))


@pytest.mark.shows(
    "mended: a master that lost its log's end with its machine's power wrote on in the same epoch: a slave that still"
    " had that end held other messages there, and lost acknowledged ones once it was elected"
)
@pytest.mark.parametrize("living", [{1}, {1, 2, 3}])
def test_a_master_that_lost_the_end_of_its_log_goes_on_in_a_new_epoch(living: set[int]) -> None:
    state = three_in_sync()
    of_ours(state, 1)
    state.lives.living = living
    epoch = state.set.master_epoch
    found = elected(state.elect(1, designate=True, may_lack=True))
    assert (found.master_broker_id, found.master_epoch, found.awaits_word) == (1, epoch + 1, None)
    assert (state.set.master, state.set.master_epoch, state.set.in_sync) == (1, epoch + 1, (1,))
    # Who is master no more takes nobody's place by it.
    assert state.elect(3, designate=True, may_lack=True).code == 2011
    assert state.set.master == 1


def test_who_is_cleaned_is_waited_for_no_more() -> None:
    state = three_in_sync()
    of_ours(state, 2)
    assert state.elect(2, designate=True).code == 0
    state.lives.living = {2}
    assert state.elect(2, may_lack=True).code == 2012
    assert state.clean("1;3").code == 0
    assert state.set.heirs == (2,)
    assert state.elect(2, may_lack=True).code == 2011


def test_an_operator_may_choose_among_those_that_are_kept() -> None:
    state = three_in_sync()
    of_ours(state)
    assert state.elect(2, designate=True).code == 0
    assert elected(state.elect(3, designate=True)).master_broker_id == 3
    assert state.set.heirs == (1, 2, 3)


def test_states_of_before_are_read_and_the_kept_ones_are_written() -> None:
    """In the file of a single controller, in entries and snapshots of three; who knows of none reads them, too."""
    state = three_in_sync()
    of_ours(state)
    decision = state.elect(2, designate=True)
    assert journal.decode(journal.encode(state.sets), "file") == state.sets
    old = journal.encode(state.sets).partition(b"\n")[2].decode()
    kept = ',\n  "heirs": [\n   1,\n   2,\n   3\n  ]'
    assert old.count(kept) == 1
    assert typed_json.decode(old.replace(kept, "").encode(), list[ReplicaSet])[0].heirs == ()

    entry = entries.Entry(0, decision.events)
    assert entries.decode_entry(entries.encode_entry(entry)) == entry
    raw = msgspec.msgpack.decode(entries.encode_entry(entry))
    del raw["events"][0]["heirs"]
    before = entries.decode_entry(msgspec.msgpack.encode(raw))
    three = three_in_sync().sets
    after = [entries.applied(entries.State(0, three), each) for each in (entry, before)]
    assert [each.sets["broker-set-a"].heirs for each in after if each] == [(1, 2, 3), ()]
    last = entries.LogEntry(b"", 1, 1)
    for each in after:
        assert each is not None
        whole = entries.Snapshot(each, last, last, ("a:1",))
        assert entries.decode_snapshot(entries.encode_snapshot(whole), "file") == whole


def looked_by(state: Controlled, broker_id: int, asker: int, asked: int) -> Looked | None:
    """How far a broker looked at the set, as one request of its process."""
    header = ReplicaInfoHeader(broker_name=NAME, master_broker_id=broker_id, asker=asker, asked=asked)
    return replicas_info.replica_info(state.sets, header).looked


def word_code(state: Controlled, broker_id: int, asker: int, asked: int, looked: Looked | None) -> int:
    """The code that answers a request of a process to be alone in the set that is."""
    s = state.set
    header = AlterSyncStateSetHeader(
        broker_name=NAME, master_broker_id=broker_id, master_epoch=s.master_epoch, asker=asker, asked=asked
    )
    wanted = SyncStateSet(sync_state_set=[broker_id], sync_state_set_epoch=s.set_epoch)
    return state.done(replicas_info.alter(state.sets, header, wanted, state.lives, looked)).code


def test_a_look_ends_what_was_asked_before_in_the_same_epoch_alone() -> None:
    """The word of who is master once more, as another process, was refused for good by its look in an earlier epoch."""
    state = three_in_sync()
    of_ours(state)
    looked = looked_by(state, 1, asker=5, asked=2)
    assert looked is not None
    # Over a connection that was given up, and of a process that ended before.
    assert [word_code(state, 1, asker, asked, looked) for asker, asked in ((5, 1), (4, 9))] == [2001, 2001]
    assert [state.elect(2, designate=True).code, state.alter(2, 2, [1, 2], 3).code] == [0, 0]
    assert elected(state.elect(1, designate=True)).awaits_word
    assert word_code(state, 1, asker=6, asked=1, looked=looked) == 0
    assert state.set.heirs == ()


def test_a_look_of_who_is_master_no_more_ends_nothing() -> None:
    """It stood in the place of the look of who is."""
    state = three_in_sync()
    assert state.elect(2, designate=True).code == 0
    assert looked_by(state, 1, asker=5, asked=2) is None
    assert looked_by(state, 2, asker=7, asked=3) is not None
