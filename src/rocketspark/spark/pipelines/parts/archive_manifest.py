"""An archive's folder: which Parquet files count. Rule: the manifest alone says so, and is replaced in one rename.

    topic=T/hour=2026-11-21T06/*.parquet   what anyone may read: hard links to the files that count now
    _files/topic=T/hour=…/*.parquet        the files; those that a compaction replaced stay here for a while
    _spark_metadata/0.compact              the same list in the form of Spark's file sink: spark.read.parquet(folder)
                                           reads one state of the archive, whatever goes on meanwhile
    _archive/manifest.json                 files, what each holds, and the offsets up to which topics are archived
    _archive/lock, _archive/staging-*      one writer at a time; files that do not count yet

A writer that was killed leaves files that the manifest does not name; the next one clears them away.
"""

from __future__ import annotations

import calendar
import ctypes
import fcntl
import os
import re
import shutil
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from rocketspark.errors import ConfigError, RocketSparkError
from rocketspark.model import typed_json
from rocketspark.model.text import in_file_name
from rocketspark.spark.lakehouse.object_store import refuse_plain_archive
from rocketspark.tables.export_topic import named

VERSION = 1
FILES = "_files"
STATE = "_archive"
SPARK_LOG = "_spark_metadata/0.compact"
HOUR_MS = 3_600_000
# Characters that Hive, and so Spark, escapes in names of partition folders.
_ESCAPED = frozenset("\"#%'*/:=?\\\x7f{[]^" + "".join(map(chr, range(0x20))))

# Names that Spark takes for a number, a date or null where it guesses the type of a partition column.
_GUESSED = re.compile(r"[-+]?\d[-+\da-fA-FxXpPT]*|NaN|Infinity|__HIVE_DEFAULT_PARTITION__")


class ArchivedRange(msgspec.Struct, array_like=True, frozen=True, order=True):
    """Rows of one queue that stand one after another in a file: `rows` rows with queue offsets within [first, end),
    ascending.
    """

    broker: str
    queue_id: int
    first: int
    end: int
    rows: int


class ArchiveFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A Parquet file of an archive; `name`: its name without folder; its rows are those of the segments, in their
    order. Times are in ms since 1970.

    `as_text`: its folder is named so that Spark reads the topic as text, though it looks like a number.
    """

    topic: str
    hour: str
    name: str
    rows: int
    bytes: int
    time_ms: int
    segments: list[ArchivedRange]
    as_text: bool = False

    @property
    def folder(self) -> str:
        """The folder of the file's topic and hour, relative to the archive or its `_files`."""
        return partition_folder(self.topic, self.hour, as_text=self.as_text)

    @property
    def path(self) -> str:
        """The file's path, relative to the archive or its `_files`."""
        return f"{self.folder}/{self.name}"


class ReplacedFile(msgspec.Struct, frozen=True):
    """A file that a merge has replaced; it is kept until `until_ms` for readers that began before."""

    path: str
    until_ms: int


class ArchiveManifest(msgspec.Struct, frozen=True):
    """One state of an archive: its files and offsets. `sequence` counts the commits; `offsets`: the next offset of each
    queue, as JSON. `id` is the archive's own; "" in one that an earlier version began.
    """

    version: int = VERSION
    sequence: int = 0
    offsets: dict[str, Any] | None = None
    files: list[ArchiveFile] = []
    replaced: list[ReplacedFile] = []
    id: str = ""


class WrittenFile(msgspec.Struct, frozen=True):
    """A file that a task wrote at `path`, and that does not count yet."""

    path: str
    topic: str
    hour: str
    rows: int
    bytes: int
    segments: list[ArchivedRange]


