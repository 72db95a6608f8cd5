"""Mixed pairs whose masters die: the simulation's clients beside them, and its checker on what came of it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.support.failovers import ReplicaSet, kill
from tests.support.nemesis_runs import attacked, failed_over

pytestmark = [
    pytest.mark.xdist_group("jvm"),
    pytest.mark.shows("JP and PJ under the checker of the simulation: masters killed, links and words cut"),
]


@pytest.mark.parametrize(
    ("kinds", "controller"), [("JP", "official"), pytest.param("PJ", "ours", marks=pytest.mark.soak)]
)
def test_no_promise_is_broken_as_each_master_dies(tmp_path: Path, kinds: str, controller: Any) -> None:
    found = ReplicaSet(tmp_path, kinds, controller, {"recallMessageEnable": "true"})
    took_s: list[float] = []
    try:
        counted = failed_over(found, tmp_path, random.Random(kinds), [kill, kill], lambda _, each: took_s.append(each))
        print(kinds, took_s, counted)
    finally:
        found.close()


@pytest.mark.soak
def test_no_promise_is_broken_under_attack(tmp_path: Path) -> None:
    attacked(tmp_path, random.Random(5), ["PJ"], 3, print)
