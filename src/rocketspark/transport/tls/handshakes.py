"""The handshakes of a server that are under way. Rule: they take a part of the loop's time, and none is open for ever.

A handshake costs its server up to a millisecond and its client nothing, so a flood of them is bounded three ways: in
number (the oldest that waits for its client makes room), in time (`TIME_MAX_S` each), and in the loop's time: what was
spent on handshakes is followed by `SHARE - 1` times as long without, beyond a short burst.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from rocketspark import machine
from rocketspark.transport.tls.stream import TlsStream

COUNT_MAX = 1024
# Rule: Netty's handshakeTimeout.
TIME_MAX_S = 10.0
SHARE = 4
# Some ten of them in a row.
BURST_S = 0.02


class Handshakes:
    """The unfinished TLS handshakes of one server. `dropped`: how many were ended to make room for others."""

    def __init__(self, *, count_max: int = COUNT_MAX, time_max_s: float = TIME_MAX_S) -> None:
        self._count_max = count_max
        self._time_max_s = time_max_s
        # Handshakes that wait for their client, oldest first, and those that wait for their turn.
        self._open: OrderedDict[TlsStream, float] = OrderedDict()
        self._queued: OrderedDict[TlsStream, None] = OrderedDict()
        self._free_at_s = 0.0
        self._next: asyncio.TimerHandle | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._open)

    def add(self, stream: TlsStream) -> None:
        """Add a handshake that begins; if there are too many, another one is dropped."""
        loop = asyncio.get_running_loop()
        if len(self._open) >= self._count_max:
            self._drop(next((s for s in self._open if s not in self._queued), next(iter(self._open))))
        self._open[stream] = loop.time()
        stream.turn = self._step
        if self._sweeper is None:
            self._sweeper = loop.call_later(self._time_max_s, self._sweep)

    def remove(self, stream: TlsStream) -> None:
        """Take out a handshake that is over."""
        self._open.pop(stream, None)
        self._queued.pop(stream, None)
        stream.turn = None

    def _drop(self, stream: TlsStream) -> None:
        self.dropped += 1
        self.remove(stream)
        stream.abandon(f"{self._count_max} handshakes are under way, as many as are allowed: the oldest is dropped")

    def _step(self, stream: TlsStream) -> None:
        if stream in self._queued:
            return
        if not self._queued and self._free_at_s <= machine.monotonic():
            self._shake(stream)
            return
        stream.pause_reading()
        self._queued[stream] = None
        if self._next is None:
            self._wait()

    def _shake(self, stream: TlsStream) -> None:
        began_s = machine.monotonic()
        stream.shake()
        spent_s = machine.monotonic() - began_s
        self._free_at_s = max(self._free_at_s, began_s - BURST_S) + spent_s * SHARE

    def _wait(self) -> None:
        wait_s = max(self._free_at_s - machine.monotonic(), 0.0)
        self._next = asyncio.get_running_loop().call_later(wait_s, self._go_on)

    def _go_on(self) -> None:
        self._next = None
        while self._queued and self._free_at_s <= machine.monotonic():
            stream, _ = self._queued.popitem(last=False)
            stream.resume_reading()
            self._shake(stream)
        if self._queued:
            self._wait()

    def _sweep(self) -> None:
        self._sweeper = None
        loop = asyncio.get_running_loop()
        oldest_s = loop.time() - self._time_max_s
        while self._open and next(iter(self._open.values())) <= oldest_s:
            stream = next(iter(self._open))
            self.remove(stream)
            stream.abandon(f"the handshake was not done after {self._time_max_s:g} s")
        if self._open:
            self._sweeper = loop.call_at(next(iter(self._open.values())) + self._time_max_s, self._sweep)

    def close(self) -> None:
        """Cancel the timers and drop all handshakes."""
        for timer in (self._next, self._sweeper):
            if timer is not None:
                timer.cancel()
        self._next = self._sweeper = None
        for stream in list(self._open):
            self.remove(stream)
            stream.abandon("the server ends")
