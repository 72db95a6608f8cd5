"""Batches whose messages are alike byte by byte but for values, as half messages and as commits. Pure.

Rule: the bytes are those that `half_layouts` makes of the same messages; whatever differs from the shape is left to it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rocketspark.broker.messages.batch_properties import ID, KEYS, Found, Pattern, Spans, found_at, spans_of
from rocketspark.broker.messages.half_batches.half_layouts import GROUP, IMMUNITY, OWN, all_differ
from rocketspark.protocol.message import properties, record_layout
from rocketspark.protocol.message.batch import HEAD_BYTES, Layout
from rocketspark.protocol.message.record_layout import (
    CRC_MASK,
    FIXED_BYTES_V4,
    HOST_FLAGS,
    MAGIC_V1,
    PROPERTIES_LENGTH_BYTES,
)
from rocketspark.store.commitlog.batch_append import AlikeMessages, crcs_of

Bytes = NDArray[np.uint8]
_HEAD = record_layout.head_type(*record_layout.AT)
# Fields of a half message's fixed part that may differ within a batch.
_OF_EACH = ("crc", "flag", "queue_offset", "position")


class Rest(NamedTuple):
    """What a broker adds: its marks, length and name of the half topic. `owned`: what is not the sender's to set."""

    owned: frozenset[bytes]
    marks: bytes
    suffix: bytes


class StoredAlike(NamedTuple):
    """Half messages as their commits, what queue and index get of them, and what all of them say."""

    messages: AlikeMessages
    found: Found
    sys_flag: int
    born_time_ms: int
    born_host: bytes


class HalfShape:
    """What the half messages of a queue's batches have in common.

    `group`, `immunity`: what they say of these, the latter None if nothing; `cut`, `after`: as in HalfForm;
    `properties_bytes`: of each.
    """

    def __init__(self, layout: Layout, text: bytes, texts: Pattern, spans: Spans, cut: bytes, rest: Rest) -> None:
        self._spans, self._texts, self._rest = spans, texts, rest
        self._width, self._body_bytes = layout.width, int(layout.body_bytes[0])
        self.cut = cut
        self.group = text[slice(*spans[GROUP])]
        self.immunity = text[slice(*spans[IMMUNITY])] if IMMUNITY in spans else None
        begin, end = spans[ID]
        before, behind = cut + b"__transactionId__\x01", b"\x02" + rest.marks
        self._before, self._behind = _row(before), _row(behind)
        tail = before + text[begin:end] + behind
        self.after = len(tail) - len(cut)
        self.properties_bytes = len(text) + len(tail)
        bodies_end = FIXED_BYTES_V4 + self._body_bytes
        stored = bytes(bodies_end) + rest.suffix + self.properties_bytes.to_bytes(PROPERTIES_LENGTH_BYTES, "big")
        self._text_at, self._cut_at = len(stored), len(stored) + len(text)
        self._record = Pattern(stored + text + tail)
        self._record.low[self._text_at : self._cut_at] = texts.low
        self._record.more[self._text_at : self._cut_at] = texts.more
        self._record.plain(self._cut_at + len(before), self._cut_at + len(before) + end - begin)
        self._record.any(FIXED_BYTES_V4, bodies_end)
        for name in _OF_EACH:
            place = record_layout.PLACES[name]
            self._record.any(place.at, place.at + np.dtype(place.kind).itemsize)

    def _texts_of(self, layout: Layout) -> Bytes:
        length, at = int(layout.properties_bytes[0]), int(layout.properties_at[0])
        return np.ndarray((layout.message_count, length), np.uint8, layout.body, at, (layout.width, 1))

    def fits(self, layout: Layout, rest: Rest) -> bool:
        """Tell whether the first message of a batch is of this shape."""
        return (
            (layout.width, int(layout.body_bytes[0])) == (self._width, self._body_bytes)
            and rest == self._rest
            and self._texts.holds(self._texts_of(layout)[:1])
        )

    def halves(self, layout: Layout) -> tuple[AlikeMessages, Found, Bytes] | None:
        """Return a batch of which the first message is of this shape as half messages, and their unique ids.

        None if another is not, or two have the same id.
        """
        texts = self._texts_of(layout)
        if not self._texts.holds(texts):
            return None
        ids = np.ascontiguousarray(texts[:, slice(*self._spans[ID])])
        if not all_differ(ids):
            return None
        count, size = layout.message_count, self._body_bytes
        bodies = np.ndarray((count, size), np.uint8, layout.body, HEAD_BYTES, (layout.width, 1))
        parts = texts, self._before, ids, self._behind
        crcs = crcs_of(layout.body, count, HEAD_BYTES, size)
        return AlikeMessages(layout.flags, bodies, parts, crcs), found_at(texts, self._spans), ids

    def committed(self, stored: memoryview, positions: NDArray[np.int64], first_offset: int) -> StoredAlike | None:
        """Return half messages of this shape, one behind another in the log, as they are committed.

        `stored`: their records. None if one of them is not what it was.
        """
        count, width, size = len(positions), self._record.width, self._body_bytes
        if len(stored) != count * width:
            return None
        rows = np.ndarray((count, width), np.uint8, stored)
        heads = np.ndarray((count,), _HEAD, stored, 0, (width,))
        head = heads[0]
        if (head["size"], head["magic"], head["body_bytes"]) != (width, MAGIC_V1, size) or head[
            "sys_flag"
        ] & HOST_FLAGS:
            return None
        # The rest of each fixed part is as in the first.
        expected = self._record.copy()
        np.copyto(expected.low[:FIXED_BYTES_V4], rows[0, :FIXED_BYTES_V4], where=expected.more[:FIXED_BYTES_V4] == 0)
        if not expected.holds(rows):
            return None
        if (heads["position"] != positions).any() or (
            heads["queue_offset"] != np.arange(first_offset, first_offset + count)
        ).any():
            return None
        crcs = crcs_of(stored, count, FIXED_BYTES_V4, size)
        if (crcs & CRC_MASK != heads["crc"]).any():
            return None
        bodies = rows[:, FIXED_BYTES_V4 : FIXED_BYTES_V4 + size]
        texts = rows[:, self._text_at : self._cut_at]
        parts = texts, rows[:, self._cut_at + len(self.cut) :]
        messages = AlikeMessages(heads["flag"].astype(np.int32), bodies, parts, crcs, positions)
        return StoredAlike(
            messages,
            found_at(texts, self._spans),
            int(head["sys_flag"]),
            int(head["born_time_ms"]),
            head["born_host"].tobytes(),
        )


def shape_of(layout: Layout, topic: bytes, queue_id: int, rest: Rest) -> HalfShape | None:
    """Return the shape of the first message of a batch for a queue; None if it is not of the plainest form."""
    at = int(layout.properties_at[0])
    text = layout.body[at : at + int(layout.properties_bytes[0])]
    spans = spans_of(text)
    if spans is None or ID not in spans or GROUP not in spans or not (OWN | rest.owned).isdisjoint(spans):
        return None
    texts = Pattern(text)
    for name, (begin, end) in spans.items():
        texts.plain(begin, end, is_word=name == KEYS)
    if not texts.holds(_row(text)):
        return None
    for name in (GROUP, IMMUNITY):
        if name in spans:
            texts.exactly(*spans[name], text)
    shape = HalfShape(layout, text, texts, spans, b"REAL_TOPIC\x01%b\x02REAL_QID\x01%d\x02" % (topic, queue_id), rest)
    return shape if shape.properties_bytes <= properties.BYTES_MAX else None


def _row(text: bytes) -> Bytes:
    return np.frombuffer(text, np.uint8)[None, :]
