"""How much a part of the benchmark does: `full`, `quick` to see that all is well, `tiny` for the tests."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Plan(NamedTuple):
    """What was asked for. `runs` None: as many as the part sees fit; `alone`: without the Java servers."""

    size: str = "full"
    runs: int | None = None
    alone: bool = False

    @property
    def config(self) -> dict[str, str]:
        """What our brokers' broker.conf says: nothing, but for a tiny run, whose machine may be as slow as it likes."""
        return {"brokerFastFailureEnable": "false", "syncFlushTimeout": "60000"} if self.size == "tiny" else {}

    def of(self, full: T, quick: T, tiny: T) -> T:
        """The value for this size."""
        return {"full": full, "quick": quick, "tiny": tiny}[self.size]

    def rounds(self, full: int = 3) -> int:
        """How many paired rounds there are."""
        return self.runs or self.of(full, 1, 1)
