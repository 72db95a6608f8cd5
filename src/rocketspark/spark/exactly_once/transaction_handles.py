"""Manifests: the transaction handles of a task attempt's half messages, compactly. Pure.

Rule: a handle is what END_TRANSACTION needs: offset in the half queue and physical offset, of a broker.
"""

from __future__ import annotations

import struct
import zlib

import msgspec
import numpy as np
from numpy.typing import NDArray

from rocketspark.errors import RocketSparkError
from rocketspark.model import MessageQueue, typed_json

ROWS_MAX = 65_536
_LENGTH = struct.Struct(">I")
# Handles of one task lie close together: differences are small, and zlib leaves some 3 bytes of each.
_LEVEL = 1


class HandleHead(msgspec.Struct, frozen=True):
    """The head of a manifest message. `sequence`: its number within the attempt; `queues`: targets of rows."""

    attempt: str
    sequence: int
    rows: int
    query: str
    batch: int
    ordered: bool
    queues: tuple[tuple[str, str, int], ...]


class HandleManifest(msgspec.Struct, frozen=True):
    """Handles of half messages, in the order of the rows: `targets` says which of the head's queues each is for."""

    head: HandleHead
    targets: NDArray[np.int32]
    half_offsets: NDArray[np.int64]
    positions: NDArray[np.int64]

    def queue(self, target: int) -> MessageQueue:
        """Return the queue of a target."""
        return MessageQueue(*self.head.queues[target])


def encode(manifest: HandleManifest) -> bytes:
    """Return the body of the manifest's message."""
    head = msgspec.json.encode(manifest.head)
    columns = b"".join(
        np.diff(column, prepend=column.dtype.type(0)).astype(kind).tobytes()
        for column, kind in ((manifest.targets, "<i4"), (manifest.half_offsets, "<i8"), (manifest.positions, "<i8"))
    )
    return b"".join((_LENGTH.pack(len(head)), head, zlib.compress(columns, _LEVEL)))


def decode(body: bytes) -> HandleManifest:
    """Decode a manifest from its message's body. Raises RocketSparkError if it is none."""
    try:
        (size,) = _LENGTH.unpack_from(body)
        head = typed_json.decode(body[4 : 4 + size], HandleHead)
        rows = head.rows
        if not 0 <= rows <= ROWS_MAX:
            raise ValueError(f"{rows} rows")
        columns = zlib.decompressobj().decompress(body[4 + size :], rows * 20 + 1)
        if len(columns) != rows * 20:
            raise ValueError(f"{len(columns)} bytes for {rows} rows")
        targets = np.cumsum(np.frombuffer(columns, "<i4", rows), dtype=np.int32)
        half_offsets = np.cumsum(np.frombuffer(columns, "<i8", rows, rows * 4), dtype=np.int64)
        positions = np.cumsum(np.frombuffer(columns, "<i8", rows, rows * 12), dtype=np.int64)
        if rows and not (int(targets.min()) >= 0 and int(targets.max()) < len(head.queues)):
            raise ValueError("a row has no queue")
    except (ValueError, struct.error, zlib.error, msgspec.DecodeError, OverflowError) as e:
        raise RocketSparkError(f"the commit topic holds a message that is no manifest of ours: {e}") from None
    return HandleManifest(head, targets, half_offsets, positions)
