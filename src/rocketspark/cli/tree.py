"""The commands of `rocketspark`. Rule: arguments that no command could use are refused here, for all of them."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, get_args

import typer

from rocketspark.cli.commands import (
    backup,
    console,
    consume,
    context,
    outbox,
    pipeline,
    produce,
    proxy,
    servers,
    topic_files,
)
from rocketspark.cli.commands.admin import (
    acl,
    broker,
    client,
    cluster,
    controllers,
    delayed,
    dlq,
    group,
    message,
    offsets,
    quarantine,
    topic,
    transaction,
    user,
)
from rocketspark.cli.commands.pipelines.spark_programs import run, spark_env
from rocketspark.cli.completion import COMPLETED
from rocketspark.cli.options import with_groups
from rocketspark.model.text import shown

# Floats are seconds: some thirty years.
SECONDS_MAX = 1_000_000_000
COUNT_MAX = 1_000_000_000_000
# The characters that Python puts for bytes of an argument that are no UTF-8.
_SURROGATES = re.compile("[\ud800-\udfff]")

app = typer.Typer(
    name="rocketspark",
    help="A message system that speaks Apache RocketMQ.\n\nStart one with `rocketspark server`.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("server")(servers.server)
app.command("namesrv")(servers.namesrv)
app.add_typer(broker.app, name="broker")
app.command("controller")(servers.controller)
app.add_typer(controllers.app, name="controllers")
app.command("proxy")(proxy.proxy)
app.command("console")(console.console)
app.command("backup")(backup.backup)
app.command("restore")(backup.restore)
app.add_typer(cluster.app, name="cluster")
app.add_typer(context.app, name="context")
app.add_typer(topic.app, name="topic")
app.add_typer(group.app, name="group")
app.add_typer(offsets.app, name="offsets")
app.add_typer(client.app, name="client")
app.add_typer(message.app, name="message")
app.add_typer(dlq.app, name="dlq")
app.add_typer(delayed.app, name="delayed")
app.add_typer(transaction.app, name="transaction")
app.add_typer(user.app, name="user")
app.add_typer(acl.app, name="acl")
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.command("export")(topic_files.export)
app.command("import")(topic_files.import_)
app.command("query")(topic_files.query)
app.add_typer(outbox.app, name="outbox")
app.add_typer(quarantine.app, name="quarantine")
app.add_typer(pipeline.app, name="pipeline")
app.command("run", context_settings={"allow_interspersed_args": False})(run)
app.command("spark-env")(spark_env)


@app.callback(invoke_without_command=True)
def _root(context: typer.Context, version: bool = typer.Option(False, "--version", help="Print the version.")) -> None:
    if version:
        from importlib.metadata import version as installed

        print(installed("rocketspark"))
        raise typer.Exit


def _take_groups(commands: typer.Typer) -> None:
    """Have typer see the options in the groups of options that commands take."""
    for command in commands.registered_commands:
        if command.callback is not None:
            command.callback = with_groups(command.callback)
            _complete(command.callback)
    for below in commands.registered_groups:
        if below.typer_instance is not None:
            _take_groups(below.typer_instance)


def _complete(command: Callable[..., None]) -> None:
    """Have shells complete a command's arguments that are names of the cluster's."""
    for parameter in inspect.signature(command).parameters.values():
        for note in get_args(parameter.annotation)[1:]:
            if parameter.name in COMPLETED and getattr(note, "autocompletion", "") is None:
                note.autocompletion = COMPLETED[parameter.name]


_take_groups(app)


def _or_below(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that does nothing if the line names one below it."""
    command = with_groups(command)

    @functools.wraps(command)
    def run_here(context: typer.Context, **given: Any) -> None:
        if context.invoked_subcommand is None:
            command(**given)
            return
        for name in given:
            source = context.get_parameter_source(name)
            if source is not None and source.name == "COMMANDLINE":
                raise typer.BadParameter(f"options stand after it: broker {context.invoked_subcommand} …")

    first = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    parameters = [first, *inspect.signature(command).parameters.values()]
    run_here.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run_here.__annotations__ = {p.name: p.annotation for p in parameters}
    return run_here


# One that is run has the name of what operators ask about.
broker.app.callback(invoke_without_command=True)(_or_below(servers.broker))


@functools.cache
def tree() -> Any:
    """Return typer's group of all commands, each of which checks its arguments before it runs. It is made once, in
    0.2 s of processor.
    """
    root = typer.main.get_command(app)
    for command in leaves(root):
        command.callback = _checked(command)
    return root


def leaves(command: Any) -> Iterator[Any]:
    """Yield the commands of a group and of the groups below it; a group that does something by itself is one too."""
    below = getattr(command, "commands", None)
    if not below:
        yield command
        return
    if command.invoke_without_command and command.name != app.info.name:
        yield command
    for each in below.values():
        yield from leaves(each)


def _checked(command: Any) -> Callable[..., Any]:
    act = command.callback
    hints = {p.name: max(p.opts, key=len) if p.opts[0].startswith("-") else p.name.upper() for p in command.params}

    @functools.wraps(act)
    def checked(**values: Any) -> Any:
        for name, value in values.items():
            for each in value if isinstance(value, list | tuple) else (value,):
                if wrong := mistake(each):
                    raise typer.BadParameter(wrong, param_hint=hints.get(name, name))
        return act(**values)

    return checked


def mistake(value: object) -> str | None:
    """Return why no command can use an argument's value, such as a number that is too large; None if it can be used."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, float) and not abs(value) <= SECONDS_MAX:
        return f"{value!r} is no number from {-SECONDS_MAX:,} to {SECONDS_MAX:,}"
    if isinstance(value, int) and abs(value) > COUNT_MAX:
        return f"a number of {value.bit_length()} bits is too large: {COUNT_MAX:,} is the most"
    if type(value) is str and _SURROGATES.search(value):
        return f"{shown(value, characters_max=60)!r} is no UTF-8 text"
    return None
