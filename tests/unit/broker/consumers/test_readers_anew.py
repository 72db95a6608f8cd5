"""Readers of deleted topics: told once, kept over a start, bounded."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.broker.consumers import readers_anew
from rocketspark.broker.consumers.readers_anew import Reader, ReadersAnew
from rocketspark.broker.storage.json_tables import JsonFile
from rocketspark.protocol.json.bodies import ReadersTable

pytestmark = pytest.mark.shows(
    "a topic made anew: readers are known over a stop, a kill (also in the midst of the deletion) and a "
    "failover; a slave whose master serves sends nobody"
)

NAMES = st.sampled_from(["a", "b", "%RETRY%a", "x|y"])
READERS = st.lists(st.tuples(NAMES, NAMES, st.integers(0, 3)), unique=True)


def kept(folder: Path) -> JsonFile[ReadersTable]:
    return JsonFile(folder / readers_anew.FILE_NAME, ReadersTable)


@given(READERS, READERS, READERS)
def test_a_start_and_another_broker_know_those_that_were_not_told(
    tmp_path_factory: pytest.TempPathFactory, read: list[Reader], told: list[Reader], set_by_hand: list[Reader]
) -> None:
    folder = tmp_path_factory.mktemp("config")
    found = ReadersAnew(kept(folder))
    found.add(read)
    for reader in told:
        assert found.take(reader) == (reader in read)
        assert not found.take(reader)
    for number, reader in enumerate(set_by_hand):
        found.set(reader, number)
    found.finish()
    other = ReadersAnew()
    other.add(told)
    other.replace(found.table())
    for same in (ReadersAnew(kept(folder)), other):
        assert same.readers.keys() == set(read) - set(told)
    again = ReadersAnew(kept(folder))
    assert again.resets == {reader: number for number, reader in enumerate(set_by_hand)}


def test_a_save_takes_the_state_of_now_and_makes_its_text_where_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of 65,536 offsets set by hand held the loop for 30 ms at each queue that followed."""
    found, made = ReadersAnew(), []
    pieces = readers_anew.pieces
    monkeypatch.setattr(readers_anew, "pieces", lambda *table: made.append(table) or pieces(*table))
    found.add([("G", "T", 0)])
    found.set(("G", "T", 1), 7)
    taken = found._snapshot()
    assert made == []
    found.take(("G", "T", 0))
    found.set(("G", "T", 2), 8)
    assert b"".join(taken) == b'{"readers":{"T@G":[0]},"resets":{"T@G":{"1":7}}}'


def test_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers_anew, "READERS_MAX", 2)
    found = ReadersAnew()
    found.add(("G", "T", number) for number in range(4))
    assert list(found.readers) == [("G", "T", 2), ("G", "T", 3)]
    found.replace({"T@G": [5, 6, 7]})
    assert len(found.readers) == 2


def test_it_is_written_once_after_each_change(tmp_path: Path) -> None:
    found = ReadersAnew(kept(tmp_path))
    path = tmp_path / readers_anew.FILE_NAME
    found.save()
    assert not path.exists()
    found.add([("G", "T", 0)])
    found.save()
    path.unlink()
    found.save()
    assert not path.exists()
    # The number of readers is the same, who they are is not.
    found.take(("G", "T", 0))
    found.add([("G", "T", 1)])
    found.save()
    assert path.read_text("utf-8") == '{"readers":{"T@G":[1]},"resets":{}}'


def test_who_asked_where_to_begin_after_it_was_told_was_told_of_no_later_topic() -> None:
    found, reader = ReadersAnew(), ("G", "T", 0)
    for _ in range(2):
        found.add([reader])
        # A tool that looks at a place hears of a topic made anew only where the reader did.
        assert found.sent_to(reader, 5, follows=False) is None
        assert found.sent_to(reader, 5, follows=True) == 0
        assert found.take(reader)


def test_an_offset_set_by_hand_is_followed_while_a_member_of_a_broadcasting_group_is_away() -> None:
    anew, reader = ReadersAnew(), ("g", "t", 0)
    anew.add([reader], {"g": ["one", "away"]})
    assert anew.sent_to(reader, 10, follows=True, member=lambda: "one") == 0
    assert anew.sent_to(reader, 0, follows=True, member=lambda: "one") is None
    anew.set(reader, 5)
    assert anew.sent_to(reader, 10, follows=True, member=lambda: "one") == 5
    assert anew.sent_to(reader, 5, follows=True, member=lambda: "one") is None
    assert anew.resets == {}
