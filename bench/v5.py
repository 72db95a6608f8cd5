"""RocketMQ 5's gRPC: our proxy beside its broker, and Apache's proxy 5.5.0 in local mode, with the same client program.

Ours are two processes, Apache's is one: `CPU s/s` is of all of a side. The tool is a plain grpc.aio client (see
bench.grpc_load) and takes about a core; two cores are shared by all. POP on the remoting protocol: the part `pop`.
`python -m bench.v5` measures its last rows alone: remoting beside gRPC under load, in 7 rounds.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.java.apache import ask
from tests.v5.apache_proxy import ApacheLocalProxy, ApacheProxy

from bench.floor import floor
from bench.peers import JAVA_DEFAULTS, JIT, cpu_seconds, memory_kib, ours, started
from bench.plan import Plan
from bench.raw_send import frame
from bench.report import Figure, Row, percentile, progress, rates_row, show, values_row
from rocketspark.transport.connections import parse_address
from rocketspark.transport.request_frames import reply

QUEUES = 8
TOOL_S_MAX = 300.0
ROOT = Path(__file__).resolve().parents[1]


class Proxies(NamedTuple):
    """One side: its proxies, the broker for topics and remoting, and all of its processes."""

    endpoints: tuple[str, ...]
    broker: str
    pids: tuple[int, ...]

    def cpu_s(self) -> float:
        return sum(cpu_seconds(pid) for pid in self.pids)


@contextmanager
def our_proxies(count: int) -> Iterator[Proxies]:
    """Our server, and so many proxies before it."""
    with ExitStack() as stack:
        servers = stack.enter_context(ours())
        endpoints, pids = [], [servers.pid]
        for _ in range(count):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rocketspark-bench-")))
            command = ["proxy", "-n", servers.namesrv, "--grpc-port", "0", "--log-level", "warning"]
            pid, found, _ = stack.enter_context(started(command, r"ready proxy=(\S+)", folder))
            endpoints.append(found[1])
            pids.append(pid)
        yield Proxies(tuple(endpoints), servers.broker, tuple(pids))


@contextmanager
def apache_proxy() -> Iterator[Proxies]:
    """Apache's proxy with a broker inside."""
    ApacheProxy.jvm_flags = JIT
    ApacheProxy._flags = ("-Xms2g", "-Xmx2g", "-XX:MaxDirectMemorySize=2g")
    with tempfile.TemporaryDirectory(prefix="rocketspark-bench-java-") as folder:
        local = ApacheLocalProxy(Path(folder), dict(JAVA_DEFAULTS))
        try:
            yield Proxies((local.endpoints,), local.broker, (local._proxy._process.pid,))
        finally:
            local.close()


def prepare(side: Proxies, topic: str, group: str) -> None:
    """Make a topic of normal messages and a group."""
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(QUEUES),
        "writeQueueNums": str(QUEUES),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
        "attributes": "+message.type=NORMAL",
    }
    assert ask(side.broker, 17, ext_fields=fields).code == 0
    assert ask(side.broker, 200, json.dumps({"groupName": group}).encode()).code == 0
    time.sleep(1)  # Until NameServers and proxies know it.


def tool(address: str, mode: str, topic: str, **options: Any) -> subprocess.Popen[str]:
    """A load process that has begun."""
    command = [sys.executable, "-m", "bench.grpc_load", address, mode, "--topic", topic]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What a load process found."""
    try:
        found: dict[str, Any] = json.loads(process.communicate(timeout=TOOL_S_MAX)[0])
        return found
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def load(side: Proxies, mode: str, topic: str, **options: Any) -> tuple[Figure, list[dict[str, Any]]]:
    """The same load on each of the side's proxies at once."""
    before = side.cpu_s()
    found = [answer(process) for process in [tool(one, mode, topic, **options) for one in side.endpoints]]
    seconds = max(one["seconds"] for one in found)
    done = round(sum(one["done"] / one["seconds"] for one in found) * seconds)
    cpu = sum(one["tool_cpu_s"] for one in found)
    return Figure(done, seconds, side.cpu_s() - before, cpu), found


def remoting_p99_ms(broker: str, topic: str, seconds: float) -> float:
    """p99 of plain sends on the remoting protocol, one at a time on one connection."""
    host, port = parse_address(broker)
    taken: list[float] = []
    with socket.create_connection((host, port), TOOL_S_MAX) as link, link.makefile("rb") as replies:
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            link.sendall(frame(topic, 0, b"x" * 128, f"{len(taken):032X}", len(taken)))
            replies.read(int.from_bytes(replies.read(4), "big"))
            taken.append((time.perf_counter() - began) * 1000)
            time.sleep(0.002)
    return percentile(taken, 0.99)


