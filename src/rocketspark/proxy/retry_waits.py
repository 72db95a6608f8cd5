"""How often, and after which time, a message that failed comes again, by its group's settings. Pure.

Rule: RetryPolicy, 5.5.0; what is no number there, which brokers keep as it is, is the default. Each message comes once.
"""

from __future__ import annotations

from typing import Any

from rocketspark.protocol.json.bodies import GroupConfig

_POWER_MAX = 32
_INITIAL_MS, _LONGEST_MS, _MULTIPLIER = 5000, 7_200_000, 2.0
# A hundred years.
_MS_MAX, _MULTIPLIER_MAX = 100 * 366 * 86_400_000, 1e6
# The waits of the retry policy CUSTOMIZED, in seconds, as Apache's (the delay levels from the third on).
RETRY_WAITS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)


def attempts_max(group: GroupConfig) -> int:
    """Return how often a message is delivered; once at least: -1 retries are none."""
    return max(group.retry_max_times, 0) + 1


def exponential(policy: dict[str, Any]) -> tuple[int, int, float] | None:
    """Return the first wait, the longest, both in ms, and the multiplier of a policy EXPONENTIAL; None for another."""
    if policy.get("type") != "EXPONENTIAL":
        return None
    given = policy.get("exponentialRetryPolicy")
    given = given if isinstance(given, dict) else {}
    initial_ms, longest_ms = (
        int(_number(given.get(name), default, _MS_MAX))
        for name, default in (("initial", _INITIAL_MS), ("max", _LONGEST_MS))
    )
    return initial_ms, longest_ms, _number(given.get("multiplier"), _MULTIPLIER, _MULTIPLIER_MAX)


def waits_ms(policy: dict[str, Any]) -> list[int]:
    """Return the waits of a policy CUSTOMIZED."""
    given = policy.get("customizedRetryPolicy")
    listed = given.get("next") if isinstance(given, dict) else None
    waits = [int(_number(each, -1, _MS_MAX)) for each in listed] if isinstance(listed, list) else []
    return waits if waits and min(waits) >= 0 else [wait_s * 1000 for wait_s in RETRY_WAITS_S]


def _number(value: Any, default: float, most: float) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return default
    return found if 0 <= found <= most else default


def retry_wait_ms(policy: dict[str, Any], attempts: int) -> int:
    """Return the wait before the next attempt, of a message with so many attempts before this one."""
    attempts = max(attempts, 0)
    if (grown := exponential(policy)) is not None:
        initial_ms, longest_ms, multiplier = grown
        return int(min(initial_ms * multiplier ** min(attempts, _POWER_MAX), longest_ms))
    waits = waits_ms(policy)
    # The first two waits are not those of messages that came back (CustomizedRetryPolicy, 5.5.0).
    return waits[min(attempts + 2, len(waits) - 1)]
