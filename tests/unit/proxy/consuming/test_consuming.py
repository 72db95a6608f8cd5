"""Receiving through a proxy, from our broker: what comes, what became of it, what is freed when clients go."""

from __future__ import annotations

import gzip
import hashlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.patience import in_time
from tests.unit.proxy.conftest import RunningProxy, running_proxy
from tests.unit.proxy.consuming.support import PUSH, SQL, Consumer, bodies, make_group, make_topic
from tests.unit.proxy.producing.support import stored

from rocketspark import Message, Producer
from rocketspark.errors import RouteNotFound
from rocketspark.protocol.pop_answers import ReceiptHandle
from rocketspark.proxy.wire.enumerations import Code, Encoding
from rocketspark.testing.cluster import Cluster
from rocketspark.testing.process import run_server_process

pytestmark = pytest.mark.shows(
    "ReceiveMessage: filters, long polling, attempts to dead letters, order with `attempt_id`; a receive that "
    "is cancelled gives back what comes for it",
    "AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue: outcomes of each entry, foreign "
    "and odd handles",
    "a broker killed during a receive, two clients with one id",
)

QUICK = {"receive_invisible_ms_min": 100, "default_invisible_ms": 3000, "renew_ahead_ms": 2000}
QUICK |= {"renew_interval_ms": 200, "long_polling_ms_min": 200, "route_refresh_ms": 1000}


@pytest.fixture(scope="module")
def proxy(cluster: Cluster) -> Iterator[RunningProxy]:
    with running_proxy(cluster.namesrv, {"grace_s": 1.0}, **QUICK) as running:
        yield running


class World:
    """A topic and a group of their own."""

    def __init__(self, cluster: Cluster, proxy: RunningProxy) -> None:
        self.cluster, self.proxy = cluster, proxy
        name = uuid.uuid4().hex[:12]
        self.topic, self.group = f"T{name}", f"G{name}"
        make_topic(cluster.brokers[0], self.topic)
        self.opened: list[Consumer] = []

    def consumer(self, kind: int = 3, group: str = "", client_id: str = "") -> Consumer:
        made = Consumer(self.proxy.address, group or self.group, self.topic, kind, client_id)
        self.opened.append(made)
        return made

    def send(self, *sent: Any, **options: Any) -> None:
        with Producer(self.cluster.namesrv, **options) as producer:
            for one in sent:
                producer.send(one if isinstance(one, Message) else Message(topic=self.topic, body=one))

    def close(self) -> None:
        for one in self.opened:
            one.vanish()


@pytest.fixture
def world(cluster: Cluster, proxy: RunningProxy) -> Iterator[World]:
    made = World(cluster, proxy)
    yield made
    made.close()


def test_everything_of_a_message_comes(world: World) -> None:
    world.send(Message(topic=world.topic, body=b"body", tag="A", keys=("k1", "k2"), properties={"a": "1", "é": "😀"}))
    before_ms = time.time() * 1000
    (got,) = world.consumer().receive()
    system = got.system_properties
    assert (got.topic.name, got.body, dict(got.user_properties)) == (world.topic, b"body", {"a": "1", "é": "😀"})
    assert (system.tag, list(system.keys), system.delivery_attempt) == ("A", ["k1", "k2"], 1)
    assert (system.body_encoding, system.body_digest.checksum) == (1, hashlib.md5(b"body").hexdigest().upper())
    handle = ReceiptHandle.decode(system.receipt_handle)
    (found,) = stored(world.proxy, world.topic)
    assert (system.message_id, system.queue_offset) == (found.message_id, found.queue_offset)
    assert (handle.physical_offset, handle.invisible_time_ms) == (found.physical_offset, 30_000)
    assert abs(handle.pop_time_ms - before_ms) < 10_000
    assert not system.HasField("invisible_duration")


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
def test_bodies_that_a_producers_client_compressed_come_readable(world: World, kind: str) -> None:
    body = b"many times the same " * 1000
    world.send(body, compression=kind, compress_over_bytes=100)
    (got,) = world.consumer().receive()
    assert stored(world.proxy, world.topic)[0].sys_flag & 1, "it is stored compressed"
    assert (got.body, got.system_properties.body_encoding) == (body, Encoding.IDENTITY)
    assert got.system_properties.body_digest.checksum == hashlib.md5(body).hexdigest().upper()


