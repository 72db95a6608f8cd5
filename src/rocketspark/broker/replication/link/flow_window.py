"""Bytes by the second: what a link carries, and how much more it may."""

from __future__ import annotations


class FlowWindow:
    """Bytes sent, counted by the second. `rate`: those of the last whole one."""

    def __init__(self, now_s: float) -> None:
        self._began_s = now_s
        self._bytes = 0
        self._last_bytes = 0

    def add(self, count: int, now_s: float) -> None:
        """Count what was sent."""
        self._turn(now_s)
        self._bytes += count

    def room(self, limit: int, now_s: float) -> int:
        """How many bytes may be sent in this second."""
        self._turn(now_s)
        return max(0, limit - self._bytes)

    def rate(self, now_s: float) -> int:
        """Bytes in the last whole second."""
        self._turn(now_s)
        return self._last_bytes

    @property
    def end_s(self) -> float:
        """When the next second begins."""
        return self._began_s + 1.0

    def _turn(self, now_s: float) -> None:
        passed = int(now_s - self._began_s)
        if passed >= 1:
            self._last_bytes = self._bytes if passed == 1 else 0
            self._bytes = 0
            self._began_s += passed
