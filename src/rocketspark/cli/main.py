"""The `rocketspark` command. Rule: a user's mistake is one line on stderr and exit code 1 (2: wrong usage)."""

from __future__ import annotations

import sys
from typing import Any

import typer

from rocketspark.cli.commands import consume, outbox, pipeline, produce, servers, topic
from rocketspark.cli.commands.pipelines import spark_env
from rocketspark.errors import RocketSparkError

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
app.command("broker")(servers.broker)
app.add_typer(topic.app, name="topic")
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.add_typer(outbox.app, name="outbox")
app.add_typer(pipeline.app, name="pipeline")
app.command("spark-env")(spark_env.spark_env)


@app.callback(invoke_without_command=True)
def _root(context: typer.Context, version: bool = typer.Option(False, "--version", help="Print the version.")) -> None:
    if version:
        from importlib.metadata import version as installed

        print(installed("rocketspark"))
        raise typer.Exit


def main(arguments: list[str] | None = None) -> None:
    """Run the command and exit with its code."""
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit code: 0, 1 for an error, 2 for wrong usage, 130 for Ctrl-C."""
    try:
        result: Any = app(args=arguments, prog_name="rocketspark", standalone_mode=False)
        sys.stdout.flush()
    except typer.Abort:
        return 130
    except KeyboardInterrupt:
        return 130
    except typer.TyperException as e:
        return _usage_error(e)
    except RocketSparkError as e:
        return _error(str(e))
    except OSError as e:
        where = f"{e.filename}: " if e.filename else ""
        return _error(f"{where}{e.strerror or e}")
    return result if isinstance(result, int) else 0


def _error(text: str) -> int:
    print("error: " + " ".join(text.split()), file=sys.stderr)
    return 1


def _usage_error(error: typer.TyperException) -> int:
    context = getattr(error, "ctx", None)
    text = error.format_message() if hasattr(error, "format_message") else str(error)
    if type(error).__name__ == "NoArgsIsHelpError":
        print(text or (context.get_help() if context else ""), file=sys.stderr)
        return 2
    hint = f" (see `{context.command_path} --help`)" if context else ""
    print(f"error: {' '.join(text.split())}{hint}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
