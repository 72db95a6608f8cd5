"""`quarantine list|retry|drop`: messages that brokers quarantined, as they can never be delivered or checked."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from rocketspark.cli.operate import print_json, run_operation
from rocketspark.cli.options import HERE, ClusterAccess, Json
from rocketspark.model.text import shown

app = typer.Typer(help="List, retry and drop what brokers set aside.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="Its name, as listed: kind and physical offset.", show_default=False)]
Broker = Annotated[str | None, typer.Option(help="Only on this broker.")]


@app.command("list")
def list_(broker: Broker = None, at: ClusterAccess = HERE, json: Json = False) -> None:
    """Print what is set aside, oldest first: where each message lies, why, since when.

    Example: `rocketspark quarantine list --json`
    """
    found = run_operation(at, lambda operations: operations.list_quarantine(broker))
    if json:
        rows = [{"broker_name": e.broker_name, **e.place()} for e in found]
        print_json(rows)
        return
    for e in found:
        place = f"{shown(e.topic)} queue {e.queue_id} offset {e.queue_offset} physical offset {e.physical_offset}"
        print(f"{shown(e.broker_name)}  {shown(e.name)}  {place}  attempts {e.attempts}  {shown(e.reason)}")
    if not found:
        print("nothing is set aside", file=sys.stderr)


@app.command()
def retry(name: Name, broker: Broker = None, at: ClusterAccess = HERE, json: Json = False) -> None:
    """Handle one once more, e.g. after its file was mended: it is delivered, or checked again.

    Example: `rocketspark quarantine retry delay-4711`
    """
    where = run_operation(at, lambda operations: operations.retry_quarantined(name, broker))
    _done("retried", name, where, json=json)


@app.command()
def drop(name: Name, broker: Broker = None, at: ClusterAccess = HERE, json: Json = False) -> None:
    """Forget one for good; its message stays in the log until it expires.

    Example: `rocketspark quarantine drop delay-4711`
    """
    where = run_operation(at, lambda operations: operations.drop_quarantined(name, broker))
    _done("dropped", name, where, json=json)


def _done(what: str, name: str, where: str, *, json: bool) -> None:
    if json:
        print_json({"name": name, "broker_name": where, "done": what})
    else:
        print(f"{what} {shown(name)} on {shown(where)}")
