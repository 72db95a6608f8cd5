"""What the members of a group, and operators, ask one of them. Types only."""

from __future__ import annotations

import msgspec


class Hello(msgspec.Struct, frozen=True):
    """What a member says of itself: its name, how it began (`founding.Beginning`), who leads and who belongs to it."""

    name: str = ""
    group: str = ""
    beginning: str = ""
    leader: str = ""
    members: list[str] = []


class Change(msgspec.Struct, frozen=True):
    """What an operator asks for. `what`: "add" or "rem"; `member`: its name, such as n3-host:port, or n3 to remove."""

    what: str
    member: str
