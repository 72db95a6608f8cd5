"""What the kinds of delayed delivery share: delay levels, timer messages, messages popped and not acknowledged.

A parked message is one that is stored until its time under a topic of the broker's own. Here are the search for what
was delivered before a kill, and the reading of a parked record of which the disk flipped one bit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator

from rocketspark.errors import RecordError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.message import record
from rocketspark.protocol.message.checksums import crc32
from rocketspark.protocol.message.record import Record
from rocketspark.protocol.message.record_layout import CRC_MASK, SIZE_BYTES
from rocketspark.store.store import Store

log = LimitedLog("rocketspark.broker")

# The search for deliveries: queue entries looked at, bytes of the log read at a time.
SCAN_COUNT = 256
READ_BYTES = 1 << 20
# A flipped bit is not searched in longer bodies: each bit takes a checksum of the whole, some ms for so many bytes.
BODY_BYTES_MAX = 1024


def bytes_at(store: Store, position: int) -> memoryview:
    """Return the record at a physical offset that a queue names. Raises RecordError if none begins there."""
    found = store.record_at(position)
    if found is None:
        raise RecordError(f"no record begins at physical offset {position}, where the queue says one does")
    return found


class DeliveryRecovery:
    """Finds what was delivered before a kill, after progress was noted last, so that it is not delivered again.

    `since_ms`: the store time from which on queues are searched; `until_ms`: when the last run ended; `mark`: the name
    of a property that all deliveries have; `key`: returns the identity of a delivery, None for other messages.
    """

    def __init__(
        self,
        store: Store,
        since_ms: int,
        until_ms: int,
        mark: bytes,
        key: Callable[[Record], Hashable | None],
    ) -> None:
        self._store = store
        self._since_ms = since_ms
        self.until_ms = until_ms
        self._mark = mark + b"\x01"
        self._key = key
        self._found: dict[tuple[str, int], Counter[Hashable]] = {}

    def take(self, topic: str, queue_id: int, key: Hashable) -> bool:
        """Return True if a delivery with this key was found in the queue; True as often as it was found."""
        queue = topic, queue_id
        found = self._found.get(queue)
        if found is None:
            found = self._found[queue] = Counter(self._keys(topic, queue_id))
        if found[key] <= 0:
            return False
        found[key] -= 1
        return True

    def _keys(self, topic: str, queue_id: int) -> Iterator[Hashable]:
        at = self._store.offset_at_time(topic, queue_id, self._since_ms)
        end = self._store.stored_range(topic, queue_id)[1]
        while at < end:
            found = self._store.read(topic, queue_id, at, SCAN_COUNT, READ_BYTES, unconfirmed=True)
            for chunk in found.records:
                yield from self._keys_in(bytes(chunk))
            if found.next_offset <= at:
                break
            at = found.next_offset

    def _keys_in(self, records: bytes) -> Iterator[Hashable]:
        """Yield the keys of the deliveries among records. Others are not decoded: 0.5 us for each, a tenth."""
        at = 0
        while (marked := records.find(self._mark, at)) >= 0:
            while (end := at + int.from_bytes(records[at : at + SIZE_BYTES], "big")) <= marked:
                at = end
            key = self._key(record.decode(records, at, check_crc=False))
            if key is not None:
                yield key
            at = end


def decode_mended(stored: memoryview) -> Record:
    """Decode a record, after putting one flipped bit of its body or checksum right. Raises RecordError."""
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
