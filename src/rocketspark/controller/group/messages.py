"""What the members of a group, and operators, ask one of them. Types only."""

from __future__ import annotations

import msgspec


class Hello(msgspec.Struct, frozen=True):
    """What a member says of itself: its name, how it began (`founding.Beginning`), who leads and who belongs to it.

    `heard`: the start of the newest way on which it had a message of the member that asks.
    """

    name: str = ""
    group: str = ""
    beginning: str = ""
    leader: str = ""
    members: list[str] = []
    heard: int = 0


class Change(msgspec.Struct, frozen=True):
    """What an operator asks for. `what`: "add" or "rem"; `member`: its name, such as n3-host:port, or n3 to remove."""

    what: str
    member: str
