"""`cluster show|top`: the brokers of a cluster, and what moves on them."""

from __future__ import annotations

import asyncio
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rocketspark.cli.operate import Watch, run_watched, table
from rocketspark.cli.options import HERE, ClusterAccess, Json

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from rocketspark.admin.broker_states import BrokerFigures, GroupTraffic, ReplicaSet, TopicTraffic
    from rocketspark.admin.operations import AsyncAdmin

TOP_EVERY_S = 2.0


class Order(StrEnum):
    """By what `cluster top` orders groups."""

    lag = "lag"
    rate = "rate"


app = typer.Typer(help="Show a cluster's brokers, and its busiest topics and groups.", no_args_is_help=True)
Cluster = Annotated[str | None, typer.Option("-c", "--cluster", help="Only this cluster.", show_default=False)]


@app.command()
def show(cluster: Cluster = None, watch: Watch = None, at: ClusterAccess = HERE, json: Json = False) -> None:
    """Print all brokers: roles, versions, rates, disks, and under a controller epochs and who is in sync.

    Exit code 1 if no broker answered.

    Example: `rocketspark cluster show --watch 2`
    """
    from rocketspark.errors import RocketSparkError

    last: list[BrokerFigures] = []

    async def ask(operations: AsyncAdmin) -> tuple[list[BrokerFigures], dict[str, ReplicaSet]]:
        states, sets = await asyncio.gather(operations.broker_states(cluster), operations.replica_sets())
        last[:] = states
        return states, sets

    def told(found: tuple[list[BrokerFigures], dict[str, ReplicaSet]]) -> list[dict[str, Any]]:
        return [_fields(state, found[1].get(state.broker_name)) for state in found[0]]

    run_watched(at, watch, ask, json=json, told=told, drawn=lambda found: _brokers(told(found)))
    if all(state.error for state in last):
        which = "no broker" if cluster is None else f"no broker of cluster {cluster!r}"
        raise RocketSparkError(f"no broker answered: {last[0].error if last else f'the NameServer knows {which}'}")


def _fields(state: BrokerFigures, replicas: ReplicaSet | None) -> dict[str, Any]:
    mine = next((one for one in replicas.replicas if one.address == state.address), None) if replicas else None
    return {
        "cluster": state.cluster,
        "broker_name": state.broker_name,
        "broker_id": state.broker_id,
        "role": state.role,
        "address": state.address,
        "version": state.version,
        "active": state.active,
        "in_tps": state.in_tps,
        "out_tps": state.out_tps,
        "in_today": state.in_today,
        "out_today": state.out_today,
        "disk_used": state.disk_used,
        "oldest_ms": state.oldest_ms,
        "epoch": replicas.master_epoch if replicas else None,
        "in_sync": mine.in_sync if mine else None,
        "error": state.error,
    }


def _brokers(rows: list[dict[str, Any]]) -> Table:
    import time

    numbers = ("id", "in/s", "out/s", "in today", "out today", "disk", "oldest", "epoch")
    columns = ("cluster", "broker", *numbers[:1], "role", "address", "version", *numbers[1:], "in sync", "state")
    now_ms = time.time() * 1000
    drawn = []
    for row in rows:
        place = (row["cluster"], row["broker_name"], str(row["broker_id"]), row["role"], row["address"])
        if row["error"]:
            drawn.append((*place, *[""] * 9, row["error"]))
            continue
        drawn.append(
            (
                *(*place, row["version"]),
                *(f"{row['in_tps']:,.1f}", f"{row['out_tps']:,.1f}", f"{row['in_today']:,}", f"{row['out_today']:,}"),
                f"{row['disk_used']:.0%}",
                "" if row["oldest_ms"] < 0 else f"{max(0.0, now_ms - row['oldest_ms']) / 3_600_000:,.1f} h",
                "" if row["epoch"] is None else str(row["epoch"]),
                {None: "", True: "yes", False: "no"}[row["in_sync"]],
                {None: "up", True: "up", False: "not active"}[row["active"]],
            )
        )
    return table(columns, drawn, right=numbers)


@app.command()
def top(
    cluster: Cluster = None,
    count: Annotated[int, typer.Option("--count", min=1, max=10_000, help="So many topics and groups.")] = 20,
    order: Annotated[Order, typer.Option("--by", help="What groups are ordered by.")] = Order.lag,
    watch: Watch = None,
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Print the busiest topics, and the groups that lag most; on a terminal anew every 2 s, until Ctrl-C.

    Example: `rocketspark cluster top --count 10`

    Example: `rocketspark cluster top --by rate --json`
    """
    if watch is None and not json and sys.stdout.isatty():
        watch = TOP_EVERY_S

    async def ask(operations: AsyncAdmin) -> tuple[list[TopicTraffic], list[GroupTraffic]]:
        topics, groups = await asyncio.gather(
            operations.topic_traffic(cluster=cluster, groups=False), operations.group_traffic(cluster=cluster)
        )
        topics.sort(key=lambda topic: (-topic.in_tps, -topic.in_day))
        groups.sort(key=lambda g: (-g.lag, -g.out_tps) if order is Order.lag else (-g.out_tps, -g.lag))
        return [topic for topic in topics if topic.in_day][:count], groups[:count]

    run_watched(at, watch, ask, json=json, told=_busiest, drawn=lambda found: _busiest_tables(*found))


def _busiest(found: tuple[list[TopicTraffic], list[GroupTraffic]]) -> dict[str, Any]:
    topics, groups = found
    return {
        "topics": [
            {"topic": one.topic, "in_tps": one.in_tps, "in_day": one.in_day, "queues": one.read_queues}
            for one in topics
        ],
        "groups": [
            {
                "group": one.group,
                "topic": one.topic,
                "lag": one.lag,
                "in_flight": one.in_flight,
                "out_tps": one.out_tps,
            }
            for one in groups
        ],
    }


def _busiest_tables(topics: list[TopicTraffic], groups: list[GroupTraffic]) -> Group:
    from rich.console import Group

    of_topics, of_groups = ("in/s", "in a day", "queues"), ("lag", "in flight", "out/s")
    return Group(
        table(
            ("topic", *of_topics),
            ((one.topic, f"{one.in_tps:,.1f}", f"{one.in_day:,}", str(one.read_queues)) for one in topics),
            right=of_topics,
        ),
        table(
            ("group", "topic", *of_groups),
            ((g.group, g.topic, f"{g.lag:,}", f"{g.in_flight:,}", f"{g.out_tps:,.1f}") for g in groups),
            right=of_groups,
        ),
    )
