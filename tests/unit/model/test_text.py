"""Numbers and shown text made of what peers, messages and files give."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.model.text import INT_MAX, LONG_MAX, shown, whole_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("007", 7),
        (b"42", 42),
        (str(LONG_MAX), LONG_MAX),
        (str(LONG_MAX + 1), None),
        ("9" * 5000, None),
        ("0" * 5000, None),
        ("²", None),
        ("\u0663", None),
        ("\uff11", None),
        ("-1", None),
        ("+1", None),
        (" 1", None),
        ("1\n", None),
        ("1_0", None),
        ("1e3", None),
        ("NaN", None),
        ("", None),
        (b"", None),
        (b"\xb2", None),
        (None, None),
        ("-", None),
        ("\ud800", None),
    ],
)
def test_only_ascii_digits_within_the_bounds_are_a_number(text: str | bytes | None, number: int | None) -> None:
    assert whole_number(text) == number


def test_bounds_are_included() -> None:
    assert whole_number("-5", low=-5, high=5) == -5
    assert whole_number("5", low=-5, high=5) == 5
    assert whole_number("6", low=-5, high=5) is None
    assert whole_number(str(-LONG_MAX - 1), low=-LONG_MAX - 1) == -LONG_MAX - 1
    assert whole_number(str(INT_MAX + 1), high=INT_MAX) is None


@given(st.one_of(st.text(), st.binary(), st.integers().map(str)))
def test_any_text_is_a_number_within_the_bounds_or_none(text: str | bytes) -> None:
    number = whole_number(text, low=-100, high=LONG_MAX)
    assert number is None or -100 <= number <= LONG_MAX


def test_what_moves_a_cursor_or_breaks_a_line_is_escaped() -> None:
    assert shown("a\x1b[31m\n\r\x00\x9b\u2028\u202e\ud800é好") == r"a\x1b[31m\n\r\x00\x9b\u2028\u202e\ud800é好"
    assert shown("x" * 10, characters_max=4) == "xxxx…"


@given(st.text(st.characters()))
def test_shown_text_is_one_line_that_encodes(text: str) -> None:
    line = shown(text)
    assert len(line.splitlines()) <= 1
    assert line.encode().decode() == line
    assert "\x1b" not in line
