"""Two brokers under two NameServers, on both kinds of servers: what clients do when these hang, die and come back."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from tests.clients.conftest import CONFIG
from tests.clients.outages import Servers
from tests.clients.scene import Inbox
from tests.java.mqadmin import until

from rocketspark.admin.operations import Admin
from rocketspark.client import Producer, PullConsumer, PushConsumer, Transaction, TransactionProducer, TransactionState
from rocketspark.client.producer.latency_faults import FaultTable
from rocketspark.client.results import SendResult
from rocketspark.errors import BrokerNotFound, NoNameServer, NoReply, NotSent, SendFailed
from rocketspark.model import Message, MessageQueue, ReceivedMessage

pytestmark = pytest.mark.shows("two brokers and two NameServers that hang, die and come back")

TOPIC, TRANSACTIONS = "Outages", "OutagesOfB"
# Only a failure keeps a broker out, however slow this machine is.
LONG = FaultTable((600_000,), (60_000,), 600_000)
BRIEF = FaultTable((600_000,), (200,), 600_000)
QUICK: dict[str, Any] = {"route_interval_ms": 300, "heartbeat_interval_ms": 500}


@pytest.fixture(
    scope="module",
    params=["ours", pytest.param("apache", marks=[pytest.mark.java, pytest.mark.xdist_group("jvm")])],
)
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    if request.param == "apache":
        request.getfixturevalue("java_tools")
    made = Servers(request.param, tmp_path_factory.mktemp(f"outages-{request.param}"), dict(CONFIG))
    yield made
    made.close()


class Sent:
    """Sends one after the other, and keeps what was acknowledged."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.acknowledged: list[tuple[str, int, int]] = []

    def __call__(self, count: int = 1) -> list[str]:
        """Sends so many; the brokers they went to."""
        results = [self._producer.send(TOPIC, b"x") for _ in range(count)]
        for result in results:
            self.note(result)
        return [result.queue.broker_name for result in results]

    def note(self, result: SendResult) -> None:
        self.acknowledged.append((result.queue.broker_name, result.queue.queue_id, result.queue_offset))


# First, since the other one leaves nothing alive.
def test_a_transaction_outlives_its_broker(servers: Servers) -> None:
    with Admin(servers.namesrv) as operations:
        operations.create_topic(TRANSACTIONS, queue_count=1, brokers=["broker-b"])

    class Bank:
        asked = 0

        def execute(self, message: Message, transaction: Transaction) -> TransactionState:
            servers.kill("broker-b")
            return TransactionState.COMMIT

        def check(self, message: ReceivedMessage) -> TransactionState:
            self.asked += 1
            return TransactionState.COMMIT

    bank, inbox = Bank(), Inbox()
    producer = TransactionProducer(servers.namesrv, "p-bank", listener=bank, send_timeout_ms=30_000, **QUICK)
    consumer = PushConsumer(servers.namesrv, "g-bank", consume_from="first", rebalance_interval_ms=500, **QUICK)
    consumer.subscribe(TRANSACTIONS)
    consumer.listen(inbox)
    with producer, consumer:
        producer.send_in_transaction(TRANSACTIONS, b"paid")
        # Nobody was told of the end: the broker asks when it is back.
        servers.start_broker("broker-b")
        assert [m.body for m in inbox.wait_for(1)] == [b"paid"]
    assert bank.asked >= 1


