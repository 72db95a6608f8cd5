"""What a client's HTTP/2 connection holds of gRPC messages that are not whole. Rule: it looks on, and changes nothing.

A gRPC server gathers a message before anybody is asked who sent it. A call counts from its beginning until its first
message is whole, and again while another one arrives.
"""

from __future__ import annotations

from rocketspark.transport.tls.first_bytes import PREFACE

DATA, HEADERS, RST_STREAM = 0, 1, 3
END_STREAM, PADDED = 0x1, 0x8
FRAME_HEAD_BYTES, PREFIX_BYTES = 9, 5
# What a call costs a server that has no message yet.
CALL_BYTES = 16 << 10


class _Message:
    """One that arrives: `number` of its connection's, `prefix` so far, then how many bytes are `left`."""

    __slots__ = ("held", "left", "number", "prefix")

    def __init__(self, number: int) -> None:
        self.number = number
        self.held = CALL_BYTES
        self.prefix = b""
        self.left = 0


class UnfinishedMessages:
    """Reads one connection's bytes, from its preface on. `held`: bytes of what is not whole, calls among it."""

    def __init__(self) -> None:
        self.held = 0
        self._number = 0
        self._open: dict[int, _Message] = {}
        # Bytes that are none of a message: the preface, other frames, padding.
        self._passed = len(PREFACE)
        self._head = b""
        # Of the data frame that arrives: its stream (0: there is none), its length if it tells its padding first, what
        # of its data is to come, the padding behind, and whether its stream ends with it.
        self._stream, self._padded, self._left, self._padding, self._ends = 0, 0, 0, 0, False

    @property
    def oldest(self) -> int | None:
        """The number of the message that has been on its way for longest; None if all are whole."""
        return next(iter(self._open.values())).number if self._open else None

    def feed(self, data: bytes) -> None:
        """Look at what came."""
        at, size = 0, len(data)
        while at < size:
            if self._passed:
                count = min(self._passed, size - at)
                self._passed -= count
            elif self._left:
                count = min(self._left, size - at)
                self._left -= count
                self._take(data, at, at + count)
            elif self._padded:
                count = 1
                self._padding = min(data[at], self._padded - 1)
                self._left = self._padded - 1 - self._padding
                self._padded = 0
            else:
                count = min(FRAME_HEAD_BYTES - len(self._head), size - at)
                self._head += data[at : at + count]
                if len(self._head) == FRAME_HEAD_BYTES:
                    self._begin(self._head)
                    self._head = b""
            at += count
            if self._stream and not self._left and not self._padded:
                if self._ends:
                    self._drop(self._stream)
                self._stream, self._passed, self._padding = 0, self._padding, 0

    def _begin(self, head: bytes) -> None:
        length, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
        stream = int.from_bytes(head[5:], "big") & 0x7FFFFFFF
        if kind == DATA and stream:
            self._stream, self._ends = stream, bool(flags & END_STREAM)
            self._padded, self._left = (length, 0) if flags & PADDED else (0, length)
            return
        self._passed = length
        if kind == HEADERS and not flags & END_STREAM:
            self._enter(stream)
        elif kind == RST_STREAM:
            self._drop(stream)

    def _enter(self, stream: int) -> _Message:
        message = self._open.get(stream)
        if message is None:
            self._number += 1
            message = self._open[stream] = _Message(self._number)
            self.held += message.held
        return message

    def _drop(self, stream: int) -> None:
        message = self._open.pop(stream, None)
        if message is not None:
            self.held -= message.held

    def _take(self, data: bytes, at: int, end: int) -> None:
        """Take data of the frame's stream: pieces of messages, one behind the other."""
        while at < end:
            message = self._enter(self._stream)
            if len(message.prefix) < PREFIX_BYTES:
                count = min(PREFIX_BYTES - len(message.prefix), end - at)
                message.prefix += data[at : at + count]
                message.left = int.from_bytes(message.prefix[1:], "big")
            else:
                count = min(message.left, end - at)
                message.left -= count
            at += count
            message.held += count
            self.held += count
            if len(message.prefix) == PREFIX_BYTES and not message.left:
                self._drop(self._stream)
