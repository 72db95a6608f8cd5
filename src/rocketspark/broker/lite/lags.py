"""How far groups are behind in the lite topics of a topic together, as metrics tell it.

Rule (LiteConsumerLagCalculator, 5.5.0): lite topics of which a group has no offset do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple

from rocketspark.broker.parts import Tables
from rocketspark.broker.settings import BrokerSettings
from rocketspark.broker.statistics.looks import Looks
from rocketspark.protocol import lite_topics
from rocketspark.protocol.light_queues import QUEUE_ID, topic_and_group
from rocketspark.store.store import Store

# Offsets that are looked at in one turn, and those whose messages are read: some ms.
ROWS_IN_TURN, READS_IN_TURN = 1024, 256


class LiteLag(NamedTuple):
    """Messages that a group has not consumed, and when the oldest of them was stored, in ms; -1: unknown, or none."""

    messages: int
    oldest_ms: int


class LiteLags:
    """The lags of all groups. `run`: makes one step of some work in each turn of the loop, the first at once."""

    def __init__(
        self, settings: BrokerSettings, store: Store, tables: Tables, run: Callable[[Iterator[None]], None]
    ) -> None:
        self._settings = settings
        self._store = store
        self._offsets = tables.offsets
        self.run = run
        looks: Looks[dict[tuple[str, str], LiteLag]] = Looks(self._look, run, {})
        # By group and parent topic; where there are many offsets, those of an earlier look.
        self.rows = looks.found

    def _look(self) -> Generator[None, None, dict[tuple[str, str], LiteLag]]:
        found: dict[tuple[str, str], LiteLag] = {}
        weight = 0
        table = self._offsets.table
        # Not as pairs: many new objects have the garbage collection look through all.
        for key in list(table):
            queue, group = topic_and_group(key)
            lite, offset = lite_topics.of_queue(queue), table.get(key, {}).get(QUEUE_ID)
            weight += 1
            if lite is not None and offset is not None:
                lag, oldest_ms = max(0, self._store.queue_range(queue, QUEUE_ID)[1] - offset), -1
                if lag and self._settings.lite_lag_time_metrics:
                    oldest_ms = self._store.store_time_at(queue, QUEUE_ID, offset)
                    weight += ROWS_IN_TURN // READS_IN_TURN
                known = found.get((group, lite.parent), LiteLag(0, -1))
                oldest = [ms for ms in (known.oldest_ms, oldest_ms) if ms >= 0]
                found[group, lite.parent] = LiteLag(known.messages + lag, min(oldest, default=-1))
            if weight >= ROWS_IN_TURN:
                weight = 0
                yield
        return found
