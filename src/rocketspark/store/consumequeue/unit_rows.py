"""Structs that unpack a part of many units of consume queues in one call."""

from __future__ import annotations

import struct
from functools import cache


@cache
def places(count: int) -> struct.Struct:
    """Return the struct that unpacks physical offset and size of `count` units in a row, without their tags codes."""
    return struct.Struct(">" + "qi8x" * count)


@cache
def sizes(count: int) -> struct.Struct:
    """Return the struct that unpacks only the record sizes of `count` units in a row."""
    return struct.Struct(">" + "8xi8x" * count)
