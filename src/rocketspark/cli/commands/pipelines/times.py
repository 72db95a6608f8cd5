"""`--since` and `--until` of pipelines: a time, or an age such as 24h."""

from __future__ import annotations

import re
import time
from typing import Annotated

import typer

from rocketspark.model.text import shown

_HELP = "2026-01-31T12:00Z (UTC where no zone is named), ms since 1970, or how long ago: 90s, 15m, 24h, 7d."
Since = Annotated[str, typer.Option("--since", help=f"Begin: {_HELP}", show_default=False)]
Until = Annotated[str, typer.Option("--until", help="End, not included; as --since.", show_default=False)]
_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def check_times(since_ms: int | None, until_ms: int | None) -> None:
    """Raise BadParameter for a time range that is empty, before anything is started."""
    from rocketspark.errors import ConfigError
    from rocketspark.spark.option_values import check_range

    try:
        check_range(since_ms, until_ms)
    except ConfigError as e:
        raise typer.BadParameter(str(e), param_hint="--until") from None


def time_range(since: str | None, until: str | None) -> tuple[int | None, int | None]:
    """Return --since and --until in ms since 1970. Raises BadParameter, also for a range that is empty."""
    found = moment("--since", since), moment("--until", until)
    check_times(*found)
    return found


def moment(option: str, text: str | None, now_ms: int | None = None) -> int | None:
    """Return an option's time in ms since 1970, None where it is not given. Raises BadParameter."""
    text = (text or "").strip()
    if not text:
        return None
    if ago := re.fullmatch(r"([0-9]{1,9})([smhd])", text):
        now_ms = int(time.time() * 1000) if now_ms is None else now_ms
        return max(0, now_ms - int(ago[1]) * _UNITS_MS[ago[2]])
    from rocketspark.errors import ConfigError
    from rocketspark.spark.option_values import time_ms

    try:
        return time_ms(option, text)
    except (ValueError, OverflowError) as e:
        if isinstance(e, ConfigError) and "may be a date" in str(e):
            raise typer.BadParameter(str(e), param_hint=option) from None
        wanted = "a time such as 2026-01-31T12:00, ms since 1970, or how long ago, such as 24h, is needed"
        raise typer.BadParameter(f"{shown(text, characters_max=60)!r}: {wanted}", param_hint=option) from None
