"""Who read a queue of a topic that was deleted: its next pull may still name an offset of then.

Rule: such a reader is told once where the new queue begins, also after a start or by the slave that is master then; a
kill makes that twice at most, never not at all.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping

from rocketspark.broker.storage.json_tables import JsonFile
from rocketspark.broker.storage.table_saving import UnsavedChanges, pieces
from rocketspark.protocol.json.bodies import ReadersTable

FILE_NAME = "readersAnew.json"
# Readers that are remembered, each queue of a group as one; beyond, the oldest are forgotten.
READERS_MAX = 100_000

# Group, topic, queue id.
Reader = tuple[str, str, int]


class ReadersAnew:
    """These readers, on one broker. `file`: None keeps them in memory alone; `changes`: how often they changed.

    `readers`: for those who only look.
    """

    def __init__(self, file: JsonFile[ReadersTable] | None = None) -> None:
        found = file.load() if file is not None else None
        self.readers: dict[Reader, None] = {} if found is None else dict.fromkeys(_readers(found.readers))
        self.changes = self._noted = 0
        self.unsaved = UnsavedChanges(
            FILE_NAME,
            lambda: self.readers,
            self._snapshot,
            lambda text: None if file is None else file.write(text),
        )

    def add(self, readers: Iterable[Reader]) -> None:
        """Remember readers."""
        added = [reader for reader in readers if reader not in self.readers]
        self.readers |= dict.fromkeys(added)
        for oldest in list(self.readers)[: max(len(self.readers) - READERS_MAX, 0)]:
            del self.readers[oldest]
        self.changes += bool(added)

    def take(self, reader: Reader) -> bool:
        """Forget a reader, as it is told or asks; False if it is none of these."""
        if reader not in self.readers:
            return False
        del self.readers[reader]
        self.changes += 1
        return True

    def forget(self, *, group: str | None = None, topic: str | None = None) -> None:
        """Forget those of a group or a topic."""
        for reader in [r for r in self.readers if r[0] == group or r[1] == topic]:
            self.take(reader)

    def table(self) -> dict[str, list[int]]:
        """Return the queue ids by "topic@group"."""
        found: dict[str, list[int]] = {}
        for group, topic, queue_id in self.readers:
            found.setdefault(f"{topic}@{group}", []).append(queue_id)
        return found

    def replace(self, table: Mapping[str, Iterable[int]]) -> None:
        """Make them a master's."""
        readers = dict.fromkeys(itertools.islice(_readers(table), READERS_MAX))
        if readers.keys() != self.readers.keys():
            self.readers = readers
            self.changes += 1

    def _snapshot(self) -> Iterator[bytes]:
        return pieces(ReadersTable(), "readers", self.table())

    def save(self) -> None:
        """Write the file if they changed since."""
        if self.changes != self._noted:
            self._noted = self.changes
            self.unsaved.changed()

    def finish(self) -> None:
        """Write what is not on disk. Raises StoreError."""
        if self.changes != self._noted:
            self._noted = self.changes
            self.unsaved.note()
        self.unsaved.flush()


def _readers(table: Mapping[str, Iterable[int]]) -> Iterator[Reader]:
    for key, queue_ids in table.items():
        topic, _, group = key.rpartition("@")
        for queue_id in queue_ids:
            yield group, topic, queue_id
