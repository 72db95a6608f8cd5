"""The NameServer's key-value tables by namespace, kept in a file. Rule: every change is on disk before its reply."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rocketspark.errors import ConfigError, ServerError
from rocketspark.model import typed_json
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.text import shown
from rocketspark.protocol.codes import ResponseCode
from rocketspark.store.files.system_calls import OsFiles, make_folder

ORDER_TOPICS = "ORDER_TOPIC_CONFIG"
NAME_CHARACTERS_MAX = 255
VALUE_CHARACTERS_MAX = 64 << 10
# The file is written anew at each change.
CHARACTERS_MAX = 4 << 20


log = LimitedLog("rocketspark.namesrv")


class _Document(msgspec.Struct, rename="camel"):
    config_table: dict[str, dict[str, str]] = {}


class KvConfig:
    """Text values by namespace and key. `path`: the file, None to keep them in memory only."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._tables: dict[str, dict[str, str]] = {}
        self._characters = 0
        if path is not None and path.exists():
            try:
                self._tables = typed_json.decode(path.read_bytes(), _Document).config_table
            except (OSError, UnicodeDecodeError, msgspec.DecodeError, RecursionError) as e:
                raise ConfigError(f"{path} cannot be read: {e}; mend or remove it") from e
            self._characters = sum(len(n) + len(k) + len(v) for n, t in self._tables.items() for k, v in t.items())

    def get(self, namespace: str, key: str) -> str | None:
        """Return the value, or None."""
        return self._tables.get(namespace, {}).get(key)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value. Raises ServerError 29, with nothing changed, for a text too long or too many values."""
        for what, name in (("namespace", namespace), ("key", key)):
            if not name or shown(name, characters_max=NAME_CHARACTERS_MAX) != name:
                text = f"{what} {shown(name, characters_max=60)!r}: 1 to {NAME_CHARACTERS_MAX} characters are needed"
                raise ServerError(ResponseCode.INVALID_PARAMETER, f"{text}, all of them to be seen")
        old = self.get(namespace, key)
        more = len(value) - len(old) if old is not None else len(namespace) + len(key) + len(value)
        if len(value) > VALUE_CHARACTERS_MAX or (more > 0 and self._characters + more > CHARACTERS_MAX):
            raise ServerError(
                ResponseCode.INVALID_PARAMETER,
                f"the value of {shown(key, characters_max=60)!r}: {len(value)} characters, {VALUE_CHARACTERS_MAX} may"
                f" be in one, {CHARACTERS_MAX} in all",
            )
        self._change(namespace, key, value, more)

    def delete(self, namespace: str, key: str) -> None:
        """Remove a value; nothing happens if there is none."""
        old = self.get(namespace, key)
        if old is not None:
            self._change(namespace, key, None, -len(namespace) - len(key) - len(old))

    def _change(self, namespace: str, key: str, value: str | None, more: int) -> None:
        table = dict(self._tables.get(namespace, {}))
        if value is None:
            del table[key]
        else:
            table[key] = value
        tables = self._tables | {namespace: table}
        # First the file: a value that could not be written is not given out either.
        self._save(tables)
        self._tables, self._characters = tables, self._characters + more

    def table(self, namespace: str) -> dict[str, str] | None:
        """Return all values of a namespace, None if it was never used."""
        return self._tables.get(namespace)

    def _save(self, tables: dict[str, dict[str, str]]) -> None:
        if self._path is None:
            return
        fresh = self._path.with_suffix(".tmp")
        try:
            files, folder = OsFiles(), str(self._path.parent)
            make_folder(files, folder)
            files.write_file(str(fresh), msgspec.json.format(msgspec.json.encode(_Document(tables)), indent=1))
            files.replace(str(fresh), str(self._path))
            files.sync_directory(folder)
        except OSError as e:
            why = e.strerror or e
            log.error("%s cannot be written: %s; nothing was changed", self._path, why)
            raise ServerError(
                ResponseCode.SYSTEM_ERROR, f"{self._path} cannot be written: {why}; nothing was changed"
            ) from e
