"""The notes of what left: kept over a kill at any byte, bounded, and of one message each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.broker import topic_names
from rocketspark.broker.storage import left_messages
from rocketspark.broker.storage.left_messages import LeftMessages


class Kept:
    """As much of a record as is looked at."""

    def __init__(self, position: int, time_ms: int = 7, topic: str = topic_names.TIMER_TOPIC) -> None:
        self.position, self.store_time_ms, self.topic = position, time_ms, topic.encode()


def kept(*place: Any) -> Any:
    return Kept(*place)


@given(st.lists(st.integers(0, 1 << 40), unique=True, max_size=20), st.data())
def test_a_kill_at_any_byte_keeps_the_notes_before_it(
    tmp_path_factory: pytest.TempPathFactory, positions: list[int], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("left") / "config" / "leftMessages"
    left = LeftMessages(path)
    for position in positions:
        left.add(kept(position))
    whole = path.read_bytes() if positions else b""
    assert left.all() == whole
    size = data.draw(st.integers(0, len(whole)))
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(whole[:size])
    again = LeftMessages(path)
    assert [again.has(kept(position)) for position in positions] == [
        number < size // 16 for number in range(len(positions))
    ]
    # What leaves next is not read in the middle of what was cut off.
    again.add(kept(1 << 50))
    assert LeftMessages(path).has(kept(1 << 50))


def test_another_message_in_the_same_place_has_not_left(tmp_path: Path) -> None:
    left = LeftMessages(tmp_path / "leftMessages")
    left.add(kept(5))
    # Of what is popped a place may come again and again: it is not noted.
    left.add(kept(6, 7, "T"))
    assert left.has(kept(5))
    assert not left.has(kept(5, 8))
    assert not left.has(kept(6, 7, "T"))
    assert len(left) == 1


def test_a_slave_s_notes_are_taken_once_and_kept(tmp_path: Path) -> None:
    slave, master = LeftMessages(tmp_path / "slave"), LeftMessages(tmp_path / "master")
    for position in range(3):
        slave.add(kept(position))
    for _ in range(2):
        master.take(slave.all())
    assert LeftMessages(tmp_path / "master").all() == slave.all()
    # RocketMQ's slave answers with nothing.
    master.take(b"")
    assert len(master) == 3


def test_the_older_half_goes_where_there_are_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_messages, "COUNT_MAX", 10)
    left = LeftMessages(tmp_path / "leftMessages")
    for position in range(11):
        left.add(kept(position))
    assert [position for position in range(11) if left.has(kept(position))] == [6, 7, 8, 9, 10]
    assert LeftMessages(tmp_path / "leftMessages").all() == left.all()


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "leftMessages").mkdir()
    with pytest.raises(OSError, match="directory"):
        LeftMessages(tmp_path / "leftMessages")
    (tmp_path / "file").touch()
    left = LeftMessages(tmp_path / "other" / "leftMessages")
    (tmp_path / "other").touch()
    left.add(kept(1))
    assert left.has(kept(1))
    assert "cannot be written" in caplog.text
