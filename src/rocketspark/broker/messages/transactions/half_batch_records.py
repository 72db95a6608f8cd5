"""The bytes of batches of half messages, and of the commits of a range of them. Pure.

Two ways lead to the same bytes: messages whose bytes are alike but for values are stored by their shape (HalfShape),
all others by looking at each (`half_form`, `committed_form`).

Rule: each record is the one that `Transactions.prepare` and `Transactions.end` would store for the message alone. A
batch that cannot be done so is refused (None), and its messages are stored one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rocketspark.broker.messages import batch_properties
from rocketspark.broker.messages.batch_properties import ID, KEYS, Found, Pattern, Spans, Wanted, found_at, spans_of
from rocketspark.broker.messages.timers.timer_rules import TIMER_PROPERTIES
from rocketspark.protocol.message import checksums, properties, record_layout
from rocketspark.protocol.message.batch import HEAD_BYTES, Layout
from rocketspark.protocol.message.record_layout import (
    CRC_MASK,
    FIXED_BYTES_V4,
    HOST_FLAGS,
    MAGIC_V1,
    PROPERTIES_LENGTH_BYTES,
)
from rocketspark.store.commitlog.batch_append import AlikeMessages, crcs_of

Pairs = Callable[[bytes], dict[bytes, bytes]]
Bytes = NDArray[np.uint8]
GROUP, IMMUNITY = b"PGROUP", b"CHECK_IMMUNITY_TIME_IN_SECONDS"
# Messages with one of these are prepared one by one: the broker writes them itself, or they ask for a later time.
OWN = {
    *(b"DELAY", b"REAL_TOPIC", b"REAL_QID", b"__transactionId__", b"__CRC32#", b"TRANSACTION_CHECK_TIMES"),
    *TIMER_PROPERTIES,
}
_LENGTH_BYTES = 2
_HEAD = record_layout.head_type(*record_layout.AT)


class HalfForm(NamedTuple):
    """A batch laid out as half messages.

    `found`: what `batch_properties.read` finds in it; `group`, `immunity`: the producer group and the time without
    checks that all messages have, the latter None if they name none; `ids`: the unique id of each; `cut`: the bytes of
    each record that its commit leaves out (its real topic and queue); `after`: how many bytes of the record follow
    these.
    """

    layout: Layout
    found: Found
    group: bytes
    immunity: bytes | None
    ids: Bytes
    cut: bytes
    after: int


def half_form(
    layout: Layout,
    pairs_of: Pairs,
    tag_code: Callable[[bytes | None], int],
    topic: bytes,
    queue_id: int,
    owned: frozenset[bytes],
    marks: bytes,
) -> HalfForm | None:
    """Lay a batch of messages for a queue out as half messages; None if they must be prepared one by one.

    `owned`: the names of properties that a sender may not set; `marks`: the properties that the broker adds to each.
    """
    wanted = Wanted((ID, GROUP, IMMUNITY))
    found = batch_properties.read(layout, pairs_of, tag_code, wanted)
    if not wanted.names.isdisjoint(OWN | owned):
        return None
    group = _common(wanted, GROUP, layout.message_count)
    immunity = _common(wanted, IMMUNITY, layout.message_count)
    ids = _ids(wanted, layout.message_count)
    if not group or ids is None or (immunity is None and IMMUNITY in wanted.names):
        return None
    data = np.frombuffer(layout.body, np.uint8)
    if (data[layout.properties_at + layout.properties_bytes - 1] != 2).any():
        return None
    cut = b"REAL_TOPIC\x01%b\x02REAL_QID\x01%d\x02" % (topic, queue_id)
    before, behind = cut + b"__transactionId__\x01", b"\x02" + marks
    tails = np.empty((len(ids), len(before) + ids.shape[1] + len(behind)), np.uint8)
    tails[:, : len(before)] = np.frombuffer(before, np.uint8)
    tails[:, len(before) : len(before) + ids.shape[1]] = ids
    tails[:, len(before) + ids.shape[1] :] = np.frombuffer(behind, np.uint8)
    if int(layout.properties_bytes.max()) + tails.shape[1] > properties.BYTES_MAX:
        return None
    return HalfForm(_with_tails(layout, tails), found, group, immunity, ids, cut, tails.shape[1] - len(cut))


def _common(wanted: Wanted, name: bytes, count: int) -> bytes | None:
    """Return the value that all messages have of a property; None if they have several, or some have none."""
    values = {pairs.get(name) for _, pairs in wanted.single}
    seen = len(wanted.single)
    for rows, texts in wanted.alike[name]:
        if (texts != texts[0]).any():
            return None
        values.add(texts[0].tobytes())
        seen += len(rows)
    return values.pop() if seen == count and len(values) == 1 else None


def _ids(wanted: Wanted, count: int) -> Bytes | None:
    """Return the unique id of each message; None if one lacks it, two have the same, or they are not equally long."""
    kinds = wanted.alike[ID]
    singles = [(row, pairs.get(ID, b"")) for row, pairs in wanted.single]
    widths = {texts.shape[1] for _, texts in kinds} | {len(text) for _, text in singles}
    if len(widths) != 1 or 0 in widths or sum(len(rows) for rows, _ in kinds) + len(singles) != count:
        return None
    found = np.empty((count, widths.pop()), np.uint8)
    for rows, texts in kinds:
        found[rows] = texts
    for row, text in singles:
        found[row] = np.frombuffer(text, np.uint8)
    return found if all_differ(found) else None


def all_differ(ids: Bytes) -> bool:
    """Tell whether no two unique ids are the same."""
    # A producer's ids mostly rise.
    texts = ids.view(f"S{ids.shape[1]}").ravel()
    return bool((texts[1:] > texts[:-1]).all()) or len({row.tobytes() for row in ids}) == len(ids)


def _with_tails(layout: Layout, tails: Bytes) -> Layout:
    """Return the layout with a row of bytes more at the end of each message's properties."""
    count, added = tails.shape
    sizes, properties_bytes = layout.sizes + added, layout.properties_bytes + added
    starts = np.cumsum(sizes) - sizes
    if layout.width:
        width, body_bytes = layout.width, int(layout.body_bytes[0])
        out = np.empty((count, width + added), np.uint8)
        out[:, :width] = np.frombuffer(layout.body, np.uint8).reshape(count, width)
        out[:, width:] = tails
        out[:, :4] = np.frombuffer((width + added).to_bytes(4, "big"), np.uint8)
        at = HEAD_BYTES + body_bytes
        out[:, at : at + _LENGTH_BYTES] = np.frombuffer(int(properties_bytes[0]).to_bytes(2, "big"), np.uint8)
        return layout._replace(
            body=out.tobytes(), starts=starts, sizes=sizes, properties_bytes=properties_bytes, width=width + added
        )
    body, text = layout.body, tails.tobytes()
    ends = layout.starts + layout.sizes
    pieces = chain.from_iterable(
        (body[a:b], text[c : c + added])
        for a, b, c in zip(layout.starts.tolist(), ends.tolist(), range(0, len(text), added), strict=True)
    )
    return _relabelled(bytearray(b"".join(pieces)), layout._replace(starts=starts, sizes=sizes), properties_bytes)


