"""Consumers that pop, as the others: signed over TLS, in a namespace, with hooks and traces, through the facade."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.patience import LIMIT_S

from rocketspark import Message, Producer, PullConsumer, PushConsumer, ReceivedMessage, SimpleConsumer
from rocketspark.admin.groups import GroupSettings
from rocketspark.admin.operations import Admin
from rocketspark.client.consumer.pop.popper import PopSettings
from rocketspark.client.hooks import Consuming, Hooks
from rocketspark.errors import RocketSparkError
from rocketspark.protocol.codes import RequestCode
from rocketspark.testing.cluster import run_cluster
from rocketspark.testing.process import run_server_process

pytestmark = pytest.mark.shows(
    "`SimpleConsumer`, `AsyncSimpleConsumer`: receive, acknowledge, change the invisible time, several topics "
    "with filters, also changed while pops wait, order, a receive that is cancelled",
    "`PushConsumer(pop=True)`: done, failed, given up, too slow, closed, modes to and fro under load, shares, "
    "batches of BatchCQ topics",
)


class Seen(Hooks):
    """Counts calls of the listener and requests, by code."""

    def __init__(self) -> None:
        self.consumed: list[tuple[str, bool]] = []
        self.requests: list[int] = []

    def after_consume(self, consuming: Consuming) -> None:
        self.consumed += [(m.topic, consuming.success) for m in consuming.messages]

    def before_request(self, address: str, code: int, ext: dict[str, str], body: bytes) -> None:
        self.requests.append(code)


def receive(consumer: SimpleConsumer, count: int) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    end = time.monotonic() + LIMIT_S
    while len(found) < count:
        assert time.monotonic() < end
        found += consumer.receive(timeout_ms=2000)
    return found


def test_signed_in_a_namespace_with_hooks_and_traces() -> None:
    with run_cluster(secure=True) as cluster:
        options: dict[str, Any] = cluster.client_options | {"namespace": "NS"}
        with Admin(cluster.namesrv, **cluster.client_options) as operations:
            operations.create_topic("NS%t", queue_count=2)
            operations.create_topic("traces", queue_count=1)
            operations.put_group("NS%push")
            operations.set_request_mode("NS%t", "NS%push", "POP")
        seen, got, arrived = Seen(), [], threading.Event()

        def listener(messages: list[ReceivedMessage]) -> None:
            got.extend(messages)
            if len(got) == 20:
                arrived.set()

        pusher = PushConsumer(
            cluster.namesrv,
            "push",
            consume_from="first",
            pop=True,
            batch_max=4,
            trace="traces",
            hooks=[seen],
            **options,
        )
        pusher.subscribe("t")
        pusher.listen(listener)
        with (
            Producer(cluster.namesrv, "p", **options) as producer,
            SimpleConsumer(cluster.namesrv, "simple", consume_from="first", **options) as simple,
            pusher,
        ):
            simple.subscribe("t")
            for i in range(20):
                producer.send("t", b"%d" % i)
            found = receive(simple, 20)
            simple.ack(found)
            assert {m.topic for m in found} == {"t"}
            assert {m.receipt_handle is None for m in found} == {False}
            assert arrived.wait(LIMIT_S)
            assert [(q.topic, q.queue_id) for q in pusher.queues() if q.queue_id < 0] == [("t", -1)]
        assert sorted(m.body for m in got) == sorted(b"%d" % i for i in range(20))
        assert sorted(seen.consumed) == [("t", True)] * 20
        # Assigned, popped, acknowledged.
        assert {400, 200050}.issubset(seen.requests)
        assert {200051, 200151} & set(seen.requests)
        with PullConsumer(
            cluster.namesrv, "look", consume_from="first", auto_commit=False, **cluster.client_options
        ) as look:
            look.assign(look.queues("traces"))
            text = b"".join(m.body for m in look.poll(LIMIT_S * 1000))
            assert b"SubBefore" in text
        # A stranger's receive says why at once.
        keys = {"access_key": "rocketspark", "secret_key": "wrong"}
        with SimpleConsumer(cluster.namesrv, "simple", **options | keys) as stranger:
            stranger.subscribe("t")
            began_s = time.monotonic()
            with pytest.raises(RocketSparkError, match=r"signature|User"):
                stranger.receive(timeout_ms=LIMIT_S * 1000)
            assert time.monotonic() - began_s < LIMIT_S / 2


def test_the_mode_that_an_operator_sets_is_seen_at_once_and_in_the_running_info() -> None:
    with run_cluster() as cluster, Admin(cluster.namesrv) as operations:
        operations.create_topic("t", queue_count=3)
        operations.put_group("g")
        consumer = PushConsumer(cluster.namesrv, "g", consume_from="first", pop=True)
        consumer.subscribe("t")
        consumer.listen(print)
        with consumer:

            def ids() -> list[int]:
                return [q.queue_id for q in consumer.queues() if q.topic == "t"]

            assert ids() == [0, 1, 2]
            for mode, expected in (("POP", [-1]), ("PULL", [0, 1, 2]), ("POP", [-1])):
                operations.set_request_mode("t", "g", mode)
                end = time.monotonic() + LIMIT_S
                # Long before the next rebalance, which is 20 s away.
                while ids() != expected:
                    assert time.monotonic() < end
                    time.sleep(0.01)
            status = consumer._core._instance.asked.consumers["g"]
            info = status.running_info(stacks=False)
            assert b'"mqPopTable":{{"brokerName":"broker-a","queueId":-1,"topic":"t"}:{"droped":false' in info


def test_consumers_go_on_after_the_broker_was_killed(tmp_path: Path) -> None:
    with run_server_process(tmp_path / "store") as server:
        with Admin(server.namesrv) as operations:
            operations.create_topic("t", queue_count=4)
            operations.put_group("push")
            operations.set_request_mode("t", "push", "POP")
        got: set[bytes] = set()
        some = threading.Event()

        def listener(message: ReceivedMessage) -> None:
            got.add(message.body)
            if len(got) >= 50:
                some.set()
            time.sleep(0.002)

        how = PopSettings(invisible_ms=2000)
        pusher = PushConsumer(server.namesrv, "push", consume_from="first", pop=True, pop_settings=how, threads=4)
        pusher.subscribe("t")
        pusher.listen(listener)
        with (
            SimpleConsumer(server.namesrv, "simple", consume_from="first", invisible_ms=2000) as simple,
            Producer(server.namesrv, "p") as producer,
        ):
            simple.subscribe("t")
            for i in range(300):
                producer.send("t", b"%d" % i)
            with pusher:
                assert some.wait(LIMIT_S)
                acked = receive(simple, 32)[:32]
                simple.ack(acked)
                server.kill()
                with pytest.raises(RocketSparkError):
                    simple.receive(timeout_ms=500)
                server.restart()
                end = time.monotonic() + LIMIT_S
                while len(got) < 300:
                    assert time.monotonic() < end, len(got)
                    time.sleep(0.02)
            bodies = {m.body for m in acked}
            while len(bodies) < 300:
                assert time.monotonic() < end, len(bodies)
                try:
                    more = simple.receive(timeout_ms=2000)
                    simple.ack(more)
                except RocketSparkError:
                    continue
                bodies |= {m.body for m in more}


def test_batches_that_are_stored_as_one_record_come_again_and_are_acknowledged() -> None:
    """A topic of queue.type=BatchCQ: all messages of a batch have the receipt handle of their record."""
    with run_cluster() as cluster:
        with Admin(cluster.namesrv) as operations:
            operations.create_topic("batches", queue_count=1, attributes="+queue.type=BatchCQ")
        with (
            Producer(cluster.namesrv, "p") as producer,
            SimpleConsumer(cluster.namesrv, "g", consume_from="first", invisible_ms=1000) as consumer,
        ):
            consumer.subscribe("batches")
            for batch in (b"a", b"b"):
                producer.send_batch([Message(topic="batches", body=batch + b"%d" % i) for i in range(3)])
            first = receive(consumer, 6)
            assert [m.body for m in first] == [b"a0", b"a1", b"a2", b"b0", b"b1", b"b2"]
            assert len({m.receipt_handle for m in first[:3]}) == len({m.receipt_handle for m in first[3:]}) == 1
            consumer.ack(first[:3])
            again = receive(consumer, 3)
            assert [(m.body, m.reconsume_times, m.topic) for m in again] == [
                (b"b%d" % i, 1, "batches") for i in range(3)
            ]
            consumer.ack(again)


@pytest.mark.parametrize("committed", [0, 1, 4])
def test_in_order_a_batch_that_is_acknowledged_comes_no_more(committed: int) -> None:
    """Its record has one offset in the note of the pop: the one after it lies within the batch. As does a commit."""
    with run_cluster() as cluster:
        with Admin(cluster.namesrv) as operations:
            operations.create_topic("batches", queue_count=1, attributes="+queue.type=BatchCQ")
            operations.put_group("g", GroupSettings(ordered=True))
        with (
            Producer(cluster.namesrv, "p") as producer,
            PullConsumer(cluster.namesrv, "g") as pull,
            SimpleConsumer(cluster.namesrv, "g", consume_from="first", ordered=True) as consumer,
        ):
            consumer.subscribe("batches")
            for batch in (b"a", b"b"):
                producer.send_batch([Message(topic="batches", body=batch + b"%d" % i) for i in range(3)])
            (queue,) = pull.queues("batches")
            pull.commit({queue: committed})
            first = receive(consumer, 6 - committed // 3 * 3)
            consumer.ack(first)
            assert pull.committed(queue) == 6
            producer.send("batches", b"c")
            assert [m.body for m in receive(consumer, 1)] == [b"c"]


def test_a_subscription_by_tag_gets_its_messages_out_of_batches() -> None:
    """A batch has no tags as a whole: by the code of none all its messages were passed over."""
    with run_cluster() as cluster:
        with Admin(cluster.namesrv) as operations:
            operations.create_topic("batches", queue_count=1, attributes="+queue.type=BatchCQ")
        with (
            Producer(cluster.namesrv, "p") as producer,
            PullConsumer(cluster.namesrv, "pulls", consume_from="first") as pull,
            SimpleConsumer(cluster.namesrv, "pops", consume_from="first", invisible_ms=1000) as consumer,
        ):
            for batch, tags in ((b"a", "xyx"), (b"b", "zzz"), (b"c", "x")):
                producer.send_batch([Message("batches", batch + b"%d" % i, tag=tag) for i, tag in enumerate(tags)])
            pull.subscribe("batches", "x || w")
            polled: list[bytes] = []
            end = time.monotonic() + LIMIT_S
            while len(polled) < 3:
                assert time.monotonic() < end
                polled += [m.body for m in pull.poll(1000)]
            assert polled == [b"a0", b"a2", b"c0"]
            consumer.subscribe("batches", "x || w")
            for times in (0, 1):
                found = receive(consumer, 3)
                # Nothing is acknowledged of a batch that holds one which is wanted.
                assert [(m.body, m.reconsume_times) for m in found] == [(body, times) for body in polled]
            consumer.ack(found)
            producer.send("batches", b"last", tag="w")
            assert [m.body for m in receive(consumer, 1)] == [b"last"]


def test_a_push_consumer_acknowledges_a_batch_when_all_its_messages_are_done() -> None:
    """One record, one acknowledgement: told earlier, a consumer that dies would lose the rest."""
    with run_cluster() as cluster:
        with Admin(cluster.namesrv) as operations:
            operations.create_topic("batches", queue_count=1, attributes="+queue.type=BatchCQ")
            operations.put_group("g")
            operations.set_request_mode("batches", "g", "POP")
        with Producer(cluster.namesrv, "p") as producer:
            producer.send_batch([Message(topic="batches", body=b"%d" % i) for i in range(3)])
        seen, last, asked = Seen(), threading.Event(), threading.Event()

        def listener(message: ReceivedMessage) -> None:
            if message.body == b"2":
                last.set()
                asked.wait(LIMIT_S)

        consumer = PushConsumer(cluster.namesrv, "g", pop=True, threads=1, consume_from="first", hooks=[seen])
        consumer.subscribe("batches")
        consumer.listen(listener)
        with consumer:
            assert last.wait(LIMIT_S)
            popping = consumer._core._popping
            assert popping is not None
            (batch,) = popping._batches
            end = time.monotonic() + LIMIT_S
            while len(batch.pending) > 1:
                assert time.monotonic() < end
                time.sleep(0.01)
            assert not popping._finishing, "nothing is told of the two that are done"
            asked.set()
        acks = (RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE)
        assert [code for code in seen.requests if code in acks] == [RequestCode.ACK_MESSAGE]


def test_a_batch_that_is_larger_than_a_receive_asks_for_is_not_cut(tmp_path: Path) -> None:
    """Its second part has the handle of the first: who acknowledged it acknowledged what another receive had."""
    with run_cluster() as cluster:
        with Admin(cluster.namesrv) as operations:
            operations.create_topic("batches", queue_count=1, attributes="+queue.type=BatchCQ")
        with (
            Producer(cluster.namesrv, "p") as producer,
            SimpleConsumer(cluster.namesrv, "g", consume_from="first") as consumer,
        ):
            consumer.subscribe("batches")
            for count in (40, 3):
                producer.send_batch([Message(topic="batches", body=b"%d" % i) for i in range(count)])
            first = consumer.receive(8, timeout_ms=LIMIT_S * 1000)
            assert [m.body for m in first] == [b"%d" % i for i in range(40)]
            consumer.ack(first)
            assert len(receive(consumer, 3)) == 3