def run(plan: Plan) -> list[Row]:
    """Rows as they come; peers in turn."""
    seconds, count = plan.of(3.0, 1.0, 0.2), plan.of(5000, 2000, 100)
    rows: list[Row] = []

    def add(row: Row) -> None:
        rows.append(row)
        show(rows[-1:], heading=len(rows) == 1)

    with our_proxies(1) as mine, ExitStack() as stack:
        java = None if plan.alone else stack.enter_context(apache_proxy())
        sides = [side for side in (mine, java) if side is not None]
        for side in sides:
            prepare(side, "bench-send", "bench-grpc")
            progress("warm-up")
            load(side, "send", "bench-send", window=64, seconds=plan.of(4.0, 2.0, 0.1))
        for window in (1, 64):
            pairs = []
            for _ in range(plan.rounds()):
                pairs.append([load(side, "send", "bench-send", window=window, seconds=seconds)[0] for side in sides])
            add(rates_row(f"gRPC send, {window} in flight", "msg/s", [_pair(one) for one in pairs]))
        pairs = []
        for number in range(plan.rounds()):
            pairs.append([_consume(side, f"bench-consume-{number}", count) for side in sides])
        add(rates_row("gRPC receive and acknowledge", "msg/s", [_pair(one) for one in pairs]))
        found = []
        for number in range(plan.rounds()):
            found.append([_latency(side, f"bench-late-{number}", plan.of(500, 200, 20)) for side in sides])
        for name in ("p50_ms", "p99_ms"):
            values = [_pair([one[name] for one in each]) for each in found]
            add(values_row(f"gRPC send to receive, {name[:3]}", "ms", values, less_is_better=True))
        for number, pid in enumerate(mine.pids):
            memory = memory_kib(pid)["VmRSS"] / 1024
            add(values_row(("broker" if number == 0 else "proxy") + ": VmRSS", "MiB", [(memory, None)]))
    for row in [*_two_proxies(plan, seconds), *_remoting_beside(plan, 2 * seconds)]:
        add(row)
    return rows


def _pair(values: list[Any]) -> tuple[Any, Any]:
    return values[0], values[1] if len(values) > 1 else None


def _consume(side: Proxies, topic: str, count: int) -> Figure:
    prepare(side, topic, f"g-{topic}")
    progress(f"filling {topic}")
    address = side.endpoints[0]
    done = 0
    while done < count:
        done += answer(tool(address, "send", topic, window=64, seconds=1.0))["done"]
    return load(side, "consume", topic, group=f"g-{topic}", window=4, count=count)[0]


def _latency(side: Proxies, topic: str, count: int) -> dict[str, Any]:
    prepare(side, topic, f"g-{topic}")
    return load(side, "latency", topic, group=f"g-{topic}", count=count)[1][0]


def _two_proxies(plan: Plan, seconds: float) -> list[Row]:
    """One and two proxies before a broker."""
    with our_proxies(1) as one, our_proxies(2) as two:
        for side in (one, two):
            prepare(side, "bench-send", "bench-grpc")
        pairs = []
        for _ in range(plan.rounds()):
            pairs.append([load(side, "send", "bench-send", window=64, seconds=seconds)[0] for side in (two, one)])
    return [values_row("two proxies beside one", "x", [(a.rate / b.rate, None) for a, b in pairs])]


def _remoting_beside(plan: Plan, seconds: float) -> list[Row]:
    """Sends on the remoting protocol, without and with gRPC under load at the proxy that the server starts.

    Beside the broker a process that only answers: what the machine's own turns cost whoever is asked.
    """
    alone: list[tuple[float, float]] = []
    loaded: list[tuple[float, float]] = []
    with ours(grpc=True) as servers, floor(reply(1)) as bare:
        prepare(Proxies((servers.grpc,), servers.broker, ()), "bench-send", "bench-grpc")

        def both_p99_ms() -> tuple[float, float]:
            ours_ms, bare_ms = (remoting_p99_ms(one.broker, "bench-send", seconds) for one in (servers, bare))
            return ours_ms, bare_ms

        for _ in range(plan.rounds()):
            progress("remoting without and with gRPC under load")
            alone.append(both_p99_ms())
            beside = tool(servers.grpc, "send", "bench-send", window=64, seconds=2 * seconds + 1)
            time.sleep(0.5)
            loaded.append(both_p99_ms())
            answer(beside)
    rows = []
    for number, who in enumerate(("remoting send p99", "  of what only answers")):
        without, beside_ms = [one[number] for one in alone], [one[number] for one in loaded]
        rows.append(values_row(f"{who}, no gRPC", "ms", [(value, None) for value in without]))
        rows.append(values_row(f"{who}, gRPC under full load", "ms", [(value, None) for value in beside_ms]))
        ratios = [(b / a, None) for a, b in zip(without, beside_ms, strict=True)]
        rows.append(values_row("  with beside without", "x", ratios))
    return rows


if __name__ == "__main__":
    show(_remoting_beside(Plan(runs=7), 3.0), heading=True)
