"""Fixtures that pytest finds where RocketSpark is installed: a cluster, a topic, a producer and a consumer for tests.

Rule: a run that uses none of them imports nothing of RocketSpark but this file; each worker of xdist has a cluster of
its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from rocketspark import Producer, PullConsumer
    from rocketspark.model import ReceivedMessage
    from rocketspark.testing.tested_cluster import TestedCluster

NUMBERS = {"rocketmq_brokers": 1, "rocketmq_replicas": 1, "rocketmq_controllers": 1}
FLAGS = {
    "rocketmq_secure": "the cluster takes TLS and signed requests alone (extra tls)",
    "rocketmq_grpc": "it speaks RocketMQ 5's gRPC protocol too (extra grpc)",
}
STASH = pytest.StashKey["TestedCluster"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options and settings of the fixtures."""
    for name, default in NUMBERS.items():
        parser.addini(
            name, f"how many {name.removeprefix('rocketmq_')} the fixture rocketmq runs", default=str(default)
        )
    for name, text in FLAGS.items():
        parser.addini(name, text, type="bool", default=False)
    parser.addini("rocketmq_settings", "settings of its brokers, a line each, as in broker.conf", type="linelist")
    parser.getgroup("rocketmq").addoption(
        "--rocketmq-namesrv",
        metavar="HOST:PORT",
        help="run the tests against this cluster, not one of their own",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """What a test has killed runs again before the next one begins."""
    tested = item.config.stash.get(STASH, None)
    if tested is not None:
        tested.mend()


@pytest.fixture(scope="session")
def rocketmq(request: pytest.FixtureRequest) -> Iterator[TestedCluster]:
    """A cluster for the whole run: a NameServer and a broker in this process, or those of --rocketmq-namesrv."""
    from rocketspark.errors import RocketSparkError
    from rocketspark.testing.cluster import run_cluster
    from rocketspark.testing.tested_cluster import TestedCluster

    config = request.config
    if namesrv := config.getoption("--rocketmq-namesrv"):
        yield TestedCluster(namesrv)
        return
    try:
        running = run_cluster(**_settings(config))
        cluster = running.__enter__()
    except (RocketSparkError, ValueError, TypeError) as e:
        pytest.fail(f"the fixture rocketmq cannot start its cluster: {e}", pytrace=False)
    try:
        tested = config.stash[STASH] = TestedCluster(cluster.namesrv, cluster)
        yield tested
    finally:
        with suppress(KeyError):
            del config.stash[STASH]
        running.__exit__(None, None, None)


def _settings(config: pytest.Config) -> dict[str, Any]:
    """The arguments of run_cluster. Raises ConfigError for what is none."""
    from rocketspark.errors import ConfigError

    found: dict[str, Any] = {name.removeprefix("rocketmq_"): config.getini(name) for name in FLAGS}
    for name in NUMBERS:
        text = config.getini(name)
        if not text.isdecimal() or not text.isascii():
            raise ConfigError(f"{name} = {text!r} is no number")
        found[name.removeprefix("rocketmq_")] = int(text)
    return found | _broker_settings(config.getini("rocketmq_settings"))


def _broker_settings(lines: list[str]) -> dict[str, Any]:
    from rocketspark.broker.broker_conf import convert
    from rocketspark.errors import ConfigError

    pairs = [[part.strip() for part in line.partition("=")[::2]] for line in lines]
    taken, _, unknown = convert(dict(pairs))
    if unknown:
        raise ConfigError(f"rocketmq_settings: broker.conf has no {', '.join(unknown)}")
    return taken


@pytest.fixture
def rocketmq_topic(rocketmq: TestedCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a new topic with one queue, for this test alone; it is deleted afterwards."""
    from rocketspark.errors import RocketSparkError

    topic = rocketmq.create_topic(request.node.name)
    yield topic
    # A test that broke its cluster has said so itself.
    with suppress(RocketSparkError):
        rocketmq.delete_topic(topic)


@pytest.fixture(scope="session")
def rocketmq_producer(rocketmq: TestedCluster) -> Iterator[Producer]:
    """A producer for the whole run."""
    from rocketspark import Producer

    with Producer(rocketmq.namesrv, **rocketmq.client_options) as producer:
        yield producer


@pytest.fixture
def rocketmq_consumer(rocketmq: TestedCluster, rocketmq_topic: str) -> Iterator[PullConsumer]:
    """A consumer that reads the test's topic from its first message on, in a group of its own."""
    from rocketspark import PullConsumer

    options = rocketmq.client_options
    with PullConsumer(rocketmq.namesrv, f"{rocketmq_topic}-group", consume_from="first", **options) as consumer:
        consumer.subscribe(rocketmq_topic)
        yield consumer


@pytest.fixture
def wait_for_messages(rocketmq: TestedCluster) -> Callable[..., list[ReceivedMessage]]:
    """`wait_for_messages(topic, count, timeout_s=10.0)`: wait for messages of a topic, and return them."""
    return rocketmq.wait_for_messages
