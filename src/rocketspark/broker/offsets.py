"""Consumer offsets: what each group consumes next, per queue. Kept in memory, written every few seconds and at the end.

Rule: an offset is the next to consume; a message may be delivered again after a kill, never skipped.
"""

from __future__ import annotations

from rocketspark.broker.config import JsonFile, next_version
from rocketspark.protocol import bodies, java_json
from rocketspark.protocol.bodies import DataVersion, OffsetTable


def encode_offsets(table: OffsetTable) -> bytes:
    """consumerOffset.json: queue ids as bare number keys."""
    rows = b",".join(
        bodies.encode(key) + b":" + java_json.encode_number_keys(offsets) for key, offsets in table.offset_table.items()
    )
    return b'{"dataVersion":%b,"offsetTable":{%b}}' % (bodies.encode(table.data_version), rows)


class ConsumerOffsets:
    """The offsets of all groups on one broker."""

    def __init__(self, file: JsonFile[OffsetTable]) -> None:
        self._file = file
        table = file.load() or OffsetTable()
        self.version: DataVersion = table.data_version
        self._table: dict[str, dict[int, int]] = dict(table.offset_table)
        self._dirty = False
        # Offsets set by an operator, until the consumer's next pull is told of them.
        self._resets: dict[tuple[str, str, int], int] = {}
        self._pulled: dict[tuple[str, str, int], int] = {}

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the next offset to consume."""
        key = f"{topic}@{group}"
        queues = self._table.get(key)
        if queues is None:
            queues = self._table[key] = {}
        if queues.get(queue_id) != offset:
            queues[queue_id] = offset
            self._dirty = True

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """The next offset to consume, None if the group never committed one."""
        return self._table.get(f"{topic}@{group}", {}).get(queue_id)

    def of(self, group: str, topic: str) -> dict[int, int]:
        """All committed offsets of a group in a topic."""
        return dict(self._table.get(f"{topic}@{group}", {}))

    def topics_of(self, group: str) -> list[str]:
        """The topics a group has offsets in."""
        return [t for t, _, g in (key.rpartition("@") for key in self._table) if g == group]

    def groups_of(self, topic: str) -> list[str]:
        """The groups that have offsets in a topic."""
        return [g for t, _, g in (key.rpartition("@") for key in self._table) if t == topic]

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set an offset by hand: the consumer's own commits count for nothing until its next pull heard of it."""
        self.commit(group, topic, queue_id, offset)
        self._resets[(group, topic, queue_id)] = offset

    def is_reset(self, group: str, topic: str, queue_id: int) -> bool:
        """True until the consumer heard of an offset set by hand."""
        return bool(self._resets) and (group, topic, queue_id) in self._resets

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The offset set by hand, told once; None if there is none."""
        return self._resets.pop((group, topic, queue_id), None) if self._resets else None

    def note_pull(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """A consumer was given the messages before `offset`."""
        self._pulled[(group, topic, queue_id)] = offset

    def pulled(self, group: str, topic: str, queue_id: int) -> int:
        """How far the group pulled since the broker started; 0 if it did not."""
        return self._pulled.get((group, topic, queue_id), 0)

    def delete_group(self, group: str) -> None:
        """Forget all offsets of a group."""
        for key in [k for k in self._table if k.rpartition("@")[2] == group]:
            del self._table[key]
            self._dirty = True

    def document(self) -> bytes:
        """consumerOffset.json as text."""
        return encode_offsets(OffsetTable(offset_table=self._table, data_version=self.version))

    def delete_topic(self, topic: str) -> None:
        """Forget all offsets in a topic."""
        for key in [k for k in self._table if k.rpartition("@")[0] == topic]:
            del self._table[key]
            self._dirty = True

    def save(self) -> None:
        """Write consumerOffset.json if an offset changed since."""
        if not self._dirty:
            return
        self.version = next_version(self.version)
        self._dirty = False
        try:
            self._file.save(OffsetTable(offset_table=self._table, data_version=self.version))
        except Exception:
            self._dirty = True
            raise
