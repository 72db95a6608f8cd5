"""Tables for people. Rule: what comes from a server is shown escaped, and styled by nothing in it; in a file or a pipe
a row is one line, as wide as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rocketspark.model.text import shown

# Of what is no terminal.
NO_WIDTH = 100_000


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows of texts below the columns' names."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(shown(cell)) for cell in row))
    Console(width=None if sys.stdout.isatty() else NO_WIDTH).print(table)


def by_broker(rows: Iterable[tuple[str, tuple[str, ...]]]) -> list[tuple[str, ...]]:
    """Join (broker, row) of equal rows into one: the brokers' names, then the row."""
    found: dict[tuple[str, ...], list[str]] = {}
    for broker, row in rows:
        found.setdefault(row, []).append(broker)
    return [(", ".join(brokers), *row) for row, brokers in found.items()]
