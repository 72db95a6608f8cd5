"""Batch bodies: both ways, and no input that brings anything but RecordError."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.errors import RecordError
from rocketspark.protocol.message import batch
from rocketspark.store.consumequeue.batch_consume_queue import INNER_COUNT_MAX

ITEMS = st.lists(
    st.builds(
        batch.BatchItem,
        st.integers(-(1 << 31), (1 << 31) - 1),
        st.binary(max_size=50),
        st.binary(max_size=50),
    ),
    max_size=5,
)
ONE = [batch.BatchItem(7, b"hi", b"A\x01b\x02")]
ONE_HEX = "0000001c 00000000 00000000 00000007 00000002 6869 0004 41016202"


def test_a_batch_byte_by_byte() -> None:
    encoded = bytes.fromhex(ONE_HEX)
    assert batch.encode(ONE) == encoded
    assert batch.decode(encoded) == ONE
    for cut in range(1, len(encoded)):
        with pytest.raises(RecordError):
            batch.decode(encoded[:cut])


@given(ITEMS)
def test_round_trip(items: list[batch.BatchItem]) -> None:
    assert batch.decode(memoryview(batch.encode(items))) == items


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_read(junk: bytes) -> None:
    try:
        batch.decode(junk)
    except RecordError:
        pass


@given(ITEMS, st.integers(0, 300), st.integers(0, 255))
def test_damage_is_an_error_at_most(items: list[batch.BatchItem], at: int, value: int) -> None:
    encoded = bytearray(batch.encode([*ONE, *items]))
    encoded[at % len(encoded)] = value
    try:
        batch.decode(encoded)
    except RecordError:
        pass


def test_a_length_beyond_the_batch_is_named() -> None:
    with pytest.raises(RecordError, match="body of 65538 bytes"):
        batch.decode(bytes.fromhex(ONE_HEX.replace("00000002", "00010002")))
    with pytest.raises(RecordError, match="states 29 bytes"):
        batch.decode(bytes.fromhex(ONE_HEX.replace("0000001c", "0000001d")))


def test_a_record_holds_no_more_messages_than_its_queue_counts() -> None:
    empty = batch.encode_item(0, b"", b"")
    assert len(batch.decode(empty * batch.DECODED_MAX)) == batch.DECODED_MAX == INNER_COUNT_MAX
    with pytest.raises(RecordError, match="a batch of more than 32767 messages"):
        batch.decode(empty * (batch.DECODED_MAX + 1))
