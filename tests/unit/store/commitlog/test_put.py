"""Large batches go into the log by a call: what a kill, a failing disk and a want of descriptors leave of them."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rocketspark.errors import StoreError, StoreUnwritable
from rocketspark.protocol.message import batch, record
from rocketspark.store import Store
from rocketspark.store.commitlog.commit_log import WRITE_BYTES_MIN
from rocketspark.store.files.system_calls import OsFiles
from rocketspark.store.index.key_hashes import BatchKeys

pytestmark = pytest.mark.shows(
    "batch writes: room prepared ahead, one write of the log file, rows read while others are sent",
)

NOW_MS = 1_700_000_000_000
BORN = bytes.fromhex("7f0000010000c001")
BODIES = [b"%04d" % n * 64 for n in range(300)]
LOG = {"log_file_bytes": 1 << 20, "queue_file_units": 2000}


class Writes(OsFiles):
    """Fails with `error` in the middle of a write, or when the file is opened; counts the writes that worked."""

    def __init__(self) -> None:
        super().__init__()
        self.error = 0
        self.count = 0

    def write_at(self, path: str, at: int, content: bytes | bytearray | memoryview) -> None:
        if self.error in (errno.EMFILE, 0):
            if self.error:
                raise OSError(self.error, "Too many open files")
            super().write_at(path, at, content)
            self.count += 1
            return
        super().write_at(path, at, content[: len(content) // 2])
        raise OSError(self.error, "Input/output error")


def send_batch(store: Store) -> None:
    layout = batch.scan(batch.encode([batch.BatchItem(0, body, b"") for body in BODIES]))
    assert layout is not None
    assert store.takes_layouts(b"t", 0)
    store.append_layout(b"t", 0, layout, (np.zeros(300, np.int64), BatchKeys()), NOW_MS, 0, NOW_MS, BORN)


def bodies(store: Store) -> list[bytes]:
    read = store.read("t", 0, 0, 1000, 1 << 30)
    return [r.body for piece in read.records for r in record.decode_all(piece)]


@pytest.fixture
def files() -> Writes:
    return Writes()


def test_a_large_batch_is_one_write(make_store: Any, files: Writes) -> None:
    store = make_store(**LOG)
    send_batch(store)
    assert files.count == 1
    assert store.written_position > WRITE_BYTES_MIN
    assert bodies(store) == BODIES
    store.close()
    assert bodies(make_store(**LOG)) == BODIES


def test_without_descriptors_it_is_written_by_the_map(make_store: Any, files: Writes) -> None:
    store = make_store(**LOG)
    send_batch(store)
    files.error = errno.EMFILE
    send_batch(store)
    assert files.count == 1
    assert bodies(store) == BODIES * 2


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_write_that_fails_leaves_nothing_and_the_store_read_only(error: int, make_store: Any, files: Writes) -> None:
    store = make_store(**LOG)
    send_batch(store)
    end = store.written_position
    files.error = error
    with pytest.raises(StoreUnwritable, match="read-only since a write failed"):
        send_batch(store)
    files.error = 0
    with pytest.raises(StoreUnwritable, match="start again"):
        send_batch(store)
    assert (store.written_position, bodies(store)) == (end, BODIES)
    with pytest.raises(StoreError):
        store.close()
    again = make_store(**LOG)
    assert (again.written_position, bodies(again)) == (end, BODIES)
    send_batch(again)
    assert bodies(again) == BODIES * 2


class Killed(Exception):
    """Raised in the place of a kill."""


@pytest.mark.parametrize("percent", [1, 50, 100])
def test_a_kill_before_its_first_size_leaves_none_of_it(
    percent: int, make_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(**LOG)
    send_batch(store)
    end = store.written_position

    def write(position: int, content: memoryview) -> bool:
        store.log.mapped_files.write(position, content[: len(content) * percent // 100])
        raise Killed

    monkeypatch.setattr(store.log, "_write", write)
    with pytest.raises(Killed):
        send_batch(store)
    killed = shutil.copytree(tmp_path / "s", tmp_path / "killed", ignore=shutil.ignore_patterns("lock"))
    again = make_store(killed, **LOG)
    assert (again.written_position, bodies(again)) == (end, BODIES)
    send_batch(again)
    assert bodies(again) == BODIES * 2
