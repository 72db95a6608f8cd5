"""More of what clients and operators do, each part with its values, its rules and its planted defects.

Rule: a part has topics and groups of its own, whose names begin with "p-"; `mixed` draws which parts a seed has.
"""

from __future__ import annotations

from tests.simulation.parts import dead_letters, once, ordered, resets, topics, users
from tests.simulation.parts.part import Part

PARTS: dict[str, Part] = {
    "dead letters": dead_letters.PART,
    "once": once.PART,
    "ordered": ordered.PART,
    "resets": resets.PART,
    "topics": topics.PART,
    "users": users.PART,
}
