"""Durations of requests as milliseconds. Pure."""

from __future__ import annotations

from typing import Any


def duration_ms(duration: Any) -> int:
    """Return a Duration in ms, whatever numbers it holds."""
    return int(duration.seconds * 1000 + duration.nanos // 1_000_000)
