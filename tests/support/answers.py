"""What docs/reference/cli.md says of each command's --json, and whether an answer is as it says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "cli.md"
_KINDS: dict[str, tuple[type, ...]] = {
    "text": (str,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "list": (list,),
    "null": (type(None),),
}
Fields = dict[str, str]


def documented() -> dict[str, Fields]:
    """By command, the type of each field in its answer; a field that may be missing ends with "?"."""
    found: dict[str, Fields] = {}
    parts = re.split(r"^### (.+)$", re.sub(r"^## .+$", "", PAGE.read_text("utf-8"), flags=re.MULTILINE), flags=re.M)
    for names, text in zip(parts[1::2], parts[2::2], strict=True):
        head, *rows = re.findall(r"^\| (.+?) \| (.+?) \| (.+) \|$", text, re.MULTILINE) or [("", "", "")]
        assert head == ("field", "type", "meaning"), names
        fields = {name: kind for named, kind, _ in rows[1:] for name in re.findall("`([^`]+)`", named)}
        for kind in fields.values():
            assert set(re.split(" or ", kind)) <= _KINDS.keys(), (names, kind)
        for name in names.split(", "):
            assert name not in found, f"{name} stands there twice"
            found[name] = fields
    return found


def check_answer(command: str, answer: Any) -> None:
    """Assert that a command's answer has the fields that the page names, of the types it names, and no others."""
    fields = documented()[command]
    optional = {name.rstrip("?"): name.endswith("?") for name in fields}
    kinds = {name.rstrip("?"): kind for name, kind in fields.items()}
    elements = answer if isinstance(answer, list) and "[]" not in kinds else [answer]
    for element in elements:
        found = list(_leaves(element, "", kinds))
        for name, value in found:
            wanted = tuple(each for kind in kinds[name].split(" or ") for each in _KINDS[kind])
            is_right = isinstance(value, wanted) and (bool in wanted or not isinstance(value, bool))
            assert is_right, (command, name, value, kinds[name])
        names = {name for name, _ in found}
        # In an empty list or object there is no field of its elements.
        needed = {name for name, may in optional.items() if not may and "[]" not in name and "*" not in name}
        assert needed <= names, (command, needed - names)


def _leaves(value: Any, path: str, kinds: Fields) -> Iterator[tuple[str, Any]]:
    if path in kinds:
        yield path, value
    elif isinstance(value, dict):
        for name, each in value.items():
            at = f"{path}.{name}" if path else name
            any_name = f"{path}.*" if path else "*"
            yield from _leaves(
                each,
                any_name if any(k == any_name or k.startswith((f"{any_name}.", f"{any_name}[")) for k in kinds) else at,
                kinds,
            )
    elif isinstance(value, list):
        for each in value:
            yield from _leaves(each, f"{path}[]", kinds)
    else:
        raise AssertionError(f"docs/reference/cli.md does not name {path or 'it'}: {value!r}")
