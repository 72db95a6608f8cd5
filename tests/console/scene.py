"""A cluster with something to see: a topic with messages of all kinds, members of groups, dead letters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from tests.support.patience import LIMIT_S

from rocketspark.admin import Admin
from rocketspark.client import Producer, PullConsumer, PushConsumer
from rocketspark.model import Message, ReceivedMessage


class Cluster(Protocol):
    """Servers of ours, or official ones."""

    namesrv: str


SCRIPT = b"<script>alert(document.cookie)</script>"
IMAGE = b'"><img src=x onerror=alert(1)>'
ZERO = b"a\x00b\x1b[31m"
BYTES = b"\x00\xff\xfe<b>"
RIGHT_TO_LEFT = "\u202eevil\u2066 \u200bend".encode()
LARGE = b"z" * ((4 << 20) - 1000)
JSON = b'{"order": {"id": 42, "lines": [1, 2]}, "name": "\xc3\xa9"}'
BODIES = {
    "script": SCRIPT,
    "image": IMAGE,
    "zero": ZERO,
    "bytes": BYTES,
    "turned": RIGHT_TO_LEFT,
    "large": LARGE,
    "json": JSON,
}


def fill(cluster: Cluster, topic: str, *, queues: int = 2) -> dict[str, ReceivedMessage]:
    """Make a topic and send it a message of each kind, with the kind as key, as tag and in a property of markup."""
    with Admin(cluster.namesrv) as admin:
        admin.create_topic(topic, queue_count=queues)
    with Producer(cluster.namesrv, "scene") as producer:
        for kind, body in BODIES.items():
            producer.send(Message(topic, body, tag=kind, keys=[kind, "all"], properties={"<i>own": "<b>&amp;</b>"}))
    found = read(cluster, topic, len(BODIES))
    return {message.keys[0]: message for message in found}


def read(cluster: Cluster, topic: str, count: int) -> list[ReceivedMessage]:
    """So many messages of a topic, by queue and offset."""
    found: list[ReceivedMessage] = []
    with PullConsumer(cluster.namesrv, "look", consume_from="first", auto_commit=False) as consumer:
        consumer.assign(consumer.queues(topic))
        while len(found) < count:
            came = consumer.poll(LIMIT_S * 1000)
            assert came, f"{len(found)} of {count} messages of {topic} came"
            found += came
    return sorted(found, key=lambda m: (m.broker_name, m.queue_id, m.queue_offset))


@contextmanager
def member(
    cluster: Cluster,
    group: str,
    topic: str,
    act: Callable[[ReceivedMessage], object] = lambda _: True,
    *,
    tags: str = "*",
    **options: Any,
) -> Iterator[PushConsumer]:
    """A member of a group that reads the topic from its first message on."""
    consumer = PushConsumer(cluster.namesrv, group, consume_from="first", **options)
    consumer.subscribe(topic, tags)
    consumer.listen(act)
    with consumer:
        yield consumer


def bury(cluster: Cluster, group: str, topic: str, count: int) -> list[ReceivedMessage]:
    """Have a group give up each of so many messages of a topic at its first failure; returns the dead letters."""
    with member(cluster, group, topic, lambda _: False, max_reconsume_times=0, trace=True):
        with Admin(cluster.namesrv) as admin:
            dead = f"%DLQ%{group}"
            until(lambda: dead in admin.list_topics() and admin.show_topic(dead).message_count >= count)
        return read(cluster, dead, count)


def until(holds: Callable[[], object]) -> None:
    """Wait for what servers do by and by."""
    import time

    end_s = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < end_s, "it did not come about"
        time.sleep(0.02)
