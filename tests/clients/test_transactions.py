"""Transactions on both servers: committed is seen once, rolled back never, unknown is checked."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest
from tests.clients.scene import Inbox, Scene
from tests.java.mqadmin import until

from rocketspark.admin.operations import Admin
from rocketspark.client import (
    AsyncTransactionProducer,
    PushConsumer,
    RowsTransaction,
    RowsTransactionResult,
    Transaction,
    TransactionProducer,
    TransactionState,
)
from rocketspark.errors import ConfigError, MessageIllegal
from rocketspark.model import Message, ReceivedMessage

pytestmark = pytest.mark.shows("transactions: commit, rollback, unknown, check-back by any producer of the group")

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN


# For a machine that is busy with other things.
PATIENT: dict[str, Any] = {"send_timeout_ms": 60_000}


class Bank:
    """A listener that does as the argument says, and commits what it is asked about if `settled` has it."""

    def __init__(self, *settled: str) -> None:
        self.settled = set(settled)
        self.begun: list[tuple[str, Any, int]] = []
        self.asked: list[ReceivedMessage] = []
        self.ids: dict[bytes, str] = {}
        self.look: Any = lambda topic: None
        self.seen: Any = None

    def execute(self, message: Message, transaction: Transaction) -> TransactionState:
        self.begun.append((message.body.decode(), transaction.argument, threading.get_ident()))
        self.ids[message.body] = transaction.id
        if isinstance(transaction.argument, Exception):
            raise transaction.argument
        return transaction.argument

    def execute_many(self, transaction: RowsTransaction) -> TransactionState:
        self.seen = self.look(transaction.topic)
        state, is_settled = transaction.argument
        if is_settled:
            self.settled.add(transaction.id)
        return state

    def check(self, message: ReceivedMessage) -> TransactionState:
        self.asked.append(message)
        return COMMIT if {message.body.decode(), message.transaction_id} & self.settled else ROLLBACK


def ended_late(scene: Scene, *names: str) -> set[str]:
    """Whose end the official broker may ask about once more: it notes ends every 3 s only, and asks sooner here."""
    return set(names) if scene.cluster.name == "apache" else set()


def test_each_ends_as_it_was_decided(scene: Scene) -> None:
    bank, inbox = Bank("asked", "raised"), Inbox()
    consumer = PushConsumer(scene.namesrv, scene.group, consume_from="first")
    consumer.subscribe(scene.topic)
    consumer.listen(inbox)
    error = RuntimeError("the bank is closed")
    with consumer, TransactionProducer(scene.namesrv, f"p-{scene.group}", listener=bank) as producer:
        results = {
            name: producer.send_in_transaction(scene.topic, name.encode(), argument=argument, tag="T", keys=name)
            for name, argument in {
                "paid": COMMIT,
                "bounced": ROLLBACK,
                "asked": UNKNOWN,
                "forgotten": UNKNOWN,
                "raised": error,
                "nothing": None,
            }.items()
        }
        states = {name: r.state for name, r in results.items()}
        assert states == {
            "paid": COMMIT,
            "bounced": ROLLBACK,
            "asked": UNKNOWN,
            "forgotten": UNKNOWN,
            "raised": UNKNOWN,
            "nothing": UNKNOWN,
        }
        assert results["raised"].error is error
        # The local transaction runs in the caller's own thread, where his database session lives.
        assert {thread for _, _, thread in bank.begun} == {threading.get_ident()}
        found = {m.body.decode(): m for m in inbox.wait_for(3)}
        assert sorted(found) == ["asked", "paid", "raised"]
        for name, message in found.items():
            assert (message.topic, message.tag, message.keys) == (scene.topic, "T", (name,))
            assert message.message_id == bank.ids[name.encode()] == results[name].sent.message_id
        open_ones = {"asked", "forgotten", "raised", "nothing"}
        # What was sent a moment later may be asked for a round later.
        until(lambda: open_ones <= {m.body.decode() for m in bank.asked})
        asked = {m.body.decode(): m for m in bank.asked}
        assert set(asked) - ended_late(scene, "paid", "bounced") == open_ones
        assert asked["asked"].message_id == results["asked"].sent.message_id
        assert {m.topic for m in bank.asked} == {scene.topic}
    bodies, questions = (Counter(m.body.decode() for m in found) for found in (inbox.received, bank.asked))
    assert set(bodies) == {"asked", "paid", "raised"}
    # The official broker shows a message for each answer, and asks again where an answer takes a second.
    often = questions if scene.cluster.name == "apache" else Counter[str]()
    assert all(count <= max(1, often[body]) for body, count in bodies.items()), (bodies, questions)


def test_any_producer_of_the_group_is_asked(scene: Scene) -> None:
    group = f"p-{scene.group}"
    with TransactionProducer(scene.namesrv, group, listener=Bank()) as gone:
        gone.send_in_transaction(scene.topic, b"left", argument=UNKNOWN)
    bank = Bank("left")
    with TransactionProducer(scene.namesrv, group, listener=bank) as heir:
        # It is known to the broker from its first send on.
        heir.send_in_transaction(scene.topic, b"own", argument=COMMIT)
        assert sorted(m.body for m in scene.stored(2)) == [b"left", b"own"]
        assert {m.body.decode() for m in bank.asked} - ended_late(scene, "own") == {"left"}


@pytest.mark.shows("mended: known to brokers from `start` on")
def test_a_producer_that_sends_nothing_is_asked(scene: Scene) -> None:
    group = f"p-{scene.group}"
    with TransactionProducer(scene.namesrv, group, listener=Bank()) as gone:
        gone.send_in_transaction(scene.topic, b"left", argument=UNKNOWN)
    bank = Bank("left")
    with TransactionProducer(scene.namesrv, group, listener=bank, topics=[scene.topic]):
        assert [m.body for m in scene.stored(1)] == [b"left"]
    assert {m.body for m in bank.asked} == {b"left"}


def test_coroutines_and_fields(scene: Scene) -> None:
    class Listener:
        async def execute(self, message: Message, transaction: Transaction) -> TransactionState:
            await asyncio.sleep(0)
            return COMMIT

        async def check(self, message: ReceivedMessage) -> TransactionState:
            return COMMIT

    async def run() -> None:
        async with AsyncTransactionProducer(scene.namesrv, f"p-{scene.group}", listener=Listener()) as producer:
            message = Message(topic=scene.topic, body=b"x" * 9000, properties={"p": "q"}, flag=7)
            before = repr(message)
            result = await producer.send_in_transaction(message)
            assert (result.state, repr(message)) == (COMMIT, before)
            with pytest.raises(MessageIllegal, match="delayed"):
                await producer.send_in_transaction(scene.topic, b"x", delay_level=1)

    asyncio.run(run())
    (found,) = scene.stored(1)
    assert (found.body, found.properties["p"], found.flag) == (b"x" * 9000, "q", 7)


@pytest.mark.shows("rows in a transaction, on both servers: half messages in batches on ours, one by one on RocketMQ's")
def test_rows_end_together(scene: Scene) -> None:
    # RocketMQ's broker stores again and again, each second, what had an end while it was not to be asked about.
    count = 60 if scene.cluster.name == "apache" else 3000
    bodies = [b"%d" % row for row in range(count)]
    keys = [f"k{row % 5}" for row in range(count)]
    bank = Bank()
    with (
        Admin(scene.namesrv) as operations,
        TransactionProducer(scene.namesrv, f"p-{scene.group}", listener=bank, **PATIENT) as producer,
    ):
        bank.look = lambda topic: [each.max_offset for each in operations.topic_stats(topic).queues]

        def send(name: str, state: TransactionState) -> RowsTransactionResult:
            result = producer.send_many_in_transaction(
                *(scene.topic, bodies), sharding_keys=keys, keys=name, argument=(state, False), check_after_s=90
            )
            assert (result.state, result.error, result.sent.errors) == (state, None, [None] * count)
            # Nobody saw a row while the local transaction ran.
            assert set(bank.seen) <= {0}
            largest = max(each.end - each.at for each in result.sent.outcomes)
            assert (largest > 1) == (scene.cluster.name != "apache")
            return result

        send("dropped", ROLLBACK)
        kept = send("kept", COMMIT)
        found = scene.stored(count)
        assert {m.message_id: m.body for m in found} == dict(zip(kept.sent.message_ids, bodies, strict=True))
        assert {m.keys for m in found} == {("kept",)}
        assert len({m.transaction_id for m in found}) == 1
        for queue in {m.queue for m in found}:
            rows = [int(m.body) for m in found if m.queue == queue]
            assert rows == sorted(rows)
        assert bank.asked == []


@pytest.mark.shows("rows in a transaction whose end was not told are asked about one by one, and each comes once")
def test_rows_that_ended_unknown_are_asked_about(scene: Scene) -> None:
    bank = Bank()
    with TransactionProducer(scene.namesrv, f"p-{scene.group}", listener=bank, **PATIENT) as producer:
        kept, dropped = (
            producer.send_many_in_transaction(scene.topic, [b"a", b"b"], argument=(UNKNOWN, is_settled))
            for is_settled in (True, False)
        )
        assert sorted(m.message_id for m in scene.stored(2)) == kept.sent.message_ids
        until(lambda: {m.message_id for m in bank.asked} == {*kept.sent.message_ids, *dropped.sent.message_ids})


def test_a_listener_needs_both_methods() -> None:
    with pytest.raises(ConfigError, match="check"):
        TransactionProducer("127.0.0.1:9", "g", listener=type("Half", (), {"execute": print})())
