"""What the connections of a server may hold, each and together. Rule: past a bound those end that hold it longest.

A frame that is not whole, and replies that nobody reads, lie in memory. Honest connections hold them for moments, so
whoever has held some for longest is the one to end. Nothing here costs anything for frames that come whole.
"""

from __future__ import annotations

import asyncio
import ipaddress
from typing import Protocol

import msgspec

from rocketspark.model.limited_log import LimitedLog

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
    """What is known here of a connection that writes: whose it is, what it leaves unread, and how to end it."""

    address: str

    @property
    def unread_bytes(self) -> int:
        """Bytes that wait in memory for the other side."""

    def abort(self) -> None:
        """Close at once."""


class Bounded(Writing, Protocol):
    """And of one that reads frames too."""

    @property
    def unfinished_frame(self) -> int | None:
        """The number of the frame that has begun to arrive; None if there is none."""


def place_of(host: str) -> str:
    """Return what counts as one address: an IPv4 address, or the network of 64 bits of an IPv6 one."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address.packed[:8] + bytes(8), 64)))


class ConnectionBounds:
    """Keeps the connections of one server within `bounds`. `ended`: how many it ended, by reason."""

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
        """Count a connection of an address no more."""
        host = place_of(host)
        count = self._by_host.get(host, 0)
        if count > 1:
            self._by_host[host] = count - 1
        else:
            self._by_host.pop(host, None)

    @property
    def is_busy(self) -> bool:
        """True while requests that are worked on hold so much that a connection which has some is read no further."""
        return self.worked_on_bytes > self.bounds.unfinished_bytes

    # -- frames that are not whole -------------------------------------------------------------------------------

    def unfinished(self, peer: Bounded, frame: int, held_bytes: int) -> None:
        """Note what a connection holds of its frame number `frame`."""
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
        """End the connections whose frame takes too long; called a few times in `unfinished_s`."""
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
        """Note a connection that does not read its replies."""
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
        """Return how many bytes may wait for each of so many connections before it counts as one that does not read."""
        return min(max(self.bounds.unread_bytes // max(connections, 1), WAITING_BYTES_MIN), WAITING_BYTES_MAX)

    def resumed(self, peer: Writing) -> None:
        """Note a connection that reads again."""
        self._unread.pop(peer, None)

    # -- ends ----------------------------------------------------------------------------------------------------

    def forget(self, peer: Bounded) -> None:
        """Forget the frame of a connection."""
        before = self._unfinished.pop(peer, None)
        if before is not None:
            self._unfinished_bytes -= before[2]

    def closed(self, peer: Bounded) -> None:
        """Forget a connection that ended."""
        self.forget(peer)
        self.resumed(peer)

    def _end(self, peer: Writing, reason: str, text: str, *about: float) -> None:
        self.ended[reason] += 1
        log.warning("%s " + text, peer.address, *about)
        peer.abort()
