"""`delayed list`: messages that wait for their time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rocketspark import machine
from rocketspark.cli.operate import Watch, run_watched, table
from rocketspark.cli.options import HERE, ClusterAccess, Json
from rocketspark.cli.stored_messages import when
from rocketspark.cli.texts import span

if TYPE_CHECKING:
    from rocketspark.admin.messages.waiting import DelayedMessages

app = typer.Typer(help="Show messages that wait for their time.", no_args_is_help=True)


@app.command("list")
def list_(
    broker: Annotated[str | None, typer.Option("-b", "--broker", help="Only this broker's.")] = None,
    scan_max: Annotated[
        int,
        typer.Option(min=1, max=10_000_000, help="Read so many messages of a broker at most, for topics and times."),
    ] = 10_000,
    watch: Watch = None,
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Print how many messages wait for their time: by delay level and by topic, and when they are due.

    Brokers count the messages of delay levels by level, and timer messages by topic; the rest is read of their queues.

    Example: `rocketspark delayed list --watch 5`
    """
    run_watched(
        at,
        watch,
        lambda operations: operations.list_delayed(broker=broker, scan_max=scan_max),
        json=json,
        told=_told,
        drawn=_drawn,
    )


def _told(found: DelayedMessages) -> dict[str, Any]:
    due = [{"minute_ms": minute_ms, "messages": count} for minute_ms, count in found.due.items()]
    return {"levels": found.levels, "topics": found.topics, "due": due, "whole": found.whole}


def _drawn(found: DelayedMessages) -> Any:
    from rich.console import Group

    if not found.topics and not found.levels:
        return "no message waits for its time"
    now_ms = int(machine.time() * 1000)

    def due(ms: int) -> str:
        return "?" if ms < 0 else f"{when(ms)} (in {span(max(0, ms - now_ms))})"

    levels = [
        (x.broker_name, str(x.level), span(x.delay_ms), f"{x.waiting:,}", due(x.next_due_ms)) for x in found.levels
    ]
    topics = [
        (x.broker_name, x.topic, x.kind, f"{x.waiting:,}", due(x.next_due_ms), due(x.last_due_ms)) for x in found.topics
    ]
    parts: list[Any] = []
    if levels:
        parts.append(table(("broker", "level", "delay", "waiting", "next due"), levels, right=("level", "waiting")))
    if topics:
        columns = ("broker", "to topic", "by", "waiting", "next due", "last due")
        parts.append(table(columns, topics, right=("waiting",)))
    if not found.whole:
        parts.append("not all were read: topics and times are those of the messages read (--scan-max)")
    return Group(*parts)
