"""Strategies that allocate a topic's queues to a group's members. Pure: every member computes the same from the same
lists. `rebalance` calls the strategy and takes the queues. `average`, the default, and `average_by_circle`, which
brokers use as well, are in `model/allocation`.

Rule: names and results of RocketMQ's AllocateMessageQueue… strategies, 5.x. All take sorted lists; a client that is no
member gets nothing.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from rocketspark.errors import ConfigError
from rocketspark.model import MessageQueue
from rocketspark.model.allocation import Strategy, average, average_by_circle

__all__ = [
    "STRATEGIES",
    "Strategy",
    "average",
    "average_by_circle",
    "by_config",
    "by_machine_room",
    "consistent_hash",
    "machine_room_nearby",
    "strategy_of",
]


def by_config(queues: Iterable[MessageQueue]) -> Strategy:
    """Return a strategy that gives this consumer exactly these queues, whatever the other members have."""
    wanted = frozenset(queues)

    def allocate(client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
        return [q for q in queues if q in wanted]

    return allocate


def by_machine_room(rooms: Iterable[str]) -> Strategy:
    """Return a strategy that shares out the queues whose broker is named "room@…" with one of these rooms; the first
    members get the rest.
    """
    near = frozenset(rooms)

    def allocate(client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
        if client_id not in members:
            return []
        here = [q for q in queues if len(parts := q.broker_name.split("@")) == 2 and parts[0] in near]
        place = members.index(client_id)
        share, more = divmod(len(here), len(members))
        mine = here[place * share : (place + 1) * share]
        return mine + here[len(members) * share + place :][:1] if more > place else mine

    return allocate


def machine_room_nearby(
    room_of_broker: Callable[[str], str], room_of_client: Callable[[str], str], within: Strategy = average
) -> Strategy:
    """Return a strategy that shares a machine room's queues among the members in that room; a room without members is
    shared among all members.

    `room_of_broker` tells the room of a broker name, `room_of_client` that of a client id; `within` is the strategy
    that shares out the queues of a room.
    """

    def allocate(client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
        if client_id not in members:
            return []
        by_room: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            by_room.setdefault(room_of_broker(queue.broker_name), []).append(queue)
        members_of: dict[str, list[str]] = {}
        for member in members:
            members_of.setdefault(room_of_client(member), []).append(member)
        mine = room_of_client(client_id)
        share = within(client_id, by_room.get(mine, []), members_of[mine]) if mine in by_room else []
        for room in sorted(by_room):
            if room not in members_of:
                share += within(client_id, by_room[room], members)
        return share

    return allocate


def consistent_hash(virtual_nodes: int = 10) -> Strategy:
    """Return a strategy that puts members and queues on a ring of hashes; each queue goes to the next member on the
    ring.

    So few queues move when a member comes or goes. `virtual_nodes`: how many places each member has on the ring.
    """
    if virtual_nodes < 1:
        raise ConfigError("virtual_nodes must be 1 or more")

    def allocate(client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
        if client_id not in members:
            return []
        ring = {_md5(f"{member}-{n}"): member for member in members for n in range(virtual_nodes)}
        places = sorted(ring)

        def owner(queue: MessageQueue) -> str:
            text = f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"
            return ring[places[bisect_left(places, _md5(text)) % len(places)]]

        return [q for q in queues if owner(q) == client_id]

    return allocate


def _md5(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


StrategyName = Literal["average", "average_by_circle", "consistent_hash"]
STRATEGIES: Mapping[str, Strategy] = {
    "average": average,
    "average_by_circle": average_by_circle,
    "consistent_hash": consistent_hash(),
}


def strategy_of(given: str | Strategy) -> Strategy:
    """Return the strategy of that name, or the one given. Raises ConfigError."""
    found = STRATEGIES.get(given) if isinstance(given, str) else given
    if found is None or not callable(found):
        names = ", ".join(STRATEGIES)
        raise ConfigError(f"strategy {given!r} is not known: {names}, or a function of your own is needed")
    return found
