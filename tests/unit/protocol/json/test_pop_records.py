"""Records of pops byte for byte as 5.5.0 writes them (fastjson2 2.0.59), and what it reads of odd ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.errors import ProtocolError
from rocketspark.protocol.json.pop_records import (
    AckRecord,
    CheckPointKey,
    CheckPointRecord,
    decode_ack,
    decode_check_point,
)

pytestmark = pytest.mark.shows(
    "check points and acknowledgements in the log as RocketMQ's (file mode), byte for byte; those of one turn "
    "in one record; wholly acknowledged ones never leave the timer wheel"
)

KEY = CheckPointKey("topic", "gro\u00fc", 7, 5_000_000_000, 1_700_000_000_123, "broker-a")
OFFSETS = (5_000_000_000, 5_000_000_001, 5_000_000_005)
CHECK_POINTS = [
    (
        CheckPointRecord(KEY, 60_000, OFFSETS),
        '{"bm":0,"bn":"broker-a","c":"gro\u00fc","d":[0,1,5],"it":60000,"n":3,"pt":1700000000123,"q":7,'
        '"reviveTime":1700000060123,"ro":0,"so":5000000000,"sp":false,"t":"topic"}',
    ),
    (
        CheckPointRecord(KEY, 60_000, OFFSETS, acked=0xFFFF_FFFB, re_puts=2, suspended=True),
        '{"bm":-5,"bn":"broker-a","c":"gro\u00fc","d":[0,1,5],"it":60000,"n":3,"pt":1700000000123,"q":7,'
        '"reviveTime":1700000060123,"ro":0,"rp":"2","so":5000000000,"sp":true,"t":"topic"}',
    ),
]
ACK_KEY = CheckPointKey("t", "g", 0, 10, 1_700_000_000_123, "broker-a")
ACKS = [
    (
        AckRecord(ACK_KEY._replace(topic="%RETRY%g_t"), (11,)),
        '{"ao":11,"bn":"broker-a","c":"g","pt":1700000000123,"q":0,"so":10,"t":"%RETRY%g_t"}',
    ),
    (
        AckRecord(ACK_KEY, (10, 12), is_batch=True),
        '{"ao":-1,"aol":[10,12],"bn":"broker-a","c":"g","pt":1700000000123,"q":0,"so":10,"t":"t"}',
    ),
]


@pytest.mark.parametrize(("record", "text"), CHECK_POINTS)
def test_check_points(record: CheckPointRecord, text: str) -> None:
    assert record.encode().decode() == text
    assert decode_check_point(text.encode(), "other") == record
    assert record.unique_key() == "topic@7@5000000000@gro\u00fc@1700000000123@broker-a@ck".encode()


@pytest.mark.parametrize(("record", "text"), ACKS)
def test_acknowledgements(record: AckRecord, text: str) -> None:
    assert record.encode().decode() == text
    assert decode_ack(text.encode(), "other", is_batch=record.is_batch) == record


@pytest.mark.parametrize(
    ("text", "offsets"),
    [
        # As 5.0 wrote it, and what Java takes for a number.
        ('{"so":"5","pt":1,"n":3,"t":"T","c":"G"}', (5, 6, 7)),
        ('{"so":5,"n":2,"d":[0,3,9],"t":"T","c":"G","x":{"y":[]}}', (5, 8)),
        ('{"so":null,"n":1,"d":["1"],"sp":"true","rp":3,"t":"T","c":"G"}', (1,)),
        ('{"n":-1,"t":"T","c":"G"}', ()),
    ],
)
def test_odd_check_points(text: str, offsets: tuple[int, ...]) -> None:
    found = decode_check_point(text.encode(), "own")
    assert (found.offsets, found.key.broker_name) == (offsets, "own")


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "null", "{", '{"t":"T"}', '{"c":"G"}', '{"t":"T","c":"G","bm":4294967295}'),
        *('{"t":"T","c":"G","n":100}', '{"t":"T","c":"G","so":1e400}', '{"t":1,"c":"G"}', '{"t":"T","c":"G","d":{}}'),
        *("[" * 5000, '{"t":"\\ud800"}'),
    ],
)
def test_what_is_none(text: str) -> None:
    with pytest.raises(ProtocolError):
        decode_check_point(text.encode(), "own")


@given(st.binary(max_size=60))
def test_any_bytes(body: bytes) -> None:
    for read in (decode_check_point, lambda b, n: decode_ack(b, n, is_batch=True)):
        try:
            read(body, "own")
        except ProtocolError:
            pass


NAMES = st.text(min_size=1, max_size=8)
NUMBERS = st.integers(0, 2**40)


@given(NAMES, NAMES, NAMES, NUMBERS, NUMBERS, st.lists(st.integers(0, 10_000), min_size=1, max_size=32, unique=True))
def test_there_and_back(topic: str, group: str, broker: str, start: int, popped: int, rows: list[int]) -> None:
    key = CheckPointKey(topic, group, 3, start, popped, broker)
    offsets = tuple(start + row for row in sorted(rows))
    point = CheckPointRecord(key, 1000, offsets, acked=1, re_puts=3)
    try:
        body = point.encode()
    except UnicodeEncodeError:
        return
    assert decode_check_point(body, "x") == point
    ack = AckRecord(key, offsets, is_batch=True)
    assert decode_ack(ack.encode(), "x", is_batch=True) == ack
