"""Load over one connection: requests encoded beforehand, a window in flight, replies only counted.

Rule: the tool must never be the bottleneck. A reply is found by the first bytes of its header, in C, many at a time;
what the tool itself costs is measured with every load, and `bench.floor` tells how far it goes without a broker.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

from rocketspark.transport.connections import parse_address

REPLY_TIMEOUT_S = 30.0
COUNT_MAX = 5_000_000
ANY, OK = b'{"code":', b'{"code":0,'
# The longest start of a code that a chunk may end with: of any 32 bits.
TAIL_BYTES = len(b'{"code":-2147483648')
OTHER_CODE = re.compile(rb'\{"code":(?!0,)(-?\d+),[^}]*')
SYSTEM_BUSY = 2
# A request of the broker's own: who is in the group has changed.
NOTICE = 40


class Load(NamedTuple):
    """Requests done, requests answered with "busy" instead, seconds taken, and the tool's own processor seconds."""

    done: int
    busy: int
    seconds: float
    tool_cpu_s: float

    @property
    def per_second(self) -> float:
        """Requests that were done in a second."""
        return self.done / self.seconds


class Refused(ConnectionError):
    """A server answered with a code that no load expects."""


class Replies:
    """Counts the replies in a byte stream, however it is chopped up. Bodies must not hold the start of a header."""

    __slots__ = ("_tail", "busy", "done")

    def __init__(self) -> None:
        self.done = 0
        self.busy = 0
        self._tail = b""

    def feed(self, data: bytes) -> int:
        """How many replies begin in `data`. Raises Refused for a code that is neither 0 nor busy."""
        data = self._tail + data
        done = data.count(OK)
        found = done
        end = data.rfind(OK) + len(OK) if done else 0
        if data.count(ANY) != done:
            for match in OTHER_CODE.finditer(data):
                code, end = int(match[1]), max(end, match.end())
                if code == NOTICE:
                    continue
                if code != SYSTEM_BUSY:
                    raise Refused(match[0].decode(errors="replace"))
                # Busy: an overloaded Java broker gives some up unstored; they do not count.
                self.busy += 1
                found += 1
        self.done += done
        self._tail = data[max(end, len(data) - TAIL_BYTES) :]
        return found


class Stream:
    """Frames in a row. `count` of them; a slice of them is a slice of bytes."""

    __slots__ = ("_data", "_ends", "count")

    def __init__(self, frames: Iterable[bytes]) -> None:
        made = list(frames)
        self.count = len(made)
        self._data = memoryview(b"".join(made))
        self._ends = [0, *accumulate(map(len, made))]

    def part(self, first: int, count: int) -> memoryview:
        """The bytes of `count` frames from `first` on, no further than the last."""
        return self._data[self._ends[first] : self._ends[min(first + count, self.count)]]


def connect(address: str, tls: ssl.SSLContext | None = None) -> socket.socket:
    """A connection for load; `tls`: None for plain."""
    s = socket.create_connection(parse_address(address), 10)
    s.settimeout(REPLY_TIMEOUT_S)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return tls.wrap_socket(s) if tls else s


def pump(
    address: str,
    stream: Stream,
    *,
    window: int,
    seconds: float = 3600.0,
    count_max: int = COUNT_MAX,
    tls: ssl.SSLContext | None = None,
) -> Load:
    """Send for about `seconds`, at most `count_max` requests, again from the first frame after the last.

    Raises Refused, or OSError if the server closes the connection or is silent for 30 s.
    """
    with connect(address, tls) as s:
        replies = Replies()
        at = sent = 0
        free = window
        cpu_started = time.thread_time()
        started = time.perf_counter()
        deadline = started + seconds
        while True:
            while free and sent < count_max:
                count = min(free, stream.count - at, count_max - sent)
                s.sendall(stream.part(at, count))
                at = (at + count) % stream.count
                free -= count
                sent += count
            data = s.recv(1 << 18)
            if not data:
                raise ConnectionError(f"{address} closed the connection after {replies.done} replies")
            free += replies.feed(data)
            if sent < count_max and time.perf_counter() >= deadline:
                count_max = sent
            if replies.done + replies.busy == sent >= count_max:
                taken = time.perf_counter() - started
                return Load(replies.done, replies.busy, taken, time.thread_time() - cpu_started)
