"""Ends of half messages: rows of one queue are committed in their order, whichever ends a broker refuses."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketspark.errors import RocketSparkError
from rocketspark.model import MessageQueue
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.message import half_ranges, sysflags
from rocketspark.spark.exactly_once import broker_abilities, end_transactions
from rocketspark.spark.exactly_once.broker_abilities import Abilities, BrokerAbilities
from rocketspark.spark.exactly_once.commit_records import HandleHead, HandleManifest
from rocketspark.spark.exactly_once.end_transactions import EndTransactions
from rocketspark.tables.options import parse_write
from rocketspark.transport.request_frames import Reply

pytestmark = pytest.mark.shows("mended: rows of one sharding key could swap at SYSTEM_BUSY")


class BusyBroker:
    """Refuses the ends whose number is in `busy`; `committed`: positions in the order they were ended."""

    address = "127.0.0.1:1"
    hooks = None

    def __init__(self, busy: set[int]) -> None:
        self._busy = busy
        self._numbers = itertools.count()
        self.committed: list[int] = []
        self.position_of: dict[int, int] = {}

    def next_opaque(self) -> int:
        return next(self._numbers)

    def ask_encoded(self, opaque: int, frame: Any, code: int, timeout_ms: float) -> asyncio.Future[Any]:
        busy = opaque in self._busy
        if not busy:
            self.committed.append(self.position_of[opaque])
        reply = asyncio.get_running_loop().create_future()
        code = ResponseCode.SYSTEM_BUSY if busy else ResponseCode.SUCCESS
        reply.set_result(SimpleNamespace(code=code, remark="", address=self.address))
        return reply


def instance_of(master: Callable[[], str]) -> Any:
    """A client whose route names that master."""
    return SimpleNamespace(routes=SimpleNamespace(master=lambda name: master()))


async def commit(manifest: HandleManifest, broker: BusyBroker, *, once: bool, roll_back: bool = False) -> None:
    async def master(ask: Any, topic: str) -> BusyBroker:
        return broker

    async def guard() -> None:
        pass

    options = parse_write({"namesrv": "127.0.0.1:1", "topic": "t"})
    log: Any = SimpleNamespace(again=master, topic="log", instance=instance_of(lambda: broker.address))
    made = EndTransactions(log, options, [], fresh=True, guard=guard)
    made._abilities._known[broker.address] = Abilities(ends_once=once, batches=False)
    ask = made._ask

    def noted(peer: Any, frame: bytes, of: HandleManifest, chunk: Any) -> Any:
        at = next(broker._numbers)
        broker._numbers = itertools.count(at)
        broker.position_of |= {at + i: int(of.positions[row]) for i, row in enumerate(chunk.tolist())}
        return ask(peer, frame, of, chunk)

    made._ask = noted  # type: ignore[method-assign]
    await (made.roll_back if roll_back else made.commit)(manifest)


@pytest.mark.parametrize("once", [True, False])
@settings(max_examples=40, deadline=None)
@given(
    targets=st.lists(st.integers(0, 2), min_size=1, max_size=30),
    busy=st.sets(st.integers(0, 40), max_size=12),
)
def test_rows_of_a_queue_are_committed_in_their_order(once: bool, targets: list[int], busy: set[int]) -> None:
    count = len(targets)
    head = HandleHead("a", 0, count, "q", 1, True, tuple(("t", "b", i) for i in range(3)))
    rows = np.arange(count, dtype=np.int64)
    manifest = HandleManifest(head, np.array(targets, np.int32), rows, rows)
    broker = BusyBroker(busy)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(end_transactions, "PAUSE_S", 0)
        asyncio.run(commit(manifest, broker, once=once))
    assert sorted(broker.committed) == list(range(count))
    for queue in range(3):
        of_queue = [at for at in broker.committed if targets[at] == queue]
        assert of_queue == sorted(of_queue)


class LossyBroker(BusyBroker):
    """Refuses the ends in `busy` as a broker does that cannot deliver their messages."""

    def ask_encoded(self, opaque: int, frame: Any, code: int, timeout_ms: float) -> asyncio.Future[Any]:
        reply = super().ask_encoded(opaque, frame, code, timeout_ms)
        if opaque in self._busy:
            remark = "Find prepared transaction message failed: transaction K was rolled back or is lost"
            refused = SimpleNamespace(code=ResponseCode.SYSTEM_ERROR, remark=remark, address=self.address)
            reply = asyncio.get_running_loop().create_future()
            reply.set_result(refused)
        return reply


@pytest.mark.shows(
    "mended: a commit by the handle of an older copy while the newest cannot be read: acknowledged, not "
    "delivered; marks that rot, delayed commits"
)
@pytest.mark.parametrize("once", [True, False])
def test_rows_whose_commit_is_refused_as_lost_fail_the_batch(once: bool, caplog: pytest.LogCaptureFixture) -> None:
    rows = np.arange(3, dtype=np.int64)
    head = HandleHead("a", 0, 3, "q", 1, False, (("t", "b", 0),))
    manifest = HandleManifest(head, np.zeros(3, np.int32), rows, rows)
    broker = LossyBroker({1})
    with pytest.raises(RocketSparkError, match="1 rows of batch 1 cannot be committed"):
        asyncio.run(commit(manifest, broker, once=once))
    assert broker.committed == [0, 2]
    # What shall be rolled back may be gone.
    broker = LossyBroker({1})
    asyncio.run(commit(manifest, broker, once=once, roll_back=True))
    assert (broker.committed, caplog.text) == ([0, 2], "")


def test_a_master_of_the_other_kind_is_asked_how_it_ends() -> None:
    """The one that ends each transaction once died; its official slave ends them as often as it is told."""
    masters = {"127.0.0.1:1": "true", "127.0.0.1:2": "false"}
    now = ["127.0.0.1:1"]

    async def runtime(anchor: MessageQueue) -> dict[str, str]:
        return {broker_abilities.ENDS_ONCE: masters[now[0]]}

    async def main() -> None:
        log: Any = SimpleNamespace(instance=instance_of(lambda: now[0]))
        abilities = BrokerAbilities(log, 1000)
        abilities.runtime = runtime  # type: ignore[method-assign]
        anchor = MessageQueue("t", "b", 0)
        assert (await abilities.of(anchor)).ends_once
        now[0] = "127.0.0.1:2"
        assert not (await abilities.of(anchor)).ends_once

    asyncio.run(main())


OFFSETS = np.array([5, 6, 9], np.int64)


def test_what_arrived_is_told_apart_once_the_queues_hold_the_whole_log() -> None:
    """A broker that ends as often as it is told would deliver again what is taken for missing."""
    ends = [("9", "4"), ("9", "0"), ("12", "3")]

    async def runtime(anchor: MessageQueue) -> dict[str, str]:
        return dict(zip(("commitLogMaxOffset", "dispatchBehindBytes"), ends.pop(0), strict=True))

    async def bounds(queue: MessageQueue) -> tuple[int, int]:
        return 0, 2

    async def read(queue: MessageQueue, first: int, end: int, **_: Any) -> AsyncIterator[Any]:
        assert ends == []
        for position, outcome in ((500, sysflags.TRANSACTION_COMMIT), (600, 0)):
            yield SimpleNamespace(prepared_position=position, sys_flag=outcome)

    async def guard() -> None:
        pass

    log: Any = SimpleNamespace(bounds=bounds, read=read)
    options = parse_write({"namesrv": "127.0.0.1:1", "topic": "t"})
    made = EndTransactions(log, options, [("t", "b", 0, 0)], fresh=False, guard=guard)
    made._abilities.runtime = runtime  # type: ignore[method-assign]
    head = HandleHead("attempt", 0, 3, "Q", 7, False, (("t", "b", 0),))
    manifest = HandleManifest(head, np.zeros(3, np.int32), OFFSETS, OFFSETS * 100)
    assert asyncio.run(made._missing("b", manifest, np.arange(3))).tolist() == [1, 2]


def asked(code: int, body: bytes) -> list[int]:
    """The rows that can never be committed, as a broker with this answer tells."""
    head = HandleHead("attempt", 0, 3, "Q", 7, False, (("t", "b", 0),))
    manifest = HandleManifest(head, np.zeros(3, np.int32), OFFSETS, OFFSETS * 100)

    async def request(*_: Any, **options: Any) -> Any:
        return Reply(code, "why", b"", body, "127.0.0.1:1")

    peer: Any = SimpleNamespace(request=request)
    rows = end_transactions.ask_for_ranges(
        *(peer, "G", MessageQueue("t", "b", 0), sysflags.TRANSACTION_COMMIT, manifest, "t", np.arange(3)),
        timeout_ms=1000,
    )
    return [int(row) for row in asyncio.run(rows)]


def test_rows_that_are_gone_are_told_by_their_offsets() -> None:
    assert asked(0, b"") == []
    assert asked(0, half_ranges.encode_offsets([6, 9, 77])) == [1, 2]


@pytest.mark.parametrize("body", [b"1234567", b"123456789"])
def test_an_answer_that_is_cut_off_is_an_error_of_ours(body: bytes) -> None:
    with pytest.raises(RocketSparkError, match=r"the answer of 127\.0\.0\.1:1 about half messages"):
        asked(0, body)


def test_a_refusal_is_an_error_and_an_unknown_request_another() -> None:
    with pytest.raises(RocketSparkError, match=r"code 16 from 127\.0\.0\.1:1: why"):
        asked(ResponseCode.NO_PERMISSION, b"")
    with pytest.raises(end_transactions.NoRanges):
        asked(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, b"")
