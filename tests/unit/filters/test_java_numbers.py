"""Numbers in texts: what Java takes, refuses and how it orders doubles."""

from __future__ import annotations

import math

import pytest

from rocketspark.filters.java_numbers import double, int32, int64, order

INTEGERS = [("0", 0), ("5", 5), ("+5", 5), ("-5", -5), ("007", 7), ("\u0665", 5), ("2147483647", 2147483647)]
NO_INTEGERS = ["", "-", "+", "+-5", " 5", "5 ", "1_0", "5.0", "5L", "0x5", "x", "\U0001d7d3", "9" * 5000]
DOUBLES = [
    ("5", 5.0), ("-0.5", -0.5), (".5", 0.5), ("5.", 5.0), ("1e2", 100.0), ("1E+2", 100.0), ("5f", 5.0), ("5.5D", 5.5),
    (" \t5\n", 5.0), ("Infinity", math.inf), ("-Infinity", -math.inf), ("1e999", math.inf), ("0x1.8p1", 3.0),
    ("-0x1p99999", -math.inf), ("0X.8P0f", 0.5), ("1e-999", 0.0),
]  # fmt: skip
NO_DOUBLES = ["", " ", ".", "-", "1e", "nan", "inf", "infinity", "1_0", "\u0665", "0x1", "\xa05", "5 5", "5ff", "5L"]


@pytest.mark.parametrize(("text", "number"), INTEGERS)
def test_integers(text: str, number: int) -> None:
    assert int32(text) == int64(text) == number


@pytest.mark.parametrize("text", NO_INTEGERS)
def test_what_is_no_integer(text: str) -> None:
    for read in (int32, int64):
        with pytest.raises(ValueError):
            read(text)


@pytest.mark.parametrize(("read", "bits"), [(int32, 31), (int64, 63)])
def test_bounds_of_integers(read: type[int], bits: int) -> None:
    assert read(str(2**bits - 1)) == 2**bits - 1
    assert read(str(-(2**bits))) == -(2**bits)
    for outside in (2**bits, -(2**bits) - 1):
        with pytest.raises(ValueError):
            read(str(outside))


@pytest.mark.parametrize(("text", "number"), DOUBLES)
def test_doubles(text: str, number: float) -> None:
    assert double(text) == number


@pytest.mark.parametrize("text", NO_DOUBLES)
def test_what_is_no_double(text: str) -> None:
    with pytest.raises(ValueError):
        double(text)


def test_doubles_have_one_order() -> None:
    ascending = [-math.inf, -1.5, double("-0.0"), 0.0, 1.5, math.inf, double("NaN")]
    for at, left in enumerate(ascending):
        for other, right in enumerate(ascending):
            assert (order(left, right) > 0, order(left, right) < 0) == (at > other, at < other), (left, right)
