"""One topic: its queues, rate, groups, and settings with what they mean; its lite topics, where it has some."""

from __future__ import annotations

from typing import Any, NamedTuple

from starlette.responses import Response

from rocketspark.admin.broker_states import GroupTraffic, TopicStats
from rocketspark.admin.lite_topics import LiteGroupLag
from rocketspark.console.call import Call, Failed, together
from rocketspark.console.cluster.sampler import lags
from rocketspark.console.pages.topics import PERMS
from rocketspark.console.routes import page
from rocketspark.errors import RouteNotFound
from rocketspark.protocol import topic_attributes
from rocketspark.protocol.json.bodies import TopicConfig

ROWS = 100
# Lite topics on a page, and of a group those in which it is farthest behind.
LITE_ROWS, LITE_BEHIND = 50, 10
GROUPS_MAX = 20
MEANINGS = {
    "message.type": "What clients of RocketMQ 5 may send: NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY, LITE or MIXED",
    "queue.type": "How queues are kept: SimpleCQ, a unit for each message; BatchCQ, one for each batch sent",
    "cleanup.policy": "What goes of old messages: DELETE by age, COMPACTION keeps the newest of each key",
    "lite.topic.expiration": "Minutes after its newest message in which a lite topic is removed; -1: never",
    "reserve.time": "How long the second tier keeps messages, ms; -1: as long as the broker says",
}


class SettingRow(NamedTuple):
    """A setting of a topic. `by_broker`: by broker, one where all have the same."""

    name: str
    by_broker: tuple[tuple[str, str], ...]
    meaning: str


async def topic(call: Call) -> Response:
    """The page of a topic."""
    name = call.query("name")
    stats, configs, groups = await together(
        call.read(("topic_stats", name), lambda admin: admin.topic_stats(name)),
        call.read(("topic_configs", name), lambda admin: admin.topic_configs(name)),
        call.attempt(readers(call, name)),
    )
    if not configs:
        raise RouteNotFound(name)
    queues, number, pages = call.paged(stats.queues, ROWS)
    return call.page(
        "topic.html",
        name=name,
        stats=stats,
        messages=count_of(stats),
        newest_ms=max((queue.last_update_ms for queue in stats.queues), default=0),
        queues=queues,
        number=number,
        pages=pages,
        groups=groups,
        failed=isinstance(groups, Failed),
        settings=setting_rows(configs),
        is_compacted=any(topic_attributes.is_compacted(c.attributes) for c in configs.values()),
        has_lite=any(topic_attributes.is_lite(c.attributes) for c in configs.values()),
        can_send=any(config.perm & 2 for config in configs.values()) and not name.startswith("%DLQ%"),
    )


def count_of(stats: TopicStats) -> int:
    """Return how many messages the queues hold."""
    return sum(queue.max_offset - queue.min_offset for queue in stats.queues)


async def readers(call: Call, name: str) -> list[GroupTraffic]:
    """Return the groups that read a topic, those without offsets too."""
    asked = call.read(("groups_of", name), lambda admin: admin.list_groups(name))
    known, names = await together(lags(call.view), asked)
    found = {group.group: group for group in known if group.topic == name}
    return [found.get(group) or GroupTraffic(group, name, 0, 0, 0.0) for group in sorted({*names, *found})]


def setting_rows(configs: dict[str, TopicConfig]) -> list[SettingRow]:
    """Return the settings of a topic, with what each means."""

    def row(name: str, meaning: str, values: dict[str, str]) -> SettingRow:
        same = len(set(values.values())) == 1 and len(values) == len(configs)
        shown = (("", next(iter(values.values()))),) if same else tuple(sorted(values.items()))
        return SettingRow(name, shown, meaning)

    def each(value: str) -> dict[str, str]:
        return {broker: str(getattr(config, value)) for broker, config in configs.items()}

    perms = {broker: PERMS.get(config.perm & 6, "nothing") for broker, config in configs.items()}
    found = [
        row("Queues to read", "From how many queues of each broker consumers read", each("read_queue_nums")),
        row("Queues to write", "To how many queues of each broker producers send", each("write_queue_nums")),
        row("Permissions", "What clients may do with it", perms),
        row("Ordered", "The NameServer keeps the queues' order for ordered consumers", each("order")),
        row("Filter", "SINGLE_TAG: a message has one tag at most", each("topic_filter_type")),
    ]
    for name in sorted({name for config in configs.values() for name in config.attributes}):
        values = {broker: config.attributes[name] for broker, config in configs.items() if name in config.attributes}
        found.append(row(name, MEANINGS.get(name, ""), values))
    return found


# -- lite topics -------------------------------------------------------------------------------------------------------


async def lite_list(call: Call) -> Response:
    """The lite topics of a topic, and how far its groups are behind in them."""
    name, text, after = call.query("name"), call.query("q").strip(), call.query("after")
    found = await call.read(
        ("lite_topics", name, text, after),
        lambda admin: admin.list_lite_topics(name, part=text, after=after, limit=LITE_ROWS),
    )
    values: dict[str, Any] = {"name": name, "text": text, "after": after, "found": found}
    if call.wants_part():
        return call.part("lite_topics_part.html", **values)
    groups = found.groups[:GROUPS_MAX]
    lags = await together(*(call.attempt(_lite_lag(call, group)) for group in groups))
    rows = [(group, lag, isinstance(lag, Failed)) for group, lag in zip(groups, lags, strict=True)]
    return call.page("lite_topics.html", **values, groups=rows)


async def _lite_lag(call: Call, group: str) -> LiteGroupLag:
    return await call.read(("lite_lag", group), lambda admin: admin.lite_group_lag(group, limit=LITE_BEHIND))


async def lite_topic(call: Call) -> Response:
    """One lite topic: its offsets, its subscribers, and how far each group is."""
    name, lite = call.query("name"), call.query("lite")
    states = await call.read(("lite_topic", name, lite), lambda admin: admin.show_lite_topic(name, lite))
    return call.page("lite_topic.html", name=name, lite=lite, states=states, shown_max=ROWS)


ROUTES = [page("/topic", topic), page("/topic/lite", lite_list), page("/topic/lite/one", lite_topic)]
