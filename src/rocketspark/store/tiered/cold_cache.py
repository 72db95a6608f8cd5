"""Stretches of the tier in memory, and reads from them. Rule: bounded in bytes; the oldest used goes first.

Reads have the results of `MessageReader.read`, so that no reader notices where its messages come from.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from rocketspark.errors import StoreUnwritable
from rocketspark.protocol.message import record_layout, sysflags
from rocketspark.store.get_message import NOTHING_SO_FAR, Accepts, GetMessageResult, GetStatus, SoFar
from rocketspark.store.tiered.layout import first_offset
from rocketspark.store.tiered.queue_tier import ColdUnits, end_offset
from rocketspark.store.tiered.tier import Queue, Tier

STRETCH_COUNT = 4096
STRETCH_BYTES = 4 << 20
_SCAN_COUNT_MIN = 800


class ColdCache:
    """Keeps stretches of a tier's queues. `bytes_max`: of all together, but for the one read last."""

    def __init__(self, tier: Tier, bytes_max: int) -> None:
        self.tier = tier
        self._bytes_max = bytes_max
        self._kept: OrderedDict[tuple[Queue, int], ColdUnits] = OrderedDict()
        self._lock = threading.Lock()
        # Reads that found their messages here, and all.
        self.size = self.hits = self.asked = 0

    def load(self, queue: Queue, offset: int) -> None:
        """Bring the messages from an offset on into memory. For a thread. Raises StoreUnwritable."""
        if self._find(queue, offset) is not None:
            return
        found = self.tier.find(*queue)
        if found is None:
            raise StoreUnwritable("the second tier has no such queue any more")
        stretch = found.stretch(offset, STRETCH_COUNT, STRETCH_BYTES)
        with self._lock:
            if self.tier.find(*queue) is not found:
                return  # It was dropped meanwhile: these are messages of an earlier topic.
            before = self._kept.pop((queue, stretch.first), None)
            self.size += len(stretch.content) - (len(before.content) if before is not None else 0)
            self._kept[queue, stretch.first] = stretch
            while self.size > self._bytes_max and len(self._kept) > 1:
                self.size -= len(self._kept.popitem(last=False)[1].content)

    def _find(self, queue: Queue, offset: int) -> ColdUnits | None:
        with self._lock:
            # Readers go forward: the stretch used last first.
            for key in reversed(self._kept):
                stretch = self._kept[key]
                if key[0] == queue and stretch.first <= offset < stretch.next:
                    self._kept.move_to_end(key)
                    return stretch
        return None

    def is_damaged(self, queue: Queue, offset: int) -> bool:
        """Tell whether a message was found damaged in the tier."""
        stretch = self._find(queue, offset)
        return stretch is not None and offset in stretch.damaged

    @property
    def count(self) -> int:
        """How many messages it keeps."""
        with self._lock:
            return sum(len(stretch.units) for stretch in self._kept.values())

    def forget(self, queue: Queue) -> None:
        """Forget what was kept of a queue."""
        with self._lock:
            for key in [k for k in self._kept if k[0] == queue]:
                self.size -= len(self._kept.pop(key).content)

    def next_stretch(self, queue: Queue, offset: int) -> int | None:
        """Return the offset that a reader at `offset` will need next, beyond what is kept; None while it is far."""
        stretch = self._find(queue, offset)
        if stretch is None or offset - stretch.first < len(stretch.units) // 2:
            return None
        following = stretch.next
        return following if self.tier.has(*queue, following) and self._find(queue, following) is None else None

    def read(
        self,
        queue: Queue,
        offset: int,
        count_max: int,
        bytes_max: int,
        codes: frozenset[int] | None,
        accepts: Accepts | None,
        so_far: SoFar = NOTHING_SO_FAR,
        high: int = 0,
    ) -> GetMessageResult | None:
        """Do what `MessageReader.read` does, with messages that are kept; None if those at `offset` are not: `load`
        them.

        `high`: the next offset of the queue, which the result tells.
        """
        self.asked += 1
        stretch, tiered = self._find(queue, offset), self.tier.find(*queue)
        if stretch is None or tiered is None:
            return None
        self.hits += 1
        low = tiered.low
        if stretch.record(offset) is None:
            while offset < stretch.next and stretch.record(offset) is None:
                offset += 1
            return GetMessageResult(GetStatus.REMOVED, [], 0, 0, offset, low, high)
        count, total = so_far.messages, so_far.size
        units_max = count_max
        if codes is not None or accepts is not None:
            units_max = max(_SCAN_COUNT_MIN, count_max) - so_far.looked_at
        records: list[memoryview] = []
        end = min(stretch.next, offset + units_max)
        while offset < end:
            found = stretch.record(offset)
            if found is None:
                break
            code, behind = stretch.units[offset - stretch.first][2], end_offset(found)
            several = record_layout.sys_flag_of(found) & sysflags.INNER_BATCH
            if codes is None or code in codes or (several and not code):
                messages = behind - first_offset(found)
                if count and (total + len(found) > bytes_max or count + messages > count_max):
                    break
                passes = accepts is None or accepts(found)
                if passes is None:
                    break
                if passes:
                    records.append(found)
                    count += messages
                    total += len(found)
            offset = behind
        count, total = count - so_far.messages, total - so_far.size
        status = GetStatus.FOUND if records else GetStatus.NO_MATCHED
        return GetMessageResult(status, records, count, total, offset, low, high)
