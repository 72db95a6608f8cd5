"""How many half messages may be open, alone and in batches, and what is taken all the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.broker.messages.transactions.test_half_batches import NOW_MS, item
from tests.unit.broker.messages.transactions.test_transactions import BORN, COMMIT, ROLLBACK, Rig

from rocketspark.broker.handlers.end_transaction import HalfRanges
from rocketspark.broker.messages.transactions.half_batches import ROWS_OF_ONE, RUN_WEIGHT
from rocketspark.broker.messages.transactions.half_messages import CheckLimits
from rocketspark.errors import ServerError
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.message import batch

pytestmark = pytest.mark.shows("open half messages are bounded: others are refused before they are stored")

ROWS = 3 * ROWS_OF_ONE
ONE_BATCH = RUN_WEIGHT + 3


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    found = Rig(tmp_path)
    yield found
    found.kill()


def bound(rig: Rig, open_max: int) -> None:
    rig.transactions._limits = CheckLimits(0, 1_000_000, 15, 10**12, open_max)


def refused(rig: Rig, *keys: str) -> None:
    """Half messages with these ids are refused, alone or together, and nothing is stored."""
    end = rig.store.written_position
    with pytest.raises(ServerError) as error:
        put_batch(rig, *keys) if len(keys) > 1 else rig.prepare(*keys)
    assert error.value.code == ResponseCode.SYSTEM_BUSY
    assert "maxOpenHalfMessages" in error.value.remark
    assert rig.store.written_position == end


def put_batch(rig: Rig, *keys: str, odd: bool = False) -> int:
    """Store a batch; the offset of its first half message."""
    items = [item(key, b"b", "no end" if odd else "") for key in keys]
    return HalfRanges(rig.transactions).prepare("T", 0, batch.encode(items), 4, NOW_MS, BORN).queue_offset


def named(letter: str, count: int = ROWS) -> list[str]:
    return [f"{letter}{number:03}" for number in range(count)]


def test_beyond_the_bound_copies_alone_are_taken_and_each_end_makes_room(rig: Rig) -> None:
    bound(rig, 3)
    halves = [rig.prepare(key) for key in ("a", "b", "c")]
    refused(rig, "d")
    again = rig.prepare("b")
    assert rig.open["b"].position == again.position
    for key, half in list(rig.transactions._open.items()):
        rig.transactions._check(key, half)
    assert len(rig.open) == 3
    rig.end(halves[0], COMMIT)
    rig.prepare("d")
    refused(rig, "e")
    bound(rig, 4)
    rig.prepare("e")


def test_a_batch_is_weighed_until_its_last_message_ended(rig: Rig) -> None:
    bound(rig, 2 * ONE_BATCH + 1)
    first = put_batch(rig, *named("a"))
    put_batch(rig, *named("b"))
    refused(rig, *named("c"))
    rig.prepare("alone")
    refused(rig, "d")
    # Sent again whole it is none more.
    again = put_batch(rig, *named("a"))
    assert again > first
    run = rig.transactions.batched.runs.find(again)
    assert run is not None
    ranges = HalfRanges(rig.transactions)
    assert ranges.end("T", "P", ROLLBACK, again, run.positions[:-1]).done == ROWS - 1
    refused(rig, *named("c"))
    assert ranges.end("T", "P", ROLLBACK, again + ROWS - 1, run.positions[-1:]).done == 1
    put_batch(rig, *named("c"))
    refused(rig, *named("d"))
    rig.transactions.batched.runs.clear()
    assert rig.transactions.batched.runs.weight == 0


def test_messages_of_a_batch_that_are_stored_one_by_one_are_refused_together(rig: Rig) -> None:
    bound(rig, 4)
    rig.prepare("alone")
    keys = ["twice", "twice", "c", "d"]
    end = rig.store.written_position
    with pytest.raises(ServerError) as error:
        put_batch(rig, *keys, odd=True)
    assert (error.value.code, rig.store.written_position) == (ResponseCode.SYSTEM_BUSY, end)
