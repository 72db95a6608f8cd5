"""Five kills under mixed load; `make soak` does many."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.live.kill_cycles import KINDS, run_cycles

pytestmark = pytest.mark.shows("recovery after stop and crash, ASYNC_FLUSH and SYNC_FLUSH")


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_nothing_is_lost_doubled_or_mixed_up_by_kills(tmp_path: Path, flush: str) -> None:
    # How much a disk takes with SYNC_FLUSH is its own affair.
    least = 200 if flush == "ASYNC_FLUSH" else 5
    run = run_cycles(tmp_path, 5, seed=5, say=print, flush=flush, least=least)
    done = {sent.kind for sent in run.sent.values() if sent.done}
    if flush == "ASYNC_FLUSH":
        assert done == KINDS.keys() - {"oneway"}
        assert len(run.consumed) > 500
        assert len(run.client_sent) > 50
    assert "single" in done
    assert run.consumed
