"""What a worker is settled to: no task sees it, and a process that Spark does not use again is left alone."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from rocketspark.spark import workers


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []

    class Collector:
        def __getattr__(self, name: str) -> Any:
            return lambda: made.append(name)

    monkeypatch.setattr(workers, "gc", Collector())
    monkeypatch.setattr(workers, "_settled", False)
    return made


def test_a_worker_is_settled_once(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    workers.settle()
    workers.settle()
    assert calls == ["collect", "freeze"]


def test_other_processes_are_left_alone(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_REUSE_WORKER", raising=False)
    workers.settle()
    assert calls == []
    assert gc.isenabled()
