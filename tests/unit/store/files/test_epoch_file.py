"""The list of epochs: RocketMQ's rules and file, cut at every write, and where two logs part, against a model."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rocketspark.errors import StoreUnwritable
from rocketspark.store.files.epoch_file import NO_END, Epoch, EpochList, parse
from rocketspark.store.files.system_calls import OsFiles

pytestmark = pytest.mark.shows(
    "epoch file (byte for byte the official broker's), killed at any write; where two logs part; masters that "
    "take turns"
)


def listed(*starts: tuple[int, int]) -> EpochList:
    epochs = EpochList()
    for epoch, start in starts:
        assert epochs.append(epoch, start)
    return epochs


def test_epochs_end_where_the_next_begins() -> None:
    epochs = listed((1, 0), (2, 100), (5, 300))
    assert epochs.entries == (Epoch(1, 0, 100), Epoch(2, 100, 300), Epoch(5, 300, NO_END))
    assert [epochs.of_position(at) for at in (0, 99, 100, 300, 10**9)] == [
        Epoch(1, 0, 100),
        Epoch(1, 0, 100),
        Epoch(2, 100, 300),
        Epoch(5, 300),
        Epoch(5, 300),
    ]
    assert (epochs.entry(2), epochs.entry(3)) == (Epoch(2, 100, 300), None)
    assert (epochs.after(0), epochs.after(2), epochs.after(5)) == (Epoch(1, 0, 100), Epoch(5, 300), None)
    assert listed((1, 50)).of_position(49) is None
    assert (EpochList().last, EpochList().last_epoch) == (None, -1)


@pytest.mark.parametrize("entry", [(5, 400), (4, 400), (6, 300), (6, 299)])
def test_what_does_not_rise_is_not_recorded(entry: tuple[int, int]) -> None:
    epochs = listed((1, 0), (5, 300))
    assert not epochs.append(*entry)
    assert epochs.starts == ((1, 0), (5, 300))


def test_a_master_takes_office() -> None:
    epochs = listed((1, 0), (5, 300))
    assert epochs.begin(5, 400)
    assert epochs.starts == ((1, 0), (5, 400))
    assert not epochs.begin(6, 400)
    assert epochs.starts == ((1, 0), (5, 400))
    # With nothing in its log: the one before wrote nothing that is here.
    assert epochs.begin(5, 0)
    assert epochs.starts == ((1, 0), (5, 0))


def test_what_the_first_master_wrote_alone_is_cut_once_one_with_an_empty_log_took_over() -> None:
    """The slave had noted the first epoch before its first byte came, then was elected, then third ones copied."""
    old = listed((1, 0))
    elected = listed((1, 0))
    assert elected.begin(2, 0)
    assert elected.entries == (Epoch(1, 0, 0), Epoch(2, 0))
    assert elected.of_position(0) == Epoch(2, 0)
    assert old.truncation_point(elected.starts, masters_end=3000, own_end=852) == 0
    old.cut(0, elected.starts)
    third = listed((1, 0))
    for slave in (old, third):
        # Its first byte of epoch 2 is here: it is not copied once more with each connection.
        assert slave.append(2, 0)
        assert slave.truncation_point(elected.starts, masters_end=3000, own_end=500) == 500
    # Another that is elected with what it has.
    assert third.begin(3, 500)
    assert elected.truncation_point(third.starts, masters_end=900, own_end=3000) == 500
    # Of a log that lost all, nothing is known of what it held.
    assert listed((1, 0)).truncation_point([(2, 0)], masters_end=50, own_end=852) is None
    elected.forget_before(0)
    assert elected.starts == ((1, 0), (2, 0))
    elected.forget_before(10)
    assert elected.starts == ((2, 0),)


def test_first_epochs_without_a_byte_outlast_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "epochFileCheckpoint"
    epochs = EpochList(str(path))
    for epoch in (1, 2, 4):
        assert epochs.begin(epoch, 0)
    assert EpochList(str(path)).starts == ((1, 0), (2, 0), (4, 0))
    assert epochs.begin(4, 0)
    assert epochs.starts == ((1, 0), (2, 0), (4, 0))


def test_entries_after_the_logs_end_hold_nothing() -> None:
    epochs = listed((1, 0), (5, 300))
    assert epochs.begin(6, 200)
    assert epochs.starts == ((1, 0), (6, 200))
    # An empty log shares its beginning with every other, whatever its list says.
    assert listed((3, 0)).truncation_point([(9, 0)], masters_end=50, own_end=0) == 0
    assert listed((1, 0), (3, 40)).truncation_point([(1, 0), (4, 40)], masters_end=90, own_end=40) == 40


def test_cut_and_forget() -> None:
    epochs = listed((1, 0), (2, 100), (3, 200))
    epochs.cut(201)
    assert epochs.starts == ((1, 0), (2, 100), (3, 200))
    epochs.cut(200, [(3, 200)])
    assert epochs.entries == (Epoch(1, 0, 100), Epoch(2, 100, NO_END))
    epochs.forget_before(100)
    assert epochs.starts == ((2, 100),)
    epochs.forget_before(10**12)
    assert epochs.starts == ((2, 100),)
    epochs.cut(100, [(2, 100)])
    assert epochs.starts == ((2, 100),)
    epochs.cut(100, [(2, 90)])
    assert epochs.starts == ()


# Below a common history two replicas wrote what they wrote: (epoch, bytes of it that each holds).
HISTORY = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 5)), min_size=1, max_size=5)


@given(HISTORY, st.data())
def test_the_truncation_point_is_where_two_logs_part(history: list[tuple[int, int]], data: st.DataObject) -> None:
    """The model: each byte is the epoch that wrote it; two logs agree up to the first byte that differs."""
    epoch, log = 0, b""
    for rise, count in history:
        epoch += rise
        log += bytes([epoch]) * count
    # Each kept a part of the history, then wrote in epochs that the other never had.
    logs = []
    for number in (0, 1):
        kept = log[: data.draw(st.integers(1, len(log)))]
        later = epoch
        for rise, count in data.draw(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), max_size=3)):
            later += 2 * rise + 2
            kept += bytes([later + (later + number) % 2]) * count
        logs.append(kept)
    mine, masters = logs
    same = next((at for at, (a, b) in enumerate(zip(mine, masters, strict=False)) if a != b), min(map(len, logs)))
    lists = []
    for content in logs:
        epochs = EpochList()
        for at, written_in in enumerate(content):
            if written_in != epochs.last_epoch:
                assert epochs.append(written_in, at)
        lists.append(epochs)
    assert lists[0].truncation_point(lists[1].starts, masters_end=len(masters), own_end=len(mine)) == same
    lists[0].cut(same, lists[1].starts)
    assert lists[0].starts == tuple(e for e in lists[1].starts if e[1] < same)[: len(lists[0])]


def test_logs_without_a_common_epoch_have_no_point() -> None:
    assert listed((2, 0)).truncation_point([(1, 0)], masters_end=50, own_end=50) is None
    assert listed((2, 0)).truncation_point([(2, 10)], masters_end=50, own_end=50) is None
    assert listed((2, 0)).truncation_point([], masters_end=0, own_end=50) is None


def test_the_file_is_rocketmqs(tmp_path: Path) -> None:
    path = tmp_path / "epochFileCheckpoint"
    epochs = EpochList(str(path))
    epochs.append(7, 7000)
    epochs.append(8, 8000)
    # As the comment of RocketMQ's CheckpointFile shows it.
    assert path.read_text() == "2\n773307083\n7-7000\n8-8000\n"
    assert EpochList(str(path)).starts == ((7, 7000), (8, 8000))
    assert parse(Path(f"{path}.bak").read_text()) == [(7, 7000)]


def test_an_emptied_list_stays_empty(tmp_path: Path) -> None:
    path = str(tmp_path / "epochs")
    epochs = EpochList(path)
    epochs.append(1, 0)
    epochs.append(2, 10)
    epochs.cut(0)
    assert (EpochList(path).starts, os.listdir(tmp_path)) == ((), [])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "1\n",
        "2\n0\n1-0\n",
        "1\n5\n1-0\n",
        "1\n0\n1-x\n",
        "1\n0\n-1-0\n",
        "2\n0\n2-0\n1-5\n",
        "2\n0\n1-5\n2-5\n",
    ],
)
def test_a_text_that_is_cut_or_changed_is_not_taken(text: str) -> None:
    assert parse(text) is None


def test_a_crc_of_0_is_not_compared() -> None:
    assert parse("1\n0\n3-40\n") == [(3, 40)]
    assert parse("1\r\n0\r\n3-40\r\n") == [(3, 40)]


# Zeros alone, as a power cut leaves them, are no text: the `.bak` counts, and there is none.
@example(content=b"\0")
@given(content=st.binary(max_size=40))
def test_any_file_is_a_list_or_an_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("epochs") / "file"
    path.write_bytes(content)
    text = content.decode("utf-8", "replace").strip("\0")
    if not text or parse(text) is not None:
        assert len(EpochList(str(path))) <= 40
        return
    with pytest.raises(StoreUnwritable, match="hold no list of epochs"):
        EpochList(str(path))


class Dying(OsFiles):
    """The process is gone after so many writes; the last one is cut in the middle."""

    def __init__(self, writes: int) -> None:
        super().__init__()
        self.left = writes

    def write_file(self, path: str, content: bytes) -> None:
        self.left -= 1
        if self.left < 0:
            super().write_file(path, content[: len(content) // 2])
            raise SystemExit
        super().write_file(path, content)


@pytest.mark.parametrize("writes", range(8))
def test_killed_at_any_write_the_list_before_or_after_is_there(tmp_path: Path, writes: int) -> None:
    path = str(tmp_path / "epochs")
    epochs = EpochList(path, Dying(writes))
    done: list[tuple[int, int]] = []
    try:
        for number in range(1, 5):
            epochs.append(number, number * 10)
            done.append((number, number * 10))
    except SystemExit:
        pass
    found = list(EpochList(path).starts)
    assert found in (done, [*done, (len(done) + 1, len(done) * 10 + 10)])


def test_a_damaged_file_gives_way_to_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "epochs"
    epochs = EpochList(str(path))
    epochs.append(1, 0)
    epochs.append(2, 10)
    path.write_text("2\n5\n1-0")
    assert EpochList(str(path)).starts == ((1, 0),)
    Path(f"{path}.bak").write_text("x")
    with pytest.raises(StoreUnwritable, match="hold no list of epochs"):
        EpochList(str(path))
