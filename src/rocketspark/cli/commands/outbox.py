"""`outbox list|show|resend|drop|relay`: the messages of an outbox. Rule: results on stdout, progress on stderr."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rocketspark.cli.operate import print_json
from rocketspark.cli.options import HERE, ClusterAccess, Json
from rocketspark.cli.texts import clock
from rocketspark.model.text import shown

if TYPE_CHECKING:
    from rocketspark.recipes import Entry, OutboxStore

PROGRESS_S = 1.0

app = typer.Typer(help="Look at, resend and drop what an outbox keeps; relay it.", no_args_is_help=True)
Database = Annotated[
    str,
    typer.Option(
        "-d",
        "--database",
        envvar="ROCKETSPARK_OUTBOX",
        show_default=False,
        help="Where the outbox is: sqlite:///file.db or postgresql://user@host/name.",
    ),
]
Table = Annotated[str, typer.Option(help="The outbox's table.")]
TABLE = "rocketspark_outbox"
Keys = Annotated[list[str] | None, typer.Argument(help="Keys, as `outbox list` shows them.", show_default=False)]
Parked = Annotated[bool, typer.Option("--parked", help="All that are parked.")]


@app.command("list")
def list_(
    database: Database,
    state: Annotated[str | None, typer.Option(help="Only waiting, parked or sent ones.")] = None,
    count: Annotated[int, typer.Option("-c", "--count", min=1, help="At most so many, the oldest.")] = 100,
    table: Table = TABLE,
    json: Json = False,
) -> None:
    """Print what waits and what is parked, the oldest first; with --json one line for each.

    Example: `rocketspark outbox list --database sqlite:///shop.db --state parked`
    """
    from rocketspark.recipes import State

    if state is not None and state not in list(State):
        raise typer.BadParameter(
            f"{shown(state, characters_max=60)!r}: waiting, parked or sent is needed", param_hint="--state"
        )
    store = _open(database, table)
    entries = store.entries(State(state) if state else None, count)
    if json:
        for entry in entries:
            print_json(_summary(entry))
        return
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    counts = store.count()
    grid = Grid(title=", ".join(f"{n:,} {s}" for s, n in counts.items()), title_justify="left")
    for title in ("key", "topic", "sharding key", "state", "attempts", "added", "error"):
        grid.add_column(title, justify="right" if title == "attempts" else "left", overflow="fold")
    for e in entries:
        texts = (e.key, e.message.topic, e.message.sharding_key or "", e.state.value, f"{e.attempts:,}")
        grid.add_row(*(Text(shown(text, characters_max=1000)) for text in (*texts, clock(e.added_ms), e.error or "")))
    Console().print(grid)


@app.command()
def show(
    key: Annotated[str, typer.Argument(help="The key, as `outbox list` shows it.", show_default=False)],
    database: Database,
    table: Table = TABLE,
    json: Json = False,
) -> None:
    """Print one message of the outbox with all its fields.

    Example: `rocketspark outbox show order-7 --database sqlite:///shop.db --json`
    """
    entry = _open(database, table).get(key)
    values = _summary(entry) | _fields(entry)
    if json:
        print_json(values)
        return
    for name, value in values.items():
        text = str(value)
        print(f"{name}: {shown(text, characters_max=len(text))}")


@app.command()
def resend(
    database: Database, keys: Keys = None, parked: Parked = False, table: Table = TABLE, json: Json = False
) -> None:
    """Make messages due now, parked ones too; a relay sends them.

    Example: `rocketspark outbox resend order-7 order-8 --database sqlite:///shop.db`
    """
    _check_choice(keys, parked)
    count = _open(database, table).resend(keys or None)
    if json:
        print_json({"resent": count})
    else:
        print(f"{count:,} messages are due now")


@app.command()
def drop(
    database: Database,
    keys: Keys = None,
    parked: Parked = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Don't ask.")] = False,
    table: Table = TABLE,
    json: Json = False,
) -> None:
    """Delete messages that were not sent.

    Example: `rocketspark outbox drop --parked --yes --database sqlite:///shop.db`
    """
    _check_choice(keys, parked)
    store = _open(database, table)
    if not yes:
        if not sys.stdin.isatty():
            raise typer.BadParameter("the messages will be gone: confirm with --yes")
        typer.confirm("Delete all parked messages?" if parked else f"Delete {len(keys or [])} messages?", abort=True)
    count = store.drop(keys or None)
    if json:
        print_json({"dropped": count})
    else:
        print(f"dropped {count:,} messages")


@app.command()
def relay(
    database: Database,
    at: ClusterAccess = HERE,
    once: Annotated[bool, typer.Option("--once", help="Send what is due now, then end.")] = False,
    group: Annotated[str, typer.Option(help="The producer group.")] = "rocketspark_outbox",
    lease: Annotated[float, typer.Option(min=1, help="Seconds after which a killed relay's work is taken over.")] = 30,
    backoff: Annotated[float, typer.Option(min=0.01, help="Seconds after a failure, doubled by each further.")] = 1,
    table: Table = TABLE,
    json: Json = False,
) -> None:
    """Send what the outbox keeps, until Ctrl-C; several relays may run at once.

    Ends with code 1 if --once could not send all that was due.

    Example: `rocketspark outbox relay --database postgresql://shop@localhost/shop --namesrv 127.0.0.1:9876`
    """
    import asyncio
    import time

    from rocketspark.cli.serving.serve import loop_factory
    from rocketspark.client.producer.producer import AsyncProducer
    from rocketspark.errors import RocketSparkError
    from rocketspark.recipes import AsyncOutbox

    store = _open(database, table)
    backoff_ms = round(backoff * 1000)
    options: dict[str, Any] = {
        "lease_ms": round(lease * 1000),
        "send_timeout_ms": min(3000, lease * 500),
        "backoff_ms": backoff_ms,
        "backoff_max_ms": max(60_000, backoff_ms),
    }

    async def run() -> Any:
        began_s = time.monotonic()
        async with (
            AsyncProducer(at.namesrv, group, **at.client_options()) as producer,
            AsyncOutbox(producer, store, relay=not once, **options) as outbox,
        ):
            if once:
                return await outbox.relay_once(), time.monotonic() - began_s
            stop = asyncio.Event()
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, stop.set)
            print(
                f"relaying {shown(store.database.name)} to {shown(at.namesrv)}; Ctrl-C ends",
                file=sys.stderr,
                flush=True,
            )
            before = ""
            while not stop.is_set():
                try:
                    async with asyncio.timeout(PROGRESS_S):
                        await stop.wait()
                except TimeoutError:
                    pass
                if (text := _text(outbox.relayed())) != before:
                    before = text
                    print(text, file=sys.stderr, flush=True)
        return outbox.relayed(), time.monotonic() - began_s

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        relayed, seconds = runner.run(run())
    if json:
        values = {"sent": relayed.sent, "failed": relayed.failed, "parked": relayed.parked}
        print_json(values | {"seconds": round(seconds, 3)})
    else:
        print(f"{_text(relayed)} in {seconds:.2f} s", file=sys.stderr)
    if once and (relayed.failed or relayed.parked):
        raise RocketSparkError("not everything could be sent: see `rocketspark outbox list`")


def _text(relayed: Any) -> str:
    return f"sent {relayed.sent:,}, failed attempts {relayed.failed:,}, parked {relayed.parked:,}"


def _open(database: str, table: str) -> OutboxStore:
    """Return the store after a check that its table exists."""
    from rocketspark.recipes import OutboxStore

    store = OutboxStore(database, table=table, must_exist=True)
    store.check()
    return store


def _check_choice(keys: list[str] | None, parked: bool) -> None:
    if bool(keys) == parked:
        raise typer.BadParameter("give keys, or --parked for all that are parked")


def _summary(entry: Entry) -> dict[str, Any]:
    return {
        "key": entry.key,
        "message_id": entry.message_id,
        "topic": entry.message.topic,
        "sharding_key": entry.message.sharding_key,
        "state": entry.state.value,
        "attempts": entry.attempts,
        "error": entry.error,
        "added_ms": entry.added_ms,
        "due_ms": entry.due_ms,
        "sent_ms": entry.sent_ms,
        "body_bytes": len(entry.message.body),
    }


def _fields(entry: Entry) -> dict[str, Any]:
    from base64 import b64encode

    message = entry.message
    values: dict[str, Any] = {
        "tag": message.tag,
        "keys": list(message.keys),
        "properties": message.properties,
        "delay_level": message.delay_level,
        "deliver_at_ms": message.deliver_at_ms,
        "flag": message.flag,
        "owner": entry.owner,
    }
    try:
        return values | {"body": message.body.decode()}
    except UnicodeDecodeError:
        return values | {"body_base64": b64encode(message.body).decode()}
