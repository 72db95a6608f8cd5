"""The CRC of a whole record, its last property (enabledAppendPropCRC). Rule: it covers all bytes before it.

`__CRC32# 0x01 digits 0x02`, ten digits, the lowest first.
"""

from __future__ import annotations

from rocketspark.protocol.message import checksums

NAME = b"__CRC32#\x01"
_ROOM = NAME + b"0" * 10 + b"\x02"
BYTES = len(_ROOM)


def without(stored: bytes) -> bytes:
    """Return stored properties without the record's CRC, which is wrong for any other record."""
    at = stored.find(NAME)
    while at > 0 and stored[at - 1] != 2:
        at = stored.find(NAME, at + 1)
    if at < 0:
        return stored
    end = stored.find(b"\x02", at)
    return without(stored[:at] + (stored[end + 1 :] if end >= 0 else b""))


def with_room(stored: bytes) -> bytes:
    """Return stored properties with room for the record's CRC at their end."""
    stored = without(stored)
    if stored and stored[-1] != 2:
        stored += b"\x02"
    return stored + _ROOM


def sealed(record: bytes) -> bytes:
    """Return a record whose properties were made by `with_room`, with its CRC in place."""
    return record[:-BYTES] + _property(record[:-BYTES])


def is_right(record: bytes | memoryview) -> bool:
    """Tell whether a record's CRC is right; a record without one passes."""
    stated = bytes(record[-BYTES:])
    if not stated.startswith(NAME) or not stated.endswith(b"\x02"):
        return True
    return stated == _property(record[:-BYTES])


def _property(before: bytes | memoryview) -> bytes:
    return NAME + f"{checksums.crc32(before) & 0x7FFFFFFF:010d}"[::-1].encode() + b"\x02"
