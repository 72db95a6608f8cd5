"""`offsets export|import`: the offsets of consumer groups as JSON lines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rocketspark.cli.offset_change_texts import change_fields, effect, print_changes, totals
from rocketspark.cli.operate import Yes, confirm, print_json, run_operation
from rocketspark.cli.options import HERE, ClusterAccess, Json
from rocketspark.cli.texts import counted
from rocketspark.model.text import shown, shown_json

if TYPE_CHECKING:
    from rocketspark.admin.offsets import OffsetChange, StoredOffset

# Of a group and a topic with names as long as they may be.
LINE_BYTES_MAX = 4096

app = typer.Typer(help="Save the offsets of consumer groups, and put them back.", no_args_is_help=True)


@app.command()
def export(
    groups: Annotated[
        list[str] | None, typer.Argument(metavar="[GROUP]...", help="The groups [default: all].", show_default=False)
    ] = None,
    at: ClusterAccess = HERE,
) -> None:
    """Print the committed offsets of consumer groups, one line of JSON for each queue.

    Example: `rocketspark offsets export billing shipping > offsets.jsonl`
    """
    import msgspec

    from rocketspark.cli.streams import write

    found = run_operation(at, lambda operations: operations.export_offsets(groups or None))
    write("".join(f"{shown_json(msgspec.json.encode(each))}\n" for each in found))


@app.command("import")
def import_(
    file: Annotated[str, typer.Argument(help="A file that export wrote; - reads stdin.", show_default=False)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; print what would be changed.")] = False,
    yes: Yes = False,
    at: ClusterAccess = HERE,
    json: Json = False,
) -> None:
    """Set offsets to those in a file that export wrote; groups that are not there are created.

    Example: `rocketspark offsets import offsets.jsonl --dry-run`
    """
    wanted = list(_read(file))

    def run(*, dry: bool) -> list[OffsetChange]:
        return run_operation(at, lambda operations: operations.import_offsets(wanted, dry_run=dry))

    changes = run(dry=True)
    if not dry_run:
        if not yes and not json:
            print_changes(changes, with_topic=True)
        confirm(
            yes,
            f"Set these {counted(len(changes), 'offset')}?",
            f"{counted(len(changes), 'offset')} will be set: confirm with --yes",
        )
        changes = run(dry=False)
    if json:
        rows = [{"group": c.group, "topic": c.queue.topic, **change_fields(c)} for c in changes]
        print_json({"dry_run": dry_run, "queues": rows, **totals(changes)})
        return
    if dry_run or yes:
        print_changes(changes, with_topic=True)
    print(f"{'would be set' if dry_run else 'set'}: {counted(len(changes), 'offset')}; {effect(changes)}")


def _read(file: str) -> Iterator[StoredOffset]:
    """Yield the offsets in a file. Raises UsageError that names the line which is none."""
    import msgspec

    from rocketspark.admin.offsets import StoredOffset
    from rocketspark.errors import UsageError
    from rocketspark.model import typed_json

    name = "stdin" if file == "-" else shown(file)
    with nullcontext(sys.stdin.buffer) if file == "-" else Path(file).open("rb") as source:
        for number in count(1):
            line = source.readline(LINE_BYTES_MAX + 1)
            if not line:
                return
            if not line.strip():
                continue
            try:
                if len(line) > LINE_BYTES_MAX:
                    raise msgspec.DecodeError(f"it is longer than {LINE_BYTES_MAX} bytes")
                yield typed_json.decode(line, StoredOffset)
            except (msgspec.DecodeError, UnicodeDecodeError) as e:
                raise UsageError(f"line {number} of {name} is no offset as export writes it: {e}") from None
