"""What the commands that ask a cluster share: how an operation of an operator is run, on which brokers, whether the
person at the terminal means it, and how its result is printed: as JSON, or as a table.

Rule: what comes from a server is printed escaped, and styled by nothing in it; in a file or a pipe each row of a table
is one line, as wide as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Protocol, TypeVar

import typer

from rocketspark.cli.options import HERE, ClusterAccess, Json
from rocketspark.model.text import shown, shown_json

if TYPE_CHECKING:
    from rocketspark.admin.operations import AsyncAdmin

T = TypeVar("T")
S = TypeVar("S", bound="OnBroker")

# The width of a table that is not printed on a terminal.
NO_WIDTH = 100_000

Yes = Annotated[bool, typer.Option("-y", "--yes", help="Don't ask.")]
CopyFrom = Annotated[str, typer.Argument(metavar="FROM", help="The broker to copy from, a name or host:port.")]
CopyTo = Annotated[
    list[str] | None, typer.Option("--to", help="The broker to copy to; may be repeated [default: other masters].")
]


class OnBroker(Protocol):
    """A user or a rule as one broker has it: any value that names its broker."""

    @property
    def broker_name(self) -> str: ...


class OnBrokers(NamedTuple):
    """The options of the commands about users and rules: the cluster, and which of its brokers they work on."""

    broker: Annotated[
        list[str] | None,
        typer.Option(
            "-b", "--broker", help="Only on this broker, a name or host:port; may be repeated [default: masters]."
        ),
    ] = None
    cluster: Annotated[str | None, typer.Option("-c", "--cluster", help="Only on the masters of this cluster.")] = None
    at: ClusterAccess = HERE
    json: Json = False

    def named(self) -> dict[str, Any]:
        """Return the arguments `cluster` and `brokers` of an operation."""
        return {"cluster": self.cluster, "brokers": self.broker or None}


class Masters(NamedTuple):
    """The options of the commands that create or change topics and groups: on which of a cluster's masters."""

    cluster: Annotated[str | None, typer.Option(help="Only on this cluster's brokers.")] = None
    broker: Annotated[list[str] | None, typer.Option(help="Only on this broker; may be repeated.")] = None

    def named(self) -> dict[str, Any]:
        """Return the arguments `cluster` and `brokers` of an operation."""
        return {"cluster": self.cluster, "brokers": self.broker or None}


# The defaults of a command's argument `on`.
EVERYWHERE, ALL_MASTERS = OnBrokers(), Masters()


def run_operation(at: ClusterAccess, act: Callable[[AsyncAdmin], Awaitable[T]]) -> T:
    """Connect to the cluster, run the coroutine that `act` makes of its AsyncAdmin, and return the result."""
    import asyncio

    from rocketspark.admin.operations import AsyncAdmin
    from rocketspark.cli.serving.serve import loop_factory

    options = at.client_options()

    async def run() -> T:
        async with AsyncAdmin(at.namesrv, **options) as operations:
            return await act(operations)

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(run())


def print_json(value: Any) -> None:
    """Print a value as one line of JSON on stdout."""
    import msgspec

    print(shown_json(msgspec.json.encode(value)))


def confirm(yes: bool, question: str, otherwise: str) -> None:
    """Ask the person at the terminal to confirm something that cannot be undone, unless `yes` (option --yes) is true.

    Raises BadParameter with the text `otherwise` where stdin is no terminal, Abort if the answer is no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter(otherwise)
    typer.confirm(question, abort=True)


def listed(names: Iterable[str]) -> str:
    """Return names as one text for a person: escaped, with commas between."""
    return ", ".join(map(shown, names))


def print_done(done: str, user: str, what: str, brokers: Iterable[str], *, json: bool, **more: str) -> None:
    """Print what was done about a user on these brokers. `done`: the verb; `what`: the rest of the sentence, for
    people; `more`: further fields of the JSON.
    """
    if json:
        print_json({"user": user, "brokers": list(brokers), "done": done, **more})
    else:
        print(f"{done} {what} on {listed(brokers)}")


def print_copied(copied: dict[str, list[str]], *, json: bool) -> None:
    """Print what was copied, by the broker it was copied to."""
    if json:
        print_json(copied)
        return
    for broker, names in copied.items():
        print(f"copied to {shown(broker)}: {listed(names) or 'nothing'}")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows of texts below the columns' names."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(shown(cell)) for cell in row))
    Console(width=None if sys.stdout.isatty() else NO_WIDTH).print(table)


def print_found(
    found: Sequence[S], columns: Sequence[str], row: Callable[[S], tuple[str, ...]], nothing: str, *, json: bool
) -> None:
    """Print what brokers have; in a table, equal rows of several brokers are one row that names them all.

    `columns`: the table's columns after the one of brokers; `row`: returns the texts of one row; `nothing`: printed
    where nothing was found.
    """
    if json:
        print_json(found)
        return
    brokers: dict[tuple[str, ...], list[str]] = {}
    for each in found:
        brokers.setdefault(row(each), []).append(each.broker_name)
    if brokers:
        print_table(("broker", *columns), ((", ".join(names), *texts) for texts, names in brokers.items()))
    else:
        print(nothing, file=sys.stderr)
