"""Batches of half messages and ends of ranges leave what single ones leave, whatever comes in between."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.live.support import until
from tests.support.stand_ins import like
from tests.unit.broker.messages.transactions.test_transactions import BORN, COMMIT, ROLLBACK, Rig

from rocketspark import machine
from rocketspark.broker import topic_names
from rocketspark.broker.handlers import end_transaction
from rocketspark.broker.handlers.end_transaction import EndedRange, HalfRanges
from rocketspark.broker.messages import put_message
from rocketspark.broker.messages.put_message import FixedFields, pairs_of
from rocketspark.broker.messages.transactions import half_batches, op_messages, transaction_checks, transactions
from rocketspark.broker.messages.transactions.half_batch_records import HalfShape
from rocketspark.broker.messages.transactions.half_messages import HALF_GONE, CheckLimits
from rocketspark.broker.messages.transactions.transactions import Transactions
from rocketspark.errors import ServerError, StoreUnwritable
from rocketspark.protocol.headers import EndTransactionHeader
from rocketspark.protocol.message import batch
from rocketspark.protocol.message.batch import BatchItem

pytestmark = pytest.mark.shows(
    "exactly once at speed: half messages in batches, ended by ranges; the log is that of single ones byte "
    "for byte, whatever the properties; parts, overlaps, repeats, bad ranges, checks, kills, a full disk",
    "mended: ends of large rows held the broker's loop for seconds; half messages with a long immunity stayed "
    "in memory for ever",
    "the clock set back and forth by ten years between halves, checks, ends and starts (200 years, with half "
    "messages given up, in 60 runs by hand)",
)

T = TypeVar("T")
NOW_MS = 1_700_000_000_000
IMMUNE = "CHECK_IMMUNITY_TIME_IN_SECONDS\x01600\x02"
# Properties beyond those that every half message has.
ODD = (
    "",
    "KEYS\x01a b\x02TAGS\x01t\x02",
    "TAGS\x01ü\x02",
    "REAL_TOPIC\x01elsewhere\x02REAL_QID\x017\x02",
    "__transactionId__\x01x\x02",
    "MSG_REGION\x01r\x02",
    "TRANSACTION_CHECK_TIMES\x012\x02",
    "DELAY\x011\x02",
    "no pair\x02\x01\x02",
    "UNIQ_KEY\x01twice\x02",
    "PGROUP\x01other\x02",
    IMMUNE,
    "F\x01" + "x" * 3000 + "\x02",
    "no end",
)


def item(key: str, body: bytes, odd: str = "", flag: int = 0) -> BatchItem:
    text = f"UNIQ_KEY\x01{key}\x02WAIT\x01true\x02PGROUP\x01P\x02TRAN_MSG\x01true\x02{odd}"
    return BatchItem(flag, body, text.encode())


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_clocks(monkeypatch, lambda: NOW_MS)


def stop_clocks(patch: pytest.MonkeyPatch, now_ms: Callable[[], int]) -> None:
    for module in (transactions, transaction_checks, op_messages, end_transaction):
        patch.setattr(module, "now_ms", now_ms)
    patch.setattr(put_message, "machine", like(machine, time=lambda: now_ms() / 1000))
    patch.setattr(half_batches, "machine", like(machine, time=lambda: now_ms() / 1000))


@pytest.fixture
def rigs() -> Iterator[Callable[[], Rig]]:
    made: list[tuple[Rig, str]] = []

    def make() -> Rig:
        root = tempfile.mkdtemp()
        made.append((Rig(Path(root)), root))
        return made[-1][0]

    yield make
    for rig, root in made:
        rig.kill()
        shutil.rmtree(root)


def stored_bytes(rig: Rig) -> bytes:
    return b"".join(bytes(found) for found in (rig.store.record_at(r.position) for r in rig.store.iterate(0)) if found)


def end_all(
    ranges: HalfRanges, outcome: int, first: int, positions: Any, topic: str = "T", group: str = "P"
) -> EndedRange:
    done, gone, end = 0, [], None
    while done < len(positions):
        ended = ranges.end(topic, group, outcome, first + done, np.asarray(positions[done:], np.int64))
        done, gone, end = done + ended.done, gone + ended.gone, ended.end or end
    return EndedRange(done, gone, end)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    lengths=st.one_of(
        st.integers(1, 80).map(lambda count: [16] * count), st.lists(st.integers(1, 40), min_size=1, max_size=80)
    ),
    odd=st.lists(st.tuples(st.integers(0, 79), st.sampled_from(ODD)), max_size=3),
    everywhere=st.sampled_from(("", "", IMMUNE, "KEYS\x01k\x02", "DELAY\x011\x02")),
    flags=st.booleans(),
    outcome=st.sampled_from((COMMIT, ROLLBACK)),
)
@pytest.mark.usefixtures("stopped")
def test_a_batch_and_its_end_leave_what_single_ones_leave_byte_for_byte(
    rigs: Callable[[], Rig],
    lengths: list[int],
    odd: list[tuple[int, str]],
    everywhere: str,
    flags: bool,
    outcome: int,
) -> None:
    oddities = dict(odd)
    items = [
        item(f"K{row:05d}", b"x" * length, everywhere + oddities.get(row, ""), row * flags)
        for row, length in enumerate(lengths)
    ]

    async def together(rig: Rig) -> None:
        ranges = HalfRanges(rig.transactions)
        found = ranges.prepare("T", 0, batch.encode(items), 4, NOW_MS, BORN)
        stored = len(rig.store.queue_units("RMQ_SYS_TRANS_HALF_TOPIC", 0, 0, len(items)))
        if not rig.transactions.batched.runs.open_count:
            # Of copies that came one by one the newest alone is open.
            stored = len({pairs_of(one.properties)[b"UNIQ_KEY"] for one in items[:stored]})
        assert rig.transactions.open_count == stored
        # A producer group that differs is refused, by both.
        for row in range(len(items)):
            with suppress(ServerError):
                end_all(ranges, outcome, found.queue_offset + row, found.positions[row : row + 1])

    async def at_once(rig: Rig) -> None:
        ranges = HalfRanges(rig.transactions)
        found = ranges.prepare("T", 0, batch.encode(items), 4, NOW_MS, BORN)
        end_all(ranges, outcome, found.queue_offset, found.positions)

    async def one_by_one(rig: Rig) -> None:
        for one in items:
            rig.transactions.prepare(
                "T", 0, one.body, one.properties, pairs_of(one.properties), FixedFields(one.flag, 4, NOW_MS, BORN)
            )
        for half in list(rig.store.iterate(0)):
            header = EndTransactionHeader(
                topic="T",
                producer_group="P",
                half_offset=half.queue_offset,
                physical_offset=half.position,
                outcome=outcome,
            )
            try:
                rig.transactions.end(header, same_topic=True)
            except ServerError:
                continue

    first, second, third = rigs(), rigs(), rigs()
    asyncio.run(together(first))
    asyncio.run(one_by_one(second))
    assert stored_bytes(first) == stored_bytes(second)
    if not {"PGROUP\x01other\x02", "REAL_TOPIC\x01elsewhere\x02REAL_QID\x017\x02"} & set(oddities.values()):
        asyncio.run(at_once(third))
        assert stored_bytes(third) == stored_bytes(second)


@pytest.mark.usefixtures("stopped")
def test_what_is_not_the_senders_or_not_there_is_refused_and_changes_nothing(rigs: Callable[[], Rig]) -> None:
    rig = rigs()
    ranges = HalfRanges(rig.transactions)
    found = ranges.prepare("T", 0, batch.encode([item(f"K{i}", b"b") for i in range(30, 70)]), 4, NOW_MS, BORN)
    at, positions = found.queue_offset, np.asarray(found.positions)
    for first, where, topic, group in (
        (at, positions, "T", "Q"),
        (at, positions, "U", "P"),
        (at + 1, positions[:-1], "T", "P"),
        (at, positions + 1, "T", "P"),
        (at, np.where(np.arange(40) == 20, positions + 1, positions), "T", "P"),
    ):
        with pytest.raises(ServerError) as caught:
            ranges.end(topic, group, COMMIT, first, where)
        assert caught.value.code == 1
        assert rig.transactions.open_count == 40
    assert ranges.end("T", "P", COMMIT, at + 1000, np.array([7]))[:3] == (1, [at + 1000], None)
    assert not rig.delivered()


@pytest.mark.usefixtures("stopped")
def test_a_damaged_half_message_is_refused_and_the_others_are_committed(rigs: Callable[[], Rig]) -> None:
    rig = rigs()
    ranges = HalfRanges(rig.transactions)
    found = ranges.prepare("T", 0, batch.encode([item(f"K{i}", b"body") for i in range(30, 70)]), 4, NOW_MS, BORN)
    bad = int(np.asarray(found.positions)[17])
    rig.store.log.mapped_files.get(0).map[bad + 88] ^= 1
    ended = end_all(ranges, COMMIT, found.queue_offset, found.positions)
    assert ended.gone == [found.queue_offset + 17]
    assert rig.delivered() == Counter(body=39)
    flow, stored = rig.stats.committed["T"], [r for r in rig.store.iterate(0) if r.topic == b"T"]
    assert (flow.messages, flow.bytes) == (39, sum(len(rig.store.record_at(r.position) or b"") for r in stored))


@pytest.mark.usefixtures("stopped")
def test_a_rolled_back_one_is_gone_and_a_committed_one_stays(rigs: Callable[[], Rig]) -> None:
    rig = rigs()
    ranges = HalfRanges(rig.transactions)
    found = ranges.prepare("T", 0, batch.encode([item(f"K{i}", b"b") for i in range(30, 70)]), 4, NOW_MS, BORN)
    at, positions = found.queue_offset, found.positions
    end_all(ranges, ROLLBACK, at + 10, positions[10:20])
    ended = end_all(ranges, COMMIT, at, positions)
    assert ended.gone == list(range(at + 10, at + 20))
    before = stored_bytes(rig)
    assert end_all(ranges, COMMIT, at, positions).gone == ended.gone
    end_all(ranges, ROLLBACK, at, positions)
    rig.transactions._op_messages.write()
    assert [r.topic for r in rig.store.iterate(0)].count(b"T") == 30
    assert stored_bytes(rig)[: len(before)] == before


def test_the_runs_that_ended_are_forgotten_in_time(monkeypatch: pytest.MonkeyPatch, rigs: Callable[[], Rig]) -> None:
    monkeypatch.setattr(half_batches, "ENDED_ROWS_MAX", 100)
    rig = rigs()
    ranges = HalfRanges(rig.transactions)
    handles = []
    for number in range(6):
        items = [item(f"K{number}-{i}", b"b") for i in range(30, 70)]
        handles.append(ranges.prepare("T", 0, batch.encode(items), 4, NOW_MS, BORN))
    for found in reversed(handles):
        end_all(ranges, COMMIT, found.queue_offset, found.positions)
    assert sum(run.count for run in rig.transactions.batched.runs) <= 100
    # Those are found in the index.
    for found in handles:
        assert end_all(ranges, COMMIT, found.queue_offset, found.positions).gone == []
    assert rig.delivered() == Counter(b=240)


@pytest.mark.parametrize(("odd", "limit"), [("", "BATCH_MAX"), ("no end", "SINGLE_BATCH_MAX")])
def test_a_batch_that_would_hold_the_loop_is_refused_whole(
    monkeypatch: pytest.MonkeyPatch, rigs: Callable[[], Rig], odd: str, limit: str
) -> None:
    monkeypatch.setattr(end_transaction if odd else half_batches, limit, 50)
    rig = rigs()
    ranges = HalfRanges(rig.transactions)
    body = batch.encode([item(f"K{i}", b"b", odd) for i in range(20, 71)])
    with pytest.raises(ServerError, match="51 half messages in a batch") as e:
        ranges.prepare("T", 0, body, 4, NOW_MS, BORN)
    assert e.value.code == 3
    assert rig.transactions.open_count == 0
    ranges.prepare("T", 0, batch.encode([item(f"K{i}", b"b", odd) for i in range(20, 70)]), 4, NOW_MS, BORN)
    assert rig.transactions.open_count == 50


def test_a_check_that_goes_on_after_a_new_start_leaves_the_batches_of_before(rigs: Callable[[], Rig]) -> None:
    """On a slave a check waits for another broker meanwhile."""

    async def main() -> None:
        rig = rigs()
        transactions = rig.transactions
        found = HalfRanges(transactions).prepare(
            "T", 0, batch.encode([item(f"K{i}", b"b") for i in range(30, 70)]), 4, NOW_MS, BORN
        )
        (stale,) = transactions.batched.runs
        transactions.stop()
        transactions.start()
        # On a busy machine each call ends some of them.
        end_all(HalfRanges(transactions), ROLLBACK, found.queue_offset, found.positions)
        assert transactions.open_count == 0
        transactions._check_due(deque([stale]), refresh=False)
        assert transactions.open_count == 0
        transactions.stop()

    asyncio.run(main())


class Machine(RuleBasedStateMachine):
    """`state` of a key: open, committed or rolled back; each body is its key."""

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.patch = pytest.MonkeyPatch()
        self.now, self.jumped = NOW_MS, False
        stop_clocks(self.patch, lambda: self.now)
        self.patch.setattr(half_batches, "ENDED_ROWS_MAX", 60)
        self.patch.setattr(end_transaction, "SINGLE_MAX", 7)
        self.root = Path(tempfile.mkdtemp())
        self.state: dict[str, str] = {}
        # Of every batch: its keys, first offset and physical offsets.
        self.batches: list[tuple[list[str], int, list[int]]] = []
        self.bodies: list[bytes] = []
        # Rolled back, and perhaps open again: the mark was not written at a kill.
        self.forgotten: set[str] = set()
        self.rig = self.on_loop(self.start)

    def start(self) -> Rig:
        rig = Rig(self.root, reserved_ms=10**12)
        rig.transactions.set_limits(CheckLimits(timeout_ms=0, interval_ms=10**9, checks_max=10**6, reserved_ms=10**12))
        self.ranges = HalfRanges(rig.transactions)
        return rig

    def on_loop(self, act: Callable[[], T]) -> T:
        async def run() -> T:
            found = act()
            for _ in range(20):
                await asyncio.sleep(0)
            return found

        return self.loop.run_until_complete(run())

    @rule(
        count=st.sampled_from((1, 5, 30, 40)),
        odd=st.sampled_from(("", "", "", "TAGS\x01ü\x02", "REAL_QID\x010\x02")),
        ragged=st.booleans(),
        immune=st.booleans(),
    )
    def prepare(self, count: int, odd: str, ragged: bool, immune: bool) -> None:
        start = len(self.state)
        keys = [f"K{n}" if ragged else f"K{n:06d}" for n in range(start, start + count)]
        body = batch.encode([item(key, key.encode(), odd + IMMUNE * immune) for key in keys])
        self.send(keys, body)

    @precondition(lambda self: self.batches)
    @rule(pick=st.integers(0, 99))
    def prepare_again(self, pick: int) -> None:
        """A producer without an answer: the handles of both copies may be told."""
        keys = self.batches[pick % len(self.batches)][0]
        if all(self.state[key] == "open" for key in keys):
            self.send(keys, self.bodies[pick % len(self.batches)])

    def send(self, keys: list[str], body: bytes) -> None:
        def act() -> put_message.AcceptedBatch:
            return self.ranges.prepare("T", 0, body, 4, self.now, BORN)

        if self.rig.full:
            with pytest.raises(ServerError):
                self.on_loop(act)
            return
        found = self.on_loop(act)
        self.state |= dict.fromkeys(keys, "open")
        self.bodies.append(body)
        self.batches.append((keys, found.queue_offset, list(map(int, found.positions))))

    def pick(self, pick: int, begin: int, size: int) -> tuple[list[str], int, list[int]]:
        keys, first, positions = self.batches[pick % len(self.batches)]
        begin %= len(keys)
        end = begin + size
        return keys[begin:end], first + begin, positions[begin:end]

    @precondition(lambda self: self.batches)
    @rule(
        pick=st.integers(0, 99),
        begin=st.integers(0, 39),
        size=st.integers(1, 40),
        outcome=st.sampled_from((COMMIT, COMMIT, ROLLBACK)),
        single=st.booleans(),
    )
    def end(self, pick: int, begin: int, size: int, outcome: int, single: bool) -> None:
        """An end of any part of any batch, at any time, however often, by ranges or one by one."""
        keys, first, positions = self.pick(pick, begin, size)
        if outcome == COMMIT and self.forgotten & set(keys):
            outcome = ROLLBACK
        at = 0
        while at < len(keys):
            try:
                if single:
                    header = EndTransactionHeader(
                        topic="T",
                        producer_group="P",
                        half_offset=first + at,
                        physical_offset=positions[at],
                        outcome=outcome,
                    )
                    done, gone = 1, []
                    try:
                        self.on_loop(lambda header=header: self.rig.transactions.end(header))  # type: ignore[misc]
                    except ServerError as e:
                        if HALF_GONE not in (e.remark or ""):
                            raise
                        gone = [first + at]
                else:
                    rest = np.array(positions[at:])
                    done, gone, _, _ = self.on_loop(
                        lambda at=at, rest=rest: self.ranges.end("T", "P", outcome, first + at, rest)  # type: ignore[misc]
                    )
            except ServerError:
                assert self.rig.full
                return
            for offset, key in enumerate(keys[at : at + done], first + at):
                if offset in gone:
                    assert (outcome, self.state[key]) == (COMMIT, "rolled back"), key
                elif outcome == COMMIT:
                    assert self.state[key] != "rolled back", key
                    self.state[key] = "committed"
                elif self.state[key] == "open":
                    self.state[key] = "rolled back"
            at += done

    @precondition(lambda self: self.batches)
    @rule(pick=st.integers(0, 99), begin=st.integers(0, 39), wrong=st.sampled_from(("group", "topic", "place")))
    def bad(self, pick: int, begin: int, wrong: str) -> None:
        """Nothing is done for who names another group, topic or place."""
        _, first, positions = self.pick(pick, begin, 5)
        topic, group = "T" + "?" * (wrong == "topic"), "P" + "?" * (wrong == "group")
        where = np.array(positions) + (wrong == "place")
        with suppress(ServerError):
            ended = self.on_loop(lambda: self.ranges.end(topic, group, COMMIT, first, where))
            assert ended.gone == list(range(first, first + ended.done))

    @rule(seconds=st.sampled_from((0, 1, 601)))
    def check(self, seconds: int) -> None:
        """A round of checks: each that is open and due is asked about once."""
        self.now += seconds * 1000
        producer = self.rig.producer
        producer.asked.clear()
        self.on_loop(self.rig.transactions._check_all)
        self.on_loop(self.rig.transactions._op_messages.write)
        assert max(Counter(producer.asked).values(), default=0) <= 1
        if seconds == 601 and not self.rig.full and producer.is_open:
            is_open = {key for key, state in self.state.items() if state == "open"}
            assert set(producer.asked) <= is_open | self.forgotten
            # After a jump their time begins anew, after a start too.
            assert self.jumped or is_open <= set(producer.asked)

    @rule(years=st.sampled_from((-10, 0, 10)))
    def jump(self, years: int) -> None:
        """The clock is set."""
        self.now, self.jumped = NOW_MS + years * 365 * 86_400_000, True

    @rule()
    def disk(self) -> None:
        self.rig.full = not self.rig.full

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        if clean:
            self.on_loop(self.rig.transactions.stop)
        if self.rig.transactions._op_messages._marks:
            self.forgotten |= {key for key, state in self.state.items() if state == "rolled back"}
        self.rig.kill()
        self.rig = self.on_loop(self.start)

    @invariant()
    def what_was_committed_is_there_once(self) -> None:
        if hasattr(self, "rig"):
            assert self.rig.delivered() == Counter(k for k, state in self.state.items() if state == "committed")

    @invariant()
    def what_is_open_is_counted(self) -> None:
        if hasattr(self, "rig"):
            is_open = sum(state == "open" for state in self.state.values())
            assert is_open <= self.rig.transactions.open_count <= is_open + len(self.forgotten)

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        try:
            self.rig.full = False
            for number in range(len(self.batches)):
                self.end(number, 0, 40, COMMIT, False)
                self.end(number, 0, 40, ROLLBACK, False)
            self.what_was_committed_is_there_once()
            assert self.rig.transactions.open_count == 0
            self.restart(True)
            assert self.rig.transactions.open_count == 0
            self.what_was_committed_is_there_once()
            self.rig.transactions._commit_progress()
        finally:
            self.on_loop(self.rig.transactions.stop)
            self.rig.kill()
            self.patch.undo()
            self.loop.close()
            shutil.rmtree(self.root)


Machine.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestHalfRangesModel: Any = Machine.TestCase


@pytest.mark.shows(
    "mended: a log file that could not be opened for a moment ended the checks of all transactions until a "
    "restart; half messages of batches whose file was removed filled the quarantine"
)
def test_those_whose_file_was_removed_are_dropped_and_the_others_are_checked(
    rigs: Callable[[], Rig], caplog: pytest.LogCaptureFixture
) -> None:
    """They can never be ended: nothing is to be done about them, so none is set aside."""

    async def main() -> None:
        rig = rigs()
        for number in range(4):
            body = b"x" * (rig.store.log.file_bytes // 50)
            items = [item(f"K{number}-{i:02d}", body) for i in range(40)]
            HalfRanges(rig.transactions).prepare("T", 0, batch.encode(items), 4, NOW_MS, BORN)
        rig.store.flush_log()
        for step in rig.store.expire_steps(0, 2, forced=True):
            if step is not None:
                step()
        oldest = rig.store.min_position
        gone = sum(int((run.positions < oldest).sum()) for run in rig.transactions.batched.runs)
        assert 40 < gone < 120
        rig.transactions._check_all()
        await until(lambda: len(rig.producer.asked) == 160 - gone)
        rig.transactions.stop()
        assert rig.transactions.open_count == 160 - gone
        assert rig.quarantine.entries() == []
        assert "40 half messages from offset 0 on are gone from the log" in caplog.text

    asyncio.run(main())


@pytest.mark.parametrize("started", [True, False])
def test_a_long_immunity_keeps_none_longer_than_messages_are_kept(rigs: Callable[[], Rig], started: bool) -> None:
    """Else they would fill the memory for ever, and every start would read on from the first of them."""

    async def main() -> None:
        rig = rigs()
        immune = f"CHECK_IMMUNITY_TIME_IN_SECONDS\x01{10**15}\x02"
        items = [item(f"K{i}", b"b", immune) for i in range(30, 70)]
        HalfRanges(rig.transactions).prepare("T", 0, batch.encode(items), 4, NOW_MS, BORN)
        if started:
            list(rig.transactions._recovered())
            rig.transactions.batched.runs.clear()
        for reserved_ms, is_open in ((10**9, 40), (0, 0)):
            rig.transactions._limits = CheckLimits(0, 10**9, 15, reserved_ms)
            rig.transactions._check_all()
            await asyncio.sleep(0)
            assert rig.transactions.open_count == is_open
        rig.transactions.stop()
        assert rig.producer.asked == []

    asyncio.run(main())


def test_those_that_are_not_due_are_looked_at_a_part_at_a_time(
    rigs: Callable[[], Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_checks, "CHECKS_AT_ONCE", 1)

    async def main() -> None:
        rig = rigs()
        for i in range(100):
            rig.prepare(f"K{i}")
        rig.transactions.set_limits(CheckLimits(10**9, 10**9, 15, 10**13))
        rig.transactions._open[next(reversed(rig.transactions._open))].since_ms = 0
        rig.transactions._check_all()
        turns = 0
        while not rig.producer.asked:
            turns += 1
            await asyncio.sleep(0)
        assert turns >= 4
        rig.transactions.stop()
        assert rig.producer.asked == ["K99"]

    asyncio.run(main())


@pytest.mark.usefixtures("stopped")
def test_few_bytes_are_put_together_and_ended_at_a_time(
    rigs: Callable[[], Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large rows: a turn of the loop is bounded by bytes too, and costs what they do."""
    monkeypatch.setattr(half_batches, "TOGETHER_BYTES", 4000)
    rig = rigs()
    ranges = HalfRanges(rig.transactions)
    items = [item(f"K{i}", b"b" * (1000 + i % 2)) for i in range(30, 70)]
    found = ranges.prepare("T", 0, batch.encode(items), 4, NOW_MS, BORN)
    positions = np.asarray(found.positions)
    ended = ranges.end("T", "P", COMMIT, found.queue_offset, positions)
    assert ended.done == 4
    assert ended.cost >= ended.done + 4
    end_all(ranges, COMMIT, found.queue_offset + 4, positions[4:])
    assert sum(rig.delivered().values()) == 40


