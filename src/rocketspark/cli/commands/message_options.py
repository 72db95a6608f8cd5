"""The options of commands that make messages, and of those that choose stored ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from rocketspark.cli.commands.pipelines.shared import Since, Until, time_range
from rocketspark.model.text import shown

if TYPE_CHECKING:
    from rocketspark.admin.messages.search import Search


class MessageOptions(NamedTuple):
    """The options that say what a message has beside its body."""

    tag: Annotated[str | None, typer.Option(help="The tag.", show_default=False)] = None
    key: Annotated[list[str] | None, typer.Option("-k", "--key", help="A key; may be repeated.")] = None
    property: Annotated[
        list[str] | None, typer.Option("-H", "--property", help="A property, name=value; may be repeated.")
    ] = None
    properties: Annotated[
        Path | None, typer.Option("--properties", help="A file with a JSON object of properties.", show_default=False)
    ] = None
    sharding_key: Annotated[
        str | None,
        typer.Option(help="Keeps messages in order: all of one key go to the same queue.", show_default=False),
    ] = None
    lite_topic: Annotated[
        str | None, typer.Option(help="The lite topic, in a topic of the type LITE.", show_default=False)
    ] = None
    priority: Annotated[
        int | None, typer.Option(min=0, help="The priority, in a topic of the type PRIORITY.", show_default=False)
    ] = None

    def values(self) -> dict[str, Any]:
        """Return them as Message takes them. Raises BadParameter, ConfigError."""
        found: dict[str, Any] = {"tag": self.tag, "keys": self.key, "sharding_key": self.sharding_key}
        found["properties"] = _properties_of(self.properties) | _properties(self.property or [])
        found["lite_topic"] = self.lite_topic
        given = {name: value for name, value in found.items() if value}
        return given if self.priority is None else given | {"priority": self.priority}


def _properties(texts: list[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise typer.BadParameter(f"{shown(text, characters_max=60)!r} is no name=value", param_hint="--property")
        found[name] = value
    return found


def _properties_of(file: Path | None) -> dict[str, str]:
    import msgspec

    from rocketspark.model import typed_json

    if file is None:
        return {}
    try:
        return typed_json.decode(file.read_bytes(), dict[str, str])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        text = f"{file}: {e}; a JSON object of names and texts is needed"
        raise typer.BadParameter(shown(text), param_hint="--properties") from None


class Which(NamedTuple):
    """The options that say which stored messages are meant."""

    key: Annotated[str | None, typer.Option("-k", "--key", help="With this key.", show_default=False)] = None
    tag: Annotated[str | None, typer.Option(help="With this tag.", show_default=False)] = None
    contains: Annotated[str | None, typer.Option(help="With this text in the body.", show_default=False)] = None
    json_path: Annotated[
        str | None,
        typer.Option(
            "--json-path",
            metavar="PATH[=VALUE]",
            help="With JSON bodies where this path leads to something, or to VALUE: '$.order.lines[*].sku=A-7'.",
            show_default=False,
        ),
    ] = None
    since: Since = ""
    until: Until = ""

    def search(self) -> Search:
        """Return them as operations take them. Raises BadParameter."""
        from rocketspark.admin.messages.search import Search

        since_ms, until_ms = time_range(self.since or None, self.until or None)
        path, equals, value = _path(self.json_path)
        return Search(
            key=self.key,
            tag=self.tag,
            contains=self.contains,
            json_path=path,
            json_value=value if equals else None,
            since_ms=since_ms,
            until_ms=until_ms,
        )


def _path(text: str | None) -> tuple[str | None, str, str]:
    """Return a path, "=" if a value follows, and the value; a key in quotes may hold "=" too."""
    if text is None:
        return None, "", ""
    at, quote = 0, ""
    while at < len(text) and (quote or text[at] != "="):
        if text[at] in "'\"":
            quote = "" if text[at] == quote else quote or text[at]
        at += 1
    return text[:at].strip(), text[at : at + 1], text[at + 1 :].strip()
