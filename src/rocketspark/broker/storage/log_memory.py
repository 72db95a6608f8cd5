"""Which part of the log lies in memory. Rule (checkInDisk, 5.x): its end, as large as a given share of the memory."""

from __future__ import annotations

import os

from rocketspark.broker.settings import BrokerSettings
from rocketspark.store.store import Store


class LogMemory:
    """Tells which messages lie so far back in the log that they must be read from the disk."""

    def __init__(self, settings: BrokerSettings, store: Store) -> None:
        self._settings = settings
        self._store = store
        self._memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def is_far_behind(self, topic: str, queue_id: int, offset: int) -> bool:
        """Tell whether the message at an offset must be read from the disk; False if there is no such message."""
        return self._is_before(self._settings.memory_percent, topic, queue_id, offset)

    def is_cold(self, topic: str, queue_id: int, offset: int) -> bool:
        """Tell whether the message at an offset counts as a cold read (rule: checkInColdAreaByCommitOffset, 5.x)."""
        return self._is_before(self._settings.hot_memory_percent, topic, queue_id, offset)

    def _is_before(self, percent: int, topic: str, queue_id: int, offset: int) -> bool:
        store = self._store
        limit = self._memory_bytes * percent // 100
        if store.written_position - store.min_position <= limit:
            return False
        low, high = store.stored_range(topic, queue_id)
        if not low <= offset < high:
            return False
        ((position, _, _),) = store.queue_units(topic, queue_id, offset, 1)
        return store.written_position - position > limit
