"""The layout of a record: one table of its fields. Rule: nothing else knows at which byte a field of a record stands.

A record is a fixed part, whose fields `FIELDS` lists, and then:

    body              `body_bytes` bytes
    length of topic   1 byte in a record of MAGIC_V1, 2 bytes in one of MAGIC_V2
    topic             UTF-8
    length of properties   2 bytes
    properties        `name 0x01 value 0x02` repeated, UTF-8

All numbers are big-endian. A host is 4 bytes of IPv4 or 16 of IPv6, as a bit of the sys flag says, and 4 of its port.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rocketspark.protocol.message import sysflags

if TYPE_CHECKING:
    from mmap import mmap

Buffer = bytes | bytearray | memoryview
Ints = NDArray[Any]

MAGIC_V1 = -626843481  # 0xDAA320A7
MAGIC_V2 = -626843477  # 0xDAA320AB
MAGIC_BLANK = -875286124  # 0xCBD43194: the rest of a log file is unused
MAGICS = (MAGIC_V1, MAGIC_V2)
# The bytes that both have in common.
_MAGIC_START = MAGIC_V1.to_bytes(4, "big", signed=True)[:3]
CRC_MASK = 0x7FFFFFFF
HOST_FLAGS = sysflags.BORN_HOST_V6 | sysflags.STORE_HOST_V6
HOST_V4_BYTES, HOST_V6_BYTES = 8, 20
_V6_ADDS_BYTES = HOST_V6_BYTES - HOST_V4_BYTES
# A longer topic makes a record of MAGIC_V2.
TOPIC_BYTES_MAX_V1 = 127
PROPERTIES_LENGTH_BYTES = 2


class Field(NamedTuple):
    """One field of the fixed part of a record. `kind`: its `struct` format, "" for a host; `v6`: for a host, the bit of
    the sys flag that says that it is IPv6.
    """

    name: str
    kind: str
    meaning: str
    v6: int = 0


FIELDS = (
    Field("size", "i", "bytes of the whole record"),
    Field("magic", "i", "MAGIC_V1 or MAGIC_V2"),
    Field("crc", "i", "CRC-32 of the body, without its highest bit; 0 where it is not to be compared"),
    Field("queue_id", "i", "the queue of its topic"),
    Field("flag", "i", "the application's own number"),
    Field("queue_offset", "q", "the message's number in its queue"),
    Field("position", "q", "physical offset: the byte of the log where the record begins"),
    Field("sys_flag", "i", "bits of `sysflags`"),
    Field("born_time_ms", "q", "when its producer sent it, ms since 1970"),
    Field("born_host", "", "who sent it", sysflags.BORN_HOST_V6),
    Field("store_time_ms", "q", "when the broker stored it, ms since 1970"),
    Field("store_host", "", "the broker that stored it", sysflags.STORE_HOST_V6),
    Field("reconsume_times", "i", "how often a consumer gave it back"),
    Field("prepared_position", "q", "of the end of a transaction: physical offset of its half message"),
    Field("body_bytes", "i", "length of the body, which follows"),
)


def _format(field: Field, hosts: int) -> str:
    return field.kind or f"{HOST_V6_BYTES if hosts & field.v6 else HOST_V4_BYTES}s"


# The fixed part by the host bits of the sys flag.
FIXED = {
    hosts: struct.Struct(">" + "".join(_format(field, hosts) for field in FIELDS))
    for hosts in (0, sysflags.BORN_HOST_V6, sysflags.STORE_HOST_V6, HOST_FLAGS)
}
FIXED_V4 = FIXED[0]
FIXED_BYTES_V4 = FIXED_V4.size
# The lengths of topic and properties.
AFTER_BODY_BYTES_MIN = 1 + PROPERTIES_LENGTH_BYTES
RECORD_BYTES_MIN = FIXED_BYTES_V4 + AFTER_BODY_BYTES_MIN
BLANK_BYTES_MIN = struct.calcsize(">ii")


class Place(NamedTuple):
    """Where a field of a record stands: at byte `at` if all hosts are IPv4; it moves for each of the hosts before it
    that is IPv6.

    `hosts`: the sys flag's bits of those hosts. `kind`: the numpy type of the field's value.
    """

    at: int
    kind: str
    hosts: int


def _places() -> dict[str, Place]:
    found, at, hosts = {}, 0, 0
    for field in FIELDS:
        width = struct.calcsize(">" + _format(field, 0))
        found[field.name] = Place(at, f">i{width}" if field.kind else f"V{width}", hosts)
        at += width
        hosts |= field.v6
    return found


PLACES = _places()
# The byte at which a field stands if all hosts are IPv4; up to `born_host` it is the same for all.
AT = {name: place.at for name, place in PLACES.items()}
SIZE_BYTES = AT["magic"] - AT["size"]
_BODY_LENGTH_BYTES = FIXED_BYTES_V4 - AT["body_bytes"]


def only(*names: str, hosts: int = 0) -> struct.Struct:
    """Return the struct that unpacks only these fields of a record, named in the table's order. `hosts`: the host bits
    of the record's sys flag.
    """
    assert [field.name for field in FIELDS if field.name in names] == list(names)
    text = ">"
    for field in FIELDS:
        kind = _format(field, hosts)
        text += kind if field.name in names else f"{struct.calcsize('>' + kind)}x"
        if field.name == names[-1]:
            break
    return struct.Struct(text)


def head_type(*names: str) -> np.dtype[Any]:
    """Return the numpy type of these fields in a record whose hosts are IPv4. It is as long as up to the end of the
    last of them.
    """
    places = [PLACES[name] for name in names]
    end = max(place.at + np.dtype(place.kind).itemsize for place in places)
    return np.dtype(
        {
            "names": list(names),
            "formats": [place.kind for place in places],
            "offsets": [place.at for place in places],
            "itemsize": end,
        }
    )


def v6_bytes(sys_flags: NDArray[Any], hosts: int = HOST_FLAGS) -> NDArray[np.int64] | int:
    """Return, for each sys flag, by how many bytes IPv6 hosts move the fields behind them; 0 if no host is IPv6."""
    found: NDArray[np.int64] | int = 0
    if not (sys_flags & hosts).any():
        return found
    for host in (sysflags.BORN_HOST_V6, sysflags.STORE_HOST_V6):
        v6 = (sys_flags & (hosts & host)) != 0
        if v6.any():
            found = found + np.where(v6, _V6_ADDS_BYTES, 0)
    return found


_SYS_FLAG = only("sys_flag").unpack_from
_MAGIC_POSITION = only("magic", "position").unpack_from
_STORE_TIME = {hosts: only("store_time_ms", hosts=hosts).unpack_from for hosts in FIXED}
_BLANK = only("size", "magic")


def host_flags(born_host: bytes, store_host: bytes) -> int:
    """Return the host bits of the sys flag for packed hosts."""
    found = sysflags.BORN_HOST_V6 if len(born_host) == HOST_V6_BYTES else 0
    return found | sysflags.STORE_HOST_V6 if len(store_host) == HOST_V6_BYTES else found


def record_bytes(body_bytes: int, topic_bytes: int, properties_bytes: int, sys_flag: int = 0) -> int:
    """Return the size of a record with these parts; a topic over 127 bytes makes it v2."""
    length = 1 if topic_bytes <= TOPIC_BYTES_MAX_V1 else 2
    fixed = FIXED[sys_flag & HOST_FLAGS].size
    return fixed + body_bytes + length + topic_bytes + PROPERTIES_LENGTH_BYTES + properties_bytes


def topic_field(topic: bytes) -> bytes:
    """Return a topic with its length before it, as it stands behind the body."""
    return len(topic).to_bytes(1 if len(topic) <= TOPIC_BYTES_MAX_V1 else 2, "big") + topic


def properties_field(properties: bytes) -> bytes:
    """Return properties with their length before them, as they stand behind the topic."""
    return len(properties).to_bytes(PROPERTIES_LENGTH_BYTES, "big") + properties


# -- single fields of a whole record


def sys_flag_of(stored: Buffer) -> int:
    """Return the system flag of a record."""
    found: int = _SYS_FLAG(stored)[0]
    return found


def store_time_of(stored: Buffer) -> int:
    """Return the store time of a record, in ms since 1970."""
    found: int = _STORE_TIME[_SYS_FLAG(stored)[0] & HOST_FLAGS](stored)[0]
    return found


def topic_at(stored: Buffer) -> int:
    """Return the byte where the topic's length stands, behind the body."""
    at = FIXED[_SYS_FLAG(stored)[0] & HOST_FLAGS].size
    # A damaged record may be shorter than this.
    return at + int.from_bytes(stored[at - _BODY_LENGTH_BYTES : at], "big")


