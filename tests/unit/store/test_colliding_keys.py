"""Keys of one hash: each message has one entry for them, a look goes on in steps, and what is found is the same."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from rocketspark.model.text import string_hash
from rocketspark.store import record_lookup
from rocketspark.store.index import index_file, key_hashes
from rocketspark.store.index.index_service import KEYS_LONG

# All of one hash, in Java.
WORDS = ["".join(word) for word in itertools.product(("Aa", "BB"), repeat=7)]
OTHER = WORDS.pop()
NOW_MS = 1_700_000_000_000


def steps_of(store: Any, key: str, *, between: Any = None, count_max: int = 64) -> tuple[int, list[bytes]]:
    """Look for a key; return how many pauses it made, and what it found. `between` is called in each pause."""
    steps, pauses = store.query_steps("t", key, count_max, 0, NOW_MS * 2), 0
    while True:
        try:
            next(steps)
        except StopIteration as e:
            return pauses, [bytes(view) for view in e.value]
        pauses += 1
        if between is not None:
            between()


def test_a_message_has_one_entry_for_words_of_one_hash_and_is_found_by_each(make_store: Any, send: Any) -> None:
    assert {string_hash(word) for word in WORDS} == {string_hash(OTHER)}
    store = make_store(index_entries=1000, log_file_bytes=1 << 20)
    for n in range(5):
        send(store, "t", 0, b"%d" % n, keys=" ".join(WORDS), unique_id=f"U{n}", tag="A")
    index = store.index_service
    index.write_pending()
    assert index._file(index._paths[-1]).count - 1 == 5 * 3
    for word in (WORDS[0], WORDS[-1]):
        assert len(store.query("t", word, 64, 0, NOW_MS * 2)) == 5
    assert store.query("t", OTHER, 64, 0, NOW_MS * 2) == []


def test_a_long_look_is_made_in_steps_and_finds_what_a_short_one_does(
    make_store: Any, send: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_lookup, "LOOKS_PER_TURN", 8)
    monkeypatch.setattr(index_file, "ENTRIES_PER_TURN", 16)
    store = make_store(index_entries=10_000, log_file_bytes=1 << 20)
    for n in range(100):
        send(store, "t", 0, b"%d" % n, keys=WORDS[n % 2], unique_id=f"U{n}")
    pauses, found = steps_of(store, OTHER)
    assert (pauses >= 100 // 8, found) == (True, [])
    pauses, found = steps_of(store, WORDS[0])
    assert pauses
    assert found == [bytes(view) for view in store.query("t", WORDS[0], 64, 0, NOW_MS * 2)]
    assert len(found) == 50
    # A look for what is there in numbers is over at once.
    assert steps_of(store, WORDS[0], count_max=2)[0] == 0


def test_what_happens_in_a_pause_does_no_harm(make_store: Any, send: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages come, others go with their files of the log and of the index."""
    monkeypatch.setattr(record_lookup, "LOOKS_PER_TURN", 4)
    store = make_store(index_entries=41, log_file_bytes=4096)
    for n in range(200):
        send(store, "t", 0, b"x" * 50, keys=WORDS[0], unique_id=f"U{n}")

    def meanwhile() -> None:
        send(store, "t", 0, b"new", keys=WORDS[0])
        store.index_service.drop_before(store.written_position)

    pauses, found = steps_of(store, WORDS[0], between=meanwhile)
    assert pauses
    assert 0 < len(found) <= 64
    assert all(b"x" * 50 in record for record in found)


def test_long_keys_are_written_one_by_one(make_store: Any, send: Any) -> None:
    store = make_store(index_entries=100_000, log_file_bytes=1 << 20)
    waiting = []
    for n in range(8):
        send(store, "t", 0, b"x", keys=" ".join(f"{n}-{i:06d}" for i in range(KEYS_LONG // 4)))
        waiting.append(len(store.index_service.pending))
    assert waiting == [1] * 8
    assert store.index_service.is_due()
    assert len(store.query("t", "3-000007", 64, 0, NOW_MS * 2)) == 1


def test_hashes_of_many_tags_are_kept_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_hashes, "_TAG_HASHES_MAX", 3)
    keys = key_hashes.TopicKeys("t")
    for n in range(10):
        for _ in range(2):
            assert keys.tag_hash(b"%d" % n) == string_hash(f"t#T#{n}") & 0xFFFFFFFF
        assert len(keys._tag_hashes) == n % 3 + 1
