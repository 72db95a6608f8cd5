"""Members that are added and removed: one change at a time, and each counts once it is in the log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.controller.group.group_under_test import NAMES, TICK_S, World

from rocketspark.controller.group import raft_member
from rocketspark.controller.group.raft_member import RaftMember

# More than all that happens here.
ENTRIES = 1000


def members(world: World) -> dict[str, RaftMember]:
    return {name: member for name, member in world.members.items() if member is not None}


def go_on(world: World, *, seconds: float = 0.0, until: Callable[[], bool] = lambda: False) -> None:
    """Let time pass, for so long or until something is true within a minute."""
    for _ in range(int((seconds or 60) / TICK_S * 2)):
        if until():
            return
        world.now += TICK_S / 2
        for name in world.names:
            world.tick(name)
        for way, messages in world.ways.items():
            for _ in range(len(messages)):
                world.deliver(*way)
    assert seconds


def leading(world: World) -> list[str]:
    return [name for name, member in members(world).items() if member.leads and member._is_current]


def led(world: World) -> tuple[str, list[str]]:
    """Wait for a leader; returns it and the others."""
    go_on(world, until=lambda: len(leading(world)) == 1)
    (leader,) = leading(world)
    return leader, [name for name in NAMES if name != leader]


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path, getattr(request, "param", 1), monkeypatch)
    monkeypatch.setattr(raft_member, "ENTRIES_MAX", ENTRIES)
    return made


@pytest.mark.shows(
    "mended: a controller that is cut off from both others cannot remove both, and lead a group of its own"
)
def test_one_change_at_a_time_is_under_way(world: World) -> None:
    leader, others = led(world)
    for other in others:
        world.cut_way(leader, other)
        world.cut_way(other, leader)
    codes: list[int] = []
    for other in others:
        members(world)[leader].change_members("rem", other, lambda _, code: codes.append(code))
    assert codes == [6]
    go_on(world, seconds=5)
    assert len(leading(world)) == 1
    assert leader not in leading(world)
    world.heal()
    go_on(world, until=lambda: {member.members for member in members(world).values()} == {NAMES})


@pytest.mark.shows("mended: controllers that start again after a member was removed and put back keep their leader")
@pytest.mark.parametrize("world", [2, 7], indirect=True)
def test_one_that_was_put_back_is_heard_after_a_start(world: World) -> None:
    # Those that the members were made with know only the shorter bound.
    restart(world)
    leader, others = led(world)
    for what in ("rem", "add"):
        codes: list[int] = []
        members(world)[leader].change_members(what, others[0], lambda _, code, codes=codes: codes.append(code))
        go_on(world, until=lambda codes=codes: codes == [0])
    go_on(world, until=lambda: {member.members for member in members(world).values()} == {NAMES})
    restart(world)
    go_on(world, seconds=10)
    led(world)
    terms = [member.raftCurrentTerm for member in members(world).values()]
    go_on(world, seconds=20)
    assert [member.raftCurrentTerm for member in members(world).values()] == terms


@pytest.mark.shows("mended: a controller that hears of an addition once it has the removal does not count who is gone")
def test_a_change_that_is_agreed_on_late_takes_nothing_back(world: World) -> None:
    leader, others = led(world)
    log = world.logs[others[0]]
    member = members(world)[others[0]]
    term, last = member.raftCurrentTerm, log[-1][1]
    changes = [b'\2["add","n9-x:1"]', b'\2["rem","n9-x:1"]']
    message = {
        "type": "append_entries",
        "term": term,
        "commit_index": last + 1,
        "entries": [(change, last + 1 + i, term) for i, change in enumerate(changes)],
        "prevLogIdx": last,
        "prevLogTerm": log[-1][2],
    }
    member.received(leader, message)
    member.step()
    assert (member.raftLastApplied, member.members) == (last + 1, NAMES)


def restart(world: World) -> None:
    for name in NAMES:
        world.end(name)
    for name in NAMES:
        world.start(name)
