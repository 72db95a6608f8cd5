"""Metrics of streaming queries: what a scrape tells of queries that run, end and fail, and of brokers that go."""

from __future__ import annotations

import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.spark.scrapes import scrape, scrape_until
from tests.spark.stage import staged

from rocketspark.client import Producer
from rocketspark.errors import ConfigError
from rocketspark.model import Message, MessageQueue, typed_json
from rocketspark.model.stream_progress import PATH, StreamProgress, StreamsProgress
from rocketspark.spark.metrics import Listening, listen
from rocketspark.testing import Cluster, run_cluster

pytestmark = pytest.mark.shows(
    "metrics: rows, durations, ends, bytes and the lag of streaming queries for Prometheus",
)

Load = Callable[..., Any]


@pytest.fixture
def listening(spark: SparkSession, cluster: Cluster) -> Iterator[Listening]:
    """Metrics of the session, lag asked every second."""
    with listen(spark, namesrv=cluster.namesrv, lag_interval_s=1) as running:
        yield running


def source(spark: SparkSession, namesrv: str, topic: str, **options: str) -> Any:
    read = spark.readStream.format("rocketmq").options(namesrv=namesrv, topic=topic, startingOffsets="earliest")
    return read.options(**options).schema("body binary, queueId int").load()


def progress_of(listening: Listening, name: str) -> list[StreamProgress]:
    """What is published of the queries of a name."""
    with urllib.request.urlopen(listening.url.replace("/metrics", PATH), timeout=60) as answer:
        told = typed_json.decode(answer.read(), StreamsProgress)
    return [each for each in told.streams if each.name == name]


def start(frame: Any, name: str, checkpoint: Path) -> Any:
    writer = frame.writeStream.format("noop").queryName(name).option("checkpointLocation", str(checkpoint))
    return writer.trigger(processingTime="0 seconds").start()


@pytest.mark.every_spark
def test_rows_durations_lag_and_the_end_of_a_query(
    spark: SparkSession, cluster: Cluster, load: Load, topic: str, listening: Listening, tmp_path: Path
) -> None:
    load(topic, 400)
    name = f"q-{uuid.uuid4().hex[:8]}"
    observed = source(spark, cluster.namesrv, topic).observe("size", F.sum(F.length("body")).alias("bytes"))
    query = start(observed, name, tmp_path / "checkpoint")
    try:
        of = {"query": name, "topic": topic}
        found = scrape_until(listening.url, lambda s: s.value("rocketspark_stream_lag_messages", **of) == 0)
        assert found.value("rocketspark_stream_rows_total", query=name) == 400
        assert found.value("rocketspark_stream_messages_total", **of) == 400
        assert found.value("rocketspark_stream_bytes_total", query=name) == sum(
            len(b"%d:" % i) + i % 50 for i in range(400)
        )
        assert found.value("rocketspark_stream_lag_seconds", **of) == 0
        assert found.value("rocketspark_stream_running", query=name) == 1
        assert found.value("rocketspark_stream_starts_total", query=name) == 1
        batches = found.value("rocketspark_stream_batches_total", query=name)
        assert batches == found.value("rocketspark_stream_batch_duration_seconds_count", query=name) == 1
        seconds = found.value("rocketspark_stream_batch_duration_seconds_sum", query=name)
        step_s = found.value("rocketspark_stream_step_seconds_total", query=name, step="addBatch")
        assert seconds is not None
        assert step_s is not None
        assert 0 < step_s <= seconds
        seen_s = found.value("rocketspark_stream_last_progress_timestamp_seconds", query=name)
        assert seen_s is not None
        assert abs(seen_s - time.time()) < 600
        # What the console is told.
        (told,) = progress_of(listening, name)
        assert (told.state, told.rows, told.query_id, told.run_id) == ("running", 400, str(query.id), str(query.runId))
        assert sum(offset for queues in told.offsets[topic].values() for offset in queues.values()) == 400
    finally:
        query.stop()
    found = scrape_until(listening.url, lambda s: s.value("rocketspark_stream_running", query=name) == 0)
    assert [each.state for each in progress_of(listening, name)] == ["stopped"]
    assert found.value("rocketspark_stream_ends_total", query=name, outcome="stopped") == 1
    assert found.value("rocketspark_stream_ends_total", query=name, outcome="failed") == 0
    assert found.value("rocketspark_stream_rows_total", query=name) == 400
    # What a query that is over lacks is no lag to alarm on.
    assert found.value("rocketspark_stream_lag_messages", **of) is None or scrape_until(
        listening.url, lambda s: s.value("rocketspark_stream_lag_messages", **of) is None
    )


