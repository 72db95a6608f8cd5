"""Names, units and the table of the second tier, as RocketMQ's PosixFileSegment and DefaultMetadataStore (5.5.0) have
them. Pure.

A segment holds a stretch of one queue's records or units: `hash_cluster/broker/topic/queue/kind/hash_offset`, where
`offset` is where the stretch begins, in bytes since the queue's first.
"""

from __future__ import annotations

import hashlib
import struct
from enum import IntEnum
from typing import Any

import msgspec

from rocketspark.errors import ConfigError, ProtocolError
from rocketspark.protocol.json import java_json
from rocketspark.protocol.message import record_layout

# Position among the queue's records, size, tags code.
UNIT = struct.Struct(">qiq")
# Of a segment that holds nothing yet (Java's Long.MAX_VALUE).
NO_TIME = (1 << 63) - 1
INDEX_TOPIC = "rmq_sys_INDEX"
METADATA_FILE = "tieredStoreMetadata.json"
_POSITION = struct.Struct(">q")
_POSITION_AT = record_layout.AT["position"]


class SegmentKind(IntEnum):
    """What a segment holds; the names are those of its folder."""

    COMMIT_LOG = 0
    CONSUME_QUEUE = 1
    INDEX = 2


def short_hash(text: str) -> str:
    """Return the eight hexadecimal digits before names, which spread them over an object store."""
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:8]


def broker_folder(cluster: str, broker: str) -> str:
    """Return the folder of a broker in the tier."""
    return f"{short_hash(cluster)}_{cluster}/{broker}"


def queue_path(broker: str, topic: str, queue_id: int) -> str:
    """Return the place of a queue, as it stands in the table."""
    return f"{broker}/{topic}/{queue_id}"


def segment_key(cluster: str, path: str, kind: SegmentKind, base: int) -> str:
    """Return the name of a segment below the tier's folder."""
    return f"{short_hash(cluster)}_{cluster}/{path}/{kind.name}/{short_hash(str(base))}{base:020d}"


def base_of(name: str) -> int | None:
    """Return where the segment of this file name begins; None for another file."""
    digits = name[-20:]
    if len(name) != 28 or not digits.isascii() or not digits.isdigit():
        return None
    return int(digits) if name[:8] == short_hash(str(int(digits))) else None


def at_position(stored: memoryview | bytes, position: int) -> bytes:
    """Return a record with another position in it: in the tier that is its place among the queue's records."""
    end = _POSITION_AT + _POSITION.size
    return b"".join((stored[:_POSITION_AT], _POSITION.pack(position), stored[end:]))


class SegmentEntry(msgspec.Struct, kw_only=True):
    """One segment in the table. `size`: its bytes; times: ms since 1970, those of its records from `begin` to `end`."""

    path: str
    type: int
    base_offset: int = msgspec.field(name="baseOffset")
    status: int = 0
    size: int = 0
    created_ms: int = msgspec.field(name="createTimestamp", default=0)
    begin_ms: int = msgspec.field(name="beginTimestamp", default=NO_TIME)
    end_ms: int = msgspec.field(name="endTimestamp", default=NO_TIME)
    sealed_ms: int = msgspec.field(name="sealTimestamp", default=0)


class QueueName(msgspec.Struct, rename="camel"):
    """A queue of a broker."""

    broker_name: str
    queue_id: int
    topic: str


class QueueEntry(msgspec.Struct, kw_only=True):
    """One queue in the table. Java writes its offsets only now and then: -1 stands for unknown."""

    queue: QueueName
    min_offset: int = msgspec.field(name="minOffset", default=-1)
    max_offset: int = msgspec.field(name="maxOffset", default=-1)
    updated_ms: int = msgspec.field(name="updateTimestamp", default=0)


class TopicEntry(msgspec.Struct, kw_only=True):
    """One topic in the table. `reserved_hours`: how long the tier keeps its messages, if above 0."""

    topic_id: int = msgspec.field(name="topicId")
    topic: str
    status: int = 0
    reserved_hours: int = msgspec.field(name="reserveTime", default=-1)
    updated_ms: int = msgspec.field(name="updateTimestamp", default=0)


Segments = dict[str, dict[int, SegmentEntry]]


class Metadata(msgspec.Struct, kw_only=True, rename="camel"):
    """The table of a broker's tier, which lies in its own store: config/tieredStoreMetadata.json."""

    commit_log_file_segment_table: Segments = {}
    consume_queue_file_segment_table: Segments = {}
    index_file_segment_table: Segments = {}
    queue_metadata_table: dict[str, dict[int, QueueEntry]] = {}
    topic_metadata_table: dict[str, TopicEntry] = {}
    topic_serial_number: int = -1

    def segments(self, kind: SegmentKind) -> Segments:
        """Return the segments of a kind, by queue and beginning."""
        tables: tuple[Segments, ...] = (
            self.commit_log_file_segment_table,
            self.consume_queue_file_segment_table,
            self.index_file_segment_table,
        )
        return tables[kind]


def encode_metadata(table: Metadata) -> str:
    """Return the table as Java's parser takes it: numbers that are keys may stand in quotes there."""
    return msgspec.json.format(msgspec.json.encode(table), indent=1).decode()


def decode_metadata(text: str, path: str) -> Metadata:
    """Return the table in Java's dialect or ours. Raises ConfigError that names the file."""
    try:
        found: Metadata = java_json.decode(text.encode(), Metadata)
    except ProtocolError as e:
        raise ConfigError(
            f"{path} cannot be read: {e}; mend it, or move it away: the tier's files are found again without it"
        ) from e
    return found


def first_offset(record: bytes | memoryview) -> int:
    """Return the queue offset in a record's head."""
    at = record_layout.AT["queue_offset"]
    return int.from_bytes(record[at : at + 8], "big", signed=True)


def record_size(record: bytes | memoryview, at: int = 0) -> int:
    """Return the size that stands in the head of the record at byte `at`; 0 if no record begins there."""
    if len(record) - at < record_layout.RECORD_BYTES_MIN:
        return 0
    size, magic = struct.unpack_from(">ii", record, at)
    found: Any = size if magic in record_layout.MAGICS else 0
    return int(found)
