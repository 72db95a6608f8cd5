"""Transactions killed at any moment: what was committed is delivered once, whatever is told again afterwards."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter, deque
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.broker.offline import quarantine_in, records_in, rules_in

from rocketspark.broker import topic_names
from rocketspark.broker.consumers.connected_clients import ConnectedClient, ConnectedClients
from rocketspark.broker.consumers.consumer_offsets import ConsumerOffsets, encode_offsets
from rocketspark.broker.consumers.long_polling import LongPolling
from rocketspark.broker.messages.put_message import FixedFields, PutMessage, pairs_of
from rocketspark.broker.messages.schedule_messages import ScheduleMessages
from rocketspark.broker.messages.transactions import op_messages, transaction_checks, transaction_recovery
from rocketspark.broker.messages.transactions.half_messages import CheckLimits, HalfMessage
from rocketspark.broker.messages.transactions.transactions import Transactions
from rocketspark.broker.statistics.stats import Stats
from rocketspark.broker.storage.json_tables import JsonFile, now_ms
from rocketspark.errors import ServerError
from rocketspark.protocol.headers import EndTransactionHeader
from rocketspark.protocol.json import bodies
from rocketspark.protocol.message import properties, record
from rocketspark.store import Store, StoreSettings

BORN = bytes.fromhex("7f0000010000c001")
COMMIT, ROLLBACK = 8, 12
T = TypeVar("T")


class Killed(BaseException):
    """The process ends here."""


class Producer:
    """A producer's connection: it notes what it is asked, and does not answer."""

    def __init__(self) -> None:
        self.is_open = self.is_writable = True
        self.address = "127.0.0.1:1"
        self.asked: list[str] = []

    def oneway(self, code: int, header: Any, body: bytes) -> None:
        self.asked.append(header.message_id)


class Rig:
    """A store with its transactions, which may be killed before the n-th record is stored."""

    def __init__(self, root: Path, kill_after: int | None = None, *, reserved_ms: int = 1_000_000) -> None:
        self.store = Store(
            StoreSettings(
                root=str(root), log_file_bytes=1 << 18, queue_file_units=1000, index_slots=100, index_entries=400
            )
        )
        self.store.open()
        self.stats = stats = Stats("C", self.store.take_stored, 0)
        self.quarantine = quarantine_in(root)
        file = JsonFile(root / "config/delayOffset.json", bodies.DelayOffsetTable)
        delays = ScheduleMessages(self.store, (1000,), file, self.quarantine)
        marks = {"MSG_REGION": "R", "TRACE_ON": "true", "CLUSTER": "C"}
        rules = rules_in(self.store, marks=marks)
        self.put_message = PutMessage(self.store, rules, LongPolling(), delays, stats)
        self.left = kill_after
        self.full = False

        def counted(accept: Callable[..., T]) -> Callable[..., T]:
            def store(*args: Any, **options: Any) -> T:
                if self.full:
                    raise ServerError(14, "full")
                if self.left is not None:
                    if self.left == 0:
                        raise Killed
                    self.left -= 1
                return accept(*args, **options)

            return store

        self.put_message.accept = counted(self.put_message.accept)  # type: ignore[method-assign]
        self.put_message.accept_items = counted(self.put_message.accept_items)  # type: ignore[method-assign]
        self.put_message.accept_layout = counted(self.put_message.accept_layout)  # type: ignore[method-assign]
        self.offsets = ConsumerOffsets(JsonFile(root / "config/offsets.json", bodies.OffsetTable, encode_offsets))
        self.producer: Any = Producer()
        self.clients = ConnectedClients(lambda group: None)
        self.clients.producers["P"] = {self.producer: ConnectedClient("p", self.producer, "JAVA", 0, 0)}
        self.transactions = Transactions(
            self.store,
            self.put_message,
            self.offsets,
            self.clients,
            stats,
            self.quarantine,
            CheckLimits(timeout_ms=0, interval_ms=1_000_000, checks_max=15, reserved_ms=reserved_ms),
            "broker-a",
        )
        try:
            list(self.transactions._recovered())
        except Killed:
            self.kill()
            raise

    def prepare(self, key: str, body: bytes = b"") -> record.Record:
        stored = properties.encode({"UNIQ_KEY": key, "PGROUP": "P", "TRAN_MSG": "true"}).encode()
        position, _, _ = self.transactions.prepare(
            "T", 0, body or key.encode(), stored, pairs_of(stored), FixedFields(0, 4, 0, BORN)
        )
        return self.at(position)

    def at(self, position: int) -> record.Record:
        found = self.store.record_at(position)
        assert found is not None
        return record.decode(bytes(found))

    def end(self, half: record.Record, outcome: int) -> None:
        header = EndTransactionHeader(
            producer_group="P", half_offset=half.queue_offset, physical_offset=half.position, outcome=outcome
        )
        self.transactions.end(header)

    def end_open(self, outcomes: dict[str, int]) -> None:
        """What a check-back comes to: the producer tells the end of each that is open here."""
        for key, half in self.open.items():
            self.end(self.at(half.position), outcomes[key])

    @property
    def open(self) -> dict[str, HalfMessage]:
        """The open half messages by unique id."""
        return {key.unique_id: half for key, half in self.transactions._open.items()}

    def delivered(self) -> Counter[str]:
        return Counter(r.body.decode() for r in records_in(self.store))

    def marks(self) -> list[record.Record]:
        """The records of what ended."""
        return [self.at(position) for _, position in self.transactions._half_messages.units(topic_names.OP_HALF_TOPIC)]

    def kill(self) -> None:
        """Nothing is written any more; the files are given back."""
        self.store.close()


