"""Typed headers: values to text fields and back; what is missing or wrong is named."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketspark.errors import FrameError
from rocketspark.protocol import frames, headers
from rocketspark.protocol.frames import Frame
from rocketspark.protocol.headers import Header, SendHeader, SendHeaderV1, pop
from rocketspark.protocol.headers.codec import Long

POP_KINDS = {kind for kind in vars(pop).values() if isinstance(kind, type) and issubclass(kind, Header)} - {Header}
KINDS = sorted(
    {*headers.REQUEST_HEADERS.values(), *headers.REPLY_HEADERS.values(), *POP_KINDS}, key=lambda kind: kind.__name__
)
TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=12)
SEND = {
    "producer_group": "P",
    "topic": "T",
    "queue_id": 3,
    "sys_flag": 1,
    "born_time_ms": 1_795_214_738_976,
    "flag": -1,
    "properties": "k\x01v\x02",
    "reconsume_times": 2,
    "unit_mode": True,
    "batch": False,
}
VECTORS: list[tuple[Header, dict[str, str]]] = [
    (
        SendHeader(**SEND),
        {
            "a": "P",
            "b": "T",
            "c": "TBW102",
            "d": "4",
            "e": "3",
            "f": "1",
            "g": "1795214738976",
            "h": "-1",
            "i": "k\x01v\x02",
            "j": "2",
            "k": "true",
            "m": "false",
        },
    ),
    (
        SendHeaderV1(**SEND, max_reconsume_times=16, broker_name="b"),
        {
            "producerGroup": "P",
            "topic": "T",
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4",
            "queueId": "3",
            "sysFlag": "1",
            "bornTimestamp": "1795214738976",
            "flag": "-1",
            "properties": "k\x01v\x02",
            "reconsumeTimes": "2",
            "unitMode": "true",
            "batch": "false",
            "maxReconsumeTimes": "16",
            "bname": "b",
        },
    ),
    (headers.LockHeader(), {}),
    (headers.RouteHeader(topic="T"), {"topic": "T", "acceptStandardJsonOnly": "false"}),
    (headers.OffsetReply(offset=2**62), {"offset": str(2**62)}),
]


@pytest.mark.parametrize(("header", "ext"), VECTORS, ids=lambda v: type(v).__name__)
def test_headers_stand_on_the_wire_as_text(header: Header, ext: dict[str, str]) -> None:
    assert headers.to_ext(header) == ext
    assert headers.from_ext(type(header), ext) == header
    assert headers.decode_ext(type(header), msgspec.json.encode(ext)) == header
    head = frames.encode_header(Frame(code=10, opaque=4, ext=ext))
    assert headers.request_decoder(type(header)).decode(head).ext == header


def value(field: msgspec.structs.FieldInfo) -> st.SearchStrategy[Any]:
    kind: Any = field.type
    options = {
        int: st.integers(-(2**63), 2**63 - 1),
        Long: st.integers(-(2**63), 2**63 - 1),
        bool: st.booleans(),
        str: TEXT,
        type(None): st.none(),
    }
    parts = getattr(kind, "__args__", (kind,))
    # None is not written, so it comes back as the default.
    return st.one_of([options[part] for part in parts if part is not type(None) or field.default is None])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=15)
@given(data=st.data())
def test_any_values_of_a_header_come_back(kind: type[Header], data: st.DataObject) -> None:
    header = kind(**{f.name: data.draw(value(f)) for f in msgspec.structs.fields(kind)})
    ext = headers.to_ext(header)
    assert all(type(text) is str for text in ext.values())
    assert headers.from_ext(kind, ext) == header
    assert headers.decode_ext(kind, msgspec.json.encode(ext)) == header
    for form in (frames.JSON, frames.BINARY):
        frame = Frame(code=10, opaque=9, flag=2, ext=ext, language="GO", version=317, serialization=form)
        request = headers.from_frame(kind, frames.decode(frames.encode(frame)))
        assert (request.ext, request.opaque, request.flag, request.version) == (header, 9, 2, 317)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_is_missing_is_named(kind: type[Header]) -> None:
    required = [f.encode_name for f in msgspec.structs.fields(kind) if f.required]
    head = b'{"code":1,"extFields":{}}'
    if not required:
        assert headers.from_ext(kind, None) == kind()
        assert headers.request_decoder(kind).decode(head).ext == kind()
        # Clients leave extFields out when there is none.
        assert headers.request_decoder(kind).decode(b'{"code":1}').ext == kind()
        return
    with pytest.raises(FrameError, match=f"{kind.__name__}: .*`{required[0]}`"):
        headers.from_ext(kind, {})
    with pytest.raises(FrameError, match=f"{kind.__name__}: .*`{required[0]}`"):
        headers.decode_ext(kind, b"{}")
    with pytest.raises(msgspec.ValidationError, match=required[0]):
        headers.request_decoder(kind).decode(head)


@settings(max_examples=300)
@given(st.sampled_from(KINDS), st.data())
def test_any_text_fields_are_a_header_or_a_frame_error(kind: type[Header], data: st.DataObject) -> None:
    names = [f.encode_name for f in msgspec.structs.fields(kind)]
    texts = TEXT | st.sampled_from(["", "1", "-1", "9" * 30, "9" * 400, "1e400", "nan", "true", "null", " 1", "0x10"])
    ext = data.draw(st.dictionaries(st.sampled_from([*names, "other"]), texts))
    for decode in (
        lambda: headers.from_ext(kind, ext),
        lambda: headers.decode_ext(kind, msgspec.json.encode(ext)),
    ):
        try:
            header = decode()
        except FrameError:
            continue
        assert type(header) is kind


@settings(max_examples=200)
@given(st.sampled_from(KINDS), st.binary(max_size=60))
def test_any_bytes_are_ext_fields_or_a_frame_error(kind: type[Header], text: bytes) -> None:
    try:
        headers.decode_ext(kind, text)
    except FrameError:
        pass


def test_text_that_is_no_number_is_named() -> None:
    with pytest.raises(FrameError, match=r"QueueHeader: .*queueId"):
        headers.from_ext(headers.QueueHeader, {"topic": "T", "queueId": "three"})
    with pytest.raises(FrameError, match="QueueHeader"):
        headers.decode_ext(headers.QueueHeader, b'{"topic":"\xff","queueId":"1"}')
    with pytest.raises(FrameError, match="QueueHeader"):
        headers.decode_ext(headers.QueueHeader, b'{"topic":' + b"[" * 9000)


def test_the_sender_s_language_may_be_a_number() -> None:
    head = b'{"code":35,"language":3,"extFields":{"clientID":"c"}}'
    request = headers.request_decoder(headers.UnregisterClientHeader).decode(head)
    assert headers.sender_language(request.language) == "PYTHON"
    assert headers.sender_language("GO") == "GO"
    assert [headers.sender_language(name) for name in ("L" * 1_000_000, "go", "", 99)] == ["OTHER"] * 4


def test_headers_that_differ_in_some_numbers_alone() -> None:
    def header(offset: int, count: int) -> headers.PullHeader:
        return headers.PullHeader(
            group="g",
            topic="T",
            queue_id=3,
            queue_offset=offset,
            count_max=count,
            sys_flag=4,
            commit_offset=0,
            suspend_ms=0,
            subscription="*",
            subscription_version=0,
            bulk=True,
        )

    ext_of = headers.to_ext_of(header(0, 0), "queue_offset", "count_max")
    made = [ext_of(offset, count) for offset, count in ((0, 0), (2**40, 32), (7, 4096))]
    assert made == [headers.to_ext(header(offset, count)) for offset, count in ((0, 0), (2**40, 32), (7, 4096))]
    assert [list(ext) for ext in made] == [list(headers.to_ext(header(0, 0)))] * 3


@pytest.mark.shows("mended: ext fields took numbers of any length: a commit offset of 10^400 was kept")
def test_no_number_of_a_header_is_longer_than_java_s() -> None:
    kept = headers.UpdateConsumerOffsetHeader
    ext = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": str(2**63 - 1)}
    assert headers.from_ext(kept, ext).commit_offset == 2**63 - 1
    for wrong in (2**63, 2**64, 10**400, -(2**63) - 1):
        head = frames.encode_header(Frame(code=15, ext=ext | {"commitOffset": str(wrong)}))
        with pytest.raises(msgspec.DecodeError):
            headers.request_decoder(kept).decode(head)
        with pytest.raises(FrameError):
            headers.from_ext(kept, ext | {"commitOffset": str(wrong)})
