"""The handle by which a timer message is recalled: the captured ones, and whatever else may come."""

from __future__ import annotations

import base64

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rocketspark.errors import ProtocolError
from rocketspark.protocol.timers import RecallHandle, decode_handle

# As the 5.5.0 broker gave them to its client.
CAPTURED = {
    "djEgR29sZFRpbWVyIGJyb2tlci1hIDE3OTUyMTQ3NzQwMDEgRkQwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDIyNUExMzA5NDZFMDk2NkJC"
    "MzFENjAwMTM=": RecallHandle(
        "GoldTimer", "broker-a", 1_795_214_774_001, "FD00000000000000000000000000000225A130946E0966BB31D60013"
    ),
    "djEgR29sZFRpbWVyIGJyb2tlci1hIDE3OTUyMTQ3NDcwMDEgRkQwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDIyNUExMzA5NDZFMDk2NkJC"
    "MzAyRDAwMTE=": RecallHandle(
        "GoldTimer", "broker-a", 1_795_214_747_001, "FD00000000000000000000000000000225A130946E0966BB302D0011"
    ),
}
WORDS = st.text(st.characters(codec="utf-8", exclude_characters=" "), min_size=1, max_size=40)


def of(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode()


@pytest.mark.parametrize("text", CAPTURED)
def test_captured_handles(text: str) -> None:
    assert decode_handle(text) == CAPTURED[text]
    assert CAPTURED[text].encode() == text
    assert decode_handle(text.rstrip("=")) == CAPTURED[text]


@given(st.builds(RecallHandle, WORDS, WORDS, st.integers(0, 10**18 - 1), WORDS))
def test_a_handle_comes_back_as_it_was(handle: RecallHandle) -> None:
    assert decode_handle(handle.encode()) == handle


@given(st.one_of(st.text(max_size=80), st.binary(max_size=80).map(lambda b: base64.urlsafe_b64encode(b).decode())))
@example("")
@example("=")
@example("djEg+/8=")
@example(of("v1 T b 1"))
@example(of("v1 T b 1 "))
@example(of("v2 T b 1 K"))
@example(of("v1  b 1 K"))
def test_what_is_no_handle_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError, match="recall handle is invalid"):
        decode_handle(text)


@pytest.mark.parametrize("time", ["x", "-1", "1.5", "\uff19", "9" * 30])
def test_a_time_that_is_none_has_passed(time: str) -> None:
    assert decode_handle(of(f"v1 T b {time} K")) == RecallHandle("T", "b", -1, "K")
