"""One broker of ours and one official under a controller, ours and Apache's: masters killed and replaced under load.

What was answered is there, in the order of its key; the logs are equal; the old master truncates and rejoins.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.failovers import Load, ReplicaSet, check, kill, turn

pytestmark = pytest.mark.xdist_group("jvm")

PAIRS = [("JP", "official"), ("PJ", "official"), ("PJ", "ours"), ("JP", "ours")]
TURNS = 10


@pytest.mark.parametrize(("kinds", "controller"), PAIRS)
def test_masters_killed_under_load(tmp_path: Path, kinds: str, controller: Any) -> None:
    """The one that began, after the controller was away: the other takes over, and the first one comes back."""
    pair = ReplicaSet(tmp_path, kinds, controller)
    try:
        load = Load(pair)
        try:
            load.wait_for_answers(300)
            before = pair.state()
            if controller == "ours":
                pair.control.kill()
                load.wait_for_answers(100)
                pair.control.start()
                pair.wait_heard()
                assert pair.state() == before
            assert pair.master() is pair.members[0]
            assert kill(pair, load) < 10
            assert pair.master() is pair.members[1]
            assert pair.state().epoch == before.epoch + 1
            load.end()
            # An official broker that takes over delivers again what was due in its last seconds.
            check(pair, load, twice=True)
        finally:
            load.close()
    finally:
        pair.close()


@pytest.mark.parametrize(("kinds", "controller"), PAIRS[:1] + PAIRS[2:3])
def test_masters_elected_in_turn_under_load(tmp_path: Path, kinds: str, controller: Any) -> None:
    """Without open transactions: an official master that has some needs a minute to become a slave."""
    pair = ReplicaSet(tmp_path, kinds, controller)
    try:
        load = Load(pair, trades=b"")
        try:
            load.wait_for_answers(100)
            for _ in range(TURNS):
                turn(pair, load)
                load.wait_for_answers(20)
            assert pair.master() is pair.members[0]
            load.end()
            check(pair, load, twice=True)
        finally:
            load.close()
    finally:
        pair.close()
