"""How commands show stored messages: as JSON, as a row of a table, whole with the body as text, JSON or hex.

Rule: nothing of a message reaches a terminal unescaped; a body is shown up to a bound and says how long it is.
"""

from __future__ import annotations

import time
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from rocketspark.cli.message_forms import as_fields
from rocketspark.model.text import shown, shown_json

if TYPE_CHECKING:
    from rocketspark.model import ReceivedMessage

SHOWN_BYTES_MAX = 16_384
IN_TABLE_CHARACTERS = 60
_HEX_ROW = 16
COLUMNS = ("stored", "broker/queue/offset", "id", "tag", "keys", "bytes", "body")


class BodyForm(StrEnum):
    """How a body is shown; `auto`: as JSON if it is some, as text if it is that, else as hex."""

    auto = "auto"
    text = "text"
    json = "json"
    hex = "hex"


def when(ms: int) -> str:
    """Return a time in ms since 1970 for people, in local time; "-" for one that no calendar has, or none."""
    try:
        text = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ms // 1000))
    except (ValueError, OverflowError, OSError):
        return "-"
    return f"{text}.{ms % 1000:03}" if ms >= 0 else "-"


def message_json(m: ReceivedMessage) -> dict[str, Any]:
    """Return a message as JSON has it, with the reason where its body is damaged."""
    error = {} if m.body_error is None else {"body_error": m.body_error}
    return as_fields(m) | error


def message_row(m: ReceivedMessage) -> tuple[str, ...]:
    """Return a message as the texts of a row below COLUMNS."""
    place = f"{m.broker_name}/{m.queue_id}/{m.queue_offset}"
    text = m.body[: 4 * IN_TABLE_CHARACTERS].decode("utf-8", "backslashreplace")
    body = shown(text, characters_max=IN_TABLE_CHARACTERS)
    return when(m.store_time_ms), place, m.message_id, m.tag or "", " ".join(m.keys), str(len(m.body)), body


def message_lines(m: ReceivedMessage, form: BodyForm, decoded: str | None = None) -> list[str]:
    """Return a message whole, for people: a line for each field, then the body, or `decoded` in its place."""
    fields: list[tuple[str, object]] = [
        ("message id", m.message_id),
        ("offset message id", m.offset_message_id),
        ("topic", m.topic),
        ("queue", f"{m.broker_name}/{m.queue_id}"),
        ("queue offset", m.queue_offset),
        ("physical offset", m.physical_offset),
        ("tag", m.tag or ""),
        ("keys", " ".join(m.keys)),
        ("born", f"{when(m.born_time_ms)} at {m.born_host}"),
        ("stored", f"{when(m.store_time_ms)} at {m.store_host}"),
        ("reconsume times", m.reconsume_times),
        ("flag", m.flag),
        *((f"  {name}", value) for name, value in sorted(m.properties.items())),
        ("body", f"{len(m.body):,} bytes" + (f", damaged: {m.body_error}" if m.body_error else "")),
    ]
    lines = [f"{shown(name):<18} {shown(value, characters_max=2000)}".rstrip() for name, value in fields]
    lines.insert(12, "properties")
    return [*lines, "", *(body_lines(m.body, form) if decoded is None else decoded.split("\n"))]


def body_lines(body: bytes, form: BodyForm) -> list[str]:
    """Return a body as lines, up to a bound."""
    cut = body[:SHOWN_BYTES_MAX]
    more = [f"… {len(body) - len(cut):,} more bytes: --save FILE has them all"] if len(body) > len(cut) else []
    if form in (BodyForm.auto, BodyForm.json) and (lines := _json_lines(body)) is not None:
        return lines
    if form is not BodyForm.hex and (form is not BodyForm.auto or _is_text(cut, whole=not more)):
        text = cut.decode("utf-8", "backslashreplace")
        # Whole, but for what would move the cursor; lines and tabs are the text's own.
        parts = (line.rstrip("\r").split("\t") for line in text.split("\n"))
        return ["\t".join(shown(part, characters_max=len(part)) for part in line) for line in parts] + more
    return [_hex_row(cut, at) for at in range(0, len(cut), _HEX_ROW)] + more


def _json_lines(body: bytes) -> list[str] | None:
    import msgspec

    if len(body) > SHOWN_BYTES_MAX or not body.lstrip().startswith((b"{", b"[")):
        return None
    try:
        msgspec.json.decode(body)
        return shown_json(msgspec.json.format(body, indent=2)).split("\n")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _is_text(cut: bytes, *, whole: bool) -> bool:
    try:
        text = cut.decode() if whole else cut.decode("utf-8", "ignore")
    except UnicodeDecodeError:
        return False
    if not whole and len(text.encode()) < len(cut) - 3:
        return False  # More than a character that was cut in two.
    return not any(ord(c) < 32 and c not in "\t\r\n" for c in text)


def _hex_row(data: bytes, at: int) -> str:
    part = data[at : at + _HEX_ROW]
    letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
    return f"{at:08x}  {part[:8].hex(' '):<23}  {part[8:].hex(' '):<23}  {letters}"
