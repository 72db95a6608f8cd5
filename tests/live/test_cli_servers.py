"""`rocketspark server|namesrv|broker` as processes: the ready line, signals, and what can be in the way."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.java.apache import ask
from tests.support.forked_commands import forked
from tests.support.ports import server_ports

from rocketspark import Producer, PullConsumer, RocketSparkError
from rocketspark.testing import ServerProcess, run_cluster, run_server_process

COMMAND = [sys.executable, "-m", "rocketspark.cli.main"]
FREE_PORTS = ["--no-grpc", "--namesrv-port", "0", "--broker-port", "0"]
TIMEOUT_S = 120


class Processes:
    """Starts commands, and ends those that still run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=self._folder,
            env=os.environ | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        self._running.append(process)
        return process

    def close(self) -> None:
        for process in self._running:
            process.kill()
            process.communicate()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    started = Processes(tmp_path)
    yield started
    started.close()


def ready_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def run(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    with contextlib.chdir(tmp_path):
        done = forked().run(*arguments, timeout_s=TIMEOUT_S)
    return subprocess.CompletedProcess(arguments, done.returncode, done.stdout.decode(), done.stderr.decode())


def assert_one_line_error(done: subprocess.CompletedProcess[str], says: str) -> None:
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert errors[0] == done.stderr.splitlines()[-1]
    assert says in errors[0]


@pytest.mark.shows("server: ready line, free ports, SIGTERM")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_server_prints_one_ready_line_and_stops_cleanly(processes: Processes, number: signal.Signals) -> None:
    process = processes.start("server", *FREE_PORTS, "--store", "store")
    line = ready_line(process)
    found = re.fullmatch(r"ready namesrv=127\.0\.0\.1:(\d+) broker=127\.0\.0\.1:(\d+)\n", line)
    assert found is not None
    assert 0 not in map(int, found.groups())
    with Producer(f"127.0.0.1:{found[1]}", "g") as producer:
        assert producer.send("t", b"hello").queue_offset == 0
    process.send_signal(number)
    rest, log = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    assert rest == ""
    assert "Traceback" not in log


@pytest.mark.shows("systemd is told when a server is ready, and when it stops (Type=notify)")
@pytest.mark.parametrize("kind", ["file", "abstract"])
def test_systemd_hears_when_a_server_is_ready_and_when_it_stops(
    processes: Processes, tmp_path: Path, kind: str
) -> None:
    name = str(tmp_path / "notify") if kind == "file" else f"@{tmp_path}/notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(name.replace("@", "\0"))
        told.settimeout(TIMEOUT_S)
        process = processes.start("namesrv", "--port", "0", NOTIFY_SOCKET=name)
        assert told.recv(100) == b"READY=1"
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert told.recv(100) == b"STOPPING=1"
    assert process.wait(TIMEOUT_S) == 0


@pytest.mark.shows("server ready in a second, under 120 MB idle")
def test_server_loads_what_it_serves_with_alone_and_is_small_when_idle(processes: Processes) -> None:
    process = processes.start("server", *FREE_PORTS, "--store", "store", PYTHONPROFILEIMPORTTIME="1")
    assert ready_line(process).startswith("ready ")
    status = Path(f"/proc/{process.pid}/status")
    if status.exists():
        resident = re.search(r"VmRSS:\s+(\d+) kB", status.read_text())
        assert resident is not None
        assert int(resident[1]) < 120 * 1024
    process.terminate()
    _, log = process.communicate(timeout=TIMEOUT_S)
    # What a start costs is what it loads: half of its 800 modules are ours.
    names = [line.rpartition("|")[2].strip() for line in log.splitlines() if line.startswith("import time:")]
    assert "rocketspark.broker.server" in names
    assert len(names) < 1000
    heavy = {"cryptography", "fastavro", "google", "grpc", "matplotlib", "pandas", "psycopg", "pyarrow", "pyspark"}
    assert heavy.isdisjoint(name.partition(".")[0] for name in names)


@pytest.mark.shows("namesrv, broker with broker.conf; unknown key warned")
def test_namesrv_and_broker_apart(processes: Processes, tmp_path: Path) -> None:
    first = re.fullmatch(r"ready namesrv=(\S+)\n", ready_line(processes.start("namesrv", "-p", "0")))
    assert first is not None
    namesrv = first[1]
    (tmp_path / "broker.conf").write_text(
        "brokerName=east-1\nbrokerClusterName=east\nlistenPort=0\nstorePathRootDir=kept\nflushDiskTipe=SYNC_FLUSH\n"
    )
    broker = processes.start("broker", "-c", "broker.conf", "-n", namesrv)
    second = re.fullmatch(r"ready broker=(\S+)\n", ready_line(broker))
    assert second is not None
    created = run(tmp_path, "topic", "create", "t", "--queues", "3", "-n", namesrv, "--json")
    assert json.loads(created.stdout) == {"topic": "t", "queues": 3, "brokers": ["east-1"]}
    assert (tmp_path / "kept" / "config" / "topics.json").exists()
    broker.terminate()
    _, log = broker.communicate(timeout=TIMEOUT_S)
    assert broker.returncode == 0
    warnings = [line for line in log.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 1
    assert "flushDiskTipe" in warnings[0]


@pytest.mark.shows(
    "`rocketspark namesrv --config`: every key of namesrv.conf known; changes at once, written into the file",
)
def test_a_namesrv_conf_acts_and_options_win_over_it(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "namesrv.conf").write_text(
        "listenPort=1\nkvConfigPath=not-here.json\nsupportActingMaster=true\nenableAllTopicList=false\noddKey=1\n"
    )
    process = processes.start("namesrv", "-c", "namesrv.conf", "-p", "0", "--kv-config", "kv.json")
    found = re.fullmatch(r"ready namesrv=127\.0\.0\.1:(\d+)\n", ready_line(process))
    assert found is not None
    namesrv = f"127.0.0.1:{found[1]}"
    assert found[1] != "1"
    shown = ask(namesrv, 319).body.decode().splitlines()
    assert {"supportActingMaster=true", "kvConfigPath=kv.json", "configStorePath=namesrv.conf"} <= {*shown}
    assert ask(namesrv, 206).code == 1
    assert ask(namesrv, 318, b"enableAllTopicList=true").code == 0
    assert ask(namesrv, 206).code == 0
    assert "enableAllTopicList=true" in (tmp_path / "namesrv.conf").read_text().splitlines()
    process.terminate()
    _, log = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    assert [line for line in log.splitlines() if line.startswith("warning: ")] == [
        "warning: namesrv.conf: unknown key 'oddKey' is ignored"
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("supportActingMaster=perhaps", "namesrv.conf: supportActingMaster='perhaps': true or false is needed"),
        ("oops", "namesrv.conf line 1: 'oops' is no key=value"),
        ("kvConfigPath=namesrv.conf", "namesrv.conf cannot be read: "),
    ],
)
def test_a_wrong_namesrv_conf_is_one_line(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "namesrv.conf").write_text(f"{text}\n")
    assert_one_line_error(run(tmp_path, "namesrv", "-c", "namesrv.conf", "-p", "0"), says)


def test_options_win_over_broker_conf(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "broker.conf").write_text("listenPort=1\nstorePathRootDir=not-here\nbrokerName=b\n")
    process = processes.start("server", *FREE_PORTS, "--store", "here", "-c", "broker.conf")
    assert re.fullmatch(r"ready namesrv=\S+:\d+ broker=127\.0\.0\.1:(?!1\n)\d+\n", ready_line(process))
    assert (tmp_path / "here").is_dir()
    assert not (tmp_path / "not-here").exists()


@pytest.mark.shows("bad input: port in use")
@pytest.mark.parametrize("which", ["--namesrv-port", "--broker-port"])
def test_a_port_in_use_is_named(tmp_path: Path, which: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = run(tmp_path, "server", *FREE_PORTS, which, port, "--store", "store")
    assert_one_line_error(done, f"port {port} on 127.0.0.1 is in use")


@pytest.mark.shows("a directory that is not writable")
def test_a_store_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert_one_line_error(run(tmp_path, "server", *FREE_PORTS, "--store", "file/store"), "file/store")


def test_a_store_in_use_is_named(tmp_path: Path) -> None:
    with run_server_process(tmp_path / "store") as server:
        assert_one_line_error(run(tmp_path, "server", *FREE_PORTS, "--store", "store"), "store")
        assert server.is_running


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("listenPort=many", "listenPort='many': a whole number is needed"),
        ("brokerRole=SLAVE", "brokerRole SLAVE"),
        ("no equals sign", "no key=value"),
    ],
)
def test_a_wrong_broker_conf_is_named(tmp_path: Path, line: str, says: str) -> None:
    (tmp_path / "broker.conf").write_text(line + "\n")
    assert_one_line_error(run(tmp_path, "server", *FREE_PORTS, "-c", "broker.conf"), says)


