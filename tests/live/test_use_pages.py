"""The programs of docs/use/clients run as they stand there, page by page, and print what is shown below them."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rocketspark.testing import run_cluster

pytestmark = pytest.mark.shows("each program on the pages of docs/use/clients runs and prints what the page shows")

USE = Path(__file__).resolve().parents[2] / "docs" / "use"
PAGES = ["clients.md", *sorted(f"clients/{page.name}" for page in (USE / "clients").glob("*.md"))]
PROGRAM = re.compile(r"^```python\n(# \w+\.py\n.*?)```\n\n```text\n(.*?)```\n", re.DOTALL | re.MULTILINE)


def run(code: str, shown: str, folder: Path) -> tuple[list[str], str, int]:
    """Run a program; one that waits for a signal gets it once it has printed as much as is shown."""
    command = [sys.executable, "-u", "-c", code]
    running = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines = []
    try:
        assert running.stdout is not None
        for line in running.stdout:
            lines.append(line)
            if "signal.SIGINT" in code and len(lines) == shown.count("\n"):
                running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=120)
    finally:
        running.kill()
    # Messages of several queues come in any order; the pages show them sorted.
    return sorted(lines), errors, running.returncode


@pytest.mark.parametrize("page", PAGES)
def test_programs_of_a_page_print_what_is_shown(page: str, tmp_path: Path) -> None:
    text = (USE / page).read_text("utf-8")
    programs = PROGRAM.findall(text)
    assert len(programs) == len(re.findall(r"^```python\n# \w+\.py$", text, re.MULTILINE))
    with run_cluster() as cluster:
        for code, shown in programs:
            found = run(code.replace("127.0.0.1:9876", cluster.namesrv), shown, tmp_path)
            assert found == (sorted(shown.splitlines(keepends=True)), "", 0), code
