"""What the commands about users and rules share: on which brokers they work, and what was copied to which."""

from __future__ import annotations

from typing import Annotated

import typer

from rocketspark.cli.operate import print_json
from rocketspark.model.text import shown

Broker = Annotated[
    list[str] | None,
    typer.Option(
        "-b", "--broker", help="Only on this broker, a name or host:port; may be repeated [default: masters]."
    ),
]
Cluster = Annotated[str | None, typer.Option("-c", "--cluster", help="Only on the masters of this cluster.")]


def print_copied(copied: dict[str, list[str]], *, json: bool) -> None:
    """Print what was copied, by the broker it was copied to."""
    if json:
        print_json(copied)
        return
    for broker, names in copied.items():
        print(f"copied to {shown(broker)}: {', '.join(map(shown, names)) or 'nothing'}")
