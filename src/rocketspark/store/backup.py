"""A copy of a store's files while its broker runs, and back. Rule: the copy is what a kill at its end would have left.

The order of copying sees to that. First comes the checkpoint, which promises least; then tables, timers, queues and
index, which may know of later messages than the checkpoint; then the log, which has all messages that these know of,
its newest file first, so that none lacks what a later file continues. Last the tables of topics and groups are copied
once more: a topic that was made meanwhile may have messages in the copied log. A broker that starts on the copy
recovers as after a kill.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from rocketspark import machine
from rocketspark.errors import ConfigError, StoreFull, StoreLocked, StoreUnwritable
from rocketspark.model.text import shown
from rocketspark.protocol.message.record_layout import BLANK_BYTES_MIN
from rocketspark.store.deleted_topics import VERSION as DELETED_VERSION
from rocketspark.store.deleted_topics import topics_of
from rocketspark.store.files import config_files, store_number
from rocketspark.store.files.system_calls import DirectoryLock, OsFiles, failure

VERSION = 1
DESCRIPTION = "backup.json"
# In this order; what else lies in a store's folder is left out (locks, reserved blocks, other programs' files).
_FIRST = (
    "checkpoint",
    "config",
    "epochFileCheckpoint",
    "epochFileCheckpoint.bak",
    "brokerIdentity",
    "brokerIdentity-temp",
)
_NEXT = ("timerwheel", "timerlog", "consumequeue", "consumequeue_ext", "batchconsumequeue", "index")
_LOG = "commitlog"
# Of compaction the records alone: a start makes the rest anew.
_COMPACTED = "compaction/compactionLog"
# Topics before their deletions, as a deletion is noted last.
_LAST = tuple(
    f"config/{name}.json{end}"
    for name in ("topics", "topicQueueMapping", "subscriptionGroup", "deletedTopics")
    for end in ("", ".bak")
)
_DELETED = "config/deletedTopics.json"
_IDENTITY = ("brokerIdentity", "brokerIdentity-temp")
_PIECE_BYTES = 8 << 20
_END_BYTES = 64 << 10
# How often, and after how many seconds, an exchange of compacted segments is waited for.
_LOOKS_MAX, _LOOK_S = 200, 0.05

Tell = Callable[[int, int], None]


class Copied(NamedTuple):
    """The result of a copy. `files`, `copied_bytes`: how much was copied; `same_files`: how many log files the target
    had already.
    """

    files: int
    copied_bytes: int
    same_files: int


def backup(
    root: str | Path, target: str | Path, *, commit_log: str = "", tell: Tell = lambda files, copied: None
) -> Copied:
    """Copy a store into a folder of its own. A folder that holds an older copy of the same store is brought up to date.

    `commit_log`: the log's folder if it is not below `root`; `tell(files, bytes)` is called while the copy goes on.
    Raises ConfigError if there is no store, or a restore of it was broken off, or the target holds something else, such
    as the copy of another store; StoreLocked while another backup is at work there; StoreFull,
    StoreUnwritable.
    """
    root, target = Path(root), Path(target)
    config_files.check_restored(str(root))
    log = Path(commit_log) if commit_log else root / _LOG
    if not log.is_dir():
        below = [str(path.parent) for pattern in ("*/", "*/*/") for path in sorted(root.glob(f"{pattern}{_LOG}"))]
        which = f"; below it are {shown(', '.join(below), characters_max=400)}: copy each by itself" if below else ""
        raise ConfigError(f"{root} is no store: it has no folder {_LOG}{which}")
    before = _described(target)
    if before is None and target.exists() and any(path.name != "lock" for path in target.iterdir()):
        raise ConfigError(f"{target} holds other files: choose an empty folder, or that of an older backup")
    if target.resolve().is_relative_to(root.resolve()) or root.resolve().is_relative_to(target.resolve()):
        raise ConfigError(f"{target} and {root} lie within each other: choose a folder outside the store")
    with _locked(target):
        return _backed_up(root, target, log, before, tell)


def _backed_up(root: Path, target: Path, log: Path, before: dict[str, Any] | None, tell: Tell) -> Copied:
    """Copy a store into a folder whose lock is held. `before`: what the folder tells of an older copy."""
    was, now = (store_number.number_of(str(of), OsFiles(), is_empty=False) for of in (target, root))
    continued = {number for number, _ in store_number.shared(str(root))}
    if None not in (was, now) and was not in {now, *continued} and any(map(_has_record, (target / _LOG).glob("*"))):
        raise ConfigError(
            f"{target} holds a backup of another store than {root}: choose a folder for each, so that none is lost; if"
            " the other one is not needed any more, remove its backup"
        )
    if before is not None and not before["sealed"]:
        for path in (target / _LOG).glob("*"):
            os.utime(path, (0, 0))  # By an older program: their times do not say that they are whole.
    _describe(target, "under way")
    copy = _Copy(tell)
    for name in (*_FIRST, *_NEXT):
        copy.whole(root / name, target / name)
    # What it does not have yet is in the log, whose files stay until it has.
    copy.compacted(root / _COMPACTED, target / _COMPACTED)
    copy.log(log, target / _LOG)
    for name in _LAST:
        copy.whole(root / name, target / name)
    _bound_deletions(target)
    # Recovery then looks at everything.
    _write(target / "abort", store_number.OF_A_BACKUP)
    _describe(target, "whole")
    return Copied(copy.files, copy.copied_bytes, copy.same_files)


def restore(
    source: str | Path,
    root: str | Path,
    *,
    with_identity: bool = True,
    tell: Tell = lambda files, copied: None,
) -> Copied:
    """Copy a backup into a new store's folder, which must be empty or not there, or hold what a restore left that was
    broken off.

    Without `with_identity` the broker gets a new number from its controller: for a copy that runs beside the original.
    Raises ConfigError if it is no whole backup, or one is made into its folder meanwhile, or the new store's folder has
    something else; StoreLocked if another restore, or a server, is at work there; StoreFull, StoreUnwritable.
    """
    source, root = Path(source), Path(root)
    description = _described(source)
    if description is None:
        raise ConfigError(f"{source} is no backup: it has no {DESCRIPTION}")
    if description["state"] != "whole":
        raise ConfigError(f"the backup in {source} was broken off: make it again before it is restored")
    _check_room_for_restore(root)
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise failure(e, "create the directory", str(root)) from e
    lock = DirectoryLock(str(root / "lock"))
    lock.acquire()
    try:
        # Another restore may have ended meanwhile.
        _check_room_for_restore(root)
        return _restored(source, description, root, with_identity, tell)
    finally:
        lock.release()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a backup's folder, if one can be made there: two backups would cut off each other's files, and
    the end of one make them count as whole. Raises StoreLocked.
    """
    lock = DirectoryLock(str(folder / "lock"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except StoreLocked:
        raise StoreLocked(f"another backup is at work in {folder}: wait until it has ended") from None
    except (OSError, StoreFull, StoreUnwritable):
        pass  # What cannot be written there fails below.
    try:
        yield
    finally:
        lock.release()


def _check_room_for_restore(root: Path) -> None:
    """Raise ConfigError for a folder with anything else than what a restore left that was broken off."""
    there = {path.name for path in root.iterdir()} if root.exists() else set()
    if there - {"lock"} and config_files.RESTORE_MARK not in there:
        raise ConfigError(f"{root} is not empty: restore into a new folder, so that nothing is overwritten")


def _restored(source: Path, description: dict[str, Any], root: Path, with_identity: bool, tell: Tell) -> Copied:
    """Copy a backup, of this description, into a folder whose lock is held, in the place of what is there."""
    files, copy = OsFiles(), _Copy(tell)
    mark = root / config_files.RESTORE_MARK
    # No broker starts on a part of it.
    _write(mark, str(source))
    try:
        for path in [path for path in root.iterdir() if path not in (mark, root / "lock")]:
            files.remove_tree(str(path))
    except OSError as e:
        raise failure(e, "remove", str(root)) from e
    for name in ("abort", *_FIRST, *_NEXT, _COMPACTED, _LOG):
        if with_identity or name not in _IDENTITY:
            copy.whole(source / name, root / name)
    if _described(source) != description:
        raise ConfigError(f"a backup was made into {source} while it was restored: restore it once more")
    files.sync_all(str(root))
    mark.unlink()
    files.sync_directory(str(root))
    return Copied(copy.files, copy.copied_bytes, copy.same_files)


def _described(folder: Path) -> dict[str, Any] | None:
    try:
        found = json.loads((folder / DESCRIPTION).read_text("utf-8"))
        version, state = found["version"], found["state"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise ConfigError(f"{folder / DESCRIPTION} cannot be read ({e}): is this a backup?") from None
    if version != VERSION:
        raise ConfigError(f"the backup in {folder} is of version {version}, this program reads {VERSION}: update it")
    return {"version": version, "state": state, "sealed": found.get("sealed") is True, "made": found.get("madeMs")}


def _describe(folder: Path, state: str) -> None:
    made_ms = machine.time_ns() // 1_000_000
    about = {"version": VERSION, "state": state, "madeMs": made_ms, "sealed": True}
    _write(folder / DESCRIPTION, json.dumps(about))


def _write(path: Path, text: str) -> None:
    config_files.write(str(path), text, keep_before=False)


def _bound_deletions(target: Path) -> None:
    """Let deletions noted after the log was copied count where its copy ends: beyond it they count for nothing."""
    path, log_files = target / _DELETED, [file for file in (target / _LOG).glob("*") if file.name.isdigit()]
    try:
        topics = topics_of(config_files.unsealed(config_files.read(str(path)) or "{}"))
        end = max((int(file.name) + file.stat().st_size for file in log_files), default=0)
        bounded = {topic: min(int(at), end) for topic, at in topics.items()}
    except (ValueError, TypeError, AttributeError):
        return  # Damaged as it was; a start says so.
    if bounded != topics:
        _write(path, config_files.sealed({"version": DELETED_VERSION, "topics": bounded}))


def _failure(error: OSError, source: Path, target: Path) -> StoreFull | StoreUnwritable:
    """Return the store's error for one of a copy: it is the target whose disk may be full."""
    found = failure(error, "write", str(target))
    return found if isinstance(found, StoreFull) else failure(error, "copy", error.filename or str(source))


class _Copy:
    def __init__(self, tell: Tell) -> None:
        self.files = self.copied_bytes = self.same_files = 0
        self._tell = tell

    def whole(self, source: Path, target: Path) -> None:
        """Copy a file or folder; what is in the target alone goes. One that is not there: nothing."""
        try:
            if source.is_dir():
                self._folder(source, target)
            elif source.is_file():
                self._file(source, target)
            elif target.is_dir():
                shutil.rmtree(target)
            elif target.exists():
                target.unlink()
        except OSError as e:
            raise _failure(e, source, target) from e

    def log(self, source: Path, target: Path) -> None:
        """Copy the log's folder, but for files that are there already: a copy has its file's time if that was sealed.

        Sealed is a file with a record in the next one: nothing is written to it any more. Times alone say little, as
        writes through a map need not change them.
        """
        try:
            names = self._clear(source, target)
            for name, following in reversed([*zip(names, [*names, ""][1:], strict=True)]):
                sealed = following != "" and _has_record(source / following)
                if sealed and _same(source / name, target / name):
                    self.same_files += 1
                else:
                    self._file(source / name, target / name, keep_time=sealed)
        except OSError as e:
            raise _failure(e, source, target) from e

    def compacted(self, source: Path, target: Path) -> None:
        """Copy compaction logs, each as it is at one moment: a compaction puts new segments in the place of others."""
        shutil.rmtree(target, ignore_errors=True)
        try:
            for folder in sorted(source.glob("*/*/")):
                with ExitStack() as stack:
                    for name, read in _at_one_moment(folder, stack).items():
                        self._open_file(read, target / folder.relative_to(source) / name)
        except OSError as e:
            raise _failure(e, source, target) from e

    def _folder(self, source: Path, target: Path) -> None:
        for name in self._clear(source, target):
            if (source / name).is_dir():
                self._folder(source / name, target / name)
            else:
                self._file(source / name, target / name)

    @staticmethod
    def _clear(source: Path, target: Path) -> list[str]:
        """Remove what is in the target alone; returns the names in the source, ascending."""
        target.mkdir(parents=True, exist_ok=True)
        names = sorted(name for name in os.listdir(source) if not name.endswith(".tmp"))
        for name in set(os.listdir(target)) - set(names):
            gone = target / name
            shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
        return names

    def _file(self, source: Path, target: Path, *, keep_time: bool = True) -> None:
        try:
            with source.open("rb") as read:
                self._open_file(read, target, keep_time=keep_time)
        except FileNotFoundError:
            # Expired or deleted meanwhile.
            target.unlink(missing_ok=True)

    def _open_file(self, read: BinaryIO, target: Path, *, keep_time: bool = True) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        status = os.fstat(read.fileno())
        # Users' passwords stand in one that its owner alone may read. A backup that nobody may write to becomes a store
        # that can be written.
        mode = status.st_mode & 0o777 | 0o600
        with open(target, "wb", opener=lambda path, flags: os.open(path, flags, mode)) as written:
            with suppress(PermissionError):  # Where files have the rights that their disk was mounted with.
                os.fchmod(written.fileno(), mode)
            for at, count in _extents(read.fileno(), status.st_size):
                self._piece(read.fileno(), written.fileno(), at, count)
            written.truncate(status.st_size)
            os.fsync(written.fileno())
        # The time of the content, as it was when the copy began; else one that its file will never have.
        time_ns = status.st_mtime_ns - (0 if keep_time else 1_000_000_000)
        os.utime(target, ns=(status.st_atime_ns, time_ns))
        self.files += 1
        self._tell(self.files, self.copied_bytes)

    def _piece(self, read: int, written: int, at: int, count: int) -> None:
        while count > 0:
            piece = os.pread(read, min(count, _PIECE_BYTES), at)
            if not piece:
                return
            # Part of it on a disk that is nearly full: the rest tells what is wrong.
            done = os.pwrite(written, piece, at)
            at += done
            count -= done
            self.copied_bytes += done
            self._tell(self.files, self.copied_bytes)


def _at_one_moment(folder: Path, stack: ExitStack) -> dict[str, BinaryIO]:
    """Open the segments of a compaction log as they are between two compactions; files that are open stay readable."""
    for _ in range(_LOOKS_MAX):
        with ExitStack() as opened:
            before = _segments(folder)
            try:
                files: dict[str, BinaryIO] = {name: opened.enter_context((folder / name).open("rb")) for name in before}
            except FileNotFoundError:
                continue
            if _segments(folder) == before and not (folder / "compacting/exchange.json").exists():
                stack.push(opened.pop_all())
                return files
        machine.sleep(_LOOK_S)
    raise StoreUnwritable(f"{folder} is amid a compaction that was broken off: start its broker, which ends it")


def _segments(folder: Path) -> dict[str, int]:
    """Return the numbers of a compaction log's files by name; nothing of one that was deleted."""
    try:
        return {entry.name: entry.inode() for entry in os.scandir(folder) if entry.name.isdigit()}
    except FileNotFoundError:
        return {}


def _has_record(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return any(file.read(BLANK_BYTES_MIN))
    except FileNotFoundError:
        return False  # Removed meanwhile.


def _same(source: Path, target: Path) -> bool:
    """Tell whether two files have one size, time and end: a log that was cut and went on has another."""
    try:
        a, b = source.stat(), target.stat()
        if (a.st_size, a.st_mtime_ns) != (b.st_size, b.st_mtime_ns):
            return False
        with source.open("rb") as one, target.open("rb") as other:
            for end in range(a.st_size, 0, -_END_BYTES):
                at = max(end - _END_BYTES, 0)
                mine = os.pread(one.fileno(), end - at, at)
                if mine != os.pread(other.fileno(), end - at, at):
                    return False
                if any(mine):
                    break
    except FileNotFoundError:
        return False
    return True


def _extents(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield (begin, bytes) of what a file holds: log files are made long and filled later."""
    at = 0
    while at < size:
        try:
            begin = os.lseek(fd, at, os.SEEK_DATA)
            end = os.lseek(fd, begin, os.SEEK_HOLE)
        except OSError as e:
            if e.errno == errno.ENXIO:
                return
            # A file system that cannot tell: everything.
            yield at, size - at
            return
        yield begin, end - begin
        at = end
