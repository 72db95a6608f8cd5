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
# Bytes of properties times characters of the expression: up to so many an evaluation ends within some 10 ms.
COST_MAX = 4_000_000
# Up to so many characters an expression is compiled within some 10 ms.
COMPILED_HERE_MAX = 1024
clock = time.perf_counter


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

    def begin(self) -> None:
        """Begin a turn of the loop; at least one record is looked at in it."""
        self.cut = self._worked = False
        self._until = clock() + TURN_S

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
