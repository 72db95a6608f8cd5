"""The list of topics: searched, sorted, a part at a time. Rule: one question to each broker, however many there are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

from starlette.responses import Response

from rocketspark.admin.broker_states import TopicTraffic
from rocketspark.console.call import Call, together
from rocketspark.console.routes import page

ROWS = 50
KINDS = (("user", "Own topics"), ("retry", "Retry topics"), ("dead", "Dead letters"), ("system", "System topics"))
# Names that RocketMQ's servers make by themselves.
SYSTEM_PREFIXES = ("%SYS%", "rmq_sys_", "RMQ_SYS_", "SCHEDULE_TOPIC_", "TBW102", "SELF_TEST_TOPIC", "BenchmarkTest")
SYSTEM_NAMES = frozenset(("OFFSET_MOVED_EVENT", "TRANS_CHECK_MAX_TIME_TOPIC", "DefaultHeartBeatSyncerTopic"))
PERMS = {6: "read, write", 4: "read only", 2: "write only"}


class TopicRow(NamedTuple):
    """A topic as a row of the list. `may`: its permissions in words."""

    of: TopicTraffic
    kind: str
    may: str


SORTS: dict[str, Callable[[TopicRow], Any]] = {
    "name": lambda row: row.of.topic,
    "queues": lambda row: (-row.of.write_queues, row.of.topic),
    "type": lambda row: (row.of.message_type, row.of.topic),
}


def kind_of(topic: str, names: Collection[str]) -> str:
    """Return what a topic is for: user, retry, dead or system. `names`: those of clusters and brokers."""
    if topic.startswith("%RETRY%"):
        return "retry"
    if topic.startswith("%DLQ%"):
        return "dead"
    is_system = topic.startswith(SYSTEM_PREFIXES) or topic.endswith("_REPLY_TOPIC") or topic in SYSTEM_NAMES
    return "system" if is_system or topic in names else "user"


def rows_of(found: Iterable[TopicTraffic], names: Collection[str]) -> list[TopicRow]:
    """Return the rows of the list."""
    return [TopicRow(each, kind_of(each.topic, names), PERMS.get(each.perm & 6, "nothing")) for each in found]


async def all_topics(call: Call) -> list[TopicTraffic]:
    """Return all topics, with their settings alone."""
    return await call.read("topic_traffic", lambda admin: admin.topic_traffic(rates=False, groups=False), 5.0)


async def topics(call: Call) -> Response:
    """The topics of the cluster, or the part of the list that htmx asks for."""
    known, brokers = await together(all_topics(call), call.read("cluster_info", lambda admin: admin.cluster_info()))
    rows = rows_of(known, {name for broker in brokers for name in (broker.cluster, broker.broker_name)})
    kind, text, sort = call.query("kind", "user"), call.query("q").strip(), call.query("sort", "name")
    counts = {each: sum(1 for row in rows if row.kind == each) for each, _ in KINDS}
    found = [row for row in rows if row.kind == kind and text.lower() in row.of.topic.lower()]
    found.sort(key=SORTS.get(sort, SORTS["name"]))
    here, number, pages = call.paged(found, ROWS)
    values: dict[str, Any] = {
        "rows": here,
        "count": len(found),
        "kinds": KINDS,
        "counts": counts,
        "kind": kind,
        "text": text,
        "sort": sort,
        "number": number,
        "pages": pages,
    }
    if call.wants_part():
        return call.part("topics_part.html", **values)
    return call.page("topics.html", **values)


ROUTES = [page("/topics", topics)]
