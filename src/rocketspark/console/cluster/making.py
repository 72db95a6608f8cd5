"""Which topic of a name a confirmation described. Rule: what was described is changed, or nothing."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

from rocketspark.errors import RouteNotFound, ServerError
from rocketspark.model import typed_json

if TYPE_CHECKING:
    from rocketspark.console.cluster.view import ClusterView


class _Made(msgspec.Struct, array_like=True):
    """`made_at`: of our brokers alone, rises when the topic is made anew; `ends`: of its queues, which never fall."""

    made_at: int
    ends: dict[int, int]


async def of_topic(view: ClusterView, topic: str) -> str:
    """Return what tells a topic from one of its name that is made later; "" if there is none, or the user may not look
    at it.
    """
    try:
        stats = await view.ask(lambda admin: admin.topic_stats(topic))
        made = await view.ask(lambda admin: admin.topic_making(topic))
    except (RouteNotFound, ServerError):
        return ""
    ends: dict[str, dict[int, int]] = defaultdict(dict)
    for each in stats.queues:
        ends[each.queue.broker_name][each.queue.queue_id] = each.max_offset
    found = {name: _Made(made.get(name, -1), ends[name]) for name in sorted({*made, *ends})}
    return msgspec.json.encode(found).decode()


def is_another(described: str, now: str) -> bool:
    """Tell whether the topic that was described is gone, or there is another one of its name."""
    if not described:
        return bool(now)
    try:
        before = _decoded(described)
    except msgspec.MsgspecError:
        return True
    after = _decoded(now) if now else {}
    return any(name not in after or _is_another(made, after[name]) for name, made in before.items())


def _decoded(text: str) -> dict[str, _Made]:
    return typed_json.decode(text, dict[str, _Made])


def _is_another(before: _Made, after: _Made) -> bool:
    fell = any(after.ends.get(queue_id, end) < end for queue_id, end in before.ends.items())
    return fell or after.made_at != before.made_at
