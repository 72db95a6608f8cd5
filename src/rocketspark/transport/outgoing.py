"""The writing half of a connection. Rule: a peer that does not read costs bounded memory, then its connection.

A server reads no more requests meanwhile. A client reads on: the other side may wait until its replies are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from rocketspark.model.limited_log import LimitedLog
from rocketspark.transport.pending_requests import PendingRequests
from rocketspark.transport.request_frames import buffers
from rocketspark.transport.server_bounds import ConnectionBounds

log = LimitedLog("rocketspark.transport")

# A peer that does not read for so long is closed.
STALLED_WRITE_S = 60.0
WRITE_BYTES_HIGH = 4 << 20
# Small replies are bounded by what one read brings; only larger ones are counted.
LARGE_REPLY_BYTES = 4096


class Outgoing(PendingRequests):
    """The writing half of a connection: what one turn of the loop writes goes out together, and it is known whether the
    other side reads.
    """

    def __init__(self) -> None:
        super().__init__()
        # Set by a server: what all its connections may hold.
        self.bounds: ConnectionBounds | None = None
        # Observers of the replies that handlers send later, by opaque; None while there are none.
        self.awaited_answers: dict[int, Callable[[bytes], None]] | None = None
        self._transport: asyncio.Transport | None = None
        # Replies of the read at hand: bytes, and Parts where a handler answered so; None between reads.
        self._out: list[Any] | None = None
        self._soon: list[bytes] = []
        self._soon_bytes = 0
        self._when_writable: list[Callable[[], None]] = []
        self._stalled: asyncio.TimerHandle | None = None
        self._writable: asyncio.Event | None = None

    @property
    def is_open(self) -> bool:
        """True until the connection ended or is being closed."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, data: bytes) -> None:
        """Write whole frames. Those that are written while a read is handled leave together with its replies. Dropped
        if the connection ended.
        """
        if self.awaited_answers:
            self._show(data, self.awaited_answers)
        if self._out is not None:
            self._out.append(data)
        elif self._transport is not None:
            # A write costs 2.5 us however short it is: what the loop's other callbacks of this turn send goes with it.
            if not self._soon:
                self.loop.call_soon(self._write_soon)
            self._soon.append(data)
            if len(data) > LARGE_REPLY_BYTES:
                self._soon_bytes += len(data)
                if self._soon_bytes > WRITE_BYTES_HIGH:
                    # Senders then see at once whether the connection is still writable.
                    self._write_soon()

    @staticmethod
    def _show(data: bytes, awaited: dict[int, Callable[[bytes], None]]) -> None:
        header = data[8 : 8 + int.from_bytes(data[5:8], "big")]
        at = header.rfind(b'"opaque":')
        if at >= 0 and b'"flag":1,' in header:
            told = awaited.pop(int(header[at + 9 : header.index(b",", at)]), None)
            if told is not None:
                told(data)

    def _write_soon(self) -> None:
        data, self._soon = self._soon, []
        self._soon_bytes = 0
        if data and self._transport is not None:
            self._transport.write(data[0] if len(data) == 1 else b"".join(data))

    def _flush(self, out: list[Any], *, apart: bool = False) -> None:
        """Write the replies at once; `apart`: large ones, a copy into one would cost more than several buffers."""
        self._out = None
        if self._soon:
            # In place: whoever gave `out` may flush it again.
            out[:0], self._soon = self._soon, []
            self._soon_bytes = 0
        if out and self._transport is not None:
            if apart:
                self._transport.writelines(buffers(out))
            else:
                self._transport.write(out[0] if len(out) == 1 else b"".join(out))
            out.clear()

    @property
    def unread_bytes(self) -> int:
        """Bytes written that the other side has not read yet, as far as they lie in this process."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def limit_waiting(self, bytes_max: int) -> None:
        """Set how many unread bytes may wait for the other side; with more it counts as one that does not read."""
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high=bytes_max)

    @property
    def is_writable(self) -> bool:
        """False while the other side does not read: then await `writable`."""
        return self._writable is None or self._writable.is_set()

    async def writable(self) -> None:
        """Wait until the other side reads again."""
        if self._writable is not None:
            await self._writable.wait()

    def when_writable(self, act: Callable[[], None]) -> None:
        """Call `act` once the other side reads again, or the connection ended."""
        self._when_writable.append(act)

    def _tell_writable(self) -> None:
        told, self._when_writable = self._when_writable, []
        for act in told:
            act()

    def close(self) -> None:
        """Close once everything written has left."""
        self._write_soon()
        if self._transport is not None:
            self._transport.close()

    def end_side(self) -> None:
        """Send no more, but still receive what the other side answers. Where a transport cannot do that, close the
        connection.
        """
        self._write_soon()
        if self._transport is None or self._transport.is_closing():
            return
        try:
            self._transport.write_eof()
        except NotImplementedError:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def pause_writing(self) -> None:
        if self._transport:
            if self.bounds is not None:
                self._transport.pause_reading()
            self._stalled = self.loop.call_later(STALLED_WRITE_S, self._drop_stalled)
        self._writable = self._writable or asyncio.Event()
        self._writable.clear()
        if self.bounds is not None:
            # Not from within a write: it may end this connection, or another one.
            self.loop.call_soon(self._tell_paused)

    def _tell_paused(self) -> None:
        if self.bounds is not None and self._transport is not None and not self.is_writable:
            self.bounds.paused(self)

    def _drop_stalled(self) -> None:
        what = "what is sent to it" if self.bounds is None else "its replies"
        log.warning("%s does not read %s for %.0f s: connection closed", self.address, what, STALLED_WRITE_S)
        self.abort()

    def resume_writing(self) -> None:
        if self.bounds is not None:
            self.bounds.resumed(self)
        if self._stalled:
            self._stalled.cancel()
            self._stalled = None
        if self._writable:
            self._writable.set()
        self._tell_writable()