def test_what_is_acknowledged_stays_away_and_the_rest_comes_again_with_its_attempt(world: World) -> None:
    world.send(b"1", b"2", b"3")
    consumer = world.consumer()
    got = consumer.receive_all(3, invisible_ms=1500)
    answer = consumer.ack(*got[:2])
    assert answer.status.code == Code.OK
    assert [entry.status.code for entry in answer.entries] == [Code.OK, Code.OK]
    (again,) = consumer.receive_all(1, polling_ms=15_000)
    assert (again.body, again.system_properties.delivery_attempt) == (got[2].body, 2)
    assert again.topic.name == world.topic
    assert consumer.ack(again).status.code == Code.OK
    assert consumer.receive(polling_ms=200) == []


def test_an_expired_handle_and_a_good_one_have_outcomes_of_their_own(world: World) -> None:
    world.send(b"1", b"2")
    consumer = world.consumer()
    got = consumer.receive_all(2)
    late = ReceiptHandle.decode(got[0].system_properties.receipt_handle)
    got[0].system_properties.receipt_handle = late.encode().replace(str(late.pop_time_ms), "1600000000000", 1)
    answer = consumer.ack(*got)
    assert answer.status.code == Code.MULTIPLE_RESULTS
    assert [entry.status.code for entry in answer.entries] == [Code.INVALID_RECEIPT_HANDLE, Code.OK]
    assert answer.entries[0].status.message == "receipt handle is expired"
    assert answer.entries[1].receipt_handle == got[1].system_properties.receipt_handle


def test_an_invisible_time_is_changed_and_the_new_handle_holds(world: World) -> None:
    world.send(b"1")
    consumer = world.consumer()
    (got,) = consumer.receive()
    handle = got.system_properties.receipt_handle
    answer = consumer.change(handle, 20_000)
    assert answer.status.code == Code.OK
    new = ReceiptHandle.decode(answer.receipt_handle)
    assert (new.invisible_time_ms, new.physical_offset) == (20_000, ReceiptHandle.decode(handle).physical_offset)
    begun = time.monotonic()
    assert consumer.change(answer.receipt_handle, 300).status.code == Code.OK
    (again,) = consumer.receive(polling_ms=15_000)
    assert (again.body, again.system_properties.delivery_attempt) == (b"1", 2)
    assert time.monotonic() - begun < 10


def dead_letters(world: World) -> list[bytes]:
    """Return those of the group; the first one makes the topic, of which a NameServer hears a moment later."""
    try:
        return sorted(one.body for one in stored(world.proxy, f"%DLQ%{world.group}"))
    except RouteNotFound:
        return []


def test_a_message_is_given_up_and_another_one_has_too_many_attempts(world: World) -> None:
    make_group(world.cluster.brokers[0], world.group, retry_max_times=0)
    world.send(b"1")
    consumer = world.consumer()
    assert consumer.settings.backoff_policy.max_attempts == 1
    (got,) = consumer.receive()
    assert consumer.forward(got.system_properties.receipt_handle).status.code == Code.OK
    wait_until(lambda: dead_letters(world) == [b"1"])
    world.send(b"2")
    (got,) = consumer.receive(invisible_ms=200)
    # Its second attempt is one too many.
    answers = consumer.answers(polling_ms=10_000)
    assert (answers[0].status.code, answers[0].status.message) == (Code.MESSAGE_NOT_FOUND, "no match message")
    wait_until(lambda: dead_letters(world) == [b"1", b"2"])
    assert consumer.forward("0 1 1 0 0 broker-a 0 0").status.code == Code.INVALID_RECEIPT_HANDLE


