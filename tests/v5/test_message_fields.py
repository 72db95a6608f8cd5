"""What a client is given by our proxy and by Apache's before one broker: the same messages, field by field."""

from __future__ import annotations

import gzip
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest
from google.protobuf import json_format
from tests.java.apache import ask
from tests.support.patience import LIMIT_S
from tests.unit.proxy.conftest import RawClient
from tests.unit.proxy.consuming.support import Consumer
from tests.v5.apache_proxy import ApacheProxy
from tests.v5.conftest import need
from tests.v5.requests import DELAY, FIFO, TRANSACTION, assignment, known, route, send, sent
from tests.v5.servers import APACHE_QUICK, BROKER, OURS_QUICK, Servers, our_proxy

from rocketspark import Message, Producer
from rocketspark.protocol.pop_answers import ReceiptHandle
from rocketspark.proxy.wire import messages
from rocketspark.proxy.wire.enumerations import Code
from rocketspark.testing.process import run_server_process

pytestmark = pytest.mark.shows(
    "messages, routes, assignments and settings field by field beside Apache's proxy before one broker: every "
    "kind and producer, those that come again, dead letters"
)

TOPIC = "TheTopic"


class Proxies(NamedTuple):
    """`servers`: the broker, with our proxy; `ours`, `apache`: addresses of the proxies before it."""

    servers: Servers
    ours: str
    apache: str


@pytest.fixture(scope="module")
def proxies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxies]:
    need("proxy")
    folder = tmp_path_factory.mktemp("proxies")
    with ExitStack() as stack:
        cluster = stack.enter_context(run_server_process(folder / "store", config=BROKER))
        servers = Servers("ours", "", cluster.namesrv, cluster.broker)
        servers.make_topic(TOPIC, "MIXED", queues=1)
        for group in ("of-ours", "of-apache", "gives-up", "TheGroup"):
            servers.make_group(group)
        servers.make_group("in-order", consumeMessageOrderly=True)
        apache = ApacheProxy(folder / "proxy", cluster.namesrv, APACHE_QUICK)
        stack.callback(apache.kill)
        ours = stack.enter_context(our_proxy(cluster.namesrv, **OURS_QUICK)).address
        yield Proxies(servers, ours, apache.endpoints)


def fields_of(message: Any) -> dict[str, Any]:
    """A message's fields but those that differ from one receive to the next."""
    found: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    system = found["system_properties"]
    handle = ReceiptHandle.decode(system.pop("receipt_handle"))
    system["place"] = (handle.broker_name, handle.queue_id, handle.queue_offset, handle.physical_offset)
    return found


def of_each(proxies: Proxies, topic: str, count: int, **wanted: Any) -> list[list[dict[str, Any]]]:
    """Receive messages through both proxies, each for a group of its own; in the order of their queue."""
    found = []
    for address, group in ((proxies.ours, "of-ours"), (proxies.apache, "of-apache")):
        consumer = Consumer(address, group, topic)
        got: list[Any] = []
        end = time.monotonic() + LIMIT_S
        while len(got) < count:
            assert time.monotonic() < end, f"{len(got)} of {count} came to {group}"
            some = consumer.receive(**wanted)
            got += some
            if some and wanted.get("invisible_ms", 30_000) >= 30_000:
                assert consumer.ack(*some).status.code == Code.OK
        got.sort(key=lambda one: one.system_properties.queue_offset)
        found.append([fields_of(one) for one in got])
        consumer.vanish()
    return found


def produce(address: str, *requests: Any) -> list[Any]:
    client = RawClient(address, "producer-1")
    with known(client):
        answers = [client.call("SendMessage", send(one)) for one in requests]
        for answer in answers:
            assert answer.status.code == Code.OK, answer
    for one, answer in zip(requests, answers, strict=True):
        if one.system_properties.message_type == TRANSACTION:
            entry = answer.entries[0]
            end = messages.EndTransactionRequest(
                topic={"name": TOPIC}, message_id=entry.message_id, transaction_id=entry.transaction_id, resolution=1,
                source=1,
            )  # fmt: skip
            assert client.call("EndTransaction", end).status.code == Code.OK
    client.close()
    return answers


