"""What the driver asks of a cluster, over connections that end while it is busy elsewhere."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rocketspark.errors import NotSent, RouteNotFound
from rocketspark.model import MessageQueue
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import OffsetReply, RouteHeader
from rocketspark.protocol.json import bodies
from rocketspark.tables.cluster_queries import ClusterQueries
from rocketspark.tables.offset_ranges import OffsetRange
from rocketspark.tables.options import parse_read
from rocketspark.tables.queue_bounds import OffsetBounds
from rocketspark.tables.read.data_loss import DataLost
from rocketspark.tables.read.partition_planning import ranges
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.request_frames import reply
from rocketspark.transport.server import Server


class Both:
    """A NameServer and broker in one server, which knows topic T of one queue with offsets [3, 10)."""

    def __init__(self) -> None:
        self.asked: set[Peer] = set()
        self.broker_id = 0
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._started.wait(120)

    async def _serve(self) -> None:
        routes = Routes()
        routes.add(RequestCode.GET_ROUTEINFO_BY_TOPIC, self._route)
        routes.add(
            RequestCode.GET_MIN_OFFSET, lambda peer, request, body: reply(request.opaque, 0, OffsetReply(offset=3))
        )
        routes.add(
            RequestCode.GET_MAX_OFFSET, lambda peer, request, body: reply(request.opaque, 0, OffsetReply(offset=10))
        )
        self._server = Server(routes)
        await self._server.start("127.0.0.1", 0)
        self.address = self._server.address
        self._loop, self._done = asyncio.get_running_loop(), asyncio.Event()
        self._started.set()
        await self._done.wait()
        await self._server.close()

    def _route(self, peer: Peer, request: Any, body: bytes) -> bytes:
        self.asked.add(peer)
        header: RouteHeader = request.ext
        if header.topic != "T":
            return reply(request.opaque, ResponseCode.TOPIC_NOT_EXIST)
        brokers = [
            bodies.BrokerDataBody(cluster="c", broker_name="broker-a", broker_addrs={self.broker_id: self.address})
        ]
        queues = [bodies.QueueDataBody(broker_name="broker-a", read_queue_nums=1, write_queue_nums=1, perm=6)]
        return reply(request.opaque, 0, None, bodies.encode_route(brokers, queues))

    def hang_up(self) -> None:
        """Close every connection, and wait until they are."""
        self._loop.call_soon_threadsafe(lambda: [peer.close() for peer in list(self._server.peers)])
        deadline = time.monotonic() + 120
        while self._server.peers:
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join(10)


@pytest.fixture
def both() -> Iterator[Both]:
    made = Both()
    yield made
    made.close()


@pytest.fixture
def cluster(both: Both) -> Iterator[ClusterQueries]:
    made = ClusterQueries(both.address)
    yield made
    made.close()


def test_connections_that_were_closed_meanwhile_are_made_again(both: Both, cluster: ClusterQueries) -> None:
    queue = MessageQueue("T", "broker-a", 0)
    for _ in range(3):
        assert cluster.queues(["T"]) == [queue]
        assert cluster.bounds([queue]) == {queue: OffsetBounds(3, 10)}
        assert cluster.addresses("broker-a") == (both.address,)
        both.hang_up()
    assert len(both.asked) == 3


def test_unknown_topic_is_named(cluster: ClusterQueries) -> None:
    with pytest.raises(RouteNotFound, match="no topic 'absent'"):
        cluster.queues(["T", "absent"])


def test_no_nameserver() -> None:
    cluster = ClusterQueries("127.0.0.1:1")
    try:
        with pytest.raises(NotSent, match=r"cannot connect to 127.0.0.1:1"):
            cluster.queues(["T"])
    finally:
        cluster.close()


def test_one_nameserver_of_several_is_enough(both: Both) -> None:
    cluster = ClusterQueries(f"127.0.0.1:1;{both.address};127.0.0.1:2")
    try:
        assert cluster.queues(["T"]) == [MessageQueue("T", "broker-a", 0)]
    finally:
        cluster.close()


def test_a_slave_is_read_while_its_master_is_away_and_known_to_be_one(both: Both, cluster: ClusterQueries) -> None:
    both.broker_id = 1
    [queue] = cluster.queues(["T"])
    assert cluster.bounds([queue]) == {queue: OffsetBounds(3, 10, of_master=False)}
    assert cluster.addresses("broker-a") == (both.address,)


@pytest.mark.shows(
    "Spark across a failover of our pair: a stream and batch reads give every row once; only a master's word "
    "counts as loss; what an unclean election cut is told, or fails the query"
)
@pytest.mark.parametrize(
    ("first", "end", "gone", "left"),
    [(8, 5, "5 to 7", (5, 5)), (8, 4, "4 to 7", (4, 4)), (3, 9, "5 to 8", (3, 5)), (7, 9, "7 to 8", (7, 5))],
    ids=["at its end", "written on", "part", "all"],
)
def test_a_queue_that_an_election_cut_goes_on_at_its_end(
    first: int, end: int, gone: str, left: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    """Made anew it would be read from its beginning; what is left of this one was read."""
    queue = MessageQueue("T", "broker-a", 0)
    given = {"namesrv": "127.0.0.1:1", "topic": "T"}
    held = {queue: OffsetBounds(2, 5, replicated=True)}
    said = (
        f"messages {gone} of queue 0 of topic 'T' on broker 'broker-a' are gone (the queue holds 2 to 4 now: a master"
    )
    with pytest.raises(DataLost) as failed:
        ranges(held, {queue: first}, {queue: end}, parse_read(given, streaming=True))
    assert str(failed.value).startswith(said)
    options = parse_read(given | {"failOnDataLoss": "false"}, streaming=True)
    assert ranges(held, {queue: first}, {queue: end}, options) == [OffsetRange(queue, *left)]
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith(said)


def test_a_slave_that_is_behind_is_no_queue_made_anew() -> None:
    queue = MessageQueue("T", "broker-a", 0)
    options = parse_read({"namesrv": "127.0.0.1:1", "topic": "T"}, streaming=True)
    behind = {queue: OffsetBounds(3, 10, of_master=False)}
    assert ranges(behind, {queue: 8}, {queue: 15}, options) == [OffsetRange(queue, 8, 15)]
    with pytest.raises(DataLost, match="it was made anew"):
        ranges({queue: OffsetBounds(3, 10)}, {queue: 8}, {queue: 15}, options)
    with pytest.raises(DataLost, match=r"messages from 8 on of queue 0 .* \(the queue holds 3 to 4 now"):
        ranges({queue: OffsetBounds(3, 5)}, {queue: 8}, {queue: 5}, options)
    with pytest.raises(DataLost, match=r"messages 0 to 14 .* \(the queue holds nothing now"):
        ranges({queue: OffsetBounds(0, 0)}, {queue: 0}, {queue: 15}, options)
    assert ranges({queue: OffsetBounds(9, 10, of_master=False)}, {queue: 8}, {queue: 15}, options) == [
        OffsetRange(queue, 8, 15)
    ]
    # What a broker holds that does not answer is planned as it is.
    assert ranges({}, {queue: 8}, {queue: 15}, options) == [OffsetRange(queue, 8, 15)]
