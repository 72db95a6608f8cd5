"""Stores with garbled, cut and missing files, read as files: never a wrong row, never any other error than ours."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.store.conftest import HOST, send, small_settings

from rocketspark.errors import RocketSparkError
from rocketspark.protocol.message import record, record_crc, sysflags
from rocketspark.store import Store
from rocketspark.store.readonly.log_scan import LogScan
from rocketspark.store.readonly.read_only_store import ReadOnlyStore
from rocketspark.store.readonly.record_reader import RecordReader

pytestmark = pytest.mark.shows(
    "`store`: a store directory read directly, live, backed up, killed or damaged; ours and Apache's",
)

Key = tuple[str, int, int]


class Made(NamedTuple):
    """A store that was closed and a copy of it while it was open, and every record by topic, queue and offset."""

    closed: Path
    open: Path
    records: dict[Key, bytes]

    def __repr__(self) -> str:
        return f"Made({len(self.records)} records)"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Records carry a CRC over all they are, so that a wrong byte anywhere must be noticed."""
    root = tmp_path_factory.mktemp("fuzz")
    store = Store(small_settings(root / "closed", append_record_crc=True), store_host=HOST)
    store.open()
    for i in range(240):
        host = b"\x20\x01" + bytes(14) + b"\0\0\x1f\x90" if i % 11 == 0 else HOST
        flags = sysflags.TRANSACTION_PREPARED if i % 29 == 28 else 0
        send(store, f"t{i % 2}", i % 3, b"%d:" % i + bytes(i * 7 % 230), tag="A", born_host=host, sys_flag=flags)
        if i == 150:
            store.flush_log()
            store.flush_queues()
            store.flush_indexes()
            store.write_checkpoint()
    shutil.copytree(root / "closed", root / "open")
    store.close()
    records = rows_of(root / "closed")[0]
    assert len(records) == 240 - 8
    assert rows_of(root / "open")[0] == records
    return Made(root / "closed", root / "open", records)


def rows_of(root: Path) -> tuple[dict[Key, bytes], set[Key], bool]:
    """Every record that is read, what is told to be lost, and whether the log was found damaged."""
    found: dict[Key, bytes] = {}
    lost: set[Key] = set()
    frozen = ReadOnlyStore(str(root))
    files = LogScan(frozen.log_directories)
    try:
        for (topic, queue_id), queue in frozen.load(lambda topic: True).items():

            def gone(first: int, end: int, why: str, topic: str = topic, queue_id: int = queue_id) -> None:
                assert first < end
                lost.update((topic, queue_id, offset) for offset in range(first, min(end, first + 1000)))

            at = -1
            for piece in RecordReader(queue, files, gone, check_crc=True).pieces():
                for start, size in zip(piece.starts.tolist(), piece.sizes.tolist(), strict=True):
                    stored = bytes(piece.buffer[start : start + size])
                    offset = record.decode(stored).queue_offset
                    assert at < offset < queue.next
                    at = offset
                    found[topic, queue_id, offset] = stored
        return found, lost, bool(frozen.damages)
    finally:
        files.close()
        frozen.close()


Harm = tuple[str, int, float, bytes]
HARM: st.SearchStrategy[Harm] = st.tuples(
    st.sampled_from(("write", "write", "zero", "cut", "remove")),
    st.integers(0, 1 << 16),
    st.floats(0, 1),
    st.binary(min_size=1, max_size=40),
)


def do_harm(root: Path, harm: list[Harm], kinds: tuple[str, ...]) -> None:
    paths = sorted(p for p in root.rglob("*") if p.is_file() and p.relative_to(root).parts[0] in kinds)
    for how, which, where, content in harm:
        path = paths[which % len(paths)]
        if not path.exists():
            continue
        at = int(where * path.stat().st_size)
        if how == "remove":
            path.unlink()
        elif how == "cut":
            with path.open("r+b") as file:
                file.truncate(at)
        else:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(content if how == "write" else bytes(100 * len(content)))


def read_harmed(root: Path, harm: list[Harm], kinds: tuple[str, ...]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "s"
        shutil.copytree(root, copy)
        do_harm(copy, harm, kinds)
        try:
            return rows_of(copy)
        except RocketSparkError as e:
            return str(e)


EVERYTHING = ("commitlog", "consumequeue", "checkpoint", "config", "abort")


@settings(max_examples=60, deadline=None)
@given(harm=st.lists(HARM, min_size=1, max_size=4), is_open=st.booleans())
def test_no_row_is_wrong_whatever_was_done_to_the_files(made: Made, harm: list[Harm], is_open: bool) -> None:
    read = read_harmed(made.open if is_open else made.closed, harm, EVERYTHING)
    if isinstance(read, str):
        assert "\n" not in read
        return
    for key, stored in read[0].items():
        written = made.records[key]
        marked = stored[-record_crc.BYTES :]
        if marked.startswith(record_crc.NAME) and marked.endswith(b"\x02"):
            assert stored == written
        else:  # What would tell is damaged itself: then the body has a CRC of its own.
            assert record.decode(stored).body == record.decode(written).body


@settings(max_examples=60, deadline=None)
@given(harm=st.lists(HARM, min_size=1, max_size=3))
def test_what_a_damaged_log_lacks_is_told(made: Made, harm: list[Harm]) -> None:
    read = read_harmed(made.closed, [h for h in harm if h[0] != "remove"], ("commitlog",))
    assert not isinstance(read, str), read
    found, lost, _ = read
    assert found.keys() == made.records.keys() - lost
    assert lost <= made.records.keys()


@settings(max_examples=40, deadline=None)
@given(harm=st.lists(HARM, min_size=1, max_size=3))
def test_what_is_wrong_in_open_queues_is_made_up_from_the_log(made: Made, harm: list[Harm]) -> None:
    """Where the harm is in what the checkpoint vouches for it is told; else nothing is missing."""
    read = read_harmed(made.open, harm, ("consumequeue", "checkpoint"))
    assert not isinstance(read, str), read
    found, lost, _ = read
    assert found == {key: stored for key, stored in made.records.items() if key not in lost}
