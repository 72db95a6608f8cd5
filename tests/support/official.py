"""Which tests drive official software, and which of them `make test` runs all the same: one quick one per feature.

Rule: a test that starts an official client or server carries the mark `official` and runs in `make test-official`,
unless it stands in SMOKE.
"""

from __future__ import annotations

import os

import pytest

# JVMs of tests live for seconds: only the quick compiler pays.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

FOLDERS = {"java", "go", "cpp", "v5"}
FIXTURES = {"java_driver", "apache", "guarded"}

JAVA = "tests/java/test_java_client_on_ours.py::"
WHOLES = "tests/java/test_java_client_wholes.py::"
MORE = "tests/java/test_scenarios.py::"
APACHE = "tests/java/test_our_client_on_apache.py::"

SMOKE = {
    # The Java clients on our servers.
    JAVA + "test_sync_send_keeps_everything[5.5.0-JSON]",
    JAVA + "test_sync_send_keeps_everything[4.9.7-JSON]",
    JAVA + "test_push_consume_with_tags[5.5.0-JSON]",
    JAVA + "test_failed_message_comes_again[5.5.0-JSON]",
    JAVA + "test_admin_sees_cluster_and_topics[5.5.0-JSON]",
    JAVA + "test_body_over_the_limit_is_refused[5.5.0-JSON]",
    WHOLES + "test_transactions_end_as_they_were_decided[5.5.0-JSON]",
    WHOLES + "test_an_orderly_consumer_gets_each_queue_in_order_and_again_from_where_it_failed[5.5.0-JSON]",
    WHOLES + "test_a_request_gets_its_reply[5.5.0-JSON]",
    MORE + "test_delay_levels[5.5.0-JSON]",
    MORE + "test_messages_are_found_by_key_unique_id_and_offset_id[5.5.0-JSON]",
    MORE + "test_clients_of_a_group_are_seen_and_asked[5.5.0-JSON]",
    # Our clients and Spark on the official servers.
    APACHE + "test_sync_send_keeps_everything",
    APACHE + "test_push_with_tags",
    "tests/spark/test_progress.py::test_progress_is_committed_to_the_group_as_each_micro_batch_ends[ours]",
    # A store that goes from one to the other; the admin's commands; other languages.
    "tests/java/test_store_exchange.py::test_store_goes_to_the_java_broker_and_back[stop]",
    "tests/java/test_harness.py::test_mqadmin_makes_a_topic_and_finds_it",
    "tests/v5/test_clients.py::test_scenario[ours-python-everything_of_a_message_comes_back]",
    "tests/v5/test_clients.py::test_scenario[ours-python-a_push_consumer_gets_each_message_once]",
    "tests/go/test_go_client.py::test_scenario[sync_send_keeps_everything]",
    "tests/go/test_go_client.py::test_scenario[push_consume_with_tags]",
    "tests/cpp/test_cpp_client.py::test_sends_of_all_kinds_reach_a_consumer_and_what_failed_comes_again",
}


def drives_official_software(item: pytest.Item, folder: str) -> bool:
    """By its folder, its fixtures, the values of these, or its mark `java`."""
    values = getattr(getattr(item, "callspec", None), "params", {}).values()
    return (
        folder in FOLDERS
        or not FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
        or any(value.startswith(("apache", "Apache's")) for value in values if isinstance(value, str))
        or item.get_closest_marker("java") is not None
    )


def watch(item: pytest.Item) -> None:
    """Note before each test whether it may start official software."""
    may = item.nodeid in SMOKE or any(item.get_closest_marker(name) for name in ("official", "soak"))
    os.environ[_MAY] = "yes" if may else "no"


def started(what: str) -> None:
    """Called where official software is started; fails in a test that does not carry the mark."""
    assert os.environ.get(_MAY) != "no", f"{what}: a test with this fixture is not known in tests/support/official.py"


_MAY = "TEST_MAY_START_OFFICIAL_SOFTWARE"
