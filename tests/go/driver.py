"""The Go client, driven from Python: program/*.go, built by set-up, commanded like the Java drivers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.commanded import Commanded

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "go" / "program"
BUILT = ROOT / ".setup" / "go_driver"


def missing_program() -> str | None:
    """What keeps the Go tests from running, in words; None when all is there."""
    stamp = ROOT / ".setup" / "go"
    if not BUILT.exists() or not stamp.exists():
        return "the Go client's program is not built: run `make setup`"
    # As scripts/setup.sh makes the stamp.
    now = subprocess.run("cat tests/go/program/* | cksum", shell=True, cwd=ROOT, capture_output=True, text=True)
    if now.stdout != stamp.read_text():
        return "the Go client's program is older than its sources: run `make setup`"
    return None


class GoDriver(Commanded):
    """A process with the Go client; `folder` gets its log."""

    def __init__(self, folder: Path) -> None:
        environment = {key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"}
        super().__init__("go", [str(BUILT)], folder, environment | {"HOME": str(folder)})
