"""The protocol fuzz for longer: SOAK_FUZZ_SEEDS (50) of them with 2,000 cases each, from SOAK_SEED on,
every other one with TLS."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.live.protocol_fuzz import run_fuzz
from tests.live.support import run
from tests.support.certificates import Issuer

pytestmark = pytest.mark.shows(
    "fuzz that stays: store (100 seeds, 10,000 in soak), protocol (2 x 400 cases, more in soak)",
)


@pytest.mark.soak
def test_who_behaves_notices_nothing_of_many_hostile_requests(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    first = int(os.environ.get("SOAK_SEED", time.time_ns() % 10**6))
    for seed in range(first, first + int(os.environ.get("SOAK_FUZZ_SEEDS", "50"))):
        issuer = Issuer(tmp_path / "issuer") if seed % 2 else None
        summary = run(run_fuzz(tmp_path / str(seed), seed, 2000, caplog, issuer=issuer), 900)
        caplog.clear()
        with capsys.disabled():
            print(summary, flush=True)
