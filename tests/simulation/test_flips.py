"""Bits that flip on a disk, or under a running broker. The planted defects are those of `group_mutants`."""

from __future__ import annotations

import pytest
from tests.simulation.test_world import outcomes, outcomes_of

SEEDS = range(1, 13)
# A record's queue or offset, which its CRC does not cover, was hit.
FOUND = {"of_a_slave": (25, 29)}


@pytest.mark.shows(
    "bits that flip in the log or the queues of a broker that is down: the damage is told, nothing that was not hit is"
    " lost, and a slave takes what was hit from its master"
)
@pytest.mark.parametrize("scenario", ["alone", "of_a_slave"])
def test_flipped_bits_are_told_and_take_nothing_else_with_them(scenario: str) -> None:
    found = outcomes(f"tests.simulation.flips:{scenario}", *SEEDS, *FOUND.get(scenario, ()))
    assert {outcome["seed"]: outcome["error"] for outcome in found if outcome["error"]} == {}
    assert sum(outcome["states"].get("damaged logs", 0) for outcome in found) > 3


# Found: a unit of a consume queue that was written since the start held up its queue (4, 6, 28, 39).
RUNNING = [("alone", 4), ("alone", 6), ("alone", 28), ("alone", 39), ("of_a_replica", 1), ("of_a_replica", 2)]


@pytest.mark.shows(
    "bits that flip in the log, the queues, the index or the timers of a running broker: no reader stops there, nothing"
    " is given as another message, and a replica that is whole gives all"
)
def test_bits_that_flip_under_a_running_broker_hurt_what_they_hit_alone() -> None:
    found = outcomes_of([(f"tests.simulation.running_flips:{scenario}", seed) for scenario, seed in RUNNING])
    errors = {pair: outcome["error"] for pair, outcome in zip(RUNNING, found, strict=True) if outcome["error"]}
    assert errors == {}
    assert all(outcome["states"]["bits flipped"] for outcome in found)


@pytest.mark.shows(
    "bits that flip in topics, groups, offsets, checkpoints, timer wheel and timer log of a broker that is down: it"
    " starts with what was before, or with one entry wrong; messages, timers and other entries stay"
)
def test_bits_that_flip_in_tables_and_timers_hurt_one_entry_at_most() -> None:
    found = outcomes("tests.simulation.table_flips:alone", *range(1, 9), 28)
    assert {outcome["seed"]: outcome["error"] for outcome in found if outcome["error"]} == {}
    assert sum(outcome["states"]["bits flipped"] for outcome in found) > 9


@pytest.mark.shows(
    "mended: bits that flip in topics, groups and offsets, or in what was before, while their broker runs and writes"
    " them anew: it starts again, and messages, timers and other entries stay"
)
def test_bits_that_flip_in_tables_of_a_running_broker_do_not_keep_it_from_starting() -> None:
    # Found: the version before was the damaged one, so that there was none to start with (18).
    found = outcomes("tests.simulation.table_flips:while_running", *range(1, 6), 18)
    assert {outcome["seed"]: outcome["error"] for outcome in found if outcome["error"]} == {}
    assert sum(outcome["states"].get("tables with a flip at the start", 0) for outcome in found) > 0


@pytest.mark.shows(
    "bits that flip in a second tier, a folder or an object store: no reader stops there or is given another message,"
    " and no message is lost but those that were hit"
)
def test_bits_that_flip_in_a_second_tier_hurt_what_they_hit_alone() -> None:
    pairs = [
        (f"tests.simulation.tier_flips:{scenario}", seed) for scenario in ("folder", "objects") for seed in (1, 2, 3)
    ]
    found = outcomes_of(pairs)
    assert {pair: outcome["error"] for pair, outcome in zip(pairs, found, strict=True) if outcome["error"]} == {}
    assert all(outcome["states"]["bits flipped"] for outcome in found)
