"""Paths into JSON documents: `$.order.lines[0].price`, `$['a b']`, `$.lines[*].price`, `$.*`. Pure."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from rocketspark.errors import UsageError
from rocketspark.model.text import INT_MAX, shown, whole_number

_STEP = re.compile(
    r"\.(?P<name>[^.\[\]'\"*\s]+)|\.(?P<all>\*)|\[(?:(?P<number>-?[0-9]+)|(?P<each>\*)|(?P<quote>['\"])(?P<key>.*?)(?P=quote))\]"
)
STEPS_MAX = 64
# Of a document, counted by what parts and opens them: each takes some 70 bytes in memory, and two on the wire.
VALUES_MAX = 1 << 20
_EACH = object()


class JsonPath:
    """A path, made of its text. Raises UsageError for a text that is none."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._steps: list[Any] = []
        at = 1
        while text.startswith("$") and at < len(text) and (found := _STEP.match(text, at)):
            self._steps.append(_step(found))
            at = found.end()
        if not text.startswith("$") or at < len(text) or len(self._steps) > STEPS_MAX or None in self._steps:
            told = shown(text, characters_max=60)
            raise UsageError(f"{told!r} is no path into JSON: one such as $.order.lines[0].price or $.a[*] is needed")

    def values(self, document: Any) -> Iterator[Any]:
        """Yield what the path leads to in a document; nothing where it has no such place."""
        found = [document]
        for step in self._steps:
            found = [below for value in found for below in _below(value, step)]
        yield from found

    def values_in(self, body: bytes) -> Iterator[Any]:
        """Yield what the path leads to in a body; nothing for one that is no JSON, or has over `VALUES_MAX` values."""
        if len(body) > VALUES_MAX and sum(map(body.count, (b",", b"[", b"{"))) > VALUES_MAX:
            return
        try:
            document = msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return
        yield from self.values(document)


def same_value(found: Any, wanted: str) -> bool:
    """Tell whether a value of JSON is the one that a text names: as JSON, or for a text without its quotes."""
    if found == wanted:
        return True
    is_json, value = _read(wanted)
    if not is_json:
        return False
    # True is 1 in Python.
    return isinstance(found, bool) is isinstance(value, bool) and bool(found == value)


@functools.lru_cache(maxsize=4)
def _read(text: str) -> tuple[bool, Any]:
    """Return whether a text is JSON, and its value: one text is looked for in many places."""
    try:
        return True, msgspec.json.decode(text.encode("utf-8", "surrogatepass"))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False, None


def _step(found: re.Match[str]) -> Any:
    if found["all"] or found["each"]:
        return _EACH
    if (number := found["number"]) is not None:
        return whole_number(number, low=-INT_MAX, high=INT_MAX)
    return found["name"] if found["name"] is not None else found["key"]


def _below(value: Any, step: Any) -> Iterator[Any]:
    if step is _EACH:
        yield from value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    elif isinstance(step, str):
        if isinstance(value, dict) and step in value:
            yield value[step]
    elif isinstance(value, list) and -len(value) <= step < len(value):
        yield value[step]
