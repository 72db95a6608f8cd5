"""`export`, `import` and `query`: topics as files and as tables. Rule: they read as format("rocketmq") does, without
Spark; a file is whole, or it is a .part that the same command continues.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from rocketspark.cli.commands.pipelines.shared import Since, Until, source_option, time_range
from rocketspark.cli.operate import print_json, print_table
from rocketspark.cli.options import HERE, ClusterAccess, Json
from rocketspark.cli.streams import write
from rocketspark.errors import MessageIllegal, UsageError
from rocketspark.model.text import shown, shown_json

if TYPE_CHECKING:
    import pyarrow as pa

# Rows that are shown as a table; with --json all are printed.
SHOWN_ROWS_MAX = 1000
# Rows that are sent between two notes of how far an import is.
SENT_ROWS = 16_384


class ReadRange(NamedTuple):
    """The options of commands that read topics: from where, what, and how."""

    start_at: Annotated[
        str, typer.Option("--start", help="Where to begin: earliest, or offsets as JSON by queue.", show_default=False)
    ] = ""
    end_at: Annotated[
        str, typer.Option("--end", help="Where to end: latest, or offsets as JSON by queue.", show_default=False)
    ] = ""
    since: Since = ""
    until: Until = ""
    tags: Annotated[str, typer.Option(help="Only these tags: 'TagA || TagB'.")] = "*"
    store: Annotated[
        list[Path] | None,
        typer.Option(help="Read a broker's store directory, or its second tier, instead; may be repeated."),
    ] = None
    option: Annotated[list[str] | None, source_option()] = None
    at: ClusterAccess = HERE

    def options(self) -> dict[str, Any]:
        """Return the options of the read, without the topic. Raises BadParameter, ConfigError."""
        since_ms, until_ms = time_range(self.since or None, self.until or None)
        given: dict[str, Any] = {
            "startingOffsets": self.start_at or None,
            "endingOffsets": self.end_at or None,
            "startingTimestamp": None if since_ms is None else f"0{since_ms}",
            "endingTimestamp": None if until_ms is None else f"0{until_ms}",
            "tags": self.tags,
            "store": self.store or None,
        }
        if not self.store:
            given |= {"namesrv": self.at.namesrv, **self.at.client_options()}
        self.at.check_address(self.option or [])
        for text in self.option or []:
            name, equals, value = text.partition("=")
            if not (name and equals):
                raise typer.BadParameter(f"{shown(text, characters_max=60)!r} is no name=value", param_hint="--option")
            given[name] = value
        return given


WHOLE = ReadRange()


def export(
    topic: Annotated[str, typer.Argument(help="The topic to read.", show_default=False)],
    to: Annotated[Path, typer.Option("-t", "--to", help="The file: .parquet, .csv, or .jsonl.", show_default=False)],
    *,
    columns: Annotated[
        str, typer.Option(help="Columns, by commas: tag,body,storeTime; else all.", show_default=False)
    ] = "",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
    reading: ReadRange = WHOLE,
    json: Json = False,
) -> None:
    """Write the messages of a topic into a file: those that are there when it begins.

    Until the file is whole it is called .part; if the command is interrupted, the same command goes on where it ended.
    Columns are those of format("rocketmq"); in CSV and JSON lines a body that is no text is body_base64.

    Example: `rocketspark export orders --to orders.parquet --since 24h`
    """
    from rocketspark.tables.export_topic import export_topic

    given = {**reading.options(), "topic": topic, "columns": columns or None}
    times = f"{reading.since} {reading.until}".strip()
    began_s = time.monotonic()
    with _progress("messages") as tell:
        done = export_topic(given, to, times=times, overwrite=overwrite, tell=tell)
    seconds = time.monotonic() - began_s
    if json:
        result = {"topic": topic, "to": str(to), "rows": done.rows, "continued": done.continued}
        print_json({**result, "bytes": to.stat().st_size, "seconds": round(seconds, 3)})
        return
    before = f", {done.continued:,} of them by runs before" if done.continued else ""
    print(f"exported {done.rows:,} messages of {shown(topic)} to {shown(str(to))} in {seconds:.2f} s{before}")


def import_(
    file: Annotated[Path, typer.Argument(help="The file: .parquet, .csv, or .jsonl.", show_default=False)],
    topic: Annotated[str, typer.Option("-T", "--topic", help="The topic to send to.", show_default=False)],
    *,
    rate: Annotated[int | None, typer.Option(min=1, help="Send at most so many messages a second.")] = None,
    same_queues: Annotated[
        bool, typer.Option("--same-queues", help="Send each to the queue of its column queueId.")
    ] = False,
    anew: Annotated[bool, typer.Option("--anew", help="Begin with the first row, whatever was sent before.")] = False,
    group: Annotated[str, typer.Option(help="The producer group.")] = "rocketspark_import",
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Send the rows of a file as messages: each with the body, tag, keys and properties that it has there.

    How far it is stands in FILE.TOPIC.sent; if the command is interrupted, the same command goes on there. Up to 16,384
    rows that were sent before a kill are sent again. If the topic was made anew since, the command refuses to go on.
    Files are those of `export`, or any with a column body.

    Example: `rocketspark import orders.jsonl --topic orders-copy --rate 5000`
    """
    from rocketspark.client.validators import check_target
    from rocketspark.tables.import_file import Import
    from rocketspark.tables.options import parse_write
    from rocketspark.tables.read_table import texts

    check_target(topic)
    access = at.client_options()
    options = parse_write(texts({"namesrv": at.namesrv, "topic": topic, "producerGroup": group, **access}))
    began_s = time.monotonic()
    sending = Import(file, topic, at.namesrv, same_queues=same_queues, anew=anew, access=options.access)
    from rocketspark.spark.write.batch_sender import send_rows

    with sending, _progress("messages") as tell:
        for batch in sending.batches(min(SENT_ROWS, rate or SENT_ROWS)):
            first = sending.rows + 1
            try:
                send_rows(iter([batch]), options)
            except MessageIllegal as e:
                raise UsageError(f"{shown(str(file))}: rows {first} to {sending.rows + batch.num_rows}: {e}") from None
            sending.sent(batch.num_rows)
            tell(sending.rows, 0)
            if rate is not None:
                time.sleep(max(0.0, began_s + sending.rows_now / rate - time.monotonic()))
        sending.done()
    seconds = time.monotonic() - began_s
    if json:
        result = {"file": str(file), "topic": topic, "sent": sending.rows_now, "continued": sending.continued}
        print_json({**result, "seconds": round(seconds, 3)})
        return
    before = f", after {sending.continued:,} by runs before" if sending.continued else ""
    print(f"sent {sending.rows_now:,} messages of {shown(str(file))} to {shown(topic)} in {seconds:.2f} s{before}")


