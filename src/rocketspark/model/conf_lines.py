"""Lines `key=value`, as RocketMQ's .conf files and requests hold settings. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from rocketspark.errors import ConfigError
from rocketspark.model.text import shown, whole_number

# Twice as much as all settings of RocketMQ's together.
REQUEST_LENGTH_MAX = 64 << 10
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")


def setting_name(text: str) -> str:
    """Return the key of a setting; "…" for a text that is none, as it may be a piece of a value, and secret."""
    return text if _NAME.fullmatch(text) else "…"


def parse_properties(text: str, where: str) -> dict[str, str]:
    """Return keys and values of lines `key=value`. Raises ConfigError naming `where` and the malformed line."""
    values: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        key, equals, value = line.partition("=")
        if not equals:
            first, more, _ = line.partition(" ")
            begins = setting_name(first) + (" …" if more else "")
            raise ConfigError(f"{where} line {number}: {begins!r} is no key=value")
        values[key.strip()] = value.strip()
    return values


def parse_request(text: str) -> dict[str, str]:
    """Return keys and values of a request that changes settings. Raises ConfigError, also for one that is too long."""
    if len(text) > REQUEST_LENGTH_MAX:
        raise ConfigError(f"settings of {len(text)} characters; at most {REQUEST_LENGTH_MAX} are taken in one request")
    return parse_properties(text, "the request's")


def replace_values(text: str, values: dict[str, str], key_of: Callable[[str], str] = lambda name: name) -> str:
    """Return the lines of a .conf file with these keys set, in place where they stand, else at the end; other lines
    stay as they are.

    `key_of`: returns the key that a name in the file means, as it may be another spelling of it.
    """
    left = dict(values)
    lines = []
    for line in text.splitlines():
        name = line.partition("=")[0].strip()
        key = key_of(name)
        if "=" in line and not line.lstrip().startswith(("#", "!")) and key in values:
            # A key that stands twice is written once: the last one would win.
            if key in left:
                lines.append(f"{name}={left.pop(key)}")
            continue
        lines.append(line)
    lines += [f"{key}={value}" for key, value in left.items()]
    return "\n".join(lines) + "\n"


def truth_of(key: str, text: str) -> bool:
    """Return what a setting's text says. Raises ConfigError naming the key."""
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"{key}={shown(text)!r}: true or false is needed")
    return text.lower() == "true"


def number_of(key: str, text: str, low: int, high: int) -> int:
    """Return the whole number of a setting's text, from `low` to `high`. Raises ConfigError naming the key."""
    number = whole_number(text, low=low, high=high)
    if number is None:
        raise ConfigError(f"{key}={shown(text)!r}: a whole number is needed, from {low} to {high}")
    return number


def typed_values(
    fields: Mapping[str, msgspec.structs.FieldInfo], values: Mapping[str, str], lowest: Mapping[str, int], high: int
) -> dict[str, Any]:
    """Return the values of a struct's fields by name, of texts by key; keys without a field are left out.

    Whole numbers are from `lowest` of their key, else 0, to `high`. Raises ConfigError naming the key that is wrong.
    """
    taken: dict[str, Any] = {}
    for key, text in values.items():
        field = fields.get(key)
        if field is None:
            continue
        if field.type is bool:
            taken[field.name] = truth_of(key, text)
        elif field.type is int:
            taken[field.name] = number_of(key, text, lowest.get(key, 0), high)
        else:
            taken[field.name] = text.strip()
    return taken
