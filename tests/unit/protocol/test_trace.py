"""Trace records: the official client's own bytes, and there and back."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.errors import ProtocolError
from rocketspark.protocol.trace import (
    Broken,
    Consumed,
    Ended,
    Published,
    Received,
    Trace,
    Unknown,
    decode,
    decode_each,
    encode,
)

# The body of the official client's trace message in the captures (message_trace_send).
GOLDEN = (
    "Pub\x011795214824277\x01DefaultRegion\x01PG_trace\x01GoldTopic\x01"
    "FD00000000000000000000000000000225A130946E0966BC6B4C0023\x01TagTrace\x01trace1\x01127.0.0.1:33911\x016\x01273\x01"
    "0\x017F000001000084770000000000003354\x01true\x02"
)
SENT = Published(
    time_ms=1795214824277,
    region="DefaultRegion",
    group="PG_trace",
    topic="GoldTopic",
    message_id="FD00000000000000000000000000000225A130946E0966BC6B4C0023",
    tag="TagTrace",
    keys="trace1",
    store_host="127.0.0.1:33911",
    body_bytes=6,
    cost_ms=273,
    kind=0,
    offset_message_id="7F000001000084770000000000003354",
    success=True,
)
RECEIVED = Received(time_ms=1, region="R", group="G", request_id="Q", message_id="M", retry_times=2, keys="a b")
CONSUMED = Consumed(
    request_id="Q", message_id="M", cost_ms=3, success=False, keys="", context=2, time_ms=4, group="G"
)  # fmt: skip
ENDED = Ended(
    time_ms=1,
    region="R",
    group="G",
    topic="T",
    message_id="M",
    tag="",
    keys="k",
    store_host="h:1",
    kind=2,
    transaction_id="X",
    state="UNKNOW",
    from_check=True,
)


def test_the_official_client_s_bytes() -> None:
    assert encode(SENT) == GOLDEN
    assert list(decode(GOLDEN)) == [SENT]


def test_layouts() -> None:
    assert encode(RECEIVED) == "SubBefore\x011\x01R\x01G\x01Q\x01M\x012\x01a b\x02"
    assert encode(CONSUMED) == "SubAfter\x01Q\x01M\x013\x01false\x01\x012\x014\x01G\x02"
    assert encode(ENDED) == "EndTransaction\x011\x01R\x01G\x01T\x01M\x01\x01k\x01h:1\x012\x01X\x01UNKNOW\x01true\x02"


def test_many_in_one_message_other_kinds_and_ages() -> None:
    text = encode(RECEIVED) + "Recall\x01whatever\x02" + encode(ENDED) + "SubAfter\x01Q\x01M\x013\x01true\x01k\x02"
    first, second, third = decode(text)
    assert (first, second) == (RECEIVED, ENDED)
    assert third == Consumed(
        request_id="Q", message_id="M", cost_ms=3, success=True, keys="k", context=0, time_ms=0, group=""
    )


def test_a_broken_record_costs_itself_alone() -> None:
    text = "Pub\x01x\x02" + encode(RECEIVED) + "Recall\x011\x02" + "SubAfter\x01Q\x02" + encode(ENDED)
    broken, received, unknown, also_broken, ended = decode_each(text)
    assert (received, unknown, ended) == (RECEIVED, Unknown("Recall"), ENDED)
    assert isinstance(broken, Broken)
    assert isinstance(also_broken, Broken)


def test_a_send_of_an_old_client_has_no_offset_message_id() -> None:
    old = GOLDEN.replace("7F000001000084770000000000003354\x01true", "false")
    assert list(decode(old)) == [msgspec.structs.replace(SENT, offset_message_id="", success=False)]


@pytest.mark.parametrize("text", ["Pub\x01x\x02", "SubBefore\x01now\x01R\x01G\x01Q\x01M\x012\x01\x02", "Pub"])
def test_broken_ones(text: str) -> None:
    with pytest.raises(ProtocolError, match="trace record"):
        list(decode(text))


plain = st.text(st.characters(exclude_characters="\x01\x02\n", exclude_categories=["Cs"]))
whole = st.integers(0, 1 << 50)
kinds: list[st.SearchStrategy[Trace]] = [
    st.builds(
        kind,
        **{
            name: {"int": whole, "str": plain, "bool": st.booleans()}[kind.__annotations__[name]]
            for name in kind.__struct_fields__
        },
    )
    for kind in (Published, Received, Consumed, Ended)
]


@given(st.lists(st.one_of(kinds), max_size=5))
def test_there_and_back(traces: list[Trace]) -> None:
    assert list(decode("".join(map(encode, traces)))) == traces


@given(st.text())
def test_any_text_is_records_or_an_error(text: str) -> None:
    try:
        list(decode(text))
    except ProtocolError:
        pass


@given(st.lists(st.one_of(st.builds(encode, st.one_of(kinds)), st.text(max_size=40).map(lambda t: t + "\x02"))))
def test_whole_records_are_found_among_any_others(parts: list[str]) -> None:
    found = [t for t in decode_each("".join(parts)) if not isinstance(t, Broken | Unknown)]
    alone = [t for part in parts for t in decode_each(part) if not isinstance(t, Broken | Unknown)]
    assert found == alone
