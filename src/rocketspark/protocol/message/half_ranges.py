"""The body of END_HALF_RANGES, our own: ranges of the half queue. Pure.

Each range is `first count position...`: the half queue's offset of its first message, how many messages, and the
physical offset of each. The reply's body are the half queue's offsets of those that cannot be committed any more.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from rocketspark.errors import RocketSparkError

_HEAD = struct.Struct(">qi")
# Half messages of one request: their places take 8 bytes each.
COUNT_MAX = 16_384
LONG_MAX = (1 << 63) - 1
# Of the physical offset, with which a broker's id ends, in hex.
POSITION_DIGITS = 16

Range = tuple[int, NDArray[np.int64]]


def encode(ranges: Iterable[Range]) -> bytes:
    """Return the request's body for ranges: of each, the offset of its first message, and the physical offsets of
    all.
    """
    return b"".join(_HEAD.pack(first, len(at)) + at.astype(">i8").tobytes() for first, at in ranges)


def decode(body: bytes) -> list[Range]:
    """Return the ranges of a body. Raises ValueError if it has none, too many messages, or lengths do not fit."""
    found: list[Range] = []
    at = total = 0
    while at < len(body):
        if len(body) - at < _HEAD.size:
            raise ValueError(f"cut off at byte {at}")
        first, count = _HEAD.unpack_from(body, at)
        at += _HEAD.size
        if not 0 <= first <= LONG_MAX - count or count < 1 or count * 8 > len(body) - at:
            raise ValueError(f"{count} messages from offset {first} on, with {len(body) - at} bytes for their places")
        total += count
        if total > COUNT_MAX:
            raise ValueError(f"more than {COUNT_MAX} messages: end them by several requests")
        found.append((first, np.frombuffer(body, ">i8", count, at).astype(np.int64)))
        at += count * 8
    if not found:
        raise ValueError("there is none")
    return found


def encode_offsets(offsets: Sequence[int]) -> bytes:
    """Return offsets as a reply's body."""
    return np.array(offsets, ">i8").tobytes()


def decode_offsets(body: bytes) -> NDArray[np.int64]:
    """Return the offsets of a reply's body. Raises ValueError if it is cut off."""
    return np.frombuffer(body, ">i8").astype(np.int64)


def positions_of(message_ids: str, count: int) -> NDArray[np.int64]:
    """Return the physical offsets that a broker's message ids, with commas between them, hold. Raises RocketSparkError
    if they are not `count` ids.
    """
    width = (len(message_ids) + 1) // count
    try:
        ids = np.frombuffer(f"{message_ids},".encode("ascii"), np.uint8).reshape(count, width)
        if width <= POSITION_DIGITS or (ids[:, -1] != ord(",")).any():
            raise ValueError("no commas")
        digits = ids[:, -1 - POSITION_DIGITS : -1].tobytes().decode("ascii")
        return np.frombuffer(bytes.fromhex(digits), ">i8").astype(np.int64)
    except ValueError:
        raise RocketSparkError(
            f"the broker says {message_ids[:80]!r} instead of the places of {count} half messages"
        ) from None
