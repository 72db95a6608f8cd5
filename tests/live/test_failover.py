"""Two brokers of ours as processes under our controller: killed, elected in turn, ended, under mixed load."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.failovers import Load, ReplicaSet, check, kill, leave, turn

pytestmark = pytest.mark.shows(
    "one role object; delay levels, timers, transactions start, stop and reload while the broker runs",
    "ours+ours, JP and PJ, under Apache's controller and ours: the master killed under sends by key, delay "
    "levels, timers and transactions",
    "electMaster ten times in turn under load",
    "the controller killed and started under load; a master that is back before it was missed",
)

TURNS = 10


def test_nothing_answered_is_lost_doubled_or_out_of_order(tmp_path: Path) -> None:
    """Sends by key, delay levels, timers and transactions, all that a new master has to take over."""
    found = ReplicaSet(tmp_path)
    try:
        load = Load(found)
        try:
            load.wait_for_answers(100)
            for _ in range(TURNS):
                turn(found, load)
                load.wait_for_answers(10)
            found.control.kill()
            load.wait_for_answers(50)
            found.control.start()
            found.wait_heard()
            assert found.state().epoch == 1 + TURNS
            assert kill(found, load) < 30
            assert leave(found, load) < 30
            assert found.state().epoch == 3 + TURNS
            load.end()
            check(found, load)
        finally:
            load.close()
    finally:
        found.close()
