"""`group list|show|lag|lag-lite|dispatch-lite|members|reset|delete|create|set-mode`: groups, progress and settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from rocketspark.cli.offset_change_texts import change_fields, effect, print_changes, totals
from rocketspark.cli.operate import (
    ALL_MASTERS,
    Masters,
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
from rocketspark.cli.texts import clock, counted, place, span
from rocketspark.model.text import shown, shown_json

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from rocketspark.admin.clients import GroupMembers, Member
    from rocketspark.admin.groups import GroupSettings
    from rocketspark.admin.lite_topics import LiteGroupLag
    from rocketspark.admin.offsets import OffsetChange
    from rocketspark.admin.operations import AsyncAdmin
    from rocketspark.admin.progress import GroupLag, GroupState, QueueLag
    from rocketspark.protocol.json.bodies import GroupConfig
    from rocketspark.protocol.json.metadata import RequestMode


class Mode(StrEnum):
    """How a group's members get messages: they pull or pop them."""

    pull = "pull"
    pop = "pop"


app = typer.Typer(help="List, watch, reset, create, change and delete consumer groups.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="The consumer group.", show_default=False)]


class Settings(NamedTuple):
    """The options that say what is set of a group; what is not given stays."""

    ordered: Annotated[
        bool | None, typer.Option("--ordered/--not-ordered", help="Give out messages in order [consumeMessageOrderly].")
    ] = None
    enabled: Annotated[
        bool | None, typer.Option("--enabled/--disabled", help="May it consume at all? [consumeEnable]")
    ] = None
    retry_max_times: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=2**31 - 1,
            help="Retries before a message is a dead letter, for consumers that state none themselves.",
        ),
    ] = None
    retry_policy: Annotated[
        str | None,
        typer.Option(help="When retries are made for clients of RocketMQ 5, as its groupRetryPolicy in JSON."),
    ] = None
    lite_bind_topic: Annotated[
        str | None, typer.Option(help="The topic whose lite topics it reads, and no other [lite.bind.topic].")
    ] = None
    attributes: Annotated[str, typer.Option(help="Changes of attributes: +name=value,-name.")] = ""

    def settings(self) -> GroupSettings:
        """Return them as operations take them. Raises BadParameter, MessageIllegal."""
        from rocketspark.admin.groups import GroupSettings
        from rocketspark.client.validators import check_topic

        attributes = self.attributes
        if self.lite_bind_topic is not None:
            bound = f"+lite.bind.topic={check_topic(self.lite_bind_topic)}"
            attributes = ",".join(filter(None, (attributes, bound)))
        return GroupSettings(
            ordered=self.ordered,
            consume_enabled=self.enabled,
            retry_max_times=self.retry_max_times,
            retry_policy=None if self.retry_policy is None else _policy(self.retry_policy),
            attributes=attributes,
        )


