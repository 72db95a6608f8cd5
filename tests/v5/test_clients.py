"""Official clients of RocketMQ 5 on our servers, and on one's proxy before the other's broker."""

from __future__ import annotations

import pytest
from tests.v5.conftest import Theatre
from tests.v5.scenarios import MAIN, PLAYED, Scenario

ROWS = [("ours", language, scenario) for language, scenarios in PLAYED.items() for scenario in scenarios]
ROWS += [(kind, "python", scenario) for kind in ("ours before apache", "apache before ours") for scenario in MAIN]


@pytest.mark.parametrize(
    ("kind", "language", "scenario"), ROWS, ids=[f"{kind}-{language}-{one.__name__}" for kind, language, one in ROWS]
)
def test_scenario(theatre: Theatre, kind: str, language: str, scenario: Scenario) -> None:
    theatre.outcome(kind, language, scenario)
