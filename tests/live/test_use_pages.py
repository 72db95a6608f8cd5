"""The programs of docs/start, docs/use/clients and other pages run as they stand there, and print what is shown."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rocketspark import PullConsumer
from rocketspark.testing import run_cluster

pytestmark = pytest.mark.shows(
    "each program on the pages of docs/start and docs/use/clients runs and prints what the page shows",
    "quick starts, each in the order of its page, in an empty folder, output compared",
)

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ["start/python.md", "use/clients.md", *sorted(f"use/clients/{p.name}" for p in DOCS.glob("use/clients/*.md"))]
PAGES += ["use/tables.md", "reference/admin.md"]
PROGRAM = re.compile(r"^```python\n(# \w+\.py\n.*?)```\n\n```text\n(.*?)```\n", re.DOTALL | re.MULTILINE)

# Listeners print in several threads, and print writes a line and its end one after the other: here in one.
WHOLE_LINES = """import builtins, sys
builtins.print = lambda *a, sep=" ": sys.stdout.write(sep.join(map(str, a)) + "\\n")
"""


def run(code: str, shown: str, folder: Path) -> tuple[list[str], str, int]:
    """Run a program; one that waits for a signal gets it once it has printed as much as is shown."""
    command = [sys.executable, "-u", "-c", WHOLE_LINES + code]
    running = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines = []
    too_long = threading.Timer(120, running.kill)
    too_long.start()
    try:
        assert running.stdout is not None
        for line in running.stdout:
            lines.append(line)
            if "signal.SIGINT" in code and len(lines) == shown.count("\n"):
                running.send_signal(signal.SIGINT)
        _, errors = running.communicate()
    finally:
        too_long.cancel()
        running.kill()
    # Messages of several queues come in any order; the pages show them sorted.
    return sorted(lines), errors, running.returncode


@pytest.mark.parametrize("page", PAGES)
def test_programs_of_a_page_print_what_is_shown(page: str, tmp_path: Path) -> None:
    text = (DOCS / page).read_text("utf-8")
    programs = PROGRAM.findall(text)
    assert len(programs) == len(re.findall(r"^```python\n# \w+\.py$", text, re.MULTILINE))
    with run_cluster() as cluster:
        for code, shown in programs:
            found = run(code.replace("127.0.0.1:9876", cluster.namesrv), shown, tmp_path)
            assert found == (sorted(shown.splitlines(keepends=True)), "", 0), code


def test_a_server_in_five_minutes(tmp_path: Path) -> None:
    """Commands find the server by the environment: the page has the port that is the default."""
    text = (DOCS / "start" / "server.md").read_text("utf-8")
    blocks = re.findall(r"^```(sh|text)\n(.*?)```\n", text, re.DOTALL | re.MULTILINE)
    assert [kind for kind, _ in blocks] == ["sh", "sh", "text", "sh", "text", "sh", "text", "sh", "text"]
    said = ""
    with run_cluster() as cluster:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = os.environ | {"ROCKETMQ_NAMESRV_ADDR": cluster.namesrv, "PATH": path}
        for kind, block in blocks:
            if kind == "text":
                assert said == block
                continue
            command = ["bash", "-euc", block]
            done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, (block, done.stderr)
            said = done.stdout


def test_lite_topics_of_their_page(tmp_path: Path) -> None:
    text = (DOCS / "use" / "lite_topics.md").read_text("utf-8")
    (commands,) = re.findall(r"^```sh\n(.*?)```\n", text, re.DOTALL | re.MULTILINE)
    code, shown = re.findall(r"^```python\n(.*?)```\n\n```text\n(.*?)```\n", text, re.DOTALL | re.MULTILINE)[0]
    with run_cluster(lmq=True, multi_dispatch=True) as cluster:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = os.environ | {"ROCKETMQ_NAMESRV_ADDR": cluster.namesrv, "PATH": path}
        # The first line starts the server.
        block = "\n".join(commands.splitlines()[1:])
        subprocess.run(["bash", "-euc", block], cwd=tmp_path, env=environment, check=True, stdout=subprocess.DEVNULL)
        # Who reads the page presses Enter once all is there.
        for old, new in (
            ("127.0.0.1:9876", cluster.namesrv),
            ("@consumer.listen", "import threading\nseen = threading.Event()\n@consumer.listen"),
            ("message.body.decode())", 'message.body.decode())\n    message.body == b"thanks" and seen.set()'),
            ('input("Enter ends it\\n")', "seen.wait()"),
        ):
            assert old in code
            code = code.replace(old, new)
        assert run(code, shown, tmp_path) == (sorted(shown.splitlines(keepends=True)), "", 0)


def test_the_messages_of_a_key_lie_in_one_queue_by_the_page_on_compaction(tmp_path: Path) -> None:
    text = (DOCS / "use" / "compaction.md").read_text("utf-8")
    (code,) = re.findall(r"^```python\n(.*?)```\n", text, re.DOTALL | re.MULTILINE)
    with run_cluster() as cluster, PullConsumer(cluster.namesrv, "look") as consumer:
        consumer.create_topic("prices", attributes="+cleanup.policy=COMPACTION")
        assert run(code.replace("127.0.0.1:9876", cluster.namesrv), "", tmp_path) == ([], "", 0)
        assert sorted(consumer.end_offset(queue) for queue in consumer.queues("prices")) == [0, 0, 0, 2]
