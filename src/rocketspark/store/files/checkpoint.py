"""The checkpoint file: up to which store time and physical offset everything is on the disk. 4096 bytes, six i8.

RocketMQ's position may be an earlier one, to read the log from. Ours stands after the six numbers, with a CRC over
all of them: it counts only while the six are unchanged.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

from rocketspark.store.files.system_calls import OsFiles, failure

_LAYOUT = struct.Struct(">qqqqqq")
# Our position, and the CRC of it and the six.
_OWN = struct.Struct(">qI")
_OWN_AT = 64
FILE_BYTES = 4096


class Checkpoint(NamedTuple):
    """Times are store times in ms. `queues_position`: before it, log, queues and index are on the disk."""

    log_time_ms: int = 0
    queues_time_ms: int = 0
    index_time_ms: int = 0
    master_flushed_position: int = 0
    confirmed_position: int = 0
    queues_position: int = 0


def read(path: str) -> Checkpoint:
    """Return the checkpoint; all zero if there is no file or it is too short."""
    try:
        with open(path, "rb") as file:
            content = file.read(_OWN_AT + _OWN.size)
    except FileNotFoundError:
        return Checkpoint()
    if len(content) < _LAYOUT.size:
        return Checkpoint()
    found = Checkpoint(*_LAYOUT.unpack_from(content))
    if len(content) == _OWN_AT + _OWN.size:
        position, crc = _OWN.unpack_from(content, _OWN_AT)
        if crc == _own_crc(content[: _LAYOUT.size], position):
            return found._replace(queues_position=position)
    return found


def write(path: str, checkpoint: Checkpoint, files: OsFiles, *, replay_from: int) -> None:
    """Write it in place, as RocketMQ does: it is smaller than a disk block. Raises StoreFull, StoreUnwritable.

    `replay_from`: the position from which RocketMQ is to read the log again after a kill.
    """
    told = _LAYOUT.pack(*checkpoint._replace(queues_position=replay_from))
    own = bytes(_OWN.size)
    if replay_from != checkpoint.queues_position:
        own = _OWN.pack(checkpoint.queues_position, _own_crc(told, checkpoint.queues_position))
    try:
        files.overwrite(path, told.ljust(_OWN_AT, b"\0") + own, FILE_BYTES)
    except OSError as e:
        raise failure(e, "write", path, FILE_BYTES) from e


def _own_crc(told: bytes, position: int) -> int:
    return zlib.crc32(told + position.to_bytes(8, "big", signed=True))
