"""Our clients beside the official Java ones, on both servers: what one sends the other reads, and groups are shared."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest
from tests.clients.scene import Inbox, Scene
from tests.java.conftest import DriverFactory
from tests.java.driver import JavaDriver, JavaError, body_of, message
from tests.java.mqadmin import until
from tests.support.patience import LIMIT_MS, LIMIT_S

from rocketspark.admin.operations import Admin
from rocketspark.client import AsyncProducer, Producer, PullConsumer, PushConsumer
from rocketspark.client.consumer.allocate_queues import STRATEGIES
from rocketspark.errors import MessageIllegal
from rocketspark.model import Message, ReceivedMessage

pytestmark = [
    pytest.mark.java,
    pytest.mark.shows("beside the official Java clients, every feature with a wire form, both ways"),
]

ODD = {
    "z\u00fcrich": "\u00e4 ;=\t\u6f22\U0001f680",
    "na me": 'quote " back \\ line\nend',
    "json": '{"a": [1, "b"]}',
    "edges": " x ",
    "-": "\x7f\x00\x03",
}
TEXT = b"all work and no play " * 500
LARGE = random.Random(7).randbytes(4 << 20)
IP = "127.0.0.1"


def java_queue(scene: Scene, queue_id: int = 0) -> dict[str, Any]:
    return {"topic": scene.topic, "broker": "broker-a", "queue_id": queue_id}


def read_by_java(java: JavaDriver, scene: Scene, count: int, queue_id: int = 0) -> list[dict[str, Any]]:
    """A queue's messages as Java reads them, once there are `count`: the Java broker shows them a little later."""
    queue = java_queue(scene, queue_id)
    with java.started("pull", namesrv=scene.namesrv, group="java-lookers") as puller:
        until(lambda: java.call("offsets", name=puller, queue=queue)["max"] >= count)
        found: list[dict[str, Any]] = java.call("read_queue", name=puller, queue=queue)
    return found


def of_scene(scene: Scene) -> dict[str, Any]:
    subscriptions = [{"topic": scene.topic}]
    return {"namesrv": scene.namesrv, "group": scene.group, "subscriptions": subscriptions, "heartbeat_ms": 500}


def java_consumer(java: JavaDriver, scene: Scene, **options: Any) -> Any:
    """A member of the group, which has left it when the block ends."""
    return java.started("push", **(of_scene(scene) | options))


@contextmanager
def java_reader(java: JavaDriver, scene: Scene, name: str, **options: Any) -> Iterator[str]:
    """A consumer, by default of a group of its own. Its end, which takes Java 3 s now and then, is not waited for."""
    name = f"{name}-{scene.group}"
    java.call("push_start", name=name, **(of_scene(scene) | {"group": name} | options))
    try:
        yield name
    finally:
        java.submit("push_stop", name=name)


def awaited(java: JavaDriver, consumer: str, count: int, timeout_ms: int = 120_000) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = java.call("push_await", name=consumer, count=count, timeout_ms=timeout_ms)
    return found


def queues_of(java: JavaDriver, consumer: str, topic: str) -> set[int]:
    held = java.call("push_queues", name=consumer)
    return {queue["queue_id"] for queue in held if queue["topic"] == topic}


def our_queues(consumer: PushConsumer, topic: str) -> set[int]:
    return {queue.queue_id for queue in consumer.queues() if queue.topic == topic}


# -- what is sent ----------------------------------------------------------------------------------------------------

VERSIONS = [("5.5.0", ("zlib", "lz4", "zstd")), ("4.9.7", ("zlib",))]


