"""What a part of a run is."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tests.simulation.workloads import Workload

    from rocketspark.admin.operations import AsyncAdmin

Step = dict[str, Any]


async def _nothing(of: object) -> None:
    return


class Part(NamedTuple):
    """`draw(chance, end_s)`: its plan, of steps with their time `at`, and of members; `start`: begins its processes.

    `topics`: made before, with so many queues, and what `prepare` makes; `finish`: what is looked at once all has
    settled, before the clients end; `settings`: of the brokers; `alone`: more of them where there are no clients but
    those of parts; `quiet_s`: what it waits for by itself takes so much longer than all else; `begin`: called before
    anything begins, in the process of this seed alone.
    """

    draw: Callable[[random.Random, float], list[Step]]
    start: Callable[[Workload, list[Step]], list[Any]]
    topics: Mapping[str, int] = {}
    finish: Callable[[Workload], Awaitable[None]] = _nothing
    settings: dict[str, Any] = {}
    quiet_s: float = 0.0
    begin: Callable[[], None] = lambda: None
    prepare: Callable[[AsyncAdmin], Awaitable[None]] = _nothing
    alone: dict[str, Any] = {}


def of_kind(steps: Iterable[Step], kind: str) -> list[Step]:
    return [step for step in steps if step["kind"] == kind]


def times(chance: random.Random, count: int, end_s: float) -> list[float]:
    """Draw when steps are done."""
    return sorted(round(chance.uniform(2.0, end_s + 4), 3) for _ in range(count))


def sends(chance: random.Random, letter: str, count: int, end_s: float) -> list[Step]:
    """Draw sends, whose bodies begin with a letter."""
    drawn = enumerate(times(chance, count, end_s))
    return [{"kind": "send", "at": at, "number": number, "body": f"{letter}{number}"} for number, at in drawn]


def members(chance: random.Random, name: str, groups: Iterable[str], end_s: float) -> list[Step]:
    """Draw members of groups, of which the first of each stays; their machines are named after the part."""
    from tests.simulation.workloads import draw_members

    drawn = draw_members(chance, end_s=end_s, groups=list(groups))
    return [{"kind": "member", **member, "name": f"{name}-{member['name']}"} for member in drawn]
