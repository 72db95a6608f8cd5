"""The proxy beside a broker, as `rocketspark server` starts it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from tests.support.ports import free_ports

from rocketspark.cli.options import access_variables
from rocketspark.cli.serving.child_processes import BEATS
from rocketspark.cli.serving.proxy_process import BEHIND
from rocketspark.proxy.wire import messages
from rocketspark.testing import run_cluster

pytestmark = pytest.mark.shows(
    "metrics under the proxy's names (`rocketmq_proxy_up` is the only one that its 5.5.0 registers), times of "
    "calls by method and status, clients, streams"
)

COMMAND = [sys.executable, "-m", "rocketspark.cli.main"]
PORTS = ["--namesrv-port", "0", "--broker-port", "0"]
METRICS_PORT = free_ports()
METERED = ["--grpc-port", "0", "--grpc-metrics-port", str(METRICS_PORT)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*COMMAND, "server", *PORTS, *METERED, "--store", str(tmp_path / "store")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate(timeout=60)


def wait_until(true: Callable[[], bool], limit_s: float = 60.0) -> None:
    end = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end, f"not so within {limit_s} s"
        time.sleep(0.02)


def answers(address: str) -> bool:
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(
            f"/{messages.SERVICE}/Heartbeat",
            request_serializer=messages.HeartbeatRequest.SerializeToString,
            response_deserializer=messages.HeartbeatResponse.FromString,
        )
        try:
            return bool(call(messages.HeartbeatRequest(), timeout=5, metadata=(("x-mq-client-id", "c"),)).status.code)
        except grpc.RpcError:
            return False


def scraped(address: str) -> bytes:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        page: bytes = answer.read()
        return page


def child_of(pid: int) -> int:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(found[0]) if found else 0


def priorities(pid: int) -> set[int]:
    """The niceness of all threads of a process."""
    return {os.getpriority(os.PRIO_PROCESS, int(task.name)) for task in Path(f"/proc/{pid}/task").iterdir()}


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.shows("the proxy that `server` starts has a niceness above the broker's")
def test_the_proxy_comes_back_and_ends_with_its_server(server: subprocess.Popen[str]) -> None:
    assert server.stdout is not None
    ready = re.fullmatch(r"ready namesrv=\S+ broker=\S+ grpc=(127\.0\.0\.1:\d+)\n", server.stdout.readline())
    assert ready is not None
    assert answers(ready[1])
    assert b"rocketmq_proxy_up" in scraped(f"127.0.0.1:{METRICS_PORT}")
    first = child_of(server.pid)
    # Where both want a core, clients of the broker go before those of the proxy.
    behind = {min(os.getpriority(os.PRIO_PROCESS, server.pid) + BEHIND, 19)}
    assert priorities(first) == behind
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: child_of(server.pid) not in (0, first) and answers(ready[1]))
    second = child_of(server.pid)
    assert priorities(second) == behind
    assert b"rocketmq_proxy_up" in scraped(f"127.0.0.1:{METRICS_PORT}")
    server.kill()
    server.wait(60)
    wait_until(
        lambda: not Path(f"/proc/{second}").exists() or "Z" in Path(f"/proc/{second}/stat").read_text().split()[2]
    )


def test_a_port_that_is_asked_for_and_in_use_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = str(busy.getsockname()[1])
        done = subprocess.run(
            [*COMMAND, "server", *PORTS, "--grpc-port", port, "--store", str(tmp_path / "store")],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert (done.returncode, done.stdout) == (1, "")
    says = f"error: port {port} on 127.0.0.1 is in use: stop the other program, or choose another"
    assert done.stderr.splitlines()[-1].startswith(says)


def test_an_embedded_cluster_serves_grpc_when_asked() -> None:
    with run_cluster(grpc=True) as cluster:
        assert answers(cluster.grpc_endpoint)
    assert not answers(cluster.grpc_endpoint)
    with run_cluster() as cluster:
        assert cluster.grpc_endpoint == ""


def test_the_proxy_beside_an_open_broker_takes_no_keys_of_the_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/run/security.md has an operator export those of a locked cluster."""
    for name in access_variables():
        monkeypatch.setenv(name, str(tmp_path / "another"))
    monkeypatch.setenv("ROCKETMQ_TLS", "true")
    with run_cluster(grpc=True) as cluster:
        assert answers(cluster.grpc_endpoint)


def test_several_processes_share_the_port() -> None:
    with run_cluster() as cluster:
        metrics = free_ports(0, 1)
        command = [*COMMAND, "proxy", "-n", cluster.namesrv, "--grpc-port", "0", "--processes", "2"]
        command += ["--metrics-port", str(metrics)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            ready = re.fullmatch(r"ready proxy=(127\.0\.0\.1:\d+)\n", process.stdout.readline())
            assert ready is not None
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            assert len(children) == 2
            # Each has figures of its own.
            for port in (metrics, metrics + 1):
                assert b'\nrocketmq_proxy_up{cluster="DefaultCluster",' in scraped(f"127.0.0.1:{port}")
            # Each alone serves the port.
            for stopped in children:
                os.kill(int(stopped), signal.SIGSTOP)
                wait_until(lambda: answers(ready[1]))
                # Half a minute of tries that came to the stopped one: it was killed, and is started again.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(stopped), signal.SIGCONT)
        finally:
            process.terminate()
            process.communicate(timeout=60)
        assert process.returncode == 0


def test_a_proxy_beats_while_its_loop_runs() -> None:
    with run_cluster() as cluster:
        command = [*COMMAND, "proxy", "-n", cluster.namesrv, "--grpc-port", "0"]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {BEATS: "1"}
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(b"ready proxy=")
            assert [process.stdout.readline() for _ in range(2)] == [b"\n", b"\n"]
        finally:
            process.terminate()
            process.communicate(timeout=60)
        assert process.returncode == 0


def test_metrics_of_a_proxy_that_is_not_started_are_refused(tmp_path: Path) -> None:
    given = ["--no-grpc", "--grpc-metrics-port", str(METRICS_PORT), "--store", str(tmp_path / "store")]
    done = subprocess.run([*COMMAND, "server", *PORTS, *given], capture_output=True, text=True, timeout=60)
    says = "error: --grpc-metrics-port: no gRPC is served, so there is no process with these metrics"
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, says)


def test_metrics_of_one_process_are_on_its_ready_line_and_of_several_need_ports() -> None:
    command = [*COMMAND, "proxy", "-n", "127.0.0.1:1", "--grpc-port", "0", "--metrics-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready = re.fullmatch(
                r"ready proxy=127\.0\.0\.1:\d+ metrics=(127\.0\.0\.1:\d+)\n", process.stdout.readline()
            )
            assert ready is not None
            assert b"rocketmq_proxy_up" in scraped(ready[1])
        finally:
            process.terminate()
            process.communicate(timeout=60)
    assert process.returncode == 0
    done = subprocess.run([*command, "--processes", "2"], capture_output=True, text=True, timeout=60)
    says = "error: --metrics-port 0: 2 processes take as many ports from it on; choose another"
    assert (done.returncode, done.stdout, done.stderr.splitlines()[-1]) == (1, "", says)
