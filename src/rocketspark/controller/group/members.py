"""The members of a group of controllers, as settings and the command line name them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rocketspark.errors import ConfigError
from rocketspark.model.text import shown
from rocketspark.transport.connections import parse_address

MEMBERS_MAX = 9


class Member(NamedTuple):
    """One controller of a group. `node`: its name there, such as n0; `address`: its "host:port"."""

    node: str
    address: str

    @property
    def name(self) -> str:
        """The name by which other members know it, "n0-host:port": at another address it is another member."""
        return f"{self.node}-{self.address}"


def parse_member(text: str) -> Member:
    """Return the member of "n0-host:port". Raises ConfigError."""
    node, dash, address = text.strip().partition("-")
    if not dash or not node or shown(node) != node:
        raise ConfigError(f"{shown(text)!r} is no controller: id-host:port is needed, as in n0-127.0.0.1:9877")
    return Member(node, address)


def parse_members(text: str) -> list[Member]:
    """Return the members of "n0-host:port;n1-host:port", or of "host:port,host:port", which get the names n0, n1, …

    Raises ConfigError.
    """
    words = [word.strip() for word in text.replace(",", ";").split(";") if word.strip()]
    found: list[Member] = []
    for number, word in enumerate(words):
        member = Member(f"n{number}", word) if _is_address(word) else parse_member(word)
        parse_address(member.address)
        found.append(member)
    if len({each.node for each in found}) < len(found) or len({each.address for each in found}) < len(found):
        raise ConfigError(f"{shown(text)!r} names a controller twice")
    if len(found) > MEMBERS_MAX:
        raise ConfigError(f"{len(found)} controllers are named: {MEMBERS_MAX} are the most")
    return found


def own_node(members: Sequence[Member], given: str) -> str:
    """Return the node name of the member that `given` names, as n0 or 0. Raises ConfigError if there is none."""
    names = [each.node for each in members]
    if given in names:
        return given
    if f"n{given}" in names:
        return f"n{given}"
    raise ConfigError(f"no controller is named {shown(given)!r}: {', '.join(names)} are")


def _is_address(word: str) -> bool:
    """Tell whether a word names no node: a host may hold a dash, too, but begins with no name such as n0 before it."""
    node, dash, rest = word.partition("-")
    return not dash or not (node[:1] == "n" and node[1:].isdigit() and ":" in rest)
