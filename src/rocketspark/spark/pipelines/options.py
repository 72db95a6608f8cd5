"""The options of the pipelines, each declared once: what a pipeline's `run` takes as one value, and what its command
takes as options. Rule: nothing is imported for it, neither Spark, which the command line starts without, nor typer,
which executors do without: the command line reads the annotations.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

if TYPE_CHECKING:
    import typer

EXACTLY_ONCE = "exactly-once"
_CHOICE, _RESEND = "Which letters", "Sending again"


class ArchiveOptions(NamedTuple):
    """How `archive.run` works. `keep_replaced_s`: for so many seconds, 3600 if it is None, Parquet files that were
    merged stay readable; the files of a table stay until its own VACUUM or expire_snapshots.
    """

    interval_s: Annotated[
        float, typer.Option("--interval", min=0.1, help="Seconds between looks for new messages.")
    ] = 60
    batch_rows: Annotated[int, typer.Option(min=1, help="Messages in a micro-batch at most.")] = 1_000_000
    compact: Annotated[bool, typer.Option(help="Merge the files of hours that are over.")] = True
    close_after_s: Annotated[
        float, typer.Option("--close-after", min=0, help="Seconds after its end that an hour is merged.")
    ] = 300
    keep_replaced_s: Annotated[
        float | None,
        typer.Option(
            "--keep-replaced",
            min=0,
            help="Seconds that merged Parquet files stay for readers that began before (3600).",
            show_default=False,
        ),
    ] = None
    file_mb: Annotated[int, typer.Option(min=1, help="Size of merged files.")] = 256


class AuditOptions(NamedTuple):
    """What `audit.run` looks at: messages stored in [since_ms, until_ms), ms since 1970, None for an open end; and
    which of its findings do not count as errors.
    """

    groups: Annotated[
        list[str] | None,
        typer.Option(
            "-g",
            "--group",
            help="A group that ought to have consumed; may be repeated. By default all that have offsets.",
            show_default=False,
        ),
    ] = None
    since_ms: int | None = None
    until_ms: int | None = None
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            help="A finding that is in order: missing, lost, duplicates, unconsumed, dead; may be repeated.",
            show_default=False,
        ),
    ] = None
    max_lag: Annotated[int, typer.Option(min=0, help="So many unconsumed messages of a group are in order.")] = 0
    samples: Annotated[int, typer.Option(min=0, max=10_000, help="How many messages to name of each kind.")] = 10


class DedupeOptions(NamedTuple):
    """How `dedupe.run` recognizes a repeated message, and how it reads and writes.

    A key is remembered for at least `within`, from the message that was passed on with it. A message with several keys
    repeats another one only if all keys are the same.
    """

    by: Annotated[
        str, typer.Option(help="What repetitions have in common: key, messageId, body, property:NAME, json:$.PATH.")
    ] = "key"
    within: Annotated[str, typer.Option(help="How long a key is remembered: 30m, 2h, '3 days'.")] = "1h"
    start_at: Annotated[
        str, typer.Option("--start", help="Where a new pipeline begins: earliest, latest or JSON by queue.")
    ] = "earliest"
    name: Annotated[str, typer.Option(help="Of its transactions; dedupe-SOURCE-TARGET if not given.")] = ""
    batch_rows: Annotated[
        int | None, typer.Option(min=1, help="Messages in a micro-batch at most.", show_default=False)
    ] = None
    interval_s: Annotated[
        float | None,
        typer.Option(
            "--interval", min=0, help="Go on for ever, a micro-batch every so many seconds; else all there is now."
        ),
    ] = None
    delivery: Annotated[str, typer.Option(help="exactly-once or at-least-once.")] = EXACTLY_ONCE


class Choice(NamedTuple):
    """Which dead letters are chosen: those that became dead letters in [since_ms, until_ms), ms since 1970, None for an
    open end, and that meet all other fields; a field that is empty or None leaves nothing out. `sql`: a condition on
    the columns of `dlq.letters`.
    """

    groups: Annotated[
        list[str] | None,
        typer.Option(
            "-g",
            "--group",
            help="Dead letters of this consumer group; may be repeated. By default of all.",
            show_default=False,
            rich_help_panel=_CHOICE,
        ),
    ] = None
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "-t",
            "--topic",
            help="That came from this topic; may be repeated.",
            show_default=False,
            rich_help_panel=_CHOICE,
        ),
    ] = None
    tags: Annotated[
        list[str] | None,
        typer.Option("--tag", help="With this tag; may be repeated.", show_default=False, rich_help_panel=_CHOICE),
    ] = None
    keys: Annotated[
        list[str] | None,
        typer.Option("--key", help="With this key; may be repeated.", show_default=False, rich_help_panel=_CHOICE),
    ] = None
    ids: Annotated[
        list[str] | None,
        typer.Option("--id", help="With this unique id; may be repeated.", show_default=False, rich_help_panel=_CHOICE),
    ] = None
    since_ms: int | None = None
    until_ms: int | None = None
    sql: Annotated[
        str,
        typer.Option(
            help="A condition in Spark SQL: \"reconsumeTimes > 3 and cast(body as string) like '%refund%'\".",
            show_default=False,
            rich_help_panel=_CHOICE,
        ),
    ] = ""
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Only so many, the oldest.", show_default=False, rich_help_panel=_CHOICE),
    ] = None


class ResendOptions(NamedTuple):
    """Where `dlq_resend.run` sends dead letters, and how fast. Without `to` and `to_group` each letter goes to the
    topic that it came from, and all groups of that topic get it.
    """

    to: Annotated[
        str | None,
        typer.Option(
            help="To this topic, rather than those they came from.", show_default=False, rich_help_panel=_RESEND
        ),
    ] = None
    to_group: Annotated[
        bool,
        typer.Option(
            "--to-group", help="To the group alone, through its retry topic: no other gets it.", rich_help_panel=_RESEND
        ),
    ] = False
    rate: Annotated[
        float | None,
        typer.Option(min=0.01, help="Letters a second at most.", show_default=False, rich_help_panel=_RESEND),
    ] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only count what would be sent.", rich_help_panel=_RESEND)
    ] = False


class OutboxOptions(NamedTuple):
    """How `outbox.run` reads the table and writes the messages. `name`: the name by which rows are claimed and
    transactions are called.
    """

    topic: Annotated[str, typer.Option("-t", "--topic", help="Where all rows go.", show_default=False)] = ""
    key: Annotated[str, typer.Option(help="The table's unique column.")] = "id"
    order: Annotated[str, typer.Option(help="The column that orders rows; the key if not given.")] = ""
    delete: Annotated[bool, typer.Option("--delete", help="Delete rows once they are sent.")] = False
    name: Annotated[str, typer.Option(help="Of its claims and transactions; outbox-TABLE if not given.")] = ""
    batch_rows: Annotated[int, typer.Option(min=1, help="Rows in a micro-batch at most.")] = 10_000
    interval_s: Annotated[
        float | None,
        typer.Option("--interval", min=0, help="Go on for ever, looking every so many seconds; else all there is now."),
    ] = None
    delivery: Annotated[str, typer.Option(help="exactly-once or at-least-once.")] = EXACTLY_ONCE


class RestoreOptions(NamedTuple):
    """Which rows `restore.restore` and `restore.replay` send, and how: those stored in [since_ms, until_ms), ms since
    1970, None for an open end.

    A run that was stopped is continued, unless `again` is true. `state`: the folder of the progress file, by default
    the archive's, or in the working folder .rocketspark/restores for a table and .rocketspark/replays for a topic.
    `chunk_rows`: after so many rows progress is noted.
    """

    since_ms: int | None = None
    until_ms: int | None = None
    tags: Annotated[str, typer.Option(help='Only rows with one of these tags: "A || B".')] = "*"
    rate: Annotated[float | None, typer.Option(min=0.001, help="Rows per second at most.")] = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be sent.")] = False
    again: Annotated[bool, typer.Option("--again", help="Send all once more, whatever earlier runs sent.")] = False
    create: Annotated[bool, typer.Option(help="Make the target topic if it is not there.")] = True
    state: str | Path | None = None
    chunk_rows: int = 250_000
