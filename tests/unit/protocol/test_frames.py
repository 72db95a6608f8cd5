"""Frames: both header forms, and bytes that are none: FrameError, whatever they are."""

from __future__ import annotations

import json
import struct

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.unit.protocol import golden

from rocketspark.errors import FrameError
from rocketspark.protocol import frames
from rocketspark.protocol.frames import BINARY, FRAME_BYTES_MAX, JSON, ONEWAY_FLAG, RESPONSE_FLAG, Frame, Splitter

TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20)
FRAMES = st.builds(
    Frame,
    code=st.integers(-32768, 32767),
    opaque=st.integers(-(2**31), 2**31 - 1),
    flag=st.integers(0, 3),
    language=st.sampled_from(frames.LANGUAGES),
    version=st.integers(0, 32767),
    remark=st.none() | TEXT.filter(bool),
    ext=st.none() | st.dictionaries(TEXT, TEXT, min_size=1, max_size=5),
    body=st.binary(max_size=100),
    serialization=st.sampled_from([JSON, BINARY]),
)


@given(FRAMES)
def test_a_frame_is_decoded_to_what_was_encoded(frame: Frame) -> None:
    found = frames.decode(frames.encode(frame))
    assert msgspec.structs.replace(found, key_order=frame.key_order) == frame


