"""The largest request of each kind that costs a broker by what it says, and how long one turn of its loop takes then.

Rule: a row is a request as large as its bounds let it be, or past them and refused; what a turn costs is the
processor's time of the loop's thread, so that a loaded machine changes little. The tests count lines instead.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from rocketspark.broker.server import BrokerServer
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import RocketSparkError
from rocketspark.protocol.codes import RequestCode as Code
from rocketspark.protocol.headers import CreateTopicHeader, SendHeader
from rocketspark.protocol.message import batch
from rocketspark.transport.connections import dial

TOPIC, GROUP = "bench-stretches", "bench-group"
QUEUES = 65_536
MESSAGE_BYTES = 4_100_000
LIMIT_MS = 120_000
REFUSED, ILLEGAL, ONE_BY_ONE, NO_MESSAGE, NOTHING, TIMED_OUT = 29, 13, 3, 19, 20, 210


class Largest(NamedTuple):
    """A request, `count` of them sent at once, and the code that answers it; `ext` and `body` as they are sent."""

    name: str
    code: int
    ext: Any
    body: bytes
    answer: int = 0
    count: int = 1


def send_header(**changes: Any) -> SendHeader:
    """The header of a send."""
    values: dict[str, Any] = {"producer_group": "P", "topic": TOPIC, "queue_id": 0, "sys_flag": 0, "born_time_ms": 1}
    return SendHeader(**values | {"flag": 0, "properties": ""} | changes)


def batch_of(properties: Callable[[int], bytes], size: int = MESSAGE_BYTES, count_max: int = 1 << 20) -> bytes:
    """A batch of as many messages without a body as one send may bring."""
    items: list[batch.BatchItem] = []
    while size > 0 and len(items) < count_max:
        items.append(batch.BatchItem(0, b"", properties(len(items))))
        size -= 22 + len(items[-1].properties)
    return batch.encode(items[:-1])


def _words(number: int, size: int, width: int = 5) -> bytes:
    return b" ".join(b"%0*x" % (width, number * size + n) for n in range(size // (width + 1)))


def sends() -> Iterator[Largest]:
    """Batches of every shape, batches of half messages, messages of many keys."""
    shapes: tuple[tuple[str, Callable[[int], bytes], int], ...] = (
        ("no properties", lambda n: b"", ILLEGAL),
        ("a key each", lambda n: b"KEYS\x01k%06d\x02UNIQ_KEY\x01%032X\x02" % (n, n), 0),
        ("keys of 50 lengths", lambda n: b"KEYS\x01%b\x02UNIQ_KEY\x01%032X\x02" % (b"k" * (n % 50 + 1), n), 0),
        ("a name each", lambda n: b"p%d\x01v\x02KEYS\x01k%d\x02UNIQ_KEY\x01%032X\x02" % (n, n, n), 0),
        ("31 keys each", lambda n: b"KEYS\x01%b\x02UNIQ_KEY\x01%032X\x02" % (_words(n, 961, 30), n), 0),
        ("440 keys each", lambda n: b"KEYS\x01%b\x02UNIQ_KEY\x01%032X\x02" % (_words(n, 2640), n), ILLEGAL),
        ("owned by brokers", lambda n: b"POP_CK\x01%d\x02UNIQ_KEY\x01%032X\x02" % (n, n), ILLEGAL),
        ("1,000 properties each", lambda n: b"".join(b"n%d\x01v%d\x02" % (i, n) for i in range(1000)), 0),
    )
    for name, properties, answer in shapes:
        body = batch_of(properties, count_max=batch.COUNT_MAX + 1 if answer == 0 else 1 << 20)
        yield Largest(f"batch, 4 MB, {name}", Code.SEND_BATCH_MESSAGE, send_header(batch=True), body, answer)
    name, properties, _ = shapes[-1]
    header = send_header(batch=True, sys_flag=4)
    yield Largest(f"half batch, {name}", Code.SEND_HALF_BATCH, header, batch_of(properties), ONE_BY_ONE)
    keys = _words(1, 30_000).decode()
    header = send_header(properties=f"KEYS\x01{keys}\x02UNIQ_KEY\x01{'A' * 32}\x02")
    yield Largest("8 sends of 5,000 keys", Code.SEND_MESSAGE_V2, header, b"x", count=8)


def heartbeat(groups: int, subscriptions: int, *, tags: int = 3, producers: int = 0) -> bytes:
    """The body of a heartbeat."""
    names = [f"tag{n}" for n in range(tags)]
    told = [
        {"classFilterMode": False, "topic": f"topic{n}", "subString": "||".join(names), "tagsSet": names}
        | {"codeSet": list(range(tags)), "subVersion": 1, "expressionType": "TAG"}
        for n in range(subscriptions)
    ]
    consumers = [
        {"groupName": f"g{n}", "messageModel": "CLUSTERING", "subscriptionDataSet": told} for n in range(groups)
    ]
    beat = {"clientID": f"{groups}-{subscriptions}", "consumerDataSet": consumers}
    return msgspec.json.encode(beat | {"producerDataSet": [{"groupName": f"p{n}"} for n in range(producers)]})


def heartbeats() -> Iterator[Largest]:
    """Heartbeats as large as they may be, and what shows them."""
    for name, body, answer in (
        ("1 group of 4,096 topics", heartbeat(1, 4096), 0),
        ("100 groups of 118 topics", heartbeat(100, 118), 0),
        ("1,000 groups of 10 topics", heartbeat(1000, 10), 0),
        ("the same again", heartbeat(1000, 10), 0),
        ("7,000 tags for each of 9 topics", heartbeat(1, 9, tags=7000), 0),
        ("10,000 producer groups", heartbeat(0, 0, producers=10_000), 0),
        ("100 groups of 200 topics", heartbeat(100, 200), REFUSED),
    ):
        yield Largest(f"heartbeat, {name}", Code.HEART_BEAT, None, body, answer)
    yield Largest("members and topics of a group", Code.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g0"}, b"")
    yield Largest("all producers", Code.GET_ALL_PRODUCER_INFO, {}, b"")


def queue_locks() -> Iterator[Largest]:
    """Locks of as many queues as one request may name, and of more."""
    for count, answer in ((43_000, 0), (200_000, REFUSED)):
        rows = [{"brokerName": "b", "topic": TOPIC, "queueId": n} for n in range(count)]
        body = msgspec.json.encode({"consumerGroup": GROUP, "clientId": "c", "mqSet": rows})
        for name, code in (
            ("lock", Code.LOCK_BATCH_MQ),
            ("again", Code.LOCK_BATCH_MQ),
            ("unlock", Code.UNLOCK_BATCH_MQ),
        ):
            yield Largest(f"{name}, {count:,} queues", code, {}, body, answer)


def tables() -> Iterator[Largest]:
    """Topics, groups, settings, assignments, acknowledgements, offsets."""
    topics = [{"topicName": f"t{n}", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6} for n in range(10_000)]
    groups = {"groupConfigList": [{"groupName": f"g-{n}"} for n in range(10_000)]}
    ack = {"c": GROUP, "t": TOPIC, "r": "0", "so": 0, "q": 0, "rq": 0, "pt": 1, "it": 60000, "b": "/" * 1000}
    asked = {
        "topic": TOPIC,
        "consumerGroup": "g0",
        "clientId": "1",
        "messageModel": "CLUSTERING",
        "strategyName": "AVG",
    }
    named: tuple[tuple[str, int, Any, int], ...] = (
        ("10,000 topics", Code.UPDATE_AND_CREATE_TOPIC_LIST, {"topicConfigList": topics}, 0),
        ("10,000 groups", Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, groups, 0),
        ("assignment of all queues", Code.QUERY_ASSIGNMENT, asked, 0),
        ("4,096 batches of acknowledgements", Code.BATCH_ACK_MESSAGE, {"brokerName": "b", "acks": [ack] * 4096}, 0),
        ("500,000 of them", Code.BATCH_ACK_MESSAGE, {"acks": [{}] * 500_000}, REFUSED),
    )
    for name, code, value, answer in named:
        yield Largest(name, code, {}, msgspec.json.encode(value), answer)
    settings = b"".join(b"a%d=1\n" % n for n in range(200_000))
    yield Largest("settings of 7,000 lines", Code.UPDATE_BROKER_CONFIG, {}, settings[:65_536])
    yield Largest("settings of 200,000 lines", Code.UPDATE_BROKER_CONFIG, {}, settings, REFUSED)
    ours = {"topic": TOPIC, "group": GROUP}
    for name, code, ext in (
        ("reset of all queues", Code.INVOKE_BROKER_TO_RESET_OFFSET, ours | {"timestamp": "-1", "isForce": "true"}),
        ("clone of all offsets", Code.CLONE_GROUP_OFFSET, {"srcGroup": GROUP, "destGroup": "G2", "topic": TOPIC}),
        (
            "correction of all queues",
            Code.QUERY_CORRECTION_OFFSET,
            {"filterGroups": "", "compareGroup": GROUP, "topic": TOPIC},
        ),
        ("progress of all queues", Code.GET_CONSUME_STATS, {"consumerGroup": GROUP, "topic": TOPIC}),
        ("statistics of all queues", Code.GET_TOPIC_STATS_INFO, {"topic": TOPIC}),
        ("progress of all groups", Code.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}),
    ):
        yield Largest(name, code, ext, b"")


def filters() -> Iterator[Largest]:
    """Filters as long as they may be."""
    pull = {
        "consumerGroup": GROUP,
        "topic": TOPIC,
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": "6",
    }
    pull |= {"commitOffset": "0", "suspendTimeoutMillis": "1000", "subVersion": "0", "expressionType": "TAG"}
    text = "||".join(f"tag{n}" for n in range(6500))
    yield Largest("pull, 6,500 tags", Code.PULL_MESSAGE, pull | {"subscription": text}, b"", NOTHING)
    pop = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "maxMsgNums": "32", "invisibleTime": "60000"}
    pop |= {"pollTime": "0", "bornTime": "0", "initMode": "0", "expType": "TAG", "exp": text, "order": "false"}
    yield Largest("pop, 6,500 tags", Code.POP_MESSAGE, pop, b"", TIMED_OUT)
    sql = {"topic": TOPIC, "subString": " or ".join(f"a{n}={n}" for n in range(1200)), "expressionType": "SQL92"}
    body = msgspec.json.encode({"group": GROUP, "subscriptionData": sql})
    yield Largest("check of SQL92", Code.CHECK_CLIENT_CONFIG, {}, body)


def pops() -> Iterator[Largest]:
    """Pops of all queues, none of which has a message."""
    asked = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "-1", "maxMsgNums": "32", "pollTime": "0"}
    asked |= {"invisibleTime": "60000", "bornTime": "0", "initMode": "0", "order": "false"}
    for name, code, answer in (
        ("pop", Code.POP_MESSAGE, TIMED_OUT),
        ("peek", Code.PEEK_MESSAGE, NO_MESSAGE),
        ("notification", Code.NOTIFICATION, 0),
    ):
        yield Largest(f"{name} of all queues", code, asked, b"", answer)


def crowds() -> Iterator[Largest]:
    """Many short requests, which come in one read."""
    small = {"topic": "bench-small", "defaultTopic": "TBW102", "readQueueNums": "255", "writeQueueNums": "255"}
    small |= {"perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    yield Largest("topic of 255 queues", Code.UPDATE_AND_CREATE_TOPIC, small, b"")
    asked = {"topic": "bench-small", "group": GROUP, "consumerGroup": GROUP}
    yield Largest("500 times its statistics", Code.GET_TOPIC_STATS_INFO, asked, b"", count=500)
    yield Largest("200 times its time spans", Code.QUERY_CONSUME_TIME_SPAN, asked, b"", count=200)


def lite_topics() -> Iterator[Largest]:
    """Subscriptions to many lite topics, and their end."""
    topic = {"topic": "bench-lite", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    topic |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    made = topic | {"attributes": "+message.type=LITE"}
    yield Largest("topic of lite topics", Code.UPDATE_AND_CREATE_TOPIC, made, b"")
    group = {"groupName": "bench-lite", "attributes": {"+lite.bind.topic": "bench-lite"}}
    yield Largest("its group", Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, msgspec.json.encode(group))
    change = {"clientId": "c", "group": "bench-lite", "topic": "bench-lite"}
    names = [f"lite-{n}" for n in range(40_000)]
    for name, action, listed in (
        ("40,000 lite topics", "COMPLETE_ADD", names),
        ("others in their place", "COMPLETE_ADD", ["one", *names[:100]]),
        ("40,000 again", "COMPLETE_ADD", names),
        ("the end of all", "COMPLETE_REMOVE", list[str]()),
    ):
        body = msgspec.json.encode({"subscriptionSet": [change | {"action": action, "liteTopicSet": listed}]})
        yield Largest(name, Code.LITE_SUBSCRIPTION_CTL, {}, body)


KINDS = (sends, heartbeats, queue_locks, filters, tables, pops, crowds, lite_topics)


class Turns:
    """The costliest turn of the loop of one thread, by `cost`, a clock of that thread; `trace`: traces it."""

    def __init__(self, cost: Callable[[], float] = time.thread_time, trace: Any = None) -> None:
        self.worst = 0.0
        self._thread = 0
        self._cost, self._trace = cost, trace

    @contextmanager
    def served(self, root: Path) -> Iterator[str]:
        """Run a broker in a thread of its own, on asyncio's own loop, each turn of which is measured."""
        whole = asyncio.Handle._run
        started = threading.Event()
        told: list[Any] = []

        def measured(handle: asyncio.Handle) -> None:
            if threading.get_ident() != self._thread:
                whole(handle)
                return
            began = self._cost()
            whole(handle)
            self.worst = max(self.worst, self._cost() - began)

        async def serve() -> None:
            self._thread = threading.get_ident()
            small: dict[str, Any] = {"log_file_bytes": 64 << 20, "queue_file_bytes": 2_000_000}
            settings = BrokerSettings(
                listen_port=0,
                store_root=str(root),
                property_filter=True,
                refuse_when_behind=False,
                lmq=True,
                multi_dispatch=True,
                **small,
            )
            server = BrokerServer(settings)
            await server.start()
            ended = asyncio.Event()
            told[:] = server.address, asyncio.get_running_loop(), ended
            started.set()
            await ended.wait()
            await server.close()

        def run() -> None:
            sys.settrace(self._trace)
            asyncio.run(serve())

        asyncio.Handle._run = measured  # type: ignore[method-assign]
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            if not started.wait(60):
                raise RuntimeError("the broker has not started")
            yield told[0]
        finally:
            if told:
                told[1].call_soon_threadsafe(told[2].set)
                thread.join()
            asyncio.Handle._run = whole  # type: ignore[method-assign]

    async def each(self, address: str, kinds: Any = KINDS) -> AsyncIterator[tuple[Largest, int, float]]:
        """Ask each request; yield it with the code of the answer, -1 without one, and what its longest turn cost."""
        peer = await dial(address)
        made = CreateTopicHeader(
            topic=TOPIC, perm=6, read_queue_count=QUEUES, write_queue_count=QUEUES, filter_type="SINGLE_TAG"
        )
        await peer.request(Code.UPDATE_AND_CREATE_TOPIC, made, timeout_ms=LIMIT_MS)
        group = msgspec.json.encode({"groupName": GROUP})
        await peer.request(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, group, timeout_ms=LIMIT_MS)
        for asked in (row for kind in kinds for row in kind()):
            self.worst = 0.0
            sent = [peer.request(asked.code, asked.ext, asked.body, timeout_ms=LIMIT_MS) for _ in range(asked.count)]
            try:
                code = max(reply.code for reply in await asyncio.gather(*sent))
            except RocketSparkError:
                code = -1
            yield asked, code, self.worst
        peer.close()
