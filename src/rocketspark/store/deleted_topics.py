"""The deleted topics, each with the log's end at its deletion. Rule: no replay of the log brings older records back,
and a deletion that a kill broke off is ended by the next start.

RocketMQ has no such file and passes it over: there a rebuild of the queues brings deleted topics back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from rocketspark.errors import StoreError
from rocketspark.protocol import lite_topics
from rocketspark.store.files import config_files
from rocketspark.store.files.system_calls import OsFiles

_log = logging.getLogger("rocketspark.store")
VERSION = 1


def topics_of(table: dict[str, Any]) -> dict[str, Any]:
    """Return the table of topics that config/deletedTopics.json holds. A file without a version, as earlier ones are,
    is that table itself.
    """
    topics = table.get("topics")
    return topics if isinstance(topics, dict) else table


class DeletedTopics:
    """The file config/deletedTopics.json. `positions`: by topic, the physical offset before which its records are in no
    queue; `under_way`: the same of topics whose deletion has begun and not ended.
    """

    def __init__(self, root: str, files: OsFiles) -> None:
        self._path = f"{root}/config/deletedTopics.json"
        self._files = files
        self.positions: dict[bytes, int] = {}
        self.under_way: dict[str, int] = {}

    def read(self, log_end: int) -> None:
        """Read the file. Entries beyond the log's end belong to another log and are dropped.

        Raises StoreFull, StoreUnwritable, and ConfigError for a file that a newer program wrote.
        """
        config_files.check_version(self._path, VERSION, beside="topics")
        try:
            table = config_files.unsealed(config_files.read(self._path) or "{}")
            found = {topic.encode(): int(at) for topic, at in topics_of(table).items()}
            is_newer = "version" in table
            begun = {topic: int(at) for topic, at in table.get("underWay", {}).items()} if is_newer else {}
        except (ValueError, TypeError, AttributeError):
            # Not worth refusing to start: at worst a rebuild brings a deleted topic back.
            _log.warning("%s is damaged: messages of deleted topics may come back once queues are lost", self._path)
            found, begun = {}, {}
        self.under_way = {topic: at for topic, at in begun.items() if at <= log_end}
        self.positions = {topic: at for topic, at in found.items() if at <= log_end}
        if self.positions != found:
            self._write()

    def begin(self, topics: Iterable[str], position: int) -> None:
        """Note that topics are about to be deleted. `position`: the log's end. Raises StoreFull, StoreUnwritable, with
        nothing noted.
        """
        before = self.under_way
        self.under_way = before | dict.fromkeys(topics, position)
        try:
            self._write()
        except StoreError:
            self.under_way = before
            raise

    def end(self, topics: Iterable[str]) -> None:
        """Let deletions count as ended once the file is written again: what is left of such a topic is none of it."""
        for topic in topics:
            self.under_way.pop(topic, None)

    def left(self, has_settings: Callable[[str], bool], ends_before: Callable[[str, int], bool]) -> dict[str, int]:
        """Return the topics and lite topics that a deletion which was broken off has left, each with the physical
        offset before which its messages lie.

        `ends_before`: tells whether all messages of a topic do. A topic that still has settings is none of them, nor
        are its lite topics if its own queues were not reached; nor is what got messages since.
        """
        found: dict[str, int] = {}
        for name, position in self.under_way.items():
            topic = lite_topics.parent_of(name)
            is_gone = not has_settings(topic) or (topic != name and self.positions.get(topic.encode(), 0) >= position)
            if is_gone and ends_before(name, position):
                found[name] = position
        return found

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
        self.under_way = {name: at for name, at in self.under_way.items() if at > min_position}
        self.positions.update((topic.encode(), at) for topic, at in topics.items())
        self._write()

    def add_light(self, names: Collection[str], position: int, min_position: int) -> None:
        """Note the deletion of light queues, as `add_all` does; nothing is written for those of a topic's deletion, as
        that one is noted.
        """
        positions = dict.fromkeys(names, position)
        if positions.keys() <= self.under_way.keys():
            self.positions.update((name.encode(), position) for name in names)
        else:
            self.add_all(positions, min_position)

    def cut(self, log_end: int) -> None:
        """Move deletions that lie beyond `log_end` to it, as the log was cut there. Raises StoreFull,
        StoreUnwritable.
        """
        if any(at > log_end for table in (self.positions, self.under_way) for at in table.values()):
            for topic, at in self.positions.items():
                self.positions[topic] = min(at, log_end)
            self.under_way = {topic: min(at, log_end) for topic, at in self.under_way.items()}
            self._write()

    def _write(self) -> None:
        topics = {name.decode("utf-8", "replace"): at for name, at in sorted(self.positions.items())}
        table: dict[str, object] = {"version": VERSION, "topics": topics}
        if self.under_way:
            table["underWay"] = dict(self.under_way)
        config_files.write(self._path, config_files.sealed(table), self._files)