def test_a_query_that_stands_falls_behind_in_messages_and_seconds(
    spark: SparkSession, cluster: Cluster, producer: Producer, topic: str, listening: Listening, tmp_path: Path
) -> None:
    queues = [MessageQueue(topic, "broker-a", 0), MessageQueue(topic, "broker-b", 1)]
    producer.send(Message(topic=topic, body=b"1"), queue=queues[0])
    gate, name = tmp_path / "gate", f"q-{uuid.uuid4().hex[:8]}"

    def work(batch: Any, number: int) -> None:
        while number == 1 and not gate.exists():
            time.sleep(0.02)

    writer = source(spark, cluster.namesrv, topic).writeStream.foreachBatch(work).queryName(name)
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(processingTime="0 seconds").start()
    of = {"query": name, "topic": topic}
    try:
        scrape_until(listening.url, lambda s: s.value("rocketspark_stream_lag_messages", **of) == 0)
        first_s = time.time()
        for queue in (queues[0], *queues, queues[1]):
            producer.send(Message(topic=topic, body=b"x"), queue=queue)
        found = scrape_until(listening.url, lambda s: s.value("rocketspark_stream_lag_messages", **of) == 4)
        old_s = found.value("rocketspark_stream_lag_seconds", **of)
        assert old_s is not None
        assert 0 < old_s <= time.time() - first_s + 1
        later = scrape_until(
            listening.url, lambda s: (s.value("rocketspark_stream_lag_seconds", **of) or 0) >= old_s + 1
        )
        assert later.value("rocketspark_stream_lag_messages", **of) == 4
        gate.touch()
        scrape_until(listening.url, lambda s: s.value("rocketspark_stream_lag_messages", **of) == 0)
    finally:
        gate.touch()
        query.stop()


def test_the_end_with_an_error_is_counted_and_other_sources_count_too(
    spark: SparkSession, listening: Listening, tmp_path: Path
) -> None:
    name = f"q-{uuid.uuid4().hex[:8]}"
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "10").load()
    bad = rate.select(F.when(F.col("value") < 15, F.col("value")).otherwise(F.raise_error(F.lit("enough"))))
    query = start(bad, name, tmp_path / "checkpoint")
    with pytest.raises(Exception, match="enough"):
        query.awaitTermination(600)
    found = scrape_until(
        listening.url, lambda s: s.value("rocketspark_stream_ends_total", query=name, outcome="failed") == 1
    )
    assert found.value("rocketspark_stream_rows_total", query=name) == 10
    assert not [each for each in found.labels("rocketspark_stream_messages_total") if each["query"] == name]