def wait_until(what: Callable[[], bool], timeout_s: float = 10.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_a_tag_with_the_same_hash_code_is_acknowledged_and_not_delivered(world: World) -> None:
    world.send(
        Message(topic=world.topic, body=b"other", tag="BB"), Message(topic=world.topic, body=b"wanted", tag="Aa")
    )
    consumer = world.consumer()
    assert bodies(consumer.receive_all(1, expression="Aa")) == [b"wanted"]
    wait_until(lambda: consumer.receive(polling_ms=200) == [])


def test_sql_chooses(world: World) -> None:
    sent = [Message(topic=world.topic, body=str(n).encode(), properties={"a": str(n)}) for n in range(6)]
    world.send(*sent)
    got = world.consumer().receive_all(2, expression="a > 3", kind=SQL)
    assert bodies(got) == [b"4", b"5"]


def test_a_waiting_receive_is_answered_by_what_arrives(world: World) -> None:
    consumer = world.consumer()
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(consumer.receive(polling_ms=15_000)))
    begun = time.monotonic()
    thread.start()
    time.sleep(0.3)
    world.send(b"now")
    thread.join(15)
    assert bodies(found) == [b"now"]
    assert time.monotonic() - begun < 10


def test_what_comes_for_a_receive_that_was_cancelled_is_free_soon(world: World) -> None:
    consumer, other = world.consumer(), world.consumer()
    held = consumer.receiving(polling_ms=15_000)
    time.sleep(0.3)
    held.cancel()
    time.sleep(0.1)
    world.send(b"1")
    begun = time.monotonic()
    (got,) = other.receive(polling_ms=15_000)
    assert (got.body, got.system_properties.delivery_attempt) == (b"1", 1), "nobody had it"
    assert time.monotonic() - begun < 6, "not at the end of its 30 s"


def test_a_vanished_push_consumers_messages_are_free_soon_a_simple_ones_are_not(world: World) -> None:
    world.send(*[str(n).encode() for n in range(4)])
    push, simple, other = world.consumer(PUSH), world.consumer(), world.consumer()
    got = push.receive(count=2, auto_renew=True)
    kept = []
    while len(kept) < 4 - len(got):
        kept += simple.receive(count=2)
    assert world.proxy.server.consuming.renewals.count == len(got)
    begun = time.monotonic()
    push.vanish()
    simple.vanish()
    again = other.receive_all(len(got), polling_ms=10_000)
    took_s = time.monotonic() - begun
    assert bodies(again) == bodies(got)
    assert took_s < 5
    assert world.proxy.server.consuming.renewals.count == 0
    assert other.receive(polling_ms=200) == []
    assert kept


@pytest.mark.shows("handles renewed; a client that ends or vanishes frees its push messages")
def test_a_vanished_push_consumers_messages_are_free_within_two_seconds(world: World, tmp_path: Path) -> None:
    def once(_: Path) -> None:
        world.send(b"1")
        push, other = world.consumer(PUSH), world.consumer()
        assert bodies(push.receive(auto_renew=True)) == [b"1"]
        begun = time.monotonic()
        push.vanish()
        (again,) = other.receive_all(1, polling_ms=10_000)
        took_s = time.monotonic() - begun
        assert other.ack(again).status.code == Code.OK
        assert (again.body, again.system_properties.delivery_attempt) == (b"1", 2)
        # The grace for a stream that is opened anew, and none for acknowledgements that nobody can send.
        assert 1 <= took_s < 2

    in_time(once, tmp_path)


