"""What an answer of QueryRoute and QueryAssignment may hold, and what it leaves to others while it is written."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

import pytest

from rocketspark.model import QueueData
from rocketspark.model.route import BrokerData, TopicRoute
from rocketspark.proxy.routes import QUEUES_IN_TURN, QueryRoutes
from rocketspark.proxy.settings import ProxySettings
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.enumerations import Code
from rocketspark.proxy.wire.statuses import Refused

pytestmark = pytest.mark.shows("routes of large topics: what is named in a request, turns of others, memory")


def routes_of(queue_count: int) -> QueryRoutes:
    """The routes of one topic, which has so many queues; a group reads them in order."""
    route = TopicRoute(
        topic="T",
        queues=[QueueData("a", queue_count, queue_count, 6)],
        brokers=[BrokerData("c", "a", {0: "127.0.0.1:1"})],
    )

    async def found(name: str) -> Any:
        return route

    async def kind(name: str) -> str:
        return "NORMAL"

    async def group(name: str) -> Any:
        return SimpleNamespace(consume_message_orderly=True)

    brokers: Any = SimpleNamespace(route=found, topic_type=kind, group=group)
    return QueryRoutes(ProxySettings(namesrv="n"), brokers)


def asked(routes: QueryRoutes, rpc: str, host: str = "h") -> Awaitable[Any]:
    unused: Any = None
    said: dict[str, Any] = {"topic": {"name": "T"}, "endpoints": {"scheme": 1, "addresses": [{"host": host}]}}
    if rpc == "QueryRoute":
        return routes.query_route(unused, messages.QueryRouteRequest(**said))
    return routes.query_assignment(unused, messages.QueryAssignmentRequest(group={"name": "G"}, **said))


def numbers(answer: Any) -> list[int]:
    if hasattr(answer, "assignments"):
        return [each.message_queue.id for each in answer.assignments]
    return [each.id for each in answer.message_queues]


@pytest.mark.parametrize("rpc", ["QueryRoute", "QueryAssignment"])
def test_a_large_topic_is_written_in_turns_and_one_of_them_at_a_time(rpc: str) -> None:
    async def main() -> None:
        routes, count = routes_of(4 * QUEUES_IN_TURN), 4 * QUEUES_IN_TURN
        turns, ended = 0, list[int]()

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async def one(number: int) -> list[int]:
            answer = await asked(routes, rpc)
            ended.append(turns)
            return numbers(answer)

        task = asyncio.ensure_future(other())
        found = await asyncio.gather(*map(one, range(3)))
        task.cancel()
        assert found == [list(range(count))] * 3
        # Each takes turns of its own, which it shares with no other.
        assert [later - before >= 3 for before, later in zip([0, *ended], ended, strict=False)] == [True] * 3

    asyncio.run(main())


@pytest.mark.parametrize("rpc", ["QueryRoute", "QueryAssignment"])
def test_what_would_stand_in_an_answer_too_often_is_refused(rpc: str) -> None:
    async def main() -> None:
        def ask(queues: int, length: int) -> Awaitable[Any]:
            return asked(routes_of(queues), rpc, "h" * length)

        assert numbers(await ask(8, 16_000)) == list(range(8))
        with pytest.raises(Refused, match="name shorter endpoints") as refused:
            await ask(4096, 16_000)
        assert refused.value.code == Code.BAD_REQUEST
        assert len(numbers(await ask(4096, 200))) == 4096

    asyncio.run(main())
