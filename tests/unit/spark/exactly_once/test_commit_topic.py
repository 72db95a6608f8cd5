"""The commit topic: what is no NameServer is told so; it is made once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.client.fake import Fake, in_loop

from rocketspark.errors import ConfigError, RouteNotFound
from rocketspark.model import QueueData, TopicRoute
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.json.bodies import BrokerDataBody, ClusterInfo
from rocketspark.spark.exactly_once.commit_topic import CommitTopic
from rocketspark.tables.options import parse_write

pytestmark = pytest.mark.shows("exactly once with a proxy's address as `namesrv` is refused in one line")

GIVEN = {"topic": "t", "delivery": "exactly-once", "transactionalId": "q"}


@in_loop
async def test_the_address_of_a_broker_or_proxy_is_refused_at_once() -> None:
    """Both answer code 3 to the first question."""
    async with Fake(1, t=1) as fake:
        log = CommitTopic(parse_write({"namesrv": fake.broker.address, **GIVEN}))
        await log.start()
        try:
            with pytest.raises(ConfigError, match=rf"^{fake.broker.address} is no NameServer.*give namesrv the addr"):
                await log.make()
        finally:
            await log.close()


def test_it_is_made_once_though_its_route_is_told_late() -> None:
    """Made anew once another broker is up, it could be on two."""
    asked: list[int] = []
    known = TopicRoute("log", (), (QueueData("a", 2, 2, 6),))
    routes = iter([None, None, None, known, known])

    async def ask(_: Any) -> ClusterInfo:
        return ClusterInfo(broker_addr_table={"a": BrokerDataBody(broker_name="a", broker_addrs={0: "a:1"})})

    async def refresh(topic: str) -> TopicRoute:
        route = next(routes)
        if route is None:
            raise RouteNotFound(topic)
        return route

    async def request(code: int, *_: Any, **__: Any) -> Any:
        asked.append(code)
        return SimpleNamespace(raise_for_code=lambda text: None)

    async def broker(address: str) -> Any:
        return SimpleNamespace(request=request)

    async def main() -> None:
        log = CommitTopic(parse_write({"namesrv": "127.0.0.1:1", **GIVEN}))
        instance: Any = SimpleNamespace(routes=SimpleNamespace(ask=ask, refresh=refresh), broker=broker)
        log.instance = instance
        await log._make()
        assert log._broker == "a"

    asyncio.run(main())
    assert asked == [RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, RequestCode.UPDATE_AND_CREATE_TOPIC]
