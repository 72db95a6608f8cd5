"""`make demo` as a process, with fewer flights: it checks itself, runs on a cluster that exists, and obeys Ctrl-C."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.spark.conftest import java_home

from rocketspark import Message, Producer
from rocketspark.testing import run_server_process

ROOT = Path(__file__).resolve().parents[2]
FLIGHTS = 20_000
TIMEOUT_S = 800


class Demo(NamedTuple):
    """The demo as a process that leads a session of its own: what it starts is found by that."""

    process: subprocess.Popen[str]
    folder: Path

    def read_until(self, text: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if text in line:
                return
        raise AssertionError(f"the demo ended before {text!r}")

    def running(self) -> list[str]:
        """Every process of its session that has not ended."""
        listed = subprocess.run(["ps", "-eo", "sid=,stat=,args="], capture_output=True, text=True, check=True)
        rows = [line.split(None, 2) for line in listed.stdout.splitlines()]
        return [args for sid, state, args in rows if sid == str(self.process.pid) and not state.startswith("Z")]


class Demos:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[Demo] = []

    def start(self, count: int = FLIGHTS, **environment: str) -> Demo:
        home = java_home()
        out = self._folder / "demo out"
        process = subprocess.Popen(
            [sys.executable, "-m", "examples.flights.demo"],
            cwd=ROOT,
            env={
                **os.environ,
                **({"JAVA_HOME": home} if home else {}),
                "PYSPARK_PYTHON": sys.executable,
                "PYTHONUNBUFFERED": "1",
                "COLUMNS": "120",
                "DEMO_OUT": str(out),
                "DEMO_FLIGHTS": str(count),
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._started.append(Demo(process, out))
        return self._started[-1]

    def close(self) -> None:
        for demo in self._started:
            if demo.running():
                os.killpg(demo.process.pid, signal.SIGKILL)
            demo.process.communicate()


@pytest.fixture
def demos(tmp_path: Path) -> Iterator[Demos]:
    started = Demos(tmp_path)
    yield started
    started.close()


def wait_until_alone(demo: Demo, timeout_s: float = 120) -> None:
    """Python workers of Spark end a moment after their JVM."""
    deadline = time.monotonic() + timeout_s
    while left := demo.running():
        assert time.monotonic() < deadline, f"left running: {left}"
        time.sleep(0.05)


def assert_passed(demo: Demo) -> str:
    printed = demo.process.communicate(timeout=TIMEOUT_S)[0]
    assert demo.process.returncode == 0, printed
    assert "all 22 checks passed" in printed
    assert "Traceback" not in printed
    wait_until_alone(demo)
    return printed


@pytest.mark.shows("demo: replay, stream, Parquet, statistics, summaries, table, plot, report, self-check")
def test_it_checks_itself_and_leaves_a_plot_and_a_report(demos: Demos) -> None:
    demo = demos.start()
    printed = assert_passed(demo)
    for path in re.findall(r"^(?:plot|report) +(.+)$", printed, re.MULTILINE):
        assert Path(path).stat().st_size > 1000
    assert (demo.folder / "delays.png").read_bytes().startswith(b"\x89PNG")
    assert f"{FLIGHTS:,} flights went through" in (demo.folder / "report.html").read_text()
    assert {p.name for p in (demo.folder / "flights").glob("month=*")} == {"month=1"}
    assert "United Air Lines" in printed
    assert_shown_in_the_browser(printed)


def assert_shown_in_the_browser(printed: str) -> None:
    """What the demo names last opens the console on its messages."""
    (command,) = re.findall(r"in the browser: \.venv/bin/(.+), then", printed.splitlines()[-1])
    ports = ["--namesrv-port", "0", "--broker-port", "0", "--grpc-port", "0", "--console-port", "0"]
    # --console-port is named twice: the last one counts.
    started = [str(Path(sys.executable).with_name("rocketspark")), *shlex.split(command)[1:], *ports]
    with subprocess.Popen(started, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = re.search(r"console=(\S+)", server.stdout.readline())
        assert address is not None
        page = urllib.request.urlopen(f"http://{address[1]}/topics", timeout=60).read().decode()
        server.terminate()
    assert "flight-delays" in page


# Once on such a cluster of Apache's, with a Spark cluster: test_demo_clusters.py. Here twice, for minutes.
@pytest.mark.shows("demo on an existing RocketMQ cluster")
@pytest.mark.soak
def test_it_runs_on_a_cluster_that_exists_and_holds_other_messages(demos: Demos, tmp_path: Path) -> None:
    with run_server_process(tmp_path / "store") as server:
        with Producer(server.namesrv, "others") as producer:
            for topic in ("flights", "flight-delays"):
                for n in range(20):
                    producer.send(Message(topic=topic, body=b"not for the demo", keys=[str(n)]))
        for _ in range(2):
            assert_passed(demos.start(2000, NAMESRV=server.namesrv))
        assert server.is_running


# The first and the last stage tell most; those between take as long. Of these the one that has no JVM yet is in the
# soak.
STAGES = [
    "Start NameServer",
    pytest.param("Replay the flights", marks=pytest.mark.soak),
    pytest.param("Start Spark", marks=pytest.mark.official),
    "Stream the flights",
]


@pytest.mark.shows("demo: Ctrl-C leaves no process")
@pytest.mark.parametrize("stage", STAGES)
def test_ctrl_c_leaves_no_process_behind(demos: Demos, stage: str) -> None:
    demo = demos.start(200_000 if stage.startswith("Replay") else FLIGHTS)
    demo.read_until(stage)
    # A terminal's Ctrl-C goes to every process of the foreground group.
    os.killpg(demo.process.pid, signal.SIGINT)
    printed = demo.process.communicate(timeout=TIMEOUT_S)[0]
    assert demo.process.returncode == 130, printed
    assert "Traceback" not in printed
    assert printed.splitlines()[-1] == "stopped; nothing is left running", printed
    wait_until_alone(demo)


def test_no_namesrv_there_is_one_line(demos: Demos) -> None:
    demo = demos.start(NAMESRV="127.0.0.1:1")
    printed = demo.process.communicate(timeout=TIMEOUT_S)[0]
    assert demo.process.returncode == 1
    assert printed.splitlines()[-1].startswith("error: ")
    assert "127.0.0.1:1" in printed.splitlines()[-1]
