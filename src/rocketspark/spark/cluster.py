"""A cluster as the driver asks about it: queues, bounds, addresses. Rule: blocking calls, one event loop of its own.

Nothing is kept across calls but connections; it is never pickled.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from rocketspark.client import requests
from rocketspark.client.routes import RouteCache
from rocketspark.errors import ConfigError, RouteNotFound, ServerError, TransportError
from rocketspark.model import MessageQueue
from rocketspark.model.subscription import ALL, TAG
from rocketspark.protocol import bodies, record, sysflags
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.headers import PullHeader
from rocketspark.spark.access import Access
from rocketspark.spark.options import READER_GROUP
from rocketspark.spark.times import first_at_or_after
from rocketspark.spark.topics import matching
from rocketspark.transport.dial import Connections
from rocketspark.transport.peer import Peer

T = TypeVar("T")

TIMEOUT_MS = 5000.0
ATTEMPTS = 3
_DELAYED_TOPIC = "SCHEDULE_TOPIC_XXXX"


class Bounds(NamedTuple):
    """Offsets a queue holds: the oldest there, and the next to be written."""

    oldest: int
    next: int


class Cluster:
    """The cluster behind NameServers ("host:port;host:port"). Close it when done.

    Topics and queues have the user's names, without the namespace.
    """

    def __init__(self, namesrv: str, *, group: str = READER_GROUP, access: Access | None = None) -> None:
        self._access = access or Access()
        self._group = self._access.wire(group)
        self._filters: dict[tuple[str, str], bool] = {}
        self._runner = asyncio.Runner()
        self._routes = self._run(self._make_routes(namesrv.split(";"), self._access))
        self._connections = self._run(self._make_connections(self._access))

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(coroutine)

    @staticmethod
    async def _make_routes(addresses: list[str], access: Access) -> RouteCache:
        return RouteCache(addresses, timeout_ms=TIMEOUT_MS, hooks=access.hooks())

    @staticmethod
    async def _make_connections(access: Access) -> Connections:
        return Connections(hooks=access.hooks())

    def topics(self, pattern: str) -> list[str]:
        """The topics whose whole name matches a pattern, by the rule of `topics.matching`. Raises NotSent."""
        return self._run(self._topics(pattern))

    async def _topics(self, pattern: str) -> list[str]:
        names = await _again(partial(self._routes.ask, partial(requests.topic_list, timeout_ms=TIMEOUT_MS)))
        info = await self._cluster_info()
        own = (name for wire_name in names if (name := self._access.own(wire_name)) is not None)
        return matching(pattern, own, [*info.broker_addr_table, *info.cluster_addr_table])

    async def _cluster_info(self) -> bodies.ClusterInfo:
        return await _again(partial(self._routes.ask, partial(requests.cluster_info, timeout_ms=TIMEOUT_MS)))

    def queues(self, topics: Iterable[str]) -> list[MessageQueue]:
        """Every readable queue of the topics as of now. Raises RouteNotFound, NotSent."""
        return self._run(self._queues(list(topics)))

    async def _queues(self, topics: list[str]) -> list[MessageQueue]:
        found = await asyncio.gather(*map(self._queues_of, topics))
        return [queue for queues in found for queue in queues]

    async def _queues_of(self, topic: str) -> list[MessageQueue]:
        try:
            route = await _again(partial(self._routes.refresh, self._access.wire(topic)))
        except RouteNotFound:
            names = ", ".join(self._routes.addresses)
            space = f" in namespace {self._access.namespace!r}" if self._access.namespace else ""
            text = f"no topic {topic!r}{space} at {names}: check the name, or create it (rocketspark topic create)"
            raise RouteNotFound(topic, remark=text) from None
        return [MessageQueue(topic, q.broker_name, q.queue_id) for q in route.read_queues()]

    def bounds(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, Bounds]:
        """What each queue holds now."""
        return self._run(self._all_bounds(list(queues)))

    async def _all_bounds(self, queues: list[MessageQueue]) -> dict[MessageQueue, Bounds]:
        found = await asyncio.gather(*(_again(partial(self._bounds, queue)) for queue in queues))
        return dict(zip(queues, found, strict=True))

    async def _bounds(self, queue: MessageQueue) -> Bounds:
        broker, queue = await self._broker_of(queue)
        oldest = await requests.min_offset(broker, queue, timeout_ms=TIMEOUT_MS)
        return Bounds(oldest, await requests.max_offset(broker, queue, timeout_ms=TIMEOUT_MS))

    async def _broker_of(self, queue: MessageQueue) -> tuple[Peer, MessageQueue]:
        """The connection to a queue's broker, its master if that is up, and the queue by its full name."""
        queue = self._access.wire_queue(queue)
        return await self._connections.get(await self._routes.find_readable(queue)), queue

    def offsets_at(self, queues: Iterable[MessageQueue], time_ms: int) -> dict[MessageQueue, int]:
        """The first offset of each queue stored at or after `time_ms`; the end of the queue if none is.

        Exact where store times ascend along a queue, as they do unless an Apache broker's clock was set back (ours
        never stamps an earlier time than before). Never before the oldest message that is still there.
        """
        return self._run(self._all_offsets_at(list(queues), time_ms))

    async def _all_offsets_at(self, queues: list[MessageQueue], time_ms: int) -> dict[MessageQueue, int]:
        found = await asyncio.gather(*(_again(partial(self._offset_at, queue, time_ms)) for queue in queues))
        return dict(zip(queues, found, strict=True))

    async def _offset_at(self, queue: MessageQueue, time_ms: int) -> int:
        broker, queue = await self._broker_of(queue)
        # The end first: what comes meanwhile is of no interest.
        end = await requests.max_offset(broker, queue, timeout_ms=TIMEOUT_MS)
        oldest = await requests.min_offset(broker, queue, timeout_ms=TIMEOUT_MS)
        if oldest >= end:
            return end
        # A time that no long holds is beyond every message; Java's is signed, 64 bits.
        guess = await requests.search_offset(broker, queue, min(time_ms, (1 << 63) - 1), timeout_ms=TIMEOUT_MS)
        return await first_at_or_after(time_ms, oldest, end, guess, partial(self._stored_ms, broker, queue))

    async def _stored_ms(self, broker: Peer, queue: MessageQueue, offset: int) -> float:
        """Store time of the message at an offset, or of the next one where a compaction left it out."""
        header = PullHeader(
            group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            count_max=1,
            sys_flag=sysflags.PULL_SUBSCRIPTION,
            commit_offset=0,
            suspend_ms=0,
            subscription=ALL,
            subscription_version=0,
            expression_type=TAG,
            broker_name=queue.broker_name,
        )
        pulled = await requests.pull(broker, header, timeout_ms=TIMEOUT_MS)
        if pulled.code == ResponseCode.SUCCESS:
            messages = record.decode_messages(pulled.records, queue.broker_name)
            return next((m.store_time_ms for m in messages if m.queue_offset >= offset), math.inf)
        return -math.inf if pulled.header.next_offset > offset else math.inf

    def filters_each_message(self, queue: MessageQueue) -> bool:
        """Whether the filter of the queue's broker sees every message by itself, so that it loses none that matches.

        It does not where a record is a batch (topics with queue.type=BatchCQ), nor for the tags of delayed messages,
        whose units hold a time instead (rule: CommitLog, 5.x).
        """
        if queue.topic == _DELAYED_TOPIC:
            return False
        key = queue.topic, queue.broker_name
        if key not in self._filters:
            self._filters[key] = self._run(_again(partial(self._has_plain_queues, queue)))
        return self._filters[key]

    async def _has_plain_queues(self, queue: MessageQueue) -> bool:
        broker, queue = await self._broker_of(queue)
        try:
            config = await requests.topic_config(broker, queue.topic, timeout_ms=TIMEOUT_MS)
        except ServerError as e:
            # Brokers before 5.0 know neither the request nor such topics; who may not ask reads everything.
            return e.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        return config is not None and config.attributes.get("queue.type") != "BatchCQ"

    def addresses(self, broker_name: str, topic: str) -> tuple[str, ...]:
        """Where a broker can be read, its master first. Raises ConfigError for one that is not known."""
        route = self._routes.known(self._access.wire(topic))
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
