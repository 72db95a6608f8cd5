"""Which files of an archive count: a kill at any moment leaves one state, for readers and for the next run."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from urllib.request import url2pathname

import pytest

from rocketspark.errors import ConfigError, RocketSparkError
from rocketspark.spark.pipelines.parts import archive_manifest
from rocketspark.spark.pipelines.parts.archive_manifest import (
    FILES,
    SPARK_LOG,
    STATE,
    Archive,
    ArchivedRange,
    ArchiveFile,
    WrittenFile,
    due,
    hour_name,
    hour_start_ms,
    open_archive,
    partition_folder,
    read_manifest,
)

pytestmark = pytest.mark.shows("`archive`, each message once, closed hours compacted; a kill at every moment")

HOUR = "2026-11-21T06"
KILLED = 9


def written(archive: Archive, *names: str, hour: str = HOUR, topic: str = "t") -> list[WrittenFile]:
    """Files as tasks leave them, one row each; the content is the name."""
    staging = archive.folder / STATE / "staging-test"
    staging.mkdir(exist_ok=True)
    made = []
    for number, name in enumerate(names):
        (staging / name).write_text(name)
        segments = [ArchivedRange("b", 0, number, number + 1, 1)]
        made.append(WrittenFile(str(staging / name), topic, hour, 1, len(name), segments))
    return made


def shown(folder: Path) -> list[str]:
    """What a reader finds that lists folders, as pandas does."""
    return sorted(p.read_text() for p in folder.glob("topic=*/hour=*/[!._]*"))


def told_spark(folder: Path) -> list[str]:
    """What Spark reads."""
    return sorted(path.read_text() for path in paths_told(folder))


def paths_told(folder: Path) -> list[Path]:
    lines = (folder / SPARK_LOG).read_text().splitlines()
    assert lines[0] == "v1"
    return [Path(url2pathname(urlparse(json.loads(line)["path"]).path)) for line in lines[1:]]


def counted(folder: Path) -> list[str]:
    return sorted((folder / FILES / file.path).read_text() for file in read_manifest(folder).files)


def make(folder: Path) -> None:
    """An archive of two files in an hour and one in another."""
    with open_archive(folder) as archive:
        archive.commit(written(archive, "a", "b"), offsets={"t": {"b": {"0": 2}}})
        archive.commit(written(archive, "other", hour="2026-11-21T07"), offsets={"t": {"b": {"0": 3}}})


def add(archive: Archive) -> None:
    archive.commit(written(archive, "c"), offsets={"t": {"b": {"0": 4}}})


def merge(archive: Archive) -> None:
    gone = [file for file in archive.manifest.files if file.hour == HOUR]
    archive.commit(written(archive, "ab"), replaces=gone, keep_ms=0)


def sweep(archive: Archive) -> None:
    assert archive.sweep(1 << 60) == 2


def killed_at(number: int, folder: Path, act: Callable[[Archive], None]) -> bool:
    """Do `act` in a process that is gone at the number-th change of a file; False if it came to its end."""
    child = os.fork()
    if child == 0:
        left = [number]

        def counting(change: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                left[0] -= 1
                if left[0] < 0:
                    os._exit(KILLED)
                return change(*args, **kwargs)

            return call

        try:
            with open_archive(folder) as archive:
                for owner, names in ((os, "replace link unlink rmdir"), (shutil, "rmtree")):
                    for name in names.split():
                        setattr(owner, name, counting(getattr(owner, name)))
                act(archive)
            os._exit(0)
        except BaseException:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, KILLED)
    return status == KILLED


@pytest.mark.parametrize(
    ("act", "before", "after"),
    [
        (add, ["a", "b", "other"], ["a", "b", "c", "other"]),
        (merge, ["a", "b", "other"], ["ab", "other"]),
        (sweep, ["ab", "other"], ["ab", "other"]),
    ],
)
def test_a_kill_at_any_change_leaves_the_old_or_the_new_state(
    act: Callable[[Archive], None], before: list[str], after: list[str], tmp_path: Path
) -> None:
    number = 0
    states = set()
    while True:
        folder = tmp_path / str(number)
        make(folder)
        if act is sweep:
            with open_archive(folder) as archive:
                merge(archive)
        killed = killed_at(number, folder, act)
        assert counted(folder) in (before, after)
        assert told_spark(folder) in (before, after)
        assert shown(folder) in (before, after)
        with open_archive(folder) as archive:
            now = counted(folder)
            assert shown(folder) == told_spark(folder) == now
            files = {str(p.relative_to(folder / FILES)) for p in (folder / FILES).rglob("*.parquet")}
            kept = {one.path for one in archive.manifest.replaced}
            assert {file.path for file in archive.manifest.files} <= files
            assert files <= {file.path for file in archive.manifest.files} | kept
            assert not list((folder / STATE).glob("staging-*"))
        states.add(tuple(now))
        if not killed:
            break
        number += 1
    assert number >= 3
    assert states == {tuple(before), tuple(after)}
    assert now == after


def test_replaced_files_stay_for_those_who_read_them(tmp_path: Path) -> None:
    make(tmp_path)
    old = told_spark(tmp_path)
    paths = paths_told(tmp_path)
    with open_archive(tmp_path) as archive:
        gone = [file for file in archive.manifest.files if file.hour == HOUR]
        archive.commit(written(archive, "ab"), replaces=gone, keep_ms=3_600_000)
        assert archive.sweep(archive.manifest.files[-1].time_ms + 3_599_999) == 0
        assert sorted(path.read_text() for path in paths) == old
        assert told_spark(tmp_path) == shown(tmp_path) == ["ab", "other"]
        assert archive.sweep(archive.manifest.files[-1].time_ms + 3_600_000) == 2
    assert sorted(p.name for p in (tmp_path / FILES).rglob("*.parquet")) == [
        "part-00000002-0000.parquet",
        "part-00000003-0000.parquet",
    ]


def test_an_archive_may_be_moved_or_copied_without_its_hidden_files(tmp_path: Path) -> None:
    make(tmp_path / "old")
    (tmp_path / "old").rename(tmp_path / "new")
    with open_archive(tmp_path / "new"):
        assert told_spark(tmp_path / "new") == ["a", "b", "other"]
    shutil.rmtree(tmp_path / "new" / FILES)
    with open_archive(tmp_path / "new"):
        assert told_spark(tmp_path / "new") == shown(tmp_path / "new") == ["a", "b", "other"]
    shutil.rmtree(tmp_path / "new" / FILES)
    shutil.rmtree(tmp_path / "new" / "topic=t")
    with pytest.raises(RocketSparkError, match="is gone: restore it"), open_archive(tmp_path / "new"):
        pass


@pytest.mark.shows(
    "mended: `archive` into a folder whose manifest was lost, or that holds copied `topic=…` folders, deleted "
    "the files there"
)
@pytest.mark.parametrize("copied", ["the folders of topics alone", "all but the manifest"])
def test_files_that_no_manifest_tells_of_are_left_alone(tmp_path: Path, copied: str) -> None:
    """An archive whose manifest was lost, or a copy of its folders: nothing of it is taken for leftovers."""
    with open_archive(tmp_path / "a") as archive:
        archive.commit(written(archive, "one", "two"), offsets={})
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    (tmp_path / "copy" / STATE / "manifest.json").unlink()
    if copied == "the folders of topics alone":
        shutil.rmtree(tmp_path / "copy" / STATE)
        shutil.rmtree(tmp_path / "copy" / FILES)
    before = sorted(path for path in (tmp_path / "copy").rglob("*.parquet"))
    assert before
    with (
        pytest.raises(ConfigError, match="is there, and no "),
        open_archive(tmp_path / "copy"),
    ):
        pass
    assert sorted(path for path in (tmp_path / "copy").rglob("*.parquet")) == before
    assert shown(tmp_path / "copy") == ["one", "two"]


@pytest.mark.shows("mended: `archive` with an older copy of its manifest deleted the files that were archived since")
@pytest.mark.parametrize("act", [add, merge])
def test_files_that_are_newer_than_the_manifest_are_left_alone(act: Callable[[Archive], None], tmp_path: Path) -> None:
    make(tmp_path)
    manifest = tmp_path / STATE / "manifest.json"
    older = manifest.read_bytes()
    with open_archive(tmp_path) as archive:
        act(archive)
    newer, files = manifest.read_bytes(), sorted(tmp_path.rglob("*.parquet"))
    manifest.write_bytes(older)
    with pytest.raises(ConfigError, match="is an older copy: it does not know "):
        open_archive(tmp_path).__enter__()
    assert sorted(tmp_path.rglob("*.parquet")) == files
    manifest.write_bytes(newer)
    with open_archive(tmp_path):
        assert shown(tmp_path) == told_spark(tmp_path) == counted(tmp_path)


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    with (
        open_archive(tmp_path),
        pytest.raises(ConfigError, match="another process writes the archive"),
        open_archive(tmp_path),
    ):
        pass


def test_what_is_no_archive_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no archive"):
        read_manifest(tmp_path)
    with (
        pytest.raises(ConfigError, match="needs hard links and renames of a file system"),
        open_archive("s3://bucket/archive"),
    ):
        pass
    make(tmp_path)
    (tmp_path / STATE / "manifest.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_manifest(tmp_path)
    (tmp_path / STATE / "manifest.json").write_text('{"version": 2}')
    with pytest.raises(ConfigError, match="has version 2, known is 1"):
        read_manifest(tmp_path)


def test_hours_are_utc() -> None:
    assert hour_name(0) == "1970-01-01T00"
    assert hour_name(1_795_240_799_999) == hour_name(1_795_237_200_000) == "2026-11-21T05"
    assert hour_start_ms("2026-11-21T05") == 1_795_237_200_000


@pytest.mark.parametrize(
    ("topic", "folder"),
    [("orders", "topic=orders"), ("%RETRY%g", "topic=%25RETRY%25g"), ("a|b-c_1", "topic=a|b-c_1")],
)
def test_folders_are_named_as_spark_names_them(topic: str, folder: str) -> None:
    assert partition_folder(topic, HOUR) == f"{folder}/hour={HOUR}"


@pytest.mark.shows("`spark.read.parquet(ARCHIVE)` with topics named as numbers")
@pytest.mark.parametrize(
    ("topic", "folder"),
    [
        ("007", "%30%307"),
        ("1e3", "%31e3"),
        ("-5", "%2D5"),
        ("2026-01-01", "%320%326-01-01"),
        ("NaN", "%4Ea%4E"),
        ("__HIVE_DEFAULT_PARTITION__", "%5F%5FHIVE%5FDEFAULT%5FPARTITION%5F%5F"),
        ("7up", "7up"),
    ],
)
def test_a_topic_that_looks_like_a_number_is_text_to_spark(
    tmp_path: Path, topic: str, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def folders(name: str) -> set[str]:
        with open_archive(tmp_path / name) as archive:
            archive.commit(written(archive, "a", topic=topic))
            return {file.folder for file in archive.manifest.files}

    assert folders("new") == {f"topic={folder}/hour={HOUR}"}
    # One that an older version began goes on with the names that it has.
    with monkeypatch.context() as older:
        older.setattr(archive_manifest, "_GUESSED", re.compile("(?!)"))
        folders("old")
    assert folders("old") == {f"topic={topic}/hour={HOUR}"}


def test_closed_hours_that_would_fit_into_fewer_files_are_due() -> None:
    def file(name: str, size: int, hour: str = HOUR) -> ArchiveFile:
        return ArchiveFile("t", hour, name, 1, size, 0, [])

    small = [file("a", 10), file("b", 20)]
    end_ms = hour_start_ms(HOUR) + 3_600_000
    assert due(small, end_ms + 4999, 5000, 100) == []
    assert due(small, end_ms + 5000, 5000, 100) == [small]
    assert due(small[:1], end_ms + 5000, 5000, 100) == []
    # Two files that fill two have nothing to gain, and large ones are left alone.
    assert due([file("a", 90), file("b", 90)], end_ms + 5000, 5000, 100) == []
    assert due([*small, file("large", 100)], end_ms + 5000, 5000, 100) == [small]
    assert due([small[0], file("b", 1, "2026-11-21T07")], end_ms + 9_000_000, 5000, 100) == []


@pytest.mark.shows("mended: `archive` and `restore` do not say which file a full disk has no room for")
def test_the_file_that_a_full_disk_does_not_take_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "manifest.json"
    archive_manifest.replace_file(path, b"old")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match=r"No space left on device.*manifest\.json"):
            archive_manifest.replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    archive_manifest.replace_file(path, b"new")
    assert path.read_bytes() == b"new"
