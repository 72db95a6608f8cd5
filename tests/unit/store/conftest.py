"""Golden stores unpacked, small stores, and a disk that fails on demand."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.support.golden_stores import STORES, unpack
from tests.support.memory_disk import tmp_path_factory  # noqa: F401

from rocketspark.model.text import string_hash
from rocketspark.protocol.message import properties as props
from rocketspark.store import Store, StoreSettings
from rocketspark.store.files.system_calls import OsFiles
from rocketspark.store.settings import ManualClock

NOW_MS = 1_700_000_000_000
BORN = bytes.fromhex("7f0000010000c001")
HOST = bytes.fromhex("7f00000100002a9f")


class Golden(NamedTuple):
    root: Path
    manifest: dict[str, Any]
    settings: StoreSettings


@pytest.fixture
def golden(tmp_path: Path) -> Callable[[str], Golden]:
    """Unpacks store, store_unclean or store_ext; its manifest, and the settings it was written with."""

    def unpacked(name: str) -> Golden:
        # The timer wheel is 38 MB of nearly nothing and none of the store's business.
        root = unpack(name, tmp_path, lambda file: not file.endswith("timerwheel"))
        manifest = json.loads((STORES / f"manifest{'_store_ext' * (name == 'store_ext')}.json").read_text())
        return Golden(root, manifest, golden_settings(root))

    return unpacked


def golden_settings(root: Path) -> StoreSettings:
    return StoreSettings(
        root=str(root),
        log_file_bytes=131072,
        queue_file_units=100,
        index_slots=100,
        index_entries=400,
        batch_queue_file_units=100,
        queue_ext_file_bytes=4096,
    )


class FailingFiles(OsFiles):
    """A disk on which the named calls fail with an errno, after `left` more bytes for `reserve`."""

    def __init__(self) -> None:
        super().__init__()
        self.room_bytes: int | None = None
        self.broken_sync = False

    def reserve(self, path: str, at: int, count: int) -> None:
        if self.room_bytes is not None:
            if count > self.room_bytes:
                raise OSError(errno.ENOSPC, "No space left on device", path)
            self.room_bytes -= count
        super().reserve(path, at, count)

    def sync_map(self, mapped: Any, at: int, end: int) -> None:
        if self.broken_sync:
            raise OSError(errno.EIO, "Input/output error")
        super().sync_map(mapped, at, end)

    def sync_file(self, path: str) -> None:
        if self.broken_sync:
            raise OSError(errno.EIO, "Input/output error", path)
        super().sync_file(path)


@pytest.fixture
def files() -> FailingFiles:
    return FailingFiles()


@pytest.fixture
def make_store(tmp_path: Path, files: FailingFiles) -> Any:
    """Opens a store with small files; closed at the end of the test."""
    stores: list[Store] = []

    def make(root: Path | None = None, files: OsFiles = files, **changes: Any) -> Store:
        store = Store(
            small_settings(root or tmp_path / "s", **changes), store_host=HOST, clock=ManualClock(NOW_MS), files=files
        )
        store.open()
        stores.append(store)
        return store

    yield make
    files.broken_sync = False
    for store in stores:
        store.close()


def small_settings(root: Path, **changes: Any) -> StoreSettings:
    sizes = {"log_file_bytes": 16384, "queue_file_units": 50, "index_slots": 64, "index_entries": 200}
    return StoreSettings(root=str(root), **(sizes | changes))


@pytest.fixture(name="send")
def send_fixture() -> Callable[..., tuple[int, int, int]]:
    return send


@pytest.fixture
def small() -> Callable[..., StoreSettings]:
    """The settings of `make_store`, for a root directory."""
    return small_settings


def expire(store: Store, before_ms: int) -> int:
    """Removes up to ten log files whose records were all stored before a time, at once; returns how many went."""
    removed = 0
    for remove in store.expire_steps(before_ms):
        if remove is not None:
            remove()
            removed += 1
    return removed


def send(
    store: Store,
    topic: str,
    queue_id: int,
    body: bytes,
    *,
    tag: str | None = None,
    keys: str | None = None,
    unique_id: str | None = None,
    now_ms: int = NOW_MS,
    **more: Any,
) -> tuple[int, int, int]:
    """One append with the properties that belong to it."""
    pairs = {props.UNIQUE_ID: unique_id, props.KEYS: keys, props.TAGS: tag}
    stored = props.encode({name: value for name, value in pairs.items() if value is not None}).encode()
    return store.append(
        topic.encode(),
        queue_id,
        body,
        stored,
        string_hash(tag) if tag else 0,
        unique_id.encode() if unique_id else None,
        keys.encode() if keys else None,
        tag.encode() if tag else None,
        now_ms,
        more.get("flag", 0),
        more.get("sys_flag", 0),
        now_ms,
        more.get("born_host", BORN),
        more.get("reconsume_times", 0),
        more.get("prepared_position", 0),
    )
