"""The checkpoint file: up to which store time and physical offset everything is on the disk. 4096 bytes, six i8.

The sixth number is the position from which RocketMQ is to read the log again, which may be an earlier one than ours.
Ours stands after the six numbers, with a CRC over all of them: it counts only while the six are unchanged, or but for
one bit. The added part also has a CRC of its own: if that is right and the first is wrong, RocketMQ has written the six
numbers since; if it is wrong the file is damaged, and everything is read again.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

from rocketspark.store.files.system_calls import OsFiles, failure

_LAYOUT = struct.Struct(">qqqqqq")
# Our position, the CRC of it and the six, and that of both.
_OWN = struct.Struct(">qII")
_OWN_AT = 64
_OWN_CRC_AT = _OWN.size - 4
FILE_BYTES = 4096


class Checkpoint(NamedTuple):
    """What is on the disk. Times are store times in ms. `queues_position`: everything of log, queues and index before
    it is.
    """

    log_time_ms: int = 0
    queues_time_ms: int = 0
    index_time_ms: int = 0
    master_flushed_position: int = 0
    confirmed_position: int = 0
    queues_position: int = 0


def read(path: str) -> Checkpoint:
    """Return the checkpoint; all zero if there is no file, or it is too short or damaged."""
    try:
        with open(path, "rb") as file:
            content = file.read(_OWN_AT + _OWN.size)
    except FileNotFoundError:
        return Checkpoint()
    if len(content) < _LAYOUT.size:
        return Checkpoint()
    told, own = content[: _LAYOUT.size], content[_OWN_AT:].ljust(_OWN.size, b"\0")
    if not own.strip(b"\0"):
        return Checkpoint(*_LAYOUT.unpack(told))
    position, crc, own_crc = _OWN.unpack(own)
    if own_crc != zlib.crc32(own[:_OWN_CRC_AT]):
        return Checkpoint()
    ours = _mended(told, position, crc)
    if ours is None:
        return Checkpoint(*_LAYOUT.unpack(told))
    return Checkpoint(*_LAYOUT.unpack(ours))._replace(queues_position=position)


def _mended(told: bytes, position: int, crc: int) -> bytes | None:
    """Return the six numbers as we wrote them, where at most a bit is another; else None."""
    if _crc(told, position) == crc:
        return told
    for bit in range(len(told) * 8):
        tried = bytearray(told)
        tried[bit // 8] ^= 1 << bit % 8
        if _crc(bytes(tried), position) == crc:
            return bytes(tried)
    return None


def write(path: str, checkpoint: Checkpoint, files: OsFiles, *, replay_from: int) -> None:
    """Write the checkpoint in place, as RocketMQ does, since it is smaller than a disk block. Raises StoreFull,
    StoreUnwritable.

    `replay_from`: the position from which RocketMQ is to read the log again after a kill.
    """
    told = _LAYOUT.pack(*checkpoint._replace(queues_position=replay_from))
    position = checkpoint.queues_position
    own = _OWN.pack(position, _crc(told, position), 0)
    own = own[:_OWN_CRC_AT] + zlib.crc32(own[:_OWN_CRC_AT]).to_bytes(4, "big")
    try:
        files.overwrite(path, told.ljust(_OWN_AT, b"\0") + own, FILE_BYTES)
    except OSError as e:
        raise failure(e, "write", path, FILE_BYTES) from e


def _crc(told: bytes, position: int) -> int:
    return zlib.crc32(told + position.to_bytes(8, "big", signed=True))
