"""The servers that are measured: ours as `rocketspark server`, and Apache RocketMQ's, both in their defaults."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from tests.java.apache import ApacheBroker, ApacheCluster, ApacheNamesrv

from bench.report import Row, values_row

Config = Mapping[str, str | int]
STOP_TIMEOUT_S = 60.0


class Servers(NamedTuple):
    """A NameServer and a broker (with --brokers N the first): addresses, process id, seconds until ready, the store.

    `brokers`, `pids`: every broker's address and process; `grpc`: the proxy's address.
    """

    namesrv: str
    broker: str
    pid: int
    ready_s: float
    store: Path
    brokers: tuple[str, ...] = ()
    pids: tuple[int, ...] = ()
    name: str = "ours"
    grpc: str = ""

    def kill(self) -> None:
        """SIGKILL of the process that was started."""
        os.kill(self.pid, signal.SIGKILL)


@contextmanager
def ours(
    *options: str,
    config: Config | None = None,
    store: Path | None = None,
    source: Path | None = None,
    grpc: bool = False,
) -> Iterator[Servers]:
    """`rocketspark server` on free ports, `config` in its broker.conf, with a store of its own or the one given.

    `grpc`: with the proxy that it starts; `source`: the root of another version of this repository, whose code it runs.
    """
    with tempfile.TemporaryDirectory(prefix="rocketspark-bench-") as folder:
        root = store or Path(folder) / "store"
        command = ["server", "--namesrv-port", "0", "--broker-port", "0", "--store", str(root), *options]
        command += ["--grpc-port", "0"] if grpc else ["--no-grpc"]
        if config:
            conf = Path(folder) / "broker.conf"
            conf.write_text("".join(f"{key}={value}\n" for key, value in config.items()))
            command += ["--config", str(conf)]
        ready = r"ready namesrv=(\S+) broker=(\S+)(?: grpc=(\S+))?"
        with started(command, ready, Path(folder), source) as (pid, found, ready_s):
            brokers = tuple(found[2].split(","))
            pids = tuple(children(pid)) if len(brokers) > 1 else (pid,)
            yield Servers(found[1], brokers[0], pid, ready_s, root, brokers, pids, grpc=found[3] or "")


@contextmanager
def our_namesrv() -> Iterator[Servers]:
    """`rocketspark namesrv` alone on a free port."""
    with (
        tempfile.TemporaryDirectory(prefix="rocketspark-bench-") as folder,
        started(["namesrv", "-p", "0"], r"ready namesrv=(\S+)", Path(folder)) as (pid, found, ready_s),
    ):
        yield Servers(found[1], "", pid, ready_s, Path(folder))


def stop(process: subprocess.Popen[Any]) -> None:
    """End a server; one that does not end in time is killed."""
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        print(f"  the server did not stop within {STOP_TIMEOUT_S:.0f} s: killed", file=sys.stderr)


@contextmanager
def started(
    command: list[str], ready: str, folder: Path, source: Path | None = None
) -> Iterator[tuple[int, re.Match[str], float]]:
    """A `rocketspark` command: its process id, what its ready line says, and the seconds until it came."""
    began = time.perf_counter()
    log_path = folder / "server.log"
    program, environment = [str(Path(sys.executable).parent / "rocketspark")], dict(os.environ)
    if source is not None:
        program = [sys.executable, "-m", "rocketspark.cli.main"]
        environment["PYTHONPATH"] = str(source / "src")
    with log_path.open("wb") as log:
        process = subprocess.Popen([*program, *command], stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.match(ready, line)
        if not found:
            raise SystemExit(f"the server did not start: {line!r}\n{log_path.read_text(errors='replace')[-2000:]}")
        yield process.pid, found, time.perf_counter() - began
    finally:
        stop(process)
        assert process.stdout is not None
        process.stdout.close()


# The sizes of a broker.conf that says nothing.
JAVA_DEFAULTS = {
    "mappedFileSizeCommitLog": 1 << 30,
    "mappedFileSizeConsumeQueue": 6_000_000,
    "maxHashSlotNum": 5_000_000,
    "maxIndexNum": 20_000_000,
}


# As its own start scripts run it: the full JIT, G1; heaps that leave room for the others.
JIT = ("-server", "-XX:+UseG1GC")


@contextmanager
def apache(config: Config | None = None) -> Iterator[Servers]:
    """Apache RocketMQ 5.5.0's NameServer and broker."""
    with tempfile.TemporaryDirectory(prefix="rocketspark-bench-java-") as folder:
        started = time.perf_counter()
        ApacheBroker.jvm_flags = JIT
        ApacheBroker._flags = ("-Xms2g", "-Xmx2g", "-XX:MaxDirectMemorySize=2g")
        cluster = ApacheCluster(Path(folder), config=JAVA_DEFAULTS | dict(config or {}))
        try:
            pid = cluster._broker._process.pid
            ready_s = time.perf_counter() - started
            broker = cluster.broker
            yield Servers(cluster.namesrv, broker, pid, ready_s, cluster._broker.store, (broker,), (pid,), "java")
        finally:
            cluster.close()


