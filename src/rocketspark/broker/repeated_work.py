"""Work that a broker repeats on its loop, at intervals.

Rules: an error ends one run of one piece of work, and nothing else. An interval is looked up while it passes, so that a
shorter setting takes effect at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from rocketspark.broker.storage.json_tables import SaveFailures
from rocketspark.errors import RocketSparkError

log = logging.getLogger("rocketspark.broker")

# So long at most is waited until an interval is asked for again.
LOOK_S = 1.0


async def pause(interval_ms: Callable[[], float], wanted: asyncio.Event | None = None) -> None:
    """Wait until `interval_ms()`, looked up again and again, has passed, or until the event is set, and clear it."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while (left_s := began_s + interval_ms() / 1000 - loop.time()) > 0 and not (wanted is not None and wanted.is_set()):
        if wanted is None:
            await asyncio.sleep(min(left_s, LOOK_S))
            continue
        # Not wait_for: before Python 3.12 it may swallow a cancellation.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(left_s, LOOK_S)):
                await wanted.wait()
    if wanted is not None:
        wanted.clear()


class RepeatedWork:
    """Calls functions at intervals, each under a name. `saves`: logs the errors of files that cannot be written."""

    def __init__(self, saves: SaveFailures) -> None:
        self._saves = saves
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._stopped = False

    def every(self, name: str, interval_s: float | Callable[[], float], act: Callable[[], object]) -> None:
        """Call `act` after `interval_s` seconds, and again as long after each call; a function returns the interval."""
        loop = asyncio.get_running_loop()

        def run() -> None:
            try:
                act()
            except RocketSparkError as e:
                if not self._saves.told(e):
                    log.error("%s: %s", name, e)
            except Exception:
                # After any error the call is made again at its next time.
                log.exception("%s", name)
            if not self._stopped:
                arm(loop.time())

        def arm(began_s: float) -> None:
            left_s = began_s + (interval_s if isinstance(interval_s, float) else interval_s()) - loop.time()
            if left_s <= LOOK_S:
                self._timers[name] = loop.call_later(left_s, run)
            else:
                self._timers[name] = loop.call_later(LOOK_S, arm, began_s)

        arm(loop.time())

    def stop(self) -> None:
        """Cancel all further calls."""
        self._stopped = True
        for timer in self._timers.values():
            timer.cancel()
