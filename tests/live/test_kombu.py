"""The kombu transport on clusters of ours: several brokers, signed requests over TLS, namespaces, a process's end."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.exceptions import OperationalError
from tests.support.patience import LIMIT_S

import rocketspark
import rocketspark.kombu
from rocketspark.admin import Admin
from rocketspark.errors import NotSent
from rocketspark.kombu import reader
from rocketspark.kombu.names import exchange_topic
from rocketspark.testing import Cluster, run_cluster

assert rocketspark.kombu.Transport
QUEUE = Queue("tasks", Exchange(""), "tasks")


def consume(connection: Connection, count: int, prefetch: int = 0) -> tuple[list[Any], int]:
    """Receive and acknowledge so many messages; returns them, and how many were held at most."""
    held, bodies, most = [], [], 0
    with Consumer(connection.channel(), [QUEUE], on_message=held.append, prefetch_count=prefetch):
        end = time.monotonic() + LIMIT_S
        while len(bodies) < count:
            assert time.monotonic() < end, bodies
            try:
                connection.drain_events(timeout=0.3)
            except TimeoutError:
                most = max(most, len(held))
                bodies += [message.payload for message in held]
                for message in held:
                    message.ack()
                held.clear()
    return bodies, most


def publish(connection: Connection, *bodies: Any) -> None:
    producer = Producer(connection.channel())
    for body in bodies:
        producer.publish(body, routing_key="tasks", declare=[QUEUE], serializer="json")


@pytest.mark.shows("the kombu transport over several brokers and priorities holds no more than prefetched")
def test_two_brokers_and_two_priorities_share_one_prefetch_limit() -> None:
    with (
        run_cluster(brokers=2) as cluster,
        Connection(f"rocketmq://{cluster.namesrv}", transport_options={"priority_steps": [0, 5]}) as connection,
    ):
        publish(connection, *range(12))
        bodies, most = consume(connection, 12, prefetch=3)
        assert (sorted(bodies), most) == (list(range(12)), 3)


@pytest.mark.shows("what is broadcast is read also from a broker that joins later")
def test_what_is_broadcast_comes_also_from_a_broker_that_joins_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "LOOK_MS", 100)
    news, topic = Exchange("news", "fanout"), exchange_topic("news")
    with (
        run_cluster(brokers=2) as cluster,
        Admin(cluster.namesrv) as admin,
        Connection(f"rocketmq://{cluster.namesrv}") as connection,
    ):
        admin.create_topic(topic, queue_count=1, brokers=["broker-a"])
        bodies: list[Any] = []
        with Consumer(connection.channel(), [Queue("news", news)], on_message=lambda m: bodies.append(m.payload)):
            admin.create_topic(topic, queue_count=1, brokers=["broker-b"])
            with rocketspark.Producer(cluster.namesrv) as producer:
                for queue in producer.queues(topic):
                    producer.send(topic, queue.broker_name.encode(), queue=queue)
            while len(bodies) < 2:
                connection.drain_events(timeout=LIMIT_S)
        assert sorted(bodies) == [b"broker-a", b"broker-b"]


def test_a_bind_that_failed_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with run_cluster() as cluster, Connection(f"rocketmq://{cluster.namesrv}") as connection:
        queue = Queue("news", Exchange("news", "fanout"))
        with monkeypatch.context() as patched:

            async def fails(*_: Any) -> None:
                raise NotSent("no NameServer")

            patched.setattr(reader.AsyncPullConsumer, "queues", fails)
            with pytest.raises(NotSent):
                queue(connection.channel()).declare()
        bodies: list[Any] = []
        with Consumer(connection.channel(), [queue], on_message=lambda m: bodies.append(m.payload)):
            Producer(connection.channel()).publish("news", exchange=queue.exchange, serializer="json")
            connection.drain_events(timeout=LIMIT_S)
        assert bodies == ["news"]


def test_a_send_that_fails_again_after_it_connected_anew_is_tried_as_often_as_asked() -> None:
    """As results of tasks while a server starts: the NameServer answers, the broker is not there yet."""
    with run_cluster() as cluster, Connection(f"rocketmq://{cluster.namesrv}") as connection:
        producer, attempts = Producer(connection.channel()), []

        def send() -> int:
            attempts.append(connection.connected)
            if len(attempts) < 3:
                raise NotSent("no broker is up")
            return len(attempts)

        assert connection.ensure(producer, send, max_retries=3, interval_start=0)() == 3


@pytest.mark.shows("a queue that another process deletes is made again for what is sent to it")
def test_a_queue_that_another_process_deletes_is_made_again() -> None:
    with (
        run_cluster(auto_create_topic=False) as cluster,
        Admin(cluster.namesrv) as admin,
        Connection(f"rocketmq://{cluster.namesrv}") as connection,
    ):
        publish(connection, "before")
        admin.delete_topic(QUEUE.name)
        publish(connection, "after")
        assert consume(connection, 1)[0] == ["after"]


@pytest.mark.shows("the kombu transport over TLS, with signed requests, and in a namespace")
def test_a_cluster_that_wants_tls_and_keys() -> None:
    with run_cluster(secure=True) as cluster:
        with secure(cluster, "/team-a") as one, secure(cluster, "/team-b") as other:
            publish(one, "a")
            publish(other, "b")
            assert consume(one, 1)[0] == ["a"]
            assert consume(other, 1)[0] == ["b"]
        cluster.client_options["secret_key"] = "wrong"
        wrong = pytest.raises(OperationalError, match="secret_key is not the one of this access_key")
        with secure(cluster, "") as nobody, wrong:
            nobody.ensure_connection(max_retries=1, interval_start=0)


def secure(cluster: Cluster, path: str) -> Connection:
    options = dict(cluster.client_options)
    user, password = options.pop("access_key"), options.pop("secret_key")
    tls = {name: value for name, value in options.items() if name.startswith("tls")}
    return Connection(f"rocketmq://{user}:{password}@{cluster.namesrv}{path}", ssl=tls)


@pytest.mark.shows("a process that ends without closing its kombu connection loses no acknowledgement")
def test_a_process_that_ends_gives_back_and_acknowledges() -> None:
    """One message is acknowledged at its end, the other is not and comes to the next at once."""
    program = f"""
import sys
from kombu import Connection
import rocketspark.kombu
connection = Connection("rocketmq://" + sys.argv[1], transport_options={{"visibility_timeout": 3600}})
queue = connection.SimpleQueue({QUEUE.name!r})
first, second = queue.get(timeout={LIMIT_S}), queue.get(timeout={LIMIT_S})
first.ack()
print(second.payload)
"""
    with run_cluster() as cluster, Connection(f"rocketmq://{cluster.namesrv}") as connection:
        publish(connection, 1, 2)
        command = [sys.executable, "-c", program, cluster.namesrv]
        left = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout
        assert [str(body) for body in consume(connection, 1)[0]] == [left.strip()]
        assert QUEUE(connection.channel()).get() is None
