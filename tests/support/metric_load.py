"""Uses a cluster in every way that metrics count, and reads what a scrape tells."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families
from tests.support.patience import LIMIT_S

from rocketspark import Producer, PullConsumer, PushConsumer, SimpleConsumer, TransactionProducer, TransactionState
from rocketspark.model import Message, ReceivedMessage

TOPIC, GROUP = "metered", "metered-group"


class Family(NamedTuple):
    """A metric: counter, gauge or histogram, and the labels of all of its rows."""

    type: str
    labels: tuple[str, ...]


def families(text: str) -> dict[str, Family]:
    """What a scrape tells, by name; `le` of histograms and what every metric of OpenTelemetry has are left out."""
    found: dict[str, Family] = {}
    for family in text_string_to_metric_families(text):
        labels = {label for sample in family.samples for label in sample.labels}
        if labels:
            kept = tuple(sorted(labels - {"le", "otel_scope_name", "otel_scope_version"}))
            found[family.name] = Family(family.type, kept)
    return found


def scraped(address: str) -> str:
    """The text that host:port tells."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
        text: str = answer.read().decode()
    return text


@contextmanager
def loaded(namesrv: str) -> Iterator[None]:
    """Send, consume, pop, delay and decide transactions; while the block lasts the clients are there."""
    got, wanted = threading.Semaphore(0), 12
    producer, transactions = (
        Producer(namesrv, "metered-p"),
        TransactionProducer(namesrv, "metered-decided", listener=Verdicts()),
    )
    pushed = PushConsumer(namesrv, GROUP, consume_from="first")
    pulled = PullConsumer(namesrv, f"{GROUP}-pull", consume_from="first")
    popped = SimpleConsumer(namesrv, f"{GROUP}-pop", consume_from="first")
    pushed.subscribe(TOPIC)
    pushed.listen(lambda message: got.release())
    with producer, transactions:
        producer.create_topic(TOPIC, queue_count=2)
        producer.create_topic(f"{TOPIC}-t", queue_count=2)
        for n in range(10):
            producer.send(TOPIC, b"%d" % n, keys=[f"k{n}"])
        producer.send(TOPIC, b"later", delay_level=1)
        producer.send(TOPIC, b"at a time", delay_ms=1500)
        for verdict in ("commit", "rollback", "unknown"):
            transactions.send_in_transaction(Message(topic=f"{TOPIC}-t", body=verdict.encode()))
        popped.subscribe(TOPIC)
        pulled.subscribe(TOPIC)
        with pushed, pulled, popped:
            for _ in range(wanted):
                assert got.acquire(timeout=LIMIT_S)
            taken = 0
            while taken < wanted:
                for message in popped.receive(count_max=16):
                    taken += 1
                    popped.ack(message)
            taken = 0
            while taken < wanted:
                taken += len(pulled.poll())
            yield


class Verdicts:
    """Local transactions that end as the body of their message says."""

    def execute(self, message: Message, argument: object) -> TransactionState:
        return TransactionState(bytes(message.body).decode().upper())

    def check(self, message: ReceivedMessage) -> TransactionState:
        return TransactionState.UNKNOWN
