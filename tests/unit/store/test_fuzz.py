"""Stores that are damaged in every way: flip, cut, swap, remove, fill; and each call of the system fails.

The wide runs damage every file, checkpoint and tables too, lose files of the log, and have deleted topics and queue
extensions.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.store import fuzz

pytestmark = pytest.mark.shows(
    "store fuzz that stays (flip, cut, swap, remove, fill, each call failing; 100 seeds, 10,000 in soak; wide "
    "runs that damage every file, lose files of the log and delete topics: 50, 5,000 in soak; prints the "
    "seed)",
    "fuzz that stays: store (100 seeds, 10,000 in soak), protocol (2 x 400 cases, more in soak)",
    "each file of the store and of its own tables at 0 bytes, cut at sectors, zeros, old and new mixed",
)

SEEDS, SOAK_SEEDS, PART = 100, 10_000, 25
WIDE_SEEDS, WIDE_SOAK_SEEDS = 50, 5_000


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
