"""The world: what a seed does it does again, byte for byte; what a fault takes is gone, and no more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest


def outcomes(scenario: str, *seeds: int, hash_seed: str = "0") -> list[dict[str, Any]]:
    """Run seeds in a process of their own, which shares nothing with this one."""
    command = [sys.executable, "-m", "tests.simulation.run", "--scenario", scenario, "--json"]
    for seed in seeds:
        command += ["--seed", str(seed)]
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=600, env=os.environ | {"PYTHONHASHSEED": hash_seed}
    )
    assert ran.stdout, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


@pytest.mark.shows(
    "NameServer, controller, replicas and clients of the real code run in virtual time; a seed repeats byte for byte"
)
@pytest.mark.parametrize("scenario", ["single", "pair"])
def test_a_seed_does_the_same_again_byte_for_byte(scenario: str) -> None:
    first = outcomes(scenario, 1, 2, 1)
    again = outcomes(scenario, 2, 1, hash_seed="random")
    assert [outcome["error"] for outcome in first + again] == [""] * 5
    digests = {number: outcome["digest"] for number, outcome in enumerate(first + again)}
    assert digests[0] == digests[2] == digests[4]
    assert digests[1] == digests[3]
    assert digests[0] != digests[1]