def test_messages_of_every_kind_and_producer(proxies: Proxies) -> None:
    now_s = int(time.time())
    rich = {"tag": "täg", "keys": ["k1", "k2"], "user": {"colour": "röt", "n": "7", "empty": ""}}
    trace = {"trace_context": "a-trace", "born_host": "10.1.2.3", "born_timestamp": now_s - 60}
    kinds = [
        sent(TOPIC, b"plain", message_id="0101"),
        sent(TOPIC, "ünd".encode(), message_id="0102", **rich, **trace),
        sent(TOPIC, gzip.compress(b"zipped", mtime=0), message_id="0103", body_encoding=2),
        sent(TOPIC, b"fifo", message_id="0104", message_type=FIFO, message_group="g1"),
        sent(TOPIC, b"late", message_id="0105", message_type=DELAY, delivery_timestamp=now_s + 1),
        sent(TOPIC, b"committed", message_id="0106", message_type=TRANSACTION, tag="t"),
    ]
    count = 0
    for address in (proxies.ours, proxies.apache):
        produce(address, *kinds)
        count += len(kinds)
    with Producer(proxies.servers.namesrv, "of-before-5") as producer:
        for one in (
            Message(topic=TOPIC, body=b"\x00\xff binary"),
            Message(topic=TOPIC, body=b"all", tag="a b", keys=("x", "y"), properties={"é": "😀", "p": "a=b;c"}),
            Message(topic=TOPIC, body=b"flagged", flag=7, wait_store_ok=False),
        ):
            producer.send(one)
            count += 1
    ours, apaches = of_each(proxies, TOPIC, count)
    assert len({one["system_properties"]["place"] for one in ours}) == count
    for mine, theirs in zip(ours, apaches, strict=True):
        assert mine == theirs


def test_messages_that_come_again(proxies: Proxies) -> None:
    topic = "AgainTopic"
    proxies.servers.make_topic(topic, queues=1)
    produce(proxies.ours, *(sent(topic, b"again", message_id=f"02{number}", tag="x") for number in range(2)))
    first_ours, first_apaches = of_each(proxies, topic, 2, invisible_ms=1000)
    assert first_ours == first_apaches
    ours, apaches = of_each(proxies, topic, 2)
    assert [one["system_properties"]["delivery_attempt"] for one in ours] == [2, 2]
    # Each group has copies of its own in its topic of retries.
    for one in (*ours, *apaches):
        for own in ("place", "store_timestamp", "queue_offset"):
            one["system_properties"].pop(own, None)
    assert ours == apaches


def test_dead_letters(proxies: Proxies) -> None:
    topic = "DeadTopic"
    proxies.servers.make_topic(topic, queues=1)
    produce(proxies.ours, sent(topic, b"dead", message_id="0301", user={"a": "b"}))
    consumer = Consumer(proxies.ours, "gives-up", topic)
    (got,) = consumer.receive()
    assert consumer.forward(got.system_properties.receipt_handle).status.code == Code.OK
    consumer.vanish()
    dead = "%DLQ%gives-up"
    fields = {
        "topic": dead, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    assert ask(proxies.servers.broker, 17, ext_fields=fields).code == 0
    ours, apaches = of_each(proxies, dead, 1)
    assert ours == apaches
    assert ours[0]["system_properties"]["message_id"] == "0301"


@pytest.mark.parametrize(("topic", "perm"), [("RoutePlain", 6), ("RouteFifo", 6), ("RouteRead", 4), ("RouteUneven", 6)])
def test_routes_assignments_and_settings(proxies: Proxies, topic: str, perm: int) -> None:
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": "3", "perm": str(perm),
        "writeQueueNums": "5" if topic == "RouteUneven" else "3", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0",
        "order": "false", "attributes": f"+message.type={'FIFO' if topic == 'RouteFifo' else 'NORMAL'}",
    }  # fmt: skip
    assert ask(proxies.servers.broker, 17, ext_fields=fields).code == 0
    answers: list[Any] = []
    for address in (proxies.ours, proxies.apache):
        client = RawClient(address, "asks-1")
        with known(client) as told:
            asked = [
                client.call("QueryRoute", route(topic)),
                *(client.call("QueryAssignment", assignment(topic, group)) for group in ("TheGroup", "in-order")),
            ]
        found = [json_format.MessageToDict(one) for one in (told, *asked)]
        queues = [
            *found[1]["messageQueues"],
            *(each["messageQueue"] for one in found[2:] for each in one["assignments"]),
        ]
        for queue in queues:
            (reached,) = queue["broker"]["endpoints"]["addresses"]
            assert reached.pop("port") == int(address.rpartition(":")[2])
        answers.append(found)
        client.close()
    assert answers[0] == answers[1]
