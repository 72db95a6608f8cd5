"""A result as text and as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any, NamedTuple

import pytest

from rocketspark.spark.pipelines.parts.report import show, text


class Queue(NamedTuple):
    topic: str
    rows: int


class Result(NamedTuple):
    rows: int
    took_s: float
    queues: list[Queue]
    none: list[Queue]


RESULT = Result(1234, 0.5, [Queue("a [b]", 1200), Queue("c", 34)], [])


def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    show(RESULT._asdict(), json=True)
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    queues = [{"topic": "a [b]", "rows": 1200}, {"topic": "c", "rows": 34}]
    assert json.loads(out) == {"rows": 1234, "took_s": 0.5, "queues": queues, "none": []}


def test_text_holds_lines_and_tables(capsys: pytest.CaptureFixture[str]) -> None:
    show(RESULT._asdict())
    out = capsys.readouterr().out
    assert out.startswith("rows: 1,234\ntook s: 0.5\nqueues")
    assert "a [b]" in out
    assert "1,200" in out
    assert "none" not in out


PLACE = {"message_id": "7F0000013401BCA9297E86A4E7470000" * 3, "produced": 1, "stored_ms": 1_795_734_338_003}
TIME = "2026-11-26T23:05:38.003Z"


@pytest.mark.shows("ids and times in tables")
@pytest.mark.parametrize("terminal", [False, True])
def test_no_id_is_broken_and_times_are_times(
    terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a pipe a record is one line, however wide; on a narrow terminal a value is one."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    show({"gaps": [PLACE, PLACE], "last_ms": PLACE["stored_ms"], "took_ms": 1234})
    lines = capsys.readouterr().out.splitlines()
    found = [line for line in lines if str(PLACE["message_id"]) in line]
    assert len(found) == 2
    assert f"last: {TIME}" in lines
    assert "took ms: 1,234" in lines
    if terminal:
        assert lines[:4] == [
            "gaps: 1 of 2",
            f"  message id: {PLACE['message_id']}",
            "  produced: 1",
            f"  stored: {TIME}",
        ]
    else:
        assert all(TIME in line for line in found)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, ""), (True, "yes"), (12345, "12,345"), (1.5, "1.5"), (2.0, "2"), ([1, "x"], "1, x"), ({"a": 1}, "a 1")],
)
def test_values(value: Any, shown: str) -> None:
    assert text(value) == shown