@pytest.mark.parametrize(("version", "kinds"), VERSIONS, ids=[version for version, _ in VERSIONS])
def test_java_reads_all_we_send(scene: Scene, java_driver: DriverFactory, version: str, kinds: tuple[str, ...]) -> None:
    queue = scene.queue()
    with Producer(scene.namesrv, "pg", compress_over_bytes=5 << 20) as producer:
        fields: Any = {"tag": "t\u00e4g \U0001f680", "keys": ["k\u00e9y", "\u6f22"], "properties": ODD, "flag": 7}
        full = producer.send(scene.topic, "body \u00e9\u4e2d\U0001f680".encode(), queue=queue, **fields)
        batch = [Message(topic=scene.topic, body=b"batch %d" % i, tag="b", properties=ODD) for i in range(3)]
        batched = producer.send_batch(batch, queue=queue)
        large = producer.send(scene.topic, LARGE, queue=queue)
    for kind in kinds:
        with Producer(scene.namesrv, "pg", compression=kind) as producer:
            producer.send(scene.topic, TEXT, tag=kind, queue=queue)

    async def gather() -> list[Any]:
        async with AsyncProducer(scene.namesrv, "pg", linger_ms=5) as producer:
            sends = (producer.send(scene.topic, b"gathered %d" % i, keys=f"g{i}", queue=queue) for i in range(20))
            return await asyncio.gather(*sends)

    gathered = asyncio.run(gather())
    first, *others = read_by_java(java_driver(version), scene, 25 + len(kinds))
    assert body_of(first).decode() == "body \u00e9\u4e2d\U0001f680"
    assert (first["tag"], first["keys"], first["flag"]) == ("t\u00e4g \U0001f680", "k\u00e9y \u6f22", 7)
    assert {name: first["properties"].get(name) for name in ODD} == ODD
    assert (first["message_id"], first["offset_message_id"]) == (full.message_id, full.offset_message_id)
    for one in others[:3]:
        assert {name: one["properties"].get(name) for name in ODD} == ODD
    assert [body_of(one) for one in others[:3]] == [m.body for m in batch]
    assert ",".join(one["message_id"] for one in others[:3]) == batched.message_id
    assert (body_of(others[3]), others[3]["message_id"]) == (LARGE, large.message_id)
    compressed, rest = others[4 : 4 + len(kinds)], others[4 + len(kinds) :]
    assert [(one["tag"], body_of(one)) for one in compressed] == [(kind, TEXT) for kind in kinds]
    assert all(one["stored_bytes"] < 1000 for one in compressed)
    got = {one["message_id"]: (body_of(one), one["keys"], one["queue_offset"]) for one in rest}
    sent = {r.message_id: (b"gathered %d" % i, f"g{i}", r.queue_offset) for i, r in enumerate(gathered)}
    assert got == sent


@pytest.mark.parametrize(("version", "kinds"), VERSIONS, ids=[version for version, _ in VERSIONS])
def test_we_read_all_java_sends(scene: Scene, java_driver: DriverFactory, version: str, kinds: tuple[str, ...]) -> None:
    java, queue = java_driver(version), java_queue(scene)
    body = "body \u00e9\u4e2d\U0001f680"
    full = message(scene.topic, body, tag="t\u00e4g \U0001f680", keys="k\u00e9y \u6f22", properties=ODD, flag=7)
    several = [message(scene.topic, f"{i}", properties=ODD) for i in range(3)]
    started: dict[str, Any] = {"namesrv": scene.namesrv, "group": "java-pg"}
    with java.started("producer", compress_over_bytes=5 << 20, **started) as producer:
        with pytest.raises(JavaError, match="illegal characters"):
            java.call("send", name=producer, messages=[message("t\u00f3pic", "x")])
        (sent,) = java.call("send", name=producer, messages=[full], queue=queue)
        java.call("send_batch", name=producer, messages=several, queue=queue)
        java.call("send", name=producer, messages=[message(scene.topic, LARGE)], queue=queue)
        for _ in java.call("send_async", name=producer, messages=several, queue=queue):
            pass
        java.call("send_oneway", name=producer, messages=[message(scene.topic, "oneway")], queue=queue)
    for kind in kinds:
        # 4.9.7 has no choice.
        chosen = {} if version == "4.9.7" else {"compression": kind.upper()}
        with java.started("producer", **started, **chosen) as producer:
            java.call("send", name=producer, messages=[message(scene.topic, TEXT, tag=kind)], queue=queue)
    found = scene.stored(9 + len(kinds))
    first = found[0]
    assert (first.body.decode(), first.tag, first.keys, first.flag) == (
        body,
        "t\u00e4g \U0001f680",
        ("k\u00e9y", "\u6f22"),
        7,
    )
    assert {name: first.properties.get(name) for name in ODD} == ODD
    assert (first.message_id, first.offset_message_id) == (sent["message_id"], sent["offset_message_id"])
    assert [m.body for m in found[1:4]] == [b"0", b"1", b"2"]
    assert {name: found[2].properties.get(name) for name in ODD} == ODD
    assert found[4].body == LARGE
    texts = [m for m in found[5:] if m.tag]
    assert [(m.tag, m.body) for m in texts] == [(kind, TEXT) for kind in kinds]
    assert all(m.stored_bytes < 1000 for m in texts)
    assert Counter(m.body for m in found[5:] if not m.tag) == Counter([b"0", b"1", b"2", b"oneway"])


