"""Refusal of requests when a server falls behind. Rule: a request that waited too long is answered at once; replies are
never held up.

One loop serves all connections, in turns, so waiting requests lie in their buffers. A request's wait counts from the
turn in which its connection could be read. One hiccup of the machine is no load: a turn must go on for as long again.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable

import msgspec

from rocketspark.errors import FrameError
from rocketspark.protocol import frames, headers

log = logging.getLogger("rocketspark.transport")

Received = tuple[int, bytes, bytes]
# Requests served between two looks at the clock.
SLICE = 256
LOG_PAUSE_S = 1.0
# Turns of the loop are watched so far apart; a wait is known that exactly.
SAMPLE_S = 0.01


class Overload:
    """Decides which requests are refused. `refuse_with(opaque, remark)` makes the reply; `now`: seconds."""

    def __init__(
        self,
        refuse_with: Callable[[int, str], bytes],
        *,
        now: Callable[[], float] = time.monotonic,
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
        """Set the wait (seconds) from which on requests of these codes are refused."""
        self._limits_s = limits_s
        self.least_s = min(limits_s.values(), default=math.inf)

    def refuse(self, codes: Iterable[int], key: str, reason: str | None) -> None:
        """Refuse all requests of `codes`, because of `key`, with this reason; None ends that."""
        self._refused = frozenset(codes)
        if reason is None:
            self._reasons.pop(key, None)
        else:
            self._reasons[key] = reason
        self.refusing = bool(self._reasons)

    def waited(self) -> float:
        """Return how long the data read now has waited, in seconds; 0 while that may be a hiccup."""
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
            log.warning("%d requests refused (SYSTEM_BUSY), %d so far: %s", refused, self.refused_count, why)


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
