"""How templates are filled. Rule: every text is escaped and goes through `shown`; what is markup was made here or by a
template.
"""

from __future__ import annotations

import functools
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from rocketspark.model.text import shown

LINES_MAX = 5000
SENTENCE_CHARACTERS_MAX = 10_000
NONE = "\u2013"


def draw(template: str, **values: Any) -> str:
    """Return a template as HTML."""
    return environment().get_template(template).render(**values)


@functools.cache
def environment() -> Environment:
    """Return the templates' environment."""
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals["link"] = link
    made.filters |= {
        "exact": _exact,
        "lines": lines,
        "sentence": sentence,
        "number": number,
        "rate": rate,
        "size": size,
        "time": time,
        "ago": ago,
        "percent": lambda share: f"{share * 100:.0f} %",
    }
    return made


def _shown(value: Any) -> Any:
    return shown(value) if type(value) is str else value


def _exact(value: object) -> Markup:
    return Markup(escape(str(value)))


def sentence(text: str) -> Markup:
    """Return what people have to read whole before they say yes: with names and lists of any length."""
    return Markup(escape(shown(text, characters_max=SENTENCE_CHARACTERS_MAX)))


def lines(text: str) -> Markup:
    """Return a text of several lines, each as `shown` has it."""
    rows = text.split("\n")
    kept = [str(escape(shown(row.rstrip("\r").expandtabs(4), characters_max=2000))) for row in rows[:LINES_MAX]]
    return Markup("\n".join([*kept, *(["…"] if len(rows) > LINES_MAX else [])]))


def path_of(path: str, **arguments: Any) -> str:
    """Return an address with its arguments, for `Done` and `Confirmation`; those that are None or "" are left out."""
    given = {name: value for name, value in arguments.items() if value is not None and value != ""}
    return f"{path}?{urlencode(given)}" if given else path


def link(path: str, **arguments: Any) -> Markup:
    """Return what `path_of` returns, for templates."""
    return Markup(escape(path_of(path, **arguments)))


def number(value: float) -> str:
    """Return a number with a thin space between thousands."""
    return f"{value:,.0f}".replace(",", "\u202f") if isinstance(value, int | float) else str(value)


def rate(value: float) -> str:
    """Return a number a second, with one digit after the point where it is small."""
    return number(value) if value >= 100 else f"{value:.1f}"


def size(count: float) -> str:
    """Return a number of bytes in the unit that suits."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    return ""


def time(time_ms: int) -> str:
    """Return a time in ms since 1970 as UTC, a dash where there is none."""
    if time_ms <= 0:
        return NONE
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return NONE


def ago(span_s: float) -> str:
    """Return a time span in its two largest units: 2 d 4 h."""
    left, found = int(max(0, span_s)), list[str]()
    for unit, seconds in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        if left >= seconds or found or unit == "s":
            found.append(f"{left // seconds} {unit}")
            left %= seconds
        if len(found) == 2:
            break
    return " ".join(found)
