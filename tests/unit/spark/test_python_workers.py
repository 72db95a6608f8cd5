"""What a worker is settled to: no task sees it, and a process that Spark does not use again is left alone. What a
process that starts Spark has as PATH, PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from rocketspark.spark import python_workers
from rocketspark.spark.python_workers import prefer_this_python

pytestmark = pytest.mark.shows(
    "Arrow from the socket to Spark, many pulls in flight",
    "the trap: a job in an environment that is not activated, another `python3` first on the path",
)


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


CHOSEN = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")


@pytest.fixture(autouse=True)
def not_activated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """This Python is in a folder that is not on PATH, another python3 is."""
    for folder in ("venv", "other"):
        program(tmp_path / folder / "python3")
    (tmp_path / "venv" / "python").symlink_to("python3")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "python"))
    monkeypatch.setenv("PATH", f"{tmp_path}/other:/bin")
    for name in CHOSEN:
        # What the tests make of it is undone, too.
        monkeypatch.setenv(name, "")
        del os.environ[name]


def variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name in ("PATH", *CHOSEN)}


def program(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)


def test_path_begins_with_the_folder_of_this_python(tmp_path: Path) -> None:
    activated = {"PATH": f"{tmp_path}/venv:{tmp_path}/other:/bin"}
    for _ in range(2):
        prefer_this_python()
        assert variables() == activated


def test_a_python_that_was_chosen_stays(tmp_path: Path) -> None:
    chosen = {"PYSPARK_PYTHON": "/a/python3", "PYSPARK_DRIVER_PYTHON": "/b/python3.12"}
    os.environ.update(chosen)
    prefer_this_python()
    assert variables() == chosen | {"PATH": f"{tmp_path}/venv:{tmp_path}/other:/bin"}


@pytest.mark.parametrize("shell", ["jupyter", "/opt/bin/ipython3", ""])
def test_what_is_no_python_cannot_be_asked(shell: str) -> None:
    os.environ.update(PYSPARK_DRIVER_PYTHON=shell, PYSPARK_PYTHON="python3")
    prefer_this_python()
    assert "PYSPARK_DRIVER_PYTHON" not in os.environ
    assert os.environ["PYSPARK_PYTHON"] == "python3"


@pytest.mark.parametrize("python3_is_there", [True, False])
def test_a_python_that_is_no_python3_is_named_without_its_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, python3_is_there: bool
) -> None:
    program(tmp_path / "usr" / "python3.12")
    if python3_is_there:
        program(tmp_path / "usr" / "python3")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "usr" / "python3.12"))
    for _ in range(2):
        prefer_this_python()
        assert variables() == {"PATH": f"{tmp_path}/usr:{tmp_path}/other:/bin", "PYSPARK_PYTHON": "python3.12"}
    os.environ["PYSPARK_PYTHON"] = "/a/python3"
    prefer_this_python()
    assert os.environ["PYSPARK_PYTHON"] == "/a/python3"


def test_without_a_path(tmp_path: Path) -> None:
    del os.environ["PATH"]
    prefer_this_python()
    assert variables() == {"PATH": f"{tmp_path}/venv:{os.defpath}"}
