"""The in-sync set: who joins, who leaves, and what counts until the controller answered; the confirmed position."""

from __future__ import annotations

import pytest

from rocketspark.broker.replication.in_sync_set import InSyncSet, master_confirmed

pytestmark = pytest.mark.shows(
    "in-sync set: members that the controller may elect count until it answered; confirmed position",
)


def of(*members: int, epoch: int = 5, now_s: float = 0.0) -> InSyncSet:
    found = InSyncSet(1)
    found.begin(set(members), epoch, now_s)
    return found


def test_a_slave_joins_when_it_holds_what_is_confirmed_and_this_epoch_began() -> None:
    found = of(1)
    assert found.joined(2, 90, confirmed=100, epoch_start=0) is None
    assert found.joined(2, 100, confirmed=100, epoch_start=101) is None
    assert found.joined(2, 101, confirmed=100, epoch_start=101) == {1, 2}
    assert (found.members, found.all_members, found.wanted) == ({1}, {1, 2}, {1, 2})
    # It is asked for once.
    assert found.joined(2, 200, confirmed=100, epoch_start=101) is None
    assert found.adopt({1, 2}, 6)
    assert (found.members, found.epoch, found.wanted, found.all_members) == ({1, 2}, 6, None, {1, 2})


def test_a_lost_member_counts_until_the_controller_answered() -> None:
    found = of(1, 2)
    assert found.lost(2) == {1}
    assert found.all_members == {1, 2}
    # News that is none: the answer may still come.
    assert not found.adopt({1, 2}, 5)
    assert (found.all_members, found.wanted) == ({1, 2}, {1})
    assert found.adopt({1}, 6)
    assert (found.all_members, found.is_open) == ({1}, False)
    assert found.lost(2) is None
    assert found.lost(1) is None


def test_one_that_was_asked_for_and_lost_counts_until_the_answer() -> None:
    """The controller may have taken it: then it may elect it."""
    found = of(1)
    assert found.joined(2, 10, confirmed=0, epoch_start=0) == {1, 2}
    assert found.lost(2) == {1}
    # Nothing is to be asked for, but which set the controller has.
    assert (found.wanted, found.is_open, found.all_members) == (None, True, {1, 2})
    assert found.settle({1, 2}, 6)
    assert (found.wanted, found.all_members) == ({1}, {1, 2})
    found.refused()
    assert (found.wanted, found.is_open, found.all_members) == (None, True, {1, 2})
    found.settle({1}, 7)
    assert (found.is_open, found.all_members) == (False, {1})


def test_who_is_behind_for_too_long_or_never_came_leaves() -> None:
    found = of(1, 2, 3, now_s=100.0)
    found.caught_up(2, 110.0)
    found.caught_up(2, 105.0)
    assert found.overdue(115.0, 15.0) is None
    assert found.overdue(120.0, 15.0) == {1, 2}
    assert found.overdue(121.0, 15.0) is None
    assert found.overdue(126.0, 15.0) == {1}
    # One that the controller named and that this master never saw.
    assert found.adopt({1, 4}, 6)
    assert found.wanted == {1}


def test_one_that_the_controller_does_not_take_is_asked_for_again_only_after_another_report() -> None:
    found = of(1, 2)
    assert found.lost(2) == {1}
    assert found.joined(3, 1, confirmed=0, epoch_start=0) == {1, 3}
    found.refused()
    assert (found.wanted, found.all_members) == (None, {1, 2, 3})
    found.settle({1, 2}, 5)
    assert (found.wanted, found.all_members) == ({1}, {1, 2})


@pytest.mark.parametrize(
    ("members", "acked", "all_ack", "position"),
    [
        ({1}, {}, True, 100),
        ({1, 2}, {2: 60}, False, 100),
        ({1, 2}, {2: 60}, True, 60),
        ({1, 2, 3}, {2: 60, 3: 50}, True, 50),
        ({1, 2, 3}, {2: 60}, True, 40),
        ({1, 2}, {2: 0}, True, 40),
        ({1, 2, 3}, {2: 60, 3: -1}, True, 40),
        ({1, 2}, {2: 60, 3: 10}, True, 60),
        ({1, 2}, {2: 150}, True, 100),
    ],
)
def test_the_confirmed_position(members: set[int], acked: dict[int, int], all_ack: bool, position: int) -> None:
    assert master_confirmed(members, 1, acked, end_position=100, before=40, all_ack=all_ack) == position
