"""Columns that are sent equal Messages that are sent, byte for byte, and are refused for the same reasons."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.client.producer import prepared_message
from rocketspark.client.producer.given_columns import Given, Rows, check_rows
from rocketspark.client.producer.prepared_message import PackingSettings, pack_batch, properties_text
from rocketspark.errors import MessageIllegal, UsageError
from rocketspark.model import Message
from rocketspark.protocol.message import batch_columns, properties

PACKING = PackingSettings(body_bytes_max=1 << 20)
PREFIX, FIRST = "0123456789ABCDEF0123", 0x1_FFFF_FFFE

WORD = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=("Cs",)), min_size=1, max_size=8)
KEY = WORD.filter(lambda word: len(word.split()) == 1 and word.split()[0] == word)
NAME = WORD.filter(lambda name: name not in properties.SYSTEM_NAMES)
ROW = st.fixed_dictionaries(
    {
        "body": st.binary(min_size=1, max_size=50),
        "tag": st.none() | WORD,
        "keys": st.lists(KEY, max_size=3) | st.tuples(KEY) | KEY | st.just("a b"),
        "sharding_key": st.none() | WORD,
        "properties": st.dictionaries(NAME, WORD, max_size=3),
    }
)


def checked(bodies: Any, **columns: Any) -> Rows:
    return check_rows("t", Given(bodies, **columns), PACKING)


def body_of(rows: Rows) -> bytes:
    found = batch_columns.encode(rows.bodies, rows.pieces, PREFIX, FIRST)
    assert int(rows.item_bytes.sum()) == len(found)
    return found


def batch_of(messages: list[Message]) -> bytes:
    """What `pack_batch` makes of these messages, under the same ids."""
    ids = [*(f"{PREFIX}{FIRST + row:012X}" for row in range(len(messages))), "outer"]
    with mock.patch.object(prepared_message.unique_ids, "next", side_effect=ids):
        return pack_batch(messages, PACKING).body


@given(
    rows=st.lists(ROW, min_size=1, max_size=20),
    same_length=st.booleans(),
    bare=st.sets(st.sampled_from(sorted({"tag", "keys", "sharding_key", "properties"}))),
)
def test_columns_are_byte_for_byte_what_messages_are(
    rows: list[dict[str, Any]], same_length: bool, bare: set[str]
) -> None:
    for row in rows:
        if same_length:
            row["body"] = row["body"][:1] * 7
        for name in bare:
            row[name] = {"keys": (), "properties": {}}.get(name)
        # A batch of messages has one sharding key; here it stands for each row's own.
        row["sharding_key"] = rows[0]["sharding_key"]
    names = {"tag": "tags", "keys": "keys", "sharding_key": "sharding_keys", "properties": "properties"}
    columns = {names[name]: [row[name] for row in rows] for name in names if name not in bare}
    assert body_of(checked([row["body"] for row in rows], **columns)) == batch_of([Message("t", **row) for row in rows])


@given(st.lists(st.lists(WORD, min_size=3, max_size=3), min_size=1, max_size=9), st.sets(NAME, min_size=3, max_size=3))
def test_dicts_of_the_same_names(values: list[list[str]], names: set[str]) -> None:
    rows = [dict(zip(sorted(names), row, strict=True)) for row in values]
    wanted = batch_of([Message("t", b"x", properties=row) for row in rows])
    assert body_of(checked([b"x"] * len(rows), properties=rows)) == wanted


@given(
    keys=st.lists(st.none() | WORD, min_size=1, max_size=9),
    prices=st.lists(st.none() | WORD, min_size=9, max_size=9),
    delays=st.lists(st.none() | st.integers(0, 1 << 40), min_size=9, max_size=9),
)
def test_what_no_batch_of_messages_holds(
    keys: list[str | None], prices: list[str | None], delays: list[int | None]
) -> None:
    count = len(keys)
    rows = checked(
        [b"x"] * count,
        tags="all",
        sharding_keys=keys,
        properties={"price": prices[:count], "currency": "€"},
        delay_ms=delays[:count],
    )
    for row, key in enumerate(keys):
        own = {"price": prices[row], "currency": "€"}
        message = Message(
            "t",
            b"x",
            tag="all",
            sharding_key=key,
            delay_ms=delays[row] or 0,
            properties={name: value for name, value in own.items() if value},
        )
        stored = b"".join([piece if isinstance(piece, bytes) else piece[row] for piece in rows.pieces])
        unique_id = f"{PREFIX}{FIRST:012X}"
        assert batch_columns.first_properties(unique_id) + stored == properties_text(message, unique_id).encode()
    assert rows.sharding_keys == (keys if any(keys) else None)


@pytest.mark.parametrize(
    "kind", [tuple, iter, lambda values: np.array(values, object)], ids=["tuple", "iterator", "numpy"]
)
def test_columns_of_python_and_numpy(kind: Callable[[list[Any]], Any]) -> None:
    bodies, tags = [b"one", b"\x00", b"three\x00"], ["a", None, "ü"]
    found = checked(kind(bodies), tags=kind(tags), properties={"p": kind(tags)})
    assert (list(found.bodies), found.pieces) == (bodies, checked(bodies, tags=tags, properties={"p": tags}).pieces)


def test_numpys_own_bytes_and_numbers() -> None:
    rows = checked(np.array([b"ab", b"c"]), tags=np.array(["x", "y"]), delay_ms=np.array([0, 5], np.int16))
    assert (list(rows.bodies), rows.delays_ms.tolist()) == ([b"ab", b"c"], [0, 5])  # type: ignore[union-attr]
    assert list(checked(np.array([b"ab", b"c\x00"], "V2")).bodies) == [b"ab", b"c\x00"]
    assert checked([b"x"] * 2, delay_ms=np.int64(7)).delays_ms.tolist() == [7, 7]  # type: ignore[union-attr]


X3 = [b"x"] * 3
NAN = float("nan")


def test_nan_is_a_null_and_a_number_beside_it_a_whole_one() -> None:
    """Pandas and numpy make floats of whole numbers with a null among them, and arrays of lists."""
    rows = checked(
        X3,
        tags=["a", NAN, None],
        sharding_keys=np.array([NAN, "s", np.nan], object),
        keys=[np.array(["k", "l"]), NAN, "m"],
        properties={"p": [NAN, "x", "y"]},
        delay_ms=[NAN, 1000.0, np.float64(5)],
    )
    whole = checked(
        X3,
        tags=["a", None, None],
        sharding_keys=[None, "s", None],
        keys=[["k", "l"], None, ["m"]],
        properties={"p": [None, "x", "y"]},
        delay_ms=[0, 1000, 5],
    )
    assert body_of(rows) == body_of(whole)
    assert (rows.sharding_keys, rows.delays_ms.tolist()) == ([None, "s", None], [0, 1000, 5])  # type: ignore[union-attr]
    assert body_of(checked(X3, properties=[NAN, {"a": "b"}, None])) == body_of(
        checked(X3, properties=[{}, {"a": "b"}, {}])
    )


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"bodies": [b"x", None, b""]}, "row 1, column bodies: it is null: leave such rows out"),
        ({"bodies": [b"x", NAN, b""]}, "row 1, column bodies: it is null: leave such rows out"),
        ({"bodies": [b"x", b""]}, "row 1, column bodies: .* the body is empty"),
        ({"bodies": [b"x", "text"]}, "row 1, column bodies: .* must be bytes, not str; encode it"),
        ({"bodies": [b"x", bytearray(b"x")]}, "row 1, column bodies: .* must be bytes, not bytearray"),
        (
            {"bodies": [b"x", b"y" * ((1 << 20) + 1), b"z"]},
            "row 1, column bodies: .* has 1048577 bytes; at most 1048576",
        ),
        ({"bodies": X3, "tags": ["a", "b"]}, "different lengths: bodies has 3 rows, tags 2"),
        ({"bodies": X3, "keys": ["a"] * 4}, "different lengths: bodies has 3 rows, keys 4"),
        ({"bodies": X3, "tags": ["a", 5, None]}, "row 1, column tags: 5 is no text"),
        ({"bodies": X3, "tags": ["a", None, "b\x01"]}, "row 2, column tags: .*0x01"),
        ({"bodies": X3, "tags": ["a", "\ud800", "b"]}, "row 1, column tags: .* half of a character"),
        ({"bodies": X3, "tags": "b\x02"}, "row 0, column tags: .*0x02"),
        ({"bodies": X3, "keys": [["a"], ["b c"], []]}, "row 1, column keys: key 'b c': a key is a text without blanks"),
        ({"bodies": X3, "keys": [["a"], ["b", ""], []]}, "row 1, column keys: key ''"),
        ({"bodies": X3, "keys": [["a"], [None], []]}, "row 1, column keys: key None"),
        ({"bodies": X3, "keys": ["a", 7, None]}, "row 1, column keys: keys 7: a list of texts"),
        ({"bodies": X3, "sharding_keys": ["a", b"b", None]}, "row 1, column sharding_keys: b'b' is no text"),
        ({"bodies": X3, "properties": [{}, {"TAGS": "x"}, {}]}, "row 1, column properties: .* give tag instead"),
        ({"bodies": X3, "properties": [{}, {"a": ""}, {}]}, "row 1, column properties: property 'a' has no value"),
        ({"bodies": X3, "properties": [{}, {"a": 5}, {}]}, "row 1, column properties: .*names and values are texts"),
        ({"bodies": X3, "properties": [{}, ["ab"], {}]}, "row 1, column properties: properties \\['ab'\\]: a dict"),
        ({"bodies": X3, "properties": [{}, 5, {}]}, "row 1, column properties: properties 5: a dict"),
        ({"bodies": X3, "properties": {"KEYS": X3}}, "row 0, column .*KEYS.*: .* give keys instead"),
        ({"bodies": X3, "properties": {"a": ["x", "", None]}}, "row 1, column properties\\['a'\\]: .* has no value"),
        ({"bodies": X3, "properties": {"a": ["x", 1.5, None]}}, "row 1, column properties\\['a'\\]: 1.5 is no text"),
        ({"bodies": X3, "properties": {"a": ["x"]}}, "different lengths: bodies has 3 rows, properties\\['a'\\] 1"),
        ({"bodies": X3, "tags": ["a", "b" * 40_000, None]}, "row 1: .* take 40058 bytes; at most 32767"),
        ({"bodies": X3, "delay_ms": [0, 1.5, 2]}, "row 1, column delay_ms: 1.5: a whole number of ms"),
        ({"bodies": X3, "delay_ms": [0, True, 2]}, "row 1, column delay_ms: True"),
        ({"bodies": X3, "delay_ms": [0, -1, 2]}, "row 1, column delay_ms: -1: 0 or more"),
        ({"bodies": X3, "delay_ms": [0, None, 1 << 63]}, "row 2, column delay_ms: 9223372036854775808"),
    ],
)
def test_what_is_wrong_is_named(columns: dict[str, Any], text: str) -> None:
    with pytest.raises(MessageIllegal, match=text):
        checked(columns.pop("bodies"), **columns)


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"bodies": b"one"}, "bodies: a column is needed, such as a list, .* not bytes"),
        ({"bodies": 5}, "bodies: a column is needed, .* not int"),
        ({"bodies": {b"a", b"b"}}, "bodies: a column is needed, .* not set"),
        ({"bodies": np.zeros((2, 2), np.uint8)}, "bodies: an array of 2 dimensions"),
        ({"bodies": X3, "tags": 5}, "tags: a column is needed, .* not int"),
        ({"bodies": X3, "keys": b"key"}, "keys: a column is needed, .* not bytes"),
        ({"bodies": X3, "properties": "a=b"}, "properties: a column is needed, .* not str"),
        ({"bodies": X3, "delay_ms": 2.5}, "delay_ms: a column is needed, .* not float"),
    ],
)
def test_what_is_no_column(columns: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        checked(columns.pop("bodies"), **columns)


def test_topics_that_take_no_batch() -> None:
    for topic in ("%RETRY%g", "RMQ_SYS_TRANS_HALF_TOPIC", "bad topic"):
        with pytest.raises(MessageIllegal):
            check_rows(topic, Given([b"x"]), PACKING)


def test_what_was_given_may_be_changed_afterwards() -> None:
    bodies, tags, array = [b"one", b"two"], ["a", "b"], np.array([b"one", b"two"])
    rows, of_array = checked(bodies, tags=tags), checked(array)
    before = body_of(rows)
    bodies[0], tags[0], array[0] = b"other", "c", b"xxx"
    bodies.append(b"three")
    assert body_of(rows) == before
    assert of_array.bodies == [b"one", b"two"]


def test_lists_import_no_arrow() -> None:
    code = (
        "import sys; from rocketspark.client.producer.given_columns import *\n"
        "check_rows('t', Given([b'x'], tags=['a'], delay_ms=[5]), PackingSettings())\n"
        "assert not {'pyarrow', 'pandas', 'polars'} & set(sys.modules), 'imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
