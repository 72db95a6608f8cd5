"""The entries of the key index: keys, and their hashes as Java makes them, many at a time. Pure.

Rule: of each message first the unique id, then its keys, then its tags.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rocketspark.model.steps import finished
from rocketspark.model.text import string_hash

_TAG_HASHES_MAX = 4096

# One appended message, as kept until written: topic, physical offset, store time, unique id, keys, tags.
Pending = tuple["TopicKeys", int, int, bytes | None, bytes | None, bytes | None]


def key_hash(key: str) -> int:
    """Return the index's hash of a key: |hashCode|, and 0 where Java's abs stays negative."""
    h = abs(string_hash(key))
    return 0 if h == 1 << 31 else h


class TopicKeys:
    """The part of the index keys that is the same for all messages of a topic, hashed once.

    Light queues never need it: their messages' keys are those of the topic that they were sent to.
    """

    __slots__ = ("_tag_hashes", "name", "prefix_hash", "tag_prefix_hash")

    prefix_hash: int
    tag_prefix_hash: int

    def __init__(self, name: str) -> None:
        self.name = name
        self._tag_hashes: dict[bytes, int] = {}

    def __getattr__(self, attribute: str) -> int:
        """Hash what is asked for the first time."""
        if attribute == "prefix_hash":
            self.prefix_hash = found = string_hash(f"{self.name}#") & 0xFFFFFFFF
        elif attribute == "tag_prefix_hash":
            self.tag_prefix_hash = found = string_hash(f"{self.name}#T#") & 0xFFFFFFFF
        else:
            raise AttributeError(attribute)
        return found

    def tag_hash(self, tags: bytes) -> int:
        """Return the unsigned hash of `topic#T#tags`."""
        found = self._tag_hashes.get(tags)
        if found is None:
            if len(self._tag_hashes) >= _TAG_HASHES_MAX:
                self._tag_hashes.clear()
            text = tags.decode("utf-8", "replace")
            found = self._tag_hashes[tags] = string_hash(f"{self.name}#T#{text}") & 0xFFFFFFFF
        return found


class BatchKeys:
    """The keys of a batch's messages for the key index.

    Messages whose values are plain ASCII and of one length are in `ids` (unique ids), `words` (KEYS of one key),
    `lists` (KEYS of several, with blanks between) and `tags`: pairs of the messages' numbers, ascending, and an array
    with a row of bytes for each. `single`: number, unique id, keys and tags of all others, as in `Pending`.
    """

    __slots__ = ("hashed", "ids", "lists", "single", "tags", "words")

    def __init__(self) -> None:
        self.ids: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]] = []
        self.words: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]] = []
        self.lists: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]] = []
        self.tags: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]] = []
        self.single: list[tuple[int, bytes | None, bytes | None, bytes | None]] = []
        # For a topic, what `batch_columns` returns, if that is made already.
        self.hashed: tuple[str, Any, npt.NDArray[np.int32]] | None = None

    def hash_steps(self, topic: str, count: int) -> Generator[None, None, None]:
        """Hash the keys of a long batch of `count` messages before it is stored, in steps of some ms."""
        self.hashed = topic, *(yield from _batch_steps(TopicKeys(topic), self, count))

    @property
    def count(self) -> int:
        """Return about how many index entries the batch makes: each blank in KEYS counts as one key more."""
        alike = sum(len(of) for of, _ in (*self.ids, *self.words, *self.tags, *self.lists))
        more = sum(int(np.count_nonzero(values == ord(" "))) for _, values in self.lists)
        return alike + more + sum(words.count(b" ") + 2 if words else 1 for _, _, words, _ in self.single)


_POWERS = np.empty(1024, np.uint32)
HASHED_BYTES_MAX = len(_POWERS)
# Texts whose words are hashed together.
_WORDS_BYTES = 128 << 10
# Of a batch, what is hashed in a step: bytes of lists of keys, and messages read one by one.
_LISTS_BYTES_IN_STEP, _SINGLE_IN_STEP = 512 << 10, 4096
_word_tables = np.empty(0, np.uint32), np.empty(0, np.uint32)
_POWERS[0] = 1
for _i in range(1, 1024):
    _POWERS[_i] = np.uint32(int(_POWERS[_i - 1]) * 31 & 0xFFFFFFFF)


def hashes(prefixes: npt.NDArray[np.uint32] | Sequence[int], keys: Sequence[bytes]) -> npt.NDArray[np.uint32]:
    """Return the Java hashCode, unsigned, of each prefix (given by its hash) followed by its key.

    Keys of equal length are one byte matrix times powers of 31: 0.1 us per key against 5 us in a loop.
    """
    blob = b"".join(keys)
    count = len(keys)
    width = len(keys[0])
    lengths = list(map(len, keys))
    if not blob.isascii() or max(lengths) >= len(_POWERS):
        return np.fromiter(map(_hash_one, map(int, prefixes), keys), np.uint32, count)
    starts = np.asarray(prefixes, np.uint32)
    if lengths.count(width) == count:
        return hash_rows(starts, np.frombuffer(blob, np.uint8).reshape(count, width))
    found = np.empty(count, np.uint32)
    lengths_array = np.array(lengths)
    for width in set(lengths):
        rows = np.flatnonzero(lengths_array == width)
        blob = b"".join([keys[row] for row in rows.tolist()])
        found[rows] = hash_rows(starts[rows], np.frombuffer(blob, np.uint8).reshape(len(rows), width))
    return found


def hash_rows(starts: npt.NDArray[np.uint32], rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """Return the Java hashCode, unsigned, of texts that begin with a text of hash `starts` and go on with a row of
    ASCII bytes.
    """
    width = rows.shape[1]
    powers = _POWERS[:width][::-1]
    # Twice as quick as with the cast left to it.
    sums: npt.NDArray[np.uint32] = np.einsum("ij,j->i", rows.astype(np.uint32), np.ascontiguousarray(powers))
    return starts * _POWERS[width] + sums


def word_hashes(
    prefixes: npt.NDArray[np.uint32], texts: Sequence[bytes]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]:
    """Return, for every word in the texts, the number of its text, and its hash behind that text's prefix; words end at
    blanks.

    All words of many texts are hashed together: a hash is the difference of two sums over all bytes. That takes 20 ns a
    byte; a slice and a tuple of each word took 700 ns a word.
    """
    blob = b"".join(texts)
    if blob and b" " not in blob and len(blob) == len(texts[0]) * len(texts) and all(texts):
        return np.arange(len(texts)), hashes(prefixes, texts)
    if not blob.isascii():
        words = [(i, word) for i, text in enumerate(texts) for word in text.split(b" ") if word]
        numbers = np.array([i for i, _ in words], np.int64)
        return numbers, hashes(prefixes[numbers], [word for _, word in words]) if words else np.empty(0, np.uint32)
    numbers_of, found = [], []
    at, first, size = 0, 0, 0
    while at < len(texts):
        size += len(texts[at]) + 1
        at += 1
        if size >= _WORDS_BYTES or at == len(texts):
            numbers, hashed = _word_hashes(prefixes[first:at], texts[first:at])
            numbers_of.append(numbers + first)
            found.append(hashed)
            first, size = at, 0
    return np.concatenate(numbers_of), np.concatenate(found)


def _once(
    numbers: npt.NDArray[np.int64], hashed: npt.NDArray[np.uint32], texts_count: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]:
    """Leave out the words of a text whose hash another one before has: one entry leads to the message as well as many.

    Java's hash is easily made the same for thousands of words, whose entries would all stand in one chain.
    """
    if len(numbers) == texts_count:
        return numbers, hashed
    _, first = np.unique(numbers.astype(np.uint64) << np.uint64(32) | hashed, return_index=True)
    if len(first) == len(numbers):
        return numbers, hashed
    first.sort()
    return numbers[first], hashed[first]


def _word_hashes(
    prefixes: npt.NDArray[np.uint32], texts: Sequence[bytes]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]:
    data = np.frombuffer(b" ".join(texts), np.uint8)
    powers, inverses = _word_powers(len(data) + 1)
    blank = np.ones(len(data) + 2, np.int8)
    np.equal(data, ord(" "), out=blank[1:-1], casting="unsafe")
    edges = np.flatnonzero(blank[1:] != blank[:-1])
    begins, ends = edges[::2], edges[1::2]
    sums = np.zeros(len(data) + 1, np.uint32)
    np.cumsum(data * inverses[: len(data)], dtype=np.uint32, out=sums[1:])
    starts = np.cumsum([0, *[len(text) + 1 for text in texts[:-1]]])
    numbers = np.searchsorted(starts, begins, "right") - 1
    return numbers, prefixes[numbers] * powers[ends - begins] + powers[ends - 1] * (sums[ends] - sums[begins])


def _word_powers(count: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
    """Return the powers of 31, and of its inverse, modulo 2**32; kept, for as many as were asked for at most."""
    global _word_tables
    if len(_word_tables[0]) < count:
        # By steps: the longest is that of a few texts of 32 KiB each.
        size = 1 << (count - 1).bit_length()
        tables = []
        for base in (31, pow(31, -1, 1 << 32)):
            factors = np.full(size, base, np.uint32)
            factors[0] = 1
            tables.append(np.multiply.accumulate(factors, dtype=np.uint32))
        _word_tables = tables[0], tables[1]
    return _word_tables


def _hash_one(prefix: int, key: bytes) -> int:
    units = key.decode("utf-8", "replace").encode("utf-16-be")
    h = prefix
    for i in range(0, len(units), 2):
        h = (31 * h + (units[i] << 8 | units[i + 1])) & 0xFFFFFFFF
    return h


def columns(
    items: list[Pending],
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return (hash, position, time) of every key of these messages: per message unique id, then keys, then tags."""
    count = len(items)
    topics, positions, times, ids, keys, tags = zip(*items, strict=True)
    every = np.arange(count)
    # Most often all messages are of one topic, and have the same tags.
    topic = topics[0] if topics.count(topics[0]) == count else None
    if topic is not None:
        prefixes = np.full(count, topic.prefix_hash, np.uint32)
    else:
        prefixes = np.array([of.prefix_hash for of in topics], np.uint32)
    # Numbers of the messages that the keys belong to, and the keys' hashes.
    rows: list[npt.NDArray[np.int64]] = []
    found: list[npt.NDArray[np.uint32]] = []
    if any(ids):
        of, texts = _present(ids, every)
        rows.append(of)
        found.append(hashes(prefixes[of], texts))
    if any(keys):
        of, texts = _present(keys, every)
        numbers, hashed = _once(*word_hashes(prefixes[of], texts), len(of))
        if len(numbers):
            rows.append(of[numbers])
            found.append(hashed)
    if topic is not None and tags[0] and tags.count(tags[0]) == count:
        rows.append(every)
        found.append(np.full(count, topic.tag_hash(tags[0]), np.uint32))
    elif any(tags):
        rows.append(_present(tags, every)[0])
        tagged = [of.tag_hash(text) for of, text in zip(topics, tags, strict=True) if text]
        found.append(np.array(tagged, np.uint32))
    if not found:
        return np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64)
    signed = _index_hashes(np.concatenate(found))
    which = np.concatenate(rows)
    if len(found) > 1:
        order = np.argsort(which, kind="stable")
        which, signed = which[order], signed[order]
    return signed, np.fromiter(positions, np.int64, count)[which], np.fromiter(times, np.int64, count)[which]


