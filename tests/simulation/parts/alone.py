"""Each part as a scenario, by its name with "_" for blanks; some together with "_and_" between."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from tests.simulation import mixed
from tests.simulation.parts import PARTS
from tests.simulation.world import World


def __getattr__(name: str) -> Callable[[World], Coroutine[Any, Any, Any]]:
    parts = [part.replace("_", " ") for part in name.split("_and_")]
    if not set(parts) <= PARTS.keys():
        raise AttributeError(name)

    async def scenario(world: World) -> Any:
        return await mixed.run(world, parts=parts)

    return scenario
