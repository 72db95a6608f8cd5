"""Raw sends to ours and to the Java broker, in turn, and the ratio of their medians."""

from __future__ import annotations

import statistics

from bench import raw_send
from bench.peers import Servers, apache, memory_kib, ours
from bench.report import Row, show

CASES = ((1, 128), (16, 128), (64, 128), (256, 128), (1, 1024), (16, 1024), (64, 1024), (256, 1024))
WARM_UP_S = 4.0


def run(runs: int = 3, seconds: float = 2.0) -> list[Row]:
    """One row per window and body size: messages per second, ours first."""
    rows = []
    with ours() as mine, apache() as java:
        for servers in (java, mine):
            # The JIT doubles the Java broker's rate: both get the same rounds first.
            for window in (1, 64, 256):
                _rate(servers, window, 128, WARM_UP_S / 2)
        for window, body_bytes in CASES:
            pairs = []
            for _ in range(runs):
                pairs.append((_rate(mine, window, body_bytes, seconds), _rate(java, window, body_bytes, seconds)))
            rows.append(
                Row(
                    f"send, {window} in flight, {body_bytes} B",
                    statistics.median(p[0] for p in pairs),
                    statistics.median(p[1] for p in pairs),
                    "msg/s",
                    statistics.median(p[0] / p[1] for p in pairs),
                )
            )
            show([rows[-1]], heading=len(rows) == 1)
        for name, servers in (("ours", mine), ("java", java)):
            memory = memory_kib(servers.pid)
            print(f"  {name}: RssAnon {memory['RssAnon'] >> 10} MiB, VmRSS {memory['VmRSS'] >> 10} MiB after the sends")
    return rows


def _rate(servers: Servers, window: int, body_bytes: int, seconds: float) -> float:
    return raw_send.run(
        servers.broker, "BenchmarkTest", window=window, body_bytes=body_bytes, seconds=seconds
    ).per_second
