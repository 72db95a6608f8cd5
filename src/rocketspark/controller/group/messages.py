"""The bodies of requests that members of a group, and operators, send to a member. Types only."""

from __future__ import annotations

import msgspec


class Hello(msgspec.Struct, frozen=True):
    """What a member says of itself: name, group, how it began (`founding.Beginning`), its leader, all members.

    `heard`: the `start` of the newest way on which it had a message of the member that asks.
    """

    name: str = ""
    group: str = ""
    beginning: str = ""
    leader: str = ""
    members: list[str] = []
    heard: int = 0


class Change(msgspec.Struct, frozen=True):
    """A change of members that an operator asks for. `what`: "add" or "rem"; `member`: n3-host:port, or n3 alone."""

    what: str
    member: str
