"""A cluster as the driver asks about it: queues, bounds, addresses. Rule: blocking calls, one event loop of its own.

Nothing is kept across calls but connections; it is never pickled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from rocketspark.client import requests
from rocketspark.client.routes import RouteCache
from rocketspark.errors import ConfigError, RouteNotFound, ServerError, TransportError
from rocketspark.model import MessageQueue
from rocketspark.transport.dial import Connections

T = TypeVar("T")

TIMEOUT_MS = 5000.0
ATTEMPTS = 3


class Bounds(NamedTuple):
    """Offsets a queue holds: the oldest there, and the next to be written."""

    oldest: int
    next: int


class Cluster:
    """The cluster behind NameServers ("host:port;host:port"). Close it when done."""

    def __init__(self, namesrv: str) -> None:
        self._runner = asyncio.Runner()
        self._routes = self._run(self._make_routes(namesrv.split(";")))
        self._connections = self._run(self._make_connections())

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(coroutine)

    @staticmethod
    async def _make_routes(addresses: list[str]) -> RouteCache:
        return RouteCache(addresses, timeout_ms=TIMEOUT_MS)

    @staticmethod
    async def _make_connections() -> Connections:
        return Connections()

    def queues(self, topics: Iterable[str]) -> list[MessageQueue]:
        """Every readable queue of the topics as of now. Raises RouteNotFound, NotSent."""
        return self._run(self._queues(list(topics)))

    async def _queues(self, topics: list[str]) -> list[MessageQueue]:
        found: list[MessageQueue] = []
        for topic in topics:
            try:
                found += (await _again(partial(self._routes.refresh, topic))).read_queues()
            except RouteNotFound:
                names = ", ".join(self._routes.addresses)
                text = f"no topic {topic!r} at {names}: check the name, or create it (rocketspark topic create)"
                raise RouteNotFound(topic, remark=text) from None
        return found

    def bounds(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, Bounds]:
        """What each queue holds now."""
        return self._run(self._all_bounds(list(queues)))

    async def _all_bounds(self, queues: list[MessageQueue]) -> dict[MessageQueue, Bounds]:
        found = await asyncio.gather(*(_again(partial(self._bounds, queue)) for queue in queues))
        return dict(zip(queues, found, strict=True))

    async def _bounds(self, queue: MessageQueue) -> Bounds:
        broker = await self._connections.get(await self._routes.find_readable(queue))
        oldest = await requests.min_offset(broker, queue, timeout_ms=TIMEOUT_MS)
        return Bounds(oldest, await requests.max_offset(broker, queue, timeout_ms=TIMEOUT_MS))

    def addresses(self, broker_name: str, topic: str) -> tuple[str, ...]:
        """Where a broker can be read, its master first. Raises ConfigError for one that is not known."""
        route = self._routes.known(topic)
        broker = route.broker(broker_name) if route else None
        if broker is None:
            raise ConfigError(f"broker {broker_name!r} has no topic {topic!r} now: start it, or leave it out")
        return tuple(address for _, address in sorted(broker.addresses.items()))

    def close(self) -> None:
        """Close the connections."""
        self._run(self._connections.close())
        self._run(self._routes.close())
        self._runner.close()


async def _again(call: Callable[[], Awaitable[T]]) -> T:
    """Make a call, again if it failed in a way that may pass.

    The loop stands still between the driver's questions: a connection that the server closed meanwhile shows only when
    it is used.
    """
    for attempt in range(1, ATTEMPTS):
        try:
            return await call()
        except RouteNotFound:
            raise
        except (TransportError, ServerError) as e:
            if not e.retriable:
                raise
        await asyncio.sleep(0.1 * (attempt - 1))
    return await call()
