"""Which scenario shows which capability with which official client. Rule: a cell names a test or says why none.

Each test runs on the official servers too (JAVA_TESTS_ON=apache): one that fails there is wrong. What other points
(store, durability, retention, statistics, cores) show is no matter of the client: see `make status`.
`python -m tests.interop.table` prints it.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.v5.scenarios import PLAYED

CAPABILITIES = {
    4: "pull",
    5: "retry and dead letters",
    6: "delay",
    7: "transactions",
    8: "order",
    9: "query",
    10: "request-reply",
    11: "groups and clients",
    12: "NameServer",
    13: "limits",
}
CLIENTS = ("java_550", "java_497", "go", "cpp")

# In place of a test: the one before it in the row, with this client.
SAME = "same"
CANNOT = "cannot: "

BASICS = "tests/java/test_java_client_on_ours.py::"
WHOLES = "tests/java/test_java_client_wholes.py::"
MORE = "tests/java/test_scenarios.py::"
TIMERS = "tests/java/test_timer_messages.py::"
GO = "tests/go/test_go_client.py::"
CPP = "tests/cpp/test_cpp_client.py::"

_NO_QUERIES = CANNOT + "it has no calls for queries"
_NO_ADMIN = CANNOT + "it has no admin"
_GO_ADMIN = CANNOT + "its admin knows topics and groups only"


class Row(NamedTuple):
    """One scenario. A cell is "file::test", SAME, or CANNOT and the reason."""

    capability: int
    scenario: str
    java_550: str
    java_497: str
    go: str
    cpp: str


TABLE = [
    Row(
        4, "everything of a sent message comes back", BASICS + "test_sync_send_keeps_everything", SAME, SAME,
        CPP + "test_sends_of_all_kinds_reach_a_consumer_and_what_failed_comes_again",
    ),
    Row(4, "asynchronous sends", BASICS + "test_async_send", SAME, SAME, CPP + "test_async_sends_are_answered"),
    Row(
        4, "one-way sends", BASICS + "test_oneway_send", SAME, SAME,
        CPP + "test_sends_of_all_kinds_reach_a_consumer_and_what_failed_comes_again",
    ),
    Row(
        4, "batches", BASICS + "test_batch_send", SAME, GO + "test_a_batch_becomes_one_message_each",
        CPP + "test_a_batch_becomes_one_message_each",
    ),
    Row(
        4, "large bodies are compressed", BASICS + "test_large_bodies_are_compressed_and_come_back_whole", SAME, SAME,
        CANNOT + "its receiver hands out bodies as text that ends at the first zero",
    ),
    Row(
        4, "tags", BASICS + "test_push_consume_with_tags", SAME, SAME,
        CPP + "test_sends_of_all_kinds_reach_a_consumer_and_what_failed_comes_again",
    ),
    Row(4, "SQL92", WHOLES + "test_sql_chooses_by_properties", SAME, SAME, CANNOT + "it subscribes by tags only"),
    Row(
        4, "a wrong SQL92 expression", MORE + "test_a_wrong_expression_is_refused_at_the_start", SAME,
        CANNOT + "it does not have its filter checked before it starts", CANNOT + "it subscribes by tags only",
    ),
    Row(
        4, "long polling", MORE + "test_a_waiting_pull_is_answered_by_what_arrives", SAME, SAME,
        CPP + "test_sends_of_all_kinds_reach_a_consumer_and_what_failed_comes_again",
    ),
    Row(
        4, "outcomes of a pull", BASICS + "test_pull_and_its_states", SAME, GO + "test_a_pull_and_its_states",
        CANNOT + "its package tells none but found",
    ),
    Row(
        4, "a consumer that polls", BASICS + "test_lite_pull_with_seek_and_commit", SAME,
        GO + "test_polls_bring_everything_and_acknowledge_it", CPP + "test_pulls_bring_everything_once",
    ),
    Row(
        4, "broadcast", BASICS + "test_broadcast_reaches_every_consumer", SAME, SAME,
        CPP + "test_broadcast_reaches_every_consumer",
    ),
    Row(
        5, "a failed message comes again", BASICS + "test_failed_message_comes_again", SAME,
        MORE + "test_what_always_fails_ends_among_the_dead", CPP + "test_a_failed_message_comes_again",
    ),
    Row(
        5, "dead letters", MORE + "test_what_always_fails_ends_among_the_dead", SAME, SAME,
        CPP + "test_what_always_fails_ends_among_the_dead",
    ),
    Row(
        5, "a group that is switched off", MORE + "test_a_group_that_is_switched_off_gets_nothing", SAME, SAME,
        CANNOT + "its pull does not tell an error from nothing new",
    ),
    Row(6, "levels", MORE + "test_delay_levels", SAME, SAME, CPP + "test_delay_levels_and_timer_messages"),
    Row(6, "timer messages", MORE + "test_timer_messages", SAME, SAME, CPP + "test_delay_levels_and_timer_messages"),
    Row(
        6, "recall", TIMERS + "test_the_official_client_delays_and_recalls",
        CANNOT + "clients before 5.4 do not recall", CANNOT + "it does not recall", CANNOT + "it does not recall",
    ),
    Row(
        7, "commit, rollback and check-back", WHOLES + "test_transactions_end_as_they_were_decided", SAME, SAME,
        CANNOT + "its package has no transaction producer",
    ),
    Row(
        7, "check-back to another producer",
        MORE + "test_another_producer_of_the_group_is_asked_for_an_open_transaction", SAME, SAME,
        CANNOT + "its package has no transaction producer",
    ),
    Row(
        8, "sends by key", BASICS + "test_ordered_send", SAME, SAME,
        CPP + "test_sends_of_all_kinds_reach_a_consumer_and_what_failed_comes_again",
    ),
    Row(
        8, "orderly consumers",
        WHOLES + "test_an_orderly_consumer_gets_each_queue_in_order_and_again_from_where_it_failed", SAME, SAME,
        CPP + "test_an_orderly_consumer_gets_a_failed_message_again_before_the_next",
    ),
    Row(
        9, "by key, unique id and offset id", MORE + "test_messages_are_found_by_key_unique_id_and_offset_id", SAME,
        _NO_QUERIES, _NO_QUERIES,
    ),
    Row(9, "by time, bounds of a queue", BASICS + "test_offsets", SAME, _NO_QUERIES, _NO_QUERIES),
    Row(10, "requests", WHOLES + "test_a_request_gets_its_reply", SAME, SAME, CANNOT + "it has no requests"),
    Row(
        11, "who is there, running info, direct consume", MORE + "test_clients_of_a_group_are_seen_and_asked", SAME,
        GO + "test_a_consumer_is_seen_and_asked", CPP + "test_a_consumer_is_seen_and_asked",
    ),
    Row(11, "reset by time", MORE + "test_offsets_are_reset_by_time", SAME, _GO_ADMIN, _NO_ADMIN),
    Row(
        11, "reset under a running consumer", MORE + "test_offsets_are_reset_under_a_running_consumer",
        CANNOT + "it waits 10 s and for a rebalance before it goes on", CANNOT + "it waits like Java 4.9.7",
        CANNOT + "it waits like Java 4.9.7",
    ),
    Row(
        11, "a group goes on where it stopped", BASICS + "test_group_goes_on_where_it_stopped", SAME, SAME,
        CANNOT + "stopping it may end its process",
    ),
    Row(
        11, "two consumers share the queues", BASICS + "test_two_consumers_share_the_queues", SAME,
        CANNOT + "it does not tell its queues", CANNOT + "it does not tell its queues",
    ),
    Row(12, "routes, clusters and topics", BASICS + "test_admin_sees_cluster_and_topics", SAME,
        GO + "test_the_admin_makes_lists_and_deletes_topics", _NO_ADMIN),
    Row(12, "a topic's queues", MORE + "test_queues_that_a_producer_finds", SAME, SAME,
        CPP + "test_sends_of_all_kinds_reach_a_consumer_and_what_failed_comes_again"),
    Row(12, "automatic creation", BASICS + "test_topic_is_created_by_the_first_send", SAME,
        BASICS + "test_sync_send_keeps_everything", CANNOT + "it does not say which queue a message went to"),
    Row(
        12, "write permission of a broker, key-value table",
        MORE + "test_write_permission_of_a_broker_and_key_values", SAME, _GO_ADMIN, _NO_ADMIN,
    ),
    Row(
        13, "a body over the limit", BASICS + "test_body_over_the_limit_is_refused", SAME, SAME,
        CPP + "test_a_body_over_the_limit_is_refused",
    ),
    Row(
        13, "properties over the limit, a topic that may not be read", MORE + "test_what_is_refused_tells_its_code",
        SAME, SAME, CANNOT + "it keeps the broker's code to its log",
    ),
]  # fmt: skip


def shown_by(row: Row, client: str) -> str | None:
    """ "file::test" that shows the row with that client; None where the cell says why there is none."""
    cell: str = getattr(row, client)
    if cell.startswith(CANNOT):
        return None
    return row.java_550 if cell == SAME else cell


if __name__ == "__main__":
    for row in TABLE:
        print(f"{row.capability} {CAPABILITIES[row.capability]}: {row.scenario}")
        for client in CLIENTS:
            print(f"    {client:9} {shown_by(row, client) or getattr(row, client)}")
    print("RocketMQ 5, over gRPC (tests/v5/test_clients.py)")
    for language, scenarios in PLAYED.items():
        for scenario in scenarios:
            print(f"    {language:9} {scenario.__name__.replace('_', ' ')}")
