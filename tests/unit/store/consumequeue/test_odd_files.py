"""Files in a queue's folder that should not be there: they cost that queue, not the store."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.conftest import NOW_MS, expire

from rocketspark.errors import ConfigError, StoreUnwritable
from rocketspark.store import Store


def filled(make_store: Any, send: Any) -> Path:
    store = make_store()
    for n in range(120):
        send(store, "t", 0, b"%d" % n)
    for n in range(450):
        send(store, "busy", 0, bytes(12_000), now_ms=NOW_MS + 1000 + n)
    store.close()
    return Path(store.settings.root, "consumequeue/t/0")


def too_long(folder: Path) -> None:
    os.truncate(folder / f"{1000:020d}", 1020)


def stray(folder: Path) -> None:
    (folder / f"{7:020d}").write_bytes(b"x")


def dangling(folder: Path) -> None:
    (folder / f"{1000:020d}").unlink()
    (folder / f"{1000:020d}").symlink_to("/nowhere")


@pytest.mark.shows("mended: an odd file of one queue stops the removal of all old files; its error gives bad advice")
@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (too_long, ConfigError, "has 1020 bytes, not 1000 as the others: mend it"),
        (stray, ConfigError, "00000000000000000007 does not belong to files of 1000 bytes each: move it away"),
        (dangling, StoreUnwritable, "cannot read "),
    ],
)
def test_old_files_are_removed_all_the_same(
    make_store: Any, send: Any, caplog: Any, change: Callable[[Path], None], error: type[Exception], text: str
) -> None:
    change(filled(make_store, send))
    store = make_store()
    with caplog.at_level(logging.ERROR):
        assert expire(store, NOW_MS + 1050) > 2
        assert expire(store, NOW_MS + 1100) > 2
    assert [r.message.split(":")[0] for r in caplog.records] == [
        "queue 0 of topic t is left out when old files are removed"
    ]
    assert store.queue_range("busy", 0)[0] > 2
    with pytest.raises(error, match=text):
        store.queue_range("t", 0)


def deleted(store: Store) -> bool:
    return not Path(store.settings.root, "consumequeue/t").is_symlink() and "t" not in store.queues()


@pytest.mark.shows("mended: a topic folder that is a link: its deletion fails, then every start")
def test_a_topic_behind_a_link_is_deleted(make_store: Any, send: Any, tmp_path: Path) -> None:
    folder = filled(make_store, send).parent
    shutil.move(folder, tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    store = make_store()
    assert store.queue_range("t", 0) == (0, 120)
    store.delete_topic("t")
    assert deleted(store)
    assert (tmp_path / "elsewhere").exists()
    store.close()
    assert deleted(make_store())


@pytest.mark.shows("mended: a topic folder that is a link: its deletion fails, then every start")
def test_a_deletion_that_cannot_be_finished_does_not_refuse_the_start(
    make_store: Any, send: Any, files: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    filled(make_store, send)
    store = make_store()
    replace = files.replace

    def fail(path: str, target: str = "/removed/") -> None:
        if "/removed/" not in target:
            return replace(path, target)
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(files, "replace", fail)
    monkeypatch.setattr(files, "remove_tree", fail)
    with pytest.raises(StoreUnwritable):
        store.delete_topic("t")
    store.close()
    again = make_store()
    assert "topic t was deleted, but its queues are still there" in caplog.text
    assert again.queue_range("busy", 0) == (0, 450)
