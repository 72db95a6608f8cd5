"""What a broker does again and again on its loop. Rule: an error costs one time of one work, never the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from rocketspark.broker.storage.save_failures import SaveFailures
from rocketspark.errors import RocketSparkError

log = logging.getLogger("rocketspark.broker")


class RepeatedWork:
    """Work by name. `saves`: tells the errors of tables that could not be written."""

    def __init__(self, saves: SaveFailures) -> None:
        self._saves = saves
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._stopped = False

    def every(self, name: str, interval_s: float | Callable[[], float], act: Callable[[], object]) -> None:
        """Call `act` in so many seconds, and again so many after each call; a function is asked for them each time."""

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
                arm()

        def arm() -> None:
            seconds = interval_s if isinstance(interval_s, float) else interval_s()
            self._timers[name] = asyncio.get_running_loop().call_later(seconds, run)

        arm()

    def stop(self) -> None:
        """Call nothing any more."""
        self._stopped = True
        for timer in self._timers.values():
            timer.cancel()
