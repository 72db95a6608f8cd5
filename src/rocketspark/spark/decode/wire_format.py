"""Confluent's wire format: a zero byte, the schema's id in four bytes, for Protobuf the place of the message in its
file, then the body. Rule: pure; whatever the bytes are, the outcome is a value or a ValueError that says why.
"""

from __future__ import annotations

from typing import NamedTuple

MAGIC = 0
PREFIX_BYTES = 5
# Messages that lie within each other: no compiler takes files that are nested deeper.
INDEXES_MAX = 100
_INDEX_MAX = 2**31 - 1


class Framed(NamedTuple):
    """A body in the wire format: its schema's id, and where the payload begins."""

    schema_id: int
    start: int


def split(body: bytes) -> Framed:
    """Return the id and the begin of the payload. Raises ValueError."""
    if len(body) < PREFIX_BYTES:
        raise ValueError(f"{len(body)} bytes are too short for a magic byte and a schema id")
    if body[0] != MAGIC:
        raise ValueError(f"the magic byte is {body[0]}, not 0: the body is not in the wire format of a schema registry")
    return Framed(int.from_bytes(body[1:PREFIX_BYTES], "big"), PREFIX_BYTES)


def read_indexes(body: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """Return the place of a Protobuf message in its file (the index of each message that it lies in, then its own), and
    where the payload begins. Raises ValueError.
    """
    count, at = _read_zigzag(body, at)
    if count == 0:
        return (0,), at  # Short for the first message.
    if not 0 < count <= INDEXES_MAX:
        raise ValueError(f"the list of message indexes has {count} entries")
    indexes = []
    for _ in range(count):
        index, at = _read_zigzag(body, at)
        if not 0 <= index <= _INDEX_MAX:
            raise ValueError(f"{index} is no index of a message")
        indexes.append(index)
    return tuple(indexes), at


def _read_zigzag(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(body):
            raise ValueError("the body ends within the list of message indexes")
        if shift > 63:
            raise ValueError("a message index has more than ten bytes")
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
