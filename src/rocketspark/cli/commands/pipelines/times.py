"""`--from` and `--to` of pipelines: a time, or how long ago."""

from __future__ import annotations

import re
import time
from typing import Annotated

import typer

_HELP = "2026-01-31T12:00Z (UTC where no zone is named), ms since 1970, or how long ago: 90s, 15m, 24h, 7d."
From = Annotated[str, typer.Option("--from", help=f"Begin: {_HELP}", show_default=False)]
To = Annotated[str, typer.Option("--to", help="End, not included; as --from.", show_default=False)]
_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def moment(option: str, text: str, now_ms: int | None = None) -> int | None:
    """ms since 1970 of what an option says, None where it is not given. Raises ConfigError."""
    text = text.strip()
    if not text:
        return None
    if ago := re.fullmatch(r"(\d{1,9})([smhd])", text):
        now_ms = int(time.time() * 1000) if now_ms is None else now_ms
        return max(0, now_ms - int(ago[1]) * _UNITS_MS[ago[2]])
    from rocketspark.spark.options import time_ms

    return time_ms(option, text)
