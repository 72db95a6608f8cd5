"""Times and durations that a person wrote, in ms. Rule: a text that may mean two things is refused, with both."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

from rocketspark.errors import ConfigError
from rocketspark.model.text import shown, whole_number

# Spark's units of time.
_UNITS_MS = {
    **dict.fromkeys(("", "ms"), 1),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1000),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
    "us": 0.001,
}


def duration_ms(name: str, text: str) -> int:
    """Return the ms of a duration as Spark writes it: a number and a unit, ms where there is none. Raises
    ConfigError.
    """
    found = re.fullmatch(r"([0-9]{1,12}) *([a-z]*)", text.lower())
    if found is None or found[2] not in _UNITS_MS:
        raise ConfigError(f"{name} is {shown(text)!r}: a time such as 500ms, 30s, 15m or 1h is needed")
    return int(int(found[1]) * _UNITS_MS[found[2]])


def check_range(since_ms: int | None, until_ms: int | None) -> None:
    """Raise ConfigError for a time range [since, until) that holds no moment; None is open."""
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        raise ConfigError(f"the time range is empty: it begins at {since_ms} ms and ends at {until_ms} ms")


def time_ms(name: str, text: str) -> int:
    """Return the ms since 1970 of the time `name`, given as ms or ISO 8601 (UTC where no zone is named). Raises
    ConfigError.
    """
    if re.fullmatch("[0-9]+", text):
        if _reads_as_date(text):
            raise ConfigError(
                f"{name} is {text!r}, which may be a date or ms since 1970: write {text[:4]}-{text[4:6]}-{text[6:8]}"
                f" for the date, 0{text} for the ms"
            )
        if (since_ms := whole_number(text)) is None:
            raise ConfigError(f"{name} is {shown(text, characters_max=60)!r}: that many ms no clock counts")
        return since_ms
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{name} is {shown(text)!r}: ms since 1970, or ISO 8601 such as 2026-01-31T12:00:00Z, is needed"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    # Messages carry whole ms: the first one at or after a finer time is that of the next.
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return max(0, math.ceil((since.days * 86_400 + since.seconds) * 1000 + since.microseconds / 1000))


def _reads_as_date(text: str) -> bool:
    """Tell whether digits are a date of our days as 20261121, an hour, minute and second after it or not."""
    form = {8: "%Y%m%d", 10: "%Y%m%d%H", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}.get(len(text))
    if form is None or not "1970" <= text[:4] <= "2100":
        return False
    try:
        datetime.strptime(text, form)
    except ValueError:
        return False
    return True
