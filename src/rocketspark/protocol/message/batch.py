"""The body of a batch send: messages one after another.

Each is `size magic crc flag bodyLength body propertiesLength properties`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rocketspark.errors import RecordError

_HEAD = struct.Struct(">iiiii")
HEAD_BYTES = _HEAD.size
# Makes what stands before a body, of: size of the message, magic, crc, flag, length of the body.
pack_head = _HEAD.pack
_SIZE = struct.Struct(">i")
# Fewer messages are read one by one as quickly.
SCAN_COUNT_MIN = 24
# The answer names each in some 33 bytes, and clients take a header of 1 MiB.
COUNT_MAX = 30_000
# A record that holds several tells how many in 16 bits; a small body may inflate to three million.
DECODED_MAX = 0x7FFF


class BatchItem(NamedTuple):
    """One message of a batch; `properties` as stored bytes."""

    flag: int
    body: bytes
    properties: bytes


def encode(items: Iterable[BatchItem]) -> bytes:
    """Return the batch body. Magic and crc are 0, as RocketMQ's producer writes them."""
    return b"".join([encode_item(*item) for item in items])


def encode_item(flag: int, body: bytes, properties: bytes) -> bytes:
    """Return one message of a batch body; the body is these joined."""
    size = _HEAD.size + len(body) + 2 + len(properties)
    return b"%b%b%b%b" % (
        _HEAD.pack(size, 0, 0, flag, len(body)),
        body,
        len(properties).to_bytes(2, "big"),
        properties,
    )


def decode(body: bytes | memoryview) -> list[BatchItem]:
    """Return the messages of a batch body. Raises RecordError if lengths do not fit, or for over `DECODED_MAX`."""
    view = memoryview(body)
    items: list[BatchItem] = []
    at = 0
    while at < len(view):
        if len(items) == DECODED_MAX:
            raise RecordError(f"a batch of more than {DECODED_MAX} messages")
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


class Layout(NamedTuple):
    """Where the messages of a batch body lie: arrays with an element for each message.

    `starts`: where the message begins; `sizes`: its bytes in all; `flags`; `body_bytes`, `properties_bytes`: the
    lengths of these parts. `width`: the size of each message if all have the same size and body length, else 0.
    """

    body: bytes
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    flags: NDArray[np.int32]
    body_bytes: NDArray[np.int64]
    properties_bytes: NDArray[np.int64]
    width: int

    @property
    def message_count(self) -> int:
        """The number of messages."""
        return len(self.starts)

    @property
    def properties_at(self) -> NDArray[np.int64]:
        """Return the positions where the properties of each message begin."""
        return self.starts + (HEAD_BYTES + 2) + self.body_bytes


def scan(body: bytes) -> Layout | None:
    """Return the layout of a batch body; None if it has few messages or lengths do not fit: use `decode` then.

    Raises RecordError for one of more messages than a batch may have.
    """
    total = len(body)
    if total < (HEAD_BYTES + 2) * SCAN_COUNT_MIN:
        return None
    width = _SIZE.unpack_from(body)[0]
    if width < HEAD_BYTES + 2 or width * (SCAN_COUNT_MIN - 1) > total:
        return None
    data = np.frombuffer(body, np.uint8)
    count, rest = divmod(total, width)
    if not rest and count <= COUNT_MAX and (data.reshape(count, width)[:, :4] == data[:4]).all():
        starts = np.arange(0, total, width, dtype=np.int64)
        sizes = np.full(count, width, np.int64)
        heads = np.ndarray((count, 5), ">i4", body, strides=(width, 4))
    else:
        width = 0
        found: list[int] = []
        add, unpack, at, last = found.append, _SIZE.unpack_from, 0, total - HEAD_BYTES - 2
        while at <= last:
            add(at)
            size = unpack(body, at)[0]
            if size < HEAD_BYTES + 2:
                return None
            at += size
            if len(found) > COUNT_MAX:
                raise RecordError(f"a batch of more than {COUNT_MAX} messages")
        if at != total or len(found) < SCAN_COUNT_MIN:
            return None
        starts = np.array(found, np.int64)
        sizes = np.diff(starts, append=total)
        heads = data[starts[:, None] + np.arange(HEAD_BYTES)].view(">i4")
    body_bytes = heads[:, 4].astype(np.int64)
    if (body_bytes < 0).any() or (body_bytes > sizes - (HEAD_BYTES + 2)).any():
        return None
    at_length = starts + HEAD_BYTES + body_bytes
    properties_bytes = data[at_length].astype(np.int64) << 8 | data[at_length + 1]
    if (properties_bytes + body_bytes + (HEAD_BYTES + 2) != sizes).any():
        return None
    if width and (body_bytes != body_bytes[0]).any():
        width = 0
    return Layout(body, starts, sizes, heads[:, 3].astype(np.int32), body_bytes, properties_bytes, width)
