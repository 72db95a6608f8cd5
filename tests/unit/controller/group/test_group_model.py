"""Three members under a seed: whatever is cut, lost, killed and in whichever order, they agree."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.controller.group.group_under_test import World

pytestmark = pytest.mark.shows(
    "three controllers: one state of each version, one master of each epoch, no answer that does not know an earlier "
    "one, whatever is cut, killed or wiped between ask and answer"
)
SEEDS = 30
ACTIONS = 1500


@pytest.mark.parametrize("seed", range(SEEDS))
def test_members_agree_whatever_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    world = World(tmp_path, seed, monkeypatch)
    for _ in range(ACTIONS):
        world.do_something()
    world.settle()


def test_the_seeds_see_what_is_rare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers, refusals, terms and snapshots in numbers: a world in which nothing happens would show nothing."""
    answers = refused = terms = snapshots = 0
    for seed in range(8):
        (tmp_path / str(seed)).mkdir()
        world = World(tmp_path / str(seed), seed, monkeypatch)
        for _ in range(2500):
            world.do_something()
        world.settle()
        answers += world.counts["answers"]
        refused += world.counts["refused"]
        members = [member for member in world.members.values() if member is not None]
        terms += max(member.raftCurrentTerm for member in members)
        snapshots += len(list((tmp_path / str(seed)).glob("*/controllerSnapshot")))
    assert (answers > 30, refused > 30, terms > 40, snapshots > 8) == (True, True, True, True)
