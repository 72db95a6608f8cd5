"""The servers that are measured: ours as `rocketspark server`, and Apache RocketMQ's, both in their defaults."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.java.apache import ApacheBroker, ApacheCluster


class Servers(NamedTuple):
    """Addresses of a NameServer and a broker, the broker's process id, and how long they took to be ready."""

    namesrv: str
    broker: str
    pid: int
    ready_s: float


@contextmanager
def ours(*options: str) -> Iterator[Servers]:
    """`rocketspark server` on free ports with a store of its own."""
    with tempfile.TemporaryDirectory(prefix="rocketspark-bench-") as folder:
        started = time.perf_counter()
        process = subprocess.Popen(
            [
                *(str(Path(sys.executable).parent / "rocketspark"), "server", "--namesrv-port", "0"),
                *("--broker-port", "0", "--store", folder, *options),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.match(r"ready namesrv=(\S+) broker=(\S+)", line)
            if not found:
                raise SystemExit(f"the server did not start: {line!r}")
            yield Servers(found[1], found[2], process.pid, time.perf_counter() - started)
        finally:
            process.terminate()
            process.wait(20)


# The sizes of a broker.conf that says nothing.
JAVA_DEFAULTS = {
    "mappedFileSizeCommitLog": 1 << 30,
    "mappedFileSizeConsumeQueue": 6_000_000,
    "maxHashSlotNum": 5_000_000,
    "maxIndexNum": 20_000_000,
}


@contextmanager
def apache() -> Iterator[Servers]:
    """Apache RocketMQ 5.5.0's NameServer and broker."""
    with tempfile.TemporaryDirectory(prefix="rocketspark-bench-java-") as folder:
        started = time.perf_counter()
        # As its own start script runs it: the full JIT, G1; a heap that leaves room for the others.
        ApacheBroker.jvm_flags = ("-server", "-XX:+UseG1GC")
        ApacheBroker._flags = ("-Xms2g", "-Xmx2g", "-XX:MaxDirectMemorySize=2g")
        cluster = ApacheCluster(Path(folder), config=dict(JAVA_DEFAULTS))
        try:
            pid = cluster._broker._process.pid
            yield Servers(cluster.namesrv, cluster.broker, pid, time.perf_counter() - started)
        finally:
            cluster.close()


def memory_kib(pid: int) -> dict[str, int]:
    """VmRSS (all resident) and RssAnon (private) of a process, in KiB."""
    text = Path(f"/proc/{pid}/status").read_text()
    return {k: int(v) for k, v in re.findall(r"(VmRSS|RssAnon):\s+(\d+)", text)}


def cpu_seconds(pid: int) -> float:
    """User and system time a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
