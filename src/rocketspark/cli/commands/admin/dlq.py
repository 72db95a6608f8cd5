"""`dlq list|show|resend`: dead letters, without Spark."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from rocketspark.cli.commands.message_options import Which
from rocketspark.cli.operate import Watch, Yes, confirm, print_json, print_table, run_operation, run_watched, table
from rocketspark.cli.options import HERE, ClusterAccess, Json
from rocketspark.cli.stored_messages import IN_TABLE_CHARACTERS, message_json, when
from rocketspark.errors import RocketSparkError
from rocketspark.model.text import shown

if TYPE_CHECKING:
    from rocketspark.admin.messages.dead_letters import DeadLetterCount, Resent, StoredLetter

app = typer.Typer(help="List, show and send again dead letters.", no_args_is_help=True)
WHICH = Which()
Group = Annotated[str, typer.Argument(help="The consumer group.", show_default=False)]


@app.command("list")
def list_(
    group: Annotated[str | None, typer.Argument(help="Only this group's.", show_default=False)] = None,
    watch: Watch = None,
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Print the groups that have dead letters, with their number and the time of the newest.

    Example: `rocketspark dlq list`
    """

    def chosen(found: list[DeadLetterCount]) -> list[DeadLetterCount]:
        return [c for c in found if group in (None, c.group)]

    def drawn(found: list[DeadLetterCount]) -> Any:
        rows = [
            (
                c.group,
                f"{c.letters:,}" if c.readable else "unreadable: set its permission to 6",
                when(c.newest_ms),
            )
            for c in chosen(found)
        ]
        return table(("group", "letters", "newest"), rows, right=("letters",)) if rows else "no dead letters"

    def told(found: list[DeadLetterCount]) -> list[dict[str, Any]]:
        names = ("group", "topic", "letters", "readable", "newest_ms")
        return [{name: getattr(c, name) for name in names} for c in chosen(found)]

    run_watched(at, watch, lambda operations: operations.list_dead_letters(), json=json, told=told, drawn=drawn)


@app.command()
def show(
    group: Group,
    which: Which,
    limit: Annotated[int, typer.Option("-l", "--limit", min=1, max=10_000, help="Show so many at most.")] = 20,
    error_property: Annotated[
        str, typer.Option(help="The property in which the application notes an error.", show_default=False)
    ] = "",
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Print a group's dead letters, oldest first: what they are, where they came from, after how many attempts.

    Brokers note no error; --error-property shows the one that an application puts into its messages. --since and
    --until mean when they became dead letters.

    Example: `rocketspark dlq show billing --since 24h --json`
    """
    search = which.search()
    found = run_operation(at, lambda operations: operations.show_dead_letters(group, search, limit=limit))
    if json:
        letters = [_letter_json(x, error_property) for x in found.letters]
        print_json({"group": group, "letters": letters, "looked_at": found.looked_at, "stopped": found.stopped})
        return
    if found.letters:
        columns = ("died", "from topic", "id", "attempts", "tag", "keys", "error", "body")
        print_table(columns, (_row(x, error_property) for x in found.letters))
    more = f"; stopped at {'the limit' if found.stopped == 'limit' else 'the bound'}" if found.stopped else ""
    print(f"{len(found.letters):,} letters{more}", file=sys.stderr)


def _letter_json(x: StoredLetter, error_property: str) -> dict[str, Any]:
    own = {"origin_topic": x.origin_topic, "place": x.place, "resend_id": x.resend_id}
    error = {"error": x.message.properties.get(error_property, "")} if error_property else {}
    return own | error | message_json(x.message)


def _row(x: StoredLetter, error_property: str) -> tuple[str, ...]:
    m = x.message
    text = m.body[: 4 * IN_TABLE_CHARACTERS].decode("utf-8", "backslashreplace")
    return (
        when(m.store_time_ms),
        x.origin_topic or "?",
        m.message_id,
        str(m.reconsume_times),
        m.tag or "",
        " ".join(m.keys),
        m.properties.get(error_property, "") if error_property else "",
        shown(text, characters_max=IN_TABLE_CHARACTERS),
    )


def _print_resent(done: Sequence[Resent]) -> None:
    if done:
        rows = ((r.message_id, r.place, r.target, r.outcome, r.why) for r in done)
        print_table(("id", "place", "to topic", "what became of it", "why"), rows)
    counts = {name: sum(r.outcome == name for r in done) for name in ("sent", "would send", "already", "failed")}
    print(", ".join(f"{n:,} {name}" for name, n in counts.items() if n) or "no letter is meant", file=sys.stderr)


class Target(NamedTuple):
    """The options that say where letters go."""

    to: Annotated[
        str | None,
        typer.Option(help="The topic to send them to, if not the one each came from.", show_default=False),
    ] = None
    to_group: Annotated[
        bool, typer.Option("--to-group", help="To the group's own retry topic: no other group gets them.")
    ] = False


TARGET = Target()


@app.command()
def resend(
    group: Group,
    ids: Annotated[
        list[str] | None, typer.Argument(help="The letters' ids, as `dlq show` prints them.", show_default=False)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All letters, or those that --tag and the like choose.")] = False,
    which: Which = WHICH,
    target: Target = TARGET,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Send nothing; say what would be sent.")] = False,
    yes: Yes = False,
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Send dead letters again, each once, whoever sent some before: by the ids of `pipeline dlq --resend`.

    Before one is sent, the brokers' indexes are asked whether it was sent already. Exit code 1 if one was not sent.

    Example: `rocketspark dlq resend billing 7F000001B2A118B4AAC20A5C3F310000`

    Example: `rocketspark dlq resend billing --all --since 24h --dry-run`
    """
    from rocketspark.admin.messages.dead_letters import failures

    if every == bool(ids):
        raise typer.BadParameter("give the letters' ids, or --all", param_hint="IDS")
    if not every and any(which):
        raise typer.BadParameter("--tag, --since and what else chooses letters go with it", param_hint="--all")
    if target.to is not None and target.to_group:
        raise typer.BadParameter("give one of them", param_hint="--to, --to-group")
    search = which.search()
    if every and not dry_run:
        where = target.to or ("its retry topic" if target.to_group else "the topics they came from")
        question = f"Send all dead letters of {shown(group)} that are meant to {shown(where)}?"
        confirm(yes, question, "sending all letters again needs --yes where nobody can be asked")
    done = run_operation(
        at,
        lambda operations: operations.resend_dead_letters(
            group, None if every else ids, **target._asdict(), dry_run=dry_run, search=search
        ),
    )
    if json:
        print_json({"group": group, "dry_run": dry_run, "letters": done})
    else:
        _print_resent(done)
    if failed := failures(done):
        raise RocketSparkError(f"{len(failed):,} of {len(done):,} letters were not sent: {failed[0].why}")
