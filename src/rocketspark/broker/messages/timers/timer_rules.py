"""Due times and recalls of timer messages. Rules: HookUtils and RecallMessageProcessor, 5.5.0; pure."""

from __future__ import annotations

import re

from rocketspark.errors import ProtocolError, ServerError
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.timers import RecallHandle, decode_handle

# Any of these asks for a delivery time; the first of them that is there counts.
TIMER_PROPERTIES = frozenset({b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS", b"TIMER_DELIVER_MS"})
# Room for the properties that the broker adds when it parks and when it delivers.
ADDED_BYTES = 160
_ASKED = re.compile(rb"(?:(?<=\x02)|^)TIMER_(?:DELAY_SEC|DELAY_MS|DELIVER_MS)\x01[^\x02]*(?:\x02|$)")
_NUMBER = re.compile(rb"[+-]?[0-9]{1,18}\Z")


def without_times(stored: bytes) -> bytes:
    """Return properties without a delivery time, as for a message whose delay level overrides it."""
    return _ASKED.sub(b"", stored)


class TimerRules:
    """The limits of one broker's timer messages.

    `precision_ms`: the grid of the wheel's slots; `delay_max_ms`: how far ahead a delivery time may be.
    """

    def __init__(self, *, broker_name: str, enabled: bool, precision_ms: int, delay_max_ms: int) -> None:
        self._broker_name = broker_name
        self._enabled = enabled
        self._precision_ms = precision_ms
        self._delay_max_ms = delay_max_ms

    def out_ms(self, pairs: dict[bytes, bytes], now_ms: int) -> int | None:
        """Return the slot of the wheel for a message with a delivery time; None if it is due, and to be stored at once.

        Raises ServerError: 13 if the time is too far ahead or no number, 1 if timer messages are turned off.
        """
        if not self._enabled:
            raise ServerError(
                ResponseCode.SYSTEM_ERROR, "accurate timer message is not enabled, timerWheelEnable is false"
            )
        try:
            if (text := pairs.get(b"TIMER_DELAY_SEC")) is not None:
                deliver_ms = now_ms + _number(text) * 1000
            elif (text := pairs.get(b"TIMER_DELAY_MS")) is not None:
                deliver_ms = now_ms + _number(text)
            else:
                deliver_ms = _number(pairs[b"TIMER_DELIVER_MS"])
        except ValueError:
            raise self._illegal() from None
        if deliver_ms <= now_ms:
            if b"TIMER_DEL_UNIQKEY" in pairs:
                raise self._illegal()
            return None
        if deliver_ms - now_ms > self._delay_max_ms:
            raise self._illegal()
        # A slot is delivered once it is over: a time on the grid belongs to the slot before.
        return (deliver_ms - 1) // self._precision_ms * self._precision_ms

    def _illegal(self) -> ServerError:
        return ServerError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"timer message illegal, the delay time should not be bigger than the max delay {self._delay_max_ms}ms;"
            " or if set del msg, the delay time should be bigger than the current time",
        )

    def handle(self, topic: str, out_ms: int, message_id: str) -> str:
        """Return the recall handle, the text by which the sender may recall a timer message."""
        return RecallHandle(topic, self._broker_name, out_ms + 1, message_id).encode()

    def recalled(self, topic: str, text: str, now_ms: int) -> RecallHandle:
        """Decode a recall handle. Raises ServerError 604 if it is invalid for this topic or broker, or too late."""
        try:
            handle = decode_handle(text)
        except ProtocolError as e:
            raise ServerError(ResponseCode.ILLEGAL_OPERATION, str(e)) from e
        if handle.topic != topic:
            raise ServerError(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match")
        if handle.broker_name != self._broker_name:
            raise ServerError(ResponseCode.ILLEGAL_OPERATION, "recall failed, broker service not available")
        if not 0 < handle.deliver_ms - now_ms < self._delay_max_ms:
            raise ServerError(ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid")
        return handle


def _number(text: bytes) -> int:
    if not _NUMBER.match(text):
        raise ValueError(text)
    return int(text)
