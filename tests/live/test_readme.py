"""What README shows works as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rocketspark.testing import run_cluster

pytestmark = pytest.mark.shows("README's examples", "the page replication.md")

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def example(beginning: str, page: str = "README.md") -> str:
    text = (ROOT / page).read_text("utf-8")
    found = [code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if code.startswith(beginning)]
    assert len(found) == 1
    return str(found[0])


def test_producer_and_consumer(tmp_path: Path) -> None:
    with run_cluster() as cluster:
        code = example("from rocketspark import Producer").replace("127.0.0.1:9876", cluster.namesrv)
        running = subprocess.Popen(
            [sys.executable, "-u", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert running.stdout is not None
        text = ""
        try:
            for line in running.stdout:
                text += line
                if text.count("apples") == 10:
                    break
            _, errors = running.communicate("\n", timeout=120)
        finally:
            running.kill()
    # Several threads print: ends of lines stand where they come.
    assert sorted(re.findall(r"fruit \d apples", text)) == [f"fruit {n} apples" for n in range(10)]
    assert (running.returncode, errors) == (0, "")


def test_embedded_cluster() -> None:
    code = example("from rocketspark.testing import run_cluster", "docs/use/testing.md")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert re.fullmatch(r"127\.0\.0\.1:\d+\n", done.stdout), done.stderr


def test_replicas_of_the_page_on_replication() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/run/replication.md").read_text("utf-8"), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert len(links) > 5
    assert [link for link in links if not link.startswith("https://") and not (ROOT / link).exists()] == []
