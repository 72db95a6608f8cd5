"""The file of a controller's state: whole or refused, whatever was cut, killed or full."""

from __future__ import annotations

import errno
import json
import zlib
from pathlib import Path

import pytest
from tests.unit.controller.sets_under_test import three_in_sync

from rocketspark.controller.group.group_journal import GroupJournal
from rocketspark.controller.group.members import Member
from rocketspark.controller.journal import NAME, StateFile, decode, encode
from rocketspark.controller.replica_sets import Sets
from rocketspark.errors import ConfigError, StoreError, StoreFull, StoreLocked
from rocketspark.store.files.system_calls import OsFiles

pytestmark = pytest.mark.shows(
    "files of our own carry a version, a newer one refuses to start",
    "the controller's state: durable before the answer, cut or torn at any byte, another version, a full disk, kills",
)


def sets_of(masters: int) -> Sets:
    state = three_in_sync()
    for _ in range(masters):
        s = state.set
        assert state.alter(s.master or 0, s.master_epoch, [1, 2, 3], s.set_epoch).code in (0, 2013)
        assert state.elect((s.master or 0) % 3 + 1, designate=True).code == 0
    return state.sets


def opened(folder: Path) -> Sets:
    file = StateFile(str(folder))
    try:
        return file.open()
    finally:
        file.close()


def test_what_was_written_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "controller"
    assert opened(folder) == {}
    file = StateFile(str(folder))
    assert file.open() == {}
    for masters in range(4):
        file.write(sets_of(masters))
    file.close()
    assert opened(folder) == sets_of(3)
    assert sorted(p.name for p in folder.iterdir()) == [NAME, "lock"]


def test_cut_at_any_byte_it_is_refused_with_one_line(tmp_path: Path) -> None:
    whole = encode(sets_of(2))
    path = tmp_path / NAME
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(ConfigError, match=rf"^{path} is damaged: put back a copy of it[^\n]*$"):
            opened(tmp_path)
        assert path.read_bytes() == whole[:size]


def test_any_other_byte_is_refused(tmp_path: Path) -> None:
    whole = encode(sets_of(1))
    for at in range(len(whole)):
        changed = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        with pytest.raises(ConfigError):
            decode(changed, "file")


@pytest.mark.parametrize("version", [0, 2, 1 << 62])
def test_another_version_is_refused_with_its_number(tmp_path: Path, version: int) -> None:
    body = b"[]\n"
    head = {"format": "rocketspark controller state", "version": version, "crc": zlib.crc32(body), "more": []}
    (tmp_path / NAME).write_bytes(json.dumps(head).encode() + b"\n" + body)
    with pytest.raises(ConfigError, match=rf"{NAME} is of version {version}, this RocketSpark reads version 1"):
        opened(tmp_path)


class Dying(OsFiles):
    """The process is gone in the middle of a write, after so many bytes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.left: int | None = None

    def write_file(self, path: str, content: bytes) -> None:
        if self.left is not None:
            super().write_file(path, content[: self.left])
            raise SystemExit
        super().write_file(path, content)


def test_a_write_that_is_torn_at_any_byte_leaves_the_state_before(tmp_path: Path) -> None:
    files = Dying()
    before, after = sets_of(1), sets_of(2)
    file = StateFile(str(tmp_path), files)
    file.open()
    file.write(before)
    file.close()
    for size in range(len(encode(after))):
        files.left = size
        with pytest.raises(SystemExit):
            file.write(after)
        assert decode((tmp_path / NAME).read_bytes(), "") == before
    files.left = None
    assert opened(tmp_path) == before
    assert not (tmp_path / f"{NAME}.tmp").exists()


class Full(OsFiles):
    """A disk that is full."""

    full = False

    def write_file(self, path: str, content: bytes) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        super().write_file(path, content)


def test_a_full_disk_is_an_error_and_the_state_stays(tmp_path: Path) -> None:
    files = Full()
    file = StateFile(str(tmp_path), files)
    file.open()
    file.write(sets_of(1))
    files.full = True
    with pytest.raises(StoreFull, match=NAME):
        file.write(sets_of(2))
    files.full = False
    file.close()
    assert opened(tmp_path) == sets_of(1)
    files.full = True
    with pytest.raises(StoreFull):
        StateFile(str(tmp_path), files).open()
    assert opened(tmp_path) == sets_of(1)  # And the lock is free.


def test_a_folder_that_cannot_be_used_is_told_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match=r"cannot make .*file/controller"):
        StateFile(str(tmp_path / "file" / "controller")).open()


def test_one_controller_at_a_time(tmp_path: Path) -> None:
    file = StateFile(str(tmp_path))
    file.open()
    with pytest.raises(StoreLocked):
        StateFile(str(tmp_path)).open()
    file.close()
    assert opened(tmp_path) == {}


@pytest.mark.shows("a controller's folder keeps its name over a power cut, of one alone and of a group")
def test_of_a_folder_that_a_controller_makes_the_name_is_on_the_disk(tmp_path: Path) -> None:
    """Seed 1 of the simulated group lost it: a member that lost its power came back with an empty disk."""
    synced: list[str] = []

    class Noted(OsFiles):
        def sync_directory(self, path: str) -> None:
            synced.append(path)
            super().sync_directory(path)

    for name in ("alone", "group"):
        folder = tmp_path / name / "controller"
        if name == "alone":
            StateFile(str(folder), Noted()).open()
        else:
            members = [Member("n0", "a:1"), Member("n1", "b:1")]
            GroupJournal(str(folder), "g", members[0], members, hooks=None, tls=None, files=Noted()).open()
        assert {str(tmp_path), str(tmp_path / name)} <= set(synced)
        synced.clear()
    # Who made it may have ended before its name was there.
    folder = tmp_path / "empty"
    folder.mkdir()
    StateFile(str(folder), Noted()).open()
    assert str(tmp_path) in synced
