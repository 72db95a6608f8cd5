"""Messages with priorities on our broker; tests/java/test_priorities.py holds the official one to the same rows."""

from __future__ import annotations

import pytest
from tests.java.priorities import POPPED, SENT, rows

from rocketspark import Producer
from rocketspark.testing import run_cluster

pytestmark = pytest.mark.shows("messages with priorities: the queue of each, and pops by priority, as Java 5.5.0")


@pytest.mark.parametrize(
    ("changes", "popped"),
    [
        ({}, POPPED),
        ({"highest_priority_first": False}, sorted(POPPED)),
    ],
)
def test_a_priority_is_a_queue_and_pops_begin_with_the_most_urgent(changes: dict[str, bool], popped: list[int]) -> None:
    with run_cluster(**changes) as cluster:
        (address,) = cluster.brokers
        stored, found = rows(address)
    assert stored == [(queue_id, kept) for _, _, queue_id, kept in SENT]
    assert found == popped


def test_the_result_of_a_send_names_the_queue_that_the_broker_chose() -> None:
    with run_cluster() as cluster, Producer(cluster.namesrv) as producer:
        sent = [producer.send("urgent", b"x", properties={"_SYS_MSG_PRIORITY_": "2"}) for _ in range(4)]
    assert [(result.queue.queue_id, result.queue_offset) for result in sent] == [(2, n) for n in range(4)]
