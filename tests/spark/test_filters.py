"""Options tags, sql and key: the same rows from every broker, whether it filters, cannot, or must not be asked to."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession
from tests.java.apache import ApacheCluster, ask
from tests.spark.available_now import run_to_end
from tests.spark.conftest import read_rows
from tests.spark.fake_broker import FakeBroker, make_records, running
from tests.support.patience import LIMIT_MS

from rocketspark.client import Producer
from rocketspark.client.connection import admin_api, client_api
from rocketspark.errors import RouteNotFound, ServerError
from rocketspark.filters import sql92
from rocketspark.model import Message, MessageQueue, subscribe
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.json.bodies import TopicConfig
from rocketspark.spark.read.stream_read import StreamReader
from rocketspark.spark.schemas import READ_SCHEMA
from rocketspark.spark.spark_features import ReadMaxRows
from rocketspark.tables.offset_ranges import OffsetRange
from rocketspark.tables.options import parse_read
from rocketspark.tables.read import pull_records
from rocketspark.tables.read.pipelined_connection import PipelinedConnection, PipelinedReply
from rocketspark.tables.read.pull_records import fetch
from rocketspark.testing import Cluster, run_cluster
from rocketspark.transport.connections import dial

pytestmark = pytest.mark.shows("`tags`, `sql`, `key`, times: the same rows whatever a broker filters")

COUNT = 240
# "Aa" and "BB" have the same Java hash code.
TAGS = [None, "Aa", "BB", "C", "O'Neil", "a|b", "中文", "Aa"]


def make(topic: str, number: int) -> Message:
    own = {0: {}, 1: {"n": "many"}}.get(number % 7, {"n": str(number), "half": str(number / 2)})
    keys = [f"k{number}", f"g{number % 10}"] if number % 3 else []
    return Message(topic=topic, body=b"%d" % number + b"x" * 200, tag=TAGS[number % 8], keys=keys, properties=own)


class Loaded(NamedTuple):
    """A topic on one broker, and whether the broker filters by itself."""

    namesrv: str
    topic: str
    by_tag: bool
    by_sql: bool


def create(namesrv: str, broker: str, topic: str, attributes: str) -> None:
    async def run() -> None:
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
            except RouteNotFound:
                await asyncio.sleep(0.01)
        server.close()

    asyncio.run(run())


def filled(namesrv: str, broker: str, by_tag: bool, by_sql: bool, attributes: str = "") -> Loaded:
    topic = f"t-{uuid.uuid4().hex[:12]}"
    create(namesrv, broker, topic, attributes)
    with Producer(namesrv, "filters") as producer:
        for queue_id in (0, 1):
            messages = [make(topic, i) for i in range(queue_id, COUNT, 2)]
            queue = MessageQueue(topic, "broker-a", queue_id)
            for start in range(0, len(messages), 40):
                producer.send_batch(messages[start : start + 40], queue=queue)
    while len(read_rows("queueId", namesrv=namesrv, topic=topic)) < COUNT:
        time.sleep(0.01)  # Apache's tells of messages a little after it has stored them.
    return Loaded(namesrv, topic, by_tag, by_sql)


@pytest.fixture(scope="module")
def filtering_cluster() -> Iterator[Cluster]:
    with run_cluster(property_filter=True) as running:
        yield running


@pytest.fixture(params=["ours", "ours, by sql", "ours, queues of batches", "Apache's", "Apache's, by sql"])
def loaded(request: pytest.FixtureRequest, made: dict[str, Loaded]) -> Iterator[Loaded]:
    """The topic on a broker of each kind; each is loaded once."""
    kind = request.param
    by_sql = "by sql" in kind
    if kind.startswith("ours"):
        cluster: Cluster = request.getfixturevalue("filtering_cluster" if by_sql or "batches" in kind else "cluster")
        if kind not in made:
            attributes = "+queue.type=BatchCQ" if "batches" in kind else ""
            made[kind] = filled(cluster.namesrv, cluster.brokers[0], not attributes, by_sql, attributes)
        yield made[kind]
        return
    apache: ApacheCluster = request.getfixturevalue("apache")
    if "apache" not in made:
        made["apache"] = filled(apache.namesrv, apache.broker, True, False)
    set_property_filter(apache, by_sql)
    try:
        yield made["apache"]._replace(by_sql=by_sql)
    finally:
        set_property_filter(apache, False)


@pytest.fixture(scope="module")
def made() -> dict[str, Loaded]:
    return {}


def set_property_filter(apache: ApacheCluster, on: bool) -> None:
    setting = b"enablePropertyFilter=" + str(on).lower().encode()
    assert ask(apache.broker, RequestCode.UPDATE_BROKER_CONFIG, setting).code == 0


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of records received, reply by reply."""
    sizes: list[int] = []
    receive = PipelinedConnection.receive

    def counted(link: PipelinedConnection) -> list[PipelinedReply]:
        replies = receive(link)
        sizes.extend(reply.end - reply.start for reply in replies)
        return replies

    monkeypatch.setattr(PipelinedConnection, "receive", counted)
    return sizes


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(int(row["body"].rstrip(b"x")) for row in rows)