Turn = tuple[int, int, int, bool]


async def killed_and_recovered(root: Path, turns: list[Turn], kill_after: int, kill_again: int) -> int:
    """How many records the broker that is killed could store."""
    outcomes: dict[str, int] = {}
    left_open: list[record.Record] = []
    rig = Rig(root, kill_after)
    try:
        for half_messages, commits, rollbacks, checked in turns:
            for _ in range(half_messages):
                key = f"K{len(outcomes)}"
                outcomes[key] = ROLLBACK
                left_open.append(rig.prepare(key))
            for outcome in [COMMIT] * commits + [ROLLBACK] * rollbacks:
                if left_open:
                    half = left_open.pop(len(left_open) // 2)
                    outcomes[half.body.decode()] = outcome
                    rig.end(half, outcome)
            for key, known in list(rig.transactions._open.items()) if checked else ():
                rig.transactions._check(key, known)
            rig.transactions._op_messages.write()
            rig.transactions._commit_progress()
    except Killed:
        pass
    stored = kill_after - (rig.left or 0)
    rig.kill()
    # Killed while it recovers and its producers answer, then once more without.
    for left in (kill_again, None):
        try:
            rig = Rig(root, left)
        except Killed:
            continue
        try:
            rig.end_open(outcomes)
            rig.transactions.stop()
        except Killed:
            pass
        if left is not None:
            rig.kill()
    wanted = Counter(key for key, outcome in outcomes.items() if outcome == COMMIT)
    assert rig.delivered() == wanted
    assert rig.transactions.open_count == 0
    rig.kill()
    return stored


def run_killed(turns: list[Turn], kill_after: int, kill_again: int) -> int:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        # A few marks fill one record of them.
        patch.setattr(op_messages, "MARK_BYTES_MAX", 8)
        return asyncio.run(killed_and_recovered(Path(folder), turns, kill_after, kill_again))


def test_a_kill_at_any_record_commits_nothing_twice_and_loses_nothing() -> None:
    turns = [(9, 6, 1, False), (3, 5, 0, True)]
    kill_after = 0
    while run_killed(turns, kill_after, kill_after % 5) == kill_after:
        kill_after += 1
    assert kill_after > 25


# Turns of the loop: (half messages that come, commits, roll-backs, whether those left open are checked).
TURNS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 2), st.booleans()), max_size=3)


@settings(max_examples=40, deadline=None)
@given(TURNS, st.integers(0, 60), st.integers(0, 12))
def test_whatever_comes_and_wherever_it_is_killed(turns: list[Turn], kill_after: int, kill_again: int) -> None:
    run_killed(turns, kill_after, kill_again)


