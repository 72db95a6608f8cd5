"""Flow control of cold reads: how many bytes each group may read from the disk in an interval, so that a group that
catches up does not take the disk, and the loop, from those that read what just came.

Rules of 5.5.0 (ColdDataCgCtrService): an interval lasts 5 s; a group may read cgColdReadThreshold bytes in it, or what
an operator set for it, all together globalColdReadThreshold; limits that operators set last until the broker stops.
With coldCtrStrategyEnable limits grow while the disk has room. Unlike there a pull that is too many is no error: it
waits for the next interval.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from rocketspark import machine
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.storage.json_tables import now_ms
from rocketspark.errors import ServerError
from rocketspark.model.namespace import is_system_group
from rocketspark.protocol.codes import ResponseCode

INTERVAL_S = 5.0
# A group that read nothing cold for so long is forgotten.
FORGOTTEN_MS = 60_000
LIMITS_MAX = 10_000
# Tools and the broker's own, which are never slowed (rule: isSysConsumerGroupForNoColdReadLimit, 5.x).
_FREE_GROUPS = frozenset({"DEFAULT_CONSUMER", "SCHEDULE_CONSUMER", "__MONITOR_CONSUMER"})
_RAISED, _LOWERED, _LOWERED_AT_ONCE = 1.5, 0.8, 3
# RocketMQ's share of the limit of all that it steers to, and the weights of what it steers by: the newest difference,
# the sum of the last ten, and the change.
_AIM, _NEWEST, _SUM, _CHANGE, _HISTORY = 0.8, 0.5, 0.3, 0.2, 10


class _Read:
    """What a group read from the disk. `size`: bytes in this interval; times: ms since 1970."""

    __slots__ = ("began_ms", "last_ms", "size")

    def __init__(self, now: int) -> None:
        self.size, self.began_ms, self.last_ms = 0, now, now


class ColdReads:
    """Counts the bytes that groups read from the disk, and tells which have read enough for this interval."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._reads: dict[str, _Read] = {}
        self._total = 0
        # Limits that an operator set, and those that grew by themselves.
        self._set: dict[str, int] = {}
        self._grown: dict[str, int] = {}
        self._missing: deque[int] = deque(maxlen=_HISTORY)
        self._began_s = machine.monotonic()

    @property
    def left_s(self) -> float:
        """The seconds until the next interval."""
        return max(self._began_s + INTERVAL_S - machine.monotonic(), 0.001)

    def is_over(self, group: str) -> bool:
        """Tell whether a group may read nothing more from the disk in this interval."""
        read = self._reads.get(group)
        if read is None or not self._settings.cold_flow_control:
            return False
        return read.size >= self._limit(group) or self._total >= self._settings.cold_bytes_max

    def add(self, group: str, size: int) -> None:
        """Count what a group read from the disk."""
        if is_system_group(group) or group in _FREE_GROUPS:
            return
        now = now_ms()
        read = self._reads.get(group)
        if read is None:
            read = self._reads[group] = _Read(now)
        read.size += size
        read.last_ms = now
        self._total += size

    def next_interval(self) -> None:
        """Begin to count anew, and change the limits that grow and shrink by themselves."""
        self._began_s = machine.monotonic()
        now, adapts = now_ms(), self._settings.cold_limits_adapt
        if adapts:
            self._missing.append(int(self._settings.cold_bytes_max * _AIM) - self._total)
        else:
            self._grown.clear()
        for group, read in list(self._reads.items()):
            if not 0 <= now - read.last_ms < FORGOTTEN_MS:
                del self._reads[group]
                self._grown.pop(group, None)
            elif adapts and group not in self._set and read.size >= self._limit(group) and self._may_raise():
                self._grown[group] = int(self._limit(group) * _RAISED)
            read.size = 0
        if adapts and self._must_lower():
            for group in sorted(self._grown, key=lambda g: -self._grown[g])[:_LOWERED_AT_ONCE]:
                self._grown[group] = max(int(self._grown[group] * _LOWERED), self._settings.group_cold_bytes_max)
        self._total = 0

    def set_limits(self, limits: dict[str, int]) -> None:
        """Set how many bytes groups may read in an interval. Raises ServerError 29 if too many groups have a limit."""
        if len(self._set | limits) > LIMITS_MAX:
            raise ServerError(ResponseCode.INVALID_PARAMETER, f"at most {LIMITS_MAX} groups may have a limit")
        self._set |= limits

    def remove_limit(self, group: str) -> None:
        """Remove the limit that was set for a group; one that has none stays as it is."""
        self._set.pop(group, None)

    def report(self) -> dict[str, Any]:
        """Return how things stand, as GET_COLD_DATA_FLOW_CTR_INFO has it (rule: getColdDataFlowCtrInfo, 5.x)."""
        reads = {
            group: {"coldAcc": read.size, "createTimeMills": read.began_ms, "lastColdReadTimeMills": read.last_ms}
            for group, read in self._reads.items()
        }
        return {
            "runtimeTable": reads,
            "configTable": self._set | {f"{group}||adaptive": size for group, size in self._grown.items()},
            "cgColdReadThreshold": self._settings.group_cold_bytes_max,
            "globalColdReadThreshold": self._settings.cold_bytes_max,
            "globalAcc": self._total,
        }

    def _limit(self, group: str) -> int:
        found = self._set.get(group)
        return found if found is not None else self._grown.get(group, self._settings.group_cold_bytes_max)

    def _may_raise(self) -> bool:
        if self._total > self._settings.cold_bytes_max:
            return False
        return self._steering() > 0 if self._settings.cold_limits_pid else True

    def _must_lower(self) -> bool:
        return self._steering() < 0 if self._settings.cold_limits_pid else self._total > self._settings.cold_bytes_max

    def _steering(self) -> float:
        """Return over 0 while less is read than is aimed at, below 0 while it is more, 0 until that is known."""
        missing = self._missing
        if len(missing) < _HISTORY:
            return 0.0
        return _NEWEST * missing[-1] + _SUM * sum(missing) + _CHANGE * (missing[-1] - missing[-2])