def accepted(test: Callable[[Message], bool]) -> list[int]:
    return [i for i in range(COUNT) if test(make("T", i))]


@pytest.mark.parametrize("tags", ["Aa", "BB || C", "Aa||O'Neil||a|b||中文", "none such", "*"])
def test_tags(loaded: Loaded, received: list[int], tags: str) -> None:
    wanted = subscribe("", tags).tags
    rows = read_rows("body tag", namesrv=loaded.namesrv, topic=loaded.topic, tags=tags)
    assert numbers(rows) == accepted(lambda m: not wanted or m.tag in wanted)
    assert all(not wanted or row["tag"] in wanted for row in rows)
    taken = sum(received)
    received.clear()
    read_rows("queueOffset", namesrv=loaded.namesrv, topic=loaded.topic)
    assert (taken < 0.8 * sum(received)) == (loaded.by_tag and tags != "*")


@pytest.mark.parametrize(
    "sql",
    [
        "n > 100",
        "n BETWEEN 10 AND 20 OR TAGS = 'C'",
        "n IS NULL",
        "NOT (n = 30) AND half < 40.5",
        "TAGS IN ('Aa', 'O''Neil') AND KEYS CONTAINS 'g1'",
        "KEYS IS NULL AND TAGS IS NOT NULL",
        "TAGS = '中文'",
    ],
)
def test_sql(loaded: Loaded, received: list[int], sql: str) -> None:
    accepts = sql92.compile(sql).accepts

    def passes(message: Message) -> bool:
        stored = dict(message.properties)
        stored |= {"TAGS": message.tag} if message.tag else {}
        stored |= {"KEYS": " ".join(message.keys)} if message.keys else {}
        return accepts(stored)

    rows = read_rows("body", namesrv=loaded.namesrv, topic=loaded.topic, sql=sql)
    assert numbers(rows) == accepted(passes) != []
    taken = sum(received)
    received.clear()
    read_rows("queueOffset", namesrv=loaded.namesrv, topic=loaded.topic)
    assert (taken < 0.8 * sum(received)) == loaded.by_sql
    both = read_rows("body", namesrv=loaded.namesrv, topic=loaded.topic, sql=sql, tags="Aa || C", key="g1")
    assert numbers(both) == accepted(lambda m: passes(m) and m.tag in ("Aa", "C") and "g1" in m.keys)


def test_key(loaded: Loaded) -> None:
    def read(key: str) -> list[int]:
        return numbers(read_rows("body", namesrv=loaded.namesrv, topic=loaded.topic, key=key))

    assert read("g4") == accepted(lambda m: "g4" in m.keys)
    assert read("k1") == [1]
    assert read("k") == []


def test_a_stream_counts_what_its_filters_leave_out(loaded: Loaded) -> None:
    options = {"namesrv": loaded.namesrv, "topic": loaded.topic, "startingOffsets": "earliest"}
    options |= {"tags": "Aa || C", "sql": "n > 20", "maxMessagesPerTrigger": "50"}
    reader = StreamReader(READ_SCHEMA, parse_read(options, streaming=True))
    limit = reader.getDefaultReadLimit()
    assert isinstance(limit, ReadMaxRows)
    at = reader.initialOffset()
    batches: list[list[int]] = []
    try:
        while (end := reader.latestOffset(at, limit)) != at:
            rows = [
                row for part in reader.partitions(at, end) for batch in reader.read(part) for row in batch.to_pylist()
            ]
            batches.append(numbers(rows))
            at = end
    finally:
        reader.stop()
    assert len(batches) == 5  # 240 messages, 50 at a time.
    found = sorted(number for batch in batches for number in batch)
    assert found == accepted(lambda m: m.tag in ("Aa", "C") and sql_n(m) > 20)


