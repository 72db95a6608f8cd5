"""`run`: a script whose Spark finds this package. Rule: the command becomes the script's process."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from rocketspark.errors import ConfigError


def run(
    script: Annotated[str, typer.Argument(help="The script; with -m a module's name.", show_default=False)],
    arguments: Annotated[list[str] | None, typer.Argument(help="What it is given.", show_default=False)] = None,
    module: Annotated[bool, typer.Option("-m", "--module", help="Run a module, as python -m does.")] = False,
) -> None:
    """Run a Python script that uses Spark, with this Python for Spark's workers too.

    It may be any script; its exit code is the command's. On a cluster the executors use their own python3.

    Example: `rocketspark run job.py --day 2026-11-21`

    Example: `rocketspark run -m jupyter lab`
    """
    from rocketspark.spark.python_workers import prefer_this_python

    if not module and not os.path.isfile(script):
        raise ConfigError(f"{script}: there is no such file")
    prefer_this_python()
    sys.stdout.flush()
    how = ["-m"] if module else []
    os.execv(sys.executable, [sys.executable, *how, script, *(arguments or [])])
