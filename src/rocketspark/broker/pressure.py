"""When the broker is behind: which requests it refuses, and how many connections it takes.

Rule: a message that was refused was not stored. Remarks begin as RocketMQ's do (BrokerFastFailure, 5.x).
"""

from __future__ import annotations

import asyncio
import math
import resource

from rocketspark.broker.settings import BrokerSettings
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.transport.messages import reply
from rocketspark.transport.overload import Overload

SENDS = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.CONSUMER_SEND_MSG_BACK,
)
SLOW_PUT_PAUSE_S = 1.0
_SLOW = "[REJECTREQUEST]system busy, start flow control for a while"
_FULL = "[OVERLOAD]system busy, start flow control for a while"


class Pressure:
    """Turns what the parts of a broker notice into refusals. `overload` asks nothing back."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self.overload = Overload(lambda opaque, remark: reply(opaque, ResponseCode.SYSTEM_BUSY, remark=remark))
        self._slow: asyncio.TimerHandle | None = None
        self.configure()

    def configure(self) -> None:
        """Take over the settings that may change while the broker runs."""
        s = self._settings
        limits_ms = {
            **dict.fromkeys(SENDS, s.send_wait_max_ms),
            RequestCode.PULL_MESSAGE: s.pull_wait_max_ms,
            RequestCode.LITE_PULL_MESSAGE: s.lite_pull_wait_max_ms,
            RequestCode.HEART_BEAT: s.heartbeat_wait_max_ms,
            RequestCode.END_TRANSACTION: s.transaction_wait_max_ms,
        }
        wanted = limits_ms if s.refuse_when_behind else {}
        self.overload.limit_waits({int(code): ms / 1000 for code, ms in wanted.items()})

    def put_took(self, took_ms: float) -> None:
        """One of the puts that are timed: a slow one stops sends until one is fast again, or for a while."""
        if took_ms > self._settings.slow_put_ms and self._settings.refuse_when_behind:
            if self._slow is not None:
                self._slow.cancel()
            self._slow = asyncio.get_running_loop().call_later(SLOW_PUT_PAUSE_S, self._fast_again)
            self.overload.refuse(SENDS, "slow put", _SLOW)
        elif self._slow is not None:
            self._fast_again()

    def _fast_again(self) -> None:
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None
        self.overload.refuse(SENDS, "slow put", None)

    def flushes_waiting(self, too_many: bool) -> None:
        """Too many sends wait for their flush, or no longer."""
        self.overload.refuse(SENDS, "flushes", _FULL if too_many else None)

    def connections_max(self) -> float:
        """How many connections may be open at once: half of what the process may open is left to the store."""
        if self._settings.connections_max > 0:
            return self._settings.connections_max
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return math.inf if files == resource.RLIM_INFINITY else max(16, files // 2)

    def close(self) -> None:
        """End the timer."""
        if self._slow is not None:
            self._slow.cancel()