def _present(
    texts: Sequence[bytes | None], every: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], Sequence[bytes]]:
    """Return (numbers of the messages that have a text, their texts)."""
    there = [text for text in texts if text]
    if len(there) == len(texts):
        return every, there
    return np.array([i for i, text in enumerate(texts) if text], np.int64), there


def batch_columns(topic: TopicKeys, keys: BatchKeys, count: int) -> tuple[Any, npt.NDArray[np.int32]]:
    """Return (number of the message, hash) of every key of a batch: per message unique id, then keys, then tags."""
    return finished(_batch_steps(topic, keys, count))


def _batch_steps(
    topic: TopicKeys, keys: BatchKeys, count: int
) -> Generator[None, None, tuple[Any, npt.NDArray[np.int32]]]:
    """`batch_columns` in steps."""
    rows: list[npt.NDArray[np.int64]] = []
    found: list[npt.NDArray[np.uint32]] = []
    whole = not keys.single and not keys.lists
    for prefix, kind in (
        (topic.prefix_hash, keys.ids),
        (topic.prefix_hash, keys.words),
        (topic.tag_prefix_hash, keys.tags),
    ):
        for of, values in kind:
            whole = whole and len(of) == count
            rows.append(of)
            found.append(hash_rows(np.full(len(of), prefix, np.uint32), values))
    if whole and found:
        # Every message has the same kinds of keys.
        return np.repeat(np.arange(count), len(found)), _index_hashes(np.stack(found, axis=1).ravel())
    kinds = [np.full(len(of), 2 * n) for n, kind in enumerate((keys.ids, keys.words, keys.tags)) for of, _ in kind]
    for every, all_values in keys.lists:
        in_step = max(1, _LISTS_BYTES_IN_STEP // all_values.shape[1])
        for first in range(0, len(every), in_step):
            of, values = every[first : first + in_step], all_values[first : first + in_step]
            words_of = word_hashes(np.full(len(of), topic.prefix_hash, np.uint32), _texts(values))
            numbers, hashed_words = _once(*words_of, len(of))
            rows.append(of[numbers])
            found.append(hashed_words)
            kinds.append(np.full(len(numbers), 2))
            yield
    for first in range(0, len(keys.single), _SINGLE_IN_STEP):
        items = [
            (topic, row, 0, unique_id, words, tags)
            for row, unique_id, words, tags in keys.single[first : first + _SINGLE_IN_STEP]
        ]
        hashed, single_rows, _ = columns(items)
        # A message is either here or there.
        rows.append(single_rows)
        found.append(hashed.view(np.uint32))
        kinds.append(np.zeros(len(hashed), np.int64))
        yield
    if not found:
        return np.empty(0, np.int64), np.empty(0, np.int32)
    all_rows = np.concatenate(rows)
    order = np.argsort(all_rows * 8 + np.concatenate(kinds), kind="stable")
    return all_rows[order], _index_hashes(np.concatenate(found)[order])


def _texts(rows: npt.NDArray[np.uint8]) -> list[bytes]:
    width, blob = rows.shape[1], rows.tobytes()
    return [blob[at : at + width] for at in range(0, len(blob), width)]


def _index_hashes(unsigned: npt.NDArray[np.uint32]) -> npt.NDArray[np.int32]:
    """Return the hashes as the index has them: never negative."""
    signed = np.abs(unsigned.view(np.int32))
    signed[signed < 0] = 0
    return signed
