"""`topic list|show|create|update|delete|list-lite|show-lite`: tables for people, JSON for scripts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from rocketspark.cli.operate import (
    ALL_MASTERS,
    Masters,
    Watch,
    Yes,
    confirm,
    listed,
    print_json,
    run_operation,
    run_watched,
    table,
)
from rocketspark.cli.options import HERE, ClusterAccess, Json
from rocketspark.cli.texts import clock, span
from rocketspark.model.text import shown
from rocketspark.protocol.topic_attributes import MESSAGE_TYPE

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table

    from rocketspark.admin.broker_states import TopicTraffic
    from rocketspark.admin.cluster_client import BrokerState, TopicMade, TopicState
    from rocketspark.admin.lite_topics import LiteTopicList, LiteTopicState
    from rocketspark.admin.operations import AsyncAdmin

# Topics that brokers make for themselves, beside those named after clusters and brokers.
_OWN = frozenset("TBW102 BenchmarkTest SELF_TEST_TOPIC OFFSET_MOVED_EVENT SCHEDULE_TOPIC_XXXX".split())
_OWN_PREFIXES = ("%RETRY%", "%DLQ%", "RMQ_SYS_", "rmq_sys_", "TRANS_CHECK_MAX_TIME_TOPIC", "SYNC_BROKER_MEMBER_")


class MessageType(StrEnum):
    """The types of messages that a topic can be made for."""

    normal = "normal"
    fifo = "fifo"
    delay = "delay"
    transaction = "transaction"
    priority = "priority"
    lite = "lite"
    mixed = "mixed"


class Perm(StrEnum):
    """What clients may do with a topic."""

    read = "read"
    write = "write"
    both = "both"


# By the number that brokers know it by.
PERMS = {4: "read", 2: "write", 6: "both"}

app = typer.Typer(help="List, show, create, change and delete topics.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="The topic.", show_default=False)]


@app.command("list")
def list_(
    at: ClusterAccess = HERE,
    everything: Annotated[bool, typer.Option("--all", help="Also the topics that RocketMQ made for itself.")] = False,
    details: Annotated[
        bool, typer.Option("--details", help="Queues, rates and groups too: two requests a topic and broker.")
    ] = False,
    watch: Watch = None,
    json: Json = False,
) -> None:
    """Print the names of all topics; with --details their queues, rates and groups.

    Example: `rocketspark topic list --namesrv 127.0.0.1:9876`

    Example: `rocketspark topic list --details --watch 5`
    """

    async def look(operations: AsyncAdmin) -> list[TopicTraffic]:
        found, brokers = await asyncio.gather(operations.topic_traffic(), operations.cluster_info())
        kept = {topic.topic for topic in found}
        if not everything:
            kept = set(users_topics(kept, brokers))
        return [topic for topic in found if topic.topic in kept]

    if details:
        run_watched(at, watch, look, json=json, told=lambda found: list(map(_details, found)), drawn=_details_table)
        return

    async def ask(operations: AsyncAdmin) -> list[str]:
        topics, brokers = await asyncio.gather(operations.list_topics(), operations.cluster_info())
        return topics if everything else users_topics(topics, brokers)

    def drawn(topics: list[str]) -> Group:
        from rich.console import Group
        from rich.text import Text

        return Group(*(Text(shown(topic)) for topic in topics))

    run_watched(at, watch, ask, json=json, told=lambda topics: topics, drawn=drawn)


def _details(topic: TopicTraffic) -> dict[str, Any]:
    return {
        "topic": topic.topic,
        "brokers": topic.brokers,
        "read_queues": topic.read_queues,
        "write_queues": topic.write_queues,
        "perm": topic.perm,
        "type": topic.message_type,
        "in_tps": topic.in_tps,
        "in_day": topic.in_day,
        "groups": topic.groups,
    }


def _details_table(found: list[TopicTraffic]) -> Table:
    numbers = ("read queues", "write queues", "in/s", "in a day")
    rows = (
        (
            topic.topic,
            ", ".join(topic.brokers),
            *(str(topic.read_queues), str(topic.write_queues), f"{topic.in_tps:,.1f}", f"{topic.in_day:,}"),
            *(PERMS.get(topic.perm, str(topic.perm)), topic.message_type, ", ".join(topic.groups)),
        )
        for topic in found
    )
    return table(("topic", "brokers", *numbers, "perm", "type", "groups"), rows, right=numbers)


def users_topics(topics: Iterable[str], brokers: Iterable[BrokerState]) -> list[str]:
    """Return the topics that users made: those that RocketMQ makes for itself, or for one of these brokers, are left
    out.
    """
    own = _OWN.union(*((b.cluster, b.broker_name, f"{b.cluster}_REPLY_TOPIC") for b in brokers))
    return [t for t in topics if t not in own and not t.startswith(_OWN_PREFIXES)]


@app.command()
def show(topic: Name, watch: Watch = None, at: ClusterAccess = HERE, json: Json = False) -> None:
    """Print a topic's attributes and its queues: where they are, and which offsets they hold.

    Example: `rocketspark topic show orders --json`

    Example: `rocketspark topic show orders --watch 2`
    """
    run_watched(
        at, watch, lambda operations: operations.show_topic(topic), json=json, told=_state_fields, drawn=_state_table
    )


def _state_fields(state: TopicState) -> dict[str, Any]:
    queues = [
        {
            "broker_name": q.queue.broker_name,
            "queue_id": q.queue.queue_id,
            "min_offset": q.min_offset,
            "max_offset": q.max_offset,
        }
        for q in state.queues
    ]
    told = {
        "topic": state.topic,
        "messages": state.message_count,
        "queues": queues,
        "attributes": state.attributes,
    }
    return told | {"type": state.message_type} if state.message_type else told


def _state_table(state: TopicState) -> Table:
    figures = ("queue", "oldest offset", "next offset", "messages")
    rows = (
        (
            q.queue.broker_name,
            *(f"{n:,}" for n in (q.queue.queue_id, q.min_offset, q.max_offset, q.message_count)),
        )
        for q in state.queues
    )
    kind = f", type {state.message_type}" if state.message_type else ""
    more = "".join(f", {name}={value}" for name, value in state.attributes.items() if name != MESSAGE_TYPE)
    title = f"{state.topic}: {state.message_count:,} messages{kind}{more}"
    return table(("broker", *figures), rows, right=figures, title=title)


@app.command()
def create(
    topic: Name,
    queues: Annotated[
        int | None,
        typer.Option("-q", "--queues", min=1, max=1024, help="Queues on each broker [default: 4 for a new topic]."),
    ] = None,
    kind: Annotated[
        MessageType | None,
        typer.Option("--type", help="What clients of RocketMQ 5 may send to it; mixed: everything [default: normal]."),
    ] = None,
    lite_expiration: Annotated[
        int | None,
        typer.Option(
            min=-1, max=43200, help="Minutes after its newest message in which a lite topic is removed; -1: never."
        ),
    ] = None,
    attributes: Annotated[str, typer.Option(help="Attributes: +name=value,-name.")] = "",
    on: Masters = ALL_MASTERS,
    force: Annotated[
        bool, typer.Option("--force", help="Also take queues away that hold messages: nobody can read them then.")
    ] = False,
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Create a topic on every broker; where it exists, change what is given here of its queues and type.

    Example: `rocketspark topic create orders --queues 8`

    Example: `rocketspark topic create payments --type fifo`

    Example: `rocketspark topic create prices --attributes +cleanup.policy=COMPACTION`

    Example: `rocketspark topic create chats --type lite --lite-expiration 60`
    """
    if lite_expiration is not None:
        attributes = ",".join(filter(None, (attributes, f"+lite.topic.expiration={lite_expiration}")))
    message_type = None if kind is None else kind.value.upper()
    made = run_operation(
        at,
        lambda operations: operations.create_topic(
            topic, queue_count=queues, message_type=message_type, attributes=attributes, force=force, **on.named()
        ),
    )
    _print_made(topic, made, message_type, json)


