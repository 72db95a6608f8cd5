"""Bits that flip on a disk: told, and nothing else is lost. The planted defects are those of `group_mutants`."""

from __future__ import annotations

import pytest
from tests.simulation.test_world import outcomes

SEEDS = range(1, 13)


@pytest.mark.shows(
    "bits that flip in the log or the queues of a broker that is down: the damage is told, nothing that was not hit is"
    " lost, and a slave takes what was hit from its master"
)
@pytest.mark.parametrize("scenario", ["alone", "of_a_slave"])
def test_flipped_bits_are_told_and_take_nothing_else_with_them(scenario: str) -> None:
    found = outcomes(f"tests.simulation.flips:{scenario}", *SEEDS)
    assert {outcome["seed"]: outcome["error"] for outcome in found if outcome["error"]} == {}
    assert sum(outcome["states"].get("damaged logs", 0) for outcome in found) > 3