@pytest.mark.usefixtures("stopped")
def test_one_by_one_a_turn_ends_in_time(rigs: Callable[[], Rig], monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of some MB take long each: as many end as fit, at least one."""
    monkeypatch.setattr(end_transaction, "SINGLE_S", -1.0)
    rig = rigs()
    ranges = HalfRanges(rig.transactions)
    found = ranges.prepare("T", 0, batch.encode([item(f"K{i}", b"b") for i in range(10, 20)]), 4, NOW_MS, BORN)
    ended = ranges.end("T", "P", COMMIT, found.queue_offset, np.asarray(found.positions))
    assert (ended.done, ended.cost) == (1, end_transaction.TURN)
    end_all(ranges, COMMIT, found.queue_offset + 1, found.positions[1:])
    assert sum(rig.delivered().values()) == 10


def test_shapes_are_kept_of_small_records_while_they_are_open(
    rigs: Callable[[], Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(half_batches, "SHAPE_BYTES_MAX", 500)
    rig = rigs()
    ranges = HalfRanges(rig.transactions)
    batched = rig.transactions.batched
    for size, shapes in ((600, 0), (100, 1)):
        items = [item(f"K{size}-{i}", b"b" * size) for i in range(30, 70)]
        found = ranges.prepare("T", 0, batch.encode(items), 4, NOW_MS, BORN)
        assert [run.shape is not None for run in batched.runs][-1:] == [shapes == 1]
        assert len(batched._shapes) == shapes
        end_all(ranges, COMMIT, found.queue_offset, found.positions)
        assert [run.shape for run in batched.runs][-1:] == [None]
    assert sum(rig.delivered().values()) == 80


@pytest.mark.shows(
    "mended: a log file that could not be opened for a moment ended the checks of all transactions until a "
    "restart; half messages of batches whose file was removed filled the quarantine"
)
def test_a_file_that_cannot_be_opened_now_is_no_end_of_the_checks(rigs: Callable[[], Rig]) -> None:
    """As without descriptors: the round after finds them all."""

    async def main() -> None:
        rig = rigs()
        items = [item(f"K{i}", b"b") for i in range(30, 70)]
        HalfRanges(rig.transactions).prepare("T", 0, batch.encode(items), 4, NOW_MS, BORN)
        record_at, refusals = rig.store.record_at, [StoreUnwritable("too many open files"), OSError("bad sector")]

        def refuse(position: int) -> Any:
            if refusals:
                raise refusals.pop()
            return record_at(position)

        rig.store.record_at = refuse  # type: ignore[method-assign]
        rig.transactions._interval_s = 0
        rig.transactions._check_all()
        await until(lambda: len(set(rig.producer.asked)) == 40)
        rig.transactions.stop()
        assert rig.transactions.open_count == 40
        assert rig.quarantine.entries() == []

    asyncio.run(main())


@pytest.mark.shows(
    "mended: a batch sent again after a lost reply was open twice, and delivered twice where both copies were "
    "committed; so was one id twice in a batch"
)
@pytest.mark.parametrize("between", ["nothing", "a check", "a start"])
@pytest.mark.parametrize("told", ["older", "newest"])
@pytest.mark.parametrize("how", ["range", "single"])
@pytest.mark.usefixtures("stopped")
def test_a_batch_that_was_sent_again_is_committed_once(
    rigs: Callable[[], Rig], tmp_path: Path, how: str, told: str, between: str
) -> None:
    """A producer without an answer sends again: the newest copy counts, whichever of both an end names."""
    items = [item(f"K{i}", b"b%d" % i) for i in range(30, 70)]

    async def sent_twice(rig: Rig, prepare: Callable[[Transactions], list[tuple[int, int]]]) -> list[tuple[int, int]]:
        copies = prepare(rig.transactions)
        if between == "a check":
            rig.transactions._check_all()
            await until(lambda: len(rig.producer.asked) == 40)
        if between == "a start":
            rig.transactions.stop()
            rig.transactions.start()
        again = prepare(rig.transactions)
        rig.transactions.stop()
        assert rig.transactions.open_count == 40
        return copies if told == "older" else again

    def together(transactions: Transactions) -> list[tuple[int, int]]:
        found = HalfRanges(transactions).prepare("T", 0, batch.encode(items), 4, NOW_MS, BORN)
        return list(enumerate(map(int, found.positions), found.queue_offset))

    def one_by_one(transactions: Transactions) -> list[tuple[int, int]]:
        return [
            transactions.prepare(
                "T", 0, i.body, i.properties, pairs_of(i.properties), FixedFields(i.flag, 4, NOW_MS, BORN)
            )[1::-1]
            for i in items
        ]

    def end(rig: Rig, places: list[tuple[int, int]]) -> None:
        if how == "range":
            assert end_all(HalfRanges(rig.transactions), COMMIT, places[0][0], [at for _, at in places]).gone == []
            return
        for offset, position in places:
            header = EndTransactionHeader(
                topic="T", producer_group="P", half_offset=offset, physical_offset=position, outcome=COMMIT
            )
            rig.transactions.end(header)

    rig, other = rigs(), rigs()
    places = asyncio.run(sent_twice(rig, together))
    end(rig, places)
    assert rig.transactions.open_count == 0
    end(rig, places)
    assert rig.delivered() == Counter(i.body.decode() for i in items)
    end(other, asyncio.run(sent_twice(other, one_by_one)))
    rig.transactions._op_messages.write()
    other.transactions._op_messages.write()
    assert stored_bytes(rig).count(b"TRAN_MSG") == stored_bytes(other).count(b"TRAN_MSG")
    list(rig.transactions._recovered())
    assert rig.transactions.open_count == 0


@pytest.mark.shows(
    "mended: a batch sent again after a lost reply was open twice, and delivered twice where both copies were "
    "committed; so was one id twice in a batch"
)
@pytest.mark.usefixtures("stopped")
def test_one_id_twice_in_a_batch_is_one_transaction(rigs: Callable[[], Rig]) -> None:
    rig = rigs()
    ranges = HalfRanges(rig.transactions)
    items = [item("twice" if i in (40, 60) else f"K{i:04d}", b"%d" % i) for i in range(30, 70)]
    found = ranges.prepare("T", 0, batch.encode(items), 4, NOW_MS, BORN)
    assert rig.transactions.open_count == 39
    assert end_all(ranges, COMMIT, found.queue_offset, found.positions).gone == []
    assert sum(rig.delivered().values()) == 39


@given(first=st.one_of(st.integers(0, 3000), st.integers(99_000, 101_000)), count=st.integers(0, 2500))
def test_marks_of_many_are_those_of_each(first: int, count: int) -> None:
    offsets = range(first, first + count)
    assert op_messages._text(offsets) == b"".join(b"%d," % offset for offset in offsets)


@pytest.mark.usefixtures("stopped")
def test_batches_of_one_shape_take_the_quick_way_and_leave_the_same(
    rigs: Callable[[], Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several pieces of records, other groups, keys and bodies that differ, one after another in one queue."""
    rows = 700
    kinds = [
        [item(f"K{kind}{row:05d}", bytes([65 + row % 26]) * 60, odd, row * (kind == 3)) for row in range(rows)]
        for kind, odd in enumerate(("", "TAGS\x01tag\x02", IMMUNE, "KEYS\x01k1\x02", "KEYS\x01a b\x02"))
    ]
    quick = [0]
    halves, committed = HalfShape.halves, HalfShape.committed

    def counted(found: T) -> T:
        quick[0] += found is not None
        return found

    async def run(rig: Rig) -> tuple[bytes, list[Any]]:
        ranges = HalfRanges(rig.transactions)
        for kind in [*kinds, kinds[0]]:
            found = ranges.prepare("T", 0, batch.encode(kind), 4, NOW_MS, BORN)
            positions = np.asarray(found.positions)
            end_all(ranges, COMMIT, found.queue_offset, positions[:500])
            end_all(ranges, ROLLBACK, found.queue_offset + 500, positions[500:501])
            end_all(ranges, COMMIT, found.queue_offset + 501, positions[501:])
        await asyncio.sleep(0)
        units = rig.store.queue_units("T", 0, 0, 6 * (rows - 1))
        found_by_key = [[bytes(one) for one in rig.store.query("T", key, 9, 0, 1 << 60)] for key in ("k1", "K300699")]
        return stored_bytes(rig), [units, found_by_key]

    monkeypatch.setattr(HalfShape, "halves", lambda *given: counted(halves(*given)))
    monkeypatch.setattr(HalfShape, "committed", lambda *given: counted(committed(*given)))
    as_shapes = asyncio.run(run(rigs()))
    # Keys with a blank are several, and go the general way.
    assert quick[0] == 5 + 5 * 2
    monkeypatch.setattr(HalfShape, "halves", lambda *given: None)
    assert asyncio.run(run(rigs())) == as_shapes


@pytest.mark.parametrize("place", ["body", "crc", "properties", "position"])
@pytest.mark.usefixtures("stopped")
def test_a_damaged_half_message_of_a_shape_harms_no_other(rigs: Callable[[], Rig], place: str) -> None:
    items = [item(f"K{row:05d}", b"x" * 40) for row in range(100)]

    async def run(rig: Rig) -> tuple[int, list[int]]:
        ranges = HalfRanges(rig.transactions)
        found = ranges.prepare("T", 0, batch.encode(items), 4, NOW_MS, BORN)
        position = int(found.positions[50])
        at = (
            position
            + {"body": 100, "crc": 8, "position": 28, "properties": int(np.diff(found.positions)[0]) - 300}[place]
        )
        rig.store.log.map[at] ^= 0x40
        ended = end_all(ranges, COMMIT, found.queue_offset, found.positions)
        return rig.store.stored_range("T", 0)[1], ended.gone

    stored, gone = asyncio.run(run(rigs()))
    if place == "properties":
        # No checksum covers them: a name that was flipped is delivered as it lies there.
        assert (stored, gone) == (100, [])
    else:
        assert (stored, gone) == (99, [50])


@pytest.mark.shows(
    "a master of a pair that dies in the midst of a range, the new one is told it again, with copies of the "
    "batch on both; the old one that comes back, or hears of no election"
)
def test_a_start_tells_of_the_queues_that_open_half_messages_are_for(rigs: Callable[[], Rig]) -> None:
    """A new master makes their topics if nobody told it of them; not one that was deleted since."""
    rig = rigs()
    ranges = HalfRanges(rig.transactions)
    places = {}
    for topic, queue_id in (("A", 3), ("A", 9), ("ended", 0), ("deleted", 0)):
        found = ranges.prepare(topic, queue_id, batch.encode([item(f"{topic}{queue_id}", b"b")]), 4, NOW_MS, BORN)
        places[topic, queue_id] = found
    found = places["ended", 0]
    end_all(ranges, ROLLBACK, found.queue_offset, found.positions, topic="ended")
    rig.store.delete_topic("deleted")
    rig.transactions._op_messages.write()
    rig.transactions.batched.runs.clear()
    list(rig.transactions._recovered())
    assert rig.transactions.recovered_queues() == {"A": {3, 9}}


def test_a_clock_that_was_ahead_at_the_start_puts_no_refresh_off(
    rigs: Callable[[], Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else half messages nobody can be asked about stay far behind, and a start looks through the log since then."""
    monkeypatch.setattr(transaction_checks, "REFRESH_BYTES", 1000)
    now = [NOW_MS + 86_400_000]
    stop_clocks(monkeypatch, lambda: now[0])

    async def main() -> None:
        rig = rigs()
        items = [item(f"K{i}", b"b" * 100) for i in range(30, 70)]
        HalfRanges(rig.transactions).prepare("T", 0, batch.encode(items), 4, NOW_MS, BORN)
        rig.clients.producers.clear()
        for now[0], stored in ((NOW_MS, 40), (NOW_MS + transaction_checks.REFRESH_INTERVAL_MS, 80)):
            rig.transactions._check_all()
            await asyncio.sleep(0)
            assert rig.store.queue_range(topic_names.HALF_TOPIC, 0) == (0, stored)
        rig.transactions.stop()

    asyncio.run(main())


@pytest.mark.shows(
    "mended: a batch that was stored without an answer, its rows sent one by one then: after a check or a "
    "start a repeated end delivered the older copy too"
)
@pytest.mark.parametrize("between", ["a check", "a start"])
@pytest.mark.usefixtures("stopped")
def test_a_repeated_end_of_a_message_that_came_alone_delivers_no_older_copy_of_a_batch(
    rigs: Callable[[], Rig], between: str
) -> None:
    async def main() -> None:
        rig = rigs()
        items = [item(f"K{i}", b"b%d" % i) for i in range(30, 70)]
        HalfRanges(rig.transactions).prepare("T", 0, batch.encode(items), 4, NOW_MS, BORN)
        alone = items[5]
        position, offset, _ = rig.transactions.prepare(
            "T", 0, alone.body, alone.properties, pairs_of(alone.properties), FixedFields(0, 4, NOW_MS, BORN)
        )
        header = EndTransactionHeader(
            topic="T", producer_group="P", half_offset=offset, physical_offset=position, outcome=COMMIT
        )
        rig.transactions.end(header)
        if between == "a check":
            rig.transactions._check_all()
            await until(lambda: len(rig.producer.asked) == 39)
        else:
            rig.transactions.stop()
            rig.transactions.start()
        rig.transactions.end(header)
        rig.transactions.end(header)
        rig.transactions.stop()
        assert rig.transactions.open_count == 39
        assert rig.delivered() == Counter(["b35"])

    asyncio.run(main())
