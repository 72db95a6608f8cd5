"""The body of a batch send, made of columns: many messages at once. Rule: the bytes are those of `batch.encode_item`.

Each message gets a unique id of a block of them and WAIT true, which stand before its other properties.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from rocketspark.protocol.message import properties
from rocketspark.protocol.message.batch import HEAD_BYTES
from rocketspark.protocol.message.message_ids import ID_CHARACTERS

Matrix = NDArray[np.uint8]
# Properties in stored form: a text that all messages share, or one for each message.
Piece = bytes | Sequence[bytes]

BEFORE_ID = f"{properties.UNIQUE_ID}\x01".encode()
AFTER_ID = f"\x02{properties.WAIT}\x01true\x02".encode()
# Of the number at the end of a unique id.
_NUMBER_DIGITS = 12
# Larger bodies of one length are joined as quickly as others: a matrix copies them twice.
ALIKE_BYTES_MAX = 512


def first_properties(unique_id: str) -> bytes:
    """Return the properties that a message begins with."""
    return b"%b%b%b" % (BEFORE_ID, unique_id.encode(), AFTER_ID)


# The length of these, with an id as `UniqueIdBlocks` makes it.
FIRST_BYTES = len(first_properties("0" * ID_CHARACTERS))


def encode(bodies: Sequence[bytes], pieces: Sequence[Piece], prefix: str, first: int) -> bytes:
    """Return the batch body of messages with these bodies.

    `pieces`: their properties behind the first ones, in this order; `prefix`, `first`: a block of as many unique ids.
    The properties of a message must not be longer than `properties.BYTES_MAX`. A message takes some 0.1 us, and as
    much again with keys of its own or with a KiB.
    """
    count = len(bodies)
    body_bytes = lengths(bodies)
    shared = [piece for piece in pieces if isinstance(piece, bytes)]
    if (
        count > 0
        and len(shared) == len(pieces)
        and body_bytes[0] <= ALIKE_BYTES_MAX
        and (body_bytes == body_bytes[0]).all()
    ):
        matrix = np.frombuffer(b"".join(bodies), np.uint8).reshape(count, -1)
        return alike(matrix, b"".join(shared), prefix, first).tobytes()
    more = np.zeros(count, np.int64)
    for piece in pieces:
        more += len(piece) if isinstance(piece, bytes) else lengths(piece)
    head, middle = frames(prefix, first, body_bytes, more)
    parts: list[bytes] = [b""] * (count * (3 + len(pieces)))
    for at, column in enumerate((_rows(head), bodies, _rows(middle), *pieces)):
        parts[at :: 3 + len(pieces)] = [column] * count if isinstance(column, bytes) else column
    return b"".join(parts)


def frames(
    prefix: str,
    first: int,
    body_bytes: NDArray[np.integer],
    more_bytes: NDArray[np.integer],
    flags: NDArray[np.int32] | None = None,
) -> tuple[Matrix, Matrix]:
    """Return what stands before each message's body, and between its body and its further properties, a row each.

    `more_bytes`: the length of the further properties of each.
    """
    count = len(body_bytes)
    before = np.frombuffer(BEFORE_ID + prefix.encode(), np.uint8)
    after = np.frombuffer(AFTER_ID, np.uint8)
    # The length of the properties, and those that every message has.
    ends = np.cumsum([2, len(before), _NUMBER_DIGITS, len(after)])
    middle = np.empty((count, ends[3]), np.uint8)
    properties_bytes = more_bytes + (ends[3] - 2)
    middle[:, :2] = properties_bytes.astype(">u2").view(np.uint8).reshape(count, 2)
    middle[:, 2 : ends[1]] = before
    _write_digits(middle[:, ends[1] : ends[2]], first)
    middle[:, ends[2] :] = after
    heads = np.zeros((count, 5), ">i4")
    heads[:, 0] = HEAD_BYTES + body_bytes + 2 + properties_bytes
    if flags is not None:
        heads[:, 3] = flags
    heads[:, 4] = body_bytes
    return heads.view(np.uint8).reshape(count, HEAD_BYTES), middle


def alike(bodies: Matrix, more: bytes, prefix: str, first: int) -> Matrix:
    """Return messages of bodies of one length, a row each, with the same further properties, a row each: a third of the
    time of joining columns.
    """
    count, width = bodies.shape
    head, middle = frames(prefix, first, np.array([width]), np.array([len(more)]))
    message = np.concatenate([head[0], bodies[0], middle[0], np.frombuffer(more, np.uint8)])
    rows = np.empty((count, len(message)), np.uint8)
    rows[:] = message
    rows[:, HEAD_BYTES : HEAD_BYTES + width] = bodies
    at = HEAD_BYTES + width + 2 + len(BEFORE_ID) + len(prefix)
    _write_digits(rows[:, at : at + _NUMBER_DIGITS], first)
    return rows


def lengths(values: Sequence[bytes]) -> NDArray[np.int64]:
    """Return the length of each value."""
    return np.fromiter(map(len, values), np.int64, len(values))


def _rows(matrix: Matrix) -> list[bytes]:
    """Return the rows of a matrix."""
    found: list[bytes] = matrix.view(f"V{matrix.shape[1]}").ravel().tolist()
    return found


def _write_digits(target: Matrix, first: int) -> None:
    """Write the hex digits of numbers from `first` on, a row each."""
    count = len(target)
    numbers = np.arange(first, first + count, dtype=np.int64)
    last = first + count - 1
    for at in range(0, _NUMBER_DIGITS, 4):
        shift = 4 * (_NUMBER_DIGITS - 4 - at)
        if first >> shift == last >> shift:
            target[:, at : at + 4] = np.frombuffer(b"%04X" % (first >> shift & 0xFFFF), np.uint8)
        else:
            target[:, at : at + 4] = _hex4()[numbers >> shift & 0xFFFF]


@cache
def _hex4() -> Matrix:
    """Return the four hex digits of each number of 16 bits."""
    digits = np.frombuffer(b"0123456789ABCDEF", np.uint8)
    numbers = np.arange(1 << 16)
    return np.stack([digits[numbers >> shift & 15] for shift in (12, 8, 4, 0)], axis=1)
