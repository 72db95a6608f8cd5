"""Text from a peer, a message or a file: read as a whole number, shown to a person, or hashed as Java does.

Rule: text from outside becomes a number only here (or in `filters.java_numbers`, which keeps Java's rules), and reaches
a terminal, a page, a log or a label only through `shown`, as JSON through `shown_json`, as a file's name through
`in_file_name`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

INT_MAX = (1 << 31) - 1
LONG_MAX = (1 << 63) - 1
_DIGITS_MAX = 19  # Of a Java long.
_WHOLE = re.compile(r"-?[0-9]+")
_WHOLE_BYTES = re.compile(rb"-?[0-9]+")
# Control characters (C0, DEL, C1), line and paragraph separators, surrogates, and what no eye sees: marks of direction,
# of width zero, of annotations and of tags, blank letters, and selectors of which no text has any use.
_UNSHOWN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ud800-\udfff\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def whole_number(text: str | bytes | None, *, low: int = 0, high: int = LONG_MAX) -> int | None:
    """The whole number in ASCII digits that `text` is, or None if it is none from `low` to `high` (both included).

    A leading "-" is allowed, spaces and "+" are not. Leading zeros count as digits, of which a Java long has 19.
    """
    if not text or len(text) > _DIGITS_MAX + 1:
        return None
    # Nearly all have no sign.
    if not (text.isdigit() and text.isascii()):
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


def shown_json(text: str | bytes) -> str:
    """JSON for a terminal or a file that people look at: the same values, with escapes for what `shown` escapes."""
    return _UNSHOWN.sub(_json_escape, text.decode("utf-8") if isinstance(text, bytes) else text)


def _json_escape(match: re.Match[str]) -> str:
    character = match.group()
    if character in "\n\t\r":
        return character  # Between values; within one JSON has no such character.
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ": did you mean 'tag'?" for a name that is none of those known, "" if none of them is near."""
    import difflib  # A slow import, for mistakes alone.

    found = difflib.get_close_matches(name.lower(), known, 1, 0.5)
    return f": did you mean {found[0]!r}?" if found else ""


def in_file_name(text: str) -> str:
    """`text` as a part of a file's name: what `shown` escapes as %XX, or %uXXXX for what has no byte."""
    return _UNSHOWN.sub(lambda match: f"%{ord(match.group()):02X}" if match.group() < "\u0100" else _wide(match), text)


def _wide(match: re.Match[str]) -> str:
    return f"%u{ord(match.group()):04X}"


# Longer texts are hashed each time, so that what is kept stays within some MB.
KEPT_LENGTH_MAX = 128
# Of 31, for the places of a text; made when a long one comes.
_powers: Any = None


def string_hash(text: str) -> int:
    """Java's String.hashCode: h = 31*h + UTF-16 unit in 32 bits, signed."""
    return _kept_hash(text) if len(text) <= KEPT_LENGTH_MAX else _long_hash(text)


def _long_hash(text: str) -> int:
    """32,000 characters: 0.05 ms."""
    # Few need it: it takes longer to load than all else here.
    import numpy as np

    global _powers
    units = np.frombuffer(text.encode("utf-16-le", "surrogatepass"), "<u2").astype(np.uint32)
    # Another thread may put shorter ones in their place meanwhile.
    powers = _powers
    if powers is None or len(powers) < len(units):
        powers = np.full(len(units), 31, np.uint32)
        powers[0] = 1
        # Modulo 2^32, as everything here.
        powers = _powers = powers.cumprod(dtype=np.uint32)
    return int((units * powers[: len(units)][::-1]).sum(dtype=np.uint32).view(np.int32))


@lru_cache(maxsize=65536)
def _kept_hash(text: str) -> int:
    h = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for i in range(0, len(units), 2):
        h = (31 * h + (units[i] << 8 | units[i + 1])) & 0xFFFFFFFF
    return h - (1 << 32) if h & 0x80000000 else h