@pytest.mark.parametrize("loaded", ["ours, queues of batches", "Apache's, by sql"], indirect=True)
def test_a_streaming_query_gives_what_passes(spark: SparkSession, loaded: Loaded, tmp_path: Path) -> None:
    read = spark.readStream.format("rocketmq").schema("body binary, queueOffset long, storeTime timestamp")
    read = read.option("namesrv", loaded.namesrv).option("topic", loaded.topic).option("startingTimestamp", "0")
    rows = read.options(tags="Aa || BB", sql="n > 30", maxMessagesPerTrigger=100).load()
    query = rows.writeStream.format("parquet").option("checkpointLocation", f"{tmp_path}/c").trigger(availableNow=True)
    batches = run_to_end(lambda: query.start(f"{tmp_path}/rows"))
    found = [row.asDict() for row in spark.read.parquet(f"{tmp_path}/rows").collect()]
    assert numbers(found) == accepted(lambda m: m.tag in ("Aa", "BB") and sql_n(m) > 30)
    assert [rows < 100 for rows in batches] == [True] * 3


def sql_n(message: Message) -> int:
    """The property n, below every number where it is none."""
    text = message.properties.get("n", "")
    return int(text) if text.isdigit() else -1


def read_fake(broker: FakeBroker, **options: str) -> list[int]:
    """Queue offsets of a fake queue's pieces that hold records, as they came."""
    parsed = parse_read({"namesrv": "127.0.0.1:1", "topic": "T", **options}, streaming=False)
    source = OffsetRange(MessageQueue("T", "broker-a", 0), 0, len(broker.records))
    return [piece.end - piece.first for piece in fetch(source, (broker.address,), parsed)]


def test_a_broker_that_refuses_the_expression_is_asked_once_and_then_for_everything() -> None:
    with running(FakeBroker(make_records(300), refuse_sql=ResponseCode.SYSTEM_ERROR)) as broker:
        assert sum(read_fake(broker, sql="a > 1")) == 300
        assert [p.expression_type for p in broker.pulls].count("SQL92") == 1
        assert {p.subscription for p in broker.pulls if p.expression_type == "TAG"} == {"*"}
    with running(FakeBroker(make_records(300), refuse_sql=ResponseCode.SUBSCRIPTION_PARSE_FAILED)) as broker:
        assert sum(read_fake(broker, sql="a CONTAINS 'x'")) == 300


def test_other_refusals_of_a_filtered_pull_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_records, "RETRIES", pull_records.RETRIES._replace(budget_s=0.5))
    with running(FakeBroker(make_records(300), refuse=ResponseCode.NO_PERMISSION)) as broker:
        with pytest.raises(ServerError):
            read_fake(broker, sql="a > 1")
        assert {p.expression_type for p in broker.pulls} == {"SQL92"}


def test_delayed_messages_are_not_asked_for_by_tag(cluster: Cluster, make_topic: Callable[..., str]) -> None:
    # Their units hold the time of delivery where others hold the hash code of the tag.
    topic = make_topic(queues=1, brokers=1)
    with Producer(cluster.namesrv, "filters") as producer:
        for i in range(3):
            producer.send(topic, b"%d" % i, tag="Aa", delay_level=18)
    held = read_rows("body properties", namesrv=cluster.namesrv, topic="SCHEDULE_TOPIC_XXXX", tags="Aa")
    assert [row["body"] for row in held if ("REAL_TOPIC", topic) in row["properties"]] == [b"0", b"1", b"2"]


def test_a_wrong_expression_is_one_line_before_anything_runs(spark: SparkSession, cluster: Cluster, topic: str) -> None:
    read = spark.read.format("rocketmq").option("namesrv", cluster.namesrv).option("topic", topic)
    with pytest.raises(Exception, match="option sql: filter expression, column 8: ") as caught:
        read.option("sql", "price => 3").load().collect()
    assert "Traceback" not in str(caught.value)
