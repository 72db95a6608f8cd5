"""Records of which one bit was flipped on the disk: the body that has the stored checksum, where that is one alone."""

from __future__ import annotations

from rocketspark.errors import RecordError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.message import record
from rocketspark.protocol.message.checksums import crc32
from rocketspark.protocol.message.record import Record
from rocketspark.protocol.message.record_layout import CRC_MASK

log = LimitedLog("rocketspark.broker")

# Longer ones are not tried: each bit takes a checksum of the whole, some ms for so many bytes.
BODY_BYTES_MAX = 1024


def decode(stored: memoryview) -> Record:
    """Return a record; one flipped bit of its body, or of its checksum, is put right. Raises RecordError."""
    try:
        return record.decode(stored)
    except RecordError:
        damaged = record.decode(stored, check_crc=False)
        bodies = _bodies(damaged.body, damaged.crc)
        if len(bodies) != 1:
            raise
    log.warning("one bit of the record at %d was flipped and is put right: check the disk", damaged.position)
    return damaged._replace(body=bodies[0])


def _bodies(body: bytes, crc: int) -> list[bytes]:
    """Return those that differ in one bit and have the checksum; the body itself if the checksum differs in one."""
    if len(body) > BODY_BYTES_MAX:
        return []
    found = [body] if (crc32(body) & CRC_MASK ^ crc).bit_count() == 1 else []
    tried = bytearray(body)
    for at, right in enumerate(body):
        for bit in range(8):
            tried[at] = right ^ 1 << bit
            if crc32(tried) & CRC_MASK == crc:
                found.append(bytes(tried))
        tried[at] = right
    return found
