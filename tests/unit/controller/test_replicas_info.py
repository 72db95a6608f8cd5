"""What is decided about sets of replicas: values of 5.5.0's ReplicasInfoManagerTest, and where ours differ."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.controller.sets_under_test import Controlled, address, three_in_sync

from rocketspark.controller import replicas_info
from rocketspark.controller.elections import LogEnd
from rocketspark.controller.replica_sets import MasterElected, Replica
from rocketspark.protocol.headers.controller import ElectMasterReply, RegisterToControllerReply

pytestmark = pytest.mark.shows(
    "the controller: ids, registration, elections, in-sync sets, cleaning, metadata (1001 to 1006, 1008 to 1013, 904)"
)


def elected(decision: replicas_info.Decision) -> ElectMasterReply:
    assert isinstance(decision.header, ElectMasterReply)
    return decision.header


def test_three_register_and_the_first_is_master() -> None:
    s = three_in_sync().set
    assert (s.master, s.address(s.master), s.master_epoch, s.set_epoch) == (1, address(1), 1, 2)
    assert (s.in_sync, s.next_id) == ((1, 2, 3), 4)


def test_a_registration_names_the_master_only_while_it_lives() -> None:
    state = three_in_sync()
    told = RegisterToControllerReply(
        cluster_name="cluster-a",
        broker_name="broker-set-a",
        master_broker_id=1,
        master_address=address(1),
        master_epoch=1,
        sync_state_set_epoch=2,
    )
    assert state.register(3).header == told
    state.lives.living = {2, 3}
    assert state.register(3).header == RegisterToControllerReply(cluster_name="cluster-a", broker_name="broker-set-a")
    # One that had no time to be heard since the controller started may still be there.
    state.lives.unheard = {1}
    assert state.register(3).header == told


def test_the_only_one_alive_is_elected_when_it_asks() -> None:
    state = three_in_sync()
    state.lives.living = {3}
    answer = elected(state.elect(3))
    assert (answer.master_broker_id, answer.master_address, answer.master_epoch) == (3, address(3), 2)
    assert (state.set.master, state.set.in_sync, state.set.set_epoch) == (3, (3,), 3)


def test_a_master_that_lives_stays() -> None:
    state = three_in_sync()
    for asking in (-1, 1, 2):
        decision = state.elect(asking)
        assert (decision.code, decision.events, elected(decision).master_broker_id) == (2011, (), 1)
    state.lives.living = {2, 3}
    state.lives.unheard = {1}
    assert state.elect(2).code == 2011


@pytest.mark.parametrize(
    ("two", "three", "master"),
    [
        (LogEnd(1, 2), LogEnd(0, 3), 2),
        (LogEnd(1, 2), LogEnd(1, 3), 3),
        (LogEnd(1, 3, 2), LogEnd(1, 3, 1), 3),
        (LogEnd(1, 3, 1), LogEnd(1, 3, 1), 2),
        # Beyond what a difference of Java's ints can hold.
        (LogEnd(1, 5 << 30), LogEnd(1, 2 << 30), 2),
        (LogEnd(1, 2 << 30), LogEnd(1, 5 << 30), 3),
        (LogEnd(1, 3, -(1 << 31)), LogEnd(1, 3, (1 << 31) - 1), 2),
    ],
)
def test_the_furthest_log_is_elected(two: LogEnd, three: LogEnd, master: int) -> None:
    state = three_in_sync()
    state.lives.living = {2, 3}
    state.lives.ends = {1: LogEnd(9, 9), 2: two, 3: three}
    answer = elected(state.elect())
    assert (answer.master_broker_id, answer.master_address, answer.master_epoch) == (master, address(master), 2)


@pytest.mark.parametrize(
    ("zones", "master"),
    [
        ((), 2),
        (("east",), 3),
        (("west", "east"), 2),
        (("north", "east"), 3),
        # Nobody is there: whose log goes furthest.
        (("north",), 2),
    ],
)
@pytest.mark.shows("elections prefer the zone and the priority that settings name")
def test_a_zone_goes_before_the_log_of_those_in_sync(zones: tuple[str, ...], master: int) -> None:
    state = three_in_sync()
    state.zones = zones
    state.lives.living = {2, 3}
    state.lives.ends = {2: LogEnd(1, 9, 1, "west"), 3: LogEnd(1, 3, 1, "east")}
    assert elected(state.elect()).master_broker_id == master


def test_a_zone_is_no_reason_among_those_not_in_sync() -> None:
    state = three_in_sync()
    assert state.alter(1, 1, [1], 2).code == 0
    state.unclean, state.zones = True, ("east",)
    state.lives.living = {2, 3}
    state.lives.ends = {2: LogEnd(1, 9, 1, "west"), 3: LogEnd(1, 3, 1, "east")}
    # Not in sync: what only the longer log has would be cut off.
    assert elected(state.elect()).master_broker_id == 2


def test_an_operator_chooses_among_those_that_live() -> None:
    state = three_in_sync()
    state.lives.living = {2, 3}
    state.lives.ends = {2: LogEnd(1, 2)}
    assert elected(state.elect()).master_broker_id == 2
    assert state.alter(2, 2, [2, 3], 3).code == 0
    assert state.elect(1, designate=True).code == 2012
    assert state.elect(2, designate=True).code == 2011
    state.lives.living = {1, 2, 3}
    assert state.elect(1, designate=True).code == 2012  # Alive, but not in sync.
    answer = elected(state.elect(3, designate=True))
    assert (answer.master_broker_id, answer.master_epoch) == (3, 3)


def test_nobody_in_sync_lives() -> None:
    state = three_in_sync()
    assert state.alter(1, 1, [1], 2).code == 0
    state.lives.living = {2, 3}
    decision = state.elect(2)
    assert (decision.code, decision.events) == (2012, ())
    decision = state.elect()
    assert (decision.code, decision.events) == (2004, (MasterElected("broker-set-a", None),))
    s = state.set
    assert (s.master, s.master_epoch, s.in_sync, s.set_epoch) == (None, 2, (1,), 3)
    # Once more changes nothing more.
    assert state.elect().events == ()
    state.lives.living.add(1)
    assert elected(state.elect(1)).master_epoch == 3


def test_an_unclean_election_takes_whoever_lives() -> None:
    state = three_in_sync()
    assert state.alter(1, 1, [1], 2).code == 0
    state.lives.living = {2, 3}
    state.lives.ends = {2: LogEnd(1, 5), 3: LogEnd(1, 7)}
    state.unclean = True
    assert elected(state.elect(2)).master_broker_id == 3
    assert state.set.in_sync == (3,)


def test_an_unclean_election_takes_the_longest_log_though_its_disk_is_full() -> None:
    """Nobody in sync lives: what only the longer log has would be cut off, and a disk can be given room."""
    state = three_in_sync()
    assert state.alter(1, 1, [1], 2).code == 0
    state.unclean, state.lives.living = True, {2, 3}
    state.lives.ends = {2: LogEnd(1, 5), 3: LogEnd(1, 7, may_lack=True)}
    assert elected(state.elect(2)).master_broker_id == 3


def test_the_first_master_is_a_registered_broker() -> None:
    state = Controlled()
    assert state.elect(1).code == 2010
    assert state.apply_id(1).code == 0
    # RocketMQ makes any number master here, one without an address.
    assert (state.elect(7).code, state.elect(7, designate=True).code) == (2010, 2010)
    # There it ends every later election, too: a failed one counts as the first.
    assert state.elect().code == 2004
    assert elected(state.elect(1)).master_broker_id == 1


def test_ids_are_given_once() -> None:
    state = three_in_sync()
    state.lives.living = {1}
    assert state.clean("3").code == 0
    assert (state.next_id(), sorted(state.set.replicas)) == (4, [1, 2])
    assert state.apply_id(4).code == 0
    assert state.apply_id(4).events == ()  # Again, by its own code.
    assert state.apply_id(4, "other;1").code == 2014
    assert state.set.replicas[4] == Replica(address(4), f"{address(4)};4")
    assert [state.apply_id(broker_id).code for broker_id in (0, -1, -(1 << 63))] == [2014] * 3


def test_an_id_taken_ahead_is_not_offered_again() -> None:
    state = Controlled()
    assert state.apply_id(1).code == 0
    assert state.apply_id(3).code == 0
    assert state.next_id() == 4
    assert state.apply_id(4).code == 0
    assert state.apply_id(2).code == 0
    assert state.next_id() == 5


def test_a_new_address_is_kept() -> None:
    state = three_in_sync()
    assert state.register(2).events == ()
    assert len(state.register(2, "10.0.0.2:10911").events) == 1
    assert state.set.replicas[2] == Replica("10.0.0.2:10911", f"{address(2)};2")
    assert state.register(4).code == 2010


@pytest.mark.parametrize("text", ["", "x" * 256, "a\nb", "a\x1b[2J"])
def test_names_and_addresses_are_texts_to_be_seen(text: str) -> None:
    state = three_in_sync()
    before = state.sets
    if text:
        assert state.apply_id(4, text).code == 2005
        assert state.register(1, text).code == 2005
    header = replicas_info.ApplyBrokerIdHeader(
        cluster_name="c", broker_name=text, applied_broker_id=1, register_check_code="a:1;1"
    )
    assert state.done(replicas_info.apply_id(state.sets, header)).code == 2005
    assert state.sets == before


def test_replicas_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    state = three_in_sync()
    monkeypatch.setattr(replicas_info, "MEMBERS_MAX", 4)
    assert [state.apply_id(broker_id).code for broker_id in (4, 5)] == [0, 2005]
    monkeypatch.setattr(replicas_info, "MEMBERS_MAX", 100)
    monkeypatch.setattr(replicas_info, "REPLICAS_MAX", 5)
    assert [state.apply_id(broker_id).code for broker_id in (5, 6)] == [0, 2005]


def test_cleaning() -> None:
    state = three_in_sync()
    assert state.clean("1").code == 2009  # It lives.
    assert state.clean().code == 2009
    assert state.clean("1;x").code == 2009
    state.lives.living = set()
    assert state.clean("1").code == 0
    assert (state.set.in_sync, sorted(state.set.replicas)) == ((2, 3), [2, 3])
    assert state.clean("1;2;3").code == 0
    assert state.sets == {}
    assert state.clean(living=True).code == 2009


def test_of_replicas_named_only_these_are_cleaned_living_or_not() -> None:
    state = three_in_sync()
    assert state.clean("2", living=True).code == 0
    assert (state.set.master, state.set.in_sync, state.set.master_epoch) == (1, (1, 3), 1)
    assert state.clean(living=True).code == 0
    assert state.sets == {}


def test_those_who_hold_nothing_acknowledged_are_not_elected_after_the_others_were_cleaned() -> None:
    state = three_in_sync()
    assert state.alter(1, 1, [1], 2).code == 0
    state.lives.living = {2, 3}
    assert state.clean("1").code == 0
    # RocketMQ begins the epochs of such a set anew, which its brokers take for old ones.
    assert (state.set.in_sync, state.set.master, state.set.master_epoch) == ((), None, 2)
    assert state.elect(2).code == 2012
    # Nor is who takes the number of a master that was cleaned, and may have nothing.
    state.lives.living = {1, 2, 3}
    assert state.apply_id(1).code == 0
    assert (state.elect(1).code, state.elect(1, designate=True).code) == (2012, 2012)
    state.unclean = True
    assert elected(state.elect(2, designate=True)).master_epoch == 3


@pytest.mark.parametrize(
    ("master", "epoch", "members", "set_epoch", "code"),
    [
        (1, 1, [1, 2, 3], 2, 2013),
        (2, 1, [2, 3], 2, 2002),
        (1, 0, [1, 2], 2, 2000),
        (1, 2, [1, 2], 2, 2000),
        (1, 1, [1, 2], 1, 2001),
        (1, 1, [1, 2], 3, 2001),
        (1, 1, [1, 9], 2, 2003),
        (1, 1, [1, 3], 2, 2006),
        (1, 1, [2], 2, 2013),
        (1, 1, [], 2, 2013),
        (1, 1, [2, 1, 1], 2, 0),
    ],
)
def test_in_sync_sets(master: int, epoch: int, members: list[int], set_epoch: int, code: int) -> None:
    state = three_in_sync()
    state.lives.living = {1, 2}
    before = state.sets
    assert state.alter(master, epoch, members, set_epoch).code == code
    if code:
        assert state.sets == before
    else:
        assert (state.set.in_sync, state.set.set_epoch, state.set.master_epoch) == ((1, 2), 3, 1)


def test_sets_without_master_are_found() -> None:
    state = three_in_sync()
    for living, unheard, found in (
        ({1, 2}, set(), []),
        ({2}, set(), ["broker-set-a"]),
        ({2}, {1}, []),
        (set(), set(), []),
    ):
        state.lives.living, state.lives.unheard = set(living), set(unheard)
        assert replicas_info.without_master(state.sets, state.lives) == found


def test_an_operator_is_shown_the_sets() -> None:
    state = three_in_sync()
    assert state.alter(1, 1, [1, 3], 2).code == 0
    state.lives.living = {1}
    shown = msgspec.json.decode(replicas_info.sync_state(state.sets, ["broker-set-a", "none"], state.lives).body)

    def replica(broker_id: int, alive: bool) -> dict[str, object]:
        where = {"brokerName": "broker-set-a", "brokerId": broker_id, "brokerAddress": address(broker_id)}
        return where | {"alive": alive}

    assert shown == {
        "replicasInfoTable": {
            "broker-set-a": {
                "masterBrokerId": 1,
                "masterAddress": address(1),
                "masterEpoch": 1,
                "syncStateSetEpoch": 3,
                "inSyncReplicas": [replica(1, True), replica(3, False)],
                "notInSyncReplicas": [replica(2, False)],
            }
        }
    }