def query(
    sql: Annotated[
        str, typer.Argument(help='The SQL; topics are its tables, "in quotes" with % or -.', show_default=False)
    ],
    *,
    reading: ReadRange = WHOLE,
    json: Json = False,
) -> None:
    """Query topics by SQL, with DuckDB: what they hold when it begins, within --since, --start and the like.

    Columns are those of format("rocketmq"); only those that the query needs are read. With --json each row is a line.

    Example: `rocketspark query 'SELECT tag, count(*) FROM "my-orders" GROUP BY tag' --since 24h`
    """
    from rocketspark.tables.query import query as ask

    _print_rows(ask(sql, reading.options()), as_json=json)


def _print_rows(rows: pa.RecordBatchReader, *, as_json: bool) -> None:
    """Print rows as lines of JSON, or the first of them as a table."""
    from rocketspark.tables.file_rows import cells_of, lines_of

    if as_json:
        for batch in rows:
            write("".join(f"{shown_json(line)}\n" for line in lines_of(batch).splitlines()))
        return
    cells: list[list[str]] = []
    for batch in rows:
        cells += cells_of(batch)
        if len(cells) > SHOWN_ROWS_MAX:
            print(f"the first {SHOWN_ROWS_MAX:,} rows are shown; --json prints all", file=sys.stderr)
            break
    print_table(rows.schema.names, cells[:SHOWN_ROWS_MAX])


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Yield the function to call with how many there are so far, and with how many there will be, 0 if unknown."""
    if not sys.stderr.isatty():
        yield lambda count, of: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(f"{{task.completed:,}} {what}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda count, of: progress.update(task, completed=count, total=of or None)
