"""Times and figures as commands show them to people, and the times that people give. Rule: local time."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

from rocketspark import machine
from rocketspark.model.text import LONG_MAX, shown, whole_number

if TYPE_CHECKING:
    from rocketspark.admin.offsets import Place


def clock(ms: int) -> str:
    """Return a time in ms since 1970 as date and time, or its number if no calendar has it."""
    try:
        return datetime.fromtimestamp(ms / 1000).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return str(ms)


AGO_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
# Units above minutes, and the next smaller one, each in seconds.
_UNITS = ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


def span(ms: int) -> str:
    """Return how long something takes: 350 ms, 12.3 s, then in two units as 5 min 2 s, 3 h 12 min, 2 d 4 h."""
    if ms < 1000:
        return f"{ms} ms"
    for unit, name, below, small in _UNITS:
        if ms >= 1000 * unit:
            return f"{ms // 1000 // unit} {name} {ms // 1000 % unit // below} {small}"
    return f"{ms / 1000:.1f} s"


def counted(count: int, what: str) -> str:
    """Return a number with what it counts: 1 message, 2,000 messages."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def place(option: str, text: str) -> Place:
    """Return the place in queues that an option's text names: earliest, latest, an offset or a time. Raises
    BadParameter.
    """
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if (offset := whole_number(text, high=LONG_MAX)) is not None:
        return offset
    if ago := re.fullmatch(r"([0-9]{1,9})([smhd])", text):
        span_s = int(ago[1]) * AGO_S[ago[2]]
        return datetime.fromtimestamp(max(machine.time_ns() / 1e9 - span_s, 0), UTC)
    try:
        # Digits alone may be a date and a time too.
        time = datetime.fromisoformat("" if text.isdigit() else text)
        time.timestamp()
    except (ValueError, OverflowError, OSError):
        raise typer.BadParameter(
            f"{shown(text, characters_max=60)!r}: earliest, latest, an offset, a time such as 2026-01-31T12:00 or how"
            " long ago such as 15m is needed",
            param_hint=option,
        ) from None
    return time
