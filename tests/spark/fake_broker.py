"""A broker that answers pulls from a list of records as a test asks: few at a time, out of order, or not at all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import PullHeader, PullReply, Request, RouteHeader, TopicHeader
from rocketspark.protocol.json import bodies
from rocketspark.protocol.message import properties, record
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.request_frames import reply
from rocketspark.transport.server import Server


def make_records(count: int, **fields: Any) -> list[bytes]:
    """Records of queue offsets 0, 1, …; tags are A, B, C in turn."""
    made = []
    for i in range(count):
        values: dict[str, Any] = {
            "topic": b"T",
            "queue_id": 0,
            "queue_offset": i,
            "position": i * 200,
            "body": b"body %d" % i,
            "properties": b"UNIQ_KEY\x01%032X\x02TAGS\x01%b\x02" % (i, b"ABC"[i % 3 : i % 3 + 1]),
        }
        made.append(record.encode(**values | fields))
    return made


class FakeBroker:
    """Queue 0 of topic T.

    `count_max`: messages per pull at most; `scan_max`: messages looked at per filtered pull; `oldest`: offsets before
    it are gone; `shuffle`: replies to pulls that came together are sent last first; `drop_after`: the connection is
    cut after that many pulls, once; `refuse`: a code that every pull is answered with, or the first `refuse_for`;
    `refuse_sql`: those with an expression; `gather`: nothing is answered until so many pulls are there, once;
    `removed`: offsets whose records went while the queue still names them, as a broker has it that removes a file: they
    are passed over; `removed_after`: only from that pull on; `compacted`: the topic is one that is compacted;
    `lags_from`: it is a slave that has nothing from there on; `route`: as a NameServer, the addresses it tells, by id.
    """

    def __init__(self, records: list[bytes], **ways: Any) -> None:
        self.records = records
        self.count_max: int = ways.pop("count_max", 1 << 30)
        self.scan_max: int = ways.pop("scan_max", 1 << 30)
        self.oldest: int = ways.pop("oldest", 0)
        self.shuffle: bool = ways.pop("shuffle", False)
        self.drop_after: int | None = ways.pop("drop_after", None)
        self.refuse: int | None = ways.pop("refuse", None)
        self.refuse_sql: int | None = ways.pop("refuse_sql", None)
        self.refuse_for: int = ways.pop("refuse_for", 1 << 30)
        self.gather: int = ways.pop("gather", 0)
        self.hidden_for: int = ways.pop("hidden_for", 0)
        self.removed: set[int] = set(ways.pop("removed", ()))
        self.removed_after: int = ways.pop("removed_after", 0)
        self.compacted: bool = ways.pop("compacted", False)
        self.lags_from: int | None = ways.pop("lags_from", None)
        self.route: dict[int, str] = ways.pop("route", {})
        assert not ways, ways
        self.pulls: list[PullHeader] = []
        self.connections = 0
        self.address = ""
        self._held: list[tuple[Peer, bytes]] = []
        self._seen: set[Peer] = set()

    def pull(self, peer: Peer, request: Request[PullHeader], body: bytes) -> bytes | None:
        header = request.ext
        self.pulls.append(header)
        if peer not in self._seen:
            self._seen.add(peer)
            self.connections += 1
        if self.drop_after is not None and len(self.pulls) > self.drop_after:
            self.drop_after = None
            peer.abort()
            return None
        answer = self._answer(request.opaque, header)
        if self.gather:
            self._held.append((peer, answer))
            if len(self._held) == self.gather:
                self.gather = 0
                self._release()
            return None
        if not self.shuffle:
            return answer
        self._held.append((peer, answer))
        if len(self._held) == 1:
            asyncio.get_running_loop().call_later(0.002, self._release)
        return None

    def _release(self) -> None:
        held, self._held = self._held, []
        for peer, answer in reversed(held):
            peer.send(answer)

    def topic_config(self, peer: Peer, request: Request[TopicHeader], body: bytes) -> bytes:
        config = bodies.TopicConfig(topic_name=request.ext.topic)
        if self.compacted:
            config.attributes["cleanup.policy"] = "COMPACTION"
        return reply(request.opaque, ResponseCode.SUCCESS, body=bodies.encode(config))

    def route_of(self, peer: Peer, request: Request[RouteHeader], body: bytes) -> bytes:
        broker = bodies.BrokerDataBody(cluster="C", broker_name="broker-a", broker_addrs=self.route)
        queue = bodies.QueueDataBody(broker_name="broker-a", read_queue_nums=1, write_queue_nums=1, perm=6)
        return reply(request.opaque, 0, None, bodies.encode_route([broker], [queue]))

    def _answer(self, opaque: int, header: PullHeader) -> bytes:
        end = len(self.records)
        if self.hidden_for > 0:
            self.hidden_for -= 1
            end = header.queue_offset
        at = header.queue_offset

        def told(code: int, after: int, body: bytes = b"") -> bytes:
            bounds = PullReply(next_offset=after, min_offset=self.oldest, max_offset=end)
            return reply(opaque, code, bounds, body, remark="status")

        if self.refuse is not None and self.refuse_for > 0:
            self.refuse_for -= 1
            return told(self.refuse, 0)
        if self.refuse_sql is not None and header.expression_type == "SQL92":
            return reply(
                opaque, self.refuse_sql, remark="The broker does not support consumer to filter message by SQL92"
            )
        if self.lags_from is not None:
            if at >= self.lags_from:
                # Java's slave: to the master with it, to ask the same again.
                return told(ResponseCode.PULL_RETRY_IMMEDIATELY, at)
            end = self.lags_from
        if at < self.oldest:
            return told(ResponseCode.PULL_OFFSET_MOVED, self.oldest)
        if at > end:
            return told(ResponseCode.PULL_OFFSET_MOVED, end)
        if at == end:
            return told(ResponseCode.PULL_NOT_FOUND, at)
        count = min(header.count_max, self.count_max)
        tags = {tag.strip() for tag in (header.subscription or "*").split("||")}
        found: list[bytes] = []
        scanned = 0
        while at < end and len(found) < count and scanned < self.scan_max:
            stored = self.records[at]
            if at in self.removed and len(self.pulls) > self.removed_after:
                at += 1
                continue
            if "*" in tags or self._tag(stored) in tags:
                found.append(stored)
            at += 1
            scanned += 1
        if not found:
            return told(ResponseCode.PULL_RETRY_IMMEDIATELY, at)
        return told(ResponseCode.SUCCESS, at, b"".join(found))

    @staticmethod
    def _tag(stored: bytes) -> str | None:
        found = properties.find(record.decode(stored).properties, b"TAGS")
        return found.decode() if found else None


@contextmanager
def running(broker: FakeBroker) -> Iterator[FakeBroker]:
    """Serve in a thread while the block lasts."""
    started = threading.Event()
    stop: list[Callable[[], object]] = []

    async def serve() -> None:
        routes = Routes()
        routes.add(RequestCode.PULL_MESSAGE, broker.pull)
        routes.add(RequestCode.GET_TOPIC_CONFIG, broker.topic_config)
        routes.add(RequestCode.GET_ROUTEINFO_BY_TOPIC, broker.route_of)
        server = Server(routes)
        await server.start("127.0.0.1", 0)
        broker.address = server.address
        done = asyncio.Event()
        loop = asyncio.get_running_loop()
        stop.append(lambda: loop.call_soon_threadsafe(done.set))
        started.set()
        await done.wait()
        await server.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert started.wait(120)
    try:
        yield broker
    finally:
        stop[0]()
        thread.join(10)
