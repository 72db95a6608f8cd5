"""The stored text of properties: both ways, tolerant in reading, strict in writing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.errors import MessageIllegal
from rocketspark.protocol.message import properties

TEXT = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=("Cs",)), min_size=1, max_size=30)

VECTORS = [
    ({}, ""),
    ({"TAGS": "A"}, "TAGS\x01A\x02"),
    ({"KEYS": "k1 k2", "x": "中文-é-🚀"}, "KEYS\x01k1 k2\x02x\x01中文-é-🚀\x02"),
]
READ_ONLY = [
    ("TAGS\x01A", {"TAGS": "A"}),
    ("a\x01\x02b\x01c\x02", {"b": "c"}),
    ("\x01v\x02b\x01c\x02", {"b": "c"}),
    ("noend\x02b\x01c\x02", {"b": "c"}),
    ("\x02\x02", {}),
    ("a\x01b\x01c\x02", {"a": "b\x01c"}),
    ("a\x011\x02a\x012\x02", {"a": "2"}),
]


@pytest.mark.parametrize(("pairs", "text"), VECTORS)
def test_both_ways(pairs: dict[str, str], text: str) -> None:
    assert properties.encode(pairs) == text
    assert properties.decode(text) == pairs


@pytest.mark.parametrize(("text", "pairs"), READ_ONLY)
def test_what_is_no_pair_is_dropped(text: str, pairs: dict[str, str]) -> None:
    assert properties.decode(text) == pairs


@given(st.dictionaries(TEXT, TEXT, max_size=8))
def test_round_trip_and_find(pairs: dict[str, str]) -> None:
    text = properties.encode(pairs)
    assert properties.decode(text) == pairs
    stored = text.encode()
    for name, value in pairs.items():
        assert properties.find(stored, name.encode()) == value.encode()
        assert properties.find(stored[:-1], name.encode()) == value.encode()
    assert properties.find(stored, b"\x01no such name") is None


@given(st.binary(max_size=200), st.binary(min_size=1, max_size=5))
def test_any_bytes_are_read_without_error(stored: bytes, name: bytes) -> None:
    properties.decode(stored.decode("utf-8", "replace"))
    properties.find(stored, name)


def test_find_takes_whole_names_only() -> None:
    stored = b"XTAGS\x01no\x02TAGS\x01yes\x02EMPTY\x01\x02"
    assert properties.find(stored, b"TAGS") == b"yes"
    assert properties.find(stored, b"AGS") is None
    assert properties.find(stored, b"EMPTY") is None
    assert properties.find(b"XTAGS\x01no\x02", b"TAGS") is None


@pytest.mark.parametrize("pairs", [{"a\x01": "b"}, {"a\x02": "b"}, {"a": "b\x01"}, {"a": "b\x02"}, {"": "b"}])
def test_separators_are_refused(pairs: dict[str, str]) -> None:
    with pytest.raises(MessageIllegal, match=r"0x01|has no name"):
        properties.encode(pairs)


def test_system_names() -> None:
    assert len(properties.SYSTEM_NAMES) > 45
    assert {"KEYS", "TAGS", "UNIQ_KEY", "DELAY"} <= properties.SYSTEM_NAMES
    assert "color" not in properties.SYSTEM_NAMES


PIECES = st.sampled_from([b"TAGS", b"KEYS", b"a", b"\x01", b"\x02", b"x y", b"", b"TAGS\x01v\x02", b"TAGS\x01\x02"])


@pytest.mark.shows("mended: duplicate TAGS or KEYS: an append takes the last, recovery the first")
@given(st.lists(PIECES, max_size=12).map(b"".join))
def test_one_is_found_as_all_are_read(stored: bytes) -> None:
    """Of several of a name the last counts, however it is read: an append and a rebuild agree."""
    pairs = properties.decode(stored.decode())
    for name in ("TAGS", "KEYS", "a"):
        found = properties.find(stored, name.encode())
        assert (found.decode() if found is not None else None) == pairs.get(name)