class Change(NamedTuple):
    """The options that say what is changed of a topic; what is not given stays."""

    read_queues: Annotated[
        int | None, typer.Option("--read-queues", min=1, max=1024, help="Queues to read, on each broker.")
    ] = None
    write_queues: Annotated[
        int | None, typer.Option("--write-queues", min=1, max=1024, help="Queues to write to, on each broker.")
    ] = None
    perm: Annotated[Perm | None, typer.Option("--perm", help="What clients may do with it: read, write, both.")] = None
    order: Annotated[bool | None, typer.Option("--order/--no-order", help="Its messages are in order.")] = None
    kind: Annotated[MessageType | None, typer.Option("--type", help="What clients of RocketMQ 5 may send.")] = None
    attributes: Annotated[str, typer.Option(help="Changes of attributes: +name=value,-name.")] = ""

    def fields(self) -> dict[str, Any]:
        """Return them as `update_topic` takes them. Raises BadParameter if nothing is given."""
        if self == Change():
            raise typer.BadParameter("nothing to change: give --read-queues, --perm or another option")
        perm = self.perm
        return {
            "read_queue_count": self.read_queues,
            "write_queue_count": self.write_queues,
            "perm": None if perm is None else next(number for number, word in PERMS.items() if word == perm.value),
            "order": self.order,
            "attributes": self.attributes,
            "message_type": None if self.kind is None else self.kind.value.upper(),
        }


