"""Which brokers live, by their heartbeats and connections. Pure: times are handed in.

Rule: a broker lives until all connections that brought its heartbeats have ended, or it was silent for its time.
RocketMQ counts the connection of the first heartbeat alone, however many others follow.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

from rocketspark import machine
from rocketspark.controller.elections import LogEnd
from rocketspark.model.text import INT_MAX, LONG_MAX
from rocketspark.protocol.headers.controller import ReplicaHeartbeatHeader

TIMEOUT_MS = 10_000
BROKERS_MAX = 20_000
# The most that a clock goes on between two ticks.
ADVANCE_MS_MAX = 1500


class Clock:
    """A clock in ms that stands still while this process does: brokers were not silent if nobody listened to them."""

    def __init__(self, read_s: Callable[[], float] = lambda: machine.monotonic()) -> None:
        self._read_s = read_s
        self._ticked_s = read_s()
        self._then_ms = 0

    def now_ms(self) -> int:
        """Return the time in ms."""
        return self._then_ms + min(int((self._read_s() - self._ticked_s) * 1000), ADVANCE_MS_MAX)

    def tick(self) -> int:
        """Let the time go on, and return it; must be called at least every half second."""
        self._then_ms = self.now_ms()
        self._ticked_s = self._read_s()
        return self._then_ms


class Broker(NamedTuple):
    """What identifies one broker: cluster, broker name and id."""

    cluster: str
    broker_name: str
    broker_id: int


class _Life:
    __slots__ = ("asker", "connections", "end", "heard_ms", "timeout_ms")

    def __init__(self) -> None:
        self.connections: set[Hashable] = set()
        self.end = LogEnd()
        # Of a broker of ours: which process it is.
        self.asker: int | None = None
        self.heard_ms = 0
        self.timeout_ms = TIMEOUT_MS


class LiveTable:
    """The brokers whose heartbeats arrived since the controller started. `now_ms`: returns the time."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._started_ms = now_ms()
        self._lives: dict[Broker, _Life] = {}
        self._by_connection: dict[Hashable, set[Broker]] = {}
        # Those that were heard and are gone: they had their time.
        self._gone: set[Broker] = set()
        self._longest_ms = TIMEOUT_MS

    def heard(self, h: ReplicaHeartbeatHeader, broker_id: int, connection: Hashable) -> bool:
        """Note a heartbeat that came over a connection; return False if the table is full."""
        broker = Broker(h.cluster_name, h.broker_name, broker_id)
        life = self._lives.get(broker)
        if life is None:
            if len(self._lives) >= BROKERS_MAX:
                return False
            life = self._lives[broker] = _Life()
            self._gone.discard(broker)
        life.heard_ms = self._now_ms()
        life.timeout_ms = min(max(h.timeout_ms, 1), LONG_MAX) if h.timeout_ms is not None else TIMEOUT_MS
        self._longest_ms = max(self._longest_ms, life.timeout_ms)
        priority = h.election_priority if h.election_priority is not None else INT_MAX
        if h.asker != life.asker:
            life.asker, life.end = h.asker, LogEnd()  # Its log may be shorter: its machine lost its power, say.
        epoch, offset = life.end[:2]
        reached = (h.epoch if h.epoch is not None else -1, h.max_offset if h.max_offset is not None else -1)
        # Heartbeats may come late: a log that is shorter in the same epoch is an older one (rule: 5.5.0).
        furthest = max((epoch, offset), reached)
        life.end = LogEnd(*furthest, priority, h.zone or "", may_lack=bool(h.may_lack), gives_word=h.asker is not None)
        if connection not in life.connections:
            life.connections.add(connection)
            self._by_connection.setdefault(connection, set()).add(broker)
        return True

    def closed(self, connection: Hashable) -> list[Broker]:
        """Note the end of a connection; return the brokers that are gone because it was their last."""
        ended = []
        for broker in self._by_connection.pop(connection, ()):
            life = self._lives[broker]
            life.connections.discard(connection)
            if not life.connections:
                self._forget(broker)
                ended.append(broker)
        return ended

    def expire(self) -> list[Broker]:
        """Forget the brokers that were silent for too long, and return them."""
        now_ms = self._now_ms()
        silent = [broker for broker, life in self._lives.items() if now_ms - life.heard_ms > life.timeout_ms]
        for broker in silent:
            self._forget(broker)
        return silent

    def _forget(self, broker: Broker) -> None:
        for connection in self._lives.pop(broker).connections:
            of_connection = self._by_connection[connection]
            of_connection.discard(broker)
            if not of_connection:
                del self._by_connection[connection]
        if len(self._gone) < BROKERS_MAX:
            self._gone.add(broker)

    def alive(self, cluster: str, broker_name: str, broker_id: int) -> bool:
        """Tell whether a heartbeat of the broker came in time."""
        life = self._lives.get(Broker(cluster, broker_name, broker_id))
        return life is not None and self._now_ms() - life.heard_ms <= life.timeout_ms

    def may_live(self, cluster: str, broker_name: str, broker_id: int) -> bool:
        """Tell whether the broker is alive, or has had no time yet to send a heartbeat since the controller started.

        A controller that starts again hears one broker first: without this time it would depose a healthy master.
        Official brokers look only every 3 s whether a controller that was away is back.
        """
        broker = Broker(cluster, broker_name, broker_id)
        if self.alive(*broker):
            return True
        since_start_ms = self._now_ms() - self._started_ms
        if broker in self._lives or broker in self._gone or since_start_ms > self._longest_ms:
            return False
        # Brokers of one name are set alike: as long as the others may be silent.
        of_set = [life.timeout_ms for other, life in self._lives.items() if other[:2] == broker[:2]]
        return since_start_ms <= max([TIMEOUT_MS, *of_set])

    def log_end(self, cluster: str, broker_name: str, broker_id: int) -> LogEnd:
        """Return where the broker's log ends, by its heartbeats."""
        life = self._lives.get(Broker(cluster, broker_name, broker_id))
        return life.end if life else LogEnd()
