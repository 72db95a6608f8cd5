"""The checkpoint file: up to which store time and log position everything is on the disk. 4096 bytes, six i8."""

from __future__ import annotations

import struct
from typing import NamedTuple

from rocketspark.store.files import OsFiles, failure

_LAYOUT = struct.Struct(">qqqqqq")
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
    """The checkpoint; all zero if there is no file or it is too short."""
    try:
        with open(path, "rb") as file:
            content = file.read(_LAYOUT.size)
    except FileNotFoundError:
        return Checkpoint()
    if len(content) < _LAYOUT.size:
        return Checkpoint()
    return Checkpoint(*_LAYOUT.unpack(content))


def write(path: str, checkpoint: Checkpoint, files: OsFiles) -> None:
    """Writes it in place, as RocketMQ does: it is smaller than a disk block. Raises StoreFull, StoreUnwritable."""
    try:
        files.overwrite(path, _LAYOUT.pack(*checkpoint), FILE_BYTES)
    except OSError as e:
        raise failure(e, "write", path, FILE_BYTES) from e
