"""Transactions in any order: odd half messages, ends told twice or late, a full disk, kills, damaged bytes.

A commit that was accepted is delivered once, one that was refused is not, what was rolled back never; each half message
that can be read is asked about, whatever the others are.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.support.stand_ins import like
from tests.unit.broker.messages.transactions.test_transactions import BORN, COMMIT, ROLLBACK, Rig

from rocketspark import machine
from rocketspark.broker import topic_names
from rocketspark.broker.messages import put_message
from rocketspark.broker.messages.put_message import FixedFields, pairs_of
from rocketspark.broker.messages.transactions import op_messages, transaction_checks, transactions
from rocketspark.broker.messages.transactions.half_messages import CheckLimits
from rocketspark.errors import ServerError
from rocketspark.protocol.headers import EndTransactionHeader

pytestmark = pytest.mark.shows(
    "mended: a commit by the handle of an older copy while the newest cannot be read: acknowledged, not "
    "delivered; marks that rot, delayed commits",
    "model tests: sends, push, ordered, pull and assigning consumers, rebalance, thread listeners, "
    "transactions of clients and of the broker, delays, timers",
)

T = TypeVar("T")

CHECKS_MAX = 3
RESERVED_MS = 10**12
START_MS = 1_700_000_000_000
# What a half message may say of itself: text of properties behind those it needs.
ODD = (
    "",
    "",
    "CHECK_IMMUNITY_TIME_IN_SECONDS\x01²\x02TRANSACTION_CHECK_TIMES\x01" + "9" * 5000 + "\x02",
    "CHECK_IMMUNITY_TIME_IN_SECONDS\x01-1\x02TRANSACTION_CHECK_TIMES\x01\x02",
    "TRANSACTION_CHECK_TIMES\x012\x02",
    "F\x01a\x01b\x02",
    "REAL_TOPIC\x01nowhere\x02REAL_QID\x01-7\x02",
    "REAL_TOPIC\x01\x02__transactionId__\x01\x02",
    "\x01\x02\x02no pair\x02PGROUP\x01P",
    "TRAN_PREPARED_QUEUE_OFFSET\x01x\x02KEYS\x01 \x02TAGS\x01\x02DELAY\x01²\x02WAIT\x01?\x02",
    "fill",
)
IMMUNE = "CHECK_IMMUNITY_TIME_IN_SECONDS\x01600\x02"


class Machine(RuleBasedStateMachine):
    """`state` of a key: open, committed or rolled back."""

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.patch = pytest.MonkeyPatch()
        self.now = START_MS
        for module in (op_messages, transaction_checks, transactions):
            self.patch.setattr(module, "now_ms", lambda: self.now)
        self.patch.setattr(put_message, "machine", like(machine, time=lambda: self.now / 1000))
        self.root = Path(tempfile.mkdtemp())
        self.state: dict[str, str] = {}
        self.immune_until: dict[str, int] = {}
        # Of every copy there ever was: key, queue offset, physical offset.
        self.handles: list[tuple[str, int, int]] = []
        # What is damaged, by key: what mends it.
        self.rotten: dict[str, Callable[[], object]] = {}
        # A start would cut the log before a damaged record at its end.
        self.log_is_whole = True
        # Rolled back, and perhaps open again: the mark was not on the disk at a kill, or the newest copy was rotten.
        self.forgotten: set[str] = set()
        self.rig = self.on_loop(self.start)

    def start(self) -> Rig:
        rig = Rig(self.root, reserved_ms=RESERVED_MS)
        rig.transactions.set_limits(
            CheckLimits(timeout_ms=0, interval_ms=10**9, checks_max=CHECKS_MAX, reserved_ms=RESERVED_MS)
        )
        return rig

    def on_loop(self, act: Callable[[], T]) -> T:
        async def run() -> T:
            found = act()
            # What is to be done soon after, such as the marks.
            await asyncio.sleep(0)
            return found

        return self.loop.run_until_complete(run())

    def note_handles(self) -> None:
        for key, half in self.rig.open.items():
            handle = key, half.queue_offset, half.position
            if handle not in self.handles:
                self.handles.append(handle)

    @rule(odd=st.sampled_from(ODD), immune=st.booleans(), again=st.booleans(), pick=st.integers(0, 99))
    def prepare(self, odd: str, immune: bool, again: bool, pick: int) -> None:
        """A half message, or one more copy of an open one whose producer had no answer."""
        open_keys = [key for key in self.rig.open if self.state[key] == "open"]
        key = open_keys[pick % len(open_keys)] if again and open_keys else f"K{len(self.state)}"
        text = f"UNIQ_KEY\x01{key}\x02PGROUP\x01P\x02TRAN_MSG\x01true\x02" + IMMUNE * immune
        text += f"F\x01{'x' * (32_650 - len(text))}\x02" if odd == "fill" else odd
        stored = text.encode()

        def act() -> None:
            self.rig.transactions.prepare("T", 0, key.encode(), stored, pairs_of(stored), FixedFields(0, 4, 0, BORN))

        if self.rig.full:
            with pytest.raises(ServerError):
                self.on_loop(act)
            return
        self.on_loop(act)
        self.state[key] = "open"
        self.immune_until[key] = self.now + 600_000 * immune
        self.note_handles()

    @precondition(lambda self: self.handles)
    @rule(pick=st.integers(0, 999), outcome=st.sampled_from((COMMIT, COMMIT, ROLLBACK, 0)))
    def end(self, pick: int, outcome: int) -> None:
        """An end by the handle of any copy there ever was, at any time."""
        self.tell(self.handles[pick % len(self.handles)], outcome)

    def tell(self, handle: tuple[str, int, int], outcome: int) -> None:
        key, queue_offset, position = handle
        if key in self.forgotten and outcome == COMMIT:
            # A producer that is asked again says what it said before.
            outcome = ROLLBACK
        header = EndTransactionHeader(
            producer_group="P", half_offset=queue_offset, physical_offset=position, outcome=outcome
        )
        try:
            self.on_loop(lambda: self.rig.transactions.end(header))
        except ServerError:
            # Nothing happened, and it is told.
            assert self.rig.full or key in self.rotten or self.state[key] == "rolled back", handle
            return
        if outcome == COMMIT:
            assert self.state[key] != "rolled back"
            self.state[key] = "committed"
        elif outcome == ROLLBACK and self.state[key] == "open":
            self.state[key] = "rolled back"
            if key in self.rotten:
                self.forgotten.add(key)

    @rule(seconds=st.sampled_from((0, 1, 601)))
    def check(self, seconds: int) -> None:
        """A round of checks: each that is due is asked about, or given up, whatever the others are."""
        self.now += seconds * 1000
        producer = self.rig.producer
        producer.asked.clear()
        before = {key: half.aside for key, half in self.rig.open.items()}
        self.on_loop(self.rig.transactions._check_all)
        if self.rig.full or not producer.is_open:
            return
        assert max(Counter(producer.asked).values(), default=0) <= 1
        for key, aside in before.items():
            if self.state[key] == "open" and not aside and self.immune_until[key] <= self.now:
                given_up = key not in self.rig.open
                assert key in producer.asked or given_up or key in self.rotten, key
        self.note_handles()

    @rule()
    def disk(self) -> None:
        self.rig.full = not self.rig.full

    @rule()
    def producer(self) -> None:
        self.rig.producer.is_open = not self.rig.producer.is_open

    @precondition(lambda self: self.handles)
    @rule(pick=st.integers(0, 99), newest=st.booleans(), of_the_queue=st.booleans())
    def rot(self, pick: int, newest: bool, of_the_queue: bool) -> None:
        """A copy cannot be read any more, or the half queue says that it lies elsewhere."""
        found = self.handles[pick % len(self.handles)]
        if newest:
            found = [handle for handle in self.handles if handle[0] == found[0]][-1]
        key, queue_offset, position = found
        if key in self.rotten:
            return

        def places() -> list[tuple[Any, int]]:
            store = self.rig.store
            if not of_the_queue:
                size = store.log.file_bytes
                return [(store.log.mapped_files.get(position - position % size).map, position % size + 88)]
            queue = store.consume_queues.find(topic_names.HALF_TOPIC, 0)
            assert queue is not None
            view, at, _ = queue.place(queue_offset, 1)
            # A young queue is kept in memory, and perhaps in its file too.
            in_file = [queue.mapped_files.get(0).view] if os.path.exists(queue.mapped_files.path(0)) else []
            return [(place, at + 6) for place in (view, *in_file)]

        def put(value: int) -> None:
            for view, at in places():
                view[at] = value

        view, at = places()[0]
        was = view[at]
        put(was ^ 1)
        self.rotten[key] = lambda: put(was)
        self.log_is_whole &= of_the_queue

    @precondition(lambda self: self.rotten)
    @rule()
    def mend(self) -> None:
        """The bytes are back, and an operator has all tried again."""
        for mend in self.rotten.values():
            mend()
        self.rotten.clear()
        self.log_is_whole = True
        full, self.rig.full = self.rig.full, False
        for entry in self.rig.quarantine.entries():
            self.on_loop(lambda name=entry.name: self.rig.quarantine.retry(name))  # type: ignore[misc]
        self.rig.full = full
        assert self.rig.quarantine.entries() == []

    @precondition(lambda self: self.log_is_whole)
    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        if clean:
            self.on_loop(self.rig.transactions.stop)
        if self.rig.transactions._op_messages._marks:
            self.forgotten |= {key for key, state in self.state.items() if state == "rolled back"}
        self.rig.kill()
        self.rig = self.on_loop(self.start)
        # An immunity counts from the newest copy now.
        self.immune_until = dict.fromkeys(self.immune_until, self.now + 600_000)
        self.note_handles()

    @invariant()
    def what_was_committed_is_there_once(self) -> None:
        if hasattr(self, "rig"):
            assert self.rig.delivered() == Counter(k for k, state in self.state.items() if state == "committed")

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        try:
            self.rig.full = False
            self.mend()
            self.now += 601_000
            self.rig.producer.is_open = True
            for _ in range(CHECKS_MAX + 1):
                self.check(0)
            # All are asked about no more, and each can still be committed once.
            for handle in list(self.handles):
                self.tell(handle, COMMIT)
                self.what_was_committed_is_there_once()
            assert self.rig.transactions.open_count == 0
            assert self.rig.quarantine.entries() == []
            self.restart(True)
            assert self.rig.transactions.open_count == 0
            self.what_was_committed_is_there_once()
        finally:
            self.on_loop(self.rig.transactions.stop)
            self.rig.kill()
            self.patch.undo()
            self.loop.close()
            shutil.rmtree(self.root)


Machine.TestCase.settings = settings(
    max_examples=50,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestTransactionsModel: Any = Machine.TestCase
