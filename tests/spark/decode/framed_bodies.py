"""Bodies in Confluent's wire format, as serializers write them."""

from __future__ import annotations


def join(schema_id: int, payload: bytes) -> bytes:
    """Return a body in the wire format."""
    return b"\0" + schema_id.to_bytes(4, "big") + payload


def write_indexes(indexes: tuple[int, ...]) -> bytes:
    """Return the list of message indexes as it stands in a body."""
    if indexes == (0,):
        return b"\0"
    return b"".join(_zigzag(number) for number in (len(indexes), *indexes))


def _zigzag(number: int) -> bytes:
    value = number << 1 if number >= 0 else ((-number) << 1) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
