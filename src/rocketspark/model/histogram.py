"""Histograms: counts by upper bounds. Rule: plain ints, made into metrics at a scrape."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy.typing as npt


class Histogram:
    """Counts of values by upper bound. A value counts for the lowest bound that is not below it; the last count is of
    values above all bounds.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[int, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total: float = 0

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add_all(self, values: npt.NDArray[Any]) -> None:
        """Count many values."""
        import numpy as np

        rows = np.bincount(np.searchsorted(self.bounds, values), minlength=len(self.counts))
        self.counts = [a + int(b) for a, b in zip(self.counts, rows, strict=True)]
        self.total += int(values.sum(dtype=np.int64))

    def without(self, *others: Histogram | None) -> Histogram:
        """Return this histogram minus the counts of the others."""
        left = Histogram(self.bounds)
        left.counts, left.total = list(self.counts), self.total
        for other in others:
            if other is not None:
                left.counts = [max(0, a - b) for a, b in zip(left.counts, other.counts, strict=True)]
                left.total -= other.total
        return left

    def at_least(self, before: Histogram | None) -> Histogram:
        """Return this histogram, with no count below that of an earlier one: what is told only rises."""
        if before is not None:
            self.counts = list(map(max, self.counts, before.counts))
            self.total = max(self.total, before.total)
        return self

    @property
    def count(self) -> int:
        """The number of values counted."""
        return sum(self.counts)

    def buckets(self) -> list[tuple[str, float]]:
        """Return (bound, number of values up to it) pairs, as Prometheus shows them."""
        found, below = [], 0
        for bound, here in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            below += here
            found.append((bound if isinstance(bound, str) else f"{bound}.0", float(below)))
        return found
