"""Writes docs/reference/commands.md: every command of `rocketspark` with its help, arguments and options.

python scripts/command_page.py
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rocketspark.cli.tree import tree

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "commands.md"
HEAD = """\
# Commands and options

What the `--help` of every command says. [The command line's answers](cli.md) has the fields that the
commands print. `make fix` writes this page.
"""


def commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Each command that does something, with its path."""
    inner = getattr(command, "commands", None)
    if not inner:
        yield path, command
        return
    for name in sorted(inner):
        if not inner[name].hidden:
            yield from commands(inner[name], f"{path} {name}")


def one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|").replace("<", "&lt;")


def rows(command: Any) -> list[str]:
    """A row for each argument and option."""
    found = []
    for param in command.params:
        if getattr(param, "hidden", False) or param.name == "help":
            continue
        if param.param_type_name == "argument":
            names = f"`{param.name.upper()}`"
        else:
            names = ", ".join(f"`{name}`" for name in [*param.opts, *param.secondary_opts])
        found.append(f"| {names} | {one_line(getattr(param, 'help', '') or '')} |")
    return found


def page() -> str:
    parts = [HEAD]
    for path, command in commands(tree(), "rocketspark"):
        text = inspect.cleandoc(command.help or "").replace("\b\n", "").replace("\f", "")
        parts.append(f"## {path}\n\n```text\n{text}\n```\n")
        if table := rows(command):
            parts.append("| argument, option | what it is |\n| --- | --- |\n" + "\n".join(table) + "\n")
    return "\n".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
