"""A pipeline's result on stdout. Rule: a table for people, or with `json` one object on one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rocketspark.model.text import shown, shown_json


def show(values: Mapping[str, Any], *, json: bool = False) -> None:
    """Print names and values; a list of mappings is a table, titled by its name. With `json`: one JSON object."""
    if json:
        import msgspec

        print(shown_json(msgspec.json.encode(plain(values))), flush=True)
        return
    from rich.console import Console

    console = Console(soft_wrap=False)
    for name, value in plain(values).items():
        title = name.replace("_", " ")
        if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
            console.print(_table(title, value))
        elif isinstance(value, list | dict) and not value:
            continue
        else:
            console.print(f"{_safe(title)}: {_safe(text(value))}", markup=False, highlight=False, soft_wrap=True)


def plain(value: Any) -> Any:
    """Turn NamedTuples into dicts, tuples into lists, all the way down."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(inner) for inner in value]
    return value


def text(value: Any) -> str:
    """Return a value for people: numbers with commas, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    if isinstance(value, list):
        return ", ".join(text(inner) for inner in value)
    if isinstance(value, dict):
        return ", ".join(f"{name} {text(inner)}" for name, inner in value.items())
    return str(value)


def _safe(text: str) -> str:
    """The whole text, escaped."""
    return shown(text, characters_max=len(text))


def _table(title: str, rows: list[dict[str, Any]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    names = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(title=Text(_safe(title)), title_justify="left")
    for name in names:
        numbers = all(isinstance(row.get(name), int | float | None) for row in rows)
        table.add_column(Text(_safe(name.replace("_", " "))), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_safe(text(row.get(name)))) for name in names))
    return table
