"""A disk without any room: the store is stopped, started and cleaned with the blocks it kept for that."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.support.stand_ins import like

from rocketspark.errors import StoreFull
from rocketspark.protocol.message import record
from rocketspark.store import store
from rocketspark.store.files import system_calls
from rocketspark.store.files.system_calls import SPARE_BYTES, OsFiles, ReservedBlocks

pytestmark = pytest.mark.shows(
    "mended: a broker stopped on a full disk cannot start: StoreFull on ext4, SIGBUS on tmpfs",
)


class Disk:
    """A disk of which only the spare counts, and of which others take what is free."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = 1 << 30
        for module in (system_calls, store):
            monkeypatch.setattr(module, "free_bytes", lambda path: self.free)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_the_spare_is_given_up_on_a_full_disk_only(disk: Disk, tmp_path: Path) -> None:
    kept = ReservedBlocks(str(tmp_path), OsFiles())
    kept.keep()
    assert (tmp_path / "spare").stat().st_blocks * 512 >= SPARE_BYTES
    kept.release()
    assert (tmp_path / "spare").exists()
    disk.free = SPARE_BYTES - 1
    kept.release()
    assert not (tmp_path / "spare").exists()
    kept.keep()
    assert (tmp_path / "spare").stat().st_size == (SPARE_BYTES - 1) // 2
    kept.release()
    disk.free = 1000
    kept.keep()
    assert not (tmp_path / "spare").exists()


def test_a_spare_that_there_is_no_room_for_leaves_nothing(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, at: int, count: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(system_calls, "os", like(os, posix_fallocate=full))
    ReservedBlocks(str(tmp_path), OsFiles()).keep()
    assert os.listdir(tmp_path) == []


def test_the_end_of_what_has_blocks(tmp_path: Path) -> None:
    files, path = OsFiles(), str(tmp_path / "f")
    files.create(path, 1 << 20)
    assert files.data_end(path) == 0
    for at, end in ((0, 4096), (200_000, 204_800)):
        files.write_at(path, at, b"x")
        assert files.data_end(path) >= at + 1
        assert files.data_end(path) <= end or files.data_end(path) == 1 << 20


@pytest.mark.parametrize("killed", [True, False])
def test_a_start_on_a_full_disk_reads_all(killed: bool, disk: Disk, make_store: Any, send: Any, tmp_path: Path) -> None:
    """Only where files have blocks: on a full tmpfs even to read a hole takes one."""
    first = make_store(queue_ext=True)
    for i in range(300):
        send(first, f"t{i % 3}", 0, b"%d" % i, tag=f"g{i}" * 20, keys=f"k{i}")
    first.flush_log(), first.flush_queues()
    if killed:
        shutil.copytree(first.settings.root, tmp_path / "killed")
    first.close()
    disk.free = 0
    again = make_store(tmp_path / "killed" if killed else None, queue_ext=True)
    assert again.recovered.remarks() == []
    for topic in range(3):
        read = again.read(f"t{topic}", 0, 0, 1000, 1 << 20)
        assert [int(r.body) for piece in read.records for r in record.decode_all(piece)] == list(range(topic, 300, 3))
        assert len(again.query(f"t{topic}", f"k{30 + topic}", 5, 0, 1 << 60)) == 1


def test_a_mark_without_its_content_is_enough(make_store: Any, files: Any) -> None:
    """The name of a file often fits where its content does not."""

    def full(path: str, content: bytes) -> None:
        Path(path).touch()
        raise OSError(errno.ENOSPC, "No space left on device", path)

    files.write_file = full
    made = make_store()
    assert (Path(made.settings.root) / "abort").exists()
    del files.write_file
    made.close()
    assert not (Path(made.settings.root) / "abort").exists()


def test_without_any_room_a_start_says_so(make_store: Any, files: Any) -> None:
    def full(path: str, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", path)

    files.write_file = full
    with pytest.raises(StoreFull, match="free some space"):
        make_store()
    del files.write_file
    make_store()
