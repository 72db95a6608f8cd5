"""A result as text and as JSON."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from rocketspark.spark.pipelines.report import show, text


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


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, ""), (True, "yes"), (12345, "12,345"), (1.5, "1.5"), (2.0, "2"), ([1, "x"], "1, x"), ({"a": 1}, "a 1")],
)
def test_values(value: Any, shown: str) -> None:
    assert text(value) == shown
