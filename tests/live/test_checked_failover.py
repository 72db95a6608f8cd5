"""A pair as processes whose master dies, under the checker of the simulation; `make soak` does it longer."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.support.failovers import ReplicaSet, kill
from tests.support.nemesis_runs import failed_over


@pytest.mark.shows("processes under the checker of the simulation: the master killed under sends of all kinds")
def test_no_promise_is_broken_as_the_master_dies(tmp_path: Path) -> None:
    found = ReplicaSet(tmp_path, "PP", config={"recallMessageEnable": "true"})
    try:
        counted = failed_over(found, tmp_path, random.Random(1), [kill], lambda name, seconds: None)
        assert found.state().epoch == 2
    finally:
        found.close()
    assert counted["acknowledged"] > 30
