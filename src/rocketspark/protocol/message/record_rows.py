"""Records at known places of a buffer as rows: numbers of many at once, and where their bodies and properties lie.

Rule: nothing is copied until it is asked for, and the parts of every record are checked against one another before
one is used. Columns of Arrow are made of these rows by `arrow.records`.
"""

from __future__ import annotations

from functools import cached_property
from typing import Self

import numpy as np

from rocketspark.errors import RecordError
from rocketspark.protocol.message import checksums, record, record_layout
from rocketspark.protocol.message.record_layout import (
    AFTER_BODY_BYTES_MIN,
    CRC_MASK,
    FIXED_BYTES_V4,
    MAGIC_V1,
    MAGIC_V2,
    PLACES,
    PROPERTIES_LENGTH_BYTES,
    Buffer,
    Ints,
)
from rocketspark.protocol.message.record_places import OF_ITEM, Items, at


class RecordRows:
    """Records at known positions, a row for each; with `items`, an inner batch has a row for each of its messages.

    `starts`: where the record of each row begins, ascending.
    """

    def __init__(self, buffer: Buffer, starts: Ints, items: Items | None = None) -> None:
        self._buffer = buffer
        self._bytes = np.frombuffer(buffer, np.uint8)
        # Of each row's record: messages of an inner batch have that of the batch, and what they differ in as `items`.
        self._starts = starts
        self._items = items
        # By the hosts that do.
        self._moved: dict[int, int | Ints] = {}

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def buffer(self) -> Buffer:
        """The buffer that holds the records."""
        return self._buffer

    @property
    def starts(self) -> Ints:
        """Where each row's record begins."""
        return self._starts

    def only(self, chosen: Ints) -> Self:
        """Return the rows for which `chosen` is true."""
        if chosen.all():
            return self
        return self._of(self._starts[chosen], self._items.only(chosen) if self._items is not None else None)

    def between(self, first: int, end: int) -> Self:
        """Return the rows from `first` on and before `end`."""
        chosen = slice(first, end)
        items = None if self._items is None else self._items.only(chosen)
        return self._of(self._starts[chosen], items)

    def _of(self, starts: Ints, items: Items | None) -> Self:
        return type(self)(self._buffer, starts, items)

    def number(self, field: str) -> Ints:
        """Return the numeric field `field` of each row."""
        if self._items is not None and field in OF_ITEM:
            return OF_ITEM[field](self._items)
        place = PLACES[field]
        values: Ints = at(self._bytes, place.kind)[self._starts + (place.at + self._v6_bytes(place.hosts))]
        return values

    @cached_property
    def offsets(self) -> Ints:
        return self.number("queue_offset")

    @cached_property
    def sys_flags(self) -> Ints:
        return self.number("sys_flag").astype(np.int32)

    def _v6_bytes(self, hosts: int) -> int | Ints:
        """Return the bytes by which these hosts, where they are IPv6, move on what stands behind them."""
        found = self._moved.get(hosts)
        if found is None:
            found = self._moved[hosts] = record_layout.v6_bytes(self.sys_flags, hosts) if hosts else 0
        return found

    @cached_property
    def _parts(self) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        """(body start, body end, topic start, topic end, record end), checked against one another."""
        data, starts = self._bytes, self._starts
        if not len(starts):
            return (starts,) * 5
        ends = starts + self.number("size")
        magic = self.number("magic")
        v2 = magic == MAGIC_V2
        body = starts + FIXED_BYTES_V4 + self._v6_bytes(record_layout.HOST_FLAGS)
        wrong = ((magic != MAGIC_V1) & ~v2) | (body + AFTER_BODY_BYTES_MIN > ends)
        self._raise_if(wrong)
        body_end = body + self.number("body_bytes")
        self._raise_if((body_end < body) | (body_end + AFTER_BODY_BYTES_MIN > ends))
        topic, topic_bytes = body_end + 1, data[body_end].astype(np.int64)
        if v2.any():
            topic = topic + v2
            topic_bytes = np.where(v2, at(data, ">u2")[body_end], topic_bytes)
        topic_end = topic + topic_bytes
        self._raise_if(topic_end + PROPERTIES_LENGTH_BYTES > ends)
        self._raise_if(topic_end + PROPERTIES_LENGTH_BYTES + at(data, ">u2")[topic_end] != ends)
        return body, body_end, topic, topic_end, ends

    @property
    def _bodies_at(self) -> tuple[Ints, Ints]:
        """Where each body begins and ends."""
        return self._parts[:2] if self._items is None else (self._items.body, self._items.body_end)

    @property
    def _properties_at(self) -> tuple[Ints, Ints]:
        """Where the stored properties of each begin and end."""
        if self._items is not None:
            return self._items.properties, self._items.end
        _, _, _, topic_end, ends = self._parts
        return topic_end + PROPERTIES_LENGTH_BYTES, ends

    def _raise_if(self, wrong: Ints) -> None:
        if wrong.any():
            start = int(self._starts[int(np.argmax(wrong))])
            record.decode(self._buffer, start, check_crc=False)
            raise RecordError(f"record at {start} is broken")

    def check(self) -> None:
        """Raise RecordError unless the parts of every record fit together."""
        _ = self._parts

    def wrong_crcs(self) -> list[tuple[int, int]]:
        """Return (row, CRC stated) for each row whose body does not match its CRC. Takes 0.2 us a row."""
        body, body_end = self._bodies_at
        view = memoryview(self._buffer)
        stored = self.number("crc")
        if self._items is not None:
            # That of a batch, which was compared as a whole.
            stored = np.where(self._items.inner, 0, stored)
        return [
            (i, crc)
            for i, (start, end, crc) in enumerate(zip(body.tolist(), body_end.tolist(), stored.tolist(), strict=True))
            if crc and checksums.crc32(view[start:end]) & CRC_MASK != crc
        ]

    def is_of(self, topic: bytes) -> bool:
        """Tell whether all records state this topic."""
        _, _, starts, ends, _ = self._parts
        if not len(starts) or (ends - starts != len(topic)).any():
            return not len(starts)
        stated = self._bytes[starts[:, None] + np.arange(len(topic))]
        return bool((stated == np.frombuffer(topic, np.uint8)).all())

    def stored_bodies(self) -> list[bytes]:
        """Return the bodies as stored."""
        return self._cut(*self._bodies_at)

    def stored_properties(self) -> list[bytes]:
        """Return the properties as stored."""
        return self._cut(*self._properties_at)

    def records(self) -> list[bytes]:
        """Return the whole record of each row."""
        return self._cut(self._starts, self._starts + self.number("size"))

    def _cut(self, starts: Ints, ends: Ints) -> list[bytes]:
        data = self._buffer if isinstance(self._buffer, bytes) else bytes(self._buffer)
        return [data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
