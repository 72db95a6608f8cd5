"""`rocketspark run` becomes the script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rocketspark.cli import main

pytestmark = pytest.mark.shows(
    "the trap: a job in an environment that is not activated, another `python3` first on the path",
)

SCRIPT = """
import os, shutil, sys
print(sys.argv[1:], shutil.which("python3"), "PYSPARK_DRIVER_PYTHON" in os.environ)
print(input())
sys.exit(7)
"""


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rocketspark.cli.main", "run", *arguments],
        cwd=cwd,
        env=os.environ | {"PATH": os.defpath, "PYSPARK_DRIVER_PYTHON": "jupyter"},
        input="line\n",
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_it_passes_on_arguments_environment_streams_and_the_exit_code(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(SCRIPT)
    here = str(Path(sys.executable).with_name("python3"))
    options = ["--day", "1", "-m", "--help"]
    for how in (["job.py"], ["-m", "job"]):
        done = run(*how, *options, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (7, "")
        assert done.stdout.splitlines() == [f"{options} {here} False", "line"]


def test_a_script_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["run", "no.py", "--day", "1"]) == 1
    assert capsys.readouterr().err == "error: no.py: there is no such file\n"
