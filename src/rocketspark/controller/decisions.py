"""What the parts of a controller ask of what makes decisions durable, be that a file or a group of controllers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from rocketspark.controller.group.entries import State
from rocketspark.controller.replica_sets import Sets
from rocketspark.controller.replicas_info import Decision


class Decisions(Protocol):
    """Where decisions become durable: in a file, or in a group. `leads`: this controller may decide."""

    @property
    def leads(self) -> bool:
        """True while this controller decides."""

    @property
    def sets(self) -> Sets:
        """The sets, for those who only read."""

    async def carry_out(self, decide: Callable[[State], Decision]) -> Decision:
        """Decide on the state as it is, make durable what follows, and return the decision."""


class Leadership(NamedTuple):
    """Who leads: name and address, "" if nobody is known to; `peers`: "n0:host:port;" of each controller."""

    node: str
    address: str
    is_own: bool
    peers: str
