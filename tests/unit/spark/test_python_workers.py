"""What a worker is settled to: no task sees it, and a process that Spark does not use again is left alone."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from rocketspark.spark import python_workers


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []

    class Collector:
        def __getattr__(self, name: str) -> Any:
            return lambda: made.append(name)

    monkeypatch.setattr(python_workers, "gc", Collector())
    monkeypatch.setattr(python_workers, "_settled", False)
    return made


def test_a_worker_is_settled_once(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    python_workers.settle()
    python_workers.settle()
    assert calls == ["collect", "freeze"]


def test_other_processes_are_left_alone(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_REUSE_WORKER", raising=False)
    python_workers.settle()
    assert calls == []
    assert gc.isenabled()
