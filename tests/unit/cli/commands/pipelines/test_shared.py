"""--since and --until: times, and how long ago."""

from __future__ import annotations

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.cli import main
from rocketspark.cli.commands.pipelines.shared import moment

# What knows of times is Spark's side of the command line.
pytestmark = pytest.mark.spark

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("", None),
        (None, None),
        ("0", 0),
        ("1700000000000", 1_700_000_000_000),
        ("2026-01-31T12:00Z", 1_769_860_800_000),
        ("2026-01-31T12", 1_769_860_800_000),
        ("2026-01-31T13:00+01:00", 1_769_860_800_000),
        ("90s", NOW_MS - 90_000),
        ("15m", NOW_MS - 900_000),
        ("24h", NOW_MS - 86_400_000),
        (" 7d ", NOW_MS - 604_800_000),
        ("999999999d", 0),
    ],
)
def test_times(text: str | None, time_ms: int | None) -> None:
    assert moment("--since", text, NOW_MS) == time_ms


@given(st.text())
def test_any_text_is_a_time_or_wrong_usage(text: str) -> None:
    try:
        found = moment("--since", text, NOW_MS)
    except typer.BadParameter:
        return
    assert found is None or found >= 0


@pytest.mark.parametrize(
    "command",
    [
        ["restore", "archive", "orders"],
        ["replay", "orders", "--to", "again"],
        ["audit", "orders"],
        ["trace"],
        ["dlq", "--group", "billing"],
    ],
)
def test_an_empty_time_range_is_wrong_usage(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    times = ["--since", "2026-11-21T07", "--until", "2026-11-21T06"]
    assert main.run(["pipeline", *command, *times, "-n", "127.0.0.1:1"]) == 2
    assert "the time range is empty" in " ".join(capsys.readouterr().err.split())
