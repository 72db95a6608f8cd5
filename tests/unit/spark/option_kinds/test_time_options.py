"""Times and durations that a person wrote."""

from __future__ import annotations

import pytest

from rocketspark.errors import ConfigError
from rocketspark.spark.option_kinds.time_options import duration_ms, time_ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("1763690000000", 1763690000000),
        ("1763690000", 1763690000),
        ("20269999", 20269999),
        ("020261121", 20261121),
        ("2026-11-21", 1795219200000),
        ("20261121T00", 1795219200000),
        ("1969-01-01", 0),
    ],
)
def test_times(text: str, ms: int) -> None:
    assert time_ms("--since", text) == ms


@pytest.mark.parametrize("text", ["20261121", "2026112106", "202611210630", "20261121063015"])
def test_digits_that_may_be_a_date_are_refused_with_both_readings(text: str) -> None:
    with pytest.raises(ConfigError, match=f"write 2026-11-21 for the date, 0{text} for the ms"):
        time_ms("--since", text)


@pytest.mark.parametrize("text", ["9" * 5000, "\u00b2", "1_000", "-1", "nan", "2026-02-30", "\x1b[0m", "\uff12"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ConfigError, match="option x is") as raised:
        time_ms("option x", text)
    assert len(str(raised.value)) < 400
    assert str(raised.value).isprintable()


def test_durations() -> None:
    texts = ("500", "30s", "15m", "1 hour", "2d")
    assert [duration_ms("option x", text) for text in texts] == [500, 30_000, 900_000, 3_600_000, 172_800_000]
    for text in ("9" * 5000, "\u00b2s", "1 week", "s", ""):
        with pytest.raises(ConfigError, match="option x is"):
            duration_ms("option x", text)