@given(st.lists(FRAMES, min_size=1, max_size=5), st.data())
def test_the_splitter_cuts_a_chopped_stream_into_its_frames(sent: list[Frame], data: st.DataObject) -> None:
    stream = b"".join(map(frames.encode, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    splitter = Splitter()
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += splitter.feed(stream[start:end])
    assert b"".join(frames.join(header, body, form) for form, header, body in found) == stream
    assert (len(found), splitter.held) == (len(sent), 0)


def test_a_json_header_written_by_hand_is_read() -> None:
    """Keys in any order, unknown ones, numbers as text: as other languages' clients write them."""
    header = b'{"zone":{"a":[1]},"version":"317","opaque":7,"language":9,"flag":2,"extFields":{"k":"v"},"code":34}'
    found = frames.decode(frames.join(header, b"body"))
    assert (found.code, found.opaque, found.version, found.language) == (34, 7, 317, "GO")
    assert found.flag & ONEWAY_FLAG
    assert not found.flag & RESPONSE_FLAG
    assert (found.ext, found.remark, found.body) == ({"k": "v"}, None, b"body")


def test_a_binary_header_byte_by_byte() -> None:
    data = bytes.fromhex(
        "00000030 01 000029"  # 48 bytes follow; binary, header of 41
        "0136 0c 0201 00000005 00000002 00000002 6f6b"  # code 310, RUST, 513, opaque 5, oneway, remark "ok"
        "00000012 0001 61 00000001 31 0002 c3a9 00000002 c3bc"  # a=1, é=ü
        "626f64"
    )
    frame = Frame(
        code=310, opaque=5, flag=2, language="RUST", version=513, remark="ok", ext={"a": "1", "é": "ü"}, body=b"bod",
        serialization=BINARY,
    )  # fmt: skip
    assert frames.encode(frame) == data
    assert frames.decode(data) == frame


def test_a_language_that_is_unknown_is_other() -> None:
    assert frames.language_name(13) == "NODE_JS"
    assert frames.language_name(14) == frames.language_name(-1) == "OTHER"
    frame = Frame(code=1, language="COBOL", serialization=BINARY)
    assert frames.decode(frames.encode(frame)).language == "OTHER"


@pytest.mark.parametrize("total", [-1, 0, 3, FRAME_BYTES_MAX + 1, 2**31 - 1, 2**32 - 1])
def test_impossible_lengths_are_refused_as_soon_as_they_are_read(total: int) -> None:
    head = (total & 0xFFFFFFFF).to_bytes(4, "big") + b"\0\0\0\0"
    with pytest.raises(FrameError, match="are allowed"):
        Splitter().feed(head)
    with pytest.raises(FrameError, match="are allowed"):
        frames.decode(head)


def test_the_largest_frame_passes_and_one_byte_more_does_not() -> None:
    header = b'{"code":1}'
    body = bytes(FRAME_BYTES_MAX - 4 - len(header))
    data = frames.join(header, body)
    assert len(data) == FRAME_BYTES_MAX + 4
    splitter = Splitter()
    found = [f for at in range(0, len(data), 1 << 20) for f in splitter.feed(data[at : at + (1 << 20)])]
    assert found == [(JSON, header, body)]
    with pytest.raises(FrameError, match="send smaller messages"):
        frames.join(header, body + b"x")
    with pytest.raises(FrameError, match="send smaller messages"):
        frames.encode(Frame(code=1, body=body + b"x"))


def test_a_header_longer_than_its_frame_is_refused() -> None:
    data = struct.pack(">ii", 20, 17) + bytes(16)
    with pytest.raises(FrameError, match="header of 17 bytes reaches beyond its frame of 20"):
        Splitter().feed(data)
    with pytest.raises(FrameError, match="header of 17 bytes reaches beyond its frame of 20"):
        frames.decode(data)


def test_lengths_that_do_not_fit_the_bytes_are_refused() -> None:
    data = frames.encode(Frame(code=1))
    for wrong in (data[:-1], data + b"x", data[:7], b""):
        with pytest.raises(FrameError, match=r"cut off|states"):
            frames.decode(wrong)


@pytest.mark.shows("mended: Python 3.13: nesting of 5,000; Ctrl-C; tests that need pyspark")
@pytest.mark.parametrize(
    "header",
    [
        *(
            b"",
            b"hello",
            b"[]",
            b"{}",
            b'{"code":"ten"}',
            b'{"code":1.5}',
            b'{"code":null}',
            b'{"flag":1}',
            b"\xff\xfe",
        ),
        *(b'{"code":1,"extFields":{"a":1}}', b'{"code":1,"extFields":[]}', b'{"code":1,"remark":"\xff"}'),
        *(b'{"code":1,"opaque":"x"}', b'{"code":1', b'{"code":1,"remark":"\\ud800"}', b'{"code":1e400}'),
        *(b'{"code":1,"x":' + b"[" * 20000, b'{"code":1,"x":' + b"[" * 5000 + b"]" * 5000 + b"}"),
    ],
)
def test_headers_that_are_no_json_of_rocketmq_s(header: bytes) -> None:
    with pytest.raises(FrameError, match="header"):
        frames.decode_header(header, JSON)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        bytes(16),
        struct.pack(">hbhiii", 1, 0, 1, 1, 0, -1) + bytes(8),
        struct.pack(">hbhiii", 1, 0, 1, 1, 0, 100) + bytes(8),
        struct.pack(">hbhiii", 1, 0, 1, 1, 0, 0) + b"\xff\xff\xff\xff",
        struct.pack(">hbhiii", 1, 0, 1, 1, 0, 0) + b"\0\0\0\x03\0\x01a",
        struct.pack(">hbhiii", 1, 0, 1, 1, 0, 0) + b"\0\0\0\x08\0\x01a\xff\xff\xff\xff\0",
        struct.pack(">hbhiii", 1, 0, 1, 1, 0, 0) + b"\0\0\0\x08\0\x01\xff\0\0\0\x01a",
    ],
)
def test_binary_headers_whose_lengths_or_text_are_wrong(header: bytes) -> None:
    with pytest.raises(FrameError):
        frames.decode_header(header, BINARY)


def test_an_unknown_header_form_is_named() -> None:
    with pytest.raises(FrameError, match="serialization 7 is unknown"):
        frames.decode_header(b"{}", 7)


@pytest.mark.shows("fuzzed frame and record decoders")
@settings(max_examples=400)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_frame_or_a_frame_error(data: bytes) -> None:
    try:
        frames.decode(data)
    except FrameError:
        pass


@settings(max_examples=400)
@given(st.binary(max_size=120), st.integers(0, 3))
def test_any_bytes_are_a_header_or_a_frame_error(header: bytes, form: int) -> None:
    try:
        frames.decode_header(header, form)
    except FrameError:
        pass


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=300)
@given(
    st.dictionaries(
        st.sampled_from(["code", "opaque", "flag", "language", "version", "remark", "extFields", "other"]), JSON_VALUES
    )
)
@example({"code": True})
@example({"code": 10**30, "language": 10**30})
def test_any_json_object_is_a_header_or_a_frame_error(values: dict[str, object]) -> None:
    try:
        frame = frames.decode_header(json.dumps(values).encode(), JSON)
    except FrameError:
        return
    assert type(frame.code) is int
    assert type(frame.opaque) is int
    assert frame.ext is None or all(type(v) is str for v in frame.ext.values())


