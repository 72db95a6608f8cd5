"""The readers whose next pull names a wrong offset: their topic was deleted and made anew, or their offset was set by
hand. Rule: a consumer is told where to go on until it pulls there, as an answer may be lost."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableSet
from types import MappingProxyType

import msgspec

from rocketspark.broker.storage.json_tables import JsonFile
from rocketspark.broker.storage.table_saving import UnsavedChanges, all_but_last, pieces
from rocketspark.protocol.json.bodies import ReadersTable
from rocketspark.protocol.light_queues import topic_and_group

FILE_NAME = "readersAnew.json"
# Readers that are remembered, each queue of a group as one; beyond, the oldest are forgotten.
READERS_MAX = 100_000

# Group, topic, queue id.
Reader = tuple[str, str, int]
# Client ids by group.
Members = Mapping[str, Collection[str]]
NO_MEMBERS: Members = MappingProxyType({})


class ReadersAnew:
    """The readers (group, topic, queue) of one broker that are sent to another offset at their next pull.

    `file`: None keeps them in memory alone; `changes`: how often they changed; `readers`: those of deleted topics,
    which begin at 0 if the topic is made anew; `resets`: the offset of each reader whose offset was set by hand.
    """

    def __init__(self, file: JsonFile[ReadersTable] | None = None) -> None:
        found = (file.load() if file is not None else None) or ReadersTable()
        # Of broadcasting groups with the ids of the members that did not pull there yet: each has an offset of its own.
        # These are in memory alone; with None the first member that asks is told.
        self.readers: dict[Reader, set[str] | None] = dict.fromkeys(_readers(found.readers))
        self.resets: dict[Reader, int] = {
            (group, topic, queue_id): found.resets[f"{topic}@{group}"][queue_id]
            for group, topic, queue_id in _readers(found.resets)
        }
        # Those that were told, and did not pull there yet.
        self._told: set[Reader] = set()
        self.changes = self._noted = 0
        self.unsaved = UnsavedChanges(
            FILE_NAME,
            lambda: range(len(self.readers) + len(self.resets)),
            self._snapshot,
            lambda text: None if file is None else file.write(text),
        )

    def __bool__(self) -> bool:
        return bool(self.readers or self.resets)

    def add(self, readers: Iterable[Reader], broadcasting: Members = NO_MEMBERS) -> None:
        """Remember readers of a deleted topic, READERS_MAX at most. `broadcasting`: client ids by group."""
        added = [reader for reader in readers if reader not in self.readers]
        self.readers |= {r: set(broadcasting[r[0]]) if r[0] in broadcasting else None for r in added}
        for oldest in list(self.readers)[: max(len(self.readers) - READERS_MAX, 0)]:
            del self.readers[oldest]
        self.changes += bool(added)

    def take(self, reader: Reader) -> bool:
        """Forget a reader, because it asks where to begin or was sent there; return False if it is not known here."""
        self._told.discard(reader)
        if reader not in self.readers:
            return False
        del self.readers[reader]
        self.changes += 1
        return True

    def set(self, reader: Reader, offset: int) -> None:
        """Note that a reader's offset was set by hand."""
        self.resets[reader] = offset
        self.changes += 1

    def take_reset(self, reader: Reader) -> int | None:
        """Forget that an offset was set by hand, and return it; None if none was. It is saved soon."""
        offset = self.resets.pop(reader, None)
        if offset is not None:
            self._told.discard(reader)
            self.changes += 1
            self.save()
        return offset

    def sent_to(self, reader: Reader, at: int, *, follows: bool, member: Callable[[], str] = str) -> int | None:
        """Return the offset at which a reader that pulls at `at` must go on; None if it may go on at `at`.

        `follows`: it is a consumer that reads on, which is told until it pulls there. Others are told once of offsets
        set by hand, and never of a topic made anew. `member`: returns the client id.
        """
        # What an operator said since is for all, also where some member never came.
        if reader not in self.resets and (members := self.readers.get(reader)) is not None:
            return self._member_sent_to(reader, members, at, member()) if follows else None
        is_anew = reader in self.readers
        wanted = self.resets.get(reader, 0 if is_anew else None)
        if wanted is None or (is_anew and not follows and reader not in self.resets and reader not in self._told):
            return None
        if at == wanted or not follows:
            self.take(reader)
            self.take_reset(reader)
            return None if at == wanted else wanted
        self._told.add(reader)
        return wanted

    def _member_sent_to(self, reader: Reader, members: MutableSet[str], at: int, member: str) -> int | None:
        if member not in members:
            return None
        if at:
            return 0
        members.discard(member)
        if not members:
            self.take(reader)
        return None

    def forget(self, *, group: str | None = None, topic: str | None = None) -> None:
        """Forget the readers of a group, or of a topic."""
        for reader in [r for r in (*self.readers, *self.resets) if r[0] == group or r[1] == topic]:
            self.take(reader)
            self.take_reset(reader)

    def table(self) -> dict[str, list[int]]:
        """Return the queue ids of all readers, by "topic@group"."""
        return _queues_of(self.readers)

    def replace(self, table: Mapping[str, Iterable[int]]) -> None:
        """Replace the readers of deleted topics by those of a master's table."""
        readers: dict[Reader, set[str] | None] = dict.fromkeys(itertools.islice(_readers(table), READERS_MAX))
        if readers.keys() != self.readers.keys():
            self.readers = readers
            self.changes += 1

    def replace_resets(self, resets: Mapping[Reader, int]) -> None:
        """Replace the offsets that were set by hand by those that a master knows."""
        if resets != self.resets:
            self.resets = dict(resets)
            self.changes += 1

    def _snapshot(self) -> Iterator[bytes]:
        return _readers_json(self.readers.copy(), self.resets.copy())

    def save(self) -> None:
        """Write the file if readers changed since it was written."""
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
        topic, group = topic_and_group(key)
        for queue_id in queue_ids:
            yield group, topic, queue_id


def _queues_of(readers: Iterable[Reader]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for group, topic, queue_id in readers:
        found.setdefault(f"{topic}@{group}", []).append(queue_id)
    return found


def _readers_json(readers: Iterable[Reader], resets: Mapping[Reader, int]) -> Iterator[bytes]:
    """Yield readersAnew.json in pieces, all made where they are read: 65,536 offsets at once take 30 ms."""
    offsets: dict[str, dict[int, int]] = {}
    for (group, topic, queue_id), offset in resets.items():
        offsets.setdefault(f"{topic}@{group}", {})[queue_id] = offset
    # Each of the two has the other one's field empty: the second takes the place of the first one's end.
    first, second = (
        pieces(ReadersTable(), "readers", _queues_of(readers)),
        pieces(ReadersTable(), "resets", offsets, lambda rows: msgspec.json.encode(dict(rows))[1:-1]),
    )
    yield from all_but_last(first)
    yield next(second).partition(b'"readers":{')[2]
    yield from second
