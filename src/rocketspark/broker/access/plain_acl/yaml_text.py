"""YAML as the rules' files use it, read within bounds. Rule: a file makes lists, tables and texts only.

Values stay the texts they are written as: a secret of digits is no number. Depth, size and repetition by anchors are
bounded while it is read, before anything grows.
"""

from __future__ import annotations

from typing import Any

from rocketspark.errors import ConfigError
from rocketspark.model.text import shown

FILE_BYTES_MAX = 1 << 20
DEPTH_MAX = 8
ALIASES_MAX = 50
_NULLS = ("", "~", "null", "Null", "NULL")
_TOO_DEEP = f"it is nested deeper than {DEPTH_MAX}"
_NO_YAML = "the rules of access control 1.0 are YAML, which needs PyYAML: pip install 'rocketspark[acl]'"


def parse(data: bytes) -> Any:
    """Return what a document holds: dict, list, str or None. Raises ConfigError for what is no such, in one line."""
    yaml = _yaml()
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"it has {len(data):,} bytes, {FILE_BYTES_MAX:,} may be read")
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        return _Builder(yaml).build(yaml.parse(data, Loader=loader))
    except ConfigError:
        raise
    except yaml.YAMLError as e:
        # libyaml 0.2.6 has a bound of its own, which it may reach before it gives us an event.
        if "nesting depth" in str(getattr(e, "problem", "")):
            raise ConfigError(_TOO_DEEP) from None
        raise ConfigError(f"it is no YAML: {_reason(e)}") from None
    except (UnicodeDecodeError, RecursionError, ValueError) as e:
        raise ConfigError(f"it is no YAML: {type(e).__name__}") from None


def dump(document: dict[str, Any]) -> str:
    """Return the text of a document, in the layout that RocketMQ writes."""
    text: str = _yaml().safe_dump(document, default_flow_style=False, sort_keys=True, allow_unicode=True, width=4096)
    return text


def _yaml() -> Any:
    try:
        import yaml
    except ImportError:
        raise ConfigError(_NO_YAML) from None
    return yaml


def _reason(error: Exception) -> str:
    # Not the whole message: it cites the line, which may hold a secret.
    problem = getattr(error, "problem", None) or type(error).__name__
    mark = getattr(error, "problem_mark", None)
    place = f" in line {mark.line + 1}" if mark is not None else ""
    return shown(f"{problem}{place}", characters_max=120)


class _Builder:
    """Makes values from the events of a parser, without recursion."""

    def __init__(self, yaml: Any) -> None:
        self._yaml = yaml
        self._anchors: dict[str, Any] = {}
        self._aliases = 0
        self._documents = 0
        # The open lists and tables, and the key that waits for its value in each table.
        self._open: list[Any] = []
        self._keys: list[Any] = []
        self._root: Any = None

    def build(self, events: Any) -> Any:
        """Return the value of the only document."""
        kinds = self._yaml.events
        for event in events:
            if isinstance(event, kinds.DocumentStartEvent):
                self._documents += 1
                if self._documents > 1:
                    raise ConfigError("it holds more than one document")
            elif isinstance(event, kinds.ScalarEvent):
                is_null = event.style in (None, "") and event.value in _NULLS
                self._put(None if is_null else event.value, event.anchor)
            elif isinstance(event, kinds.AliasEvent):
                self._repeat(event.anchor)
            elif isinstance(event, kinds.SequenceStartEvent):
                self._begin([], event.anchor)
            elif isinstance(event, kinds.MappingStartEvent):
                self._begin({}, event.anchor)
            elif isinstance(event, kinds.SequenceEndEvent | kinds.MappingEndEvent):
                self._open.pop()
                self._keys.pop()
        return self._root

    def _repeat(self, anchor: str) -> None:
        self._aliases += 1
        if self._aliases > ALIASES_MAX:
            raise ConfigError(f"it repeats values by *name more than {ALIASES_MAX} times")
        if anchor not in self._anchors or any(self._anchors[anchor] is value for value in self._open):
            raise ConfigError(f"it repeats *{shown(anchor, characters_max=40)}, which is not known there")
        self._put(self._anchors[anchor], None)

    def _begin(self, value: Any, anchor: str | None) -> None:
        if len(self._open) >= DEPTH_MAX:
            raise ConfigError(_TOO_DEEP)
        self._put(value, anchor)
        self._open.append(value)
        self._keys.append(_NO_KEY)

    def _put(self, value: Any, anchor: str | None) -> None:
        if anchor:
            self._anchors[anchor] = value
        if not self._open:
            self._root = value
        elif isinstance(self._open[-1], list):
            self._open[-1].append(value)
        elif self._keys[-1] is _NO_KEY:
            if not isinstance(value, str):
                raise ConfigError("a name in it is no text")
            self._keys[-1] = value
        else:
            self._open[-1][self._keys[-1]] = value
            self._keys[-1] = _NO_KEY


_NO_KEY = object()
