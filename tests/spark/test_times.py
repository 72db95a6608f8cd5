"""Reading by store time: exact at every edge, on our brokers, on queues of batches and on Apache's."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from tests.java.apache import ApacheCluster, await_queues
from tests.spark.conftest import read_rows
from tests.support.patience import LIMIT_MS

from rocketspark.client import AsyncProducer, Producer
from rocketspark.client.connection import admin_api, client_api
from rocketspark.client.producer.prepared_message import PreparedMessage
from rocketspark.errors import ConfigError
from rocketspark.model import Message, MessageQueue
from rocketspark.protocol.json.bodies import TopicConfig
from rocketspark.protocol.message import sysflags
from rocketspark.protocol.message.message_ids import unique_ids
from rocketspark.tables.cluster_queries import ClusterQueries as Asked
from rocketspark.testing import Cluster
from rocketspark.transport.connections import dial

pytestmark = pytest.mark.shows(
    "offsets: earliest, latest, committed of a group, JSON by queue; times, exact at every edge",
)

Place = tuple[str, int, int]


class Loaded(NamedTuple):
    """A topic, and the store time in ms of what stands at (broker, queue, offset)."""

    namesrv: str
    topic: str
    times: dict[Place, int]


@pytest.fixture(scope="module", params=["ours", "ours, queues of batches", "Apache's"])
def loaded(request: pytest.FixtureRequest) -> Loaded:
    """Messages of equal and of different times, in one of two queues of one broker."""
    ours = request.param != "Apache's"
    cluster: Cluster | ApacheCluster = request.getfixturevalue("cluster" if ours else "apache")
    namesrv, broker = cluster.namesrv, cluster.brokers[0] if isinstance(cluster, Cluster) else cluster.broker
    topic = f"t-{uuid.uuid4().hex[:12]}"
    asyncio.run(create(namesrv, broker, topic, "+queue.type=BatchCQ" if "batches" in request.param else ""))
    queue = MessageQueue(topic, "broker-a", 0)
    with Producer(namesrv, "times") as producer:
        found: set[int] = set()
        for _ in range(2000):
            producer.send_batch([Message(topic=topic, body=b"together") for _ in range(3)], queue=queue)
            result = producer.send(topic, b"alone", queue=queue)
            if result.queue_offset % 20 == 19:
                found = {row["storeTime"] for row in read_rows(namesrv=namesrv, topic=topic)}
                if len(found) > 8:
                    break
        assert len(found) > 8
    # The official broker answers a send before its queue shows the message.
    await_queues(broker, topic, result.queue_offset + 1)
    rows = read_rows(namesrv=namesrv, topic=topic)
    return Loaded(namesrv, topic, {place(row): to_ms(row["storeTime"]) for row in rows})


async def create(namesrv: str, broker: str, topic: str, attributes: str) -> None:
    peer = await dial(broker)
    await admin_api.create_topic(
        peer,
        TopicConfig(topic_name=topic, read_queue_nums=2, write_queue_nums=2),
        attributes=attributes,
        timeout_ms=LIMIT_MS,
    )
    peer.close()
    server = await dial(namesrv)
    while True:
        try:
            await client_api.fetch_route(server, topic)
            break
        except client_api.RouteNotFound:
            await asyncio.sleep(0.01)
    server.close()


def place(row: dict[str, Any]) -> Place:
    return row["broker"], row["queueId"], row["queueOffset"]


def to_ms(moment: Any) -> int:
    return round(moment.timestamp() * 1000)


def test_offsets_at_every_time(loaded: Loaded) -> None:
    queues = [MessageQueue(loaded.topic, "broker-a", i) for i in (0, 1)]
    times = sorted(loaded.times.values())
    assert [loaded.times["broker-a", 0, i] for i in range(len(times))] == times
    cluster = Asked(loaded.namesrv)
    try:
        cluster.queues([loaded.topic])
        asked = [0, 1, *sorted({t + d for t in times for d in (-1, 0, 1)}), 2**62, 2**63, 2**80]
        for time_ms in asked:
            wanted = sum(t < time_ms for t in times)
            assert cluster.offsets_at(queues, time_ms) == {queues[0]: wanted, queues[1]: 0}, time_ms
    finally:
        cluster.close()


def test_rows_from_a_time_up_to_but_not_with_another(loaded: Loaded) -> None:
    times = sorted(set(loaded.times.values()))
    for start, end in [(times[2], times[5]), (times[0], times[0] + 1), (times[3], times[3]), (0, times[-1] + 1)]:
        rows = read_rows(
            namesrv=loaded.namesrv, topic=loaded.topic, startingTimestamp=str(start), endingTimestamp=str(end)
        )
        assert sorted(map(place, rows)) == sorted(p for p, at in loaded.times.items() if start <= at < end)


def test_one_end_by_time(loaded: Loaded) -> None:
    at = sorted(set(loaded.times.values()))[4]
    target = {"namesrv": loaded.namesrv, "topic": loaded.topic}
    after = read_rows(**target, startingTimestamp=str(at))
    before = read_rows(**target, endingTimestamp=str(at))
    assert {to_ms(row["storeTime"]) >= at for row in after} == {True}
    assert {to_ms(row["storeTime"]) < at for row in before} == {True}
    assert sorted(map(place, before + after)) == sorted(loaded.times)
    # The time of the one end may lie behind the other: then there is nothing.
    offsets = f'{{"{loaded.topic}": {{"broker-a": {{"0": {len(before) + 1}}}}}}}'
    assert read_rows(**target, startingOffsets=offsets, endingTimestamp=str(at)) == []


def test_nothing_of_that_time_is_nothing_or_an_error_if_asked(loaded: Loaded) -> None:
    target = {"namesrv": loaded.namesrv, "topic": loaded.topic, "startingTimestamp": str(2**62)}
    assert read_rows(**target) == []
    with pytest.raises(ConfigError, match="holds no message of that time or later"):
        read_rows(**target, startingOffsetsByTimestampStrategy="error")


def test_a_time_for_each_queue(loaded: Loaded) -> None:
    times = sorted(set(loaded.times.values()))
    target = {"namesrv": loaded.namesrv, "topic": loaded.topic}

    def at(time_ms: int, queue: int = 0) -> str:
        return json.dumps({loaded.topic: {"broker-a": {str(queue): time_ms}}})

    rows = read_rows(**target, startingOffsetsByTimestamp=at(times[2]), endingOffsetsByTimestamp=at(times[5]))
    assert sorted(map(place, rows)) == sorted(p for p, t in loaded.times.items() if times[2] <= t < times[5])
    # Queues that are not named are read whole.
    other = {"startingOffsetsByTimestamp": at(2**62, 1), "endingOffsetsByTimestamp": at(0, 1)}
    assert sorted(map(place, read_rows(**target, **other))) == sorted(loaded.times)
    with pytest.raises(ConfigError, match="option startingOffsetsByTimestamp names queue 7"):
        read_rows(**target, startingOffsetsByTimestamp=at(0, 7))
    with pytest.raises(ConfigError, match=r"option startingOffsetsByTimestamp: queue 0 .* holds no message of that"):
        read_rows(**target, startingOffsetsByTimestamp=at(2**62), startingOffsetsByTimestampStrategy="error")


def test_a_time_as_one_writes_it(cluster: Cluster, make_topic: Callable[..., str], load: Callable[..., Any]) -> None:
    topic = make_topic()
    load(topic, 10)
    target = {"namesrv": cluster.namesrv, "topic": topic}
    assert len(read_rows(**target, startingTimestamp="2001-01-01T00:00:00Z")) == 10
    assert len(read_rows(**target, endingTimestamp="2001-01-01T00:00:00Z")) == 0


@pytest.mark.shows("reads by time beside a body that does not inflate, plain queues and queues of batches")
@pytest.mark.parametrize("attributes", ["", "+queue.type=BatchCQ"], ids=["plain", "queues of batches"])
def test_a_body_that_does_not_inflate_has_a_time(
    cluster: Cluster, make_topic: Callable[..., str], attributes: str
) -> None:
    """Any producer can send one: no read by time, nor the age of a lag, is stopped by what no column wants."""
    topic = make_topic(queues=1, brokers=1, attributes=attributes)
    queue = MessageQueue(topic, "broker-a", 0)
    with Producer(cluster.namesrv, "times") as producer:
        producer.send(topic, b"good")

    async def send_bad() -> None:
        async with AsyncProducer(cluster.namesrv, "bad") as producer:
            message_id = unique_ids.next()
            bad = PreparedMessage(
                topic, b"no zlib", f"UNIQ_KEY\x01{message_id}\x02", sysflags.COMPRESSED, 0, message_id
            )
            await producer.send_packed(bad, None, queue, None)

    asyncio.run(send_bad())
    given = {"namesrv": cluster.namesrv, "topic": topic}
    good, bad = [to_ms(row["storeTime"]) for row in read_rows("storeTime", **given)]
    for ending in (bad + 3_600_000, bad):
        found = read_rows("queueOffset", endingTimestamp=str(ending), **given)
        assert len(found) == sum(at < ending for at in (good, bad))
    assert len(read_rows("queueOffset", startingTimestamp=str(bad), **given)) == sum(at >= bad for at in (good, bad))
    asked = Asked(cluster.namesrv)
    try:
        assert asked.stored_ms({queue: 1}) == {queue: bad}
    finally:
        asked.close()
