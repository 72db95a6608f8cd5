"""What the commands that ask a cluster share: how an operation of an operator is run, once or again and again, on which
brokers, whether the person at the terminal means it, and how its result is printed: as JSON, or as a table.

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
    from rich.console import Console, RenderableType
    from rich.table import Table

    from rocketspark.admin.operations import AsyncAdmin

T = TypeVar("T")
S = TypeVar("S", bound="OnBroker")

# The width of a table that is not printed on a terminal.
NO_WIDTH = 100_000

Watch = Annotated[
    float | None,
    typer.Option(
        "--watch", metavar="SECONDS", min=0.1, show_default=False, help="Ask again every SECONDS, until Ctrl-C."
    ),
]
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


def run_watched(
    at: ClusterAccess,
    watch: float | None,
    act: Callable[[AsyncAdmin], Awaitable[T]],
    *,
    json: bool,
    told: Callable[[T], Any],
    drawn: Callable[[T], RenderableType],
) -> None:
    """Run an operation as `run_operation` does and print its result; with `watch` again every so many seconds, until
    Ctrl-C.

    `told`: returns the value that --json prints, `drawn`: what people see: a table, a text, a `Group` of both.
    """
    if watch is None:
        found = run_operation(at, act)
        if json:
            print_json(told(found))
        else:
            console().print(drawn(found))
        return
    seconds, rounds = watch, _Rounds(json)

    async def go_on(operations: AsyncAdmin) -> None:
        import asyncio

        from rocketspark.errors import RocketSparkError

        while True:
            try:
                found = await act(operations)
            except RocketSparkError as e:
                if not rounds.shown:
                    raise
                rounds.failed(e)
            else:
                rounds.show(told(found) if json else drawn(found))
            await asyncio.sleep(seconds)

    try:
        with rounds:
            run_operation(at, go_on)
    except KeyboardInterrupt:
        if not rounds.shown:
            raise


class _Rounds:
    """The answers of a command that asks again and again: lines of JSON, or what is drawn anew on a terminal, else
    printed one below the other.
    """

    def __init__(self, json: bool) -> None:
        from rich.live import Live

        self._json = json
        self._console = console()
        self._live = None if json or not sys.stdout.isatty() else Live(console=self._console, auto_refresh=False)
        self._last: RenderableType = ""
        self.shown = False

    def __enter__(self) -> None:
        if self._live is not None:
            self._live.start()

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, what: Any) -> None:
        self.shown, self._last = True, what
        if self._json:
            print_json(what)
        elif self._live is not None:
            self._live.update(what, refresh=True)
        else:
            self._console.print(what)
        sys.stdout.flush()

    def failed(self, error: Exception) -> None:
        from rich.console import Group
        from rich.text import Text

        line = f"error: {shown(' '.join(str(error).split()), characters_max=2000)}"
        if self._live is not None:
            self._live.update(Group(self._last, Text(line)), refresh=True)
        else:
            print(line, file=sys.stderr)


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


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[str] = (), title: str = ""
) -> Table:
    """Return a table of texts below the columns' names. `right`: the columns of numbers, which stand at the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    numbers = set(right)
    # It may be wider than the table, as long as it is one line.
    is_line = len(title) < console().width
    above = Text(shown(title), no_wrap=is_line, overflow="ignore" if is_line else "fold") if title else None
    made = Table(box=box.SIMPLE_HEAD, title=above, title_justify="left")
    for column in columns:
        made.add_column(column, overflow="fold", justify="right" if column in numbers else "left")
    for row in rows:
        made.add_row(*(Text(shown(cell)) for cell in row))
    return made


def console() -> Console:
    """Return where tables are printed: stdout, on which nothing is cut unless it is a terminal."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else NO_WIDTH)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[str] = ()) -> None:
    """Print rows of texts below the columns' names. `right`: as `table` takes it."""
    console().print(table(columns, rows, right=right))


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