def test_a_killed_server_restarts_on_the_same_ports_with_every_message(tmp_path: Path) -> None:
    with run_server_process(tmp_path / "store", **server_ports()) as server:
        before = (server.namesrv, server.broker)
        with Producer(server.namesrv, "g") as producer:
            sent = [producer.send("t", b"%d" % i, sharding_key="k").queue_offset for i in range(100)]
        pid = server.pid
        server.kill()
        assert not server.is_running
        server.restart()
        assert (server.namesrv, server.broker) == before
        assert server.pid != pid
        read = run(tmp_path, "consume", "t", "--from", "first", "--count", "100", "-n", server.namesrv, "--json")
        messages = [json.loads(line) for line in read.stdout.splitlines()]
        assert [(m["queue_offset"], m["body"]) for m in messages] == [(n, str(n)) for n in sent]
        assert server.stop() == 0


WITH_A_SERVER = """
import sys, time
from rocketspark.testing import run_server_process

with run_server_process(sys.argv[1]) as server:
    print(server.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.shows("`run_server_process` leaves no server behind where the process of the tests is killed")
def test_a_server_process_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    call = [sys.executable, "-c", WITH_A_SERVER, str(tmp_path / "store")]
    with subprocess.Popen(call, stdout=subprocess.PIPE, text=True) as tests:
        try:
            assert tests.stdout is not None
            ends = os.pidfd_open(int(tests.stdout.readline()))
        finally:
            tests.kill()
    try:
        # Readable: the process ended.
        assert select.select([ends], [], [], TIMEOUT_S)[0]
    finally:
        os.close(ends)
    assert "stopping" in (tmp_path / "store.log").read_text()
    assert (tmp_path / "store" / "abort").exists() is False


def test_a_server_process_that_cannot_start_says_why(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "store", config={"listenPort": "many"})
    with pytest.raises(RocketSparkError, match="listenPort"):
        server.start()
    assert not server.is_running


def test_commands_find_the_cluster_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with run_cluster() as cluster:
        for name in ("ROCKETMQ_NAMESRV_ADDR", "NAMESRV_ADDR"):
            monkeypatch.delenv("ROCKETMQ_NAMESRV_ADDR", raising=False)
            monkeypatch.setenv(name, cluster.namesrv)
            assert run(tmp_path, "topic", "create", f"by-{name}").returncode == 0
        assert run(tmp_path, "topic", "list").stdout.split() == ["by-NAMESRV_ADDR", "by-ROCKETMQ_NAMESRV_ADDR"]


@pytest.mark.shows(
    "`rocketspark server --replicas N`, `broker --controller`; `run_cluster(replicas=2)` with kill_master, "
    "start_again, elect, wait_in_sync"
)
def test_server_with_replicas_goes_on_when_its_master_is_killed(processes: Processes) -> None:
    process = processes.start("server", *FREE_PORTS, "--controller-port", "0", "--store", "store", "--replicas", "2")
    found = re.fullmatch(
        r"ready namesrv=(127\.0\.0\.1:\d+) controller=127\.0\.0\.1:\d+ broker=(127\.0\.0\.1:\d+),127\.0\.0\.1:\d+\n",
        ready_line(process),
    )
    assert found is not None
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    master = next(
        int(child) for child in children if "replica-1" in Path(f"/proc/{child}/cmdline").read_text("utf-8", "replace")
    )
    with Producer(found[1], "g", retries=50, send_timeout_ms=60_000) as producer:
        for number in range(10):
            producer.send("t", b"%d" % number)
        os.kill(master, signal.SIGKILL)
        for number in range(10, 20):
            producer.send("t", b"%d" % number)
        with PullConsumer(found[1], "c", consume_from="first") as consumer:
            consumer.subscribe("t")
            bodies = sorted(int(message.body) for message in itertools.islice(consumer, 20))
    assert bodies == list(range(20))
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    assert "Traceback" not in log