def test_a_full_body_that_does_not_shrink(scene: Scene) -> None:
    with Producer(scene.namesrv, "pg") as producer:
        producer.send(scene.topic, LARGE)
        with pytest.raises(MessageIllegal, match="4194305 bytes"):
            producer.send(scene.topic, LARGE + b"x")
    assert [m.body for m in scene.stored(1)] == [LARGE]


def test_namespaces(scene: Scene, java: JavaDriver) -> None:
    inbox = Inbox()
    with Producer(scene.namesrv, "pg", namespace="space") as ours:
        ours.send(scene.topic, b"from ours")
        with java.started("producer", namesrv=scene.namesrv, group="java-pg", namespace="space") as theirs:
            java.call("send", name=theirs, messages=[message(scene.topic, "from java")])
    with (
        scene.consumer(inbox, namespace="space"),
        java_reader(java, scene, "j", namespace="space") as reader,
    ):
        assert sorted(m.body for m in inbox.wait_for(2)) == [b"from java", b"from ours"]
        got = awaited(java, reader, 2)
    assert sorted(body_of(one) for one in got) == [b"from java", b"from ours"]
    assert {one["topic"] for one in got} == {scene.topic} == {m.topic for m in inbox.received}


def test_filters(scene: Scene, java: JavaDriver) -> None:
    sql = "price BETWEEN 10 AND 20 AND region IN ('eu', 'z\u00fcrich') OR note IS NOT NULL"
    by_sql, by_tag = Inbox(), Inbox()
    ours = PushConsumer(scene.namesrv, f"our-sql-{scene.group}", consume_from="first")
    ours.subscribe(scene.topic, sql=sql)
    ours.listen(by_sql)
    tagged = PushConsumer(scene.namesrv, f"our-tag-{scene.group}", consume_from="first")
    tagged.subscribe(scene.topic, "A || t\u00e4g")
    tagged.listen(by_tag)
    rows = [
        ({"price": "5", "region": "eu"}, "A"),
        ({"price": "15", "region": "eu"}, "B"),
        ({"price": "20", "region": "z\u00fcrich"}, "t\u00e4g"),
        ({"price": "20", "region": "us"}, "A"),
        ({"note": "here"}, "C"),
    ]
    with (
        java.started("producer", namesrv=scene.namesrv, group="java-pg") as theirs,
        Producer(scene.namesrv, "pg") as producer,
    ):
        made = [message(scene.topic, f"java {i}", tag=tag, properties=pairs) for i, (pairs, tag) in enumerate(rows)]
        java.call("send", name=theirs, messages=made)
        for i, (pairs, tag) in enumerate(rows):
            producer.send(scene.topic, f"ours {i}".encode(), tag=tag, properties=pairs)
    chosen_by_sql = sorted(f"{who} {i}" for who in ("java", "ours") for i in (1, 2, 4))
    chosen_by_tag = sorted(f"{who} {i}" for who in ("java", "ours") for i in (0, 2, 3))
    with (
        ours,
        tagged,
        java_reader(java, scene, "sql", subscriptions=[{"topic": scene.topic, "sql": sql}]) as s,
        java_reader(java, scene, "tag", subscriptions=[{"topic": scene.topic, "tags": "A || t\u00e4g"}]) as t,
    ):
        assert sorted(m.body.decode() for m in by_sql.wait_for(6)) == chosen_by_sql
        assert sorted(m.body.decode() for m in by_tag.wait_for(6)) == chosen_by_tag
        assert sorted(body_of(one).decode() for one in awaited(java, s, 6)) == chosen_by_sql
        assert sorted(body_of(one).decode() for one in awaited(java, t, 6)) == chosen_by_tag


