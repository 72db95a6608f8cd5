"""Times and figures as commands show them, and the places in queues that people name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import typer

from rocketspark.cli.texts import clock, counted, place, span


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1000, "1.0 s"),
        (59_940, "59.9 s"),
        (60_000, "1 min 0 s"),
        (3_599_999, "59 min 59 s"),
        (3_600_000, "1 h 0 min"),
        (86_399_999, "23 h 59 min"),
        (187_200_000, "2 d 4 h"),
    ],
)
def test_spans(ms: int, text: str) -> None:
    assert span(ms) == text


def test_counts_and_clocks() -> None:
    assert (counted(0, "message"), counted(1, "message"), counted(2000, "queue")) == (
        *("0 messages", "1 message", "2,000 queues"),
    )
    at = datetime(2026, 1, 31, 12, 0, 5)
    assert clock(int(at.timestamp() * 1000)) == "2026-01-31 12:00:05"
    # No calendar has it.
    assert clock(10**18) == str(10**18)


def test_places() -> None:
    assert (place("--to", "earliest"), place("--to", "latest"), place("--to", "0012")) == ("earliest", "latest", 12)
    assert place("--to", "2026-01-31T12:00+00:00") == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert place("--to", "2026-01-31") == datetime(2026, 1, 31)


@pytest.mark.parametrize(("text", "ago"), [("15m", timedelta(minutes=15)), ("2h", timedelta(hours=2))])
def test_places_some_time_ago(text: str, ago: timedelta) -> None:
    before = datetime.now(UTC)
    found = place("--to", text)
    assert isinstance(found, datetime)
    assert before - ago <= found <= datetime.now(UTC) - ago
    assert place("--to", "99999999d") == datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("text", ["", "soon", "-1", "15x", "²", "1" * 30, "2026-13-01", "0001-01-01"])
def test_no_places(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="earliest, latest, an offset, a time such as"):
        place("--to", text)