def test_marks_that_could_not_be_written_are_written_later(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        half_messages = [rig.prepare(f"K{n}") for n in range(3)]
        rig.full = True
        for half in half_messages:
            rig.end(half, ROLLBACK)
        rig.transactions._op_messages.write()
        assert rig.store.queue_range(topic_names.OP_HALF_TOPIC, 0) == (0, 0)
        rig.full = False
        rig.transactions._op_messages.write()
        (mark,) = rig.marks()
        assert mark.body == b"0,1,2,"
        rig.kill()
        rig = Rig(tmp_path)
        assert rig.transactions.open_count == 0
        rig.kill()

    asyncio.run(main())


def test_marks_of_a_turn_fill_records_of_a_bounded_size(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        for half in [rig.prepare(f"K{n}") for n in range(2000)]:
            rig.end(half, ROLLBACK)
        rig.transactions._op_messages.write()
        marks = rig.marks()
        assert len(marks) == 3
        assert max(len(m.body) for m in marks) <= op_messages.MARK_BYTES_MAX
        assert b"".join(m.body for m in marks) == b"".join(b"%d," % n for n in range(2000))
        rig.kill()

    asyncio.run(main())


def test_a_message_given_up_is_resumed_until_it_is_committed(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        rig.transactions.set_limits(
            CheckLimits(timeout_ms=0, interval_ms=1_000_000, checks_max=0, reserved_ms=1_000_000)
        )
        rig.prepare("K")
        ((key, half),) = rig.transactions._open.items()
        rig.transactions._check(key, half)
        (given_up,) = rig.store.queue_units(topic_names.CHECK_MAX_TOPIC, 0, 0, 1)
        assert rig.transactions.open_count == 0
        for _ in range(2):
            rig.transactions.resume(given_up[0])
            assert rig.transactions.open_count == 1
        rig.end_open({"K": COMMIT})
        with pytest.raises(ServerError, match="was ended"):
            rig.transactions.resume(given_up[0])
        assert rig.delivered() == Counter({"K": 1})
        rig.transactions.stop()
        rig.kill()

    asyncio.run(main())


def test_one_that_is_open_and_resumed_is_open_once(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        rig.prepare("K")
        for _ in range(2):
            rig.transactions.resume(rig.open["K"].position)
        rig.end_open({"K": COMMIT})
        assert rig.delivered() == Counter({"K": 1})
        rig.transactions.stop()
        rig.kill()
        rig = Rig(tmp_path)
        assert (rig.transactions.open_count, rig.delivered()) == (0, Counter({"K": 1}))
        rig.kill()

    asyncio.run(main())


def check_round(rig: Rig) -> None:
    """A round of checks, to its end."""
    transactions = rig.transactions
    transactions._check_all()
    while transactions._timer is not None and (due := transactions._timer._args) and due[0]:  # type: ignore[attr-defined]
        transactions._timer.cancel()
        transactions._check_due(*due)
    assert transactions._timer is not None
    transactions._timer.cancel()


def test_nothing_is_counted_or_stored_while_nobody_can_be_asked(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        half = rig.prepare("K")
        members = rig.clients.producers.pop("P")
        for _ in range(20):
            check_round(rig)
        assert rig.store.queue_range(topic_names.HALF_TOPIC, 0) == (0, 1)
        assert rig.transactions.open_count == 1
        rig.clients.producers["P"] = members
        # One that does not read what it is sent is as good as none.
        rig.producer.is_writable = False
        check_round(rig)
        assert rig.store.queue_range(topic_names.HALF_TOPIC, 0) == (0, 1)
        rig.producer.is_writable = True
        check_round(rig)
        assert rig.producer.asked == ["K"]
        assert rig.open["K"].checks == 1
        rig.end(half, COMMIT)
        assert rig.delivered() == Counter({"K": 1})
        rig.transactions.stop()
        rig.kill()

    asyncio.run(main())


def test_those_nobody_can_be_asked_about_are_stored_anew_once_the_log_is_far_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        monkeypatch.setattr(transaction_checks, "REFRESH_BYTES", 1000)
        monkeypatch.setattr(transaction_checks, "REFRESH_INTERVAL_MS", 0)
        rig = Rig(tmp_path)
        half = rig.prepare("K")
        rig.clients.producers.clear()
        check_round(rig)
        assert rig.store.queue_range(topic_names.HALF_TOPIC, 0) == (0, 1)
        stored = properties.encode({"UNIQ_KEY": "X"}).encode()
        rig.put_message.accept("other", 0, b"x" * 2000, stored, pairs_of(stored), FixedFields(0, 0, 0, BORN))
        check_round(rig)
        check_round(rig)
        assert rig.store.queue_range(topic_names.HALF_TOPIC, 0) == (0, 2)
        assert rig.open["K"].checks == 0
        rig.transactions.stop()
        rig.kill()
        rig = Rig(tmp_path)
        rig.end(half, COMMIT)
        rig.end_open({"K": COMMIT})
        assert rig.delivered() == Counter({"K": 1})
        rig.transactions.stop()
        rig.kill()

    asyncio.run(main())


def test_a_half_message_as_old_as_messages_become_is_given_up(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path, reserved_ms=0)
        rig.prepare("K")
        rig.clients.producers.clear()
        check_round(rig)
        assert rig.transactions.open_count == 0
        assert rig.store.queue_range(topic_names.CHECK_MAX_TOPIC, 0) == (0, 1)
        rig.transactions.stop()
        rig.kill()

    asyncio.run(main())


def test_what_was_given_up_is_committed_by_its_first_handle_once(tmp_path: Path) -> None:
    async def main() -> None:
        rig = Rig(tmp_path)
        half_messages = {key: rig.prepare(key) for key in ("given up", "rolled back", "resumed")}
        rig.end(half_messages["rolled back"], ROLLBACK)
        rig.transactions.set_limits(
            CheckLimits(timeout_ms=0, interval_ms=1_000_000, checks_max=1, reserved_ms=1_000_000)
        )
        for _ in range(2):
            check_round(rig)
        assert rig.transactions.open_count == 0
        (_, (resumed, _, _)) = rig.store.queue_units(topic_names.CHECK_MAX_TOPIC, 0, 0, 2)
        rig.transactions.resume(resumed)
        rig.end(half_messages["resumed"], ROLLBACK)
        # Killed twice on the way: what ended stays ended.
        for _ in range(3):
            for key, half in half_messages.items():
                for _ in range(2):
                    with nullcontext() if key == "given up" else pytest.raises(ServerError, match="was rolled back"):
                        rig.end(half, COMMIT)
            assert rig.delivered() == Counter({"given up": 1})
            rig.transactions._op_messages.write()
            rig.kill()
            rig = Rig(tmp_path)
            assert rig.transactions.open_count == 0
        rig.kill()

    asyncio.run(main())


@pytest.mark.parametrize(("body_bytes", "turns"), [(0, [4, 8, 10]), (20 << 10, [2, 4, 6, 8, 10])])
def test_a_round_of_checks_leaves_turns_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body_bytes: int, turns: list[int]
) -> None:
    """Large messages are fewer in a turn: each is stored anew, and lies in memory until it has left."""

    async def main() -> None:
        monkeypatch.setattr(transaction_checks, "CHECKS_AT_ONCE", 4)
        monkeypatch.setattr(transaction_checks, "_BYTES_PER_LOOK", 1024)
        rig = Rig(tmp_path)
        for number in range(10):
            rig.prepare(f"K{number}", bytes(body_bytes))
        rig.transactions._check_all()
        asked = [len(rig.producer.asked)]
        while len(rig.producer.asked) < 10:
            await asyncio.sleep(0)
            if len(rig.producer.asked) > asked[-1]:
                asked.append(len(rig.producer.asked))
        assert asked == turns
        rig.transactions.stop()
        rig.kill()

    asyncio.run(main())


def test_nobody_is_asked_any_more_once_checks_have_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr(transaction_checks, "CHECKS_AT_ONCE", 4)
        rig = Rig(tmp_path)
        for number in range(10):
            rig.prepare(f"K{number}")
        rig.transactions._check_all()
        asked = len(rig.producer.asked)
        rig.transactions.stop()
        for _ in range(5):
            await asyncio.sleep(0)
        assert (asked, len(rig.producer.asked)) == (4, 4)
        rig.kill()

    asyncio.run(main())


@pytest.mark.shows("half messages without UNIQ_KEY")
@pytest.mark.parametrize("told_by", ["the first handle", "the check"])
@pytest.mark.parametrize("ends", [COMMIT, ROLLBACK])
def test_one_without_a_unique_id_is_told_by_its_place(tmp_path: Path, told_by: str, ends: int) -> None:
    """RocketMQ stores a half message as it comes, and ends it by its offsets."""

    async def main() -> None:
        rig = Rig(tmp_path)
        for body in (b"a", b"b"):
            stored = b"PGROUP\x01P\x02TRAN_MSG\x01true\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02"
            rig.store.append(
                topic_names.HALF_TOPIC.encode(), 0, body, stored, 0, None, None, None, now_ms(), 0, 0, 0, BORN
            )
        first, second = (rig.at(position) for position, _, _ in rig.store.queue_units(topic_names.HALF_TOPIC, 0, 0, 2))
        rig.kill()
        rig = Rig(tmp_path)
        assert rig.transactions.open_count == 2
        for _ in range(2):
            check_round(rig)
        assert len(rig.producer.asked) == 4
        rig.transactions._op_messages.write()
        rig.kill()
        rig = Rig(tmp_path)
        half = first
        if told_by == "the check":
            half = next(h for h in map(rig.at, [o.position for o in rig.open.values()]) if h.body == b"a")
        for _ in range(2):
            rig.end(half, ends)
        # The other one is still open, and given up later; its first handle commits it even then, once.
        assert rig.transactions.open_count == 1
        rig.transactions.set_limits(
            CheckLimits(timeout_ms=0, interval_ms=1_000_000, checks_max=1, reserved_ms=1_000_000)
        )
        check_round(rig)
        assert rig.transactions.open_count == 0
        rig.end(second, COMMIT)
        assert rig.delivered() == Counter({"b": 1} | ({"a": 1} if ends == COMMIT else {}))
        rig.transactions._op_messages.write()
        rig.kill()
        rig = Rig(tmp_path)
        rig.end(second, COMMIT)
        assert rig.transactions.open_count == 0
        assert rig.delivered() == Counter({"b": 1} | ({"a": 1} if ends == COMMIT else {}))
        rig.kill()

    asyncio.run(main())


@pytest.mark.shows("open half messages are found in turns by a new master, while old files of its log are removed")
def test_open_half_messages_are_found_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("READ_COUNT", "LOOKS_IN_TURN"):
        monkeypatch.setattr(transaction_recovery, name, 4)

    async def main() -> None:
        rig = Rig(tmp_path)
        halves = [rig.prepare(f"k{number}", b"x" * 9000) for number in range(60)]
        for number in (33, 50):
            rig.end(halves[number], COMMIT)
        rig.transactions._op_messages.begin_anew()  # As after a kill before they were written.
        list(rig.transactions._recovered())
        found = rig.open
        assert len(found) == 58
        rig.transactions._op_messages.begin_anew()
        assert sum(1 for _ in rig.transactions.start_in_turns()) > 20
        assert rig.open == found
        rig.transactions.abandon()
        turns = rig.transactions.start_in_turns()
        for _ in zip(range(3), turns, strict=False):
            pass
        rig.store.flush_log()
        for remove in rig.store.expire_steps(now_ms() + 10_000, 1, forced=True):
            if remove is not None:
                remove()
        assert rig.store.min_position > halves[20].position
        deque(turns, 0)
        rig.transactions.abandon()
        assert {f"k{number}" for number in range(34, 60)} - {"k50"} <= set(rig.open) <= set(found)
        # Nothing is wrong with those that are gone.
        assert rig.quarantine.entries() == []

    asyncio.run(main())