def test_brokers_hang_die_and_come_back_and_name_servers_go(servers: Servers) -> None:
    with Admin(servers.namesrv) as operations:
        operations.create_topic(TOPIC, queue_count=2)
    inbox = Inbox()
    consumer = PushConsumer(
        servers.namesrv, "g-outages", consume_from="first", ordered=True, rebalance_interval_ms=500, **QUICK
    )
    consumer.subscribe(TOPIC)
    consumer.listen(inbox)
    producer = Producer(servers.namesrv, "p-outages", send_timeout_ms=30_000, **QUICK)
    wary = Producer(
        servers.namesrv, "p-wary", send_timeout_ms=1000, retries=0, fault_tolerance=True, fault_table=LONG, **QUICK
    )
    hopeful = Producer(
        servers.namesrv, "p-hopeful", send_timeout_ms=1000, retries=0, fault_tolerance=True, fault_table=BRIEF, **QUICK
    )
    chosen = MessageQueue(TOPIC, "broker-b", 0)

    def consumed() -> dict[tuple[str, int], list[int]]:
        found: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        for message in list(inbox.received):
            found[message.broker_name, message.queue_id].append(message.queue_offset)
        return found

    with producer, consumer:
        send = Sent(producer)

        def is_consumed() -> bool:
            return all(offset in consumed()[broker, queue] for broker, queue, offset in send.acknowledged)

        assert set(send(4)) == {"broker-a", "broker-b"}

        with wary, hopeful:
            # A broker that hangs costs one send its time, and is left alone then.
            for each in (wary, hopeful):
                send.note(each.send(TOPIC, b"x", queue=chosen, timeout_ms=30_000))
            servers.halt("broker-b")
            with pytest.raises(SendFailed) as hung:
                wary.send(TOPIC, b"x", queue=chosen)
            assert isinstance(hung.value.__cause__, NoReply)
            assert hung.value.brokers == ("broker-b",)
            assert hung.value.cost_ms >= 900
            wary_results = [wary.send(TOPIC, b"x", timeout_ms=30_000) for _ in range(10)]
            assert {r.queue.broker_name for r in wary_results} == {"broker-a"}
            with pytest.raises(SendFailed):
                hopeful.send(TOPIC, b"x", queue=chosen)
            servers.go_on("broker-b")
            # After its pause it is used again.
            names: list[str] = []

            def again() -> bool:
                result = hopeful.send(TOPIC, b"x", timeout_ms=30_000)
                names.append(result.queue.broker_name)
                send.note(result)
                return names[-1] == "broker-b"

            until(again)
            for result in wary_results:
                send.note(result)

        servers.kill("broker-b")
        assert set(send(12)) == {"broker-a"}
        until(lambda: {q.broker_name for q in producer.queues(TOPIC)} == {"broker-a"})
        # A queue that was chosen is never left for another.
        # Its address is known until routes are fetched the next time.
        with pytest.raises((SendFailed, NotSent, BrokerNotFound)) as gone:
            producer.send(TOPIC, b"x", queue=chosen, timeout_ms=500)
        assert gone.value.retriable
        servers.start_broker("broker-b")
        until(lambda: "broker-b" in send())
        # With no NameServer the consumer would not hear that it is back.
        until(is_consumed)

        # One NameServer is enough, and with none sends go on.
        servers.kill("names-1")
        with Producer(servers.namesrv, "p-late") as late:
            assert late.send(TOPIC, b"x").queue.broker_name in ("broker-a", "broker-b")
        servers.kill("names-2")
        assert set(send(4)) == {"broker-a", "broker-b"}
        with pytest.raises(NoNameServer, match="no NameServer answers") as unknown:
            producer.send("NeverSeen", b"x", timeout_ms=3000)
        assert unknown.value.retriable
        with pytest.raises(NoNameServer, match="check the address"):
            PullConsumer(servers.namesrv, "g-later").start()

        until(is_consumed)
        for offsets in consumed().values():
            # In order, also where a broker that was killed had forgotten how far it was.
            steps = [b - a for a, b in itertools.pairwise(offsets)]
            assert all(step == 1 or step <= 0 for step in steps), offsets

        servers.kill("broker-a")
        servers.kill("broker-b")
        with pytest.raises(SendFailed) as dead:
            producer.send(TOPIC, b"x", timeout_ms=30_000)
        assert isinstance(dead.value.__cause__, NotSent)
        assert dead.value.attempts == len(dead.value.brokers) == 3
        assert set(dead.value.brokers) == {"broker-a", "broker-b"}
        assert dead.value.retriable
