"""The offsets that queues hold now, of brokers that answer as a test says: a master that is new, one that is away."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from rocketspark.errors import ServerError
from rocketspark.model import MessageQueue
from rocketspark.protocol.codes import ResponseCode
from rocketspark.tables import cluster_queries
from rocketspark.tables.cluster_queries import TOPIC_DELETED, ClusterQueries
from rocketspark.tables.queue_bounds import OffsetBounds

Q = MessageQueue("t", "a", 0)


@pytest.mark.parametrize(("replicas", "next_offset", "looks"), [(True, 9, 3), (False, 7, 1)])
def test_a_queue_that_ends_earlier_at_a_new_master_is_looked_at_again(
    replicas: bool, next_offset: int, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_queries, "SETTLE_PAUSE_S", 0)
    asked: list[bool] = []

    async def of_each(queues: list[MessageQueue], ask: Any, *, if_there: bool) -> dict[MessageQueue, OffsetBounds]:
        asked.append(if_there)
        return {queue: OffsetBounds(0, 6 + len(asked), of_master=True) for queue in queues}

    queries: Any = ClusterQueries.__new__(ClusterQueries)
    queries._of_each, queries._run, queries._bounds, queries._replicated = of_each, asyncio.run, None, {"a"}
    queries._has_replicas = lambda queue: asyncio.sleep(0, replicas)
    queries._queues_of = lambda topic: asyncio.sleep(0, [])
    queries._moved = set()
    assert queries.bounds([Q], seen={Q: 9})[Q].next == next_offset
    # Who does not answer is an error at first, and none of those that are looked at again.
    assert asked == [False] + [True] * (looks - 1)


def test_a_broker_that_is_busy_has_deleted_no_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    queries: Any = ClusterQueries.__new__(ClusterQueries)
    queries._connections = SimpleNamespace(get=lambda address: asyncio.sleep(0))
    code = ResponseCode.SYSTEM_BUSY

    async def topic_config(*asked: Any, **how: Any) -> None:
        raise ServerError(code, "not now")

    monkeypatch.setattr(cluster_queries.admin_api, "topic_config", topic_config)
    assert asyncio.run(queries._why_gone_from("a:1", Q, 5)) is None
    code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert asyncio.run(queries._why_gone_from("a:1", Q, 5)) == TOPIC_DELETED


def test_the_first_number_of_a_broker_at_another_address_is_none_of_a_topic_made_anew() -> None:
    """It may have been a slave, whose number is another."""
    queries: Any = ClusterQueries.__new__(ClusterQueries)
    queries._run, queries._has_replicas = asyncio.run, lambda queue: asyncio.sleep(0, False)
    queries._unjudged, queries._made_first = {"a"}, {}

    def is_made_anew(made_at: int) -> bool:
        return bool(queries.made_anew({Q: OffsetBounds(0, 5, made_at=made_at)}, {("t", "a"): 7}, {}))

    assert [is_made_anew(at) for at in (9, 9, 10)] == [False, False, True]
