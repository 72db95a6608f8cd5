"""Java's own arithmetic, where RocketMQ's formats depend on it."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=65536)
def string_hash(text: str) -> int:
    """Java's String.hashCode: h = 31*h + UTF-16 unit in 32 bits, signed."""
    h = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for i in range(0, len(units), 2):
        h = (31 * h + (units[i] << 8 | units[i + 1])) & 0xFFFFFFFF
    return h - (1 << 32) if h & 0x80000000 else h
