"""After which time a message that failed comes again, by its group's retry policy. Pure. Rule: RetryPolicy, 5.5.0."""

from __future__ import annotations

from typing import Any

from rocketspark.proxy.telemetry import RETRY_WAITS_S

_POWER_MAX = 32
_INITIAL_MS, _LONGEST_MS, _MULTIPLIER = 5000, 7_200_000, 2.0


def retry_wait_ms(policy: dict[str, Any], attempts: int) -> int:
    """Return the wait before the next attempt, of a message with so many attempts before this one."""
    attempts = max(attempts, 0)
    if policy.get("type") == "EXPONENTIAL":
        given = policy.get("exponentialRetryPolicy") or {}
        initial_ms, longest_ms = int(given.get("initial", _INITIAL_MS)), int(given.get("max", _LONGEST_MS))
        multiplier = float(given.get("multiplier", _MULTIPLIER))
        return int(min(initial_ms * multiplier ** min(attempts, _POWER_MAX), longest_ms))
    waits_ms = (policy.get("customizedRetryPolicy") or {}).get("next") or [s * 1000 for s in RETRY_WAITS_S]
    # The first two waits are not those of messages that came back (CustomizedRetryPolicy, 5.5.0).
    return int(waits_ms[min(attempts + 2, len(waits_ms) - 1)])
