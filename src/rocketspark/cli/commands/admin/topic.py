"""`topic list|show|create|delete`: tables for people, JSON for scripts."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

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
from rocketspark.model.text import shown

if TYPE_CHECKING:
    from rich.table import Table

    from rocketspark.admin.cluster_client import BrokerState, TopicState
    from rocketspark.admin.operations import AsyncAdmin

T = TypeVar("T")

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
    mixed = "mixed"


app = typer.Typer(help="List, show, create and delete topics.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="The topic.", show_default=False)]


@app.command("list")
def list_(
    at: ClusterAccess = HERE,
    everything: Annotated[bool, typer.Option("--all", help="Also the topics that RocketMQ made for itself.")] = False,
    json: Json = False,
) -> None:
    """Print the names of all topics.

    Example: `rocketspark topic list --namesrv 127.0.0.1:9876`
    """

    async def ask(operations: AsyncAdmin) -> tuple[list[str], list[BrokerState]]:
        return await operations.list_topics(), await operations.cluster_info()

    topics, brokers = run_operation(at, ask)
    if not everything:
        topics = users_topics(topics, brokers)
    if json:
        print_json(topics)
    else:
        print("".join(f"{shown(topic)}\n" for topic in topics), end="")


def users_topics(topics: Iterable[str], brokers: Iterable[BrokerState]) -> list[str]:
    """Return the topics that users made: those that RocketMQ makes for itself, or for one of these brokers, are left
    out.
    """
    own = _OWN.union(*((b.cluster, b.broker_name, f"{b.cluster}_REPLY_TOPIC") for b in brokers))
    return [t for t in topics if t not in own and not t.startswith(_OWN_PREFIXES)]


@app.command()
def show(topic: Name, watch: Watch = None, at: ClusterAccess = HERE, json: Json = False) -> None:
    """Print a topic's queues: where they are, and which offsets they hold.

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
    told = {"topic": state.topic, "messages": state.message_count, "queues": queues}
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
    title = f"{state.topic}: {state.message_count:,} messages{kind}"
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
    """
    message_type = None if kind is None else kind.value.upper()
    made = run_operation(
        at,
        lambda operations: operations.create_topic(
            topic, queue_count=queues, message_type=message_type, force=force, **on.named()
        ),
    )
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
