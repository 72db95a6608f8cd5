"""The body of a batch send: messages one after another.

Each is `size magic crc flag bodyLength body propertiesLength properties`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from rocketspark.errors import RecordError

_HEAD = struct.Struct(">iiiii")


class BatchItem(NamedTuple):
    """One message of a batch; `properties` as stored bytes."""

    flag: int
    body: bytes
    properties: bytes


def encode(items: Iterable[BatchItem]) -> bytes:
    """The batch body. Magic and crc are 0, as RocketMQ's producer writes them."""
    return b"".join([encode_item(*item) for item in items])


def encode_item(flag: int, body: bytes, properties: bytes) -> bytes:
    """One message of a batch body: whoever gathers them joins these."""
    size = _HEAD.size + len(body) + 2 + len(properties)
    return b"%b%b%b%b" % (
        _HEAD.pack(size, 0, 0, flag, len(body)),
        body,
        len(properties).to_bytes(2, "big"),
        properties,
    )


def decode(body: bytes | memoryview) -> list[BatchItem]:
    """The messages of a batch body. Raises RecordError if lengths do not fit."""
    view = memoryview(body)
    items: list[BatchItem] = []
    at = 0
    while at < len(view):
        if len(view) - at < _HEAD.size + 2:
            raise RecordError(f"batch message {len(items)} is cut off at byte {at}")
        size, _, _, flag, body_length = _HEAD.unpack_from(view, at)
        body_at = at + _HEAD.size
        properties_at = body_at + body_length + 2
        if body_length < 0 or properties_at > len(view):
            raise RecordError(f"batch message {len(items)} states a body of {body_length} bytes, beyond the batch")
        end = properties_at + int.from_bytes(view[properties_at - 2 : properties_at], "big")
        if end > len(view) or end - at != size:
            raise RecordError(f"batch message {len(items)} states {size} bytes, its parts make {end - at}")
        items.append(BatchItem(flag, bytes(view[body_at : body_at + body_length]), bytes(view[properties_at:end])))
        at = end
    return items
