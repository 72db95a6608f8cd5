"""A store copied while messages come: the copy starts and has all that was stored when it began."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.test_recovery import assert_agrees

from rocketspark.cli.commands.backup import restore as restore_command
from rocketspark.errors import ConfigError, StoreFull, StoreLocked
from rocketspark.store import Store
from rocketspark.store.backup import backup, restore
from rocketspark.store.readonly.read_only_store import ReadOnlyStore

pytestmark = pytest.mark.shows(
    "`rocketspark backup`, `restore`: a store copied while its broker runs, again only what is new",
    "files of our own carry a version, a newer one refuses to start",
)

NOW_MS = 1_700_000_000_000


def fill(store: Store, send: Any, start: int, count: int) -> None:
    for i in range(start, start + count):
        send(store, f"t{i % 2}", i % 3, b"n%07d" % i + b"x" * (i * 37 % 300), keys=f"n{i:07d}", now_ms=NOW_MS + i)


def flush(store: Store) -> None:
    store.flush_log(), store.flush_queues(), store.flush_indexes(), store.write_checkpoint()


def _counter(files: list[int]) -> Any:
    return lambda count, copied_bytes: files.append(count)


@pytest.mark.shows("a backup has the topics made meanwhile")
def test_topics_and_groups_made_while_the_log_is_copied_are_in_the_copy(
    make_store: Any, send: Any, tmp_path: Path
) -> None:
    store = make_store()
    fill(store, send, 0, 20)
    config, copied = Path(store.settings.root) / "config", tmp_path / "backup" / "config"
    names = ("topics.json", "subscriptionGroup.json", "topicQueueMapping.json", "deletedTopics.json")
    for name in (*names, "consumerOffset.json"):
        (config / name).write_text("before")

    def make(files: int, copied_bytes: int) -> None:
        # What is committed from here on may count messages that the log's copy has not.
        if (tmp_path / "backup" / "commitlog").exists():
            for name in (*names, "consumerOffset.json"):
                (config / name).write_text("after")

    backup(store.settings.root, tmp_path / "backup", tell=make)
    assert {name: (copied / name).read_text() for name in names} == dict.fromkeys(names, "after")
    assert (copied / "consumerOffset.json").read_text() == "before"


def test_the_copy_of_a_store_in_use(make_store: Any, send: Any, tmp_path: Path) -> None:
    store = make_store()
    fill(store, send, 0, 200)
    flush(store)
    fill(store, send, 200, 100)
    stop = threading.Event()
    sent = [300]

    def go_on() -> None:
        while not stop.is_set() and sent[0] < 2000:
            fill(store, send, sent[0], 1)
            sent[0] += 1
            if sent[0] % 50 == 0:
                flush(store)

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        for number in range(4):
            files: list[int] = []
            least = sent[0]
            done = backup(store.settings.root, tmp_path / "backup", tell=_counter(files))
            assert done.files == files[-1]
            assert (done.same_files > 0) == (number > 0)
            restored = tmp_path / f"restored{number}"
            restore(tmp_path / "backup", restored)
            opened = make_store(restored)
            bodies = assert_agrees(opened)
            assert [body[:8] for body in bodies] == [b"n%07d" % i for i in range(len(bodies))]
            assert len(bodies) >= least
            send(opened, "t0", 0, b"goes on")
            opened.close()
    finally:
        stop.set()
        thread.join()


@pytest.mark.shows("backup into an older backup")
@pytest.mark.parametrize("by", ["this program", "an older program"])
def test_what_was_written_to_a_file_whose_time_stayed_is_in_the_next_backup(
    by: str, make_store: Any, send: Any, tmp_path: Path
) -> None:
    """Writes through a map need not change it, and the file that is written to need not be the last."""
    store = make_store()
    fill(store, send, 0, 60)
    store.populate_ahead()
    log, kept = Path(store.settings.root) / "commitlog", tmp_path / "b/commitlog"
    assert len(list(log.iterdir())) == 2
    assert store.written_position < 16384
    for count in (60, 61, 62):
        backup(store.settings.root, tmp_path / "b")
        if by == "an older program":
            description = json.loads((tmp_path / "b/backup.json").read_text())
            (tmp_path / "b/backup.json").write_text(json.dumps(description | {"sealed": None}))
            for path in log.iterdir():
                os.utime(kept / path.name, ns=(0, path.stat().st_mtime_ns))
        restore(tmp_path / "b", tmp_path / f"r{count}")
        opened = make_store(tmp_path / f"r{count}")
        assert len(assert_agrees(opened)) == count
        opened.close()
        times = {path: path.stat().st_mtime_ns for path in log.iterdir()}
        fill(store, send, count, 1)
        for path, time_ns in times.items():
            os.utime(path, ns=(0, time_ns))
    # A whole file is not copied again, unless the log was cut and went on in another way.
    fill(store, send, 63, 60)
    assert [backup(store.settings.root, tmp_path / "b").same_files for _ in range(2)] == [0, 1]
    first = min(log.iterdir())
    content, time_ns = bytearray(first.read_bytes()), first.stat().st_mtime_ns
    content[len(content.rstrip(b"\0")) - 20] ^= 1
    first.write_bytes(content)
    os.utime(first, ns=(0, time_ns))
    assert backup(store.settings.root, tmp_path / "b").same_files == 0


@pytest.mark.shows("backup into an older backup")
def test_a_log_that_rolls_while_it_is_copied_has_no_hole(make_store: Any, send: Any, tmp_path: Path) -> None:
    store = make_store()
    fill(store, send, 0, 60)
    store.populate_ahead()
    steps: list[int] = []

    def go_on(files: int, copied_bytes: int) -> None:
        if len(steps) == 20:
            return
        steps.append(files)
        fill(store, send, 60 + len(steps) * 10, 10)

    send(store, "t0", 0, b"first")
    fill(store, send, 60, 10)
    backup(store.settings.root, tmp_path / "b", tell=go_on)
    restore(tmp_path / "b", tmp_path / "r")
    opened = make_store(tmp_path / "r")
    assert opened.recovered.remarks() == []
    positions = [r.position for r in opened.iterate(0)]
    assert positions == [r.position for r in store.iterate(0)][: len(positions)]
    assert len(positions) > 71


def test_files_that_were_removed_go_from_an_older_backup(make_store: Any, send: Any, tmp_path: Path) -> None:
    store = make_store()
    fill(store, send, 0, 300)
    flush(store)
    backup(store.settings.root, tmp_path / "b")
    for remove in store.expire_steps(NOW_MS + 150):
        if remove is not None:
            remove()
    backup(store.settings.root, tmp_path / "b")
    names = sorted(path.name for path in (tmp_path / "b/commitlog").iterdir())
    assert names == [f"{start:020d}" for start in store.log.mapped_files.starts]
    restore(tmp_path / "b", tmp_path / "r")
    opened = make_store(tmp_path / "r")
    assert opened.min_position == store.min_position > 0


def test_what_cannot_be_is_told(make_store: Any, send: Any, tmp_path: Path) -> None:
    store = make_store()
    fill(store, send, 0, 10)
    root = store.settings.root
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").write_text("x")
    for source, target, needed in (
        (tmp_path / "nothing", tmp_path / "b", "is no store: it has no folder commitlog$"),
        (Path(root).parent, tmp_path / "b", f"no folder commitlog; below it are {root}: copy each by itself$"),
        (root, tmp_path / "other", "other files"),
        (root, f"{root}/inside", "within each other"),
    ):
        with pytest.raises(ConfigError, match=needed):
            backup(source, target)
    with pytest.raises(ConfigError, match="no backup"):
        restore(tmp_path / "other", tmp_path / "r")
    backup(root, tmp_path / "b")
    with pytest.raises(ConfigError, match="not empty"):
        restore(tmp_path / "b", root)
    description = json.loads((tmp_path / "b/backup.json").read_text())
    (tmp_path / "b/backup.json").write_text(json.dumps(description | {"state": "under way"}))
    with pytest.raises(ConfigError, match="broken off"):
        restore(tmp_path / "b", tmp_path / "r")
    (tmp_path / "b/backup.json").write_text(json.dumps(description | {"version": 2}))
    with pytest.raises(ConfigError, match="version 2"):
        restore(tmp_path / "b", tmp_path / "r")
    assert not (tmp_path / "r").exists()


@pytest.mark.shows("store: a full disk")
def test_a_restore_that_was_broken_off_is_no_store_and_is_made_again(
    make_store: Any, send: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store()
    fill(store, send, 0, 10)
    backup(store.settings.root, tmp_path / "b")

    def full(*piece: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    new = tmp_path / "new"
    with monkeypatch.context() as patched:
        patched.setattr("rocketspark.store.backup._Copy._piece", full)
        with pytest.raises(StoreFull, match=f"to write {tmp_path}/other/") as other:
            backup(store.settings.root, tmp_path / "other")
        with pytest.raises(StoreFull, match=f"to write {new}/") as refused:
            restore(tmp_path / "b", new)
    assert refused.value.free_bytes > 0 < other.value.free_bytes
    for look in (make_store, lambda root: ReadOnlyStore(str(root)), lambda root: backup(root, tmp_path / "of a part")):
        with pytest.raises(ConfigError, match="`rocketspark restore` with this folder once more"):
            look(new)

    def nearly_full(file: int, data: bytes, at: int) -> int:
        if len(data) == 1:
            full()
        return write(file, data[: len(data) // 2], at)

    write = os.pwrite
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", nearly_full)
        with pytest.raises(StoreFull, match=f"to write {tmp_path}/third/"):
            backup(store.settings.root, tmp_path / "third")

    def twice(files: int, copied_bytes: int) -> None:
        with pytest.raises(StoreLocked):
            restore(tmp_path / "b", new)
        again.append(files)

    again: list[int] = []
    restore(tmp_path / "b", new, tell=twice)
    assert again
    restored = make_store(new)
    assert [restored.queue_range("t0", q) for q in range(3)] == [store.queue_range("t0", q) for q in range(3)]
    with pytest.raises(ConfigError, match="not empty"):
        restore(tmp_path / "b", new)


def test_who_may_not_read_a_file_may_not_read_its_copy(make_store: Any, tmp_path: Path) -> None:
    store: Store = make_store()
    users = Path(store.settings.root) / "config" / "accessControl.json"
    users.parent.mkdir(exist_ok=True)
    users.write_text('{"users":[]}')
    store.close()
    copy, again = tmp_path / "copy", tmp_path / "again"
    backup(Path(store.settings.root), copy)
    assert (copy / "config" / users.name).stat().st_mode & 0o777 == users.stat().st_mode & 0o777
    # As an older backup has it.
    (copy / "config" / users.name).chmod(0o644)
    users.chmod(0o600)
    backup(Path(store.settings.root), copy)
    restore(copy, again)
    modes = [(folder / "config" / users.name).stat().st_mode & 0o777 for folder in (copy, again)]
    assert modes == [0o600, 0o600]


def test_a_backup_that_nobody_may_write_to_becomes_a_store_that_its_broker_can(
    make_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Store = make_store()
    topics = Path(store.settings.root) / "config" / "topics.json"
    topics.parent.mkdir(exist_ok=True)
    topics.write_text("{}")
    store.close()
    copy, again = tmp_path / "copy", tmp_path / "again"
    backup(Path(store.settings.root), copy)
    (copy / "config" / topics.name).chmod(0o444)
    restore(copy, again)
    assert (again / "config" / topics.name).stat().st_mode & 0o777 == 0o644

    def denied(descriptor: int, mode: int) -> None:
        raise PermissionError

    # A disk whose files all have the rights that it was mounted with.
    monkeypatch.setattr(os, "fchmod", denied)
    restore(copy, tmp_path / "mounted")
    assert (tmp_path / "mounted" / "config" / topics.name).read_text() == "{}"


def test_a_store_without_a_message_is_backed_up(make_store: Any, send: Any, tmp_path: Path) -> None:
    store = make_store()
    flush(store)
    for _ in range(2):
        backup(store.settings.root, tmp_path / "b")
    fill(store, send, 0, 10)
    backup(store.settings.root, tmp_path / "b")
    restore(tmp_path / "b", tmp_path / "new")
    restored = make_store(tmp_path / "new")
    assert [restored.queue_range("t0", q) for q in range(3)] == [store.queue_range("t0", q) for q in range(3)]


def test_a_copy_beside_the_original_has_no_number(
    make_store: Any, send: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = make_store()
    fill(store, send, 0, 10)
    Path(store.settings.root, "brokerIdentity").write_text("c#b#1")
    backup(store.settings.root, tmp_path / "b")
    restore_command(tmp_path / "b", tmp_path / "same")
    assert "restore with --new-identity" in capsys.readouterr().err
    restore_command(tmp_path / "b", tmp_path / "new", new_identity=True)
    assert capsys.readouterr().err == ""
    assert (tmp_path / "same/brokerIdentity").read_text() == "c#b#1"
    assert not (tmp_path / "new/brokerIdentity").exists()


@pytest.mark.shows("a topic deleted while a backup runs is deleted in the backup")
@pytest.mark.parametrize("more", [1, 200])
def test_a_topic_deleted_while_the_log_is_copied_is_deleted_in_the_copy(
    more: int, make_store: Any, send: Any, tmp_path: Path
) -> None:
    """Its queues were copied before; the log's copy may end files before the place of the deletion."""
    store = make_store()
    fill(store, send, 0, 20)
    flush(store)
    ended: list[int] = []

    def delete(files: int, copied_bytes: int) -> None:
        if (tmp_path / "backup" / "commitlog").exists() and not ended:
            ended.append(store.written_position)
            fill(store, send, 20, more)
            for _ in range(more):
                send(store, "other", 0, bytes(1000))
            store.delete_topic("t0")

    backup(store.settings.root, tmp_path / "backup", tell=delete)
    assert ended
    restore(tmp_path / "backup", tmp_path / "restored")
    copy = make_store(tmp_path / "restored")
    assert "t0" not in copy.queues()
    assert copy.queue_range("t1", 1)[1] >= 3
    assert send(copy, "t0", 0, b"new")[1] == 0


