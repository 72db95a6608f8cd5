"""A file of rules as a value: its YAML is read within bounds, checked, and written.

Rules: a file with one mistake gives none of its rules. Only lists, tables and texts are made of its YAML. What is said
of a mistake names account and field, never a secret.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from rocketspark.broker.access.plain_acl.addresses import Matches, address_pattern
from rocketspark.broker.access.plain_acl.rules import Account, permission, resource_permission, retry_resource
from rocketspark.errors import ConfigError
from rocketspark.model.text import shown, whole_number

FILE_BYTES_MAX = 1 << 20
DEPTH_MAX = 8
ALIASES_MAX = 50
_NULLS = ("", "~", "null", "Null", "NULL")
_TOO_DEEP = f"it is nested deeper than {DEPTH_MAX}"
_NO_YAML = "the rules of access control 1.0 are YAML, which needs PyYAML: pip install 'rocketspark[acl]'"


def parse_yaml(data: bytes) -> Any:
    """Return what a YAML document holds: dict, list, str or None. Raises ConfigError if it cannot be read."""
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


def dump_yaml(document: dict[str, Any]) -> str:
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
        """Return the value of the document that the YAML events describe; there may be one document only."""
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


KEY_LENGTH_MIN = 7
ACCOUNTS_MAX = 10_000
_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off")


@dataclass(frozen=True, slots=True)
class AccountEntry:
    """One account as the rule file has it: its fields as texts, None for a field that the file does not name."""

    access_key: str
    secret_key: str = field(repr=False)
    white_address: str | None = None
    admin: bool = False
    default_topic: str | None = None
    default_group: str | None = None
    topics: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None

    def account(self) -> Account:
        """Return the account with its permissions and addresses understood. Raises ConfigError if one cannot be."""
        if len(self.access_key) < KEY_LENGTH_MIN or len(self.secret_key) < KEY_LENGTH_MIN:
            raise ConfigError(f"accessKey and secretKey of at least {KEY_LENGTH_MIN} characters are needed")
        resources = {}
        # A group's line counts before a topic's of the same name, which is the group's retry topic.
        for texts, is_group in ((self.groups, True), (self.topics, False)):
            for text in texts or ():
                name, bits = resource_permission(text)
                resources[retry_resource(name) if is_group else name] = permission(bits)
        return Account(
            self.access_key,
            self.secret_key.encode(),
            address_pattern(self.white_address),
            self.admin,
            permission(self.default_topic),
            permission(self.default_group),
            resources,
        )


class Version(NamedTuple):
    """How often, and when last, a file was changed by requests."""

    timestamp_ms: int = 0
    counter: int = 0


@dataclass(frozen=True, slots=True)
class Document:
    """What one rule file holds. `white`: the global white list, where an entry is None if nothing is written."""

    white: tuple[str | None, ...] = ()
    accounts: tuple[AccountEntry, ...] = ()
    version: Version | None = None

    def white_patterns(self) -> tuple[Matches, ...]:
        """Return the patterns of the global white list. Raises ConfigError."""
        return tuple(address_pattern(text) for text in self.white)

    def without(self, access_key: str) -> Document:
        """Return the same document without the account of an access key."""
        return replace(self, accounts=tuple(a for a in self.accounts if a.access_key != access_key))

    def entry(self, access_key: str) -> AccountEntry | None:
        """Return the first account with an access key; None if there is none."""
        return next((a for a in self.accounts if a.access_key == access_key), None)


def read(data: bytes) -> Document:
    """Return the document in a rule file's bytes. Raises ConfigError with what is wrong, in one line."""
    table = parse_yaml(data)
    if table is None:
        return Document()
    fields = _fields(table, ("globalWhiteRemoteAddresses", "accounts", "dataVersion"), "the file")
    white = tuple(None if item is None else _text(item, "globalWhiteRemoteAddresses") for item in _list(fields, 0))
    accounts = _list(fields, 1)
    if len(accounts) > ACCOUNTS_MAX:
        raise ConfigError(f"{len(accounts):,} accounts, {ACCOUNTS_MAX:,} may be in one file")
    entries = tuple(_entry(item, f"account {number}") for number, item in enumerate(accounts, 1))
    document = Document(white, entries, _version(_list(fields, 2)))
    _check(document)
    return document


