"""Java's own arithmetic, where RocketMQ's formats depend on it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

# Longer texts are hashed each time, so that what is kept stays within some MB.
KEPT_LENGTH_MAX = 128
# Of 31, for the places of a text; made when a long one comes.
_powers: Any = None


def string_hash(text: str) -> int:
    """Java's String.hashCode: h = 31*h + UTF-16 unit in 32 bits, signed."""
    return _kept_hash(text) if len(text) <= KEPT_LENGTH_MAX else _long_hash(text)


def _long_hash(text: str) -> int:
    """32,000 characters: 0.05 ms."""
    # Few need it: it takes longer to load than all else here.
    import numpy as np

    global _powers
    units = np.frombuffer(text.encode("utf-16-le", "surrogatepass"), "<u2").astype(np.uint32)
    # Another thread may put shorter ones in their place meanwhile.
    powers = _powers
    if powers is None or len(powers) < len(units):
        powers = np.full(len(units), 31, np.uint32)
        powers[0] = 1
        # Modulo 2^32, as everything here.
        powers = _powers = powers.cumprod(dtype=np.uint32)
    return int((units * powers[: len(units)][::-1]).sum(dtype=np.uint32).view(np.int32))


@lru_cache(maxsize=65536)
def _kept_hash(text: str) -> int:
    h = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for i in range(0, len(units), 2):
        h = (31 * h + (units[i] << 8 | units[i + 1])) & 0xFFFFFFFF
    return h - (1 << 32) if h & 0x80000000 else h
