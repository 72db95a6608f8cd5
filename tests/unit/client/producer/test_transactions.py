"""Transaction producers alone: whose check it is, and what a listener may return or raise."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import pytest
from tests.unit.client.fake import Fake, in_loop, until

from rocketspark.client import AsyncTransactionProducer, TransactionProducer, TransactionState
from rocketspark.errors import StateError
from rocketspark.model import Message, ReceivedMessage
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.message import record, sysflags
from rocketspark.transport.request_frames import request


class Bank:
    """`act`: what happens when it is asked."""

    def __init__(self, act: Any = lambda: TransactionState.COMMIT) -> None:
        self.act = act
        self.messages: list[Message] = []
        self.asked: list[ReceivedMessage] = []

    def execute(self, message: Message, transaction: Any) -> Any:
        self.messages.append(message)
        assert message.transaction_id == transaction.id
        return self.act()

    def check(self, message: ReceivedMessage) -> Any:
        self.asked.append(message)
        assert message.transaction_id == message.message_id
        return self.act()


async def commit() -> TransactionState:
    return TransactionState.COMMIT


async def cancelled() -> TransactionState:
    raise asyncio.CancelledError


def ends(fake: Fake) -> list[headers.EndTransactionHeader]:
    told: list[headers.EndTransactionHeader] = []

    def end(peer: Any, asked: Any, body: bytes) -> None:
        told.append(asked.ext)

    fake.broker.routes.add(RequestCode.END_TRANSACTION, end, headers.EndTransactionHeader)
    return told


def ask(fake: Fake) -> None:
    """Ask all producers about the last half message."""
    data = fake.broker.queues["t", 0][-1]
    header = headers.CheckTransactionHeader(half_offset=0, physical_offset=0, broker_name="broker-a")
    code = RequestCode.CHECK_TRANSACTION_STATE
    for peer in fake.broker.server.peers:
        peer.send(request(code, header, data, opaque=peer.next_opaque(), flag=2))


@pytest.mark.shows("mended: a second TransactionProducer that fails to start replaces the checker")
@in_loop
async def test_one_that_fails_to_start_takes_no_checks() -> None:
    async with Fake(t=1) as fake:
        told = ends(fake)
        options: Any = {"instance_name": "one"}
        first, second = Bank(), Bank()
        async with AsyncTransactionProducer(fake.namesrv, "pg", listener=first, **options) as producer:
            other = AsyncTransactionProducer(fake.namesrv, "pg", listener=second, **options)
            with pytest.raises(StateError, match="in use"):
                await other.start()
            await other.close()
            await producer.send_in_transaction("t", b"x")
            ask(fake)
            await until(lambda: len(told) == 2)
            assert (len(first.asked), len(second.asked)) == (1, 0)
            assert len(producer._instance.asked.checks) == 1
        assert producer._instance.asked.checks == {}


@pytest.mark.shows("mended: Message.transaction_id")
@pytest.mark.parametrize(
    ("act", "outcome"),
    [
        (lambda: TransactionState.ROLLBACK, sysflags.TRANSACTION_ROLLBACK),
        # What a plain function returns is awaited, if it is to be.
        (commit, sysflags.TRANSACTION_COMMIT),
        (cancelled, 0),
        (lambda: sys.exit(3), 0),
        (lambda: 1 / 0, 0),
    ],
)
def test_every_check_is_answered(act: Any, outcome: int) -> None:
    @in_loop
    async def run() -> None:
        async with Fake(t=1) as fake:
            told = ends(fake)
            bank = Bank()
            async with AsyncTransactionProducer(fake.namesrv, "pg", listener=bank) as producer:
                message = Message(topic="t", body=b"x")
                await producer.send_in_transaction(message)
                assert message.transaction_id is None
                bank.act = act
                ask(fake)
                await until(lambda: len(told) == 2)
                assert (told[1].outcome, told[1].from_check) == (outcome, True)
                # And the next one too.
                bank.act = commit
                ask(fake)
                await until(lambda: len(told) == 3)
                assert told[2].outcome == sysflags.TRANSACTION_COMMIT
                assert record.decode(fake.broker.queues["t", 0][-1]).body == b"x"

    run()


@pytest.mark.parametrize(("code", "ran"), [(0, 1), (10, 0)])
def test_a_half_message_that_may_be_lost_is_rolled_back_at_once(code: int, ran: int) -> None:
    @in_loop
    async def run() -> None:
        async with Fake(t=1) as fake:
            fake.broker.reply_code = code
            told, bank = ends(fake), Bank()
            made = TransactionProducer(fake.namesrv, "pg", listener=bank)
            await asyncio.to_thread(made.start)
            result = await asyncio.to_thread(made.send_in_transaction, "t", b"x")
            await asyncio.to_thread(made.close)
            states = (TransactionState.ROLLBACK, sysflags.TRANSACTION_ROLLBACK)
            if ran:
                states = (TransactionState.COMMIT, sysflags.TRANSACTION_COMMIT)
            await until(lambda: told)
            assert (result.state, told[0].outcome, len(bank.messages)) == (*states, ran)

    run()


@in_loop
async def test_a_local_transaction_that_a_close_overtakes_is_told_so() -> None:
    release = threading.Event()
    bank = Bank(lambda: release.wait() and TransactionState.COMMIT)
    async with Fake(t=1) as fake:
        told = ends(fake)
        producer = AsyncTransactionProducer(fake.namesrv, "pg", listener=bank, check_threads=1)
        await producer.start()
        try:
            first = asyncio.create_task(producer.send_in_transaction("t", b"x"))
            await until(lambda: len(bank.messages) == 1)
            second = asyncio.create_task(producer.send_in_transaction("t", b"y"))
            await until(lambda: len(fake.broker.sends) == 2 and not producer.send_path.is_busy)
            await asyncio.sleep(0)
            await producer.close()
            # It never ran: that is its error, not a cancellation of who waits.
            result = await second
            assert (result.state, len(bank.messages)) == (TransactionState.UNKNOWN, 1)
            assert isinstance(result.error, StateError)
        finally:
            release.set()
        assert (await first).state is TransactionState.COMMIT
        assert [t for t in asyncio.all_tasks() if "Transaction" in repr(t)] == []
        assert told == []


@in_loop
async def test_a_check_that_a_close_overtakes_ends_with_it() -> None:
    entered, ended = asyncio.Event(), asyncio.Event()

    async def act() -> TransactionState:
        if not bank.asked:
            return TransactionState.UNKNOWN
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return TransactionState.COMMIT

    bank = Bank(act)
    async with Fake(t=1) as fake:
        async with AsyncTransactionProducer(fake.namesrv, "pg", listener=bank) as producer:
            await producer.send_in_transaction("t", b"x")
            ask(fake)
            await entered.wait()
        await until(ended.is_set)
        await until(lambda: not [t for t in asyncio.all_tasks() if "Producer._check" in repr(t)])
