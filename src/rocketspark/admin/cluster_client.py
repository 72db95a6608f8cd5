"""The base of all operations of an operator: start and close, connections to the cluster's brokers, and the structs in
which operations answer. The operations themselves are in operations, access, brokers and groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar, Unpack, cast

import msgspec

from rocketspark.client.base import AsyncClient
from rocketspark.client.connection import admin_api, client_api
from rocketspark.client.options import AccessOptions, ClientOptions
from rocketspark.errors import MessageIllegal, ServerError, TransportError, UsageError
from rocketspark.model import MessageQueue, TopicRoute
from rocketspark.model.route import MASTER_ID
from rocketspark.transport.peer import Peer


class QueueState(msgspec.Struct, frozen=True):
    """A queue and the offsets it holds: `min_offset` the oldest message's, `max_offset` the next one's."""

    queue: MessageQueue
    min_offset: int
    max_offset: int

    @property
    def message_count(self) -> int:
        """Messages in the queue, transaction and delay marks not counted."""
        return self.max_offset - self.min_offset


class TopicState(msgspec.Struct, frozen=True):
    """A topic: its route and, of each queue that can be read, the offsets."""

    topic: str
    route: TopicRoute
    queues: tuple[QueueState, ...]
    # message.type: NORMAL, FIFO, DELAY, TRANSACTION, MIXED, …; "" where it is not set.
    message_type: str = ""
    # All of its attributes, by RocketMQ's names, as its first master has them.
    attributes: dict[str, str] = {}

    @property
    def message_count(self) -> int:
        """Messages in all queues."""
        return sum(q.message_count for q in self.queues)


class QueueProgress(msgspec.Struct, frozen=True):
    """A consumer group's progress in a queue; `committed` is None if the group never committed an offset there."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    committed: int | None

    @property
    def lag(self) -> int:
        """How many messages the queue holds that the group has not consumed yet."""
        return max(0, self.max_offset - max(self.committed or 0, self.min_offset))


class BrokerState(msgspec.Struct, frozen=True, order=True):
    """One broker process; `broker_id` 0 is the master of its name."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str


class TopicMade(BrokerState, frozen=True):
    """A broker on which a topic was created, or changed if the topic `existed` there; `changed`: its settings are
    others than before.
    """

    existed: bool
    changed: bool
    queue_count: int


class Aside(msgspec.Struct, frozen=True):
    """A message that a broker quarantined: its place, the reason, since when, and how often the broker tried to deliver
    it.

    `kind`: what the message is, or was doing: delay, timer, half or pop; `queue_offset` is -1 if it is not known;
    `group`: the group that popped the message, else "".
    """

    broker_name: str
    name: str
    kind: str
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    reason: str
    first_seen_ms: int
    attempts: int
    group: str = ""

    def place(self) -> dict[str, Any]:
        """Return all fields but the broker's name as a dict, for the output that scripts read."""
        found: dict[str, Any] = msgspec.structs.asdict(self)
        del found["broker_name"]
        return found


T = TypeVar("T")
# Requests that one operation may have on the way at once.
REQUESTS_MAX = 32


