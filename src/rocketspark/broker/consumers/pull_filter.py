"""SQL filters over stored records. Rule: a filter never blocks the other requests.

A pull's filter works for some ms in a turn of the loop; what may take longer in one piece (a long text, a costly
record) is done in a thread, one after the other.
"""

from __future__ import annotations

import asyncio
import time

from rocketspark.broker.background_thread import BackgroundThread
from rocketspark.filters import sql92
from rocketspark.protocol.message import record_layout

# The time that one pull's filter may work in one turn of the loop.
TURN_S = 0.005
# That of all pulls that come in one turn: a crowd of them is looked at over many turns.
ALL_TURN_S = 0.02
# Bytes of properties times characters of the expression: up to so many an evaluation ends within some 10 ms.
COST_MAX = 4_000_000
# Up to so many characters an expression is compiled within some 10 ms.
COMPILED_HERE_MAX = 1024
clock = time.perf_counter


class FilterTurn:
    """The time that the filters of all new pulls may take in one turn of the loop."""

    def __init__(self) -> None:
        self._until = 0.0
        self._began = False

    def is_over(self) -> bool:
        """Tell whether nothing more is to be looked at in this turn; the first that asks in a turn begins it."""
        if not self._began:
            self._began = True
            self._until = clock() + ALL_TURN_S
            asyncio.get_running_loop().call_soon(self._end)
            return False
        return clock() >= self._until

    def _end(self) -> None:
        self._began = False


class PullFilter:
    """The filter of one pull, for `MessageReader.read`: None ends the read, which goes on in a later turn of the loop.

    `cut`: it has returned None since `begin`; `awaited`: the work to be done before the read goes on.
    """

    def __init__(self, compiled: sql92.Filter, beside: BackgroundThread) -> None:
        self._accepts = compiled.accepts_record
        self._characters = len(compiled.expression)
        self._beside = beside
        self._until = 0.0
        self._worked = False
        self._asked = b""
        self.awaited: asyncio.Future[bool] | None = None
        self.cut = False

    def begin(self, *, in_own_turn: bool = True) -> None:
        """Begin a turn of the loop; at least one record is looked at in it, unless others used it up."""
        self.cut, self._worked = False, not in_own_turn
        self._until = clock() + TURN_S if in_own_turn else 0.0

    def __call__(self, stored: memoryview) -> bool | None:
        """Tell whether a record passes; None to end the read here."""
        if self._worked and clock() >= self._until:
            self.cut = True
            return None
        self._worked = True
        properties = record_layout.properties_of(stored)
        if len(properties) * self._characters <= COST_MAX:
            return self._accepts(properties)
        if self.awaited is None or properties != self._asked:
            self._asked = properties
            self.awaited = self._beside.run(lambda: self._accepts(properties))
        if not self.awaited.done():
            self.cut = True
            return None
        passes, self.awaited = self.awaited.result(), None
        return passes