def hour_name(time_ms: int) -> str:
    """Return the name of the hour that a time falls in, UTC: 2026-11-21T06."""
    return time.strftime("%Y-%m-%dT%H", time.gmtime(time_ms // 1000))


def hour_start_ms(hour: str) -> int:
    """Return the beginning of an hour in ms since 1970."""
    return calendar.timegm(time.strptime(hour, "%Y-%m-%dT%H")) * 1000


def partition_folder(topic: str, hour: str, *, as_text: bool = False) -> str:
    """Return the folder of a topic's hour, named as Spark names partitions; `as_text`: named so that Spark reads the
    topic as text.
    """
    escaped = _ESCAPED | {topic[0]} if as_text else _ESCAPED
    kept = "".join(f"%{ord(c):02X}" if c in escaped else c for c in topic)
    return f"topic={in_file_name(kept)}/hour={hour}"


def due(files: Iterable[ArchiveFile], now_ms: int, close_after_ms: int, file_bytes: int) -> list[list[ArchiveFile]]:
    """Return the files that are to be merged, hour by hour: files below `file_bytes` of hours that ended at least
    `close_after_ms` ago, if they fit into fewer files.
    """
    hours: dict[str, list[ArchiveFile]] = defaultdict(list)
    for file in files:
        if file.bytes < file_bytes:
            hours[file.folder].append(file)
    return [
        found
        for _, found in sorted(hours.items())
        if hour_start_ms(found[0].hour) + HOUR_MS + close_after_ms <= now_ms
        and len(found) > -(-sum(file.bytes for file in found) // file_bytes)
    ]


def read_manifest(folder: Path) -> ArchiveManifest:
    """Read the manifest of an archive. Raises ConfigError if there is none."""
    refuse_plain_archive(folder)
    path = folder / STATE / "manifest.json"
    try:
        found = typed_json.decode(path.read_bytes(), ArchiveManifest)
    except FileNotFoundError:
        raise ConfigError(f"{folder} is no archive: {path} is not there") from None
    except msgspec.DecodeError as e:
        raise ConfigError(f"{path} cannot be read ({e}): restore it from a copy of the archive") from None
    if found.version != VERSION:
        raise ConfigError(f"{path} has version {found.version}, known is {VERSION}: use a newer RocketSpark")
    return found


def files_in(folder: Path) -> Path | None:
    """Return some file that lies below a folder where an archive's files of rows lie; None if there is none."""
    places = (root.glob("topic=*/hour=*/*") for root in (folder / FILES, folder))
    return next(chain.from_iterable(places), None)


class Archive:
    """An archive that this process writes; `open_archive` returns one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = ArchiveManifest(id=uuid.uuid4().hex)
        path = folder / STATE / "manifest.json"
        if path.exists():
            self.manifest = read_manifest(folder)
        elif (found := files_in(folder)) is not None:
            # A new archive has its manifest before its first file.
            raise ConfigError(
                f"{found} is there, and no {path} that tells of it: bring that back from a copy of the archive, or"
                " archive into another folder"
            )

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """Give the block a folder for files that do not count yet; it is removed at the end."""
        path = self.folder / STATE / f"staging-{uuid.uuid4().hex}"
        path.mkdir()
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def commit(
        self,
        written: Iterable[WrittenFile],
        *,
        offsets: dict[str, Any] | None = None,
        replaces: Iterable[ArchiveFile] = (),
        keep_ms: int = 0,
    ) -> list[ArchiveFile]:
        """Make the `written` files count, and those that they replace count no more, at one moment; returns the new
        files.

        offsets: up to where topics are archived with them; keep_ms: for how long the replaced files stay readable.
        """
        now_ms = time.time_ns() // 1_000_000
        sequence = self.manifest.sequence + 1
        named_before = {file.topic for file in self.manifest.files if not file.as_text}
        made = []
        for number, one in enumerate(written):
            name = f"part-{sequence:08}-{number:04}.parquet"
            # A topic's folders are named in one way: those of an older version as they were.
            as_text = _GUESSED.fullmatch(one.topic) is not None and one.topic not in named_before
            file = ArchiveFile(one.topic, one.hour, name, one.rows, one.bytes, now_ms, one.segments, as_text)
            target = self.folder / FILES / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                _sync(Path(one.path))
                os.replace(one.path, target)
            except FileNotFoundError:
                raise RocketSparkError(
                    f"{one.path}, which a task of Spark wrote, is not here: {self.folder} must be a folder that"
                    " the driver and all executors share"
                ) from None
            made.append(file)
        for folder in {(self.folder / FILES / file.path).parent for file in made}:
            _sync(folder)
        gone = {file.path for file in replaces}
        files = [file for file in self.manifest.files if file.path not in gone] + made
        replaced = self.manifest.replaced + [ReplacedFile(path, now_ms + keep_ms) for path in sorted(gone)]
        offsets = offsets if offsets is not None else self.manifest.offsets
        self._write(ArchiveManifest(VERSION, sequence, offsets, files, replaced, self.manifest.id))
        self._show(sorted({file.folder for file in made} | {str(Path(path).parent) for path in gone}))
        return made

    def _write(self, manifest: ArchiveManifest) -> None:
        replace_file(self.folder / STATE / "manifest.json", msgspec.json.encode(manifest))
        self.manifest = manifest
        self._tell_spark()

    def _tell_spark(self) -> None:
        root = self.folder / FILES
        lines = [
            {
                "path": (root / file.path).as_uri(),
                "size": file.bytes,
                "isDir": False,
                "modificationTime": file.time_ms,
                "blockReplication": 1,
                "blockSize": 32 << 20,
                "action": "add",
            }
            for file in self.manifest.files
        ]
        # One compacted batch, number 0: Spark reads it alone, at any compaction interval of the session.
        content = b"\n".join([b"v1", *map(msgspec.json.encode, lines)])
        path = self.folder / SPARK_LOG
        if not path.exists() or path.read_bytes() != content:
            replace_file(path, content)

    def _show(self, folders: Iterable[str]) -> None:
        """Put hard links to the files that count into the open folders."""
        wanted: dict[str, set[str]] = defaultdict(set)
        for file in self.manifest.files:
            wanted[file.folder].add(file.name)
        for folder in folders:
            shown, names = self.folder / folder, wanted[folder]
            there = set(os.listdir(shown)) if shown.is_dir() else set()
            source = self.folder / FILES / folder
            if not there - names:
                shown.mkdir(parents=True, exist_ok=True)
                for name in sorted(names - there):
                    _link(source / name, shown / name)
                continue
            # A new folder takes the place at one moment: no reader lists a row twice, or misses one.
            with self.staging() as fresh:
                for name in sorted(names):
                    _link(source / name, fresh / name)
                if not _exchange(fresh, shown):
                    for name in there - names:
                        (shown / name).unlink()
                    for name in names - there:
                        os.replace(fresh / name, shown / name)
            if not names:
                shutil.rmtree(shown, ignore_errors=True)

    def sweep(self, now_ms: int) -> int:
        """Delete replaced files that need not be kept any more; returns how many."""
        over = [one for one in self.manifest.replaced if one.until_ms <= now_ms]
        if over:
            for one in over:
                (self.folder / FILES / one.path).unlink(missing_ok=True)
            left = [one for one in self.manifest.replaced if one.until_ms > now_ms]
            self._write(msgspec.structs.replace(self.manifest, replaced=left))
        return len(over)

    def repair(self) -> None:
        """Remove what a killed writer left, and link the files that count to where readers look. Raises ConfigError,
        and removes nothing, if the manifest is an older copy: what came since is no leftover.
        """
        known = {file.path for file in self.manifest.files} | {one.path for one in self.manifest.replaced}
        # A file is shown once it counts, and no more before the manifest forgets it.
        for shown in self.folder.glob("topic=*/hour=*/part-*.parquet"):
            if str(shown.relative_to(self.folder)) not in known:
                raise ConfigError(
                    f"{self.folder / STATE / 'manifest.json'} is an older copy: it does not know {shown}, which was"
                    " archived since. Bring the newer one back, or archive into another folder"
                )
        for staging in (self.folder / STATE).glob("staging-*"):
            shutil.rmtree(staging, ignore_errors=True)
        root = self.folder / FILES
        for path in root.rglob("*.parquet"):
            if str(path.relative_to(root)) not in known:
                path.unlink()
        for file in self.manifest.files:
            if not (root / file.path).exists():
                # A copy of the archive may have left the hidden folder out.
                shown = self.folder / file.path
                if not shown.exists():
                    raise RocketSparkError(f"{root / file.path} is gone: restore it from a copy of the archive")
                (root / file.path).parent.mkdir(parents=True, exist_ok=True)
                _link(shown, root / file.path)
        self._tell_spark()
        folders = {str(path.relative_to(self.folder)) for path in self.folder.glob("topic=*/hour=*")}
        self._show(sorted(folders | {file.folder for file in self.manifest.files}))


@contextmanager
def open_archive(folder: Path | str) -> Iterator[Archive]:
    """Open the archive in a folder for writing, and make it if it is not there; meanwhile no other process may write
    it. Raises ConfigError.
    """
    refuse_plain_archive(folder)
    folder = Path(folder).absolute()
    (folder / STATE).mkdir(parents=True, exist_ok=True)
    (folder / SPARK_LOG).parent.mkdir(exist_ok=True)
    (folder / FILES).mkdir(exist_ok=True)
    with alone(folder / STATE / "lock", f"another process writes the archive {folder}: stop it first"):
        archive = Archive(folder)
        archive.repair()
        yield archive


@contextmanager
def alone(path: Path, otherwise: str) -> Iterator[None]:
    """Hold the lock of a file while the block runs. Raises ConfigError with the text `otherwise` if another holds
    it.
    """
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(otherwise) from None
        yield


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file's content so that a reader, also after a power failure, finds all of the old or all of the new."""
    fresh = path.with_name(f".{path.name}.tmp")
    with named(fresh), fresh.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _link(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        # A file system without hard links.
        fresh = target.with_name(f".{target.name}.tmp")
        shutil.copyfile(source, fresh)
        os.replace(fresh, target)


_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def _exchange(one: Path, other: Path) -> bool:
    """Have two folders change places at one moment; False where the system cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    done: int = rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    return done == 0
