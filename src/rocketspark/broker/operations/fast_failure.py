"""Fast failure: the requests that a broker refuses when it is behind, and its limit of connections.

Rule: a message that was refused was not stored. Remarks begin as RocketMQ's do (BrokerFastFailure, 5.x).
"""

from __future__ import annotations

import asyncio

from rocketspark.broker.settings import BrokerSettings
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.transport.request_frames import reply
from rocketspark.transport.server_bounds import Bounds, Overload, connections_max

SENDS = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_HALF_BATCH,
    RequestCode.CONSUMER_SEND_MSG_BACK,
)
SLOW_PUT_PAUSE_S = 1.0
_SLOW = "[REJECTREQUEST]system busy, start flow control for a while"
_FULL = "[OVERLOAD]system busy, start flow control for a while"


class FastFailure:
    """Decides when the broker refuses requests, by what its parts report. `overload`: the server's own switch."""

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
            RequestCode.END_HALF_RANGES: s.transaction_wait_max_ms,
        }
        wanted = limits_ms if s.refuse_when_behind else {}
        self.overload.limit_waits({int(code): ms / 1000 for code, ms in wanted.items()})

    def put_took(self, took_ms: float) -> None:
        """Take the time of a measured put: after a slow one sends are refused until one is fast, or for a while."""
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
        """Refuse sends while too many others wait for the flush to disk, or accept them again."""
        self.overload.refuse(SENDS, "flushes", _FULL if too_many else None)

    def connections_max(self) -> float:
        """Return the limit of open connections; by default half of the process's descriptors is left to the store."""
        if self._settings.connections_max > 0:
            return self._settings.connections_max
        return connections_max()

    def bounds(self) -> Bounds:
        """Return how many connections an address may have, and how many bytes connections may leave unread."""
        s = self._settings
        return Bounds(
            per_address=s.connections_per_address_max,
            unfinished_s=s.unfinished_frame_ms / 1000,
            unfinished_bytes=s.unfinished_bytes_max,
            unread_bytes=s.unread_bytes_max,
        )

    def close(self) -> None:
        """Cancel the timer."""
        if self._slow is not None:
            self._slow.cancel()
