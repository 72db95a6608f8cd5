"""Permissions on topics and groups in access control 1.0. Rule: whatever is not known is a refusal, as in RocketMQ.

A group is held by the name of its retry topic, so that both names mean one thing.
"""

from __future__ import annotations

from collections.abc import Iterable

from rocketspark.errors import ConfigError
from rocketspark.model.text import shown, string_hash

DENY, ANY, PUB, SUB = 1, 2, 4, 8
_BY_TEXT = {"PUB": PUB, "SUB": SUB, "PUB|SUB": PUB | SUB, "SUB|PUB": PUB | SUB, "DENY": DENY}
RETRY_PREFIX = "%RETRY%"
# Requests that only an admin account may send (rule: Permission.ADMIN_CODE).
ADMIN_CODES = frozenset({17, 25, 215, 200, 207})
# Requests of the same weight that RocketMQ lets everybody send who can sign: the rules themselves, topics and groups by
# lists, static topics, offsets of whole groups, how a group's queues are shared out, cold data, the timer's engine, the
# users and rules of access control 2.0, with their passwords.
MORE_ADMIN_CODES = frozenset(
    {
        18,
        27,
        50,
        51,
        53,
        54,
        222,
        225,
        306,
        314,
        316,
        323,
        329,
        353,
        401,
        513,
        2001,
        2002,
        2004,
        5001,
        *range(3001, 3011),
    }
)


def permission(text: str | None) -> int:
    """Return the bits of a permission's text; DENY for none and for an unknown one."""
    return _BY_TEXT.get((text or "").strip(), DENY)


def is_permission(text: str) -> bool:
    """Return whether a permission's text means something."""
    return text.strip() in _BY_TEXT


def allows(needed: int, owned: int) -> bool:
    """Return whether what is owned lets through what is needed (rule: checkPermission)."""
    if owned & DENY:
        return False
    if needed & ANY:
        return bool(owned & (PUB | SUB))
    return bool(needed & owned)


def resource_permission(text: str) -> tuple[str, str]:
    """Return name and permission's text of "name=permission". Raises ConfigError."""
    items = [item for item in text.split("=") if item]
    if len(items) != 2:
        raise ConfigError(f"{shown(text, characters_max=80)!r}: name=permission is needed, such as orders=PUB|SUB")
    return items[0].strip(), items[1].strip()


def retry_topic(group: str) -> str:
    """Return the name by which a group is held."""
    return RETRY_PREFIX + group


def in_java_order(names: Iterable[str]) -> list[str]:
    """Return the names in the order of a Java HashMap: it decides which of two refusals is told."""
    ordered = list(dict.fromkeys(names))
    slots = 16
    while len(ordered) > slots * 3 // 4:
        slots *= 2

    def slot(name: str) -> int:
        code = string_hash(name) & 0xFFFFFFFF
        return (code ^ (code >> 16)) & (slots - 1)

    return sorted(ordered, key=slot)


def told(resource: str) -> str:
    """Return how a remark names a resource: "topic:orders" or "group:billing"."""
    if not resource.startswith(RETRY_PREFIX):
        return f"topic:{resource}"
    # A retry topic of pops names the topic after a "+".
    parts = resource.rstrip("+").split("+")
    name = parts[0] if len(parts) == 2 else resource
    return f"group:{name[len(RETRY_PREFIX) :]}"
