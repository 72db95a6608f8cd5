"""A broker's folder in a second tier, read beside the broker or without one. Rule: nothing is written.

Each queue is a store of its own there: units, and a log of its records, which state their places in it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from rocketspark.store.consumequeue.consume_queue import GAP_SIZE
from rocketspark.store.readonly.file_places import LOCAL_DISK, Place
from rocketspark.store.readonly.log_scan import LogScan
from rocketspark.store.readonly.queue_units import NO_TAIL, QueueFiles, QueueUnitFiles
from rocketspark.store.readonly.read_only_store import DamagedRange, QueueKey
from rocketspark.store.tiered.layout import INDEX_TOPIC, SegmentKind

_LOG, _UNITS = SegmentKind.COMMIT_LOG.name, SegmentKind.CONSUME_QUEUE.name


class ReadOnlyTier:
    """A broker's folder in a tier. `root`: `tieredStoreFilePath/hash_cluster/broker`; `place`: where that is. Close it
    when done.
    """

    def __init__(self, root: str, place: Place = LOCAL_DISK) -> None:
        self.root, self._place = root, place
        self.log_directories = (root,)
        self.damages: list[DamagedRange] = []
        self._logs: dict[str, LogScan] = {}

    def topics(self) -> set[str]:
        """Return the topics that have queues. Raises StoreError."""
        return set(_topics(self.root, self._place))

    def load(self, wanted: Callable[[str], bool]) -> dict[QueueKey, QueueFiles]:
        """Return every queue of the wanted topics. Raises StoreError."""
        self.close()
        found = {}
        for topic in filter(wanted, _folders(self.root, self._place)):
            for queue_id in _queues(f"{self.root}/{topic}", self._place):
                found[topic, queue_id] = self._queue(topic, queue_id)
        return found

    def _queue(self, topic: str, queue_id: int) -> QueueFiles:
        folder = f"{self.root}/{topic}/{queue_id}/{_UNITS}"
        log = LogScan((f"{self.root}/{topic}/{queue_id}/{_LOG}",), self._place)
        units = QueueUnitFiles(folder, False, self._place)
        # No log tells where a missing unit leads: who reads it is told.
        first, end, _ = units.bounds(log.end(), log.min_position, over_holes=True)
        while end > first and not _is_whole(units, end - 1, log.end()):
            end -= 1
        units.close()
        log.close()
        return QueueFiles(topic, queue_id, folder, False, first, end, end, NO_TAIL, self._place, is_tiered=True)

    def directories_of(self, queue: QueueFiles) -> tuple[str, ...]:
        """Return the directories of the log in the tier that holds the records of a queue."""
        return (f"{self.root}/{queue.topic}/{queue.queue_id}/{_LOG}",)

    def log_of(self, queue: QueueFiles) -> LogScan:
        """Return the log in the tier that holds the records of a queue."""
        (directory,) = self.directories_of(queue)
        return self._logs.setdefault(directory, LogScan((directory,), self._place))

    def close(self) -> None:
        """Give the descriptors back."""
        for log in self._logs.values():
            log.close()
        self._logs.clear()


def is_tier(root: str) -> bool:
    """Tell whether a folder is a broker's in a tier, and no store."""
    return not os.path.isdir(f"{root}/commitlog") and bool(_topics(root, LOCAL_DISK))


def _topics(root: str, place: Place) -> list[str]:
    return [topic for topic in _folders(root, place) if next(_queues(f"{root}/{topic}", place), None) is not None]


def _folders(root: str, place: Place) -> list[str]:
    return [topic for topic in place.folders(root) if topic != INDEX_TOPIC]


def _queues(folder: str, place: Place) -> Iterator[int]:
    for queue_id in place.folders(folder):
        if queue_id.isascii() and queue_id.isdigit() and _UNITS in place.folders(f"{folder}/{queue_id}"):
            yield int(queue_id)


def _is_whole(units: QueueUnitFiles, index: int, log_end: int) -> bool:
    """Tell whether the log has all of the record that a unit leads to."""
    (unit,) = units.units(index, 1)
    return bool(unit["size"] == GAP_SIZE or int(unit["position"]) + int(unit["size"]) <= log_end)
