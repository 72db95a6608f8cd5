"""Rounds of load on servers, in turn, with what each costs the server."""

from __future__ import annotations

from collections.abc import Callable

from bench.load import Load
from bench.peers import Servers, cpu_seconds
from bench.report import Figure, Row, progress, rates_row

Act = Callable[[Servers], Load]


def figure(servers: Servers, act: Act, pid: int | None = None) -> Figure:
    """One round: the load and the processor seconds that the server took for it."""
    before = cpu_seconds(pid or servers.pid)
    load = act(servers)
    after = cpu_seconds(pid or servers.pid)
    if load.busy:
        print(f"  {servers.name}: {load.busy} requests were answered with busy and do not count", flush=True)
    return Figure(load.done, load.seconds, after - before, load.tool_cpu_s)


def compare(name: str, unit: str, runs: int, mine: Servers, java: Servers | None, act: Act) -> Row:
    """The same load on both in turn, `runs` times: one row."""
    pairs = []
    for number in range(runs):
        progress(f"{name}: round {number + 1} of {runs}")
        pairs.append((figure(mine, act), figure(java, act) if java else None))
    return rates_row(name, unit, pairs)