@pytest.mark.shows("late redelivery after SIGKILL, renewals after a failed acknowledgement")
@pytest.mark.parametrize("in_order", [False, True])
def test_messages_of_a_killed_consumer_that_waited_for_more_come_as_soon_to_another(
    world: World, tmp_path: Path, in_order: bool
) -> None:
    """Its own receive, which the broker holds on, gets them first, for nobody; that is no attempt."""
    make_group(world.cluster.brokers[0], world.group, consume_message_orderly=in_order, retry_max_times=1)

    def once(_: Path) -> None:
        topic = f"T{uuid.uuid4().hex[:12]}"
        make_topic(world.cluster.brokers[0], topic, queues=1)
        sent = [Message(topic=topic, body=b"%d" % n, sharding_key="k") for n in range(2 if in_order else 1)]
        push, other = (Consumer(world.proxy.address, world.group, topic, PUSH) for _ in range(2))
        world.send(sent[0])
        assert bodies(push.receive(auto_renew=True)) == [b"0"]
        held = push.receiving(auto_renew=True, polling_ms=15_000)
        wait_until(lambda: world.proxy.server.service.at_work > 0)
        world.send(*sent[1:])
        begun = time.monotonic()
        push.vanish()
        held.cancel()
        time.sleep(0.2)
        got = other.receive_all(len(sent), polling_ms=10_000)
        took_s = time.monotonic() - begun
        assert [(m.body, m.system_properties.delivery_attempt) for m in got] == [(b"0", 2), (b"1", 1)][: len(sent)]
        other.ack(*got)
        other.vanish()
        assert took_s < 2

    in_time(once, tmp_path)


def test_a_client_that_ends_frees_its_messages_at_once(world: World) -> None:
    world.send(b"1")
    push, other = world.consumer(PUSH), world.consumer()
    assert bodies(push.receive(auto_renew=True)) == [b"1"]
    assert push.terminate().status.code == Code.OK
    assert bodies(other.receive(polling_ms=10_000)) == [b"1"]


def test_handles_are_renewed_for_as_long_as_the_client_is_there(world: World) -> None:
    world.send(b"1")
    push, other = world.consumer(PUSH), world.consumer()
    (got,) = push.receive(auto_renew=True)
    handle = ReceiptHandle.decode(got.system_properties.receipt_handle)
    assert handle.invisible_time_ms == 3000
    wait_until(lambda: time.time() * 1000 > handle.next_visible_ms + 200)
    assert other.receive(polling_ms=2500) == []
    answer = push.ack(got)
    assert [entry.status.code for entry in answer.entries] == [Code.OK], "by the handle that it was given"
    assert world.proxy.server.consuming.renewals.count == 0


def test_order_holds_and_an_attempt_is_repeated(world: World) -> None:
    make_group(world.cluster.brokers[0], world.group, consume_message_orderly=True)
    world.send(*[Message(topic=world.topic, body=str(n).encode()) for n in range(1)])
    consumer = world.consumer()
    assert consumer.settings.subscription.fifo
    (got,) = consumer.receive(attempt_id="one")
    (same,) = consumer.receive(attempt_id="one")
    assert got.body == same.body
    assert consumer.receive(polling_ms=200, attempt_id="two") == []
    assert consumer.ack(same).status.code == Code.OK


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        ({"count": 0}, Code.BAD_REQUEST),
        ({"invisible_ms": 99}, Code.ILLEGAL_INVISIBLE_TIME),
        ({"invisible_ms": -(10**13)}, Code.ILLEGAL_INVISIBLE_TIME),
        ({"invisible_ms": 10**13}, Code.ILLEGAL_INVISIBLE_TIME),
        ({"invisible_ms": 43_200_000, "polling_ms": 200}, Code.MESSAGE_NOT_FOUND),
        ({"expression": "a ==", "kind": SQL}, Code.ILLEGAL_FILTER_EXPRESSION),
        ({"expression": "", "kind": SQL}, Code.ILLEGAL_FILTER_EXPRESSION),
        ({"expression": "||"}, Code.ILLEGAL_FILTER_EXPRESSION),
        ({"polling_ms": -5000}, Code.MESSAGE_NOT_FOUND),
        ({"polling_ms": 5000, "timeout_s": 0.19}, Code.BAD_REQUEST),
    ],
)
def test_odd_receives(world: World, request_: dict[str, Any], code: Code) -> None:
    answers = world.consumer().answers(**request_)
    assert answers[0].status.code == code
    assert [answer.WhichOneof("content") for answer in answers] == ["status", "delivery_timestamp"]


