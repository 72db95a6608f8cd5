"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

NAMESRV_DEFAULT = "127.0.0.1:9876"

Namesrv = Annotated[
    str,
    typer.Option(
        "-n",
        "--namesrv",
        envvar=["ROCKETMQ_NAMESRV_ADDR", "NAMESRV_ADDR"],
        help="NameServers, host:port;host:port.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, for scripts.")]
