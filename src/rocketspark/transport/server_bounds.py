"""What a server takes at most: connections of all and of one address, frames that are not whole, replies that nobody
reads, and requests that come faster than they are served.

Rule: the files of the store come first. A process has a limit of file descriptors: connections may take half of it,
whoever opens them, and a less important server takes a part of that half. A request that waited too long is answered at
once; replies are never held up.

One loop serves all connections, in turns, so waiting requests lie in their buffers. A request's wait counts from the
turn in which its connection could be read. A single hiccup of the machine does not count as load: a turn that is late
has to go on for as long again before requests are refused. Honest connections hold an unfinished frame, or a reply that
is not read, for moments: past a bound the connection that has held some for longest is ended. Nothing here costs
anything for frames that come whole. Idle connections are ended by `server`.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import math
import resource
import threading
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Protocol
from weakref import WeakKeyDictionary

import msgspec

from rocketspark import machine
from rocketspark.errors import FrameError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol import frames, headers


def descriptors_max() -> float:
    """Return how many files and sockets this process may have open; infinity without a limit."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return math.inf if limit == resource.RLIM_INFINITY else limit


def connections_max(share: float = 0.5) -> float:
    """Return how many connections may take `share` of the descriptors; 16 at least."""
    limit = descriptors_max()
    return limit if math.isinf(limit) else max(16, int(limit * share))


