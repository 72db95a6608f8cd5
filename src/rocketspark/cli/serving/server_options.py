"""Options that the commands which run servers share, and how they warn of what stands in a server's file."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rocketspark.model.text import shown


class LogLevel(StrEnum):
    """The level of the log on stderr."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


Secure = Annotated[
    Path | None,
    typer.Option(help="Take TLS and signed requests alone, with what `server --secure` keeps in its folder secure."),
]
Level = Annotated[LogLevel, typer.Option(help="How much to log on stderr.")]


def warn(warnings: list[str]) -> None:
    """Print warnings on stderr."""
    for warning in warnings:
        print(f"warning: {shown(warning, characters_max=1000)}", file=sys.stderr)