def test_delays_timers_and_recall(scene: Scene, java: JavaDriver) -> None:
    inbox = Inbox()
    queue = java_queue(scene)
    with (
        scene.consumer(inbox),
        java_reader(java, scene, "j") as reader,
        java.started("producer", namesrv=scene.namesrv, group="java-pg") as theirs,
        Producer(scene.namesrv, "pg") as ours,
    ):
        now_ms = int(time.time() * 1000)

        def timed(body: str, **times: int) -> Any:
            one = message(scene.topic, body, times={name: str(value) for name, value in times.items()})
            return java.call("send_timed", name=theirs, messages=[one], queue=queue)[0]

        # Each takes back what the other sent; Java 4.9.7 knows of no recall.
        handle = ours.send(scene.topic, b"ours recalled", delay_ms=12_000, queue=scene.queue()).recall_handle
        assert handle is not None
        if java.version == "4.9.7":
            ours.recall(scene.topic, handle)
        else:
            java_handle = timed("java recalled", TIMER_DELAY_SEC=12)
            java.call("recall", name=theirs, topic=scene.topic, handle=handle)
            ours.recall(scene.topic, java_handle)
        timed("java seconds", TIMER_DELAY_SEC=1)
        timed("java ms", TIMER_DELAY_MS=1000)
        timed("java at", TIMER_DELIVER_MS=now_ms + 2000)
        java.call("send", name=theirs, messages=[message(scene.topic, "java level", delay_level=2)], queue=queue)
        ours.send(scene.topic, b"ours ms", delay_ms=1000)
        ours.send(scene.topic, b"ours at", deliver_at_ms=now_ms + 2000)
        ours.send(scene.topic, b"ours level", delay_level=2)
        ours.send(scene.topic, b"last", deliver_at_ms=int(time.time() * 1000) + 14_000)
        names = ["java at", "java level", "java ms", "java seconds", "last", "ours at", "ours level", "ours ms"]
        assert sorted(m.body.decode() for m in inbox.wait_for(8)) == names
        got = awaited(java, reader, 8)
    assert sorted(body_of(one).decode() for one in got) == names
    at = {body_of(one).decode(): one["store_time_ms"] for one in got}
    # The wheel's slots are a second; one that a slot covers may come up to that much early.
    assert min(at["java at"], at["ours at"]) >= now_ms + 1000
    assert min(at["java level"], at["ours level"]) >= now_ms + 2000


def test_requests(scene: Scene, java: JavaDriver) -> None:
    with (
        java.started("answerer", topic=scene.topic, **of_scene(scene)),
        Producer(scene.namesrv, f"p-{scene.group}") as asking,
    ):
        assert asking.request(scene.topic, b"one", timeout_ms=LIMIT_MS).body == b"re: one"
        assert asking.request(scene.topic, TEXT, timeout_ms=LIMIT_MS).body == b"re: " + TEXT
    topic = f"{scene.topic}-ours"
    with Admin(scene.namesrv) as operations:
        operations.create_topic(topic, queue_count=1)
    with Producer(scene.namesrv, f"r-{scene.group}") as replier:
        consumer = PushConsumer(scene.namesrv, f"o-{scene.group}", consume_from="first")
        consumer.subscribe(topic)
        consumer.listen(lambda request: replier.reply(request, b"ours: " + request.body) and None)
        with consumer:
            asked = {"namesrv": scene.namesrv, "group": f"j-{scene.group}", "timeout_ms": LIMIT_MS}
            texts = ("one", TEXT.decode())
            answers = [java.submit("request", message=message(topic, t), name=t[:3], **asked) for t in texts]
            assert [answer.result(LIMIT_S) for answer in answers] == [f"ours: {text}" for text in texts]


