"""Queues in turn, and latency fault tolerance: sends leave slow or failed brokers alone for a while; a detector asks
those that a send could not reach whether they answer again.

Rule: MQFaultStrategy and LatencyFaultToleranceImpl; off unless asked for, but for the turns. What is known of brokers
is pure: times are handed in, in seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from rocketspark import machine
from rocketspark.errors import ConfigError, RocketSparkError, ServerError
from rocketspark.model import MessageQueue

if TYPE_CHECKING:
    # Not with the module, which options need too: each stream of Spark's starts a process that imports those.
    from rocketspark.client.connection.instance import Instance

log = logging.getLogger("rocketspark.client")

INTERVAL_S = 2.0
TIMEOUT_MS = 200.0
# Any question does: also a refusal is an answer.
QUEUE = MessageQueue("TBW102", "", 0)


class FaultTable(NamedTuple):
    """A send that took at least `latencies_ms[i]` keeps its broker out for `pauses_ms[i]`; a failure counts as
    a send of `failure_ms`.
    """

    latencies_ms: tuple[float, ...]
    pauses_ms: tuple[float, ...]
    failure_ms: float

    def pause_ms(self, latency_ms: float) -> float:
        """Return how long a broker is left alone after a send that took this long."""
        for latency, pause in zip(reversed(self.latencies_ms), reversed(self.pauses_ms), strict=True):
            if latency_ms >= latency:
                return pause
        return 0


_4X = ((50, 100, 550, 1000, 2000, 3000, 15000), (0, 0, 30_000, 60_000, 120_000, 180_000, 600_000))
_5X = ((50, 100, 550, 1800, 3000, 5000, 15000), (0, 0, 2000, 5000, 6000, 10_000, 30_000))
FAULT_TABLES = {"4.x": FaultTable(*_4X, 30_000), "5.x": FaultTable(*_5X, 10_000)}


def table_of(given: str | FaultTable) -> FaultTable:
    """Return the table of that name, or the one given. Raises ConfigError."""
    table = FAULT_TABLES.get(given) if isinstance(given, str) else FaultTable(*given)
    if table is None:
        raise ConfigError(f"fault table {given!r}: {', '.join(FAULT_TABLES)} or a FaultTable is needed")
    if len(table.latencies_ms) != len(table.pauses_ms) or list(table.latencies_ms) != sorted(table.latencies_ms):
        raise ConfigError("a fault table needs rising latencies_ms, and as many pauses_ms")
    return table


class _Fault:
    __slots__ = ("latency_ms", "until_s")

    def __init__(self, latency_ms: float, until_s: float) -> None:
        self.latency_ms = latency_ms
        self.until_s = until_s


class LatencyFaults:
    """What is known of brokers that were slow or failed, by name. `unreachable`: those that the fault detector, if
    there is one, has to probe.
    """

    def __init__(self, table: FaultTable) -> None:
        self._table = table
        self._known: dict[str, _Fault] = {}
        self._turn = machine.randrange(1 << 16)
        self.unreachable: set[str] = set()

    def sent(self, broker_name: str, latency_ms: float, now_s: float) -> None:
        """Note that a send to the broker succeeded."""
        pause_ms = self._table.pause_ms(latency_ms)
        known = self._known.get(broker_name)
        if known is not None:
            known.latency_ms, known.until_s = latency_ms, now_s + pause_ms / 1000
        elif pause_ms:
            self._known[broker_name] = _Fault(latency_ms, now_s + pause_ms / 1000)
        if self.unreachable:
            self.unreachable.discard(broker_name)

    def failed(self, broker_name: str, latency_ms: float, now_s: float, *, unreachable: bool) -> None:
        """Note that a send failed after `latency_ms`. `unreachable`: no reply came, rather than an error reply."""
        self._known[broker_name] = _Fault(latency_ms, now_s + self._table.pause_ms(self._table.failure_ms) / 1000)
        if unreachable:
            self.unreachable.add(broker_name)

    def reached(self, broker_name: str) -> None:
        """Note that a broker answered the fault detector. Its pause still lasts to its end."""
        self.unreachable.discard(broker_name)

    def is_available(self, broker_name: str, now_s: float) -> bool:
        """Tell whether a send may go to the broker."""
        known = self._known.get(broker_name)
        return known is None or known.until_s <= now_s

    def least_bad(self, broker_names: Iterable[str], now_s: float) -> str | None:
        """Return a broker to try when every broker of a topic is paused: one of the better half of those that have been
        slow or have failed, a different one at each call. None if there is no such broker.
        """
        known = [(n, f) for n in dict.fromkeys(broker_names) if (f := self._known.get(n)) is not None]
        if not known:
            return None

        def badness(item: tuple[str, _Fault]) -> tuple[bool, bool, float, float]:
            name, fault = item
            return name in self.unreachable, fault.until_s > now_s, fault.latency_ms, fault.until_s

        known.sort(key=badness)
        self._turn += 1
        return known[self._turn % max(1, len(known) // 2)][0]

    def keep(self, broker_names: Callable[[str], bool]) -> None:
        """Forget the brokers for whose name the function `broker_names` returns False."""
        for name in [n for n in self._known if not broker_names(n)]:
            del self._known[name]
            self.unreachable.discard(name)


class QueueTurns:
    """Chooses among the queues of each topic, in turn.

    `leader`: returns the name of a queue's broker; `faults`: brokers to leave alone, None for no such record.
    """

    def __init__(self, leader: Callable[[MessageQueue], str], faults: LatencyFaults | None) -> None:
        self._leader = leader
        self._faults = faults
        self._turns: dict[str, int] = {}

    def choose(self, topic: str, queues: tuple[MessageQueue, ...], avoid: str | None = None) -> MessageQueue:
        """Return the next queue in turn, of a broker that is available and not `avoid`, as far as there is one."""
        turn = self._turns.get(topic)
        if turn is None:
            turn = machine.randrange(len(queues))
        faults = self._faults
        if faults is None and avoid is None:
            self._turns[topic] = turn = turn + 1
            return queues[turn % len(queues)]
        now_s, leader = machine.monotonic(), self._leader
        spare: MessageQueue | None = None
        for step in range(1, len(queues) + 1):
            queue = queues[(turn + step) % len(queues)]
            if faults is not None and not faults.is_available(leader(queue), now_s):
                continue
            if leader(queue) != avoid:
                self._turns[topic] = turn + step
                return queue
            spare = spare or queue
        self._turns[topic] = turn = turn + 1
        if spare is None and faults is not None:
            name = faults.least_bad(map(leader, queues), now_s)
            of_it = [queue for queue in queues if leader(queue) == name]
            if of_it:
                return of_it[turn % len(of_it)]
        return spare or queues[turn % len(queues)]

    def take_back(self, topic: str) -> None:
        """Take back the last choice of a topic: nothing was sent, and who chooses next has this turn."""
        self._turns[topic] -= 1


class FaultDetector:
    """Sends every unreachable broker a request, every 2 s; the first reply makes it reachable."""

    def __init__(self, instance: Instance, faults: LatencyFaults, *, interval_s: float = INTERVAL_S) -> None:
        self._instance = instance
        self._faults = faults
        self._interval_s = interval_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to ask unreachable brokers, in the background."""
        self._task = asyncio.ensure_future(self._run())

    def stop(self) -> None:
        """Stop asking."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            for name in list(self._faults.unreachable):
                try:
                    await self.look(name)
                except Exception:
                    log.exception("broker %s could not be looked at; the others are", name)

    async def look(self, broker_name: str) -> None:
        """Send a request to one broker, to see whether it answers."""
        # Not with the module, as above.
        from rocketspark.client.connection import client_api

        address = self._instance.routes.master(broker_name)
        if address is None:
            self._faults.reached(broker_name)
            return
        try:
            async with asyncio.timeout(TIMEOUT_MS / 1000):
                peer = await self._instance.broker(address)
                await client_api.max_offset(peer, QUEUE, timeout_ms=TIMEOUT_MS)
        except ServerError:
            pass
        except (RocketSparkError, TimeoutError) as e:
            log.debug("broker %s is still not reached: %s", broker_name, e)
            return
        self._faults.reached(broker_name)