class ClusterClient(AsyncClient):
    """The base class of operations: it knows the cluster's brokers and connects to them."""

    kind = "operations object"

    def __init__(
        self,
        namesrv: str | None = None,
        *,
        timeout_ms: float = client_api.TIMEOUT_MS,
        **access: Unpack[AccessOptions],
    ) -> None:
        super().__init__(namesrv, cast(ClientOptions, {"timeout_ms": timeout_ms, **access}))
        self._timeout_ms = timeout_ms
        self._routes = self._instance.routes
        self._room = asyncio.Semaphore(REQUESTS_MAX)
        # Brokers that do not know GET_GROUP_STATES.
        self._tells_one_by_one: set[str] = set()
        # For a client of another kind, beside this one.
        self._given_namesrv, self._access = namesrv, access

    async def start(self) -> None:
        """Connect to the cluster's NameServers. Raises NotSent if none answers."""
        self._begin()
        await self._instance.start()
        try:
            await self._instance.check_namesrv()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close the connections. May be called again."""
        if self._state == "started":
            await self._instance.close()
        self._state = "closed"

    async def _broker(self, address: str) -> Peer:
        self._check_started()
        return await self._instance.broker(address)

    async def cluster_info(self) -> list[BrokerState]:
        """Return every broker the NameServer knows, ordered by cluster, name and id."""
        info = await self._routes.ask(lambda peer: admin_api.cluster_info(peer, timeout_ms=self._timeout_ms))
        return sorted(
            BrokerState(cluster, name, number, address)
            for cluster, names in info.cluster_addr_table.items()
            for name in names
            if name in info.broker_addr_table
            for number, address in info.broker_addr_table[name].broker_addrs.items()
        )

    async def _masters(self, cluster: str | None, brokers: Iterable[str] | None) -> list[BrokerState]:
        return _chosen([b for b in await self.cluster_info() if b.broker_id == MASTER_ID], cluster, brokers)

    async def _readable(self, cluster: str | None = None, brokers: Iterable[str] | None = None) -> list[BrokerState]:
        """Return one broker of each name, to be asked: the master, or the first slave while there is none."""
        first: dict[str, BrokerState] = {}
        for each in await self.cluster_info():
            first.setdefault(each.broker_name, each)
        return _chosen(list(first.values()), cluster, brokers)

    async def _ask_all(
        self, targets: Iterable[BrokerState], doing: str, ask: Callable[[Peer], Awaitable[T]]
    ) -> dict[str, T]:
        """Ask brokers at once; returns the answers by name. Raises as `done_or_raise`."""

        async def one(target: BrokerState) -> T | ServerError | TransportError:
            try:
                async with self._room:
                    return await ask(await self._broker(target.address))
            except (ServerError, TransportError) as e:
                return e

        asked = list(targets)
        came = await asyncio.gather(*map(one, asked))
        return done_or_raise(doing, {target.broker_name: answer for target, answer in zip(asked, came, strict=True)})

    async def _each(
        self, targets: Iterable[BrokerState], doing: str, act: Callable[[Peer], Awaitable[T]]
    ) -> dict[str, T]:
        """Do `act` on each broker; returns the results by name. Raises as `done_or_raise`, after all were tried."""
        came: dict[str, T | ServerError | TransportError] = {}
        for target in targets:
            try:
                came[target.broker_name] = await act(await self._broker(target.address))
            except (ServerError, TransportError) as e:
                came[target.broker_name] = e
        return done_or_raise(doing, came)


def _chosen(found: list[BrokerState], cluster: str | None, brokers: Iterable[str] | None) -> list[BrokerState]:
    """Return those of a cluster and of the names given. Raises UsageError if one is not there, or none is."""
    names = {b.broker_name for b in found}
    clusters = {b.cluster for b in found}
    wanted = names if brokers is None else set(brokers)
    if wanted - names:
        missing = ", ".join(sorted(wanted - names))
        raise UsageError(f"no broker {missing}: these are up: {', '.join(sorted(names)) or 'none'}")
    if cluster is not None and cluster not in clusters:
        raise UsageError(f"no cluster {cluster!r}: these are up: {', '.join(sorted(clusters)) or 'none'}")
    if not found:
        raise UsageError("no broker is up: start one that names this NameServer")
    return [b for b in found if b.broker_name in wanted and cluster in (None, b.cluster)]


def check_name(group: str) -> str:
    """Return the name of a group that there may be, also where nobody may make one of that name now. Raises
    MessageIllegal if it is empty.
    """
    if not isinstance(group, str) or not group.strip():
        raise MessageIllegal("the group is empty: give the name of a group")
    return group


def done_or_raise(doing: str, came: Mapping[str, T | ServerError | TransportError]) -> dict[str, T]:
    """Return the results of an operation, by broker. Raises the first failure; its text also names the other brokers
    that failed, and those on which the operation was done.

    `doing`: names the operation in the error; `came`: each broker's result or error.
    """
    done = {name: one for name, one in came.items() if not isinstance(one, (ServerError, TransportError))}
    failed = [(name, one) for name, one in came.items() if isinstance(one, (ServerError, TransportError))]
    if not failed:
        return done
    where, error = failed[0]
    also = "".join(f"; {name} too" for name, _ in failed[1:])
    but = f", done on {', '.join(done)}" if done else ""
    if isinstance(error, ServerError):
        raise ServerError(
            error.code, error.remark, address=error.address, doing=f"{doing} refused by {where}{also}{but}"
        )
    raise type(error)(f"{doing} failed on {where}{also}{but}: {error}", address=error.address)