@contextmanager
def apache_namesrv() -> Iterator[Servers]:
    """Apache RocketMQ 5.5.0's NameServer alone."""
    with tempfile.TemporaryDirectory(prefix="rocketspark-bench-java-") as folder:
        started = time.perf_counter()
        ApacheNamesrv.jvm_flags = JIT
        ApacheNamesrv._flags = ("-Xms1g", "-Xmx1g")
        server = ApacheNamesrv(Path(folder))
        try:
            pid = server._process.pid
            yield Servers(server.namesrv, "", pid, time.perf_counter() - started, Path(folder), name="java")
        finally:
            server.kill()


@contextmanager
def both(
    alone: bool,
    mine: AbstractContextManager[Servers] | None = None,
    java: AbstractContextManager[Servers] | None = None,
) -> Iterator[tuple[Servers, Servers | None]]:
    """Ours and the Java one; None for that if `alone`."""
    with ExitStack() as stack:
        first = stack.enter_context(mine or ours())
        second: AbstractContextManager[Servers | None] = nullcontext() if alone else java or apache()
        yield first, stack.enter_context(second)


def children(pid: int) -> list[int]:
    """Process ids of the children of all of a process's threads, the oldest first."""
    found = [int(p) for path in Path(f"/proc/{pid}/task").glob("*/children") for p in path.read_text().split()]
    return sorted(found)


def memory_kib(pid: int) -> dict[str, int]:
    """VmRSS (all resident) and RssAnon (private) of a process, in KiB."""
    text = Path(f"/proc/{pid}/status").read_text()
    return {k: int(v) for k, v in re.findall(r"(VmRSS|RssAnon):\s+(\d+)", text)}


def rss_anon_mib(pid: int) -> float:
    """Private memory of a process."""
    return memory_kib(pid)["RssAnon"] / 1024


def cpu_seconds(pid: int) -> float:
    """User and system time a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def end_rows(mine: Servers, java: Servers | None, what: str = "broker") -> list[Row]:
    """What the servers take at the end of a part: memory, and processor seconds since they were started."""

    def row(name: str, unit: str, values: list[float]) -> Row:
        pair = (values[0], values[1] if len(values) > 1 else None)
        return values_row(name, unit, [pair], less_is_better=True)

    pids = [s.pid for s in (mine, java) if s is not None]
    memory = [memory_kib(pid) for pid in pids]
    return [
        row(f"{what} at the end: RssAnon", "MiB", [rss_anon_mib(pid) for pid in pids]),
        row(f"{what} at the end: VmRSS", "MiB", [m["VmRSS"] / 1024 for m in memory]),
        row(f"{what} at the end: CPU in all", "s", [cpu_seconds(pid) for pid in pids]),
    ]
