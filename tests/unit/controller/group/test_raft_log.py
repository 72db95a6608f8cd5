"""The log of one member: what was flushed is read, torn writes are none, damage is refused, cuts lose nothing."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from rocketspark.controller.group.entries import LogEntry
from rocketspark.controller.group.raft_log import LEARNER, MAGIC, NAME, VOTER, RaftLog
from rocketspark.errors import ConfigError, StoreFull, StoreUnwritable
from rocketspark.store.files.system_calls import OsFiles

pytestmark = pytest.mark.shows(
    "a controller's log: synced before anything is told, cut or torn at any byte, damaged at any byte, a full disk"
)


class Synced(OsFiles):
    """Counts what is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def write_at(self, path: str, at: int, content: bytes | bytearray | memoryview) -> None:
        self.calls.append("write")
        super().write_at(path, at, content)

    def sync_file(self, path: str) -> None:
        self.calls.append("sync")
        super().sync_file(path)


def opened(folder: Path, files: OsFiles | None = None) -> RaftLog:
    log = RaftLog(str(folder), files)
    log.open()
    return log


def written(folder: Path) -> RaftLog:
    """A log of some entries, over several flushes."""
    log = opened(folder)
    log.stand(VOTER)
    log.add(b"\1", 1, 0)
    log.setCurrentTerm(1, "n1-b:2")
    log.flush()
    for index in range(2, 8):
        log.add(b"\0entry %d" % index, index, 1)
        log.flush()
    log.deleteEntriesFrom(5)
    log.add(b"\0other", 6, 2)
    log.setCurrentTerm(2, None)
    log.flush()
    return log


def content(log: RaftLog) -> tuple[object, ...]:
    return log.term, log.voted_for, log.standing, list(log[:])


def test_what_was_flushed_is_read_and_one_flush_is_one_synced_write(tmp_path: Path) -> None:
    log = written(tmp_path)
    assert content(opened(tmp_path)) == content(log)
    assert content(log)[:3] == (2, None, VOTER)
    files = Synced()
    again = opened(tmp_path, files)
    again.flush()
    assert files.calls == []
    again.add(b"x", 7, 2)
    again.setCurrentTerm(3, "n0-a:1")
    again.deleteEntriesFrom(5)
    assert files.calls == []
    again.flush()
    assert files.calls == ["write", "sync"]
    assert content(opened(tmp_path)) == content(again)


def test_a_write_that_is_torn_at_any_byte_leaves_what_was_before(tmp_path: Path) -> None:
    log = written(tmp_path)
    before, size = content(log), (tmp_path / NAME).stat().st_size
    log.add(b"\0" + b"long" * 300, 7, 2)
    log.setCurrentTerm(9, "n2-c:3")
    log.flush()
    whole = (tmp_path / NAME).read_bytes()
    for end in range(size, len(whole), 7):
        (tmp_path / NAME).write_bytes(whole[:end])
        assert content(opened(tmp_path)) == before
    # Pieces of 512 bytes that never came to the disk.
    for piece in range(size - size % 512, len(whole), 512):
        torn = bytearray(whole)
        begin, end = max(piece, size), min(piece + 512, len(whole))
        torn[begin:end] = bytes(end - begin)
        (tmp_path / NAME).write_bytes(torn)
        found = opened(tmp_path)
        assert content(found) == before
        # And what is written after it is read.
        found.add(b"y", 7, 3)
        found.flush()
        assert content(opened(tmp_path)) == content(found)
    (tmp_path / NAME).write_bytes(whole)
    assert opened(tmp_path).term == 9


def test_damage_at_any_byte_is_refused(tmp_path: Path) -> None:
    written(tmp_path)
    whole = (tmp_path / NAME).read_bytes()
    for at in range(len(whole)):
        (tmp_path / NAME).write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        with pytest.raises(ConfigError, match=r"is damaged: empty this controller's folder|is of version") as caught:
            opened(tmp_path)
        assert "\n" not in str(caught.value)


def test_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(MAGIC.replace(b" 1", b" 2") + b"whatever")
    with pytest.raises(ConfigError, match="is of version 2, this RocketSpark reads version 1"):
        opened(tmp_path)


def test_a_full_disk_is_an_error_and_the_file_holds_what_it_held(tmp_path: Path) -> None:
    class Full(OsFiles):
        def write_at(self, path: str, at: int, content: bytes | bytearray | memoryview) -> None:
            super().write_at(path, at, content[:9])
            raise OSError(errno.ENOSPC, "No space left on device", path)

    before = content(written(tmp_path))
    log = opened(tmp_path, Full())
    log.add(b"x", 7, 2)
    with pytest.raises(StoreFull, match=NAME):
        log.flush()
    assert content(opened(tmp_path)) == before


def test_what_could_not_be_synced_is_not_there_for_who_reads_it_again(tmp_path: Path) -> None:
    """It is in the system's memory, which holds it for written: after the next power cut it would be gone."""

    class Failing(OsFiles):
        def sync_file(self, path: str) -> None:
            raise OSError(errno.EIO, "Input/output error", path)

    log = written(tmp_path)
    before = content(log)
    log._files = Failing()
    log.setCurrentTerm(9, "n1-b:2")
    log.add(b"x", 7, 9)
    with pytest.raises(StoreUnwritable, match=NAME):
        log.flush()
    assert content(opened(tmp_path)) == before


def test_what_is_read_is_written_anew_as_a_sync_of_it_may_have_failed(tmp_path: Path) -> None:
    class Written(OsFiles):
        fails = True

        def write_file(self, path: str, content: bytes) -> None:
            if self.fails:
                raise OSError(errno.EIO, "Input/output error", path)
            super().write_file(path, content)
            self.held = content

    log, disk = written(tmp_path), Written()
    for _ in range(2):
        with pytest.raises(StoreUnwritable, match=NAME):
            opened(tmp_path, disk)
    disk.fails = False
    assert content(opened(tmp_path, disk)) == content(log)
    Path(log.path).write_bytes(disk.held)
    assert content(opened(tmp_path)) == content(log)


def test_a_snapshot_that_was_not_followed_by_the_cut_loses_nothing(tmp_path: Path) -> None:
    log = written(tmp_path)
    entries = [LogEntry(*entry) for entry in log[:]]
    log.align(entries[3], entries[2])
    assert list(log[:]) == [(e.command, e.index, e.term) for e in entries[2:]]
    assert content(opened(tmp_path)) == content(log)
    # One of another leader's, or beyond this log: nothing here follows it.
    log.align(LogEntry(b"s", 4, 9), LogEntry(b"r", 3, 9))
    assert list(log[:]) == [(b"r", 3, 9), (b"s", 4, 9)]
    log.align(LogEntry(b"s", 40, 9), LogEntry(b"r", 39, 9))
    assert list(log[:]) == [(b"r", 39, 9), (b"s", 40, 9)]
    assert content(opened(tmp_path))[:3] == (2, None, VOTER)


def test_a_new_folder_is_a_learners(tmp_path: Path) -> None:
    assert not RaftLog.is_in(str(tmp_path))
    log = opened(tmp_path)
    assert (log.standing, len(log), RaftLog.is_in(str(tmp_path))) == (LEARNER, 0, True)
