"""The world: what a seed does it does again, byte for byte; what a fault takes is gone, and no more."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from tests.simulation.seeds import line_of, run_many, shrink
from tests.simulation.world import mutated


@functools.cache
def server() -> subprocess.Popen[str]:
    """The process whose children run seeds for all tests here; it ends as this one does."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.simulation.run", "--serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONHASHSEED": "0"},
    )


def outcomes(scenario: str, *seeds: int | str) -> list[dict[str, Any]]:
    """Run seeds of a scenario, each in a process of its own."""
    return outcomes_of([(scenario, seed) for seed in seeds])


def outcomes_of(pairs: Sequence[tuple[str, int | str]]) -> list[dict[str, Any]]:
    """Run a seed of each scenario, each in a process of its own."""
    asked, answers = server().stdin, server().stdout
    assert asked is not None
    assert answers is not None
    asked.write(f"{json.dumps(pairs)}\n")
    asked.flush()
    lines = [answers.readline() for _ in pairs]
    assert all(lines), "the process whose children run seeds has ended"
    return [json.loads(line) for line in lines]


def outcomes_elsewhere(scenario: str, *seeds: int) -> list[dict[str, Any]]:
    """Run seeds in a process that has run nothing before."""
    command = [sys.executable, "-m", "tests.simulation.run", "--json"]
    for seed in seeds:
        command += ["--each", f"{scenario}@{seed}"]
    environment = os.environ | {"PYTHONHASHSEED": "random"}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert ran.stdout, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


@pytest.mark.shows(
    "NameServer, controller, replicas and clients of the real code run in virtual time; a seed repeats byte for byte"
)
@pytest.mark.parametrize(
    "scenario",
    [
        "single",
        "pair",
        # Three brokers, or a broker with three connections: who goes through a set of connections begins somewhere.
        "failover",
        "tests.simulation.regressions:a_master_is_back_without_its_disk",
        # Queues, which are structs, in sets.
        "tests.simulation.parts.alone:ordered",
    ],
)
def test_a_seed_does_the_same_again_byte_for_byte(scenario: str) -> None:
    first = outcomes(scenario, 1, 2, 1)
    again = outcomes_elsewhere(scenario, 2, 1)
    assert [outcome["error"] for outcome in first + again] == [""] * 5
    digests = {number: outcome["digest"] for number, outcome in enumerate(first + again)}
    assert digests[0] == digests[2] == digests[4]
    assert digests[1] == digests[3]
    assert digests[0] != digests[1]


@pytest.mark.shows(
    "mended: a slave whose machine lost its power is elected before it is missed, as the master's process is killed,"
    " and has the other cut its log to its own"
)
@pytest.mark.parametrize(
    "how",
    [
        "slave_lost_power",
        "slave_lost_power_and_is_back_first",
        "slave_lost_its_disk",
        "slave_is_lost_for_ever",
        "slave_has_copied_what_it_lost",
        "master_lost_power_and_is_back_first",
    ],
)
def test_who_lost_its_power_before_it_was_elected_gives_way_to_who_holds_all(how: str) -> None:
    found = outcomes(f"tests.simulation.failover:{how}", 1, 2, 3)
    assert [outcome["error"] for outcome in found] == [""] * 3
    assert all(outcome["states"]["losses of power"] == 1 for outcome in found)


@pytest.mark.shows(
    "mended: seeds with losses of power beside kills, cuts and elections, after which messages were lost"
)
def test_seeds_that_lost_what_was_acknowledged_lose_it_no_more() -> None:
    found = outcomes("tests.simulation.failover:failover_hard", 5, 100, 112, 182)
    assert {outcome["seed"]: outcome["error"] for outcome in found if outcome["error"]} == {}


@pytest.mark.parametrize("check", ["disks", "network", "processes"])
def test_the_world_is_as_bad_as_it_says_and_no_worse(check: str) -> None:
    assert [outcome["error"] for outcome in outcomes(f"tests.simulation.world_checks:{check}", 1, 2, 3)] == [""] * 3


def test_a_failing_seed_is_left_with_what_its_failure_needs() -> None:
    runs = 0

    def run(scenario: str, seed: int, only: dict[str, list[int]]) -> dict[str, Any]:
        nonlocal runs
        runs += 1
        if {3, 11} <= set(only["faults"]) and only["operations"]:
            return {"error": f"Lost: {len(only['faults'])} messages"}
        return {"error": "Lost: another thing" if 3 in only["faults"] else ""}

    failed = {"error": "Lost: 12 messages", "plan": {"faults": list("abcdefghijkl"), "operations": ["x", "y"]}}
    only = shrink(run, "failover", 7, failed)
    assert only["faults"] == [3, 11]
    assert len(only["operations"]) == 1
    assert runs < 60
    assert "--scenario failover --seed 7 --only faults=3,11 --only operations=" in line_of("failover", 7, only)


def test_seeds_that_reach_rare_states_are_tried_again_with_their_faults_moved() -> None:
    def run(scenario: str, seed: int | str) -> dict[str, Any]:
        return {"error": "", "seed": seed, "states": {"elections": 1} | ({"truncations": 1} if seed == 7 else {})}

    tally = run_many(run, "failover", range(20), steered=3)
    assert tally.count == 23
    assert tally.rare() == {"truncations": [7]}
    faults = [{"at": float(number), "kind": "kill", "seconds": 1.0} for number in range(12)]
    assert mutated(faults, "") == faults
    assert mutated(faults, "7m1") == mutated(faults, "7m1") != mutated(faults, "7m2") != faults
