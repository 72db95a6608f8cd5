"""`run` and `spark-env`: Spark programs that are no pipelines of ours. `run` becomes the process of a script whose
Spark finds this package; `spark-env` makes the archive that gives executors this package, with progress on stderr.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from rocketspark.cli.operate import print_json
from rocketspark.cli.options import Json
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


def spark_env(
    target: Annotated[Path, typer.Argument(help="The archive to write.", show_default=False)],
    extra: Annotated[
        list[str] | None,
        typer.Option("--extra", help="What else executors need: pipelines, schemas (for Avro and Protobuf)."),
    ] = None,
    json: Json = False,
) -> None:
    """Pack this package and what it needs for the executors of a Spark cluster, from what is installed here.

    Prints the settings to start Spark with. The cluster's Python must be of the same version, on the same kind of
    machine.

    Example: `rocketspark spark-env rocketspark-env.tar.gz`
    """
    try:
        from rocketspark.spark import environment
    except ModuleNotFoundError as e:
        raise ConfigError(f"{e.name} is missing: pip install 'rocketspark[spark]'") from None
    if not target.name.endswith((".tar.gz", ".tgz")):
        raise ConfigError(f"{target}: Spark unpacks archives by their name: end it in .tar.gz")
    count = environment.pack(target, ("spark", *(extra or ())), lambda name: print(f"  {name}", file=sys.stderr))
    settings = environment.settings(target.resolve())
    if json:
        print_json({"archive": str(target), "packages": count, "settings": settings})
        return
    print(f"{target}: {count} packages, {target.stat().st_size / (1 << 20):.0f} MiB; start Spark with")
    for name, value in settings.items():
        print(f"  --conf {name}={value}")
