"""Official clients of RocketMQ 5 on our servers, and on one's proxy before the other's broker."""

from __future__ import annotations

import pytest
from tests.v5.conftest import Theatre
from tests.v5.scenarios import MAIN, NEW, PLAYED, Scenario

pytestmark = pytest.mark.shows(
    "ReceiveMessage: filters, long polling, attempts to dead letters, order with `attempt_id`; a receive that "
    "is cancelled gives back what comes for it",
    "the official clients (Python 5.1.2, Java 5.2.0, Go 5.1.4, Node 1.0.8), one table of scenarios: types, "
    "push and simple consumers, order over three consumers, delay and recall, transactions, 40014, dead "
    "letters, invisible times, renewal",
    "our proxy before Apache's broker, Apache's before ours",
    "lite topics and priorities by our proxy before both brokers, with Java's client: quotas, "
    "exclusive subscriptions, attempts",
)

ROWS = [("ours", language, scenario) for language, scenarios in PLAYED.items() for scenario in scenarios]
ROWS += [(kind, "python", scenario) for kind in ("ours before apache", "apache before ours") for scenario in MAIN]

ROWS += [(kind, "java", scenario) for kind in ("ours", "ours before apache") for scenario in NEW]


@pytest.mark.parametrize(
    ("kind", "language", "scenario"), ROWS, ids=[f"{kind}-{language}-{one.__name__}" for kind, language, one in ROWS]
)
def test_scenario(theatre: Theatre, kind: str, language: str, scenario: Scenario) -> None:
    theatre.outcome(kind, language, scenario)
