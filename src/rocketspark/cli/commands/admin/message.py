"""`message get|find|send|resend|trace|consume-directly`: single messages, and the search for them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from rocketspark.cli.commands.message_options import MessageOptions, Which
from rocketspark.cli.commands.pipelines.shared import Since, Until, moment
from rocketspark.cli.operate import print_json, print_table, run_operation
from rocketspark.cli.options import HERE, ClusterAccess, Json
from rocketspark.cli.stored_messages import COLUMNS, BodyForm, message_json, message_lines, message_row, when
from rocketspark.cli.streams import write
from rocketspark.cli.texts import span
from rocketspark.errors import RouteNotFound, ServerError, UsageError
from rocketspark.model.text import shown

if TYPE_CHECKING:
    from rocketspark.admin.messages.search import FoundMessages, SearchProgress
    from rocketspark.admin.messages.traces import MessageTrace, MessageTrack, TraceEvent
    from rocketspark.admin.operations import AsyncAdmin
    from rocketspark.client.results import SendResult
    from rocketspark.model import MessageQueue, ReceivedMessage

app = typer.Typer(help="Find, show, send, trace messages, and give one to a consumer.", no_args_is_help=True)
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
Id = Annotated[str, typer.Argument(help="Its unique id (the producer's) or offset message id.", show_default=False)]
Topic = Annotated[
    str | None, typer.Option("-t", "--topic", help="The topic it is in; without it a unique id is looked for in all.")
]
Body = Annotated[BodyForm, typer.Option("--body", help="How to show the body.")]


class Place(NamedTuple):
    """The options that name a queue of a topic."""

    queue: Annotated[int | None, typer.Option("-q", "--queue", min=0, help="The queue's id.", show_default=False)] = (
        None
    )
    broker: Annotated[
        str | None, typer.Option("-b", "--broker", help="The broker of the queue, where several have it.")
    ] = None

    async def of(self, operations: AsyncAdmin, topic: str) -> MessageQueue:
        """Return the queue of a topic that is meant. Raises UsageError if it is none or several."""
        route = (await operations.show_topic(topic)).route
        found = [q for q in route.read_queues() if q.queue_id == self.queue and self.broker in (None, q.broker_name)]
        if not found:
            there = ", ".join(f"{q.broker_name}/{q.queue_id}" for q in route.read_queues()) or "none"
            raise UsageError(f"topic {topic!r} has no such queue {self.queue}; these are there: {there}")
        if len(found) > 1:
            several = ", ".join(q.broker_name for q in found)
            raise UsageError(f"queue {self.queue} is on {several}: name one by --broker")
        return found[0]


class Decode(StrEnum):
    """What a body is decoded from."""

    avro = "avro"
    protobuf = "protobuf"


class Decoding(NamedTuple):
    """The options that say how a body is decoded."""

    decode: Annotated[
        Decode | None, typer.Option(help="Decode the body by --schema (extras arrow, schemas).", show_default=False)
    ] = None
    schema: Annotated[
        Path | None, typer.Option(help="An Avro schema in JSON, or a .proto file.", show_default=False)
    ] = None
    message: Annotated[
        str, typer.Option(help="The message of the .proto file, if not its first.", show_default=False)
    ] = ""

    def text(self, body: bytes) -> str | None:
        """Return a body's JSON; None if it is not to be decoded. Raises UsageError, ConfigError."""
        if self.decode is None or self.schema is None:
            return None
        from rocketspark.console.content.decoded import decoded

        view = decoded(body, self.decode.value, self.schema.read_text("utf-8"), self.message)
        return view.text + (f"\n… {view.left_bytes:,} more bytes" if view.left_bytes else "")


FIELDS, PLACE = MessageOptions(), Place()

# -- get -------------------------------------------------------------------------------------------------------------


