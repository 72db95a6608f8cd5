"""What keeps two logs apart: told once, counted each time. Rule: a trouble that stays is one line, however often met.

RocketMQ notices few of these: it tries again every 5 s, or sends signs of life for ever.
"""

from __future__ import annotations

import collections
import logging

from rocketspark.errors import ConfigError, FrameError, ReplicationError
from rocketspark.model.text import shown

log = logging.getLogger("rocketspark.broker.replication")

# Peers whose latest trouble is remembered; a line more about one of the others does no harm.
PEERS_MAX = 256


class Troubles:
    """`counts`: how often, by reason (a word: diverged, ahead, removed, frame, state, stalled, …)."""

    def __init__(self) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self._told: dict[str, str] = {}

    def note(self, peer: str, error: Exception) -> None:
        """Count a trouble with `peer` (a host, or host:port where it has a fixed one); a new one is logged."""
        reason = reason_of(error)
        self.counts[reason] += 1
        if self._told.get(peer) == reason:
            return
        self._told.pop(peer, None)
        if len(self._told) >= PEERS_MAX:
            self._told.pop(next(iter(self._told)))
        self._told[peer] = reason
        log.warning("replication with %s: %s", peer, shown(error))

    def ended(self, peer: str) -> None:
        """Log flows again: the same trouble would be a new one."""
        if self._told.pop(peer, None) is not None:
            log.info("replication with %s goes on", peer)


def reason_of(error: Exception) -> str:
    """Return the word that it is counted under."""
    if isinstance(error, ReplicationError):
        return error.reason
    if isinstance(error, ConfigError):
        return "address"
    return "frame" if isinstance(error, FrameError) else "store"
