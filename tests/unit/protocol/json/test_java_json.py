"""RocketMQ's JSON dialect: bare number keys and object keys become standard JSON; anything else is a ProtocolError."""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketspark.errors import ProtocolError
from rocketspark.protocol.json import bodies, java_json

VECTORS = [
    (b'{0:"a",1:"b"}', {"0": "a", "1": "b"}),
    (b"{-1 : 2, 10:3}", {"-1": 2, "10": 3}),
    (b'{"t":{0:12,1:7}}', {"t": {"0": 12, "1": 7}}),
    (b"[{0:[1,{2:3}]},{}]", [{"0": [1, {"2": 3}]}, {}]),
    (b'{{"q":0,"t":"a"}:{"n":1}}', {'{"q":0,"t":"a"}': {"n": 1}}),
    (b'{{"q":0}:1,{"q":1}:2,"x":3,4:5}', {'{"q":0}': 1, '{"q":1}': 2, "x": 3, "4": 5}),
    (b'{{"q":{0:1}}:1}', {'{"q":{"0":1}}': 1}),
    (b'{"a:{0:1}":"{0:1,\\"}{"}', {"a:{0:1}": '{0:1,"}{'}),
    (b'{"a\\\\":{0:1}}', {"a\\": {"0": 1}}),
    (b"{true:1,null:2,1.5:3}", {"true": 1, "null": 2, "1.5": 3}),
    (b"{\t0\n:\r1 }", {"0": 1}),
]


@pytest.mark.shows("protocol: number-keyed JSON")
@pytest.mark.parametrize(("text", "value"), VECTORS, ids=lambda v: v.decode() if isinstance(v, bytes) else "")
def test_every_kind_of_key(text: bytes, value: Any) -> None:
    assert json.loads(java_json.standardize(text)) == value


def test_a_key_s_object_is_its_own_json() -> None:
    """A reader gets the key object back by decoding the key's text."""
    queue = bodies.QueueBody(broker_name='b "q"', queue_id=2, topic="ü")
    text = java_json.encode_object_keys([(queue, {"n": 1})])
    ((key, value),) = json.loads(java_json.standardize(text)).items()
    assert msgspec.json.decode(key, type=bodies.QueueBody) == queue
    assert value == {"n": 1}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=10,
)


@given(JSON, st.booleans())
def test_standard_json_comes_back_untouched(value: Any, pretty: bool) -> None:
    text = json.dumps(value, indent=1 if pretty else None, ensure_ascii=False).encode("utf-8", "surrogatepass")
    assert java_json.standardize(text) is text


def dialect(value: Any) -> bytes:
    """As RocketMQ writes it: keys that are numbers stand bare."""
    if isinstance(value, dict):
        return b"{" + b",".join(key(k) + b":" + dialect(v) for k, v in value.items()) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(map(dialect, value)) + b"]"
    return json.dumps(value).encode()


def key(k: str) -> bytes:
    return k.encode() if k.isascii() and k.isdigit() else json.dumps(k).encode()


NUMBERED = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.integers(0, 99).map(str) | st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(NUMBERED)
def test_the_dialect_holds_the_same_value(value: Any) -> None:
    assert json.loads(java_json.standardize(dialect(value))) == value


@given(st.dictionaries(st.integers(0, 2**31), st.integers() | st.text(max_size=4), max_size=4))
def test_number_keys_are_written_bare_and_read_back(table: dict[int, Any]) -> None:
    text = java_json.encode_number_keys(table)
    assert json.loads(java_json.standardize(text)) == {str(k): v for k, v in table.items()}
    if table and all(type(v) is int and abs(v) < 2**63 for v in table.values()):
        assert java_json.decode(text, dict[int, int]) == table


def test_decode_takes_quoted_and_bare_keys_and_numbers_as_text() -> None:
    for text in (b'{"0":1}', b"{0:1}", b'{0:"1"}', b'{"0":"1"}'):
        assert java_json.decode(text, dict[int, int]) == {0: 1}


@pytest.mark.parametrize(
    "text",
    [
        *(
            b"",
            b"{",
            b"}",
            b"{0",
            b"{0:",
            b"{0:1",
            b"{:1}",
            b"{,}",
            b"{{}",
            b"{{}:1",
            b'{"a',
            b'{"a\\',
            b"[1,2",
            b"nope",
        ),
        *(b"\xff", b'{0:"\xff"}', b"{{\xff}:1}", b"{" * 100_000, b"[" * 100_000, b'{"a":' * 9000, b"{{" * 5000),
        *(b"{{1:" * 20_000, b"[1]", b"{0:1}x"),
    ],
    ids=lambda text: text[:8].decode("latin-1"),
)
def test_what_is_no_json_is_a_protocol_error(text: bytes) -> None:
    started = time.process_time()
    with pytest.raises(ProtocolError, match="body"):
        java_json.decode(text, dict[int, dict[str, int]])
    # Keys within keys must not cost the body's length once per level.
    assert time.process_time() - started < 6


def test_keys_within_keys_end_somewhere() -> None:
    text = b"1"
    for _ in range(5):
        text = b"{%b:1}" % text
    assert java_json.standardize(text)
    with pytest.raises(ProtocolError, match="object keys"):
        java_json.standardize(b"{{{{{%b:1}:1}:1}:1}:1}" % text)


KINDS: list[Any] = [bodies.RouteBody, bodies.Heartbeat, bodies.LockRequest, bodies.OffsetTable, dict[int, str]]


@settings(max_examples=400)
@given(st.binary(max_size=60) | st.text('{}[]:,"\\01aé \n', max_size=40).map(str.encode), st.sampled_from(KINDS))
def test_any_bytes_are_a_body_or_a_protocol_error(text: bytes, kind: Any) -> None:
    try:
        java_json.decode(text, kind)
    except ProtocolError:
        pass


@settings(max_examples=400)
@given(st.text('{}[]:,"\\01aé \n', max_size=60).map(str.encode))
def test_standardize_never_fails_otherwise(text: bytes) -> None:
    try:
        java_json.standardize(text)
    except (ProtocolError, UnicodeDecodeError):
        pass


NUMBER_KEYED = st.dictionaries(
    st.text('{},:5"\\a@', max_size=6), st.dictionaries(st.integers(-9, 99), st.integers(-9, 99), max_size=3), max_size=4
)


@given(NUMBER_KEYED)
def test_number_keys_are_read_alike_in_the_quick_way(table: dict[str, dict[int, int]]) -> None:
    """Also beside names that look like such keys."""
    rows = (msgspec.json.encode(name) + b":" + java_json.encode_number_keys(queues) for name, queues in table.items())
    text = b'{"offsetTable":{%b}}' % b",".join(rows)
    assert java_json.decode(text, bodies.OffsetTable).offset_table == table
    slow = msgspec.json.decode(java_json.standardize(text), type=bodies.OffsetTable, strict=False)
    assert slow.offset_table == table