@app.command()
def create(
    group: Name,
    given: Settings,
    on: Masters = ALL_MASTERS,
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Create a consumer group on every broker, or change what is given here of its settings.

    Example: `rocketspark group create billing --ordered --retry-max-times 5`

    Example: `rocketspark group create billing --retry-policy '{"type": "EXPONENTIAL"}'`

    Example: `rocketspark group create agents --lite-bind-topic chats`
    """
    settings = given.settings()
    found = run_operation(at, lambda operations: operations.put_group(group, settings, **on.named()))
    _print(group, found, json)


@app.command("list")
def list_(
    topic: Annotated[
        str | None, typer.Option("--topic", show_default=False, help="Only groups that read this topic.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also the groups that brokers make for themselves.")
    ] = False,
    watch: Watch = None,
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Print all consumer groups: their members, and how many messages each is behind.

    Example: `rocketspark group list --watch 5`
    """

    async def ask(operations: AsyncAdmin) -> list[GroupState]:
        names = await operations.list_groups(topic, system=everything)
        return await operations.list_group_states(names)

    run_watched(at, watch, ask, json=json, told=lambda found: list(map(_state_fields, found)), drawn=_states_table)


def _state_fields(state: GroupState) -> dict[str, Any]:
    return {
        "group": state.group,
        "members": state.member_count,
        "version": state.version,
        "type": state.consume_type,
        "model": state.message_model,
        "tps": state.consume_tps,
        "lag": state.lag,
        "in_flight": state.in_flight,
    }


def _states_table(states: Sequence[GroupState]) -> Table:
    figures = ("members", "messages/s", "lag", "in flight")
    rows = (
        (
            *(s.group, f"{s.member_count:,}", s.version or "offline", s.consume_type, s.message_model),
            *(f"{s.consume_tps:.1f}", f"{s.lag:,}", f"{s.in_flight:,}"),
        )
        for s in states
    )
    columns = ("group", "members", "version", "type", "model", "messages/s", "lag", "in flight")
    return table(columns, rows, right=figures)


@app.command()
def show(group: Name, at: ClusterAccess = HERE, json: Json = False) -> None:
    """Print a consumer group: its members, how far it is behind in each topic, and its settings on each broker.

    Example: `rocketspark group show billing --json`
    """
    from rocketspark.protocol.lite_topics import BIND_TOPIC

    async def ask(operations: AsyncAdmin) -> tuple[GroupState, GroupLag, list[dict[str, Any]], dict[str, GroupConfig]]:
        await operations.check_known(group)
        (state,) = await operations.list_group_states([group])
        lag = await operations.group_lag(group, holders=False)
        topics = _by_topic(lag, await _modes(operations, group))
        return state, lag, topics, await operations.show_group(group)

    state, lag, topics, found = run_operation(at, ask)
    if json:
        print_json({**_state_fields(state), "topics": topics, **_settings(group, found)})
        return
    kind = f"{shown(state.consume_type)} {shown(state.message_model)}"
    about = f"{kind}, {counted(state.member_count, 'member')} of {state.version}"
    behind = f"{counted(state.lag, 'message')} behind" + (f" by {span(lag.delay_ms)}" if lag.delay_ms else "")
    print(f"{shown(group)}: {about if state.online else 'offline'}; {behind}")
    for topic in sorted({one for each in found.values() if (one := each.attributes.get(BIND_TOPIC))}):
        print(f"it reads lite topics of {shown(topic)}: how far, says `rocketspark group lag-lite {shown(group)}`")
    figures = ("queues", "lag", "in flight", "delay")
    rows = (
        (
            *(t["topic"], t["mode"] or "", f"{t['queues']:,}", f"{t['lag']:,}", f"{t['in_flight']:,}"),
            _span(t["delay_ms"]),
        )
        for t in topics
    )
    print_table(("topic", "mode", *figures), rows, right=figures)
    _print(group, found, False)


def _by_topic(lag: GroupLag, modes: Mapping[str, RequestMode]) -> list[dict[str, Any]]:
    topics: dict[str, list[QueueLag]] = {topic: [] for topic in modes}
    for q in lag.queues:
        topics.setdefault(q.queue.topic, []).append(q)
    return [
        {
            "topic": topic,
            "mode": modes[topic].mode if topic in modes else None,
            "queues": len(queues),
            "lag": sum(q.lag for q in queues),
            "in_flight": sum(q.in_flight for q in queues),
            "delay_ms": max((q.delay_ms for q in queues if q.delay_ms is not None), default=None),
        }
        for topic, queues in sorted(topics.items())
    ]


@app.command()
def lag(
    group: Name,
    topic: Annotated[str | None, typer.Option("--topic", show_default=False, help="Only in this topic.")] = None,
    watch: Watch = None,
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Print how far a consumer group is in each queue, how long its next message waits, and who reads the queue.

    Example: `rocketspark group lag billing --topic orders --watch 2`
    """

    async def ask(operations: AsyncAdmin) -> GroupLag:
        found = await operations.group_lag(group, topic)
        if not found.queues:
            await operations.check_known(group)
        return found

    run_watched(at, watch, ask, json=json, told=_lag_fields, drawn=_lag_table)


def _lag_fields(found: GroupLag) -> dict[str, Any]:
    queues = [
        {
            "topic": q.queue.topic,
            "broker_name": q.queue.broker_name,
            "queue_id": q.queue.queue_id,
            "broker_offset": q.broker_offset,
            "consumer_offset": q.consumer_offset,
            "lag": q.lag,
            "in_flight": q.in_flight,
            "last_time_ms": q.last_time_ms or None,
            "delay_ms": q.delay_ms,
            "client_id": q.client_id,
        }
        for q in found.queues
    ]
    sums = {"tps": found.consume_tps, "lag": found.lag, "in_flight": found.in_flight, "delay_ms": found.delay_ms}
    return {"group": found.group, **sums, "queues": queues}


def _lag_table(found: GroupLag) -> Table:
    figures = ("queue", "broker offset", "consumer offset", "lag", "in flight", "delay")
    rows = (
        (
            q.queue.topic,
            q.queue.broker_name,
            *(f"{n:,}" for n in (q.queue.queue_id, q.broker_offset, q.consumer_offset, q.lag, q.in_flight)),
            *(_span(q.delay_ms), clock(q.last_time_ms) if q.last_time_ms else "", q.client_id or ""),
        )
        for q in found.queues
    )
    delay = f" by {span(found.delay_ms)}" if found.delay_ms else ""
    title = (
        f"{found.group}: {counted(found.lag, 'message')} behind{delay}, {found.in_flight:,} in flight,"
        f" {found.consume_tps:.1f} a second"
    )
    return table(("topic", "broker", *figures, "last consumed", "client"), rows, right=figures, title=title)


@app.command("lag-lite")
def lag_lite(
    group: Name,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many lite topics at most.")] = 20,
    watch: Watch = None,
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Print how far a group is behind in lite topics, in all and in those in which it is farthest behind.

    Example: `rocketspark group lag-lite agents --watch 5`
    """
    run_watched(
        at,
        watch,
        lambda operations: operations.lite_group_lag(group, limit=limit),
        json=json,
        told=lambda found: {
            "group": found.group,
            "topic": found.topic,
            "lag": found.lag,
            "waiting_since_ms": found.waiting_since_ms,
            "lite_topics": found.topics,
        },
        drawn=_lite_lag_table,
    )


def _lite_lag_table(found: LiteGroupLag) -> Table:
    rows = (
        (*(t.name, t.broker_name, f"{t.lag:,}"), clock(t.waiting_since_ms) if t.waiting_since_ms > 0 else "")
        for t in found.topics
    )
    title = f"{found.group}: {counted(found.lag, 'message')} behind in lite topics of {found.topic}"
    return table(("lite topic", "broker", "lag", "waits since"), rows, right=("lag",), title=title)


@app.command("dispatch-lite")
def dispatch_lite(
    group: Name,
    client: Annotated[
        str | None, typer.Option("--client", metavar="ID", show_default=False, help="Only of this client.")
    ] = None,
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Have brokers look through the lite topics of a group's clients at once for messages that wait.

    They do so by themselves, some seconds later; clients that wait for messages then get them.

    Example: `rocketspark group dispatch-lite agents`
    """
    names = run_operation(at, lambda operations: operations.dispatch_lite(group, client))
    if json:
        print_json({"group": group, "client_id": client, "brokers": names})
        return
    whose = f"group {shown(group)}" if client is None else f"client {shown(client)}"
    print(f"the lite topics of {whose} are looked through on {listed(names)}")


def _span(ms: int | None) -> str:
    return "" if ms is None else span(ms) if ms else "0"


@app.command()
def members(group: Name, watch: Watch = None, at: ClusterAccess = HERE, json: Json = False) -> None:
    """Print a consumer group's connected members, and mark those that subscribe to something else than the others.

    Example: `rocketspark group members billing`
    """

    async def ask(operations: AsyncAdmin) -> GroupMembers:
        found = await operations.list_members(group)
        if not found.members:
            await operations.check_known(group)
        return found

    run_watched(at, watch, ask, json=json, told=_members_fields, drawn=_members_table)


def _members_fields(found: GroupMembers) -> dict[str, Any]:
    return {
        "group": found.group,
        "consume_type": found.consume_type,
        "message_model": found.message_model,
        "consume_from": found.consume_from,
        "consistent": found.consistent,
        "subscriptions": found.subscriptions,
        "members": found.members,
    }


def _members_table(found: GroupMembers) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    if not found.members:
        return Text(f"{shown(found.group)} has no connected member")
    mark = {True: "", False: "differs", None: "not known"}
    rows = (
        (m.client_id, m.address, m.language, m.version, ", ".join(m.brokers), mark[m.agrees], _subscribed(m))
        for m in found.members
    )
    about = f"{found.consume_type} {found.message_model} {found.consume_from}"
    title = f"{found.group}: {about}, {counted(len(found.members), 'member')}"
    columns = ("client", "address", "language", "version", "brokers", "subscribes", "to")
    subscribed = ((s.topic, s.expression_type, s.expression) for s in found.subscriptions)
    return Group(table(columns, rows, title=title), table(("topic", "kind", "expression"), subscribed))


def _subscribed(member: Member) -> str:
    return ", ".join(f"{s.topic}: {s.expression}" for s in member.subscriptions or ())


@app.command()
def reset(
    group: Name,
    topic: Annotated[str, typer.Argument(help="The topic.", show_default=False)],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            show_default=False,
            help="earliest, latest, a time such as 2026-01-31T12:00 or how long ago such as 15m (the first message"
            " stored then or later), or an offset.",
        ),
    ],
    queue: Annotated[
        list[int] | None, typer.Option(min=0, max=2**31 - 1, help="Only this queue; may be repeated.")
    ] = None,
    broker: Annotated[list[str] | None, typer.Option(help="Only on this broker; may be repeated.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; print what would be changed.")] = False,
    yes: Yes = False,
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Have a consumer group go on at another place of a topic, whether its members are connected or not.

    Example: `rocketspark group reset billing orders --to 2026-01-31T12:00 --dry-run`

    Example: `rocketspark group reset billing orders --to 15m --dry-run`

    Example: `rocketspark group reset billing orders --to earliest --queue 3 --yes`
    """
    wanted = place("--to", to)

    def run(*, dry: bool) -> list[OffsetChange]:
        return run_operation(
            at,
            lambda operations: operations.reset_offsets(
                group, topic, wanted, queue_ids=queue or None, brokers=broker or None, dry_run=dry
            ),
        )

    changes = run(dry=True)
    if not dry_run:
        if not yes and not json:
            print_changes(changes)
        confirm(
            yes,
            f"Set these offsets of group {shown(group)} in topic {shown(topic)}?",
            f"{effect(changes)}: confirm with --yes",
        )
        changes = run(dry=False)
    if json:
        told = {"group": group, "topic": topic, "dry_run": dry_run, "queues": [change_fields(c) for c in changes]}
        print_json(told | totals(changes))
    elif dry_run:
        print_changes(changes)
        print(f"would be: {effect(changes)}")
    else:
        if yes:
            print_changes(changes)
        print(f"reset {shown(group)} in {shown(topic)}: {effect(changes)}")


@app.command()
def delete(
    group: Name,
    offsets: Annotated[
        bool, typer.Option("--offsets", help="Also its offsets; else a new group of this name continues where it was.")
    ] = False,
    topics: Annotated[
        bool, typer.Option("--topics", help="Also its topics of retries and dead letters, with their messages.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also if it has connected members, which soon make it anew.")
    ] = False,
    on: Masters = ALL_MASTERS,
    yes: Yes = False,
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Delete a consumer group's settings on every broker.

    Example: `rocketspark group delete billing --offsets --yes`
    """
    also = [what for what, is_wanted in (("offsets", offsets), ("retries and dead letters", topics)) if is_wanted]
    what = f"group {shown(group)}" + (f" with its {' and '.join(also)}" if also else "")
    confirm(yes, f"Delete {what}?", f"{what} will be gone: confirm with --yes")
    names = run_operation(
        at,
        lambda operations: operations.delete_group(group, offsets=offsets, topics=topics, force=force, **on.named()),
    )
    if json:
        print_json({"group": group, "offsets": offsets, "topics": topics, "brokers": names})
    else:
        print(f"deleted {what} on {listed(names)}" if names else f"deleted what was left of {what}")


async def _modes(operations: AsyncAdmin, group: str) -> dict[str, RequestMode]:
    """Return how a group gets each topic; nothing if the user may not ask that of brokers."""
    from rocketspark.errors import ServerError

    try:
        return await operations.list_request_modes(group)
    except ServerError as e:
        if not e.no_permission:
            raise
        return {}


@app.command("set-mode")
def set_mode(
    group: Name,
    topic: Annotated[str, typer.Argument(help="The topic.", show_default=False)],
    mode: Annotated[Mode, typer.Argument(help="How its messages are given to the group.", show_default=False)],
    share: Annotated[
        int | None,
        typer.Option(
            min=-1,
            max=2**31 - 1,
            help="With pop: of how many further members a member pops the queues too; 0 (at first) or -1: everybody"
            " pops all.",
        ),
    ] = None,
    on: Masters = ALL_MASTERS,
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Have a group pull or pop a topic's messages; for members that let brokers assign queues (`pop=True`).

    Those are PushConsumer(pop=True), and Java's with setClientRebalance(false); they change over while they run.

    Example: `rocketspark group set-mode billing orders pop --share 2`
    """
    names = run_operation(
        at,
        lambda operations: operations.set_request_mode(
            topic, group, mode.value.upper(), pop_share_queue_count=share, **on.named()
        ),
    )
    if json:
        print_json({"group": group, "topic": topic, "mode": mode.value.upper(), "share": share, "brokers": names})
    else:
        what = "pops" if mode is Mode.pop else "pulls"
        print(f"group {shown(group)} {what} {shown(topic)} on {listed(names)}")


def _policy(text: str) -> dict[str, Any]:
    import msgspec

    from rocketspark.model import typed_json

    try:
        return typed_json.decode(text.encode(), dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError) as e:
        raise typer.BadParameter(f"{shown(text, characters_max=60)!r} is no JSON object: {e}") from e


def _settings(group: str, found: dict[str, GroupConfig]) -> dict[str, Any]:
    import msgspec

    return {"group": group, "brokers": {name: msgspec.to_builtins(config) for name, config in found.items()}}


def _print(group: str, found: dict[str, GroupConfig], as_json: bool) -> None:
    import msgspec

    told = _settings(group, found)
    if as_json:
        print_json(told)
        return
    if not found:
        print(f"no broker knows group {shown(group)}")
    for name, settings in told["brokers"].items():
        print(f"{shown(name)}:")
        for key, value in settings.items():
            text = value if isinstance(value, str) else shown_json(msgspec.json.encode(value))
            print(f"  {key} = {shown(text)}")