@pytest.mark.shows(
    'texts that official tests look for: rocketmq-e2e has three ("the invisibleTime is too small", "... too '
    'large", INVALID_RECEIPT_HANDLE), the clients of all languages and apache/rocketmq test module none'
)
def test_texts_that_apaches_tests_look_for(world: World) -> None:
    """All of them in rocketmq-e2e; its other tests and the clients themselves look at codes alone."""
    world.send(b"1")
    consumer = world.consumer()
    (got,) = consumer.receive()
    handle = got.system_properties.receipt_handle
    small, large = "the invisibleTime is too small", "the invisibleTime is too large"
    got.system_properties.receipt_handle = handle.replace(handle.split(" ")[1], "1600000000000", 1)
    found = [
        (consumer.answers(invisible_ms=99)[0].status, small),
        (consumer.answers(invisible_ms=43_200_001)[0].status, large),
        (consumer.change(handle, -1).status, small),
        (consumer.change(handle, 43_200_001).status, large),
        (consumer.ack(got).status, "INVALID_RECEIPT_HANDLE"),
    ]
    assert [status.message.startswith(text) for status, text in found] == [True] * 5


def test_a_handle_of_another_group_or_topic_harms_nothing(world: World) -> None:
    world.send(b"1")
    consumer = world.consumer()
    (got,) = consumer.receive()
    stranger = world.consumer(group=f"Other{world.group}")
    handle = got.system_properties.receipt_handle
    assert stranger.ack(got).status.code in (Code.OK, Code.INTERNAL_SERVER_ERROR)
    assert stranger.change(handle, 1000).status.code in (Code.OK, Code.INTERNAL_SERVER_ERROR)
    assert consumer.ack(got, topic="NoSuchTopic").status.code == Code.INTERNAL_SERVER_ERROR
    assert consumer.change(handle, -1).status.code == Code.ILLEGAL_INVISIBLE_TIME
    assert consumer.change(handle, 10**12).status.code == Code.ILLEGAL_INVISIBLE_TIME
    nowhere = handle.replace("broker-a", "broker-x")
    assert consumer.change(nowhere, 1000).status.code == Code.BAD_REQUEST
    assert consumer.receive(polling_ms=200) == [], "it is its first receiver's still"
    assert consumer.ack(got).status.code == Code.OK


def test_a_gzip_body_of_a_new_client_stays_as_it_is(world: World) -> None:
    from rocketspark.proxy.wire import messages

    packed = gzip.compress(b"body" * 100)
    consumer = world.consumer()
    one = messages.Message(topic={"name": world.topic}, body=packed)
    one.system_properties.message_id, one.system_properties.body_encoding = "0101", Encoding.GZIP
    answer = consumer.raw.call("SendMessage", messages.SendMessageRequest(messages=[one]))
    assert answer.status.code == Code.OK
    (got,) = consumer.receive()
    assert (got.body, got.system_properties.body_encoding) == (packed, Encoding.GZIP)


def test_one_of_two_clients_with_one_id_vanishes_and_the_other_keeps_what_it_has(world: World) -> None:
    world.send(b"1")
    first = world.consumer(PUSH, client_id=f"same-{world.group}")
    second = world.consumer(PUSH, client_id=f"same-{world.group}")
    (got,) = second.receive(auto_renew=True)
    first.vanish()
    clients = world.proxy.server.clients
    wait_until(lambda: len(clients.all()[-1].streams) == 1 and clients.get(f"/same-{world.group}") is not None)
    assert second.ack(got).status.code == Code.OK


def test_a_broker_that_is_killed_ends_a_receive_at_once(tmp_path: Path) -> None:
    with (
        run_server_process(tmp_path, config={"brokerName": "broker-a"}) as server,
        running_proxy(server.namesrv, None, **QUICK) as proxy,
    ):
        make_topic(server.broker, "T")
        consumer = Consumer(proxy.address, "G", "T")
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.extend(consumer.answers(polling_ms=15_000)))
        thread.start()
        wait_until(lambda: proxy.server.service.at_work > 0)
        server.kill()
        thread.join(10)
        assert [answer.WhichOneof("content") for answer in found] == ["status", "delivery_timestamp"]
        assert found[0].status.code == Code.PROXY_TIMEOUT
        consumer.vanish()
