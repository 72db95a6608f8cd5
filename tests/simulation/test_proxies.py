"""Proxies between a cluster and its clients, under faults of both."""

from __future__ import annotations

import pytest
from tests.simulation.test_world import outcomes


@pytest.mark.shows(
    "two proxies, and clients before RocketMQ 5 that know nothing else, under faults: the checker finds no rule broken",
    "mended: behind a proxy's port old clients asked who was master before a failover, for good",
)
def test_clients_go_on_behind_proxies_whatever_fails() -> None:
    # Found: the old master, a slave by now, was asked on and on, and gave no messages (14), and ended nothing (15).
    found = outcomes("tests.simulation.proxies:clients", 14, 15)
    assert {outcome["seed"]: outcome["error"] for outcome in found if outcome["error"]} == {}
    assert sum(outcome["result"]["reads"] for outcome in found) > 400


@pytest.mark.shows(
    "clients of RocketMQ 5 at a proxy under access control, while their user is disabled, deleted, loses its rules and"
    " gets them back, and broker and proxy fail: who may no more is given nothing, also by a receive that waits, and"
    " others get it"
)
def test_who_may_no_more_is_given_nothing_by_a_proxy() -> None:
    # Found: who was deleted sent on, by a proxy that was fetching users anew just then (4).
    found = outcomes("tests.simulation.grpc_users:clients", 1, 4)
    assert {outcome["seed"]: outcome["error"] for outcome in found if outcome["error"]} == {}
    assert sum(outcome["states"]["spans of rights looked at"] for outcome in found) > 4
    assert all(outcome["result"]["served"] > 20 for outcome in found)
    assert sum(outcome["states"]["grpc calls refused"] for outcome in found) > 40
