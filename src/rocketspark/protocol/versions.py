"""The versions of RocketMQ, which clients and brokers tell as a number. Rule: MQVersion, 5.5."""

from __future__ import annotations

# V4_0_0_SNAPSHOT; from there on each version has two numbers, and each part but the first one digit.
_FIRST, _FIRST_MAJOR = 212, 4
# Where the list ends, after V5_9_9.
_END = 612


def version_name(number: int) -> str:
    """Return a version's name: V5_5_0 for 513, V3 for those before V4_0_0, HIGHER_VERSION for those beyond the list."""
    if number >= _END:
        return "HIGHER_VERSION"
    if number < _FIRST:
        return "V3"
    count, released = divmod(number - _FIRST, 2)
    return f"V{_FIRST_MAJOR + count // 100}_{count // 10 % 10}_{count % 10}{'' if released else '_SNAPSHOT'}"
