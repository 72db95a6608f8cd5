"""Load over many connections from one thread: each has requests of its own in flight, replies are only counted.

Rule: one system call to read and one to write per reply, so that the tool costs less than the server does.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Sequence

from bench.load import REPLY_TIMEOUT_S, Load, Replies, Stream, connect

READ_BYTES = 1 << 16


class Connections:
    """`count` connections to one address; a context manager that closes them."""

    def __init__(self, address: str, count: int) -> None:
        self.address = address
        self.sockets: list[socket.socket] = []
        self._replies: dict[int, Replies] = {}
        self._epoll = select.epoll()
        started = time.perf_counter()
        try:
            for _ in range(count):
                s = connect(address)
                self.sockets.append(s)
                self._replies[s.fileno()] = Replies()
                self._epoll.register(s.fileno(), select.EPOLLIN)
        except BaseException:
            self.close()
            raise
        self.connect_s = time.perf_counter() - started

    def __enter__(self) -> Connections:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close them all."""
        self._epoll.close()
        for s in self.sockets:
            s.close()

    def ask(self, frames: Sequence[bytes]) -> Load:
        """A request on each connection; ends when all are answered."""
        cpu_started, started = time.thread_time(), time.perf_counter()
        for s, frame in zip(self.sockets, frames, strict=True):
            s.sendall(frame)
        taken = self.take(len(frames))
        return Load(len(taken), 0, time.perf_counter() - started, time.thread_time() - cpu_started)

    def take(self, count: int) -> list[float]:
        """Wait for so many replies, on whichever connections; when each came (perf_counter). Raises TimeoutError."""
        came: list[float] = []
        while len(came) < count:
            for fd, found in self._ready(count - len(came)):
                del fd
                came += [time.perf_counter()] * found
        if len(came) > count:
            raise ConnectionError(f"{self.address} answered {len(came)} times, not {count}")
        return came

    def _ready(self, missing: int) -> list[tuple[int, int]]:
        events = self._epoll.poll(REPLY_TIMEOUT_S)
        if not events:
            raise TimeoutError(f"{self.address}: {missing} replies did not come within {REPLY_TIMEOUT_S:.0f} s")
        found = []
        for fd, _ in events:
            data = os.read(fd, READ_BYTES)
            if not data:
                raise ConnectionError(f"{self.address} closed one of {len(self.sockets)} connections")
            found.append((fd, self._replies[fd].feed(data)))
        return found

    def pump(self, streams: Sequence[Stream], *, window: int = 1, seconds: float) -> Load:
        """`window` requests in flight on each connection for about `seconds`; ends when all are answered."""
        at = dict.fromkeys(self._replies, 0)
        stream_of = dict(zip(self._replies, streams, strict=True))
        before = [(r.done, r.busy) for r in self._replies.values()]
        answered = 0
        cpu_started, started = time.thread_time(), time.perf_counter()
        deadline = started + seconds
        sent = 0
        for fd, stream in stream_of.items():
            count = min(window, stream.count)
            os.write(fd, stream.part(0, count))
            at[fd] = count % stream.count
            sent += count
        stopping = False
        while answered < sent:
            for fd, found in self._ready(sent - answered):
                answered += found
                if found and not stopping:
                    # So small a write never meets a full buffer.
                    stream, first = stream_of[fd], at[fd]
                    count = min(found, stream.count - first)
                    os.write(fd, stream.part(first, count))
                    at[fd] = (first + count) % stream.count
                    sent += count
            stopping = stopping or time.perf_counter() >= deadline
        taken, cpu = time.perf_counter() - started, time.thread_time() - cpu_started
        done = sum(r.done for r in self._replies.values()) - sum(d for d, _ in before)
        busy = sum(r.busy for r in self._replies.values()) - sum(b for _, b in before)
        if done + busy != sent:
            raise ConnectionError(f"{self.address} answered {done + busy} of {sent} requests")
        return Load(done, busy, taken, cpu)
