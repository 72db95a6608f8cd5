"""How quickly the embedded server is there, and what it takes when idle."""

from __future__ import annotations

import statistics

from bench.peers import memory_kib, ours
from bench.plan import Plan
from bench.report import Row, show


def run(plan: Plan) -> list[Row]:
    """Seconds from the command until both addresses serve, and resident memory then."""
    ready_ms, resident_mib, private_mib = [], [], []
    for _ in range(plan.of(max(plan.rounds(), 3), 3, 1)):
        with ours() as servers:
            memory = memory_kib(servers.pid)
            ready_ms.append(servers.ready_s * 1000)
            resident_mib.append(memory["VmRSS"] / 1024)
            private_mib.append(memory["RssAnon"] / 1024)
    rows = [
        Row("server command until ready", statistics.median(ready_ms), None, "ms"),
        Row("resident memory, idle (VmRSS)", statistics.median(resident_mib), None, "MiB"),
        Row("private memory, idle (RssAnon)", statistics.median(private_mib), None, "MiB"),
    ]
    show(rows)
    return rows