GOLDEN = [f.data for f in golden.frames() if len(f.data) < 600][::9]


@settings(max_examples=400)
@given(st.sampled_from(GOLDEN), st.data())
def test_a_captured_frame_with_bytes_changed_is_a_frame_or_a_frame_error(data: bytes, draw: st.DataObject) -> None:
    garbled = bytearray(data)
    for at in draw.draw(st.lists(st.integers(0, len(data) - 1), min_size=1, max_size=4)):
        garbled[at] = draw.draw(st.integers(0, 255))
    garbled = garbled[: draw.draw(st.integers(0, len(garbled)) | st.just(len(garbled)))]
    try:
        frames.decode(bytes(garbled))
    except FrameError:
        pass
    try:
        for form, header, _ in Splitter().feed(bytes(garbled)):
            frames.decode_header(header, form)
    except FrameError:
        pass


@settings(max_examples=300)
@given(st.lists(st.binary(max_size=60), max_size=6))
def test_a_splitter_fed_anything_raises_only_frame_errors_and_keeps_count(chunks: list[bytes]) -> None:
    splitter = Splitter()
    fed = out = 0
    for chunk in chunks:
        try:
            found = splitter.feed(chunk)
        except FrameError:
            return
        fed += len(chunk)
        out += sum(8 + len(header) + len(body) for _, header, body in found)
        assert splitter.held == fed - out


@pytest.mark.shows(
    "mended: names of 15 MB persisted by 353, 70 KB by 314",
    "mended: Python 3.13: nesting of 5,000 in a header",
)
def test_how_deep_a_header_may_nest_does_not_depend_on_python() -> None:
    flat = b'{"code":1,"remark":"' + b"[" * 3000 + b'","x":[' + b"[]," * 3000 + b"0]}"
    assert frames.decode_header(flat, 0).code == 1
    # Far less than any decoder gives up at.
    deep = b'{"code":1,"x":' + b"[" * 150 + b"]" * 150 + b"}"
    with pytest.raises(FrameError, match="nested deeper than 100"):
        frames.decode_header(deep, 0)
    with pytest.raises(FrameError, match="over the limit"):
        frames.decode_header(b'{"code":1,"x":"' + b"x" * (1 << 20) + b'"}', 0)


@pytest.mark.shows("headers of a megabyte, of any text, are looked at once")
@pytest.mark.parametrize(
    ("header", "refused"),
    [
        # With a search that begins anew at each quote these two would take hours.
        (b'{"' + b'\\"' * 500_000 + b"[" * 200, ""),
        (b'{"a":"' + b'[\\"' * 340_000 + b'"}', ""),
        (b'{"a":"' + b"\\" * 500_000 + b'"' + b"[" * 200, "nested deeper than 100"),
        (b'{"a":' + b"[]" * 500_000 + b"}", "more than 16384 brackets"),
        (b"{" + b":" * 1_000_000, "1000000 fields"),
    ],
    ids=["a string without an end", "brackets in a string", "backslashes", "brackets", "colons"],
)
def test_the_largest_headers_are_looked_at_once(header: bytes, refused: str) -> None:
    if not refused:
        frames.check_header(header)
        return
    with pytest.raises(FrameError, match=refused):
        frames.check_header(header)


@pytest.mark.shows("mended: a frame that drips in takes twenty times its bytes")
def test_a_frame_that_drips_in_is_kept_in_one_buffer() -> None:
    splitter = frames.Splitter()
    frame = frames.encode(Frame(code=7, body=b"x" * 20_000))
    for at in range(len(frame) - 1):
        assert splitter.feed(frame[at : at + 1]) == []
    assert len(splitter._chunks) < 5
    ((_, header, body),) = splitter.feed(frame[-1:])
    assert frames.decode_header(header, 0).code == 7
    assert body == b"x" * 20_000
