"""Two values side by side, leaf by leaf. Rule: every leaf of either has a path, whatever order a hash table gave."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from rocketspark.protocol.json import java_json


class Seen(NamedTuple):
    """A value of a captured answer and ours in its place."""

    scenario: str
    where: str
    request: str
    path: str
    captured: Any
    ours: Any


class Absent:
    def __repr__(self) -> str:
        return "absent"


ABSENT = Absent()


def json_of(text: bytes) -> Any:
    return json.loads(java_json.standardize(text))


def settings_of(text: bytes) -> dict[str, str]:
    lines = text.decode().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def key_of(key: str) -> str:
    """A key as it stands in a path; that of a queue in short."""
    if key.startswith("{"):
        queue = json.loads(key)
        return f"{queue['topic']}:{queue['queueId']}"
    return key


def pairs_of(captured: Any, ours: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Every leaf of either, with its path; what lists hold is at `#`, lists of names are compared as sets."""
    if isinstance(captured, dict) and isinstance(ours, dict):
        for key in [*captured, *(k for k in ours if k not in captured)]:
            yield from pairs_of(captured.get(key, ABSENT), ours.get(key, ABSENT), f"{path}.{key_of(key)}")
    elif isinstance(captured, list) and isinstance(ours, list):
        captured, ours = sorted(captured, key=rank), sorted(ours, key=rank)
        if all(isinstance(v, str) for v in captured + ours):
            for name in sorted({*captured, *ours}):
                yield f"{path}.{name}", captured.count(name) or ABSENT, ours.count(name) or ABSENT
            return
        yield f"{path}.#", len(captured), len(ours)
        for one, other in zip(captured, ours, strict=False):
            yield from pairs_of(one, other, f"{path}.#")
    else:
        yield path, captured, ours


def rank(value: Any) -> str:
    """Where a value stands among its like, whatever order a hash table gave them."""
    if isinstance(value, dict):
        named = [str(value[k]) for k in ("clientId", "group", "groupName", "topicName") if k in value]
        queue = value.get("messageQueue", value)
        if isinstance(queue, dict):
            named += [str(queue[k]) for k in ("topic", "queueId") if k in queue]
        return " ".join(named or sorted(value))
    return str(value)
