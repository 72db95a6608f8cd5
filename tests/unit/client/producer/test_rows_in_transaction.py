"""Rows in a transaction, before a broker that knows no batches of half messages: what is sent, and what ends it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.unit.client.fake import Fake, in_loop, until
from tests.unit.client.producer.test_send_many import pairs_of, stored

from rocketspark.client import AsyncTransactionProducer, RowsTransaction, TransactionProducer, TransactionState
from rocketspark.client.hooks import Ending, Hooks
from rocketspark.client.producer import send_many
from rocketspark.errors import MessageIllegal, UsageError
from rocketspark.protocol import headers
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.message import sysflags
from rocketspark.transport.request_frames import reply

pytestmark = pytest.mark.shows(
    "rows in a transaction: one local transaction for all; brokers of RocketMQ get half messages and ends one by one, "
    "in order; what is not stored safely is rolled back",
)

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN


def ends(fake: Fake) -> list[headers.EndTransactionHeader]:
    """Keep what ends are told. Some take longer than the next, so that one that does not wait shows."""
    told: list[headers.EndTransactionHeader] = []

    async def end(peer: Any, asked: Any, body: bytes) -> bytes:
        for _ in range(len(told) % 5):
            await asyncio.sleep(0)
        told.append(asked.ext)
        return reply(asked.opaque)

    fake.broker.routes.add(RequestCode.END_TRANSACTION, end, headers.EndTransactionHeader)
    return told


class Listener:
    """Does as the argument says."""

    def __init__(self) -> None:
        self.begun: list[RowsTransaction] = []

    def execute(self, message: Any, transaction: Any) -> Any:
        raise AssertionError("it is not asked for rows")

    def execute_many(self, transaction: RowsTransaction) -> Any:
        self.begun.append(transaction)
        if isinstance(transaction.argument, Exception):
            raise transaction.argument
        return transaction.argument

    def check(self, message: Any) -> Any:
        return UNKNOWN


@pytest.mark.parametrize(("state", "outcome"), [(COMMIT, sysflags.TRANSACTION_COMMIT), (ROLLBACK, 12)])
def test_a_broker_that_takes_no_batches_gets_each_row_and_each_end_in_order(state: Any, outcome: int) -> None:
    @in_loop
    async def run() -> None:
        listener, seen = Listener(), Seen()
        async with Fake(t=4) as fake:
            told = ends(fake)
            async with AsyncTransactionProducer(fake.namesrv, "pg", listener=listener, hooks=[seen]) as producer:
                bodies = [b"%d" % row for row in range(20)]
                keys: list[str | None] = [f"k{row % 3}" if row % 2 else None for row in range(20)]
                result = await producer.send_many_in_transaction(
                    "t", bodies, sharding_keys=keys, keys="order-7", argument=state, check_after_s=9
                )
                assert (result.state, result.error, result.sent.errors) == (state, None, [None] * 20)
                await until(lambda: len(told) == 20)
        (transaction,) = listener.begun
        assert (transaction.topic, transaction.argument, transaction.sent) == ("t", state, result.sent)
        found = stored(fake.broker)
        assert sorted(each.body for records in found.values() for each in records) == sorted(bodies)
        for records in found.values():
            of_key = [int(each.body) for each in records if "__SHARDINGKEY" in pairs_of(each)]
            assert of_key == sorted(of_key)
        wanted = {"KEYS": "order-7", "TRAN_MSG": "true", "PGROUP": "pg", "CHECK_IMMUNITY_TIME_IN_SECONDS": "9"}
        places = {}
        for records in found.values():
            for each in records:
                assert wanted.items() <= pairs_of(each).items()
                assert each.sys_flag & sysflags.TRANSACTION_MASK == sysflags.TRANSACTION_PREPARED
                places[pairs_of(each)["UNIQ_KEY"]] = (each.queue_offset, each.position)
        assert {(e.outcome, e.producer_group, e.topic, e.from_check) for e in told} == {(outcome, "pg", "t", False)}
        assert {e.message_id: (e.half_offset, e.physical_offset) for e in told} == places
        assert {e.message_id for e in seen.endings} == {e.message_id for e in told}
        for records in found.values():
            ids = [pairs_of(each)["UNIQ_KEY"] for each in records if "__SHARDINGKEY" in pairs_of(each)]
            assert [e.message_id for e in told if e.message_id in ids] == ids
        assert set(result.sent.message_ids) == set(places)

    run()


class Seen(Hooks):
    def __init__(self) -> None:
        self.endings: list[Ending] = []

    def after_end(self, ending: Ending) -> None:
        self.endings.append(ending)


@in_loop
async def test_what_ends_unknown_is_told_to_nobody() -> None:
    listener, error = Listener(), RuntimeError("the bank is closed")
    async with Fake(t=1) as fake:
        told = ends(fake)
        async with AsyncTransactionProducer(fake.namesrv, "pg", listener=listener) as producer:
            for argument, why in ((UNKNOWN, None), (None, None), (error, error)):
                result = await producer.send_many_in_transaction("t", [b"a", b"b"], argument=argument)
                assert (result.state, result.error) == (UNKNOWN, why)
            # Its end comes behind what the others would have told.
            last = await producer.send_many_in_transaction("t", [b"c"], argument=COMMIT)
            await until(lambda: bool(told))
            assert [e.message_id for e in told] == last.sent.message_ids


@pytest.mark.parametrize("fault", ["refused", "unsafe"])
def test_all_is_rolled_back_if_a_row_is_not_stored_safely(fault: str) -> None:
    @in_loop
    async def run() -> None:
        listener = Listener()
        async with Fake(t=1) as fake:
            told = ends(fake)
            if fault == "unsafe":
                fake.broker.reply_code = ResponseCode.FLUSH_DISK_TIMEOUT
            else:
                fake.broker.rules[RequestCode.SEND_MESSAGE_V2] = lambda header, body: (
                    (ResponseCode.MESSAGE_ILLEGAL, "as told") if body == b"2" else None
                )
            async with AsyncTransactionProducer(fake.namesrv, "pg", listener=listener) as producer:
                bodies = [b"%d" % row for row in range(5)]
                result = await producer.send_many_in_transaction("t", bodies, argument=COMMIT)
                safe = [True] * 5 if fault == "unsafe" else [True, True, False, True, True]
                assert [not failed for failed in result.sent.failed.tolist()] == safe
                assert (result.state, result.error) == (ROLLBACK, None)
                await until(lambda: len(told) == sum(safe))
                assert {e.outcome for e in told} == {sysflags.TRANSACTION_ROLLBACK}
                assert {e.message_id for e in told} == {
                    each for each, ok in zip(result.sent.message_ids, safe, strict=True) if ok
                }
                assert listener.begun == []

    run()


@in_loop
async def test_refused_batches_are_no_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_many, "BATCH_BYTES", 1000)
    monkeypatch.setattr(send_many, "FAILURES_MAX", 2)
    listener = Listener()
    async with Fake(2, t=4) as fake, AsyncTransactionProducer(fake.namesrv, "pg", listener=listener) as producer:
        bodies = [b"%03d" % row + b"x" * 100 for row in range(200)]
        keys = [f"k{row % 7}" for row in range(200)]
        for sharding_keys in (None, keys):
            result = await producer.send_many_in_transaction("t", bodies, sharding_keys=sharding_keys, argument=UNKNOWN)
            assert not result.sent.failed.any()
        for broker in fake.brokers:
            for records in stored(broker).values():
                mine = [each.body for each in records if "__SHARDINGKEY" in pairs_of(each)]
                assert mine == sorted(mine)
        assert sum(len(r) for broker in fake.brokers for r in stored(broker).values()) == 400


@in_loop
async def test_what_cannot_be_done_is_said_before_anything_is_sent() -> None:
    class Old:
        def execute(self, message: Any, transaction: Any) -> Any: ...
        def check(self, message: Any) -> Any: ...

    async with Fake(t=1) as fake:
        async with AsyncTransactionProducer(fake.namesrv, "pg", listener=Old()) as producer:
            with pytest.raises(UsageError, match="has no method 'execute_many'"):
                await producer.send_many_in_transaction("t", [b"x"])
        async with AsyncTransactionProducer(fake.namesrv, "pg", listener=Listener()) as producer:
            with pytest.raises(MessageIllegal, match="rows in a transaction cannot be delayed"):
                await producer.send_many_in_transaction("t", {"body": [b"x"], "delayMs": [5]})
            with pytest.raises(MessageIllegal, match="row 1, column bodies"):
                await producer.send_many_in_transaction("t", [b"x", b""])
        assert fake.broker.sends == []


def test_threads_have_the_same() -> None:
    class Here(Listener):
        def execute_many(self, transaction: RowsTransaction) -> Any:
            threads.append(threading.get_ident())
            return super().execute_many(transaction)

    threads: list[int] = []

    @in_loop
    async def run() -> None:
        async with Fake(t=1) as fake:
            told = ends(fake)

            def use() -> int:
                error = RuntimeError("closed")
                with TransactionProducer(fake.namesrv, "pg", listener=Here()) as producer:
                    failed = producer.send_many_in_transaction("t", [b"x"], argument=error)
                    assert (failed.state, failed.error) == (UNKNOWN, error)
                    done = producer.send_many_in_transaction("t", [b"a", b"b"], keys="k", argument=COMMIT)
                    assert (done.state, done.sent.errors) == (COMMIT, [None, None])
                return threading.get_ident()

            thread = await asyncio.to_thread(use)
            await until(lambda: len(told) == 2)
            assert set(threads) == {thread}

    run()
