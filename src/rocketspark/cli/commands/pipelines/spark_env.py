"""`spark-env`: the archive that gives executors this package. Rule: result on stdout, progress on stderr."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rocketspark.cli.operate import print_json
from rocketspark.cli.options import Json
from rocketspark.errors import ConfigError


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
