"""Fixtures of the Spark tests: one session and one cluster of two brokers for all of them."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from tests.java.apache import ApacheCluster
from tests.java.driver import missing_tools
from tests.support.patience import LIMIT_MS, LIMIT_S, PATIENT

from rocketspark.client import Producer
from rocketspark.client.connection import admin_api, client_api
from rocketspark.errors import RouteNotFound
from rocketspark.model import Message, MessageQueue
from rocketspark.protocol.json.bodies import TopicConfig
from rocketspark.spark.read.batch_read import BatchReader
from rocketspark.spark.schemas import READ_SCHEMA
from rocketspark.spark.spark_features import FILTERS
from rocketspark.tables.options import parse_read
from rocketspark.testing import Cluster, run_cluster
from rocketspark.transport.connections import dial

ROOT = Path(__file__).resolve().parents[2]
# Whether Spark hands its filters to Python sources.
PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"
# Left out rather than skipped: this Spark has nothing that it could show.
collect_ignore = [] if FILTERS else ["test_pushdown.py"]


def java_home() -> str | None:
    """JAVA_HOME, or what set-up found, or "" if java is on the path."""
    chosen = ROOT / ".setup" / "java_home"
    if os.environ.get("JAVA_HOME"):
        return os.environ["JAVA_HOME"]
    if chosen.exists():
        return chosen.read_text().strip()
    return "" if shutil.which("java") else None


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with two cores."""
    home = java_home()
    if home is None:
        text = "Spark needs Java 17 or later: run `make setup`, or set JAVA_HOME"
        if os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail(text)
        pytest.skip(text)
    if home:
        os.environ["JAVA_HOME"] = home
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .appName("rocketspark-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.compress", "false")
        .config("spark.eventLog.dir", f"file:{tmp_path_factory.mktemp('events')}")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.stopTimeout", "30s")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A NameServer and two brokers, broker-a and broker-b."""
    with run_cluster(brokers=2) as running:
        yield running


@pytest.fixture(scope="session")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheCluster]:
    """The official NameServer and broker, broker-a, with their defaults but for the patience that tests need."""
    if missing := missing_tools():
        if os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail(missing)
        pytest.skip(missing)
    running = ApacheCluster(tmp_path_factory.mktemp("apache"), config=PATIENT)
    yield running
    running.close()


@pytest.fixture(scope="session")
def producer(cluster: Cluster) -> Iterator[Producer]:
    """A client that loads what Spark reads."""
    # One attempt that waits: what a busy machine answers late would be there twice.
    with Producer(cluster.namesrv, "spark_tests", send_timeout_ms=LIMIT_MS) as client:
        yield client


@pytest.fixture
def topic(cluster: Cluster, make_topic: Callable[..., str]) -> str:
    """A new topic with two queues on each broker."""
    return make_topic()


@pytest.fixture(scope="session")
def make_topic(cluster: Cluster) -> Callable[..., str]:
    """make_topic(queues=2, brokers=2, name=None, attributes=""): a topic on the first brokers, which is routed."""

    def make(queues: int = 2, brokers: int = 2, name: str | None = None, attributes: str = "") -> str:
        topic = name or f"t-{uuid.uuid4().hex[:12]}"

        async def create() -> None:
            for address in cluster.brokers[:brokers]:
                peer = await dial(address)
                await admin_api.create_topic(
                    peer,
                    TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues),
                    attributes=attributes,
                    timeout_ms=LIMIT_MS,
                )
                peer.close()
            namesrv = await dial(cluster.namesrv)
            while len((await client_api.fetch_route(namesrv, topic)).read_queues()) < queues * brokers:
                await asyncio.sleep(0.005)
            namesrv.close()

        asyncio.run(create())
        return topic

    return make


Place = tuple[str, int, int]


def read_rows(columns: str = "", **options: str) -> list[dict[str, Any]]:
    """What spark.read gives, in partitions' order, without a session: the reader itself. All columns by default."""
    wanted = StructType([READ_SCHEMA[name] for name in columns.split()]) if columns else READ_SCHEMA
    reader = BatchReader(wanted, parse_read(options, streaming=False))
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


@pytest.fixture(scope="session")
def load(producer: Producer) -> Callable[..., dict[Place, Message]]:
    """load(topic, count, first=0): that many messages over all queues; what stands at (broker, queue, offset)."""

    def send(topic: str, count: int, first: int = 0, queue: MessageQueue | None = None) -> dict[Place, Message]:
        placed = {}
        for start in range(first, first + count, 200):
            messages = [make_message(topic, i) for i in range(start, min(start + 200, first + count))]
            result = producer.send_batch(messages, queue=queue)
            for i, message in enumerate(messages):
                place = (result.queue.broker_name, result.queue.queue_id, result.queue_offset + i)
                placed[place] = message
        return placed

    return send


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[None]:
    """Spark hands its filters to Python sources meanwhile."""
    spark.conf.set(PUSH_DOWN, "true")
    try:
        yield
    finally:
        spark.conf.unset(PUSH_DOWN)


def await_stored(namesrv: str, topic: str, count: int, **options: Any) -> None:
    """Wait until the topic's queues show so many messages.

    The official broker answers a send before its queue shows the message, and before the NameServer knows a topic that
    the send made. `options`: of the client that looks.
    """
    end = time.monotonic() + LIMIT_S
    with Producer(namesrv, "waiting", **options) as producer:
        while True:
            try:
                found = sum(map(producer.max_offset, producer.queues(topic)))
            except RouteNotFound:
                found = -1
            if found >= count:
                return
            assert time.monotonic() < end, f"{topic} shows {found} of {count} messages"
            time.sleep(0.02)


def make_message(topic: str, number: int) -> Message:
    """The number-th message: tags A, B, C in turn, every fifth without; body of varying length."""
    return Message(
        topic=topic,
        body=b"%d:" % number + b"x" * (number % 50),
        tag=None if number % 5 == 4 else "ABC"[number % 3],
        keys=[f"k{number}", "all"] if number % 2 else [],
        properties={"number": str(number), "uni": "中文-é-🚀"},
        flag=number % 7,
    )
