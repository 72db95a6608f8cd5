"""More of what clients and operators do, each part with its values, its rules and its planted defects.

Rule: a part has topics and groups of its own, whose names begin with "p-"; `mixed` draws which parts a seed has.
"""

from __future__ import annotations

from tests.simulation.parts import (
    batched,
    compacted,
    dead_letters,
    light,
    lite,
    once,
    ordered,
    resets,
    tiered,
    topics,
    urgent,
    users,
)
from tests.simulation.parts.part import Part

PARTS: dict[str, Part] = {
    "batched": batched.PART,
    "compacted": compacted.PART,
    "dead letters": dead_letters.PART,
    "light": light.PART,
    "lite": lite.PART,
    "objects": tiered.OBJECTS,
    "once": once.PART,
    "ordered": ordered.PART,
    "resets": resets.PART,
    "tiered": tiered.PART,
    "topics": topics.PART,
    "urgent": urgent.PART,
    "users": users.PART,
}
