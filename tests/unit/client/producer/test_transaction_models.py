"""Transactions in any order of events: listeners that are slow, raise, are cancelled or return anything, brokers that
ask at any time and again, connections that fail, callers that stop to wait, a close in the midst.

A half message is committed or rolled back only if the listener said so of it (or it was not stored safely), each
question gets one answer unless its connection is gone or the application's function was ended with all else, whoever
waits is told, and after the close nobody is asked and nothing runs.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.unit.client.machines import run_machine
from tests.unit.client.world import FakeClockLoop

from rocketspark.client import AsyncTransactionProducer, SendResult, SendStatus, TransactionResult, TransactionState
from rocketspark.errors import NotSent, RocketSparkError
from rocketspark.model import MessageQueue
from rocketspark.protocol.message import message_ids, sysflags

pytestmark = pytest.mark.shows(
    "model tests: sends, push, ordered, pull and assigning consumers, rebalance, thread listeners, "
    "transactions of clients and of the broker, delays, timers"
)

COMMIT, ROLLBACK = sysflags.TRANSACTION_COMMIT, sysflags.TRANSACTION_ROLLBACK
SAID = {TransactionState.COMMIT: COMMIT, TransactionState.ROLLBACK: ROLLBACK}


class Machine(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 1 << 32), failures=st.sampled_from([0, 0.1, 0.4]))
    def begin(self, seed: int, failures: float) -> None:
        self.random = random.Random(seed)
        self.failures = failures
        self.loop = FakeClockLoop()
        self.tasks: list[asyncio.Task[Any]] = []
        self.faults: list[BaseException] = []
        self.stored: list[str] = []
        self.unsafe: set[str] = set()
        # By message: what its listener said; what the broker was told.
        self.said: dict[str, set[int]] = {}
        self.executed: Counter[str] = Counter()
        self.questions: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self.closed = False
        self._patch = mock.patch("rocketspark.client.connection.client_api.end_transaction", self.told)
        self._patch.start()
        self.run(self.start())

    def run(self, coroutine: Any) -> Any:
        return self.loop.run_until_complete(coroutine)

    async def start(self) -> None:
        self.producer = AsyncTransactionProducer("127.0.0.1:1", "g", listener=self)
        instance = self.producer._instance

        async def nothing(*_: Any, **__: Any) -> None:
            await self.take_time()

        async def connect(*_: Any) -> Any:
            await self.take_time()
            if self.fails():
                raise NotSent("as the seed wants it", address="address")
            return SimpleNamespace(address="address")

        instance.start = instance.close = nothing  # type: ignore[method-assign]
        instance.introduce = lambda _: None  # type: ignore[method-assign, assignment]
        self.producer._send_attempts.connect = connect  # type: ignore[method-assign, assignment]
        self.producer.send_packed = self.send  # type: ignore[method-assign, assignment]
        await self.producer.start()

    async def take_time(self, at_most_s: float = 1.0) -> None:
        if self.random.random() < 0.7:
            await asyncio.sleep(self.random.random() * at_most_s)

    def fails(self) -> bool:
        return self.random.random() < self.failures

    # -- the broker ----------------------------------------------------------------------------------------------

    async def send(self, out: Any, *_: Any, **__: Any) -> SendResult:
        self.producer._check_started()
        await self.take_time()
        if self.fails():
            raise NotSent("as the seed wants it", address="address")
        self.stored.append(out.message_id)
        if self.fails():
            self.unsafe.add(out.message_id)
        return SendResult(
            status=SendStatus.FLUSH_DISK_TIMEOUT if out.message_id in self.unsafe else SendStatus.SEND_OK,
            message_id=out.message_id,
            offset_message_id=message_ids.offset_message_id(message_ids.pack_host("127.0.0.1", 1), len(self.stored)),
            queue=MessageQueue("t", "broker-a", 0),
            queue_offset=len(self.stored),
            transaction_id=out.message_id,
        )

    def told(self, peer: Any, header: Any, remark: str | None = None) -> None:
        allowed = self.said.get(header.message_id, set()) | {0}
        if header.message_id in self.unsafe:
            allowed = allowed | {ROLLBACK}
        if header.outcome not in allowed:
            self.faults.append(AssertionError(f"{header.outcome} is told of {header.message_id}: it was {allowed}"))
        if header.from_check:
            self.answers[header.message_id] += 1

    # -- the application -----------------------------------------------------------------------------------------

    async def listen(self, message_id: str) -> Any:
        await self.take_time(5)
        if self.fails():
            raise ValueError("as the seed wants it")
        if self.fails():
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            await future
        said = self.random.choice([*TransactionState, None, "COMMIT", 7])
        if isinstance(said, TransactionState):
            self.said.setdefault(message_id, set()).add(SAID.get(said, 0))
        return said

    async def execute(self, message: Any, transaction: Any) -> Any:
        self.executed[transaction.id] += 1
        if transaction.id not in self.stored or transaction.id in self.unsafe or self.executed[transaction.id] > 1:
            self.faults.append(AssertionError(f"{transaction.id} is executed"))
        return await self.listen(transaction.id)

    async def check(self, message: Any) -> Any:
        if self.closed:
            self.faults.append(AssertionError("asked after the close"))
        return await self.listen(message.message_id)

    # -- events --------------------------------------------------------------------------------------------------

    def at_once(self, act: Any) -> None:
        async def kept() -> None:
            try:
                await act
            except RocketSparkError:
                pass
            except asyncio.CancelledError:
                # The application's own, which reaches who called; or who stopped to wait.
                pass
            except Exception as e:
                self.faults.append(e)

        async def begun() -> None:
            self.tasks.append(asyncio.ensure_future(kept()))
            await asyncio.sleep(self.random.choice([0, 0, 0.2, 1, 3]))

        self.run(begun())

    async def transact(self) -> None:
        result = await self.producer.send_in_transaction("t", b"x")
        assert isinstance(result, TransactionResult)
        assert (result.error is None) or result.state is TransactionState.UNKNOWN

    @rule()
    def a_transaction_begins(self) -> None:
        self.at_once(self.transact())

    async def ask(self, message_id: str) -> None:
        check = self.producer._instance.asked.checks.get("g")
        if check is None:
            return
        message = SimpleNamespace(message_id=message_id, topic="t", tag=None, keys=())
        question = SimpleNamespace(half_offset=1, physical_offset=1, transaction_id=message_id, broker_name="broker-a")
        question.message_id = message_id
        self.questions[message_id] += 1
        await check(SimpleNamespace(address="address"), question, message)  # type: ignore[arg-type]

    @rule(share=st.floats(0, 0.999), times=st.integers(1, 3))
    def the_broker_asks(self, share: float, times: int) -> None:
        for _ in range(times):
            if self.stored:
                self.at_once(self.ask(self.stored[int(share * len(self.stored))]))

    @rule(seconds=st.sampled_from([0.0, 0.5, 5.0]))
    def time_passes(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    @rule()
    def somebody_stops_to_wait(self) -> None:
        for task in self.tasks:
            if not task.done():
                task.cancel()
                # A question that is given up with its connection needs no answer.
                self.stopped = True
                return

    stopped = False

    async def end(self) -> None:
        await self.producer.close()
        self.closed = True

    @rule(chance=st.integers(0, 9))
    def close(self, chance: int) -> None:
        if chance == 9:
            self.at_once(self.end())

    @invariant()
    def all_is_well(self) -> None:
        if hasattr(self, "faults") and self.faults:
            raise self.faults[0]

    def teardown(self) -> None:
        if not hasattr(self, "producer"):
            return
        try:
            self.run(asyncio.sleep(30))
            if not self.stopped:
                assert self.answers == self.questions
            self.run(self.end())
            self.run(asyncio.sleep(30))
            assert [task for task in self.tasks if not task.done()] == [], "somebody was not told"
            assert asyncio.all_tasks(self.loop) == set()
            assert self.producer._instance.asked.checks == {}
            self.all_is_well()
        finally:
            self._patch.stop()
            self.loop.close()


@pytest.mark.hypothesis
def test_any_order_of_events() -> None:
    run_machine(Machine, 60, steps=30)
