"""Sends to `rocketspark server --brokers N`: a load process for each broker, and the processor time of each process.

On two cores two brokers and two tools share what one broker and one tool had; what each message costs tells more than
the rate there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from bench.fill import create_topic
from bench.load import Load
from bench.peers import Servers, cpu_seconds, memory_kib, ours
from bench.plan import Plan
from bench.report import Figure, Row, progress, rates_row, show, values_row

TOPIC = "bench-brokers"
QUEUES = 4
WINDOW = 64
PROCESS_S_MAX = 60.0


def load_all(servers: Servers, seconds: float) -> list[Load]:
    """Sends to every broker at once, each by a process of its own."""
    processes = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "bench.raw_send", address, "--topic", TOPIC, "--json"),
                *("--window", str(WINDOW), "--seconds", str(seconds)),
            ],
            cwd=Path(__file__).resolve().parents[1],
            stdout=subprocess.PIPE,
            text=True,
        )
        for address in servers.brokers
    ]
    try:
        return [Load(**json.loads(process.communicate(timeout=PROCESS_S_MAX)[0])) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def one_round(servers: Servers, seconds: float) -> tuple[Figure, list[float], list[float]]:
    """The whole, and processor seconds per second of each broker and of each tool."""
    before = [cpu_seconds(pid) for pid in servers.pids]
    loads = load_all(servers, seconds)
    used = [cpu_seconds(pid) - b for pid, b in zip(servers.pids, before, strict=True)]
    taken = max(load.seconds for load in loads)
    # Each rate in its own time: the tools do not start in the same instant.
    count = sum(load.per_second for load in loads) * taken
    whole = Figure(round(count), taken, sum(used), sum(load.tool_cpu_s for load in loads))
    cores = [u / load.seconds for u, load in zip(used, loads, strict=True)]
    return whole, cores, [load.tool_cpu_s / load.seconds for load in loads]


def run(plan: Plan) -> list[Row]:
    """Ours alone, N = 1 and 2 in turn."""
    seconds = plan.of(3.0, 1.0, 0.1)
    rows: list[Row] = []
    with ours(config=plan.config) as one, ours("--brokers", "2", config=plan.config) as two:
        for servers in (one, two):
            for address in servers.brokers:
                create_topic(address, TOPIC, QUEUES)
        found: dict[int, list[tuple[Figure, list[float], list[float]]]] = {1: [], 2: []}
        for number in range(plan.rounds()):
            progress(f"round {number + 1}")
            for servers in (one, two):
                found[len(servers.brokers)].append(one_round(servers, seconds))
        for count, rounds in found.items():
            name = f"--brokers {count}, {WINDOW} in flight on each"
            rows.append(rates_row(name, "msg/s", [(r[0], None) for r in rounds]))
            for at in range(count):
                rows.append(values_row(f"  broker {at + 1}: CPU", "s/s", [(r[1][at], None) for r in rounds]))
                rows.append(values_row(f"  load tool {at + 1}: CPU", "s/s", [(r[2][at], None) for r in rounds]))
        ratios = [b[0].rate / a[0].rate for a, b in zip(found[1], found[2], strict=True)]
        rows.append(values_row("two brokers beside one", "x", [(r, None) for r in ratios]))
        names = ("--brokers 1", "--brokers 2, first", "--brokers 2, second")
        for name, pid in zip(names, (*one.pids, *two.pids), strict=True):
            memory = memory_kib(pid)
            for what in ("RssAnon", "VmRSS"):
                rows.append(values_row(f"{name}: {what}", "MiB", [(memory[what] / 1024, None)]))
    show(rows)
    return rows
