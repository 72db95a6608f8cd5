"""The deleted topics, each with the log's end at its deletion. Rule: no replay of the log brings older records back.

RocketMQ has no such file and passes it over: there a rebuild of the queues brings deleted topics back.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from rocketspark.store.files import config_files
from rocketspark.store.files.system_calls import OsFiles

_log = logging.getLogger("rocketspark.store")
VERSION = 1


def topics_of(table: dict[str, Any]) -> dict[str, Any]:
    """Return the table of topics in the JSON of the file. Files from before there were versions hold nothing but that
    table.
    """
    topics = table.get("topics")
    return topics if isinstance(topics, dict) else table


class DeletedTopics:
    """The file config/deletedTopics.json. `positions`: by topic, the physical offset before which its records are in no
    queue.
    """

    def __init__(self, root: str, files: OsFiles) -> None:
        self._path = f"{root}/config/deletedTopics.json"
        self._files = files
        self.positions: dict[bytes, int] = {}

    def read(self, log_end: int) -> None:
        """Read the file. Entries beyond the log's end belong to another log and are dropped.

        Raises StoreFull, StoreUnwritable, and ConfigError for a file that a newer program wrote.
        """
        config_files.check_version(self._path, VERSION, beside="topics")
        try:
            table = config_files.unsealed(config_files.read(self._path) or "{}")
            found = {topic.encode(): int(at) for topic, at in topics_of(table).items()}
        except (ValueError, TypeError, AttributeError):
            # Not worth refusing to start: at worst a rebuild brings a deleted topic back.
            _log.warning("%s is damaged: messages of deleted topics may come back once queues are lost", self._path)
            found = {}
        self.positions = {topic: at for topic, at in found.items() if at <= log_end}
        if self.positions != found:
            self._write()

    def add(self, topic: str, position: int, min_position: int) -> None:
        """Note that a topic was deleted when the log ended at `position`; forget deletions that lie before
        `min_position`.

        Raises StoreFull, StoreUnwritable.
        """
        self.add_all({topic: position}, min_position)

    def add_all(self, topics: Mapping[str, int], min_position: int) -> None:
        """Note deletions, each with its position, as `add` does."""
        # In place: who replays the log holds the table.
        for name in [name for name, at in self.positions.items() if at <= min_position]:
            del self.positions[name]
        self.positions.update((topic.encode(), at) for topic, at in topics.items())
        self._write()

    def cut(self, log_end: int) -> None:
        """Move deletions that lie beyond `log_end` to it, as the log was cut there. Raises StoreFull,
        StoreUnwritable.
        """
        if any(at > log_end for at in self.positions.values()):
            for topic, at in self.positions.items():
                self.positions[topic] = min(at, log_end)
            self._write()

    def _write(self) -> None:
        table = {name.decode("utf-8", "replace"): at for name, at in sorted(self.positions.items())}
        config_files.write(self._path, config_files.sealed({"version": VERSION, "topics": table}), self._files)
