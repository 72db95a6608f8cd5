"""Troubles between a master and a slave, by peer: each is counted every time and logged once, for as long as it lasts.

RocketMQ notices few of these: it tries again every 5 s, or sends signs of life for ever.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Callable
from typing import NamedTuple

from rocketspark import machine
from rocketspark.errors import ConfigError, FrameError, ReplicationError
from rocketspark.model.text import shown

log = logging.getLogger("rocketspark.broker.replication")

# Peers whose latest trouble is remembered; a line more about one of the others does no harm.
PEERS_MAX = 256
# The same trouble with the same peer is not told again sooner, though there was none between.
QUIET_S = 60.0
_TEXT_MAX = 600


class _Told(NamedTuple):
    reason: str
    at_s: float
    over: bool


class Troubles:
    """Counts and logs the troubles of replication. `counts`: how often, by reason (diverged, ahead, stalled, …)."""

    def __init__(self, now: Callable[[], float] = lambda: machine.monotonic()) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self._now = now
        self._told: dict[str, _Told] = {}

    def note(self, peer: str, error: Exception) -> None:
        """Count a trouble with `peer` (a host, or host:port where it has a fixed one); a new one is logged."""
        reason, now_s = reason_of(error), self._now()
        self.counts[reason] += 1
        before = self._told.pop(peer, None)
        if before is not None and before.reason == reason and (not before.over or now_s - before.at_s < QUIET_S):
            self._told[peer] = before._replace(over=False)
            return
        if len(self._told) >= PEERS_MAX:
            self._told.pop(next(iter(self._told)))
        self._told[peer] = _Told(reason, now_s, over=False)
        log.warning("replication with %s: %s", peer, shown(error, characters_max=_TEXT_MAX))

    def ended(self, peer: str) -> None:
        """Note that the log arrives again: the same trouble is logged anew if it returns after QUIET_S."""
        before = self._told.get(peer)
        if before is not None and not before.over:
            self._told[peer] = before._replace(over=True)


def reason_of(error: Exception) -> str:
    """Return the word under which a trouble is counted."""
    if isinstance(error, ReplicationError):
        return error.reason
    if isinstance(error, ConfigError):
        return "address"
    return "frame" if isinstance(error, FrameError) else "store"