def split(stored: memoryview) -> Iterator[memoryview]:
    """Yield each of the whole records that follow each other in these bytes."""
    at = 0
    while at < len(stored):
        size = int.from_bytes(stored[at : at + SIZE_BYTES], "big")
        yield stored[at : at + size]
        at += size


def body_bytes_of(stored: Buffer) -> int:
    """Return the length of a record's body, as stored."""
    at = FIXED[_SYS_FLAG(stored)[0] & HOST_FLAGS].size
    return int.from_bytes(stored[at - _BODY_LENGTH_BYTES : at], "big")


def properties_of(stored: memoryview) -> bytes:
    """Return the properties of a record, as stored."""
    at = topic_at(stored)
    length_bytes = 2 if _MAGIC_POSITION(stored)[0] == MAGIC_V2 else 1
    at += length_bytes + int.from_bytes(stored[at : at + length_bytes], "big") + PROPERTIES_LENGTH_BYTES
    return bytes(stored[at:])


# -- places that look like a record


def begins(data: Buffer | mmap, at: int, position: int) -> bool:
    """Tell whether a record's head stands at byte `at`, by its magic and the physical offset it states."""
    if len(data) - at < RECORD_BYTES_MIN:
        return False
    magic, stated = _MAGIC_POSITION(data, at)
    return magic in MAGICS and stated == position


def find_begin(data: bytes | mmap, at: int, base: int, stop: int | None = None) -> int:
    """Return the first byte from `at` on where a record `begins`; -1 if none does before `stop`.

    `base`: the physical offset of the first byte of `data`.
    """
    to_magic = AT["magic"]
    while (found := data.find(_MAGIC_START, at + to_magic, len(data) if stop is None else stop)) >= 0:
        at = found - to_magic
        if begins(data, at, base + at):
            return at
        at += 1
    return -1


def is_blank(data: Buffer, at: int, left: int) -> bool:
    """Tell whether the mark of unused space stands at byte `at`: that the `left` bytes from there to the file's end are
    unused.
    """
    if left < BLANK_BYTES_MIN:
        return False
    return bool(_BLANK.unpack_from(data, at) == (left, MAGIC_BLANK))


def write_blank(view: memoryview, at: int, left: int) -> None:
    """Mark the `left` bytes from byte `at` to the file's end as unused."""
    _BLANK.pack_into(view, at, left, MAGIC_BLANK)
