"""Our clients on our servers, over real sockets: whole round trips, kills and restarts in between."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.patience import LIMIT_MS, LIMIT_S
from tests.support.ports import server_ports

from rocketspark import (
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SimpleConsumer,
)
from rocketspark.admin.operations import Admin, AsyncAdmin
from rocketspark.errors import RouteNotFound, SendFailed, ServerError, UsageError
from rocketspark.testing import Cluster, ServerProcess, run_cluster

pytestmark = pytest.mark.shows("a store id of a broker that moved; a message's queue in every method")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with run_cluster(2) as running:
        yield running


def read_all(namesrv: str, topic: str, count: int, group: str = "reader") -> list[ReceivedMessage]:
    with PullConsumer(namesrv, group, consume_from="first", auto_commit=False) as consumer:
        consumer.assign(consumer.queues(topic))
        found: list[ReceivedMessage] = []
        end_s = time.monotonic() + 120
        while len(found) < count and time.monotonic() < end_s:
            found += consumer.poll(200)
        return found


def test_a_program_creates_a_topic_where_brokers_create_none_by_themselves() -> None:
    with run_cluster(2, auto_create_topic=False) as strict, Producer(strict.namesrv) as producer:
        producer.create_topic("mine", queue_count=3)
        assert [queue.broker_name for queue in producer.queues("mine")] == ["broker-a"] * 3 + ["broker-b"] * 3
        with pytest.raises(RouteNotFound, match="no-such-topic"):
            producer.create_topic("other", default_topic="no-such-topic")


def test_every_field_comes_back(cluster: Cluster) -> None:
    body = bytes(range(256)) * 40
    message = Message(
        topic="fields",
        body=body,
        tag="Tag-é",
        keys=["k1", "ключ"],
        properties={"a": 'quote" and \\ slash', "漢": "字"},
        sharding_key="s",
        flag=77,
    )
    with Producer(cluster.namesrv, "pg") as producer:
        result = producer.send(message)
    (got,) = read_all(cluster.namesrv, "fields", 1)
    assert (got.body, got.tag, got.keys, got.flag) == (body, "Tag-é", ("k1", "ключ"), 77)
    assert {k: got.properties[k] for k in ("a", "漢", "__SHARDINGKEY", "WAIT")} == {
        "a": 'quote" and \\ slash',
        "漢": "字",
        "__SHARDINGKEY": "s",
        "WAIT": "true",
    }
    assert (got.message_id, got.offset_message_id) == (result.message_id, result.offset_message_id)
    assert (MessageQueue(*got.queue), got.queue_offset) == (result.queue, result.queue_offset)
    assert got.sys_flag & 1
    assert got.stored_bytes < len(body)


def test_all_ways_to_send(cluster: Cluster) -> None:
    with Producer(cluster.namesrv, "pg") as producer:
        producer.send("ways", b"sync")
        producer.send_future("ways", b"future").result(120)
        producer.send_batch([Message(topic="ways", body=b"batch%d" % i) for i in range(3)])
        producer.send_oneway("ways", b"oneway")
        queue = producer.queues("ways")[-1]
        assert producer.send("ways", b"chosen", queue=queue).queue == queue

    async def run() -> None:
        async with AsyncProducer(cluster.namesrv, "pg") as producer:
            await asyncio.gather(*(producer.send("ways", b"async%d" % i) for i in range(20)))

    asyncio.run(run())
    expected = [b"sync", b"future", b"oneway", b"chosen", *(b"batch%d" % i for i in range(3))]
    expected += [b"async%d" % i for i in range(20)]
    assert sorted(m.body for m in read_all(cluster.namesrv, "ways", len(expected))) == sorted(expected)


def test_a_group_shares_and_goes_on(cluster: Cluster) -> None:
    """Members come and go while messages flow: none is lost, and few come twice."""
    with Admin(cluster.namesrv) as operations:
        operations.create_topic("shared", queue_count=4)
    got: Counter[bytes] = Counter()
    by: dict[str, int] = defaultdict(int)
    guard = threading.Lock()

    def member(name: str) -> PushConsumer:
        consumer = PushConsumer(cluster.namesrv, "shared-group", consume_from="first", commit_interval_ms=50)
        consumer.subscribe("shared", "A || B")

        @consumer.listen
        def listener(message: ReceivedMessage) -> None:
            with guard:
                got[message.body] += 1
                by[name] += 1

        return consumer

    with Producer(cluster.namesrv, "pg") as producer:

        def send(start: int, end: int) -> None:
            futures = [producer.send_future("shared", b"%d" % i, tag="ABC"[i % 3]) for i in range(start, end)]
            for future in futures:
                future.result(120)

        with member("one"):
            send(0, 1500)
            with member("two") as two:
                while not [q for q in two.queues() if q.topic == "shared"]:
                    time.sleep(0.01)
                send(1500, 3000)
                await_count(got, 2000)
            send(3000, 3600)
            await_count(got, 2400)
    assert sorted(got) == sorted(b"%d" % i for i in range(3600) if i % 3 < 2)
    assert by["one"] > 0
    assert by["two"] > 0
    assert sum(got.values()) - len(got) < 1200
    # A new member of the group has nothing left to read.
    later: list[ReceivedMessage] = []
    consumer = PushConsumer(cluster.namesrv, "shared-group", consume_from="first")
    consumer.subscribe("shared", "A || B")
    consumer.listen(later.append)
    with consumer:
        time.sleep(0.2)
    assert later == []


def await_count(got: Counter[bytes], count: int, timeout_s: float = 120) -> None:
    end_s = time.monotonic() + timeout_s
    while len(got) < count:
        assert time.monotonic() < end_s, f"{len(got)} of {count} came"
        time.sleep(0.01)


def test_order_within_a_sharding_key(cluster: Cluster) -> None:
    with Producer(cluster.namesrv, "pg") as producer:
        futures = [producer.send_future("ordered", b"%d" % i, sharding_key=f"plane{i % 7}") for i in range(700)]
        results = [f.result(120) for f in futures]
    for key in range(7):
        mine = results[key::7]
        assert len({r.queue for r in mine}) == 1
        assert [r.queue_offset for r in mine] == sorted(r.queue_offset for r in mine)


def test_long_poll_brings_a_message_at_once(cluster: Cluster) -> None:
    arrived: list[float] = []
    come = threading.Event()
    with Admin(cluster.namesrv) as operations:
        operations.create_topic("polled", queue_count=2)
    consumer = PushConsumer(cluster.namesrv, "poll-group", consume_from="first")
    consumer.subscribe("polled")

    @consumer.listen
    def listener(message: ReceivedMessage) -> None:
        arrived.append(time.monotonic())
        come.set()

    with Producer(cluster.namesrv, "pg") as producer:
        producer.send("polled", b"first")
        with consumer:
            assert come.wait(120)
            time.sleep(0.1)
            come.clear()
            sent_s = time.monotonic()
            producer.send("polled", b"second")
            assert come.wait(120)
    assert arrived[-1] - sent_s < 12  # The broker holds a pull for 15 s.


def test_topics_by_hand(cluster: Cluster) -> None:
    with Admin(cluster.namesrv) as operations:
        assert [b.broker_name for b in operations.cluster_info()] == ["broker-a", "broker-b"]
        made = operations.create_topic("by-hand", queue_count=3, brokers=["broker-b"])
        assert [b.broker_name for b in made] == ["broker-b"]
        assert "by-hand" in operations.list_topics()
        with Producer(cluster.namesrv, "pg") as producer:
            assert producer.queues("by-hand") == [MessageQueue("by-hand", "broker-b", i) for i in range(3)]
            for _ in range(6):
                producer.send("by-hand", b"x")
        state = operations.show_topic("by-hand")
        assert [(q.min_offset, q.max_offset) for q in state.queues] == [(0, 2)] * 3
        assert state.message_count == 6
        assert operations.delete_topic("by-hand") == ["broker-b"]
        with pytest.raises(RouteNotFound):
            operations.show_topic("by-hand")
        assert "by-hand" not in operations.list_topics()


def test_a_body_over_the_brokers_limit(cluster: Cluster) -> None:
    with Producer(cluster.namesrv, "pg", body_bytes_max=8 << 20, compress_over_bytes=1 << 30) as producer:
        with pytest.raises(SendFailed) as caught:
            producer.send("large", b"x" * ((4 << 20) + 1))
        assert (caught.value.code, caught.value.attempts) == (13, 1)
        assert producer.send("large", b"x" * (4 << 20)).queue_offset == 0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path / "store", **server_ports())
    process.start()
    try:
        yield process
    finally:
        process.stop()


def test_a_killed_and_restarted_broker_loses_nothing_acknowledged(server: ServerProcess) -> None:
    """Producers and a consumer stay up over two SIGKILLs; every acknowledged message is consumed."""
    acknowledged: set[bytes] = set()
    failed: set[bytes] = set()
    got: Counter[bytes] = Counter()

    async def run() -> None:
        consumer = AsyncPushConsumer(server.namesrv, "kill-group", consume_from="first", commit_interval_ms=100)
        consumer.subscribe("killed")
        consumer.listen(lambda message: got.update([message.body]))
        async with AsyncProducer(server.namesrv, "pg", send_timeout_ms=LIMIT_MS, retries=400) as producer:
            await producer.send("killed", b"0")
            acknowledged.add(b"0")
            async with consumer:
                stop = asyncio.Event()

                async def send(start: int) -> None:
                    number = start
                    while not stop.is_set():
                        body = b"%d" % number
                        number += 8
                        try:
                            await producer.send("killed", body)
                            acknowledged.add(body)
                        except (SendFailed, RouteNotFound):
                            failed.add(body)
                        await asyncio.sleep(0.001)

                senders = [asyncio.ensure_future(send(i)) for i in range(1, 9)]
                for _ in range(2):
                    await asyncio.sleep(0.4)
                    await asyncio.to_thread(server.kill)
                    before = len(acknowledged)
                    await asyncio.to_thread(server.start)
                    async with asyncio.timeout(LIMIT_S):
                        while len(acknowledged) < before + 50:
                            await asyncio.sleep(0.01)
                stop.set()
                await asyncio.gather(*senders)
                async with asyncio.timeout(LIMIT_S):
                    while not acknowledged <= set(got):
                        await asyncio.sleep(0.02)

    asyncio.run(run())
    assert len(acknowledged) > 200
    assert not failed


def test_pull_consumer_goes_on_after_a_restart(server: ServerProcess) -> None:
    async def run() -> None:
        async with (
            AsyncProducer(server.namesrv, "pg", send_timeout_ms=LIMIT_MS, retries=400) as producer,
            AsyncPullConsumer(server.namesrv, "pull-group", consume_from="first") as consumer,
            AsyncAdmin(server.namesrv) as operations,
        ):
            await operations.create_topic("pulled", queue_count=1)
            consumer.subscribe("pulled")
            await producer.send("pulled", b"before")
            assert [m.body for m in await consumer.poll(LIMIT_MS)] == [b"before"]
            await consumer.commit()
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            await producer.send("pulled", b"after")
            assert [m.body for m in await consumer.poll(LIMIT_MS)] == [b"after"]

    asyncio.run(run())


def test_a_message_is_found_by_its_place_when_its_broker_moved(tmp_path: Path) -> None:
    with run_cluster(2, store=tmp_path) as cluster, Producer(cluster.namesrv) as producer:
        producer.create_topic("moved", queue_count=1)
        sent = [producer.send("moved", body, queue=q) for q in producer.queues("moved") for body in (b"1", b"2")]
    # On other ports, where their records' ids do not point.
    with run_cluster(2, store=tmp_path) as cluster, Producer(cluster.namesrv) as producer:
        found = [producer.view_message("moved", result.offset_message_id).body for result in sent]
        assert found == [b"1", b"2", b"1", b"2"]
        nowhere = f"{sent[0].offset_message_id[:-16]}{1:016X}"
        with pytest.raises(ServerError, match=f"no message {nowhere} of topic 'moved' is found"):
            producer.view_message("moved", nowhere)


def test_a_messages_queue_is_one_that_every_method_takes(cluster: Cluster) -> None:
    with (
        Producer(cluster.namesrv) as producer,
        PullConsumer(cluster.namesrv, "again", consume_from="first") as consumer,
    ):
        producer.create_topic("again", queue_count=1)
        producer.send("again", b"x")
        consumer.subscribe("again")
        message = next(iter(consumer))
        queue = message.queue
        assert isinstance(queue, MessageQueue)
        consumer.seek(queue, message.queue_offset)
        assert next(iter(consumer)).body == b"x"
        consumer.commit({queue: 1})
        assert (consumer.committed(queue), consumer.end_offset(queue), consumer.position(queue)) == (1, 1, 1)
        consumer.seek_to_time(queue, 0)
        consumer.pause([queue])
        assert producer.send("again", b"y", queue=queue).queue == queue
        topic, broker_name, queue_id = queue
        assert (topic, broker_name, queue_id) == (queue.topic, queue.broker_name, queue.queue_id)
        with pytest.raises(UsageError, match="is no MessageQueue"):
            producer.send("again", b"y", queue="q0")  # type: ignore[arg-type]


@pytest.mark.shows("members with different subscriptions")
@pytest.mark.parametrize("kind", ["push", "pop", "simple"])
def test_members_with_different_subscriptions_are_warned_of(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("rocketspark.client.consumer.pop.simple_consumer.OTHERS_S", 0)

    def made() -> Any:
        if kind == "simple":
            return SimpleConsumer(cluster.namesrv, f"mixed-{kind}")
        return PushConsumer(cluster.namesrv, f"mixed-{kind}", rebalance_interval_ms=50, pop=kind == "pop")

    def of(part: str) -> list[str]:
        return [r.getMessage() for r in caplog.records if part in r.getMessage() and r.levelname == "WARNING"]

    with Admin(cluster.namesrv) as operations:
        for topic in ("fruit", "bread"):
            operations.create_topic(topic, queue_count=2)
    consumers = [made() for _ in range(2)]
    for consumer, topic in zip(consumers, ("fruit", "bread"), strict=True):
        consumer.subscribe(topic, "a || b")
        if kind != "simple":
            consumer.listen(lambda message: None)
    first, second = consumers
    with first, second:
        end_s = time.monotonic() + LIMIT_S
        group = f"mixed-{kind}"
        while not (of(f"members of group {group} subscribe") and of(f"group {group}: this member")):
            assert time.monotonic() < end_s
            time.sleep(0.01)
            for consumer in consumers if kind == "simple" else ():
                consumer.receive(timeout_ms=1)
        brokers, members = of(f"members of group {group} subscribe"), of(f"group {group}: this member")
        assert len(brokers) == 2
        assert f"{second.client_id} only to bread (a || b), {first.client_id} only to fruit (a || b)" in brokers[0]
        # Whichever of them noticed it first.
        of_first = (
            f"this member subscribes to {{'fruit': 'a || b'}}, another of {second.client_id} to {{'bread': 'a || b'}}"
        )
        of_second = (
            f"this member subscribes to {{'bread': 'a || b'}}, another of {first.client_id} to {{'fruit': 'a || b'}}"
        )
        assert of_first in members[0] or of_second in members[0]


def test_members_alike_are_not_warned_of(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    consumers = [PushConsumer(cluster.namesrv, "alike", rebalance_interval_ms=20) for _ in range(2)]
    looked = []
    for consumer in consumers:
        consumer.subscribe("fruit")
        consumer.listen(lambda message: None)
        look = consumer._core._rebalance._others.look

        async def looking(own: Any, look: Callable[[Any], Awaitable[None]] = look) -> None:
            await look(own)
            looked.append(None)

        consumer._core._rebalance._others.look = looking  # type: ignore[method-assign]
    with consumers[0], consumers[1]:
        end_s = time.monotonic() + LIMIT_S
        while len(looked) < 6:
            assert time.monotonic() < end_s
            time.sleep(0.01)
    assert "group alike" not in caplog.text


@pytest.mark.shows("topic made smaller or anew: producers go on at once, keyed ones in order; a chosen queue is told")
@pytest.mark.parametrize("linger_ms", [None, 1])
def test_sends_go_on_when_their_topic_got_fewer_queues(cluster: Cluster, linger_ms: float | None) -> None:
    """A producer chooses among the queues of a route that is as old as its last look: none of its sends may fail."""
    topic = f"fewer-{linger_ms}"
    with (
        Admin(cluster.namesrv) as operations,
        Producer(cluster.namesrv, "fewer", linger_ms=linger_ms, route_interval_ms=600_000) as producer,
    ):
        operations.create_topic(topic, queue_count=8)
        assert len({producer.send(topic, b"%d" % n).queue for n in range(16)}) == 16
        operations.create_topic(topic, queue_count=1, force=True)
        (a, b) = (MessageQueue(topic, f"broker-{name}", 0) for name in "ab")
        assert {producer.send(topic, b"%d" % n).queue for n in range(16)} == {a, b}


@pytest.mark.shows("topic made smaller or anew: producers go on at once, keyed ones in order; a chosen queue is told")
def test_sends_of_a_key_go_on_when_their_queue_is_gone(cluster: Cluster) -> None:
    with (
        Admin(cluster.namesrv) as operations,
        Producer(cluster.namesrv, "fewer-keys", route_interval_ms=600_000) as producer,
    ):
        operations.create_topic("fewer-keys", queue_count=8)
        assert len({producer.send("fewer-keys", b"x", sharding_key=f"{n}").queue.queue_id for n in range(64)}) > 1
        operations.create_topic("fewer-keys", queue_count=1, force=True)
        places = [(n % 8, producer.send("fewer-keys", b"x", sharding_key=f"{n % 8}").queue) for n in range(32)]
        assert {queue.queue_id for _, queue in places} == {0}
        assert len(set(places)) == 8  # Each key has one queue.


@pytest.mark.shows("topic made smaller or anew: producers go on at once, keyed ones in order; a chosen queue is told")
def test_a_chosen_queue_that_is_gone_is_told_and_the_next_look_shows_those_there_are(cluster: Cluster) -> None:
    with (
        Admin(cluster.namesrv) as operations,
        Producer(cluster.namesrv, "fewer-chosen", route_interval_ms=600_000) as producer,
    ):
        operations.create_topic("fewer-chosen", queue_count=8)
        last = next(queue for queue in producer.queues("fewer-chosen") if queue.queue_id == 7)
        operations.create_topic("fewer-chosen", queue_count=1, force=True)
        with pytest.raises(SendFailed, match="is illegal") as told:
            producer.send("fewer-chosen", b"x", queue=last)
        assert told.value.attempts == 1
        end_s = time.monotonic() + LIMIT_S
        while len(producer.queues("fewer-chosen")) > 2 and time.monotonic() < end_s:
            time.sleep(0.01)
        assert len(producer.queues("fewer-chosen")) == 2


@pytest.mark.shows("topic made smaller or anew: producers go on at once, keyed ones in order; a chosen queue is told")
def test_a_program_that_wants_every_code_gets_that_of_a_queue_that_is_gone(cluster: Cluster) -> None:
    with (
        Admin(cluster.namesrv) as operations,
        Producer(cluster.namesrv, "fewer-told", future_retry_codes=(), route_interval_ms=600_000) as producer,
    ):
        operations.create_topic("fewer-told", queue_count=8)
        producer.send("fewer-told", b"x")
        operations.create_topic("fewer-told", queue_count=1, force=True)
        sends = [producer.send_future("fewer-told", b"x") for _ in range(16)]
        assert sum(send.exception(LIMIT_S) is not None for send in sends) >= 1
        assert {producer.send("fewer-told", b"x").queue.queue_id for _ in range(16)} == {0}


@pytest.mark.shows("mended: a message without room for a retry's properties held its consumer up for ever")
def test_a_message_without_room_for_a_retry_ends_as_a_dead_letter(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocketspark.client.consumer.returned_messages.AGAIN_S", 0.001)
    attempts: list[int] = []
    good: list[ReceivedMessage] = []
    all_came = threading.Event()

    def listener(message: ReceivedMessage) -> bool:
        if message.body == b"good":
            good.append(message)
            if len(good) == 60:
                all_came.set()
            return True
        attempts.append(message.reconsume_times)
        return False

    with Producer(cluster.namesrv) as producer:
        producer.create_topic("crammed", queue_count=1)
        producer.create_topic("%DLQ%crammed-g", queue_count=1)
        (queue, *_) = producer.queues("crammed")
        sent = producer.send("crammed", b"bad", queue=queue, properties={"k": "x" * 32_620}, keys="named")
        for _ in range(60):
            producer.send("crammed", b"good", queue=queue)
    consumer = PushConsumer(cluster.namesrv, "crammed-g", consume_from="first", max_reconsume_times=2, span_max=10)
    consumer.subscribe("crammed")
    consumer.listen(listener)
    with consumer:
        # The last ones are beyond a pull and the span, which begins at the first that is not done.
        assert all_came.wait(LIMIT_S)
        (dead,) = read_all(cluster.namesrv, "%DLQ%crammed-g", 1)
    assert attempts == [0, 1, 2]
    assert (dead.body, dead.keys, dead.message_id) == (b"bad", ("named",), sent.message_id)
    assert dead.properties["RETRY_TOPIC"] == "crammed"
    assert "k" not in dead.properties