def _relabelled(out: bytearray, layout: Layout, properties_bytes: NDArray[np.int64]) -> Layout:
    """Write the sizes of a layout and these lengths of properties into its bytes."""
    data = np.frombuffer(out, np.uint8)
    digits = layout.sizes.astype(">i4").view(np.uint8).reshape(-1, 4)
    for byte in range(4):
        data[layout.starts + byte] = digits[:, byte]
    at = layout.starts + HEAD_BYTES + layout.body_bytes
    data[at], data[at + 1] = properties_bytes >> 8, properties_bytes & 0xFF
    return layout._replace(body=bytes(out), properties_bytes=properties_bytes)


class StoredHalves(NamedTuple):
    """Half messages laid out as their commits, with the times and flags that all have; `crcs`: of the bodies."""

    layout: Layout
    crcs: NDArray[np.uint32]
    sys_flag: int
    born_time_ms: int
    born_host: bytes


def committed_form(
    stored: memoryview,
    positions: NDArray[np.int64],
    first_offset: int,
    end: int,
    suffix: bytes,
    cut: bytes,
    after: int,
) -> StoredHalves | None:
    """Lay half messages that lie one behind another in the log out as their commits.

    `stored`: their records; `positions`: their physical offsets; `first_offset`: the half queue offset of the first;
    `end`: the physical offset after the last; `suffix`: length and name of the half topic, as each record has them;
    `cut`, `after`: as in HalfForm. None if one of them is not the half message it should be, or is damaged.
    """
    count = len(positions)
    data = np.frombuffer(stored, np.uint8)
    at = positions - positions[0]
    sizes = np.diff(positions, append=end)
    width = int(sizes[0])
    alike = bool((sizes == width).all())
    if int(sizes.min()) < FIXED_BYTES_V4 + len(suffix) + _LENGTH_BYTES + len(cut) + after:
        return None
    if alike:
        heads = np.ndarray((count,), _HEAD, stored, 0, (width,))
    else:
        heads = data[at[:, None] + np.arange(FIXED_BYTES_V4)].reshape(-1).view(_HEAD)
    body_bytes = heads["body_bytes"].astype(np.int64)
    properties_bytes = sizes - (FIXED_BYTES_V4 + len(suffix) + _LENGTH_BYTES) - body_bytes
    if not _are_halves(heads, sizes, positions, first_offset) or (
        (body_bytes < 0).any() or (properties_bytes < len(cut) + after).any()
    ):
        return None
    alike = alike and bool((body_bytes == body_bytes[0]).all())
    begins = at + FIXED_BYTES_V4
    ends = begins + body_bytes
    texts = ends + len(suffix) + _LENGTH_BYTES
    tails = at + sizes - after
    raw = bytes(stored)
    # Names, lengths and what is cut out must be there: else the record is damaged.
    lengths = data[texts - 2].astype(np.int64) << 8 | data[texts - 1]
    if (
        not _stands_at(raw, ends, suffix, width if alike else 0)
        or not _stands_at(raw, tails - len(cut), cut, width if alike else 0)
        or (lengths != properties_bytes).any()
    ):
        return None
    bodies = [raw[a:b] for a, b in zip(begins.tolist(), ends.tolist(), strict=True)]
    crcs = np.fromiter(map(checksums.crc32, bodies), np.uint32, count)
    if (crcs & CRC_MASK != heads["crc"]).any():
        return None
    kept = properties_bytes - len(cut)
    new_sizes = HEAD_BYTES + body_bytes + _LENGTH_BYTES + kept
    starts = np.cumsum(new_sizes) - new_sizes
    flags = heads["flag"].astype(np.int32)
    new_heads = np.zeros((count, 5), ">i4")
    new_heads[:, 0], new_heads[:, 3], new_heads[:, 4] = new_sizes, flags, body_bytes
    if alike:
        rows = data.reshape(count, width)
        begin, tail = int(texts[0]), int(tails[0])
        made = _commits_in_rows(rows, new_heads, int(body_bytes[0]), int(kept[0]), slice(begin, tail - len(cut)), tail)
        new_width = int(new_sizes[0])
    else:
        head_bytes, kept_bytes = new_heads.tobytes(), kept.astype(">u2").tobytes()
        made = b"".join(
            chain.from_iterable(
                (
                    head_bytes[i * HEAD_BYTES : (i + 1) * HEAD_BYTES],
                    bodies[i],
                    kept_bytes[2 * i : 2 * i + 2],
                    raw[text : tail - len(cut)],
                    raw[tail : tail + after],
                )
                for i, (text, tail) in enumerate(zip(texts.tolist(), tails.tolist(), strict=True))
            )
        )
        new_width = 0
    layout = Layout(made, starts, new_sizes, flags, body_bytes, kept, new_width)
    head = heads[0]
    return StoredHalves(layout, crcs, int(head["sys_flag"]), int(head["born_time_ms"]), head["born_host"].tobytes())


