"""Three kills under pops; `make soak` does many."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.live.pop_kill_cycles import run_pop_cycles

pytestmark = pytest.mark.shows("found again at a start; kills: nothing acknowledged comes again, nothing is lost")


def test_nothing_acknowledged_comes_again_and_nothing_is_lost_by_kills(tmp_path: Path) -> None:
    run = run_pop_cycles(tmp_path, 3, seed=3, say=print)
    assert len(run.done) > 150
    assert run.again > 0
