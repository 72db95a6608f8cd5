"""What becomes of sends when a program ends without `close`. Rule: they are sent in a short time, or one line says how
many were not confirmed.
"""

from __future__ import annotations

import atexit
import logging
import weakref
from typing import Protocol

from rocketspark import machine

log = logging.getLogger("rocketspark.client")

# At most so long the end of a program waits.
EXIT_S = 2.0
# Sends of coroutines that were cancelled so shortly before belong to the end: their loop ended with them.
LAST_S = 5.0


class OpenProducer(Protocol):
    """A synchronous producer that was started and is not closed."""

    def _finish_by(self, end_s: float) -> int:
        """Send what futures have still to send; returns how many were not by the monotonic time `end_s`."""


open_producers: weakref.WeakSet[OpenProducer] = weakref.WeakSet()


class CancelledSends:
    """Counts the sends whose coroutines were cancelled shortly one after another, as at the end of a program."""

    def __init__(self) -> None:
        self._count = 0
        self._last_s = -LAST_S

    def add(self) -> None:
        """Count the send of a coroutine that was cancelled."""
        now_s = machine.monotonic()
        self._count = self._count + 1 if now_s - self._last_s < LAST_S else 1
        self._last_s = now_s

    def forget(self) -> None:
        """Set the count to 0, as a producer was closed: the cancellations were not the end of the program."""
        self._count = 0

    def count(self) -> int:
        """Return how many sends were cancelled just now."""
        return self._count if machine.monotonic() - self._last_s < LAST_S else 0


cancelled_sends = CancelledSends()


def _finish_all(wait_s: float) -> int:
    end_s = machine.monotonic() + wait_s
    return sum(producer._finish_by(end_s) for producer in list(open_producers))


@atexit.register
def _finish() -> None:
    cancelled = cancelled_sends.count()
    try:
        left = _finish_all(EXIT_S)
    except KeyboardInterrupt:
        # Ctrl-C ends the wait; Python would print where it was.
        left = _finish_all(0)
    if left:
        log.warning(
            "the program ended without close(): %d message(s) of send_future were not confirmed within %.0f s, and may"
            " not be sent; close producers, or use them in a with block",
            left,
            EXIT_S,
        )
    if cancelled:
        log.warning(
            "the program ended: %d send(s) of coroutines were cancelled, and may not be sent; await them, or use the"
            " producer in an async with block",
            cancelled,
        )
