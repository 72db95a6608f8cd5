"""Servers in the test's own loop, and raw requests to them. Rule: ports are free ones, waits end with an error."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tests.support.patience import LIMIT_MS, LIMIT_S

from rocketspark.broker.server import BrokerServer
from rocketspark.broker.settings import BrokerSettings
from rocketspark.namesrv.server import NameServer
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.json import bodies
from rocketspark.protocol.message import properties, record
from rocketspark.protocol.message.record import Record
from rocketspark.transport.connections import dial
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.request_frames import Reply

T = TypeVar("T")

TOPIC = "T"
GROUP = "G"


def run(main: Coroutine[Any, Any, T], limit_s: float = LIMIT_S) -> T:
    """Run a test's coroutine on the loop that servers run on; fails after `limit_s`."""
    import uvloop

    async def limited() -> T:
        return await asyncio.wait_for(main, limit_s)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(limited())


async def until(true: Callable[[], T], limit_s: float = LIMIT_S) -> T:
    """Wait until `true()` holds, looking every few ms; returns what it gave."""
    end = time.monotonic() + limit_s
    while not (found := true()):
        assert time.monotonic() < end, f"not so within {limit_s} s"
        await asyncio.sleep(0.005)
    return found


def settings(root: Path, **changes: Any) -> BrokerSettings:
    """A small broker's settings: free port, small files, short waits at the end."""
    values: dict[str, Any] = {
        "listen_port": 0,
        "store_root": str(root),
        "log_file_bytes": 32 << 20,
        "queue_file_bytes": 20_000,
        "index_slots": 1000,
        "index_entries": 4000,
        # The loop is the test's too: what it does is no load.
        "refuse_when_behind": False,
    }
    return BrokerSettings(**values | changes)


@asynccontextmanager
async def broker(root: Path, **changes: Any) -> AsyncIterator[BrokerServer]:
    """A running broker over a directory."""
    server = BrokerServer(settings(root, **changes))
    await server.start()
    try:
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def name_server(**arguments: Any) -> AsyncIterator[NameServer]:
    """A running NameServer."""
    server = NameServer(port=0, **arguments)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def connected(address: str, routes: Routes | None = None, **arguments: Any) -> AsyncIterator[Peer]:
    """A connection, closed at the end."""
    peer = await dial(address, routes, **arguments)
    # A request has 3 s by default, and a machine may halt for so long.
    peer.request = partial(peer.request, timeout_ms=LIMIT_MS)  # type: ignore[method-assign]
    try:
        yield peer
    finally:
        peer.close()


