"""`transaction list|check`: half messages whose transactions are open, or were given up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rocketspark import machine
from rocketspark.cli.operate import Watch, print_json, run_operation, run_watched, table
from rocketspark.cli.options import HERE, ClusterAccess, Json
from rocketspark.cli.stored_messages import when
from rocketspark.cli.texts import span
from rocketspark.model.text import shown

if TYPE_CHECKING:
    from rocketspark.admin.messages.waiting import OpenTransactions

app = typer.Typer(help="List open transactions, and have one checked again.", no_args_is_help=True)
COLUMNS = ("since", "age", "group", "to topic", "id", "half message", "checks", "keys", "bytes", "broker")


@app.command("list")
def list_(
    broker: Annotated[str | None, typer.Option("-b", "--broker", help="Only this broker's.")] = None,
    given_up: Annotated[
        bool, typer.Option("--given-up", help="Instead those that were given up, as no producer told their end.")
    ] = False,
    scan_max: Annotated[
        int, typer.Option(min=1, max=10_000_000, help="Read so many half messages of a broker at most.")
    ] = 10_000,
    watch: Watch = None,
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Print the half messages whose transaction did not end yet, oldest first, and how often producers were asked.

    Example: `rocketspark transaction list --json`
    """

    def drawn(found: OpenTransactions) -> Any:
        from rich.console import Group

        now_ms = int(machine.time() * 1000)
        rows = [
            (
                when(t.since_ms),
                span(max(0, now_ms - t.since_ms)),
                t.group,
                t.topic,
                t.message_id,
                t.offset_message_id,
                str(t.checks),
                " ".join(t.keys),
                str(t.body_bytes),
                t.broker_name,
            )
            for t in found.transactions
        ]
        note = "" if found.whole else "not all half messages were read: more may be open (--scan-max)"
        nothing = "no transaction was given up" if given_up else "no transaction is open"
        return Group(table(COLUMNS, rows, right=("checks", "bytes")) if rows else nothing, note)

    run_watched(
        at,
        watch,
        lambda operations: operations.list_transactions(broker=broker, given_up=given_up, scan_max=scan_max),
        json=json,
        told=lambda found: found,
        drawn=drawn,
    )


@app.command()
def check(
    half: Annotated[
        str, typer.Argument(metavar="HALF_MESSAGE", help="As `transaction list` prints it.", show_default=False)
    ],
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Have the producers of a half message asked again how its transaction ended; its checks count from 0.

    It may be one that was given up (`transaction list --given-up`).

    Example: `rocketspark transaction check 7F00000100002A9F0000000000000000`
    """
    found = run_operation(at, lambda operations: operations.check_transaction(half))
    if json:
        print_json({"done": "asked", "transaction": found})
    else:
        print(
            f"group {shown(found.group)} is asked again about {shown(found.message_id)} on {shown(found.broker_name)}"
        )