@pytest.mark.shows("a broker that is down: no lag, an error counted, the query goes on")
def test_a_broker_that_is_down_leaves_the_lag_out_and_the_query_alone(spark: SparkSession, tmp_path: Path) -> None:
    topic, name = "orders", f"q-{uuid.uuid4().hex[:8]}"
    of = {"query": name, "topic": topic}
    with staged(tmp_path, "broker-a", "broker-b") as stage:
        stage.create(topic, 1)
        with listen(spark, namesrv=stage.namesrv, lag_interval_s=1) as listening:
            query = start(source(spark, stage.namesrv, topic), name, tmp_path / "checkpoint")
            try:
                with Producer(stage.namesrv, "metrics") as producer:
                    producer.send(Message(topic=topic, body=b"1"), queue=MessageQueue(topic, "broker-a", 0))
                scrape_until(listening.url, lambda s: s.value("rocketspark_stream_lag_messages", **of) == 0)
                stage.stop("broker-b")
                found = scrape_until(listening.url, lambda s: s.value("rocketspark_stream_lag_messages", **of) is None)
                assert found.value("rocketspark_stream_lag_seconds", **of) is None
                asked_s = found.value("rocketspark_stream_lag_asked_timestamp_seconds", **of)
                assert asked_s is not None
                assert found.value("rocketspark_stream_lag_errors_total", reason="broker_away")
                assert found.value("rocketspark_stream_running", query=name) == 1
                stage.start("broker-b")
                found = scrape_until(listening.url, lambda s: s.value("rocketspark_stream_lag_messages", **of) == 0)
                assert (found.value("rocketspark_stream_lag_asked_timestamp_seconds", **of) or 0) > asked_s
                assert query.exception() is None
            finally:
                query.stop()


@pytest.mark.shows("mended: metrics: `listen` of a session that is stopped listened for ever to nothing")
def test_mistakes_are_one_line(spark: SparkSession, cluster: Cluster, listening: Listening) -> None:
    with pytest.raises(ConfigError, match=rf"^the metrics' port {listening.port} on 127\.0\.0\.1 cannot be had: "):
        listen(spark, listening.port)
    for wrong, text in [
        ({"port": 70000}, "port is 70000"),
        ({"port": "80"}, "port is '80'"),
        ({"host": ""}, "host is ''"),
        ({"host": "none such"}, "cannot be had"),
        ({"lag_interval_s": 0}, "lag_interval_s is 0"),
        ({"queries_max": 0}, "queries_max is 0"),
        ({"namesrv": "nowhere"}, "nowhere"),
        ({"acess_key": "k"}, "did you mean access_key"),
        ({"namesrv": cluster.namesrv, "access_key": "k"}, "secretKey"),
        ({"namesrv": cluster.namesrv, "use_tls": True, "tls_ca": "/none/such.pem"}, "/none/such.pem"),
    ]:
        with pytest.raises(ConfigError, match=text) as caught:
            listen(spark, **wrong)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="needs a SparkSession, not str"):
        listen("spark")  # type: ignore[arg-type]
    # As one is after its stop: the JVM would take the listener without a word.
    stopped: Any = SimpleNamespace(streams=spark.streams, _sc=SimpleNamespace(_jsc=None))
    with pytest.raises(ConfigError, match="this one is stopped"):
        listen(stopped)
    # None of them left a listener or a port behind.
    scrape(listening.url)


def test_stop_frees_the_port_and_twice_does_nothing(spark: SparkSession) -> None:
    first = listen(spark)
    port = first.port
    first.stop()
    first.stop()
    with listen(spark, port) as again:
        assert again.port == port
        assert repr(again) == f"Listening('http://127.0.0.1:{port}/metrics')"
    with pytest.raises(OSError):
        scrape(f"http://127.0.0.1:{port}/metrics")


def test_the_lag_of_a_cluster_that_wants_tls_and_keys(spark: SparkSession, tmp_path: Path) -> None:
    name = f"q-{uuid.uuid4().hex[:8]}"
    of = {"query": name, "topic": "orders"}
    with run_cluster(secure=True) as own:
        with Producer(own.namesrv, "metrics", **own.client_options) as producer:
            producer.send(Message(topic="orders", body=b"1"))
        keys = {name: str(value) for name, value in own.client_options.items()}
        with listen(spark, namesrv=own.namesrv, lag_interval_s=1, **own.client_options) as listening:
            options = {_camel(name): value.replace("True", "true") for name, value in keys.items()}
            query = start(source(spark, own.namesrv, "orders", **options), name, tmp_path / "checkpoint")
            try:
                found = scrape_until(listening.url, lambda s: s.value("rocketspark_stream_lag_messages", **of) == 0)
            finally:
                query.stop()
            assert keys["secret_key"] not in repr(listening)
        assert sum(n for (name, _), n in found.items() if name == "rocketspark_stream_lag_errors_total") == 0


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.title, rest))
