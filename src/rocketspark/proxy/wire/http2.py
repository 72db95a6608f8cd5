"""HTTP/2 as clients and servers of gRPC write it: its frames, the calls that begin, and messages that are not whole.

Rule: bytes come in whatever pieces, and are not gathered. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from rocketspark.transport.tls.first_bytes import PREFACE

DATA, HEADERS, RST_STREAM = 0, 1, 3
END_STREAM, PADDED = 0x1, 0x8
FRAME_HEAD_BYTES, PREFIX_BYTES = 9, 5
# What a call costs a server that has no message yet, some 32 KB, and the time that it takes to end thousands at once.
CALL_BYTES = 64 << 10


class _Message:
    """One that arrives: `number` of its connection's, `prefix` so far, then how many bytes are `left`; `first`: of its
    call.
    """

    __slots__ = ("first", "held", "left", "number", "prefix")

    def __init__(self, number: int) -> None:
        self.number = number
        self.first = False
        self.held = CALL_BYTES
        self.prefix = b""
        self.left = 0


class UnfinishedMessages:
    """Reads the bytes of one client's connection from its first one on, and counts those of gRPC messages that have not
    arrived whole. `held`: these bytes, and a fixed number for each such message.
    """

    def __init__(self) -> None:
        self.held = 0
        self.entered: set[int] = set()
        self.begun: list[int] = []
        self.given_up: list[int] = []
        self._number = self._last = 0
        self._open: dict[int, _Message] = {}
        # Bytes that are none of a message: the preface, other frames, padding.
        self._passed = len(PREFACE)
        self._head = b""
        # Of the data frame that arrives: its stream (0: there is none), its length if it tells its padding first, what
        # of its data is to come, the padding behind, and whether its stream ends with it.
        self._stream, self._padded, self._left, self._padding, self._ends = 0, 0, 0, 0, False

    @property
    def oldest(self) -> int | None:
        """The number of the unfinished message that began to arrive first; None if all are whole."""
        return next(iter(self._open.values())).number if self._open else None

    @property
    def count(self) -> int:
        """How many messages are not whole."""
        return len(self._open)

    def feed(
        self,
        data: bytes,
        calls_max: float = math.inf,
        frames_max: float = math.inf,
        entered_max: float = math.inf,
    ) -> int:
        """Read bytes of HTTP/2 that the client sent, and count what of its gRPC messages is not whole yet.

        Returns how many bytes were read: once one call more than `calls_max` has begun, or as many frames as
        `frames_max`, or calls without their message as `entered_max`, the rest is to be fed later. Sets `begun`
        (streams whose first message is whole), `entered` (those whose is not) and `given_up` (streams that the client
        reset), all of these bytes alone.
        """
        at, size, frames = 0, len(data), 0
        self.begun, self.given_up, self.entered = [], [], set()
        while at < size and len(self.begun) <= calls_max and frames < frames_max and len(self.entered) < entered_max:
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
                    frames += 1
            at += count
            if self._stream and not self._left and not self._padded:
                if self._ends:
                    self._drop(self._stream)
                self._stream, self._passed, self._padding = 0, self._padding, 0
        return at

    def _begin(self, head: bytes) -> None:
        length, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
        stream = int.from_bytes(head[5:], "big") & 0x7FFFFFFF
        if kind == DATA and stream:
            self._stream, self._ends = stream, bool(flags & END_STREAM)
            self._padded, self._left = (length, 0) if flags & PADDED else (0, length)
            return
        self._passed = length
        if kind == HEADERS:
            is_new, self._last = stream > self._last, max(stream, self._last)
            if not flags & END_STREAM:
                self._enter(stream).first |= is_new
                if is_new:
                    self.entered.add(stream)
            elif is_new:
                self.begun.append(stream)
        elif kind == RST_STREAM:
            self.given_up.append(stream)
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
        self.entered.discard(stream)
        if message is not None:
            self.held -= message.held
            if message.first:
                self.begun.append(stream)

    def answered(self, stream: int) -> None:
        """Note that the server has ended the call of a stream: its first message is not waited for any more."""
        if stream in self._open:
            self._open[stream].first = False
            self._drop(stream)

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


class Frames:
    """Reads the bytes that a gRPC server writes as HTTP/2 frames, of which it looks at the heads alone."""

    def __init__(self) -> None:
        self._head = b""
        self._left = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, int, int]]:
        """Yield the kind, the flags and the stream of each frame whose head ends in these bytes."""
        at, size = 0, len(data)
        while at < size:
            if self._left:
                count = min(self._left, size - at)
                self._left -= count
                at += count
                continue
            head = self._head + data[at : at + FRAME_HEAD_BYTES - len(self._head)]
            at += len(head) - len(self._head)
            if len(head) < FRAME_HEAD_BYTES:
                self._head = head
                return
            self._head = b""
            self._left = int.from_bytes(head[:3], "big")
            yield head[3], head[4], int.from_bytes(head[5:], "big") & 0x7FFFFFFF