def cut_power(root: Path, flushed: int) -> None:
    """Take from a stopped broker's log what was not flushed: up to 100,000 bytes behind `flushed`."""
    with (root / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(flushed)
        file.write(bytes(100_000))


class Called:
    """What came in on a connection as one-way requests, e.g. NOTIFY_CONSUMER_IDS_CHANGED."""

    def __init__(self, *codes: int) -> None:
        self.routes = Routes()
        self.came: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()
        for code in codes:
            self.routes.add(code, self._take)

    def _take(self, peer: Peer, request: Any, body: bytes) -> None:
        self.came.put_nowait((request.code, request.ext))

    async def next(self, limit_s: float = LIMIT_S) -> tuple[int, Any]:
        return await asyncio.wait_for(self.came.get(), limit_s)


def send_header(topic: str = TOPIC, queue_id: int = 0, /, **changes: Any) -> headers.SendHeader:
    values: dict[str, Any] = {
        "producer_group": "P",
        "topic": topic,
        "queue_id": queue_id,
        "sys_flag": 0,
        "born_time_ms": 1_795_214_738_976,
        "flag": 0,
    }
    pairs = changes.pop("pairs", {})
    return headers.SendHeader(**values | {"properties": properties.encode(pairs)} | changes)


async def send(
    peer: Peer, body: bytes = b"x", topic: str = TOPIC, queue_id: int = 0, /, code: int = 310, **changes: Any
) -> Reply:
    """SEND_MESSAGE_V2; `pairs` are the properties."""
    return await peer.request(code, send_header(topic, queue_id, **changes), body)


async def sent(peer: Peer, body: bytes = b"x", topic: str = TOPIC, queue_id: int = 0, /, **changes: Any) -> int:
    """Send and return the queue offset; fails unless it was stored."""
    reply = await send(peer, body, topic, queue_id, **changes)
    return reply.raise_for_code("send").header(headers.SendReply).queue_offset


def pull_header(topic: str = TOPIC, queue_id: int = 0, offset: int = 0, /, **changes: Any) -> headers.PullHeader:
    values: dict[str, Any] = {
        "group": GROUP,
        "topic": topic,
        "queue_id": queue_id,
        "queue_offset": offset,
        "count_max": 32,
        "sys_flag": 4,
        "commit_offset": 0,
        "suspend_ms": 0,
        "subscription": "*",
        "subscription_version": 0,
    }
    return headers.PullHeader(**values | changes)


async def pull(peer: Peer, topic: str = TOPIC, queue_id: int = 0, offset: int = 0, /, **changes: Any) -> Reply:
    """PULL_MESSAGE with the subscription in the request."""
    return await peer.request(RequestCode.PULL_MESSAGE, pull_header(topic, queue_id, offset, **changes))


def records(reply: Reply) -> list[Record]:
    """The messages in a pull's reply."""
    return list(record.decode_all(reply.body))


def pairs(message: Record) -> dict[str, str]:
    """A stored message's properties."""
    return properties.decode(message.properties.decode())


async def pulled(peer: Peer, topic: str = TOPIC, queue_id: int = 0, offset: int = 0, /, **changes: Any) -> list[Record]:
    """The messages from an offset on; fails unless there are some."""
    reply = await pull(peer, topic, queue_id, offset, **changes)
    return records(reply.raise_for_code("pull"))


async def moved_to(peer: Peer, offset: int, **changes: Any) -> int | None:
    """Where a pull of one that reads on, unless `changes` say otherwise, is sent to; None if it is not."""
    reply = await pull(peer, TOPIC, 0, offset, **{"sys_flag": 6} | changes)
    return reply.header(headers.PullReply).next_offset if reply.code == ResponseCode.PULL_OFFSET_MOVED else None


async def commit(peer: Peer, offset: int, group: str = GROUP) -> None:
    """UPDATE_CONSUMER_OFFSET of a group in the first queue."""
    header = headers.UpdateConsumerOffsetHeader(group=group, topic=TOPIC, queue_id=0, commit_offset=offset)
    (await peer.request(RequestCode.UPDATE_CONSUMER_OFFSET, header)).raise_for_code("commit")


async def create(peer: Peer, topic: str = TOPIC, queues: int = 4, perm: int = 6, **changes: Any) -> None:
    """UPDATE_AND_CREATE_TOPIC."""
    values: dict[str, Any] = {"read_queue_count": queues, "write_queue_count": queues}
    header = headers.CreateTopicHeader(topic=topic, perm=perm, **values | changes)
    (await peer.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)).raise_for_code("create")


async def create_group(peer: Peer, group: str = GROUP) -> None:
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, with the settings that a group gets by itself."""
    config = b'{"groupName":"%b"}' % group.encode()
    (await peer.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config)).raise_for_code("create")


_client = itertools.count()


async def beat(
    peer: Peer,
    *,
    client_id: str = "",
    group: str | None = GROUP,
    producer: str | None = None,
    topics: dict[str, str] | None = None,
    version: int = 0,
    **changes: Any,
) -> Reply:
    """HEART_BEAT of a client with one consumer group (its topics with their tags) or producer group, or both."""
    from rocketspark.model import subscribe

    wanted = {TOPIC: "*"} if topics is None else topics
    subscriptions = [bodies.SubscriptionBody.of(subscribe(t, e, version=version)) for t, e in wanted.items()]
    consumers = [bodies.ConsumerData(group_name=group, subscription_data_set=subscriptions, **changes)] if group else []
    body = bodies.Heartbeat(
        client_id=client_id or f"127.0.0.1@{next(_client)}",
        consumer_data_set=consumers,
        producer_data_set=[bodies.ProducerData(group_name=producer)] if producer else [],
    )
    return (await peer.request(RequestCode.HEART_BEAT, None, bodies.encode(body))).raise_for_code("heartbeat")
