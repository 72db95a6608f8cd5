"""The interface of what makes a controller's decisions durable, a file or a group of controllers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from rocketspark.controller.group.entries import State
from rocketspark.controller.replica_sets import Sets
from rocketspark.controller.replicas_info import Decision


class Decisions(Protocol):
    """Makes decisions durable, in a file or in a group of controllers. `leads`: this controller may decide."""

    @property
    def leads(self) -> bool:
        """True while this controller may decide."""

    @property
    def sets(self) -> Sets:
        """The sets of replicas as they are now, only to be read."""

    async def carry_out(self, decide: Callable[[State], Decision]) -> Decision:
        """Call `decide` with the present state, make the events of its decision durable, and return the decision."""


class Leadership(NamedTuple):
    """Which controller leads: its name and address, both "" if none is known; `is_own`: it is this controller.

    `peers`: all controllers, as "n0:host:port;n1:host:port".
    """

    node: str
    address: str
    is_own: bool
    peers: str
