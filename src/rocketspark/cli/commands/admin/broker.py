"""`broker show|show-lite|config|stats|counter`: a broker's state and settings; `broker` without them runs one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rocketspark.cli.operate import (
    Watch,
    Yes,
    confirm,
    listed,
    print_json,
    print_table,
    run_operation,
    run_watched,
    table,
)
from rocketspark.cli.options import HERE, ClusterAccess, Json
from rocketspark.model.text import shown

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from rocketspark.admin.broker_states import BrokerFigures, ReplicaSet, ReplicationState, SettingState
    from rocketspark.admin.lite_topics import LiteBrokerState
    from rocketspark.admin.operations import AsyncAdmin
    from rocketspark.client.connection.broker_api import Counter

app = typer.Typer()
Name = Annotated[
    str, typer.Argument(help="Its name, for the master; name:id; or host:port.", show_default=False, metavar="BROKER")
]


class Act(StrEnum):
    """What `broker config` does."""

    get = "get"
    set = "set"


@app.command()
def show(broker: Name, watch: Watch = None, at: ClusterAccess = HERE, json: Json = False) -> None:
    """Print a broker's state: version, rates, disk, replicas, epochs.

    Example: `rocketspark broker show broker-a`

    Example: `rocketspark broker show broker-a:1 --json`
    """

    async def ask(operations: AsyncAdmin) -> dict[str, Any]:
        state = await operations.broker_info(broker)
        replication = await operations.replication(state.address)
        epochs = await operations.broker_epochs(state.address)
        sets = await operations.replica_sets([state.broker_name])
        clients = [one for one in await operations.list_clients() if state.broker_name in one.brokers]
        listed = [] if epochs is None else epochs.epoch_list
        return _state(state, replication, sets.get(state.broker_name)) | {
            "producers": len({one.client_id for one in clients if one.role == "producer"}),
            "consumers": len({one.client_id for one in clients if one.role == "consumer"}),
            "epochs": [{"epoch": e.epoch, "start": e.start_offset} for e in listed],
        }

    run_watched(at, watch, ask, json=json, told=lambda found: found, drawn=_drawn_state)


def _state(state: BrokerFigures, replication: ReplicationState, replicas: ReplicaSet | None) -> dict[str, Any]:
    return {
        "cluster": state.cluster,
        "broker_name": state.broker_name,
        "broker_id": state.broker_id,
        "role": state.role,
        "address": state.address,
        "version": state.version,
        "active": state.active,
        "started_ms": state.started_ms,
        "in_tps": state.in_tps,
        "out_tps": state.out_tps,
        "in_today": state.in_today,
        "in_yesterday": state.in_yesterday,
        "out_today": state.out_today,
        "out_yesterday": state.out_yesterday,
        "disk_used": state.disk_used,
        "queue_disk_used": state.queue_disk_used,
        "log_start": state.log_start,
        "log_end": state.log_end,
        "oldest_ms": state.oldest_ms,
        "master_address": replication.master_address,
        "connected": None if replication.is_master else replication.connected,
        "slaves": [
            {
                "address": slave.address,
                "position": slave.position,
                "behind": slave.behind,
                "in_sync": slave.in_sync,
                "bytes_per_s": slave.bytes_per_s,
            }
            for slave in replication.slaves
        ],
        "controller": replicas.controller if replicas else "",
        "master_epoch": replicas.master_epoch if replicas else None,
        "in_sync_epoch": replicas.in_sync_epoch if replicas else None,
        "replicas": [
            {"replica_id": one.replica_id, "address": one.address, "alive": one.alive, "in_sync": one.in_sync}
            for one in (replicas.replicas if replicas else ())
        ],
    }


def _drawn_state(found: dict[str, Any]) -> Group:
    from rich.console import Group

    lists = ("slaves", "replicas", "epochs")
    rows = [
        (name, _text(name, value)) for name, value in found.items() if name not in lists and value not in (None, "")
    ]
    tables = [table(("", ""), rows)]
    for name in lists:
        if found[name]:
            columns = list(found[name][0])
            tables.append(
                table(columns, [[_text(key, row[key]) for key in columns] for row in found[name]], title=name)
            )
    return Group(*tables)


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith("_ms"):
        return datetime.fromtimestamp(value / 1000).isoformat(" ", "seconds") if 0 <= value < 2**41 else ""
    if name.endswith("disk_used"):
        return f"{value:.0%}"
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


@app.command()
def config(
    broker: Name,
    act: Annotated[Act | None, typer.Argument(help="Some settings alone, or a change.", show_default=False)] = None,
    settings: Annotated[
        list[str] | None, typer.Argument(help="After get: KEY…; after set: KEY=VALUE….", show_default=False)
    ] = None,
    differing: Annotated[bool, typer.Option("--differing", help="Only what differs from RocketMQ's default.")] = False,
    yes: Yes = False,
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Print a broker's settings, marking what differs from RocketMQ's defaults, or change some while it runs.

    Example: `rocketspark broker config broker-a --differing`

    Example: `rocketspark broker config broker-a get maxMessageSize`

    Example: `rocketspark broker config broker-a set maxMessageSize=8388608 --yes`
    """
    if act is None or act is Act.get:
        if act is Act.get and not settings:
            raise typer.BadParameter("get which settings? As in: get maxMessageSize")
        found = run_operation(at, lambda operations: operations.broker_config(broker))
        _print_settings(_chosen(found, settings or [], differing), json)
        return
    if not settings:
        raise typer.BadParameter("set which settings? As in: set maxMessageSize=8388608")
    changes = dict(map(_pair, settings))
    wanted = ", ".join(f"{key}={value}" for key, value in changes.items())
    confirm(
        yes,
        f"Set {shown(wanted)} on {shown(broker)}?",
        "it changes how the broker works: confirm with --yes",
    )
    _print_settings(run_operation(at, lambda operations: operations.set_broker_config(broker, changes)), json)


