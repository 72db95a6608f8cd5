"""Unique id, keys and tags of all messages of a batch, found at once.

Rule: the result is that of `put_message.pairs_of` for each message; texts of a rare form are read by `pairs_of` itself.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rocketspark.protocol.message.batch import Layout
from rocketspark.store.index.key_hashes import HASHED_BYTES_MAX, BatchKeys, hash_rows

Pairs = Callable[[bytes], dict[bytes, bytes]]
Bytes = NDArray[np.uint8]
# Texts of one length and shape are read together; for fewer, or of more kinds, that costs more than it saves.
_ROWS_MIN = 8
_KINDS_MAX = 24
_SHAPES_MAX = 3
_ID, _KEYS, _TAGS = b"UNIQ_KEY", b"KEYS", b"TAGS"


def read(
    layout: Layout, pairs_of: Pairs, tag_code: Callable[[bytes | None], int]
) -> tuple[NDArray[np.int64], BatchKeys]:
    """Return the tags code of each message, and the keys for the index."""
    count = layout.message_count
    codes = np.zeros(count, np.int64)
    keys = BatchKeys()
    if layout.width:
        length = int(layout.properties_bytes[0])
        at = int(layout.properties_at[0])
        texts = np.ascontiguousarray(np.ndarray((count, length), np.uint8, layout.body, at, (layout.width, 1)))
        single = _read_alike(np.arange(count), texts, codes, keys)
    else:
        single = _read_kinds(layout, codes, keys)
    starts, lengths = layout.properties_at, layout.properties_bytes
    for row in single.tolist():
        at = starts[row]
        pairs = pairs_of(layout.body[at : at + lengths[row]])
        tags = pairs.get(_TAGS)
        codes[row] = tag_code(tags)
        keys.single.append((row, pairs.get(_ID), pairs.get(_KEYS), tags))
    return codes, keys


def _read_kinds(layout: Layout, codes: NDArray[np.int64], keys: BatchKeys) -> NDArray[np.int64]:
    """Read the texts of each length together; returns the rows that are left."""
    data = np.frombuffer(layout.body, np.uint8)
    lengths, starts = layout.properties_bytes, layout.properties_at
    if int(lengths.min()) == int(lengths.max()):
        texts = data[starts[:, None] + np.arange(int(lengths[0]))]
        return _read_alike(np.arange(layout.message_count), texts, codes, keys)
    kinds, counts = np.unique(lengths, return_counts=True)
    if len(kinds) > _KINDS_MAX:
        return np.arange(layout.message_count)
    left = []
    for length, rows_count in zip(kinds.tolist(), counts.tolist(), strict=True):
        rows = np.flatnonzero(lengths == length)
        if rows_count >= _ROWS_MIN:
            rows = _read_alike(rows, data[starts[rows, None] + np.arange(length)], codes, keys)
        left.append(rows)
    return np.sort(np.concatenate(left))


def _read_alike(rows: NDArray[np.int64], texts: Bytes, codes: NDArray[np.int64], keys: BatchKeys) -> NDArray[np.int64]:
    """Read texts of one length, those of the first's shape together, and so on; returns the rows that are left."""
    for _ in range(_SHAPES_MAX):
        if len(rows) < _ROWS_MIN:
            break
        spans = _spans(texts[0].tobytes())
        if spans is None:
            break
        is_value = np.zeros(texts.shape[1], bool)
        for begin, end in spans.values():
            is_value[begin:end] = True
        # Other names, marks elsewhere; texts that are not plain.
        odd = np.where(is_value, (texts == 1) | (texts == 2) | (texts == 0) | (texts > 127), texts != texts[0])
        if _KEYS in spans:
            begin, end = spans[_KEYS]
            odd[:, begin:end] |= texts[:, begin:end] == ord(" ")
        is_odd = odd.any(axis=1)
        if is_odd[0]:
            break
        if is_odd.any():
            alike, like_rows = texts[~is_odd], rows[~is_odd]
            texts, rows = texts[is_odd], rows[is_odd]
        else:
            alike, like_rows = texts, rows
            texts, rows = texts[:0], rows[:0]
        for name, found in ((_ID, keys.ids), (_KEYS, keys.words), (_TAGS, keys.tags)):
            if name in spans:
                begin, end = spans[name]
                found.append((like_rows, alike[:, begin:end]))
        if _TAGS in spans:
            begin, end = spans[_TAGS]
            starts = np.zeros(len(like_rows), np.uint32)
            codes[like_rows] = hash_rows(starts, alike[:, begin:end]).view(np.int32)
    return rows


def _spans(text: bytes) -> dict[bytes, tuple[int, int]] | None:
    """Return the place of each value of a stored text, by its name; None if the text is not in the plainest form."""
    found: dict[bytes, tuple[int, int]] = {}
    at = 0
    pieces = text.split(b"\x02")
    if pieces.pop():
        return None
    for piece in pieces:
        name, mark, value = piece.partition(b"\x01")
        if not name or not mark or not value or b"\x01" in value or len(value) >= HASHED_BYTES_MAX or name in found:
            return None
        found[name] = (at + len(name) + 1, at + len(piece))
        at += len(piece) + 1
    return found
