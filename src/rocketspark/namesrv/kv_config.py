"""The NameServer's key-value tables by namespace, kept in a file. Rule: every change is on disk before its reply."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from rocketspark.errors import ConfigError

ORDER_TOPICS = "ORDER_TOPIC_CONFIG"


class _Document(msgspec.Struct, rename="camel"):
    config_table: dict[str, dict[str, str]] = {}


class KvConfig:
    """Namespaces of text keys and values. `path` None keeps them in memory only."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._tables: dict[str, dict[str, str]] = {}
        if path is not None and path.exists():
            try:
                self._tables = msgspec.json.decode(path.read_bytes(), type=_Document).config_table
            except (OSError, UnicodeDecodeError, msgspec.DecodeError) as e:
                raise ConfigError(f"{path} cannot be read: {e}; mend or remove it") from e

    def get(self, namespace: str, key: str) -> str | None:
        """The value, or None."""
        return self._tables.get(namespace, {}).get(key)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value."""
        self._tables.setdefault(namespace, {})[key] = value
        self._save()

    def delete(self, namespace: str, key: str) -> None:
        """Remove a value; nothing happens if there is none."""
        if self._tables.get(namespace, {}).pop(key, None) is not None:
            self._save()

    def table(self, namespace: str) -> dict[str, str] | None:
        """All values of a namespace, None if it was never used."""
        return self._tables.get(namespace)

    def _save(self) -> None:
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_suffix(".tmp")
        with open(fresh, "wb") as f:
            f.write(msgspec.json.format(msgspec.json.encode(_Document(self._tables)), indent=1))
            f.flush()
            os.fsync(f.fileno())
        os.replace(fresh, self._path)
