"""The Go client, unchanged, on our server: the Java clients' scenarios that it can do, and its own.

JAVA_TESTS_ON=apache runs the same tests on the official servers: what fails there too is a fault of the test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.go.driver import GoDriver
from tests.java import test_java_client_on_ours as on_ours
from tests.java import test_java_client_wholes as wholes
from tests.java import test_scenarios as scenarios

Scenario = Callable[[on_ours.Scene], None]

SAME: list[Scenario] = [
    on_ours.test_sync_send_keeps_everything,
    on_ours.test_async_send,
    on_ours.test_oneway_send,
    on_ours.test_ordered_send,
    on_ours.test_large_bodies_are_compressed_and_come_back_whole,
    on_ours.test_body_over_the_limit_is_refused,
    on_ours.test_push_consume_with_tags,
    on_ours.test_group_goes_on_where_it_stopped,
    on_ours.test_broadcast_reaches_every_consumer,
    wholes.test_transactions_end_as_they_were_decided,
    wholes.test_an_orderly_consumer_gets_each_queue_in_order_and_again_from_where_it_failed,
    wholes.test_a_request_gets_its_reply,
    wholes.test_sql_chooses_by_properties,
    scenarios.test_a_waiting_pull_is_answered_by_what_arrives,
    scenarios.test_what_always_fails_ends_among_the_dead,
    scenarios.test_a_group_that_is_switched_off_gets_nothing,
    scenarios.test_delay_levels,
    scenarios.test_timer_messages,
    scenarios.test_another_producer_of_the_group_is_asked_for_an_open_transaction,
    scenarios.test_queues_that_a_producer_finds,
    scenarios.test_what_is_refused_tells_its_code,
]


def scene_of(name: str, go_client: GoDriver, ours: Any) -> on_ours.Scene:
    return on_ours.Scene(go_client, ours, f"go-{name.removeprefix('test_').replace('_', '-')}")


@pytest.mark.parametrize("scenario", SAME, ids=lambda scenario: scenario.__name__.removeprefix("test_"))
def test_scenario(scenario: Scenario, go_client: GoDriver, ours: Any) -> None:
    scenario(scene_of(scenario.__name__, go_client, ours))
