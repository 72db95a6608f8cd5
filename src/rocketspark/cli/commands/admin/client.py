"""`client list|show|show-lite`: producers and consumers that are connected, and what one of them is doing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rocketspark.cli.operate import Watch, run_watched, table
from rocketspark.cli.options import HERE, ClusterAccess, Json
from rocketspark.cli.texts import clock, counted
from rocketspark.model.text import shown

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table

    from rocketspark.admin.clients import (
        ClientDetails,
        ClientState,
        ConsumerState,
        PoppedQueue,
        ReadQueue,
        TopicRates,
    )
    from rocketspark.admin.lite_topics import LiteClientState


class Role(StrEnum):
    """What a client does in a group."""

    consumer = "consumer"
    producer = "producer"


app = typer.Typer(help="List and show connected clients.", no_args_is_help=True)


@app.command("list")
def list_(
    role: Annotated[
        Role | None, typer.Option("--role", show_default=False, help="Only consumers, or producers.")
    ] = None,
    group: Annotated[
        list[str] | None, typer.Option("-g", "--group", show_default=False, help="Only of this group; may be repeated.")
    ] = None,
    watch: Watch = None,
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Print the clients that are connected to a cluster's brokers, one row for each of their groups.

    Example: `rocketspark client list --role consumer`
    """
    wanted = None if role is None else role.value
    run_watched(
        at,
        watch,
        lambda operations: operations.list_clients(groups=group or None, role=wanted),
        json=json,
        told=list,
        drawn=_clients_table,
    )


def _clients_table(found: Sequence[ClientState]) -> Table:
    rows = ((c.client_id, c.role, c.group, c.address, c.language, c.version, ", ".join(c.brokers)) for c in found)
    return table(("client", "role", "group", "address", "language", "version", "brokers"), rows)


@app.command()
def show(
    client: Annotated[str, typer.Argument(metavar="ID", help="The client's id.", show_default=False)],
    group: Annotated[
        str | None, typer.Option("-g", "--group", show_default=False, help="Only in this group, which is found faster.")
    ] = None,
    stacks: Annotated[bool, typer.Option("--stacks", help="Also the stacks of its threads.")] = False,
    watch: Watch = None,
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Print a client's groups, and what it tells of itself where it consumes: settings, subscriptions, queues, rates.

    Example: `rocketspark client show 10.0.0.7@4711 --stacks`
    """
    run_watched(
        at,
        watch,
        lambda operations: operations.show_client(client, group=group, stacks=stacks),
        json=json,
        told=_details_fields,
        drawn=_details_text,
    )


def _details_fields(found: ClientDetails) -> dict[str, Any]:
    return {
        "client_id": found.client_id,
        "groups": found.groups,
        "consumers": [_consumer_fields(c) for c in found.consumers],
        "silent": found.silent,
    }


def _consumer_fields(consumer: ConsumerState) -> dict[str, Any]:
    import msgspec

    def flat(value: Any) -> dict[str, Any]:
        fields = msgspec.structs.asdict(value)
        return {**msgspec.structs.asdict(fields.pop("queue")), **fields}

    told = {
        "group": consumer.group,
        "properties": consumer.properties,
        "subscriptions": consumer.subscriptions,
        "queues": [flat(q) for q in consumer.queues],
        "popped": [flat(q) for q in consumer.popped],
        "topics": consumer.topics,
    }
    return told if consumer.stacks is None else told | {"stacks": consumer.stacks}


def _details_text(found: ClientDetails) -> RenderableType:
    from rich.console import Group

    return Group(_clients_table(found.groups), *(part for c in found.consumers for part in _parts(c)), *_silent(found))


def _silent(found: ClientDetails) -> Iterator[RenderableType]:
    from rich.text import Text

    for group, why in found.silent.items():
        yield Text(f"group {shown(group)}: it tells nothing of itself: {shown(why, characters_max=1000)}")


def _parts(consumer: ConsumerState) -> Iterator[RenderableType]:
    """Yield what a consumer tells, part by part."""
    from rich.text import Text

    yield table(("setting", "value"), consumer.properties.items(), title=f"group {consumer.group}")
    subscribed = ((s.topic, s.expression_type, s.expression) for s in consumer.subscriptions)
    yield table(("topic", "kind", "expression"), subscribed, title="subscriptions")
    if consumer.queues:
        yield _queues_table(consumer.queues)
    if consumer.popped:
        yield _popped_table(consumer.popped)
    if consumer.topics:
        yield _rates_table(consumer.topics)
    if consumer.stacks is not None:
        yield Text("\n".join(shown(line, characters_max=1000) for line in consumer.stacks.splitlines()))


def _queues_table(queues: Sequence[ReadQueue]) -> Table:
    figures = ("queue", "consumed to", "fetched", "MiB")
    rows = (
        (
            *(q.queue.topic, q.queue.broker_name, str(q.queue.queue_id)),
            *(f"{q.commit_offset:,}", f"{q.cached_count:,}", f"{q.cached_mib:,}"),
            *(_clock(q.last_pull_ms), _clock(q.last_consume_ms)),
            "left" if q.dropped else "locked" if q.locked else "",
        )
        for q in queues
    )
    columns = ("topic", "broker", *figures, "last pull", "last consumed", "state")
    return table(columns, rows, right=figures, title=f"reads {counted(len(queues), 'queue')}")


def _popped_table(queues: Sequence[PoppedQueue]) -> Table:
    figures = ("queue", "not acknowledged")
    rows = (
        (
            *(q.queue.topic, q.queue.broker_name, str(q.queue.queue_id), f"{q.unacknowledged:,}"),
            *(_clock(q.last_pop_ms), "left" if q.dropped else ""),
        )
        for q in queues
    )
    columns = ("topic", "broker", *figures, "last pop", "state")
    return table(columns, rows, right=figures, title=f"pops {counted(len(queues), 'queue')}")


def _rates_table(topics: Sequence[TopicRates]) -> Table:
    figures = ("pulled/s", "pull ms", "consumed/s", "failed/s", "consume ms", "failed in an hour")
    rows = (
        (
            t.topic,
            *(f"{n:.2f}" for n in (t.pull_tps, t.pull_ms, t.consumed_tps, t.failed_tps, t.consume_ms)),
            f"{t.failed_in_hour:,}",
        )
        for t in topics
    )
    return table(("topic", *figures), rows, right=figures, title="rates")


def _clock(ms: int) -> str:
    return clock(ms) if ms else ""


@app.command("show-lite")
def show_lite(
    group: Annotated[str, typer.Argument(help="The consumer group.", show_default=False)],
    client: Annotated[str, typer.Argument(metavar="ID", help="The client's id.", show_default=False)],
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many names of a broker at most.")] = 1000,
    watch: Watch = None,
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Print which lite topics a client subscribed to, and when it last asked for messages.

    Example: `rocketspark client show-lite agents 10.0.0.7@4711#1`
    """
    run_watched(
        at,
        watch,
        lambda operations: operations.show_lite_client(group, client, limit=limit),
        json=json,
        told=lambda found: found,
        drawn=_lite_tables,
    )


def _lite_tables(found: Sequence[LiteClientState]) -> Group:
    from rich.console import Group

    def of_broker(each: LiteClientState) -> Table:
        seen = f", asked for messages at {clock(each.seen_ms)}" if each.seen_ms > 0 else ""
        few = f" ({len(each.names):,} shown)" if len(each.names) < each.count else ""
        title = f"{each.broker_name}: {counted(each.count, 'lite topic')} of {each.topic}{few}{seen}"
        return table(("lite topic",), ((name,) for name in each.names), title=title)

    return Group(*map(of_broker, found))
