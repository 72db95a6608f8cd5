"""Prints a pipeline's result on stdout. Rule: people get tables in which no value is broken over two lines; with `json`
the result is one JSON object on one line.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rocketspark.model.text import shown, shown_json

_NO_WIDTH = 100_000
_TIME_MS_MIN, _TIME_MS_END = 100_000_000_000, 253_402_300_800_000


def show(values: Mapping[str, Any], *, json: bool = False) -> None:
    """Print a result's values by name: for people a list of mappings is a table, with its name as title; with `json`
    all is one JSON object.
    """
    if json:
        import msgspec

        print(shown_json(msgspec.json.encode(plain(values))), flush=True)
        return
    from rich.console import Console

    # A row of a file or a pipe is one line, as wide as it is.
    console = Console(soft_wrap=False, width=None if sys.stdout.isatty() else _NO_WIDTH)

    def line(name: str, value: Any) -> None:
        told = f"{_safe(_title(name, [value]))}: {_safe(text(value, name))}"
        console.print(told, markup=False, highlight=False, soft_wrap=True)

    for name, value in plain(values).items():
        if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
            table = _table(name.replace("_", " "), value)
            if console.measure(table, options=console.options.update(max_width=_NO_WIDTH)).maximum <= console.width:
                console.print(table)
                continue
            # Too narrow for it: a line for each value, which can be copied whole.
            for number, row in enumerate(value, 1):
                line(name, f"{number} of {len(value)}")
                for inner, one in row.items():
                    line(f"  {inner}", one)
        elif not isinstance(value, list | dict) or value:
            line(name, value)


def fields(row: Any, names: str) -> dict[str, Any]:
    """Return the fields of a value that `names` lists, with blanks between, by name."""
    return {name: getattr(row, name) for name in names.split()}


def plain(value: Any) -> Any:
    """Turn NamedTuples into dicts and tuples into lists, at every depth."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(inner) for inner in value]
    return value


def text(value: Any, name: str = "") -> str:
    """Return a value as text for people: numbers with commas, times as times if the `name` says that it is one, nothing
    for None.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if _is_time(name, value):
        return datetime.fromtimestamp(value / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    if isinstance(value, list):
        return ", ".join(text(inner) for inner in value)
    if isinstance(value, dict):
        return ", ".join(f"{name} {text(inner, name)}" for name, inner in value.items())
    return str(value)


def _safe(text: str) -> str:
    """The whole text, escaped."""
    return shown(text, characters_max=len(text))


def _is_time(name: str, value: Any) -> bool:
    """Tell whether a value is ms since 1970, and not a span of time: one of three years or more."""
    return name.endswith("_ms") and isinstance(value, int) and _TIME_MS_MIN <= value < _TIME_MS_END


def _title(name: str, values: list[Any]) -> str:
    """Return a name for people; a time's has no unit."""
    is_time = any(_is_time(name, value) for value in values)
    return (name.removesuffix("_ms") if is_time else name).replace("_", " ")


def _table(title: str, rows: list[dict[str, Any]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    names = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(title=Text(_safe(title)), title_justify="left")
    for name in names:
        values = [row.get(name) for row in rows]
        numbers = all(isinstance(value, int | float | None) for value in values)
        table.add_column(Text(_safe(_title(name, values))), justify="right" if numbers else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(_safe(text(row.get(name), name))) for name in names))
    return table
