"""rocketspark.testing.run_cluster: an embedded cluster that leaves nothing behind."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import threading
import time
from pathlib import Path

import pytest
from tests.support.patience import LIMIT_S

from rocketspark import Producer, PullConsumer
from rocketspark.admin.operations import Admin
from rocketspark.cli.serving.serve import loop_factory
from rocketspark.errors import ConfigError, RocketSparkError, StateError
from rocketspark.testing import cluster as embedded
from rocketspark.testing import run_cluster


def open_sockets() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found


@pytest.mark.shows("run_cluster, ready in under a second")
def test_it_is_ready_with_little_work_and_takes_messages() -> None:
    used_s = []
    for _ in range(3):
        # The processor's time, not the clock's: other tests run beside this one.
        before_s = time.process_time()
        with run_cluster() as cluster:
            used_s.append(time.process_time() - before_s)
            with Producer(cluster.namesrv, "g") as producer:
                assert producer.send("t", b"hello").queue_offset == 0
    assert min(used_s) < 1


def test_several_brokers_make_one_cluster() -> None:
    with run_cluster(brokers=3) as cluster, Admin(cluster.namesrv) as operations:
        brokers = operations.cluster_info()
        assert [b.broker_name for b in brokers] == ["broker-a", "broker-b", "broker-c"]
        assert tuple(b.address for b in brokers) == cluster.brokers
        assert len({b.cluster for b in brokers}) == 1


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_it_leaves_no_thread_no_socket_and_no_folder() -> None:
    threads, sockets = set(threading.enumerate()), open_sockets()
    with run_cluster(brokers=2) as cluster:
        with Producer(cluster.namesrv, "g") as producer:
            producer.send("t", b"hello")
        assert cluster.store.exists()
    assert set(threading.enumerate()) <= threads
    assert open_sockets() <= sockets
    assert not cluster.store.exists()
    for address in (cluster.namesrv, *cluster.brokers):
        host, port = address.split(":")
        with socket.socket() as probe:
            assert probe.connect_ex((host, int(port))) != 0


def test_a_store_of_ones_own_is_kept_and_opened_again(tmp_path: Path) -> None:
    with run_cluster(store=tmp_path) as cluster, Producer(cluster.namesrv, "g") as producer:
        producer.send("t", b"hello", sharding_key="k")
    with run_cluster(store=tmp_path) as cluster, Producer(cluster.namesrv, "g") as producer:
        assert producer.send("t", b"again", sharding_key="k").queue_offset == 1


def test_broker_settings_are_taken() -> None:
    with run_cluster(cluster_name="east", default_topic_queue_count=3) as cluster:
        with Admin(cluster.namesrv) as operations:
            assert [b.cluster for b in operations.cluster_info()] == ["east"]
        with Producer(cluster.namesrv, "g") as producer:
            producer.send("t", b"hello")
            assert len(producer.queues("t")) == 3


def test_an_error_in_the_block_comes_out_and_the_cluster_ends() -> None:
    threads = set(threading.enumerate())
    with pytest.raises(KeyError, match="mine"), run_cluster():
        raise KeyError("mine")
    assert set(threading.enumerate()) <= threads


def test_what_cannot_start_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    threads = set(threading.enumerate())
    with pytest.raises(ConfigError, match="brokerRole"), run_cluster(broker_role="SLAVE"):
        pass
    with pytest.raises(TypeError, match="no_such_setting"), run_cluster(no_such_setting=1):
        pass
    with pytest.raises(ValueError, match="brokers=0"), run_cluster(brokers=0):
        pass
    assert set(threading.enumerate()) <= threads


def test_one_that_is_interrupted_before_it_has_a_loop_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    make_loop = loop_factory()

    def late() -> asyncio.AbstractEventLoop:
        assert go_on.wait(LIMIT_S)
        return make_loop()

    monkeypatch.setattr(embedded, "loop_factory", lambda: late)
    servers = embedded._ServerThread(tmp_path, 1, 1, {})
    servers._thread.start()
    closing = threading.Thread(target=servers.close)
    closing.start()
    while not servers._closed:
        time.sleep(0)
    go_on.set()
    closing.join(LIMIT_S)
    assert not closing.is_alive()
    assert not servers._thread.is_alive()
    assert servers._cluster is None


@pytest.mark.shows(
    "`rocketspark server --replicas N`, `broker --controller`; `run_cluster(replicas=2)` with kill_master, "
    "start_again, elect, wait_in_sync"
)
def test_replicas_lose_nothing_when_the_master_is_killed() -> None:
    with run_cluster(replicas=2) as cluster, Producer(cluster.namesrv, "P", retries=20) as producer:
        first, second = cluster.brokers
        assert cluster.master() == first
        for number in range(20):
            producer.send("T", b"%d" % number)
        assert cluster.kill_master() == first
        for number in range(20, 40):
            producer.send("T", b"%d" % number)
        assert cluster.wait_in_sync(1) == cluster.master() == second
        cluster.start_again()
        assert cluster.wait_in_sync() == second
        cluster.elect(first)
        assert cluster.master() == first
        for number in range(40, 60):
            producer.send("T", b"%d" % number)
        with PullConsumer(cluster.namesrv, "G", consume_from="first") as consumer:
            consumer.subscribe("T")
            found = [int(message.body) for message in itertools.islice(consumer, 60)]
        assert sorted(found) == list(range(60))


@pytest.mark.shows("`run_cluster`: a broker without replicas that is killed and started again has its messages")
def test_a_broker_without_replicas_is_killed_and_started_again() -> None:
    with run_cluster(brokers=2) as cluster, Producer(cluster.namesrv) as producer:
        producer.create_topic("orders", queue_count=1)
        queues = producer.queues("orders")
        producer.send("orders", b"before", queue=queues[1])
        assert cluster.kill_master("broker-b") == cluster.brokers[1]
        with pytest.raises(StateError, match=r"broker-b is killed: start_again\(\) starts it"):
            cluster.kill_master("broker-b")
        with pytest.raises(RocketSparkError):
            producer.send("orders", b"lost", queue=queues[1], timeout_ms=200)
        producer.send("orders", b"elsewhere", queue=queues[0])
        cluster.start_again("broker-b")
        assert cluster.master("broker-b") == cluster.brokers[1]
        with PullConsumer(cluster.namesrv, "readers", consume_from="first") as consumer:
            consumer.assign(consumer.queues("orders"))
            bodies: list[bytes] = []
            while len(bodies) < 2:
                bodies += [message.body for message in consumer.poll(LIMIT_S * 1000)]
        assert sorted(bodies) == [b"before", b"elsewhere"]


def test_without_replicas_there_is_nothing_to_elect() -> None:
    with run_cluster() as cluster, pytest.raises(StateError, match="replicas=2"):
        cluster.elect(cluster.brokers[0])