@pytest.mark.shows("a backup into the folder of another store's, or of one that is under way, changes nothing there")
def test_a_backup_is_not_overwritten_by_that_of_another_store(make_store: Any, send: Any, tmp_path: Path) -> None:
    stores = [make_store(tmp_path / name) for name in ("a", "b")]
    backup(stores[0].settings.root, tmp_path / "backup")
    # Nothing is lost that has no message.
    backup(stores[1].settings.root, tmp_path / "backup")
    for store in stores:
        fill(store, send, 0, 10), flush(store)
    backup(stores[1].settings.root, tmp_path / "backup")
    before = {path: path.read_bytes() for path in (tmp_path / "backup").rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="holds a backup of another store than"):
        backup(stores[0].settings.root, tmp_path / "backup")
    assert {path: path.read_bytes() for path in (tmp_path / "backup").rglob("*") if path.is_file()} == before
    # One without a number, as replicas have none, may be the same.
    (tmp_path / "a/config/storeNumber.json").unlink()
    backup(stores[0].settings.root, tmp_path / "backup")


def test_two_backups_into_one_folder_do_not_mix(make_store: Any, send: Any, tmp_path: Path) -> None:
    store = make_store()
    fill(store, send, 0, 10), flush(store)
    root, target = store.settings.root, tmp_path / "backup"

    def twice(files: int, copied_bytes: int) -> None:
        with pytest.raises(StoreLocked, match="another backup is at work"):
            backup(root, target)
        # As a kill there leaves it.
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backup(root, target, tell=twice)
    with pytest.raises(ConfigError, match="broken off"):
        restore(target, tmp_path / "r")
    (target / "backup.json").unlink()
    for path in [*target.iterdir()]:
        shutil.rmtree(path) if path.is_dir() else path.name == "lock" or path.unlink()
    backup(root, target)
    again: list[int] = []

    def anew(files: int, copied_bytes: int) -> None:
        if not again:
            again.append(backup(root, target).files)

    with pytest.raises(ConfigError, match="while it was restored"):
        restore(target, tmp_path / "r", tell=anew)
    with pytest.raises(ConfigError, match="once more"):
        make_store(tmp_path / "r")
    restore(target, tmp_path / "r")