def _are_halves(
    heads: NDArray[np.void], sizes: NDArray[np.int64], positions: NDArray[np.int64], first_offset: int
) -> bool:
    """Tell whether the fixed parts of records are those of half messages at these places, with the same times."""
    return not (
        (heads["size"] != sizes).any()
        or (heads["magic"] != MAGIC_V1).any()
        or (heads["position"] != positions).any()
        or (heads["queue_offset"] != np.arange(first_offset, first_offset + len(positions))).any()
        or any((heads[name] != heads[name][0]).any() for name in ("sys_flag", "born_time_ms", "born_host"))
    )


def _stands_at(stored: bytes, places: NDArray[np.int64], text: bytes, width: int) -> bool:
    """Tell whether a text stands at each of these places. `width`: of the records if all are alike, else 0."""
    first, size = int(places[0]), len(text)
    if stored[first : first + size] != text:
        return False
    if width:
        rows = np.frombuffer(stored, np.uint8).reshape(len(places), width)
        return bool((rows[:, first : first + size] == np.frombuffer(text, np.uint8)).all())
    return all(stored[at : at + size] == text for at in places.tolist())


def _commits_in_rows(
    rows: Bytes, new_heads: NDArray[np.int32], body_bytes: int, kept_bytes: int, texts: slice, tail: int
) -> bytes:
    """Return the commits of half messages of one layout, each a row of bytes.

    `texts`: where the properties lie in a row, up to what is cut out; `tail`: where they go on behind that.
    """
    count = len(rows)
    middle = HEAD_BYTES + body_bytes
    out = np.empty((count, middle + _LENGTH_BYTES + kept_bytes), np.uint8)
    out[:, :HEAD_BYTES] = new_heads.view(np.uint8).reshape(count, HEAD_BYTES)
    out[:, HEAD_BYTES:middle] = rows[:, FIXED_BYTES_V4 : FIXED_BYTES_V4 + body_bytes]
    out[:, middle : middle + _LENGTH_BYTES] = np.frombuffer(kept_bytes.to_bytes(_LENGTH_BYTES, "big"), np.uint8)
    begin = middle + _LENGTH_BYTES
    after = begin + texts.stop - texts.start
    out[:, begin:after] = rows[:, texts]
    out[:, after:] = rows[:, tail:]
    return out.tobytes()


