"""Hostile requests by a seed, beside a client that must notice nothing: FUZZ_SEED repeats one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.live.protocol_fuzz import run_fuzz
from tests.live.support import run
from tests.support.certificates import Issuer

pytestmark = pytest.mark.shows(
    "protocol fuzz",
    "fuzz that stays: store (100 seeds, 10,000 in soak), protocol (2 x 400 cases, more in soak)",
)

CASES = 400


@pytest.mark.parametrize("seed", [1, 2])
def test_who_behaves_notices_nothing_of_hostile_requests(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    seed = int(os.environ.get("FUZZ_SEED", seed))
    print(run(run_fuzz(tmp_path, seed, CASES, caplog), 120))


@pytest.mark.shows("fuzz over TLS")
def test_who_behaves_over_tls_notices_nothing_of_hostile_requests(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seed = int(os.environ.get("FUZZ_SEED", 3))
    print(run(run_fuzz(tmp_path, seed, CASES // 2, caplog, issuer=Issuer(tmp_path)), 120))
