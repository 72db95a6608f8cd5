"""Each part as a scenario, by its name with "_" for blanks."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from tests.simulation import mixed
from tests.simulation.parts import PARTS
from tests.simulation.world import World


def __getattr__(name: str) -> Callable[[World], Coroutine[Any, Any, Any]]:
    part = name.replace("_", " ")
    if part not in PARTS:
        raise AttributeError(name)

    async def scenario(world: World) -> Any:
        return await mixed.run(world, parts=[part])

    return scenario
