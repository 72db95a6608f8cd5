"""The pages that the next appends touch are in memory before them, for the way in which they are written."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.unit.store.commitlog.test_put import BODIES, send_batch

from rocketspark.store.files.system_calls import PAGE, OsFiles
from rocketspark.store.index.key_hashes import BatchKeys, TopicKeys

pytestmark = pytest.mark.shows(
    "exactly once at 250 k rows/s end to end on our broker",
    "batch writes: room prepared ahead, one write of the log file, rows read while others are sent",
)

MIB = 1 << 20


class Populated(NamedTuple):
    at: int
    end: int
    for_map: bool


class Noting(OsFiles):
    """Notes what is populated."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[Populated] = []

    def populate(self, mapped: mmap.mmap, at: int, end: int, *, for_map: bool = True) -> bool:
        self.noted.append(Populated(at, end, for_map))
        return super().populate(mapped, at, end, for_map=for_map)


@pytest.fixture
def files() -> Noting:
    return Noting()


def resident(path: Path, at: int, end: int) -> int:
    """How many of the bytes are in memory, by whole pages."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        held = ctypes.c_char.from_buffer(mapped)
        pages = (ctypes.c_ubyte * (len(mapped) // PAGE))()
        assert (
            ctypes.CDLL(None).mincore(ctypes.c_void_p(ctypes.addressof(held)), ctypes.c_size_t(len(mapped)), pages) == 0
        )
        del held
        return PAGE * sum(page & 1 for page in pages[at // PAGE : end // PAGE])


def test_after_batches_written_by_calls_the_log_is_in_memory_ahead_for_calls(make_store: Any, files: Noting) -> None:
    store = make_store(log_file_bytes=64 * MIB, index_enabled=False)
    send_batch(store)
    store.populate_ahead()
    end = store.written_position
    assert files.noted == [Populated(end, end + 8 * MIB, for_map=False)]
    path = Path(store.settings.root, "commitlog", f"{0:020d}")
    assert resident(path, end - end % PAGE, end + 8 * MIB) >= 8 * MIB - PAGE
    for _ in range(100):
        send_batch(store)
    store.populate_ahead()
    store.populate_ahead()
    now = store.written_position
    # Four times what came, from where the last call ended; nothing for a store at rest.
    assert files.noted[1:] == [Populated(max(now, end + 8 * MIB), min(now + 4 * (now - end), now + 32 * MIB), False)]
    assert bytes(store.log.slice(now - len(BODIES[-1]) - 4, len(BODIES[-1]))) == BODIES[-1]


def test_after_messages_one_by_one_it_is_in_memory_for_the_map(make_store: Any, files: Noting, send: Any) -> None:
    store = make_store(log_file_bytes=64 * MIB, index_enabled=False)
    send_batch(store)
    store.populate_ahead()
    for _ in range(40):
        send(store, "t", 0, b"x" * 100_000)
    store.populate_ahead()
    now = store.written_position
    begin = files.noted[0].end
    assert files.noted[1:] == ([Populated(begin, now + 4 * (now - (begin - 8 * MIB)), True)])


def test_a_batch_that_is_not_in_the_end_of_the_log_yet_still_counts_as_written_by_a_call(
    make_store: Any, files: Noting, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(log_file_bytes=64 * MIB, index_enabled=False)
    put = store.log.put

    def put_and_look(position: int, records: memoryview) -> None:
        put(position, records)
        store.populate_ahead()

    monkeypatch.setattr(store.log, "put", put_and_look)
    send_batch(store)
    assert files.noted == []
    store.populate_ahead()
    end = store.written_position
    assert files.noted == [Populated(end, end + 8 * MIB, for_map=False)]


def test_what_is_ahead_stays_zero_and_the_log_ends_where_it_did(make_store: Any, files: Noting) -> None:
    store = make_store(log_file_bytes=16 * MIB)
    send_batch(store)
    store.populate_ahead()
    end = store.written_position
    assert bytes(store.log.map[end : end + 9 * MIB]) == bytes(9 * MIB)
    store.abandon()
    again = make_store(log_file_bytes=16 * MIB)
    assert again.written_position == end


def test_entries_of_the_index_are_in_memory_ahead_of_many_keys(make_store: Any, files: Noting) -> None:
    count = 100_000
    store = make_store(index_slots=1000, index_entries=1_000_000)
    index = store.index_service
    positions, keys = np.arange(count) * 200, BatchKeys()
    keys.ids.append((np.arange(count), np.full((count, 8), ord("x"), np.uint8)))
    index.add_batch(TopicKeys("t"), keys, positions, 1)
    index.write_pending()
    store.populate_ahead()
    begin = 40 + 4 * 1000 + 20 * (count + 1)
    assert [n for n in files.noted if n.at] == [Populated(begin, begin + 20 * 4 * count, False)]
    index.add_batch(TopicKeys("t"), keys, positions + count * 200, 2)
    index.write_pending()
    store.populate_ahead()
    store.populate_ahead()
    # From where the last call ended, up to four times what came since.
    more = Populated(begin + 20 * 4 * count, begin + 20 * 5 * count, for_map=False)
    assert [n for n in files.noted if n.at][1:] == [more]
    (path,) = Path(store.settings.root, "index").iterdir()
    assert resident(path, begin, more.end) >= 20 * 5 * count - 2 * PAGE


def test_where_the_kernel_cannot_appends_go_on(make_store: Any, files: Noting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_madvise", lambda *_: -1)
    store = make_store(log_file_bytes=16 * MIB)
    send_batch(store)
    store.populate_ahead()
    assert files.noted
    assert not OsFiles.populate(files, mmap.mmap(-1, PAGE), 0, PAGE)
    send_batch(store)


@pytest.mark.shows("under SYNC_FLUSH one message is flushed as a page, not as all that the kernel read ahead around it")
def test_where_each_message_is_flushed_the_file_that_is_written_is_not_read_ahead(make_store: Any) -> None:
    store = make_store(log_file_bytes=MIB)
    advised: list[tuple[int | None, bool]] = []
    maps, advise = store.log.mapped_files.maps, store.log.mapped_files.maps.advise

    def noting(mapped_files: Any, *, scattered: bool, start: int | None = None) -> None:
        advised.append((start, scattered))
        advise(mapped_files, scattered=scattered, start=start)

    maps.advise = noting
    send_batch(store)
    assert advised == []
    store.flush_each(True)
    while store.log.base < 2 * MIB:
        send_batch(store)
    # Each file from the next one on; the one before is read as others again.
    begin = advised[0][0]
    expected = [(begin, True)]
    for start in range((begin or 0) + MIB, 2 * MIB + 1, MIB):
        expected += [(start - MIB, False), (start, True)]
    assert (advised, store.log.mapped_files.scattered) == (expected, False)
