"""`group create|show|set-mode`: the settings of consumer groups, and how they are given messages."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rocketspark.cli.operate import ALL_MASTERS, Masters, listed, print_json, run_operation
from rocketspark.cli.options import HERE, ClusterAccess, Json
from rocketspark.model.text import shown, shown_json

if TYPE_CHECKING:
    from rocketspark.protocol.json.bodies import GroupConfig


class Mode(StrEnum):
    """How a group's members get messages: they pull or pop them."""

    pull = "pull"
    pop = "pop"


app = typer.Typer(help="Create, change and show consumer groups.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="The consumer group.", show_default=False)]


@app.command()
def create(
    group: Name,
    ordered: Annotated[
        bool | None, typer.Option("--ordered/--not-ordered", help="Give out messages in order [consumeMessageOrderly].")
    ] = None,
    enabled: Annotated[
        bool | None, typer.Option("--enabled/--disabled", help="May it consume at all? [consumeEnable]")
    ] = None,
    retry_max_times: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=2**31 - 1,
            help="Retries before a message is a dead letter, for consumers that state none themselves.",
        ),
    ] = None,
    retry_policy: Annotated[
        str | None,
        typer.Option(help="When retries are made for clients of RocketMQ 5, as its groupRetryPolicy in JSON."),
    ] = None,
    attributes: Annotated[str, typer.Option(help="Changes of attributes: +name=value,-name.")] = "",
    on: Masters = ALL_MASTERS,
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Create a consumer group on every broker, or change what is given here of its settings.

    Example: `rocketspark group create billing --ordered --retry-max-times 5`

    Example: `rocketspark group create billing --retry-policy '{"type": "EXPONENTIAL"}'`
    """
    from rocketspark.admin.groups import GroupSettings

    settings = GroupSettings(
        ordered=ordered,
        consume_enabled=enabled,
        retry_max_times=retry_max_times,
        retry_policy=None if retry_policy is None else _policy(retry_policy),
        attributes=attributes,
    )
    found = run_operation(at, lambda operations: operations.put_group(group, settings, **on.named()))
    _print(group, found, json)


@app.command()
def show(group: Name, at: ClusterAccess = HERE, json: Json = False) -> None:
    """Print a consumer group's settings on each broker.

    Example: `rocketspark group show billing --json`
    """
    _print(group, run_operation(at, lambda operations: operations.show_group(group)), json)


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

    try:
        return msgspec.json.decode(text.encode(), type=dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError) as e:
        raise typer.BadParameter(f"{shown(text, characters_max=60)!r} is no JSON object: {e}") from e


def _print(group: str, found: dict[str, GroupConfig], as_json: bool) -> None:
    import msgspec

    rows = {name: msgspec.to_builtins(config) for name, config in found.items()}
    if as_json:
        print_json({"group": group, "brokers": rows})
        return
    if not rows:
        print(f"no broker knows group {shown(group)}")
    for name, settings in rows.items():
        print(f"{shown(name)}:")
        for key, value in settings.items():
            text = value if isinstance(value, str) else shown_json(msgspec.json.encode(value))
            print(f"  {key} = {shown(text)}")