class Descriptors:
    """Counts the connections of this process, on any of its loops, against a limit. `refused`: how many were not let
    in.

    Connections of a loop that was closed no longer count, as nothing reports their end.
    """

    def __init__(self, count_max: float | None = None) -> None:
        self._count_max = count_max
        self._lock = threading.Lock()
        self._of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, int] = WeakKeyDictionary()
        self.refused = 0

    @property
    def count_max(self) -> float:
        """The limit: the one given, else half of the process's descriptors as they are limited now."""
        return connections_max() if self._count_max is None else self._count_max

    @property
    def taken(self) -> int:
        """The number of open connections."""
        return sum(count for loop, count in list(self._of_loops.items()) if not loop.is_closed())

    def take(self) -> bool:
        """Let one connection of the running loop in; False if the limit is reached."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self.taken < self.count_max:
                self._of_loops[loop] = self._of_loops.get(loop, 0) + 1
                return True
            self.refused += 1
            return False

    def give_back(self) -> None:
        """Note the end of a connection of the running loop that was let in."""
        loop = asyncio.get_running_loop()
        with self._lock:
            self._of_loops[loop] -= 1


OF_PROCESS = Descriptors()


log = LimitedLog("rocketspark.transport", lines_max=1, period_s=1.0)

# Of all connections that may be open, so many of one address at most.
SHARE_OF_ADDRESS = 0.75
# Unread replies of all connections are added up so long after one began to leave them.
LOOK_S = 0.02
# And again while there are some: what else is sent to them may have grown.
LOOK_AGAIN_S = 0.5
# A connection counts as one that does not read from so many waiting bytes on: the less the more connections there are,
# so that those that do not count stay within the bound too.
WAITING_BYTES_MIN, WAITING_BYTES_MAX = 64 << 10, 4 << 20


class Bounds(msgspec.Struct, kw_only=True):
    """The bounds; they may change while the server runs.

    `per_address`: connections of one address, 0 for three quarters of all that are allowed; `unfinished_s`: how long
    one frame may take to arrive; `unfinished_bytes`, `unread_bytes`: what lies in memory of frames that are not whole,
    and of replies that are not read, of all connections together.
    """

    per_address: int = 0
    unfinished_s: float = 60.0
    unfinished_bytes: int = 256 << 20
    unread_bytes: int = 512 << 20


class Writing(Protocol):
    """A connection as its bounds see it: whose it is, how much the other side has not read, and how to end it."""

    address: str

    @property
    def unread_bytes(self) -> int:
        """Bytes that wait in memory for the other side."""

    def abort(self) -> None:
        """Close at once."""


class Bounded(Writing, Protocol):
    """A connection that also reads frames, as its bounds see it."""

    @property
    def unfinished_frame(self) -> int | None:
        """The number of the frame that has begun to arrive and is not whole; None if there is none."""


def host_of(address: str) -> str:
    """Return the host of an address "host:port" or "[v6]:port", as peers have it."""
    return address.rpartition(":")[0].strip("[]")


@lru_cache(maxsize=4096)
def place_of(host: str) -> str:
    """Return what counts as one address: an IPv4 address, or the network of 64 bits of an IPv6 one.

    Whatever is bounded for one address, host or client is counted by it.
    """
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.strip("[]").partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address.packed[:8] + bytes(8), 64)))


class ConnectionBounds:
    """Keeps the connections of one server within `bounds`. `ended`: how many connections it ended, by reason."""

    def __init__(self, bounds: Bounds | None = None) -> None:
        self.bounds = bounds or Bounds()
        self.ended = {"unfinished": 0, "slow": 0, "unread": 0}
        self._by_host: dict[str, int] = {}
        # By peer: which frame it is, since when it is awaited, and its bytes so far.
        self._unfinished: dict[Bounded, tuple[int, float, int]] = {}
        self._unfinished_bytes = 0
        # Of requests that are worked on in tasks, counted by their connections.
        self.worked_on_bytes = 0
        # Those that do not read their replies, the one that began first in front.
        self._unread: dict[Writing, None] = {}
        self._look: asyncio.TimerHandle | None = None

    # -- addresses -----------------------------------------------------------------------------------------------

    def admits(self, host: str, connections_max: float) -> bool:
        """Count a connection of an address; False if it has as many as it may, of `connections_max` in all."""
        allowed = self.bounds.per_address or max(1.0, connections_max * SHARE_OF_ADDRESS)
        host = place_of(host)
        count = self._by_host.get(host, 0)
        if count >= allowed:
            return False
        self._by_host[host] = count + 1
        return True

    def leave(self, host: str) -> None:
        """Count one connection less of an address."""
        host = place_of(host)
        count = self._by_host.get(host, 0)
        if count > 1:
            self._by_host[host] = count - 1
        else:
            self._by_host.pop(host, None)

    @property
    def is_busy(self) -> bool:
        """True while the requests being worked on hold so many bytes that nothing more is read from connections that
        have one.
        """
        return self.worked_on_bytes > self.bounds.unfinished_bytes

    # -- frames that are not whole -------------------------------------------------------------------------------

    def unfinished(self, peer: Bounded, frame: int, held_bytes: int) -> None:
        """Note that a connection holds `held_bytes` of its frame number `frame`, which is not whole."""
        before = self._unfinished.get(peer)
        began_s = before[1] if before is not None and before[0] == frame else asyncio.get_running_loop().time()
        self._unfinished[peer] = frame, began_s, held_bytes
        self._unfinished_bytes += held_bytes - (before[2] if before is not None else 0)
        if self._unfinished_bytes > self.bounds.unfinished_bytes:
            self._make_room()

    def _make_room(self) -> None:
        """Forget the frames that are whole by now; if the rest is too much, end those begun first."""
        self._refresh()
        oldest = sorted(self._unfinished, key=lambda peer: self._unfinished[peer][1])
        for peer in oldest:
            if self._unfinished_bytes <= self.bounds.unfinished_bytes:
                break
            held_bytes = self._unfinished[peer][2]
            self.forget(peer)
            self._end(
                peer,
                "unfinished",
                "holds %d bytes of a frame that does not end, and all such frames are over %d: connection closed",
                held_bytes,
                self.bounds.unfinished_bytes,
            )

    def _refresh(self) -> None:
        for peer, (frame, _, _) in list(self._unfinished.items()):
            if peer.unfinished_frame != frame:
                self.forget(peer)

    def sweep(self, now_s: float) -> None:
        """End the connections whose unfinished frame has taken longer than `unfinished_s`; called a few times within
        that time.
        """
        self._refresh()
        for peer, (_, began_s, held_bytes) in list(self._unfinished.items()):
            if now_s - began_s > self.bounds.unfinished_s:
                self.forget(peer)
                self._end(
                    peer,
                    "slow",
                    "sent %d bytes of a frame in %.0f s and no whole one: connection closed",
                    held_bytes,
                    now_s - began_s,
                )

    # -- replies that are not read -------------------------------------------------------------------------------

    def paused(self, peer: Writing) -> None:
        """Note that the other side of a connection does not read its replies."""
        self._unread[peer] = None
        if self._look is None:
            self._look = asyncio.get_running_loop().call_later(LOOK_S, self._look_at_unread)

    def _look_at_unread(self) -> None:
        self._look = None
        total = sum(each.unread_bytes for each in self._unread)
        for each in list(self._unread):
            if total <= self.bounds.unread_bytes:
                break
            left = each.unread_bytes
            total -= left
            self.resumed(each)
            self._end(
                each,
                "unread",
                "leaves %d bytes of replies unread, and all such replies are over %d: connection closed",
                left,
                self.bounds.unread_bytes,
            )
        if self._unread:
            self._look = asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self._look_at_unread)

    def waiting_bytes_max(self, connections: int) -> int:
        """Return how many unread bytes may wait for each of so many connections; with more, it counts as one whose
        other side does not read.
        """
        return min(max(self.bounds.unread_bytes // max(connections, 1), WAITING_BYTES_MIN), WAITING_BYTES_MAX)

    def resumed(self, peer: Writing) -> None:
        """Note that the other side of a connection reads again."""
        self._unread.pop(peer, None)

    # -- ends ----------------------------------------------------------------------------------------------------

    def forget(self, peer: Bounded) -> None:
        """Note that a connection has no unfinished frame any more."""
        before = self._unfinished.pop(peer, None)
        if before is not None:
            self._unfinished_bytes -= before[2]

    def closed(self, peer: Bounded) -> None:
        """Drop what is known of a connection, as it has ended."""
        self.forget(peer)
        self.resumed(peer)

    def _end(self, peer: Writing, reason: str, text: str, *about: float) -> None:
        self.ended[reason] += 1
        log.warning("%s " + text, peer.address, *about)
        peer.abort()


_log = logging.getLogger("rocketspark.transport")

Received = tuple[int, bytes, bytes]
# Requests served between two looks at the clock.
SLICE = 256
LOG_PAUSE_S = 1.0
# Turns of the loop are watched so far apart; a wait is known that exactly.
SAMPLE_S = 0.01


class Overload:
    """Decides which requests are refused as the server is behind. `refuse_with(opaque, remark)` makes the reply; `now`
    returns seconds.
    """

    def __init__(
        self,
        refuse_with: Callable[[int, str], bytes],
        *,
        now: Callable[[], float] = lambda: machine.monotonic(),
        call_soon: Callable[[Callable[[], None]], object] = lambda act: asyncio.get_running_loop().call_soon(act),
    ) -> None:
        self._refuse_with = refuse_with
        self._limits_s: dict[int, float] = {}
        self._reasons: dict[str, str] = {}
        self._refused: frozenset[int] = frozenset()
        self._log_after_s = -math.inf
        self.now = now
        self.call_soon = call_soon
        # The shortest of the limits: requests that waited less need no check.
        self.least_s = math.inf
        self._turn_is_open = False
        self._turn_began_s = -math.inf
        self._late_since_s = math.inf
        self.refusing = False
        self.refused_count = 0

    def limit_waits(self, limits_s: dict[int, float]) -> None:
        """Set, by request code, after how many seconds of waiting a request is refused."""
        self._limits_s = limits_s
        self.least_s = min(limits_s.values(), default=math.inf)

    def refuse(self, codes: Iterable[int], key: str, reason: str | None) -> None:
        """Refuse all requests of `codes` for this reason, until the same `key` is given None."""
        self._refused = frozenset(codes)
        if reason is None:
            self._reasons.pop(key, None)
        else:
            self._reasons[key] = reason
        self.refusing = bool(self._reasons)

    def waited(self) -> float:
        """Return how many seconds the data being read now has waited; 0 while the delay may be a single hiccup of the
        machine.
        """
        now_s = self.now()
        waited_s = now_s - self._turn_began_s
        if self._turn_is_open:
            if waited_s < self.least_s:
                return waited_s
            self._late_since_s = min(self._late_since_s, now_s)
            return waited_s if now_s - self._late_since_s >= self.least_s else 0.0
        if waited_s >= SAMPLE_S:
            # What is called soon is called before the sockets are looked at again. Most turns are over in no time:
            # to watch each of them would cost a system call.
            self._turn_is_open = True
            self._turn_began_s, self._late_since_s = now_s, math.inf
            self.call_soon(self._turn_ended)
        return 0.0

    def _turn_ended(self) -> None:
        self._turn_is_open = False

    def sift(self, received: list[Received], waited_s: float) -> tuple[list[Received], list[bytes]]:
        """Return (the requests to serve, replies to the rest). A one-way request that is refused gets no reply."""
        served, replies = [], []
        reason = next(iter(self._reasons.values()), None)
        refused = 0
        for item in received:
            code, opaque, flag = _head(item)
            if flag & frames.RESPONSE_FLAG:
                served.append(item)
                continue
            remark = reason if code in self._refused else None
            if remark is None and waited_s >= self._limits_s.get(code, math.inf):
                remark = (
                    "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue:"
                    f" {waited_s * 1000:.0f}ms, size of queue: {len(received) - len(served) - 1 - refused}"
                )
            if remark is None:
                served.append(item)
                continue
            refused += 1
            if not flag & frames.ONEWAY_FLAG:
                replies.append(self._refuse_with(opaque, remark))
        if refused:
            self._note(refused, waited_s, reason)
        return served, replies

    def _note(self, refused: int, waited_s: float, reason: str | None) -> None:
        self.refused_count += refused
        now_s = self.now()
        if now_s >= self._log_after_s:
            self._log_after_s = now_s + LOG_PAUSE_S
            why = reason or f"they waited for {waited_s * 1000:.0f} ms"
            _log.warning("%d requests refused (SYSTEM_BUSY), %d so far: %s", refused, self.refused_count, why)


def _head(item: Received) -> tuple[int, int, int]:
    """Return (code, opaque, flag) of a frame; one that cannot be read counts as a reply, which is never refused."""
    serialization, header, _ = item
    try:
        if serialization == frames.JSON:
            head = headers.head_decoder.decode(header)
            return head.code, head.opaque, head.flag
        frame = frames.decode_header(header, serialization)
        return frame.code, frame.opaque, frame.flag
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, FrameError):
        return 0, 0, frames.RESPONSE_FLAG
