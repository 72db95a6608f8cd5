"""A message's body for people: as text, as JSON and as bytes in hex, each cut at a bound.

Rule: what is returned here is text for a page to escape; nothing in it moves, hides or turns round what stands beside
it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from rocketspark.model.text import shown, shown_json

# Of one view; the whole body is downloaded.
TEXT_CHARACTERS_MAX = 32_768
HEX_BYTES_MAX = 2_048
HEX_ROW_BYTES = 16
# A longer body is not parsed: it would take a page's time.
JSON_BYTES_MAX = 1 << 20
# Nor is one shown as JSON that has more characters laid out: a few lists in each other become gigabytes of spaces.
JSON_LAID_OUT_MAX = 4 << 20
PREVIEW_CHARACTERS = 120


class View(NamedTuple):
    """One way to read a body. `name`: text, JSON or hex; `left_bytes`: how many bytes of it (of the body, or of
    the JSON as it is laid out here) are left out."""

    name: str
    text: str
    left_bytes: int = 0


def views(body: bytes) -> list[View]:
    """Return the ways to read a body, the likeliest first: JSON if it is JSON, text if it is UTF-8, and always hex."""
    found = [_json(body), _text(body), _hex(body)]
    return [view for view in found if view is not None]


def preview(body: bytes) -> str:
    """Return the beginning of a body in one line; bytes that are no UTF-8 are escaped."""
    begin = body[: 4 * PREVIEW_CHARACTERS]
    text = begin.decode("utf-8", "backslashreplace")
    return shown(text if len(body) == len(begin) else text + "…", characters_max=PREVIEW_CHARACTERS)


def _text(body: bytes) -> View | None:
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        return None
    kept = text[:TEXT_CHARACTERS_MAX]
    return View("text", _lines(kept), len(body) - len(kept.encode()))


def _json(body: bytes) -> View | None:
    if len(body) > JSON_BYTES_MAX or body.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        return laid_out(json.loads(body), "JSON")
    except (ValueError, RecursionError):
        return None


def laid_out(value: Any, name: str, plain: Callable[[Any], Any] | None = None) -> View | None:
    """Return a value as JSON over many lines; None if it has too many characters then. `plain`: returns of what JSON
    has not what stands for it. Raises ValueError, RecursionError.
    """
    pieces, characters = list[str](), 0
    for piece in json.JSONEncoder(indent=2, ensure_ascii=False, default=plain).iterencode(value):
        pieces.append(piece)
        characters += len(piece)
        if characters > JSON_LAID_OUT_MAX:
            return None
    text = "".join(pieces)
    kept = text[:TEXT_CHARACTERS_MAX]
    # Escapes of JSON name halves of characters too, which UTF-8 has not.
    return View(name, shown_json(kept), len(text[len(kept) :].encode("utf-8", "surrogatepass")))


def _hex(body: bytes) -> View:
    rows = []
    for at in range(0, min(len(body), HEX_BYTES_MAX), HEX_ROW_BYTES):
        part = body[at : at + HEX_ROW_BYTES]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        rows.append(f"{at:08x}  {part.hex(' '):<{3 * HEX_ROW_BYTES - 1}}  {letters}")
    return View("hex", "\n".join(rows), max(0, len(body) - HEX_BYTES_MAX))


def _lines(text: str) -> str:
    """`text` with its lines and tabs, and everything else escaped that no eye sees."""
    return "\n".join(
        "\t".join(shown(part, characters_max=len(part)) for part in line.split("\t")) for line in text.split("\n")
    )