def _chosen(found: list[SettingState], keys: Sequence[str], differing: bool) -> list[SettingState]:
    from rocketspark.model.text import nearest

    known = {setting.key for setting in found}
    for key in keys:
        if key not in known:
            raise typer.BadParameter(f"no setting {shown(key)!r}{nearest(key, sorted(known))}")
    return [s for s in found if (not keys or s.key in keys) and (s.differs or not differing)]


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise typer.BadParameter(f"{shown(text, characters_max=60)!r} is no KEY=VALUE")
    return key, value


def _print_settings(found: list[SettingState], as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {"key": s.key, "value": s.value, "default": s.default, "differs": s.differs, "live": s.live}
                for s in found
            ]
        )
        return
    live = {None: "no effect", True: "live", False: "at start"}
    rows = [("*" if s.differs else "", s.key, s.value, s.default or "", live[s.live]) for s in found]
    print_table(("", "setting", "value", "default", "changes"), rows)


@app.command()
def stats(broker: Name, watch: Watch = None, at: ClusterAccess = HERE, json: Json = False) -> None:
    """Print all that a broker tells of itself, by RocketMQ's names, as `mqadmin brokerStatus` does.

    Example: `rocketspark broker stats broker-a --watch 5`
    """

    def told(found: BrokerFigures) -> dict[str, Any]:
        return {"broker_name": found.broker_name, "address": found.address, "stats": dict(sorted(found.table.items()))}

    run_watched(
        at,
        watch,
        lambda operations: operations.broker_info(broker),
        json=json,
        told=told,
        drawn=lambda found: table(("figure", "value"), sorted(found.table.items())),
    )


@app.command()
def counter(
    broker: Name,
    name: Annotated[str, typer.Argument(help="As TOPIC_PUT_NUMS or GROUP_GET_NUMS.", show_default=False)],
    key: Annotated[str, typer.Argument(help="As a topic, or topic@group.", show_default=False)],
    watch: Watch = None,
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Print what one of a broker's counters counted in the last minute, hour and day.

    Example: `rocketspark broker counter broker-a TOPIC_PUT_NUMS orders`

    Example: `rocketspark broker counter broker-a GROUP_GET_NUMS orders@billing --json`
    """

    def windows(found: Counter | None) -> dict[str, Any]:
        from rocketspark.client.connection.broker_api import Counter

        told = found or Counter()
        each = {"minute": told.stats_minute, "hour": told.stats_hour, "day": told.stats_day}
        return {name: {"sum": w.sum, "tps": w.tps, "average": w.avgpt} for name, w in each.items()}

    def drawn(found: Counter | None) -> Table:
        numbers = ("sum", "a second", "average")
        rows = (
            (name, *(f"{v:,.2f}" if isinstance(v, float) else f"{v:,}" for v in window.values()))
            for name, window in windows(found).items()
        )
        return table(("last", *numbers), rows, right=numbers)

    run_watched(
        at,
        watch,
        lambda operations: operations.broker_counter(broker, name, key),
        json=json,
        told=lambda found: {"broker_name": broker, "counter": name, "key": key, **windows(found)},
        drawn=drawn,
    )


@app.command("show-lite")
def show_lite(broker: Name, watch: Watch = None, at: ClusterAccess = HERE, json: Json = False) -> None:
    """Print how much a broker has of lite topics: their number, subscriptions, clients, and the topics they belong to.

    Example: `rocketspark broker show-lite broker-a`
    """

    async def ask(operations: AsyncAdmin) -> LiteBrokerState:
        return await operations.lite_broker_info((await operations.find_broker(broker)).address)

    run_watched(
        at,
        watch,
        ask,
        json=json,
        told=lambda found: found,
        drawn=_lite_table,
    )


def _lite_table(found: LiteBrokerState) -> Table:
    figures = (
        f"{found.light_queues:,} light queues of at most {found.light_queues_max:,},"
        f" {found.subscriptions:,} subscriptions, {found.clients:,} clients with new messages,"
        f" {found.popped:,} popped from"
    )
    rows = (
        (each.topic, f"{each.expiration_minutes:,}" if each.expiration_minutes > 0 else "never", listed(each.groups))
        for each in found.topics
    )
    head = ("topic", "expires after (min)", "groups")
    return table(head, rows, right=(head[1],), title=f"{found.broker_name}: {figures}")