# -- groups of both --------------------------------------------------------------------------------------------------


class Ordered:
    """Notes for each message its queue, its number, and when it was in work."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, int, int, int]] = []

    def __call__(self, received: ReceivedMessage) -> None:
        begun_ms = int(time.time() * 1000)
        self.taken.append((received.queue_id, received.queue_offset, begun_ms, int(time.time() * 1000)))


def test_ordered_members_share_queues_without_overlap(scene: Scene, java: JavaDriver) -> None:
    ours = Ordered()

    def fill() -> None:
        with Producer(scene.namesrv, "pg") as producer:
            for queue in producer.queues(scene.topic):
                producer.send_batch([Message(topic=scene.topic, body=b"x")] * 20, queue=queue)

    fill()
    consumer = scene.consumer(ours, ordered=True)
    with consumer:
        until(lambda: len(ours.taken) >= 30 and len({queue for queue, *_ in ours.taken}) == 4)
        with java_reader(java, scene, "j", group=scene.group, orderly=True) as theirs:
            until(lambda: len(queues_of(java, theirs, scene.topic)) == 2 == len(our_queues(consumer, scene.topic)))
            assert queues_of(java, theirs, scene.topic).isdisjoint(our_queues(consumer, scene.topic))
            fill()
            until(lambda: len(ours.taken) + len(awaited(java, theirs, 1)) >= 160)
            consumer.close()
            until(lambda: len(queues_of(java, theirs, scene.topic)) == 4)
            fill()
            until(lambda: len(ours.taken) + len(awaited(java, theirs, 1)) >= 240)
            taken = awaited(java, theirs, 1)
    by_java = [(m["queue_id"], m["queue_offset"], m["taken_time_ms"], m["taken_time_ms"]) for m in taken]
    # Both had their part, and each queue's messages were done once, one after another.
    assert len({q for q, *_ in ours.taken}) == len({q for q, *_ in by_java}) == 4
    everything = sorted(ours.taken + by_java)
    assert [(q, offset) for q, offset, *_ in everything] == [(q, offset) for q in range(4) for offset in range(60)]
    for before, after in itertools.pairwise(everything):
        assert before[0] != after[0] or before[3] <= after[2], (before, after)


def test_members_share_by_one_strategy(scene: Scene, java: JavaDriver) -> None:
    queues = [scene.queue(i) for i in range(4)]
    pairs: list[tuple[str, PushConsumer, list[set[int]]]] = []

    def as_shared(theirs: str, ours: PushConsumer, shares: list[set[int]]) -> bool:
        return [queues_of(java, theirs, scene.topic), our_queues(ours, scene.topic)] == shares

    with ExitStack() as stack:
        for strategy in ("average_by_circle", "consistent_hash"):
            for number in itertools.count():
                # Names with which both get some: a hash may give one all.
                names = [f"{who}-{strategy}-{number}" for who in ("java", "ours")]
                members = [f"{IP}@{name}" for name in names]
                shares = [{q.queue_id for q in STRATEGIES[strategy](m, queues, members)} for m in members]
                if all(shares):
                    break
            assert sorted(itertools.chain(*shares)) == [0, 1, 2, 3]
            group = f"{strategy}-{scene.group}"
            ours = PushConsumer(
                scene.namesrv,
                group,
                strategy=strategy,
                client_ip=IP,
                instance_name=names[1],
                rebalance_interval_ms=500,
            )
            ours.subscribe(scene.topic)
            ours.listen(Inbox())
            stack.enter_context(ours)
            its: dict[str, Any] = {"strategy": strategy, "client_ip": IP, "instance": names[0]}
            theirs = stack.enter_context(java_reader(java, scene, strategy, group=group, **its))
            pairs.append((theirs, ours, shares))
        for theirs, ours, shares in pairs:
            until(partial(as_shared, theirs, ours, shares))


def test_what_one_fails_comes_to_the_other(scene: Scene, java: JavaDriver) -> None:
    with Producer(scene.namesrv, "pg") as producer:
        producer.send(scene.topic, b"failed by java", tag="T", keys="k")
        with java_consumer(java, scene, fail_first=1) as theirs:
            awaited(java, theirs, 1)
        inbox = Inbox(then=lambda received: received.body != b"failed by ours" or received.reconsume_times)
        with scene.consumer(inbox):
            (again,) = inbox.wait_for(1)
            assert (again.body, again.topic, again.tag, again.keys) == (b"failed by java", scene.topic, "T", ("k",))
            assert again.reconsume_times == 1
            # A boolean is what says that it failed.
            inbox._then = lambda received: False
            producer.send(scene.topic, b"failed by ours", tag="T", keys="k")
            assert inbox.wait_for(2)[1].body == b"failed by ours"
        with java_reader(java, scene, "j", group=scene.group) as theirs:
            (other,) = awaited(java, theirs, 1)
    assert (body_of(other), other["topic"], other["tag"], other["keys"]) == (b"failed by ours", scene.topic, "T", "k")
    assert other["reconsume_times"] == 1


def test_broadcast_offsets_are_one_file(scene: Scene, java: JavaDriver) -> None:
    folder = java.folder / ".rocketmq_offsets"
    me = {"client_ip": IP, "instance": f"b-{scene.group}"}

    def send(body: bytes) -> None:
        with Producer(scene.namesrv, "pg") as producer:
            for i in range(4):
                producer.send(scene.topic, body, queue=scene.queue(i))

    def by_us() -> list[bytes]:
        inbox = Inbox()
        mine = {"client_ip": IP, "instance_name": me["instance"], "offset_folder": str(folder)}
        with scene.consumer(inbox, broadcast=True, **mine):
            return [m.body for m in inbox.wait_for(4)]

    send(b"first")
    assert by_us() == [b"first"] * 4
    send(b"second")
    with java_consumer(java, scene, model="BROADCASTING", **me) as theirs:
        assert [body_of(one) for one in awaited(java, theirs, 4)] == [b"second"] * 4
    send(b"third")
    assert by_us() == [b"third"] * 4
    assert [path.name for path in folder.glob(f"*{me['instance']}")] == [f"{IP}@{me['instance']}"]


def test_offsets_and_pull_consumers(scene: Scene, java: JavaDriver) -> None:
    with Producer(scene.namesrv, "pg") as producer:
        for i in range(30):
            producer.send(scene.topic, b"%d" % i, queue=scene.queue())
    # Of another group: its end, which is not waited for, stores its own offsets.
    name = f"all-{scene.group}"
    java.call("lite_start", name=name, namesrv=scene.namesrv, group=name, topic=scene.topic)
    got = java.call("lite_poll", name=name, count=30, timeout_ms=120_000)
    assert [body_of(one) for one in got] == [b"%d" % i for i in range(30)]
    java.submit("lite_stop", name=name)
    with PullConsumer(scene.namesrv, scene.group, auto_commit=False) as ours:
        ours.assign([scene.queue()])
        ours.seek(scene.queue(), 12)
        found: list[ReceivedMessage] = []
        end = time.monotonic() + 120
        while len(found) < 18 and time.monotonic() < end:
            found += ours.poll(500)
        assert [m.body for m in found] == [b"%d" % i for i in range(12, 30)]
        ours.commit({scene.queue(): 25})
    queues = [java_queue(scene)]
    again = f"again-{scene.group}"
    java.call("lite_start", name=again, namesrv=scene.namesrv, group=scene.group, topic=scene.topic, assign=queues)
    got = java.call("lite_poll", name=again, count=5, timeout_ms=120_000)
    java.submit("lite_stop", name=again)
    assert [body_of(one) for one in got] == [b"%d" % i for i in range(25, 30)]
