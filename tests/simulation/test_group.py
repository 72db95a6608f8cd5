"""Three controllers under seeds: what is decided stays, and a majority alone decides, whatever happens to one."""

from __future__ import annotations

from typing import Any

import pytest
from tests.simulation.group_mutants import TABLE
from tests.simulation.test_planted_bugs import first_of_each_rule, outcomes_of_planted
from tests.simulation.test_world import outcomes, outcomes_of

GROUP = "tests.simulation.group"
LOSSES = ["two_of_three_are_lost", "leader_is_killed", "a_leader_was_asleep", "all_lose_power", "a_disk_is_lost"]


@pytest.mark.shows(
    "three controllers under kills, halts, cuts, losses of power, lost disks, members taken out and put back, by seeds:"
    " no two masters of an epoch, nothing decided is lost, nothing is decided by one of three"
)
@pytest.mark.parametrize(("scenario", "seeds"), [("council", range(1, 4)), ("failover_of_three", range(1, 3))])
def test_what_a_group_decides_stays_under_faults(scenario: str, seeds: range) -> None:
    found = outcomes(f"{GROUP}:{scenario}", *seeds)
    assert {outcome["seed"]: outcome["error"] for outcome in found if outcome["error"]} == {}
    assert all(outcome["result"]["told"] > 10 for outcome in found)


@pytest.mark.shows("two of three controllers lost: nobody is elected, sends in sync go on; all three without power")
def test_a_group_loses_members_and_goes_on() -> None:
    found = outcomes_of([(f"{GROUP}:{scenario}", 1) for scenario in LOSSES])
    assert {
        scenario: outcome["error"] for scenario, outcome in zip(LOSSES, found, strict=True) if outcome["error"]
    } == {}


@pytest.mark.shows("a rack loses its power, all brokers and controllers at once: what SYNC_FLUSH acknowledged is there")
@pytest.mark.parametrize("scenario", ["alone", "pair", "two_brokers", "failed_flushes"])
def test_what_was_flushed_is_there_after_all_lost_their_power(scenario: str) -> None:
    assert [outcome["error"] for outcome in outcomes(f"tests.simulation.rack:{scenario}", 1)] == [""]


@pytest.mark.shows("mended: under SYNC_FLUSH readers are not shown what the next power cut would take")
def test_who_reads_on_after_a_loss_of_power_is_given_what_came_since() -> None:
    # Found: by readers of queues (9, 10) and by who pops (23).
    found = outcomes("tests.simulation.rack:all_kinds", 9, 10, 23)
    assert {outcome["seed"]: outcome["error"] for outcome in found if outcome["error"]} == {}
    assert sum(outcome["states"].get("losses of power", 0) for outcome in found) == 9


@pytest.mark.shows(
    "losses of power of some or all beside kills, halts and cuts: what SYNC_FLUSH acknowledged is there, logs are equal"
)
def test_losses_of_power_beside_other_faults_lose_nothing() -> None:
    # Found: a master that had lost its log's end wrote on in the same epoch, over what its slave still had (52);
    # a slave with a hole in its log was elected in the place of a master that had all (7000021).
    found = outcomes("tests.simulation.rack:among_faults", 1, 2, 3, 52, 7000021)
    assert {outcome["seed"]: outcome["error"] for outcome in found if outcome["error"]} == {}
    assert sum(outcome["states"].get("losses of power", 0) for outcome in found) > 15


@pytest.mark.shows("mended: a controller whose machine's clock was set back is heard by the others again")
def test_a_member_is_heard_whatever_its_clock_says() -> None:
    (found,) = outcomes("tests.simulation.regressions:a_controller_is_back_with_its_clock_set_back", 1)
    assert found["error"] == ""


FIRST = first_of_each_rule(TABLE)
OTHERS = [name for name in TABLE if name not in FIRST]


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    """What came of each planted defect, by its name; one process makes ready for all."""
    return outcomes_of_planted("group_mutants", {name: TABLE[name] for name in FIRST})


@pytest.fixture(scope="module")
def found_of_others() -> dict[str, dict[str, Any]]:
    return outcomes_of_planted("group_mutants", {name: TABLE[name] for name in OTHERS})


def check(name: str, error: str) -> None:
    for rule in TABLE[name].rules.split(","):
        assert rule in error, error[-2000:]


@pytest.mark.shows("nemesis, planted defects")
@pytest.mark.parametrize("name", FIRST)
def test_a_defect_planted_into_a_group_breaks_its_rules(name: str, found: dict[str, dict[str, Any]]) -> None:
    check(name, found[name]["error"])


@pytest.mark.soak
@pytest.mark.parametrize("name", OTHERS)
def test_another_defect_planted_into_a_group_breaks_its_rules(
    name: str, found_of_others: dict[str, dict[str, Any]]
) -> None:
    check(name, found_of_others[name]["error"])
