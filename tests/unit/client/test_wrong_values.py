"""Values that clients cannot use: each is refused at once, by its name, before anything was asked or taken."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rocketspark import Producer, PullConsumer, PushConsumer, SimpleConsumer
from rocketspark.errors import ConfigError, UsageError
from rocketspark.testing import Cluster, run_cluster

pytestmark = pytest.mark.shows("wrong values of settings, counts and times are refused by name")

NAMESRV = "127.0.0.1:1"
COUNTS = ("pull_count_max", "pull_bytes_max", "backlog_count_max", "backlog_bytes_max")
INTERVALS = ("rebalance_interval_ms", "commit_interval_ms", "route_interval_ms", "heartbeat_interval_ms", "timeout_ms")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with run_cluster() as running:
        yield running


@pytest.mark.parametrize("kind", [PushConsumer, PullConsumer])
@pytest.mark.parametrize("value", [0, -1, "3", 1.5, None, True])
@pytest.mark.parametrize("name", COUNTS)
def test_a_consumer_that_could_never_read_is_refused(kind: Any, name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} .*a whole number of 1 or more is needed$"):
        kind(NAMESRV, "g", **{name: value})


@pytest.mark.parametrize("kind", [PushConsumer, PullConsumer])
@pytest.mark.parametrize("value", [0, -1, "3", math.nan])
@pytest.mark.parametrize("name", INTERVALS)
def test_an_interval_without_rest_is_refused(kind: Any, name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} .*a number of ms over 0 is needed$"):
        kind(NAMESRV, "g", **{name: value})


@pytest.mark.parametrize("kind", [Producer, SimpleConsumer])
@pytest.mark.parametrize("name", ["route_interval_ms", "heartbeat_interval_ms", "timeout_ms"])
def test_so_it_is_of_every_client(kind: Any, name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} 0:"):
        kind(NAMESRV, "g", **{name: 0})


@pytest.mark.parametrize("name", ["threads", "batch_max"])
def test_a_count_of_calls_is_a_whole_number(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} '2': a whole number"):
        PushConsumer(NAMESRV, "g", **{name: "2"})  # type: ignore[arg-type]


@pytest.mark.parametrize("level", [-2, 10, 99, 1.5])
def test_a_level_that_zlib_lacks_is_refused_before_a_body_needs_it(level: Any) -> None:
    with pytest.raises(ConfigError, match=f"^compress_level {level}: zlib has the levels 0 to 9$"):
        Producer(NAMESRV, "g", compress_level=level)


def test_one_topic_is_no_list_of_letters() -> None:
    with pytest.raises(ConfigError, match=r"^topics 'orders': a list of topics is needed, such as \['orders'\]$"):
        Producer(NAMESRV, "g", topics="orders")


def test_a_poll_for_a_count_that_is_none_takes_nothing(cluster: Cluster) -> None:
    """What it found would be gone: read, but given to nobody, until the consumer starts anew."""
    with Producer(cluster.namesrv, "pg") as producer:
        for number in range(10):
            producer.send("counted", b"%d" % number, queue=producer.queues("counted")[0] if number else None)
    with PullConsumer(cluster.namesrv, "g", consume_from="first") as consumer:
        consumer.subscribe("counted")
        found: list[bytes] = []
        end_s = time.monotonic() + 60
        while len(found) < 10 and time.monotonic() < end_s:
            for wrong in (1.5, "4", None, 0, -1):
                with pytest.raises(UsageError, match=r"^count_max .*: a whole number of 1 or more is needed$"):
                    consumer.poll(0, count_max=wrong)  # type: ignore[arg-type]
            found += [message.body for message in consumer.poll(200, count_max=3)]
        assert sorted(found) == [b"%d" % number for number in range(10)]


def test_a_time_with_parts_of_a_millisecond_is_refused_by_its_name(cluster: Cluster) -> None:
    now_ms: Any = time.time() * 1000 + 0.5
    with Producer(cluster.namesrv, "pg") as producer, PullConsumer(cluster.namesrv, "g-times") as consumer:
        producer.send("timed", b"x", keys="k")
        queue = producer.queues("timed")[0]
        consumer.assign([queue])
        for call in (producer.search_offset, consumer.offsets_for_time, consumer.seek_to_time):
            with pytest.raises(UsageError, match=r"^time_ms 1.*\.\d+: a whole number of ms since 1970 is needed"):
                call(queue, now_ms)
        for name in ("begin_ms", "end_ms"):
            with pytest.raises(UsageError, match=rf"^{name} 1.*\.\d+: a whole number of ms"):
                producer.query_message("timed", "k", **{name: now_ms})
        assert len(producer.query_message("timed", "k", begin_ms=0, end_ms=int(now_ms) + 60_000)) <= 1


def test_a_message_that_was_received_is_not_taken_for_a_topic(cluster: Cluster) -> None:
    with (
        Producer(cluster.namesrv, "pg") as producer,
        PullConsumer(cluster.namesrv, "g-again", consume_from="first") as consumer,
    ):
        producer.send("again", b"secret")
        consumer.subscribe("again")
        found: Any = []
        while not found:
            found = consumer.poll(1000)
        for send in (producer.send, producer.send_future, producer.send_oneway):
            with pytest.raises(UsageError, match="not ReceivedMessage: make a Message of it") as told:
                send(found[0])
            assert "secret" not in str(told.value)
