"""What a master and a slave wrote to each other over the HA link, as frames; and the captures in tests/vectors/ha.

Rule: it is written from the layouts alone (classic: 8 and 12 bytes; controller mode: 16 and 12, 20 and 36) and shares
no code with what it tests. A stream that ends within a frame is an error unless the capture was cut there.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

VECTORS = Path(__file__).parents[1] / "vectors" / "ha"
HANDSHAKE, TRANSFER = 1, 2


def body_of(number: int) -> bytes:
    """Of message `number` of a capture: of odd lengths, one that is longer than a frame."""
    return b"".join(b"%d." % (number * 1000 + n) for n in range(420 if number == 7 else 20 + number * 37 % 120))


class Frame(NamedTuple):
    """Log bytes from a master; a heartbeat if there are none. The last three: in controller mode only."""

    offset: int
    body: bytes
    epoch: int = 0
    epoch_start: int = 0
    confirm_offset: int = 0


class SlaveHandshake(NamedTuple):
    sync_from_last_file: bool
    async_learner: bool
    broker_id: int


class MasterHandshake(NamedTuple):
    """`epochs`: (epoch, start offset)."""

    end: int
    epoch: int
    epochs: tuple[tuple[int, int], ...]


class Link(NamedTuple):
    """One captured connection. `order`: who wrote how many bytes after how many ms, as they were read."""

    name: str
    protocol: str
    what: str
    master: bytes
    slave: bytes
    order: list[tuple[str, int, int]]


def links(protocol: str) -> list[Link]:
    """The captured connections of "classic" or "controller"."""
    found = [entry for entry in manifest()["links"] if entry["protocol"] == protocol]
    return [
        Link(
            entry["name"],
            protocol,
            entry["what"],
            (VECTORS / f"{entry['name']}.master.bin").read_bytes(),
            (VECTORS / f"{entry['name']}.slave.bin").read_bytes(),
            [tuple(step) for step in entry["order"]],
        )
        for entry in found
    ]


def manifest() -> dict[str, Any]:
    return dict(json.loads((VECTORS / "manifest.json").read_text()))


def classic_reports(data: bytes) -> list[int]:
    """The offsets a slave reported."""
    return [offset for (offset,) in struct.iter_unpack(">q", data)]


def classic_frames(data: bytes) -> Iterator[Frame]:
    """What a master sent."""
    at = 0
    while at < len(data):
        offset, size = struct.unpack_from(">qi", data, at)
        at += 12
        assert 0 <= size <= len(data) - at
        yield Frame(offset, data[at : at + size])
        at += size


def controller_reports(data: bytes) -> Iterator[SlaveHandshake | int]:
    """The handshakes of a slave, and the offsets it reported."""
    at = 0
    while at < len(data):
        (state,) = struct.unpack_from(">i", data, at)
        if state == HANDSHAKE:
            last_file, learner, broker_id = struct.unpack_from(">hhq", data, at + 4)
            assert {last_file, learner} <= {0, 1}
            yield SlaveHandshake(bool(last_file), bool(learner), broker_id)
            at += 16
        else:
            assert state == TRANSFER
            (offset,) = struct.unpack_from(">q", data, at + 4)
            yield offset
            at += 12
    assert at == len(data)


def controller_frames(data: bytes) -> Iterator[MasterHandshake | Frame]:
    """The handshakes of a master, and what it sent."""
    at = 0
    while at < len(data):
        state, size, offset, epoch = struct.unpack_from(">iiqi", data, at)
        at += 20
        if state == HANDSHAKE:
            assert size % 12 == 0
            assert size <= len(data) - at
            yield MasterHandshake(offset, epoch, tuple(struct.iter_unpack(">iq", data[at : at + size])))
        else:
            assert state == TRANSFER
            epoch_start, confirm_offset = struct.unpack_from(">qq", data, at)
            at += 16
            assert 0 <= size <= len(data) - at
            yield Frame(offset, data[at : at + size], epoch, epoch_start, confirm_offset)
        at += size
