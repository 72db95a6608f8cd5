"""Stores that are damaged in every way: flip, cut, swap, remove, fill; and each call of the system fails.

The wide runs damage every file, checkpoint and tables too, lose files of the log, and have deleted topics and queue
extensions.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.store import fuzz

SEEDS, SOAK_SEEDS, PART = 200, 10_000, 25
WIDE_SEEDS, WIDE_SOAK_SEEDS = 100, 5_000


@pytest.mark.parametrize("first", range(0, SEEDS, PART))
def test_what_was_acknowledged_and_is_undamaged_is_kept(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + PART):
        fuzz.run(seed, tmp_path / str(seed))


@pytest.mark.soak
@pytest.mark.parametrize("first", range(SEEDS, SOAK_SEEDS, 100))
def test_many_more_seeds(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 100):
        fuzz.run(seed, tmp_path / str(seed))


@pytest.mark.parametrize("first", range(0, WIDE_SEEDS, PART))
def test_the_same_where_every_file_is_damaged(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + PART):
        fuzz.run(seed, tmp_path / str(seed), wide=True)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(WIDE_SEEDS, WIDE_SOAK_SEEDS, 100))
def test_many_more_seeds_where_every_file_is_damaged(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 100):
        fuzz.run(seed, tmp_path / str(seed), wide=True)