# Fields of a half message's fixed part that may differ within a batch.
_OF_EACH = ("crc", "flag", "queue_offset", "position")


class Rest(NamedTuple):
    """What does not come from the sender: the broker's `marks`, and `suffix`, length and name of the half topic.

    `owned`: the names of properties that a sender may not set.
    """

    owned: frozenset[bytes]
    marks: bytes
    suffix: bytes


class StoredAlike(NamedTuple):
    """Half messages of one shape, laid out as their commits.

    `found`: their hashes of tags and keys for the index; the other fields are those that all of them have in common.
    """

    messages: AlikeMessages
    found: Found
    sys_flag: int
    born_time_ms: int
    born_host: bytes


class HalfShape:
    """The form that the half messages of a queue's batches have in common: lengths, and the bytes that never differ.

    `group`, `immunity`: their producer group and time without checks, the latter None if they name none; `cut`,
    `after`: as in HalfForm; `properties_bytes`: the length of the properties of each.
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
        """Tell whether the first message of a batch, which stands for all, has this shape."""
        return (
            (layout.width, int(layout.body_bytes[0])) == (self._width, self._body_bytes)
            and rest == self._rest
            and self._texts.holds(self._texts_of(layout)[:1])
        )

    def halves(self, layout: Layout) -> tuple[AlikeMessages, Found, Bytes] | None:
        """Lay a batch out as half messages, if all its messages have this shape; returns their unique ids as well.

        None if a message has another shape, or two have the same id.
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
        """Lay half messages of this shape that lie one behind another in the log out as their commits.

        `stored`: their records; `positions`: their physical offsets; `first_offset`: the half queue offset of the
        first. None if a record is not the half message that was stored.
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
    """Return the shape of a batch's first message, sent to a queue; None if it is not of the plainest form."""
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
