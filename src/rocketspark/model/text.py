"""Text from a peer, a message or a file: read as a whole number, or shown to a person.

Rule: text from outside becomes a number only here (or in `filters.java_numbers`, which keeps Java's rules), and reaches
a terminal or a log only through `shown`.
"""

from __future__ import annotations

import re

INT_MAX = (1 << 31) - 1
LONG_MAX = (1 << 63) - 1
_DIGITS_MAX = 19  # Of a Java long.
_WHOLE = re.compile(r"-?[0-9]+")
_WHOLE_BYTES = re.compile(rb"-?[0-9]+")
# Control characters (C0, DEL, C1), line and paragraph separators, direction marks, and surrogates.
_UNSHOWN = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def whole_number(text: str | bytes | None, *, low: int = 0, high: int = LONG_MAX) -> int | None:
    """The whole number in ASCII digits that `text` is, or None if it is none from `low` to `high` (both included).

    A leading "-" is allowed, spaces and "+" are not. Leading zeros count as digits, of which a Java long has 19.
    """
    if not text or len(text) > _DIGITS_MAX + 1:
        return None
    match = _WHOLE.fullmatch(text) if isinstance(text, str) else _WHOLE_BYTES.fullmatch(text)
    if match is None:
        return None
    number = int(text)
    return number if low <= number <= high else None


def shown(text: object, *, characters_max: int = 200) -> str:
    r"""`text` for a terminal or a log line, at most `characters_max` characters of it and then "…".

    What would move the cursor, break the line, turn the direction of writing or fail to encode is written as an escape:
    `\x1b`, `\n`, `\u202e`.
    """
    full = str(text)
    kept = full if len(full) <= characters_max else full[:characters_max] + "…"
    return _UNSHOWN.sub(lambda match: match.group().encode("unicode_escape").decode("ascii"), kept)