def _check(document: Document) -> None:
    try:
        document.white_patterns()
    except ConfigError as e:
        raise ConfigError(f"globalWhiteRemoteAddresses: {e}") from None
    for entry in document.accounts:
        try:
            entry.account()
        except ConfigError as e:
            raise ConfigError(f"account {shown(entry.access_key, characters_max=60)!r}: {e}") from None


def write(document: Document) -> str:
    """Return the text of a document, in the layout of RocketMQ's own."""
    version = document.version
    return dump_yaml(
        {
            "accounts": [_written(entry) for entry in document.accounts],
            "dataVersion": [{"counter": version.counter, "timestamp": version.timestamp_ms}] if version else [],
            "globalWhiteRemoteAddresses": list(document.white),
        }
    )


def _written(entry: AccountEntry) -> dict[str, Any]:
    return {
        "accessKey": entry.access_key,
        "admin": entry.admin,
        "defaultGroupPerm": entry.default_group,
        "defaultTopicPerm": entry.default_topic,
        "groupPerms": None if entry.groups is None else list(entry.groups),
        "secretKey": entry.secret_key,
        "topicPerms": None if entry.topics is None else list(entry.topics),
        "whiteRemoteAddress": entry.white_address,
    }


_ENTRY = (
    *("accessKey", "secretKey", "whiteRemoteAddress", "admin", "defaultTopicPerm", "defaultGroupPerm"),
    *("topicPerms", "groupPerms"),
)


def _entry(value: Any, what: str) -> AccountEntry:
    fields = _fields(value, _ENTRY, what)
    key, secret = fields["accessKey"], fields["secretKey"]
    if key is None or secret is None:
        raise ConfigError(f"{what}: accessKey and secretKey are needed")
    what = f"account {shown(_text(key, f'{what}: accessKey'), characters_max=60)!r}"

    def text(name: str) -> str | None:
        return None if fields[name] is None else _text(fields[name], f"{what}: {name}")

    def texts(name: str) -> tuple[str, ...] | None:
        if fields[name] is None:
            return None
        if not isinstance(fields[name], list):
            raise ConfigError(f"{what}: {name} is no list")
        return tuple(_text(item, f"{what}: {name}") for item in fields[name])

    admin = (text("admin") or "false").lower()
    if admin not in _TRUE + _FALSE:
        raise ConfigError(f"{what}: admin: true or false is needed")
    return AccountEntry(
        _text(key, what),
        _text(secret, f"{what}: secretKey"),
        text("whiteRemoteAddress"),
        admin in _TRUE,
        text("defaultTopicPerm"),
        text("defaultGroupPerm"),
        texts("topicPerms"),
        texts("groupPerms"),
    )


def _version(items: Iterable[Any]) -> Version | None:
    for item in items:
        fields = _fields(item, ("timestamp", "counter"), "dataVersion")
        numbers = [whole_number(_text(fields[name] or "0", "dataVersion")) for name in ("timestamp", "counter")]
        if None in numbers:
            raise ConfigError("dataVersion: whole numbers are needed")
        return Version(*numbers)  # type: ignore[arg-type]
    return None


def _fields(value: Any, names: tuple[str, ...], what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{what} is no table of {', '.join(names)}")
    unknown = value.keys() - set(names)
    if unknown:
        raise ConfigError(f"{what}: {shown(min(unknown), characters_max=60)!r} is not one of {', '.join(names)}")
    return {name: value.get(name) for name in names}


def _list(fields: dict[str, Any], number: int) -> list[Any]:
    name = list(fields)[number]
    value = fields[name]
    if value is None:
        return []
    if not isinstance(value, list):
        raise ConfigError(f"{name} is no list")
    return value


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{what}: a text is needed, not {_kind(value)}")
    return value


def _kind(value: Any) -> str:
    return "nothing" if value is None else "a list" if isinstance(value, list) else "a table"
