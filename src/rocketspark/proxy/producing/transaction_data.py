"""Where the half messages of open transactions lie, by topic and transaction id. Times are those of `monotonic_ms`.

Rule: TransactionDataManager, 5.5.0, with two differences: what is known of a half message is forgotten whole when it
ends, so that a second end, or the answer to a check that crossed the first one, ends nothing twice; and the number of
transactions is bounded, the oldest are dropped (`half_messages` finds them again).
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import NamedTuple

# Of how many half messages one transaction id may be: each attempt of a send may have made one.
PER_ID_MAX = 15
IDS_MAX = 100_000
EXPIRY_MS = 30_000
# A check that comes so soon after an end was under way with it; if the end was lost, the broker checks again.
CROSSED_MS = 3000

Key = tuple[str, str]


def monotonic_ms() -> int:
    """Return a time that no change of the clock moves."""
    return time.monotonic_ns() // 1_000_000


class HalfPlace(NamedTuple):
    """Where a half message lies. `half_offset`: in the half queue."""

    broker_name: str
    half_offset: int
    physical_offset: int


class TransactionData:
    """The half messages that may be ended now, and those that were a short time ago."""

    def __init__(self, expiry_ms: int = EXPIRY_MS, per_id_max: int = PER_ID_MAX, ids_max: int = IDS_MAX) -> None:
        self._expiry_ms = expiry_ms
        self._per_id_max = per_id_max
        self._ids_max = ids_max
        # By key, in the order of their last change: places and when they were told of, the newest last.
        self._open: OrderedDict[Key, dict[HalfPlace, int]] = OrderedDict()
        self._ended: OrderedDict[Key, dict[str, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def add(self, topic: str, transaction_id: str, place: HalfPlace, now_ms: int) -> None:
        """Note a half message that was stored, or that a broker asks about."""
        key = (topic, transaction_id)
        places = self._open.get(key)
        if places is None:
            places = self._open[key] = {}
            if len(self._open) > self._ids_max:
                self._open.popitem(last=False)
        else:
            self._open.move_to_end(key)
            places.pop(place, None)
        places[place] = now_ms
        if len(places) > self._per_id_max:
            del places[next(iter(places))]

    def add_checked(self, topic: str, transaction_id: str, place: HalfPlace, now_ms: int) -> bool:
        """Note a half message that a broker asks about; False if it was ended just now: then nobody is to be asked.

        A broker that asks has one copy of a half message that counts, the newest.
        """
        ended = self._ended.get((topic, transaction_id))
        if ended is not None and abs(now_ms - ended.get(place.broker_name, -(1 << 60))) < CROSSED_MS:
            return False
        for older in [p for p in self._open.get((topic, transaction_id), ()) if p.broker_name == place.broker_name]:
            del self._open[topic, transaction_id][older]
        self.add(topic, transaction_id, place, now_ms)
        return True

    def take(self, topic: str, transaction_id: str, now_ms: int) -> HalfPlace | None:
        """Return the newest half message of a transaction, and forget what is known of it at its broker; None if there
        is none, or only some that were told of too long ago.
        """
        key = (topic, transaction_id)
        places = self._open.get(key)
        if places is None:
            return None
        place, told_ms = places.popitem()
        if now_ms - told_ms > self._expiry_ms:
            del self._open[key]
            return None
        for other in [p for p in places if p.broker_name == place.broker_name]:
            del places[other]
        if not places:
            del self._open[key]
        return place

    def note_end(self, topic: str, transaction_id: str, broker_name: str, now_ms: int) -> None:
        """Note that a broker was told of an end."""
        key = (topic, transaction_id)
        self._ended.setdefault(key, {})[broker_name] = now_ms
        self._ended.move_to_end(key)
        if len(self._ended) > self._ids_max:
            self._ended.popitem(last=False)

    def forget_end(self, topic: str, transaction_id: str, broker_name: str) -> None:
        """Take back a `note_end`: the broker could not be told."""
        brokers = self._ended.get((topic, transaction_id))
        if brokers is not None:
            brokers.pop(broker_name, None)
            if not brokers:
                del self._ended[topic, transaction_id]

    def was_ended(self, topic: str, transaction_id: str) -> bool:
        """Tell whether a broker was told of an end, as far as that is remembered."""
        return (topic, transaction_id) in self._ended

    def sweep(self, now_ms: int) -> None:
        """Drop what is too old."""
        while self._open:
            key, places = next(iter(self._open.items()))
            if now_ms - max(places.values(), default=0) <= self._expiry_ms:
                break
            del self._open[key]
        while self._ended:
            key, brokers = next(iter(self._ended.items()))
            if now_ms - max(brokers.values()) <= 2 * self._expiry_ms:
                break
            del self._ended[key]
