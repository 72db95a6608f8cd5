"""Writes docs/reference/api.md from the docstrings and signatures of what `rocketspark` exports.

python scripts/api_page.py          writes the page
python scripts/api_page.py --print  prints it
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import rocketspark

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "api.md"
HEAD = """\
# Python API

Classes and functions that are imported from `rocketspark`, from their docstrings. Programs that use them are on
the pages [producers and consumers](../use/clients.md), [producers](../use/clients/producers.md) and
[consumers](../use/clients/consumers.md); every field is in [messages](../use/clients/messages.md).
`make fix` writes this page.
"""
WIDTH = 110


def paragraph(text: str | None) -> str:
    """A docstring as Markdown: its names are as they stand in the source."""
    lines: list[str] = []
    for line in inspect.cleandoc(text or "").splitlines():
        if line in ("Args:", "Attributes:", "Fields:"):
            line += "\n"
        elif argument := re.fullmatch(r" {4}([*\w, ]+): (.*)", line):
            line = f"- `{argument[1]}`: {argument[2]}"
        elif line.startswith("      "):
            line = "  " + line.lstrip()
        lines.append(line.rstrip(" "))
    return "\n".join(lines)


class Plain:
    """An annotation that is shown as the source has it, without quotes."""

    def __init__(self, text: Any) -> None:
        self.text = text if isinstance(text, str) else inspect.formatannotation(text)

    def __repr__(self) -> str:
        return str(self.text)


def plain(annotation: Any) -> Any:
    return annotation if annotation is inspect.Parameter.empty else Plain(annotation)


def signature(name: str, of: Any, prefix: str) -> str:
    """The call as Python, an argument a line if it is long."""
    found = inspect.signature(of)
    parts = [
        p.replace(annotation=plain(p.annotation)) for p in found.parameters.values() if p.name not in ("self", "cls")
    ]
    text = f"{prefix}{name}{found.replace(parameters=parts, return_annotation=plain(found.return_annotation))}"
    if len(text) <= WIDTH:
        return text
    arguments: list[str] = []
    starred = any(p.kind is p.VAR_POSITIONAL for p in parts)
    for p in parts:
        if p.kind is p.KEYWORD_ONLY and not starred:
            arguments.append("*")
            starred = True
        arguments.append(str(p))
    end = "" if found.return_annotation is inspect.Signature.empty else f" -> {plain(found.return_annotation)}"
    return f"{prefix}{name}(\n" + "".join(f"    {argument},\n" for argument in arguments) + f"){end}"


def described(title: str, code: str, text: str, level: str) -> str:
    return f"{level} {title}\n\n```text\n{code}\n```\n" + (f"\n{text}\n" if text else "")


def member(cls: type, name: str) -> str | None:
    """A public method or property of a class, of its bases too."""
    found = inspect.getattr_static(cls, name)
    title = f"{cls.__name__}.{name}"
    if isinstance(found, property):
        return described(title, f"{name}  # a property", paragraph(found.__doc__), "###")
    call = found.__func__ if isinstance(found, staticmethod | classmethod) else found
    if not inspect.isfunction(call):
        return None
    # Methods of the classes for threads wrap coroutine functions of those for asyncio, and are none.
    of_asyncio = inspect.unwrap(call) if cls.__name__.startswith("Async") else call
    is_async = inspect.iscoroutinefunction(of_asyncio)
    prefix = "async def " if is_async else "def "
    return described(title, signature(name, call, prefix), paragraph(call.__doc__), "###")


def page() -> str:
    parts = [HEAD]
    for name in sorted(rocketspark.__all__):
        of = getattr(rocketspark, name)
        if not callable(of):
            continue
        try:
            code = signature(name, of, "class " if inspect.isclass(of) else "def ")
        except (TypeError, ValueError):
            code = name
        parts.append(described(name, code, paragraph(of.__doc__), "##"))
        if inspect.isclass(of) and of.__module__.startswith("rocketspark"):
            own = [m for m in dir(of) if not m.startswith("_") and m not in dir(Exception) and m not in dir(int)]
            parts += [text for m in sorted(own) if (text := member(of, m))]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).rstrip() + "\n"


if __name__ == "__main__":
    if "--print" in sys.argv[1:]:
        sys.stdout.write(page())
    else:
        PAGE.write_text(page(), "utf-8")
