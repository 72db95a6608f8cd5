"""The JSON tables of the config directory, and the count of files there that cannot be written.

Rule: the previous version is kept as .bak before a new one replaces it. A failure to write is logged once when it
begins and once when it is over.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from rocketspark import machine
from rocketspark.errors import ConfigError, ProtocolError, StoreError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.json import java_json
from rocketspark.protocol.json.bodies import DataVersion, encode
from rocketspark.store.files import config_files

log = LimitedLog("rocketspark.broker")


class SaveFailures:
    """Which files of one broker could not be written, by name. Any thread may report."""

    def __init__(self) -> None:
        # Failures since the start by file; and the error of each file that still fails.
        self.failures: dict[str, int] = {}
        self.failing: dict[str, str] = {}
        self._last: BaseException | None = None

    def failed(self, name: str, error: BaseException) -> None:
        """Report that a file could not be written; the error says where and why."""
        self.failures[name] = self.failures.get(name, 0) + 1
        if name not in self.failing:
            log.error("%s is not saved: %s; it is tried again until it works", name, error)
        self.failing[name] = str(error)
        self._last = error

    def worked(self, name: str) -> None:
        """Report that a file was written."""
        if self.failing and self.failing.pop(name, None) is not None:
            log.warning("%s is saved again", name)

    def told(self, error: BaseException) -> bool:
        """Tell whether this error is the one that was reported here last."""
        return error is self._last


T = TypeVar("T")
_log = logging.getLogger("rocketspark.broker")


def now_ms() -> int:
    """Return the wall clock in ms."""
    return int(machine.time() * 1000)


def steady_ms() -> int:
    """Return ms of a clock that is never set: how long ago something was does not depend on the wall clock."""
    return int(machine.monotonic() * 1000)


def first_version() -> DataVersion:
    """Return the version of a new table, which differs from that of an earlier table in the same place."""
    return DataVersion(timestamp=now_ms())


def next_version(version: DataVersion, changes: int = 1) -> DataVersion:
    """Return the version of a table after some changes: whoever compares versions sees that the table changed."""
    return DataVersion(state_version=version.state_version, timestamp=now_ms(), counter=version.counter + changes)


def sorted_json(value: Any) -> bytes:
    """Return a table as JSON, keys sorted."""
    return encode(value)


class ConfigFolder:
    """The config folder of a store: its tables, each by the name of its file."""

    def __init__(self, store_root: str, saves: SaveFailures) -> None:
        self._path = Path(store_root) / "config"
        self._saves = saves

    def path(self, name: str) -> Path:
        """Return the path of a file in the folder that is no table."""
        return self._path / name

    def file(self, name: str, kind: type[T], encode: Callable[[T], bytes] = sorted_json) -> JsonFile[T]:
        """Return the table in a file of the folder. `kind`: its type; `encode`: makes its JSON."""
        return JsonFile(self._path / name, kind, encode, self._saves)


class JsonFile(Generic[T]):
    """One table in one file. `encode`: makes its JSON, in RocketMQ's form; `saves`: told of each write."""

    def __init__(
        self, path: Path, kind: type[T], encode: Callable[[T], bytes] = sorted_json, saves: SaveFailures | None = None
    ) -> None:
        self._path = path
        self._saves = saves or SaveFailures()
        self._kind = kind
        self._encode = encode
        # Not while the file is broken: its .bak is all there is.
        self._keep_before = True
        # Of what was read there, or written, last: what has another one is no version before.
        self._crc: int | None = None

    def load(self) -> T | None:
        """Return the table, from the file or else its .bak; None if neither exists.

        Raises ConfigError if both are broken or empty: no kill leaves an empty file, and a broker that went on as a new
        one would lose what the table held.
        """
        error: ProtocolError | None = None
        is_there = False
        for read in (config_files.read_whole, config_files.read_backup):
            text = read(str(self._path))
            is_there |= text is not None
            if not text or not text.strip():
                continue
            try:
                table = java_json.decode(text.encode(), self._kind)
            except ProtocolError as e:
                error = e
                continue
            self._keep_before = error is None
            self._crc = zlib.crc32(text.encode())
            if read is config_files.read_backup:
                _log.warning(
                    "%s %s: the version before it is used, see whether its last change is to be made again",
                    self._path,
                    f"cannot be read ({error})" if error is not None else "is missing or empty",
                )
            return table
        if error is not None:
            raise ConfigError(f"{self._path} and its .bak cannot be read: {error}; mend or remove them") from error
        if is_there:
            raise ConfigError(
                f"{self._path} is empty and there is no .bak of it: put it back from a backup, or remove it to begin"
                " without what it held"
            )
        return None

    def check_version(self, known: int) -> None:
        """Raise ConfigError if the file is of another version of its layout."""
        config_files.check_version(str(self._path), known)

    def save(self, value: T) -> None:
        """Replace the file by the table."""
        self.write(self._encode(value))

    def write(self, text: bytes) -> None:
        """Replace the file by the table's JSON. Raises StoreFull or StoreUnwritable."""
        try:
            config_files.write(str(self._path), text.decode(), keep_before=self._keep_before, crc_before=self._crc)
        except StoreError as e:
            self._saves.failed(self._path.name, e)
            raise
        self._keep_before, self._crc = True, zlib.crc32(text)
        self._saves.worked(self._path.name)