@app.command()
def update(
    topic: Name,
    change: Change,
    broker: Annotated[list[str] | None, typer.Option(help="Only on this broker; may be repeated.")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also take queues away that hold messages: nobody can read them then.")
    ] = False,
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Change a topic on the brokers that have it: what is given here; all else stays.

    Example: `rocketspark topic update orders --read-queues 8 --write-queues 8`

    Example: `rocketspark topic update orders --perm read --broker broker-a`
    """
    fields = change.fields()
    made = run_operation(
        at, lambda operations: operations.update_topic(topic, **fields, brokers=broker or None, force=force)
    )
    _print_made(topic, made, fields["message_type"], json)


@app.command("create-static")
def create_static(
    topic: Name,
    at: ClusterAccess = HERE,
    queues: Annotated[int, typer.Option("-q", "--queues", min=1, help="Logical queues in all.")] = 4,
    cluster: Annotated[str | None, typer.Option(help="Only brokers of this cluster lead new queues.")] = None,
    broker: Annotated[
        list[str] | None,
        typer.Option("-b", "--broker", help="Only this broker leads new queues; may be repeated."),
    ] = None,
    json: Json = False,
) -> None:
    """Create a static topic, or give one more queues: a number of logical queues that stays while brokers come and go.

    Its queues are spread over brokers; what is there stays where it is. mqadmin's remappingStaticTopic moves them.

    Example: `rocketspark topic create-static ledger --queues 16`
    """
    made = run_operation(
        at, lambda operations: operations.create_static_topic(topic, queues, cluster=cluster, brokers=broker or None)
    )
    counts = Counter(made.leaders.values())
    if json:
        print_json({"topic": topic, "queues": made.queue_count, "epoch": made.epoch, "brokers": counts})
        return
    led = ", ".join(f"{count} on {shown(name)}" for name, count in sorted(counts.items()))
    print(f"static topic {shown(topic)} has {made.queue_count} queues: {led}")


def _print_made(topic: str, made: list[TopicMade], message_type: str | None, json: bool) -> None:
    counts = {b.broker_name: b.queue_count for b in made}
    if json:
        told: dict[str, object] = {
            "topic": topic,
            "queues": made[0].queue_count if len(set(counts.values())) == 1 else counts,
            "brokers": list(counts),
        }
        if existed := [b.broker_name for b in made if b.existed]:
            told["changed"] = existed
        print_json(told if message_type is None else told | {"type": message_type})
        return
    what = "" if message_type is None else f", type {message_type},"
    alike: dict[tuple[str, int], list[str]] = {}
    for b in made:
        word = "created" if not b.existed else "changed" if b.changed else "unchanged"
        alike.setdefault((word, b.queue_count), []).append(b.broker_name)
    for (word, count), names in alike.items():
        print(f"{word} {shown(topic)} with {count} queues{what} on {listed(names)}")


@app.command()
def delete(
    topic: Name,
    yes: Yes = False,
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Delete a topic, with its messages, on every broker.

    Example: `rocketspark topic delete orders --yes`
    """
    confirm(yes, f"Delete topic {shown(topic)} and its messages?", "the messages will be gone: confirm with --yes")
    names = run_operation(at, lambda operations: operations.delete_topic(topic))
    if json:
        print_json({"topic": topic, "brokers": names})
    else:
        print(f"deleted {shown(topic)} on {listed(names)}")


# -- lite topics -------------------------------------------------------------------------------------------------------


@app.command("list-lite")
def list_lite(
    topic: Name,
    contains: Annotated[str, typer.Option("--contains", help="Only those with this in their names.")] = "",
    after: Annotated[str, typer.Option("--after", help="Only those whose names come after this one.")] = "",
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many at most.")] = 100,
    watch: Watch = None,
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Print the lite topics of a topic, by name: messages, when each got the newest one, and how many subscribed.

    Example: `rocketspark topic list-lite chats --contains session`
    """
    run_watched(
        at,
        watch,
        lambda operations: operations.list_lite_topics(topic, part=contains, after=after, limit=limit),
        json=json,
        told=_lite_fields,
        drawn=_lite_table,
    )


def _lite_fields(found: LiteTopicList) -> dict[str, Any]:
    return {
        "topic": found.topic,
        "expiration_minutes": found.expiration_minutes,
        "groups": found.groups,
        "count": found.count,
        "lite_topics": found.topics,
        "more": found.more,
        "whole": found.is_whole,
    }


def _lite_table(found: LiteTopicList) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    figures = ("oldest offset", "next offset", "messages", "subscribers")
    rows = (
        (
            *(each.name, each.broker_name),
            *(f"{n:,}" for n in (each.min_offset, each.max_offset, each.max_offset - each.min_offset)),
            *(f"{each.subscribers:,}", clock(each.newest_ms) if each.newest_ms > 0 else ""),
        )
        for each in found.topics
    )
    kept = "never expire" if found.expiration_minutes < 1 else f"expire {span(found.expiration_minutes * 60_000)} after"
    after = "" if found.expiration_minutes < 1 else " the newest message"
    title = f"{found.topic}: {found.count:,} lite topics, which {kept}{after}; groups: {listed(found.groups) or 'none'}"
    parts: list[RenderableType] = [
        table(("lite topic", "broker", *figures, "newest message"), rows, right=figures, title=title)
    ]
    if found.more:
        parts.append(Text(f"more: --after {shown(found.topics[-1].name)}"))
    if not found.is_whole:
        parts.append(Text("some are missing: this broker tells only those that groups are behind in or subscribed to"))
    return Group(*parts)


@app.command("show-lite")
def show_lite(
    topic: Name,
    lite_topic: Annotated[str, typer.Argument(help="The lite topic.", show_default=False)],
    watch: Watch = None,
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Print a lite topic: its offsets, who subscribed to it, and how far each group is.

    Example: `rocketspark topic show-lite chats session-42`
    """
    run_watched(
        at,
        watch,
        lambda operations: operations.show_lite_topic(topic, lite_topic),
        json=json,
        told=lambda found: found,
        drawn=_lite_state,
    )


def _lite_state(found: list[LiteTopicState]) -> Group:
    from rich.console import Group

    parts: list[RenderableType] = []
    for each in found:
        newest = f", the newest of {clock(each.newest_ms)}" if each.newest_ms > 0 else ""
        offsets = f"offsets {each.min_offset:,} to {each.max_offset:,}{newest}"
        title = f"{each.name} of {each.topic} on {each.broker_name}: {offsets}"
        groups = (
            (
                *(g.group, "" if g.offset is None else f"{g.offset:,}", "" if g.lag is None else f"{g.lag:,}"),
                clock(g.waiting_since_ms) if g.waiting_since_ms > 0 else "",
            )
            for g in each.groups
        )
        parts.append(
            table(("group", "next offset", "lag", "waits since"), groups, right=("next offset", "lag"), title=title)
        )
        parts.append(table(("group", "client"), ((s.group, s.client_id) for s in each.subscribers)))
    return Group(*parts)
