"""Decides whether a controller that starts may vote in its group. Pure.

A member with an empty disk may be new, or have lost its disk. If it lost it, it forgot votes and entries that it had
acknowledged: voting again it could have two leaders elected, or let an acknowledged entry be lost. Rule: it votes once
it has all that its leader has. Only if all members are empty they begin a group, and one of them may bring the state of
a single controller."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from rocketspark.controller.group.raft_log import FOUNDING, LEARNER, SEEDING, VOTER, WAITING


class Beginning(StrEnum):
    """How a member began, as it tells others.

    FRESH: its disk is empty; SEED: its disk has nothing but the state of a single controller; FOUNDING, SEEDED: the
    same, and it has seen that all others are empty; LEARNING: it waits until it has all that its leader has; MEMBER: it
    has what a leader wrote.
    """

    FRESH = "fresh"
    SEED = "seed"
    FOUNDING = "founding"
    SEEDED = "seeded"
    LEARNING = "learning"
    MEMBER = "member"


_NEW = frozenset((Beginning.FRESH, Beginning.SEED, Beginning.FOUNDING, Beginning.SEEDED))
_SEEDS = frozenset((Beginning.SEED, Beginning.SEEDED))


# What a member says of itself once it has a log, by how it stands in it.
BY_STANDING = {
    LEARNER: Beginning.LEARNING,
    WAITING: Beginning.FOUNDING,
    FOUNDING: Beginning.FOUNDING,
    SEEDING: Beginning.SEEDED,
    VOTER: Beginning.MEMBER,
}


def standing(own: Beginning, others: Iterable[str], told: Mapping[str, str]) -> str | None:
    """Return how a member without a log stands, by what the others report; None while that is not known.

    `own`: how it began; `told`: by name, how each of the others began that answered.
    """
    if Beginning.MEMBER in told.values():
        return None if own is Beginning.SEED else LEARNER
    if any(told.get(name) not in _NEW for name in others):
        return None
    seeds = [name for name in others if told[name] in _SEEDS]
    if own is Beginning.SEED:
        return None if seeds else SEEDING
    return None if len(seeds) > 1 else WAITING if seeds else FOUNDING


def obstacle(own: Beginning, others: Iterable[str], told: Mapping[str, str], state_path: str) -> str:
    """Return why a member cannot begin yet, as text for its log."""
    seeds = [name for name in others if told.get(name) in _SEEDS]
    if own is Beginning.SEED and Beginning.MEMBER in told.values():
        return (
            f"the group has a state, and {state_path} holds that of a single controller: remove that file, and this one"
            " takes the group's"
        )
    if len(seeds) + (own is Beginning.SEED) > 1:
        several = ", ".join([*seeds, *(["this one"] if own is Beginning.SEED else [])])
        return f"{several} have the state of a single controller each: keep one, and remove the other's file"
    silent = [name for name in others if name not in told]
    if silent:
        return (
            f"the group has not begun: {', '.join(silent)} cannot be reached. At the first start all members are needed"
        )
    return "the group has not begun: its members wait for one that has its state"
