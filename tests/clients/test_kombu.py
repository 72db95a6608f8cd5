"""kombu's queues and exchanges on our broker and on Apache's: what differs is a mistake."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.exceptions import ChannelError, OperationalError
from tests.clients.scene import Cluster
from tests.support.names import own_name
from tests.support.patience import LIMIT_S

import rocketspark
import rocketspark.kombu
from rocketspark.admin.operations import Admin
from rocketspark.errors import NotSent
from rocketspark.kombu.names import group_of, quote
from rocketspark.kombu.reader import Reader

pytestmark = pytest.mark.shows("kombu on `rocketmq://`: prefetch, requeue, rejects, priorities, TTL, exchanges, purge")


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return own_name(request.node.originalname.removeprefix("test_")[:30].replace("_", "."))


@pytest.fixture
def connection(cluster: Cluster) -> Iterator[Connection]:
    with connect(cluster) as connection:
        yield connection


def connect(cluster: Cluster, **options: Any) -> Connection:
    return Connection(f"rocketmq://{cluster.namesrv}", transport_options={"visibility_timeout": 3, **options})


class Taken:
    """A consumer that keeps what it gets, unacknowledged."""

    def __init__(self, connection: Connection, *queues: Queue, prefetch: int = 0, **options: Any) -> None:
        self._connection = connection
        self.messages: list[Any] = []
        self.consumer = Consumer(
            connection.channel(), list(queues), on_message=self.messages.append, prefetch_count=prefetch, **options
        )
        self.consumer.consume()

    def wait(self, count: int) -> list[Any]:
        end = time.monotonic() + LIMIT_S
        while len(self.messages) < count:
            assert time.monotonic() < end, f"{len(self.messages)} of {count}"
            try:
                self._connection.drain_events(timeout=1)
            except TimeoutError:
                pass
        return [message.payload for message in self.messages]

    def gets_no_more(self, for_s: float = 0.5) -> bool:
        try:
            self._connection.drain_events(timeout=for_s)
        except TimeoutError:
            return True
        return False


def await_size(queue: Any, count: int) -> None:
    """Brokers note what was received after a moment."""
    end = time.monotonic() + LIMIT_S
    while queue.queue_declare(passive=True).message_count != count:
        assert time.monotonic() < end
        time.sleep(0.05)


def publish(connection: Connection, queue: Queue, *bodies: Any, **options: Any) -> None:
    producer = Producer(connection.channel())
    for body in bodies:
        producer.publish(
            body,
            exchange=queue.exchange,
            routing_key=queue.routing_key,
            declare=[queue],
            **{"serializer": "json"} | options,
        )


def test_no_more_is_held_than_prefetched(connection: Connection, name: str) -> None:
    queue = Queue(name, Exchange(""), name)
    publish(connection, queue, *range(10))
    taken = Taken(connection, queue, prefetch=3)
    taken.wait(3)
    assert taken.gets_no_more()
    taken.messages[0].ack()
    taken.wait(4)
    assert taken.gets_no_more()
    for message in taken.messages[1:]:
        message.ack()
    assert sorted(taken.wait(7)) == sorted({message.payload for message in taken.messages})


def test_queues_of_a_channel_share_what_may_be_held_and_none_is_forgotten(
    connection: Connection, cluster: Cluster, name: str
) -> None:
    busy, idle = (Queue(f"{name}.{which}", Exchange(""), f"{name}.{which}") for which in ("busy", "idle"))
    publish(connection, busy, *["busy"] * 12)
    idle(connection.channel()).declare()
    taken = Taken(connection, busy, idle, prefetch=3)
    assert taken.wait(3) == ["busy"] * 3
    publish(connection, idle, *["idle"] * 4)
    assert taken.gets_no_more()
    at = 0
    while at < 16:
        taken.wait(at + 1)
        assert len(taken.messages) - at <= 3
        taken.messages[at].ack()
        at += 1
    assert sorted(message.payload for message in taken.messages) == ["busy"] * 12 + ["idle"] * 4
    # What a channel has no room for is given back, which counts as a delivery on Apache's broker.
    redelivered = [message for message in taken.messages if message.delivery_info["redelivered"]]
    assert not redelivered or cluster.name == "apache"


def test_what_is_not_acknowledged_is_held_for_as_long_as_it_takes(cluster: Cluster, name: str) -> None:
    """Beyond the visibility timeout; and given back at once when the connection closes."""
    queue = Queue(name, Exchange(""), name)
    with connect(cluster) as other, connect(cluster) as connection:
        publish(connection, queue, 1)
        taken = Taken(connection, queue)
        taken.wait(1)
        second = Taken(other, queue)
        assert second.gets_no_more(5)
        connection.release()
        began = time.monotonic()
        assert second.wait(1) == [1]
        assert time.monotonic() - began < LIMIT_S
        assert second.messages[0].delivery_info["redelivered"] is True
        second.messages[0].ack()
        await_size(queue(other.channel()), 0)


def test_requeued_messages_come_again_and_rejected_ones_are_dead_letters(
    cluster: Cluster, connection: Connection, name: str
) -> None:
    queue = Queue(name, Exchange(""), name)
    publish(connection, queue, "again", "dead")
    taken = Taken(connection, queue)
    taken.wait(2)
    by_body = {message.payload: message for message in taken.messages}
    by_body["again"].requeue()
    by_body["dead"].reject()
    assert taken.wait(3)[2] == "again"
    taken.messages[2].ack()
    assert taken.gets_no_more()
    connection.release()
    assert dead_letters(cluster, name) == 1


def dead_letters(cluster: Cluster, queue: str) -> int:
    with Admin(cluster.namesrv) as admin:
        return admin.show_topic(f"%DLQ%{group_of(quote(queue))}").message_count


def test_messages_that_are_no_tasks_are_bytes_and_other_encodings_come_whole(
    cluster: Cluster, connection: Connection, name: str
) -> None:
    queue = Queue(name, Exchange(""), name)
    queue(connection.channel()).declare()
    bodies = [b"\xff\x00", b"[1]", b'{"body": 1}', b'{"body":"?","headers":1,"properties":{"delivery_info":{}}}']
    bodies += [b'{"body":"no","headers":{"compression":"gzip"},"properties":{"delivery_info":{}}}']
    with rocketspark.Producer(cluster.namesrv) as producer:
        for body in bodies:
            producer.send(quote(name), body)
    for serializer in ("json", "yaml", "pickle", "raw"):
        body: Any = b"raw\xff" if serializer == "raw" else {"who": serializer}
        publish(connection, queue, body, serializer=serializer, compression="zlib")
    taken = Taken(connection, queue, accept=["json", "yaml", "pickle", "application/data"])
    found = taken.wait(9)
    assert sorted(body for body in found if isinstance(body, bytes)) == sorted([*bodies, b"raw\xff"])
    assert {body["who"] for body in found if isinstance(body, dict)} == {"json", "yaml", "pickle"}


def test_the_highest_priority_comes_first(cluster: Cluster, name: str) -> None:
    queue = Queue(name, Exchange(""), name)
    with connect(cluster, priority_steps=[0, 3, 6, 9]) as connection:
        for priority in (0, 3, 9, 5, 6, 0, 9):
            publish(connection, queue, priority, priority=priority)
        taken = Taken(connection, queue, prefetch=1)
        order = []
        for count in range(1, 8):
            order.append(taken.wait(count)[-1])
            taken.messages[-1].ack()
    assert [{5: 3}.get(p, p) for p in order] == [9, 9, 6, 3, 3, 0, 0]


def test_what_is_delivered_too_often_is_a_dead_letter(cluster: Cluster, name: str) -> None:
    queue = Queue(name, Exchange(""), name)
    with connect(cluster, max_deliveries=2) as connection:
        publish(connection, queue, 1)
        taken = Taken(connection, queue)
        for count in (1, 2):
            taken.wait(count)
            taken.messages[-1].requeue()
        assert taken.gets_no_more(5 if cluster.name == "apache" else 1)
    assert dead_letters(cluster, name) == 1


def test_a_task_with_an_eta_may_wait_at_the_broker(cluster: Cluster, name: str) -> None:
    queue = Queue(name, Exchange(""), name)
    due = datetime.now(UTC) + timedelta(seconds=2)
    with connect(cluster, eta_by_timer=True) as connection:
        taken = Taken(connection, queue)
        publish(connection, queue, "later", headers={"eta": due.isoformat()})
        publish(connection, queue, "now", headers={"eta": None})
        assert taken.wait(2) == ["now", "later"]
        assert abs((datetime.now(UTC) - due).total_seconds()) < LIMIT_S


def test_a_consumer_of_what_is_broadcast_holds_no_more_than_prefetched(connection: Connection, name: str) -> None:
    queue = Queue(name, Exchange(f"{name}.f", "fanout"))
    taken = Taken(connection, queue, prefetch=2)
    publish(connection, queue, *range(5))
    assert taken.wait(2) == [0, 1]
    assert taken.gets_no_more()
    taken.messages[0].ack()
    assert taken.wait(3) == [0, 1, 2]
    taken.messages[1].requeue()
    assert taken.wait(4)[3] == 1


def test_what_is_too_old_is_not_delivered(connection: Connection, name: str) -> None:
    queue = Queue(name, Exchange(""), name, message_ttl=0.2)
    publish(connection, queue, 1, 2)
    plain = Queue(f"{name}2", Exchange(""), f"{name}2")
    publish(connection, plain, 3, expiration=0.2)
    publish(connection, plain, 4)
    time.sleep(0.4)
    taken = Taken(connection, queue, plain)
    assert taken.wait(1) == [4]
    assert taken.gets_no_more()


def test_queues_are_sized_purged_read_and_deleted(connection: Connection, name: str) -> None:
    queue = Queue(name, Exchange(""), name)(connection.channel())
    with pytest.raises(ChannelError, match="no queue"):
        queue.queue_declare(passive=True)
    publish(connection, queue, *range(40))
    await_size(queue, 40)
    message = queue.get(no_ack=True)
    assert message is not None
    assert queue.purge() == 39
    assert queue.get() is None
    await_size(queue, 0)
    queue.delete()
    with pytest.raises(ChannelError, match="no queue"):
        queue.queue_declare(passive=True)


def test_a_purge_takes_what_was_fetched_for_the_own_consumer(connection: Connection, name: str) -> None:
    simple = connection.SimpleQueue(name)
    simple.put("first")
    first = simple.get(timeout=LIMIT_S)
    publish(connection, simple.queue, *range(20))
    cleared, end = 0, time.monotonic() + LIMIT_S
    while (cleared := cleared + simple.clear()) < 20:
        assert time.monotonic() < end  # Some may be on their way from the broker.
    first.requeue()
    assert simple.get(timeout=LIMIT_S).payload == "first"
    simple.close()


def replies_to_a_client() -> Queue:
    name = str(uuid4())
    return Queue(name, Exchange(""), name, durable=False, auto_delete=True)


def test_replies_outlive_the_connection_that_declared_their_queue(cluster: Cluster) -> None:
    """kombu closes a connection whose send failed, and opens another one: its client asks for results later."""
    replies = replies_to_a_client()
    with connect(cluster) as lost:
        publish(lost, replies, "one", "two")
    with connect(cluster) as opened:
        publish(opened, replies, "three")
        taken = Taken(opened, replies)
        assert sorted(taken.wait(3)) == ["one", "three", "two"]
        assert taken.gets_no_more()


def test_a_queue_of_replies_that_could_not_be_read_is_tried_again(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*arguments: Any) -> None:
        raise NotSent("no broker answers", address="nowhere")

    replies = replies_to_a_client()
    with monkeypatch.context() as patch:
        patch.setattr(Reader, "bind", fail)
        with pytest.raises(NotSent):
            replies(connection.channel()).declare()
    publish(connection, replies, "one")
    assert Taken(connection, replies).wait(1) == ["one"]


def test_exchanges(cluster: Cluster, connection: Connection, name: str) -> None:
    direct, topic = Exchange(f"{name}.d", "direct"), Exchange(f"{name}.t", "topic")
    fanout = Exchange(f"{name}.f", "fanout")
    queues = [
        Queue(f"{name}.red", direct, "red"),
        Queue(f"{name}.blue", direct, "blue"),
        Queue(f"{name}.stars", topic, "a.*"),
        Queue(f"{name}.one", fanout),
    ]
    taken = [Taken(connection, queue) for queue in queues]
    with connect(cluster) as elsewhere:
        second = Taken(elsewhere, Queue(f"{name}.two", fanout))
        producer = Producer(connection.channel())
        for exchange, key in ((direct, "red"), (direct, "green"), (topic, "a.b"), (topic, "b.a"), (fanout, "")):
            producer.publish(f"{exchange.type} {key}", exchange=exchange, routing_key=key, serializer="json")
        assert second.wait(1) == ["fanout "]
    assert [taken[i].wait(1) for i in (0, 2, 3)] == [["direct red"], ["topic a.b"], ["fanout "]]
    assert taken[1].messages == []


def test_one_that_cannot_connect_says_why(cluster: Cluster) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = Connection(f"rocketmq://127.0.0.1:{free.getsockname()[1]}")
        with pytest.raises(OperationalError, match="no NameServer"):
            nobody.ensure_connection(max_retries=1, interval_start=0)
