"""Queues by priority, and the order of pops, as the official broker has them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.java.priorities import POPPED, SENT, rows

pytestmark = pytest.mark.shows("messages with priorities: the queue of each, and pops by priority, as Java 5.5.0")


@pytest.mark.parametrize("whose", ["apache", "ours"])
def test_a_priority_is_a_queue_and_pops_begin_with_the_highest(request: pytest.FixtureRequest, whose: str) -> None:
    server: Any = request.getfixturevalue(whose)
    assert rows(server.broker) == ([(queue_id, kept) for _, _, queue_id, kept in SENT], POPPED)
