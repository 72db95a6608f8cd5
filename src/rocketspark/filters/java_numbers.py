"""Numbers in texts as Java reads them. Rule: a text that Java refuses is a ValueError, all others give Java's value."""

from __future__ import annotations

import re

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

_DECIMAL = re.compile(r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)")
_HEXADECIMAL = re.compile(r"([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?")
_TRIMMED = "".join(map(chr, range(0x21)))  # String.trim: every character up to the space.


def int32(text: str) -> int:
    """Return what Java's Integer.valueOf does: only an optional sign and digits, within 32 bits. Raises ValueError."""
    if len(text) < 10 and text.isdecimal() and text.isascii():  # Most are such; 0.1 us instead of 0.4.
        return int(text)
    number = _integer(text)
    if not -INT32_MAX - 1 <= number <= INT32_MAX:
        raise ValueError(text)
    return number


def int64(text: str) -> int:
    """Return what Java's Long.valueOf does: only an optional sign and digits, within 64 bits. Raises ValueError."""
    number = _integer(text)
    if not -INT64_MAX - 1 <= number <= INT64_MAX:
        raise ValueError(text)
    return number


def double(text: str) -> float:
    """Return what Java's Double.valueOf does: blanks around are dropped; NaN, Infinity, hexadecimal floats and a suffix
    f or d are read too.

    Raises ValueError.
    """
    digits = text.replace(".", "", 1)
    if digits.isdecimal() and digits.isascii():  # Most are such; 0.1 us instead of 0.5.
        return float(text)
    text = text.strip(_TRIMMED)
    if _DECIMAL.fullmatch(text):
        return float(text.rstrip("fFdD") if text[-1] in "fFdD" else text)
    if found := _HEXADECIMAL.fullmatch(text):
        try:
            return float.fromhex(found[1])
        except OverflowError:
            return float("-inf" if text[0] == "-" else "inf")
    raise ValueError(text)


def order(left: float, right: float) -> int:
    """Compare as Java's Double.compareTo: returns a negative number, 0 or a positive one. NaN equals itself and is
    above all; -0.0 is below 0.0.
    """
    if left < right:
        return -1
    if left > right:
        return 1
    return _rank(left) - _rank(right) if left != right or left == 0.0 else 0


def _rank(number: float) -> int:
    """Return the order of numbers that `<` does not tell apart: -0.0, then 0.0 and every other number, then NaN."""
    if number != number:
        return 2
    return 0 if number == 0.0 and str(number)[0] == "-" else 1


def _integer(text: str) -> int:
    digits = text[1:] if text[:1] in ("+", "-") else text
    # Java looks at 16-bit units, so digits beyond U+FFFF are none to it.
    if not digits.isdecimal() or not (digits.isascii() or max(digits) <= "\uffff"):
        raise ValueError(text)
    return int(text)
