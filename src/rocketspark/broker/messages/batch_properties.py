"""Finds unique id, keys and tags of all messages of a batch at once, by numpy.

Rule: the result is that of `put_message.pairs_of` for each message; texts of a rare form are read by `pairs_of`
itself."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable

import numpy as np
from numpy.typing import NDArray

from rocketspark.model.steps import finished
from rocketspark.protocol.message.batch import Layout
from rocketspark.store.commitlog.batch_append import rows_at_once
from rocketspark.store.index.key_hashes import HASHED_BYTES_MAX, BatchKeys, hash_rows

Pairs = Callable[[bytes], dict[bytes, bytes]]
Bytes = NDArray[np.uint8]
# Tags codes and keys for the index, of each message of a batch.
Found = tuple[NDArray[np.int64], BatchKeys]
# The place of each value in a text, by its name.
Spans = dict[bytes, tuple[int, int]]
# Texts of one length and shape are read together; for fewer, or of more kinds, that costs more than it saves.
_ROWS_MIN = 8
_KINDS_MAX = 24
# A large batch may be of more, if there are so many messages of each on average.
_OF_KIND_MIN, _KINDS_OF_LARGE_MAX = 64, 256
# Read one by one in one turn.
_SINGLE_IN_TURN = 1024
# Read in one turn where those of a length are read together.
_ALIKE_IN_TURN = 8192
_SHAPES_MAX = 3
# The characters of plain texts: neither a mark nor 0, and ASCII.
_PLAIN_FIRST, _PLAIN_LAST = 3, 127
ID, KEYS, TAGS = b"UNIQ_KEY", b"KEYS", b"TAGS"


class Wanted:
    """The names of further properties that `read` has to find in a batch, and where it puts what it finds.

    `alike`: by name, numbers of messages with their values as rows of bytes; `single`: numbers of the other messages,
    with all their properties; `names`: the names of all properties that any message has.
    """

    __slots__ = ("alike", "names", "single")

    def __init__(self, names: Iterable[bytes]) -> None:
        self.alike: dict[bytes, list[tuple[NDArray[np.int64], Bytes]]] = {name: [] for name in names}
        self.single: list[tuple[int, dict[bytes, bytes]]] = []
        self.names: set[bytes] = set()


class Pattern:
    """The bytes that rows of one length may have: at each place the lowest, and how many above it are allowed.

    A new pattern allows the bytes of one text only.
    """

    __slots__ = ("low", "more")

    def __init__(self, text: bytes) -> None:
        self.low = np.frombuffer(text, np.uint8).copy()
        self.more = np.zeros(len(text), np.uint8)

    @property
    def width(self) -> int:
        """The length of the rows, in bytes."""
        return len(self.low)

    def copy(self) -> Pattern:
        """Return a copy of the pattern: a change of one leaves the other as it is."""
        return Pattern.__new__(Pattern)._set(self.low.copy(), self.more)

    def _set(self, low: Bytes, more: Bytes) -> Pattern:
        self.low, self.more = low, more
        return self

    def plain(self, begin: int, end: int, *, is_word: bool = False) -> None:
        """Allow any plain characters from place `begin` to `end`; `is_word`: no blanks among them."""
        first = ord(" ") + 1 if is_word else _PLAIN_FIRST
        self.low[begin:end], self.more[begin:end] = first, _PLAIN_LAST - first

    def any(self, begin: int, end: int) -> None:
        """Allow any bytes from `begin` to `end`."""
        self.low[begin:end], self.more[begin:end] = 0, 255

    def exactly(self, begin: int, end: int, text: bytes) -> None:
        """Allow from place `begin` to `end` only the bytes that `text` has there."""
        self.low[begin:end], self.more[begin:end] = np.frombuffer(text, np.uint8)[begin:end], 0

    def holds(self, rows: Bytes) -> bool:
        """Tell whether all rows have allowed bytes only. (The subtraction makes bytes below the lowest very large.)"""
        count = min(len(rows), rows_at_once(self.width))
        differences, odd = np.empty((count, self.width), np.uint8), np.empty((count, self.width), bool)
        for at in range(0, len(rows), count):
            part = rows[at : at + count]
            here = slice(0, len(part))
            np.subtract(part, self.low, out=differences[here])
            if np.greater(differences[here], self.more, out=odd[here]).any():
                return False
        return True


def found_at(texts: Bytes, spans: Spans) -> Found:
    """Return the hash of each message's tags, and the keys for the index, if all values lie at the same places.

    `texts`: the properties of each message as one row; `spans`: by name, where in the row a property's value is.
    """
    every, keys = np.arange(len(texts)), BatchKeys()
    for name, found in ((ID, keys.ids), (KEYS, keys.words), (TAGS, keys.tags)):
        if name in spans:
            found.append((every, texts[:, slice(*spans[name])]))
    if TAGS not in spans:
        return np.zeros(len(texts), np.int64), keys
    return hash_rows(np.zeros(len(texts), np.uint32), keys.tags[0][1]).view(np.int32).astype(np.int64), keys


def read(
    layout: Layout, pairs_of: Pairs, tag_code: Callable[[bytes | None], int], wanted: Wanted | None = None
) -> tuple[NDArray[np.int64], BatchKeys]:
    """Return the hash of each message's tags, and the keys for the index; `wanted` is filled as well.

    `pairs_of`: decodes the properties of one message; `tag_code`: returns the hash of tags.
    """
    return finished(read_steps(layout, pairs_of, tag_code, wanted))


def read_steps(
    layout: Layout, pairs_of: Pairs, tag_code: Callable[[bytes | None], int], wanted: Wanted | None = None
) -> Generator[None, None, Found]:
    """Do what `read` does, yielding after each piece of some ms."""
    count = layout.message_count
    codes = np.zeros(count, np.int64)
    keys = BatchKeys()
    if layout.width:
        length = int(layout.properties_bytes[0])
        at = int(layout.properties_at[0])
        texts = np.ascontiguousarray(np.ndarray((count, length), np.uint8, layout.body, at, (layout.width, 1)))
        single = _read_alike(np.arange(count), texts, codes, keys, wanted)
    else:
        single = yield from _read_kinds(layout, codes, keys, wanted)
    starts, lengths = layout.properties_at, layout.properties_bytes
    for number, row in enumerate(single.tolist(), 1):
        if number % _SINGLE_IN_TURN == 0:
            yield
        at = starts[row]
        pairs = pairs_of(layout.body[at : at + lengths[row]])
        tags = pairs.get(TAGS)
        codes[row] = tag_code(tags)
        keys.single.append((row, pairs.get(ID), pairs.get(KEYS), tags))
        if wanted is not None:
            wanted.names.update(pairs)
            if wanted.alike:
                wanted.single.append((row, pairs))
    return codes, keys


def _read_kinds(
    layout: Layout, codes: NDArray[np.int64], keys: BatchKeys, wanted: Wanted | None
) -> Generator[None, None, NDArray[np.int64]]:
    """Read the texts of each length together; returns the rows that are left. Yields after many messages."""
    lengths, starts = layout.properties_bytes, layout.properties_at
    if int(lengths.min()) == int(lengths.max()):
        texts = _texts(layout.body, starts, int(lengths[0]))
        return _read_alike(np.arange(layout.message_count), texts, codes, keys, wanted)
    kinds, counts = np.unique(lengths, return_counts=True)
    if len(kinds) > max(_KINDS_MAX, min(layout.message_count // _OF_KIND_MIN, _KINDS_OF_LARGE_MAX)):
        return np.arange(layout.message_count)
    left, done = [], 0
    for length, rows_count in zip(kinds.tolist(), counts.tolist(), strict=True):
        rows = np.flatnonzero(lengths == length)
        if rows_count >= _ROWS_MIN:
            rows = _read_alike(rows, _texts(layout.body, starts[rows], length), codes, keys, wanted)
        left.append(rows)
        done += rows_count
        if done >= _ALIKE_IN_TURN:
            yield
            done = 0
    return np.sort(np.concatenate(left))


def _texts(body: bytes, starts: NDArray[np.int64], length: int) -> Bytes:
    """Return the texts of one length that begin there, a row each. Slices: an index for each byte takes 8 of them."""
    pieces = [body[at : at + length] for at in starts.tolist()]
    return np.frombuffer(b"".join(pieces), np.uint8).reshape(len(pieces), length)


def _read_alike(
    rows: NDArray[np.int64], texts: Bytes, codes: NDArray[np.int64], keys: BatchKeys, wanted: Wanted | None
) -> NDArray[np.int64]:
    """Read texts of one length, those of the first's shape together, and so on; returns the rows that are left."""
    for _ in range(_SHAPES_MAX):
        if len(rows) < _ROWS_MIN:
            break
        spans = spans_of(texts[0].tobytes())
        if spans is None:
            break
        # The lowest byte that may stand at each place, and how many above it: names and marks as in the first text, and
        # values of plain characters. What is below wraps around to far above.
        low, more = texts[0].copy(), np.zeros(texts.shape[1], np.uint8)
        for begin, end in spans.values():
            low[begin:end], more[begin:end] = _PLAIN_FIRST, _PLAIN_LAST - _PLAIN_FIRST
        odd = texts - low > more
        if odd.any():
            is_odd = odd.any(axis=1)
            if is_odd[0]:
                break
            alike, like_rows = texts[~is_odd], rows[~is_odd]
            texts, rows = texts[is_odd], rows[is_odd]
        else:
            alike, like_rows = texts, rows
            texts, rows = texts[:0], rows[:0]
        for name, found in ((ID, keys.ids), (TAGS, keys.tags)):
            if name in spans:
                begin, end = spans[name]
                found.append((like_rows, alike[:, begin:end]))
        if KEYS in spans:
            _add_keys(keys, like_rows, alike[:, slice(*spans[KEYS])])
        if wanted is not None:
            wanted.names.update(spans)
        for name, places in wanted.alike.items() if wanted is not None else ():
            if name in spans:
                begin, end = spans[name]
                places.append((like_rows, alike[:, begin:end]))
        if TAGS in spans:
            begin, end = spans[TAGS]
            starts = np.zeros(len(like_rows), np.uint32)
            codes[like_rows] = hash_rows(starts, alike[:, begin:end]).view(np.int32)
    return rows


def _add_keys(keys: BatchKeys, rows: NDArray[np.int64], values: Bytes) -> None:
    """Add the values of KEYS: most are a key each, others are several with blanks between."""
    are_lists = (values == ord(" ")).any(axis=1)
    if not are_lists.any():
        keys.words.append((rows, values))
    elif are_lists.all():
        keys.lists.append((rows, values))
    else:
        keys.words.append((rows[~are_lists], values[~are_lists]))
        keys.lists.append((rows[are_lists], values[are_lists]))


def spans_of(text: bytes) -> Spans | None:
    """Return by name where each value lies in a text of properties; None if the text is not of the plainest form."""
    found: Spans = {}
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