@app.command()
def get(
    name: Annotated[
        str,
        typer.Argument(
            metavar="ID | TOPIC", help="An id as others print it; with --offset a topic.", show_default=False
        ),
    ],
    decoding: Decoding,
    topic: Topic = None,
    offset: Annotated[
        int | None, typer.Option("-o", "--offset", min=0, help="The message's offset in its queue.", show_default=False)
    ] = None,
    place: Place = PLACE,
    body: Body = BodyForm.auto,
    save: Annotated[Path | None, typer.Option(help="Write the body into this new file.", show_default=False)] = None,
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Print one message, by its id or by its place in a queue.

    Example: `rocketspark message get 7F000001B2A118B4AAC20A5C3F310000 --topic orders`

    Example: `rocketspark message get orders --queue 2 --offset 1017 --body hex`

    Example: `rocketspark message get orders --queue 2 --offset 1017 --decode avro --schema order.avsc`
    """
    if (offset is None) != (place.queue is None):
        raise typer.BadParameter("give both, with a topic", param_hint="--queue, --offset")
    if offset is not None and topic is not None:
        raise typer.BadParameter("a place is told by topic, --queue and --offset alone", param_hint="--topic")

    if (decoding.decode is None) != (decoding.schema is None):
        raise typer.BadParameter("give both", param_hint="--decode, --schema")

    async def find(operations: AsyncAdmin) -> ReceivedMessage:
        if offset is None:
            return await operations.get_message(name, topic=topic)
        return await operations.get_message_at(await place.of(operations, name), offset)

    message = run_operation(at, find)
    if save is not None:
        try:
            with save.open("xb") as file:
                file.write(message.body)
        except OSError as e:
            if e.filename is None:
                # Of the write: a part would pass for the body, and be in the way of another try.
                save.unlink()
                e.filename = str(save)
            raise
    decoded = decoding.text(message.body)
    if json:
        print_json(message_json(message) | ({} if decoded is None else {"decoded": decoded}))
    else:
        write("".join(f"{line}\n" for line in message_lines(message, body, decoded)))


# -- find ------------------------------------------------------------------------------------------------------------


@app.command("find")
def find_(
    topic: Annotated[str, typer.Argument(help="The topic to search.", show_default=False)],
    which: Which,
    newest: Annotated[bool, typer.Option("--newest", help="From the newest on; else from the oldest.")] = False,
    limit: Annotated[int, typer.Option("-l", "--limit", min=1, max=10_000, help="Show so many at most.")] = 20,
    scan_max: Annotated[
        int, typer.Option(min=1, max=1_000_000_000, help="Look at so many messages at most.")
    ] = 100_000,
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Search a topic by key, tag, text or JSON in bodies, and time; says how many messages it looked at.

    A key is asked of the brokers' indexes; all else reads the topic, without a trace in any group's offsets.

    Example: `rocketspark message find orders --contains "card declined" --since 2h --newest`

    Example: `rocketspark message find orders --json-path '$.customer.id=4711' --limit 5 --json`
    """
    search = which.search()
    with _progress() as told:
        found = run_operation(
            at,
            lambda operations: operations.find_messages(
                topic, search, newest_first=newest, limit=limit, scan_max=scan_max, on_progress=told
            ),
        )
    if json:
        next_offsets = [
            {"broker_name": q.broker_name, "queue_id": q.queue_id, "offset": offset}
            for q, offset in sorted(found.next_offsets.items())
        ]
        print_json(
            {
                "topic": topic,
                "messages": [message_json(m) for m in found.messages],
                "looked_at": found.looked_at,
                "stopped": found.stopped,
                "next_offsets": next_offsets,
            }
        )
        return
    if found.messages:
        print_table(COLUMNS, map(message_row, found.messages))
    print(_end_of(found, newest, limit), file=sys.stderr)


def _end_of(found: FoundMessages, newest: bool, limit: int) -> str:
    from rocketspark.admin.messages.search import FOUND_BYTES_MAX

    count = f"{len(found.messages):,} found, {found.looked_at:,} looked at"
    if not found.stopped:
        return f"{count}: all there are"
    why = {"limit": f"the limit of {limit:,}", "bytes": f"{FOUND_BYTES_MAX >> 20} MiB of bodies"}
    how = ""
    if found.messages and found.stopped in why:
        last = found.messages[-1].store_time_ms
        how = f"; go on with {'--until' if newest else '--since'} 0{last + (0 if not newest else 1)}"
    return f"{count}: stopped at {why.get(found.stopped, '--scan-max')}{how}"


@contextmanager
def _progress() -> Iterator[Callable[[SearchProgress], None] | None]:
    """Yield what shows how far a search is, on a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.completed:,.0f} of {task.total:,.0f} looked at"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=0)
        yield lambda told: progress.update(task, completed=told.looked_at, total=told.total)


# -- send ------------------------------------------------------------------------------------------------------------


@app.command()
def send(
    topic: Annotated[str, typer.Argument(help="The topic to send to.", show_default=False)],
    body: Annotated[
        str | None, typer.Argument(help="The body; without it stdin is, whole.", show_default=False)
    ] = None,
    file: Annotated[
        Path | None, typer.Option("-f", "--file", help="The body is this file's content.", show_default=False)
    ] = None,
    fields: MessageOptions = FIELDS,
    place: Place = PLACE,
    delay: Annotated[
        str,
        typer.Option(help="Deliver it so much later: 90s, 15m, 2h (a timer message).", show_default=False),
    ] = "",
    delay_level: Annotated[
        int, typer.Option(min=0, max=128, help="Deliver it by this delay level of the broker's.")
    ] = 0,
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Send one message; prints its ids, queue and offset.

    Example: `rocketspark message send orders '{"id": 1}' --key 1 --tag new`

    Example: `rocketspark message send orders --file order.avro --property content-type=avro --delay 10m`
    """
    content = _body(body, file)
    values = fields.values() | {"delay_level": delay_level, "delay_ms": _delay_ms(delay) if delay else 0}
    if place.broker is not None and place.queue is None:
        raise typer.BadParameter("it goes with --queue", param_hint="--broker")

    async def act(operations: AsyncAdmin) -> SendResult:
        where = None if place.queue is None else await place.of(operations, topic)
        return await operations.send_message(topic, content, queue=where, **values)

    _print_sent("sent", run_operation(at, act), json=json)


def _delay_ms(text: str) -> int:
    from rocketspark.admin.messages.waiting import parse_delays

    if len(found := parse_delays(text)) != 1:
        told = shown(text, characters_max=60)
        raise typer.BadParameter(f"{told!r}: a time such as 90s, 15m, 2h or 3d is needed", param_hint="--delay")
    return found[0]


def _body(text: str | None, file: Path | None) -> bytes:
    from rocketspark.client.validators import BODY_BYTES_MAX

    if text is not None and file is not None:
        raise typer.BadParameter("give the body or a file", param_hint="--file")
    if text is not None:
        return text.encode()
    if file is not None:
        with file.open("rb") as source:
            return source.read(BODY_BYTES_MAX + 1)
    if sys.stdin.isatty():
        print("reading the body from the terminal; Ctrl-D ends", file=sys.stderr)
    try:
        return sys.stdin.buffer.read(BODY_BYTES_MAX + 1)
    except OSError as e:
        raise UsageError(f"stdin cannot be read: {e.strerror or e}; give the body, or --file") from None


@app.command()
def resend(
    message_id: Id,
    topic: Topic = None,
    to: Annotated[
        str | None,
        typer.Option(help="The topic to send it to [default: its own; a dead letter's: the one it came from]."),
    ] = None,
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Send a stored message once more: body, keys, tag, own properties and unique id stay; each call sends one more.

    Dead letters are sent again, each once, by `dlq resend`.

    Example: `rocketspark message resend 7F000001B2A118B4AAC20A5C3F310000 --topic orders --to orders-replayed`
    """
    result = run_operation(at, lambda operations: operations.resend_message(message_id, topic=topic, to=to))
    _print_sent("sent again", result, json=json)


def _print_sent(done: str, result: SendResult, *, json: bool) -> None:
    queue = result.queue
    if json:
        told: dict[str, Any] = {
            "status": result.status.value,
            "message_id": result.message_id,
            "offset_message_id": result.offset_message_id,
            "topic": queue.topic,
            "broker_name": queue.broker_name,
            "queue_id": queue.queue_id,
            "queue_offset": result.queue_offset,
        }
        if result.recall_handle:
            told["recall_handle"] = result.recall_handle
        print_json(told)
        return
    place = f"{shown(queue.topic)} {shown(queue.broker_name)}/{queue.queue_id} offset {result.queue_offset}"
    status = "" if result.status == "SEND_OK" else f" ({result.status.value})"
    print(f"{done} {shown(result.message_id)} to {place}{status}")


# -- what became of it -----------------------------------------------------------------------------------------------


@app.command()
def trace(
    message_id: Annotated[str, typer.Argument(help="Its unique id.", show_default=False)],
    topic: Topic = None,
    trace_topic: Annotated[str, typer.Option(help="Where clients write message traces.")] = TRACE_TOPIC,
    since: Since = "",
    until: Until = "",
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Print what producers and consumers told of a message, as a time line, and which groups have consumed it.

    The time line needs clients that write message traces; which groups are past the message, brokers tell.

    Example: `rocketspark message trace 7F000001B2A118B4AAC20A5C3F310000 --topic orders`
    """
    from rocketspark.client.connection.client_api import TIMES_END_MS

    begin_ms, end_ms = moment("--since", since), moment("--until", until)
    bounds = {"since_ms": begin_ms or 0, "until_ms": TIMES_END_MS if end_ms is None else end_ms}

    async def act(operations: AsyncAdmin) -> tuple[MessageTrace | None, list[MessageTrack]]:
        try:
            found = await operations.trace_message(message_id, trace_topic=trace_topic, **bounds)
        except RouteNotFound:
            found = None
        told = next((e.topic for e in found.events if e.topic), None) if found else None
        try:
            message = await operations.get_message(message_id, topic=topic or told)
        except ServerError:
            if found is None or not found.events:
                raise
            return found, []  # It has expired, or waits under another topic.
        return found, await operations.track_message(message)

    found, tracks = run_operation(at, act)
    events = found.events if found else []
    if json:
        groups = [{"group": t.group, "track": t.track.value, "why": t.why} for t in tracks]
        print_json(
            {"message_id": message_id, "events": events, "groups": groups, "unread": found.unread if found else 0}
        )
        return
    if events:
        begin = events[0].time_ms
        rows = ((when(e.time_ms), f"+{span(max(0, e.time_ms - begin))}", *_event_row(e)) for e in events)
        print_table(("time", "after", "what", "group", "client", "took", "how it ended"), rows)
    else:
        print(f"no client told of it in {shown(trace_topic)}", file=sys.stderr)
    if tracks:
        print_table(("group", "has it consumed the message?", "why"), ((t.group, t.track.value, t.why) for t in tracks))


def _event_row(e: TraceEvent) -> tuple[str, ...]:
    result = e.result or ("" if e.kind == "received" else "success" if e.success else "failed")
    what = f"{e.kind} ({e.message_kind})" if e.message_kind not in ("", "normal") else e.kind
    if e.retry_times:
        what += f", attempt {e.retry_times + 1}"
    return what, e.group, e.client, "" if e.kind in ("received", "ended") else span(e.cost_ms), result


@app.command("consume-directly")
def consume_directly(
    message_id: Id,
    group: Annotated[str, typer.Option("-g", "--group", help="The consumer group.", show_default=False)],
    client: Annotated[
        str | None, typer.Option("-c", "--client", help="Which of its members, by client id [default: the first].")
    ] = None,
    topic: Topic = None,
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Have a connected consumer handle one message now, and print what its listener made of it. Offsets stay.

    Exit code 1 if the listener did not succeed.

    Example: `rocketspark message consume-directly 7F000001B2A118B4AAC20A5C3F310000 --topic orders --group billing`
    """
    done = run_operation(
        at, lambda operations: operations.consume_directly(message_id, group, client_id=client, topic=topic)
    )
    if json:
        print_json(done)
    else:
        print(f"{shown(done.client_id)} took {span(done.spent_ms)}: {shown(done.result)}")
        if done.remark:
            print(shown(done.remark, characters_max=2000))
    if done.result not in ("CR_SUCCESS", "CR_COMMIT"):
        raise typer.Exit(1)
