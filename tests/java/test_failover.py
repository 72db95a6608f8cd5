"""One broker of ours and one official under a controller, ours and Apache's: masters killed and replaced under load.

What was answered is there once, in the order of its key; the logs are equal; the old master truncates and rejoins.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.failovers import Load, ReplicaSet, check, kill, turn

pytestmark = pytest.mark.xdist_group("jvm")


@pytest.fixture(params=[("JP", "official"), ("PJ", "official"), ("PJ", "ours")], ids="-".join)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ReplicaSet]:
    made = ReplicaSet(tmp_path, *request.param)
    try:
        yield made
    finally:
        made.close()


def test_masters_killed_and_elected_in_turn_under_load(pair: ReplicaSet) -> None:
    load = Load(pair)
    try:
        load.wait_for_answers(200)
        # Each of the two dies once as master, at the first kill the one that began.
        for number in range(2):
            master = pair.master()
            assert master is pair.members[number]
            assert kill(pair, load) < 10
            assert pair.master() is not master
        for _ in range(4):
            turn(pair, load)
            load.wait_for_answers(50)
        # Controllers die too: nothing is asked of them, and they come back to what they knew.
        if len(pair.kinds) == 2 and pair.control is not pair.members[0]:
            before = pair.state()
            pair.control.kill()
            load.wait_for_answers(50)
            pair.control.start()
            pair.wait_in_sync()
            assert pair.state().epoch == before.epoch
            turn(pair, load)
        load.end()
        check(pair, load, twice=True)
    finally:
        load.close()
