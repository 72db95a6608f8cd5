"""Confluent's wire format: golden bytes, and whatever bytes come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.spark.decode.framed_bodies import join, write_indexes

from rocketspark.spark.decode.wire_format import read_indexes, split

pytestmark = pytest.mark.shows("wire format, its list of message indexes")

GOLDEN = [((0,), b"\0"), ((1,), b"\x02\x02"), ((1, 0), b"\x04\x02\x00"), ((64,), b"\x02\x80\x01")]


@pytest.mark.parametrize(("indexes", "encoded"), GOLDEN)
def test_indexes_as_confluents_serializer_writes_them(indexes: tuple[int, ...], encoded: bytes) -> None:
    assert write_indexes(indexes) == encoded
    assert read_indexes(b"abcde" + encoded + b"rest", 5) == (indexes, 5 + len(encoded))


def test_a_frame() -> None:
    assert join(258, b"xy") == b"\0\0\0\1\2xy"
    assert split(b"\0\0\0\1\2xy") == (258, 5)
    with pytest.raises(ValueError, match="4 bytes are too short"):
        split(b"\0\0\0\1")
    with pytest.raises(ValueError, match="the magic byte is 7, not 0"):
        split(b"\7\0\0\0\1")


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=100).map(tuple), st.binary(max_size=20))
def test_indexes_round_trip(indexes: tuple[int, ...], rest: bytes) -> None:
    encoded = write_indexes(indexes)
    assert read_indexes(encoded + rest, 0) == (indexes, len(encoded))
    for cut in range(len(encoded)):
        with pytest.raises(ValueError):
            read_indexes(encoded[:cut], 0)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_value_or_a_reason(body: bytes) -> None:
    try:
        found = split(body)
        indexes, at = read_indexes(body, found.start)
    except ValueError:
        return
    assert 0 <= found.schema_id < 2**32
    assert all(0 <= index < 2**31 for index in indexes)
    assert found.start < at <= len(body)
