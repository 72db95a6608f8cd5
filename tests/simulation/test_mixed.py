"""All clients beside all faults under seeds: no promise is broken, and what a seed found once does not come again."""

from __future__ import annotations

import pytest
from tests.simulation.test_world import outcomes

# Some seconds each; `make soak PARTS=simulation` runs others.
SEEDS = range(1, 5)


@pytest.mark.shows(
    "sends of all kinds, keys, batches, timers with recall, transactions, pops, pulls and pushes of groups that change,"
    " under drawn faults: the checker finds no rule broken"
)
def test_no_promise_is_broken_by_faults() -> None:
    found = outcomes("tests.simulation.mixed:mixed", *SEEDS)
    assert {outcome["seed"]: outcome["error"] for outcome in found if outcome["error"]} == {}
    assert sum(outcome["result"]["sent"] for outcome in found) > 300
    assert sum(outcome["result"]["reads"] for outcome in found) > 700


@pytest.mark.shows(
    "mended: a replica that had begun with an empty store, and was elected within a minute while its second tier was"
    " away, took no messages of new queues"
)
def test_who_has_copied_its_master_does_not_wait_for_a_tier_as_one_that_lost_its_store() -> None:
    # Found, too: a listener of lite topics was shown messages before one that failed as its broker died (9100025).
    found = outcomes("tests.simulation.mixed:mixed", 9100025, 9100033)
    assert [outcome["error"] for outcome in found] == [""] * 2


def test_without_faults_everything_is_sent() -> None:
    (found,) = outcomes("tests.simulation.mixed:calm", 1)
    assert found["error"] == ""
    # What has no answer is what was sent one way.
    assert found["result"]["tried"] - found["result"]["sent"] < 10


@pytest.mark.shows("a master that lost power and disk, back before it is missed: its slave keeps topics and offsets")
def test_who_is_back_without_its_disk_gives_its_tables_to_nobody() -> None:
    found = outcomes("tests.simulation.regressions:a_master_is_back_without_its_disk", 1, 4)
    assert [outcome["error"] for outcome in found] == ["", ""]
    assert [outcome["result"] for outcome in found] == [{"committed": 20}] * 2


@pytest.mark.shows(
    "mended: topic made anew: the last commit of a consumer that had not heard of it passed over as many messages"
)
def test_who_stops_before_it_hears_of_a_new_topic_passes_over_nothing_of_it() -> None:
    name = "a_reader_stops_before_it_hears_that_its_topic_is_another"
    (found,) = outcomes(f"tests.simulation.regressions:{name}", 1)
    assert (found["error"], found["result"]) == ("", {"read": ["new"]})


@pytest.mark.shows("mended: a topic made for a delayed message just before its master was gone: nobody could read it")
def test_a_topic_of_delayed_messages_outlives_the_master_that_made_it() -> None:
    name = "a_master_is_gone_before_it_tells_of_a_topic_of_later"
    found = outcomes(f"tests.simulation.regressions:{name}", 1, 4)
    assert [outcome["error"] for outcome in found] == [""] * 2
    assert [outcome["result"] for outcome in found] == [{"read": ["by-level", "by-timer"]}] * 2
