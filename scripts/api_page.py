"""Writes docs/reference/api.md, admin.md and errors.md from the docstrings and signatures of what the package exports.

python scripts/api_page.py          writes the pages
python scripts/api_page.py --print  prints them
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

import rocketspark
from rocketspark import admin, errors

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"
PAGE = FOLDER / "api.md"
HEAD = """\
# Python API

Classes and functions that are imported from `rocketspark`, from their docstrings. Programs that use them are on
the pages [producers and consumers](../use/clients.md), [producers](../use/clients/producers.md) and
[consumers](../use/clients/consumers.md); every field is in [messages](../use/clients/messages.md).
`make fix` writes this page.
"""
ADMIN_HEAD = """\
# Operations from Python

`rocketspark.admin` does from a program what the [commands](commands.md) for operators do. `Admin` is for programs with
threads; `AsyncAdmin` has the same methods as coroutines. What a broker or NameServer refuses is a
[`ServerError`](errors.md). `make fix` writes this page.

```python
# topics.py
from rocketspark.admin import Admin

with Admin("127.0.0.1:9876") as admin:
    admin.create_topic("admin-demo", queue_count=2)
    state = admin.show_topic("admin-demo")
    print(len(state.queues), "queues,", state.message_count, "messages")
    print(admin.delete_topic("admin-demo"))
```

```text
2 queues, 0 messages
['broker-a']
```
"""
ERRORS_HEAD = """\
# All errors

Every exception of `rocketspark.errors`, with the one that it derives from. The page
[errors](../use/clients/errors.md) says when clients raise them and what to do. *Retriable* is the attribute
`retriable`: whether the same call may succeed later; *as answered* means that it depends on the server's answer.
`make fix` writes this page.

| error | derives from | retriable | what it means |
| --- | --- | --- | --- |
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
        # One without a text is a field, which the text of its class describes.
        return found.__doc__ and described(title, f"{name}  # a property", paragraph(found.__doc__), "###")
    call = found.__func__ if isinstance(found, staticmethod | classmethod) else found
    if not inspect.isfunction(call):
        return None
    # Methods of the classes for threads wrap coroutine functions of those for asyncio, and are none.
    of_asyncio = inspect.unwrap(call) if cls.__name__.startswith("Async") else call
    is_async = inspect.iscoroutinefunction(of_asyncio)
    prefix = "async def " if is_async else "def "
    return described(title, signature(name, call, prefix), paragraph(call.__doc__), "###")


def sections(module: Any, names: Iterable[str]) -> list[str]:
    """Classes with their public members, and functions, by name."""
    parts = []
    for name in names:
        of = getattr(module, name)
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
    return parts


def results(of: type) -> list[str]:
    """The structs in which a class's methods answer, and those in their fields, each with its fields."""
    calls = [call for name, call in inspect.getmembers(of, inspect.isfunction) if not name.startswith("_")]
    texts = [str(inspect.signature(call).return_annotation) for call in calls]
    spaces = [vars(sys.modules[base.__module__]) for base in of.__mro__]
    found: dict[str, type] = {}
    while texts:
        for name in re.findall(r"\w+", texts.pop()):
            kind = next((space[name] for space in spaces if name in space), None)
            if name not in found and inspect.isclass(kind) and issubclass(kind, msgspec.Struct):
                if any(field.startswith("_") for field in kind.__struct_fields__):
                    continue  # Its fields are its own; api.md has it.
                found[name] = kind
                spaces.append(vars(sys.modules[kind.__module__]))
                texts += [str(v) for base in kind.__mro__ for v in vars(base).get("__annotations__", {}).values()]
    parts = ["## What the methods return\n"]
    for name, kind in sorted(found.items()):
        rows = [f"{field.name}: {annotated(kind, field.name)}" for field in msgspec.structs.fields(kind)]
        parts.append(described(name, "\n".join(rows), paragraph(kind.__doc__), "###"))
    return parts


def annotated(kind: type, field: str) -> str:
    """A field's type as the source has it."""
    return str(next(v[field] for base in kind.__mro__ if field in (v := vars(base).get("__annotations__", {}))))


def page() -> str:
    return whole([HEAD, *sections(rocketspark, sorted(rocketspark.__all__))])


def admin_page() -> str:
    return whole([ADMIN_HEAD, *sections(admin, ["Admin"]), *results(admin.AsyncAdmin)])


def errors_page() -> str:
    """The tree in its order; what an error's `__init__` takes from the answer is retriable as answered."""
    kinds = [v for v in vars(errors).values() if inspect.isclass(v) and issubclass(v, errors.RocketSparkError)]
    rows = []
    for kind in kinds:
        sources = [inspect.getsource(k) for k in kind.__mro__ if k in kinds and k is not errors.RocketSparkError]
        always = kind.retriable or any(re.search(r"[( ]retriable=True", source) for source in sources)
        said = "yes" if always else "as answered" if any("self.retriable =" in source for source in sources) else "no"
        base = "`Exception`" if kind is errors.RocketSparkError else f"`{kind.__bases__[0].__name__}`"
        text = " ".join(inspect.cleandoc(kind.__doc__ or "").split()).replace("|", "\\|")
        rows.append(f"| `{kind.__name__}` | {base} | {said} | {text} |")
    return ERRORS_HEAD + "\n".join(rows) + "\n"


def whole(parts: list[str]) -> str:
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).rstrip() + "\n"


PAGES = {PAGE: page, FOLDER / "admin.md": admin_page, FOLDER / "errors.md": errors_page}

if __name__ == "__main__":
    for path, write in PAGES.items():
        if "--print" in sys.argv[1:]:
            sys.stdout.write(write())
        else:
            path.write_text(write(), "utf-8")
