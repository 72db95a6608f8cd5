"""Shapes of send headers: what fits one reads as the decoder reads it."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.protocol import golden

from rocketspark.protocol import request_signing
from rocketspark.protocol.headers import SendHeader, request_decoder
from rocketspark.protocol.headers.send_shape import PLAIN_TEXT, SendShape, learn

UNIQUE_ID = "7F000001000000C001000000000000FF"


def header(pairs: dict[str, str] | None = None, order: tuple[str, ...] = (), **changes: Any) -> bytes:
    """A header as a client may write it: `order`, its top keys; `changes`: other ext fields or top values."""
    pairs = {"UNIQ_KEY": UNIQUE_ID, "WAIT": "true", "TAGS": "T"} if pairs is None else pairs
    ext: dict[str, Any] = {"a": "P", "b": "topic", "c": "TBW102", "d": "4", "e": "2", "f": "0", "g": "1795214738976"}
    ext |= {"h": "0", "i": "".join(f"{k}\x01{v}\x02" for k, v in pairs.items()), "j": "0", "k": "false", "m": "false"}
    top: dict[str, Any] = {"code": 310, "extFields": ext, "flag": 0, "language": "JAVA", "opaque": 77, "version": 513}
    for name, value in changes.items():
        if name in top:
            top[name] = value
        else:
            ext[name] = value
    return msgspec.json.encode({k: top[k] for k in order or top})


def read(shape: SendShape, data: bytes) -> tuple[SendHeader, int] | None:
    """A header by a shape, with every check that its docstring asks for; None if it is not of the shape."""
    if len(data) != len(b"".join(shape.fixed)) + sum(map(len, shape.unpack(data.ljust(10_000), 0)[1::2])):
        return None
    texts = shape.unpack(data, 0)
    numbers = [texts[at] for at in (shape.queue_id, shape.born_time, shape.opaque)]
    if texts[::2] != shape.fixed or any(not n.isdigit() or (n[0] == 48 and len(n) > 1) for n in numbers):
        return None
    values = texts[shape.values]
    if any(value.translate(None, PLAIN_TEXT) for value in values):
        return None
    stored = [shape.stored[0]]
    for value, piece in zip(values, shape.stored[1:], strict=True):
        stored += [value, piece]
    text = b"".join(stored).decode()
    if not shape.header.properties.endswith("\x02"):
        text = text.removesuffix("\x02")
    whole = msgspec.structs.replace(
        shape.header,
        queue_id=int(numbers[0]),
        born_time_ms=int(numbers[1]),
        properties=text,
    )
    return whole, int(numbers[2])


def decoded(data: bytes) -> tuple[SendHeader, int]:
    request = request_decoder(SendHeader).decode(data)
    assert (request.code, request.flag) == (310, 0)
    return request.ext, request.opaque


orders = st.permutations(["code", "extFields", "flag", "language", "opaque", "version"]).map(tuple)
names = st.sampled_from(["UNIQ_KEY", "KEYS", "TAGS", "WAIT", "color", "i", "e", "opaque", "a b"])
texts = st.text(st.sampled_from('abcXYZ019-_ /:{}[],"\\é\x01\x02\x7f'), max_size=5)
pairs = st.dictionaries(names, texts, max_size=5).map(lambda found: {"UNIQ_KEY": UNIQUE_ID} | found)


@given(pairs, pairs, orders, st.integers(0, 12), st.integers(0, 120), st.sampled_from("abcdefghijklm"))
def test_what_fits_reads_as_decoded(
    first: dict[str, str], second: dict[str, str], order: tuple[str, ...], queue_id: int, opaque: int, odd: str
) -> None:
    for made in (
        header(first, order),
        header(first, order, **{odd: '","e":"3"'}),
        header(first, order, opaque=opaque, e=str(queue_id)),
    ):
        shape = learn(made)
        if shape is None:
            continue
        assert read(shape, made) == decoded(made)
        for other in (header(second, order, opaque=opaque, e=str(queue_id)), header(first, order, g="1795214738999")):
            found = read(shape, other)
            assert found is None or found == decoded(other)


@given(st.data())
def test_altered_headers_that_fit_read_as_decoded(data: st.DataObject) -> None:
    made = header({"UNIQ_KEY": UNIQUE_ID, "KEYS": "k", "color": "red", "WAIT": "true"})
    shape = learn(made)
    assert shape is not None
    changed = bytearray(made)
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(made) - 1))] = data.draw(
            st.sampled_from(b'"\\0123x,:}{ \x01\x00\xff\x7f-+_')
        )
    found = read(shape, bytes(changed))
    assert found is None or found == decoded(bytes(changed))


def test_the_official_clients_headers_have_shapes() -> None:
    sends = [f for f in golden.frames() if not f.is_reply and not f.binary and f.header["code"] == 310]
    plain = [f for f in sends if f.header["flag"] == 0 and "UNIQ_KEY" in f.ext.get("i", "") and f.ext["i"].isascii()]
    assert len(plain) > 30
    for f in plain:
        shape = learn(f.header_bytes)
        if f.ext.get("m") == "true":
            assert shape is None
            continue
        assert shape is not None, f.header_bytes
        assert read(shape, f.header_bytes) == decoded(f.header_bytes)


def test_one_shape_serves_what_a_producer_changes() -> None:
    shape = learn(header())
    assert shape is not None
    for queue_id, born, opaque, unique, tag in itertools.product(
        "09", ("1795214738976", "1800000000000"), (10, 99), "AB", "ab"
    ):
        made = header(
            {"UNIQ_KEY": UNIQUE_ID[1:] + unique, "WAIT": "true", "TAGS": tag}, e=queue_id, g=born, opaque=opaque
        )
        assert read(shape, made) == decoded(made)
        assert made[8:] != header()[8:]


@pytest.mark.parametrize(
    "odd",
    [
        {"code": 320},
        {"code": 10},
        {"flag": 2},
        {"flag": 1},
        {"m": "true"},
        {"e": "-1"},
        {"e": "007"},
        {"e": "1_0"},
        {"g": "-5"},
        {"h": str(1 << 31)},
        {"pairs": {"WAIT": "true"}},
        {"pairs": {"UNIQ_KEY": UNIQUE_ID, "KEYS": ""}},
        {"pairs": {"UNIQ_KEY": UNIQUE_ID, "KEYS": "é"}},
        {"pairs": {"UNIQ_KEY": UNIQUE_ID, "KEYS": '"'}},
        {"i": f"UNIQ_KEY\x01{UNIQUE_ID}\x02x"},
        {"i": f"UNIQ_KEY\x01{UNIQUE_ID}\x02UNIQ_KEY\x01{UNIQUE_ID}\x02"},
        {"i": f"\x02UNIQ_KEY\x01{UNIQUE_ID}\x02"},
    ],
)
def test_what_is_not_sure_has_no_shape(odd: dict[str, Any]) -> None:
    assert learn(header(**odd)) is None


def test_doubled_and_disguised_keys_have_no_shape() -> None:
    made = header()
    assert learn(made) is not None
    for before, after in (
        (b'"e":"2"', b'"e":"2","e":"2"'),
        (b'"e":"2"', b'"e":"2","\\u0065":"2"'),
        (b'"e":"2"', b'"e":"2","e" :"2"'),
        (b'"opaque":77', b'"opaque":77,"opaque" :77'),
        (b'"i":"', b'"i":"x","i":"'),
        (b'"i":"UNIQ', b'"i":"\\u0055NIQ'),
        (b"}", b""),
    ):
        changed = made.replace(before, after, 1)
        assert changed != made
        assert learn(changed) is None, changed


plain = st.text(
    st.characters(min_codepoint=0x20, max_codepoint=0x7E, exclude_characters='"\\\\'), min_size=1, max_size=9
)
signers = st.fixed_dictionaries(
    {"AccessKey": st.text(min_size=1, max_size=5)},
    optional={"SecurityToken": plain, "aa": plain, "zz": st.text(max_size=3), "SignedTime": st.just("1795214738976")},
)


@pytest.mark.shows(
    "signed sends take the quick way; a bad, old or missing signature, a changed user or rule is refused at once"
)
@given(signers, st.data())
def test_what_is_signed_is_read_from_the_texts_of_a_shape_as_from_the_fields(
    who: dict[str, str], data: st.DataObject
) -> None:
    """Over headers that differ in all that may vary: queue, time, ids, keys, tags, properties, signature."""

    def made() -> bytes:
        pairs = {"UNIQ_KEY": f"{data.draw(st.integers(0, 1 << 120)):032X}", "WAIT": "true"}
        for name, size in (("TAGS", 3), ("KEYS", 2), ("colour", 4)):
            pairs[name] = data.draw(st.text("abcXYZ/&$ '", min_size=size, max_size=size))
        ext = {"e": str(data.draw(st.integers(0, 9))), "g": str(data.draw(st.integers(10**12, 10**13 - 1)))} | who
        if "SignedTime" in ext:
            ext["SignedTime"] = str(data.draw(st.integers(10**12, 10**13 - 1)))
        signature = data.draw(st.text("abz+/09", min_size=27, max_size=27)) + "="
        return header(pairs, opaque=data.draw(st.integers(10, 99)), **ext, Signature=signature)

    first = made()
    shape = learn(first)
    assert shape is not None
    assert shape.signed is not None
    for each in (first, made(), made()):
        texts = shape.unpack(each, 0)
        assert texts[::2] == shape.fixed
        ext = msgspec.json.decode(each)["extFields"]
        assert shape.signed.content(texts) == request_signing.signed_bytes(ext, b"", 513)
        assert texts[shape.signed.signature] == ext["Signature"].encode()
        if "SignedTime" in who:
            assert texts[shape.signed.time] == ext["SignedTime"].encode()


@pytest.mark.shows("sends with signatures of odd form")
@pytest.mark.parametrize(
    "odd",
    [
        {"Signature": "x" * 28, "AccessKey": "a", "_UNIQUE_KEY_QUERY": "true"},
        {"Signature": "x" * 28},
        {"AccessKey": "a"},
        {"Signature": "x" * 28, "AccessKey": 7},
        {"Signature": "x" * 28, "AccessKey": "a", "SignedTime": "07"},
        {"Signature": "no", "AccessKey": "a"},
        {"Signature": "-" * 28, "AccessKey": "a", "SignedTime": "1795214738976"},
    ],
)
def test_headers_whose_signature_is_to_be_looked_at_one_by_one(odd: dict[str, Any]) -> None:
    shape = learn(header(**odd))
    assert shape is None or shape.signed is None or (shape.signed.time == 0 and "SignedTime" not in odd)
    # Not UTF-8, where the decoder of sends does not look.
    shape = learn(header(**odd).replace(b'"AccessKey":"a"', b'"AccessKey":"\xff"'))
    assert shape is None or shape.signed is None or (shape.signed.time == 0 and "SignedTime" not in odd)
